//! Changes of other nodes that share the database: what this node has cached of them is forgotten, and requests with a
//! deleted credential end. Own changes were applied when they were made.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::TenantId;
use atoll_store::{FeedChange, FeedPage, StoreError};

use crate::service::Service;

/// How soon a failed read is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// Starts the one task that follows the feed after the revision `seen`.
pub(crate) fn start(service: &Service, mut seen: u64) {
    let (base, own) = (Arc::clone(service.base()), service.clone());
    let mut head = service.base().store.change_head();
    // There may be changes since `seen`.
    head.mark_changed();
    service.base().spawn(async move {
        loop {
            tokio::select! {
                () = base.closing.cancelled() => return,
                changed = head.changed() => if changed.is_err() { return },
            }
            match base.store.changes(seen).await {
                Ok(page) => {
                    seen = page.entries.last().map_or(seen, |entry| entry.revision);
                    own.apply(page).await;
                }
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::warn!(%error, "changes of other nodes could not be read; tried again");
                    tokio::time::sleep(AGAIN).await;
                    head.mark_changed();
                }
            }
        }
    });
}

impl Service {
    async fn apply(&self, page: FeedPage) {
        if page.has_gap {
            tracing::warn!("this node was too far behind the changes of others; its caches are emptied");
            self.access().forget_all().await;
            self.templates().forget_names();
            let tenants = self.base().store.tenants().await.unwrap_or_default();
            for tenant in tenants {
                self.base().providers.set_tenant_list(&tenant.id, tenant.providers);
                self.reload_policy(tenant.id);
            }
        }
        for entry in page.entries.into_iter().filter(|entry| entry.node != *self.base().store.node()) {
            tracing::debug!(node = %entry.node, change = ?entry.change, "another node changed this");
            match entry.change {
                FeedChange::KeyDeleted { key } => self.access().forget_key(&key),
                FeedChange::Previews { sandbox, deleted } => {
                    self.access().forget_previews(&sandbox, deleted.as_ref());
                }
                // Sandboxes may take seconds to hear of these; a deleted key must not wait for them.
                FeedChange::TenantNetwork { tenant } => self.reload_policy(tenant),
                FeedChange::TenantProviders { tenant } => self.reload_tenant_providers(&tenant).await,
                FeedChange::Secret { tenant, name } => {
                    let access = self.access().clone();
                    self.base().spawn(async move { access.reload_secret(&tenant, &name).await });
                }
                FeedChange::Templates => {
                    self.templates().forget_names();
                    self.templates().refresh_pools();
                }
                FeedChange::Unknown => {}
            }
        }
    }

    fn reload_policy(&self, tenant: TenantId) {
        let access = self.access().clone();
        self.base().spawn(async move { access.reload_policy(&tenant).await });
    }
}
