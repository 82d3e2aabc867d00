//! After a restart: what lives is adopted, what was under way is finished, what is gone is said to be gone.
//!
//! | was       | provider says | becomes |
//! |-----------|---------------|---------|
//! | creating  | (not asked)   | created again as another instance: a caller that repeats its key finds it running |
//! | starting  | (files only)  | booted again as another instance |
//! | running   | alive / gone  | running / failed, lost while down |
//! | stopping  | alive / gone  | halted, then stopped |
//! | deleting  | any           | destroyed, then deleted |
//! | stopped, failed | (files only) | as it was; a restart that had come as far as its stop goes on |

use std::collections::HashSet;
use std::sync::Arc;

use atoll_model::{Intent, Lease, Phase};
use atoll_provider::{Fate, Known};
use atoll_store::InstanceRow;

use crate::driver::{self, Resumption};
use crate::service::{Inner, OpenError};

pub(crate) async fn adopt(inner: &Arc<Inner>) -> Result<(), OpenError> {
    let live = inner.store.live().await?;
    let known = live.iter().filter_map(known).collect();
    let fates = inner
        .provider
        .adopt(known)
        .await
        .map_err(|cause| OpenError::Adopt { provider: inner.provider.name(), cause })?;
    let alive: HashSet<_> =
        fates.into_iter().filter(|(_, fate)| *fate == Fate::Alive).map(|(instance, _)| instance).collect();
    let (mut running, mut lost) = (0, 0);
    for (lease, row) in live {
        let lives = row.as_ref().is_some_and(|row| alive.contains(&row.instance));
        let first = resumption(&lease, lives);
        running += u32::from(first == Resumption::Nothing && lease.phase == Phase::Running);
        lost += u32::from(first == Resumption::Lost);
        if lease.phase.holds_compute() {
            inner.admission.count(&lease.id, &lease.limits);
        }
        let agent = row
            .filter(|_| lives && lease.phase == Phase::Running)
            .map(|row| crate::agent::client(&inner.provider, &lease.id, &row.instance, &row.agent_token));
        driver::resume(inner, lease, agent, first);
    }
    tracing::info!(running, lost, "sandboxes were adopted");
    Ok(())
}

/// A creation that was under way is not named, so that the provider removes all of it.
fn known((lease, row): &(Lease, Option<InstanceRow>)) -> Option<Known> {
    let instance = match lease.phase {
        Phase::Creating | Phase::Deleted => return None,
        Phase::Running | Phase::Stopping | Phase::Deleting => {
            row.as_ref().map(|row| (row.instance.clone(), row.facts.clone()))
        }
        Phase::Starting | Phase::Stopped | Phase::Failed => None,
    };
    Some(Known {
        sandbox: lease.id.clone(),
        instance,
        storage: lease.storage,
        limits: lease.limits,
        network: lease.network,
    })
}

fn resumption(lease: &Lease, lives: bool) -> Resumption {
    match (lease.phase, lives) {
        (Phase::Creating | Phase::Starting, _) => Resumption::Again,
        (Phase::Running, true) => Resumption::Nothing,
        (Phase::Running, false) => Resumption::Lost,
        (Phase::Stopping, _) => Resumption::Halt,
        (Phase::Deleting, _) => Resumption::Destroy,
        (Phase::Stopped, _) if lease.intent == Intent::Run => Resumption::Start,
        (Phase::Stopped | Phase::Failed | Phase::Deleted, _) => Resumption::Nothing,
    }
}
