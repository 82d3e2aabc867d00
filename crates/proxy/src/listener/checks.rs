//! Checks of a request before any front or app gets it: an unambiguous head, and the origin of a page that opens a
//! WebSocket.

use atoll_model::Code;
use atoll_model::policy::origin;
use http::header::{HOST, ORIGIN, UPGRADE};
use http::{HeaderMap, HeaderName, Request, Version};

use crate::page::ProxyError;

/// Refuses a head that can be interpreted in more than one way. Of two keys, one reader uses the first and another the
/// last.
pub(super) fn ambiguous<B>(request: &Request<B>, key_fields: &[HeaderName]) -> Option<ProxyError> {
    let headers = request.headers();
    if request.version() == Version::HTTP_11 && !headers.contains_key(HOST) {
        let refusal = ProxyError::new(Code::InvalidRequest, "this HTTP/1.1 request has no Host header");
        return Some(refusal.hint("send Host with the name of the server"));
    }
    let twice = key_fields.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some())?;
    let refusal = ProxyError::new(Code::InvalidRequest, format!("{twice} is sent more than once"));
    Some(refusal.hint("send one key"))
}

/// Refuses a WebSocket of the API that a page of another origin opens, whatever key it presents.
pub(super) fn foreign_page(headers: &HeaderMap, allowed: &[String]) -> Option<ProxyError> {
    let upgrade = headers.get(UPGRADE)?.to_str().unwrap_or_default();
    if !upgrade.split(',').any(|protocol| protocol.trim().eq_ignore_ascii_case("websocket")) {
        return None;
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    let (first, second) = (origins.next(), origins.next());
    let origin = first.map(|origin| origin.to_str().unwrap_or("unreadable"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    if second.is_none() && origin::may_open_socket(origin, host, allowed) {
        return None;
    }
    let refusal =
        ProxyError::new(Code::Forbidden, "web pages of another origin cannot open WebSockets of this server");
    Some(refusal.hint("the operator can allow an origin: atoll serve --allow-origin ORIGIN"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(version: Version, fields: &[(&'static str, &'static str)]) -> Request<()> {
        let mut request = Request::builder().version(version).uri("/v1/sandboxes");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_head_has_one_host_and_one_key() {
        let names = ["authorization", "x-api-key", "leap0-authorization"];
        let key_fields = names.map(HeaderName::from_static);
        let is_fine = |version, fields: &[(&'static str, &'static str)]| {
            ambiguous(&request(version, fields), &key_fields).is_none()
        };
        assert!(is_fine(Version::HTTP_11, &[("host", "localhost"), ("authorization", "Bearer a")]));
        assert!(is_fine(Version::HTTP_10, &[]) && is_fine(Version::HTTP_2, &[]));
        assert!(!is_fine(Version::HTTP_11, &[("authorization", "Bearer a")]));
        for name in names {
            assert!(!is_fine(
                Version::HTTP_11,
                &[("host", "localhost"), (name, "Bearer a"), (name, "Bearer b")]
            ));
            assert!(!is_fine(Version::HTTP_2, &[(name, "Bearer a"), (name, "Bearer a")]));
        }
    }

    #[test]
    fn only_sockets_are_asked_for_their_origin() {
        let refused = |fields: &[(&'static str, &'static str)]| {
            let mut headers = request(Version::HTTP_11, fields).headers().clone();
            headers.insert(HOST, "127.0.0.1:7070".parse().unwrap());
            foreign_page(&headers, &[]).is_some()
        };
        assert!(!refused(&[("origin", "http://evil.test")]));
        assert!(!refused(&[("upgrade", "websocket")]));
        assert!(!refused(&[("upgrade", "websocket"), ("origin", "http://127.0.0.1:7070")]));
        for upgrade in ["websocket", "WebSocket", "h2c, websocket"] {
            assert!(refused(&[("upgrade", upgrade), ("origin", "http://evil.test")]), "{upgrade}");
        }
        let both = [("origin", "http://127.0.0.1:7070"), ("origin", "http://evil.test")];
        assert!(refused(&[("upgrade", "websocket"), both[0], both[1]]));
    }
}
