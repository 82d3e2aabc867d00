//! Objects on disk: `FOLDER/TENANT/HASH.tar`, and what is on its way beside it. A name appears when it is whole.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use atoll_model::TenantId;
use atoll_service::{Service, ServiceError, UploadSpace};
use futures::TryStreamExt;
use tokio::fs;
use tokio::io::AsyncWriteExt;

use super::Refused;
use super::chunks::Bytestream;

/// LIMIT: how long an object is kept that no build uses.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);
/// LIMIT: a tenant keeps so many times the most that one object may hold.
const TENANT_TIMES: u64 = 4;
/// LIMIT: objects and uploads of a tenant that are there at once.
const ENTRIES_MAX: usize = 1_024;
/// What a tenant holds is counted anew whenever this much more has come.
const COUNTED_EVERY: u64 = 64 << 20;
/// LIMIT: that of S3.
const PARTS_MAX: u32 = 10_000;
/// LIMIT: nobody sends nothing for longer.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// All objects. Cloning is cheap.
#[derive(Clone)]
pub(super) struct Objects {
    folder: PathBuf,
    bytes_max: u64,
    service: Option<Service>,
}

/// The one kind of object that there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectKey {
    tenant: TenantId,
    hash: String,
}

impl ObjectKey {
    pub(super) fn parse(key: &str, tenant: &TenantId) -> Result<Self, Refused> {
        Self::of_prefix(key.strip_suffix("context.tar").ok_or(Refused::BadKey)?, tenant)
    }

    /// `ORGANISATION/HASH/`.
    pub(super) fn of_prefix(prefix: &str, tenant: &TenantId) -> Result<Self, Refused> {
        let mut parts = prefix.split('/');
        let (Some(organisation), Some(hash), Some(""), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Refused::BadKey);
        };
        if organisation != tenant.as_str() {
            return Err(Refused::Denied);
        }
        if !is_hash(hash) {
            return Err(Refused::BadKey);
        }
        Ok(Self { tenant: tenant.clone(), hash: hash.to_owned() })
    }

    pub(super) fn text(&self) -> String {
        format!("{}/{}/context.tar", self.tenant, self.hash)
    }
}

