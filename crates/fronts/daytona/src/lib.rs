//! The Daytona front: what the vendor's own SDKs call, translated into our verbs.
//!
//! ```text
//! /daytona/api/…             ─► the main API: sandboxes, snapshots, volumes, secrets, … (`DAYTONA_API_URL`)
//! /daytona/api/socket.io/    ─► the notification socket, so that waits end with the event
//! /daytona/toolbox/ID/…      ─► the toolbox of one sandbox: processes, files, git, terminals
//! /daytona/s3/BUCKET/KEY     ─► where contexts of builds are put
//! ```
//!
//! One file per noun, its wire types beside its handlers. Numbers that the Python SDK wants whole are whole, since it refuses
//! any other. What is not there answers 501 and is named in `docs/fronts/daytona.md`.
//!
//! Never: holds a rule of its own, touches the store or a provider, logs a header, a body or a key.

mod account;
mod auth;
mod bases;
mod builds;
mod drafts;
mod error;
mod input;
mod metrics;
mod missing;
mod naming;
mod network;
mod observe;
mod origin;
mod output;
mod pools;
mod previews;
mod sandboxes;
mod secrets;
mod snapshots;
mod socket;
mod states;
mod storage;
mod toolbox;
mod volumes;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use atoll_service::Service;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::Uri;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Where the front is mounted.
pub const PREFIX: &str = "/daytona";

/// What the front must be told.
#[derive(Clone)]
pub struct Options {
    /// Cancelled when the server closes: sockets and terminals end.
    pub closing: CancellationToken,
    /// How a sandbox's own host is written at this moment.
    pub hosts: Arc<dyn Fn() -> Hosts + Send + Sync>,
    /// A folder of this front alone, for contexts of builds on their way.
    pub folder: PathBuf,
    /// The most that one of them may hold.
    pub context_bytes: u64,
}

/// How a sandbox's own host is written: `SCHEME://LABEL.DOMAIN:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// The name below which sandboxes have theirs, over plain HTTP.
    pub domain: String,
    /// The port of plain HTTP.
    pub port: u16,
    /// The same over TLS; `None`: the server has no certificate.
    pub tls: Option<TlsHosts>,
}

/// How a sandbox's own host is written over TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsHosts {
    /// The name below which sandboxes have theirs.
    pub domain: String,
    /// The port.
    pub port: u16,
    /// The operator brought the certificate, so clients can be expected to trust it. Otherwise it is from `atoll tls init`.
    pub is_operators: bool,
}

impl Hosts {
    /// The address of a sandbox's host for a client that came by TLS or not. A client that came by plain HTTP is not sent to a
    /// certificate that it may not know.
    pub(crate) fn url(&self, came_by_tls: bool, label: &str) -> String {
        match &self.tls {
            Some(tls) if came_by_tls || tls.is_operators => {
                format!("https://{label}.{}:{}", tls.domain, tls.port)
            }
            _ => format!("http://{label}.{}:{}", self.domain, self.port),
        }
    }
}

/// What every handler can reach.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) service: Service,
    pub(crate) options: Options,
    pub(crate) toolbox: toolbox::State,
    /// Sandboxes that wait for their builds.
    pub(crate) drafts: drafts::Drafts,
    /// Failed builds that their users deleted.
    pub(crate) forgotten: snapshots::Forgotten,
    /// Contexts of builds.
    pub(crate) storage: storage::Storage,
    /// Places for connected sockets.
    pub(crate) sockets: Arc<Semaphore>,
}

/// The front. Cloning is cheap.
#[derive(Clone)]
pub struct Daytona {
    routes: Router,
}

impl Daytona {
    /// A front over a service.
    #[must_use]
    pub fn new(service: Service, options: Options) -> Self {
        let storage = storage::Storage::new(
            options.folder.join("contexts"),
            options.context_bytes,
            Some(service.clone()),
        );
        let app = App {
            service,
            options,
            toolbox: toolbox::State::default(),
            drafts: drafts::Drafts::default(),
            forgotten: snapshots::Forgotten::default(),
            storage,
            sockets: socket::places(),
        };
        let routes = Router::new()
            .nest("/api", api())
            .merge(storage::routes())
            .nest("/toolbox/{sandbox}", toolbox::routes())
            .method_not_allowed_fallback(observe::method_not_allowed)
            .fallback(observe::route_not_found)
            .layer(axum::middleware::from_fn(observe::observe))
            .with_state(app);
        Self { routes }
    }

    /// Whether a path is one of this front's.
    #[must_use]
    pub fn takes(path: &str) -> bool {
        path.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Answers a request to a path that [`Daytona::takes`].
    pub async fn answer(&self, mut request: Request) -> Response {
        *request.uri_mut() = inner(request.uri());
        match self.routes.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// The main API.
fn api() -> Router<App> {
    Router::new()
        .merge(sandboxes::routes())
        .merge(previews::routes())
        .merge(snapshots::routes())
        .merge(volumes::routes())
        .merge(secrets::routes())
        .merge(pools::routes())
        .merge(metrics::routes())
        .merge(storage::api_routes())
        .merge(account::routes())
        .merge(socket::routes())
        .merge(missing::routes())
}

/// The path below our prefix, encoded as it was.
fn inner(uri: &Uri) -> Uri {
    let path = uri.path().strip_prefix(PREFIX).unwrap_or(uri.path());
    let path = if path.is_empty() { "/".into() } else { old_toolbox(path) };
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.into_owned(),
    };
    // A part of a path that was one is one.
    target.parse().unwrap_or_else(|_| Uri::from_static("/"))
}

/// COMPAT(daytona): older SDKs have the toolbox below the main API, as `/toolbox/ID/toolbox/…`.
fn old_toolbox(path: &str) -> Cow<'_, str> {
    let inside = path.strip_prefix("/api/toolbox/").and_then(|rest| rest.split_once("/toolbox/"));
    match inside {
        Some((id, rest)) if !id.contains('/') => format!("/toolbox/{id}/{rest}").into(),
        _ => path.into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_prefix_are_taken() {
        for path in ["/daytona", "/daytona/", "/daytona/api/sandbox"] {
            assert!(Daytona::takes(path), "{path}");
        }
        for path in ["/", "/daytonax", "/v1/daytona", "//daytona"] {
            assert!(!Daytona::takes(path), "{path}");
        }
    }

    #[test]
    fn encoded_slashes_stay() {
        for (outer, wanted) in [
            ("/daytona/api/sandbox?a=1", "/api/sandbox?a=1"),
            ("/daytona/api/snapshots/a%2Fb", "/api/snapshots/a%2Fb"),
            ("/daytona/api/toolbox/abc/toolbox/files?path=x", "/toolbox/abc/files?path=x"),
            ("/daytona/toolbox/abc/files/info", "/toolbox/abc/files/info"),
            ("/daytona", "/"),
        ] {
            assert_eq!(inner(&outer.parse().unwrap()).to_string(), wanted, "{outer}");
        }
    }
}
