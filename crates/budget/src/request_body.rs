//! Request bodies whose client may send ahead, as in HTTP/2: up to a window of bytes arrives before the handler reads.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::{Exhausted, RequestBudget, Reservation, WAIT};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body whose window is counted from the moment its tenant is known until it is read to its end or dropped. If the
/// tenant has no budget for the window within [`WAIT`], reading fails, and dropping the body releases the bytes that
/// arrived.
///
/// Before the tenant is known nothing is counted: a caller without a valid key is refused without reading its body.
pub struct WindowBody<B> {
    body: B,
    budget: RequestBudget,
    waiting: Option<WindowWait>,
}

struct WindowWait {
    reservation: Reservation,
    bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<B: Body> WindowBody<B> {
    /// A body of which at most `window` bytes arrive before they are read.
    pub fn new(body: B, budget: RequestBudget, window: usize) -> Self {
        let most = body.size_hint().upper().and_then(|most| usize::try_from(most).ok());
        budget.set_window(most.map_or(window, |most| most.min(window)).max(1));
        Self { body, budget, waiting: None }
    }

    fn poll_window(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Exhausted>> {
        if self.waiting.is_none()
            && let Some((reservation, bytes)) = self.budget.take_missing_window()
        {
            let deadline = Box::pin(tokio::time::sleep(WAIT));
            self.waiting = Some(WindowWait { reservation, bytes, deadline });
        }
        let Some(mut wait) = self.waiting.take() else { return Poll::Ready(Ok(())) };
        if wait.reservation.poll_grow(cx, wait.bytes).is_ready() {
            self.budget.put_window(wait.reservation);
            return Poll::Ready(Ok(()));
        }
        if wait.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(wait.reservation.try_grow(wait.bytes));
        }
        self.waiting = Some(wait);
        Poll::Pending
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WindowBody<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Err(exhausted) = std::task::ready!(self.poll_window(cx)) {
            return Poll::Ready(Some(Err(exhausted.into())));
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.budget.release_window();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for WindowBody<B> {
    fn drop(&mut self) {
        self.budget.release_window();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Account, Budget, BudgetOwner, Sizes};
    use futures::stream;
    use http_body_util::{BodyExt, Full, StreamBody};

    const WINDOW: usize = 256 << 10;

    fn tenant(budget: &Budget) -> Account {
        budget.tenant(&"tenantaaaaaaaaaaaaaa".parse().unwrap())
    }

    fn unread(request: &RequestBudget) -> impl Body<Data = Bytes, Error = BoxError> + Unpin + Send + use<> {
        let never = stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
        WindowBody::new(StreamBody::new(never), request.clone(), WINDOW)
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_is_counted_while_its_body_is_open() {
        let budget = Budget::new(Sizes { tenants: 4 << 20, strangers: 1 << 20 });
        let request = || RequestBudget::new(budget.account(BudgetOwner::Stranger(None)), 0);
        let (first, small) = (request(), request());
        let body = unread(&first);
        let mut small_body = WindowBody::new(Full::new(Bytes::from_static(b"small")), small.clone(), WINDOW);
        assert_eq!(budget.held(), (0, 0));
        first.set_owner(tenant(&budget));
        assert_eq!(budget.held(), (WINDOW as u64, 0));
        small.set_owner(tenant(&budget));
        assert_eq!(budget.held().0, WINDOW as u64 + (16 << 10), "no more than its size");
        assert_eq!(small_body.frame().await.unwrap().unwrap().into_data().unwrap(), "small");
        assert_eq!(budget.held(), (WINDOW as u64, 0), "read to its end");
        drop(body);
        assert_eq!(budget.held(), (0, 0));
        // A tenant that is set after the body is gone holds nothing.
        first.set_owner(tenant(&budget));
        assert_eq!(budget.held(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_beyond_the_share_fails_unless_room_is_released() {
        let budget = Budget::new(Sizes { tenants: 4 << 20, strangers: 1 << 20 });
        let mut open = Vec::new();
        let mut enter = || {
            let request = RequestBudget::new(budget.account(BudgetOwner::Stranger(None)), 0);
            let body = unread(&request);
            request.set_owner(tenant(&budget));
            open.push(request);
            body
        };
        let mut held: Vec<_> = (0..8).map(|_| enter()).collect();
        let mut late = enter();
        assert_eq!(budget.held(), (2 << 20, 0), "half of the pool");
        assert!(late.frame().await.unwrap().is_err(), "no room within two seconds");
        drop(late);
        let mut late = enter();
        let reading =
            tokio::spawn(async move { tokio::time::timeout(WAIT * 2, late.frame()).await.is_err() });
        tokio::time::sleep(WAIT / 2).await;
        held.pop();
        assert!(reading.await.unwrap(), "it waits for its client");
    }
}
