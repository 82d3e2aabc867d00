//! `builds`: builds of templates. The whole record is one text; the other columns are used in queries.

use async_trait::async_trait;
use atoll_model::{Build, BuildId, TenantId};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::SqliteStore;
use super::leases::{cursor, from_json, is_prefix, parse_cursor, to_json};
use crate::{BuildQuery, BuildStore, Page, StoreError};

const TABLE: &str = "builds";
/// LIMIT: builds that are kept per tenant; the logs of older ones are removed with them.
const KEPT_PER_TENANT: u32 = 1_000;

#[async_trait]
impl BuildStore for SqliteStore {
    async fn put_build(&self, build: Build) -> Result<(), StoreError> {
        self.own(&build.node, || format!("build {}", build.id))?;
        self.write(move |conn| put(conn, &build)).await
    }

    async fn delete_build(&self, id: &BuildId) -> Result<(), StoreError> {
        let id = id.clone();
        self.write(move |conn| {
            conn.prepare_cached("DELETE FROM builds WHERE id = ?1")?.execute([id.as_str()])?;
            Ok(())
        })
        .await
    }

    async fn build(&self, id: &BuildId) -> Result<Option<Build>, StoreError> {
        let id = id.clone();
        self.read(move |conn| by_id(conn, &id)).await
    }

    async fn find_build(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Build>, StoreError> {
        let (tenant, ident) = (tenant.cloned(), ident.to_owned());
        self.read(move |conn| find(conn, tenant.as_ref(), &ident)).await
    }

    async fn builds(&self, query: BuildQuery) -> Result<Page<Build>, StoreError> {
        self.read(move |conn| list(conn, &query)).await
    }

    async fn open_builds(&self) -> Result<Vec<Build>, StoreError> {
        let node = self.node.clone();
        self.read(move |conn| {
            let sql =
                "SELECT build FROM builds WHERE status IN ('waiting', 'building') AND node = ?1 ORDER BY n";
            let mut statement = conn.prepare(sql)?;
            let rows = statement.query_map([node.as_str()], |row| row.get::<_, String>(0))?;
            rows.map(|text| from_json(TABLE, &text?)).collect()
        })
        .await
    }
}

fn put(conn: &Connection, build: &Build) -> Result<(), StoreError> {
    if !conn.prepare_cached("SELECT 1 FROM tenants WHERE id = ?1")?.exists([build.tenant.as_str()])? {
        return Err(StoreError::NoTenant);
    }
    conn.prepare_cached(
        "INSERT INTO builds (id, tenant, template, status, created_ms, build, node)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (id) DO UPDATE SET status = excluded.status, build = excluded.build",
    )?
    .execute(params![
        build.id.as_str(),
        build.tenant.as_str(),
        build.template.name,
        build.status.as_str(),
        build.created_at.wall_ms,
        to_json(build)?,
        build.node.as_str(),
    ])?;
    Ok(())
}

fn by_id(conn: &Connection, id: &BuildId) -> Result<Option<Build>, StoreError> {
    conn.prepare_cached("SELECT build FROM builds WHERE id = ?1")?
        .query_row([id.as_str()], |row| row.get::<_, String>(0))
        .optional()?
        .map(|text| from_json(TABLE, &text))
        .transpose()
}

fn find(conn: &Connection, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Build>, StoreError> {
    if let Ok(id) = ident.parse::<BuildId>() {
        let found = by_id(conn, &id)?.filter(|build| tenant.is_none_or(|tenant| build.tenant == *tenant));
        return Ok(found.into_iter().collect());
    }
    if !is_prefix(ident) {
        return Ok(vec![]);
    }
    let mut statement = conn.prepare_cached(
        "SELECT build FROM builds WHERE (?1 IS NULL OR tenant = ?1) AND id >= ?2 AND id < ?2 || '{'
         ORDER BY id LIMIT 2",
    )?;
    let rows =
        statement.query_map(params![tenant.map(TenantId::as_str), ident], |row| row.get::<_, String>(0))?;
    rows.map(|text| from_json(TABLE, &text?)).collect()
}

fn list(conn: &Connection, query: &BuildQuery) -> Result<Page<Build>, StoreError> {
    let mut wheres = vec!["1"];
    let mut values = Vec::new();
    let mut add = |sql, value| {
        wheres.push(sql);
        values.push(value);
    };
    if let Some(tenant) = &query.tenant {
        add("tenant = ?", Value::Text(tenant.as_str().to_owned()));
    }
    if let Some(status) = query.status {
        add("status = ?", Value::Text(status.as_str().to_owned()));
    }
    if let Some(template) = &query.template {
        add("template = ?", Value::Text(template.clone()));
    }
    if let Some(at) = &query.cursor {
        add("n < ?", Value::Integer(parse_cursor(at)?));
    }
    values.push(Value::Integer(i64::from(query.limit) + 1));
    let sql = format!("SELECT n, build FROM builds WHERE {} ORDER BY n DESC LIMIT ?", wheres.join(" AND "));
    let mut statement = conn.prepare(&sql)?;
    let rows = statement
        .query_map(params_from_iter(values), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
    let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
    let more = rows.len() > query.limit as usize;
    rows.truncate(query.limit as usize);
    let next_cursor = rows.last().filter(|_| more).map(|(n, _)| cursor(*n));
    let items = rows.iter().map(|(_, text)| from_json(TABLE, text)).collect::<Result<_, _>>()?;
    Ok(Page { items, next_cursor })
}

pub(super) fn sweep(conn: &Connection, before_ms: i64) -> Result<(), StoreError> {
    conn.execute(
        "DELETE FROM builds WHERE status NOT IN ('waiting', 'building') AND created_ms < ?1",
        [before_ms],
    )?;
    conn.execute(
        "DELETE FROM builds WHERE n IN (SELECT n FROM
           (SELECT n, row_number() OVER (PARTITION BY tenant ORDER BY n DESC) AS place FROM builds
            WHERE status NOT IN ('waiting', 'building')) WHERE place > ?1)",
        [KEPT_PER_TENANT],
    )?;
    Ok(())
}
