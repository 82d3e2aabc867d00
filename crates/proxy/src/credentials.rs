//! Extracts credentials from a request: API keys, and fields with tokens. Everything else is passed to the app.
//!
//! A key is removed only if it is valid, and so is the token of a sandbox's agent; keys are looked for in the agent's
//! field too, where they admit nobody. The app's own `Authorization`, `X-API-Key` and `X-Access-Token` are passed on. The parameter `atoll_token`, the cookie `atoll_preview` and the
//! token fields of the fronts' clients are always removed.

use std::collections::HashSet;

use atoll_model::Code;
use atoll_service::{PortAnswer, ServiceError};
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

use crate::head::{COOKIE_NAME, TOKEN_NAME};

/// Fields in which every server accepts a key; fronts add their own.
pub(crate) const KEY_FIELDS: [HeaderName; 2] = [AUTHORIZATION, HeaderName::from_static("x-api-key")];
/// Fields with a token for a sandbox's ports. COMPAT(e2b, daytona): their SDKs send them.
const TOKEN_FIELDS: [HeaderName; 2] =
    [HeaderName::from_static("e2b-traffic-access-token"), HeaderName::from_static("x-daytona-preview-token")];
/// Query parameters with such a token.
const TOKEN_NAMES: [&str; 2] = [TOKEN_NAME, "DAYTONA_SANDBOX_AUTH_KEY"];
/// Prefixes of other fields that these clients send to the proxy and not to the app.
const ASIDE: [&str; 2] = ["x-daytona-", "e2b-sandbox-"];
const AGENT_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
/// LIMIT: each value costs a lookup of a key.
const VALUES_MAX: usize = 8;

/// The credentials of a request.
#[derive(Debug, Default)]
pub(crate) struct RequestCredentials {
    /// Texts that may be keys, or the app's own.
    pub(crate) keys: Vec<String>,
    /// The field of each of them, and its place among the values of that field.
    places: Vec<(HeaderName, usize)>,
    /// Texts that may be the token of the sandbox's agent, keys, or the app's own.
    pub(crate) agent_tokens: Vec<String>,
    /// From the query first, then from fields, then from cookies.
    pub(crate) tokens: Vec<String>,
    /// How many of them came with the query.
    pub(crate) from_query: usize,
    /// How many were sent explicitly, and not automatically like cookies.
    pub(crate) by_hand: usize,
    /// The query without credentials.
    pub(crate) query: Option<String>,
}

/// Takes tokens out of a request, and copies values that may be keys.
pub(crate) fn take(key_fields: &[HeaderName], parts: &mut Parts) -> Result<RequestCredentials, ServiceError> {
    let mut found = RequestCredentials::default();
    for name in key_fields {
        copy_keys(&parts.headers, name, &mut found)?;
    }
    let (tokens, query) = parts.uri.query().map_or((vec![], None), split_query);
    found.from_query = tokens.len();
    found.query = query;
    found.tokens = tokens;
    found.tokens.extend(take_fields(&mut parts.headers));
    found.by_hand = found.tokens.len();
    found.tokens.extend(take_cookies(&mut parts.headers));
    found.tokens.truncate(VALUES_MAX);
    found.from_query = found.from_query.min(VALUES_MAX);
    found.by_hand = found.by_hand.min(VALUES_MAX);
    found.agent_tokens = agent_tokens(&parts.headers)?;
    Ok(found)
}

/// The values of the field for the token of a sandbox's agent; clients also put keys there.
fn agent_tokens(headers: &HeaderMap) -> Result<Vec<String>, ServiceError> {
    let values = headers.get_all(AGENT_TOKEN);
    if values.iter().nth(VALUES_MAX).is_some() {
        return Err(sent_too_often(&AGENT_TOKEN));
    }
    Ok(values.iter().filter_map(key_of).map(str::to_owned).collect())
}

fn sent_too_often(name: &HeaderName) -> ServiceError {
    ServiceError::new(Code::InvalidRequest, format!("{name} is sent more than {VALUES_MAX} times"))
}

impl RequestCredentials {
    /// Removes what the answer says is a credential of this server.
    pub(crate) fn hide_from_app(&self, answer: &PortAnswer, headers: &mut HeaderMap) {
        if answer.has_agent_token {
            headers.remove(AGENT_TOKEN);
        }
        let ours: Vec<&(HeaderName, usize)> = self
            .places
            .iter()
            .zip(&answer.is_key)
            .filter_map(|(place, is_key)| is_key.then_some(place))
            .collect();
        let names: HashSet<&HeaderName> = ours.iter().map(|(name, _)| name).collect();
        for name in names {
            let values: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
            headers.remove(name);
            for (at, value) in values.into_iter().enumerate() {
                if !ours.iter().any(|(ours, place)| ours == name && *place == at) {
                    headers.append(name, value);
                }
            }
        }
    }
}

fn take_fields(headers: &mut HeaderMap) -> Vec<String> {
    let is_ours = |name: &HeaderName| {
        TOKEN_FIELDS.contains(name) || ASIDE.iter().any(|prefix| name.as_str().starts_with(prefix))
    };
    if !headers.keys().any(is_ours) {
        return Vec::new();
    }
    let shown = TOKEN_FIELDS.into_iter().flat_map(|name| headers.get_all(name));
    let tokens = shown.filter_map(|token| Some(token.to_str().ok()?.to_owned())).collect();
    for name in headers.keys().filter(|name| is_ours(name)).cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
    tokens
}

