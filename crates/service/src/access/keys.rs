//! Keys and tenants: authentication, and the tenant of each key.
//!
//! A key is 40 hex digits after any of the accepted prefixes. Only the SHA-256 of the digits is stored. Every refusal
//! is the same, whatever the reason.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_model::policy::authz;
use atoll_model::{Code, KEY_NAME_MAX, KeyId, Principal, Quota, Scope, TenantId, Usage};
use atoll_store::{Hash, KeyRecord, StoreError, TenantRecord};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::unix_peer::MEMBER_PREFIX;
use super::{Access, Credential, RequestScope};
use crate::base::{no_tenant, visible};
use crate::random::entropy;
use crate::service::OpenError;
use crate::{CreatedKey, NewKey, ServiceError};

const PREFIXES: [&str; 3] = ["atl_", "e2b_", "dtn_"];
const DIGITS: usize = 40;
/// The tenant of the first key.
pub(super) const DEFAULT_TENANT: &str = "default";
/// LIMIT: how long a key is used without a read of the store. A deletion by another node is noticed earlier, by the feed.
const FRESH: Duration = Duration::from_secs(10);
/// LIMIT: beyond this many active keys the store is used.
const CACHE_MAX: usize = 4_096;
const TENANT_NAME_MAX: usize = 63;
/// LIMIT: keys of a tenant that user keys created. A person or a pipeline needs a handful; an admin key may create more.
pub(super) const CREATED_KEYS_MAX: u32 = 100;

/// Recently used keys, and when they were last used.
#[derive(Default)]
pub(super) struct KeyCache {
    known: Mutex<HashMap<Hash, (KeyRecord, Instant)>>,
    /// How many keys were deleted: a result that was read before a deletion is not trusted after it.
    deletions: AtomicU64,
    used: Mutex<HashMap<KeyId, i64>>,
}

impl KeyCache {
    fn get(&self, hash: &Hash) -> Option<KeyRecord> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(hash).filter(|(_, at)| at.elapsed() < FRESH).map(|(key, _)| key.clone())
    }

    /// Caches a key that was read at this number of deletions.
    fn put(&self, hash: Hash, key: KeyRecord, deletions: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if self.deletions() != deletions {
            return;
        }
        if known.len() >= CACHE_MAX {
            known.clear();
        }
        known.insert(hash, (key, Instant::now()));
    }

    fn forget(&self, id: &KeyId) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.deletions.fetch_add(1, Ordering::SeqCst);
        known.retain(|_, (key, _)| key.id != *id);
        drop(known);
        self.used.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    pub(super) fn clear(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.deletions.fetch_add(1, Ordering::SeqCst);
        known.clear();
    }

    fn deletions(&self) -> u64 {
        self.deletions.load(Ordering::SeqCst)
    }

    fn note_use(&self, id: &KeyId, at_ms: i64) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), at_ms);
    }

    fn take_used(&self) -> Vec<(KeyId, i64)> {
        std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect()
    }
}

/// The hash under which a key is stored; `None` if the text is not a key.
fn hash_of(presented: &str) -> Option<Hash> {
    let digits = PREFIXES.iter().find_map(|prefix| presented.strip_prefix(prefix)).unwrap_or(presented);
    if digits.len() != DIGITS || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    Some(Sha256::digest(digits.to_ascii_lowercase()).into())
}

fn unauthenticated() -> ServiceError {
    ServiceError::new(Code::Unauthenticated, "the request has no valid key")
        .hint("send `Authorization: Bearer KEY`; the first key is in the server's data folder, in admin.key")
}

impl Access {
    /// The holder of this key.
    ///
    /// The current request ends when the key is deleted. A wrong key counts against the client's address.
    pub async fn authenticate(&self, presented: &str) -> Result<Principal, ServiceError> {
        let who = self.identify(presented).await.map_err(|error| match error.code {
            Code::Unauthenticated => self.wrong_credential(error),
            _ => error,
        })?;
        note_caller(&who);
        Ok(who)
    }

