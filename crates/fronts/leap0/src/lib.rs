//! The Leap0 front: the API that the vendor's own SDK calls, translated into Atoll's operations.
//!
//! ```text
//! /leap0/v1/…          ─► the kit ─► route ─► Caller ─► handler ─► Service, Toolbox
//! https://ID.DOMAIN/…  ─► Leap0::on_host ─► the code interpreter, if the sandbox is one; otherwise back to the proxy
//! ```
//!
//! There is one file per resource, with its wire types beside its handlers. Statuses are exact, since the SDK treats
//! any other status as an error. Unsupported calls answer 501 and are listed in `docs/fronts/leap0.md`.
//!
//! This crate contains no rules of its own, never accesses the store or a provider, and never logs a header, a body or
//! a key.

mod desktop;
mod error;
mod filesystem;
mod git;
mod interpreter;
mod lsp;
mod missing;
mod mounts;
mod policy;
mod presigned;
mod process;
mod pty;
mod response;
mod sandboxes;
mod snapshots;
mod states;
mod system;
mod templates;

use std::sync::Arc;

use atoll_front_kit::{ApiError, Front, FrontState, Mount, MountedFront, RequestInfo};
use atoll_model::SandboxId;
use atoll_service::Service;
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::Response;
use tokio_util::sync::CancellationToken;

const LEAP0_AUTHORIZATION: HeaderName = HeaderName::from_static("leap0-authorization");

/// The settings of the front.
#[derive(Clone)]
pub struct Leap0Options {
    /// Cancelled when the server closes: terminals end.
    pub closing: CancellationToken,
    /// Returns the current form of sandbox host names.
    pub hosts: Arc<dyn Fn() -> Hosts + Send + Sync>,
}

/// The form of a sandbox's own host: `SCHEME://LABEL.DOMAIN:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// `https`, or `http` if there is no certificate.
    pub scheme: &'static str,
    /// The parent domain of sandbox hosts.
    pub domain: String,
    /// The port of the server.
    pub port: u16,
}

/// The state of every handler.
#[derive(Clone)]
struct Leap0App {
    service: Service,
    options: Leap0Options,
}

impl FrontState for Leap0App {
    fn service(&self) -> &Service {
        &self.service
    }

    /// `leap0-authorization` has precedence: a client that sends it uses the other header for another purpose. A key
    /// may also have no scheme before it.
    fn key(headers: &HeaderMap) -> Option<&str> {
        [LEAP0_AUTHORIZATION, header::AUTHORIZATION].iter().find_map(|name| {
            let text = headers.get(name)?.to_str().ok()?.trim();
            let key = match text.split_once(' ') {
                Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
                Some(_) => return None,
                None => text,
            };
            (!key.is_empty() && !key.eq_ignore_ascii_case("bearer")).then_some(key)
        })
    }

    fn missing_key() -> ApiError {
        ApiError::unauthenticated("this request needs a key: send Authorization: Bearer KEY")
    }
}

/// The front. Cloning is cheap.
#[derive(Clone)]
pub struct Leap0 {
    app: Leap0App,
    /// The front on the own hosts of sandboxes: the code interpreter.
    interpreter: MountedFront,
}

impl Leap0 {
    /// Creates the front over a service.
    #[must_use]
    pub fn new(service: Service, options: Leap0Options) -> Self {
        let app = Leap0App { service, options };
        let interpreter = MountedFront::new(InterpreterHost(app.clone()));
        Self { app, interpreter }
    }

    /// Answers a request to a sandbox's own host (without a port) if that sandbox is a code interpreter and the path
    /// one of its calls, or if it is a call of the SDK's desktop client; every other request is returned unchanged.
    pub async fn on_host(&self, sandbox: &SandboxId, request: Request) -> Result<Response, Box<Request>> {
        // A body cannot be shared between threads, so it is separated during the check.
        let (parts, body) = request.into_parts();
        let (path, headers) = (parts.uri.path(), &parts.headers);
        let is_meant = desktop::is_desktop_call(path, headers)
            || interpreter::is_meant(&self.app, sandbox, path, headers).await;
        let mut request = Request::from_parts(parts, body);
        if !is_meant {
            return Err(Box::new(request));
        }
        request.extensions_mut().insert(sandbox.clone());
        Ok(self.interpreter.call(request).await)
    }
}

impl Front for Leap0 {
    /// The SDK writes some paths with a slash at their end and some without, and follows no redirect.
    fn mount(&self) -> Mount {
        Mount::prefix("leap0", "/leap0").key_fields(&["leap0-authorization"]).trim_slashes()
    }

    fn routes(&self) -> Router {
        Router::new()
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
            .merge(missing::routes())
            .with_state(self.app.clone())
    }

    fn render_error(&self, error: &ApiError, _: &RequestInfo) -> Response {
        error::render(error)
    }
}

/// The code interpreter on the own host of a sandbox.
struct InterpreterHost(Leap0App);

impl Front for InterpreterHost {
    fn mount(&self) -> Mount {
        Mount::prefix("leap0-interpreter", "").trim_slashes()
    }

    fn routes(&self) -> Router {
        interpreter::routes().merge(desktop::routes()).with_state(self.0.clone())
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
    fn a_key_is_found_bare_by_scheme_and_in_the_vendors_own_header() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs
                .iter()
                .map(|(k, v)| (k.parse().unwrap(), HeaderValue::from_static(v)))
                .collect::<HeaderMap>()
        };
        for (pairs, wanted) in [
            (&[("authorization", "Bearer atl_1")][..], Some("atl_1")),
            (&[("authorization", "bearer   atl_1 ")], Some("atl_1")),
            (&[("authorization", "atl_1")], Some("atl_1")),
            (&[("leap0-authorization", "atl_1")], Some("atl_1")),
            (&[("leap0-authorization", "Bearer atl_1"), ("authorization", "Bearer other")], Some("atl_1")),
            (&[("authorization", "Basic Zm9v")], None),
            (&[("authorization", "Bearer ")], None),
            (&[("authorization", " ")], None),
            (&[], None),
        ] {
            assert_eq!(Leap0App::key(&headers(pairs)), wanted, "{pairs:?}");
        }
    }
}
