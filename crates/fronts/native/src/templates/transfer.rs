//! Transfers of templates: images from and to registries, archives in and out.

use atoll_client::templates::{
    ExportForm, ExportQuery, ImportForm, ImportQuery, PullBody, PushBody, RegistryAuth, Template,
};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, StrictJson, upload_reader};
use atoll_model::TemplateRef;
use atoll_service::{ExportFormat, ImportFormat, ImportTemplate, PullImage, PushImage};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use tokio_util::io::ReaderStream;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromApi, FromCore, IntoApi, IntoCore};
use crate::files::transfer::disposition;
use crate::working;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(pull))
        .routes(routes!(push))
        .routes(routes!(import))
        .routes(routes!(export))
}

impl FromApi<RegistryAuth> for atoll_service::RegistryAuth {
    fn from_api(auth: RegistryAuth) -> Result<Self, ApiError> {
        match (auth.username, auth.password, auth.token) {
            (Some(username), Some(password), None) => Ok(Self::Basic { username, password }),
            (None, None, Some(token)) => Ok(Self::Token(token)),
            _ => Err(ApiError::invalid("auth must contain a username with a password, or a token alone")),
        }
    }
}

/// Parses a reference of an image or template; the error names the field.
pub(crate) fn reference(field: &str, text: &str) -> Result<TemplateRef, ApiError> {
    text.parse().map_err(|bad| ApiError::invalid(format!("{field} is {bad}")))
}

/// Pulls an image from a registry, which becomes a template with the same name.
///
/// Events: `step {message}`, `layer {digest, done, total, state}`, and at the end `done` with the template or
/// `error {code, message, hint}`. Closing the stream cancels the pull; downloaded parts are kept for the next one.
#[utoipa::path(post, path = "/v1/templates/pull", tag = "templates", request_body = PullBody,
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn pull(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<PullBody>,
) -> Result<Response, ApiError> {
    let image = reference("image", &body.image)?;
    let auth = body.auth.map(IntoCore::into_core).transpose()?;
    let ask = PullImage { image, auth, platform: body.platform };
    let (ear, steps) = working::steps();
    let service = app.service.clone();
    let work =
        async move { service.templates().pull(&who, ask, working::ear(ear)).await.map(Template::from_core) };
    working::respond(&app, work, steps).await
}

/// Pushes a template to a registry. The events are those of a pull.
#[utoipa::path(post, path = "/v1/templates/{name}/push", tag = "templates", params(("name" = String, Path)),
    request_body = PushBody, responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn push(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<PushBody>,
) -> Result<Response, ApiError> {
    let image = reference("image", &body.image)?;
    let auth = body.auth.map(IntoCore::into_core).transpose()?;
    let (ear, steps) = working::steps();
    let service = app.service.clone();
    let work = async move {
        let ask = PushImage { image, auth };
        service.templates().push(&who, &name, ask, working::ear(ear)).await.map(Template::from_core)
    };
    working::respond(&app, work, steps).await
}

/// Imports a template from an archive: of `docker save`, of an OCI layout, or of a root file system; plain, gzip or
/// zstd.
#[utoipa::path(post, path = "/v1/templates/import", tag = "templates", params(ImportQuery),
    request_body(content = Vec<u8>, content_type = "application/x-tar"), responses((status = 201, body = Template)))]
pub(crate) async fn import(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<ImportQuery>,
    body: Body,
) -> Result<JsonResponse<Template>, ApiError> {
    let format = match query.format {
        ImportForm::Auto => ImportFormat::Auto,
        ImportForm::Docker => ImportFormat::DockerArchive,
        ImportForm::Oci => ImportFormat::OciArchive,
        ImportForm::Rootfs => ImportFormat::Rootfs,
    };
    let ask = ImportTemplate { name: reference("name", &query.name)?, format };
    let (file, fault) = upload_reader(body);
    // Nobody could read both: the answer begins when the archive is in.
    let imported = app.service.templates().import(&who, ask, file, std::sync::Arc::new(|_| {})).await;
    Ok(JsonResponse(StatusCode::CREATED, imported.map_err(|error| fault.or(error))?.into_api()))
}

// LIMIT: pieces are large enough to make the cost of system calls negligible.
const PIECE: usize = 256 * 1_024;

/// Exports a template as one archive.
#[utoipa::path(get, path = "/v1/templates/{name}/export", tag = "templates",
    params(("name" = String, Path), ExportQuery),
    responses((status = 200, content_type = "application/x-tar", body = Vec<u8>)))]
pub(crate) async fn export(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, ApiError> {
    let format = match query.format {
        ExportForm::Oci => ExportFormat::OciArchive,
        ExportForm::Docker => ExportFormat::DockerArchive,
    };
    let (_, archive) = app.service.templates().export(&who, &name, format).await?;
    let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(archive, PIECE)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_DISPOSITION, disposition(&format!("{name}.tar")));
    Ok(response)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_a_pair_or_a_token_and_never_shown() {
        let read = |text: &str| -> Result<atoll_service::RegistryAuth, ApiError> {
            serde_json::from_str::<RegistryAuth>(text).unwrap().into_core()
        };
        assert!(read(r#"{"username":"a","password":"b"}"#).is_ok());
        assert!(read(r#"{"token":"t"}"#).is_ok());
        for bad in ["{}", r#"{"username":"a"}"#, r#"{"username":"a","password":"b","token":"t"}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let body: PullBody =
            serde_json::from_str(r#"{"image":"a","auth":{"username":"u","password":"hush"}}"#).unwrap();
        assert!(!format!("{body:?}").contains("hush"));
    }
}