fn copy_keys(
    headers: &HeaderMap,
    name: &HeaderName,
    found: &mut RequestCredentials,
) -> Result<(), ServiceError> {
    for (at, value) in headers.get_all(name).iter().enumerate() {
        if at >= VALUES_MAX {
            return Err(sent_too_often(name));
        }
        if let Some(key) = key_of(value) {
            found.keys.push(key.to_owned());
            found.places.push((name.clone(), at));
        }
    }
    Ok(())
}

/// A value that may be a key: after `Bearer`, or alone.
fn key_of(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?.trim();
    match text.split_once(' ') {
        None => Some(text),
        Some((scheme, key)) => scheme.eq_ignore_ascii_case("bearer").then(|| key.trim()),
    }
}

/// The tokens, and the query without them.
fn split_query(query: &str) -> (Vec<String>, Option<String>) {
    let token = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        TOKEN_NAMES.contains(&name).then(|| value.to_owned())
    };
    let is_ours = |pair: &str| TOKEN_NAMES.contains(&pair) || token(pair).is_some();
    let tokens: Vec<String> = query.split('&').filter_map(token).filter(|token| !token.is_empty()).collect();
    if !query.split('&').any(is_ours) {
        return (tokens, Some(query.to_owned()));
    }
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_ours(pair)).collect();
    (tokens, (!rest.is_empty()).then(|| rest.join("&")))
}

fn take_cookies(headers: &mut HeaderMap) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut kept = Vec::new();
    let mut changed = false;
    for value in headers.get_all(COOKIE) {
        let Ok(text) = value.to_str() else {
            kept.push(value.clone());
            continue;
        };
        let ours =
            |pair: &&str| pair.trim().split_once('=').is_some_and(|(name, _)| name.trim() == COOKIE_NAME);
        if !text.split(';').any(|pair| ours(&pair)) {
            kept.push(value.clone());
            continue;
        }
        changed = true;
        let (mine, rest): (Vec<&str>, Vec<&str>) = text.split(';').partition(ours);
        tokens.extend(
            mine.iter().filter_map(|pair| pair.split_once('=')).map(|(_, token)| token.trim().to_owned()),
        );
        let rest: Vec<&str> = rest.into_iter().map(str::trim).filter(|pair| !pair.is_empty()).collect();
        if !rest.is_empty() {
            kept.extend(HeaderValue::from_str(&rest.join("; ")));
        }
    }
    if changed {
        headers.remove(COOKIE);
        for value in kept {
            headers.append(COOKIE, value);
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_out_of_a_query_and_the_rest_is_left_as_it_was() {
        let cases = [
            ("a=1&b=%20+2", vec![], Some("a=1&b=%20+2")),
            ("atoll_token=x", vec!["x"], None),
            ("a=1&atoll_token=x&b", vec!["x"], Some("a=1&b")),
            ("atoll_token=x&atoll_token=y&&", vec!["x", "y"], Some("&")),
            ("atoll_token", vec![], None),
            ("a=1&DAYTONA_SANDBOX_AUTH_KEY=x&b=2", vec!["x"], Some("a=1&b=2")),
            ("atoll_tokens=1&xatoll_token=2", vec![], Some("atoll_tokens=1&xatoll_token=2")),
            ("", vec![], Some("")),
        ];
        for (query, tokens, rest) in cases {
            let (found, left) = split_query(query);
            assert_eq!(
                (found.iter().map(String::as_str).collect(), left.as_deref()),
                (tokens, rest),
                "{query}"
            );
        }
    }

    #[test]
    fn fields_that_fronts_clients_send_stay_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("e2b-traffic-access-token", "t1"),
            ("x-daytona-preview-token", "t2"),
            ("x-daytona-skip-preview-warning", "true"),
            ("e2b-sandbox-id", "x"),
            ("e2b-sandbox-port", "1"),
            ("accept", "*/*"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        assert_eq!(take_fields(&mut headers), ["t1", "t2"]);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn values_of_the_agents_field_are_read_as_keys_are() {
        let mut headers = HeaderMap::new();
        for value in ["token", "Bearer key", "Basic dXNlcjo="] {
            headers.append(AGENT_TOKEN, HeaderValue::from_static(value));
        }
        assert_eq!(agent_tokens(&headers).expect("few values"), ["token", "key"]);
        for _ in 0..VALUES_MAX {
            headers.append(AGENT_TOKEN, HeaderValue::from_static("more"));
        }
        assert_eq!(agent_tokens(&headers).expect_err("too many").code, Code::InvalidRequest);
    }

    #[test]
    fn our_cookie_is_taken_out_from_among_the_apps() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; atoll_preview=t1; b=2"));
        headers.append(COOKIE, HeaderValue::from_static("atoll_preview=t2"));
        headers.append(COOKIE, HeaderValue::from_static("c=atoll_preview=no"));
        assert_eq!(take_cookies(&mut headers), ["t1", "t2"]);
        let left: Vec<_> = headers.get_all(COOKIE).iter().collect();
        assert_eq!(left, ["a=1; b=2", "c=atoll_preview=no"]);
    }

    #[test]
    fn a_query_and_cookies_hold_no_token_after_it_was_taken() {
        atoll_robustness::check("preview_credentials", |bytes| {
            let (_, rest) = split_query(&String::from_utf8_lossy(bytes));
            assert!(rest.is_none_or(|rest| split_query(&rest).0.is_empty()));
            let Ok(cookie) = HeaderValue::from_bytes(bytes) else { return };
            let _ = key_of(&cookie);
            let mut headers = HeaderMap::from_iter([(COOKIE, cookie)]);
            take_cookies(&mut headers);
            assert!(take_cookies(&mut headers).is_empty());
        });
    }
}
