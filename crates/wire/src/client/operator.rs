//! Keys, tenants, secrets, and the server itself.

use reqwest::Method;
use serde::Serialize;

use super::{Answer, Client, Listing, MapError, segment};
use crate::health::Health;
use crate::keys::{CreatedKey, CurrentKey, Invite, Key, KeyBody, KeyList};
use crate::providers::{Provider, ProviderList, ProviderSettings, ProviderTest};
use crate::secrets::{Secret, SecretBody, SecretChange, SecretList};
use crate::tenants::{Tenant, TenantBody, TenantList, TenantProviders, UsageAnswer};

fn tenant_path(name: &str, below: &str) -> String {
    format!("/v1/tenants/{}{below}", segment(name))
}

fn provider_path(name: &str, below: &str) -> String {
    format!("/v1/providers/{}{below}", segment(name))
}

impl<M: MapError> Client<M> {
    pub async fn health(&self) -> Result<Answer<Health>, M::Error> {
        self.get("/health").await
    }

    pub async fn providers(&self) -> Result<Listing<Provider>, M::Error> {
        self.list::<ProviderList>("/v1/providers").await
    }

    pub async fn provider_settings(&self, name: &str) -> Result<Answer<ProviderSettings>, M::Error> {
        self.get(&provider_path(name, "/settings")).await
    }

    /// Replaces the settings of a provider. `settings` has the shape of its file.
    pub async fn set_provider_settings(
        &self,
        name: &str,
        settings: &impl Serialize,
    ) -> Result<Answer<ProviderSettings>, M::Error> {
        self.put(&provider_path(name, "/settings"), settings).await
    }

    pub async fn remove_provider_settings(&self, name: &str) -> Result<(), M::Error> {
        self.delete_silently(&provider_path(name, "/settings")).await
    }

    pub async fn test_provider(&self, name: &str) -> Result<Answer<ProviderTest>, M::Error> {
        self.answer(self.request(Method::POST, &provider_path(name, "/test"))).await
    }

    pub async fn create_key(&self, body: &KeyBody) -> Result<Answer<CreatedKey>, M::Error> {
        self.post("/v1/keys", body).await
    }

    pub async fn create_invite(&self) -> Result<Answer<Invite>, M::Error> {
        self.answer(self.request(Method::POST, "/v1/keys/invites")).await
    }

    pub async fn keys(&self) -> Result<Listing<Key>, M::Error> {
        self.list::<KeyList>("/v1/keys").await
    }

    pub async fn current_key(&self) -> Result<Answer<CurrentKey>, M::Error> {
        self.get("/v1/keys/current").await
    }

    pub async fn delete_key(&self, id: &str) -> Result<(), M::Error> {
        self.delete_silently(&format!("/v1/keys/{}", segment(id))).await
    }

    pub async fn create_tenant(&self, body: &TenantBody) -> Result<Answer<Tenant>, M::Error> {
        self.post("/v1/tenants", body).await
    }

    pub async fn tenants(&self) -> Result<Listing<Tenant>, M::Error> {
        self.list::<TenantList>("/v1/tenants").await
    }

    pub async fn tenant_usage(&self, name: &str) -> Result<Answer<UsageAnswer>, M::Error> {
        self.get(&tenant_path(name, "/usage")).await
    }

    /// Changes a tenant. `body` is a `TenantChange`, or a superset of one.
    pub async fn update_tenant(&self, name: &str, body: &impl Serialize) -> Result<Answer<Tenant>, M::Error> {
        self.patch(&tenant_path(name, ""), body).await
    }

    /// Sets the network policy of a tenant. `policy` is a `NetworkPolicy`, or a superset of one.
    pub async fn set_tenant_network(
        &self,
        name: &str,
        policy: &impl Serialize,
    ) -> Result<Answer<Tenant>, M::Error> {
        self.put(&tenant_path(name, "/network"), policy).await
    }

    pub async fn clear_tenant_network(&self, name: &str) -> Result<Answer<Tenant>, M::Error> {
        self.delete(&tenant_path(name, "/network")).await
    }

    /// Sets the providers that a tenant may use.
    pub async fn set_tenant_providers(
        &self,
        name: &str,
        body: &TenantProviders,
    ) -> Result<Answer<Tenant>, M::Error> {
        self.put(&tenant_path(name, "/providers"), body).await
    }

    pub async fn clear_tenant_providers(&self, name: &str) -> Result<Answer<Tenant>, M::Error> {
        self.delete(&tenant_path(name, "/providers")).await
    }

    pub async fn create_secret(&self, body: &SecretBody) -> Result<Answer<Secret>, M::Error> {
        self.post("/v1/secrets", body).await
    }

    pub async fn secrets(&self) -> Result<Listing<Secret>, M::Error> {
        self.list::<SecretList>("/v1/secrets").await
    }

    pub async fn rotate_secret(&self, name: &str, body: &SecretChange) -> Result<Answer<Secret>, M::Error> {
        self.put(&format!("/v1/secrets/{}", segment(name)), body).await
    }

    pub async fn delete_secret(&self, name: &str) -> Result<(), M::Error> {
        self.delete_silently(&format!("/v1/secrets/{}", segment(name))).await
    }
}
