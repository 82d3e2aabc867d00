//! What the watch and the adoption need from the provider of a vendor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::SandboxId;
use atoll_provider::{ProviderError, Target};

use crate::{CallError, OwnedObject, RemoteObject, RemoteSlot, RemoteTable};

/// What an object does, as its vendor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VendorState {
    /// Its processes run, or are about to.
    Running,
    /// Its processes stand still, with their memory, or are about to.
    Paused,
    /// Its processes are ending.
    Stopping,
    /// Only its files are there.
    Stopped,
}

/// How often a provider looks at its vendor.
#[derive(Debug, Clone, Copy)]
pub struct WatchTiming {
    /// How often the objects of this server are listed.
    pub list_every: Duration,
    /// How often the lifetime of a running object is set again; `None`: it has none.
    pub keep_alive_every: Option<Duration>,
    /// How long an object that no sandbox needs is left alone.
    pub grace: Duration,
}

/// The calls of one vendor.
#[async_trait]
pub trait Vendor: Send + Sync + 'static {
    /// What its calls need to reach an object.
    type Access: Send + Sync + 'static;

    /// The name of the provider.
    fn name(&self) -> &'static str;

    /// The sandboxes of the provider.
    fn table(&self) -> &Arc<RemoteTable<Self::Access>>;

    /// Whether its watch is the one that counts.
    fn watch_number(&self) -> &WatchNumber;

    /// How often it looks.
    fn watch_timing(&self) -> WatchTiming;

    /// Every object of this server.
    async fn list(&self) -> Result<Vec<OwnedObject<VendorState>>, ProviderError>;

    /// What one object does; `None`: the vendor does not have it.
    async fn look(&self, sandbox: &SandboxId, id: &str) -> Result<Option<VendorState>, ProviderError>;

    /// Sets the lifetime of a running object again; `None`: it does not run, or is not there.
    async fn keep_alive(&self, id: &str) -> Result<Option<()>, CallError>;

    /// Removes an object. Idempotent.
    async fn remove(&self, id: &str) -> Result<(), ProviderError>;

    /// Lets a paused object run that has to run. The caller has the turn.
    async fn revive(&self, target: &Target, slot: &RemoteSlot<Self::Access>) -> Result<(), ProviderError>;

    /// Pauses a running object that has to be paused. The caller has the turn.
    async fn rest(&self, target: &Target, slot: &RemoteSlot<Self::Access>) -> Result<(), ProviderError>;

    /// Ends the processes of an object; its files are kept where the vendor can. The caller has the turn.
    async fn end(
        &self,
        sandbox: &SandboxId,
        slot: &RemoteSlot<Self::Access>,
        object: &RemoteObject<Self::Access>,
    ) -> Result<(), ProviderError>;

    /// An object that was adopted runs, or is paused, as the instance of its sandbox.
    async fn note_adopted(&self, _object: &OwnedObject<VendorState>) -> Result<(), ProviderError> {
        Ok(())
    }

    /// What is known of the way to an object before it was used.
    fn first_access(&self) -> Option<Arc<Self::Access>> {
        None
    }

    /// Whether no provider with newer settings has taken its place. What is seen with old settings says nothing about sandboxes.
    fn is_current(&self) -> bool {
        self.table().is_watched_by(self.watch_number().get())
    }
}

/// The number of a provider's watch in its table; 0 before it begins.
#[derive(Debug, Default)]
pub struct WatchNumber(AtomicU64);

impl WatchNumber {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, number: u64) {
        self.0.store(number, Ordering::SeqCst);
    }
}
