//! Refusals as Daytona writes them, and the one map from our codes to statuses.
//!
//! The SDKs choose their class of exception by `(source, code)` where the source is the daemon of a sandbox, and by the
//! status else. The body is written where path and method are known ([`crate::observe`]); the cause is logged there and never
//! shown.

use std::sync::Arc;

use atoll_model::{Code, ErrorKind};
use atoll_service::ServiceError;
use atoll_toolbox::ToolboxError;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Who refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The main API.
    Api,
    /// What runs in the sandbox: everything of the toolbox.
    Daemon,
}

impl Source {
    const fn word(self) -> &'static str {
        match self {
            Self::Api => "DAYTONA_API",
            Self::Daemon => "DAYTONA_DAEMON",
        }
    }
}

/// A refusal on its way to the client.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) code: Code,
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) source: Source,
    /// Daytona's own word for it, where an SDK has a class for that.
    pub(crate) word: Option<&'static str>,
    pub(crate) retry_after_s: Option<u32>,
    pub(crate) cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl ApiError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            status: status(code),
            message: message.into(),
            source: Source::Api,
            word: None,
            retry_after_s: None,
            cause: None,
        }
    }

    /// A refusal of the toolbox with a word that the SDKs have a class for, as `FILE_NOT_FOUND`.
    pub(crate) fn daemon(status: StatusCode, word: &'static str, message: impl Into<String>) -> Self {
        let code = match status {
            StatusCode::BAD_REQUEST => Code::InvalidRequest,
            StatusCode::UNAUTHORIZED => Code::Unauthenticated,
            StatusCode::FORBIDDEN => Code::Forbidden,
            StatusCode::NOT_FOUND => Code::FileNotFound,
            StatusCode::CONFLICT | StatusCode::GONE => Code::PhaseConflict,
            StatusCode::REQUEST_TIMEOUT => Code::DeadlineExceeded,
            StatusCode::NOT_IMPLEMENTED => Code::Unsupported,
            StatusCode::UNPROCESSABLE_ENTITY => Code::InvalidArgument,
            StatusCode::BAD_GATEWAY => Code::BadAnswer,
            StatusCode::SERVICE_UNAVAILABLE => Code::SandboxUnavailable,
            _ => Code::Internal,
        };
        Self { status, source: Source::Daemon, word: Some(word), ..Self::new(code, message) }
    }

    /// A request that is wrong in itself.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(Code::Unauthenticated, message)
    }

    /// Something of Daytona's that is not here.
    pub(crate) fn not_here(what: &str, why: &str) -> Self {
        Self::new(Code::Unsupported, format!("{what} is not available here: {why} (docs/fronts/daytona.md)"))
    }

    /// A field that asks for what this server does not have: a bad request, as the vendor answers it.
    pub(crate) fn bad_wish(field: &str, why: &str) -> Self {
        Self::new(Code::Unsupported, format!("{field}: {why} (docs/fronts/daytona.md)"))
            .with_status(StatusCode::BAD_REQUEST)
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// The same, as the toolbox says it.
    pub(crate) fn of_daemon(mut self) -> Self {
        self.source = Source::Daemon;
        self
    }

    pub(crate) fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// The word of the code field.
    pub(crate) fn word(&self) -> String {
        match self.word {
            Some(word) => word.to_owned(),
            None => self.code.as_str().to_ascii_uppercase(),
        }
    }

    /// The body.
    pub(crate) fn render(&self, method: &Method, path: &str, at: &str) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Body<'a> {
            status_code: u16,
            message: &'a str,
            error: &'a str,
            path: &'a str,
            method: &'a str,
            timestamp: &'a str,
            code: &'a str,
            source: &'static str,
        }
        let body = Body {
            status_code: self.status.as_u16(),
            message: &self.message,
            error: self.status.canonical_reason().unwrap_or("Error"),
            path,
            method: method.as_str(),
            timestamp: at,
            code: &self.word(),
            source: self.source.word(),
        };
        serde_json::to_vec(&body).expect("strings always serialise")
    }
}

/// The status of a code; the only map of its kind. It is the documented one but where Daytona's users know another.
fn status(code: Code) -> StatusCode {
    match code {
        // COMPAT(daytona): a toolbox call to a sandbox that does not run is a bad request there.
        Code::Asleep => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        other => StatusCode::from_u16(other.documented_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let busy = matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        // LIMIT: 429 and 503 always say when to come back; a second is the least a client should wait.
        if let Some(s) = self.retry_after_s.or(busy.then_some(1)) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(s));
        }
        // The body is written by who knows the path.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        let hint = match error.code {
            // COMPAT(daytona): in the words of its users' SDKs.
            Code::Asleep => Some("call sandbox.start() first"),
            _ => error.hint.as_deref(),
        };
        let message = with_hint(&error.message, hint);
        let retry_after_s = error.retry_after_s;
        Self { retry_after_s, cause: Some(Arc::new(error.clone())), ..Self::new(error.code, message) }
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
        shown.with_status(status).of_daemon().caused_by(error)
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
    fn a_body_holds_every_field_that_the_sdks_read() {
        let error = ApiError::new(Code::SandboxNotFound, "there is no sandbox x");
        let body: serde_json::Value =
            serde_json::from_slice(&error.render(&Method::GET, "/daytona/api/sandbox/x", "T")).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "statusCode": 404,
                "message": "there is no sandbox x",
                "error": "Not Found",
                "path": "/daytona/api/sandbox/x",
                "method": "GET",
                "timestamp": "T",
                "code": "SANDBOX_NOT_FOUND",
                "source": "DAYTONA_API",
            })
        );
    }

    #[test]
    fn the_words_of_the_daemon_are_kept() {
        let error = ApiError::daemon(StatusCode::NOT_FOUND, "FILE_NOT_FOUND", "none");
        let body: serde_json::Value = serde_json::from_slice(&error.render(&Method::GET, "/", "")).unwrap();
        assert_eq!((&body["code"], &body["source"]), (&"FILE_NOT_FOUND".into(), &"DAYTONA_DAEMON".into()));
    }

    #[test]
    fn what_sleeps_is_started_by_its_user() {
        let asleep = ServiceError::new(Code::Asleep, "it is stopped").hint("update it with wake: any");
        assert_eq!(ApiError::from(asleep).message, "it is stopped (call sandbox.start() first)");
        let other = ServiceError::new(Code::NoCapacity, "full").hint("delete some");
        assert_eq!(ApiError::from(other).message, "full (delete some)");
    }

    #[test]
    fn what_the_sdks_have_a_class_for_has_its_status() {
        for (code, wanted) in [
            (Code::InvalidRequest, 400),
            (Code::Asleep, 400),
            (Code::Unauthenticated, 401),
            (Code::Forbidden, 403),
            (Code::SandboxNotFound, 404),
            (Code::DeadlineExceeded, 408),
            (Code::PhaseConflict, 409),
            (Code::NameTaken, 409),
            (Code::VolumeInUse, 409),
            (Code::QuotaExceeded, 429),
            (Code::Internal, 500),
            (Code::Unsupported, 501),
            (Code::NoCapacity, 503),
            (Code::DiskFull, 507),
        ] {
            assert_eq!(ApiError::new(code, "x").into_response().status().as_u16(), wanted, "{code:?}");
        }
    }
}
