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

/// The names under which a server is asked.
#[derive(Debug, Clone, Copy)]
pub struct OwnHosts<'a> {
    /// The domain of previews; names below it are the server's too.
    pub domain: &'a str,
    /// Origins that the operator allows, whose hosts are the server's too.
    pub origins: &'a [String],
    /// Whether the server listens on this machine only.
    pub listens_locally: bool,
}

impl OwnHosts<'_> {
    /// May a request name `host`? A web page can make a name of its own lead to this server, and is then of the same origin: so a
    /// request of a browser must name a host that is the server's. A server of this machine only is asked by such a name in no other
    /// case, so it refuses all other names.
    #[must_use]
    pub fn admits(&self, host: Option<&str>, origin: Option<&str>) -> bool {
        host.is_some_and(|host| self.includes(host)) || (origin.is_none() && !self.listens_locally)
    }

    fn includes(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let is_allowed = |origin: &String| {
            origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(&host))
        };
        let name = host.rsplit_once(':').map_or(host.as_str(), |(name, port)| {
            if port.bytes().all(|b| b.is_ascii_digit()) { name } else { host.as_str() }
        });
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_below = |domain: &str| {
            name.strip_suffix(domain).is_some_and(|label| label.is_empty() || label.ends_with('.'))
        };
        // An address is no name that somebody else could lead here.
        address.parse::<std::net::IpAddr>().is_ok()
            || is_below("localhost")
            || is_below(&self.domain.to_ascii_lowercase())
            || self.origins.iter().any(is_allowed)
    }
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
    fn a_foreign_host_is_refused_where_a_browser_or_nobody_would_use_it() {
        let origins = ["https://app.example:8443".to_owned()];
        let local = OwnHosts { domain: "preview.example", origins: &origins, listens_locally: true };
        let open = OwnHosts { listens_locally: false, ..local };
        for host in [
            "localhost:7070",
            "LOCALHOST",
            "atoll.localhost:7443",
            "127.0.0.1:7070",
            "192.0.2.7",
            "[::1]:7070",
            "preview.example",
            "api.preview.example:7070",
            "app.example:8443",
        ] {
            assert!(local.admits(Some(host), None) && open.admits(Some(host), Some("http://x")), "{host}");
        }
        for host in
            ["evil.example", "evil.example:7070", "evilpreview.example", "notlocalhost", "app.example", ""]
        {
            assert!(!local.admits(Some(host), None) && !local.admits(Some(host), Some("http://x")), "{host}");
            assert!(!open.admits(Some(host), Some("http://x")), "{host}");
            // A program that reaches the server by a name of the network.
            assert!(open.admits(Some(host), None), "{host}");
        }
    }

    #[test]
    fn an_origin_has_a_scheme_and_a_host_and_nothing_else() {
        assert_eq!(parse("https://App.example:8443").as_deref(), Some("https://app.example:8443"));
        for text in ["app.example", "*", "https://", "https://a/b", "https://a b", "ws://a", "null"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
