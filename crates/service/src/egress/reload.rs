//! Network policies and secrets that change while sandboxes live: who is concerned, and how they hear of it.

use std::collections::BTreeSet;
use std::time::Duration;

use atoll_model::policy::egress::{self, TenantFloor};
use atoll_model::{Code, Lease, NetworkPolicy, SandboxId, TenantId};
use atoll_provider::{Capability, InstanceDemands};
use atoll_store::LeaseQuery;
use futures::future::join_all;

use crate::ServiceError;
use crate::driver::DriverMessage;
use crate::registry::Handle;
use crate::sandboxes::{PAGE_MAX, Sandboxes, ask};

/// LIMIT: how long a change waits for sandboxes to hear of it; they go on by themselves.
const HEARD: Duration = Duration::from_secs(20);

impl Sandboxes {
    /// Notes the tenant that the server made at its first start; set before anything is adopted.
    pub(crate) fn set_first_tenant(&self, tenant: TenantId) {
        self.inner.first_tenant.get_or_init(|| tenant);
    }

    /// Sets or removes the policy that narrows all sandboxes of a tenant from their next boot on.
    pub(crate) fn set_tenant_policy(&self, tenant: &TenantId, policy: Option<NetworkPolicy>) {
        self.inner.layers.put(tenant, policy);
    }

    /// Refuses a policy of a tenant that one of its sandboxes would not obey: a provider without the capability `egress` cannot
    /// change the network of an instance.
    pub(crate) fn check_tenant_policy(
        &self,
        tenant: &TenantId,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), ServiceError> {
        let before = self.inner.layers.of(tenant);
        let floor = super::floor(&self.inner, tenant);
        for handle in self.of_tenant(tenant) {
            let lease = handle.lease();
            let Ok(provider) = self.inner.providers.of(&lease) else { continue };
            if provider.capabilities().has(Capability::Egress) || lease.instance.is_none() {
                continue;
            }
            let compiled =
                |tenant: Option<&NetworkPolicy>| egress::compile(floor, tenant, &lease.network, &[]);
            let (network, made_with) = (compiled(policy), compiled(before.as_deref()));
            let demands = InstanceDemands {
                network: &network,
                made_with: Some(&made_with),
                storage: lease.storage,
                limits_asked: false,
            };
            if provider.check_demands(&demands).is_err() {
                let message = format!(
                    "sandbox {} of this tenant would not obey the policy: provider {} lacks the capability {}",
                    lease.id,
                    provider.name(),
                    Capability::Egress
                );
                return Err(ServiceError::new(Code::ProviderInUse, message)
                    .hint("stop or delete the sandboxes of that provider first"));
            }
        }
        Ok(())
    }

    /// The operator's settings for the sandboxes of a tenant.
    pub(crate) fn network_floor(&self, tenant: &TenantId) -> &TenantFloor {
        super::floor(&self.inner, tenant)
    }

    /// The secrets that each sandbox of a tenant uses, on every node.
    pub(crate) async fn secrets_used(
        &self,
        tenant: &TenantId,
    ) -> Result<Vec<BTreeSet<String>>, ServiceError> {
        let elsewhere = self.on_other_nodes(tenant).await?;
        let elsewhere = elsewhere.iter().map(|lease| super::uses(&self.inner, lease));
        Ok(self.of_tenant(tenant).iter().map(|handle| self.uses(handle)).chain(elsewhere).collect())
    }

    /// A sandbox of a tenant that uses a secret, on any node.
    pub(crate) async fn user_of_secret(
        &self,
        tenant: &TenantId,
        secret: &str,
    ) -> Result<Option<SandboxId>, ServiceError> {
        if let Some(user) = self.users_of_secret(tenant, secret).first() {
            return Ok(Some(user.lease().id.clone()));
        }
        let elsewhere = self.on_other_nodes(tenant).await?.into_iter();
        let mut users = elsewhere.filter(|lease| super::uses(&self.inner, lease).contains(secret));
        Ok(users.next().map(|lease| lease.id))
    }

    /// The sandboxes of a tenant on other nodes.
    async fn on_other_nodes(&self, tenant: &TenantId) -> Result<Vec<Lease>, ServiceError> {
        let store = &self.inner.store;
        if store.nodes().await?.len() < 2 {
            return Ok(Vec::new());
        }
        let mut query = LeaseQuery { tenant: Some(tenant.clone()), limit: PAGE_MAX, ..LeaseQuery::default() };
        let mut found = Vec::new();
        loop {
            let page = store.list(query.clone()).await?;
            found.extend(page.items.into_iter().filter(|lease| lease.node != *store.node()));
            let Some(cursor) = page.next_cursor else { return Ok(found) };
            query.cursor = Some(cursor);
        }
    }

    /// The sandboxes of a tenant on this node that use a secret.
    pub(crate) fn users_of_secret(&self, tenant: &TenantId, secret: &str) -> Vec<Handle> {
        let mut handles = self.of_tenant(tenant);
        handles.retain(|handle| self.uses(handle).contains(secret));
        handles
    }

    pub(crate) async fn refresh_tenant(&self, tenant: &TenantId) {
        self.refresh_network(self.of_tenant(tenant)).await;
    }

    /// Lets live sandboxes have what was decided above them. What cannot now does so by itself later.
    pub(crate) async fn refresh_network(&self, handles: Vec<Handle>) {
        let told = handles.iter().map(|handle| async move {
            if let Err(error) = ask(handle, |reply| DriverMessage::Refresh { reply: Some(reply) }).await {
                tracing::warn!(sandbox = %handle.lease().id, %error, cause = ?error.cause, "a changed network policy is not in force yet");
            }
        });
        if tokio::time::timeout(HEARD, join_all(told)).await.is_err() {
            tracing::warn!(
                "some sandboxes did not confirm in time that a changed network policy is in force"
            );
        }
    }

    fn of_tenant(&self, tenant: &TenantId) -> Vec<Handle> {
        let mut handles = self.handles();
        handles.retain(|handle| handle.lease().tenant == *tenant);
        handles
    }

    fn uses(&self, handle: &Handle) -> BTreeSet<String> {
        super::uses(&self.inner, &handle.lease())
    }
}
