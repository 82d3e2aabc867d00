//! What happens at a vendor by itself: lifetimes that end, objects that are gone, paused or stopped, objects that no sandbox needs.
//!
//! ```text
//! keep-alive   sets lifetimes again, waits for nothing else
//! comparison   list ─► objects that are not as they should be ─► look ─► report, revive, end
//!                   └► objects that no sandbox needs, after the grace time; older objects of a sandbox, at the next list ─► remove
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_model::SandboxId;
use atoll_provider::{ProviderError, Target};
use futures::StreamExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::{ObjectState, OwnedObject, RemoteObject, RemoteSlot, Vendor, VendorState, WatchTiming};

/// LIMIT: calls of one part of the watch at a time.
const AT_ONCE: usize = 8;
/// LIMIT: how long one comparison waits for the objects that it acts on; the next one goes on with them.
const ACTS_WITHIN: Duration = Duration::from_secs(20);
/// The longest and the shortest time between two looks for lifetimes that have to be set again.
const KEEP_ALIVE_LOOK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(50));

type Watched<A> = (SandboxId, Arc<RemoteSlot<A>>, RemoteObject<A>);

/// The watch of one provider. It ends with the provider.
#[derive(Debug, Default)]
pub struct VendorWatch(Mutex<JoinSet<()>>);

