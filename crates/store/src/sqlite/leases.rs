//! `sandbox_leases`, `sandbox_instances` and `idempotency`.

use atoll_model::policy::deadlines::next_deadline;
use atoll_model::policy::quota;
use atoll_model::{BuildId, EventKind, Lease, Limits, NodeName, Phase, Quota, SandboxId, TenantId, Usage};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use super::{events, keys, terminals, thread_bindings, volumes};
use crate::{
    Admit, Advance, Inserted, InstanceChange, InstanceRow, NewEvent, NewLease, StoreError, Sweep, Vault,
};

/// The serialised columns, made before the write is queued, so that the writer thread only writes.
pub(crate) struct Row {
    lease: String,
    desired: String,
    due_at: Option<i64>,
}

impl Row {
    pub(crate) fn new(lease: &Lease) -> Result<Self, StoreError> {
        Ok(Self {
            lease: to_json(lease)?,
            desired: to_json(&lease.intent)?.trim_matches('"').to_owned(),
            due_at: next_deadline(lease).map(|(at, _)| at.wall_ms),
        })
    }
}

pub(super) fn to_json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value)
        .map_err(|e| StoreError::BadRow { table: "sandbox_leases", cause: Box::new(e) })
}

pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    table: &'static str,
    text: &str,
) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::BadRow { table, cause: Box::new(e) })
}

/// Generations and sequence numbers stay far below 2^63.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn insert(conn: &Connection, new: &NewLease, row: &Row) -> Result<Inserted, StoreError> {
    let lease = &new.lease;
    if let Some((key, request)) = &new.idempotency
        && let Some(before) = replay(conn, &lease.tenant, key, request)?
    {
        return Ok(Inserted::Replayed(Box::new(before)));
    }
    let tenant = keys::tenant(conn, lease.tenant.as_str())?.ok_or(StoreError::NoTenant)?;
    if let Some(bound) = thread_bindings::bind(conn, lease)? {
        return Ok(Inserted::Bound(Box::new(bound)));
    }
    if tenant.quota != Quota::default() {
        quota::admit_new(&tenant.quota, &usage_before(conn, lease)?, &lease.limits)?;
    }
    refuse_taken_name(conn, lease)?;
    conn.prepare_cached(
        "INSERT INTO sandbox_leases (id, tenant, name, template, provider, desired, observed, holds_compute,
           cpu_milli, memory_mib, disk_mib, generation, due_at, phase_ms, lease, parent, thread, template_version, build,
           started_ms, node)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)",
    )?
    .execute(params![
        lease.id.as_str(),
        lease.tenant.as_str(),
        lease.name,
        lease.template,
        lease.provider,
        row.desired,
        lease.phase.as_str(),
        lease.holds_compute(),
        lease.limits.cpu_milli,
        lease.limits.memory_mib,
        lease.limits.disk_mib,
        int(lease.generation),
        row.due_at,
        lease.phase_at.wall_ms,
        row.lease,
        lease.parent.as_ref().map(SandboxId::as_str),
        lease.thread,
        lease.template_version,
        lease.build.as_ref().map(BuildId::as_str),
        started_ms(lease),
        lease.node.as_str(),
    ])?;
    volumes::mount(conn, lease)?;
    terminals::copy_to_fork(conn, lease)?;
    if let Some((key, request)) = &new.idempotency {
        conn.prepare_cached("INSERT OR REPLACE INTO idempotency VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(
            params![lease.tenant.as_str(), key, request, lease.id.as_str(), lease.created_at.wall_ms],
        )?;
    }
    let what = EventKind::Phase { from: None, to: lease.phase, reason: lease.reason.clone() };
    let event = NewEvent {
        at: lease.created_at.clone(),
        instance: lease.instance.clone(),
        what,
        by: lease.created_by_key.clone(),
    };
    events::append(conn, &lease.tenant, &lease.id, &event)?;
    Ok(Inserted::New)
}

/// A sort key of lists.
fn started_ms(lease: &Lease) -> i64 {
    lease.started_at.as_ref().unwrap_or(&lease.created_at).wall_ms
}

