//! Forwards notices of instances to their drivers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_model::Phase;
use atoll_provider::{Notice, NoticeKind, ProviderError, Target};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::driver::DriverMessage;
use crate::sandboxes::SandboxesState;

/// The listeners, by name of the provider: each has one. A provider that is opened again may report through the same channel as the
/// one before.
#[derive(Debug, Default)]
pub(crate) struct NoticeListeners(Mutex<HashMap<&'static str, CancellationToken>>);

impl NoticeListeners {
    /// Ends the listener of this name and makes the token of the next one.
    fn replace(&self, provider: &'static str) -> CancellationToken {
        let next = CancellationToken::new();
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = listeners.insert(provider, next.clone()) {
            before.cancel();
        }
        next
    }
}

/// Listens to a provider, in the place of an earlier listener.
pub(crate) fn start(
    inner: &Arc<SandboxesState>,
    provider: &'static str,
    mut notices: broadcast::Receiver<Notice>,
) {
    let own = Arc::clone(inner);
    let replaced = inner.listeners.replace(provider);
    inner.spawn(async move {
        loop {
            let notice = tokio::select! {
                () = own.closing.cancelled() => return,
                () = replaced.cancelled() => return,
                notice = notices.recv() => notice,
            };
            match notice {
                Ok(notice) => deliver(&own, notice).await,
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "notices were missed; every running sandbox is checked");
                    look_at_all(&own).await;
                }
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    });
}

async fn deliver(inner: &SandboxesState, notice: Notice) {
    let Some(handle) = inner.registry.get(&notice.sandbox) else { return };
    // A full mailbox delays notices of others for a moment; a death must not be lost.
    let told = DriverMessage::Notice { instance: notice.instance, what: notice.what };
    let _ = handle.mailbox.send(told.into()).await;
}

async fn look_at_all(inner: &SandboxesState) {
    for handle in inner.registry.all() {
        let lease = handle.lease();
        let (Phase::Running, Some(instance)) = (lease.phase, lease.instance.clone()) else { continue };
        let target = Target { sandbox: lease.id.clone(), instance: Some(instance.clone()) };
        let Ok(provider) = inner.providers.of(&lease) else { continue };
        if let Err(ProviderError::Gone { .. }) = provider.usage(&target).await {
            let told = DriverMessage::Notice { instance, what: NoticeKind::Died };
            let _ = handle.mailbox.send(told.into()).await;
        }
    }
}