/// What the SDKs name contexts by; never a part of a path that leads elsewhere.
pub(super) fn is_hash(text: &str) -> bool {
    (16..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

impl Objects {
    pub(super) const fn new(folder: PathBuf, bytes_max: u64, service: Option<Service>) -> Self {
        Self { folder, bytes_max, service }
    }

    /// Room for one upload of a tenant, whose folder is there.
    pub(super) async fn space(&self, tenant: &TenantId) -> Result<Option<UploadSpace>, ServiceError> {
        match &self.service {
            Some(service) => service.upload_space(tenant, &self.of(tenant)).await.map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn path(&self, tenant: &TenantId, hash: &str) -> PathBuf {
        self.of(tenant).join(format!("{hash}.tar"))
    }

    fn of(&self, tenant: &TenantId) -> PathBuf {
        self.folder.join(tenant.as_str())
    }

    pub(super) async fn size(&self, key: &ObjectKey) -> Option<u64> {
        let found = fs::metadata(self.path(&key.tenant, &key.hash)).await.ok()?;
        found.is_file().then_some(found.len())
    }

    /// A whole object; answers what names its content.
    pub(super) async fn write(&self, key: &ObjectKey, body: Bytestream) -> Result<String, Refused> {
        let folder = self.ready(&key.tenant).await?;
        let draft = folder.join(format!("{}.{}.part", key.hash, random()?));
        let written = self.stream(key, &draft, body).await;
        let moved = match written {
            Ok(_) => fs::rename(&draft, self.path(&key.tenant, &key.hash)).await.map_err(|_| Refused::Broken),
            Err(refused) => Err(refused),
        };
        if moved.is_err() {
            let _ = fs::remove_file(&draft).await;
        }
        moved.map(|()| key.hash.clone())
    }

    /// Begins an upload in parts.
    pub(super) async fn begin(&self, key: &ObjectKey) -> Result<String, Refused> {
        let folder = self.ready(&key.tenant).await?;
        let upload = random()?;
        let parts = folder.join(format!("{}.{upload}.parts", key.hash));
        fs::create_dir(&parts).await.map_err(|_| Refused::Broken)?;
        Ok(upload)
    }

    pub(super) async fn write_part(
        &self,
        key: &ObjectKey,
        upload: &str,
        part: u32,
        body: Bytestream,
    ) -> Result<String, Refused> {
        let parts = self.parts(key, upload).await?;
        if !(1..=PARTS_MAX).contains(&part) {
            return Err(Refused::BadPart);
        }
        let draft = parts.join(format!("{part}.{}.part", random()?));
        let written = match self.stream(key, &draft, body).await {
            Ok(bytes) => {
                let moved = fs::rename(&draft, parts.join(format!("{part:05}"))).await;
                moved.map(|()| bytes).map_err(|_| Refused::Broken)
            }
            Err(refused) => Err(refused),
        };
        if written.is_err() {
            let _ = fs::remove_file(&draft).await;
        }
        written.map(|bytes| format!("p{part}b{bytes}"))
    }

    /// Puts the parts together in the order of their numbers.
    pub(super) async fn finish(&self, key: &ObjectKey, upload: &str) -> Result<(), Refused> {
        let parts = self.parts(key, upload).await?;
        let space = self.space(&key.tenant).await?;
        let (whole, most) = (self.path(&key.tenant, &key.hash), self.bytes_max);
        let joined = tokio::task::spawn_blocking(move || join(&parts, &whole, most, space)).await;
        joined.map_err(|_| Refused::Broken)?
    }

    pub(super) async fn abort(&self, key: &ObjectKey, upload: &str) -> Result<(), Refused> {
        let parts = self.parts(key, upload).await?;
        fs::remove_dir_all(parts).await.map_err(|_| Refused::Broken)
    }

    async fn parts(&self, key: &ObjectKey, upload: &str) -> Result<PathBuf, Refused> {
        if !is_hash(upload) {
            return Err(Refused::NoUpload);
        }
        let parts = self.of(&key.tenant).join(format!("{}.{upload}.parts", key.hash));
        match fs::metadata(&parts).await {
            Ok(found) if found.is_dir() => Ok(parts),
            _ => Err(Refused::NoUpload),
        }
    }

    /// The tenant's folder, if it does not hold too much already.
    async fn ready(&self, tenant: &TenantId) -> Result<PathBuf, Refused> {
        let folder = self.of(tenant);
        fs::create_dir_all(&folder).await.map_err(|_| Refused::Broken)?;
        let looked = folder.clone();
        let entries = tokio::task::spawn_blocking(move || std::fs::read_dir(looked).map(Iterator::count));
        match entries.await {
            Ok(Ok(entries)) if entries < ENTRIES_MAX => Ok(folder),
            Ok(Ok(_)) => Err(Refused::TooMuch),
            Ok(Err(_)) | Err(_) => Err(Refused::Broken),
        }
    }

    /// Whether a tenant may keep more: finished or not, in one piece or in parts.
    async fn has_room(&self, tenant: &TenantId) -> Result<(), Refused> {
        let (looked, most) = (self.of(tenant), self.bytes_max.saturating_mul(TENANT_TIMES));
        match tokio::task::spawn_blocking(move || bytes_below(&looked)).await {
            Ok(held) if held < most => Ok(()),
            Ok(_) => Err(Refused::TooMuch),
            Err(_) => Err(Refused::Broken),
        }
    }

    /// To disk as it comes; answers how much it was.
    async fn stream(&self, key: &ObjectKey, to: &Path, mut body: Bytestream) -> Result<u64, Refused> {
        self.has_room(&key.tenant).await?;
        let mut space = self.space(&key.tenant).await?;
        let mut file = fs::File::create(to).await.map_err(|_| Refused::Broken)?;
        let (mut bytes, mut counted) = (0_u64, 0_u64);
        loop {
            let next = tokio::time::timeout(READ_WITHIN, body.try_next()).await;
            let Some(piece) = next.map_err(|_| Refused::BadBody)?.map_err(|_| Refused::BadBody)? else {
                break;
            };
            bytes += piece.len() as u64;
            if bytes > self.bytes_max {
                return Err(Refused::TooLarge);
            }
            if bytes - counted > COUNTED_EVERY {
                // Others of the same tenant may be on their way too.
                counted = bytes;
                self.has_room(&key.tenant).await?;
            }
            if let Some(space) = &mut space {
                space.take(piece.len() as u64).await?;
            }
            file.write_all(&piece).await.map_err(|error| not_written(&error))?;
        }
        file.flush().await.map_err(|error| not_written(&error))?;
        Ok(bytes)
    }

    /// Removes what nobody used for long.
    pub(super) async fn sweep(&self) {
        let folder = self.folder.clone();
        let swept = tokio::task::spawn_blocking(move || sweep(&folder)).await;
        if let Ok(Err(cause)) = swept {
            tracing::warn!(%cause, "old contexts of builds were not removed");
        }
    }
}

/// A full disk is not our fault.
fn not_written(error: &io::Error) -> Refused {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Refused::Full,
        _ => Refused::Broken,
    }
}

fn join(parts: &Path, whole: &Path, most: u64, mut space: Option<UploadSpace>) -> Result<(), Refused> {
    let broken = |error: io::Error| not_written(&error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(parts).map_err(broken)? {
        let name = entry.map_err(broken)?.file_name().to_string_lossy().into_owned();
        if name.len() == 5 && name.bytes().all(|b| b.is_ascii_digit()) {
            names.push(name);
        }
    }
    names.sort();
    let total: u64 = names.iter().filter_map(|name| parts.join(name).metadata().ok()).map(|m| m.len()).sum();
    if names.is_empty() || total > most {
        return Err(if names.is_empty() { Refused::BadPart } else { Refused::TooLarge });
    }
    let draft = parts.join("whole");
    let mut out = std::fs::File::create(&draft).map_err(broken)?;
    for name in &names {
        let mut part = std::fs::File::open(parts.join(name)).map_err(broken)?;
        if let Some(space) = &mut space {
            space.take_again(part.metadata().map_err(broken)?.len())?;
        }
        io::copy(&mut part, &mut out).map_err(broken)?;
        // What is copied takes no room twice.
        std::fs::remove_file(parts.join(name)).map_err(broken)?;
    }
    std::fs::rename(&draft, whole).map_err(broken)?;
    std::fs::remove_dir_all(parts).map_err(broken)
}

fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[expect(clippy::disallowed_methods, reason = "compared with file times")]
fn sweep(folder: &Path) -> io::Result<()> {
    let tenants = match std::fs::read_dir(folder) {
        Ok(tenants) => tenants,
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(other) => return Err(other),
    };
    let now = SystemTime::now();
    for tenant in tenants {
        for entry in std::fs::read_dir(tenant?.path())? {
            let entry = entry?;
            // What is gone meanwhile was put in its place, or given up, by its own request.
            let Ok(found) = entry.metadata() else { continue };
            let age = found.modified().ok().and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
            if age < KEPT_FOR {
                continue;
            }
            match found.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

fn random() -> Result<String, Refused> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Refused::Broken)?;
    Ok(hex::encode(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures::StreamExt;

    fn body(pieces: &'static [&'static str]) -> Bytestream {
        futures::stream::iter(pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes())))).boxed()
    }

    fn world() -> (tempfile::TempDir, Objects, ObjectKey, TenantId) {
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::new(folder.path().join("contexts"), 16, None);
        let tenant = TenantId::from_entropy([3; 20]);
        let key = ObjectKey::parse(&format!("{tenant}/{}/context.tar", "ab".repeat(16)), &tenant).unwrap();
        (folder, objects, key, tenant)
    }

    #[test]
    fn a_key_is_of_its_tenant_and_leads_nowhere_else() {
        let (_, _, _, tenant) = world();
        let hash = "ab".repeat(16);
        for (key, wanted) in [
            (format!("{tenant}/{hash}/other"), Refused::BadKey),
            (format!("x/{hash}/context.tar"), Refused::Denied),
            (format!("{tenant}/../context.tar"), Refused::BadKey),
            (format!("{tenant}/{hash}/a/context.tar"), Refused::BadKey),
            (format!("{tenant}//context.tar"), Refused::BadKey),
            ("context.tar".to_owned(), Refused::BadKey),
        ] {
            assert_eq!(ObjectKey::parse(&key, &tenant), Err(wanted), "{key}");
        }
    }

    #[tokio::test]
    async fn an_object_is_there_when_it_is_whole_and_not_before() {
        let (_folder, objects, key, tenant) = world();
        assert_eq!(objects.size(&key).await, None);
        objects.write(&key, body(&["hello", " ", "world"])).await.unwrap();
        assert_eq!(objects.size(&key).await, Some(11));
        assert_eq!(std::fs::read(objects.path(&tenant, &key.hash)).unwrap(), b"hello world");
        let broken =
            futures::stream::iter([Ok(Bytes::from_static(b"x")), Err(io::Error::other("gone"))]).boxed();
        assert_eq!(objects.write(&key, broken).await, Err(Refused::BadBody));
        assert_eq!(objects.write(&key, body(&["0123456789abcdefg"])).await, Err(Refused::TooLarge));
        let left: Vec<_> = std::fs::read_dir(objects.of(&tenant)).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing is left of what failed");
    }

    #[tokio::test]
    async fn parts_are_put_together_by_their_numbers() {
        let (_folder, objects, key, tenant) = world();
        let upload = objects.begin(&key).await.unwrap();
        objects.write_part(&key, &upload, 2, body(&["world"])).await.unwrap();
        objects.write_part(&key, &upload, 1, body(&["hello "])).await.unwrap();
        assert_eq!(objects.write_part(&key, &upload, 0, body(&["x"])).await, Err(Refused::BadPart));
        assert_eq!(objects.write_part(&key, "../x", 1, body(&["x"])).await, Err(Refused::NoUpload));
        objects.finish(&key, &upload).await.unwrap();
        assert_eq!(std::fs::read(objects.path(&tenant, &key.hash)).unwrap(), b"hello world");
        assert_eq!(objects.finish(&key, &upload).await, Err(Refused::NoUpload));
    }

    #[tokio::test]
    async fn parts_that_are_never_put_together_count_too() {
        let (_folder, objects, key, tenant) = world();
        let upload = objects.begin(&key).await.unwrap();
        let mut refused = None;
        for part in 1..=64 {
            refused = objects.write_part(&key, &upload, part, body(&["0123456789"])).await.err();
            if refused.is_some() {
                break;
            }
        }
        assert_eq!(refused, Some(Refused::TooMuch));
        assert!(bytes_below(&objects.of(&tenant)) < 16 * (TENANT_TIMES + 1));
        assert_eq!(objects.write(&key, body(&["x"])).await, Err(Refused::TooMuch));
        objects.abort(&key, &upload).await.unwrap();
        assert!(objects.write(&key, body(&["x"])).await.is_ok());
    }

    #[tokio::test]
    async fn uploads_that_are_begun_and_left_are_bounded() {
        let (_folder, objects, key, tenant) = world();
        std::fs::create_dir_all(objects.of(&tenant)).unwrap();
        for number in 0..ENTRIES_MAX {
            std::fs::create_dir(objects.of(&tenant).join(format!("{number}.parts"))).unwrap();
        }
        assert_eq!(objects.begin(&key).await, Err(Refused::TooMuch));
        assert_eq!(objects.write(&key, body(&["x"])).await, Err(Refused::TooMuch));
    }

    #[test]
    fn a_key_that_is_read_is_written_back_the_same() {
        let tenant: TenantId = "abcdefghij0123456789".parse().unwrap();
        atoll_robustness::check("object_key", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(key) = ObjectKey::parse(&text, &tenant) {
                assert_eq!(key.text(), text);
            }
        });
    }
}
