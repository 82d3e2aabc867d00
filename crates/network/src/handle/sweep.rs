//! After a restart: adopts the kernel objects of known sandboxes, and removes all others.

use std::collections::HashSet;
use std::io;
use std::net::Ipv4Addr;

use atoll_model::policy::egress::ranges::{Ranges4, Ranges6};

use super::elements::{Installed, Ipv6Elements, Keys};
use super::{LinkStage, RouterHandle, TABLE};
use crate::address::SandboxLink;
use crate::flows;
use crate::netlink::Socket;
use crate::netlink::nft::{self, Transaction};
use crate::router::{CHANGES_AT_ONCE, remove_elements, set_keys};
use crate::ruleset::{FRESH, NAMED, OPEN, OWN, OWN6, PROXIED, SETS, SETS6, Sets};

/// The result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Links removed because no sandbox uses them.
    pub removed_links: Vec<SandboxLink>,
    /// Elements removed for the same reason.
    pub removed_elements: usize,
    /// Known links that do not exist any more.
    pub missing: Vec<SandboxLink>,
}

/// All kernel objects of links.
#[derive(Debug)]
struct LinkObjects {
    own: HashSet<Vec<u8>>,
    open: HashSet<Vec<u8>>,
    named: HashSet<Vec<u8>>,
    proxied: HashSet<Vec<u8>>,
    own6: HashSet<Vec<u8>>,
    v4: FamilyObjects,
    v6: FamilyObjects,
    fresh: HashSet<Vec<u8>>,
    /// Chains and sets of single links.
    chains: HashSet<String>,
    sets: HashSet<String>,
}

/// The objects of links for one version of IP.
#[derive(Debug)]
struct FamilyObjects {
    sets: &'static Sets,
    listed: HashSet<Vec<u8>>,
    budgets: HashSet<Vec<u8>>,
    limited: HashSet<Vec<u8>>,
}

impl FamilyObjects {
    fn read(socket: &mut Socket, sets: &'static Sets) -> io::Result<Self> {
        let mut keys = |set| Ok::<_, io::Error>(set_keys(socket, TABLE, set)?.into_iter().collect());
        let (listed, budgets, limited) = (keys(sets.listed)?, keys(sets.budgets)?, keys(sets.limited)?);
        Ok(Self { sets, listed, budgets, limited })
    }

    /// Every connection limit that belongs to none of `kept`.
    fn stray_limits(&self, kept: &HashSet<&[u8]>) -> impl Iterator<Item = (&'static str, &[u8])> {
        let strays = self.limited.iter().filter(|key| !kept.contains(&key[..]));
        strays.map(|key| (self.sets.limited, &key[..]))
    }
}

impl LinkObjects {
    fn read(socket: &mut Socket) -> io::Result<Self> {
        let mut keys = |set| Ok::<_, io::Error>(set_keys(socket, TABLE, set)?.into_iter().collect());
        let (own, open, named) = (keys(OWN)?, keys(OPEN)?, keys(NAMED)?);
        let (fresh, own6, proxied) = (keys(FRESH)?, keys(OWN6)?, keys(PROXIED)?);
        let (v4, v6) = (FamilyObjects::read(socket, &SETS)?, FamilyObjects::read(socket, &SETS6)?);
        let chains = socket.dump_steady(nft::dump_chains, |message, found| {
            found.extend(nft::read_chain(message, TABLE).filter(|name| is_of_link(name)).map(str::to_owned));
        })?;
        let sets = socket.dump_steady(
            || nft::dump_sets(TABLE),
            |message, found| {
                found.extend(nft::read_set(message).filter(|name| is_of_link(name)).map(str::to_owned));
            },
        )?;
        let (chains, sets) = (chains.into_iter().collect(), sets.into_iter().collect());
        Ok(Self { own, open, named, proxied, own6, v4, v6, fresh, chains, sets })
    }

    /// The installed state of a link. Values are not read back: the next change writes them again.
    fn installed(&self, keys: &Keys) -> Installed {
        let rate = Some(Installed::UNKNOWN);
        Installed {
            open: self.open.contains(&keys.name[..]),
            named: self.named.contains(&keys.name[..]),
            proxied: self.proxied.contains(&keys.name[..]),
            ranges: self.v4.listed.contains(&keys.name[..]).then(Ranges4::default),
            connections: self.v4.limited.contains(&keys.v4.address[..]).then_some(0),
            budget: self.v4.budgets.contains(&keys.name[..]).then_some(Installed::UNKNOWN),
            up: rate,
            down: rate,
            six: self.own6.contains(&keys.own6[..]).then(|| Ipv6Elements {
                ranges: Ranges6::default(),
                connections: self.v6.limited.contains(&keys.v6.address[..]).then_some(0),
                budget: self.v6.budgets.contains(&keys.name[..]).then_some(Installed::UNKNOWN),
            }),
            wired: false,
        }
    }

