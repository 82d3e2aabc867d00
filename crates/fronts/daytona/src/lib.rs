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

mod auth;
mod error;
mod input;
mod observe;
mod output;
mod toolbox;

use std::path::PathBuf;
use std::sync::Arc;

use atoll_service::Service;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::Uri;
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
}

/// How a sandbox's own host is written: `SCHEME://LABEL.DOMAIN:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// `https`, or `http` where no certificate is there.
    pub scheme: &'static str,
    /// The name below which sandboxes have theirs.
    pub domain: String,
    /// Where that is listened on.
    pub port: u16,
}

/// What every handler can reach.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) service: Service,
    pub(crate) options: Options,
    pub(crate) toolbox: toolbox::State,
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
        let app = App { service, options, toolbox: toolbox::State::default() };
        let routes = Router::new().nest("/toolbox/{sandbox}", toolbox::routes());
        let routes = routes
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

/// The path below our prefix, encoded as it was.
fn inner(uri: &Uri) -> Uri {
    let path = uri.path().strip_prefix(PREFIX).unwrap_or(uri.path());
    let path = if path.is_empty() { "/" } else { path };
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    // A part of a path that was one is one.
    target.parse().unwrap_or_else(|_| Uri::from_static("/"))
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
            ("/daytona", "/"),
        ] {
            assert_eq!(inner(&outer.parse().unwrap()).to_string(), wanted, "{outer}");
        }
    }
}
