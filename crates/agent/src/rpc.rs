//! The RPC services: converts messages to operations of the agent and back. Only this module uses `connectrpc`, so that
//! a change of that crate stays here.

mod agent_service;
mod filesystem;
mod process;

use std::sync::Arc;
use std::time::Duration;

use connectrpc::{ConnectRpcService, RequestContext, Router};

use crate::state::Agent;

/// The default of envd.
const KEEPALIVE_DEFAULT: Duration = Duration::from_secs(90);

/// All services.
pub(crate) fn service(agent: &Arc<Agent>) -> ConnectRpcService {
    let router = process::routes(Router::new(), agent);
    let router = filesystem::routes(router, agent);
    ConnectRpcService::new(agent_service::routes(router, agent))
}

/// Passes the agent to a request handler.
fn with_agent<Q: 'static, F: 'static>(
    agent: &Arc<Agent>,
    handle: fn(Arc<Agent>, RequestContext, Q) -> F,
) -> impl Fn(RequestContext, Q) -> F + Send + Sync + 'static {
    let agent = Arc::clone(agent);
    move |context, request| handle(Arc::clone(&agent), context, request)
}

/// How long a stream may be silent before a keep-alive is sent.
fn keepalive(context: &RequestContext) -> Duration {
    let asked =
        context.header("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    asked.filter(|seconds| *seconds > 0).map_or(KEEPALIVE_DEFAULT, Duration::from_secs)
}
