//! Presigned URLs: previews by token, with the token in the host, so that any path can be appended to the URL.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, rfc3339};
use atoll_model::{Code, PreviewId};
use atoll_service::NewPreview;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{delete, post};
use serde::{Deserialize, Serialize};

use crate::{Hosts, Leap0App};

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new()
        .route("/v1/sandbox/{id}/presigned-url", post(create))
        .route("/v1/sandbox/{id}/presigned-url/{preview}", delete(remove))
}

#[derive(Debug, Deserialize)]
struct PresignBody {
    port: u16,
    /// Seconds; the default is an hour.
    expires_in: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Presigned {
    id: String,
    /// It is shown only once.
    token: String,
    url: String,
    sandbox_id: String,
    port: u16,
    expires_at: String,
    created_at: String,
}

async fn create(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<PresignBody>,
) -> Result<JsonResponse<Presigned>, ApiError> {
    let ask = NewPreview { port: body.port, expires_s: body.expires_in, public: false };
    let made = app.service.access().create_preview(&who, &id, ask).await?;
    let (preview, token) = (made.preview, made.token.unwrap_or_default());
    Ok(created(Presigned {
        url: url(&(app.options.hosts)(), preview.sandbox.as_str(), preview.port, &token),
        id: preview.id.into(),
        token,
        sandbox_id: preview.sandbox.into(),
        port: preview.port,
        expires_at: preview.expires_at_ms.map_or_else(String::new, rfc3339),
        created_at: rfc3339(preview.created_at_ms),
    }))
}

/// `ID-PORT-TOKEN.DOMAIN`, the token without its prefix.
fn url(hosts: &Hosts, sandbox: &str, port: u16, token: &str) -> String {
    let Hosts { scheme, domain, port: of_server } = hosts;
    let secret = token.rsplit('_').next().unwrap_or(token);
    format!("{scheme}://{sandbox}-{port}-{secret}.{domain}:{of_server}")
}

async fn remove(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path((id, preview)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let preview: PreviewId = preview
        .parse()
        .map_err(|_| ApiError::new(Code::PreviewNotFound, "there is no such presigned URL"))?;
    app.service.access().delete_preview(&who, &id, &preview).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_fits_into_a_label_of_dns() {
        let hosts = Hosts { scheme: "https", domain: "atoll.localhost".to_owned(), port: 7_443 };
        let token = format!("apv_{}", "a".repeat(32));
        let url = url(&hosts, "abcdefghij0123456789", 65_535, &token);
        let wanted = format!("https://abcdefghij0123456789-65535-{}.atoll.localhost:7443", "a".repeat(32));
        assert_eq!(url, wanted);
        let label = url.trim_start_matches("https://").split('.').next().unwrap_or_default();
        assert!(label.len() <= 63, "{} characters", label.len());
    }
}
