//! Hosts that contain a token, `<id>-<port>-<token>.<domain>`: for links that must work with any path and without a
//! key. The token is removed from everything that the app can see.

use http::header::{HOST, ORIGIN, REFERER};
use http::request::Parts;
use http::uri::{Authority, Uri};
use http::{HeaderName, HeaderValue};

/// The prefix of the service's tokens; it is omitted in a host name.
const BEGINS: &str = "apv_";
/// LIMIT: exactly the length that the service generates.
const LENGTH: usize = 32;

/// Whether a part of a label can be a token.
pub(crate) fn is_token(text: &str) -> bool {
    text.len() == LENGTH && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7'))
}

/// The token with its prefix.
pub(crate) fn whole(token: &str) -> String {
    format!("{BEGINS}{token}")
}

/// Removes the token from the host, and from the fields in which a browser sends its origin.
pub(crate) fn hide(parts: &mut Parts, token: &str) {
    for name in [HOST, ORIGIN, REFERER] {
        clean(parts, &name, token);
    }
    let Some(authority) = parts.uri.authority() else { return };
    let Ok(cleaned) = without(authority.as_str(), token).parse::<Authority>() else { return };
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.authority = Some(cleaned);
    // Only the authority changed, and it is still valid.
    parts.uri = Uri::from_parts(uri).unwrap_or_default();
}

fn clean(parts: &mut Parts, name: &HeaderName, token: &str) {
    let values: Vec<HeaderValue> = parts.headers.get_all(name).iter().cloned().collect();
    parts.headers.remove(name);
    for value in values {
        let cleaned = value.to_str().ok().map(|text| HeaderValue::from_str(&without(text, token)));
        // A value that is not text could contain the token, so it is removed.
        if let Some(Ok(cleaned)) = cleaned {
            parts.headers.append(name, cleaned);
        }
    }
}

/// Host names are case-insensitive, so the token may be in any case.
fn without(text: &str, token: &str) -> String {
    let (lower, wanted) = (text.to_ascii_lowercase(), format!("-{token}"));
    let (mut kept, mut from) = (String::with_capacity(text.len()), 0);
    while let Some(at) = lower[from..].find(&wanted) {
        kept.push_str(&text[from..from + at]);
        from += at + wanted.len();
    }
    kept.push_str(&text[from..]);
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn a_token_leaves_nothing_behind() {
        let token = "abcdefghijklmnopqrstuvwxyz234567";
        assert!(is_token(token) && !is_token(&token[1..]) && !is_token(&token.replace('a', "0")));
        let host = format!("id-80-{}.localhost:7443", token.to_uppercase());
        let request = Request::builder()
            .uri(format!("https://{host}/a?b=1"))
            .header(HOST, &host)
            .header(ORIGIN, format!("https://{host}"))
            .header(REFERER, format!("https://{host}/x"))
            .header("x-other", "kept");
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        hide(&mut parts, token);
        assert_eq!(parts.uri, "https://id-80.localhost:7443/a?b=1");
        assert_eq!(parts.headers[HOST], "id-80.localhost:7443");
        assert_eq!(parts.headers[ORIGIN], "https://id-80.localhost:7443");
        assert_eq!(parts.headers[REFERER], "https://id-80.localhost:7443/x");
        assert!(!format!("{parts:?}").to_ascii_lowercase().contains(token));
        assert_eq!(parts.headers["x-other"], "kept");
    }
}
