//! A version as the engine starts it, and the settings found in its files.

use std::path::PathBuf;

use super::layer::StoredLayer;
use super::version::{DetectedSettings, NewVersion};
use super::view::View;
use super::{ImageError, Images};
use crate::layers::Digest;
use crate::manifest::{TemplateKind, TemplateManifest};
use crate::template::Template;

/// LIMIT: bytes of passwd and group that are read; the agent reads as much.
const ACCOUNTS_MAX: u64 = 1 << 20;
const SETUID: u32 = 0o4000;

impl Images {
    /// The template that the engine starts. Every folder is checked: an incomplete version is refused as damaged.
    pub fn template(&self, version: &str) -> Result<Template, ImageError> {
        let version = self.version(version)?;
        let base = version.base.as_ref().map(|(name, digest)| self.base(name, digest)).transpose()?;
        let files = base.as_ref().and_then(|base| base.layers.first());
        let layers = self.folders(&version.found.stack, files.map(PathBuf::as_path));
        let damaged =
            |why: String| ImageError::Damaged { what: format!("template version {}", version.digest), why };
        if layers.is_empty() || layers.len() != version.found.stack.len() {
            return Err(damaged("it has no files".into()));
        }
        if let Some(missing) = layers.iter().find(|folder| !folder.is_dir()) {
            tracing::error!(version = version.digest, folder = %missing.display(), "a layer is missing");
            return Err(damaged("the files of a layer are missing".into()));
        }
        for layer in &version.layers {
            if !self.layer_folder(layer).is_dir() {
                return Err(damaged(format!("layer {layer} is missing")));
            }
        }
        let name: String = version.digest.chars().skip("sha256:".len()).take(12).collect();
        let mut manifest = TemplateManifest::new(&name, TemplateKind::Rootfs, version.digest);
        let path = manifest.env.remove("PATH");
        manifest.env = version.settings.env;
        manifest.env.entry("PATH".to_owned()).or_insert(path.unwrap_or_default());
        manifest.default_user = version.found.user;
        manifest.home = version.found.home;
        manifest.workdir =
            version.settings.workdir.filter(|path| path.starts_with('/')).unwrap_or_else(|| "/".into());
        manifest.sudo = version.found.sudo;
        manifest.start_command = version.settings.command;
        manifest.created_at = version.created_at;
        Ok(Template { manifest, layers, usr_overlay: None })
    }

    /// Reads the settings from the files of a new version.
    pub(super) fn found(
        &self,
        new: &NewVersion,
        layers: &[StoredLayer],
    ) -> Result<DetectedSettings, ImageError> {
        let base = new.base.as_ref().map(|(name, digest)| self.base(name, digest)).transpose()?;
        let files = base.as_ref().and_then(|base| base.layers.first()).map(PathBuf::as_path);
        let digest = new.base.as_ref().map(|(_, digest)| digest.as_str());
        let stack = self.stack(layers, digest.zip(files))?;
        let folders = self.folders(&stack, files);
        let view = View::open(folders.iter().map(PathBuf::as_path))?;
        let asked = new.settings.user.as_deref().filter(|user| !user.is_empty());
        let accounts = Accounts::read(&view)?;
        let user = match (asked, &base) {
            (Some(user), _) => accounts.in_numbers(user),
            (None, Some(base)) => base.default_user.clone(),
            (None, None) => "root".to_owned(),
        };
        Ok(DetectedSettings { home: accounts.home_of(&user), sudo: has_sudo(&view)?, user, stack })
    }

    /// The built-in template that a version is based on.
    fn base(&self, name: &str, digest: &str) -> Result<Template, ImageError> {
        let unsupported = |what: &str| ImageError::Unsupported { what: what.to_owned() };
        crate::name::check_name(name)?;
        let Some(templates) = self.templates.get() else {
            return Err(unsupported("this image store has no built-in templates"));
        };
        let folder = templates.join(name);
        if !folder.is_dir() {
            return Err(crate::TemplateError::NotFound { name: name.to_owned(), near: Vec::new() }.into());
        }
        let host = crate::host::NAME;
        if name == host {
            return Err(unsupported(
                "the template host cannot be the base of a build, because its files belong to this machine; use debian",
            ));
        }
        let manifest = TemplateManifest::read(&folder)?;
        if manifest.digest != digest {
            return Err(
                crate::TemplateError::Replaced { name: name.to_owned(), wanted: digest.to_owned() }.into()
            );
        }
        Ok(Template { manifest, layers: vec![folder.join("rootfs")], usr_overlay: None })
    }

    /// The files of a version's base.
    pub(super) fn base_files(&self, base: &(String, String)) -> Result<PathBuf, ImageError> {
        let mut template = self.base(&base.0, &base.1)?;
        Ok(template.layers.remove(0))
    }

