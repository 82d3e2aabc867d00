//! Access tokens: what a user holds of one sandbox without holding a key.
//!
//! A token is derived from the server's own secret, its purpose, the sandbox and how often its tokens were replaced. It is
//! never stored and never logged; a fork has another id and so another token; of a sandbox that is gone it opens nothing.
//!
//! ```text
//! admit_token, find_by_token, admit_key ──► pass (of this one sandbox) ──► session_of (wakes, counts as busy)
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use atoll_model::{Code, Lease, Principal, SandboxId};

use super::{Access, Credential, PreviewPass};
use crate::ServiceError;
use crate::activity::ActivityKind;
use crate::base::{ServiceBase, is_same_token};
use crate::driver::DriverMessage;
use crate::registry::Handle;
use crate::sandboxes::ask;
use crate::session::SandboxSession;
use crate::volumes::VolumePass;

/// LIMIT: of a sandbox that is gone nobody remembers how often its tokens were replaced; so many are tried for the hint.
const EPOCHS_OF_THE_GONE: u32 = 4;

/// What a token is good for. None of them is good for anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenOf {
    /// Commands and files, as the sandbox's own agent offers them.
    Agent,
    /// Its ports, but never the agent's.
    Ports,
    /// Signing links to files.
    Files,
}

impl TokenOf {
    const ALL: [Self; 3] = [Self::Agent, Self::Ports, Self::Files];

    const fn purpose(self) -> &'static str {
        match self {
            Self::Agent => "token/agent",
            Self::Ports => "token/ports",
            Self::Files => "token/files",
        }
    }
}

/// Somebody was admitted to this one sandbox, and to no other.
#[derive(Clone)]
pub struct SandboxPass {
    sandbox: SandboxId,
    handle: Handle,
    /// By what they were admitted; a token of ports opens no agent.
    by: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Key,
    Token(TokenOf),
    /// A front stands in for a program on this port.
    Port(u16),
}

impl SandboxPass {
    /// Of which sandbox.
    #[must_use]
    pub const fn sandbox(&self) -> &SandboxId {
        &self.sandbox
    }
}

impl std::fmt::Debug for SandboxPass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxPass")
            .field("sandbox", &self.sandbox)
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}

/// The tokens of one sandbox as they were last derived.
#[derive(Default)]
pub(crate) struct TokenCache(Mutex<Option<(u32, Arc<[String; 3]>)>>);

impl TokenCache {
    fn get(&self, inner: &ServiceBase, lease: &Lease) -> Arc<[String; 3]> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((epoch, tokens)) if *epoch == lease.token_epoch => Arc::clone(tokens),
            _ => {
                let fresh = TokenOf::ALL.map(|of| derive(inner, &lease.id, lease.token_epoch, of));
                let fresh = Arc::new(fresh);
                *known = Some((lease.token_epoch, Arc::clone(&fresh)));
                fresh
            }
        }
    }
}

impl Access {
    /// The token of a sandbox. Whoever sees the lease may see it.
    #[must_use]
    pub fn token(&self, lease: &Lease, of: TokenOf) -> String {
        derive(&self.inner, &lease.id, lease.token_epoch, of)
    }

    /// Replaces all tokens of a sandbox: those that were shown before open nothing from now on, and what they hold open ends.
    pub async fn rotate_tokens(&self, who: &Principal, ident: &str) -> Result<Lease, ServiceError> {
        let handle = self.inner.sandboxes.driven(who, ident).await?;
        let edit = |lease: &mut Lease, _: &_| {
            if !is_there(lease) {
                return Err(crate::error::phase_conflict(lease, "tokens"));
            }
            lease.token_epoch = lease.token_epoch.wrapping_add(1);
            Ok(vec!["tokens"])
        };
        let lease = ask(&handle, |reply| DriverMessage::Edit { edit: Box::new(edit), reply }).await?;
        let before = lease.token_epoch.wrapping_sub(1);
        self.inner.revocations.revoke(&Credential::Tokens(lease.id.clone(), before));
        tracing::info!(sandbox = %lease.id, key = %who.key, "the access tokens of a sandbox were replaced");
        Ok(lease.as_ref().clone())
    }

    /// May somebody who shows this use the sandbox? Never wakes it. A wrong token and a sandbox that never was look alike;
    /// who shows the right one of a sandbox that is gone is told so ([`Code::SandboxNotFound`]). The current request ends when
    /// the token is replaced; a wrong one counts against the client's address.
    pub fn admit_token(
        &self,
        sandbox: &SandboxId,
        of: TokenOf,
        shown: &str,
    ) -> Result<SandboxPass, ServiceError> {
        if let Some(handle) = self.inner.sandboxes.handle(sandbox)
            && is_there(&handle.lease())
        {
            return match self.holds_token(&handle, of, shown) {
                true => Ok(SandboxPass { sandbox: sandbox.clone(), handle, by: By::Token(of) }),
                false => Err(self.wrong_credential(wrong_token())),
            };
        }
        let was = |epoch| is_same_token(&derive(&self.inner, sandbox, epoch, of), shown);
        match (0..EPOCHS_OF_THE_GONE).any(was) {
            true => Err(gone(sandbox)),
            false => Err(self.wrong_credential(wrong_token())),
        }
    }

    /// Whether this is a token of the sandbox. Admits nobody: a wrong one is not counted.
    #[must_use]
    pub fn is_token(&self, sandbox: &SandboxId, of: TokenOf, shown: &str) -> bool {
        self.inner.sandboxes.handle(sandbox).is_some_and(|handle| {
            let lease = handle.lease();
            is_there(&lease) && is_same_token(&handle.tokens.get(&self.inner, &lease)[of as usize], shown)
        })
    }

