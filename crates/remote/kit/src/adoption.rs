//! Adoption: what became of the objects of this server while it was down. They are found by their labels.
//!
//! | object is | as the known instance | as another, or none is known |
//! |---|---|---|
//! | running | alive | gone; its processes are ended |
//! | paused | frozen; alive, and it is revived, where the sandbox has to run | gone; its processes are ended |
//! | stopping | gone; its end is waited for | as before |
//! | stopped | gone | gone |
//! | not there | gone | gone |
//!
//! Objects that have to be revived or ended are waited for only a short time: the watch goes on with them. So one object that does
//! not change keeps no other waiting. Objects that no sandbox needs are left to the watch, which removes them after the grace time; a
//! create that was interrupted and is done again removes its own at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::SandboxId;
use atoll_provider::{Adopted, AdoptionOutcome, InstanceActivity, KnownSandbox, OwnedSandbox, ProviderError};
use futures::StreamExt;

use crate::watch::inspect;
use crate::{ObjectState, OwnedObject, RemoteObject, Vendor, VendorState, choose_object};

/// LIMIT: objects that are looked at, revived or ended at a time.
const AT_ONCE: usize = 16;
/// LIMIT: how long the adoption waits for objects that have to be revived or ended.
const CHANGES_WITHIN: Duration = Duration::from_secs(4);

/// The sandboxes that carry the label of this server.
///
/// # Errors
/// The vendor does not list them.
pub async fn owned_sandboxes<V: Vendor>(vendor: &V) -> Result<Vec<OwnedSandbox>, ProviderError> {
    let mut owned: HashMap<SandboxId, OwnedSandbox> = HashMap::new();
    for found in vendor.list().await? {
        let activity = match found.state {
            VendorState::Running => Some(InstanceActivity::Running),
            VendorState::Paused => Some(InstanceActivity::Paused),
            VendorState::Stopping | VendorState::Stopped => None,
        };
        let instance = activity.map(|activity| (found.instance, activity));
        let entry = owned.entry(found.sandbox.clone());
        let sandbox = entry.or_insert(OwnedSandbox { sandbox: found.sandbox, instance: None });
        sandbox.instance = sandbox.instance.take().or(instance);
    }
    Ok(owned.into_values().collect())
}

/// Takes up the objects of known sandboxes.
///
/// # Errors
/// The vendor does not list its objects, or a record cannot be written.
pub async fn adopt<V: Vendor>(
    vendor: &Arc<V>,
    known: Vec<KnownSandbox>,
) -> Result<Vec<Adopted>, ProviderError> {
    let table = vendor.table();
    let _no_changes = table.adopting().await;
    let mut owned: HashMap<SandboxId, Vec<OwnedObject<VendorState>>> = HashMap::new();
    for found in vendor.list().await? {
        owned.entry(found.sandbox.clone()).or_default().push(found);
    }
    let mut unlisted = unlisted_objects(&**vendor, &known, &owned).await?;
    let sandboxes: HashSet<SandboxId> = known.iter().map(|known| known.sandbox.clone()).collect();
    let (mut adopted, mut unsettled) = (Vec::new(), Vec::new());
    for known in known {
        let mut objects = owned.remove(&known.sandbox).unwrap_or_default();
        let mut fate = AdoptionOutcome::Gone;
        objects.extend(unlisted.remove(&known.sandbox));
        match choose_object(&mut objects, &known) {
            Some(found) => {
                let object;
                (object, fate) = take_up(&**vendor, &known, &found).await?;
                if object.state != reached_state(found.state) {
                    unsettled.push((known.sandbox.clone(), table.of(&known.sandbox), object));
                }
            }
            None => table.of(&known.sandbox).lose(),
        }
        adopted.extend(known.instance.map(|(instance, _)| Adopted { instance, fate, facts: None }));
    }
    let ids = |objects: Vec<OwnedObject<VendorState>>| objects.into_iter().map(|object| object.id).collect();
    table.set_leftovers(owned.into_iter().map(|(sandbox, objects)| (sandbox, ids(objects))).collect());
    table.set_adopted(&sandboxes);
    let changes = unsettled.into_iter().map(|watched| inspect(&**vendor, watched));
    let changes = futures::stream::iter(changes).buffer_unordered(AT_ONCE).collect::<()>();
    if tokio::time::timeout(CHANGES_WITHIN, changes).await.is_err() {
        tracing::warn!(
            provider = vendor.name(),
            "some sandboxes are not yet as they should be at the service"
        );
    }
    Ok(adopted)
}

