//! Templates: list, show, make, change, tag, remove, collect. Transfers are in [`transfer`].

use std::ops::ControlFlow;

use atoll_client::start::Start;
use atoll_client::templates::{
    Collected, ProgressStep, TagsBody, Template, TemplateList, UntagQuery, UpdateTemplateBody,
};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, StrictJson, ok};
use atoll_service::MakeProgress;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};
use crate::{sse, working};

mod response;
mod transfer;

pub(crate) use transfer::reference;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, update, remove))
        .routes(routes!(make))
        .routes(routes!(tag, untag))
        .routes(routes!(collect))
        .merge(transfer::routes())
}

/// Lists templates: built-in ones, those of your tenant, and public ones.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", responses((status = 200, body = TemplateList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<TemplateList>, ApiError> {
    let templates = app.service.templates().list(&who).await?;
    Ok(ok(TemplateList { items: templates.into_iter().map(Template::from_core).collect() }))
}

/// Shows a template.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates",
    params(("name" = String, Path, description = "`name`, `name:tag`, `name@sha256:…` or an alias; `/` as `%2F`")),
    responses((status = 200, body = Template)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<Template>, ApiError> {
    Ok(ok(app.service.templates().get(&who, &name).await?.into_api()))
}

fn changes(body: UpdateTemplateBody) -> atoll_service::UpdateTemplate {
    let start = Start {
        user: body.user,
        workdir: body.workdir,
        env: body.env,
        command: body.command,
        ready: body.ready,
        port: body.port,
        cpu: body.cpu,
        memory_mib: body.memory_mib,
        disk_mib: body.disk_mib,
        pids: body.pids,
        pool: body.pool,
    };
    let settings = atoll_model::StartSettings::from(start);
    let changes = settings != atoll_model::StartSettings::default();
    atoll_service::UpdateTemplate {
        settings: changes.then_some(settings),
        reset: body.reset,
        name: None,
        aliases: body.aliases,
        public: body.public,
    }
}

/// Changes the start settings of a template, its aliases, or its visibility.
#[utoipa::path(patch, path = "/v1/templates/{name}", tag = "templates", params(("name" = String, Path)),
    request_body = UpdateTemplateBody, responses((status = 200, body = Template)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<UpdateTemplateBody>,
) -> Result<JsonResponse<Template>, ApiError> {
    Ok(ok(app.service.templates().update(&who, &name, changes(body)).await?.into_api()))
}

/// Removes a template that no sandbox uses, or one of its tags (`name:tag`). A built-in template needs an admin
/// key.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates", params(("name" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.templates().remove(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes one of the built-in templates. Needs an admin key.
///
/// Events: `step {message}`, and at the end `done` with the template or `error {code, message}`. Closing the stream
/// cancels the work.
#[utoipa::path(post, path = "/v1/templates/{name}/make", tag = "templates", params(("name" = String, Path)),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn make(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let (ear, steps) = working::steps();
    let progress: MakeProgress = Box::new(move |message| {
        match ear.try_send(sse::event("step", &ProgressStep { message: message.to_owned() })) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => ControlFlow::Continue(()),
            Err(mpsc::error::TrySendError::Closed(_)) => ControlFlow::Break(()),
        }
    });
    let service = app.service.clone();
    let work = async move { service.templates().make(&who, &name, progress).await.map(Template::from_core) };
    working::respond(&app, work, steps).await
}

/// Makes tags point to the version of `name`, `name:tag` or `name@sha256:…`.
#[utoipa::path(post, path = "/v1/templates/{name}/tags", tag = "templates", params(("name" = String, Path)),
    request_body = TagsBody, responses((status = 200, body = Template)))]
pub(crate) async fn tag(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<TagsBody>,
) -> Result<JsonResponse<Template>, ApiError> {
    Ok(ok(app.service.templates().tag(&who, &name, &body.tags).await?.into_api()))
}

/// Removes tags of a name. Existing sandboxes do not change.
#[utoipa::path(delete, path = "/v1/templates/{name}/tags", tag = "templates",
    params(("name" = String, Path), UntagQuery), responses((status = 204, description = "Gone")))]
pub(crate) async fn untag(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Query(query): Query<UntagQuery>,
) -> Result<StatusCode, ApiError> {
    let tags: Vec<String> = query.tags.split(',').map(str::to_owned).collect();
    app.service.templates().untag(&who, &name, &tags).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes files that no template, sandbox, snapshot or recent build uses. Needs an admin key.
#[utoipa::path(post, path = "/v1/templates/gc", tag = "templates", responses((status = 200, body = Collected)))]
pub(crate) async fn collect(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<Collected>, ApiError> {
    let atoll_service::Collected { versions, layers, blobs, bytes, cached_bytes, recent } =
        app.service.templates().collect(&who).await?;
    Ok(ok(Collected { versions, layers, blobs, bytes, cached_bytes, recent }))
}
