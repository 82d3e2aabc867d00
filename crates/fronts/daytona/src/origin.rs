//! The address at which the client reached this server. URLs in responses must use it too.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};

use crate::{DaytonaApp, Hosts, PREFIX};

/// `SCHEME://HOST` of a request; the front's prefix is appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin(String);

impl Origin {
    /// The value of `toolboxProxyUrl`.
    pub(crate) fn toolbox(&self) -> String {
        format!("{}{PREFIX}/toolbox", self.0)
    }

    /// The URL of a path of the main API.
    pub(crate) fn api(&self, path: &str) -> String {
        format!("{}{PREFIX}/api{path}", self.0)
    }

    /// The URL for uploads of build contexts.
    pub(crate) fn storage(&self) -> String {
        format!("{}{PREFIX}/s3", self.0)
    }

    /// The scheme and the host only.
    pub(crate) fn bare(&self) -> &str {
        &self.0
    }

    /// Whether the client connected by TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.0.starts_with("https://")
    }

    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self("http://127.0.0.1:7070".to_owned())
    }

    /// From the host of the request; its port tells whether TLS was used.
    fn of(headers: &HeaderMap, uri: &Uri, hosts: &Hosts) -> Self {
        let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = named.or(uri.authority().map(http::uri::Authority::as_str)).filter(|host| is_plain(host));
        let forwarded = headers.get("x-forwarded-proto").and_then(|proto| proto.to_str().ok());
        let Some(host) = host else {
            return Self(match &hosts.tls {
                Some(tls) => format!("https://{}:{}", tls.domain, tls.port),
                None => format!("http://{}:{}", hosts.domain, hosts.port),
            });
        };
        let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let scheme = match (forwarded, port) {
            (Some("https"), _) => "https",
            (_, Some(port)) if hosts.tls.as_ref().is_some_and(|tls| tls.port == port) => "https",
            _ => "http",
        };
        Self(format!("{scheme}://{host}"))
    }
}

/// Whether a host contains only characters of a host and a port, so that it is safe to put into responses.
fn is_plain(host: &str) -> bool {
    (1..=270).contains(&host.len())
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']'))
}

impl FromRequestParts<DaytonaApp> for Origin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &DaytonaApp) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers, &parts.uri, &(app.options.hosts)()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::TlsHosts;

    #[test]
    fn the_answer_leads_back_to_the_door_that_was_used() {
        let tls = TlsHosts { domain: "atoll.localhost".into(), port: 7_443, is_operators: false };
        let hosts = Hosts { domain: "localhost".into(), port: 7_070, tls: Some(tls) };
        let of = |host: Option<&str>, proto: Option<&str>| {
            let mut headers = HeaderMap::new();
            host.map(|host| headers.insert(header::HOST, host.parse().unwrap()));
            proto.map(|proto| headers.insert("x-forwarded-proto", proto.parse().unwrap()));
            Origin::of(&headers, &Uri::from_static("/api"), &hosts).toolbox()
        };
        assert_eq!(of(Some("127.0.0.1:7070"), None), "http://127.0.0.1:7070/daytona/toolbox");
        assert_eq!(of(Some("localhost:7443"), None), "https://localhost:7443/daytona/toolbox");
        assert_eq!(of(Some("box.example"), Some("https")), "https://box.example/daytona/toolbox");
        assert_eq!(of(Some("[::1]:7070"), None), "http://[::1]:7070/daytona/toolbox");
        assert_eq!(of(None, None), "https://atoll.localhost:7443/daytona/toolbox");
        assert_eq!(of(Some("a\"b"), None), "https://atoll.localhost:7443/daytona/toolbox");
    }
}
