//! `DATA/server.json`: the file that a running server writes about itself, so that commands find it.
//!
//! The file may outlive its server. Code that uses the pid also checks the start time, so that a reused pid is never
//! affected.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

/// The address and process of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerNote {
    /// Where commands of this machine reach it.
    pub(crate) url: String,
    /// The address that it listens on.
    #[serde(default)]
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) pid: u32,
    /// Clock ticks after boot, field 22 of `/proc/PID/stat`.
    pub(crate) started: u64,
    pub(crate) version: String,
    /// Domain of previews.
    #[serde(default)]
    pub(crate) domain: Option<String>,
    /// The TLS port, if TLS is enabled; it is open as soon as there is a certificate.
    #[serde(default)]
    pub(crate) tls_port: Option<u16>,
    /// The Unix socket, if there is one.
    #[serde(default)]
    pub(crate) socket: Option<std::path::PathBuf>,
    /// What a server that is ending waits for.
    #[serde(default)]
    pub(crate) waits_for: Option<String>,
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
pub(crate) fn write(data: &Path, note: &ServerNote) -> io::Result<()> {
    let text = serde_json::to_vec(note).map_err(io::Error::other)?;
    let fresh = data.join(".server.json.new");
    std::fs::write(&fresh, text)?;
    std::fs::rename(fresh, data.join(FILE))
}

/// Changes the file if it belongs to this process.
pub(crate) fn update(data: &Path, change: impl FnOnce(&mut ServerNote)) -> io::Result<()> {
    match read(data).filter(|note| note.pid == std::process::id()) {
        Some(mut note) => {
            change(&mut note);
            write(data, &note)
        }
        None => Ok(()),
    }
}

/// Removes the file if it belongs to this process.
pub(crate) fn remove(data: &Path) {
    if read(data).is_some_and(|note| note.pid == std::process::id()) {
        // A file that stays is recognised as stale by its start time.
        let _ = std::fs::remove_file(data.join(FILE));
    }
}

impl ServerNote {
    /// What this process writes about itself.
    pub(crate) fn new(listen: SocketAddr, domain: &str, tls_port: Option<u16>) -> Self {
        let pid = std::process::id();
        Self {
            url: format!("http://{}", reachable(listen)),
            listen: Some(listen),
            pid,
            started: started(pid).unwrap_or(0),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            domain: Some(domain.to_owned()),
            tls_port,
            socket: None,
            waits_for: None,
        }
    }

    /// A warning if the server takes keys in clear text from other machines.
    pub(crate) fn clear_text_warning(&self) -> Option<String> {
        let listen = self.listen.filter(|listen| !listen.ip().is_loopback())?;
        let tls = match self.tls_port {
            Some(port) => format!(
                "use https on port {port} from other machines (`atoll tls init` creates a certificate)"
            ),
            None => "start it without --tls-port 0 and use https from other machines".to_owned(),
        };
        Some(format!(
            "keys and data travel in clear text to {listen}: {tls}, or listen on 127.0.0.1 behind a proxy with TLS"
        ))
    }

    /// Whether the process that wrote it is still running.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// The address at which this machine reaches a listener: the unspecified address cannot be connected to.
fn reachable(listen: SocketAddr) -> SocketAddr {
    match listen {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => other,
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
        let listen = "127.0.0.1:1".parse().expect("an address");
        write(data.path(), &ServerNote::new(listen, "localhost", Some(7443))).expect("writable");
        let note = read(data.path()).expect("written");
        assert_eq!(note.url, "http://127.0.0.1:1");
        assert!(note.is_alive());
        assert!(written_at(data.path()).is_some());
        assert!(!ServerNote { started: note.started + 1, ..note.clone() }.is_alive());
        update(data.path(), |note| note.waits_for = Some("requests".to_owned())).expect("writable");
        assert_eq!(read(data.path()), Some(ServerNote { waits_for: Some("requests".to_owned()), ..note }));
        remove(data.path());
        assert_eq!(read(data.path()), None);
    }

    #[test]
    fn a_server_that_listens_everywhere_is_reached_by_loopback_and_warns() {
        for (listen, url, warns) in [
            ("0.0.0.0:7070", "http://127.0.0.1:7070", true),
            ("[::]:7070", "http://[::1]:7070", true),
            ("192.0.2.7:80", "http://192.0.2.7:80", true),
            ("127.0.0.1:7070", "http://127.0.0.1:7070", false),
            ("[::1]:7070", "http://[::1]:7070", false),
        ] {
            let note = ServerNote::new(listen.parse().expect("an address"), "localhost", Some(8443));
            assert_eq!(note.url, url);
            let warning = note.clear_text_warning();
            assert_eq!(warning.is_some(), warns, "{listen}: {warning:?}");
            assert!(warning.is_none_or(|text| text.contains("clear text") && text.contains("8443")));
        }
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
