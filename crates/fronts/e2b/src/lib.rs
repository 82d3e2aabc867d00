//! The E2B front: what the vendor's own SDKs call, translated into our verbs.
//!
//! ```text
//! /e2b/…                     ─► E2b::answer ─► route ─► Caller ─► handler ─► Service        the control API
//! https://api.DOMAIN/…       ─► the same, without the prefix
//! port 49983 of a sandbox    ─► data: to the agent, unchanged but for credentials
//! port 49999 of a sandbox    ─► data: the code interpreter, rendered from the toolbox
//! ```
//!
//! One file per noun, its wire types beside its handlers. Statuses are exact: the Python SDK reads a body at the documented
//! code alone. What is not there answers 501 and is named in `docs/fronts/e2b.md`.
//!
//! Never: holds a rule of its own, touches the store or a provider, logs a header, a body or a key.

mod annotations;
mod auth;
mod cors;
mod data;
mod domain;
mod error;
mod input;
mod logs;
mod metrics;
mod network;
mod observe;
mod output;
mod sandboxes;
mod secrets;
mod snapshots;
mod states;
mod system;
mod templates;
mod volumes;

pub use data::{Asked, Data};
pub use templates::build_of_uuid;

use std::sync::Arc;

use atoll_service::Service;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::Uri;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Where the front is mounted.
pub const PREFIX: &str = "/e2b";

/// What the front must be told.
#[derive(Clone)]
pub struct Options {
    /// Cancelled when the server closes: streams end.
    pub closing: CancellationToken,
    /// How the hosts of sandboxes are written at this moment, as `NAME:PORT`.
    pub hosts: Arc<dyn Fn() -> Hosts + Send + Sync>,
}

/// Below which `NAME:PORT` a sandbox has its hosts, `PORT-ID.NAME:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// At the plain door.
    pub plain: String,
    /// At the TLS door, where there is a certificate.
    pub tls: Option<String>,
}

/// What every handler can reach.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) service: Service,
    pub(crate) options: Options,
}

/// The front. Cloning is cheap.
#[derive(Clone)]
pub struct E2b {
    #[allow(dead_code, reason = "the data plane reads it")]
    pub(crate) app: App,
    routes: Router,
}

impl E2b {
    /// A front over a service.
    #[must_use]
    pub fn new(service: Service, options: Options) -> Self {
        let app = App { service, options };
        let api = Router::new()
            .merge(system::routes())
            .merge(sandboxes::routes())
            .merge(network::routes())
            .merge(snapshots::routes())
            .merge(metrics::routes())
            .merge(logs::routes())
            .merge(secrets::routes())
            .merge(templates::routes())
            .merge(volumes::routes());
        let routes = api
            .method_not_allowed_fallback(observe::method_not_allowed)
            .fallback(observe::route_not_found)
            .layer(axum::middleware::from_fn(observe::observe))
            .layer(axum::middleware::from_fn(cors::allow))
            .with_state(app.clone());
        Self { app, routes }
    }

    /// Whether a path is one of this front's.
    #[must_use]
    pub fn takes(path: &str) -> bool {
        path.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Answers a request to a path that [`E2b::takes`], or to the same without the prefix on the host `api.DOMAIN`.
    pub async fn answer(&self, mut request: Request) -> Response {
        *request.uri_mut() = inner(request.uri());
        match self.routes.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// The path below our prefix, as it was written: a name of a template or a snapshot is one segment in which `/` and `:` are
/// encoded.
fn inner(uri: &Uri) -> Uri {
    let path = match uri.path().strip_prefix(PREFIX) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        Some(_) | None => uri.path(),
    };
    let path = match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    };
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    // Over HTTP/2 the authority stands here and nowhere else.
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = target.parse().ok();
    // A part of a path that was one is one.
    Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static("/"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_goes_and_encoded_slashes_stay() {
        for (outer, wanted) in [
            ("/e2b/v2/sandboxes", "/v2/sandboxes"),
            ("/e2b/sandboxes/?a=1/", "/sandboxes?a=1/"),
            ("/e2b/templates/team%2Fsnap%3Adefault", "/templates/team%2Fsnap%3Adefault"),
            ("/sandboxes", "/sandboxes"),
            ("/e2bx", "/e2bx"),
            ("/e2b", "/"),
            ("/e2b//", "/"),
            (
                "https://api.atoll.localhost:7443/v2/sandboxes?a=b",
                "https://api.atoll.localhost:7443/v2/sandboxes?a=b",
            ),
        ] {
            assert_eq!(inner(&outer.parse().unwrap()).to_string(), wanted, "{outer}");
        }
    }

    #[test]
    fn only_paths_below_the_prefix_are_taken() {
        for path in ["/e2b", "/e2b/", "/e2b/v2/sandboxes"] {
            assert!(E2b::takes(path), "{path}");
        }
        for path in ["/", "/e2bx", "/v1/e2b", "//e2b"] {
            assert!(!E2b::takes(path), "{path}");
        }
    }
}