    /// The same for a text that may be another credential (an app's own `Authorization`): a wrong one is not counted.
    pub async fn identify(&self, presented: &str) -> Result<Principal, ServiceError> {
        let hash = hash_of(presented).ok_or_else(unauthenticated)?;
        let key = self.key_of(hash).await?.ok_or_else(unauthenticated)?;
        Ok(Principal { key: key.id, key_name: key.name, tenant: key.tenant, scope: key.scope })
    }

    /// The key with this hash. The current request ends when the key is deleted.
    pub(super) async fn key_of(&self, hash: Hash) -> Result<Option<KeyRecord>, ServiceError> {
        let cache = &self.inner.keys;
        let key = loop {
            let deletions = cache.deletions();
            let key = match cache.get(&hash) {
                Some(key) => key,
                None => {
                    let Some((key, stored)) = self.inner.store.key(hash).await? else { return Ok(None) };
                    if !bool::from(stored.ct_eq(&hash)) {
                        return Ok(None);
                    }
                    cache.put(hash, key.clone(), deletions);
                    key
                }
            };
            self.inner.revocations.watch(Credential::Key(key.id.clone()));
            // If a key was deleted between the lookup and the watch, it is looked up again.
            if cache.deletions() == deletions {
                break key;
            }
        };
        cache.note_use(&key.id, self.inner.clock.now().wall_ms);
        Ok(Some(key))
    }

    /// The key in `DATA/admin.key`, if it is still a key of this server.
    pub(super) async fn machine_key(&self) -> Result<Option<KeyRecord>, ServiceError> {
        let read = || {
            let text = std::fs::read_to_string(self.inner.config.data.join("admin.key")).ok()?;
            hash_of(text.trim())
        };
        match self.inner.machine_key.get_or_init(read) {
            Some(hash) => Ok(self.key_of(*hash).await?.filter(|key| key.scope == Scope::Admin)),
            None => Ok(None),
        }
    }

    /// Creates a key. A user key may create more user keys of its own tenant, a bounded number, and they end with it; anything
    /// else needs the admin scope.
    pub async fn create_key(&self, who: &Principal, new: NewKey) -> Result<CreatedKey, ServiceError> {
        if new.scope == Scope::Admin || new.tenant.is_some() {
            authz::admin(who)?;
        }
        if new.name.as_ref().is_some_and(|name| name.starts_with(MEMBER_PREFIX)) {
            let problem =
                format!("must not begin with {MEMBER_PREFIX}, which marks users of the server's machine");
            return Err(ServiceError::field("name", problem));
        }
        if new.name.as_ref().is_some_and(|name| name.chars().count() > KEY_NAME_MAX) {
            return Err(ServiceError::field("name", format!("must have at most {KEY_NAME_MAX} characters")));
        }
        let tenant = match &new.tenant {
            Some(ident) => self.inner.tenant(ident).await?.id,
            None => who.tenant.clone(),
        };
        // A key never has more rights than the one that creates it.
        let scope = if who.scope == Scope::Member { Scope::Member } else { new.scope };
        let (mut key, secret) = self.make_key(tenant, scope, new.name)?;
        key.created_by = (who.scope != Scope::Admin).then(|| who.key.clone());
        let hash = hash_of(&secret).ok_or_else(unauthenticated)?;
        self.inner.store.put_key(key.clone(), hash, CREATED_KEYS_MAX).await?;
        Ok(CreatedKey { key, secret })
    }

    /// The caller's own key and its tenant.
    pub async fn current_key(&self, who: &Principal) -> Result<(KeyRecord, TenantRecord), ServiceError> {
        let keys = self.inner.store.keys(Some(&who.tenant)).await?;
        let key = keys.into_iter().find(|key| key.id == who.key).ok_or_else(unauthenticated)?;
        Ok((key, self.inner.tenant(who.tenant.as_str()).await?))
    }