pub(crate) fn replay(
    conn: &Connection,
    tenant: &TenantId,
    key: &str,
    request: &[u8; 32],
) -> Result<Option<Lease>, StoreError> {
    let found = conn
        .prepare_cached(
            "SELECT i.request, l.lease FROM idempotency i JOIN sandbox_leases l ON l.id = i.sandbox
             WHERE i.tenant = ?1 AND i.key = ?2",
        )?
        .query_row(params![tenant.as_str(), key], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    match found {
        None => Ok(None),
        Some((seen, _)) if seen != request => Err(StoreError::IdempotencyMismatch),
        Some((_, lease)) => {
            let before: Lease = from_json("sandbox_leases", &lease)?;
            Ok((!was_refused(&before)).then_some(before))
        }
    }
}

/// A sandbox that was deleted before it ran made nothing that a repeated request could mean: it is made anew. The end of a wait
/// in the queue is a result.
fn was_refused(lease: &Lease) -> bool {
    lease.phase == Phase::Deleted && lease.started_at.is_none() && lease.queue.is_none()
}

/// The usage that a new sandbox adds to. A queued one waits until its tenant has room: it must only fit into an empty quota.
fn usage_before(conn: &Connection, lease: &Lease) -> Result<Usage, StoreError> {
    if lease.waits_for_place() {
        return Ok(Usage::default());
    }
    let waiting = waits_for_build_of(conn, lease)?;
    usage(conn, &lease.tenant, waiting.as_ref())
}

/// The sandbox that waits for the build whose step this sandbox runs. The step uses its slot: a sandbox that is built
/// first must fit into a quota of one sandbox.
fn waits_for_build_of(conn: &Connection, lease: &Lease) -> Result<Option<SandboxId>, StoreError> {
    let Some(build) = &lease.build else { return Ok(None) };
    let id: Option<String> = conn
        .prepare_cached(
            "SELECT id FROM sandbox_leases
             WHERE tenant = ?1 AND observed = 'creating' AND json_extract(lease, '$.image_build') = ?2",
        )?
        .query_row(params![lease.tenant.as_str(), build.as_str()], |row| row.get(0))
        .optional()?;
    Ok(id.and_then(|id| id.parse().ok()))
}

fn refuse_taken_name(conn: &Connection, lease: &Lease) -> Result<(), StoreError> {
    let Some(name) = &lease.name else { return Ok(()) };
    let by: Option<String> = conn
        .prepare_cached(
            "SELECT id FROM sandbox_leases WHERE tenant = ?1 AND name = ?2 AND observed <> 'deleted'",
        )?
        .query_row(params![lease.tenant.as_str(), name], |row| row.get(0))
        .optional()?;
    match by.and_then(|id| id.parse().ok()) {
        Some(by) => Err(StoreError::NameTaken { name: name.clone(), by }),
        None => Ok(()),
    }
}

/// An instance row with its token already sealed.
pub(crate) struct SealedInstance {
    instance: String,
    facts: String,
    token: Vec<u8>,
}

pub(crate) fn seal_instance(
    vault: &dyn Vault,
    change: &InstanceChange,
) -> Result<Option<SealedInstance>, StoreError> {
    let (InstanceChange::Put(row) | InstanceChange::Restored(row)) = change else { return Ok(None) };
    let token = vault.seal(row.instance.as_str(), &row.agent_token).ok_or_else(|| StoreError::BadRow {
        table: "sandbox_instances",
        cause: "the token could not be sealed".into(),
    })?;
    Ok(Some(SealedInstance { instance: row.instance.to_string(), facts: to_json(&row.facts)?, token }))
}

pub(crate) fn advance(
    conn: &Connection,
    change: &Advance,
    row: &Row,
    sealed: Option<SealedInstance>,
) -> Result<(), StoreError> {
    let lease = &change.lease;
    admit(conn, lease, change.admit)?;
    let changed = conn
        .prepare_cached(
            "UPDATE sandbox_leases SET desired = ?1, observed = ?2, holds_compute = ?3, cpu_milli = ?4,
               memory_mib = ?5, disk_mib = ?6, generation = ?7, due_at = ?8, phase_ms = ?9, lease = ?10,
               thread = ?11, started_ms = ?14, template = ?15, template_version = ?16,
               provider = ?18
             WHERE id = ?12 AND generation = ?13 AND node = ?17",
        )?
        .execute(params![
            row.desired,
            lease.phase.as_str(),
            lease.holds_compute(),
            lease.limits.cpu_milli,
            lease.limits.memory_mib,
            lease.limits.disk_mib,
            int(lease.generation),
            row.due_at,
            lease.phase_at.wall_ms,
            row.lease,
            lease.thread,
            lease.id.as_str(),
            int(lease.generation) - 1,
            started_ms(lease),
            lease.template,
            lease.template_version,
            lease.node.as_str(),
            lease.provider,
        ])?;
    if changed == 0 {
        return Err(StoreError::Stale { sandbox: lease.id.clone() });
    }
    change_instance(conn, lease, &change.instance, sealed)?;
    if lease.phase == Phase::Deleted {
        conn.prepare_cached("DELETE FROM lease_resource_snapshots WHERE sandbox = ?1")?
            .execute([lease.id.as_str()])?;
        volumes::unmount(conn, lease)?;
    }
    if lease.phase == Phase::Failed && lease.thread.is_none() {
        thread_bindings::release(conn, lease)?;
    }
    if lease.moving.as_ref().is_some_and(|moving| !moving.is_copying()) {
        thread_bindings::follow(conn, lease)?;
        if lease.mounts.is_empty() {
            volumes::unmount_all(conn, lease)?;
        }
    }
    for event in &change.events {
        events::append(conn, &lease.tenant, &lease.id, event)?;
    }
    Ok(())
}

fn change_instance(
    conn: &Connection,
    lease: &Lease,
    change: &InstanceChange,
    sealed: Option<SealedInstance>,
) -> Result<(), StoreError> {
    let sandbox = &lease.id;
    if let Some(sealed) = sealed {
        if matches!(change, InstanceChange::Restored(_)) {
            conn.prepare_cached("UPDATE abstract_terminals SET instance = ?2 WHERE sandbox = ?1")?
                .execute(params![sandbox.as_str(), sealed.instance])?;
        }
        conn.prepare_cached("INSERT OR REPLACE INTO sandbox_instances VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![
                sandbox.as_str(),
                sealed.instance,
                sealed.facts,
                sealed.token,
                lease.node.as_str()
            ])?;
    }
    if matches!(change, InstanceChange::Drop) {
        for sql in [
            "DELETE FROM sandbox_instances WHERE sandbox = ?1",
            "DELETE FROM abstract_terminals WHERE sandbox = ?1",
        ] {
            conn.prepare_cached(sql)?.execute([sandbox.as_str()])?;
        }
    }
    Ok(())
}

