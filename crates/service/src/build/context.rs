//! The folder of a build, and the files it may copy from: archives that the store of uploads received ([`super::uploads`]) as one
//! plain tar. They are bounded before and after they are decompressed; the tar is untrusted, and read by `image::build`.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use atoll_disk::{Guarded, Purpose};
use atoll_image::Images;
use atoll_image::build::{BadContext, gather};
use atoll_model::{BuildId, Code};
use tokio_util::sync::CancellationToken;

use crate::ServiceError;

const PIECE: usize = 256 << 10;

const SENT: &str = "context.sent";
const TAR: &str = "context.tar";
/// The prefix of archives that were sent before the build, by their hash.
const UPLOAD: &str = "upload.";

/// The staged files that a build may copy from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Staged {
    /// Nothing.
    Nothing,
    /// One archive.
    Sent,
    /// Archives that were sent before, by their hashes. Each is a folder of the context.
    Uploads(Vec<String>),
    /// Archives that were sent before, by their hashes. Together they are the context.
    Merged(Vec<String>),
}

/// Where the one archive lies in the folder of a build.
pub(super) fn sent_in(folder: &Path) -> PathBuf {
    folder.join(SENT)
}

/// The path of an archive that was sent before, in the folder of a build.
pub(super) fn upload_in(folder: &Path, hash: &str) -> PathBuf {
    folder.join(format!("{UPLOAD}{hash}"))
}

/// The folder of all builds.
pub(super) fn root(data: &Path) -> PathBuf {
    data.join("builds")
}

/// The folder of one build.
pub(super) fn folder(data: &Path, id: &BuildId) -> PathBuf {
    root(data).join(id.as_str())
}

/// Removes staged files and keeps the log.
pub(super) fn remove_staged(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_staged =
            name.to_str().is_some_and(|name| matches!(name, SENT | TAR) || name.starts_with(UPLOAD));
        if is_staged && let Err(error) = std::fs::remove_file(entry.path()) {
            tracing::warn!(folder = %folder.display(), ?name, %error, "the context of a build could not be removed");
        }
    }
}

/// Removes the folder again unless the build is recorded.
pub(super) struct Staging {
    folder: Option<PathBuf>,
}

impl Staging {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    pub(super) fn keep(mut self) {
        self.folder = None;
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take()
            && let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %folder.display(), %error, "the folder of a refused build could not be removed");
        }
    }
}

/// The received context as a plain tar; blocks.
pub(super) fn unfold(folder: &Path, images: &Images, limit: u64) -> Result<PathBuf, ServiceError> {
    let (sent, tar) = (folder.join(SENT), folder.join(TAR));
    let file = File::open(&sent).map_err(not_written)?;
    if !is_compressed(&file).map_err(not_written)? {
        std::fs::rename(&sent, &tar).map_err(not_written)?;
        return Ok(tar);
    }
    let broken = |cause: std::io::Error| {
        ServiceError::new(Code::InvalidRequest, "the context cannot be decompressed").caused_by(cause)
    };
    let mut from = atoll_image::oci::unzip::Unzip::new(file).map_err(broken)?;
    let mut to = guarded(&tar, images)?;
    let mut piece = vec![0; PIECE];
    let mut bytes = 0u64;
    loop {
        let read = from.read(&mut piece).map_err(broken)?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        if bytes > limit {
            return Err(too_large(limit));
        }
        to.write_all(&piece[..read]).map_err(not_written)?;
    }
    std::fs::remove_file(&sent).map_err(not_written)?;
    Ok(tar)
}

/// All archives that were sent before as one plain tar, each in a folder named by its hash; blocks.
pub(super) fn gathered(
    folder: &Path,
    hashes: &[String],
    images: &Images,
    limit: u64,
    cancel: &CancellationToken,
) -> Result<PathBuf, ServiceError> {
    let tar = folder.join(TAR);
    let paths: Vec<PathBuf> = hashes.iter().map(|hash| upload_in(folder, hash)).collect();
    let parts: Vec<(&str, &Path)> =
        hashes.iter().map(String::as_str).zip(paths.iter().map(PathBuf::as_path)).collect();
    gather(&parts, &mut guarded(&tar, images)?, limit, cancel).map_err(|bad| match bad {
        BadContext::Read(cause) => not_written(cause),
        BadContext::TooMany { limit, .. } => too_large(limit),
        bad => super::stages::bad_context(bad),
    })?;
    for path in paths {
        std::fs::remove_file(path).map_err(not_written)?;
    }
    Ok(tar)
}

/// All archives that were sent before as one plain tar, the entries of each behind those of the one before; blocks.
pub(super) fn merged(
    folder: &Path,
    hashes: &[String],
    images: &Images,
    limit: u64,
) -> Result<PathBuf, ServiceError> {
    let tar = folder.join(TAR);
    let paths: Vec<PathBuf> = hashes.iter().map(|hash| upload_in(folder, hash)).collect();
    let sizes = paths.iter().map(|path| path.metadata().map(|found| found.len()));
    if sizes.sum::<std::io::Result<u64>>().map_err(not_written)? > limit {
        return Err(too_large(limit));
    }
    let archives = paths.iter().map(|path| File::open(path).map(BufReader::new));
    atoll_tar::concat(archives, BufWriter::new(guarded(&tar, images)?)).map_err(|cause| {
        match cause.kind() {
            std::io::ErrorKind::Other => {
                ServiceError::new(Code::InvalidRequest, "a context is not a tar archive").caused_by(cause)
            }
            _ => not_written(cause),
        }
    })?;
    Ok(tar)
}

/// Whether the file begins with the magic number of gzip or zstd.
fn is_compressed(file: &File) -> std::io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let mut magic = [0; 4];
    let read = file.read_at(&mut magic, 0)?;
    Ok(magic[..read].starts_with(&[0x1f, 0x8b]) || magic[..read] == [0x28, 0xb5, 0x2f, 0xfd])
}

pub(super) fn create(path: &Path) -> Result<File, ServiceError> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(not_written)
}

/// A file that is written only as far as the reserve of the disk allows.
fn guarded(path: &Path, images: &Images) -> Result<Guarded<File>, ServiceError> {
    let file = create(path)?;
    let space = images.disk().writer(path, Purpose::Data).map_err(not_written)?;
    Ok(Guarded::new(file, space))
}

pub(super) fn too_large(limit: u64) -> ServiceError {
    ServiceError::new(Code::PayloadTooLarge, format!("the context is larger than {} MiB", limit >> 20))
        .hint("exclude files that are not copied with .dockerignore")
}

pub(super) fn not_written(cause: std::io::Error) -> ServiceError {
    if atoll_disk::is_full(&cause) {
        return ServiceError::new(Code::NoCapacity, "the server's disk has no space for this context")
            .retry_after(60)
            .caused_by(cause);
    }
    ServiceError::new(Code::Internal, "the context could not be stored").caused_by(cause)
}
