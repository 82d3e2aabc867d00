//! `templates`, `template_tags`, `template_aliases` and `template_versions`.

use std::collections::BTreeSet;

use async_trait::async_trait;
use atoll_model::policy::quota::Exceeded;
use atoll_model::{NodeName, SnapshotId, TenantId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::keys::parse_id;
use super::leases::{from_json, to_json};
use super::{SqliteStore, keys};
use crate::{FeedChange, StoreError, TemplateChange, TemplateRow, TemplateStore, VersionRow};

const TABLE: &str = "templates";
/// LIMIT: names per tenant; each may have many tags.
const PER_TENANT: u64 = 10_000;

#[async_trait]
impl TemplateStore for SqliteStore {
    async fn publish_template(
        &self,
        tenant: &TenantId,
        name: &str,
        tags: Vec<String>,
        version: VersionRow,
    ) -> Result<TemplateRow, StoreError> {
        if !self.disk.takes_records() {
            return Err(StoreError::NoSpace);
        }
        let (tenant, name, node) = (tenant.clone(), name.to_owned(), self.node.clone());
        let work = move |conn: &Connection| publish(conn, &tenant, &name, &tags, &version, &node);
        self.write_shared(FeedChange::Templates, work).await
    }

    async fn template(&self, tenant: &TenantId, word: &str) -> Result<Option<TemplateRow>, StoreError> {
        let (tenant, word) = (tenant.clone(), word.to_owned());
        self.read(move |conn| Ok(find(conn, &tenant, &word)?.map(|(_, row)| row))).await
    }

    async fn public_template(&self, word: &str) -> Result<Option<TemplateRow>, StoreError> {
        let word = word.to_owned();
        self.read(move |conn| public(conn, &word)).await
    }

    async fn templates(&self, tenant: Option<&TenantId>) -> Result<Vec<TemplateRow>, StoreError> {
        let tenant = tenant.cloned();
        self.read(move |conn| list(conn, tenant.as_ref())).await
    }

    async fn template_versions(&self, tenant: &TenantId, name: &str) -> Result<Vec<VersionRow>, StoreError> {
        let (tenant, name, node) = (tenant.clone(), name.to_owned(), self.node.clone());
        self.read(move |conn| versions(conn, &tenant, &name, &node)).await
    }

    async fn change_template(
        &self,
        tenant: &TenantId,
        name: &str,
        change: TemplateChange,
    ) -> Result<Option<TemplateRow>, StoreError> {
        let (tenant, name) = (tenant.clone(), name.to_owned());
        let work = move |conn: &Connection| self::change(conn, &tenant, &name, &change);
        self.write_shared(FeedChange::Templates, work).await
    }

    async fn untag_template(
        &self,
        tenant: &TenantId,
        name: &str,
        tags: Vec<String>,
    ) -> Result<u32, StoreError> {
        let (tenant, name) = (tenant.clone(), name.to_owned());
        self.write_shared(FeedChange::Templates, move |conn| {
            let Some(n) = number(conn, &tenant, &name)? else { return Ok(0) };
            let mut gone = 0;
            for tag in &tags {
                let sql = "DELETE FROM template_tags WHERE template = ?1 AND tag = ?2";
                gone += conn.prepare_cached(sql)?.execute(params![n, tag])?;
            }
            Ok(u32::try_from(gone).unwrap_or(u32::MAX))
        })
        .await
    }

    async fn remove_template(&self, tenant: &TenantId, name: &str) -> Result<bool, StoreError> {
        let (tenant, name) = (tenant.clone(), name.to_owned());
        self.write_shared(FeedChange::Templates, move |conn| {
            let sql = "DELETE FROM templates WHERE tenant = ?1 AND name = ?2";
            Ok(conn.execute(sql, params![tenant.as_str(), name])? > 0)
        })
        .await
    }

    async fn version_users(
        &self,
        tenant: &TenantId,
        versions: BTreeSet<String>,
    ) -> Result<(u64, u64), StoreError> {
        let tenant = tenant.clone();
        self.read(move |conn| users(conn, &tenant, &versions)).await
    }

    async fn needed_versions(&self) -> Result<BTreeSet<String>, StoreError> {
        self.write(needed).await
    }

    async fn warm_snapshots(&self) -> Result<BTreeSet<SnapshotId>, StoreError> {
        let node = self.node.clone();
        self.read(move |conn| {
            let sql = "SELECT warm FROM template_copies WHERE warm IS NOT NULL AND node = ?1";
            let mut statement = conn.prepare(sql)?;
            let rows = statement.query_map([node.as_str()], |row| row.get::<_, String>(0))?;
            rows.map(|id| parse_id("template_copies", &id?)).collect()
        })
        .await
    }

    async fn template_nodes(&self, version: &str) -> Result<BTreeSet<NodeName>, StoreError> {
        let version = version.to_owned();
        self.read(move |conn| {
            let mut statement = conn.prepare("SELECT node FROM template_copies WHERE version = ?1")?;
            let rows = statement.query_map([version], |row| row.get::<_, String>(0))?;
            rows.map(|node| parse_id("template_copies", &node?)).collect()
        })
        .await
    }
}

fn publish(
    conn: &Connection,
    tenant: &TenantId,
    name: &str,
    tags: &[String],
    version: &VersionRow,
    node: &NodeName,
) -> Result<TemplateRow, StoreError> {
    let n = match number(conn, tenant, name)? {
        Some(n) => n,
        None => make(conn, tenant, name, version.created_at_ms)?,
    };
    // The warm start belongs to the copy of this node.
    let row = to_json(&VersionRow { warm: None, ..version.clone() })?;
    conn.prepare_cached(
        "INSERT INTO template_versions (template, version, manifest, row) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO UPDATE SET manifest = excluded.manifest, row = excluded.row",
    )?
    .execute(params![n, version.version, version.manifest, row])?;
    conn.prepare_cached(
        "INSERT INTO template_copies VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET warm = excluded.warm",
    )?
    .execute(params![
        n,
        version.version,
        node.as_str(),
        version.warm.as_ref().map(SnapshotId::as_str)
    ])?;
    for tag in tags {
        conn.prepare_cached("INSERT OR REPLACE INTO template_tags VALUES (?1, ?2, ?3)")?.execute(params![
            n,
            tag,
            version.version
        ])?;
    }
    by_number(conn, n)
}

fn make(conn: &Connection, tenant: &TenantId, name: &str, at_ms: i64) -> Result<i64, StoreError> {
    keys::tenant(conn, tenant.as_str())?.ok_or(StoreError::NoTenant)?;
    if conn
        .prepare_cached("SELECT 1 FROM template_aliases WHERE tenant = ?1 AND alias = ?2")?
        .exists(params![tenant.as_str(), name])?
    {
        return Err(StoreError::Exists { what: format!("the alias {name} of another template") });
    }
    let used = conn
        .prepare_cached("SELECT count(*) FROM templates WHERE tenant = ?1")?
        .query_row([tenant.as_str()], |row| row.get::<_, i64>(0))?
        .unsigned_abs();
    if used >= PER_TENANT {
        return Err(Exceeded { what: "templates", used, asked: 1, max: PER_TENANT }.into());
    }
    conn.prepare_cached(
        "INSERT INTO templates (tenant, name, public, changes, created_ms) VALUES (?1, ?2, 0, '{}', ?3)",
    )?
    .execute(params![tenant.as_str(), name, at_ms])?;
    Ok(conn.last_insert_rowid())
}

fn number(conn: &Connection, tenant: &TenantId, name: &str) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT n FROM templates WHERE tenant = ?1 AND name = ?2";
    Ok(conn.prepare_cached(sql)?.query_row(params![tenant.as_str(), name], |row| row.get(0)).optional()?)
}

