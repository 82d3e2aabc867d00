//! The data plane: requests of SDKs to a sandbox's own ports.
//!
//! ```text
//! port 49983 ─► envd: token or signature checked ─► awake ─► the agent, with its own token ─► its response, unchanged
//! port 49999 ─► interpreter: token checked ─► awake ─► toolbox::Interpreter ─► JSON lines
//! any other  ─► the proxy; its refusals get E2B's form here
//! ```
//!
//! This module never forwards an unknown route, never accepts a token of another sandbox, and never wakes a sandbox
//! before the caller is authenticated.

mod awake;
mod connect_stream;
mod envd;
mod files;
mod interpreter;
mod refusal;

use std::sync::Arc;

use atoll_front_kit::{ApiError, Front, Mount, RequestInfo, cors};
use atoll_model::{Code, Lease, SandboxId};
use atoll_service::Service;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use http::StatusCode;

use crate::{annotations, error};
use refusal::Refusal;

/// The port at which the SDKs expect the agent.
const AGENT: u16 = atoll_service::AGENT_PORT;
/// The port at which the SDKs, and programs inside, expect the code interpreter.
const INTERPRETER: u16 = 49_999;

/// A port of a sandbox, as a request names it.
#[derive(Debug, Clone, Copy)]
pub struct DataRequest<'a> {
    /// The sandbox. Its existence is not checked yet.
    pub sandbox: &'a SandboxId,
    /// The port; `None`: the sandbox's own.
    pub port: Option<u16>,
    /// Whether the request uses the headers that only E2B's SDKs send.
    pub by_fields: bool,
}

/// The data plane of the front. Cloning is cheap.
#[derive(Clone)]
pub struct Data {
    service: Service,
}

impl Data {
    /// Creates the data plane over a service.
    #[must_use]
    pub fn new(service: Service) -> Self {
        Self { service }
    }

    /// The port of the code interpreter, at which programs inside find it too.
    #[must_use]
    pub const fn interpreter_port() -> u16 {
        INTERPRETER
    }

    /// Whether a request to this port may be answered here.
    #[must_use]
    pub fn wants(port: Option<u16>) -> bool {
        matches!(port, Some(AGENT | INTERPRETER))
    }

    /// Answers a request to a port that [`Data::wants`]; a request for an app in the sandbox is returned unchanged.
    pub async fn take(&self, asked: DataRequest<'_>, request: Request) -> Result<Response, Box<Request>> {
        let is_agents = asked.port == Some(AGENT);
        if !is_agents && !self.interprets(&asked, request.uri().path()) {
            return Err(Box::new(request));
        }
        if let Some(answer) = cors::preflight(request.method(), request.headers()) {
            return Ok(answer);
        }
        let answer = match is_agents {
            true => self.envd(asked.sandbox, request).await,
            false => self.interpret(asked.sandbox, request).await,
        };
        let mut response = answer.unwrap_or_else(|refusal| refusal.render(asked.sandbox));
        cors::allow_reading(response.headers_mut());
        Ok(response)
    }

    /// The refusal of a request to an app in E2B's form; `None` if the sandbox was not created through this front.
    ///
    /// A sandbox of this front that was deleted is reported as such, since its existence was visible to every caller
    /// while it existed. Unknown ids and sandboxes that the caller may not see get the same answer, which is not given
    /// here.
    pub async fn refuse(&self, asked: DataRequest<'_>, code: Code) -> Option<Response> {
        let lease = self.service.access().glimpse(asked.sandbox);
        let is_made_here = |lease: &Lease| lease.annotations.contains_key(annotations::MADE);
        let is_ours = match &lease {
            Some(lease) => is_made_here(lease),
            None if asked.by_fields => false,
            None => {
                self.service.access().record_of_gone(asked.sandbox).await.as_ref().is_some_and(is_made_here)
            }
        };
        if !asked.by_fields && !is_ours {
            return None;
        }
        let refusal = match lease {
            None => Refusal::NotFound,
            // A sandbox of another front is reported as missing to a caller that may not reach it.
            Some(_) if !is_ours && is_stranger(code) => Refusal::NotFound,
            Some(_) => refusal::of_app(code, asked.port)?,
        };
        let mut response = refusal.render(asked.sandbox);
        cors::allow_reading(response.headers_mut());
        Some(response)
    }

    /// A sandbox that was created through this front. All others are treated as missing.
    fn known(&self, sandbox: &SandboxId) -> Option<Arc<Lease>> {
        self.service
            .access()
            .glimpse(sandbox)
            .filter(|lease| lease.annotations.contains_key(annotations::MADE))
    }

    /// Whether a request is for the interpreter. Only sandboxes of this front have one on that port; for others the
    /// port belongs to apps. A request of an SDK for a deleted sandbox is refused here.
    fn interprets(&self, asked: &DataRequest<'_>, path: &str) -> bool {
        interpreter::is_call(path)
            && match self.service.access().glimpse(asked.sandbox) {
                Some(lease) => lease.annotations.contains_key(annotations::MADE),
                None => asked.by_fields,
            }
    }
}

/// Signed links to files, `/files?signature=…` on any host, which name no sandbox.
pub struct SignedLinks(pub Data);

impl Front for SignedLinks {
    fn mount(&self) -> Mount {
        Mount::picked("e2b-signed-links", files::is_link).allow_any_origin()
    }

    fn routes(&self) -> Router {
        async fn follow(State(data): State<Data>, request: Request) -> Response {
            data.linked(request).await.unwrap_or_else(|refusal| refusal.render_plain())
        }
        Router::new().route(files::PATH, any(follow)).with_state(self.0.clone())
    }

    fn render_error(&self, error: &ApiError, _: &RequestInfo) -> Response {
        error::render(error)
    }
}

/// An answer without a body.
fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(axum::body::Body::empty());
    *response.status_mut() = status;
    response
}

/// Whether a caller was refused because of its credentials.
const fn is_stranger(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::Forbidden | Code::SandboxNotFound)
}
