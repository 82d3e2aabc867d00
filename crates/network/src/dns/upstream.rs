//! The upstream name servers: those of the host, read from its resolv.conf and read again when it changes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// LIMIT: as many as the C library uses.
const MOST: usize = 3;
/// How long the content of the file is used before it is read again.
const FRESH_FOR: Duration = Duration::from_secs(5);
const PORT: u16 = 53;

/// How long name servers that did not answer are left alone where there is another way.
const SILENT_FOR: Duration = Duration::from_secs(60);

/// The upstream name servers, in order.
#[derive(Debug)]
pub struct Upstreams {
    source: UpstreamSource,
    /// When none of them answered last.
    silent_at: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum UpstreamSource {
    Fixed(Vec<SocketAddr>),
    File { path: PathBuf, read: Mutex<Option<(Instant, Vec<SocketAddr>)>> },
}

impl Upstreams {
    /// A fixed list.
    pub fn fixed(servers: Vec<SocketAddr>) -> Self {
        Self { source: UpstreamSource::Fixed(servers), silent_at: Mutex::default() }
    }

    /// The servers of a resolv.conf, which is read again after changes.
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        let source = UpstreamSource::File { path: path.into(), read: Mutex::new(None) };
        Self { source, silent_at: Mutex::default() }
    }

    /// The servers of this host.
    pub fn of_host() -> Self {
        Self::from_file("/etc/resolv.conf")
    }

    /// Whether none answered a moment ago.
    pub(crate) fn are_silent(&self) -> bool {
        let silent_at = self.silent_at.lock().unwrap_or_else(PoisonError::into_inner);
        silent_at.is_some_and(|at| at.elapsed() < SILENT_FOR)
    }

    /// Notes that none answered.
    pub(crate) fn note_silence(&self) {
        *self.silent_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(crate) fn servers(&self) -> Vec<SocketAddr> {
        match &self.source {
            UpstreamSource::Fixed(servers) => servers.clone(),
            UpstreamSource::File { path, read } => {
                let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((_, servers)) = read.as_ref().filter(|(at, _)| at.elapsed() < FRESH_FOR) {
                    return servers.clone();
                }
                // If the file cannot be read now, its earlier content is used.
                let before = read.take().map(|(_, servers)| servers).unwrap_or_default();
                let servers = std::fs::read_to_string(path).map_or(before, |text| parse(&text));
                *read = Some((Instant::now(), servers.clone()));
                servers
            }
        }
    }
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let addresses = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        // A zone like fe80::1%eth0 has no meaning here; such a server is skipped.
        (words.next() == Some("nameserver")).then(|| words.next()?.parse::<IpAddr>().ok())?
    });
    addresses.take(MOST).map(|address| SocketAddr::new(address, PORT)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn name_servers_are_read_from_resolv_conf() {
        let text = "# a comment\nsearch example\nnameserver 10.0.0.2 # inner\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver\nnameserver 1.1.1.1\nnameserver 8.8.8.8\n";
        let found = parse(text);
        assert_eq!(found, ["10.0.0.2:53", "[::1]:53", "1.1.1.1:53"].map(|server| server.parse().unwrap()));
    }

    #[test]
    fn a_missing_file_means_no_servers_and_no_panic() {
        assert!(Upstreams::from_file("/does/not/exist").servers().is_empty());
    }
}
