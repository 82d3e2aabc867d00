//! The error of handlers. It describes the failure in the server's own terms; the front writes it in the form that its
//! clients expect ([`crate::Front::render_error`]).

use std::sync::Arc;

use atoll_model::{Code, ErrorKind};
use atoll_service::{RefusedVerb, ServiceError};
use atoll_toolbox::ToolboxError;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// A refused request.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// The code, from the closed list.
    pub code: Code,
    /// Only set if HTTP has a more exact status than the code.
    pub status: Option<StatusCode>,
    /// The message for people. It contains the core's name of the field, if the error has one.
    pub message: String,
    /// The field that the error is about.
    pub field: Option<Box<InvalidField>>,
    /// A suggestion for the caller.
    pub hint: Option<String>,
    /// The vendor's own code for the error, if its SDKs have a class for it.
    pub vendor_code: Option<&'static str>,
    /// The part of the server that refuses.
    pub source: ErrorSource,
    /// When to try again.
    pub retry_after_s: Option<u32>,
    /// The verb that the phase of a sandbox does not allow, where that is the error.
    pub refused: Option<Box<RefusedVerb>>,
    /// The cause for the log; it is never shown.
    pub cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// A field of a request and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// Which field.
    pub name: FieldName,
    /// What is wrong, as the part of a sentence that follows the name.
    pub problem: String,
}

/// The name of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldName {
    /// As the core calls it. A front whose clients know it by another name translates it.
    Core(String),
    /// As the client wrote it.
    Request(String),
}

/// The part of the server that refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorSource {
    /// The front or the service.
    #[default]
    Server,
    /// Work inside a sandbox.
    Sandbox,
}

impl ApiError {
    /// An error with a text that is safe to show.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            status: None,
            message: message.into(),
            field: None,
            hint: None,
            vendor_code: None,
            source: ErrorSource::Server,
            retry_after_s: None,
            refused: None,
            cause: None,
        }
    }

    /// An invalid request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    /// A wrong field, by the name that the client uses.
    pub fn field(name: impl Into<String>, problem: impl Into<String>) -> Self {
        let (name, problem) = (name.into(), problem.into());
        let message = format!("{name}: {problem}");
        Self {
            field: Some(Box::new(InvalidField { name: FieldName::Request(name), problem })),
            ..Self::invalid(message)
        }
    }

    /// A missing or wrong key.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(Code::Unauthenticated, message)
    }

    /// A part of a vendor's API that this server does not support.
    pub fn not_available(what: &str, why: &str, page: &str) -> Self {
        Self::new(Code::Unsupported, format!("{what} is not available here: {why} ({page})"))
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Replaces the status of the code.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// Replaces the text, with the hint and the field that belong to it.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self.hint = None;
        self.field = None;
        self
    }

    /// Marks the error as one of work inside a sandbox.
    #[must_use]
    pub fn from_sandbox(mut self) -> Self {
        self.source = ErrorSource::Sandbox;
        self
    }

    /// Keeps the cause for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// The kind of the failure.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.code.kind()
    }

    /// The status: its own, or the documented one of its code.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status.unwrap_or_else(|| {
            StatusCode::from_u16(self.code.documented_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        })
    }

    /// The text with the hint in parentheses, for clients that show the text alone. `name_of` is the client's name of a core
    /// field.
    #[must_use]
    pub fn sentence(&self, name_of: impl Fn(&str) -> Option<String>) -> String {
        let message = match self.field_named(name_of) {
            Some((name, problem)) => format!("{name}: {problem}"),
            None => self.message.clone(),
        };
        match &self.hint {
            Some(hint) => format!("{message} ({hint})"),
            None => message,
        }
    }

    /// The same for users of a vendor's SDK, where the core's hint names commands and queries of Atoll's own: `templates` says how that
    /// SDK finds templates.
    #[must_use]
    pub fn sentence_for_sdk(&self, name_of: impl Fn(&str) -> Option<String>, templates: &str) -> String {
        let is_command = self.hint.as_deref().is_none_or(|hint| hint.contains("atoll template ls"));
        match self.code {
            Code::TemplateNotFound if is_command => format!("{} ({templates})", self.message),
            Code::TemplateNotReady => {
                format!("{} (create the sandbox again when Retry-After has passed)", self.message)
            }
            _ => self.sentence(name_of),
        }
    }

    /// The field that the error is about, by the name that it was given.
    #[must_use]
    pub fn field_name(&self) -> Option<&str> {
        self.field.as_ref().map(|field| match &field.name {
            FieldName::Core(name) | FieldName::Request(name) => name.as_str(),
        })
    }

    /// The client's name of the field, and the problem. `None` if the error has no field, or one of the core that the
    /// client has no name for.
    pub fn field_named(&self, name_of: impl Fn(&str) -> Option<String>) -> Option<(String, &str)> {
        let field = self.field.as_ref()?;
        let name = match &field.name {
            FieldName::Request(name) => name.clone(),
            FieldName::Core(name) => name_of(name)?,
        };
        Some((name, &field.problem))
    }

    /// Writes `Retry-After` if the error has a time to retry.
    pub fn write_retry_after(&self, status: StatusCode, headers: &mut HeaderMap) {
        let is_busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        // LIMIT: 429 and 503 always have a time to retry; a second is the minimum.
        if let Some(seconds) = self.retry_after_s.or(is_busy.then_some(1)) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
    }
}

