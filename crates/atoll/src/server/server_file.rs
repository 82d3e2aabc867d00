//! `DATA/server.json`: the file that a running server writes about itself, so that commands find it.
//!
//! The file may outlive its server. Code that uses the pid also checks the start time, so that a reused pid is never
//! affected.

use std::{io, path::Path, time::SystemTime};

use serde::{Deserialize, Serialize};

/// The address and process of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerNote {
    pub(crate) url: String,
    pub(crate) pid: u32,
    /// Clock ticks after boot, field 22 of `/proc/PID/stat`.
    pub(crate) started: u64,
    pub(crate) version: String,
    /// Domain of previews.
    #[serde(default)]
    pub(crate) domain: Option<String>,
    /// The TLS port, if TLS is enabled.
    #[serde(default)]
    pub(crate) tls_port: Option<u16>,
}

const FILE: &str = "server.json";

/// The file in `data`, if there is one.
pub(crate) fn read(data: &Path) -> Option<ServerNote> {
    serde_json::from_slice(&std::fs::read(data.join(FILE)).ok()?).ok()
}

/// When the server of `data` became ready: it writes the file once.
pub(crate) fn written_at(data: &Path) -> Option<SystemTime> {
    std::fs::metadata(data.join(FILE)).ok()?.modified().ok()
}

/// Writes the file of this process.
pub(crate) fn write(data: &Path, url: &str, domain: &str, tls_port: Option<u16>) -> io::Result<()> {
    let pid = std::process::id();
    let note = ServerNote {
        url: url.to_owned(),
        pid,
        started: started(pid).unwrap_or(0),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        domain: Some(domain.to_owned()),
        tls_port,
    };
    let text = serde_json::to_vec(&note).map_err(io::Error::other)?;
    let fresh = data.join(".server.json.new");
    std::fs::write(&fresh, text)?;
    std::fs::rename(fresh, data.join(FILE))
}

/// Removes the file if it belongs to this process.
pub(crate) fn remove(data: &Path) {
    if read(data).is_some_and(|note| note.pid == std::process::id()) {
        // A file that stays is recognised as stale by its start time.
        let _ = std::fs::remove_file(data.join(FILE));
    }
}

impl ServerNote {
    /// Whether the process that wrote it is still running.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

fn started(pid: u32) -> Option<u64> {
    start_time(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in parentheses may contain any character, so fields are counted after the last one. `None` for a process
/// that has ended and was not reaped, such as a server that this program started itself.
fn start_time(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_again_and_known_to_be_alive() {
        let data = tempfile::tempdir().expect("temporary folder");
        assert_eq!(read(data.path()), None);
        write(data.path(), "http://127.0.0.1:1", "localhost", Some(7443)).expect("writable");
        let note = read(data.path()).expect("written");
        assert_eq!(note.url, "http://127.0.0.1:1");
        assert!(note.is_alive());
        assert!(written_at(data.path()).is_some());
        assert!(!ServerNote { started: note.started + 1, ..note }.is_alive());
        remove(data.path());
        assert_eq!(read(data.path()), None);
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        assert_eq!(start_time(&format!("7 (a) b) {}", fields.join(" "))), Some(22));
        assert_eq!(start_time("garbage"), None);
    }

    #[test]
    fn a_process_that_ended_is_not_alive_while_its_parent_looks_away() {
        let mut child = std::process::Command::new("true").spawn().expect("runs");
        let stat = format!("/proc/{}/stat", child.id());
        // Ended, and not reaped.
        while !std::fs::read_to_string(&stat).expect("not reaped").contains(") Z ") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(started(child.id()), None);
        child.wait().expect("ends");
    }
}
