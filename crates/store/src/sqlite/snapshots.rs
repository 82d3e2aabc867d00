//! `snapshots`: stored copies of sandboxes. The whole record is one text; the other columns are used in queries.

use atoll_model::policy::quota::{self, Exceeded};
use atoll_model::{NodeName, Snapshot, SnapshotId, SnapshotState, TenantId};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::keys;
use super::leases::{self, cursor, from_json, is_prefix, parse_cursor};
use crate::{Page, SnapshotQuery, StoreError, Vault};

/// LIMIT: adoption passes every one of them to the provider, and no one can review more.
const PER_TENANT: u64 = 10_000;

/// The serialised columns, made before the write is queued.
pub(crate) struct Row {
    snapshot: String,
    token: Option<Vec<u8>>,
}

impl Row {
    pub(crate) fn new(
        vault: &dyn Vault,
        snapshot: &Snapshot,
        token: Option<&str>,
    ) -> Result<Self, StoreError> {
        let bad = |cause| StoreError::BadRow { table: "snapshots", cause };
        let seal = |token| {
            let sealed = vault.seal(&owner(&snapshot.id), token);
            sealed.ok_or_else(|| bad("the token could not be sealed".into()))
        };
        let text = serde_json::to_string(snapshot).map_err(|e| bad(Box::new(e)))?;
        Ok(Self { snapshot: text, token: token.map(seal).transpose()? })
    }
}

/// The owner of a sealed token.
fn owner(id: &SnapshotId) -> String {
    format!("snapshot:{id}")
}

const fn state_text(state: SnapshotState) -> &'static str {
    match state {
        SnapshotState::Making => "making",
        SnapshotState::Ready => "ready",
        SnapshotState::Deleting => "deleting",
    }
}

pub(crate) fn put(conn: &Connection, snapshot: &Snapshot, row: &Row) -> Result<(), StoreError> {
    refuse_taken_name(conn, snapshot)?;
    if !is_there(conn, &snapshot.id)? {
        refuse_too_many(conn, &snapshot.tenant)?;
    }
    let tenant = keys::tenant(conn, snapshot.tenant.as_str())?.ok_or(StoreError::NoTenant)?;
    // A snapshot for a fork is removed with it. A deletion must not be refused.
    if tenant.quota.disk_mib.is_some() && !snapshot.transient && snapshot.state != SnapshotState::Deleting {
        let usage = leases::usage(conn, &snapshot.tenant, None)?;
        quota::admit_snapshot(&tenant.quota, &usage, snapshot.bytes)?;
    }
    conn.prepare_cached(
        "INSERT INTO snapshots (id, tenant, sandbox, name, state, transient, agent_token, snapshot, node)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, state = excluded.state,
           transient = excluded.transient, agent_token = excluded.agent_token, snapshot = excluded.snapshot",
    )?
    .execute(params![
        snapshot.id.as_str(),
        snapshot.tenant.as_str(),
        snapshot.sandbox.as_str(),
        snapshot.name,
        state_text(snapshot.state),
        // Neither kind can be named by users.
        snapshot.transient || snapshot.warm,
        row.token,
        row.snapshot,
        snapshot.node.as_str(),
    ])?;
    Ok(())
}

/// The bytes of a tenant's snapshots, as far as known when they were made. An upper bound if files are shared.
pub(crate) fn held_bytes(conn: &Connection, tenant: &TenantId) -> Result<u64, StoreError> {
    let sum = "SELECT coalesce(sum(json_extract(snapshot, '$.bytes')), 0) FROM snapshots
               WHERE tenant = ?1 AND state = 'ready' AND NOT transient";
    let held = conn.prepare_cached(sum)?.query_row([tenant.as_str()], |row| row.get::<_, f64>(0))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes of a disk; a cast saturates"
    )]
    Ok(held as u64)
}

fn is_there(conn: &Connection, id: &SnapshotId) -> Result<bool, StoreError> {
    Ok(conn.prepare_cached("SELECT 1 FROM snapshots WHERE id = ?1")?.exists([id.as_str()])?)
}

