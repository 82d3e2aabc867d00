//! Slots for WebSockets. An upgraded connection leaves the listener and its count, so it is counted here, by the same
//! rule as bytes: an owner may hold at most as many slots as are free for all others.

use std::sync::Arc;

use atoll_model::Code;

use crate::pool::{Account, BudgetOwner, Exhausted, Pool};

/// LIMIT: a single tenant can have 4,096 sockets open.
pub(crate) const TENANT_SOCKETS: u64 = 8_192;
/// LIMIT: callers that have not presented a valid key yet; a single address can have 512 sockets open.
pub(crate) const STRANGER_SOCKETS: u64 = 1_024;

/// A slot for one open socket. Dropping it frees the slot.
#[derive(Debug)]
pub struct SocketPlace {
    pool: Arc<Pool>,
    owner: BudgetOwner,
}

/// No slot for another socket is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SocketsExhausted {
    /// This owner already has its share open.
    #[error("this caller has as many WebSockets open as the server allows")]
    Owner,
    /// All owners together have the maximal number open.
    #[error("the server has as many WebSockets open as it allows")]
    All,
}

impl SocketsExhausted {
    /// The error code for users.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::Owner => Code::QuotaExceeded,
            Self::All => Code::NoCapacity,
        }
    }

    /// A suggestion for users.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        "close terminals and log streams that are no longer read, then try again"
    }
}

impl Account {
    /// Takes a slot for a socket, if one is free for this owner.
    pub fn take_socket(&self) -> Result<SocketPlace, SocketsExhausted> {
        let (pool, owner) = (Arc::clone(&self.sockets), self.owner.clone());
        pool.take_now(&owner, 1).map_err(|exhausted| match exhausted {
            Exhausted::Owner => SocketsExhausted::Owner,
            Exhausted::All => SocketsExhausted::All,
        })?;
        Ok(SocketPlace { pool, owner })
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        self.pool.give(&self.owner, 1);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Budget;

    /// Takes slots until there are none, and returns the error.
    fn fill(account: &Account) -> (Vec<SocketPlace>, SocketsExhausted) {
        let mut places = Vec::new();
        loop {
            match account.take_socket() {
                Ok(place) => places.push(place),
                Err(reason) => return (places, reason),
            }
        }
    }

    #[test]
    fn one_tenant_does_not_take_the_places_of_another() {
        let budget = Budget::default();
        let [a, b] = ["a", "b"].map(|name| budget.tenant(&name.repeat(20).parse().unwrap()));
        let (first, reason) = fill(&a);
        assert_eq!((first.len(), reason), (4_096, SocketsExhausted::Owner));
        assert_eq!(fill(&b).0.len(), 2_048);
        drop(first);
        assert_eq!(fill(&a).0.len(), 4_096, "dropped places are free again");
        assert_eq!(budget.held(), (0, 0), "places are not bytes");
    }

    #[test]
    fn a_stranger_does_not_take_the_places_of_tenants_or_of_other_addresses() {
        let budget = Budget::default();
        let stranger =
            |last: u8| budget.account(BudgetOwner::stranger(Some(std::net::IpAddr::from([192, 0, 2, last]))));
        let (first, _) = fill(&stranger(1));
        assert_eq!(first.len(), 512);
        assert_eq!(fill(&stranger(2)).0.len(), 256);
        assert_eq!(fill(&budget.tenant(&"a".repeat(20).parse().unwrap())).0.len(), 4_096);
    }
}
