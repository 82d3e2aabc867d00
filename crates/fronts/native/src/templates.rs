//! Templates: list, show, make (with progress), remove.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use atoll_service::{MakeProgress, TemplateRecord};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::response::sse::Event;
use futures::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::exec::Broken;
use crate::input::Path;
use crate::output::{Answer, ok, time};
use crate::sse;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, remove)).routes(routes!(make))
}

/// What a sandbox starts from.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Template {
    name: String,
    /// Names its exact content.
    version: String,
    /// Other names it answers to.
    aliases: Vec<String>,
    /// `host` or `rootfs`.
    kind: String,
    user: String,
    workdir: String,
    /// Environment that every sandbox of it starts with.
    env: BTreeMap<String, String>,
    /// Whether programs inside may gain privileges.
    sudo: bool,
    command: Option<Vec<String>>,
    #[schema(format = DateTime)]
    created_at: String,
}

impl From<TemplateRecord> for Template {
    fn from(record: TemplateRecord) -> Self {
        Self {
            name: record.name,
            version: record.version,
            aliases: record.aliases,
            kind: record.kind,
            user: record.user,
            workdir: record.workdir,
            env: record.env,
            sudo: record.sudo,
            command: record.command,
            created_at: time(record.created_at_ms),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TemplateList {
    items: Vec<Template>,
}

/// Lists templates.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", responses((status = 200, body = TemplateList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<Answer<TemplateList>, ApiError> {
    let templates = app.service.list_templates(&who).await?;
    Ok(ok(TemplateList { items: templates.into_iter().map(Template::from).collect() }))
}

/// Shows a template.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates",
    params(("name" = String, Path, description = "Name or alias")), responses((status = 200, body = Template)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Answer<Template>, ApiError> {
    Ok(ok(app.service.get_template(&who, &name).await?.into()))
}

/// Removes a template that no sandbox uses. Needs an admin key.
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
    atoll_model::policy::authz::admin(&who)
        .map_err(|denied| ApiError::new(atoll_model::Code::Forbidden, denied.to_string()))?;
    // LIMIT: steps come a few per second; a reader that is slower than that loses some, which harms nobody.
    let (steps, shown) = mpsc::channel::<String>(64);
    let progress: MakeProgress = Box::new(move |step| match steps.try_send(step.to_owned()) {
        Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => ControlFlow::Continue(()),
        Err(mpsc::error::TrySendError::Closed(_)) => ControlFlow::Break(()),
    });
    let service = app.service.clone();
    let work = async move { service.make_template(&who, &name, progress).await };
    Ok(sse::respond(&app, progress_events(work, shown)))
}

#[derive(Serialize)]
struct Step {
    message: String,
}

/// The work and its steps as one stream; dropping it drops both.
fn progress_events<F>(
    work: F,
    mut shown: mpsc::Receiver<String>,
) -> impl Stream<Item = Event> + Send + 'static
where
    F: Future<Output = Result<TemplateRecord, atoll_service::ServiceError>> + Send + 'static,
{
    async_stream::stream! {
        let mut work = std::pin::pin!(work);
        let made = loop {
            tokio::select! {
                biased;
                Some(message) = shown.recv() => yield sse::event("step", &Step { message }),
                made = work.as_mut() => break made,
            }
        };
        yield match made {
            Ok(record) => sse::event("done", &Template::from(record)),
            Err(error) => sse::event("error", &Broken::from(error)),
        };
    }
}
