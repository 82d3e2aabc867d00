//! Annotations of a lease that E2B's clients read back and that no rule of Atoll uses.

use std::collections::BTreeMap;

use atoll_model::Lease;

use crate::network::{Meant, NetworkShown};
use crate::sandboxes::VolumeMount;

/// The sandbox was created through this front.
pub(crate) const MADE: &str = "e2b.made";
/// The template as it was requested.
pub(crate) const TEMPLATE: &str = "e2b.template";
/// The network as it was requested.
const NETWORK: &str = "e2b.network";
/// Whether the request explicitly allowed or refused internet access.
const INTERNET: &str = "e2b.internet";
/// Volumes by name.
const MOUNTS: &str = "e2b.mounts";

/// The annotations of a new sandbox.
pub(crate) fn of_new(
    template: &str,
    network: Option<&Meant>,
    mounts: &[VolumeMount],
) -> BTreeMap<String, String> {
    let mut all =
        BTreeMap::from([(MADE.to_owned(), "true".to_owned()), (TEMPLATE.to_owned(), template.to_owned())]);
    if let Some(meant) = network {
        put_network(&mut all, meant);
    }
    if !mounts.is_empty() {
        all.insert(MOUNTS.to_owned(), json(&mounts));
    }
    all
}

/// The annotations of a lease with another network.
pub(crate) fn with_network(lease: &Lease, meant: &Meant) -> BTreeMap<String, String> {
    let mut all = lease.annotations.clone();
    put_network(&mut all, meant);
    all
}

fn put_network(all: &mut BTreeMap<String, String>, meant: &Meant) {
    all.insert(NETWORK.to_owned(), json(&meant.shown));
    match meant.internet {
        Some(internet) => drop(all.insert(INTERNET.to_owned(), internet.to_string())),
        None => drop(all.remove(INTERNET)),
    }
}

pub(crate) fn network(lease: &Lease) -> Option<NetworkShown> {
    serde_json::from_str(lease.annotations.get(NETWORK)?).ok()
}

pub(crate) fn internet(lease: &Lease) -> Option<bool> {
    lease.annotations.get(INTERNET)?.parse().ok()
}

pub(crate) fn mounts(lease: &Lease) -> Option<Vec<VolumeMount>> {
    serde_json::from_str(lease.annotations.get(MOUNTS)?).ok()
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("strings, lists and maps of strings serialise")
}
