//! Access tokens: what a user holds of one sandbox without holding a key.
//!
//! A token is derived from the server's own secret, its purpose, the sandbox and how often its tokens were replaced. It is
//! never stored and never logged; a fork has another id and so another token; of a sandbox that is gone it opens nothing.
//!
//! ```text
//! admit_token, find_by_token, admit_key ──► grant (of this one sandbox) ──► session (wakes, counts as busy)
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use atoll_model::{Code, Lease, Principal, SandboxId, VolumeId};

use super::grant::{Grant, Holder, SandboxTarget};
use super::{Access, Credential};
use crate::ServiceError;
use crate::base::{ServiceBase, is_same_token};
use crate::driver::DriverMessage;
use crate::registry::Handle;
use crate::sandboxes::ask;

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

    /// May a caller that shows this use the sandbox? Never wakes it. A wrong token and a sandbox that never was look alike;
    /// a caller that shows the right one of a sandbox that is gone is told so ([`Code::SandboxNotFound`]). The current request
    /// ends when the token is replaced; a wrong one counts against the client's address.
    pub fn admit_token(
        &self,
        sandbox: &SandboxId,
        of: TokenOf,
        shown: &str,
    ) -> Result<Grant<SandboxTarget>, ServiceError> {
        let wrong = || self.wrong_credential(wrong_token());
        if let Some(handle) = self.inner.sandboxes.handle(sandbox)
            && is_there(&handle.lease())
        {
            return self.token_grant(&handle, of, shown).ok_or_else(wrong);
        }
        let was = |epoch| is_same_token(&derive(&self.inner, sandbox, epoch, of), shown);
        Err(if (0..EPOCHS_OF_THE_GONE).any(was) { gone(sandbox) } else { wrong() })
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
    ) -> Option<Grant<SandboxTarget>> {
        self.inner.sandboxes.handles().into_iter().find_map(|handle| {
            let lease = handle.lease();
            let tokens = handle.tokens.get(&self.inner, &lease);
            let token = &tokens[of as usize];
            if !is_there(&lease) || !proves(&lease, token) {
                return None;
            }
            self.token_grant(&handle, of, token)
        })
    }

    /// Admits a caller that shows the token of a volume. A wrong token counts against the client's address.
    pub fn admit_volume(&self, id: &str, shown: &str) -> Result<Grant<VolumeId>, ServiceError> {
        match self.inner.volumes.with_token(id, shown) {
            Some(target) => {
                let holder = Holder::Token(shown.to_owned());
                Ok(Grant { holder, target, expires_at_ms: None, credential: None })
            }
            None => Err(self.wrong_credential(
                ServiceError::new(Code::Unauthenticated, "the request has no valid token of this volume")
                    .hint("get the volume again: the answer contains the token"),
            )),
        }
    }

    /// The same for a sandbox, by a key. Never wakes the sandbox.
    pub async fn admit_key(
        &self,
        who: &Principal,
        ident: &str,
    ) -> Result<Grant<SandboxTarget>, ServiceError> {
        let handle = self.inner.sandboxes.driven(who, ident).await?;
        Ok(self.sandbox_grant(Holder::Key(who.clone()), handle, TokenOf::Agent))
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

    /// A grant for a caller that shows a token of a sandbox. The current request ends when the token is replaced.
    pub(super) fn token_grant(
        &self,
        handle: &Handle,
        of: TokenOf,
        shown: &str,
    ) -> Option<Grant<SandboxTarget>> {
        let lease = handle.lease();
        if !is_there(&lease) || !is_same_token(&handle.tokens.get(&self.inner, &lease)[of as usize], shown) {
            return None;
        }
        let grant = self.sandbox_grant(Holder::Token(shown.to_owned()), handle.clone(), of);
        self.bind_request(&grant);
        // Replaced between the look and the watch: it opens nothing any more.
        (handle.lease().token_epoch == lease.token_epoch).then_some(grant)
    }
}

fn derive(inner: &ServiceBase, sandbox: &SandboxId, epoch: u32, of: TokenOf) -> String {
    hex::encode(inner.store.derive(of.purpose(), &format!("{sandbox}/{epoch}")))
}

/// Steps of builds are nobody's, and what is being removed answers nobody.
pub(super) fn is_there(lease: &Lease) -> bool {
    lease.build.is_none() && !lease.phase.is_gone()
}

fn wrong_token() -> ServiceError {
    ServiceError::new(Code::Unauthenticated, "the request has no valid access token of this sandbox")
        .hint("get the sandbox again: the answer contains the token")
}

pub(super) fn gone(sandbox: &SandboxId) -> ServiceError {
    ServiceError::new(Code::SandboxNotFound, format!("sandbox {sandbox} no longer exists"))
}
