//! Checks who may open a WebSocket. A browser opens one for any page, so the page's origin is checked, and a key is
//! never implicit: it is in a header, or in the sub-protocol, the only field that a page can set.

use atoll_front_kit::{ApiError, FrontState};
use atoll_model::Code;
use atoll_model::policy::origin;
use axum::http::{HeaderMap, header};

use crate::App;

/// The sub-protocol in the server's response.
pub(super) const PROTOCOL: &str = "atoll";
const KEY_PREFIX: &str = "atoll.key.";

/// The key, from a header or from the sub-protocol `atoll.key.KEY`.
pub(super) fn key(headers: &HeaderMap) -> Option<&str> {
    App::key(headers).or_else(|| protocol_key(headers))
}

fn protocol_key(headers: &HeaderMap) -> Option<&str> {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    let mut names = offered.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    names.find_map(|name| name.trim().strip_prefix(KEY_PREFIX))
}

/// Refuses pages of other origins, whatever their key, except those that the operator allows.
pub(super) fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), ApiError> {
    let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or("unreadable"));
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    match origin::may_open_socket(origin, host, allowed) {
        true => Ok(()),
        false => Err(refused("web pages of another origin cannot open a terminal")),
    }
}

/// A request without an origin is not from a browser; then the key must be in a header.
pub(super) fn check_no_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(header::ORIGIN) || App::key(headers).is_some() {
        return Ok(());
    }
    Err(refused("a key in the sub-protocol needs an Origin; send it in a header"))
}

fn refused(message: &str) -> ApiError {
    ApiError::new(Code::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (k.parse().expect("name"), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn only_pages_of_the_same_origin_may_connect() {
        let allowed = |origin| {
            let sent = headers(&[("host", "127.0.0.1:7070"), ("origin", origin), ("x-api-key", "k")]);
            check_origin(&sent, &[]).is_ok()
        };
        assert!(allowed("http://127.0.0.1:7070"));
        for foreign in
            ["http://evil.test", "http://127.0.0.1:7071", "null", "file://", "ftp://127.0.0.1:7070", ""]
        {
            assert!(!allowed(foreign), "{foreign}");
        }
    }

    #[test]
    fn without_an_origin_the_key_must_be_in_a_header() {
        let allowed = |pairs| check_no_origin(&headers(pairs)).is_ok();
        assert!(allowed(&[("authorization", "Bearer k")]));
        assert!(allowed(&[("origin", "http://x"), ("sec-websocket-protocol", "atoll, atoll.key.k")]));
        assert!(!allowed(&[("sec-websocket-protocol", "atoll, atoll.key.k")]));
        assert!(!allowed(&[("cookie", "key=k")]));
    }

    #[test]
    fn a_key_is_found_in_the_sub_protocol() {
        assert_eq!(key(&headers(&[("sec-websocket-protocol", "atoll, atoll.key.atl_1")])), Some("atl_1"));
        assert_eq!(key(&headers(&[("sec-websocket-protocol", "atoll")])), None);
    }
}
