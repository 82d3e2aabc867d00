//! Records of traffic that passes without the gate, and of refused traffic: the kernel counts, and this module reads
//! the counters about once a second.
//!
//! ```text
//! sets sent, got, refused ── read: changes since the last time ── per destination ──► one record, or none
//! ```
//!
//! A destination is recorded when it is first seen, when its traffic ends, and every ten seconds in between; never per
//! packet.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_model::policy::egress::Egress;
use atoll_model::{EgressRecord, EgressVerdict, EgressWhat, SandboxId};

use crate::address::SandboxLink;
use crate::netlink::nft::{self, ElementCounter};
use crate::netlink::{Family, Socket};
use crate::router::{CHANGES_AT_ONCE, remove_elements, set_keys};
use crate::ruleset::{
    ASKERS, FLOWS, FLOWS6, GOT, GOT6, NOISY, NOISY6, REFUSED, REFUSED6, SENT, SENT6, TABLE, Why,
};
use crate::ruleset::{CROWD, MORE, MORE_GOT};

mod rule;

/// How often a continuing destination is recorded.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// LIMIT: records of one sandbox per reading; further destinations are summed up in one record.
const RECORDS_AT_ONCE: usize = 200;
/// A destination is forgotten after it was missing this many times: a concurrent change can disturb a reading.
const FORGET_AFTER: u32 = 3;

/// The reader of the kernel's counters, and the owners of addresses.
#[derive(Debug)]
pub struct Flows {
    /// By address.
    who: Mutex<HashMap<Ipv4Addr, FlowOwner>>,
    book: Mutex<FlowRegistry>,
}

#[derive(Clone, Debug)]
struct FlowOwner {
    sandbox: SandboxId,
    egress: Arc<Egress>,
    /// The link is gone: the last records are written, and then the owner is forgotten.
    leaves: bool,
}

#[derive(Debug)]
struct FlowRegistry {
    socket: Socket,
    seen: HashMap<Destination, DestinationUsage>,
}

/// The key of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Destination {
    sandbox: Ipv4Addr,
    address: IpAddr,
    protocol: u8,
    port: u16,
    /// 0: the traffic passed.
    mark: u32,
}

/// The counters of a destination.
#[derive(Clone, Copy, Debug, Default)]
struct DestinationUsage {
    /// The kernel's counters at the last reading.
    sent: ElementCounter,
    got: ElementCounter,
    /// Bytes that were not recorded yet.
    untold_sent: u64,
    untold_got: u64,
    untold_packets: u64,
    /// No traffic since the previous reading.
    is_silent: bool,
    told_at: Option<Instant>,
    missed: u32,
}

impl Flows {
    /// Opens a socket in the router namespace. Traffic that is counted there already is not recorded again.
    pub fn open(router: BorrowedFd<'_>) -> io::Result<Self> {
        let mut book =
            FlowRegistry { socket: Socket::open_in(Family::Netfilter, router)?, seen: HashMap::new() };
        book.read()?;
        let now = Instant::now();
        for seen in book.seen.values_mut() {
            *seen = DestinationUsage {
                sent: seen.sent,
                got: seen.got,
                told_at: Some(now),
                ..DestinationUsage::default()
            };
        }
        Ok(Self { who: Mutex::default(), book: Mutex::new(book) })
    }

    /// Sets the owner of a link and its current policy.
    pub fn admit(&self, link: SandboxLink, sandbox: &SandboxId, egress: Arc<Egress>) {
        let who = FlowOwner { sandbox: sandbox.clone(), egress, leaves: false };
        self.who.lock().unwrap_or_else(PoisonError::into_inner).insert(link.address, who);
    }

    /// Marks a link as gone. Its last traffic is in the next reading.
    pub fn dismiss(&self, link: SandboxLink) {
        let mut who = self.who.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(who) = who.get_mut(&link.address) {
            who.leaves = true;
        }
    }

    /// Reads the counters and returns the new records. Takes about a millisecond per ten thousand destinations.
    pub fn read(&self) -> io::Result<Vec<(SandboxId, EgressRecord)>> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let asked: HashMap<Ipv4Addr, FlowOwner> =
            self.who.lock().unwrap_or_else(PoisonError::into_inner).clone();
        book.read()?;
        let records = book.tell(&asked);
        let gone = |address: &Ipv4Addr| asked.get(address).is_some_and(|who| who.leaves);
        // If removal fails now, it is retried after the next reading; the records are already returned.
        if asked.values().any(|who| who.leaves) && forget(&mut book.socket, |address| gone(&address)).is_ok()
        {
            book.seen.retain(|destination, _| !gone(&destination.sandbox));
            // Unless a sandbox was admitted with this address meanwhile.
            let mut who = self.who.lock().unwrap_or_else(PoisonError::into_inner);
            who.retain(|address, who| !(who.leaves && gone(address)));
        }
        Ok(records)
    }
}

