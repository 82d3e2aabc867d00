//! Rewrites heads between a foreign client and the agent. Pure functions.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Uri, Version};

use crate::error::AgentError;

/// Hop-by-hop fields; the length is derived again from the body itself, so that both cannot disagree.
const ONE_HOP: [HeaderName; 11] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// Fields of no use to an agent that may contain secrets.
const NOT_FOR_AGENTS: [HeaderName; 5] = [
    COOKIE,
    FORWARDED,
    VIA,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static(crate::TOKEN_HEADER),
];
/// Fields that would affect more than one response, on whatever origin a browser sees it.
const BEYOND: [&str; 7] = [
    "set-cookie",
    "service-worker-allowed",
    "clear-site-data",
    "strict-transport-security",
    "alt-svc",
    "nel",
    "report-to",
];
/// The prefix of fields that are only for the host and its agent.
const OURS: &str = "atoll-";
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// Rewrites the head of a request for the agent.
pub(super) fn to_agent(parts: &mut Parts, token: HeaderValue) -> Result<(), AgentError> {
    if parts.method == Method::CONNECT {
        return Err(AgentError::Argument("an agent is no way to other hosts"));
    }
    let headers = &mut parts.headers;
    remove_one_hop(headers);
    for name in &NOT_FOR_AGENTS {
        headers.remove(name);
    }
    remove_where(headers, |name| name.starts_with(OURS) || name.starts_with(FORWARDED_PREFIX));
    // Last, so that no field of the client can affect them.
    headers.insert(HOST, HeaderValue::from_static("agent"));
    headers.insert(crate::TOKEN_HEADER, token);
    let target = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    parts.uri = Uri::from(target);
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    Ok(())
}

/// Rewrites the head of a response for the client.
pub(super) fn from_agent(headers: &mut HeaderMap) {
    // The length stays: it is the announced size, and the writer of the response checks it.
    let length = headers.get(CONTENT_LENGTH).cloned();
    remove_one_hop(headers);
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length);
    }
    for name in BEYOND {
        headers.remove(name);
    }
    remove_where(headers, |name| name.starts_with(OURS));
}

fn remove_one_hop(headers: &mut HeaderMap) {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> =
        values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in ONE_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

fn remove_where(headers: &mut HeaderMap, is_out: impl Fn(&str) -> bool) {
    let out: Vec<HeaderName> = headers.keys().filter(|name| is_out(name.as_str())).cloned().collect();
    for name in out {
        headers.remove(name);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::Request;

    use super::*;

    fn sent(uri: &str, pairs: &[(&'static str, &'static str)]) -> Parts {
        let mut parts = Request::builder().uri(uri).body(()).unwrap().into_parts().0;
        for (name, value) in pairs {
            parts.headers.append(*name, HeaderValue::from_static(value));
        }
        to_agent(&mut parts, HeaderValue::from_static("agents-own")).unwrap();
        parts
    }

    #[test]
    fn what_is_shown_outside_never_comes_in_and_the_agents_token_cannot_be_named_away() {
        let parts = sent(
            "http://h/x",
            &[
                ("x-access-token", "users"),
                ("x-access-token", "second"),
                ("connection", "x-access-token, host, close"),
                ("cookie", "a=1"),
                ("x-api-key", "e2b_key"),
                ("atoll-init", "1"),
                ("atoll-file-rights", "root"),
                ("x-forwarded-for", "6.6.6.6"),
                ("authorization", "Basic cm9vdDo="),
            ],
        );
        let tokens: Vec<_> = parts.headers.get_all("x-access-token").iter().collect();
        assert_eq!(tokens, ["agents-own"]);
        assert_eq!(parts.headers["host"], "agent");
        assert_eq!(parts.headers["authorization"], "Basic cm9vdDo=");
        for gone in
            ["cookie", "x-api-key", "atoll-init", "atoll-file-rights", "x-forwarded-for", "connection"]
        {
            assert!(!parts.headers.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn how_long_a_body_is_cannot_be_said_twice() {
        let parts = sent(
            "/x",
            &[
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "xchunked"),
                ("content-length", "5"),
                ("content-length", "6"),
                ("te", "trailers"),
                ("trailer", "x-access-token"),
                ("expect", "100-continue"),
                ("upgrade", "h2c"),
            ],
        );
        assert_eq!(parts.headers.len(), 2, "{:?}", parts.headers);
    }

    #[test]
    fn path_and_query_go_as_they_are_written() {
        let parts = sent("http://evil:1/a%2Fb/../c?path=%2F&x", &[]);
        assert_eq!(parts.uri.to_string(), "/a%2Fb/../c?path=%2F&x");
    }

    #[test]
    fn an_answer_keeps_its_length_and_loses_what_is_ours() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-length", "3"),
            ("connection", "close, content-length, x-odd"),
            ("x-odd", "1"),
            ("atoll-mode", "644"),
            ("set-cookie", "a=1"),
            ("content-range", "bytes 0-2/9"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        from_agent(&mut headers);
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert_eq!(
            (&headers["content-length"], &headers["content-range"]),
            (&HeaderValue::from_static("3"), &HeaderValue::from_static("bytes 0-2/9"))
        );
    }
}
