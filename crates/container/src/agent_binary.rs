//! Files that the server binary carries: the agent, written once per version to a folder that sandboxes see read-only
//! at `/.atoll`, and the library that is loaded into CRIU for a dump.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

static AGENT_GZ: &[u8] = include_bytes!(env!("ATOLL_AGENT_GZ"));
static CRIU_PRELOAD: &[u8] = include_bytes!(env!("ATOLL_CRIU_PRELOAD"));

/// Returns the folder with the agent; makes it when missing. Folders of older versions stay, because running sandboxes
/// use them.
///
/// # Errors
/// The files cannot be written below `data`, or `given` cannot be read.
pub fn install(data: &Path, given: Option<&Path>) -> io::Result<PathBuf> {
    criu_preload(data)?;
    match given {
        None => write(data, &unpacked(AGENT_GZ)?),
        Some(path) => write(data, &fs::read(path)?),
    }
}

/// The library for CRIU's dumps (`LD_PRELOAD`, see `crates/preload`), written when missing.
pub(crate) fn criu_preload(data: &Path) -> io::Result<PathBuf> {
    let hash = hex::encode(Sha256::digest(CRIU_PRELOAD));
    let library = data.join("criu").join(format!("preload-{hash}.so"));
    place(&library, CRIU_PRELOAD, 0o444)?;
    Ok(library)
}

fn unpacked(gz: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    GzDecoder::new(gz).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn write(data: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let folder = data.join("agent").join(hex::encode(Sha256::digest(bytes)));
    place(&folder.join("atoll-agent"), bytes, 0o555)?;
    // The agent under another name is a command for programs in the sandbox.
    let commands = folder.join("bin");
    fs::DirBuilder::new().recursive(true).mode(0o755).create(&commands)?;
    match std::os::unix::fs::symlink("../atoll-agent", commands.join("atoll-hold")) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => Err(cause),
        _ => Ok(folder),
    }
}

/// Writes a file completely or not at all.
fn place(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // Comparing the size is enough: only root writes to the folder, and the file gets its name only when its content is
    // complete.
    if fs::metadata(path).is_ok_and(|found| found.len() == bytes.len() as u64) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let next = folder.with_file_name(format!(".next-{}", std::process::id()));
    let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&next, path)
}