fn admit(conn: &Connection, lease: &Lease, admit: Admit) -> Result<(), StoreError> {
    if admit == Admit::Nothing {
        return Ok(());
    }
    let tenant = keys::tenant(conn, lease.tenant.as_str())?.ok_or(StoreError::NoTenant)?;
    let others = usage(conn, &lease.tenant, Some(&lease.id))?;
    let limits = if lease.holds_compute() {
        lease.limits
    } else {
        Limits { cpu_milli: 0, memory_mib: 0, ..lease.limits }
    };
    match admit {
        Admit::Nothing => {}
        Admit::Compute => quota::admit_compute(&tenant.quota, &others, &limits)?,
        Admit::Resize | Admit::Place => quota::admit_new(&tenant.quota, &others, &limits)?,
    }
    Ok(())
}

/// The usage of a tenant, optionally without one of its sandboxes.
pub(crate) fn usage(
    conn: &Connection,
    tenant: &TenantId,
    except: Option<&SandboxId>,
) -> Result<Usage, StoreError> {
    let usage = |row: &SqlRow<'_>| {
        Ok(Usage {
            sandboxes: row.get(0)?,
            cpu_milli: row.get::<_, i64>(1)?.unsigned_abs(),
            memory_mib: row.get::<_, i64>(2)?.unsigned_abs(),
            disk_mib: row.get::<_, i64>(3)?.unsigned_abs(),
            ..Usage::default()
        })
    };
    // A sandbox that is being created and holds no compute is queued: it counts as nothing.
    let sums =
        "count(*), coalesce(sum(cpu_milli * holds_compute), 0), coalesce(sum(memory_mib * holds_compute), 0),
         coalesce(sum(disk_mib), 0) FROM sandbox_leases AS own
         WHERE tenant = ?1 AND observed <> 'deleted' AND NOT (observed = 'creating' AND NOT holds_compute)";
    // A step of a build uses the slot of the sandbox that waits for the build.
    let has_slot = "own.build IS NOT NULL AND EXISTS (SELECT 1 FROM sandbox_leases WHERE tenant = ?1
         AND observed = 'creating' AND json_extract(lease, '$.image_build') = own.build)";
    let mut usage = match except {
        None => conn
            .prepare_cached(&format!("SELECT {sums} AND NOT ({has_slot})"))?
            .query_row([tenant.as_str()], usage)?,
        Some(id) => conn
            .prepare_cached(&format!(
                "SELECT {sums} AND id <> ?2 AND NOT ({has_slot} AND own.build IS NOT
                 (SELECT json_extract(lease, '$.image_build') FROM sandbox_leases WHERE id = ?2))"
            ))?
            .query_row([tenant.as_str(), id.as_str()], usage)?,
    };
    usage.disk_mib =
        usage.disk_mib.saturating_add(super::snapshots::held_bytes(conn, tenant)?.div_ceil(1 << 20));
    volumes::add_usage(conn, tenant, &mut usage)?;
    Ok(usage)
}

