//! The table of processes: running ones by pid, ended ones for a while.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::output::over_budget;
use super::{Exit, Process};

/// LIMIT: ended processes that still accept a late attach.
const ENDED_MAX: usize = 64;
const ENDED_FOR: Duration = Duration::from_secs(600);
/// LIMIT: running processes with pipes and a pump each; the sandbox's own pids limit is usually lower.
pub(super) const RUNNING_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Table {
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    running: HashMap<u32, Arc<Process>>,
    ended: VecDeque<(Instant, Arc<Process>)>,
}

impl Table {
    pub(super) fn insert(&self, process: Arc<Process>) {
        let mut state = self.lock();
        // A reused pid belongs to the new process.
        state.ended.retain(|(_, old)| old.pid != process.pid);
        state.running.insert(process.pid, process);
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().running.len() >= RUNNING_MAX
    }

    /// Called by the reaper when a child has ended. Orphans that the agent did not start are ignored.
    pub(super) fn reaped(&self, pid: u32, exit: Exit) {
        let mut state = self.lock();
        let Some(process) = state.running.remove(&pid) else { return };
        process.set_exit(exit);
        let now = Instant::now();
        state.ended.push_back((now, process));
        let stale = |(at, _): &(Instant, _)| at.elapsed() > ENDED_FOR;
        while state.ended.len() > ENDED_MAX
            || state.ended.front().is_some_and(stale)
            || (over_budget() && state.ended.len() > 1)
        {
            state.ended.pop_front();
        }
    }

    /// Removes a child whose program could not be executed.
    pub(super) fn forget(&self, process: &Process) {
        let mut state = self.lock();
        state.running.remove(&process.pid);
        state.ended.retain(|(_, old)| !std::ptr::eq(Arc::as_ptr(old), process));
    }

    /// A process that runs or ended recently.
    pub(crate) fn find(&self, pid: u32) -> Option<Arc<Process>> {
        let state = self.lock();
        let ended =
            || state.ended.iter().rev().find(|(_, process)| process.pid == pid).map(|(_, process)| process);
        state.running.get(&pid).or_else(ended).cloned()
    }

    pub(crate) fn find_tag(&self, tag: &str) -> Option<Arc<Process>> {
        let state = self.lock();
        let tagged = |process: &&Arc<Process>| process.facts.tag.as_deref() == Some(tag);
        let newest = state.running.values().filter(tagged).max_by_key(|process| process.facts.started_at_ms);
        newest.or_else(|| state.ended.iter().rev().map(|(_, process)| process).find(tagged)).cloned()
    }

    /// The running processes, by pid.
    pub(crate) fn running(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.lock().running.values().cloned().collect();
        all.retain(|process| !process.is_overdue());
        all.sort_unstable_by_key(|process| process.pid);
        all
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
