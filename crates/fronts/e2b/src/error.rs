//! Errors as E2B writes them: `{"code", "message"}`, where the code is the status.
//!
//! The JavaScript SDK decides by the code in the body, the Python SDK by the status.

use atoll_front_kit::{ApiError, error_body};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

/// The Python SDK retries after 429, 502, 503 and 504 unless this header is `false`.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// A part of E2B's API that this server does not support.
pub(crate) fn not_here(what: &str, why: &str) -> ApiError {
    ApiError::not_available(what, why, "docs/fronts/e2b.md")
}

/// How the SDKs find templates.
const TEMPLATES: &str = "Template.exists() asks for a template, Template.build() makes one, Sandbox.list_snapshots() lists snapshots";

#[derive(Serialize)]
struct E2bError<'a> {
    code: u16,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'static str>,
}

pub(crate) fn render(error: &ApiError) -> Response {
    let (status, message) = match error.refused.as_deref().and_then(crate::states::refusal) {
        Some(refusal) => refusal,
        None => (status(error), error.sentence_for_sdk(field_name, TEMPLATES)),
    };
    let body = E2bError { code: status.as_u16(), message: &message, error_code: error.vendor_code };
    let mut response = error_body(status, &body);
    if status == StatusCode::TOO_MANY_REQUESTS && error.retry_after_s.is_none() {
        // A quota does not recover within the seconds of a retry.
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    } else if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        error.write_retry_after(status, response.headers_mut());
    }
    response
}

/// The documented status, except where an SDK would interpret it differently.
fn status(error: &ApiError) -> StatusCode {
    match (error.status, error.status()) {
        (Some(status), _) => status,
        // COMPAT(e2b): 502 and 504 mean "the sandbox is not there", and the SDKs retry them three times.
        (None, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT) => StatusCode::INTERNAL_SERVER_ERROR,
        (None, StatusCode::UNPROCESSABLE_ENTITY) => StatusCode::BAD_REQUEST,
        (None, status) => status,
    }
}

/// E2B's name of a field of the core.
fn field_name(core: &str) -> Option<String> {
    let name = match core {
        "timeout_s" | "timeout_at_least_s" => "timeout",
        "env" => "envVars",
        "labels" => "metadata",
        "template" => "templateID",
        "mounts" => "volumeMounts",
        "mask_host" => "network.maskRequestHost",
        "https_ports" => "network.httpsPorts",
        "cursor" => "nextToken",
        _ => return None,
    };
    Some(name.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::Code;
    use atoll_service::ServiceError;
    use serde_json::{Value, json};

    async fn rendered(error: impl Into<ApiError>) -> Value {
        let body = axum::body::to_bytes(render(&error.into()).into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn a_body_holds_the_status_and_a_message() {
        let body = rendered(ApiError::field("templateID", "is required")).await;
        assert_eq!(body, json!({ "code": 400, "message": "templateID: is required" }));
    }

    #[tokio::test]
    async fn a_wrong_field_of_the_core_has_e2bs_name() {
        let of = async |error: ServiceError| rendered(error).await["message"].clone();
        assert_eq!(of(ServiceError::field("timeout_s", "must be 1")).await, "timeout: must be 1");
        assert_eq!(of(ServiceError::field("cursor", "not one of ours")).await, "nextToken: not one of ours");
        let missing = ServiceError::new(Code::TemplateNotFound, "template x is not there");
        let with_calls = format!("template x is not there ({TEMPLATES})");
        assert_eq!(of(missing.clone()).await, with_calls);
        assert_eq!(of(missing.clone().hint("list the templates: atoll template ls")).await, with_calls);
        let early = ServiceError::new(Code::TemplateNotReady, "template x is being made")
            .hint("`atoll create` waits for it");
        let again = "template x is being made (create the sandbox again when Retry-After has passed)";
        assert_eq!(of(early).await, again);
        let told = missing.hint("its tags: v1");
        assert_eq!(of(told).await, "template x is not there (its tags: v1)");
    }

    #[test]
    fn errors_that_the_sdks_have_a_class_for_have_its_status() {
        for (code, wanted) in [
            (Code::Unauthenticated, 401),
            (Code::Forbidden, 403),
            (Code::SandboxNotFound, 404),
            (Code::TemplateNotFound, 404),
            (Code::PhaseConflict, 409),
            (Code::AlreadyExists, 409),
            (Code::QuotaExceeded, 429),
            (Code::Unsupported, 501),
        ] {
            let response = render(&ApiError::new(code, "x"));
            assert_eq!(response.status().as_u16(), wanted, "{code:?}");
        }
    }
}