impl FlowRegistry {
    fn read(&mut self) -> io::Result<()> {
        for seen in self.seen.values_mut() {
            seen.missed += 1;
            seen.is_silent = true;
        }
        let Self { socket, seen } = self;
        for set in [SENT, REFUSED, GOT, SENT6, REFUSED6, GOT6] {
            // If a concurrent change disturbs the dump, the next reading has the missed elements.
            socket.dump(&mut nft::dump_elements(TABLE, set), |message| {
                nft::read_counted(message, |key, counted| {
                    let Some(destination) = Destination::from_key(key, is_v6(set)) else { return };
                    // Replies alone, to a destination that is already forgotten, get no record.
                    match set {
                        GOT | GOT6 => {
                            seen.get_mut(&destination).into_iter().for_each(|seen| seen.receive(counted))
                        }
                        _ => seen.entry(destination).or_default().send(counted),
                    }
                });
            })?;
        }
        for set in [MORE, MORE_GOT] {
            socket.dump(&mut nft::dump_elements(TABLE, set), |message| {
                nft::read_counted(message, |key, counted| {
                    let Some(sandbox) = key.first_chunk::<4>() else { return };
                    let many = seen.entry(Destination::many((*sandbox).into())).or_default();
                    if set == MORE { many.send(counted) } else { many.receive(counted) }
                });
            })?;
        }
        seen.retain(|_, seen| seen.missed <= FORGET_AFTER);
        Ok(())
    }

    fn tell(&mut self, asked: &HashMap<Ipv4Addr, FlowOwner>) -> Vec<(SandboxId, EgressRecord)> {
        let (now, at_ms) = (Instant::now(), now_ms());
        let mut records = Vec::new();
        let mut counts: HashMap<Ipv4Addr, usize> = HashMap::new();
        let mut beyond: HashMap<(Ipv4Addr, bool), EgressRecord> = HashMap::new();
        for (destination, seen) in &mut self.seen {
            let Some(who) = asked.get(&destination.sandbox) else { continue };
            if !(seen.is_due(now) || (who.leaves && seen.untold_packets > 0)) {
                continue;
            }
            let (verdict, rule) = rule::of(&who.egress, destination);
            let passed = verdict == EgressVerdict::Allowed;
            // Refused bytes did not leave the sandbox.
            let (sent, received) = if passed { (seen.untold_sent, seen.untold_got) } else { (0, 0) };
            seen.told(now);
            // Destinations that are already summed up do not count.
            let count = counts.entry(destination.sandbox).or_default();
            *count += usize::from(!destination.is_many());
            if *count > RECORDS_AT_ONCE || destination.is_many() {
                let more = beyond
                    .entry((destination.sandbox, passed))
                    .or_insert_with(|| rule::of_many(at_ms, verdict));
                more.sent += sent;
                more.received += received;
                continue;
            }
            let record = EgressRecord {
                at_ms,
                what: EgressWhat::Flow,
                verdict,
                rule,
                name: None,
                address: Some(destination.address),
                port: rule::has_ports(destination.protocol).then_some(destination.port),
                protocol: Some(rule::protocol(destination.protocol)),
                sent,
                received,
            };
            records.push((who.sandbox.clone(), record));
        }
        let whose = |address: Ipv4Addr| asked.get(&address).map(|who| who.sandbox.clone());
        records
            .extend(beyond.into_iter().filter_map(|((address, _), record)| Some((whose(address)?, record))));
        records
    }
}

/// Removes the kernel's counters of sandboxes; they would expire by themselves, but later.
pub(crate) fn forget(socket: &mut Socket, of: impl Fn(Ipv4Addr) -> bool) -> io::Result<()> {
    for set in [
        SENT, GOT, MORE, MORE_GOT, CROWD, REFUSED, NOISY, ASKERS, FLOWS, SENT6, GOT6, REFUSED6, NOISY6,
        FLOWS6,
    ] {
        let keys = match set_keys(socket, TABLE, set) {
            // A kernel that cannot count flows has no such set.
            Err(error) if matches!(set, FLOWS | FLOWS6) && error.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            other => other?,
        };
        let is_of = |key: &&Vec<u8>| sandbox_of(key, is_v6(set)).is_some_and(&of);
        let doomed: Vec<(&str, &[u8])> = keys.iter().filter(is_of).map(|key| (set, &key[..])).collect();
        for chunk in doomed.chunks(CHANGES_AT_ONCE) {
            remove_elements(socket, chunk)?;
        }
    }
    Ok(())
}

fn is_v6(set: &str) -> bool {
    set.ends_with('6')
}

/// The sandbox of a key. A sandbox's IPv6 address ends with its IPv4 address.
fn sandbox_of(key: &[u8], v6: bool) -> Option<Ipv4Addr> {
    key.get(if v6 { 12 } else { 0 }..)?.first_chunk::<4>().map(|address| Ipv4Addr::from(*address))
}