/// Where the name is unique, as the column `name_scope` has it.
fn name_scope(snapshot: &Snapshot) -> &str {
    if snapshot.tenant_wide { "" } else { snapshot.sandbox.as_str() }
}

fn refuse_taken_name(conn: &Connection, snapshot: &Snapshot) -> Result<(), StoreError> {
    let Some(name) = &snapshot.name else { return Ok(()) };
    let taken = snapshot.state != SnapshotState::Deleting
        && conn
            .prepare_cached(
                "SELECT 1 FROM snapshots
                 WHERE tenant = ?1 AND name = ?2 AND name_scope = ?4 AND state <> 'deleting' AND id <> ?3",
            )?
            .exists(params![snapshot.tenant.as_str(), name, snapshot.id.as_str(), name_scope(snapshot)])?;
    if taken { Err(StoreError::SnapshotNameTaken { name: name.clone() }) } else { Ok(()) }
}

fn refuse_too_many(conn: &Connection, tenant: &TenantId) -> Result<(), StoreError> {
    let used = conn
        .prepare_cached("SELECT count(*) FROM snapshots WHERE tenant = ?1")?
        .query_row([tenant.as_str()], |row| row.get::<_, i64>(0))?
        .unsigned_abs();
    if used >= PER_TENANT {
        return Err(Exceeded { what: "snapshots", used, asked: 1, max: PER_TENANT }.into());
    }
    Ok(())
}

pub(crate) fn by_id(
    conn: &Connection,
    vault: &dyn Vault,
    id: &SnapshotId,
) -> Result<Option<(Snapshot, Option<String>)>, StoreError> {
    let found = conn
        .prepare_cached("SELECT snapshot, agent_token FROM snapshots WHERE id = ?1")?
        .query_row([id.as_str()], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?)))
        .optional()?;
    let Some((text, sealed)) = found else { return Ok(None) };
    let unseal = |sealed: Vec<u8>| {
        vault.unseal(&owner(id), &sealed).ok_or_else(|| StoreError::BadRow {
            table: "snapshots",
            cause: "the agent token does not open with secret.key: the key is not the one of this database"
                .into(),
        })
    };
    Ok(Some((from_json("snapshots", &text)?, sealed.map(unseal).transpose()?)))
}

