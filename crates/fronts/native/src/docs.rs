//! The OpenAPI document and the page that renders it. The page is one file without any outside resource.

use std::sync::{LazyLock, OnceLock};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

const PAGE: &str = include_str!("docs/page.html");

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(document)).routes(routes!(page)).route("/", get(root))
}

/// A browser at the root is redirected to the documentation; other clients get the location of the API.
async fn root(headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") {
        return Redirect::temporary("/docs").into_response();
    }
    Json(serde_json::json!({ "name": "atoll", "api": "/v1", "documentation": "/docs", "openapi": "/v1/openapi.json" }))
        .into_response()
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "server", security(()),
    responses((status = 200, content_type = "application/json", body = serde_json::Value)))]
pub(crate) async fn document(State(app): State<App>) -> Response {
    // All responses share one copy of the document, so clients that do not read their response take no extra memory.
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let document = DOCUMENT.get_or_init(|| Bytes::copy_from_slice(app.document.as_bytes()));
    ([(header::CONTENT_TYPE, "application/json")], document.clone()).into_response()
}

/// A page that renders this document.
#[utoipa::path(get, path = "/docs", tag = "server", security(()),
    responses((status = 200, content_type = "text/html", body = String)))]
pub(crate) async fn page() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Html(PAGE)).into_response()
}

/// Only the page's own script and style may run; they are identified by their digests.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        digest("script"),
        digest("style")
    )
});

fn digest(tag: &str) -> String {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let inside =
        PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close)).map_or("", |(text, _)| text);
    format!("sha256-{}", STANDARD.encode(Sha256::digest(inside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_nobody_else_for_anything() {
        for outside in ["http://", "https://", "src=", "@import", "url(", "innerHTML", "style=\"", "onclick="]
        {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        assert_eq!((PAGE.matches("<script>").count(), PAGE.matches("<style>").count()), (1, 1));
    }
}
