//! Host interfaces on which Atoll enables forwarding, for IPv4 and IPv6.
//!
//! A set in this server's table of the host's rules contains them: it records what was enabled, and restricts these
//! interfaces to forwarding to sandboxes. Several servers may need the same interface. The last one to stop restores
//! the setting.
//!
//! The setting for all interfaces is never written, and interfaces on which the operator enabled forwarding are not
//! changed.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;

use crate::address::Block;
use crate::error::RouterError;
use crate::netlink::nft;
use crate::netlink::route;
use crate::netlink::{Family, Socket};
use crate::router::{is_absent, replace, set_keys, step};
use crate::{netns, ruleset, sysctl};

/// The version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    V4,
    V6,
}

/// The host's namespace, and the server.
#[derive(Clone, Copy)]
pub(crate) struct Forwarding<'a> {
    pub(crate) host: BorrowedFd<'a>,
    pub(crate) block: Block,
    pub(crate) protocol: Protocol,
}

type InterfaceNames = BTreeSet<String>;

impl Forwarding<'_> {
    /// Enables forwarding on exactly these interfaces, except where it is enabled already; restores others that this
    /// server enabled.
    pub(crate) fn update(self, ways_out: &[String]) -> Result<(), RouterError> {
        let (known, others) = (self.opened(self.block)?, self.opened_by_others()?);
        let is_ours = |name: &String| known.contains(name) || others.contains(name);
        let wanted: InterfaceNames = self.in_host(|| {
            let is_closed = |name: &&String| self.protocol.is_forwarding(name) == Some(false);
            match (self.protocol.is_forwarding_everywhere(), self.protocol) {
                // For IPv6 the setting for all interfaces has precedence.
                (true, Protocol::V6) => InterfaceNames::new(),
                (true, Protocol::V4) => ways_out.iter().filter(is_closed).cloned().collect(),
                (false, _) => {
                    ways_out.iter().filter(|name| is_closed(name) || is_ours(name)).cloned().collect()
                }
            }
        })?;
        let unneeded: InterfaceNames =
            known.difference(&wanted).filter(|name| !others.contains(*name)).cloned().collect();
        self.put_back_each(&unneeded)?;
        let keys = |names: &InterfaceNames| {
            names.iter().map(|name| nft::name_key(name).to_vec()).collect::<Vec<_>>()
        };
        let mut socket = self.socket(Family::Netfilter)?;
        // First the rule, then the setting: an interface never forwards other traffic in between.
        replace(&mut socket, &self.block.host_table(), self.protocol.set(), &keys(&known), &keys(&wanted))
            .map_err(step("update the host's rules"))?;
        self.in_host(|| wanted.iter().try_for_each(|name| self.protocol.set_forwarding(name, true)))?
    }

    /// Restores interfaces that this server enabled and no other server needs. The rules still exist; they are removed
    /// next.
    pub(crate) fn put_back(self) -> Result<(), RouterError> {
        let (known, others) = (self.opened(self.block)?, self.opened_by_others()?);
        self.put_back_each(&known.difference(&others).cloned().collect())
    }

    fn put_back_each(self, names: &InterfaceNames) -> Result<(), RouterError> {
        self.in_host(|| {
            // Meanwhile the operator has enabled it for all interfaces, including these.
            if self.protocol == Protocol::V4 && self.protocol.is_forwarding_everywhere() {
                return Ok(());
            }
            names.iter().try_for_each(|name| match self.protocol.set_forwarding(name, false) {
                Err(RouterError::Sysctl { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            })
        })?
    }

    /// The interfaces that one server enabled.
    fn opened(self, block: Block) -> Result<InterfaceNames, RouterError> {
        let mut socket = self.socket(Family::Netfilter)?;
        match set_keys(&mut socket, &block.host_table(), self.protocol.set()) {
            Ok(keys) => Ok(keys.iter().map(|key| nft::name_of(key)).collect()),
            Err(error) if is_absent(&error) => Ok(InterfaceNames::new()),
            Err(cause) => Err(step("read the host's rules")(cause)),
        }
    }

    /// The interfaces that all other servers on this machine enabled. They are found by their uplinks.
    fn opened_by_others(self) -> Result<InterfaceNames, RouterError> {
        let links: Vec<route::FoundLink> = self
            .socket(Family::Route)?
            .dump_steady(route::dump_links, |message, found| found.extend(route::read_link(message)))
            .map_err(step("list network links"))?;
        let blocks = links.iter().filter_map(|link| Block::of_host_interface(&link.name));
        let mut names = InterfaceNames::new();
        for block in blocks.filter(|block| *block != self.block) {
            names.extend(self.opened(block)?);
        }
        Ok(names)
    }

    fn socket(self, family: Family) -> Result<Socket, RouterError> {
        Socket::open_in(family, self.host).map_err(step("open a netlink socket"))
    }

    fn in_host<T: Send>(self, work: impl FnOnce() -> T + Send) -> Result<T, RouterError> {
        netns::run_in(self.host, work).map_err(step("enter the host's network namespace"))
    }
}

impl Protocol {
    const fn set(self) -> &'static str {
        match self {
            Self::V4 => ruleset::OPENED,
            Self::V6 => ruleset::OPENED6,
        }
    }

    fn is_forwarding_everywhere(self) -> bool {
        match self {
            Self::V4 => sysctl::is_forwarding_everywhere(),
            Self::V6 => sysctl::is_forwarding6_everywhere(),
        }
    }

    /// `None`: this kernel has no such setting per interface.
    fn is_forwarding(self, interface: &str) -> Option<bool> {
        match self {
            Self::V4 => Some(sysctl::is_forwarding(interface)),
            Self::V6 => sysctl::is_forwarding6(interface),
        }
    }

    fn set_forwarding(self, interface: &str, is_on: bool) -> Result<(), RouterError> {
        match self {
            Self::V4 => sysctl::set_forwarding(interface, is_on),
            Self::V6 => sysctl::set_forwarding6(interface, is_on),
        }
    }
}
