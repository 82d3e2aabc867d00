//! The folder of templates: finding, adding and removing them.
//!
//! A template is added completely or not at all, and found by its name or one of its aliases. `host` exists in
//! versions, one per state of the host's packages; a lookup returns the current version, which is made at once (about a
//! second) if missing.
//!
//! The catalog does not know which sandboxes use a template. The caller does, and must not remove a template that a
//! sandbox uses.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_disk::{Purpose, is_full};

use crate::debian::{DebianSource, Recipe};
use crate::environment::{debian_mirror, default_cache_dir};
use crate::error::TemplateError;
use crate::host::{self, Fingerprint, HostSource};
use crate::images::Images;
use crate::manifest::{self, TemplateManifest};
use crate::name;
use crate::staging::{self, Staging};
use crate::template::Template;
use crate::tool::Progress;
use crate::{busybox, debian};

/// All templates of one server.
#[derive(Debug)]
pub struct Catalog {
    dir: PathBuf,
    cache: PathBuf,
    host: HostSource,
    debian: DebianSource,
    /// The last host version, so that a create only has to check it. The lock also lets only one thread make a version
    /// at a time.
    current_host: Mutex<Option<Template>>,
    /// Versions made of layers: templates of tenants, and intermediate results of builds.
    images: Option<Arc<Images>>,
}

