//! Finds the agent binary: named by the user, inside this program, or beside it.
//!
//! The one inside is written to `DATA/agent/` under a name made of its content, so that sandboxes of an older server keep the
//! file they run.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::failure::Failure;

static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));

/// Path of the agent that new sandboxes get.
pub(super) fn find(named: Option<&Path>, data: &Path) -> Result<PathBuf, Failure> {
    if let Some(path) = named {
        return path.canonicalize().map_err(|e| {
            Failure::usage(
                format!("the agent {} cannot be used: {e}", path.display()),
                "leave out --agent to use the one inside this program",
            )
        });
    }
    if !EMBEDDED.is_empty() {
        return unpack(EMBEDDED, &data.join("agent")).map_err(|e| {
            Failure::new("io", format!("the agent cannot be written to {}: {e}", data.display()))
                .hint("is the disk full?")
        });
    }
    beside().ok_or_else(|| {
        Failure::new("no_agent", "this build has no agent inside and there is none beside it")
            .hint("build with `scripts/build`, or name one with --agent")
    })
}

/// Whether a server could start with what is here.
pub(super) fn is_there() -> bool {
    !EMBEDDED.is_empty() || beside().is_some()
}

fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("atoll-agent");
    path.is_file().then_some(path)
}

fn unpack(program: &[u8], folder: &Path) -> io::Result<PathBuf> {
    let digest = Sha256::digest(program);
    let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(format!("atoll-agent-{name}"));
    if fs::read(&path).is_ok_and(|found| found == program) {
        return Ok(path);
    }
    fs::create_dir_all(folder)?;
    // Sandboxes see it through a read-only bind; their ids must be able to reach it.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let fresh = folder.join(format!(".{name}-{}", std::process::id()));
    fs::write(&fresh, program)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o555))?;
    fs::File::open(&fresh)?.sync_all()?;
    fs::rename(&fresh, &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_agent_keeps_its_file_and_a_broken_one_is_mended() {
        let data = tempfile::tempdir().expect("temporary folder");
        let first = unpack(b"program", data.path()).expect("writable");
        assert_eq!(fs::metadata(&first).expect("there").permissions().mode() & 0o777, 0o555);
        assert_eq!(unpack(b"program", data.path()).expect("writable"), first);
        fs::remove_file(&first).expect("ours");
        fs::write(&first, b"broken").expect("writable");
        assert_eq!(unpack(b"program", data.path()).expect("writable"), first);
        assert_eq!(fs::read(&first).expect("there"), b"program");
        assert_ne!(unpack(b"newer", data.path()).expect("writable"), first);
    }
}
