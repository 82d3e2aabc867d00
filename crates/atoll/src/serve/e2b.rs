//! Where the E2B front is: below its path on every door, and on the host `api.DOMAIN`, from which SDKs that are told a domain
//! alone derive everything.

use std::sync::Arc;

use atoll_front_e2b::{E2b, Hosts, Options};
use atoll_service::Service;
use axum::{Router, extract::Request, http::header, middleware::Next};
use tokio_util::sync::CancellationToken;

use super::settings::Settings;

/// The front of a server whose plain port is `port`.
pub(super) fn front(settings: &Settings, service: &Service, closing: CancellationToken, port: u16) -> E2b {
    let (domain, tls) = (settings.domain.clone(), settings.tls.clone());
    let hosts = move || Hosts {
        plain: format!("{}:{port}", domain.as_str()),
        // A certificate may come while the server runs.
        tls: tls
            .as_ref()
            .filter(|tls| tls.files.certificate.exists())
            .map(|tls| format!("{}:{}", domain.for_tls(), tls.listen.port())),
    };
    E2b::new(service.clone(), Options { closing, hosts: Arc::new(hosts) })
}

/// Puts it before the other fronts.
pub(super) fn mount(fronts: Router, e2b: E2b, settings: &Settings) -> Router {
    let domain = settings.domain.clone();
    let api: Arc<[String]> = [format!("api.{}", domain.as_str()), format!("api.{}", domain.for_tls())].into();
    fronts.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        let (e2b, api) = (e2b.clone(), Arc::clone(&api));
        async move {
            match E2b::takes(request.uri().path()) || is_api(&request, &api) {
                true => e2b.answer(request).await,
                false => next.run(request).await,
            }
        }
    }))
}

/// Whether a request is for one of these names, on whatever port.
fn is_api(request: &Request, names: &[String]) -> bool {
    let said = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().host().or(said).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_end_matches('.');
    names.iter().any(|known| name.eq_ignore_ascii_case(known))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn the_name_of_the_api_is_known_on_every_port_and_no_other_is() {
        let names = ["api.localhost".to_owned(), "api.atoll.localhost".to_owned()];
        let is = |host: &str| {
            let request = Request::builder().uri("/v2/sandboxes").header(header::HOST, host);
            is_api(&request.body(Body::empty()).unwrap(), &names)
        };
        for host in ["api.localhost", "API.atoll.localhost:7443", "api.localhost."] {
            assert!(is(host), "{host}");
        }
        for host in ["localhost", "api.localhost.evil.com", "xapi.localhost", "127.0.0.1:7070", ""] {
            assert!(!is(host), "{host}");
        }
    }
}
