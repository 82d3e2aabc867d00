//! Watchers that a client polls by id instead of holding a stream open.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{WatchEvent, WatchEventKind, Watcher};
use crate::error::AgentError;

/// LIMIT: watchers held at once; the kernel allows 128 inotify queues per user.
const HELD_MAX: usize = 64;
/// LIMIT: events between two polls; more is an overflow.
const EVENTS_MAX: usize = 4096;
/// A watcher that was not polled for this long belongs to a client that is gone.
const FORGOTTEN: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub(crate) struct WatcherRegistry {
    state: Mutex<WatcherState>,
}

#[derive(Default)]
struct WatcherState {
    next: u64,
    watchers: HashMap<String, RegisteredWatcher>,
}

struct RegisteredWatcher {
    events: Arc<Mutex<VecDeque<WatchEvent>>>,
    /// The request of the watcher, which is needed again at each poll.
    pub(crate) terms: WatchRequest,
    polled_at: Instant,
    task: AbortHandle,
}

#[derive(Debug, Clone)]
pub(crate) struct WatchRequest {
    pub(crate) user: crate::users::User,
    pub(crate) root: Vec<u8>,
    pub(crate) with_entries: bool,
}

impl Drop for RegisteredWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WatcherRegistry {
    /// Stores a watcher, which continues to collect events.
    #[expect(clippy::disallowed_methods, reason = "the entry in the table holds its handle and aborts it")]
    pub(crate) fn insert(&self, mut watcher: Watcher, terms: WatchRequest) -> Result<String, AgentError> {
        let mut state = self.lock();
        state.watchers.retain(|_, one| one.polled_at.elapsed() < FORGOTTEN);
        if state.watchers.len() >= HELD_MAX {
            return Err(AgentError::Exhausted("too many watchers".into()));
        }
        state.next += 1;
        let id = format!("w{}", state.next);
        let events = Arc::new(Mutex::new(VecDeque::new()));
        let sink = Arc::clone(&events);
        let task = tokio::spawn(async move {
            while let Ok(event) = watcher.next().await {
                let mut events = sink.lock().unwrap_or_else(PoisonError::into_inner);
                if events.len() < EVENTS_MAX {
                    events.push_back(event);
                } else if events.back().is_some_and(|last: &WatchEvent| last.what != WatchEventKind::Overflow)
                {
                    events.push_back(WatchEvent { name: Vec::new(), what: WatchEventKind::Overflow });
                }
            }
        });
        let one = RegisteredWatcher { events, terms, polled_at: Instant::now(), task: task.abort_handle() };
        state.watchers.insert(id.clone(), one);
        Ok(id)
    }

    /// The events since the last poll.
    pub(crate) fn poll(&self, id: &str) -> Result<(Vec<WatchEvent>, WatchRequest), AgentError> {
        let mut state = self.lock();
        let one = state.watchers.get_mut(id).ok_or_else(missing)?;
        one.polled_at = Instant::now();
        let events = one.events.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        Ok((events, one.terms.clone()))
    }

    pub(crate) fn remove(&self, id: &str) -> Result<(), AgentError> {
        self.lock().watchers.remove(id).map(|_| ()).ok_or_else(missing)
    }

    fn lock(&self) -> MutexGuard<'_, WatcherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing() -> AgentError {
    AgentError::NotFound("watcher not found".into())
}
