//! Warnings about the connection, at most once per command: a key in clear text, a server of another version.

use std::sync::atomic::{AtomicBool, Ordering};

use super::address::Address;
use crate::{cli::Global, out::Out};

const OURS: &str = env!("CARGO_PKG_VERSION");

/// Whether warnings are shown; programs read stderr with `--json`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Notices {
    is_silent: bool,
}

impl Notices {
    pub(super) const fn of(global: &Global) -> Self {
        Self { is_silent: global.json || global.quiet }
    }

    /// For a command that sends or receives a key.
    pub(super) fn clear_text(self, address: &Address) {
        static SHOWN: AtomicBool = AtomicBool::new(false);
        if address.is_https() || address.is_local() {
            return;
        }
        self.once(&SHOWN, || {
            format!(
                "the key travels to {address} in clear text: on the server run `atoll tls init`, then here `atoll login \
                 https://{}:7443`",
                address.authority().map_or_else(|| "HOST".to_owned(), |(host, _)| host)
            )
        });
    }

    pub(super) fn version(self, address: &Address, theirs: &str) {
        static SHOWN: AtomicBool = AtomicBool::new(false);
        if is_same_minor(OURS, theirs) {
            return;
        }
        self.once(&SHOWN, || {
            let theirs = crate::human::harmless(theirs);
            format!(
                "this program is version {OURS} and the server at {address} is {theirs}: some commands may fail; install \
                 the same version on both"
            )
        });
    }

    fn once(self, shown: &AtomicBool, text: impl FnOnce() -> String) {
        if !self.is_silent && !shown.swap(true, Ordering::Relaxed) {
            Out::new(false).say(&format!("atoll: warning: {}", text()));
        }
    }
}

/// Whether two versions differ in their patch at most. A text that is no version is no reason to warn.
fn is_same_minor(ours: &str, theirs: &str) -> bool {
    let minor = |version: &str| {
        let mut parts = version.split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    minor(theirs).is_none_or(|theirs| minor(ours) == Some(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_minor_version_differs() {
        for same in ["1.2.3", "1.2.9", "1.2.0-rc.1", "1.2", "odd", ""] {
            assert!(is_same_minor("1.2.3", same), "{same}");
        }
        for other in ["1.3.3", "2.2.3", "0.2.3"] {
            assert!(!is_same_minor("1.2.3", other), "{other}");
        }
    }
}