    /// Writes down when keys were used.
    pub(crate) async fn flush_keys(&self) {
        let used = self.inner.keys.take_used();
        if !used.is_empty()
            && let Err(error) = self.inner.store.touch_keys(used).await
        {
            tracing::warn!(%error, "the use of keys was not recorded");
        }
    }

    pub(super) fn make_key(
        &self,
        tenant: TenantId,
        scope: Scope,
        name: Option<String>,
    ) -> Result<(KeyRecord, String), ServiceError> {
        let secret = format!("atl_{}", hex::encode(entropy::<20>()?));
        let id = KeyId::from_entropy(entropy()?);
        let created_at_ms = self.inner.clock.now().wall_ms;
        let key =
            KeyRecord { id, tenant, scope, name, created_by: None, created_at_ms, last_used_at_ms: None };
        Ok((key, secret))
    }

    /// The keys that this key can see: those of its tenant, or all.
    pub async fn list_keys(&self, who: &Principal) -> Result<Vec<KeyRecord>, ServiceError> {
        Ok(self.inner.store.keys(visible(who)).await?)
    }

    /// Deletes a key and the keys that were created with it: they are refused from now on, and their open requests end.
    pub async fn delete_key(&self, who: &Principal, id: &KeyId) -> Result<(), ServiceError> {
        let missing = || ServiceError::new(Code::KeyNotFound, format!("there is no key {id}"));
        let key = self.list_keys(who).await?.into_iter().find(|key| key.id == *id).ok_or_else(missing)?;
        if key.scope == Scope::Admin {
            authz::admin(who)?;
        }
        let deleted = self.inner.store.delete_key(id).await?;
        self.forget_key(id);
        deleted.iter().for_each(|deleted| self.forget_key(deleted));
        if deleted.is_empty() { Err(missing()) } else { Ok(()) }
    }

    /// Refuses a deleted key from now on and ends its requests.
    pub(crate) fn forget_key(&self, id: &KeyId) {
        self.inner.keys.forget(id);
        self.inner.revocations.revoke(&Credential::Key(id.clone()));
    }

    /// Whether a key still exists; for links and sessions that were issued to it (uploads). The current request ends
    /// when the key is deleted.
    pub async fn key_exists(&self, tenant: &TenantId, key: &KeyId) -> Result<bool, ServiceError> {
        self.inner.revocations.watch(Credential::Key(key.clone()));
        Ok(self.inner.store.keys(Some(tenant)).await?.iter().any(|known| known.id == *key))
    }

    /// Makes a tenant.
    pub async fn create_tenant(
        &self,
        who: &Principal,
        name: &str,
        quota: Quota,
    ) -> Result<TenantRecord, ServiceError> {
        authz::admin(who)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty()
            || name.len() > TENANT_NAME_MAX
            || !name.chars().all(plain)
            || name.parse::<TenantId>().is_ok()
        {
            let problem = format!(
                "must have 1 to {TENANT_NAME_MAX} letters, digits, '-', '_' or '.' and not look like an id"
            );
            return Err(
                ServiceError::new(Code::InvalidRequest, format!("name {problem}")).about("name", problem)
            );
        }
        let record = TenantRecord {
            id: TenantId::from_entropy(entropy()?),
            name: name.to_owned(),
            quota,
            network: None,
            providers: None,
            created_at_ms: self.inner.clock.now().wall_ms,
        };
        self.inner.store.put_tenant(record.clone()).await?;
        self.inner.disk.shares().add_tenant(record.id.as_str());
        Ok(record)
    }

    /// All tenants.
    pub async fn list_tenants(&self, who: &Principal) -> Result<Vec<TenantRecord>, ServiceError> {
        authz::admin(who)?;
        Ok(self.inner.store.tenants().await?)
    }

