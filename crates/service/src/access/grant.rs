//! The grant of an admitted caller: its holder, its target, its expiry, and the credential whose withdrawal ends it.
//!
//! ```text
//! key, token of a sandbox, preview, token of a volume ──► Access::admit_… ──► Grant<target>
//!                                                              └─ the current request ends with the grant
//! ```

use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Code, InstanceId, Lease, Principal, SandboxId};

use super::Access;
use super::request_scope::{Credential, RequestScope};
use super::tokens::{TokenOf, gone, is_there};
use crate::ServiceError;
use crate::activity::ActivityKind;
use crate::inside_ports::InsideCaller;
use crate::registry::Handle;
use crate::sandboxes::Sandboxes;
use crate::session::SandboxSession;

/// A caller that was admitted to `T`. Only [`Access`] makes one.
#[derive(Clone)]
pub struct Grant<T> {
    pub(super) holder: Holder,
    pub(crate) target: T,
    /// Milliseconds since the Unix epoch; `None`: until it is withdrawn.
    pub(super) expires_at_ms: Option<i64>,
    /// The credential that it depends on; `None`: it ends only with its target.
    pub(super) credential: Option<Credential>,
}

/// Who was admitted.
#[derive(Clone, PartialEq, Eq)]
pub enum Holder {
    /// The holder of a key.
    Key(Principal),
    /// A caller that shows a token.
    Token(String),
    /// A caller without credentials: the target is public.
    Public,
}

/// One sandbox, and no other.
#[derive(Clone)]
pub struct SandboxTarget {
    pub(super) sandbox: SandboxId,
    pub(super) handle: Handle,
    pub(super) sandboxes: Sandboxes,
    /// Whether commands and files may be used, and not its ports alone.
    pub(super) inside: bool,
    /// The instance that must run already: the sandbox is not woken. `None`: it may be woken.
    pub(super) awake: Option<InstanceId>,
}

impl<T> Grant<T> {
    /// Who was admitted.
    #[must_use]
    pub const fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Its expiry, in milliseconds since the Unix epoch; `None`: until it is withdrawn.
    #[must_use]
    pub const fn expires_at_ms(&self) -> Option<i64> {
        self.expires_at_ms
    }

    /// The same grant for another target.
    pub(super) fn to<U>(&self, target: U) -> Grant<U> {
        let Self { holder, expires_at_ms, credential, .. } = self;
        Grant {
            holder: holder.clone(),
            target,
            expires_at_ms: *expires_at_ms,
            credential: credential.clone(),
        }
    }
}

impl Grant<SandboxTarget> {
    /// The sandbox.
    #[must_use]
    pub const fn sandbox(&self) -> &SandboxId {
        &self.target.sandbox
    }

    /// Its lease as it is now.
    #[must_use]
    pub fn lease(&self) -> Arc<Lease> {
        self.target.handle.lease()
    }

    /// A session. A sandbox that is asleep is woken, if its lease allows that; it counts as busy until this is dropped.
    pub async fn session(&self) -> Result<SandboxSession, ServiceError> {
        let SandboxTarget { sandbox, handle, sandboxes, inside, awake } = &self.target;
        if !inside {
            return Err(ServiceError::new(Code::Forbidden, "this token gives access to ports only"));
        }
        if !is_there(&handle.lease()) {
            return Err(gone(sandbox));
        }
        let place = Arc::clone(&handle.activity.sessions).try_acquire_owned();
        let place = place.map_err(|_| {
            ServiceError::new(Code::SandboxExhausted, "the sandbox has too many connections open")
                .retry_after(1)
        })?;
        let session = match awake {
            Some(instance) => sandboxes.session_of(handle.clone(), ActivityKind::Request, instance)?,
            None => sandboxes.session_by(handle.clone(), ActivityKind::Request).await?,
        };
        Ok(session.in_place(place))
    }
}

impl Access {
    /// A grant for one sandbox.
    pub(super) fn sandbox_grant(&self, holder: Holder, handle: Handle, of: TokenOf) -> Grant<SandboxTarget> {
        let lease = handle.lease();
        let credential = match &holder {
            Holder::Key(who) => Credential::Key(who.key.clone()),
            Holder::Token(_) => Credential::Tokens(lease.id.clone(), lease.token_epoch),
            Holder::Public => Credential::PublicPorts(lease.id.clone()),
        };
        let sandboxes = self.inner.sandboxes.clone();
        let inside = of != TokenOf::Ports;
        let target = SandboxTarget { sandbox: lease.id.clone(), handle, sandboxes, inside, awake: None };
        Grant { holder, target, expires_at_ms: None, credential: Some(credential) }
    }

    /// The grant of a program in the sandbox itself, for what it could do there anyway. It ends with the instance of the
    /// program, and does not wake the sandbox.
    pub fn admit_inside(&self, caller: &InsideCaller) -> Result<Grant<SandboxTarget>, ServiceError> {
        let InsideCaller { sandbox, instance } = caller;
        let handle = self.inner.sandboxes.handle(sandbox).ok_or_else(|| gone(sandbox))?;
        let target = SandboxTarget {
            sandbox: sandbox.clone(),
            handle,
            sandboxes: self.inner.sandboxes.clone(),
            inside: true,
            awake: Some(instance.clone()),
        };
        Ok(Grant { holder: Holder::Public, target, expires_at_ms: None, credential: None })
    }

    /// Ends the current request with the grant. The caller checks afterwards that the grant still holds: a withdrawal before
    /// this finds no request to end.
    pub(super) fn bind_request<T>(&self, grant: &Grant<T>) {
        if let Some(credential) = &grant.credential {
            self.inner.revocations.watch(credential.clone());
        }
        if let Some((scope, at_ms)) = RequestScope::current().zip(grant.expires_at_ms) {
            let left_ms = at_ms - self.inner.clock.now().wall_ms;
            scope.expires_in(Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)));
        }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Grant<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant")
            .field("holder", &self.holder)
            .field("target", &self.target)
            .field("expires_at_ms", &self.expires_at_ms)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Holder {
    /// Never the token itself.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Key(who) => f.debug_tuple("Key").field(&who.key).finish(),
            Self::Token(_) => f.write_str("Token"),
            Self::Public => f.write_str("Public"),
        }
    }
}

impl std::fmt::Debug for SandboxTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxTarget").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}
