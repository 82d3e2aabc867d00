//! A sandbox as Leap0 describes it.

use atoll_front_kit::rfc3339;
use atoll_model::{Lease, OnTimeout};
use serde::Serialize;

use crate::mounts::MountShown;
use crate::policy::PolicyShown;
use crate::states::state;

/// The response to `get` has no policy, all others have it, as at the vendor.
///
/// COMPAT(leap0): the Python SDK reads `memory` and `disk`; the JavaScript SDK 0.1.0 refuses an answer without
/// `memory_mib` and `disk_mib`.
#[derive(Debug, Serialize)]
pub(crate) struct SandboxResponse {
    id: String,
    template_id: String,
    vcpu: u32,
    /// MiB.
    memory: u32,
    memory_mib: u32,
    /// MiB.
    disk: u32,
    disk_mib: u32,
    /// Seconds; 0 if the sandbox has no lifetime.
    timeout: u64,
    state: &'static str,
    auto_pause: bool,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_policy: Option<PolicyShown>,
    /// Left out if empty: the SDK treats a missing list as an empty one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<MountShown>,
}

impl From<Lease> for SandboxResponse {
    fn from(lease: Lease) -> Self {
        Self {
            id: lease.id.into(),
            template_id: lease.template,
            vcpu: lease.limits.cpu_milli.div_ceil(1_000),
            memory: lease.limits.memory_mib,
            memory_mib: lease.limits.memory_mib,
            disk: lease.limits.disk_mib,
            disk_mib: lease.limits.disk_mib,
            timeout: lease.timeout_s.unwrap_or(0),
            state: state(lease.phase),
            auto_pause: lease.on_timeout == OnTimeout::Pause,
            created_at: rfc3339(lease.created_at.wall_ms),
            network_policy: None,
            mounts: Vec::new(),
        }
    }
}

impl SandboxResponse {
    pub(crate) fn with_policy(lease: Lease) -> Self {
        let network_policy = Some(PolicyShown::from(&lease.network));
        Self { network_policy, ..Self::from(lease) }
    }

    pub(super) fn with_mounts(self, mounts: Vec<MountShown>) -> Self {
        Self { mounts, ..self }
    }
}
