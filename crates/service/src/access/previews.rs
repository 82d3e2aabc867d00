//! Previews: who may reach a port of a sandbox, and the connection to it.
//!
//! ```text
//! admit (key, token, or public) ──► pass ──► reach (wakes, counts as busy) ──► way ──► dial ──► bytes
//! ```
//!
//! A refusal does not reveal whether a sandbox exists. The agent's own port is never reachable. A token is random and
//! stored as its hash; the store records its port, its expiry, and whether it is still valid. The token of a sandbox's
//! ports gives access to all of them, and a public sandbox needs none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_agentapi::{AgentError, InstanceLiveness, Session};
use atoll_model::policy::authz;
use atoll_model::{Code, InstanceId, Lease, Phase, PreviewId, Principal, SandboxId};
use atoll_provider::{AGENT_PORT, ByteStream};
use atoll_store::{Hash, PreviewRecord};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{Access, Credential, RequestScope};
use crate::ServiceError;
use crate::activity::ActivityKind;
use crate::agent::{AgentOperation, refusal};
use crate::random::entropy;
use crate::registry::Handle;
use crate::session::SandboxSession;

/// The port of a sandbox whose environment has no `PORT`.
pub const DEFAULT_PORT: u16 = 8_080;
/// The prefix of every token, so that it is recognized as one anywhere.
const TOKEN: &str = "apv_";
/// LIMIT: for more, open a port publicly.
const PER_SANDBOX: usize = 100;
/// LIMIT: thirty days; for longer, open it without an expiry.
const EXPIRES_MAX_S: u64 = 30 * 86_400;
const EXPIRES_S: u64 = 3_600;
/// How long a browser may keep the token of a sandbox's ports, which has no expiry of its own.
const PORTS_S: i64 = 86_400;
/// LIMIT: sandboxes whose previews are cached; beyond that all are read again.
const KNOWN_MAX: usize = 4_096;

/// The preview to open.
#[derive(Debug, Clone, Default)]
pub struct NewPreview {
    /// The port in the sandbox.
    pub port: u16,
    /// How long it stays open; by default an hour with a token, and without end if it is public.
    pub expires_s: Option<u64>,
    /// Whether it needs no token.
    pub public: bool,
}

/// A new preview; its token is shown only now.
#[derive(Clone)]
pub struct CreatedPreview {
    /// Its record.
    pub preview: PreviewRecord,
    /// Its token; a public one needs none.
    pub token: Option<String>,
}

impl std::fmt::Debug for CreatedPreview {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedPreview").field("preview", &self.preview).finish_non_exhaustive()
    }
}

/// The credentials of a request to a port.
#[derive(Debug, Clone, Copy)]
pub struct PortCredentials<'a> {
    /// The holders of the keys in the request.
    pub keys: &'a [Principal],
    /// Texts that may be tokens.
    pub tokens: &'a [String],
    /// Whether the request has a text that looks like a key and is not valid; it may belong to the app.
    pub unknown_key: bool,
}

/// A permission to reach this port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewPass {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The port.
    pub port: u16,
    /// The reason of the permission.
    pub by: PreviewBy,
    /// The host name that the app sees, if its lease sets one.
    pub host: Option<String>,
    /// Whether the app uses TLS itself.
    pub speaks_tls: bool,
}

/// Why a port may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreviewBy {
    /// A key of its tenant, or of the admin.
    Key,
    /// A token, until then (milliseconds since the Unix epoch).
    Token {
        /// The token.
        token: String,
        /// The seconds until it expires.
        left_s: i64,
    },
    /// The port is public.
    Public,
}

/// A running sandbox and a port in it. As long as it is held, the sandbox does not count as idle.
pub struct PreviewWay {
    /// The incarnation; connections to another one cannot be used.
    pub instance: InstanceId,
    /// Whether the sandbox was woken for this, so that its programs may still be starting.
    pub was_asleep: bool,
    session: SandboxSession,
}

impl std::fmt::Debug for PreviewWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreviewWay").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl PreviewWay {
    /// Resolves when the incarnation has ended: connections to it are dead.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut pulse = self.session.handle.activity.pulse();
        async move {
            // A dropped sender means the same.
            let _ = pulse.wait_for(|pulse| *pulse == InstanceLiveness::Gone).await;
        }
    }

    /// Only the guard that keeps the sandbox awake.
    #[must_use]
    pub fn into_guard(self) -> PreviewGuard {
        PreviewGuard(self.session)
    }
}

