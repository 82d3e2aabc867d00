//! Sandboxes: create, get, list, update, start, stop, restart, delete.

use std::collections::BTreeMap;

use atoll_model::{CreateSandbox, Lease, LimitsAsk, UpdateSandbox};
use atoll_service::{Created, Filter};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::input::{Flag, Json, OptionalJson, Path, Query, present};
use crate::output::{Answer, ok, time};

mod words;

pub(crate) use words::{Intent, Network, OnTimeout, Phase, Reason, Stage, Storage};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, update, delete))
        .routes(routes!(start))
        .routes(routes!(stop))
        .routes(routes!(restart))
}

/// An isolated computer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Sandbox {
    #[schema(example = "k3v9x0qn2m7c1z8d5b4a", pattern = "^[a-z][a-z0-9]{19}$")]
    id: String,
    /// Unique among the tenant's sandboxes.
    name: Option<String>,
    /// The tenant's id.
    tenant: String,
    labels: BTreeMap<String, String>,
    /// Names of the environment's variables; values are never shown.
    env_names: Vec<String>,
    provider: String,
    template: String,
    template_version: String,
    /// Who commands run as unless they say otherwise.
    user: String,
    /// Where commands start unless they say otherwise.
    workdir: String,
    /// Run at every boot; its output is in the logs.
    command: Option<Vec<String>>,
    /// Cores.
    cpu: f64,
    memory_mib: u32,
    disk_mib: u32,
    /// Processes and threads.
    pids: u32,
    network: Network,
    storage: Storage,
    /// What is wanted.
    intent: Intent,
    /// What is.
    phase: Phase,
    /// How far a creation is; only while it is being created.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stage: Option<Stage>,
    /// Why it is in this phase.
    reason: Reason,
    /// Counts the changes.
    generation: u64,
    /// The incarnation that is, or is being made.
    instance: Option<String>,
    /// Absolute lifetime in seconds.
    timeout_s: Option<u64>,
    #[schema(format = DateTime)]
    timeout_at: Option<String>,
    on_timeout: OnTimeout,
    #[schema(format = DateTime)]
    created_at: String,
    /// When the phase last changed.
    #[schema(format = DateTime)]
    phase_at: String,
}

impl From<Lease> for Sandbox {
    fn from(lease: Lease) -> Self {
        let creating = lease.phase == atoll_model::Phase::Creating;
        Self {
            id: lease.id.into(),
            name: lease.name,
            tenant: lease.tenant.into(),
            labels: lease.labels,
            env_names: lease.env.into_keys().collect(),
            provider: lease.provider,
            template: lease.template,
            template_version: lease.template_version,
            user: lease.user,
            workdir: lease.workdir,
            command: lease.command,
            cpu: f64::from(lease.limits.cpu_milli) / 1_000.0,
            memory_mib: lease.limits.memory_mib,
            disk_mib: lease.limits.disk_mib,
            pids: lease.limits.pids,
            network: lease.network.into(),
            storage: lease.storage.into(),
            intent: lease.intent.into(),
            phase: lease.phase.into(),
            stage: creating.then(|| lease.stage.into()),
            reason: lease.reason.into(),
            generation: lease.generation,
            instance: lease.instance.map(Into::into),
            timeout_s: lease.timeout_s,
            timeout_at: lease.timeout_at.map(|at| time(at.wall_ms)),
            on_timeout: lease.on_timeout.into(),
            created_at: time(lease.created_at.wall_ms),
            phase_at: time(lease.phase_at.wall_ms),
        }
    }
}

/// What to make. Everything has a default.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CreateBody {
    /// Name or alias; the server's default template where absent.
    #[schema(example = "debian")]
    template: Option<String>,
    /// Unique within the tenant: letters, digits, `-`, `_`, `.`.
    name: Option<String>,
    labels: BTreeMap<String, String>,
    /// Environment of every command.
    env: BTreeMap<String, String>,
    /// Cores, fractions allowed.
    #[schema(example = 1.0)]
    cpu: Option<f64>,
    #[schema(example = 512)]
    memory_mib: Option<i64>,
    #[schema(example = 2048)]
    disk_mib: Option<i64>,
    /// Processes and threads.
    pids: Option<i64>,
    network: Option<Network>,
    storage: Option<Storage>,
    /// Default user of commands.
    user: Option<String>,
    /// Started at every boot; its output is in the logs.
    command: Option<Vec<String>>,
    /// Absolute lifetime in seconds.
    #[schema(example = 3600)]
    timeout_s: Option<u64>,
    on_timeout: Option<OnTimeout>,
}

