//! `tenants` and `api_keys`.

use atoll_model::{KeyId, NetworkPolicy, Quota, Scope, TenantId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::leases::{from_json, to_json};
use crate::{Hash, KeyRecord, StoreError, TenantRecord};

pub(crate) fn put_tenant(conn: &Connection, tenant: &TenantRecord) -> Result<(), StoreError> {
    let made = conn.execute(
        "INSERT INTO tenants (id, name, quota, created_ms, network, providers) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING",
        params![
            tenant.id.as_str(),
            tenant.name,
            to_json(&tenant.quota)?,
            tenant.created_at_ms,
            tenant.network.as_ref().map(to_json).transpose()?,
            tenant.providers.as_ref().map(to_json).transpose()?
        ],
    )?;
    if made == 0 { Err(StoreError::Exists { what: format!("tenant {}", tenant.name) }) } else { Ok(()) }
}

pub(crate) fn tenant(conn: &Connection, ident: &str) -> Result<Option<TenantRecord>, StoreError> {
    // A name may have the form of another tenant's id; the id has precedence.
    conn.prepare_cached(
        "SELECT id, name, quota, created_ms, network, providers FROM tenants WHERE id = ?1 OR name = ?1
         ORDER BY id = ?1 DESC LIMIT 1",
    )?
    .query_row([ident], raw_tenant)
    .optional()?
    .map(to_tenant)
    .transpose()
}

pub(crate) fn tenants(conn: &Connection) -> Result<Vec<TenantRecord>, StoreError> {
    let mut statement =
        conn.prepare("SELECT id, name, quota, created_ms, network, providers FROM tenants ORDER BY name")?;
    let rows = statement.query_map([], raw_tenant)?;
    rows.map(|raw| to_tenant(raw?)).collect()
}

type RawTenant = (String, String, String, i64, Option<String>, Option<String>);

fn raw_tenant(row: &Row<'_>) -> rusqlite::Result<RawTenant> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
}

fn to_tenant(
    (id, name, quota, created_at_ms, network, providers): RawTenant,
) -> Result<TenantRecord, StoreError> {
    Ok(TenantRecord {
        id: parse_id("tenants", &id)?,
        name,
        quota: from_json("tenants", &quota)?,
        network: network.map(|text| from_json("tenants", &text)).transpose()?,
        providers: providers.map(|text| from_json("tenants", &text)).transpose()?,
        created_at_ms,
    })
}

pub(super) fn parse_id<T: std::str::FromStr>(table: &'static str, text: &str) -> Result<T, StoreError>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(|e| StoreError::BadRow { table, cause: Box::new(e) })
}

pub(crate) fn set_quota(conn: &Connection, tenant: &TenantId, quota: &Quota) -> Result<(), StoreError> {
    let changed = conn
        .execute("UPDATE tenants SET quota = ?2 WHERE id = ?1", params![tenant.as_str(), to_json(quota)?])?;
    if changed == 0 { Err(StoreError::NoTenant) } else { Ok(()) }
}

pub(crate) fn set_network(
    conn: &Connection,
    tenant: &TenantId,
    network: Option<&NetworkPolicy>,
) -> Result<(), StoreError> {
    let network = network.map(to_json).transpose()?;
    let changed =
        conn.execute("UPDATE tenants SET network = ?2 WHERE id = ?1", params![tenant.as_str(), network])?;
    if changed == 0 { Err(StoreError::NoTenant) } else { Ok(()) }
}

pub(crate) fn set_providers(
    conn: &Connection,
    tenant: &TenantId,
    providers: Option<&[String]>,
) -> Result<(), StoreError> {
    let list = providers.map(|list| to_json(&list)).transpose()?;
    let changed =
        conn.execute("UPDATE tenants SET providers = ?2 WHERE id = ?1", params![tenant.as_str(), list])?;
    if changed == 0 { Err(StoreError::NoTenant) } else { Ok(()) }
}

pub(crate) fn put_key(conn: &Connection, key: &KeyRecord, hash: &Hash, most: u32) -> Result<(), StoreError> {
    if let Some(creator) = &key.created_by {
        admit_created_key(conn, creator, &key.tenant, most)?;
    }
    let made = conn.execute(
        "INSERT INTO api_keys (id, hash, tenant, scope, name, created_ms, last_used_ms, created_by)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING",
        params![
            key.id.as_str(),
            hash,
            key.tenant.as_str(),
            scope_text(key.scope),
            key.name,
            key.created_at_ms,
            key.last_used_at_ms,
            key.created_by.as_ref().map(KeyId::as_str)
        ],
    )?;
    if made == 0 { Err(StoreError::Exists { what: "the key".to_owned() }) } else { Ok(()) }
}

/// Checks that the creating key still exists and that the tenant has room for one more key of a user key.
fn admit_created_key(
    conn: &Connection,
    creator: &KeyId,
    tenant: &TenantId,
    most: u32,
) -> Result<(), StoreError> {
    let find = "SELECT EXISTS (SELECT 1 FROM api_keys WHERE id = ?1)";
    let exists: bool = conn.query_row(find, [creator.as_str()], |row| row.get(0))?;
    if !exists {
        return Err(StoreError::NoKey);
    }
    let count = "SELECT count(*) FROM api_keys WHERE tenant = ?1 AND created_by IS NOT NULL";
    let held: u32 = conn.query_row(count, [tenant.as_str()], |row| row.get(0))?;
    if held >= most { Err(StoreError::TooManyKeys { most }) } else { Ok(()) }
}

const fn scope_text(scope: Scope) -> &'static str {
    match scope {
        Scope::Admin => "admin",
        Scope::User => "user",
        Scope::Member => "member",
    }
}

