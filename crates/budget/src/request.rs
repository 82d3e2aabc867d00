//! What one request holds: who pays for it, and the bytes of its body. The server's port puts one into the extensions of
//! every request; fronts tell it the tenant once they know the key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Account, Exhausted, Reservation};

/// The budget of one request. Clones share it; what it holds is released when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct RequestBudget(Arc<Mutex<RequestShared>>);

#[derive(Debug)]
struct RequestShared {
    account: Account,
    head: usize,
    body: Option<Reservation>,
}

impl RequestBudget {
    /// For a request of somebody who is not known yet, with a head of so many bytes.
    #[must_use]
    pub fn new(stranger: Account, head: usize) -> Self {
        Self(Arc::new(Mutex::new(RequestShared { account: stranger, head, body: None })))
    }

    /// The one of a request with these extensions, where the server's port put one.
    #[must_use]
    pub fn of(extensions: &http::Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Says who pays for a request with these extensions.
    pub fn charge(extensions: &http::Extensions, account: Account) {
        if let Some(budget) = Self::of(extensions) {
            budget.set_owner(account);
        }
    }

    /// Says who pays from now on.
    pub fn set_owner(&self, account: Account) {
        self.lock().account = account;
    }

    /// Who pays.
    #[must_use]
    pub fn account(&self) -> Account {
        self.lock().account.clone()
    }

    /// Holds at least `bytes` of the request's body, and its head, until the request has been answered.
    pub async fn hold_body(&self, bytes: usize) -> Result<(), Exhausted> {
        let (body, account, head) = {
            let mut inner = self.lock();
            (inner.body.take(), inner.account.clone(), inner.head)
        };
        let mut body = body.unwrap_or_else(|| account.reserve());
        let grown = body.grow(head.saturating_add(bytes)).await;
        self.lock().body = Some(body);
        grown
    }

    fn lock(&self) -> MutexGuard<'_, RequestShared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
