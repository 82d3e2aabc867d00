//! Holds: programs in the sandbox request that it stays awake. `POST`, `GET` and `DELETE /hold` need no token.
//!
//! Deadlines use the clock that continues while the sandbox is frozen or the machine is suspended, so ten minutes are
//! ten minutes of real time. Time on disk, as a checkpoint, does not count: the rest of the hold applies after the
//! restore. If the clock is ever before the start of a hold, the hold is void. A hold has no effect by itself; the host
//! reads it.

mod command;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_agentapi::HoldStatus;

pub(crate) use command::{NAME, run};

use crate::error::AgentError;

/// LIMIT: the longest duration of a hold.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);
/// LIMIT: holds with separate names; further ones count as one, with the latest deadline of all.
const NAMED_MAX: usize = 64;
const NAME_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Holds {
    state: Mutex<HoldState>,
}

#[derive(Debug, Default)]
struct HoldState {
    holds: HashMap<String, HoldSpan>,
}

#[derive(Debug, Clone, Copy)]
struct HoldSpan {
    since: Duration,
    until: Duration,
}

impl HoldState {
    /// Removes expired holds.
    fn sweep(&mut self, now: Duration) {
        self.holds.retain(|_, hold| hold.since <= now && now < hold.until);
    }
}

impl Holds {
    /// Holds for so many seconds from now. An existing name gets the new deadline; without a name the later deadline
    /// counts.
    pub(crate) fn add(&self, name: &str, seconds: u64) -> Result<HoldStatus, AgentError> {
        let ahead = Duration::from_secs(seconds);
        if ahead.is_zero() || ahead > AHEAD_MAX {
            return Err(AgentError::Invalid(format!("seconds must be 1 to {}", AHEAD_MAX.as_secs())));
        }
        if name.len() > NAME_MAX {
            return Err(AgentError::Invalid(format!("a name has at most {NAME_MAX} bytes")));
        }
        Ok(self.add_at(name, ahead, now()))
    }

    fn add_at(&self, name: &str, ahead: Duration, now: Duration) -> HoldStatus {
        let mut state = self.lock();
        state.sweep(now);
        let room = state.holds.len() < NAMED_MAX || state.holds.contains_key(name);
        let name = if room { name } else { "" };
        let earlier =
            state.holds.get(name).filter(|_| name.is_empty()).map_or(Duration::ZERO, |hold| hold.until);
        let until = earlier.max(now + ahead);
        state.holds.insert(name.to_owned(), HoldSpan { since: now, until });
        held(&state, now)
    }

    /// Releases one hold; without a name, the unnamed one.
    pub(crate) fn release(&self, name: &str) -> HoldStatus {
        let mut state = self.lock();
        let now = now();
        state.sweep(now);
        state.holds.remove(name);
        held(&state, now)
    }

    /// How long the sandbox is still held.
    pub(crate) fn read(&self) -> HoldStatus {
        let mut state = self.lock();
        let now = now();
        state.sweep(now);
        held(&state, now)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn held(state: &HoldState, now: Duration) -> HoldStatus {
    let left = state.holds.values().map(|hold| hold.until.saturating_sub(now)).max().unwrap_or_default();
    HoldStatus { held_s: left.as_secs() + u64::from(left.subsec_nanos() > 0) }
}

fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
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
        assert_eq!(holds.add_at("a", at(60), at(1000)).held_s, 60);
        assert_eq!(holds.add_at("b", at(1), at(1061)).held_s, 1);
        assert!(!holds.lock().holds.contains_key("a"));
    }

    #[test]
    fn a_clock_that_went_back_ends_all() {
        let holds = Holds::default();
        holds.add_at("a", at(600), at(4000));
        assert_eq!(holds.add_at("b", at(5), at(10)).held_s, 5);
    }

    #[test]
    fn very_many_count_as_one() {
        let holds = Holds::default();
        for n in 0..1000 {
            holds.add_at(&format!("n{n}"), at(60 + n), at(1));
        }
        let state = holds.lock();
        assert!(state.holds.len() <= NAMED_MAX + 1);
        assert_eq!(held(&state, at(1)).held_s, 1059);
    }
}
