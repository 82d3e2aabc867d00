//! `volumes` and `lease_mounts`. Mounting and removing are each decided in one transaction, so they cannot interleave.

use async_trait::async_trait;
use atoll_model::policy::quota;
use atoll_model::{Lease, TenantId, Usage, Volume, VolumeId, VolumeState};
use rusqlite::{Connection, OptionalExtension, params};

use super::leases::{from_json, is_prefix, to_json};
use super::{SqliteStore, keys, leases};
use crate::{StoreError, VolumeStore};

const TABLE: &str = "volumes";

#[async_trait]
impl VolumeStore for SqliteStore {
    async fn insert_volume(&self, volume: Volume) -> Result<(), StoreError> {
        self.own(&volume.node, || format!("volume {}", volume.id))?;
        self.add(move |conn| insert(conn, &volume)).await
    }

    async fn set_volume(&self, volume: Volume) -> Result<bool, StoreError> {
        self.own(&volume.node, || format!("volume {}", volume.id))?;
        self.write(move |conn| set(conn, &volume)).await
    }

    async fn volume(&self, id: &VolumeId) -> Result<Option<Volume>, StoreError> {
        let id = id.clone();
        self.read(move |conn| by_id(conn, &id)).await
    }

    async fn find_volume(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Volume>, StoreError> {
        let (tenant, ident) = (tenant.cloned(), ident.to_owned());
        self.read(move |conn| find(conn, tenant.as_ref(), &ident)).await
    }

    async fn own_volumes(&self) -> Result<Vec<Volume>, StoreError> {
        let node = self.node.clone();
        self.read(move |conn| {
            let mut statement = conn.prepare("SELECT volume FROM volumes WHERE node = ?1 ORDER BY n")?;
            let rows = statement.query_map([node.as_str()], |row| row.get::<_, String>(0))?;
            rows.map(|text| from_json(TABLE, &text?)).collect()
        })
        .await
    }

    async fn volumes(&self, tenant: Option<&TenantId>) -> Result<Vec<(Volume, u32)>, StoreError> {
        let tenant = tenant.cloned();
        self.read(move |conn| list(conn, tenant.as_ref())).await
    }

    async fn volume_users(&self, id: &VolumeId) -> Result<u32, StoreError> {
        let id = id.clone();
        self.read(move |conn| users(conn, &id)).await
    }

    async fn delete_volume(&self, id: &VolumeId) -> Result<bool, StoreError> {
        let (id, node) = (id.clone(), self.node.clone());
        self.write(move |conn| {
            let sql = "DELETE FROM volumes WHERE id = ?1 AND node = ?2";
            Ok(conn.execute(sql, [id.as_str(), node.as_str()])? > 0)
        })
        .await
    }
}

const fn state_text(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Making => "making",
        VolumeState::Ready => "ready",
        VolumeState::Deleting => "deleting",
    }
}

fn insert(conn: &Connection, volume: &Volume) -> Result<(), StoreError> {
    let tenant = keys::tenant(conn, volume.tenant.as_str())?.ok_or(StoreError::NoTenant)?;
    let taken = conn
        .prepare_cached("SELECT 1 FROM volumes WHERE tenant = ?1 AND name = ?2 AND state <> 'deleting'")?
        .exists(params![volume.tenant.as_str(), volume.name])?;
    if taken {
        return Err(StoreError::VolumeNameTaken { name: volume.name.clone() });
    }
    let usage = leases::usage(conn, &volume.tenant, None)?;
    quota::admit_volume(&tenant.quota, &usage, volume.size_mib.unwrap_or(0).into())?;
    conn.prepare_cached(
        "INSERT INTO volumes (id, tenant, name, size_mib, state, volume, node)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        volume.id.as_str(),
        volume.tenant.as_str(),
        volume.name,
        volume.size_mib.unwrap_or(0),
        state_text(volume.state),
        to_json(volume)?,
        volume.node.as_str(),
    ])?;
    Ok(())
}

fn set(conn: &Connection, volume: &Volume) -> Result<bool, StoreError> {
    let Some(before) = by_id(conn, &volume.id)? else { return Ok(false) };
    if volume.state == VolumeState::Deleting {
        let users = users(conn, &volume.id)?;
        if users > 0 {
            let by = some_users(conn, &volume.id)?;
            return Err(StoreError::VolumeInUse { name: before.name, users, by });
        }
    }
    let more = volume.size_mib.unwrap_or(0).saturating_sub(before.size_mib.unwrap_or(0));
    if more > 0 {
        let tenant = keys::tenant(conn, volume.tenant.as_str())?.ok_or(StoreError::NoTenant)?;
        let usage = leases::usage(conn, &volume.tenant, None)?;
        quota::admit_volume_size(&tenant.quota, &usage, more.into())?;
    }
    conn.prepare_cached("UPDATE volumes SET size_mib = ?2, state = ?3, volume = ?4 WHERE id = ?1")?.execute(
        params![volume.id.as_str(), volume.size_mib.unwrap_or(0), state_text(volume.state), to_json(volume)?],
    )?;
    Ok(true)
}