impl Catalog {
    /// Opens the folder, makes it when missing, and removes the leftovers of interrupted operations.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, TemplateError> {
        let dir = dir.into();
        std::fs::create_dir_all(&dir).map_err(TemplateError::io("create", &dir))?;
        // Files inside have canonical ids: root's setuid programs are real ones on the host. Only root may enter the
        // folder.
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700))
            .map_err(TemplateError::io("close", &dir))?;
        let mut swept = staging::sweep(&dir)?;
        if dir.join(host::NAME).is_dir() {
            swept += staging::sweep(&dir.join(host::NAME))?;
        }
        if swept > 0 {
            tracing::info!(swept, "unfinished templates removed");
        }
        Ok(Self {
            dir,
            cache: default_cache_dir(),
            host: HostSource::default(),
            debian: DebianSource {
                suite: None,
                mirror: atoll_outbound::current().mirrors.debian.clone().or_else(debian_mirror),
            },
            current_host: Mutex::new(None),
            images: None,
        })
    }

    /// Uses another cache folder than [`default_cache_dir`].
    pub fn with_cache(self, cache: impl Into<PathBuf>) -> Self {
        Self { cache: cache.into(), ..self }
    }

    /// Uses another host, or also shows `/usr/local` and `/usr/src`.
    pub fn with_host(self, host: HostSource) -> Self {
        Self { host, ..self }
    }

    /// Makes another Debian than the host's.
    pub fn with_debian(self, debian: DebianSource) -> Self {
        Self { debian, ..self }
    }

    /// Also finds versions made of layers, which may be based on the templates of this catalog.
    pub fn with_images(self, images: Arc<Images>) -> Self {
        images.stand_on(&self.dir);
        Self { images: Some(images), ..self }
    }

    /// All templates, by name; of `host` the newest version. Damaged templates are skipped and logged.
    pub fn list(&self) -> Result<Vec<Template>, TemplateError> {
        let mut found = Vec::new();
        for name in subfolders(&self.dir)? {
            if name == host::NAME {
                found.extend(self.host_versions()?.pop());
                continue;
            }
            match self.read(&self.dir.join(&name)) {
                Ok(template) => found.push(template),
                Err(cause) => tracing::warn!(template = name, %cause, "template left out of the list"),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Every name and alias of a built-in or existing template.
    pub fn names(&self) -> Result<Vec<String>, TemplateError> {
        let known =
            [host::NAME, busybox::NAME].into_iter().chain(debian::RECIPES.iter().flat_map(Recipe::names));
        let mut names: Vec<String> = known.map(str::to_owned).collect();
        for template in self.list()? {
            names.push(template.name.clone());
            names.extend(template.aliases.iter().cloned());
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The template with this name or alias. `host` is made when missing or out of date, which may take a second: do
    /// not call it on an async thread.
    pub fn get(&self, name_or_alias: &str) -> Result<Template, TemplateError> {
        name::check_alias(name_or_alias)?;
        if name_or_alias == host::NAME {
            return self.ensure_host();
        }
        if name::check_name(name_or_alias).is_ok()
            && self.dir.join(name_or_alias).join(manifest::FILE).is_file()
        {
            return self.read(&self.dir.join(name_or_alias));
        }
        let all = self.list()?;
        if let Some(template) =
            all.iter().find(|template| template.aliases.iter().any(|alias| alias == name_or_alias))
        {
            return Ok(template.clone());
        }
        let known = all
            .iter()
            .flat_map(|template| std::iter::once(&template.name).chain(&template.aliases))
            .map(String::as_str);
        let near = name::near(name_or_alias, known.chain([host::NAME]));
        Err(TemplateError::NotFound { name: name_or_alias.to_owned(), near })
    }

    /// The exact template that a sandbox was made from, to start it again. Nothing is made; for `host` call
    /// [`crate::verify_host`] too. A version made of layers (`sha256:…`) is found by its digest alone, whatever its
    /// current name is.
    pub fn pinned(&self, name: &str, digest: &str) -> Result<Template, TemplateError> {
        if let (Some(images), true) = (&self.images, digest.starts_with("sha256:")) {
            let mut template = images.template(digest)?;
            template.manifest.name = name.to_owned();
            return Ok(template);
        }
        name::check_name(name)?;
        let replaced = || TemplateError::Replaced { name: name.to_owned(), wanted: digest.to_owned() };
        if name == host::NAME {
            return self
                .host_versions()?
                .into_iter()
                .find(|version| version.digest == digest)
                .ok_or_else(replaced);
        }
        let template = self.get(name)?;
        if template.digest == digest { Ok(template) } else { Err(replaced()) }
    }

    /// The template of the host in its current state; made when missing.
    pub fn ensure_host(&self) -> Result<Template, TemplateError> {
        let mut current = self.lock_host();
        if let Some(template) = current.as_ref()
            && host::verify_host(template).is_ok()
        {
            return Ok(template.clone());
        }
        let template = self.find_or_make_host()?;
        *current = Some(template.clone());
        Ok(template)
    }

    /// Removes versions of the host template that are neither current nor in `used` (digests); returns how many.
    pub fn prune_host(&self, used: &[String]) -> Result<usize, TemplateError> {
        let _turn = self.lock_host();
        let mut removed = 0;
        for version in self.host_versions()? {
            if !used.contains(&version.digest) && host::verify_host(&version).is_err() {
                staging::discard(&self.dir.join(host::NAME).join(&version.digest))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Makes one of the built-in templates: `host`, `busybox`, `debian`, `data-science`, `code-interpreter`,
    /// `code-interpreter-full` or `code-interpreter-slim`. Templates of packages take minutes the first time, and are
    /// cached as an archive.
    pub fn make(&self, name: &str, progress: Progress) -> Result<Template, TemplateError> {
        match name {
            host::NAME => self.ensure_host(),
            busybox::NAME => self.make_busybox(),
            _ => match Recipe::find(name) {
                Some(recipe) => self.make_recipe(recipe, progress),
                None => {
                    name::check_alias(name)?;
                    let ours = debian::RECIPES.iter().map(|recipe| recipe.name);
                    let near = name::near(name, ours.chain([host::NAME, busybox::NAME]));
                    Err(TemplateError::NotFound { name: name.to_owned(), near })
                }
            },
        }
    }

    fn make_recipe(&self, recipe: &Recipe, progress: Progress) -> Result<Template, TemplateError> {
        self.add(recipe.name, |folder| debian::build(recipe, &self.debian, &self.cache, folder, progress))
    }

    /// Makes `busybox` from the host's static program.
    pub fn make_busybox(&self) -> Result<Template, TemplateError> {
        self.add(busybox::NAME, busybox::build)
    }

    /// Removes a template with its files. The caller has made sure that no sandbox uses it.
    pub fn remove(&self, name: &str) -> Result<(), TemplateError> {
        name::check_name(name)?;
        let folder = self.dir.join(name);
        if !folder.is_dir() {
            return Err(TemplateError::NotFound { name: name.to_owned(), near: Vec::new() });
        }
        if let Some(images) = &self.images {
            let standing = images.standing_on(name)?;
            if standing > 0 {
                return Err(TemplateError::InUse { name: name.to_owned(), standing });
            }
        }
        let mut current = self.lock_host();
        if name == host::NAME {
            *current = None;
        }
        staging::discard(&folder)
    }

    /// Adds a template whose folder `fill` fills (rootfs and manifest); completely or not at all.
    pub(crate) fn add(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<(), TemplateError>,
    ) -> Result<Template, TemplateError> {
        name::check_name(name)?;
        let folder = self.dir.join(name);
        // Checked before the work, not only after it.
        if folder.exists() {
            return Err(TemplateError::Exists { name: name.to_owned() });
        }
        self.need_room(name, Recipe::find(name).map_or(0, Recipe::unpacked_bytes))?;
        let staging = Staging::new(&self.dir)?;
        fill(staging.path())?;
        // The programs that wrote it do not respect the reserve.
        self.need_room(name, 0)?;
        self.check_aliases(name, &TemplateManifest::read(staging.path())?.aliases)?;
        staging.publish(name, &folder)?;
        self.read(&folder)
    }

    /// Refuses work that would leave less free space than the reserve of the disk.
    fn need_room(&self, name: &str, bytes: u64) -> Result<(), TemplateError> {
        let Some(images) = &self.images else { return Ok(()) };
        let free = images.disk().room(&self.dir, Purpose::Data).unwrap_or(0);
        images.disk().admit(&self.dir, Purpose::Data, bytes).map_err(|cause| match is_full(&cause) {
            // Without a size the reserve is used up already.
            true => TemplateError::no_room(name, "keeping", &self.dir, (bytes.max(1), free)),
            false => TemplateError::io("inspect", &self.dir)(cause),
        })
    }

    fn check_aliases(&self, name: &str, aliases: &[String]) -> Result<(), TemplateError> {
        let mut owners: HashMap<String, String> = HashMap::new();
        for template in self.list()? {
            owners.insert(template.name.clone(), template.name.clone());
            owners.extend(template.aliases.iter().map(|alias| (alias.clone(), template.name.clone())));
        }
        for alias in aliases.iter().map(String::as_str).chain([name]) {
            name::check_alias(alias)?;
            if let Some(owner) = owners.get(alias) {
                return Err(TemplateError::AliasTaken { alias: alias.to_owned(), owner: owner.clone() });
            }
        }
        Ok(())
    }

    fn find_or_make_host(&self) -> Result<Template, TemplateError> {
        if let Some(version) =
            self.host_versions()?.into_iter().rev().find(|version| self.is_current(version))
        {
            return self.refreshed(version);
        }
        let versions = self.dir.join(host::NAME);
        std::fs::create_dir_all(&versions).map_err(TemplateError::io("create", &versions))?;
        let fingerprint = Fingerprint::take(&self.host)?;
        let id = fingerprint.id();
        let folder = versions.join(&id);
        let staging = Staging::new(&versions)?;
        host::build(&self.host, fingerprint.clone(), staging.path())?;
        // Packages that changed during the copy would give a mixture of two states.
        fingerprint.check()?;
        match staging.publish(host::NAME, &folder) {
            // Another process was faster; its version is of the same state.
            Ok(()) | Err(TemplateError::Exists { .. }) => self.read(&folder),
            Err(other) => Err(other),
        }
    }

    fn is_current(&self, version: &Template) -> bool {
        version
            .host
            .as_ref()
            .is_some_and(|fingerprint| fingerprint.fits(&self.host) && fingerprint.check().is_ok())
    }

    /// Stores new times of unchanged files, so that later checks need not hash them again.
    fn refreshed(&self, mut version: Template) -> Result<Template, TemplateError> {
        let now = Fingerprint::take(&self.host)?;
        if version.manifest.host.as_ref() != Some(&now) && now.id() == version.digest {
            version.manifest.host = Some(now);
            version.manifest.write(&self.dir.join(host::NAME).join(&version.digest))?;
        }
        Ok(version)
    }

    /// All complete versions of the host template, oldest first.
    fn host_versions(&self) -> Result<Vec<Template>, TemplateError> {
        let folder = self.dir.join(host::NAME);
        if !folder.is_dir() {
            return Ok(Vec::new());
        }
        let mut versions: Vec<Template> =
            subfolders(&folder)?.iter().filter_map(|id| self.read(&folder.join(id)).ok()).collect();
        versions.sort_by_key(|version| version.created_at);
        Ok(versions)
    }

    fn read(&self, folder: &Path) -> Result<Template, TemplateError> {
        Ok(Template::at(folder, TemplateManifest::read(folder)?, &self.host.usr()))
    }

    fn lock_host(&self) -> MutexGuard<'_, Option<Template>> {
        // The lock guards a cache: a thread that panicked while holding it has left no invalid state.
        self.current_host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `make` can make a template of this name.
#[must_use]
pub fn is_built_in(name: &str) -> bool {
    let known = debian::RECIPES.iter().map(|recipe| recipe.name).chain([host::NAME, busybox::NAME]);
    known.chain(crate::BUILT_RECIPES.iter().map(|recipe| recipe.name)).any(|known| known == name)
}

/// The names of folders that may be templates. Hidden ones are being made or removed.
fn subfolders(dir: &Path) -> Result<Vec<String>, TemplateError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(TemplateError::io("list", dir))? {
        let entry = entry.map_err(TemplateError::io("list", dir))?;
        // A symbolic link to a folder is also found by its name.
        let is_folder = entry.path().is_dir();
        if let Ok(name) = entry.file_name().into_string()
            && is_folder
            && name::check_name(&name).is_ok()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
