//! The slot of a sandbox: its live instance, and the lock by which operations on the sandbox take turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_model::InstanceId;
use tokio::sync::{MutexGuard, Notify};

/// The state of one sandbox in an engine.
#[derive(Debug)]
pub struct SandboxSlot<I> {
    /// Held by the operation that changes the sandbox.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    /// The sandbox is to be removed: a create under way gives up.
    doomed: AtomicBool,
    doom: Notify,
    live: Mutex<Option<(InstanceId, Arc<I>)>>,
}

impl<I> Default for SandboxSlot<I> {
    fn default() -> Self {
        Self {
            turn: Arc::default(),
            doomed: AtomicBool::new(false),
            doom: Notify::new(),
            live: Mutex::default(),
        }
    }
}

impl<I> SandboxSlot<I> {
    /// Waits for the turn of the caller, which lasts as long as the guard.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// As [`SandboxSlot::turn`], for a thread without a runtime.
    pub fn turn_blocking(&self) -> MutexGuard<'_, ()> {
        self.turn.blocking_lock()
    }

    /// The live instance.
    pub fn live(&self) -> Option<(InstanceId, Arc<I>)> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The live instance, if it is the wanted one.
    pub fn live_as(&self, wanted: Option<&InstanceId>) -> Option<Arc<I>> {
        let (instance, live) = self.live()?;
        wanted.is_none_or(|wanted| *wanted == instance).then_some(live)
    }

    /// Replaces the live instance. Only the operation whose turn it is does that.
    pub fn set_live(&self, live: Option<(InstanceId, Arc<I>)>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = live;
    }

    /// Makes a create under way give up.
    pub fn condemn(&self) {
        self.doomed.store(true, Ordering::SeqCst);
        self.doom.notify_waiters();
    }

    /// Whether the sandbox is to be removed.
    pub fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::SeqCst)
    }

    /// Waits until the sandbox is to be removed.
    pub async fn doomed(&self) {
        loop {
            let told = self.doom.notified();
            if self.is_doomed() {
                return;
            }
            told.await;
        }
    }
}