pub(crate) fn find(
    conn: &Connection,
    tenant: Option<&TenantId>,
    ident: &str,
) -> Result<Vec<Snapshot>, StoreError> {
    let tenant = tenant.map(TenantId::as_str);
    let several = |condition: &str| -> Result<Vec<Snapshot>, StoreError> {
        let sql = format!(
            "SELECT snapshot FROM snapshots WHERE (?1 IS NULL OR tenant = ?1) AND {condition} LIMIT 2"
        );
        let mut statement = conn.prepare_cached(&sql)?;
        let rows = statement.query_map(params![tenant, ident], |row| row.get::<_, String>(0))?;
        rows.map(|text| from_json("snapshots", &text?)).collect()
    };
    if ident.parse::<SnapshotId>().is_ok() {
        let found = several("id = ?2")?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    for scope in ["name_scope = ''", "name_scope <> ''"] {
        let condition =
            format!("name = ?2 AND {scope} AND state = 'ready' AND NOT transient ORDER BY n DESC");
        let named = several(&condition)?;
        if !named.is_empty() {
            return Ok(named);
        }
    }
    if !is_prefix(ident) {
        return Ok(Vec::new());
    }
    several("id >= ?2 AND id < ?2 || '{' AND state = 'ready' AND NOT transient ORDER BY id")
}

pub(crate) fn list(conn: &Connection, query: &SnapshotQuery) -> Result<Page<Snapshot>, StoreError> {
    let mut wheres = vec!["state = 'ready' AND NOT transient"];
    let mut values = Vec::new();
    if let Some(tenant) = &query.tenant {
        wheres.push("tenant = ?");
        values.push(Value::Text(tenant.as_str().to_owned()));
    }
    if let Some(sandbox) = &query.sandbox {
        wheres.push("sandbox = ?");
        values.push(Value::Text(sandbox.as_str().to_owned()));
    }
    if let Some(name) = &query.sandbox_name {
        wheres.push("json_extract(snapshot, '$.sandbox_name') = ?");
        values.push(Value::Text(name.clone()));
    }
    if let Some(name) = &query.name {
        wheres.push("name = ?");
        values.push(Value::Text(name.clone()));
    }
    if let Some(at) = &query.cursor {
        wheres.push("n < ?");
        values.push(Value::Integer(parse_cursor(at)?));
    }
    values.push(Value::Integer(i64::from(query.limit) + 1));
    let sql =
        format!("SELECT n, snapshot FROM snapshots WHERE {} ORDER BY n DESC LIMIT ?", wheres.join(" AND "));
    let mut statement = conn.prepare(&sql)?;
    let rows = statement
        .query_map(params_from_iter(values), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
    let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
    let more = rows.len() > query.limit as usize;
    rows.truncate(query.limit as usize);
    let next_cursor = rows.last().filter(|_| more).map(|(n, _)| cursor(*n));
    let items = rows.iter().map(|(_, text)| from_json("snapshots", text)).collect::<Result<_, _>>()?;
    Ok(Page { items, next_cursor })
}

/// Two servers that move the same name meet in their transactions: the later one has it.
pub(crate) fn move_name(
    conn: &Connection,
    id: &SnapshotId,
    name: &str,
) -> Result<Option<Snapshot>, StoreError> {
    conn.prepare_cached(
        "UPDATE snapshots SET name = NULL, snapshot = json_set(snapshot, '$.name', NULL)
         WHERE tenant = (SELECT tenant FROM snapshots WHERE id = ?1) AND name = ?2 AND id <> ?1
           AND name_scope = (SELECT name_scope FROM snapshots WHERE id = ?1)",
    )?
    .execute(params![id.as_str(), name])?;
    conn.prepare_cached(
        "UPDATE snapshots SET name = ?2, snapshot = json_set(snapshot, '$.name', ?2) WHERE id = ?1",
    )?
    .execute(params![id.as_str(), name])?;
    conn.prepare_cached("SELECT snapshot FROM snapshots WHERE id = ?1")?
        .query_row([id.as_str()], |row| row.get::<_, String>(0))
        .optional()?
        .map(|text| from_json("snapshots", &text))
        .transpose()
}

pub(crate) fn all(conn: &Connection, node: &NodeName) -> Result<Vec<Snapshot>, StoreError> {
    let mut statement = conn.prepare("SELECT snapshot FROM snapshots WHERE node = ?1 ORDER BY n")?;
    let rows = statement.query_map([node.as_str()], |row| row.get::<_, String>(0))?;
    rows.map(|text| from_json("snapshots", &text?)).collect()
}

pub(crate) fn delete(conn: &Connection, id: &SnapshotId, node: &NodeName) -> Result<bool, StoreError> {
    let sql = "DELETE FROM snapshots WHERE id = ?1 AND node = ?2";
    Ok(conn.execute(sql, [id.as_str(), node.as_str()])? > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_tenant_has_at_most_so_many() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("0001.sql")).unwrap();
        conn.execute_batch(include_str!("0002.sql")).unwrap();
        let tenant: TenantId = "tttttttttttttttttttt".parse().unwrap();
        conn.execute("INSERT INTO tenants VALUES (?1, 't', '{}', 0)", [tenant.as_str()]).unwrap();
        let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
                    INSERT INTO snapshots (id, tenant, sandbox, state, transient, snapshot)
                    SELECT 's' || i, ?1, 'x', 'ready', 0, '{}' FROM n";
        conn.execute(fill, params![tenant.as_str(), super::super::leases::int(PER_TENANT) - 1]).unwrap();
        refuse_too_many(&conn, &tenant).unwrap();
        let one_more = "INSERT INTO snapshots (id, tenant, sandbox, state, transient, snapshot)
                        VALUES ('last', ?1, 'x', 'making', 1, '{}')";
        conn.execute(one_more, [tenant.as_str()]).unwrap();
        let refusal = refuse_too_many(&conn, &tenant).unwrap_err();
        assert_eq!(refusal.kind(), atoll_model::ErrorKind::Exhausted);
        assert!(refusal.to_string().contains("snapshots"), "{refusal}");
    }
}
