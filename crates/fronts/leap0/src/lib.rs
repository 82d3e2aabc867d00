//! The Leap0 front: what the vendor's own SDK calls, translated into our verbs.
//!
//! ```text
//! /leap0/v1/…          ─► Leap0::answer ─► both slash forms ─► route ─► Caller ─► handler ─► Service, Toolbox
//! https://ID.DOMAIN/…  ─► Leap0::on_host ─► the code interpreter of a sandbox that is one; else back to the proxy
//! ```
//!
//! One file per noun, its wire types beside its handlers. Statuses are exact, since the SDK takes any other for an
//! error. What is not there answers 501 and is named in `docs/fronts/leap0.md`.
//!
//! Never: holds a rule of its own, touches the store or a provider, logs a header, a body or a key.

mod auth;
mod error;
mod filesystem;
mod git;
mod input;
mod interpreter;
mod lsp;
mod missing;
mod mounts;
mod observe;
mod output;
mod policy;
mod presigned;
mod process;
mod pty;
mod sandboxes;
mod snapshots;
mod states;
mod system;
mod templates;

use std::sync::Arc;

use atoll_model::SandboxId;
use atoll_service::Service;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::Uri;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Where the front is mounted.
pub const PREFIX: &str = "/leap0";

/// What the front must be told.
#[derive(Clone)]
pub struct Options {
    /// Cancelled when the server closes: terminals end.
    pub closing: CancellationToken,
    /// How a sandbox's own host is written at this moment.
    pub hosts: Arc<dyn Fn() -> Hosts + Send + Sync>,
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
struct App {
    service: Service,
    options: Options,
    /// Terminals as Leap0 describes them.
    sessions: pty::Sessions,
    /// Places for connected terminals.
    sockets: Arc<Semaphore>,
}

/// The front. Cloning is cheap.
#[derive(Clone)]
pub struct Leap0 {
    app: App,
    routes: Router,
    /// Of the sandbox's own host.
    host_routes: Router,
}

impl Leap0 {
    /// A front over a service.
    #[must_use]
    pub fn new(service: Service, options: Options) -> Self {
        let sockets = Arc::new(Semaphore::new(pty::SOCKETS_MAX));
        let app = App { service, options, sessions: pty::Sessions::default(), sockets };
        let api = Router::new()
            .merge(sandboxes::routes())
            .merge(snapshots::routes())
            .merge(templates::routes())
            .merge(system::routes())
            .merge(presigned::routes())
            .merge(process::routes())
            .merge(pty::routes())
            .merge(filesystem::routes())
            .merge(git::routes())
            .merge(lsp::routes())
            .merge(mounts::routes())
            .merge(missing::routes());
        let routes = finish(api, &app);
        let host_routes = finish(interpreter::routes(), &app);
        Self { app, routes, host_routes }
    }

    /// Whether a path is one of this front's.
    #[must_use]
    pub fn takes(path: &str) -> bool {
        path.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Answers a request to a path that [`Leap0::takes`].
    pub async fn answer(&self, mut request: Request) -> Response {
        *request.uri_mut() = inner(request.uri());
        ask(&self.routes, request).await
    }

    /// Answers a request to a sandbox's own host (without a port) if that sandbox is a code interpreter and the path one of
    /// its calls; everything else comes back as it was.
    pub async fn on_host(&self, sandbox: &SandboxId, request: Request) -> Result<Response, Box<Request>> {
        // A body is not to be shared between threads, so it waits apart.
        let (parts, body) = request.into_parts();
        let is_meant = interpreter::is_meant(&self.app, sandbox, parts.uri.path(), &parts.headers).await;
        let mut request = Request::from_parts(parts, body);
        if !is_meant {
            return Err(Box::new(request));
        }
        *request.uri_mut() = inner(request.uri());
        request.extensions_mut().insert(sandbox.clone());
        Ok(ask(&self.host_routes, request).await)
    }
}

fn finish(routes: Router<App>, app: &App) -> Router {
    routes
        .method_not_allowed_fallback(observe::method_not_allowed)
        .fallback(observe::route_not_found)
        .layer(axum::middleware::from_fn(observe::observe))
        .with_state(app.clone())
}

async fn ask(routes: &Router, request: Request) -> Response {
    match routes.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The path below our prefix, without a slash at its end: the SDK writes some with one and some without, and follows no
/// redirect.
fn inner(uri: &Uri) -> Uri {
    let path = uri.path().strip_prefix(PREFIX).unwrap_or(uri.path());
    let path = match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    };
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
    fn both_slash_forms_are_one_path_and_encoded_slashes_stay() {
        for (outer, wanted) in [
            ("/leap0/v1/sandbox", "/v1/sandbox"),
            ("/leap0/v1/sandbox/", "/v1/sandbox"),
            ("/leap0/v1/sandbox/x/?a=1/", "/v1/sandbox/x?a=1/"),
            ("/leap0/v1/sandbox/x/pty/a%2F", "/v1/sandbox/x/pty/a%2F"),
            ("/leap0", "/"),
            ("/leap0/", "/"),
            ("/leap0//", "/"),
        ] {
            assert_eq!(inner(&outer.parse().unwrap()).to_string(), wanted, "{outer}");
        }
    }

    #[test]
    fn only_paths_below_the_prefix_are_taken() {
        for path in ["/leap0", "/leap0/", "/leap0/v1/sandbox"] {
            assert!(Leap0::takes(path), "{path}");
        }
        for path in ["/", "/leap0x", "/v1/leap0", "/leap01/v1", "//leap0"] {
            assert!(!Leap0::takes(path), "{path}");
        }
    }
}
