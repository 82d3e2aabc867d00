//! What is remembered of one session while it is there: links to its ports, measurements, finished commands.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_provider::InstanceUsage;
use atoll_remote::{LinkPath, VendorAddress};
use serde_json::Value;
use tokio::time::Instant;

/// How long a link is used before it is asked for again.
const LINK_FRESH: Duration = Duration::from_secs(60);
/// LIMIT: ports whose links are remembered.
const LINKS_MAX: usize = 64;
/// LIMIT: finished commands whose folders are still there. The folders of others are removed by their age.
const FINISHED_MAX: usize = 64;

/// Where the service serves one port. Contains tokens.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PortLink {
    pub(crate) address: VendorAddress,
    pub(crate) path: LinkPath,
}

impl PortLink {
    /// Reads the address that the service told, whose API is at `api`.
    pub(crate) fn parse(url: &str, api: &VendorAddress) -> Option<Self> {
        let url = url::Url::parse(url).ok()?;
        let is_web = matches!(url.scheme(), "http" | "https") && url.username().is_empty();
        let address = VendorAddress::of_url(url.as_str()).filter(|_| is_web)?.named_by(api);
        let prefix = url.path().trim_end_matches('/').to_owned();
        let path = LinkPath { prefix, query: url.query().unwrap_or_default().to_owned() };
        Some(Self { address, path })
    }
}

#[derive(Default)]
struct Remembered {
    links: HashMap<u16, (PortLink, Instant)>,
    usage: InstanceUsage,
    measured_at: Option<Instant>,
    finished: Vec<String>,
}

/// What is remembered of one session.
#[derive(Default)]
pub(crate) struct SessionAccess(Mutex<Remembered>);

impl std::fmt::Debug for SessionAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionAccess(..)")
    }
}

impl SessionAccess {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn link(&self, port: u16) -> Option<PortLink> {
        let remembered = self.lock();
        let (link, asked_at) = remembered.links.get(&port)?;
        (asked_at.elapsed() < LINK_FRESH).then(|| link.clone())
    }

    pub(crate) fn remember_link(&self, port: u16, link: PortLink) {
        let mut remembered = self.lock();
        if remembered.links.len() >= LINKS_MAX {
            remembered.links.clear();
        }
        remembered.links.insert(port, (link, Instant::now()));
    }

    /// A command has ended and its output was read: its folder can be removed.
    pub(crate) fn job_ended(&self, name: String) {
        let mut remembered = self.lock();
        if remembered.finished.len() < FINISHED_MAX {
            remembered.finished.push(name);
        }
    }

    pub(crate) fn take_ended_jobs(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().finished)
    }

    pub(crate) fn last_usage(&self) -> InstanceUsage {
        self.lock().usage
    }

    /// Adds a measurement of the tool `get_metrics`: the share of the cores in use since the one before gives the CPU time.
    pub(crate) fn measured(&self, metrics: &Value) -> InstanceUsage {
        let number =
            |names: &[&str]| names.iter().find_map(|name| metrics[*name].as_f64()).unwrap_or(0.0).max(0.0);
        let bytes = |names: &[&str]| number(names).min(9e18) as u64;
        let mut remembered = self.lock();
        let since = remembered.measured_at.map_or(Duration::ZERO, |at| at.elapsed());
        let busy_cores = (number(&["cpu_used_pct"]) / 100.0 * number(&["cpu_count"])).min(1_024.0);
        let busy_us = since.mul_f64(busy_cores).as_micros().min(u128::from(u64::MAX)) as u64;
        remembered.usage.cpu_us = remembered.usage.cpu_us.saturating_add(busy_us);
        remembered.usage.memory_bytes = bytes(&["mem_used"]);
        remembered.usage.disk_bytes = Some(bytes(&["disk_used"]));
        remembered.measured_at = Some(Instant::now());
        remembered.usage
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn api(url: &str) -> VendorAddress {
        VendorAddress::of_url(url).unwrap()
    }

    #[test]
    fn a_link_is_an_address_a_path_and_a_query() {
        let parse = |url| PortLink::parse(url, &api("https://api.example.com"));
        let link = parse("https://gw.example.com:8008/request/abc/?key=t").unwrap();
        assert_eq!(link.address.authority(), "gw.example.com:8008");
        assert_eq!((link.path.prefix.as_str(), link.path.query.as_str()), ("/request/abc", "key=t"));
        let bare = PortLink::parse("http://127.0.0.1:80", &api("http://127.0.0.1:81")).unwrap();
        assert!(bare.path == LinkPath::default());
        for bad in ["", "wss://host/x", "https://user@host/", "host/path"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cpu_time_is_the_sum_of_measurements() {
        let access = SessionAccess::default();
        let metrics = json!({ "cpu_count": 4, "cpu_used_pct": 50.0, "mem_used": 1024, "disk_used": 7 });
        assert_eq!(access.measured(&metrics).cpu_us, 0);
        tokio::time::advance(Duration::from_secs(2)).await;
        let usage = access.measured(&metrics);
        assert_eq!((usage.cpu_us, usage.memory_bytes, usage.disk_bytes), (4_000_000, 1_024, Some(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_asked_for_again_after_a_while() {
        let access = SessionAccess::default();
        access.remember_link(80, PortLink::parse("https://host/a", &api("https://host")).unwrap());
        assert!(access.link(80).is_some() && access.link(81).is_none());
        tokio::time::advance(LINK_FRESH).await;
        assert!(access.link(80).is_none());
    }
}