impl CreateBody {
    fn into_spec(self, idempotency_key: Option<String>) -> CreateSandbox {
        CreateSandbox {
            template: self.template,
            name: self.name,
            labels: self.labels,
            env: self.env,
            limits: LimitsAsk {
                cpu: self.cpu,
                memory_mib: self.memory_mib,
                disk_mib: self.disk_mib,
                pids: self.pids,
            },
            network: self.network.map(Into::into).unwrap_or_default(),
            storage: self.storage.map(Into::into).unwrap_or_default(),
            user: self.user,
            command: self.command,
            timeout_s: self.timeout_s,
            on_timeout: self.on_timeout.map(Into::into).unwrap_or_default(),
            idempotency_key,
        }
    }
}

/// What to change; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpdateBody {
    /// Replaces all labels.
    labels: Option<BTreeMap<String, String>>,
    cpu: Option<f64>,
    memory_mib: Option<i64>,
    disk_mib: Option<i64>,
    pids: Option<i64>,
    network: Option<Network>,
    /// A new lifetime from now on; null removes it.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    timeout_s: Option<Option<u64>>,
}

impl From<UpdateBody> for UpdateSandbox {
    fn from(body: UpdateBody) -> Self {
        Self {
            labels: body.labels,
            limits: LimitsAsk {
                cpu: body.cpu,
                memory_mib: body.memory_mib,
                disk_mib: body.disk_mib,
                pids: body.pids,
            },
            network: body.network.map(Into::into),
            timeout_s: body.timeout_s,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// `0` answers at once, before the work is done. Default `1`.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    wait: Option<Flag>,
}

impl WaitQuery {
    fn wait(&self) -> bool {
        self.wait.is_none_or(|flag| flag.0)
    }
}

/// Which sandboxes to list. Kept as pairs because `label` and `phase` may be repeated.
#[derive(Debug, Default, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "documents the query; `filter` reads the pairs")]
pub(crate) struct ListQuery {
    /// Any of these phases, separated by commas; without it all that are not deleted.
    #[param(example = "running,stopped")]
    phase: Option<String>,
    /// `key=value`; all that are given must match.
    label: Option<Vec<String>>,
    /// Exactly this name.
    name: Option<String>,
    /// Exactly this template.
    template: Option<String>,
    /// Name or id of a tenant; another than one's own needs an admin key.
    tenant: Option<String>,
    /// `1`: records of deleted ones too.
    #[param(pattern = "^(0|1|true|false)$")]
    all: Option<String>,
    /// At most this many.
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

fn filter(pairs: Vec<(String, String)>) -> Result<Filter, ApiError> {
    let mut filter = Filter::default();
    for (key, value) in pairs {
        match key.as_str() {
            "phase" => {
                for word in value.split(',').filter(|word| !word.is_empty()) {
                    filter.phases.push(Phase::parse(word)?);
                }
            }
            "label" => {
                let (key, value) = value
                    .split_once('=')
                    .ok_or_else(|| ApiError::invalid(format!("label must be key=value, not {value:?}")))?;
                filter.labels.push((key.to_owned(), value.to_owned()));
            }
            "name" => filter.name = Some(value),
            "template" => filter.template = Some(value),
            "tenant" => filter.tenant = Some(value),
            "cursor" => filter.cursor = Some(value),
            "all" => match value.as_str() {
                "1" | "true" => filter.include_deleted = true,
                "0" | "false" => filter.include_deleted = false,
                _ => return Err(ApiError::invalid(format!("all must be 1 or 0, not {value:?}"))),
            },
            "limit" => {
                let number = value.parse::<u32>().ok().filter(|n| *n > 0);
                filter.limit = number.ok_or_else(|| {
                    ApiError::invalid(format!("limit must be a positive number, not {value:?}"))
                })?;
            }
            other => return Err(ApiError::invalid(format!("unknown query parameter {other:?}"))),
        }
    }
    Ok(filter)
}

/// One page of sandboxes, newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SandboxPage {
    items: Vec<Sandbox>,
    /// Hand it in as `cursor` for the next page; null: that was all.
    next_cursor: Option<String>,
}

/// Creates a sandbox and answers when it runs.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes",
    params(WaitQuery, ("Idempotency-Key" = Option<String>, Header,
        description = "A repeated create with the same key answers the sandbox made first.")),
    request_body(content = CreateBody),
    responses((status = 201, body = Sandbox, description = "Made"),
        (status = 200, body = Sandbox, description = "Made before with this idempotency key"),
        (status = 202, body = Sandbox, description = "Being made (`wait=0`)")))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<WaitQuery>,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<CreateBody>,
) -> Result<Response, ApiError> {
    let spec = body.into_spec(idempotency_key(&headers)?);
    let (lease, created) = app.service.create(&who, spec, query.wait()).await?;
    let status = match created {
        Created::Replayed => StatusCode::OK,
        Created::New if query.wait() => StatusCode::CREATED,
        Created::New => StatusCode::ACCEPTED,
    };
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{}", lease.id));
    let mut response = Answer(status, Sandbox::from(lease)).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().map_err(|_| ApiError::invalid("Idempotency-Key must be printable ASCII"))?;
    Ok(Some(text.to_owned()))
}

