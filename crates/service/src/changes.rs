//! Changes of phases, sent to listeners as they happen. They are not stored: a client that needs every event without a
//! gap reads `events` instead. Only a listener that is too slow loses changes, the oldest ones first.

use std::sync::Arc;

use atoll_model::policy::authz;
use atoll_model::{Lease, Principal};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::service::Service;

/// LIMIT: changes that a slow listener may be behind; a hundred creates at once are three hundred of them.
const BEHIND: usize = 4_096;

/// A sandbox changed its phase or the stage of its creation, and the disk has it; or a resize of it begins or is over.
#[derive(Debug, Clone)]
pub struct PhaseChange {
    /// The lease before; `None` for a new sandbox.
    pub before: Option<Arc<Lease>>,
    /// The lease now.
    pub lease: Arc<Lease>,
}

pub(crate) struct Changes(broadcast::Sender<PhaseChange>);

impl Default for Changes {
    fn default() -> Self {
        Self(broadcast::channel(BEHIND).0)
    }
}

impl Changes {
    pub(crate) fn tell(&self, before: Option<Lease>, lease: &Lease) {
        if self.0.receiver_count() > 0 && lease.build.is_none() {
            let _ = self.0.send(PhaseChange { before: before.map(Arc::new), lease: Arc::new(lease.clone()) });
        }
    }
}

impl Service {
    /// Every change of phase or stage of every sandbox that this key can see, from now on. Ends with the server.
    #[must_use]
    pub fn follow_all(&self, who: &Principal) -> BoxStream<'static, PhaseChange> {
        let (who, closing) = (who.clone(), self.base().closing.clone());
        let changes = self.sandboxes().inner.changes.0.subscribe();
        let told = futures::stream::unfold(changes, |mut changes| async move {
            loop {
                match changes.recv().await {
                    Ok(change) => return Some((change, changes)),
                    Err(RecvError::Lagged(lost)) => {
                        tracing::warn!(lost, "a listener for changes is too slow")
                    }
                    Err(RecvError::Closed) => return None,
                }
            }
        });
        let seen =
            told.filter(move |change| futures::future::ready(authz::sandbox(&who, &change.lease).is_ok()));
        seen.take_until(closing.cancelled_owned()).boxed()
    }
}
