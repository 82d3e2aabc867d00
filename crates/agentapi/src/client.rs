//! The host's client of one agent, over any byte stream.
//!
//! The client has a connector (how to connect to the sandbox), the agent token and a few idle HTTP/1.1 connections.
//! Each call takes a connection, each open stream keeps one. Every wait has a deadline and every size a limit, because
//! a hostile process in the sandbox may have taken the agent's place. The client never repeats a request that may have
//! reached the agent.

mod archive;
mod envd;
mod files;
mod forward;
mod liveness;
mod logs;
mod process;
mod rpc;
mod search;
mod settings;
mod transport;

use std::future::Future;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

pub use archive::{
    Pack, PackHoles, PackLayout, PackReader, Unpack, UnpackInto, UnpackOwner, UnpackRules, Unpacked,
};
pub use envd::{EnvdAddress, EnvdClient, EnvdFile};
pub use files::{Entry, EntryKind, FileReader, Range, WatchChange, WatchKind, WatchStream};
pub use forward::Forwarded;
pub use logs::{LogLine, LogStream, LogTail};
pub use process::{
    CommandOutput, ExitStatus, ProcessEvent, ProcessInfo, ProcessSource, ProcessStream, StartProcess,
    Started, TerminalSize,
};

pub use liveness::InstanceLiveness;
pub use search::{Search, SearchMatch, Searched};

use crate::error::AgentError;
use crate::init::{InitReply, InitRequest, Metrics};
use liveness::Patience;
use transport::Transport;

/// LIMIT: an agent answers in well under a millisecond; ten seconds are enough for a sandbox without CPU time.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// LIMIT: removing, moving or listing a large tree takes as long as the disk needs (1-2 ms per directory on ext4).
const TREE_LIMIT: Duration = Duration::from_secs(600);

/// LIMIT: the largest plain answer (a long directory list). The agent truncates larger lists.
const ANSWER_MAX: usize = 32 << 20;

/// The secret that the host presents to an instance's agent. Not printed by `Debug`.
#[derive(Clone)]
pub struct AgentToken(Arc<str>);

impl AgentToken {
    /// Wraps a token; it must be printable ASCII, because it is sent in a header.
    pub fn new(token: impl Into<Arc<str>>) -> Self {
        Self(token.into())
    }

    /// The token itself, to pass it to the agent at its start.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for AgentToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgentToken(..)")
    }
}

/// A client of one agent. Cloning is cheap and shares the connections.
#[derive(Clone)]
pub struct AgentClient {
    inner: Arc<ClientShared>,
    patience: Patience,
    root_files: bool,
}

struct ClientShared {
    transport: Arc<Transport>,
    /// Idle connections of forwarded requests.
    idle: Arc<forward::IdleConnections>,
    token: RwLock<HeaderValue>,
}

impl std::fmt::Debug for AgentClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentClient").finish_non_exhaustive()
    }
}

impl AgentClient {
    /// A client that connects with `connect` whenever there is no idle connection.
    pub fn new<F, Fut, S>(connect: F, token: &AgentToken) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let inner = ClientShared {
            transport: Arc::new(Transport::new(connect)),
            idle: Arc::default(),
            token: RwLock::new(header_of(token)),
        };
        Self { inner: Arc::new(inner), patience: Patience::default(), root_files: false }
    }

    /// The same client for a caller that knows when the sandbox is paused: deadlines do not count then.
    #[must_use]
    pub fn with_pulse(&self, pulse: watch::Receiver<InstanceLiveness>) -> Self {
        Self { patience: Patience::new(pulse), ..self.clone() }
    }

    /// The same client, whose file operations have the permissions of the sandbox's root. New files belong to the named
    /// user. Processes are not affected. An older agent uses the user's permissions.
    #[must_use]
    pub fn with_root_files(&self) -> Self {
        Self { root_files: true, ..self.clone() }
    }

    /// Checks that an agent answers. Needs no token.
    pub async fn health(&self) -> Result<(), AgentError> {
        self.plain(Method::GET, "/health", None).await.map(|_| ())
    }

    /// Sends the agent its settings. Allowed at any time; a new `access_token` applies to this client too.
    pub async fn init(&self, request: &InitRequest) -> Result<InitReply, AgentError> {
        let body = serde_json::to_vec(request)
            .map_err(|_| AgentError::Argument("the init request does not serialise"))?;
        let answer = self.plain(Method::POST, "/init", Some(body.into())).await?;
        if let Some(token) = &request.access_token {
            let header = header_of(&AgentToken::new(token.as_str()));
            *self.inner.token.write().unwrap_or_else(PoisonError::into_inner) = header;
        }
        serde_json::from_slice(&answer)
            .map_err(|_| AgentError::Protocol("the answer to init is not what was agreed"))
    }

    /// The resource use of the sandbox as the agent sees it.
    pub async fn metrics(&self) -> Result<Metrics, AgentError> {
        let answer = self.plain(Method::GET, "/metrics", None).await?;
        serde_json::from_slice(&answer).map_err(|_| AgentError::Protocol("metrics are not what was agreed"))
    }

    /// Remaining seconds of a hold by a program in the sandbox; 0: none.
    pub async fn held(&self) -> Result<u64, AgentError> {
        let answer = self.plain(Method::GET, "/hold", None).await?;
        let held: crate::init::HoldStatus = serde_json::from_slice(&answer)
            .map_err(|_| AgentError::Protocol("a hold is not what was agreed"))?;
        Ok(held.held_s)
    }

    async fn plain(
        &self,
        method: Method,
        path: &'static str,
        body: Option<Bytes>,
    ) -> Result<Bytes, AgentError> {
        let mut request = self.request(method, path, None)?;
        request.headers_mut().insert(crate::INIT_HEADER, HeaderValue::from_static("1"));
        *request.body_mut() = transport::full(body.unwrap_or_default());
        let call = async {
            let answer = self.inner.transport.send(request).await?;
            rpc::accept(answer).await?.read_all(ANSWER_MAX).await
        };
        self.patience.within(path, CALL_LIMIT, call).await
    }
}

/// A token that is not valid in a header is replaced by one that no agent accepts.
fn header_of(token: &AgentToken) -> HeaderValue {
    let mut value = HeaderValue::from_str(token.expose()).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}