    /// Removes everything that belongs to none of `kept`; elements first, because they refer to chains, and chains use
    /// sets. Fresh answers are removed too, unless the link belongs to this server: the gate that gave them ended with
    /// its server.
    fn remove_strays(
        &self,
        socket: &mut Socket,
        kept: &[Keys],
        known: &HashSet<Ipv4Addr>,
    ) -> io::Result<usize> {
        let own: HashSet<&[u8]> = kept.iter().map(|keys| &keys.own[..]).collect();
        let names: HashSet<&[u8]> = kept.iter().map(|keys| &keys.name[..]).collect();
        let own6: HashSet<&[u8]> = kept.iter().map(|keys| &keys.own6[..]).collect();
        let addresses: HashSet<&[u8]> = kept.iter().map(|keys| &keys.v4.address[..]).collect();
        let addresses6: HashSet<&[u8]> = kept.iter().map(|keys| &keys.v6.address[..]).collect();
        let mut strays: Vec<(&str, &[u8])> = Vec::new();
        let by_name = [
            (OPEN, &self.open),
            (NAMED, &self.named),
            (PROXIED, &self.proxied),
            (SETS.listed, &self.v4.listed),
            (SETS.budgets, &self.v4.budgets),
            (SETS6.listed, &self.v6.listed),
            (SETS6.budgets, &self.v6.budgets),
        ];
        for (set, keys) in by_name {
            strays.extend(keys.iter().filter(|key| !names.contains(&key[..])).map(|key| (set, &key[..])));
        }
        strays.extend(self.v4.stray_limits(&addresses));
        strays.extend(self.v6.stray_limits(&addresses6));
        let is_known = |key: &[u8]| {
            key.first_chunk::<4>().is_some_and(|address| known.contains(&Ipv4Addr::from(*address)))
        };
        strays.extend(self.fresh.iter().filter(|key| !is_known(key)).map(|key| (FRESH, &key[..])));
        strays.extend(self.own.iter().filter(|key| !own.contains(&key[..])).map(|key| (OWN, &key[..])));
        strays.extend(self.own6.iter().filter(|key| !own6.contains(&key[..])).map(|key| (OWN6, &key[..])));
        for chunk in strays.chunks(CHANGES_AT_ONCE) {
            remove_elements(socket, chunk)?;
        }
        let used: HashSet<&str> = kept
            .iter()
            .flat_map(|Keys { v4, v6, .. }| {
                let names = [&v4.ranges, &v4.list, &v4.quotas, &v4.budget];
                names.into_iter().chain([&v6.ranges, &v6.list, &v6.quotas, &v6.budget])
            })
            .map(String::as_str)
            .collect();
        let mut transaction = Transaction::new(TABLE);
        let is_stray = |name: &&String| !used.contains(name.as_str());
        self.chains.iter().filter(is_stray).for_each(|name| transaction.remove_chain(name));
        self.sets.iter().filter(is_stray).for_each(|name| transaction.remove_set(name));
        if !transaction.is_empty() {
            socket.call_all(&mut transaction.finish())?;
        }
        Ok(strays.len())
    }
}

impl RouterHandle {
    /// Adopts the links in `keep` unchanged and removes every other link, element and chain.
    pub fn sweep(&mut self, keep: &[SandboxLink]) -> io::Result<Sweep> {
        let links: HashSet<SandboxLink> = self.list_links()?.into_iter().collect();
        let found = LinkObjects::read(&mut self.nft)?;
        let kept: HashSet<SandboxLink> = keep.iter().filter(|link| links.contains(link)).copied().collect();
        // Elements that open a link which is not admitted are removed too.
        let admitted: Vec<Keys> = kept
            .iter()
            .map(|link| Keys::of(*link))
            .filter(|keys| found.own.contains(&keys.own[..]))
            .collect();
        let known: HashSet<Ipv4Addr> =
            kept.iter().filter(|link| self.is_admitted(**link)).map(|link| link.address).collect();
        let removed_elements = found.remove_strays(&mut self.nft, &admitted, &known)?;
        let addresses: HashSet<Ipv4Addr> = kept.iter().map(|link| link.address).collect();
        flows::forget(&mut self.nft, |address| !addresses.contains(&address))?;
        let doomed: Vec<SandboxLink> = links.difference(&kept).copied().collect();
        for chunk in doomed.chunks(CHANGES_AT_ONCE) {
            self.delete_chunk(chunk)?;
        }
        doomed.iter().for_each(|link| self.let_go(*link));
        for link in kept {
            let keys = Keys::of(link);
            if self.is_admitted(link) {
                // A link of this server with known state: a sweep may happen at any time.
                continue;
            }
            if found.own.contains(&keys.own[..]) {
                self.hold(link, LinkStage::Admitted, found.installed(&keys));
            } else {
                let rate = Some(Installed::UNKNOWN);
                self.hold(
                    link,
                    LinkStage::Created,
                    Installed { up: rate, down: rate, ..Installed::default() },
                );
            }
        }
        let missing = keep.iter().filter(|link| !links.contains(link)).copied().collect();
        Ok(Sweep { removed_links: doomed, removed_elements, missing })
    }

    fn is_admitted(&self, link: SandboxLink) -> bool {
        self.expect_stage(link, |stage| stage == LinkStage::Admitted).is_ok()
    }
}

/// `c7`, `d7`, `q7`, `b7`, and for IPv6 `e7`, `f7`, `r7`, `g7`: an object of a single link. All others have longer
/// names.
fn is_of_link(name: &str) -> bool {
    let digits = name.strip_prefix(['b', 'c', 'd', 'q', 'e', 'f', 'r', 'g']).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}
