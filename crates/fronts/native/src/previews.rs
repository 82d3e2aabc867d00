//! Previews: links to ports of a sandbox. Open (a token is shown once), list, close.

use atoll_client::previews::{NewPreviewAnswer, Preview, PreviewBody, PreviewList};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_model::PreviewId;
use atoll_service::{NewPreview, PreviewRecord};
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::{App, PreviewOrigin};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(delete))
}

fn shown(preview: PreviewRecord, origin: &PreviewOrigin, query: &str) -> Preview {
    let PreviewRecord { id, sandbox, port, public, created_at_ms, expires_at_ms } = preview;
    let PreviewOrigin { domain, port: of_server } = origin;
    Preview {
        url: format!("http://{port}-{sandbox}.{domain}:{of_server}/{query}"),
        path: format!("/p/{sandbox}/{port}/{query}"),
        id: id.into(),
        sandbox: sandbox.into(),
        port,
        public,
        created_at: rfc3339_millis(created_at_ms),
        expires_at: expires_at_ms.map(rfc3339_millis),
    }
}

/// Opens one port of a sandbox. The sandbox does not need to run; a request to the link wakes it if its lease
/// allows that.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/previews", tag = "previews",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body(content = PreviewBody),
    responses((status = 201, body = NewPreviewAnswer, description = "Open")))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<PreviewBody>,
) -> Result<JsonResponse<NewPreviewAnswer>, ApiError> {
    let ask = NewPreview { port: body.port, expires_s: body.expires_s, public: body.public };
    let made = app.service.access().create_preview(&who, &ident, ask).await?;
    let query = made.token.as_ref().map_or_else(String::new, |token| format!("?atoll_token={token}"));
    let preview = shown(made.preview, &app.previews, &query);
    Ok(JsonResponse(StatusCode::CREATED, NewPreviewAnswer { preview, token: made.token }))
}

/// Lists the open previews of a sandbox, without their tokens.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/previews", tag = "previews",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = PreviewList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<PreviewList>, ApiError> {
    let open = app.service.access().previews(&who, &ident).await?;
    let items = open.into_iter().map(|preview| shown(preview, &app.previews, "")).collect();
    Ok(ok(PreviewList { items }))
}

/// Closes a preview: the next request is refused.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/previews/{preview}", tag = "previews",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"),
        ("preview" = String, Path, description = "Id of the preview")),
    responses((status = 204)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, preview)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let id: PreviewId = preview
        .parse()
        .map_err(|_| ApiError::new(atoll_model::Code::PreviewNotFound, "there is no such preview"))?;
    app.service.access().delete_preview(&who, &ident, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
