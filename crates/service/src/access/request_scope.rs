//! One request and its credentials. When one of them is revoked, everything that the request still holds open ends.
//!
//! ```text
//! HTTP server ── RequestScope::run(handler) ──► authenticate, admit, admit_token, … : the credential is recorded
//!     └─ scope.ended() ◄────────────────────── delete_key, delete_preview, rotate_tokens, update(public: false)
//! ```
//!
//! The scope is a task-local value, so that a front cannot forget to pass it on. A task that a front starts for later
//! authentication (a socket with the key in its first message) enters it again with [`RequestScope::current`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::{KeyId, PreviewId, Principal, SandboxId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::unix_peer::UnixPeer;

tokio::task_local! {
    static CURRENT: RequestScope;
}

/// A credential that can be revoked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    Key(KeyId),
    Preview(PreviewId),
    /// All access tokens of a sandbox, and how often they had been replaced.
    Tokens(SandboxId, u32),
    /// The public ports of the sandbox.
    PublicPorts(SandboxId),
}

/// One request. Cloning is cheap; the credentials are watched until the last clone is dropped.
#[derive(Clone)]
pub struct RequestScope(Arc<ScopeState>);

struct ScopeState {
    client: Option<IpAddr>,
    /// The process at the other end of a Unix socket.
    peer: Option<Arc<UnixPeer>>,
    revoked: CancellationToken,
    watched: Mutex<WatchedCredentials>,
}

#[derive(Default)]
struct WatchedCredentials {
    credentials: Vec<WatchedCredential>,
    /// The authenticated caller.
    caller: Option<Principal>,
    expires: Option<Instant>,
}

/// An entry in [`Revocations`], removed on drop.
struct WatchedCredential {
    revocations: Arc<Revocations>,
    credential: Credential,
    number: u64,
}

impl Drop for WatchedCredential {
    fn drop(&mut self) {
        let mut watchers = self.revocations.lock();
        if let Some(of_one) = watchers.get_mut(&self.credential) {
            of_one.remove(&self.number);
            if of_one.is_empty() {
                watchers.remove(&self.credential);
            }
        }
    }
}

impl RequestScope {
    /// The scope of a request from this address.
    #[must_use]
    pub fn new(client: Option<IpAddr>) -> Self {
        Self::at_socket(client, None)
    }

    /// The scope of a request that may have come through the Unix socket, from a process of this user.
    #[must_use]
    pub fn at_socket(client: Option<IpAddr>, peer: Option<Arc<UnixPeer>>) -> Self {
        let revoked = CancellationToken::new();
        Self(Arc::new(ScopeState { client, peer, revoked, watched: Mutex::default() }))
    }

    /// The scope of the calling task.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Runs `work` in this scope.
    pub async fn run<F: Future>(&self, work: F) -> F::Output {
        CURRENT.scope(self.clone(), work).await
    }

    /// Resolves when a credential of this request is revoked or expires. An expiry counts if it was known at the call.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let (revoked, expires) = (self.0.revoked.clone(), self.0.lock().expires);
        async move {
            match expires {
                None => revoked.cancelled().await,
                Some(at) => {
                    tokio::select! { () = revoked.cancelled() => {}, () = tokio::time::sleep_until(at) => {} }
                }
            }
        }
    }

    /// The address of the client.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        self.0.client
    }

    /// The process at the other end of the Unix socket that the request came through.
    pub(crate) fn peer(&self) -> Option<&UnixPeer> {
        self.0.peer.as_deref()
    }

    /// The authenticated caller of the request.
    pub(crate) fn caller(&self) -> Option<Principal> {
        self.0.lock().caller.clone()
    }

    /// Records the caller: the author of what the request changes.
    pub(super) fn set_caller(&self, who: &Principal) {
        self.0.lock().caller = Some(who.clone());
    }

    /// Ends the scope after this time.
    pub(crate) fn expires_in(&self, left: Duration) {
        let at = Instant::now() + left;
        let mut watched = self.0.lock();
        watched.expires = Some(watched.expires.map_or(at, |known| known.min(at)));
    }
}

impl ScopeState {
    fn lock(&self) -> MutexGuard<'_, WatchedCredentials> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for RequestScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestScope").finish_non_exhaustive()
    }
}

/// The live requests of each credential.
#[derive(Default)]
pub(crate) struct Revocations {
    numbers: AtomicU64,
    watchers: Mutex<HashMap<Credential, HashMap<u64, CancellationToken>>>,
}

impl Revocations {
    /// Records that the current request uses this credential. The caller must check afterwards that the credential is
    /// still valid: a revocation in between finds no watcher.
    pub(crate) fn watch(self: &Arc<Self>, credential: Credential) {
        let Some(scope) = RequestScope::current() else { return };
        let mut watched = scope.0.lock();
        if watched.credentials.iter().any(|known| known.credential == credential) {
            return;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.lock().entry(credential.clone()).or_default().insert(number, scope.0.revoked.clone());
        watched.credentials.push(WatchedCredential { revocations: Arc::clone(self), credential, number });
    }

    /// The credentials of all live requests.
    pub(crate) fn watched(&self) -> Vec<Credential> {
        self.lock().keys().cloned().collect()
    }

    /// Ends every request with this credential.
    pub(crate) fn revoke(&self, credential: &Credential) {
        let Some(watchers) = self.lock().remove(credential) else { return };
        tracing::info!(requests = watchers.len(), "a credential was withdrawn; its open requests end");
        watchers.values().for_each(CancellationToken::cancel);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Credential, HashMap<u64, CancellationToken>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Credential {
        Credential::Key(KeyId::from_entropy([byte; 20]))
    }

    #[tokio::test]
    async fn only_requests_of_the_withdrawn_credential_end() {
        let revocations = Arc::new(Revocations::default());
        let (one, other) = (RequestScope::new(None), RequestScope::new(None));
        one.run(async { revocations.watch(key(1)) }).await;
        other.run(async { revocations.watch(key(2)) }).await;
        revocations.revoke(&key(1));
        one.ended().await;
        assert!(!other.0.revoked.is_cancelled());
        drop((one, other));
        assert!(revocations.lock().is_empty(), "nothing is kept of requests that are over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_ends_with_what_expires_first() {
        let scope = RequestScope::new(None);
        scope.expires_in(Duration::from_secs(60));
        scope.expires_in(Duration::from_secs(3_600));
        let begun = Instant::now();
        scope.ended().await;
        assert_eq!(begun.elapsed().as_secs(), 60);
    }

    #[tokio::test]
    async fn outside_of_a_request_nothing_is_watched() {
        let revocations = Arc::new(Revocations::default());
        revocations.watch(key(1));
        assert!(revocations.lock().is_empty() && RequestScope::current().is_none());
    }
}
