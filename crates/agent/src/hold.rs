//! Holds: programs inside ask that the sandbox is kept awake. `POST`, `GET` and `DELETE /hold` need no token.
//!
//! Deadlines are on the clock that goes on while the sandbox is paused, so ten minutes are ten minutes by everybody's watch.
//! That clock begins anew with each boot: after a restore on another boot all holds are void, and who still wants one asks
//! again within half a minute (see `command`). A hold never changes anything by itself; the host looks at it.

mod command;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_agentapi::Held;

pub(crate) use command::{NAME, run};

use crate::error::Refusal;

/// LIMIT: how far ahead a hold may reach.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);
/// LIMIT: holds with names of their own; further ones count as one, with the latest deadline of all.
const NAMED_MAX: usize = 64;
const NAME_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Holds {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the boot that the deadlines are of.
    boot: String,
    until: HashMap<String, Duration>,
}

impl State {
    /// Forgets what is over.
    fn sweep(&mut self, boot: String, now: Duration) {
        if self.boot != boot {
            self.until.clear();
            self.boot = boot;
        }
        self.until.retain(|_, until| *until > now);
    }
}

impl Holds {
    /// Holds for so many seconds from now. The same name again: its new deadline; no name: the later of old and new.
    pub(crate) fn add(&self, name: &str, seconds: u64) -> Result<Held, Refusal> {
        let ahead = Duration::from_secs(seconds);
        if ahead.is_zero() || ahead > AHEAD_MAX {
            return Err(Refusal::Invalid(format!("seconds must be 1 to {}", AHEAD_MAX.as_secs())));
        }
        if name.len() > NAME_MAX {
            return Err(Refusal::Invalid(format!("a name has at most {NAME_MAX} bytes")));
        }
        Ok(self.add_at(name, ahead, boot(), now()))
    }

    fn add_at(&self, name: &str, ahead: Duration, boot: String, now: Duration) -> Held {
        let mut state = self.lock();
        state.sweep(boot, now);
        let room = state.until.len() < NAMED_MAX || state.until.contains_key(name);
        let until = state.until.entry(if room { name.to_owned() } else { String::new() }).or_default();
        *until = if room && !name.is_empty() { now + ahead } else { (*until).max(now + ahead) };
        held(&state, now)
    }

    /// Lets go of one; without a name, of those that have none.
    pub(crate) fn release(&self, name: &str) -> Held {
        let mut state = self.lock();
        let now = now();
        state.sweep(boot(), now);
        state.until.remove(name);
        held(&state, now)
    }

    /// For how long somebody still asks.
    pub(crate) fn read(&self) -> Held {
        let mut state = self.lock();
        let now = now();
        if !state.until.is_empty() {
            state.sweep(boot(), now);
        }
        held(&state, now)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn held(state: &State, now: Duration) -> Held {
    let left = state.until.values().max().map_or(Duration::ZERO, |until| until.saturating_sub(now));
    Held { held_s: left.as_secs() + u64::from(left.subsec_nanos() > 0) }
}

fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

/// Which boot this is. Where that cannot be read, all are one.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn holds_are_merged_as_the_latest_and_end_one_by_one() {
        let holds = Holds::default();
        assert_eq!(holds.read().held_s, 0);
        assert_eq!(holds.add("", 100).unwrap().held_s, 100);
        assert_eq!(holds.add("", 10).unwrap().held_s, 100, "a shorter one shortens nothing");
        assert_eq!(holds.add("make", 200).unwrap().held_s, 200);
        assert!((99..=100).contains(&holds.release("make").held_s));
        assert_eq!(holds.release("").held_s, 0);
        for bad in [0, 86_401, u64::MAX] {
            assert!(holds.add("", bad).is_err());
        }
        assert!(holds.add(&"x".repeat(65), 1).is_err());
    }

    #[test]
    fn a_lease_that_is_not_renewed_ends() {
        let holds = Holds::default();
        let boot = || "one".to_owned();
        assert_eq!(holds.add_at("a", at(60), boot(), at(1000)).held_s, 60);
        assert_eq!(holds.add_at("b", at(1), boot(), at(1061)).held_s, 1);
        assert!(!holds.lock().until.contains_key("a"));
    }

    #[test]
    fn another_boot_ends_all_whatever_its_clock_says() {
        for clock in [10, 5000] {
            let holds = Holds::default();
            holds.add_at("a", at(600), "one".into(), at(4000));
            assert_eq!(holds.add_at("b", at(5), "two".into(), at(clock)).held_s, 5);
        }
    }

    #[test]
    fn very_many_count_as_one() {
        let holds = Holds::default();
        for n in 0..1000 {
            holds.add_at(&format!("n{n}"), at(60 + n), "one".into(), at(1));
        }
        let state = holds.lock();
        assert!(state.until.len() <= NAMED_MAX + 1);
        assert_eq!(held(&state, at(1)).held_s, 1059);
    }
}
