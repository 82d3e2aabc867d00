//! What was put here, as the context of a build: one tar of all that its Dockerfile copies from.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use atoll_front_kit::ApiError;
use atoll_model::TenantId;
use atoll_service::BuildContext;

use super::Storage;
use super::objects::is_hash;

/// LIMIT: each is a call that adds files to an image.
const CONTEXTS_MAX: usize = 64;

impl Storage {
    /// The contexts of these hashes, one behind the other.
    pub(crate) async fn context(
        &self,
        tenant: &TenantId,
        hashes: &[String],
    ) -> Result<BuildContext, ApiError> {
        if hashes.len() > CONTEXTS_MAX {
            return Err(ApiError::invalid(format!("contextHashes: has more than {CONTEXTS_MAX} entries")));
        }
        let mut paths = Vec::new();
        for hash in hashes {
            let path = self.objects.path(tenant, hash);
            if !is_hash(hash) || !path.is_file() {
                return Err(ApiError::invalid(format!(
                    "contextHashes: {hash:?} was not uploaded, or its upload has expired"
                )));
            }
            paths.push(path);
        }
        if paths.len() > 1
            && let Some(space) = &mut self.objects.space(tenant).await?
        {
            let sizes = paths.iter().filter_map(|path| path.metadata().ok()).map(|found| found.len());
            space.take_again(sizes.sum())?;
        }
        let merged = tokio::task::spawn_blocking(move || merged(&paths)).await;
        match merged {
            Ok(Ok(file)) => Ok(Box::new(tokio::fs::File::from_std(file))),
            Ok(Err(cause)) if cause.kind() == io::ErrorKind::Other => {
                Err(ApiError::invalid("contextHashes: a context is not a tar archive").caused_by(cause))
            }
            Ok(Err(cause)) => {
                Err(ApiError::new(atoll_model::Code::Internal, "the contexts could not be read")
                    .caused_by(cause))
            }
            Err(_) => Err(ApiError::new(atoll_model::Code::Internal, "the contexts could not be read")),
        }
    }
}

/// One tar of all; they are used now, so they are kept for longer.
#[expect(clippy::disallowed_methods, reason = "the file time that says when a context was used last")]
fn merged(paths: &[PathBuf]) -> io::Result<File> {
    for path in paths {
        File::options().append(true).open(path)?.set_modified(std::time::SystemTime::now())?;
    }
    if let [one] = paths {
        return File::open(one);
    }
    let folder = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new("."));
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| io::Error::from(io::ErrorKind::Interrupted))?;
    let draft = folder.join(format!("merged.{}.part", hex::encode(random)));
    let made = write(paths, &draft);
    let opened = made.and_then(|()| File::open(&draft));
    // Whoever has it open reads it to its end; nobody else shall find it.
    std::fs::remove_file(&draft)?;
    opened
}

/// Entry by entry as they are, long names included.
fn write(paths: &[PathBuf], to: &Path) -> io::Result<()> {
    let archives = paths.iter().map(|path| File::open(path).map(io::BufReader::new));
    atoll_tar::concat(archives, io::BufWriter::new(File::create(to)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;

    fn tar_of(name: &str, content: &str) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        let mut out = tar::Builder::new(Vec::new());
        out.append_data(&mut header, name, content.as_bytes()).unwrap();
        out.into_inner().unwrap()
    }

    #[tokio::test]
    async fn contexts_become_one_tar() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::new(folder.path().to_owned(), 1 << 20, None);
        let tenant = TenantId::from_entropy([1; 20]);
        let [one, two] = ["ab".repeat(16), "cd".repeat(16)];
        let long = "x/".repeat(80) + "b.txt";
        std::fs::create_dir_all(folder.path().join(tenant.as_str())).unwrap();
        std::fs::write(storage.objects.path(&tenant, &one), tar_of("a.txt", "A")).unwrap();
        std::fs::write(storage.objects.path(&tenant, &two), tar_of(&long, "B")).unwrap();
        let mut context = storage.context(&tenant, &[one.clone(), two]).await.unwrap();
        let mut bytes = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut context, &mut bytes).await.unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            found.push((name, content));
        }
        assert_eq!(found, [("a.txt".to_owned(), "A".to_owned()), (long, "B".to_owned())]);
        for missing in ["../../etc/passwd".to_owned(), "ef".repeat(16)] {
            assert!(storage.context(&tenant, &[one.clone(), missing]).await.is_err());
        }
        let left = std::fs::read_dir(folder.path().join(tenant.as_str())).unwrap().count();
        assert_eq!(left, 2);
    }
}
