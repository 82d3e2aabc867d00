//! Changes the limits of a sandbox. A limit below the current use is refused with the figures, before anything is
//! changed.

use std::io;
use std::sync::Arc;

use atoll_model::Limits;
use atoll_provider::{ProviderError, Target};

use super::snapshot::blocking;
use super::{EngineShared, failed};
use crate::cgroup::{Cgroups, Figures};

const MIB: u64 = 1 << 20;
/// Room above the memory that can't be reclaimed, so that the sandbox does not run out of memory at once.
const MEMORY_ROOM: u64 = 2 * MIB;

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
                && let Some(used) = set_limits(&*cgroups, &cgroup, &limits)?
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

/// Sets the limits, or returns how many bytes of memory are in the way.
fn set_limits(cgroups: &dyn Cgroups, cgroup: &str, limits: &Limits) -> io::Result<Option<u64>> {
    let wanted = u64::from(limits.memory_mib) * MIB;
    let must_stay = |figures: Figures| figures.memory_bytes.saturating_sub(figures.cache_bytes);
    if cgroups.layout() == "v2" {
        // v2 would end processes to get below a new limit, so the limit is set only if the memory that can't be
        // reclaimed fits.
        let used = must_stay(cgroups.figures(cgroup)?) + MEMORY_ROOM;
        if used > wanted {
            return Ok(Some(used));
        }
    }
    match cgroups.set_limits(cgroup, limits) {
        // v1's error for memory that is in use and can't be reclaimed.
        Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy => {
            Ok(Some(must_stay(cgroups.figures(cgroup)?).max(wanted + 1)))
        }
        other => other.map(|()| None),
    }
}
