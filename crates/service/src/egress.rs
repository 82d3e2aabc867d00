//! What a sandbox may reach: the layers of policy put together for the provider.

use std::sync::Arc;

use atoll_model::Lease;
use atoll_model::policy::egress::{self, Egress, Floor};

/// What the provider is to enforce for a lease.
pub(crate) fn compiled(lease: &Lease) -> Arc<Egress> {
    Arc::new(egress::compile(&Floor::default(), None, &lease.network, &[]))
}
