//! Templates: list, show, make, change, tag, remove, collect. What goes over a wire is in [`transfer`].

use std::ops::ControlFlow;

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, StrictJson, ok};
use atoll_service::MakeProgress;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::{sse, working};

mod response;
mod start;
mod transfer;

pub(crate) use response::Template;
pub(crate) use start::{Ready, Start};
pub(crate) use transfer::{RegistryAuth, reference};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, update, remove))
        .routes(routes!(make))
        .routes(routes!(tag, untag))
        .routes(routes!(collect))
        .merge(transfer::routes())
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TemplateList {
    items: Vec<Template>,
}

/// Lists templates: those built in, those of one's tenant, and those that are public.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", responses((status = 200, body = TemplateList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<TemplateList>, ApiError> {
    let templates = app.service.list_templates(&who).await?;
    Ok(ok(TemplateList { items: templates.into_iter().map(Template::from).collect() }))
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
    Ok(ok(app.service.get_template(&who, &name).await?.into()))
}

/// What to change; what is absent stays. It holds for sandboxes that are made from now on, whatever its tags point to.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpdateTemplateBody {
    /// Who commands run as.
    user: Option<String>,
    /// Where commands start.
    workdir: Option<String>,
    /// Added to what it has.
    env: std::collections::BTreeMap<String, String>,
    /// Started at every boot.
    command: Option<Vec<String>>,
    /// When that is ready.
    ready: Option<Ready>,
    /// The port of previews that name none.
    port: Option<u16>,
    /// Cores of sandboxes that ask for none.
    cpu: Option<f64>,
    /// Memory of sandboxes that ask for none.
    memory_mib: Option<i64>,
    /// Disk of sandboxes that ask for none.
    disk_mib: Option<i64>,
    /// Processes and threads of sandboxes that ask for none.
    pids: Option<i64>,
    /// How many instances wait ready for the next create.
    pool: Option<u32>,
    /// Forget earlier changes first: what its versions say holds again.
    reset: bool,
    /// Replaces all its aliases.
    aliases: Option<Vec<String>>,
    /// Whether other tenants may start from it. Needs an admin key.
    public: Option<bool>,
}

impl From<UpdateTemplateBody> for atoll_service::UpdateTemplate {
    fn from(body: UpdateTemplateBody) -> Self {
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
        Self {
            settings: changes.then_some(settings),
            reset: body.reset,
            name: None,
            aliases: body.aliases,
            public: body.public,
        }
    }
}

/// Changes what sandboxes of a template start with, its aliases, or who sees it.
#[utoipa::path(patch, path = "/v1/templates/{name}", tag = "templates", params(("name" = String, Path)),
    request_body = UpdateTemplateBody, responses((status = 200, body = Template)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<UpdateTemplateBody>,
) -> Result<JsonResponse<Template>, ApiError> {
    Ok(ok(app.service.update_template(&who, &name, body.into()).await?.into()))
}

/// Removes a template that no sandbox uses, or one of its tags (`name:tag`). One that is built in needs an admin key.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates", params(("name" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.remove_template(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes one of the built-in templates. Needs an admin key.
///
/// Events: `step {message}` as it goes, and last `done` with the template or `error {code, message}`. Closing the stream
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
        match ear.try_send(sse::event("step", &working::Step { message: message.to_owned() })) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => ControlFlow::Continue(()),
            Err(mpsc::error::TrySendError::Closed(_)) => ControlFlow::Break(()),
        }
    });
    let service = app.service.clone();
    let work = async move { service.make_template(&who, &name, progress).await.map(Template::from) };
    working::respond(&app, work, steps).await
}

/// More names for a version.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TagsBody {
    /// Tags of its name.
    #[schema(example = json!(["stable"]))]
    tags: Vec<String>,
}

/// Lets tags point to what `name`, `name:tag` or `name@sha256:…` is now.
#[utoipa::path(post, path = "/v1/templates/{name}/tags", tag = "templates", params(("name" = String, Path)),
    request_body = TagsBody, responses((status = 200, body = Template)))]
pub(crate) async fn tag(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<TagsBody>,
) -> Result<JsonResponse<Template>, ApiError> {
    Ok(ok(app.service.tag_template(&who, &name, &body.tags).await?.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UntagQuery {
    /// Which, separated by commas.
    tags: String,
}

/// Takes tags of a name away. Sandboxes that were made from what they pointed to stay as they are.
#[utoipa::path(delete, path = "/v1/templates/{name}/tags", tag = "templates",
    params(("name" = String, Path), UntagQuery), responses((status = 204, description = "Gone")))]
pub(crate) async fn untag(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Query(query): Query<UntagQuery>,
) -> Result<StatusCode, ApiError> {
    let tags: Vec<String> = query.tags.split(',').map(str::to_owned).collect();
    app.service.untag_template(&who, &name, &tags).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a collection removed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Collected {
    versions: u64,
    layers: u64,
    blobs: u64,
    /// Free again, about.
    bytes: u64,
}

/// Removes what no template, sandbox, snapshot or recent build needs any more. Needs an admin key.
#[utoipa::path(post, path = "/v1/templates/gc", tag = "templates", responses((status = 200, body = Collected)))]
pub(crate) async fn collect(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<Collected>, ApiError> {
    let atoll_service::Collected { versions, layers, blobs, bytes } =
        app.service.collect_templates(&who).await?;
    Ok(ok(Collected { versions, layers, blobs, bytes }))
}
