//! Errors as Leap0 writes them: `{"message", "errors": [{"field", "error"}]}`.
//!
//! The SDK chooses its class of exception by the status: 403, 404, 409 and 429 have one each.

use atoll_front_kit::{ApiError, error_body};
use atoll_model::{Code, ErrorKind};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

/// A part of Leap0's API that this server does not support.
pub(crate) fn not_here(what: &str, why: &str) -> ApiError {
    ApiError::not_available(what, why, "docs/fronts/leap0.md")
}

/// How the SDK finds templates.
const TEMPLATES: &str = "client.templates.create() makes one from an image";

#[derive(Serialize)]
struct Leap0Error<'a> {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<[Leap0FieldError<'a>; 1]>,
}

#[derive(Serialize)]
struct Leap0FieldError<'a> {
    field: String,
    error: &'a str,
}

pub(crate) fn render(error: &ApiError) -> Response {
    // For other kinds of errors the core names fields that Leap0's clients did not send, as in a conflict.
    let field = if error.kind() == ErrorKind::Invalid { error.field_named(field_name) } else { None };
    let errors = field.map(|(field, error)| [Leap0FieldError { field, error }]);
    let status = status(error);
    let refusal = error.refused.as_deref().and_then(crate::states::refusal);
    let message = refusal.unwrap_or_else(|| error.sentence_for_sdk(field_name, TEMPLATES));
    let mut response = error_body(status, &Leap0Error { message, errors });
    error.write_retry_after(status, response.headers_mut());
    response
}

fn status(error: &ApiError) -> StatusCode {
    // COMPAT(leap0): an operation that the sandbox's user may not do is 403, for which the SDK has a class.
    let is_denied = error.code == Code::InvalidArgument && error.message.contains("permission denied");
    if is_denied { StatusCode::FORBIDDEN } else { error.status() }
}

/// Leap0's name of a field of the core.
fn field_name(core: &str) -> Option<String> {
    let name = match core {
        "cpu" => "vcpu",
        "memory_mib" => "memory",
        "timeout_s" => "timeout",
        "env" => "env_vars",
        "template" => "template_name",
        "name" => "name",
        "thread" => "id",
        "cwd" => "cwd",
        _ => {
            let below = core.strip_prefix("network")?;
            let is_part = below.is_empty() || below.starts_with('.');
            return is_part.then(|| format!("network_policy{below}"));
        }
    };
    Some(name.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_service::ServiceError;
    use serde_json::{Value, json};

    async fn rendered(error: ApiError) -> Value {
        let body = axum::body::to_bytes(render(&error).into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn a_wrong_field_of_the_core_has_leap0s_name() {
        assert_eq!(field_name("cpu").as_deref(), Some("vcpu"));
        assert_eq!(field_name("network.allow_domains").as_deref(), Some("network_policy.allow_domains"));
        assert_eq!(field_name("timeout_s").as_deref(), Some("timeout"));
        assert_eq!(field_name("networks"), None);
        assert_eq!(field_name("other"), None);
    }

    #[tokio::test]
    async fn a_body_holds_a_message_and_the_fields() {
        assert_eq!(
            rendered(ApiError::field("port", "must be a port")).await,
            json!({
                "message": "port: must be a port",
                "errors": [{ "field": "port", "error": "must be a port" }],
            })
        );
        let core = ServiceError::field("cpu", "must be more than 0").hint("try 1");
        assert_eq!(
            rendered(core.into()).await,
            json!({
                "message": "vcpu: must be more than 0 (try 1)",
                "errors": [{ "field": "vcpu", "error": "must be more than 0" }],
            })
        );
        assert_eq!(
            rendered(ApiError::new(Code::SandboxNotFound, "none")).await,
            json!({ "message": "none" })
        );
    }

    #[test]
    fn errors_that_the_sdk_has_a_class_for_have_its_status() {
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
            assert_eq!(render(&ApiError::new(code, "x")).status().as_u16(), wanted, "{code:?}");
        }
    }
}
