//! Objects of this server in a vendor's list, and which of several is the one of a sandbox.

use atoll_model::{InstanceId, SandboxId};
use atoll_provider::KnownSandbox;

/// An object of this server. `S` is what the vendor says that it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedObject<S> {
    /// The vendor's id.
    pub id: String,
    /// The sandbox of its labels.
    pub sandbox: SandboxId,
    /// The instance of its labels.
    pub instance: InstanceId,
    /// What it does.
    pub state: S,
    /// Orders the objects of one sandbox.
    pub started_at: String,
}

impl<S> OwnedObject<S> {
    /// The same object with what is known of its state by other means.
    pub fn with_state<T>(self, state: T) -> OwnedObject<T> {
        let Self { id, sandbox, instance, started_at, .. } = self;
        OwnedObject { id, sandbox, instance, state, started_at }
    }
}

/// Puts the oldest object first.
pub fn oldest_first<S>(objects: &mut [OwnedObject<S>]) {
    objects.sort_by(|one, other| (&one.started_at, &one.id).cmp(&(&other.started_at, &other.id)));
}

/// Takes the object of a sandbox out of its objects: the one that the facts name, else the oldest.
pub fn choose_object<S>(objects: &mut Vec<OwnedObject<S>>, known: &KnownSandbox) -> Option<OwnedObject<S>> {
    oldest_first(objects);
    let named = known.instance.as_ref().and_then(|(_, facts)| facts["object"].as_str());
    let place = named.and_then(|named| objects.iter().position(|object| object.id == named)).unwrap_or(0);
    (place < objects.len()).then(|| objects.remove(place))
}
