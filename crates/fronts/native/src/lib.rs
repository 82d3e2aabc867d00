//! The native REST front under `/v1`: parses, calls the service, renders.
//!
//! There is one file per resource; its wire types are in `atoll-client`. A handler takes the caller, parses, makes one
//! call and renders; it contains no rules. The OpenAPI document is generated from the same attributes as the routes
//! ([`openapi`]), and every refusal has the same envelope ([`Envelope`]).
//!
//! ```text
//! the kit: request id, span, metrics, panics ─► route ─► Caller ─► handler ─► Service
//!     └── error::render writes the envelope of an ApiError ◄──────────┘
//! ```
//!
//! This crate never accesses the store or a provider, never decides what a caller may do, and never logs a header, a
//! body or a key.

mod builds;
mod code;
mod convert;
mod docs;
mod egress;
mod error;
mod events;
mod exec;
mod files;
mod git;
mod health;
mod keys;
mod logins;
mod lsp;
mod metrics;
mod network;
mod openapi;
mod previews;
mod processes;
mod providers;
mod sandboxes;
mod secrets;
mod server;
mod sessions;
mod shutdown;
mod snapshots;
mod sse;
mod system;
mod telemetry;
mod templates;
mod tenants;
mod terminals;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
mod threads;
mod tools;
mod volumes;
mod working;

use std::sync::Arc;

use atoll_front_kit::{ApiError, Front, FrontState, Mount, RequestInfo};
use atoll_service::Service;
use axum::Router;
use axum::http::HeaderValue;
use axum::response::Response;

pub use atoll_client::errors::Envelope;
pub use error::{errors_page, status};
pub use network::read_policy;
pub use openapi::openapi;
pub use server::ServerReporter;
pub use shutdown::Shutdown;
pub use telemetry::upkeep;

/// The settings of the front.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Ends streams and terminals when the server closes; the same one closes the ports.
    pub shutdown: Shutdown,
    /// The origin of previews.
    pub previews: PreviewOrigin,
    /// Further origins whose pages may open sockets.
    pub origins: Vec<String>,
    /// What the server says about itself to its operator.
    pub reporter: ServerReporter,
}

/// The form of a preview's own host: `http://PORT-SANDBOX.DOMAIN:PORT/`.
#[derive(Debug, Clone)]
pub struct PreviewOrigin {
    /// The parent domain of previews.
    pub domain: String,
    /// The port of this server.
    pub port: u16,
}

impl Default for PreviewOrigin {
    fn default() -> Self {
        Self { domain: "localhost".to_owned(), port: 7_070 }
    }
}

/// The state of every handler.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) service: Service,
    pub(crate) shutdown: Shutdown,
    pub(crate) previews: Arc<PreviewOrigin>,
    /// The OpenAPI document, rendered once.
    pub(crate) document: Arc<str>,
    /// Further origins whose pages may open sockets.
    pub(crate) origins: Arc<[String]>,
    pub(crate) reporter: ServerReporter,
}

impl FrontState for App {
    fn service(&self) -> &Service {
        &self.service
    }

    fn missing_key() -> ApiError {
        ApiError::unauthenticated("this request needs a key")
            .hint("send Authorization: Bearer KEY or X-API-Key: KEY; make one with `atoll key create`")
    }
}

/// The front.
pub struct Native {
    routes: Router,
}

impl Native {
    /// Creates the front over a service.
    #[must_use]
    pub fn new(service: Service, options: Options) -> Self {
        telemetry::install();
        let (routes, document) = openapi::routes().split_for_parts();
        let document = openapi::render(&openapi::finish(document)).into();
        let previews = Arc::new(options.previews);
        let origins = options.origins.into();
        let reporter = options.reporter;
        let app = App { service, shutdown: options.shutdown, previews, document, origins, reporter };
        Self { routes: routes.with_state(app).layer(axum::middleware::map_response(with_version)) }
    }
}

/// Every answer names the version of the server, so that clients notice when theirs is another one.
async fn with_version(mut response: Response) -> Response {
    response.headers_mut().insert("atoll-version", HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    response
}

impl Front for Native {
    /// Every path; in the table of fronts it is the last one.
    fn mount(&self) -> Mount {
        Mount::prefix("native", "")
    }

    fn routes(&self) -> Router {
        self.routes.clone()
    }

    fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response {
        error::render(error, request)
    }
}