fn by_id(conn: &Connection, id: &VolumeId) -> Result<Option<Volume>, StoreError> {
    conn.prepare_cached("SELECT volume FROM volumes WHERE id = ?1")?
        .query_row([id.as_str()], |row| row.get::<_, String>(0))
        .optional()?
        .map(|text| from_json(TABLE, &text))
        .transpose()
}

fn find(conn: &Connection, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Volume>, StoreError> {
    if let Ok(id) = ident.parse::<VolumeId>()
        && let Some(volume) = by_id(conn, &id)?
    {
        return Ok(if tenant.is_none_or(|tenant| volume.tenant == *tenant) { vec![volume] } else { vec![] });
    }
    let several = |condition: &str| -> Result<Vec<Volume>, StoreError> {
        let sql = format!(
            "SELECT volume FROM volumes WHERE (?1 IS NULL OR tenant = ?1) AND state <> 'deleting' AND {condition} LIMIT 2"
        );
        let mut statement = conn.prepare_cached(&sql)?;
        let rows = statement
            .query_map(params![tenant.map(TenantId::as_str), ident], |row| row.get::<_, String>(0))?;
        rows.map(|text| from_json(TABLE, &text?)).collect()
    };
    let named = several("name = ?2 ORDER BY n")?;
    if !named.is_empty() || !is_prefix(ident) {
        return Ok(named);
    }
    several("id >= ?2 AND id < ?2 || '{' ORDER BY id")
}

fn list(conn: &Connection, tenant: Option<&TenantId>) -> Result<Vec<(Volume, u32)>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT v.volume, (SELECT count(*) FROM lease_mounts m WHERE m.volume = v.id) FROM volumes v
         WHERE ?1 IS NULL OR v.tenant = ?1 ORDER BY v.name, v.n",
    )?;
    let rows = statement.query_map([tenant.map(TenantId::as_str)], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?))
    })?;
    rows.map(|row| {
        row.map_err(StoreError::from).and_then(|(text, users)| Ok((from_json(TABLE, &text)?, users)))
    })
    .collect()
}

fn users(conn: &Connection, id: &VolumeId) -> Result<u32, StoreError> {
    let count = "SELECT count(*) FROM lease_mounts WHERE volume = ?1";
    Ok(conn.prepare_cached(count)?.query_row([id.as_str()], |row| row.get(0))?)
}

/// LIMIT: the number of sandboxes that an error message names.
const NAMED_USERS: u32 = 3;

fn some_users(conn: &Connection, id: &VolumeId) -> Result<Vec<String>, StoreError> {
    let some = "SELECT sandbox FROM lease_mounts WHERE volume = ?1 ORDER BY sandbox LIMIT ?2";
    let mut statement = conn.prepare_cached(some)?;
    let rows = statement.query_map(params![id.as_str(), NAMED_USERS], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Adds the volumes of a tenant to its usage.
pub(super) fn add_usage(conn: &Connection, tenant: &TenantId, usage: &mut Usage) -> Result<(), StoreError> {
    let sums = "SELECT count(*), coalesce(sum(size_mib), 0) FROM volumes WHERE tenant = ?1";
    (usage.volumes, usage.volume_mib) = conn
        .prepare_cached(sums)?
        .query_row([tenant.as_str()], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())))?;
    Ok(())
}

/// Stores the mounts of a new sandbox; refused unless it may mount every volume.
pub(super) fn mount(conn: &Connection, lease: &Lease) -> Result<(), StoreError> {
    for mount in &lease.mounts {
        let ready = by_id(conn, &mount.volume)?.is_some_and(|volume| {
            volume.state == VolumeState::Ready && volume.tenant == lease.tenant && volume.node == lease.node
        });
        if !ready {
            return Err(StoreError::NoVolume { volume: mount.volume.clone() });
        }
        conn.prepare_cached("INSERT OR IGNORE INTO lease_mounts VALUES (?1, ?2)")?
            .execute(params![lease.id.as_str(), mount.volume.as_str()])?;
    }
    Ok(())
}

/// Removes the mounts of a deleted sandbox.
pub(super) fn unmount(conn: &Connection, lease: &Lease) -> Result<(), StoreError> {
    if lease.mounts.is_empty() { Ok(()) } else { unmount_all(conn, lease) }
}

/// The same for a lease that no longer names its mounts.
pub(super) fn unmount_all(conn: &Connection, lease: &Lease) -> Result<(), StoreError> {
    conn.prepare_cached("DELETE FROM lease_mounts WHERE sandbox = ?1")?.execute([lease.id.as_str()])?;
    Ok(())
}
