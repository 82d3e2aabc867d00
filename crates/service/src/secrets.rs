//! Secrets of a tenant, and the network policy above all of its sandboxes. A value is stored and used outside of
//! sandboxes; no call returns one.

use std::time::Duration;

use atoll_model::policy::{authz, egress};
use atoll_model::{
    Code, NetworkPolicy, Principal, SecretId, TenantId, check_secret_name, check_secret_value,
};
use atoll_store::{SecretAbout, SecretChange, SecretRecord, TenantRecord};
use futures::future::join_all;

use crate::driver::DriverMessage;
use crate::random::entropy;
use crate::registry::Handle;
use crate::sandboxes::{ask, printable};
use crate::service::Service;
use crate::{NewSecret, ServiceError};

/// LIMIT: secrets of a tenant; each is decrypted whenever one of its sandboxes with a transform starts.
const SECRETS_MAX: u32 = 100;
/// LIMIT: how long a rotation waits for the sandboxes to apply it; after that they continue by themselves.
const HEARD: Duration = Duration::from_secs(20);

impl Service {
    /// Stores a secret of the key's tenant.
    pub async fn create_secret(&self, who: &Principal, new: NewSecret) -> Result<SecretRecord, ServiceError> {
        check(&new.name, &new.value)?;
        check_about(&new.about)?;
        let record = SecretRecord {
            name: new.name,
            created_at_ms: self.inner.clock.now().wall_ms,
            rotated_at_ms: None,
            id: SecretId::from_entropy(entropy()?),
            version: 1,
            changed_at_ms: self.inner.clock.now().wall_ms,
            about: new.about,
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

    /// A secret by its id or name, without its value.
    pub async fn get_secret(&self, who: &Principal, ident: &str) -> Result<SecretRecord, ServiceError> {
        let mut all = self.list_secrets(who).await?;
        let at = all.iter().position(|secret| secret.id.as_str() == ident);
        let at = at.or_else(|| all.iter().position(|secret| secret.name == ident));
        at.map(|at| all.swap_remove(at)).ok_or_else(|| missing(ident))
    }

    /// Replaces the value of a secret. Running sandboxes that use it send the new value from their next request on.
    pub async fn rotate_secret(
        &self,
        who: &Principal,
        name: &str,
        value: String,
    ) -> Result<SecretRecord, ServiceError> {
        self.update_secret(who, name, SecretChange { value: Some(value), about: None }).await
    }

    /// Changes the value of a secret, by its id or name, or its description. A new value increases its version.
    pub async fn update_secret(
        &self,
        who: &Principal,
        ident: &str,
        change: SecretChange,
    ) -> Result<SecretRecord, ServiceError> {
        if let Some(value) = &change.value {
            check_secret_value(value).map_err(|bad| invalid(&bad.to_string()))?;
        }
        if let Some(about) = &change.about {
            check_about(about)?;
        }
        let _turn = self.inner.layers.turn.lock().await;
        let name = self.get_secret(who, ident).await?.name;
        let now_ms = self.inner.clock.now().wall_ms;
        let (rotates, moves) = (change.value.is_some(), change.about.is_some());
        let changed = self.inner.store.change_secret(&who.tenant, &name, change, now_ms).await?;
        let mut record = changed.ok_or_else(|| missing(ident))?;
        let users = self.users_of(&who.tenant, &name);
        record.used_by = u32::try_from(users.len()).unwrap_or(u32::MAX);
        if rotates {
            tracing::info!(tenant = %who.tenant, secret = name, key = %who.key, sandboxes = users.len(), "a secret was rotated");
        }
        // Other hosts may receive it from now on.
        if rotates || moves {
            self.refresh(users).await;
        }
        Ok(record)
    }

    /// Deletes a secret, by its id or name, that no sandbox uses.
    pub async fn delete_secret(&self, who: &Principal, ident: &str) -> Result<(), ServiceError> {
        let _turn = self.inner.layers.turn.lock().await;
        let name = self.get_secret(who, ident).await?.name;
        if let Some(user) = self.users_of(&who.tenant, &name).first() {
            let message = format!("sandbox {} uses the secret {name}", user.lease().id);
            return Err(ServiceError::new(Code::SecretInUse, message)
                .hint("remove it from the sandbox's network policy and variables first; to make a leaked value useless, rotate it"));
        }
        if !self.inner.store.delete_secret(&who.tenant, &name).await? {
            return Err(missing(ident));
        }
        tracing::info!(tenant = %who.tenant, secret = name, key = %who.key, "a secret was deleted");
        Ok(())
    }

    /// Sets or removes the policy that narrows all sandboxes of a tenant. Live sandboxes have it when this returns.
    pub async fn set_tenant_network(
        &self,
        who: &Principal,
        tenant: &str,
        network: Option<NetworkPolicy>,
    ) -> Result<TenantRecord, ServiceError> {
        authz::admin(who)?;
        let record = self.tenant(tenant).await?;
        if let Some(policy) = &network {
            egress::check_layer(policy, crate::egress::floor(&self.inner, &record.id))?;
        }
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

    /// Applies changes of the layers above to live sandboxes. A sandbox that cannot apply them now does so later.
    async fn refresh(&self, handles: Vec<Handle>) {
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
}

fn check(name: &str, value: &str) -> Result<(), ServiceError> {
    check_secret_name(name).and_then(|()| check_secret_value(value)).map_err(|bad| invalid(&bad.to_string()))
}

fn invalid(why: &str) -> ServiceError {
    ServiceError::new(Code::InvalidRequest, why)
}

// LIMIT: bytes of the description of a secret; it is listed with all the others.
const DESCRIPTION_MAX: usize = 1_024;
const HOSTS_MAX: usize = 64;
const HOST_MAX: usize = 253;
const METADATA_MAX: usize = 64;
const METADATA_BYTES_MAX: usize = 16 << 10;

fn check_about(about: &SecretAbout) -> Result<(), ServiceError> {
    let odd = |text: &str| text.contains('\0');
    if about.description.as_ref().is_some_and(|text| text.len() > DESCRIPTION_MAX || odd(text)) {
        return Err(invalid(&format!("description has at most {DESCRIPTION_MAX} bytes")));
    }
    let bad_host =
        |host: &String| host.is_empty() || host.len() > HOST_MAX || host.chars().any(char::is_control);
    if about.hosts.len() > HOSTS_MAX || about.hosts.iter().any(bad_host) {
        return Err(invalid(&format!(
            "hosts are at most {HOSTS_MAX} names of at most {HOST_MAX} characters"
        )));
    }
    let bytes: usize = about.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if about.metadata.len() > METADATA_MAX || bytes > METADATA_BYTES_MAX {
        return Err(invalid(&format!(
            "metadata has at most {METADATA_MAX} entries and {METADATA_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

fn missing(name: &str) -> ServiceError {
    ServiceError::new(Code::SecretNotFound, format!("there is no secret {}", printable(name)))
}
