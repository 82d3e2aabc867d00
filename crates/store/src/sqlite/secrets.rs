//! `secrets`: values of a tenant, sealed for the tenant and the name. Only [`values`] returns values.

use std::collections::BTreeMap;

use atoll_model::TenantId;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::keys::parse_id;
use super::leases::{from_json, to_json};
use crate::{SecretAbout, SecretRecord, SecretValues, StoreError, Vault};

const COLUMNS: &str = "name, created_ms, rotated_ms, id, version, changed_ms, about";

/// The owner of a sealed value: it can be opened only for that tenant and that name.
pub(crate) fn owner(tenant: &TenantId, name: &str) -> String {
    format!("secret/{tenant}/{name}")
}

pub(crate) fn put(
    conn: &Connection,
    tenant: &TenantId,
    new: &SecretRecord,
    sealed: &[u8],
    most: u32,
) -> Result<(), StoreError> {
    let count: u32 =
        conn.query_row("SELECT count(*) FROM secrets WHERE tenant = ?1", [tenant.as_str()], |row| {
            row.get(0)
        })?;
    let taken = by_name(conn, tenant, &new.name)?.is_some();
    if taken {
        return Err(StoreError::Exists { what: format!("the secret {}", new.name) });
    }
    if count >= most {
        return Err(StoreError::TooManySecrets { most });
    }
    conn.execute(
        "INSERT INTO secrets (tenant, name, value, created_ms, rotated_ms, id, version, changed_ms, about)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            tenant.as_str(),
            new.name,
            sealed,
            new.created_at_ms,
            new.rotated_at_ms,
            new.id.as_str(),
            new.version,
            new.changed_at_ms,
            to_json(&new.about)?,
        ],
    )?;
    Ok(())
}

/// A change of a secret, with its value already sealed.
pub(crate) struct SecretChange {
    pub(crate) sealed: Option<Vec<u8>>,
    pub(crate) about: Option<SecretAbout>,
}

pub(crate) fn change(
    conn: &Connection,
    tenant: &TenantId,
    name: &str,
    change: &SecretChange,
    at_ms: i64,
) -> Result<Option<SecretRecord>, StoreError> {
    if let Some(sealed) = &change.sealed {
        conn.execute(
            "UPDATE secrets SET value = ?3, rotated_ms = ?4, changed_ms = ?4, version = version + 1
             WHERE tenant = ?1 AND name = ?2",
            params![tenant.as_str(), name, sealed, at_ms],
        )?;
    }
    if let Some(about) = &change.about {
        conn.execute(
            "UPDATE secrets SET about = ?3, changed_ms = ?4 WHERE tenant = ?1 AND name = ?2",
            params![tenant.as_str(), name, to_json(about)?, at_ms],
        )?;
    }
    by_name(conn, tenant, name)
}

pub(crate) fn delete(conn: &Connection, tenant: &TenantId, name: &str) -> Result<bool, StoreError> {
    let gone =
        conn.execute("DELETE FROM secrets WHERE tenant = ?1 AND name = ?2", params![tenant.as_str(), name])?;
    Ok(gone > 0)
}

pub(crate) fn list(conn: &Connection, tenant: &TenantId) -> Result<Vec<SecretRecord>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM secrets WHERE tenant = ?1 ORDER BY name");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([tenant.as_str()])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(record(row)?);
    }
    Ok(all)
}

pub(crate) fn values(
    conn: &Connection,
    vault: &dyn Vault,
    tenant: &TenantId,
) -> Result<SecretValues, StoreError> {
    let mut statement = conn.prepare_cached("SELECT name, value FROM secrets WHERE tenant = ?1")?;
    let rows = statement
        .query_map([tenant.as_str()], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
    let mut values = BTreeMap::new();
    for row in rows {
        let (name, sealed) = row?;
        let Some(value) = vault.unseal(&owner(tenant, &name), &sealed) else {
            return Err(StoreError::Sealed { what: "a secret" });
        };
        values.insert(name, value);
    }
    Ok(SecretValues::new(values))
}

fn by_name(conn: &Connection, tenant: &TenantId, name: &str) -> Result<Option<SecretRecord>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM secrets WHERE tenant = ?1 AND name = ?2");
    conn.prepare_cached(&sql)?
        .query_row(params![tenant.as_str(), name], |row| Ok(record(row)))
        .optional()?
        .transpose()
}

fn record(row: &Row<'_>) -> Result<SecretRecord, StoreError> {
    Ok(SecretRecord {
        name: row.get(0)?,
        created_at_ms: row.get(1)?,
        rotated_at_ms: row.get(2)?,
        id: parse_id("secrets", &row.get::<_, String>(3)?)?,
        version: row.get(4)?,
        changed_at_ms: row.get(5)?,
        about: from_json("secrets", &row.get::<_, String>(6)?)?,
        used_by: 0,
    })
}
