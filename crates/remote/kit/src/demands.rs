//! What no vendor can obey, refused before a sandbox is recorded, and what a vendor does not tell.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_model::policy::egress::Egress;
use atoll_model::policy::placement::Node;
use atoll_model::{SandboxId, Storage};
use atoll_provider::{Capability, FilesOrigin, InstanceDemands, InstanceSpec, ProviderError};
use tokio::time::Instant;

/// How long a name that was found is believed to be there.
const NAME_FRESH: Duration = Duration::from_secs(60);
/// LIMIT: names that are remembered.
const NAMES_MAX: usize = 256;
/// A vendor does not tell its capacity; what is used up there is an error of the create.
const UNKNOWN: u64 = 1 << 24;

pub use atoll_provider::missing_capability;

/// The sandbox has no such instance.
#[must_use]
pub fn gone(sandbox: &SandboxId) -> ProviderError {
    ProviderError::Gone { sandbox: sandbox.clone() }
}

/// Whether a policy forbids everything.
#[must_use]
pub fn is_closed(policy: &Egress) -> bool {
    policy.denied_by.is_some() || *policy == Egress::closed()
}

/// A vendor's own policy is all or nothing, and an object keeps it.
///
/// # Errors
/// [`ProviderError::MissingCapability`] or [`ProviderError::Unsupported`].
pub fn check_vendor_demands(
    provider: &'static str,
    demands: &InstanceDemands<'_>,
) -> Result<(), ProviderError> {
    let made_with = demands.made_with.unwrap_or(demands.network);
    if !is_closed(made_with) && *demands.network != Egress::open() {
        return Err(missing_capability(provider, Capability::Egress));
    }
    match demands.storage {
        Storage::Disk => Ok(()),
        Storage::Memory => Err(ProviderError::Unsupported {
            what: format!("storage memory at provider {provider}"),
            hint: "use storage disk".to_owned(),
        }),
    }
}

/// Refuses a specification that no object of a vendor without snapshots can have.
///
/// # Errors
/// As [`check_vendor_demands`].
pub fn check_vendor_spec(provider: &'static str, spec: &InstanceSpec) -> Result<(), ProviderError> {
    if spec.origin != FilesOrigin::Template {
        return Err(missing_capability(provider, Capability::Snapshot));
    }
    check_snapshot_vendor_spec(provider, spec)
}

/// As [`check_vendor_spec`], for a vendor with snapshots.
///
/// # Errors
/// As [`check_vendor_demands`].
pub fn check_snapshot_vendor_spec(provider: &'static str, spec: &InstanceSpec) -> Result<(), ProviderError> {
    if !spec.mounts.is_empty() {
        return Err(missing_capability(provider, Capability::Volume));
    }
    check_vendor_demands(provider, &spec.demands())
}

/// A node whose capacity is not known.
#[must_use]
pub const fn unknown_node() -> Node {
    Node {
        memory_free_mib: UNKNOWN,
        memory_total_mib: UNKNOWN,
        cpu_total_milli: UNKNOWN,
        disk_free_mib: UNKNOWN,
        disk_copy_mib: UNKNOWN,
        disk_total_mib: UNKNOWN,
        limits_disk: false,
        disk_limits_mib: 0,
        disk_overcommit: 0.0,
        disk_share: None,
        live: 0,
        memory_limits_mib: 0,
        live_max: 0,
        overcommit: 0.0,
    }
}

/// Names that were found at a vendor, and when: templates, for instance.
#[derive(Debug, Default)]
pub struct FoundNames(Mutex<HashMap<String, Instant>>);

impl FoundNames {
    /// Whether a name was found a short time ago.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(name).is_some_and(|found| found.elapsed() < NAME_FRESH)
    }

    /// A name was found.
    pub fn add(&self, name: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|_, found| found.elapsed() < NAME_FRESH);
        if names.len() < NAMES_MAX {
            names.insert(name.to_owned(), Instant::now());
        }
    }
}

/// When something last succeeded.
#[derive(Debug, Default)]
pub struct LastSuccess(Mutex<Option<Instant>>);

impl LastSuccess {
    /// Whether it succeeded within this time.
    #[must_use]
    pub fn is_within(&self, time: Duration) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|at| at.elapsed() < time)
    }

    /// It succeeded now.
    pub fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}