/// Objects that running sandboxes had and that a list does not contain. A list can lack what changes at that moment, so each of them
/// is looked at.
async fn unlisted_objects<V: Vendor>(
    vendor: &V,
    known: &[KnownSandbox],
    owned: &HashMap<SandboxId, Vec<OwnedObject<VendorState>>>,
) -> Result<HashMap<SandboxId, OwnedObject<VendorState>>, ProviderError> {
    let mut looks = Vec::new();
    for known in known {
        let Some((instance, facts)) = &known.instance else { continue };
        let Some(id) = facts["object"].as_str() else { continue };
        if owned.get(&known.sandbox).is_some_and(|objects| objects.iter().any(|object| object.id == id)) {
            continue;
        }
        looks.push(async move {
            let state = vendor.look(&known.sandbox, id).await?;
            Ok(state.map(|state| OwnedObject {
                id: id.to_owned(),
                sandbox: known.sandbox.clone(),
                instance: instance.clone(),
                state,
                started_at: String::new(),
            }))
        });
    }
    let looks: Vec<Result<Option<_>, ProviderError>> =
        futures::stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
    let found: Vec<_> = looks.into_iter().collect::<Result<_, _>>()?;
    Ok(found.into_iter().flatten().map(|object| (object.sandbox.clone(), object)).collect())
}

/// Removes what an interrupted create of this sandbox left, before it is created again. What cannot be removed in a short time is
/// left to the watch.
pub async fn remove_leftovers<V: Vendor>(vendor: &V, sandbox: &SandboxId) {
    for id in vendor.table().take_leftovers(sandbox) {
        let removed = tokio::time::timeout(CHANGES_WITHIN, vendor.remove(&id)).await;
        if !matches!(removed, Ok(Ok(()))) {
            tracing::warn!(%sandbox, provider = vendor.name(), object = id, "what an interrupted create left could not be removed yet");
        }
    }
}

/// Puts the object of a sandbox into the table, in the state that it has to have.
async fn take_up<V: Vendor>(
    vendor: &V,
    known: &KnownSandbox,
    found: &OwnedObject<VendorState>,
) -> Result<(RemoteObject<V::Access>, AdoptionOutcome), ProviderError> {
    let is_known = known.instance.as_ref().is_some_and(|(wanted, _)| *wanted == found.instance);
    let (state, fate) = match (found.state, is_known) {
        (VendorState::Running, true) => (ObjectState::Running, AdoptionOutcome::Alive),
        (VendorState::Paused, true) if known.paused => (ObjectState::Paused, AdoptionOutcome::Frozen),
        // The server was away for longer than the lifetime at the vendor, or died during a resume.
        (VendorState::Paused, true) => (ObjectState::Running, AdoptionOutcome::Alive),
        (VendorState::Stopped, _) => (ObjectState::Halted, AdoptionOutcome::Gone),
        (VendorState::Running | VendorState::Paused | VendorState::Stopping, _) => {
            (ObjectState::Ending, AdoptionOutcome::Gone)
        }
    };
    let slot = vendor.table().of(&known.sandbox);
    // What is known of the way to it stays, unless it has to be revived.
    let before = slot.object().filter(|before| before.id == found.id && before.instance == found.instance);
    let access = before.filter(|_| state == reached_state(found.state)).and_then(|before| before.access);
    let object = RemoteObject {
        id: found.id.clone(),
        instance: found.instance.clone(),
        state,
        access: access.or_else(|| vendor.first_access()),
        kept_at: None,
    };
    if object.is_live() {
        vendor.note_adopted(found).await?;
    }
    slot.set(object.clone());
    Ok((object, fate))
}

/// What an object is that the vendor says this of.
const fn reached_state(state: VendorState) -> ObjectState {
    match state {
        VendorState::Running => ObjectState::Running,
        VendorState::Paused => ObjectState::Paused,
        VendorState::Stopping | VendorState::Stopped => ObjectState::Halted,
    }
}
