//! Errors as Daytona writes them.
//!
//! The SDKs choose their class of exception by `(source, code)` if the source is the daemon of a sandbox, and by the
//! status otherwise.

use std::borrow::Cow;

use atoll_front_kit::{ApiError, ErrorSource, error_body, rfc3339_millis};
use atoll_model::Code;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use jiff::Timestamp;
use serde::Serialize;

/// A part of Daytona's API that this server does not support.
pub(crate) fn not_here(what: &str, why: &str) -> ApiError {
    ApiError::not_available(what, why, "docs/fronts/daytona.md")
}

/// A field that requests a feature that this server does not support: a bad request, as at the vendor.
pub(crate) fn unsupported_field(field: &str, why: &str) -> ApiError {
    ApiError::new(Code::Unsupported, format!("{field}: {why} (docs/fronts/daytona.md)"))
        .with_status(StatusCode::BAD_REQUEST)
}

/// An error of the toolbox with a code for which the SDKs have a class, as `FILE_NOT_FOUND`.
pub(crate) fn daemon(status: StatusCode, word: &'static str, message: impl Into<String>) -> ApiError {
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
    ApiError { vendor_code: Some(word), ..ApiError::new(code, message).with_status(status).from_sandbox() }
}

/// How the SDKs find snapshots, which are the core's templates.
pub(crate) const TEMPLATES: &str =
    "daytona.snapshot.list() shows those that are there; daytona.snapshot.create() makes one";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DaytonaError<'a> {
    status_code: u16,
    message: String,
    error: &'static str,
    path: &'a str,
    method: &'a str,
    timestamp: String,
    code: Cow<'static, str>,
    source: &'static str,
}

impl<'a> DaytonaError<'a> {
    #[expect(clippy::disallowed_methods, reason = "the time that an error shows")]
    pub(crate) fn new(error: &ApiError, method: &'a Method, path: &'a str) -> Self {
        let status = status(error);
        Self {
            status_code: status.as_u16(),
            message: text(error),
            error: status.canonical_reason().unwrap_or("Error"),
            path,
            method: method.as_str(),
            timestamp: rfc3339_millis(Timestamp::now().as_millisecond()),
            code: match error.vendor_code {
                Some(word) => word.into(),
                None => error.code.as_str().to_ascii_uppercase().into(),
            },
            source: match error.source {
                ErrorSource::Server => "DAYTONA_API",
                ErrorSource::Sandbox => "DAYTONA_DAEMON",
            },
        }
    }
}

pub(crate) fn render(error: &ApiError, method: &Method, path: &str) -> Response {
    let status = status(error);
    let mut response = error_body(status, &DaytonaError::new(error, method, path));
    error.write_retry_after(status, response.headers_mut());
    response
}

/// The message with its hint, since the SDKs show only the message.
pub(crate) fn text(error: &ApiError) -> String {
    if let Some(refused) = &error.refused {
        return crate::states::refusal(refused).1;
    }
    match error.code {
        // COMPAT(daytona): the hint names the method of Daytona's SDKs.
        Code::Asleep => format!("{} (call sandbox.start() first)", error.message),
        _ => error.sentence_for_sdk(|_| None, TEMPLATES),
    }
}

/// The documented status, except where Daytona uses another one.
fn status(error: &ApiError) -> StatusCode {
    if let (None, Some(refused)) = (error.status, &error.refused) {
        return crate::states::refusal(refused).0;
    }
    match error.code {
        _ if error.status.is_some() => error.status(),
        // COMPAT(daytona): a toolbox call to a sandbox that is not running is a bad request.
        Code::Asleep => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        _ => error.status(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_service::ServiceError;
    use serde_json::{Value, json};

    fn rendered(error: &ApiError) -> Value {
        let mut body =
            serde_json::to_value(DaytonaError::new(error, &Method::GET, "/daytona/api/sandbox/x")).unwrap();
        assert!(body["timestamp"].as_str().unwrap().ends_with('Z'));
        body["timestamp"] = json!("T");
        body
    }

    #[test]
    fn a_body_holds_every_field_that_the_sdks_read() {
        assert_eq!(
            rendered(&ApiError::new(Code::SandboxNotFound, "there is no sandbox x")),
            json!({
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
        let body = rendered(&daemon(StatusCode::NOT_FOUND, "FILE_NOT_FOUND", "none"));
        assert_eq!((&body["code"], &body["source"]), (&"FILE_NOT_FOUND".into(), &"DAYTONA_DAEMON".into()));
    }

    #[test]
    fn a_stopped_sandbox_is_started_by_its_user() {
        let asleep = ServiceError::new(Code::Asleep, "it is stopped").hint("update it with wake: any");
        assert_eq!(text(&asleep.into()), "it is stopped (call sandbox.start() first)");
        let other = ServiceError::new(Code::NoCapacity, "full").hint("delete some");
        assert_eq!(text(&other.into()), "full (delete some)");
    }

    #[test]
    fn errors_that_the_sdks_have_a_class_for_have_its_status() {
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
            assert_eq!(status(&ApiError::new(code, "x")).as_u16(), wanted, "{code:?}");
        }
    }
}