    /// How many versions are based on a built-in template.
    pub(crate) fn standing_on(&self, name: &str) -> Result<usize, ImageError> {
        let all = self.all_versions()?;
        Ok(all.iter().filter(|version| version.base.as_ref().is_some_and(|(base, _)| base == name)).count())
    }

    /// All versions that can be read.
    pub(super) fn all_versions(&self) -> Result<Vec<super::ImageVersion>, ImageError> {
        let folder = self.dir.join(super::VERSIONS);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(ImageError::io("list", &folder))? {
            let entry = entry.map_err(ImageError::io("list", &folder))?;
            let name = entry.file_name();
            let Some(hex) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            let Ok(digest) = Digest::parse(hex) else { continue };
            match self.version(&digest.to_string()) {
                Ok(version) => found.push(version),
                Err(ImageError::NotFound { .. }) => {}
                Err(cause) => tracing::warn!(%digest, %cause, "a template version cannot be read"),
            }
        }
        Ok(found)
    }
}

/// Whether the files contain a usable sudo.
fn has_sudo(view: &View) -> Result<bool, ImageError> {
    for path in [&b"usr/bin/sudo"[..], b"bin/sudo"] {
        if let Some(seen) = view.find(path)?
            && seen.stat.st_mode & SETUID != 0
            && seen.stat.st_uid == 0
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The users of an image, from its own files, which are untrusted input.
struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    fn read(view: &View) -> Result<Self, ImageError> {
        let text = |path: &[u8]| -> Result<String, ImageError> {
            let bytes = view.read(path, ACCOUNTS_MAX)?.unwrap_or_default();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Self { passwd: text(b"etc/passwd")?, group: text(b"etc/group")? })
    }

    /// `name:group` as numbers if both are known; the agent understands all other forms unchanged.
    fn in_numbers(&self, user: &str) -> String {
        let Some((name, group)) = user.split_once(':') else { return user.to_owned() };
        let number = |text: &str, file: &str| {
            text.parse::<u32>().ok().or_else(|| field(file, 0, text)?.nth(2)?.parse().ok())
        };
        match (number(name, &self.passwd), number(group, &self.group)) {
            (Some(uid), Some(gid)) => format!("{uid}:{gid}"),
            _ => user.to_owned(),
        }
    }

    fn home_of(&self, user: &str) -> String {
        let name = user.split(':').next().unwrap_or(user);
        let line = field(&self.passwd, 0, name).or_else(|| field(&self.passwd, 2, name));
        match line.and_then(|mut line| line.nth(5)) {
            Some(home) if home.starts_with('/') && !home.contains(char::is_control) => home.to_owned(),
            _ if matches!(name, "root" | "0") => "/root".to_owned(),
            _ => "/".to_owned(),
        }
    }
}

/// The fields of the first line whose field `at` is `value`.
fn field<'a>(file: &'a str, at: usize, value: &str) -> Option<std::str::Split<'a, char>> {
    let line = file.lines().find(|line| line.split(':').nth(at) == Some(value))?;
    Some(line.split(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let accounts = Accounts {
            passwd: "root:x:0:0::/root:/bin/sh\nbroken\nweb:x:33:33::/var/www:\nodd:x:7:7::relative:\n"
                .into(),
            group: "web:x:33:\nstaff:x:50:\n".into(),
        };
        for (user, home) in [
            ("root", "/root"),
            ("web", "/var/www"),
            ("33:50", "/var/www"),
            ("odd", "/"),
            ("nobody", "/"),
            ("12345", "/"),
        ] {
            assert_eq!(accounts.home_of(user), home, "{user}");
        }
        for (user, numbers) in
            [("web", "web"), ("web:staff", "33:50"), ("1:2", "1:2"), ("web:none", "web:none")]
        {
            assert_eq!(accounts.in_numbers(user), numbers);
        }
        let empty = Accounts { passwd: String::new(), group: String::new() };
        assert_eq!((empty.home_of("root"), empty.home_of("0")), ("/root".into(), "/root".into()));
    }

    #[test]
    fn any_accounts_of_an_image_give_an_absolute_home() {
        atoll_robustness::check("image_accounts", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let (passwd, group) = text.split_once("\n\n").unwrap_or((&text, ""));
            let accounts = Accounts { passwd: passwd.to_owned(), group: group.to_owned() };
            for user in ["root", "web", "33:50", "web:staff", "", text.split(':').next().unwrap_or_default()]
            {
                assert!(accounts.home_of(user).starts_with('/'));
                let _ = accounts.in_numbers(user);
            }
        });
    }
}
