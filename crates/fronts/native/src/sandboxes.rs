//! Sandboxes: create, get, list, update, delete. Changes of the phase are in [`life`], holds and timeouts in [`awake`],
//! copies in [`fork`], moves to another provider in [`moving`].

use atoll_client::flag::Flag;
use atoll_client::sandbox_requests::{CreateBody, UpdateBody};
use atoll_client::sandboxes::{DeleteQuery, ListQuery, Sandbox, SandboxPage, WaitQuery};
use atoll_front_kit::{ApiError, Caller, JsonResponse, OptionalStrictJson, Path, Query, StrictJson, ok};
use atoll_model::Phase;
use atoll_service::{CreateWait, Created, Filter};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

mod awake;
mod fork;
mod life;
mod moving;
mod request;
mod response;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, update, delete))
        .merge(life::routes())
        .merge(awake::routes())
        .merge(fork::routes())
        .merge(moving::routes())
}

fn filter(pairs: Vec<(String, String)>) -> Result<Filter, ApiError> {
    let mut filter = Filter::default();
    for (key, value) in pairs {
        match key.as_str() {
            "phase" => {
                for word in value.split(',').filter(|word| !word.is_empty()) {
                    filter.phases.push(phase(word)?);
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

/// A phase as a filter writes it.
fn phase(word: &str) -> Result<Phase, ApiError> {
    Phase::ALL.into_iter().find(|phase| phase.as_str() == word).ok_or_else(|| {
        let all: Vec<_> = Phase::ALL.iter().map(|phase| phase.as_str()).collect();
        ApiError::invalid(format!("phase {word:?} is not one of {}", all.join(", ")))
    })
}

/// Creates a sandbox and returns when it runs.
///
/// With `queue` a create on a full server waits for a place; `wait=0` returns its place in the queue. A create that gets
/// none in time is answered with `queue_timed_out`.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes",
    params(WaitQuery, ("Idempotency-Key" = Option<String>, Header,
        description = "A repeated create with the same key returns the sandbox that was created first.")),
    request_body(content = CreateBody),
    responses((status = 201, body = Sandbox, description = "Made"),
        (status = 200, body = Sandbox, description = "Created before with this idempotency key, or for this thread"),
        (status = 202, body = Sandbox, description = "Being created (`wait=0`)")))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<WaitQuery>,
    headers: HeaderMap,
    OptionalStrictJson(body): OptionalStrictJson<CreateBody>,
) -> Result<Response, ApiError> {
    let spec = request::spec(body, idempotency_key(&headers)?)?;
    // Who says whether to wait knows that a create may take a while.
    let wait = CreateWait { until_made: query.wait(), for_template: query.wait.is_some() };
    let (lease, created) = app.service.sandboxes().create(&who, spec, wait).await?;
    let status = match created {
        Created::Replayed | Created::Bound => StatusCode::OK,
        Created::New if query.wait() => StatusCode::CREATED,
        Created::New => StatusCode::ACCEPTED,
    };
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{}", lease.id));
    let mut response = JsonResponse(status, Sandbox::from_core(lease)).into_response();
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
) -> Result<JsonResponse<SandboxPage>, ApiError> {
    let page = app.service.sandboxes().list(&who, filter(pairs)?).await?;
    let items = page.items.into_iter().map(Sandbox::from_core).collect();
    Ok(ok(SandboxPage { items, next_cursor: page.next_cursor }))
}

/// Returns a sandbox, also a recently deleted one. Never wakes it.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    let lease = app.service.sandboxes().get(&who, &ident).await?;
    // By id: a name may have passed to another since. One that went meanwhile is shown as it was.
    let awake = app.service.sandboxes().awake(&who, lease.id.as_str()).await.ok();
    let narrowed_by = app.service.sandboxes().narrowed_by(&lease);
    Ok(ok(response::detailed(lease, awake.map(IntoApi::into_api), &narrowed_by)))
}

/// Changes labels, limits, network policy, timeout or timers of a sandbox, also while it runs.
#[utoipa::path(patch, path = "/v1/sandboxes/{ident}", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = UpdateBody, responses((status = 200, body = Sandbox)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<UpdateBody>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().update(&who, &ident, body.into()).await?.into_api()))
}

/// Deletes a sandbox with all its data except its snapshots, which are kept unless `snapshots=1`. Can be repeated safely.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), DeleteQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    let wait = query.wait.is_none_or(|flag| flag.0);
    let sandboxes = app.service.sandboxes();
    let deleted = match query.snapshots {
        Some(Flag(true)) => sandboxes.delete_with_snapshots(&who, &ident, wait).await?,
        Some(Flag(false)) | None => sandboxes.delete(&who, &ident, wait).await?,
    };
    Ok(ok(deleted.into_api()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
}