/// Lists sandboxes, newest first.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, body = SandboxPage)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Result<Answer<SandboxPage>, ApiError> {
    let page = app.service.list(&who, filter(pairs)?).await?;
    let items = page.items.into_iter().map(Sandbox::from).collect();
    Ok(ok(SandboxPage { items, next_cursor: page.next_cursor }))
}

/// Shows a sandbox, also one that was deleted a while ago.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<Answer<Sandbox>, ApiError> {
    Ok(ok(app.service.get(&who, &ident).await?.into()))
}

/// Changes labels, limits, network policy or timeout, also while it runs.
#[utoipa::path(patch, path = "/v1/sandboxes/{ident}", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = UpdateBody, responses((status = 200, body = Sandbox)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Json(body): Json<UpdateBody>,
) -> Result<Answer<Sandbox>, ApiError> {
    Ok(ok(app.service.update(&who, &ident, body.into()).await?.into()))
}

/// Deletes a sandbox and everything of it. Repeating it is fine.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<Sandbox>, ApiError> {
    Ok(ok(app.service.delete(&who, &ident, query.wait()).await?.into()))
}

/// Boots a stopped sandbox on its files.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/start", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn start(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<Sandbox>, ApiError> {
    Ok(ok(app.service.start(&who, &ident, query.wait()).await?.into()))
}

/// Ends the processes of a sandbox and keeps its files.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/stop", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn stop(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<Sandbox>, ApiError> {
    Ok(ok(app.service.stop(&who, &ident, query.wait()).await?.into()))
}

/// Stops and starts.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/restart", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn restart(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<Sandbox>, ApiError> {
    Ok(ok(app.service.restart(&who, &ident, query.wait()).await?.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::input::parse_json;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_filter_takes_repeated_labels_and_several_phases() {
        let wanted = [
            ("phase", "running,stopped"),
            ("label", "a=1"),
            ("label", "b=x=y"),
            ("all", "1"),
            ("limit", "5"),
        ];
        let filter = filter(pairs(&wanted)).unwrap();
        assert_eq!(filter.phases, [atoll_model::Phase::Running, atoll_model::Phase::Stopped]);
        assert_eq!(filter.labels, pairs(&[("a", "1"), ("b", "x=y")]));
        assert!(filter.include_deleted && filter.limit == 5);
    }

    #[test]
    fn a_filter_that_makes_no_sense_is_refused_by_name() {
        for (key, value) in
            [("phase", "sleeping"), ("label", "novalue"), ("all", "maybe"), ("limit", "0"), ("colour", "red")]
        {
            let error = filter(pairs(&[(key, value)])).unwrap_err();
            assert!(error.message.contains(key), "{error:?}");
        }
    }

    #[test]
    fn a_timeout_of_null_is_told_from_none() {
        let change = |text: &str| UpdateSandbox::from(parse_json::<UpdateBody>(text.as_bytes()).unwrap());
        assert_eq!(change("{}").timeout_s, None);
        assert_eq!(change("{\"timeout_s\":null}").timeout_s, Some(None));
        assert_eq!(change("{\"timeout_s\":9}").timeout_s, Some(Some(9)));
    }

    #[test]
    fn numbers_that_fit_nowhere_name_their_field() {
        let error = parse_json::<CreateBody>(b"{\"memory_mib\":1e300}").unwrap_err();
        assert!(error.message.starts_with("memory_mib"), "{error:?}");
        let error = parse_json::<CreateBody>(b"{\"labels\":{\"a\":1}}").unwrap_err();
        assert!(error.message.starts_with("labels.a"), "{error:?}");
    }
}
