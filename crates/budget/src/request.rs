//! The memory of one request: its owner, and the bytes of its body. The listener puts one into the extensions of every
//! request; fronts set the tenant once they know the key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{ANSWER_STATE, Account, Exhausted, Reservation, SMALL};

/// The budget of one request. Clones share it; its memory is released when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct RequestBudget(Arc<Mutex<RequestShared>>);

struct RequestShared {
    stranger: Account,
    account: Account,
    /// Whether the caller presented a valid credential.
    is_known: bool,
    on_known: Option<Box<dyn FnOnce() + Send>>,
    head: usize,
    body: Option<Reservation>,
    /// Bytes of the body that the client may send before the handler reads them.
    window: usize,
    /// Counts the window, once the owner is known.
    window_reservation: Option<Reservation>,
}

impl std::fmt::Debug for RequestShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestShared").field("account", &self.account).finish_non_exhaustive()
    }
}

impl RequestBudget {
    /// For a request of an unknown caller, with a head of so many bytes.
    #[must_use]
    pub fn new(stranger: Account, head: usize) -> Self {
        Self(Arc::new(Mutex::new(RequestShared {
            account: stranger.clone(),
            stranger,
            is_known: false,
            on_known: None,
            head,
            body: None,
            window: 0,
            window_reservation: None,
        })))
    }

    /// The budget in these request extensions, if the listener put one there.
    #[must_use]
    pub fn of(extensions: &http::Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Sets the owner of a request with these extensions: the caller, who presented a valid credential.
    pub fn charge(extensions: &http::Extensions, account: Account) {
        if let Some(budget) = Self::of(extensions) {
            budget.set_owner(account);
        }
    }

    /// Sets the owner of the bytes of a request with these extensions, whose caller presented no credential: the tenant
    /// of a public preview. The state of the response stays charged to the caller's address.
    pub fn charge_public(extensions: &http::Extensions, account: Account) {
        if let Some(budget) = Self::of(extensions) {
            budget.lock().set_account(account);
        }
    }

    /// Marks the caller as known by a valid credential, and sets the owner from now on.
    pub fn set_owner(&self, account: Account) {
        let on_known = {
            let mut inner = self.lock();
            inner.set_account(account);
            inner.is_known = true;
            inner.on_known.take()
        };
        if let Some(on_known) = on_known {
            on_known();
        }
    }

    /// Registers an action for when the caller presents a valid credential; it runs once.
    pub fn on_known(&self, action: impl FnOnce() + Send + 'static) {
        self.lock().on_known = Some(Box::new(action));
    }

    /// The account of the owner.
    #[must_use]
    pub fn account(&self) -> Account {
        self.lock().account.clone()
    }

    /// Counts the state of the response, with so many bytes of its body. A known caller waits shortly if the budget is
    /// used up; a stranger is refused at once.
    pub async fn open_answer(&self, covered: usize) -> Result<Reservation, Exhausted> {
        let (is_known, account) = {
            let inner = self.lock();
            (inner.is_known, if inner.is_known { inner.account.clone() } else { inner.stranger.clone() })
        };
        let mut reservation = account.reserve_answer();
        let size = ANSWER_STATE + covered + SMALL;
        if is_known {
            reservation.grow(size).await?
        } else {
            reservation.try_grow(size)?
        }
        Ok(reservation)
    }

    /// Reserves at least `bytes` for the request's body, and its head, until the request has been answered.
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

    /// Sets how many bytes of the body the client may send before the handler reads them.
    pub(crate) fn set_window(&self, bytes: usize) {
        self.lock().window = bytes;
    }

    /// A reservation that does not cover the window yet, if there is one.
    pub(crate) fn take_missing_window(&self) -> Option<(Reservation, usize)> {
        let mut inner = self.lock();
        let wanted = inner.window.saturating_add(SMALL);
        let reservation = inner.window_reservation.as_mut()?;
        if reservation.try_grow(wanted).is_ok() {
            return None;
        }
        Some((inner.window_reservation.take()?, wanted))
    }

    pub(crate) fn put_window(&self, reservation: Reservation) {
        self.lock().window_reservation = Some(reservation);
    }

    /// Called when the body was read to its end, or dropped.
    pub(crate) fn release_window(&self) {
        let released = {
            let mut inner = self.lock();
            inner.window = 0;
            inner.window_reservation.take()
        };
        drop(released);
    }

    fn lock(&self) -> MutexGuard<'_, RequestShared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestShared {
    fn set_account(&mut self, account: Account) {
        if self.window > 0 {
            let mut reservation = account.reserve();
            // If the budget is used up, the body waits for it when it is read.
            let _ = reservation.try_grow(self.window + SMALL);
            self.window_reservation = Some(reservation);
        }
        self.account = account;
    }
}
