//! Error responses: for programs the envelope of the native API, for people a page with the same content (`wake_page.rs`).

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_model::Code;
use atoll_service::ServiceError;
use axum::body::Body;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};

use crate::proxy::PortRequest;
use crate::wake_page;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const PROGRAM_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors *";

/// The page has no script, loads nothing and sends nothing. Apps are shown in frames of other sites, and so is this page.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors *";

/// A response of the proxy instead of the app's.
#[derive(Debug, Clone)]
pub(crate) struct ProxyError {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) retry_after_s: Option<u32>,
    /// A status that is more specific than that of the code.
    pub(crate) status: Option<StatusCode>,
    /// Whether the sandbox is on its way, so that the next request may succeed.
    pub(crate) is_waking: bool,
}

impl ProxyError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            retry_after_s: None,
            status: None,
            is_waking: false,
        }
    }

    pub(crate) fn hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.to_owned());
        self
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        let documented = StatusCode::from_u16(self.code.documented_status());
        self.status.or(documented.ok()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn waking(mut self) -> Self {
        self.is_waking = true;
        self
    }

    /// The response for a program.
    pub(crate) fn render(&self) -> Response<Body> {
        let id = fresh_id();
        self.response(&id, "application/json", PROGRAM_POLICY, self.envelope(&id))
    }

    /// The response for a browser that asked for a port.
    pub(crate) fn render_page(&self, asked: &PortRequest<'_>) -> Response<Body> {
        let id = fresh_id();
        let page = wake_page::render(self, asked, self.retry_after_s(), &id);
        self.response(&id, "text/html; charset=utf-8", PAGE_POLICY, page.into_bytes())
    }

    fn retry_after_s(&self) -> Option<u32> {
        self.retry_after_s.or((self.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(1))
    }

    fn response(&self, id: &str, kind: &'static str, policy: &'static str, body: Vec<u8>) -> Response<Body> {
        let status = self.status();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(REQUEST_ID, id);
        }
        response
    }

    fn envelope(&self, id: &str) -> Vec<u8> {
        let mut envelope =
            serde_json::json!({ "code": self.code.as_str(), "message": self.message, "request_id": id });
        if let Some(hint) = &self.hint {
            envelope["hint"] = hint.as_str().into();
        }
        serde_json::to_vec(&envelope).unwrap_or_default()
    }
}

impl From<ServiceError> for ProxyError {
    fn from(error: ServiceError) -> Self {
        if error.kind() == atoll_model::ErrorKind::Internal {
            tracing::error!(code = error.code.as_str(), error = error.message, cause = ?error.cause, "preview failed");
        }
        Self {
            code: error.code,
            message: error.message,
            hint: error.hint,
            retry_after_s: error.retry_after_s,
            status: None,
            is_waking: false,
        }
    }
}

/// The reader of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// A browser that opens a page.
    Person,
    /// Anything else.
    Program,
}

impl Audience {
    pub(crate) fn of(parts: &Parts) -> Self {
        let mut accepts = parts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let looks = matches!(parts.method, Method::GET | Method::HEAD);
        let page = accepts.any(|value| value.to_ascii_lowercase().contains("text/html"));
        if looks && page { Self::Person } else { Self::Program }
    }
}

/// Unique across restarts because of its random half.
fn fresh_id() -> String {
    static START: LazyLock<u64> = LazyLock::new(|| getrandom::u64().unwrap_or_default());
    static COUNT: AtomicU64 = AtomicU64::new(1);
    format!("{:016x}p{:07x}", *START, COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::proxy::PortRequestOrigin;
    use http_body_util::BodyExt;

    async fn text(response: Response<Body>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_person_gets_a_page_that_reloads_and_a_program_an_envelope() {
        let sandbox = "k3v9x0qn2m7c1z8d5b4a".parse().unwrap();
        let asked = PortRequest { sandbox: &sandbox, port: Some(9), by: PortRequestOrigin::Host };
        let refusal = ProxyError::new(Code::PortClosed, "<b>nothing</b> there").retry_after(2);
        let page = refusal.render_page(&asked);
        assert_eq!((page.status().as_u16(), &page.headers()[RETRY_AFTER]), (503, &HeaderValue::from(2)));
        assert_eq!(page.headers()[CONTENT_SECURITY_POLICY], PAGE_POLICY);
        let page = text(page).await;
        assert!(page.contains("http-equiv=\"refresh\" content=\"2\"") && !page.contains("<b>"), "{page}");
        let answer = refusal.render();
        let id = answer.headers()[REQUEST_ID].to_str().unwrap().to_owned();
        assert_eq!(answer.headers()[CONTENT_SECURITY_POLICY], PROGRAM_POLICY);
        let envelope: serde_json::Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!(
            (envelope["code"].as_str(), envelope["request_id"].as_str()),
            (Some("port_closed"), Some(&*id))
        );
        let forbidden = ProxyError::new(Code::Forbidden, "no").render_page(&asked);
        assert!(!forbidden.headers().contains_key(RETRY_AFTER));
        assert!(!text(forbidden).await.contains("refresh"));
    }
}