pub(crate) fn by_id(conn: &Connection, id: &SandboxId) -> Result<Option<Lease>, StoreError> {
    conn.prepare_cached("SELECT lease FROM sandbox_leases WHERE id = ?1")?
        .query_row([id.as_str()], |row| row.get::<_, String>(0))
        .optional()?
        .map(|text| from_json("sandbox_leases", &text))
        .transpose()
}

pub(crate) fn find(
    conn: &Connection,
    tenant: Option<&TenantId>,
    ident: &str,
) -> Result<Vec<Lease>, StoreError> {
    if let Ok(id) = ident.parse::<SandboxId>() {
        let found = by_id(conn, &id)?.filter(|lease| tenant.is_none_or(|tenant| lease.tenant == *tenant));
        return Ok(found.into_iter().collect());
    }
    let tenant = tenant.map(TenantId::as_str);
    let several = |sql: &str, word: &str| -> Result<Vec<Lease>, StoreError> {
        let mut statement = conn.prepare_cached(sql)?;
        let rows = statement.query_map(params![tenant, word], |row| row.get::<_, String>(0))?;
        rows.map(|text| from_json("sandbox_leases", &text?)).collect()
    };
    let named = several(
        "SELECT lease FROM sandbox_leases
         WHERE (?1 IS NULL OR tenant = ?1) AND name = ?2 AND observed <> 'deleted'
           AND build IS NULL ORDER BY n DESC LIMIT 2",
        ident,
    )?;
    if !named.is_empty() || !is_prefix(ident) {
        return Ok(named);
    }
    several(
        "SELECT lease FROM sandbox_leases
         WHERE (?1 IS NULL OR tenant = ?1) AND id >= ?2 AND id < ?2 || '{' AND observed <> 'deleted'
           AND build IS NULL ORDER BY id LIMIT 2",
        ident,
    )
}

/// LIMIT: at least three characters, so that a prefix is not a guess.
pub(super) fn is_prefix(ident: &str) -> bool {
    ident.len() >= 3 && ident.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

pub(crate) fn children(conn: &Connection, parent: &SandboxId) -> Result<Vec<SandboxId>, StoreError> {
    // LIMIT: as many as people can review.
    let mut statement = conn.prepare_cached(
        "SELECT id FROM sandbox_leases WHERE parent = ?1 AND observed <> 'deleted' AND build IS NULL
         ORDER BY n LIMIT 1000",
    )?;
    let rows = statement.query_map([parent.as_str()], |row| row.get::<_, String>(0))?;
    rows.map(|id| keys::parse_id("sandbox_leases", &id?)).collect()
}

pub(crate) fn of_thread(
    conn: &Connection,
    tenant: Option<&TenantId>,
    thread: &str,
) -> Result<Vec<Lease>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT lease FROM sandbox_leases
         WHERE thread = ?2 AND observed <> 'deleted' AND (?1 IS NULL OR tenant = ?1) ORDER BY n",
    )?;
    let rows =
        statement.query_map(params![tenant.map(TenantId::as_str), thread], |row| row.get::<_, String>(0))?;
    rows.map(|text| from_json("sandbox_leases", &text?)).collect()
}

/// Marks what `on_exit` concerns now. A sandbox that is being created or started may run before the server has ended.
pub(crate) fn begin_exits(conn: &Connection, node: &NodeName) -> Result<(), StoreError> {
    conn.execute(
        "UPDATE sandbox_leases SET exit_pending = 1 WHERE node = ?1 AND observed <> 'deleted' AND
           CASE json_extract(lease, '$.on_exit')
             WHEN 'destroy' THEN 1
             WHEN 'pause' THEN observed IN ('creating', 'starting', 'running', 'pausing', 'resuming')
             ELSE 0
           END",
        [node.as_str()],
    )?;
    Ok(())
}

pub(crate) fn pending_exits(conn: &Connection, node: &NodeName) -> Result<Vec<SandboxId>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT id FROM sandbox_leases WHERE exit_pending = 1 AND node = ?1 AND observed <> 'deleted' ORDER BY n",
    )?;
    let rows = statement.query_map([node.as_str()], |row| row.get::<_, String>(0))?;
    rows.map(|id| keys::parse_id("sandbox_leases", &id?)).collect()
}

