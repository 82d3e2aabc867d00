//! Changes the limits of a sandbox. A limit below the current use is refused with the figures, before anything is
//! changed.

use std::sync::Arc;

use atoll_model::Limits;
use atoll_provider::{ProviderError, Target};

use super::snapshot::blocking;
use super::{EngineShared, failed};

const MIB: u64 = 1 << 20;

/// The result of a change.
enum Resized {
    Done,
    Below { what: &'static str, wanted_mib: u32, used_bytes: u64 },
}

impl EngineShared {
    pub(super) async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        let layers = Arc::clone(&self.resources.layers);
        let layer = target.sandbox.as_str().to_owned();
        // The size of a layer in memory is fixed.
        let is_on_disk = layers.exists(&layer);
        self.refuse_disk_limit(is_on_disk, limits)?;
        let cgroup = match &target.instance {
            Some(_) => Some(self.instances.live(target)?.facts.cgroup.clone()),
            None => None,
        };
        let (cgroups, limits) = (Arc::clone(&self.resources.cgroups), *limits);
        let work = move || {
            let disk_bytes = u64::from(limits.disk_mib) * MIB;
            let below = |what, wanted_mib, used_bytes| Ok(Resized::Below { what, wanted_mib, used_bytes });
            if is_on_disk && layers.is_smaller(&layer, disk_bytes)? {
                // Measuring costs a write to disk, so it is done only when the limit shrinks.
                let used = layers.used_bytes_now(&layer)?;
                if used > disk_bytes {
                    return below("disk_mib", limits.disk_mib, used);
                }
            }
            if let Some(cgroup) = cgroup
                && let Some(used) = atoll_cgroup::set_limits_above_use(&*cgroups, &cgroup, &limits)?
            {
                return below("memory_mib", limits.memory_mib, used);
            }
            if is_on_disk {
                layers.set_limit(&layer, disk_bytes)?;
            }
            Ok(Resized::Done)
        };
        match blocking(work).await.map_err(failed("changing limits"))? {
            Resized::Done => Ok(()),
            Resized::Below { what, wanted_mib, used_bytes } => Err(ProviderError::BelowUse {
                what,
                wanted_mib: wanted_mib.into(),
                used_mib: used_bytes.div_ceil(MIB),
            }),
        }
    }
}
