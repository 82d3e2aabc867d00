//! Secrets of a tenant, and the policy above all of its sandboxes. A value comes in and is used outside of sandboxes; no
//! call here gives one out.

use std::time::Duration;

use atoll_model::policy::{authz, egress};
use atoll_model::{Code, NetworkPolicy, Principal, TenantId, check_secret_name, check_secret_value};
use atoll_store::{SecretRecord, TenantRecord};
use futures::future::join_all;

use crate::driver::Mail;
use crate::registry::Handle;
use crate::sandboxes::{ask, printable};
use crate::service::Service;
use crate::{NewSecret, ServiceError};

/// LIMIT: of a tenant; each is opened whenever one of its sandboxes with a transform starts.
const SECRETS_MAX: u32 = 100;
/// LIMIT: how long a rotation waits for sandboxes to hear of it; they go on by themselves.
const HEARD: Duration = Duration::from_secs(20);

impl Service {
    /// Keeps a secret of the key's tenant.
    pub async fn create_secret(&self, who: &Principal, new: NewSecret) -> Result<SecretRecord, ServiceError> {
        check(&new.name, &new.value)?;
        let record = SecretRecord {
            name: new.name,
            created_at_ms: self.inner.clock.now().wall_ms,
            rotated_at_ms: None,
            used_by: 0,
        };
        self.inner.store.put_secret(&who.tenant, record.clone(), new.value, SECRETS_MAX).await?;
        tracing::info!(tenant = %who.tenant, secret = record.name, key = %who.key, "a secret was created");
        Ok(record)
    }

    /// The secrets of the key's tenant by name, without their values.
    pub async fn list_secrets(&self, who: &Principal) -> Result<Vec<SecretRecord>, ServiceError> {
        let mut secrets = self.inner.store.secrets(&who.tenant).await?;
        let used: Vec<_> = self.of_tenant(&who.tenant).iter().map(|handle| self.uses(handle)).collect();
        for secret in &mut secrets {
            let users = used.iter().filter(|used| used.contains(&secret.name)).count();
            secret.used_by = u32::try_from(users).unwrap_or(u32::MAX);
        }
        Ok(secrets)
    }

    /// Replaces the value of a secret. Running sandboxes that use it send the new one from their next request on.
    pub async fn rotate_secret(
        &self,
        who: &Principal,
        name: &str,
        value: String,
    ) -> Result<SecretRecord, ServiceError> {
        check(name, &value)?;
        let _turn = self.inner.layers.turn.lock().await;
        let now_ms = self.inner.clock.now().wall_ms;
        let rotated = self.inner.store.rotate_secret(&who.tenant, name, value, now_ms).await?;
        let mut record = rotated.ok_or_else(|| missing(name))?;
        let users = self.users_of(&who.tenant, name);
        record.used_by = u32::try_from(users.len()).unwrap_or(u32::MAX);
        tracing::info!(tenant = %who.tenant, secret = name, key = %who.key, sandboxes = users.len(), "a secret was rotated");
        self.refresh(users).await;
        Ok(record)
    }

    /// Forgets a secret that no sandbox uses.
    pub async fn delete_secret(&self, who: &Principal, name: &str) -> Result<(), ServiceError> {
        let _turn = self.inner.layers.turn.lock().await;
        if let Some(user) = self.users_of(&who.tenant, name).first() {
            let message = format!("sandbox {} uses the secret {name}", user.lease().id);
            return Err(ServiceError::new(Code::SecretInUse, message)
                .hint("take it out of the sandbox's network policy first; to make a leaked value useless, rotate it"));
        }
        if !self.inner.store.delete_secret(&who.tenant, name).await? {
            return Err(missing(name));
        }
        tracing::info!(tenant = %who.tenant, secret = name, key = %who.key, "a secret was deleted");
        Ok(())
    }

    /// Sets or removes the policy that narrows all sandboxes of a tenant. Those that live have it when this returns.
    pub async fn set_tenant_network(
        &self,
        who: &Principal,
        tenant: &str,
        network: Option<NetworkPolicy>,
    ) -> Result<TenantRecord, ServiceError> {
        authz::admin(who)?;
        if let Some(policy) = &network {
            egress::check_layer(policy, &self.inner.config.egress)?;
        }
        let record = self.tenant(tenant).await?;
        let _turn = self.inner.layers.turn.lock().await;
        self.inner.store.set_tenant_network(&record.id, network.clone()).await?;
        self.inner.layers.put(&record.id, network.clone());
        tracing::info!(tenant = %record.id, key = %who.key, set = network.is_some(), "a tenant's network policy was changed");
        self.refresh(self.of_tenant(&record.id)).await;
        Ok(TenantRecord { network, ..record })
    }

    fn of_tenant(&self, tenant: &TenantId) -> Vec<Handle> {
        let mut handles = self.inner.registry.all();
        handles.retain(|handle| handle.lease().tenant == *tenant);
        handles
    }

    fn uses(&self, handle: &Handle) -> std::collections::BTreeSet<String> {
        crate::egress::uses(&self.inner, &handle.lease())
    }

    fn users_of(&self, tenant: &TenantId, secret: &str) -> Vec<Handle> {
        let mut handles = self.of_tenant(tenant);
        handles.retain(|handle| self.uses(handle).contains(secret));
        handles
    }

    /// Lets live sandboxes have what was decided above them. What cannot now does so by itself later.
    async fn refresh(&self, handles: Vec<Handle>) {
        let told = handles.iter().map(|handle| async move {
            if let Err(error) = ask(handle, |reply| Mail::Refresh { reply: Some(reply) }).await {
                tracing::warn!(sandbox = %handle.lease().id, %error, cause = ?error.cause, "a changed network policy is not in force yet");
            }
        });
        if tokio::time::timeout(HEARD, join_all(told)).await.is_err() {
            tracing::warn!("some sandboxes did not say in time that a changed network policy is in force");
        }
    }
}

fn check(name: &str, value: &str) -> Result<(), ServiceError> {
    check_secret_name(name)
        .and_then(|()| check_secret_value(value))
        .map_err(|bad| ServiceError::new(Code::InvalidRequest, bad.to_string()))
}

fn missing(name: &str) -> ServiceError {
    ServiceError::new(Code::SecretNotFound, format!("there is no secret {}", printable(name)))
}