pub(crate) fn end_exits(conn: &Connection, sandboxes: &[SandboxId]) -> Result<(), StoreError> {
    let mut statement = conn.prepare_cached("UPDATE sandbox_leases SET exit_pending = 0 WHERE id = ?1")?;
    for sandbox in sandboxes {
        statement.execute([sandbox.as_str()])?;
    }
    Ok(())
}

pub(crate) fn names(
    conn: &Connection,
    tenant: Option<&TenantId>,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT name FROM sandbox_leases
         WHERE (?1 IS NULL OR tenant = ?1) AND name IS NOT NULL AND observed <> 'deleted' ORDER BY n DESC LIMIT ?2",
    )?;
    let rows = statement.query_map(params![tenant.map(TenantId::as_str), limit], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn cursor(n: i64) -> String {
    format!("c{n:x}")
}

pub(super) fn parse_cursor(text: &str) -> Result<i64, StoreError> {
    text.strip_prefix('c').and_then(|hex| i64::from_str_radix(hex, 16).ok()).ok_or(StoreError::BadCursor)
}

pub(crate) fn live(
    conn: &Connection,
    vault: &dyn Vault,
    node: &NodeName,
) -> Result<Vec<(Lease, Option<InstanceRow>)>, StoreError> {
    let mut statement = conn.prepare(
        "SELECT l.lease, i.instance, i.facts, i.agent_token FROM sandbox_leases l
         LEFT JOIN sandbox_instances i ON i.sandbox = l.id
         WHERE l.observed <> 'deleted' AND l.node = ?1 ORDER BY l.n",
    )?;
    let mut rows = statement.query([node.as_str()])?;
    let mut live = Vec::new();
    while let Some(row) = rows.next()? {
        let lease = from_json("sandbox_leases", &row.get::<_, String>(0)?)?;
        live.push((lease, instance(row, vault)?));
    }
    Ok(live)
}

fn instance(row: &SqlRow<'_>, vault: &dyn Vault) -> Result<Option<InstanceRow>, StoreError> {
    let bad = |why: &str| StoreError::BadRow { table: "sandbox_instances", cause: why.into() };
    let Some(instance) = row.get::<_, Option<String>>(1)? else { return Ok(None) };
    let sealed: Vec<u8> = row.get(3)?;
    let agent_token = vault.unseal(&instance, &sealed).ok_or_else(|| {
        bad("the agent token does not open with secret.key: the key is not the one of this database")
    })?;
    Ok(Some(InstanceRow {
        instance: instance.parse().map_err(|_| bad("not an instance id"))?,
        facts: from_json("sandbox_instances", &row.get::<_, String>(2)?)?,
        agent_token,
    }))
}

pub(crate) fn due(
    conn: &Connection,
    node: &NodeName,
    now_ms: i64,
    limit: u32,
) -> Result<Vec<SandboxId>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT id FROM sandbox_leases WHERE node = ?1 AND due_at <= ?2 ORDER BY due_at LIMIT ?3",
    )?;
    let rows = statement.query_map(params![node.as_str(), now_ms, limit], |row| row.get::<_, String>(0))?;
    rows.map(|id| keys::parse_id("sandbox_leases", &id?)).collect()
}

pub(crate) fn template_users(conn: &Connection, template: &str, node: &NodeName) -> Result<u64, StoreError> {
    let users: i64 = conn
        .prepare_cached(
            "SELECT count(*) FROM sandbox_leases
             WHERE template = ?1 AND observed <> 'deleted' AND build IS NULL AND node = ?2",
        )?
        .query_row([template, node.as_str()], |row| row.get(0))?;
    Ok(users.unsigned_abs())
}

pub(crate) fn sweep(conn: &Connection, sweep: &Sweep) -> Result<(), StoreError> {
    conn.execute("DELETE FROM idempotency WHERE at_ms < ?1", [sweep.idempotency_before_ms])?;
    // LIMIT: a thousand at a time keep the writer responsive; the next sweep removes the rest.
    conn.execute(
        "DELETE FROM sandbox_leases WHERE n IN
           (SELECT n FROM sandbox_leases WHERE observed = 'deleted' AND phase_ms < ?1 LIMIT 1000)",
        [sweep.deleted_before_ms],
    )?;
    super::builds::sweep(conn, sweep.builds_before_ms)
}
