//! Ports: who may reach a port of a sandbox, and the connection to it. The proxy asks one question and gets one answer.
//!
//! ```text
//! PortQuestion (keys, tokens, or nothing) ──► refused, or PortAnswer ──► open (wakes, counts as busy) ──► dial ──► bytes
//! ```
//!
//! A refusal does not reveal whether a sandbox exists. The agent's own port is never reachable. The token of a sandbox's
//! ports gives access to all of them, a preview to one, and a public sandbox needs neither.

use atoll_agentapi::{AgentError, InstanceLiveness, Session};
use atoll_budget::Account;
use atoll_model::policy::authz;
use atoll_model::{Code, InstanceId, Lease, Phase, Principal, SandboxId};
use atoll_provider::{AGENT_PORT, ByteStream, Capability};

use super::grant::{Grant, Holder, SandboxTarget};
use super::tokens::{TokenOf, is_there};
use super::{Access, Credential};
use crate::ServiceError;
use crate::activity::ActivityKind;
use crate::agent::{AgentOperation, refusal};
use crate::registry::Handle;
use crate::session::SandboxSession;

/// The port of a sandbox whose environment has no `PORT`.
pub const DEFAULT_PORT: u16 = 8_080;
/// How long a browser may keep the token of a sandbox's ports, which has no expiry of its own.
const PORTS_S: i64 = 86_400;

/// A port, and the credentials of a request to it.
#[derive(Debug, Clone, Copy)]
pub struct PortQuestion<'a> {
    /// The sandbox, which may not exist.
    pub sandbox: &'a SandboxId,
    /// The port; `None`: the sandbox's own.
    pub port: Option<u16>,
    /// Texts that may be keys, or credentials of the app.
    pub keys: &'a [String],
    /// Texts that may be tokens of ports or previews.
    pub tokens: &'a [String],
    /// Texts that may be the token of the sandbox's agent, keys, or credentials of the app. They admit nobody.
    pub agent_tokens: &'a [String],
}

impl<'a> PortQuestion<'a> {
    /// The question of a caller without credentials.
    #[must_use]
    pub const fn new(sandbox: &'a SandboxId, port: Option<u16>) -> Self {
        Self { sandbox, port, keys: &[], tokens: &[], agent_tokens: &[] }
    }
}

/// A permission to reach the port, and how the request is forwarded.
#[derive(Debug)]
pub struct PortAnswer {
    /// The permission.
    pub grant: Grant<PortTarget>,
    /// Which of the keys in the question are keys of this server: the app must not see them.
    pub is_key: Vec<bool>,
    /// Whether the question has the token of the sandbox's agent, or a key in its place: the app must not see it.
    pub has_agent_token: bool,
    /// For how many seconds a browser may keep the token.
    pub remember_s: i64,
    /// The account that is charged for what is held for the request; `None` while the sandbox is being removed.
    pub account: Option<Account>,
}

/// One port of one sandbox, and the protocol of the app there.
#[derive(Clone)]
pub struct PortTarget {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The port.
    pub port: u16,
    /// The host name that the app sees, if its lease sets one.
    pub host: Option<String>,
    /// Whether the app uses TLS itself.
    pub speaks_tls: bool,
    inside: SandboxTarget,
}

/// A running sandbox and a port in it. As long as it is held, the sandbox does not count as idle.
pub struct PortSession {
    /// The instance; connections to another one cannot be used.
    pub instance: InstanceId,
    /// Whether the sandbox was woken for this, so that its programs may still be starting.
    pub was_asleep: bool,
    port: u16,
    session: SandboxSession,
}

impl Access {
    /// Checks whether a caller may reach a port, and says how. Never wakes the sandbox. The current request ends when its
    /// credential is revoked or expires; a refused credential counts against the client's address.
    pub async fn reach_port(&self, question: PortQuestion<'_>) -> Result<PortAnswer, ServiceError> {
        let mut principals = Vec::with_capacity(question.keys.len());
        let mut is_key = Vec::with_capacity(question.keys.len());
        for key in question.keys {
            let principal = self.holder_of(key).await?;
            is_key.push(principal.is_some());
            principals.extend(principal);
        }
        let handle = self.inner.sandboxes.handle(question.sandbox);
        let admitted = match &handle {
            Some(handle) => self.admit_to_port(handle, &question, &principals).await?,
            None => None,
        };
        let Some((grant, remember_s)) = admitted else {
            if handle.is_none() {
                self.refuse_other_node(question.sandbox, &principals).await?;
            }
            let refused = refused(&question, !principals.is_empty());
            let shows_wrong = !question.tokens.is_empty() || is_key.contains(&false);
            return Err(if shows_wrong { self.wrong_credential(refused) } else { refused });
        };
        let lease = grant.target.inside.handle.lease();
        Ok(PortAnswer {
            has_agent_token: self.has_agent_token(&question).await?,
            account: is_there(&lease).then(|| self.inner.budget.tenant(&lease.tenant)),
            grant,
            is_key,
            remember_s,
        })
    }

