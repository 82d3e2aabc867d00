//! The agent that this server carries: written once per version to a folder that sandboxes see read-only at `/.atoll`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

static AGENT: &[u8] = include_bytes!(env!("ATOLL_AGENT_BINARY"));

/// The folder with the agent, made when missing. Older versions stay: sandboxes that run them hold them.
pub(crate) fn install(data: &Path, given: Option<&Path>) -> io::Result<PathBuf> {
    match given {
        None => write(data, AGENT),
        Some(path) => write(data, &fs::read(path)?),
    }
}

fn write(data: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let folder = data.join("agent").join(hex::encode(Sha256::digest(bytes)));
    let program = folder.join("atoll-agent");
    // Size is enough here: the folder is root's, and the name is written only when the content is complete.
    if fs::metadata(&program).is_ok_and(|found| found.len() == bytes.len() as u64) {
        return Ok(folder);
    }
    fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder)?;
    let next = data.join("agent").join(format!(".next-{}", std::process::id()));
    let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o555).open(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&next, &program)?;
    Ok(folder)
}
