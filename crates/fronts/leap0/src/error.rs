//! Refusals as Leap0 writes them: `{"message", "errors": [{"field", "error"}]}`, and the one map from our codes to statuses.
//!
//! The SDK chooses its class of exception by the status: 403, 404, 409 and 429 have one each. The cause of an error is
//! logged where the answer is written ([`crate::observe`]) and never shown.

use std::sync::Arc;

use atoll_model::{Code, ErrorKind};
use atoll_service::ServiceError;
use atoll_toolbox::ToolboxError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A refusal on its way to the client.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) code: Code,
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) errors: Vec<FieldError>,
    pub(crate) retry_after_s: Option<u32>,
    pub(crate) cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) error: String,
}

impl ApiError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            status: status(code),
            message: message.into(),
            errors: Vec::new(),
            retry_after_s: None,
            cause: None,
        }
    }

    /// A request that is wrong in itself.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    /// A field that is wrong.
    pub(crate) fn field(field: impl Into<String>, error: impl Into<String>) -> Self {
        let (field, error) = (field.into(), error.into());
        let message = format!("{field}: {error}");
        Self { errors: vec![FieldError { field, error }], ..Self::invalid(message) }
    }

    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(Code::Unauthenticated, message)
    }

    /// Something of Leap0's that is not here.
    pub(crate) fn not_here(what: &str, why: &str) -> Self {
        Self::new(Code::Unsupported, format!("{what} is not available here: {why} (docs/fronts/leap0.md)"))
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
            message: &'a str,
            #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
            errors: &'a [FieldError],
        }
        let body = Body { message: &self.message, errors: &self.errors };
        serde_json::to_vec(&body).expect("strings always serialise")
    }
}

/// The status of a code; the only map of its kind. It is the documented one: Leap0 uses the same words of HTTP.
fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.documented_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.render()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let busy = matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        // LIMIT: 429 and 503 always say when to come back; a second is the least a client should wait.
        if let Some(s) = self.retry_after_s.or(busy.then_some(1)) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(s));
        }
        // For the log.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        let message = with_hint(&error.message, error.hint.as_deref());
        // COMPAT(leap0): what the sandbox's own user may not do is 403, so that its SDK has a class for it.
        let denied = error.code == Code::InvalidArgument && error.message.contains("permission denied");
        let errors = match error.kind() {
            ErrorKind::Invalid => field_of(&error.message).into_iter().collect(),
            _ => Vec::new(),
        };
        let retry_after_s = error.retry_after_s;
        let shown = Self::new(error.code, message);
        let status = if denied { StatusCode::FORBIDDEN } else { shown.status };
        Self { status, errors, retry_after_s, cause: Some(Arc::new(error)), ..shown }
    }
}

impl From<ToolboxError> for ApiError {
    fn from(error: ToolboxError) -> Self {
        let message = with_hint(&error.to_string(), error.hint());
        let shown = Self::new(error.code(), message);
        let status = match error.kind() {
            ErrorKind::Forbidden => StatusCode::FORBIDDEN,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            _ => shown.status,
        };
        shown.with_status(status).caused_by(error)
    }
}

/// The SDK shows the message alone, so what to try is part of it.
fn with_hint(message: &str, hint: Option<&str>) -> String {
    match hint {
        Some(hint) => format!("{message} ({hint})"),
        None => message.to_owned(),
    }
}

/// Our words for fields and Leap0's.
const FIELDS: [(&str, &str); 6] = [
    ("cpu", "vcpu"),
    ("memory_mib", "memory"),
    ("timeout_s", "timeout"),
    ("env", "env_vars"),
    ("template", "template_name"),
    ("name", "name"),
];

/// The core says which field is wrong in the first word of its message.
fn field_of(message: &str) -> Option<FieldError> {
    let (word, rest) = message.split_once(' ')?;
    let word = word.trim_end_matches(':');
    let field = match word.strip_prefix("network") {
        Some(rest) if rest.is_empty() || rest.starts_with('.') => format!("network_policy{rest}"),
        _ => FIELDS.iter().find(|(ours, _)| *ours == word).map(|(_, theirs)| (*theirs).to_owned())?,
    };
    Some(FieldError { field, error: rest.to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_field_of_the_core_has_leap0s_name() {
        let field = |message: &str| field_of(message).map(|found| found.field);
        assert_eq!(field("cpu must be between 0.01 and 512, not 900").as_deref(), Some("vcpu"));
        assert_eq!(field("network.allow_domains: too many").as_deref(), Some("network_policy.allow_domains"));
        assert_eq!(field("timeout_s must be at least 1").as_deref(), Some("timeout"));
        assert_eq!(field("networks are odd"), None);
        assert_eq!(field("nonsense"), None);
    }

    #[test]
    fn a_body_holds_a_message_and_the_fields() {
        let error = ApiError::field("port", "must be a port");
        let body: serde_json::Value = serde_json::from_slice(&error.render()).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "message": "port: must be a port",
                "errors": [{ "field": "port", "error": "must be a port" }],
            })
        );
        let plain: serde_json::Value =
            serde_json::from_slice(&ApiError::new(Code::SandboxNotFound, "none").render()).unwrap();
        assert_eq!(plain, serde_json::json!({ "message": "none" }));
    }

    #[test]
    fn what_the_sdk_has_a_class_for_has_its_status() {
        for (code, wanted) in [
            (Code::Unauthenticated, 401),
            (Code::Forbidden, 403),
            (Code::SandboxNotFound, 404),
            (Code::FileNotFound, 404),
            (Code::PhaseConflict, 409),
            (Code::AlreadyExists, 409),
            (Code::SnapshotInUse, 409),
            (Code::QuotaExceeded, 429),
            (Code::Unsupported, 501),
        ] {
            assert_eq!(ApiError::new(code, "x").into_response().status().as_u16(), wanted, "{code:?}");
        }
    }
}
