//! Warm instances: passes the pool sizes of templates to the default provider at the start and when names change.

use std::collections::BTreeMap;

use atoll_model::TemplateRef;
use atoll_provider::PoolWish;

use super::Templates;
use crate::ServiceError;

/// LIMIT: each takes some 10 MiB even if it is not used.
const ALL_MAX: usize = 128;

impl Templates {
    /// Informs the provider in the background; a later change replaces this one.
    pub(crate) fn refresh_pools(&self) {
        let own = self.clone();
        self.inner.spawn(async move {
            let _turn = own.inner.pool_turn.lock().await;
            match own.pool_wishes().await {
                Ok(wishes) => own.inner.providers.default().wish_pool(wishes).await,
                Err(error) => {
                    tracing::warn!(%error, cause = ?error.cause, "the sizes of the pools were not changed")
                }
            }
        });
    }

    /// How many warm instances of a template's version are ready now.
    #[must_use]
    pub fn ready_instances(&self, template: &str, version: &str) -> u32 {
        u32::try_from(self.inner.providers.default().pooled(template, version)).unwrap_or(u32::MAX)
    }

    async fn pool_wishes(&self) -> Result<Vec<PoolWish>, ServiceError> {
        let mut wishes = Vec::new();
        let mut left = ALL_MAX;
        for row in self.inner.store.templates(None).await? {
            // Several tags of one version count once.
            let versions: BTreeMap<&String, &String> =
                row.tags.iter().map(|(tag, version)| (version, tag)).collect();
            for tag in versions.into_values() {
                let reference = TemplateRef { name: row.name.clone(), tag: Some(tag.clone()), digest: None };
                let Ok(Some(record)) = self.record_of(&row, &reference).await else { continue };
                let size = record.settings.pool.unwrap_or(0) as usize;
                // A template with a warm start uses a snapshot and not a pool.
                if size == 0 || record.warm || left == 0 {
                    continue;
                }
                let size = size.min(left);
                left -= size;
                wishes.push(PoolWish { template: record.name, template_version: record.version, size });
            }
        }
        Ok(wishes)
    }
}