    /// Changes the quota of a tenant; existing objects stay.
    pub async fn set_quota(
        &self,
        who: &Principal,
        tenant: &str,
        quota: Quota,
    ) -> Result<TenantRecord, ServiceError> {
        authz::admin(who)?;
        let record = self.inner.tenant(tenant).await?;
        self.inner.store.set_quota(&record.id, quota).await?;
        self.inner.sandboxes.quota_changed(&record.id);
        Ok(TenantRecord { quota, ..record })
    }

    /// The usage and the quota of a tenant. A user key may read its own.
    pub async fn tenant_usage(&self, who: &Principal, tenant: &str) -> Result<(Usage, Quota), ServiceError> {
        let record = self.inner.tenant(tenant).await?;
        authz::tenant(who, &record.id).map_err(|_| no_tenant(tenant))?;
        let mut usage = self.inner.store.usage(&record.id).await?;
        usage.disk_mib = usage.disk_mib.saturating_add(self.inner.uploaded_mib(&record.id).await);
        Ok((usage, record.quota))
    }

    /// Ensures that there is a tenant and an admin key. After a crash in the middle this continues: the file is written
    /// first and read again.
    pub(crate) async fn ensure_admin_key(&self) -> Result<(), OpenError> {
        let store = &self.inner.store;
        let now_ms = self.inner.clock.now().wall_ms;
        if store.tenant(DEFAULT_TENANT).await?.is_none() {
            let id = TenantId::from_entropy(entropy().map_err(no_entropy)?);
            let quota = Quota::default();
            let name = DEFAULT_TENANT.to_owned();
            let record =
                TenantRecord { id, name, quota, network: None, providers: None, created_at_ms: now_ms };
            match store.put_tenant(record).await {
                // Another server of the database was faster.
                Ok(()) | Err(StoreError::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let tenant = store.tenant(DEFAULT_TENANT).await?.ok_or(StoreError::NoTenant)?.id;
        self.inner.sandboxes.set_first_tenant(tenant.clone());
        self.inner.providers.set_first_tenant(tenant.clone());
        if store.keys(None).await?.iter().any(|key| key.scope == Scope::Admin) {
            return Ok(());
        }
        let (key, fresh) =
            self.make_key(tenant, Scope::Admin, Some("admin".to_owned())).map_err(no_entropy)?;
        let path = self.inner.config.data.join("admin.key");
        let secret = match std::fs::read_to_string(&path) {
            Ok(text) if hash_of(text.trim()).is_some() => text.trim().to_owned(),
            _ => {
                write_key(&path, &fresh).map_err(|cause| OpenError::AdminKey {
                    action: "write",
                    path: path.clone(),
                    cause,
                })?;
                fresh
            }
        };
        let hash = hash_of(&secret).ok_or(StoreError::Closed)?;
        store.put_key(key, hash, CREATED_KEYS_MAX).await?;
        Ok(())
    }
}

/// Records the author of what the current request changes.
pub(super) fn note_caller(who: &Principal) {
    if let Some(scope) = RequestScope::current() {
        scope.set_caller(who);
    }
}

fn no_entropy(error: ServiceError) -> OpenError {
    OpenError::AdminKey {
        action: "make a key for",
        path: "admin.key".into(),
        cause: std::io::Error::other(error),
    }
}

fn write_key(path: &std::path::Path, secret: &str) -> std::io::Result<()> {
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    writeln!(file, "{secret}")?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_prefix_leads_to_the_same_hash_and_odd_texts_to_none() {
        let digits = "0123456789abcdef0123456789abcdef01234567";
        let plain = hash_of(digits);
        assert!(plain.is_some());
        for prefix in PREFIXES {
            assert_eq!(hash_of(&format!("{prefix}{digits}")), plain);
        }
        assert_eq!(hash_of(&format!("atl_{}", digits.to_uppercase())), plain);
        for odd in ["", "atl_", "atl_xyz", &digits[1..], &format!("atl_e2b_{digits}"), &"é".repeat(20)] {
            assert_eq!(hash_of(odd), None, "{odd}");
        }
    }
}
