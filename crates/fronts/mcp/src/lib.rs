//! The MCP front: tools and resources of sandboxes for coding agents, over streamable HTTP.
//!
//! ```text
//! POST /mcp ─► Origin, key ─► message.rs: one JSON-RPC message ─► era.rs: which revision of the protocol, which client
//!                                                                  │
//!   JSON, or an event stream if it takes long ◄── stream.rs ◄── methods.rs ─► tools/, resources.rs ─► service, toolbox
//! ```
//!
//! Two eras of the protocol share the endpoint: since 2026-07-28 every request describes itself; before, `initialize` agrees on a
//! revision. In both this front holds nothing between two requests. A client that names no sandbox uses its own, which is bound
//! to a thread whose name is derived from the key and the client (`client.rs`). `atoll mcp` forwards stdio to this endpoint.
//!
//! This crate contains no rules of its own, and never accesses the store or a provider.

mod client;
mod era;
mod http;
mod message;
mod methods;
mod resources;
mod stream;
mod tools;

use std::sync::Arc;

use atoll_front_kit::{ApiError, Front, FrontState, Mount, RequestInfo, error_body};
use atoll_service::Service;
use axum::Router;
use axum::response::Response;
use axum::routing::post;

use crate::message::{RpcError, RpcId, RpcResponse};

/// The front. Cloning is cheap.
#[derive(Clone)]
pub struct Mcp {
    service: Service,
    options: Arc<McpOptions>,
}

/// The settings of the front.
#[derive(Debug, Clone, Default)]
pub struct McpOptions {
    /// The host and port of previews: `http://PORT-SANDBOX.DOMAIN:PORT/`.
    pub preview_domain: String,
    /// The port of this server.
    pub preview_port: u16,
    /// Whether this server listens on this machine only.
    pub listens_locally: bool,
    /// Further origins whose pages may call the front.
    pub origins: Vec<String>,
}

impl Mcp {
    /// Creates the front over a service.
    #[must_use]
    pub fn new(service: Service, options: McpOptions) -> Self {
        Self { service, options: Arc::new(options) }
    }
}

impl Front for Mcp {
    fn mount(&self) -> Mount {
        Mount::prefix("mcp", "/mcp").trim_slashes()
    }

    /// Only POST: there is no stream from the server, and no session that could be ended.
    fn routes(&self) -> Router {
        Router::new().route("/", post(http::receive)).with_state(self.clone())
    }

    /// A request that was refused before its message was read: an error without an id.
    fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response {
        let status = error.status();
        let rpc = RpcError::of_api(error, Some(&request.id));
        let mut response = error_body(status, &RpcResponse::Error { id: RpcId::Null, error: rpc });
        error.write_retry_after(status, response.headers_mut());
        response
    }
}

impl FrontState for Mcp {
    fn service(&self) -> &Service {
        &self.service
    }

    fn missing_key() -> ApiError {
        ApiError::unauthenticated("this request needs a key")
            .hint("send Authorization: Bearer KEY or X-API-Key: KEY; make one with `atoll key create`")
    }
}