    /// The holder of a key of this server. Any other text may be the app's own: whether it counts as a wrong key is decided
    /// when the request is refused.
    async fn holder_of(&self, key: &str) -> Result<Option<Principal>, ServiceError> {
        match self.identify(key).await {
            Ok(principal) => Ok(Some(principal)),
            Err(error) if error.code == Code::Unauthenticated => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn has_agent_token(&self, question: &PortQuestion<'_>) -> Result<bool, ServiceError> {
        for shown in question.agent_tokens {
            let is_agents = self.is_token(question.sandbox, TokenOf::Agent, shown);
            if is_agents || self.holder_of(shown).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tells a caller whose key may use the sandbox that it is on another node.
    async fn refuse_other_node(&self, sandbox: &SandboxId, keys: &[Principal]) -> Result<(), ServiceError> {
        if keys.is_empty() {
            return Ok(());
        }
        let lease = self.inner.store.lease(sandbox).await?.filter(is_there);
        match lease.filter(|lease| keys.iter().any(|who| authz::sandbox(who, lease).is_ok())) {
            Some(lease) => self.inner.need_here(&format!("sandbox {sandbox}"), &lease.node),
            None => Ok(()),
        }
    }

    /// `None`: refused. With the seconds for which a browser may remember the token.
    async fn admit_to_port(
        &self,
        handle: &Handle,
        question: &PortQuestion<'_>,
        keys: &[Principal],
    ) -> Result<Option<(Grant<PortTarget>, i64)>, ServiceError> {
        let lease = handle.lease();
        let port = question.port.unwrap_or_else(|| own_port(&lease));
        if port == AGENT_PORT {
            return Ok(None);
        }
        let at_port = |grant: Grant<SandboxTarget>| {
            let target = PortTarget {
                sandbox: lease.id.clone(),
                port,
                host: lease.mask_host.as_ref().map(|mask| mask.replace("${PORT}", &port.to_string())),
                speaks_tls: lease.https_ports.contains(&port),
                inside: grant.target.clone(),
            };
            grant.to(target)
        };
        let mut holder = None;
        for who in keys.iter().filter(|who| authz::sandbox(who, &lease).is_ok()) {
            if holder.is_none() && self.inner.sandboxes.check_host_rights(who, &lease).await.is_ok() {
                holder = Some(who);
            }
        }
        if let Some(who) = holder {
            let grant = self.sandbox_grant(Holder::Key(who.clone()), handle.clone(), TokenOf::Ports);
            return Ok(Some((at_port(grant), PORTS_S)));
        }
        let by_token = |token: &String| self.token_grant(handle, TokenOf::Ports, token);
        if let Some(grant) = question.tokens.iter().find_map(by_token) {
            return Ok(Some((at_port(grant), PORTS_S)));
        }
        let public = || self.sandbox_grant(Holder::Public, handle.clone(), TokenOf::Ports);
        if let Some((preview, token)) = self.preview_of(&lease.id, port, question.tokens).await? {
            let now_ms = self.inner.clock.now().wall_ms;
            let left_s = preview.expires_at_ms.map_or(i64::MAX, |at| (at - now_ms) / 1_000);
            let grant = Grant {
                holder: token.map_or(Holder::Public, Holder::Token),
                expires_at_ms: preview.expires_at_ms,
                credential: Some(Credential::Preview(preview.id)),
                ..public()
            };
            self.bind_request(&grant);
            return Ok(Some((at_port(grant), left_s)));
        }
        if !lease.public {
            return Ok(None);
        }
        let grant = public();
        self.bind_request(&grant);
        // It may have been closed between the lookup and the watch.
        Ok(handle.lease().public.then(|| (at_port(grant), PORTS_S)))
    }

    /// For a front that stands in for a program on the port of `grant` (an interpreter): whoever may reach the port may use
    /// what the front offers there. The front ensures that this is neither commands nor files of the caller's choice.
    #[must_use]
    pub fn stand_in(&self, grant: &Grant<PortTarget>) -> Grant<SandboxTarget> {
        grant.to(SandboxTarget { inside: true, ..grant.target.inside.clone() })
    }
}

impl Grant<PortTarget> {
    /// The sandbox.
    #[must_use]
    pub const fn sandbox(&self) -> &SandboxId {
        &self.target.sandbox
    }

    /// The port, and the protocol of the app there.
    #[must_use]
    pub const fn port(&self) -> &PortTarget {
        &self.target
    }

    /// A session to the port: a sandbox that is asleep is woken, if its lease allows that.
    pub async fn open(&self) -> Result<PortSession, ServiceError> {
        let PortTarget { sandbox, port, inside, .. } = &self.target;
        let handle = inside.sandboxes.handle(sandbox).ok_or_else(|| not_found(sandbox))?;
        // It can't fall asleep between the look and the wake.
        let _busy = handle.activity.begin(ActivityKind::Request);
        let was_asleep = handle.lease().phase != Phase::Running;
        let session = inside.sandboxes.session_by(handle, ActivityKind::Request).await;
        let session = session.map_err(|error| self.shown_to_holder(error))?;
        let instance = session.lease.instance.clone().ok_or_else(|| not_found(sandbox))?;
        Ok(PortSession { instance, was_asleep, port: *port, session })
    }
}

impl Grant<PortTarget> {
    /// Why a sandbox was not woken can tell the quota of its tenant and the state of the server: only a key sees that.
    fn shown_to_holder(&self, error: ServiceError) -> ServiceError {
        match self.holder {
            Holder::Key(_) => error,
            _ if error.code != Code::WakeFailed => error,
            Holder::Token(_) | Holder::Public => {
                let message = format!("sandbox {} could not be woken", self.target.sandbox);
                ServiceError::new(Code::WakeFailed, message)
                    .hint("its owner sees the reason with a key of the server")
                    .retry_after(error.retry_after_s.unwrap_or(5))
                    .caused_by(error)
            }
        }
    }
}

impl PortSession {
    /// Refuses a provider that carries HTTP/1.1 alone to a port. A caller that speaks TLS or HTTP/2 to the app asks first.
    pub fn require_stream(&self) -> Result<(), ServiceError> {
        let provider = self.session.inner.providers.of(&self.session.lease)?;
        let able = provider.capabilities();
        match able.has(Capability::Dial) && !able.has(Capability::DialStream) {
            true => Err(provider.missing(Capability::DialStream).into()),
            false => Ok(()),
        }
    }

    /// Opens a connection to the port.
    pub async fn dial(&self) -> Result<Box<dyn ByteStream>, ServiceError> {
        check_port(self.port)?;
        match self.session.dial(self.port).await {
            Ok(stream) => Ok(stream),
            Err(AgentError::PortClosed { port }) => {
                let sandbox = &self.session.lease.id;
                let message = format!("no program listens on port {port} in sandbox {sandbox}");
                Err(ServiceError::new(Code::PortClosed, message)
                    .hint("start a server there, or wait until it has started")
                    .retry_after(2))
            }
            Err(other) => Err(refusal(AgentOperation::Process, other)),
        }
    }

    /// Resolves when the instance has ended: connections to it are dead.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut pulse = self.session.handle.activity.pulse();
        async move {
            // A dropped sender means the same.
            let _ = pulse.wait_for(|pulse| *pulse == InstanceLiveness::Gone).await;
        }
    }
}

impl std::fmt::Debug for PortTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortTarget")
            .field("sandbox", &self.sandbox)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PortSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortSession").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// The default port of a sandbox: `PORT` of its environment, if that is a port.
fn own_port(lease: &Lease) -> u16 {
    let named = lease.env.get("PORT").and_then(|port| port.parse().ok());
    named.filter(|port| *port != 0).unwrap_or(DEFAULT_PORT)
}

pub(super) fn check_port(port: u16) -> Result<(), ServiceError> {
    if port == 0 || port == AGENT_PORT {
        let message = format!("port {port} cannot be reached from outside");
        return Err(
            ServiceError::new(Code::InvalidRequest, message).hint("use any other port from 1 to 65535")
        );
    }
    Ok(())
}

fn not_found(sandbox: &SandboxId) -> ServiceError {
    ServiceError::new(Code::SandboxNotFound, format!("there is no sandbox {sandbox}"))
}

/// The error depends on the credentials only: existing and unknown sandboxes give the same error.
fn refused(question: &PortQuestion<'_>, has_key: bool) -> ServiceError {
    if has_key {
        return not_found(question.sandbox);
    }
    if !question.tokens.is_empty() {
        return ServiceError::new(Code::Forbidden, "this preview link is invalid or has expired")
            .hint("create a new one: atoll preview SANDBOX PORT");
    }
    ServiceError::new(Code::Unauthenticated, "this port is private")
        .hint(
            "send a key (Authorization: Bearer KEY) or its preview token (x-daytona-preview-token, \
             e2b-traffic-access-token), or open a signed link (`atoll preview SANDBOX PORT`, create_signed_preview_url)",
        )
}