/// A request is active until this is dropped.
#[derive(Debug)]
pub struct PreviewGuard(#[allow(dead_code, reason = "held for its end")] SandboxSession);

type Grants = Arc<[(PreviewRecord, Hash)]>;

/// Recently used previews. Only this process changes them.
#[derive(Default)]
pub(super) struct PreviewCache {
    known: Mutex<PreviewGrants>,
}

#[derive(Default)]
struct PreviewGrants {
    grants: HashMap<SandboxId, Grants>,
    /// Changes with every change of a preview: a result that was read before is not cached after it.
    edition: u64,
}

impl PreviewCache {
    /// The cached previews, or else the edition under which to cache them.
    fn get(&self, sandbox: &SandboxId) -> Result<Grants, u64> {
        let known = self.lock();
        known.grants.get(sandbox).cloned().ok_or(known.edition)
    }

    fn put(&self, sandbox: &SandboxId, grants: &Grants, edition: u64) {
        let mut known = self.lock();
        if known.edition != edition {
            return;
        }
        if known.grants.len() >= KNOWN_MAX {
            known.grants.clear();
        }
        known.grants.insert(sandbox.clone(), Arc::clone(grants));
    }

    fn forget(&self, sandbox: &SandboxId) {
        let mut known = self.lock();
        known.edition += 1;
        known.grants.remove(sandbox);
    }

    fn edition(&self) -> u64 {
        self.lock().edition
    }

    fn lock(&self) -> MutexGuard<'_, PreviewGrants> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Access {
    /// Opens one port of a sandbox, by a token that is shown once, or publicly.
    pub async fn create_preview(
        &self,
        who: &Principal,
        ident: &str,
        new: NewPreview,
    ) -> Result<CreatedPreview, ServiceError> {
        let lease = self.inner.sandboxes.get(who, ident).await?;
        if lease.phase.is_gone() {
            return Err(crate::error::phase_conflict(&lease, "previews"));
        }
        check_port(new.port)?;
        let expires_s = match new.expires_s {
            Some(s) if (1..=EXPIRES_MAX_S).contains(&s) => Some(s),
            Some(_) => {
                let message = format!("expires_s must be between 1 and {EXPIRES_MAX_S} seconds");
                return Err(ServiceError::new(Code::InvalidRequest, message));
            }
            None if new.public => None,
            None => Some(EXPIRES_S),
        };
        let now_ms = self.inner.clock.now().wall_ms;
        let open = self.inner.store.previews(&lease.id).await?;
        if open.iter().filter(|(preview, _)| is_open(preview, now_ms)).count() >= PER_SANDBOX {
            let message = format!("sandbox {} has {PER_SANDBOX} previews already", lease.id);
            return Err(ServiceError::new(Code::QuotaExceeded, message).hint("remove some of them first"));
        }
        let token = format!("{TOKEN}{}", letters(&entropy::<20>()?));
        let preview = PreviewRecord {
            id: PreviewId::from_entropy(entropy()?),
            sandbox: lease.id.clone(),
            port: new.port,
            public: new.public,
            created_at_ms: now_ms,
            expires_at_ms: expires_s.map(|s| now_ms.saturating_add_unsigned(s.saturating_mul(1_000))),
        };
        self.inner.store.put_preview(preview.clone(), hash_of(&token)).await?;
        self.inner.previews.forget(&lease.id);
        Ok(CreatedPreview { preview, token: (!new.public).then_some(token) })
    }

    /// The open previews of a sandbox, oldest first.
    pub async fn previews(&self, who: &Principal, ident: &str) -> Result<Vec<PreviewRecord>, ServiceError> {
        let lease = self.inner.sandboxes.get(who, ident).await?;
        let now_ms = self.inner.clock.now().wall_ms;
        let all = self.inner.store.previews(&lease.id).await?.into_iter().map(|(preview, _)| preview);
        Ok(all.filter(|preview| is_open(preview, now_ms)).collect())
    }

    /// Closes a preview: the next request is refused, and open ones end.
    pub async fn delete_preview(
        &self,
        who: &Principal,
        ident: &str,
        id: &PreviewId,
    ) -> Result<(), ServiceError> {
        let lease = self.inner.sandboxes.get(who, ident).await?;
        let gone = self.inner.store.delete_preview(&lease.id, id).await?;
        self.inner.previews.forget(&lease.id);
        self.inner.revocations.revoke(&Credential::Preview(id.clone()));
        let missing = || format!("sandbox {} has no preview {id}", lease.id);
        if gone { Ok(()) } else { Err(ServiceError::new(Code::PreviewNotFound, missing())) }
    }

    /// Closes the preview of a port with this token, with or without the token's prefix.
    pub async fn expire_preview(
        &self,
        who: &Principal,
        ident: &str,
        port: u16,
        token: &str,
    ) -> Result<(), ServiceError> {
        let lease = self.inner.sandboxes.get(who, ident).await?;
        let bare = token.strip_prefix(TOKEN).unwrap_or(token);
        let hash = hash_of(&format!("{TOKEN}{bare}"));
        let open = self.inner.store.previews(&lease.id).await?;
        let meant =
            open.iter().find(|(preview, known)| preview.port == port && bool::from(known.ct_eq(&hash)));
        let Some((preview, _)) = meant else {
            let message = format!("sandbox {} has no such preview of port {port}", lease.id);
            return Err(ServiceError::new(Code::PreviewNotFound, message));
        };
        self.delete_preview(who, lease.id.as_str(), &preview.id).await
    }

    /// Checks whether a caller with these credentials may reach a port (`None`: the sandbox's own). Never wakes it. The
    /// current request ends when its credential is revoked or expires; a refused credential counts against the client's
    /// address.
    pub async fn admit(
        &self,
        sandbox: &SandboxId,
        port: Option<u16>,
        shown: PortCredentials<'_>,
    ) -> Result<PreviewPass, ServiceError> {
        let found = match self.inner.sandboxes.handle(sandbox) {
            Some(handle) => self.admit_to(sandbox, &handle, port, shown).await?,
            None => None,
        };
        found.ok_or_else(|| match shown.tokens.is_empty() && !shown.unknown_key {
            true => refused(sandbox, shown),
            false => self.wrong_credential(refused(sandbox, shown)),
        })
    }

    /// `None`: refused.
    async fn admit_to(
        &self,
        sandbox: &SandboxId,
        handle: &Handle,
        port: Option<u16>,
        shown: PortCredentials<'_>,
    ) -> Result<Option<PreviewPass>, ServiceError> {
        let lease = handle.lease();
        let port = port.unwrap_or_else(|| own_port(&lease));
        if port == AGENT_PORT {
            return Ok(None);
        }
        let by = if shown.keys.iter().any(|who| authz::sandbox(who, &lease).is_ok()) {
            Some(PreviewBy::Key)
        } else if let Some(token) = shown.tokens.iter().find(|token| self.opens_ports(handle, token)) {
            Some(PreviewBy::Token { token: token.clone(), left_s: PORTS_S })
        } else {
            match self.admit_by_grant(sandbox, port, shown.tokens).await? {
                Some(by) => Some(by),
                None => self.admit_publicly(sandbox, handle).then_some(PreviewBy::Public),
            }
        };
        let host = || lease.mask_host.as_ref().map(|mask| mask.replace("${PORT}", &port.to_string()));
        let speaks_tls = lease.https_ports.contains(&port);
        Ok(by.map(|by| PreviewPass { sandbox: sandbox.clone(), port, by, host: host(), speaks_tls }))
    }

    /// Checks the previews in the store: one with a matching token, or a public one.
    async fn admit_by_grant(
        &self,
        sandbox: &SandboxId,
        port: u16,
        tokens: &[String],
    ) -> Result<Option<PreviewBy>, ServiceError> {
        loop {
            let edition = self.inner.previews.edition();
            let now_ms = self.inner.clock.now().wall_ms;
            let grants = self.grants(sandbox).await?;
            let open =
                || grants.iter().filter(|(preview, _)| preview.port == port && is_open(preview, now_ms));
            let shown = tokens.iter().find_map(|token| {
                let hash = hash_of(token);
                let found = open().find(|(_, known)| bool::from(known.ct_eq(&hash)))?;
                Some((&found.0, Some(token)))
            });
            let Some((preview, token)) =
                shown.or_else(|| Some((&open().find(|(preview, _)| preview.public)?.0, None)))
            else {
                return Ok(None);
            };
            self.inner.revocations.watch(Credential::Preview(preview.id.clone()));
            // If previews changed between the lookup and the watch, they are looked up again.
            if self.inner.previews.edition() != edition {
                continue;
            }
            let left_ms = preview.expires_at_ms.map(|at| at - now_ms);
            if let Some((scope, left_ms)) = RequestScope::current().zip(left_ms) {
                scope.expires_in(Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)));
            }
            let left_s = left_ms.map_or(i64::MAX, |ms| ms / 1_000);
            return Ok(Some(match token {
                Some(token) => PreviewBy::Token { token: token.clone(), left_s },
                None => PreviewBy::Public,
            }));
        }
    }

    /// Whether the sandbox's ports are public; the current request ends when they no longer are.
    fn admit_publicly(&self, sandbox: &SandboxId, handle: &Handle) -> bool {
        if !handle.lease().public {
            return false;
        }
        self.inner.revocations.watch(Credential::PublicPorts(sandbox.clone()));
        handle.lease().public
    }

    async fn grants(&self, sandbox: &SandboxId) -> Result<Grants, ServiceError> {
        let edition = match self.inner.previews.get(sandbox) {
            Ok(known) => return Ok(known),
            Err(edition) => edition,
        };
        let found: Grants = self.inner.store.previews(sandbox).await?.into();
        self.inner.previews.put(sandbox, &found, edition);
        Ok(found)
    }

    /// The sandbox of a pass, awake: one that is asleep is woken, if its lease allows that.
    pub async fn reach(&self, pass: &PreviewPass) -> Result<PreviewWay, ServiceError> {
        let handle = self.inner.sandboxes.handle(&pass.sandbox).ok_or_else(|| not_found(&pass.sandbox))?;
        // It can't fall asleep between the look and the wake.
        let _busy = handle.activity.begin(ActivityKind::Request);
        let was_asleep = handle.lease().phase != Phase::Running;
        let session = self.inner.sandboxes.session_by(handle, ActivityKind::Request).await?;
        let instance = session.lease.instance.clone().ok_or_else(|| not_found(&pass.sandbox))?;
        Ok(PreviewWay { instance, was_asleep, session })
    }

    /// Opens a connection to the port.
    pub async fn dial_port(
        &self,
        pass: &PreviewPass,
        way: &PreviewWay,
    ) -> Result<Box<dyn ByteStream>, ServiceError> {
        check_port(pass.port)?;
        match way.session.dial(pass.port).await {
            Ok(stream) => Ok(stream),
            Err(AgentError::PortClosed { port }) => {
                let message = format!("no program listens on port {port} in sandbox {}", pass.sandbox);
                Err(ServiceError::new(Code::PortClosed, message)
                    .hint("start a server there, or wait until it has started")
                    .retry_after(2))
            }
            Err(other) => Err(refusal(AgentOperation::Process, other)),
        }
    }
}