/// A name has precedence over an alias of the same text.
fn find(conn: &Connection, tenant: &TenantId, word: &str) -> Result<Option<(i64, TemplateRow)>, StoreError> {
    let n = match number(conn, tenant, word)? {
        Some(n) => Some(n),
        None => conn
            .prepare_cached("SELECT template FROM template_aliases WHERE tenant = ?1 AND alias = ?2")?
            .query_row(params![tenant.as_str(), word], |row| row.get(0))
            .optional()?,
    };
    n.map(|n| Ok((n, by_number(conn, n)?))).transpose()
}

fn public(conn: &Connection, word: &str) -> Result<Option<TemplateRow>, StoreError> {
    let sql = "SELECT n FROM templates WHERE public AND name = ?1
               UNION SELECT t.n FROM templates t JOIN template_aliases a ON a.template = t.n
               WHERE t.public AND a.alias = ?1 ORDER BY n LIMIT 1";
    let n: Option<i64> = conn.prepare_cached(sql)?.query_row([word], |row| row.get(0)).optional()?;
    n.map(|n| by_number(conn, n)).transpose()
}

fn list(conn: &Connection, tenant: Option<&TenantId>) -> Result<Vec<TemplateRow>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT n FROM templates WHERE ?1 IS NULL OR tenant = ?1 OR public ORDER BY name, n",
    )?;
    let numbers = statement
        .query_map([tenant.map(TenantId::as_str)], |row| row.get(0))?
        .collect::<Result<Vec<i64>, _>>()?;
    numbers.into_iter().map(|n| by_number(conn, n)).collect()
}

