//! The E2B front: the API that the vendor's own SDKs call, translated into Atoll's operations.
//!
//! ```text
//! /e2b/…                     ─► the kit ─► route ─► Caller ─► handler ─► Service        the control API
//! https://api.DOMAIN/…       ─► the same, without the prefix
//! port 49983 of a sandbox    ─► data: to the agent, unchanged except for credentials
//! port 49999 of a sandbox    ─► data: the code interpreter, rendered from the toolbox
//! ```
//!
//! There is one file per resource, with its wire types beside its handlers. Statuses are exact: the Python SDK reads a
//! body only at the documented status. Unsupported calls answer 501 and are listed in `docs/fronts/e2b.md`.
//!
//! This crate contains no rules of its own, never accesses the store or a provider, and never logs a header, a body or
//! a key.

mod annotations;
mod data;
mod domain;
mod error;
mod logs;
mod metrics;
mod network;
mod sandboxes;
mod secrets;
mod snapshots;
mod states;
mod system;
mod templates;
mod volumes;

pub use data::{Data, DataRequest, SignedLinks};
pub use templates::build_of_uuid;

use std::sync::Arc;

use atoll_front_kit::{ApiError, Front, FrontState, Mount, RequestInfo, bearer};
use atoll_model::LimitsAsk;
use atoll_service::Service;
use axum::Router;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio_util::sync::CancellationToken;

/// Where the front is mounted.
const PREFIX: &str = "/e2b";

/// The settings of the front.
#[derive(Clone)]
pub struct E2bOptions {
    /// Cancelled when the server closes: streams end.
    pub closing: CancellationToken,
    /// Returns the current host names of sandboxes, as `NAME:PORT`.
    pub hosts: Arc<dyn Fn() -> Hosts + Send + Sync>,
    /// The size of sandboxes whose template has none.
    pub default_size: LimitsAsk,
    /// Hosts of the control API; SDKs that are configured with a domain alone derive them from it.
    pub api_hosts: Vec<String>,
}

/// The `NAME:PORT` below which sandboxes have their hosts, `PORT-ID.NAME:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// Over plain HTTP.
    pub plain: String,
    /// Over TLS, if there is a certificate.
    pub tls: Option<String>,
}

/// The state of every handler.
#[derive(Clone)]
pub(crate) struct E2bApp {
    pub(crate) service: Service,
    pub(crate) options: E2bOptions,
}

impl FrontState for E2bApp {
    const WRONG_KEY_HINT: Option<&'static str> =
        Some("set E2B_API_KEY; `atoll env e2b --with-key` prints one");

    fn service(&self) -> &Service {
        &self.service
    }

    /// The SDKs send `X-API-KEY`; the vendor's command line sends `Authorization: Bearer`.
    fn key(headers: &HeaderMap) -> Option<&str> {
        let key = headers.get("x-api-key").and_then(|value| value.to_str().ok()).map(str::trim);
        key.filter(|key| !key.is_empty()).or_else(|| bearer(headers))
    }

    fn missing_key() -> ApiError {
        let error = ApiError::unauthenticated("this request needs a key in X-API-KEY");
        ApiError { hint: Self::WRONG_KEY_HINT.map(str::to_owned), ..error }
    }
}

/// The control API. Cloning is cheap.
#[derive(Clone)]
pub struct E2b {
    app: E2bApp,
}

impl E2b {
    /// Creates the front over a service.
    #[must_use]
    pub fn new(service: Service, options: E2bOptions) -> Self {
        Self { app: E2bApp { service, options } }
    }
}

impl Front for E2b {
    fn mount(&self) -> Mount {
        let hosts = self.app.options.api_hosts.iter().cloned();
        Mount::prefix("e2b", PREFIX).or_hosts(hosts).trim_slashes().allow_any_origin()
    }

    fn routes(&self) -> Router {
        Router::new()
            .merge(system::routes())
            .merge(sandboxes::routes())
            .merge(network::routes())
            .merge(snapshots::routes())
            .merge(metrics::routes())
            .merge(logs::routes())
            .merge(secrets::routes())
            .merge(templates::routes())
            .merge(volumes::routes())
            .with_state(self.app.clone())
    }

    fn render_error(&self, error: &ApiError, _: &RequestInfo) -> Response {
        error::render(error)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_key_is_found_in_its_own_field_and_as_a_bearer() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(k, v)| (k.parse().unwrap(), HeaderValue::from_static(v)));
            pairs.collect::<HeaderMap>()
        };
        for (pairs, wanted) in [
            (&[("x-api-key", "e2b_1")][..], Some("e2b_1")),
            (&[("x-api-key", "e2b_1"), ("authorization", "Bearer other")], Some("e2b_1")),
            (&[("x-api-key", ""), ("authorization", "Bearer sk_1")], Some("sk_1")),
            (&[("authorization", "bearer  e2b_1 ")], Some("e2b_1")),
            (&[("authorization", "Basic dXNlcjo=")], None),
            (&[("authorization", "Bearer ")], None),
            (&[], None),
        ] {
            assert_eq!(E2bApp::key(&headers(pairs)), wanted, "{pairs:?}");
        }
    }
}
