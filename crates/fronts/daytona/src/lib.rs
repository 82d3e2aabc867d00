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
mod bases;
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

use std::path::PathBuf;
use std::sync::Arc;

use atoll_front_kit::{ApiError, Front, FrontState, Mount, RequestInfo, bearer};
use atoll_service::Service;
use axum::Router;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio_util::sync::CancellationToken;

/// Where the front is mounted.
const PREFIX: &str = "/daytona";

/// What the front must be told.
#[derive(Clone)]
pub struct DaytonaOptions {
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
pub(crate) struct DaytonaApp {
    pub(crate) service: Service,
    pub(crate) options: DaytonaOptions,
    pub(crate) toolbox: toolbox::ToolboxState,
    /// Failed builds that their users deleted.
    pub(crate) forgotten: snapshots::Forgotten,
    /// Contexts of builds.
    pub(crate) storage: storage::Storage,
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
    /// A front over a service.
    #[must_use]
    pub fn new(service: Service, options: DaytonaOptions) -> Self {
        let storage = storage::Storage::new(
            options.folder.join("contexts"),
            options.context_bytes,
            Some(service.clone()),
        );
        let app = DaytonaApp {
            service,
            options,
            toolbox: toolbox::ToolboxState::default(),
            forgotten: snapshots::Forgotten::default(),
            storage,
        };
        Self { app }
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
            // COMPAT(daytona): older SDKs have the toolbox below the main API.
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