impl VendorWatch {
    /// Begins the watch, unless it has begun. A provider that was only opened to be tested reports nothing, so it begins when
    /// somebody listens.
    pub fn start<V: Vendor>(&self, vendor: &Arc<V>) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() {
            vendor.watch_number().set(vendor.table().take_watch());
            tasks.spawn(keep_alive_while_current(Arc::clone(vendor)));
            tasks.spawn(compare_while_current(Arc::clone(vendor)));
        }
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

async fn keep_alive_while_current<V: Vendor>(vendor: Arc<V>) {
    let Some(period) = vendor.watch_timing().keep_alive_every else { return };
    let (longest, shortest) = KEEP_ALIVE_LOOK;
    let mut ticks = every((period / 4).clamp(shortest, longest));
    while vendor.is_current() {
        ticks.tick().await;
        let due = vendor.table().objects().into_iter().filter(|(_, _, object)| object.is_due(period));
        let calls = due.map(|watched| keep_alive(&*vendor, watched));
        futures::stream::iter(calls).buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

async fn keep_alive<V: Vendor>(vendor: &V, (sandbox, slot, object): Watched<V::Access>) {
    // A change sets the lifetime by itself.
    if slot.is_changing() {
        return;
    }
    match vendor.keep_alive(&object.id).await {
        Ok(Some(())) => slot.update(&object.instance, |object| object.kept_at = Some(Instant::now())),
        // The comparison finds out what became of it.
        Ok(None) => tracing::debug!(%sandbox, provider = vendor.name(), "a sandbox does not run"),
        Err(error) => {
            tracing::warn!(%sandbox, provider = vendor.name(), %error, "the lifetime of a sandbox could not be set again");
        }
    }
}

async fn compare_while_current<V: Vendor>(vendor: Arc<V>) {
    let mut ticks = every(vendor.watch_timing().list_every);
    while vendor.is_current() {
        ticks.tick().await;
        if let Err(error) = compare(&*vendor).await {
            tracing::debug!(provider = vendor.name(), %error, "the sandboxes of the service could not be listed");
        }
    }
}

/// Compares the objects of this server with the table.
async fn compare<V: Vendor>(vendor: &V) -> Result<(), ProviderError> {
    let expected = vendor.table().objects();
    let listed = vendor.list().await?;
    if !vendor.is_current() {
        return Ok(());
    }
    find_lost(vendor, &listed);
    let states: HashMap<&str, VendorState> =
        listed.iter().map(|found| (found.id.as_str(), found.state)).collect();
    let is_unexpected =
        |(_, _, object): &Watched<V::Access>| differs(object.state, states.get(object.id.as_str()).copied());
    let unexpected = expected.into_iter().filter(is_unexpected).map(|watched| inspect(vendor, watched));
    let inspections = futures::stream::iter(unexpected).buffer_unordered(AT_ONCE).collect::<()>();
    let removals = remove_strays(vendor, &listed);
    // What takes longer is left as it is and acted on again.
    let _ = tokio::time::timeout(ACTS_WITHIN, futures::future::join(inspections, removals)).await;
    Ok(())
}

/// Takes up objects that were missing for a while. Their instances count as dead, so they are ended; their files are kept.
fn find_lost<V: Vendor>(vendor: &V, listed: &[OwnedObject<VendorState>]) {
    for found in listed {
        let slot = vendor.table().existing(&found.sandbox);
        let Some(slot) = slot.filter(|slot| slot.is_lost()) else { continue };
        let Some(_turn) = slot.try_turn() else { continue };
        tracing::info!(sandbox = %found.sandbox, provider = vendor.name(), "the object of a sandbox is there again");
        slot.set(RemoteObject {
            id: found.id.clone(),
            instance: found.instance.clone(),
            state: ObjectState::Ending,
            access: vendor.first_access(),
            kept_at: None,
        });
    }
}

/// Whether an object is not as it should be.
const fn differs(expected: ObjectState, seen: Option<VendorState>) -> bool {
    match (expected, seen) {
        (_, None) | (ObjectState::Ending, Some(_)) => true,
        (ObjectState::Running, Some(VendorState::Paused | VendorState::Stopped)) => true,
        (ObjectState::Paused, Some(VendorState::Running | VendorState::Stopped)) => true,
        // A start whose answer was lost, for instance.
        (ObjectState::Halted, Some(VendorState::Running)) => true,
        (ObjectState::Running | ObjectState::Paused | ObjectState::Halted, Some(_)) => false,
    }
}

/// Finds out what became of an object that is not as it should be. A change that is under way finds it out by itself.
pub(crate) async fn inspect<V: Vendor>(vendor: &V, (sandbox, slot, seen): Watched<V::Access>) {
    let Some(_turn) = slot.try_turn() else { return };
    let is_same = |now: &RemoteObject<V::Access>| now.id == seen.id && now.state == seen.state;
    let Some(object) = slot.object().filter(is_same) else { return };
    let done = match vendor.look(&sandbox, &seen.id).await {
        Ok(state) if differs(object.state, state) => act(vendor, &sandbox, &slot, &object, state).await,
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = done {
        tracing::warn!(%sandbox, provider = vendor.name(), %error, "a sandbox is not as it should be at the service; it is tried again");
    }
}

async fn act<V: Vendor>(
    vendor: &V,
    sandbox: &SandboxId,
    slot: &RemoteSlot<V::Access>,
    object: &RemoteObject<V::Access>,
    seen: Option<VendorState>,
) -> Result<(), ProviderError> {
    let target = Target { sandbox: sandbox.clone(), instance: Some(object.instance.clone()) };
    match (object.state, seen) {
        _ if !vendor.is_current() => Ok(()),
        (_, None) => {
            vendor.table().report_death(sandbox, object);
            Ok(())
        }
        (ObjectState::Ending, Some(_)) => vendor.end(sandbox, slot, object).await,
        // What the table says holds until this server says otherwise: its lifetime ended, somebody else changed it, or the answer
        // to a change was lost.
        (ObjectState::Running, Some(VendorState::Paused)) => vendor.revive(&target, slot).await,
        (ObjectState::Paused, Some(VendorState::Running)) => vendor.rest(&target, slot).await,
        (ObjectState::Halted, Some(_)) => {
            let ending = RemoteObject { state: ObjectState::Ending, ..object.clone() };
            slot.set(ending.clone());
            vendor.end(sandbox, slot, &ending).await
        }
        (_, Some(_)) => {
            vendor.table().report_stop(sandbox, object);
            Ok(())
        }
    }
}

/// Removes the objects that no sandbox has needed for the grace time.
async fn remove_strays<V: Vendor>(vendor: &V, listed: &[OwnedObject<VendorState>]) {
    let labelled: Vec<_> = listed.iter().map(|found| (found.id.clone(), found.sandbox.clone())).collect();
    let WatchTiming { list_every, grace, .. } = vendor.watch_timing();
    let strays = vendor.table().expired_strays(&labelled, list_every, grace).into_iter();
    let removals = strays.map(|id| async move {
        tracing::info!(provider = vendor.name(), object = id, "an object that no sandbox needs is removed");
        if let Err(error) = vendor.remove(&id).await {
            tracing::warn!(provider = vendor.name(), object = id, %error, "an object that no sandbox needs could not be removed");
        }
    });
    futures::stream::iter(removals).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// Finds out at once whether the object of a call that got no answer runs, and reports it if not. One that cannot be asked about
/// counts as running.
pub async fn still_runs<V: Vendor>(
    vendor: &V,
    sandbox: &SandboxId,
    object: &RemoteObject<V::Access>,
) -> bool {
    match vendor.look(sandbox, &object.id).await {
        Ok(Some(VendorState::Running | VendorState::Paused)) => true,
        Ok(Some(VendorState::Stopping | VendorState::Stopped)) => {
            // A change that is under way knows better.
            let is_changing = vendor.table().existing(sandbox).is_some_and(|slot| slot.is_changing());
            if vendor.is_current() && !is_changing {
                vendor.table().report_stop(sandbox, object);
            }
            false
        }
        Ok(None) => {
            report_gone(vendor, sandbox, object);
            false
        }
        Err(error) => {
            tracing::debug!(%sandbox, provider = vendor.name(), %error, "a sandbox could not be looked at");
            true
        }
    }
}

/// Reports that the vendor does not have an object, unless it was asked with old settings.
pub fn report_gone<V: Vendor>(vendor: &V, sandbox: &SandboxId, object: &RemoteObject<V::Access>) {
    if vendor.is_current() {
        vendor.table().report_death(sandbox, object);
    }
}
