//! The DNS answers that a sandbox received: addresses by name, and how long they are valid for new connections.
//!
//! Bounded: when too many names are stored, the one that expires first is removed.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// LIMIT: stored names per sandbox.
const MOST_NAMES: usize = 1024;
/// LIMIT: stored addresses per name; large services return other addresses with every answer.
const MOST_ADDRESSES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Answers {
    by_name: HashMap<String, Vec<(Ipv4Addr, Instant)>>,
}

impl Answers {
    /// Stores an answer. It never shortens the lifetime of an earlier one.
    pub(crate) fn remember(&mut self, name: &str, addresses: &[Ipv4Addr], good_for: Duration, now: Instant) {
        if !self.by_name.contains_key(name) && self.by_name.len() >= MOST_NAMES {
            self.make_room(now);
        }
        let known = self.by_name.entry(name.to_owned()).or_default();
        known.retain(|(_, until)| *until > now);
        for address in addresses {
            let until = now + good_for;
            match known.iter_mut().find(|(known, _)| known == address) {
                Some((_, before)) => *before = until.max(*before),
                None => known.push((*address, until)),
            }
        }
        if known.len() > MOST_ADDRESSES {
            known.sort_by_key(|(_, until)| std::cmp::Reverse(*until));
            known.truncate(MOST_ADDRESSES);
        }
    }

    /// Whether an address is a valid answer for a name.
    pub(crate) fn is_fresh(&self, name: &str, address: Ipv4Addr, now: Instant) -> bool {
        let known = self.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        known.iter().any(|(known, until)| *known == address && *until > now)
    }

    /// The only name with this address as a valid answer; `None` if there are more or none.
    pub(crate) fn only_name_of(&self, address: Ipv4Addr, now: Instant) -> Option<&str> {
        let mut names = self
            .by_name
            .iter()
            .filter(|(_, known)| known.iter().any(|(known, until)| *known == address && *until > now));
        let (name, _) = names.next()?;
        names.next().is_none().then_some(name)
    }

    /// Removes entries that are not to be kept; returns the addresses that no name has any more.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str, Ipv4Addr) -> bool) -> Vec<Ipv4Addr> {
        let before = self.addresses();
        for (name, known) in &mut self.by_name {
            known.retain(|(address, _)| keep(name, *address));
        }
        self.by_name.retain(|_, known| !known.is_empty());
        before.difference(&self.addresses()).copied().collect()
    }

    fn addresses(&self) -> BTreeSet<Ipv4Addr> {
        self.by_name.values().flatten().map(|(address, _)| *address).collect()
    }

    fn make_room(&mut self, now: Instant) {
        self.by_name.retain(|_, known| known.iter().any(|(_, until)| *until > now));
        if self.by_name.len() < MOST_NAMES {
            return;
        }
        let last = |known: &Vec<(Ipv4Addr, Instant)>| known.iter().map(|(_, until)| *until).max();
        let first_to_end = self.by_name.iter().min_by_key(|(_, known)| last(known));
        if let Some(name) = first_to_end.map(|(name, _)| name.clone()) {
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
    const B: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
    const TTL: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_is_good_for_its_name_and_time_only() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        answers.remember("a.test", &[A], TTL, now);
        assert!(answers.is_fresh("a.test", A, now));
        assert!(!answers.is_fresh("a.test", B, now));
        assert!(!answers.is_fresh("b.test", A, now));
        assert!(!answers.is_fresh("a.test", A, now + TTL));
        answers.remember("a.test", &[A], Duration::from_secs(1), now);
        assert!(
            answers.is_fresh("a.test", A, now + TTL / 2),
            "a shorter answer does not shorten the lifetime"
        );
    }

    #[test]
    fn an_address_that_another_name_holds_is_not_given_up() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        answers.remember("a.test", &[A, B], TTL, now);
        answers.remember("b.test", &[B], TTL, now);
        assert_eq!(answers.retain(|name, _| name == "b.test"), [A]);
        assert_eq!(answers.retain(|_, _| false), [B]);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        for number in 0..u32::try_from(MOST_NAMES).unwrap_or_default() + 50 {
            let good_for = TTL + Duration::from_secs(number.into());
            answers.remember(&format!("n{number}.test"), &[A], good_for, now);
        }
        assert_eq!(answers.by_name.len(), MOST_NAMES);
        assert!(!answers.is_fresh("n0.test", A, now), "the first to end went first");
        let many: Vec<_> = (0..=255).map(|last| Ipv4Addr::new(198, 51, 100, last)).collect();
        answers.remember("n99.test", &many, TTL, now);
        assert_eq!(answers.by_name["n99.test"].len(), MOST_ADDRESSES);
    }
}