/// 160 bits in 32 letters and digits of one case: short enough for a label of a host name beside a sandbox and a port.
fn letters(random: &[u8; 20]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let five_bits = |at: usize| {
        let (byte, shift) = (at * 5 / 8, at * 5 % 8);
        let pair = u16::from_be_bytes([random[byte], random.get(byte + 1).copied().unwrap_or(0)]);
        usize::from(pair >> (11 - shift)) & 31
    };
    (0..32).map(|at| char::from(ALPHABET[five_bits(at)])).collect()
}

fn hash_of(token: &str) -> Hash {
    Sha256::digest(token).into()
}

const fn is_open(preview: &PreviewRecord, now_ms: i64) -> bool {
    match preview.expires_at_ms {
        Some(at) => now_ms < at,
        None => true,
    }
}

/// The default port of a sandbox: `PORT` of its environment, if that is a port.
fn own_port(lease: &Lease) -> u16 {
    let named = lease.env.get("PORT").and_then(|port| port.parse().ok());
    named.filter(|port| *port != 0).unwrap_or(DEFAULT_PORT)
}

fn check_port(port: u16) -> Result<(), ServiceError> {
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
fn refused(sandbox: &SandboxId, shown: PortCredentials<'_>) -> ServiceError {
    if !shown.keys.is_empty() {
        return not_found(sandbox);
    }
    if !shown.tokens.is_empty() {
        return ServiceError::new(Code::Forbidden, "this preview link is invalid or has expired")
            .hint("create a new one: atoll preview SANDBOX PORT");
    }
    ServiceError::new(Code::Unauthenticated, "this port is private")
        .hint(
            "send a key (Authorization: Bearer KEY) or its preview token (x-daytona-preview-token, \
             e2b-traffic-access-token), or open a signed link (`atoll preview SANDBOX PORT`, create_signed_preview_url)",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_every_bit_of_its_randomness() {
        assert_eq!(letters(&[0; 20]), "a".repeat(32));
        assert_eq!(letters(&[0xff; 20]), "7".repeat(32));
        for bit in 0..160 {
            let mut random = [0; 20];
            random[bit / 8] = 0x80 >> (bit % 8);
            let text = letters(&random);
            assert_eq!(text.bytes().filter(|b| *b != b'a').count(), 1, "bit {bit} of {text}");
            assert_ne!(text.as_bytes()[bit / 5], b'a', "bit {bit} of {text}");
        }
    }
}
