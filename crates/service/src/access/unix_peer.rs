//! Callers at the Unix socket, who need no key: the kernel says which user of the machine they are.
//!
//! ```text
//! root ────────────────► the machine's admin key (`DATA/admin.key`)
//! member of the group ─► a record of scope member in the first tenant, one per user, named `unix:NAME`
//! anybody else ────────► refused
//! ```
//!
//! The record of a member is a key that nobody holds: it is found by a hash that no key has. So what the user changes has an author,
//! keys that the user creates end with it, and deleting it ends the user's open requests.

use atoll_model::{Code, Principal, Scope};
use atoll_store::{Hash, KeyRecord, StoreError};
use sha2::{Digest, Sha256};

use super::keys::{CREATED_KEYS_MAX, DEFAULT_TENANT, note_caller};
use super::{Access, RequestScope};
use crate::ServiceError;
use crate::base::no_tenant;

/// The beginning of the names of users of the machine; no key may have such a name.
pub(super) const MEMBER_PREFIX: &str = "unix:";

/// The process at the other end of a connection through the Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixPeer {
    /// The user's number.
    pub uid: u32,
    /// The user's name, or the number as text.
    pub name: String,
    /// What the user may do.
    pub role: PeerRole,
}

/// The rights of a user of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRole {
    /// Everything, as with the machine's admin key.
    Root,
    /// A user of the first tenant.
    Member,
    /// None.
    Stranger,
}

impl Access {
    /// The caller of a request that came through the Unix socket; `None`: it came another way, and needs a key.
    pub async fn authenticate_peer(&self) -> Option<Result<Principal, ServiceError>> {
        let scope = RequestScope::current()?;
        let peer = scope.peer()?;
        let who = match peer.role {
            PeerRole::Root => self.root_of_machine(peer).await,
            PeerRole::Member => self.member(peer).await,
            PeerRole::Stranger => Err(not_a_member(peer)),
        };
        Some(who.inspect(note_caller))
    }

    async fn root_of_machine(&self, peer: &UnixPeer) -> Result<Principal, ServiceError> {
        let key = match self.machine_key().await? {
            Some(key) => key,
            // The key of the file was deleted; the store always keeps one admin key.
            None => {
                let keys = self.inner.store.keys(None).await?;
                let admin = keys.into_iter().find(|key| key.scope == Scope::Admin);
                admin.ok_or_else(|| ServiceError::new(Code::Internal, "this server has no admin key"))?
            }
        };
        Ok(principal(key, peer))
    }

    async fn member(&self, peer: &UnixPeer) -> Result<Principal, ServiceError> {
        let hash = self.hash_of_member(peer);
        if let Some(record) = self.key_of(hash).await? {
            return Ok(principal(record, peer));
        }
        let tenant = self.inner.store.tenant(DEFAULT_TENANT).await?;
        let tenant = tenant.ok_or_else(|| no_tenant(DEFAULT_TENANT))?.id;
        // Its secret is dropped.
        let (record, _) = self.make_key(tenant, Scope::Member, Some(name_of(peer)))?;
        match self.inner.store.put_key(record, hash, CREATED_KEYS_MAX).await {
            Ok(()) => tracing::info!(
                user = peer.name,
                uid = peer.uid,
                "a user of this machine used the socket for the first time"
            ),
            // Another request of the same user was faster.
            Err(StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let record = self.key_of(hash).await?;
        record.map(|record| principal(record, peer)).ok_or_else(|| not_a_member(peer))
    }

    /// Hashes of keys are made of 40 digits, so no key has this one. Number and name: one of them alone may be given to
    /// another person. The node: servers of one database may be on different machines.
    fn hash_of_member(&self, peer: &UnixPeer) -> Hash {
        let node = self.inner.store.node();
        Sha256::digest(format!("atoll user of a machine\n{node}\n{}\n{}", peer.uid, peer.name)).into()
    }
}

fn name_of(peer: &UnixPeer) -> String {
    format!("{MEMBER_PREFIX}{}", peer.name)
}

fn principal(record: KeyRecord, peer: &UnixPeer) -> Principal {
    Principal { key: record.id, key_name: Some(name_of(peer)), tenant: record.tenant, scope: record.scope }
}

fn not_a_member(peer: &UnixPeer) -> ServiceError {
    let message = format!("user {} is not a member of the group atoll", peer.name);
    ServiceError::new(Code::Forbidden, message)
        .hint(format!("`sudo usermod -aG atoll {}`, then log in again; or send a key", peer.name))
}
