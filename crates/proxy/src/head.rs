//! Rewrites heads: removes hop-by-hop fields, sets `X-Forwarded-*`, counts hops, and removes fields from responses on
//! the API's own origin that would affect more than their page. Pure functions.

use http::header::{
    CONNECTION, CONTENT_SECURITY_POLICY, COOKIE, EXPECT, FORWARDED, HOST, HeaderName, LOCATION,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, REFERER, SET_COOKIE, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderValue};

/// Counts how often a request passed through this proxy.
pub(crate) const HOPS: HeaderName = HeaderName::from_static("x-atoll-hops");
/// The cookie that holds a token on a preview's own host.
pub(crate) const COOKIE_NAME: &str = "atoll_preview";
/// The query parameter for a token.
pub(crate) const TOKEN_NAME: &str = "atoll_token";
/// LIMIT: apps that call previews that call previews; more counts as a loop.
const HOPS_MAX: u32 = 8;
const US: &str = "atoll";

const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Fields that only the proxy may set.
const OURS: [HeaderName; 8] = [
    FORWARDED_FOR,
    FORWARDED_PROTO,
    FORWARDED_HOST,
    HeaderName::from_static("x-forwarded-port"),
    FORWARDED_PREFIX,
    HeaderName::from_static("x-forwarded-server"),
    HeaderName::from_static("x-real-ip"),
    HOPS,
];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Fields that an app may not set for the whole origin of the API.
const BEYOND_THE_PAGE: [&str; 7] = [
    "set-cookie",
    "service-worker-allowed",
    "clear-site-data",
    "strict-transport-security",
    "alt-svc",
    "nel",
    "report-to",
];
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox allow-scripts allow-forms");

/// The request is in a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProxyLoop;

/// The origin of a request, as passed to the app.
pub(crate) struct ForwardedOrigin<'a> {
    /// Its address.
    pub(crate) peer: Option<&'a HeaderValue>,
    pub(crate) is_secure: bool,
    /// The requested host.
    pub(crate) host: Option<&'a HeaderValue>,
    pub(crate) home: Home<'a>,
    pub(crate) hops: u32,
}

/// The origin on which a browser sees an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home<'a> {
    /// A separate host.
    Own,
    /// The API's origin, below this path.
    Below(&'a str),
    /// The API's origin, at any path.
    Shared,
}

/// How often the request passed through before.
pub(crate) fn hops(headers: &HeaderMap) -> Result<u32, ProxyLoop> {
    let mut counted = 0;
    for value in headers.get_all(HOPS) {
        // An unreadable value was not written by this proxy; it counts as a loop.
        let text = value.to_str().unwrap_or_default();
        counted = counted.max(text.parse::<u32>().map_err(|_| ProxyLoop)?);
    }
    let vias = headers.get_all(VIA).iter().filter_map(|via| via.to_str().ok());
    let seen = vias.flat_map(|via| via.split(',')).filter(|hop| hop.trim().ends_with(&format!(" {US}")));
    let hops = counted.max(u32::try_from(seen.count()).unwrap_or(u32::MAX));
    if hops >= HOPS_MAX { Err(ProxyLoop) } else { Ok(hops) }
}

/// The protocol that a request wants to upgrade to. Never HTTP itself: the following requests would pass unchecked.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let mut wanted = headers.get_all(UPGRADE).iter();
    let (first, second) = (wanted.next()?, wanted.next());
    let name = first.to_str().ok()?.trim();
    let plain = !name.contains(',') && !name.to_ascii_lowercase().starts_with("h2");
    (asks && second.is_none() && plain && !name.is_empty()).then(|| first.clone())
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

/// Removes fields that are meant only for the next hop.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        tokens(headers, &CONNECTION).filter_map(|token| token.parse().ok()).collect();
    remove_all(headers, &HOP_BY_HOP);
    // `Host` is kept, whatever `Connection` names.
    for name in named.into_iter().filter(|name| *name != HOST) {
        headers.remove(name);
    }
}