const COLUMNS: &str = "id, tenant, scope, name, created_ms, last_used_ms, hash, created_by";
type RawKey = (String, String, String, Option<String>, i64, Option<i64>, Hash, Option<String>);

fn raw_key(row: &Row<'_>) -> rusqlite::Result<RawKey> {
    Ok((
        row.get(0)?,
        row.get(1)?,
        row.get(2)?,
        row.get(3)?,
        row.get(4)?,
        row.get(5)?,
        row.get(6)?,
        row.get(7)?,
    ))
}

fn to_key(raw: RawKey) -> Result<(KeyRecord, Hash), StoreError> {
    let (id, tenant, scope, name, created_at_ms, last_used_at_ms, hash, created_by) = raw;
    let scope = match scope.as_str() {
        "admin" => Scope::Admin,
        "user" => Scope::User,
        "member" => Scope::Member,
        other => {
            return Err(StoreError::BadRow { table: "api_keys", cause: format!("scope {other}").into() });
        }
    };
    let (id, tenant) = (parse_id("api_keys", &id)?, parse_id("api_keys", &tenant)?);
    let created_by = created_by.map(|id| parse_id("api_keys", &id)).transpose()?;
    Ok((KeyRecord { id, tenant, scope, name, created_by, created_at_ms, last_used_at_ms }, hash))
}

pub(crate) fn key(conn: &Connection, hash: &Hash) -> Result<Option<(KeyRecord, Hash)>, StoreError> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM api_keys WHERE hash = ?1"))?
        .query_row([hash], raw_key)
        .optional()?
        .map(to_key)
        .transpose()
}

pub(crate) fn keys(conn: &Connection, tenant: Option<&TenantId>) -> Result<Vec<KeyRecord>, StoreError> {
    let mut statement = conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM api_keys WHERE ?1 IS NULL OR tenant = ?1 ORDER BY created_ms, id"
    ))?;
    let rows = statement.query_map([tenant.map(TenantId::as_str)], raw_key)?;
    rows.map(|raw| to_key(raw?).map(|(key, _)| key)).collect()
}

pub(crate) fn delete_key(conn: &Connection, id: &KeyId) -> Result<Vec<KeyId>, StoreError> {
    let last = "SELECT scope = 'admin' AND (SELECT count(*) FROM api_keys WHERE scope = 'admin') = 1
                FROM api_keys WHERE id = ?1";
    let is_last: Option<bool> = conn.query_row(last, [id.as_str()], |row| row.get(0)).optional()?;
    if is_last == Some(true) {
        return Err(StoreError::LastAdminKey);
    }
    let mut statement = conn.prepare_cached(
        "WITH RECURSIVE ending(id) AS (
             SELECT id FROM api_keys WHERE id = ?1
             UNION SELECT made.id FROM api_keys made JOIN ending ON made.created_by = ending.id)
         DELETE FROM api_keys WHERE id IN (SELECT id FROM ending) RETURNING id",
    )?;
    let ids = statement.query_map([id.as_str()], |row| row.get::<_, String>(0))?;
    ids.map(|id| parse_id("api_keys", &id?)).collect()
}

pub(crate) fn touch(conn: &Connection, used: &[(KeyId, i64)]) -> Result<(), StoreError> {
    for (id, at_ms) in used {
        conn.prepare_cached("UPDATE api_keys SET last_used_ms = ?2 WHERE id = ?1")?
            .execute(params![id.as_str(), at_ms])?;
    }
    Ok(())
}
