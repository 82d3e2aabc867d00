//! Which web pages may open a WebSocket of the API. Browsers allow any page to try, and send its origin.

/// May a page of `origin` open a socket on `host`? `None`: the client is not a browser. `allowed` are further origins,
/// as `SCHEME://HOST[:PORT]`.
#[must_use]
pub fn may_open_socket(origin: Option<&str>, host: Option<&str>, allowed: &[String]) -> bool {
    let Some(origin) = origin else { return true };
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    if !matches!(scheme, "http" | "https") || !is_plain(authority) {
        return false;
    }
    host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
        || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
}

/// A configured origin in canonical form; `None` if it is invalid.
#[must_use]
pub fn parse(text: &str) -> Option<String> {
    let (scheme, authority) = text.split_once("://")?;
    let is_origin = matches!(scheme, "http" | "https") && is_plain(authority);
    is_origin.then(|| text.to_ascii_lowercase())
}

/// A host and an optional port, and nothing else.
fn is_plain(authority: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    !authority.is_empty() && authority.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_browser_the_same_origin_and_named_ones_may() {
        let allowed = ["https://app.example".to_owned()];
        let may = |origin| may_open_socket(origin, Some("127.0.0.1:7070"), &allowed);
        for origin in
            [None, Some("http://127.0.0.1:7070"), Some("https://app.example"), Some("https://APP.example")]
        {
            assert!(may(origin), "{origin:?}");
        }
        for origin in [
            "http://evil.test",
            "http://127.0.0.1:7071",
            "http://127.0.0.1",
            "http://app.example",
            "https://app.example:444",
            "https://app.example.evil.test",
            "http://user@127.0.0.1:7070",
            "ftp://127.0.0.1:7070",
            "http://127.0.0.1:7070/",
            "null",
            "file://",
            "",
        ] {
            assert!(!may(Some(origin)), "{origin}");
        }
        assert!(!may_open_socket(Some("http://127.0.0.1:7070"), None, &[]));
    }

    #[test]
    fn an_origin_has_a_scheme_and_a_host_and_nothing_else() {
        assert_eq!(parse("https://App.example:8443").as_deref(), Some("https://app.example:8443"));
        for text in ["app.example", "*", "https://", "https://a/b", "https://a b", "ws://a", "null"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