    /// The sandbox whose token proves something that was signed with it and names no sandbox. `proves` is asked once per
    /// sandbox that is not deleted, and compares in constant time.
    pub fn find_by_token(
        &self,
        of: TokenOf,
        proves: &mut dyn FnMut(&Lease, &str) -> bool,
    ) -> Option<SandboxPass> {
        self.inner.sandboxes.handles().into_iter().find_map(|handle| {
            let lease = handle.lease();
            let tokens = handle.tokens.get(&self.inner, &lease);
            let is_it = is_there(&lease)
                && proves(&lease, &tokens[of as usize])
                && self.holds_token(&handle, of, &tokens[of as usize]);
            is_it.then(|| SandboxPass { sandbox: lease.id.clone(), handle, by: By::Token(of) })
        })
    }

    /// Admits a caller that shows the token of a volume. A wrong token counts against the client's address.
    pub fn admit_volume(&self, id: &str, shown: &str) -> Result<VolumePass, ServiceError> {
        self.inner.volumes.admit(id, shown).ok_or_else(|| {
            self.wrong_credential(
                ServiceError::new(Code::Unauthenticated, "the request has no valid token of this volume")
                    .hint("get the volume again: the answer contains the token"),
            )
        })
    }

    /// The same by a key. Never wakes the sandbox.
    pub async fn admit_key(&self, who: &Principal, ident: &str) -> Result<SandboxPass, ServiceError> {
        let handle = self.inner.sandboxes.driven(who, ident).await?;
        Ok(SandboxPass { sandbox: handle.lease().id.clone(), handle, by: By::Key })
    }

    /// For a front that stands in for a program on the port of `way` (an interpreter): whoever may reach the port may use
    /// what the front offers there. The front answers for it that this is neither commands nor files of the caller's choice.
    pub fn stand_in(&self, way: &PreviewPass) -> Result<SandboxPass, ServiceError> {
        let handle = self.inner.sandboxes.handle(&way.sandbox).ok_or_else(|| gone(&way.sandbox))?;
        Ok(SandboxPass { sandbox: way.sandbox.clone(), handle, by: By::Port(way.port) })
    }

    /// What a sandbox is, for a front that must know before anybody showed anything: whose words a refusal takes, whether it
    /// runs. Opens nothing, and is shown to nobody.
    #[must_use]
    pub fn glimpse(&self, sandbox: &SandboxId) -> Option<Arc<Lease>> {
        Some(self.inner.sandboxes.handle(sandbox)?.lease()).filter(|lease| is_there(lease))
    }

    /// The record of a sandbox that is gone, for as long as records are kept; for a front that must know whose words a refusal
    /// takes. Opens nothing, and is shown to nobody.
    pub async fn record_of_gone(&self, sandbox: &SandboxId) -> Option<Lease> {
        if self.glimpse(sandbox).is_some() {
            return None;
        }
        self.inner.store.lease(sandbox).await.ok().flatten()
    }

    /// The lease of a pass as it is now.
    #[must_use]
    pub fn lease_of(&self, pass: &SandboxPass) -> Arc<Lease> {
        pass.handle.lease()
    }

    /// A session by a pass. A sandbox that sleeps is woken where its lease allows; it counts as busy until this is dropped.
    pub async fn session_of(&self, pass: &SandboxPass) -> Result<SandboxSession, ServiceError> {
        let handle = pass.handle.clone();
        if pass.by == By::Token(TokenOf::Ports) {
            return Err(ServiceError::new(Code::Forbidden, "this token gives access to ports only"));
        }
        if !is_there(&handle.lease()) {
            return Err(gone(&pass.sandbox));
        }
        let place = Arc::clone(&handle.activity.sessions).try_acquire_owned();
        let place = place.map_err(|_| {
            ServiceError::new(Code::SandboxExhausted, "the sandbox has too many connections open")
                .retry_after(1)
        })?;
        Ok(self.inner.sandboxes.session_by(handle, ActivityKind::Request).await?.in_place(place))
    }

    /// Whether somebody shows the token of a sandbox's ports. The current request ends when it is replaced.
    pub(super) fn opens_ports(&self, handle: &Handle, shown: &str) -> bool {
        is_there(&handle.lease()) && self.holds_token(handle, TokenOf::Ports, shown)
    }

    /// Whether this is the token of a sandbox, and if so, has the current request end when it is replaced.
    fn holds_token(&self, handle: &Handle, of: TokenOf, shown: &str) -> bool {
        let lease = handle.lease();
        if !is_same_token(&handle.tokens.get(&self.inner, &lease)[of as usize], shown) {
            return false;
        }
        self.inner.revocations.watch(Credential::Tokens(lease.id.clone(), lease.token_epoch));
        // Replaced between the look and the watch: it opens nothing any more.
        handle.lease().token_epoch == lease.token_epoch
    }
}

fn derive(inner: &ServiceBase, sandbox: &SandboxId, epoch: u32, of: TokenOf) -> String {
    hex::encode(inner.store.derive(of.purpose(), &format!("{sandbox}/{epoch}")))
}

/// Steps of builds are nobody's, and what is being removed answers nobody.
fn is_there(lease: &Lease) -> bool {
    lease.build.is_none() && !lease.phase.is_gone()
}

fn wrong_token() -> ServiceError {
    ServiceError::new(Code::Unauthenticated, "the request has no valid access token of this sandbox")
        .hint("get the sandbox again: the answer contains the token")
}

fn gone(sandbox: &SandboxId) -> ServiceError {
    ServiceError::new(Code::SandboxNotFound, format!("sandbox {sandbox} no longer exists"))
}
