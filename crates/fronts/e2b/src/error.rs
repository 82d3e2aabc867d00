//! Refusals as E2B writes them: `{"code", "message"}`, where the code is the status, and the one map from our codes to statuses.
//!
//! The JavaScript SDK decides by the code of the body, the Python SDK by the status. The cause of an error is logged where the
//! answer is written ([`crate::observe`]) and never shown.

use std::sync::Arc;

use atoll_model::{Code, ErrorKind};
use atoll_service::ServiceError;
use atoll_toolbox::ToolboxError;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The Python SDK asks again after 429, 502, 503 and 504 unless this says no.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// What to try where the key is wrong.
const KEY_HINT: &str = "set E2B_API_KEY; `atoll env e2b --with-key` prints one";

/// A refusal on its way to the client.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) code: Code,
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// E2B's own word for it, where an SDK has a class of its own.
    pub(crate) error_code: Option<&'static str>,
    pub(crate) retry_after_s: Option<u32>,
    pub(crate) cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl ApiError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, status: status(code), message, error_code: None, retry_after_s: None, cause: None }
    }

    /// A request that is wrong in itself.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    /// A field that is wrong.
    pub(crate) fn field(field: &str, error: &str) -> Self {
        Self::invalid(format!("{field}: {error}"))
    }

    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(Code::Unauthenticated, message)
    }

    /// Something of E2B's that is not here.
    pub(crate) fn not_here(what: &str, why: &str) -> Self {
        Self::new(Code::Unsupported, format!("{what} is not available here: {why} (docs/fronts/e2b.md)"))
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// The body.
    pub(crate) fn render(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Body<'a> {
            code: u16,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            error_code: Option<&'a str>,
        }
        let body = Body { code: self.status.as_u16(), message: &self.message, error_code: self.error_code };
        serde_json::to_vec(&body).expect("strings always serialise")
    }
}

/// The status of a code; the only map of its kind. It is the documented one but where an SDK would take it for something else.
fn status(code: Code) -> StatusCode {
    let documented =
        StatusCode::from_u16(code.documented_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match documented {
        // COMPAT(e2b): 502 and 504 mean "the sandbox is not there" and are asked again three times.
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => StatusCode::INTERNAL_SERVER_ERROR,
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.render()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.status {
            // LIMIT: 503 always says when to come back; a second is the least a client should wait.
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after_s.unwrap_or(1)));
            }
            // A quota does not end by itself within the seconds of a retry.
            StatusCode::TOO_MANY_REQUESTS => match self.retry_after_s {
                Some(s) => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from(s))),
                None => drop(headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"))),
            },
            _ => {}
        }
        // For the log.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        let message = match error.code {
            // The hint of the core is for its own clients.
            Code::Unauthenticated => with_hint(&error.message, Some(KEY_HINT)),
            _ => with_hint(&in_their_words(&error.message, error.kind()), error.hint.as_deref()),
        };
        let retry_after_s = error.retry_after_s;
        Self { retry_after_s, cause: Some(Arc::new(error.clone())), ..Self::new(error.code, message) }
    }
}

impl From<ToolboxError> for ApiError {
    fn from(error: ToolboxError) -> Self {
        let message = with_hint(&error.to_string(), error.hint());
        Self::new(error.code(), message).caused_by(error)
    }
}

/// Our words for fields and E2B's.
const FIELDS: [(&str, &str); 9] = [
    ("timeout_s", "timeout"),
    ("timeout_at_least_s", "timeout"),
    ("env", "envVars"),
    ("labels", "metadata"),
    ("template", "templateID"),
    ("mounts", "volumeMounts"),
    ("mask_host", "network.maskRequestHost"),
    ("https_ports", "network.httpsPorts"),
    ("cursor", "nextToken"),
];

/// The core says which field is wrong in the first word of its message.
fn in_their_words(message: &str, kind: ErrorKind) -> String {
    let first = message.split([' ', ':']).next().unwrap_or_default();
    match FIELDS.iter().find(|(ours, _)| *ours == first && kind == ErrorKind::Invalid) {
        Some((ours, theirs)) => message.replacen(ours, theirs, 1),
        None => message.to_owned(),
    }
}

/// The SDKs show the message alone, so what to try is part of it.
fn with_hint(message: &str, hint: Option<&str>) -> String {
    match hint {
        Some(hint) => format!("{message} ({hint})"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_body_holds_the_status_and_a_message() {
        let error = ApiError::field("templateID", "is required");
        let body: serde_json::Value = serde_json::from_slice(&error.render()).unwrap();
        assert_eq!(body, serde_json::json!({ "code": 400, "message": "templateID: is required" }));
    }

    #[test]
    fn a_wrong_field_of_the_core_has_e2bs_name() {
        let of = |code, message: &str| ApiError::from(ServiceError::new(code, message)).message;
        assert_eq!(of(Code::InvalidRequest, "timeout_s must be at least 1"), "timeout must be at least 1");
        assert_eq!(of(Code::InvalidRequest, "cursor: not one of ours"), "nextToken: not one of ours");
        assert_eq!(of(Code::TemplateNotFound, "template x is not there"), "template x is not there");
        assert!(of(Code::Unauthenticated, "no valid key was shown").ends_with("prints one)"));
    }

    #[test]
    fn what_the_sdks_have_a_class_for_has_its_status() {
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
            let response = ApiError::new(code, "x").into_response();
            assert_eq!(response.status().as_u16(), wanted, "{code:?}");
        }
    }
}
