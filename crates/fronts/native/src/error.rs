//! The error envelope and the one map from codes to statuses.
//!
//! A handler answers [`ApiError`]; the observer around every route ([`crate::observe`]) knows the request id and
//! renders the envelope. The cause of an error is logged there and never shown.

use std::sync::Arc;

use atoll_model::Code;
use atoll_service::ServiceError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What every answer that is not a success holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct Envelope {
    /// One of the closed list in `docs/errors.md`.
    #[schema(example = "sandbox_not_found")]
    pub code: String,
    /// What happened, and to what.
    pub message: String,
    /// What to try.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    /// Finds this request in the logs.
    pub request_id: String,
}

/// A refusal on its way to the client.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) retry_after_s: Option<u32>,
    /// Only where HTTP knows the case more exactly than the code: 408, 415, 416 and 431.
    pub(crate) status: Option<StatusCode>,
    pub(crate) cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The status of a code; the only map of its kind.
#[must_use]
pub fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.documented_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl ApiError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, retry_after_s: None, status: None, cause: None }
    }

    /// A request that is wrong in itself.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    pub(crate) fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status.unwrap_or_else(|| status(self.code))
    }

    /// The envelope as bytes; the observer calls this once the request id is known.
    pub(crate) fn render(&self, request_id: &str) -> Vec<u8> {
        let envelope = Envelope {
            code: self.code.as_str().to_owned(),
            message: self.message.clone(),
            hint: self.hint.clone(),
            request_id: request_id.to_owned(),
        };
        serde_json::to_vec(&envelope).expect("strings always serialise")
    }
}

impl IntoResponse for ApiError {
    /// Without a body: the observer fills it in.
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        let headers = response.headers_mut();
        match self.retry_after_s {
            Some(s) => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from(s))),
            // LIMIT: 429 and 503 always say when to come back; a second is the least a client should wait.
            None if matches!(
                self.status(),
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
            ) =>
            {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            None => {}
        }
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        Self {
            code: error.code,
            message: error.message.clone(),
            hint: error.hint.clone(),
            retry_after_s: error.retry_after_s,
            status: None,
            cause: Some(Arc::new(error)),
        }
    }
}

/// The page `docs/errors.md`, made from the list of codes.
#[must_use]
pub fn errors_page() -> String {
    let mut page = String::from(
        "# Errors\n\n\
         Every answer of the native API that is not a success has one shape:\n\n\
         ```json\n\
         {\"code\": \"sandbox_not_found\", \"message\": \"…\", \"hint\": \"…\", \"request_id\": \"…\"}\n\
         ```\n\n\
         `code` is one of the list below, `message` says what happened, `hint` (where there is one) what to try, and\n\
         `request_id` is also in the `X-Request-Id` header and in the server's logs. 429 and 503 carry `Retry-After`.\n\
         Three cases keep their code but have a more exact status: a body of the wrong type is 415, a range outside a\n\
         file is 416, and a body that does not arrive in time is 408.\n\n\
         Made from the code by a test; do not edit.\n\n\
         | code | status | meaning |\n|---|---|---|\n",
    );
    for code in Code::ALL {
        page.push_str(&format!(
            "| `{}` | {} | {} |\n",
            code.as_str(),
            status(*code).as_u16(),
            code.meaning().trim()
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_model::ErrorKind;

    #[test]
    fn every_code_has_a_status_that_fits_its_kind() {
        for code in Code::ALL {
            let status = status(*code);
            assert_eq!(status.as_u16(), code.documented_status(), "{code:?}");
            let client =
                !matches!(code.kind(), ErrorKind::Unavailable | ErrorKind::Unsupported | ErrorKind::Internal)
                    && !matches!(code, Code::DiskFull | Code::LoopDetected);
            assert_eq!(status.is_client_error(), client, "{code:?}");
        }
    }

    #[test]
    fn refusals_for_lack_of_room_say_when_to_come_back() {
        for code in Code::ALL {
            let response = ApiError::new(*code, "x").into_response();
            let expected = matches!(response.status().as_u16(), 429 | 503);
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), expected, "{code:?}");
        }
    }
}