/// Checks first whether there is anything to remove: usually there is not, and one check costs less than a search for
/// each name.
fn remove_all(headers: &mut HeaderMap, names: &[HeaderName]) {
    if headers.keys().any(|name| names.contains(name)) {
        for name in names {
            headers.remove(name);
        }
    }
}

/// Rewrites the head of a request for the app.
pub(crate) fn to_app(headers: &mut HeaderMap, origin: &ForwardedOrigin<'_>) {
    let takes_trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    strip_hop_by_hop(headers);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // `100 Continue` has already been sent by then.
    headers.remove(EXPECT);
    headers.remove(FORWARDED);
    remove_all(headers, &OURS);
    remove_look_alikes(headers);
    let leaks =
        |value: &HeaderValue| value.as_bytes().windows(TOKEN_NAME.len()).any(|w| w == TOKEN_NAME.as_bytes());
    if headers.get_all(REFERER).iter().any(leaks) {
        headers.remove(REFERER);
    }
    if let Some(value) = origin.peer {
        headers.insert(FORWARDED_FOR, value.clone());
    }
    let scheme = if origin.is_secure { "https" } else { "http" };
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(scheme));
    if let Some(host) = origin.host {
        headers.insert(FORWARDED_HOST, host.clone());
    }
    match origin.home {
        Home::Own => join_cookies(headers),
        // Cookies of the API's origin are not for the app.
        Home::Below(_) | Home::Shared => {
            headers.remove(COOKIE);
        }
    }
    if let Home::Below(prefix) = origin.home
        && let Ok(prefix) = HeaderValue::from_str(prefix)
    {
        headers.insert(FORWARDED_PREFIX, prefix);
    }
    headers.insert(HOPS, HeaderValue::from(origin.hops + 1));
    headers.append(VIA, HeaderValue::from_static("1.1 atoll"));
}

/// `X_Forwarded_For` and the like: for an app with the rules of CGI or WSGI they are the same name.
fn remove_look_alikes(headers: &mut HeaderMap) {
    let is_ours = |name: &HeaderName| {
        let plain = name.as_str().replace('_', "-");
        OURS.iter().any(|ours| ours.as_str() == plain) || plain == FORWARDED.as_str()
    };
    let named = headers.keys().filter(|name| name.as_str().contains('_') && is_ours(name));
    for name in named.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// HTTP/2 may split cookies into several fields; HTTP/1 has one.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(one) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, one);
    }
}

/// Rewrites the head of a response for the client.
pub(crate) fn from_app(headers: &mut HeaderMap, home: Home<'_>) {
    strip_hop_by_hop(headers);
    headers.append(VIA, HeaderValue::from_static("1.1 atoll"));
    if home == Home::Own {
        keep_cookies_at_home(headers);
        return;
    }
    for name in BEYOND_THE_PAGE {
        headers.remove(name);
    }
    headers.append(CONTENT_SECURITY_POLICY, SANDBOX);
    let Home::Below(prefix) = home else { return };
    let inside = headers.get(LOCATION).and_then(|to| to.to_str().ok()).filter(|to| is_local(to));
    if let Some(to) = inside.and_then(|to| HeaderValue::from_str(&format!("{prefix}{to}")).ok()) {
        headers.insert(LOCATION, to);
    }
}

/// A path on the same host, and not on another host after `//`.
fn is_local(location: &str) -> bool {
    let mut bytes = location.bytes();
    bytes.next() == Some(b'/') && !matches!(bytes.next(), Some(b'/' | b'\\'))
}

/// Restricts an app's cookies to its own host, and removes those with the proxy's name.
fn keep_cookies_at_home(headers: &mut HeaderMap) {
    let Some(values) = headers.contains_key(SET_COOKIE).then(|| headers.get_all(SET_COOKIE)) else { return };
    let kept: Vec<HeaderValue> = values.iter().filter_map(at_home).collect();
    headers.remove(SET_COOKIE);
    for value in kept {
        headers.append(SET_COOKIE, value);
    }
}

