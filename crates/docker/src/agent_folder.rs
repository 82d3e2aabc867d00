//! The folder that a sandbox sees read-only at `/.atoll`: the agent, its commands, and during a start the agent's token.
//!
//! ```text
//! DATA/<sandbox>/atoll-agent      a hard link, so that a newer server changes nothing under a running agent
//! DATA/<sandbox>/bin/atoll-hold   a link to the agent
//! DATA/<sandbox>/token            removed when the agent answers, before any other program runs inside
//! ```
//!
//! A daemon on another machine gets the same files as an archive, and the agent removes the token itself.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use atoll_model::SandboxId;
use atoll_tar::write::Archive;
use atoll_tar::{TarEntry, TarKind};

/// Where sandboxes see the folder.
pub(crate) const INSIDE: &str = "/.atoll";

/// Makes the folders of sandboxes.
#[derive(Debug, Clone)]
pub(crate) struct AgentFolders {
    /// The folder of the server that contains the agent.
    pub(crate) agent: PathBuf,
    /// Contains a folder for each sandbox.
    pub(crate) root: PathBuf,
}

impl AgentFolders {
    pub(crate) fn of(&self, sandbox: &SandboxId) -> PathBuf {
        self.root.join(sandbox.as_str())
    }

    /// Makes the folder of a sandbox when it is missing, and puts a new token into it; returns the token.
    pub(crate) fn prepare(&self, sandbox: &SandboxId) -> io::Result<String> {
        let folder = self.of(sandbox);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder.join("bin"))?;
        let agent = folder.join("atoll-agent");
        if !agent.exists() {
            link_or_copy(&self.agent.join("atoll-agent"), &agent)?;
        }
        exists_is_fine(std::os::unix::fs::symlink("../atoll-agent", folder.join("bin/atoll-hold")))?;
        let token = new_token()?;
        self.remove_token(sandbox)?;
        let mut file =
            fs::OpenOptions::new().create_new(true).write(true).mode(0o400).open(folder.join("token"))?;
        file.write_all(token.as_bytes())?;
        Ok(token)
    }

    /// The folder of a sandbox as an archive to be unpacked at the root of its container.
    pub(crate) fn archive(&self, token: &str) -> io::Result<Vec<u8>> {
        let agent = fs::read(self.agent.join("atoll-agent"))?;
        let folder = INSIDE.trim_start_matches('/');
        let entry = |name: &str, mode: u32| TarEntry {
            name: format!("{folder}/{name}").into_bytes(),
            mode,
            ..TarEntry::default()
        };
        let file =
            |name: &str, mode: u32, bytes: &[u8]| TarEntry { size: bytes.len() as u64, ..entry(name, mode) };
        let mut archive = Archive::new(Vec::with_capacity(agent.len() + (16 << 10)));
        for name in ["", "bin/"] {
            archive.entry(&TarEntry { kind: TarKind::Folder, ..entry(name, 0o755) })?;
        }
        archive.file_from(&file("atoll-agent", 0o755, &agent), &mut agent.as_slice())?;
        archive.file_from(&file("token", 0o400, token.as_bytes()), &mut token.as_bytes())?;
        archive.entry(&TarEntry {
            kind: TarKind::Symlink,
            link: b"../atoll-agent".to_vec(),
            ..entry("bin/atoll-hold", 0o777)
        })?;
        Ok(archive.finish()?.0)
    }

    pub(crate) fn remove_token(&self, sandbox: &SandboxId) -> io::Result<()> {
        missing_is_fine(fs::remove_file(self.of(sandbox).join("token")))
    }

    pub(crate) fn remove(&self, sandbox: &SandboxId) -> io::Result<()> {
        missing_is_fine(fs::remove_dir_all(self.of(sandbox)))
    }
}

/// A token for the agent of one instance.
pub(crate) fn new_token() -> io::Result<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(hex::encode(random))
}

/// A folder on another file system needs a copy.
fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            let next = to.with_extension("next");
            fs::copy(from, &next)?;
            fs::rename(next, to)
        }
        other => other,
    }
}

fn exists_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
}

fn missing_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
