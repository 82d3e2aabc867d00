//! Serves the agent's protocol in the server for providers in whose instances no agent of Atoll's runs.
//!
//! ```text
//! service, toolbox, fronts ─► AgentClient ═ stream in memory ═► SessionAdapter ─► SessionSupport ─► the vendor's API
//! ```
//!
//! To everything above it such a sandbox is like any other. What the vendor cannot do is refused with the name of the missing
//! capability, and the refusal travels through the protocol to the caller.
//!
//! Memory is bounded whatever the callers and the vendor do: output that is not read yet is kept in a ring of fixed size
//! per process, which makes the vendor's stream wait, and files are streamed.

#![allow(clippy::needless_update, reason = "messages gain fields; the rest of a literal is always default")]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests"))]

mod archive;
mod error;
mod files;
mod http;
mod process;
mod ring;
mod rpc;
mod state;

use std::sync::{Arc, Mutex, PoisonError};

use atoll_agentapi::InitRequest;
use atoll_provider::{Provider, Target};
use tokio::io::DuplexStream;
use tokio::task::JoinSet;

use crate::http::AdapterHandler;
use crate::state::AdapterState;

/// LIMIT: bytes on their way in each direction of one connection.
const PIPE: usize = 64 * 1024;

/// The agent's side of one instance. It ends its tasks when it is dropped; the processes of the instance run on.
pub struct SessionAdapter {
    handler: AdapterHandler,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl SessionAdapter {
    /// An adapter for an instance of a provider that has a [`SessionSupport`](atoll_provider::SessionSupport). `settings` are
    /// those that an agent would be sent first.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>, target: Target, settings: InitRequest) -> Self {
        let tasks = Arc::new(Mutex::new(JoinSet::new()));
        let state = AdapterState::new(provider, target, settings, Arc::downgrade(&tasks));
        Self { handler: AdapterHandler::new(Arc::new(state)), tasks }
    }

    /// A connection to it. Call it in a runtime.
    #[must_use]
    pub fn connect(&self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(PIPE);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(self.handler.clone().serve(far));
        near
    }
}

impl std::fmt::Debug for SessionAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionAdapter").finish_non_exhaustive()
    }
}
