//! The Daytona front: the API that the vendor's own SDKs call, translated into Atoll's operations.
//!
//! ```text
//! /daytona/api/…             ─► the main API: sandboxes, snapshots, volumes, secrets, … (`DAYTONA_API_URL`)
//! /daytona/api/socket.io/    ─► the notification socket, so that waits end with the event
//! /daytona/toolbox/ID/…      ─► the toolbox of one sandbox: processes, files, git, terminals
//! /daytona/s3/BUCKET/KEY     ─► uploads of build contexts
//! ```
//!
//! There is one file per resource, with its wire types beside its handlers. The Python SDK accepts some numbers as
//! integers only, so these are always integers. Unsupported calls answer 501 and are listed in
//! `docs/fronts/daytona.md`.
//!
//! This crate contains no rules of its own, never accesses the store or a provider, and never logs a header, a body or
//! a key.

mod account;
mod builds;
mod error;
mod metrics;
mod missing;
mod naming;
mod network;
mod origin;
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
mod whole_number;

use std::sync::Arc;

use atoll_front_kit::{ApiError, Front, FrontState, Mount, RequestInfo, bearer};
use atoll_service::Service;
use axum::Router;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio_util::sync::CancellationToken;

/// Where the front is mounted.
const PREFIX: &str = "/daytona";

/// The settings of the front.
#[derive(Clone)]
pub struct DaytonaOptions {
    /// Cancelled when the server closes: sockets and terminals end.
    pub closing: CancellationToken,
    /// Returns the current form of sandbox host names.
    pub hosts: Arc<dyn Fn() -> Hosts + Send + Sync>,
}

/// The form of a sandbox's own host: `SCHEME://LABEL.DOMAIN:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// The parent domain of sandbox hosts over plain HTTP.
    pub domain: String,
    /// The port of plain HTTP.
    pub port: u16,
    /// The same over TLS; `None` if the server has no certificate.
    pub tls: Option<TlsHosts>,
}

/// The form of a sandbox's own host over TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsHosts {
    /// The parent domain of sandbox hosts.
    pub domain: String,
    /// The port.
    pub port: u16,
    /// Whether the operator provided the certificate, so that clients can be expected to trust it. Otherwise it is from
    /// `atoll tls init`.
    pub is_operators: bool,
}

impl Hosts {
    /// The URL of a sandbox's host for a client that connected with or without TLS. A client that connected by plain
    /// HTTP is not sent to a certificate that it may not trust.
    pub(crate) fn url(&self, came_by_tls: bool, label: &str) -> String {
        match &self.tls {
            Some(tls) if came_by_tls || tls.is_operators => {
                format!("https://{label}.{}:{}", tls.domain, tls.port)
            }
            _ => format!("http://{label}.{}:{}", self.domain, self.port),
        }
    }
}

/// The state of every handler.
#[derive(Clone)]
pub(crate) struct DaytonaApp {
    pub(crate) service: Service,
    pub(crate) options: DaytonaOptions,
}

impl FrontState for DaytonaApp {
    const WRONG_KEY_HINT: Option<&'static str> =
        Some("set DAYTONA_API_KEY; `atoll env daytona --with-key` prints one");

    fn service(&self) -> &Service {
        &self.service
    }

    fn key(headers: &HeaderMap) -> Option<&str> {
        bearer(headers)
    }

    fn missing_key() -> ApiError {
        let error = ApiError::unauthenticated("this request needs a key: send Authorization: Bearer KEY");
        ApiError { hint: Self::WRONG_KEY_HINT.map(str::to_owned), ..error }
    }
}

/// The front. Cloning is cheap.
#[derive(Clone)]
pub struct Daytona {
    app: DaytonaApp,
}

impl Daytona {
    /// Creates the front over a service.
    #[must_use]
    pub fn new(service: Service, options: DaytonaOptions) -> Self {
        Self { app: DaytonaApp { service, options } }
    }
}

impl Front for Daytona {
    fn mount(&self) -> Mount {
        Mount::prefix("daytona", PREFIX)
    }

    fn routes(&self) -> Router {
        Router::new()
            .nest("/api", api())
            .merge(storage::routes())
            .nest("/toolbox/{sandbox}", toolbox::routes())
            // COMPAT(daytona): older SDKs call the toolbox below the main API.
            .nest("/api/toolbox/{sandbox}/toolbox", toolbox::routes())
            .with_state(self.app.clone())
    }

    fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response {
        error::render(error, &request.method, &request.path)
    }
}

/// The main API.
fn api() -> Router<DaytonaApp> {
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
