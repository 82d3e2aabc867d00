//! The server as its operator sees it. What it says comes from the binary, which knows the machine and its options.

use std::fmt;
use std::sync::Arc;

use atoll_client::server::ServerReport;
use atoll_front_kit::{ApiError, Caller, JsonResponse, ok};
use atoll_model::Code;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(report))
}

/// Looks at the machine and the options of the server. May read files and run programs; it runs on a thread of its own.
#[derive(Clone)]
pub struct ServerReporter(Arc<dyn Fn() -> ServerReport + Send + Sync>);

impl ServerReporter {
    /// A reporter that calls `look` for each request.
    pub fn new(look: impl Fn() -> ServerReport + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }
}

impl Default for ServerReporter {
    fn default() -> Self {
        Self::new(ServerReport::default)
    }
}

impl fmt::Debug for ServerReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerReporter").finish_non_exhaustive()
    }
}

/// Checks what the machine supports, and returns the settings in effect. Needs an admin key.
#[utoipa::path(get, path = "/v1/server", tag = "server", responses((status = 200, body = ServerReport)))]
pub(crate) async fn report(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<ServerReport>, ApiError> {
    atoll_model::policy::authz::admin(&who)
        .map_err(|denied| ApiError::new(Code::Forbidden, denied.to_string()))?;
    let reporter = app.reporter.clone();
    let report = tokio::task::spawn_blocking(move || (reporter.0)())
        .await
        .map_err(|_| ApiError::new(Code::Internal, "the checks did not finish"))?;
    Ok(ok(ServerReport { version: env!("CARGO_PKG_VERSION").to_owned(), ..report }))
}