fn by_number(conn: &Connection, n: i64) -> Result<TemplateRow, StoreError> {
    let raw = |row: &Row<'_>| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, bool>(2)?,
            row.get::<_, String>(3)?,
            row.get::<_, i64>(4)?,
        ))
    };
    let (tenant, name, public, changes, created_at_ms) = conn
        .prepare_cached("SELECT tenant, name, public, changes, created_ms FROM templates WHERE n = ?1")?
        .query_row([n], raw)?;
    let mut tags = conn.prepare_cached("SELECT tag, version FROM template_tags WHERE template = ?1")?;
    let tags = tags.query_map([n], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let mut aliases =
        conn.prepare_cached("SELECT alias FROM template_aliases WHERE template = ?1 ORDER BY alias")?;
    let aliases = aliases.query_map([n], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(TemplateRow {
        tenant: parse_id(TABLE, &tenant)?,
        name,
        public,
        aliases,
        changes: from_json(TABLE, &changes)?,
        tags,
        created_at_ms,
    })
}

fn versions(
    conn: &Connection,
    tenant: &TenantId,
    name: &str,
    node: &NodeName,
) -> Result<Vec<VersionRow>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT v.row, c.warm FROM template_versions v JOIN templates t ON t.n = v.template
         LEFT JOIN template_copies c ON c.template = v.template AND c.version = v.version AND c.node = ?3
         WHERE t.tenant = ?1 AND t.name = ?2",
    )?;
    let mut rows = statement.query([tenant.as_str(), name, node.as_str()])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let warm: Option<String> = row.get(1)?;
        let warm = warm.map(|id| parse_id("template_copies", &id)).transpose()?;
        let version: VersionRow = from_json("template_versions", &row.get::<_, String>(0)?)?;
        found.push(VersionRow { warm, ..version });
    }
    found.sort_by_key(|version| version.created_at_ms);
    Ok(found)
}

fn change(
    conn: &Connection,
    tenant: &TenantId,
    name: &str,
    change: &TemplateChange,
) -> Result<Option<TemplateRow>, StoreError> {
    let Some(n) = number(conn, tenant, name)? else { return Ok(None) };
    if let Some(public) = change.public {
        conn.execute("UPDATE templates SET public = ?2 WHERE n = ?1", params![n, public])?;
    }
    if let Some(changes) = &change.changes {
        conn.execute("UPDATE templates SET changes = ?2 WHERE n = ?1", params![n, to_json(changes)?])?;
    }
    if let Some(aliases) = &change.aliases {
        conn.execute("DELETE FROM template_aliases WHERE template = ?1", [n])?;
        for alias in aliases.iter().collect::<BTreeSet<_>>() {
            let taken = number(conn, tenant, alias)?.is_some_and(|other| other != n);
            let sql = "INSERT INTO template_aliases VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
            if taken || conn.execute(sql, params![tenant.as_str(), alias, n])? == 0 {
                return Err(StoreError::Exists { what: format!("a template with the name {alias}") });
            }
        }
    }
    if let Some(new) = change.name.as_deref().filter(|new| *new != name) {
        rename(conn, tenant, n, new)?;
    }
    Ok(Some(by_number(conn, n)?))
}

/// One of its own aliases may become its name.
fn rename(conn: &Connection, tenant: &TenantId, n: i64, new: &str) -> Result<(), StoreError> {
    if find(conn, tenant, new)?.is_some_and(|(other, _)| other != n) {
        return Err(StoreError::Exists { what: format!("a template with the name {new}") });
    }
    conn.execute("DELETE FROM template_aliases WHERE template = ?1 AND alias = ?2", params![n, new])?;
    conn.execute("UPDATE templates SET name = ?2 WHERE n = ?1", params![n, new])?;
    Ok(())
}

fn users(
    conn: &Connection,
    tenant: &TenantId,
    versions: &BTreeSet<String>,
) -> Result<(u64, u64), StoreError> {
    let count = |sql: &str| -> Result<u64, StoreError> {
        let mut sum = 0;
        for version in versions {
            let params = params![tenant.as_str(), version];
            sum += conn.prepare_cached(sql)?.query_row(params, |row| row.get::<_, i64>(0))?.unsigned_abs();
        }
        Ok(sum)
    };
    Ok((
        count(
            "SELECT count(*) FROM sandbox_leases
             WHERE tenant = ?1 AND template_version = ?2 AND observed <> 'deleted'",
        )?,
        count(
            "SELECT count(*) FROM snapshots WHERE tenant = ?1
             AND json_extract(snapshot, '$.template_version') = ?2 AND NOT transient AND state = 'ready'",
        )?,
    ))
}

/// Versions that a sandbox which is not deleted, or a snapshot, uses. A warm start does not count: it is removed with
/// its version.
const STOOD_ON: &str = "SELECT template_version FROM sandbox_leases
     WHERE observed <> 'deleted' AND template_version IS NOT NULL
   UNION SELECT json_extract(snapshot, '$.template_version') FROM snapshots
     WHERE NOT coalesce(json_extract(snapshot, '$.warm'), 0)";

fn needed(conn: &Connection) -> Result<BTreeSet<String>, StoreError> {
    conn.execute(
        &format!(
            "DELETE FROM template_versions WHERE version NOT IN ({STOOD_ON}) AND NOT EXISTS
               (SELECT 1 FROM template_tags g
                WHERE g.template = template_versions.template AND g.version = template_versions.version)"
        ),
        [],
    )?;
    conn.execute(
        "DELETE FROM templates WHERE n NOT IN (SELECT template FROM template_tags)
           AND n NOT IN (SELECT template FROM template_versions)",
        [],
    )?;
    let mut statement = conn.prepare(&format!("{STOOD_ON} UNION SELECT version FROM template_tags"))?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
