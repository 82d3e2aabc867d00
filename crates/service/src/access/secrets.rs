//! Secrets of a tenant, and the network policy above all of its sandboxes. A value is stored and used outside of
//! sandboxes; no call returns one.

use atoll_model::policy::{authz, egress};
use atoll_model::{
    Code, NetworkPolicy, Principal, SecretId, TenantId, check_secret_name, check_secret_value,
};
use atoll_store::{SecretAbout, SecretChange, SecretRecord, TenantRecord};

use super::Access;
use crate::random::entropy;
use crate::sandboxes::printable;
use crate::{NewSecret, ServiceError};

/// LIMIT: secrets of a tenant; each is decrypted whenever one of its sandboxes with a transform starts.
const SECRETS_MAX: u32 = 100;

impl Access {
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
        let used = self.inner.sandboxes.secrets_used(&who.tenant).await?;
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
        let _turn = self.inner.policy_turn.lock().await;
        let name = self.get_secret(who, ident).await?.name;
        let now_ms = self.inner.clock.now().wall_ms;
        let (rotates, moves) = (change.value.is_some(), change.about.is_some());
        let changed = self.inner.store.change_secret(&who.tenant, &name, change, now_ms).await?;
        let mut record = changed.ok_or_else(|| missing(ident))?;
        let users = self.inner.sandboxes.users_of_secret(&who.tenant, &name);
        record.used_by = u32::try_from(users.len()).unwrap_or(u32::MAX);
        if rotates {
            tracing::info!(tenant = %who.tenant, secret = name, key = %who.key, sandboxes = users.len(), "a secret was rotated");
        }
        // Other hosts may receive it from now on.
        if rotates || moves {
            self.inner.sandboxes.refresh_network(users).await;
        }
        Ok(record)
    }

    /// Deletes a secret, by its id or name, that no sandbox uses.
    pub async fn delete_secret(&self, who: &Principal, ident: &str) -> Result<(), ServiceError> {
        let _turn = self.inner.policy_turn.lock().await;
        let name = self.get_secret(who, ident).await?.name;
        if let Some(user) = self.inner.sandboxes.user_of_secret(&who.tenant, &name).await? {
            let message = format!("sandbox {user} uses the secret {name}");
            return Err(ServiceError::new(Code::SecretInUse, message)
                .hint("remove it from the sandbox's network policy and variables first; to make a leaked value useless, rotate it"));
        }
        if !self.inner.store.delete_secret(&who.tenant, &name).await? {
            return Err(missing(ident));
        }
        tracing::info!(tenant = %who.tenant, secret = name, key = %who.key, "a secret was deleted");
        Ok(())
    }

    /// Takes over the policy of a tenant that another node changed.
    pub(crate) async fn reload_policy(&self, tenant: &TenantId) {
        let _turn = self.inner.policy_turn.lock().await;
        match self.inner.store.tenant(tenant.as_str()).await {
            Ok(Some(record)) => {
                self.inner.sandboxes.set_tenant_policy(tenant, record.network);
                self.inner.sandboxes.refresh_tenant(tenant).await;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%tenant, %error, "a changed network policy could not be read"),
        }
    }

    /// Lets sandboxes of this node use a secret that another node changed.
    pub(crate) async fn reload_secret(&self, tenant: &TenantId, name: &str) {
        let users = self.inner.sandboxes.users_of_secret(tenant, name);
        self.inner.sandboxes.refresh_network(users).await;
    }

    /// What stands for a secret inside sandboxes: always the same, not to be guessed, and of no use in a sandbox that does not
    /// have the secret.
    #[must_use]
    pub fn placeholder_of(&self, secret: &SecretId) -> String {
        crate::egress::placeholder(&self.inner, secret)
    }

    /// Sets or removes the policy that narrows all sandboxes of a tenant. Live sandboxes have it when this returns.
    pub async fn set_tenant_network(
        &self,
        who: &Principal,
        tenant: &str,
        network: Option<NetworkPolicy>,
    ) -> Result<TenantRecord, ServiceError> {
        authz::admin(who)?;
        let record = self.inner.tenant(tenant).await?;
        if let Some(policy) = &network {
            egress::check_layer(policy, self.inner.sandboxes.network_floor(&record.id))?;
        }
        let _turn = self.inner.policy_turn.lock().await;
        self.inner.sandboxes.check_tenant_policy(&record.id, network.as_ref())?;
        self.inner.store.set_tenant_network(&record.id, network.clone()).await?;
        self.inner.sandboxes.set_tenant_policy(&record.id, network.clone());
        tracing::info!(tenant = %record.id, key = %who.key, set = network.is_some(), "a tenant's network policy was changed");
        self.inner.sandboxes.refresh_tenant(&record.id).await;
        Ok(TenantRecord { network, ..record })
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