impl IntoResponse for ApiError {
    /// The response has no body: [`crate::MountedFront`] makes the front write it.
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        let field = error.field.as_ref().map(|field| {
            Box::new(InvalidField {
                name: FieldName::Core(field.name.clone()),
                problem: field.problem.clone(),
            })
        });
        Self {
            field,
            hint: error.hint.clone(),
            retry_after_s: error.retry_after_s,
            refused: error.refused.clone(),
            cause: Some(Arc::new(error.clone())),
            ..Self::new(error.code, error.message)
        }
    }
}

impl From<ToolboxError> for ApiError {
    fn from(error: ToolboxError) -> Self {
        let status = match error.kind() {
            ErrorKind::Forbidden => Some(StatusCode::FORBIDDEN),
            ErrorKind::Conflict => Some(StatusCode::CONFLICT),
            _ => None,
        };
        Self {
            status,
            source: ErrorSource::Sandbox,
            hint: error.hint().map(str::to_owned),
            ..Self::new(error.code(), error.to_string())
        }
        .caused_by(error)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn their_name(core: &str) -> Option<String> {
        (core == "cpu").then(|| "vcpu".to_owned())
    }

    #[test]
    fn the_front_names_a_field_of_the_core() {
        let of = |name: &str| {
            let error = ServiceError::field(name, "must be more than 0").hint("try 1");
            ApiError::from(error).sentence(their_name)
        };
        assert_eq!(of("cpu"), "vcpu: must be more than 0 (try 1)");
        assert_eq!(of("pids"), "pids: must be more than 0 (try 1)");
    }

    #[test]
    fn a_field_of_the_request_keeps_its_name() {
        let error = ApiError::field("cpu", "is required");
        assert_eq!(error.sentence(their_name), "cpu: is required");
        assert_eq!(error.field_named(their_name), Some(("cpu".to_owned(), "is required")));
    }

    #[test]
    fn an_exhausted_server_says_when_to_try_again() {
        let seconds = |error: ApiError| {
            let mut headers = HeaderMap::new();
            error.write_retry_after(error.status(), &mut headers);
            headers.get(header::RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(seconds(ApiError::new(Code::NoCapacity, "full")).as_deref(), Some("1"));
        let later = ServiceError::new(Code::NoCapacity, "full").retry_after(30);
        assert_eq!(seconds(later.into()).as_deref(), Some("30"));
        assert_eq!(seconds(ApiError::invalid("wrong")), None);
    }
}
