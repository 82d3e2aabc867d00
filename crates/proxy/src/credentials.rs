//! What a request shows, taken out of it: keys that are ours, and what carries a token. Everything else stays for the app.
//!
//! A key is taken exactly if it verifies; the app's own `Authorization` and `X-API-Key` pass. The parameter `atoll_token`
//! and the cookie `atoll_preview` are always ours.

use atoll_model::{Code, Principal};
use atoll_service::{Service, ServiceError};
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

use crate::head::{COOKIE_NAME, TOKEN_NAME};

/// Fields in which a key is looked for; the last one is Leap0's.
const KEY_FIELDS: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("leap0-authorization")];
/// LIMIT: each costs a look at the keys.
const VALUES_MAX: usize = 8;

/// What was shown.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) keys: Vec<Principal>,
    /// From the query first, then from cookies.
    pub(crate) tokens: Vec<String>,
    /// How many of them came with the query.
    pub(crate) from_query: usize,
    /// The query without what is ours.
    pub(crate) query: Option<String>,
}

pub(crate) async fn take(service: &Service, parts: &mut Parts) -> Result<Found, ServiceError> {
    let mut found = Found::default();
    for name in &KEY_FIELDS {
        if parts.headers.contains_key(name) {
            take_keys(service, &mut parts.headers, name, &mut found.keys).await?;
        }
    }
    let (tokens, query) = parts.uri.query().map_or((vec![], None), split_query);
    found.from_query = tokens.len();
    found.query = query;
    found.tokens = tokens;
    found.tokens.extend(take_cookies(&mut parts.headers));
    found.tokens.truncate(VALUES_MAX);
    found.from_query = found.from_query.min(VALUES_MAX);
    Ok(found)
}

async fn take_keys(
    service: &Service,
    headers: &mut HeaderMap,
    name: &HeaderName,
    keys: &mut Vec<Principal>,
) -> Result<(), ServiceError> {
    let values: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    if values.len() > VALUES_MAX {
        return Err(ServiceError::new(Code::InvalidRequest, format!("{name} is there too often")));
    }
    let mut kept = Vec::with_capacity(values.len());
    for value in values {
        match key_of(&value) {
            None => kept.push(value),
            Some(key) => match service.authenticate(key).await {
                Ok(principal) => keys.push(principal),
                Err(error) if error.code == Code::Unauthenticated => kept.push(value),
                Err(error) => return Err(error),
            },
        }
    }
    headers.remove(name);
    for value in kept {
        headers.append(name, value);
    }
    Ok(())
}

/// What may be a key: behind `Bearer`, or alone.
fn key_of(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?.trim();
    match text.split_once(' ') {
        None => Some(text),
        Some((scheme, key)) => scheme.eq_ignore_ascii_case("bearer").then(|| key.trim()),
    }
}

/// Tokens, and the query without them.
fn split_query(query: &str) -> (Vec<String>, Option<String>) {
    let token = |pair: &str| pair.strip_prefix(TOKEN_NAME)?.strip_prefix('=').map(str::to_owned);
    let is_ours = |pair: &str| pair == TOKEN_NAME || token(pair).is_some();
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
    fn our_cookie_is_taken_out_from_among_the_apps() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; atoll_preview=t1; b=2"));
        headers.append(COOKIE, HeaderValue::from_static("atoll_preview=t2"));
        headers.append(COOKIE, HeaderValue::from_static("c=atoll_preview=no"));
        assert_eq!(take_cookies(&mut headers), ["t1", "t2"]);
        let left: Vec<_> = headers.get_all(COOKIE).iter().collect();
        assert_eq!(left, ["a=1; b=2", "c=atoll_preview=no"]);
    }
}
