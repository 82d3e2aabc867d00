//! Token authentication: a registry names a token server and a scope, the token server issues a token, the registry
//! accepts it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;
use url::Url;

use super::address::{UrlPolicy, host_of, unreachable};
use super::auth::Auth;
use super::error::RegistryError;
use super::session::read_bounded;

/// LIMIT: tokens have a few thousand bytes.
const ANSWER_MAX: usize = 256 << 10;

/// The authentication that a registry requires.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Credentials with every request.
    Basic,
    /// A token from a token server.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// The first supported challenge.
pub(super) fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let mut basic = None;
    for header in headers.get_all(WWW_AUTHENTICATE) {
        let Ok(challenges) = http_auth::parse_challenges(header.to_str().unwrap_or_default()) else {
            continue;
        };
        for one in challenges {
            let param = |name: &str| {
                let found = one.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped()).filter(|value| !value.is_empty())
            };
            if one.scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = param("realm")
            {
                return Some(Challenge::Bearer { realm, service: param("service"), scope: param("scope") });
            }
            if one.scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            }
        }
    }
    basic
}

/// `Authorization: Basic …`.
pub(super) fn basic(username: &str, password: &str) -> Option<HeaderValue> {
    secret_header(&format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
}

/// `Authorization: Bearer …`.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    secret_header(&format!("Bearer {token}"))
}

fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// A request for a token.
pub(super) struct TokenRequest<'a> {
    pub realm: &'a str,
    pub service: Option<&'a str>,
    /// `repository:<name>:pull` and the like.
    pub scopes: Vec<&'a str>,
}

#[derive(Deserialize)]
struct TokenResponse {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

/// Requests a token. `Ok(None)`: the token server refuses these credentials.
pub(super) async fn fetch(
    urls: &UrlPolicy,
    wanted: &TokenRequest<'_>,
    auth: &Auth,
) -> Result<Option<HeaderValue>, RegistryError> {
    let realm: Url = wanted
        .realm
        .parse()
        .map_err(|_| RegistryError::damaged("the registry's challenge", "its realm is not a URL"))?;
    // Credentials are sent to this URL, so it passes the same checks as every other.
    let client = urls.client_for(&realm)?;
    urls.check_proxied(&realm).await?;
    let mut pairs: Vec<(&str, &str)> =
        wanted.service.map(|service| ("service", service)).into_iter().collect();
    pairs.extend(wanted.scopes.iter().map(|scope| ("scope", *scope)));
    let request = match auth {
        Auth::Identity(token) => {
            let scopes = wanted.scopes.join(" ");
            pairs.retain(|(key, _)| *key != "scope");
            pairs.extend([
                ("grant_type", "refresh_token"),
                ("client_id", "atoll"),
                ("scope", scopes.as_str()),
                ("refresh_token", token.as_str()),
            ]);
            let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            client.post(realm.clone()).header("content-type", "application/x-www-form-urlencoded").body(form)
        }
        Auth::Anonymous | Auth::Basic { .. } | Auth::Bearer(_) | Auth::Operator => {
            let request = client.get(realm.clone()).query(&pairs);
            let header = match auth {
                Auth::Basic { username, password } => basic(username, password),
                _ => None,
            };
            header.into_iter().fold(request, |request, header| request.header(AUTHORIZATION, header))
        }
    };
    let response = request.send().await.map_err(|cause| unreachable(&realm, cause))?;
    let status = response.status().as_u16();
    match status {
        200 => {}
        400 | 401 | 403 | 404 => return Ok(None),
        status => {
            return Err(RegistryError::Answered { host: host_of(&realm), status, asked: "a token".into() });
        }
    }
    let what = "the token server's answer";
    let body = read_bounded(response, ANSWER_MAX, what, &realm).await?;
    let answer: TokenResponse = serde_json::from_slice(&body)
        .map_err(|_| RegistryError::damaged(what, "it is not JSON with a token"))?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
    let header = token.as_deref().and_then(bearer);
    header.map(Some).ok_or_else(|| RegistryError::damaged(what, "it contains no token"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(headers: &[&str]) -> Option<Challenge> {
        let mut map = HeaderMap::new();
        for header in headers {
            map.append(WWW_AUTHENTICATE, header.parse().unwrap());
        }
        challenge(&map)
    }

    #[test]
    fn challenges_are_read_in_every_form() {
        let bearer = |scope: Option<&str>| Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: Some("reg".into()),
            scope: scope.map(str::to_owned),
        };
        let plain = r#"Bearer realm="https://auth.example/token",service="reg""#;
        assert_eq!(read(&[plain]), Some(bearer(None)));
        let scoped = format!(r#"{plain},scope="repository:a/b:pull,push""#);
        assert_eq!(read(&[&scoped]), Some(bearer(Some("repository:a/b:pull,push"))));
        assert_eq!(read(&[r#"Basic realm="x""#, plain]), Some(bearer(None)));
        assert_eq!(read(&[&format!(r#"Basic realm="x", {plain}"#)]), Some(bearer(None)));
        assert_eq!(read(&[r#"bAsIc realm="x""#]), Some(Challenge::Basic));
        for nothing in ["", "Negotiate", "Bearer", r#"Bearer realm="""#, "\"", "Basic realm"] {
            assert!(!matches!(read(&[nothing]), Some(Challenge::Bearer { .. })), "{nothing}");
        }
    }

    #[test]
    fn a_token_with_line_ends_is_no_header() {
        assert!(bearer("a\r\nX-Evil: 1").is_none());
        assert!(bearer("abc").unwrap().is_sensitive());
    }

    #[test]
    fn any_challenge_is_read_or_passed_over() {
        atoll_robustness::check("auth_challenge", |bytes| {
            let Ok(value) = reqwest::header::HeaderValue::from_bytes(bytes) else { return };
            let found = challenge(&HeaderMap::from_iter([(WWW_AUTHENTICATE, value)]));
            if let Some(Challenge::Bearer { realm, .. }) = found {
                assert!(!realm.is_empty());
            }
        });
    }
}