fn at_home(cookie: &HeaderValue) -> Option<HeaderValue> {
    let is = |part: &[u8], name: &str| {
        let end = part.iter().position(|b| *b == b'=').unwrap_or(part.len());
        part[..end].trim_ascii().eq_ignore_ascii_case(name.as_bytes())
    };
    let mut parts = cookie.as_bytes().split(|b| *b == b';');
    let first = parts.next()?;
    if is(first, COOKIE_NAME) {
        return None;
    }
    let rest = parts.filter(|part| !is(part, "domain"));
    let whole: Vec<&[u8]> = std::iter::once(first).chain(rest).collect();
    HeaderValue::from_bytes(&whole.join(&b';')).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    static PEER: HeaderValue = HeaderValue::from_static("10.0.0.9");

    fn origin(prefix: Option<&str>) -> ForwardedOrigin<'_> {
        let home = prefix.map_or(Home::Own, Home::Below);
        ForwardedOrigin { peer: Some(&PEER), is_secure: false, host: None, home, hops: 0 }
    }

    #[test]
    fn what_is_for_the_next_hop_stays_here() {
        let mut map = headers(&[
            ("connection", "close, X-Secret"),
            ("connection", "keep-alive, host"),
            ("keep-alive", "timeout=5"),
            ("x-secret", "1"),
            ("te", "trailers, gzip"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "Basic eA=="),
            ("host", "a"),
            ("expect", "100-continue"),
            ("accept", "*/*"),
        ]);
        to_app(&mut map, &origin(None));
        for gone in [
            "connection",
            "keep-alive",
            "x-secret",
            "transfer-encoding",
            "upgrade",
            "proxy-authorization",
            "expect",
        ] {
            assert!(!map.contains_key(gone), "{gone}");
        }
        for (name, value) in [("te", "trailers"), ("host", "a"), ("accept", "*/*")] {
            assert_eq!(map[name], value);
        }
    }

    #[test]
    fn what_a_client_says_of_its_origin_is_replaced() {
        let mut map = headers(&[
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-host", "evil"),
            ("x-real-ip", "6.6.6.6"),
            ("x_forwarded_for", "6.6.6.6"),
            ("x-forwarded_host", "evil"),
            ("x_real_ip", "6.6.6.6"),
            ("my_own_field", "kept"),
            ("forwarded", "for=6.6.6.6"),
            ("connection", "x-forwarded-for, via"),
        ]);
        let host = HeaderValue::from_static("h");
        to_app(&mut map, &ForwardedOrigin { host: Some(&host), ..origin(None) });
        assert_eq!(map.get_all("x-forwarded-for").iter().collect::<Vec<_>>(), ["10.0.0.9"]);
        assert_eq!(map["x-forwarded-host"], "h");
        assert_eq!(map["x-forwarded-proto"], "http");
        assert_eq!((map[HOPS].to_str().unwrap(), map["via"].to_str().unwrap()), ("1", "1.1 atoll"));
        assert!(!map.contains_key("x-real-ip") && !map.contains_key("forwarded"));
        for alike in ["x_forwarded_for", "x-forwarded_host", "x_real_ip"] {
            assert!(!map.contains_key(alike), "{alike}");
        }
        assert_eq!(map["my_own_field"], "kept");
    }

    #[test]
    fn circles_are_seen_by_either_header() {
        assert_eq!(hops(&headers(&[])), Ok(0));
        assert_eq!(hops(&headers(&[("x-atoll-hops", "7")])), Ok(7));
        assert_eq!(hops(&headers(&[("x-atoll-hops", "8")])), Err(ProxyLoop));
        assert_eq!(hops(&headers(&[("x-atoll-hops", "1"), ("x-atoll-hops", "99")])), Err(ProxyLoop));
        assert_eq!(hops(&headers(&[("x-atoll-hops", "many")])), Err(ProxyLoop));
        assert_eq!(hops(&headers(&[("via", "1.1 atoll, 1.0 fred"), ("via", "1.1 atoll")])), Ok(2));
        assert_eq!(
            hops(&headers(&[(
                "via",
                "1.1 atoll, 1.1 atoll, 1.1 atoll, 1.1 atoll, 1.1 atoll, 1.1 atoll, 1.1 atoll, 1.1 atoll"
            )])),
            Err(ProxyLoop)
        );
    }

    #[test]
    fn only_a_plain_upgrade_is_one() {
        let ask = |pairs: &[(&'static str, &'static str)]| upgrade(&headers(pairs)).is_some();
        assert!(ask(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]));
        assert!(!ask(&[("upgrade", "websocket")]));
        assert!(!ask(&[("connection", "upgrade")]));
        assert!(!ask(&[("connection", "upgrade"), ("upgrade", "h2c")]));
        assert!(!ask(&[("connection", "upgrade"), ("upgrade", "websocket, h2c")]));
        assert!(!ask(&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")]));
    }

    #[test]
    fn an_answer_on_the_origin_of_the_api_keeps_to_its_page() {
        let mut map = headers(&[
            ("set-cookie", "a=1"),
            ("service-worker-allowed", "/"),
            ("clear-site-data", "\"*\""),
            ("content-security-policy", "default-src *"),
            ("location", "/login"),
        ]);
        from_app(&mut map, Home::Below("/p/x/80"));
        assert!(!map.contains_key("set-cookie") && !map.contains_key("service-worker-allowed"));
        assert!(!map.contains_key("clear-site-data"));
        let policies: Vec<_> = map.get_all("content-security-policy").iter().collect();
        assert_eq!(policies, ["default-src *", "sandbox allow-scripts allow-forms"]);
        assert_eq!(map["location"], "/p/x/80/login");
        for away in ["//evil", "/\\evil", "https://a/", "next"] {
            let mut map = headers(&[("location", away)]);
            from_app(&mut map, Home::Below("/p/x/80"));
            assert_eq!(map["location"], away);
        }
    }

    #[test]
    fn cookies_in_pieces_become_one_field() {
        let mut map = headers(&[("cookie", "a=1"), ("cookie", "b=2; c=3")]);
        to_app(&mut map, &origin(None));
        assert_eq!(map.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
    }

    #[test]
    fn cookies_stay_with_their_host() {
        let mut map = headers(&[
            ("set-cookie", "a=1; Domain=localhost; Path=/; HttpOnly"),
            ("set-cookie", "b=2; dOmAiN = .example.com;Secure"),
            ("set-cookie", "atoll_preview=x; Path=/"),
            ("set-cookie", "domain=3"),
        ]);
        from_app(&mut map, Home::Own);
        let kept: Vec<_> = map.get_all("set-cookie").iter().collect();
        assert_eq!(kept, ["a=1; Path=/; HttpOnly", "b=2;Secure", "domain=3"]);
    }

    #[test]
    fn a_page_that_was_opened_by_a_token_does_not_tell_it() {
        let mut map = headers(&[("referer", "http://h/p/x/80/?atoll_token=apv_1"), ("cookie", "a=1")]);
        to_app(&mut map, &origin(Some("/p/x/80")));
        assert!(!map.contains_key("referer") && !map.contains_key("cookie"));
        assert_eq!(map["x-forwarded-prefix"], "/p/x/80");
    }

    #[test]
    fn any_head_is_cleaned_for_both_sides() {
        atoll_robustness::check("proxied_head", |bytes| {
            let mut map = HeaderMap::new();
            for line in bytes.split(|byte| *byte == b'\n').take(100) {
                let (name, value) =
                    line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
                let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
                if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
                    map.append(name, value);
                }
            }
            let _ = (hops(&map), upgrade(&map));
            for home in [Home::Own, Home::Below("/p/x/80")] {
                from_app(&mut map.clone(), home);
            }
            to_app(&mut map, &origin(None));
            assert!(!map.contains_key(http::header::CONNECTION) && !map.contains_key(FORWARDED));
        });
    }
}
