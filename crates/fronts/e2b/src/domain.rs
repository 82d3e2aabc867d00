//! The parent domain of sandbox hosts in responses: a client that connected by TLS gets hosts with TLS.

use atoll_front_kit::ApiError;
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;

use crate::{E2bApp, Hosts};

/// `NAME:PORT`; a port of a sandbox is at `PORT-ID.NAME:PORT`.
pub(crate) struct Domain(pub(crate) String);

impl FromRequestParts<E2bApp> for Domain {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &E2bApp) -> Result<Self, ApiError> {
        let said = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let asked = parts.uri.authority().map(http::uri::Authority::as_str).or(said);
        Ok(Self(choose((app.options.hosts)(), asked.unwrap_or_default())))
    }
}

/// The port of the request tells whether TLS was used; TLS at its usual port has none.
fn choose(hosts: Hosts, asked: &str) -> String {
    let port = |host: &str| host.rsplit_once(':').map_or("443", |(_, port)| port).to_owned();
    match hosts.tls {
        Some(tls) if port(&tls) == port(asked) => tls,
        Some(_) | None => hosts.plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_through_tls_is_led_through_tls() {
        let hosts =
            || Hosts { plain: "localhost:7070".to_owned(), tls: Some("atoll.localhost:7443".to_owned()) };
        assert_eq!(choose(hosts(), "127.0.0.1:7070"), "localhost:7070");
        assert_eq!(choose(hosts(), "api.atoll.localhost:7443"), "atoll.localhost:7443");
        assert_eq!(choose(hosts(), ""), "localhost:7070");
        assert_eq!(choose(Hosts { tls: None, ..hosts() }, "x:7443"), "localhost:7070");
    }
}
