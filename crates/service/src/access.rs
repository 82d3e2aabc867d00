//! Access: keys, tenants, secrets, access tokens and previews, and the requests that end when one of them is withdrawn.

mod grant;
mod invites;
mod keys;
mod logins;
mod ports;
mod previews;
mod request_scope;
mod secrets;
mod throttle;
mod tokens;
mod unix_peer;

use std::ops::Deref;
use std::sync::Arc;

pub use grant::{Grant, Holder, SandboxTarget};
pub use logins::{ApprovedLogin, LoginPoll, PendingLogin, StartedLogin};
pub use ports::{DEFAULT_PORT, PortAnswer, PortQuestion, PortSession, PortTarget};
pub use previews::{CreatedPreview, NewPreview};
pub use request_scope::RequestScope;
pub(crate) use request_scope::{Credential, Revocations};
pub(crate) use tokens::TokenCache;
pub use tokens::TokenOf;
pub use unix_peer::{PeerRole, UnixPeer};

use crate::base::ServiceBase;
use crate::sandboxes::Sandboxes;
use crate::volumes::Volumes;
use invites::Invites;
use keys::KeyCache;
use logins::Logins;
use previews::PreviewCache;
use throttle::AuthThrottle;

/// Keys, tenants, secrets, tokens and previews. Cloning is cheap.
#[derive(Clone)]
pub struct Access {
    inner: Arc<AccessState>,
}

struct AccessState {
    base: Arc<ServiceBase>,
    sandboxes: Sandboxes,
    volumes: Volumes,
    revocations: Arc<Revocations>,
    keys: KeyCache,
    /// The hash of the key in `DATA/admin.key`, which root at the Unix socket acts with.
    machine_key: std::sync::OnceLock<Option<atoll_store::Hash>>,
    invites: Invites,
    logins: Logins,
    throttle: AuthThrottle,
    previews: PreviewCache,
    /// Changes of a tenant's policy and secrets go one after the other: the last one wins everywhere.
    policy_turn: tokio::sync::Mutex<()>,
}

impl Deref for AccessState {
    type Target = ServiceBase;

    fn deref(&self) -> &ServiceBase {
        &self.base
    }
}

impl Access {
    /// Forgets everything that was cached, and ends the requests of credentials that no longer exist.
    pub(crate) async fn forget_all(&self) {
        self.inner.keys.clear();
        self.inner.previews.clear();
        for credential in self.inner.revocations.watched() {
            if !self.exists(&credential).await {
                self.inner.revocations.revoke(&credential);
            }
        }
    }

    /// Whether a key or preview is still there; other credentials belong to sandboxes of this node.
    async fn exists(&self, credential: &Credential) -> bool {
        let store = &self.inner.store;
        match credential {
            Credential::Key(id) => {
                store.keys(None).await.is_ok_and(|keys| keys.iter().any(|key| key.id == *id))
            }
            Credential::Preview(id) => store.has_preview(id).await.unwrap_or(false),
            Credential::Tokens(..) | Credential::PublicPorts(_) => true,
        }
    }

    pub(crate) fn new(
        base: &Arc<ServiceBase>,
        sandboxes: Sandboxes,
        volumes: Volumes,
        revocations: Arc<Revocations>,
    ) -> Self {
        Self {
            inner: Arc::new(AccessState {
                base: Arc::clone(base),
                sandboxes,
                volumes,
                revocations,
                keys: KeyCache::default(),
                machine_key: std::sync::OnceLock::new(),
                invites: Invites::default(),
                logins: Logins::default(),
                throttle: AuthThrottle::default(),
                previews: PreviewCache::default(),
                policy_turn: tokio::sync::Mutex::default(),
            }),
        }
    }
}