impl Destination {
    /// Every field of a key begins at a multiple of four.
    fn from_key(key: &[u8], v6: bool) -> Option<Self> {
        let four = |at: usize| key.get(at..)?.first_chunk::<4>().copied();
        let (address, rest): (IpAddr, usize) = if v6 {
            (Ipv6Addr::from(*key.get(16..)?.first_chunk::<16>()?).into(), 32)
        } else {
            (Ipv4Addr::from(four(4)?).into(), 8)
        };
        let port = four(rest + 4)?;
        Some(Self {
            sandbox: sandbox_of(key, v6)?,
            address,
            protocol: four(rest)?[0],
            port: u16::from_be_bytes([port[0], port[1]]),
            mark: four(rest + 8).map_or(0, u32::from_ne_bytes),
        })
    }

    /// The sum of all destinations that the kernel did not count separately.
    fn many(sandbox: Ipv4Addr) -> Self {
        Self { sandbox, address: Ipv4Addr::UNSPECIFIED.into(), protocol: 0, port: 0, mark: 0 }
    }

    fn is_many(&self) -> bool {
        self.address.is_unspecified()
    }

    fn why(&self) -> Option<Why> {
        Why::from_mark(self.mark)
    }
}

impl DestinationUsage {
    fn send(&mut self, counted: ElementCounter) {
        let new = since(self.sent, counted);
        self.untold_sent += new.bytes;
        self.heard(new.packets);
        self.sent = counted;
    }

    fn receive(&mut self, counted: ElementCounter) {
        let new = since(self.got, counted);
        self.untold_got += new.bytes;
        self.heard(new.packets);
        self.got = counted;
    }

    fn heard(&mut self, packets: u64) {
        self.missed = 0;
        self.untold_packets += packets;
        self.is_silent &= packets == 0;
    }

    fn is_due(&self, now: Instant) -> bool {
        let is_time = self.told_at.is_none_or(|told| now.duration_since(told) >= AGAIN_AFTER);
        self.untold_packets > 0 && (is_time || self.is_silent)
    }

    fn told(&mut self, now: Instant) {
        (self.untold_sent, self.untold_got, self.untold_packets) = (0, 0, 0);
        self.told_at = Some(now);
    }
}

/// The change since the last reading. A new element with an old key counts from zero.
fn since(before: ElementCounter, now: ElementCounter) -> ElementCounter {
    if now.packets < before.packets {
        return now;
    }
    ElementCounter { bytes: now.bytes.saturating_sub(before.bytes), packets: now.packets - before.packets }
}

#[expect(clippy::disallowed_methods, reason = "the time of a record of the egress log")]
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn counted(bytes: u64, packets: u64) -> ElementCounter {
        ElementCounter { bytes, packets }
    }

    #[test]
    fn only_what_is_new_is_told_and_a_fresh_counter_begins_anew() {
        assert_eq!(since(counted(10, 1), counted(30, 3)), counted(20, 2));
        assert_eq!(since(counted(10_000, 90), counted(30, 3)), counted(30, 3));
    }

    #[test]
    fn a_destination_is_told_at_once_then_when_it_falls_silent_or_after_a_while() {
        let now = Instant::now();
        let mut seen = DestinationUsage::default();
        seen.send(counted(100, 1));
        assert!(seen.is_due(now));
        seen.told(now);
        seen.is_silent = true;
        seen.send(counted(200, 2));
        assert!(!seen.is_due(now + Duration::from_secs(1)), "it goes on");
        assert!(seen.is_due(now + AGAIN_AFTER));
        seen.is_silent = true;
        seen.send(counted(200, 2));
        assert!(seen.is_due(now + Duration::from_secs(2)), "it fell silent");
        seen.told(now);
        assert!(!seen.is_due(now + AGAIN_AFTER), "there is nothing to tell");
    }

    #[test]
    fn keys_are_read_and_short_ones_are_not() {
        let key = [100, 64, 0, 7, 203, 0, 113, 9, 6, 0, 0, 0, 0x1f, 0x90, 0, 0];
        let found = Destination::from_key(&key, false).unwrap();
        assert_eq!((found.address, found.protocol, found.port), ([203, 0, 113, 9].into(), 6, 8080));
        assert!(Destination::from_key(&key[..15], false).is_none());
        let refused: Vec<u8> = key.iter().copied().chain(3u32.to_ne_bytes()).collect();
        assert_eq!(Destination::from_key(&refused, false).unwrap().why(), Some(Why::Closed));
        let link = SandboxLink { number: 7, address: Ipv4Addr::new(100, 64, 0, 7) };
        let to: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let mut key = [link.address6().octets(), to.octets()].concat();
        key.extend([17, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        let found = Destination::from_key(&key, true).unwrap();
        assert_eq!((found.sandbox, found.address, found.port), (link.address, to.into(), 8080));
        assert_eq!((found.protocol, found.mark), (17, 0));
        assert!(Destination::from_key(&key[..39], true).is_none());
    }
}
