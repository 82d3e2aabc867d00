//! Templates: list, describe, change their visibility, and remove them.

use atoll_front_kit::paging::page_after;
use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, Query, ok, rfc3339};
use atoll_model::{Build, Code, Limits, Principal, TemplateRef};
use atoll_service::{ENVD_VERSION, TemplateRecord, UpdateTemplate};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::builds::{self, Makers};
use super::names;
use super::request::ChangeBody;
use crate::E2bApp;
use crate::sandboxes::paged;

/// LIMIT: that of E2B, for a page.
const PAGE_MAX: usize = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PageQuery {
    limit: Option<usize>,
    next_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TemplateResponse {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u32,
    public: bool,
    aliases: Vec<String>,
    names: Vec<String>,
    created_at: String,
    updated_at: String,
    created_by: Option<()>,
    last_spawned_at: Option<()>,
    spawn_count: u32,
    build_count: u32,
    envd_version: &'static str,
    build_status: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct WithBuilds {
    #[serde(flatten)]
    template: TemplateResponse,
    builds: Vec<MadeBy>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MadeBy {
    #[serde(rename = "buildID")]
    build_id: String,
    status: &'static str,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    envd_version: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Alias {
    #[serde(rename = "templateID")]
    template_id: String,
    public: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Names {
    names: Vec<String>,
}

/// The caller's own templates, as in E2B's API.
pub(super) async fn list(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Query(page): Query<PageQuery>,
) -> Result<Response, ApiError> {
    let builds = builds::newest(&app, &who, None).await?;
    let all = app.service.templates().list(&who).await?;
    let own = all.into_iter().filter(|record| record.tenant.as_ref() == Some(&who.tenant));
    let shown = own.map(|record| template(&app, &record, &builds)).collect();
    cut(shown, &page, |template| template.template_id.clone())
}

/// The templates of the server.
pub(super) async fn defaults(
    State(app): State<E2bApp>,
    Caller(who): Caller,
) -> Result<JsonResponse<Vec<TemplateResponse>>, ApiError> {
    let all = app.service.templates().list(&who).await?;
    let built_in = all.iter().filter(|record| record.tenant.is_none());
    Ok(ok(built_in.map(|record| template(&app, record, &[])).collect()))
}

pub(super) async fn show(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Response, ApiError> {
    let record = find(&app, &who, &id).await?;
    let builds = builds::newest(&app, &who, Some(&record.name)).await?;
    let template = template(&app, &record, &builds);
    let made_by = builds.iter().map(|build| MadeBy {
        build_id: names::uuid(&build.id),
        status: builds::status(&app, build),
        created_at: rfc3339(build.created_at.wall_ms),
        updated_at: rfc3339(build.ended_at.as_ref().unwrap_or(&build.created_at).wall_ms),
        finished_at: build.ended_at.as_ref().map(|at| rfc3339(at.wall_ms)),
        cpu_count: template.cpu_count,
        memory_mb: template.memory_mb,
        envd_version: ENVD_VERSION,
    });
    let (builds, next) = page_of(made_by.collect(), &page, |build| build.build_id.clone());
    let mut response = ok(WithBuilds { template, builds }).into_response();
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

pub(super) async fn alias(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(alias): Path<String>,
) -> Result<JsonResponse<Alias>, ApiError> {
    let record = find(&app, &who, &alias).await?;
    if record.tenant.as_ref().is_some_and(|tenant| *tenant != who.tenant) {
        return Err(ApiError::new(
            Code::Forbidden,
            format!("template {} belongs to another tenant", record.name),
        ));
    }
    Ok(ok(Alias { template_id: record.name, public: record.public || record.tenant.is_none() }))
}

pub(super) async fn change_v1(
    state: State<E2bApp>,
    caller: Caller,
    path: Path<String>,
    body: Json<ChangeBody>,
) -> Result<StatusCode, ApiError> {
    change_v2(state, caller, path, body).await.map(|_| StatusCode::OK)
}

pub(super) async fn change_v2(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<ChangeBody>,
) -> Result<JsonResponse<Names>, ApiError> {
    let record = find(&app, &who, &id).await?;
    if let Some(public) = body.public {
        let change = UpdateTemplate { public: Some(public), ..UpdateTemplate::default() };
        app.service.templates().update(&who, &record.name, change).await?;
    }
    Ok(ok(Names { names: vec![record.name] }))
}

/// Removes a template or a snapshot, which is a template in E2B's API.
pub(super) async fn remove(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let word = names::word(&app, &who, &id).await?;
    let name = names::parse("templateID", &word).map_or_else(|_| word.clone(), |reference| reference.name);
    let all = app.service.templates().list(&who).await?;
    let is_own =
        |record: &&TemplateRecord| record.tenant.as_ref() == Some(&who.tenant) && record.name == name;
    if let Some(record) = all.iter().find(is_own) {
        match app.service.templates().remove(&who, &word).await {
            // COMPAT(e2b): sandboxes of the template continue; its names are removed, and its files with the last
            // sandbox.
            Err(error) if error.code == Code::TemplateInUse => {
                app.service.templates().untag(&who, &name, &record.tags).await?;
            }
            removed => removed?,
        }
        return Ok(StatusCode::NO_CONTENT);
    }
    // Names of snapshots have a namespace before them in E2B's API.
    let plain = name.rsplit_once('/').map_or(name.as_str(), |(_, name)| name);
    app.service.sandboxes().delete_snapshot(&who, plain).await.map_err(|error| match error.code {
        Code::SnapshotNotFound => {
            ApiError::new(Code::TemplateNotFound, format!("template {name} was not found"))
        }
        _ => error.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

/// A template by its id. One without the tag `default` is found by any of its tags.
pub(super) async fn find(app: &E2bApp, who: &Principal, id: &str) -> Result<TemplateRecord, ApiError> {
    let word = names::word(app, who, id).await?;
    let missing = match app.service.templates().get(who, &word).await {
        Ok(record) => return Ok(record),
        Err(error) if error.code == Code::TemplateNotFound => error,
        Err(error) => return Err(error.into()),
    };
    let Ok(TemplateRef { name, tag: None, digest: None }) = word.parse() else { return Err(missing.into()) };
    let all = app.service.templates().list(who).await?;
    let named = |record: &TemplateRecord| record.name == name || record.aliases.contains(&name);
    all.into_iter().find(named).ok_or_else(|| missing.into())
}

fn template(app: &E2bApp, record: &TemplateRecord, builds: &[Build]) -> TemplateResponse {
    let own: Vec<Build> = builds.iter().filter(|build| build.template.name == record.name).cloned().collect();
    let limits = record.settings.limits.resolve(Limits::default()).unwrap_or_default();
    let at_ms =
        own.first().and_then(|build| build.ended_at.as_ref()).map_or(record.created_at_ms, |at| at.wall_ms);
    let mut aliases = vec![record.name.clone()];
    aliases.extend(record.aliases.iter().cloned());
    TemplateResponse {
        template_id: record.name.clone(),
        build_id: Makers::of(&own).uuid(&record.version),
        cpu_count: limits.cpu_milli.div_ceil(1_000).max(1),
        memory_mb: limits.memory_mib,
        disk_size_mb: limits.disk_mib,
        public: record.public || record.tenant.is_none(),
        names: aliases.clone(),
        aliases,
        created_at: rfc3339(record.created_at_ms),
        updated_at: rfc3339(at_ms.max(record.created_at_ms)),
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: u32::try_from(own.len()).unwrap_or(u32::MAX).max(1),
        envd_version: ENVD_VERSION,
        build_status: own.first().map_or("ready", |build| builds::status(app, build)),
    }
}

fn cut<T: Serialize>(all: Vec<T>, page: &PageQuery, id: impl Fn(&T) -> String) -> Result<Response, ApiError> {
    let (items, next) = page_of(all, page, id);
    Ok(paged(items, next))
}

/// The entries after the last one of the previous page.
fn page_of<T>(mut all: Vec<T>, page: &PageQuery, id: impl Fn(&T) -> String) -> (Vec<T>, Option<String>) {
    if let Some(after) = page.next_token.as_deref().filter(|token| !token.is_empty()) {
        let at = all.iter().position(|item| id(item) == after).map_or(all.len(), |at| at + 1);
        all.drain(..at);
    }
    let limit = page.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
    page_after(all, limit, id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other() {
        let all = || vec!["a", "b", "c"];
        let page = |limit, token: Option<&str>| {
            let query = PageQuery { limit: Some(limit), next_token: token.map(str::to_owned) };
            page_of(all(), &query, |item| (*item).to_owned())
        };
        assert_eq!(page(2, None), (vec!["a", "b"], Some("b".to_owned())));
        assert_eq!(page(2, Some("b")), (vec!["c"], None));
        assert_eq!(page(3, None), (all(), None));
        assert_eq!(page(3, Some("gone")), (Vec::new(), None));
    }
}
