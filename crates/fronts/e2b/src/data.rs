//! The data plane: what SDKs send to a sandbox's own ports.
//!
//! ```text
//! port 49983 ─► envd: token or signature checked ─► awake ─► the agent, its own token put in ─► its answer, unchanged
//! port 49999 ─► interpreter: token checked ─► awake ─► toolbox::Interpreter ─► JSON lines
//! any other  ─► the proxy; what it refuses is worded here
//! ```
//!
//! Never: lets a route through that it does not know, a token of a sandbox into another, or a caller wake a sandbox before it
//! is known who that is.

mod awake;
mod envd;
mod files;
mod interpreter;
mod places;
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
use places::Places;
use refusal::Refusal;

/// Where the SDKs expect the agent.
const AGENT: u16 = atoll_agentapi::AGENT_PORT;
/// Where they expect the code interpreter.
const INTERPRETER: u16 = 49_999;

/// A port of a sandbox, as a request names it.
#[derive(Debug, Clone, Copy)]
pub struct DataRequest<'a> {
    /// Of which sandbox. Nobody looked yet whether it is there.
    pub sandbox: &'a SandboxId,
    /// Which; `None`: the sandbox's own.
    pub port: Option<u16>,
    /// By the fields that only E2B's SDKs send.
    pub by_fields: bool,
}

/// The data plane of the front. Cloning is cheap.
#[derive(Clone)]
pub struct Data {
    service: Service,
    places: Arc<Places>,
}

impl Data {
    /// Over a service.
    #[must_use]
    pub fn new(service: Service) -> Self {
        Self { service, places: Arc::default() }
    }

    /// Whether a request to this port may be answered here.
    #[must_use]
    pub fn wants(port: Option<u16>) -> bool {
        matches!(port, Some(AGENT | INTERPRETER))
    }

    /// Answers a request to a port that [`Data::wants`]; what is for an app inside comes back as it was.
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

    /// Says as E2B does why a request does not reach an app; `None`: the sandbox is none of E2B's.
    ///
    /// One of E2B's that is gone is said to be gone, since while it lived everybody saw that it was there. Ids that never were
    /// and sandboxes that a stranger may not see get one and the same answer, which is not given here.
    pub async fn refuse(&self, asked: DataRequest<'_>, code: Code) -> Option<Response> {
        let lease = self.service.glimpse(asked.sandbox);
        let is_made_here = |lease: &Lease| lease.annotations.contains_key(annotations::MADE);
        let is_ours = match &lease {
            Some(lease) => is_made_here(lease),
            None if asked.by_fields => false,
            None => self.service.record_of_gone(asked.sandbox).await.as_ref().is_some_and(is_made_here),
        };
        if !asked.by_fields && !is_ours {
            return None;
        }
        let refusal = match lease {
            None => Refusal::NotFound,
            // One that is none of E2B's is not there for whoever may not reach it.
            Some(_) if !is_ours && is_stranger(code) => Refusal::NotFound,
            Some(_) => refusal::of_app(code, asked.port)?,
        };
        let mut response = refusal.render(asked.sandbox);
        cors::allow_reading(response.headers_mut());
        Some(response)
    }

    /// A sandbox that was made through this front. To strangers all others look like none.
    fn known(&self, sandbox: &SandboxId) -> Option<Arc<Lease>> {
        self.service.glimpse(sandbox).filter(|lease| lease.annotations.contains_key(annotations::MADE))
    }

    /// Only sandboxes that were made through this front have an interpreter on that port; in others it is any port. One that is
    /// gone is refused here, if its SDK asks.
    fn interprets(&self, asked: &DataRequest<'_>, path: &str) -> bool {
        interpreter::is_call(path)
            && match self.service.glimpse(asked.sandbox) {
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

/// Whether somebody was refused for what they showed.
const fn is_stranger(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::Forbidden | Code::SandboxNotFound)
}
