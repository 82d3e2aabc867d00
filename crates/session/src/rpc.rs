//! The RPC services: converts messages to operations of the adapter and back.

mod agent_service;
mod file_service;
mod process_service;

use std::sync::Arc;
use std::time::Duration;

use connectrpc::{ConnectRpcService, RequestContext, Router};

use crate::state::AdapterState;

/// The default of envd.
const QUIET_DEFAULT: Duration = Duration::from_secs(90);

/// All services.
pub(crate) fn service(state: &Arc<AdapterState>) -> ConnectRpcService {
    let router = agent_service::routes(Router::new(), state);
    let router = process_service::routes(router, state);
    ConnectRpcService::new(file_service::routes(router, state))
}

/// Passes the adapter to the handler of a request.
fn handled<Q: 'static, F: 'static>(
    state: &Arc<AdapterState>,
    handle: fn(Arc<AdapterState>, RequestContext, Q) -> F,
) -> impl Fn(RequestContext, Q) -> F + Send + Sync + 'static {
    let state = Arc::clone(state);
    move |context, request| handle(Arc::clone(&state), context, request)
}

/// How long a stream may be quiet before it says that it is alive.
fn quiet_limit(context: &RequestContext) -> Duration {
    let seconds = context.header("keepalive-ping-interval").and_then(|text| text.to_str().ok());
    let seconds = seconds.and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0_u64);
    seconds.map_or(QUIET_DEFAULT, Duration::from_secs)
}
