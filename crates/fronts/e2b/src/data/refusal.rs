//! Refusals of the data plane: the proxy's `{"sandboxId", "message", "code"}` and the agent's `{"code", "message"}`.

use atoll_model::{Code, SandboxId};
use atoll_service::ServiceError;
use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The sandbox does not exist, or is asleep and this request does not wake it.
    NotFound,
    /// No process listens on that port.
    PortClosed(u16),
    /// The ports are private, and the required credentials were not sent.
    Private,
    /// The sandbox changes from one phase to another.
    Changing,
    /// Too many requests at once.
    Busy,
    /// In the form of the agent.
    Agents(StatusCode, String),
}

/// COMPAT(e2b): the Python SDK searches for these texts.
const NOT_FOUND: &str = "The sandbox was not found";
const PORT_CLOSED: &str = "The sandbox is running but port is not open";
const TOO_MANY: &str = "too many wrong keys or tokens came from this address";
/// COMPAT(e2b): the message of envd for a request without a token.
const NO_TOKEN: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

impl Refusal {
    pub(super) fn unauthenticated() -> Self {
        Self::Agents(StatusCode::UNAUTHORIZED, NO_TOKEN.to_owned())
    }

    pub(super) fn no_route() -> Self {
        Self::Agents(StatusCode::NOT_FOUND, "404 page not found".to_owned())
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NotFound | Self::PortClosed(_) => StatusCode::BAD_GATEWAY,
            Self::Private => StatusCode::FORBIDDEN,
            Self::Changing => StatusCode::CONFLICT,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Agents(status, _) => *status,
        }
    }

    fn message(&self) -> &str {
        match self {
            Self::NotFound => NOT_FOUND,
            Self::PortClosed(_) => PORT_CLOSED,
            Self::Private => {
                "The sandbox is private: send its traffic access token in e2b-traffic-access-token"
            }
            Self::Changing => "The sandbox is changing its state, try again shortly",
            Self::Busy => "The sandbox has too many connections open",
            Self::Agents(_, message) => message,
        }
    }

    /// The response to a request that names a sandbox.
    pub(super) fn render(&self, sandbox: &SandboxId) -> Response {
        let is_agents = matches!(self, Self::Agents(..));
        self.answer((!is_agents).then(|| sandbox.as_str()))
    }

    /// The response to a request that names none.
    pub(super) fn render_plain(&self) -> Response {
        self.answer(None)
    }

    fn answer(&self, sandbox: Option<&str>) -> Response {
        #[derive(Serialize)]
        struct Said<'a> {
            #[serde(rename = "sandboxId", skip_serializing_if = "Option::is_none")]
            sandbox: Option<&'a str>,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            port: Option<u16>,
            code: u16,
        }
        let port = if let Self::PortClosed(port) = self { Some(*port) } else { None };
        let said = Said { sandbox, message: self.message(), port, code: self.status().as_u16() };
        let body = serde_json::to_vec(&said).expect("texts and numbers always serialise");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if matches!(self.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// The only map from errors of the service to refusals of the data plane.
impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        match error.code {
            Code::Unauthenticated => Self::unauthenticated(),
            Code::Forbidden => Self::Private,
            Code::SandboxNotFound | Code::Asleep | Code::PhaseConflict => Self::NotFound,
            Code::WakeFailed => Self::Changing,
            Code::SandboxExhausted | Code::QuotaExceeded => Self::Busy,
            Code::SandboxUnavailable => Self::PortClosed(super::AGENT),
            code => {
                if code.kind() == atoll_model::ErrorKind::Internal {
                    tracing::error!(code = code.as_str(), error = error.message, cause = ?error.cause, "refused");
                }
                let status = StatusCode::from_u16(code.documented_status());
                Self::Agents(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), error.message)
            }
        }
    }
}

/// Why a request does not reach an app of an existing sandbox; `None` if E2B has no code for it.
pub(super) fn of_app(code: Code, port: Option<u16>) -> Option<Refusal> {
    match code {
        // The proxy reports a sandbox of another tenant as missing; here it is known that it exists.
        Code::Unauthenticated | Code::Forbidden | Code::SandboxNotFound => Some(Refusal::Private),
        Code::Asleep | Code::PhaseConflict => Some(Refusal::NotFound),
        Code::WakeFailed => Some(Refusal::Changing),
        Code::SandboxExhausted => Some(Refusal::Busy),
        Code::RateLimited => Some(Refusal::Agents(StatusCode::TOO_MANY_REQUESTS, TOO_MANY.to_owned())),
        Code::PortClosed => port.map(Refusal::PortClosed),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn shown(refusal: Refusal) -> (u16, serde_json::Value) {
        let id: SandboxId = "abcdefghij0123456789".parse().unwrap();
        let response = refusal.render(&id);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn refusals_look_as_the_sdks_expect_them() {
        let id = "abcdefghij0123456789";
        assert_eq!(
            shown(Refusal::NotFound).await,
            (
                502,
                serde_json::json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 })
            )
        );
        let closed = serde_json::json!({
            "sandboxId": id, "message": "The sandbox is running but port is not open", "port": 80, "code": 502,
        });
        assert_eq!(shown(Refusal::PortClosed(80)).await, (502, closed));
        let (status, body) = shown(Refusal::unauthenticated()).await;
        assert_eq!((status, body["code"].as_u64(), body.get("sandboxId")), (401, Some(401), None));
    }

    #[test]
    fn asleep_and_gone_are_the_same_to_an_sdk() {
        for code in [Code::Asleep, Code::SandboxNotFound, Code::PhaseConflict] {
            assert_eq!(Refusal::from(ServiceError::new(code, "x")), Refusal::NotFound);
        }
    }
}
