//! The real sources: the catalog of built-in templates, the store of layers, and registries.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use atoll_image::oci::{Auth, Registry, RegistryError};
use atoll_image::{Catalog, Images, TemplateManifest};
use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{Fetch, Fetched, MakeProgress, RegistryAuth, TemplateRecord, TemplateSource, shown};
use crate::ServiceError;

/// LIMIT: bytes of a list of users; a longer file is ignored.
const PASSWD_BYTES: u64 = 1 << 20;

/// Catalog, images and registries of one server.
pub struct TemplateSources {
    /// Built-in templates; it uses the same images.
    pub catalog: Arc<Catalog>,
    /// Layers and versions.
    pub images: Arc<Images>,
    /// The registries of images.
    pub registry: Arc<Registry>,
}

impl TemplateSource for TemplateSources {
    fn resolve(&self, name: &str) -> Result<TemplateRecord, ServiceError> {
        TemplateSource::resolve(&*self.catalog, name)
    }

    fn pinned(&self, name: &str, version: &str) -> Result<TemplateRecord, ServiceError> {
        TemplateSource::pinned(&*self.catalog, name, version)
    }

    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError> {
        TemplateSource::list(&*self.catalog)
    }

    fn names(&self) -> Result<Vec<String>, ServiceError> {
        TemplateSource::names(&*self.catalog)
    }

    fn make(&self, name: &str, progress: MakeProgress) -> Result<TemplateRecord, ServiceError> {
        TemplateSource::make(&*self.catalog, name, progress)
    }

    fn remove(&self, name: &str) -> Result<(), ServiceError> {
        TemplateSource::remove(&*self.catalog, name)
    }

    fn images(&self) -> Option<Arc<Images>> {
        Some(Arc::clone(&self.images))
    }

    fn user_ids(&self, template: &str, version: &str, user: &str) -> Option<(u32, u32)> {
        TemplateSource::user_ids(&*self.catalog, template, version, user)
    }

    fn pull(&self, images: Arc<Images>, ask: Fetch) -> BoxFuture<'static, Result<Fetched, ServiceError>> {
        let registry = Arc::clone(&self.registry);
        async move {
            let auth = auth(ask.auth, ask.operator);
            let Fetch { image, platform, known, progress, .. } = ask;
            let pulled =
                registry.pull_for(known, &images, &image, auth, platform.as_deref(), progress).await?;
            Ok(Fetched { version: pulled.version, manifest: pulled.manifest_digest })
        }
        .boxed()
    }

    fn push(
        &self,
        images: Arc<Images>,
        version: String,
        ask: Fetch,
    ) -> BoxFuture<'static, Result<String, ServiceError>> {
        let registry = Arc::clone(&self.registry);
        async move {
            let auth = auth(ask.auth, ask.operator);
            Ok(registry.push(&images, &version, &ask.image, auth, ask.progress).await?.manifest_digest)
        }
        .boxed()
    }
}

impl TemplateSource for Catalog {
    fn resolve(&self, name: &str) -> Result<TemplateRecord, ServiceError> {
        Ok(record(&*self.get(name)?))
    }

    fn pinned(&self, name: &str, version: &str) -> Result<TemplateRecord, ServiceError> {
        Ok(record(&*Catalog::pinned(self, name, version)?))
    }

    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError> {
        Ok(Catalog::list(self)?.iter().map(|template| record(template)).collect())
    }

    fn names(&self) -> Result<Vec<String>, ServiceError> {
        Ok(Catalog::names(self)?)
    }

    fn make(&self, name: &str, mut progress: MakeProgress) -> Result<TemplateRecord, ServiceError> {
        Ok(record(&*Catalog::make(self, name, &mut *progress)?))
    }

    fn remove(&self, name: &str) -> Result<(), ServiceError> {
        Ok(Catalog::remove(self, name)?)
    }

    fn user_ids(&self, template: &str, version: &str, user: &str) -> Option<(u32, u32)> {
        let layers = Catalog::pinned(self, template, version).ok()?.layers.clone();
        layers.iter().find_map(|layer| passwd(layer)).and_then(|text| ids_in(&text, user))
    }
}

fn record(manifest: &TemplateManifest) -> TemplateRecord {
    TemplateRecord {
        name: manifest.name.clone(),
        version: manifest.digest.clone(),
        aliases: manifest.aliases.clone(),
        kind: match manifest.kind {
            atoll_image::TemplateKind::Host => "host".to_owned(),
            atoll_image::TemplateKind::Rootfs => "rootfs".to_owned(),
        },
        user: manifest.default_user.clone(),
        workdir: manifest.workdir.clone(),
        env: manifest.env.clone(),
        sudo: manifest.sudo,
        command: manifest.start_command.clone(),
        created_at_ms: manifest.created_at.as_millisecond(),
        ..TemplateRecord::default()
    }
}

fn auth(asked: Option<RegistryAuth>, operator: bool) -> Auth {
    match asked {
        Some(RegistryAuth::Basic { username, password }) => Auth::Basic { username, password },
        Some(RegistryAuth::Token(token)) => Auth::Bearer(token),
        None if operator => Auth::Operator,
        None => Auth::Anonymous,
    }
}

impl From<RegistryError> for ServiceError {
    fn from(error: RegistryError) -> Self {
        shown(error.code(), error.to_string(), error.hint()).caused_by(error)
    }
}

/// The list of users in a layer. Files of a template are untrusted: links in them are not followed.
fn passwd(layer: &Path) -> Option<String> {
    let folder =
        rustix::fs::open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let file = rustix::fs::openat2(
        &folder,
        "etc/passwd",
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .ok()?;
    let file = std::fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(PASSWD_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

fn ids_in(passwd: &str, user: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        (name == user || uid == user).then_some((uid.parse().ok()?, gid.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let text = "root:x:0:0:root:/root:/bin/sh\nodd\nuser:x:1000:1001::/home/user:/bin/bash\n:::\n";
        assert_eq!(ids_in(text, "user"), Some((1000, 1001)));
        assert_eq!(ids_in(text, "1000"), Some((1000, 1001)));
        assert_eq!(ids_in(text, "root"), Some((0, 0)));
        assert_eq!(ids_in(text, "nobody"), None);
    }

    #[test]
    fn a_link_in_place_of_the_list_is_not_followed() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("etc")).expect("a folder");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("etc/passwd")).expect("a link");
        assert_eq!(passwd(dir.path()), None);
    }
}
