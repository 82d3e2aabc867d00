//! The SDK's desktop client, which calls the own host of a sandbox. No template has a display yet, so every call gets one typed
//! refusal.

use atoll_front_kit::{ApiError, Caller};
use axum::Router;
use axum::http::HeaderMap;
use axum::routing::any;

use crate::Leap0App;
use crate::error::not_here;

/// The calls of the SDK's desktop client, on the own host of a sandbox.
pub(crate) fn routes() -> Router<Leap0App> {
    Router::new().route("/api/{*call}", any(async |_: Caller| refusal()))
}

/// Whether a request to a sandbox's own host is a call of the SDK's desktop client. An app in the sandbox may have the same
/// paths; requests to it do not carry the SDK's own header.
pub(crate) fn is_desktop_call(path: &str, headers: &HeaderMap) -> bool {
    let Some(call) = path.strip_prefix("/api/") else { return false };
    let noun = call.split('/').next().unwrap_or_default();
    headers.contains_key("leap0-source")
        && matches!(
            noun,
            "display"
                | "screenshot"
                | "input"
                | "recording"
                | "recordings"
                | "healthz"
                | "status"
                | "process"
        )
}

pub(crate) fn refusal() -> ApiError {
    not_here("a desktop", "there is no template with a display yet")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_the_sdk_makes_desktop_calls() {
        let none = HeaderMap::new();
        let mut sdk = HeaderMap::new();
        sdk.insert("leap0-source", HeaderValue::from_static("sdk-python"));
        assert!(is_desktop_call("/api/display/screen", &sdk));
        assert!(is_desktop_call("/api/healthz", &sdk));
        for (path, headers) in
            [("/api/healthz", &none), ("/api/users", &sdk), ("/display", &sdk), ("/api", &sdk)]
        {
            assert!(!is_desktop_call(path, headers), "{path}");
        }
    }
}
