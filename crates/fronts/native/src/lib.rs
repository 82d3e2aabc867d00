//! The native REST front under `/v1`: parses, calls the service, renders.
//!
//! One file per noun, its wire types beside its handlers. A handler takes the caller, parses, makes one call and
//! renders; it holds no rule. The OpenAPI document is emitted from the same attributes that make the routes
//! ([`openapi`]), and every refusal is one envelope ([`Envelope`]).
//!
//! ```text
//! connection (serve) ─► observe: request id, span, figures, panics ─► route ─► Caller ─► handler ─► Service
//!                                └── renders the envelope of whatever was refused ◄──────────────┘
//! ```
//!
//! Never: touches the store or a provider, decides who may do what, logs a header, a body or a key.

mod auth;
mod builds;
mod docs;
mod egress;
mod error;
mod events;
mod exec;
mod files;
mod health;
mod input;
mod keys;
mod leftover;
mod metrics;
mod network;
mod observe;
mod openapi;
mod output;
mod previews;
mod processes;
mod sandboxes;
mod secrets;
mod serve;
mod snapshots;
mod sse;
mod telemetry;
mod templates;
mod tenants;
mod terminals;
#[cfg(feature = "testing")]
pub mod testing;
mod threads;
mod upload;
mod volumes;
mod working;

use std::sync::Arc;

use atoll_service::Service;
use axum::Router;
use tokio::sync::Semaphore;

pub use error::{Envelope, errors_page, status};
pub use network::read_policy;
pub use openapi::openapi;
pub use serve::{ServeLimits, Shutdown, serve};
pub use telemetry::upkeep;

/// What the front must be told.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Ends streams and terminals when the server closes; the same one goes to [`serve`].
    pub shutdown: Shutdown,
    /// Where previews are.
    pub previews: PreviewOrigin,
    /// Further origins whose pages may open sockets.
    pub origins: Vec<String>,
}

/// How a preview's own host is written: `http://PORT-SANDBOX.DOMAIN:PORT/`.
#[derive(Debug, Clone)]
pub struct PreviewOrigin {
    /// The name below which previews live.
    pub domain: String,
    /// The port of this server.
    pub port: u16,
}

impl Default for PreviewOrigin {
    fn default() -> Self {
        Self { domain: "localhost".to_owned(), port: 7_070 }
    }
}

/// What every handler can reach.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) service: Service,
    pub(crate) shutdown: Shutdown,
    pub(crate) previews: Arc<PreviewOrigin>,
    /// The OpenAPI document, rendered once.
    pub(crate) document: Arc<str>,
    /// Places for connected terminals.
    pub(crate) sockets: Arc<Semaphore>,
    /// Further origins whose pages may open them.
    pub(crate) origins: Arc<[String]>,
}

/// All native routes, with their envelope, ids, spans and figures. Merge other fronts beside it, not inside.
pub fn router(service: Service, options: Options) -> Router {
    telemetry::install();
    let (routes, document) = openapi::routes().split_for_parts();
    let document = openapi::render(&openapi::finish(document)).into();
    let sockets = Arc::new(Semaphore::new(terminals::SOCKETS_MAX));
    let previews = Arc::new(options.previews);
    let origins = options.origins.into();
    let app = App { service, shutdown: options.shutdown, previews, document, sockets, origins };
    routes
        .method_not_allowed_fallback(observe::method_not_allowed)
        .fallback(observe::route_not_found)
        .layer(axum::middleware::from_fn(observe::observe))
        .with_state(app)
}
