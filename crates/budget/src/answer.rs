//! Responses in flight: every piece is counted until it was written.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::{Account, Exhausted, Reservation, SMALL};

/// LIMIT: the cost of an unwritten response besides its body: its task, its stream and its head (measured with HTTP/2).
/// With a body of 2 KiB it is one step of a reservation.
pub const ANSWER_STATE: usize = 14 << 10;

/// A body whose pieces are counted from the moment they leave it until they are written or dropped. While the budget is
/// used up it is not read, so a client that does not read holds no more than its owner's share.
pub struct Metered<B> {
    body: B,
    account: Account,
    /// Bytes that the body returned and that are not passed on yet.
    rest: Bytes,
    /// For the next piece of it.
    reservation: Option<Reservation>,
    /// Bytes of the body that the response's own reservation covers.
    covered: usize,
    /// Kept until the last piece is written, or the body is dropped.
    keep: Arc<dyn Any + Send + Sync>,
}

/// LIMIT: the most that is passed on at once; of a larger piece of memory only the part in flight is counted here.
const PIECE: usize = 64 << 10;

impl<B: Body<Data = Bytes>> Metered<B> {
    /// How much of a body the reservation of its response covers: all of a small one.
    pub fn covered(body: &B) -> usize {
        let size = body.size_hint().exact().and_then(|size| usize::try_from(size).ok());
        size.filter(|size| *size <= SMALL).unwrap_or_default()
    }

    /// Charged to this account, beyond what is [covered](Self::covered). `keep` is dropped after the last write.
    pub fn new(body: B, account: Account, keep: Arc<dyn Any + Send + Sync>) -> Self {
        let covered = Self::covered(&body);
        Self { body, account, rest: Bytes::new(), reservation: None, covered, keep }
    }

    fn is_last(&self) -> bool {
        self.rest.is_empty() && (self.body.is_end_stream() || self.body.size_hint().exact() == Some(0))
    }
}

/// The same bytes, which keep a value alive until their last clone or slice is dropped.
#[must_use]
pub fn keep_with(bytes: Bytes, keep: Arc<dyn Any + Send + Sync>) -> Bytes {
    struct KeepingBytes {
        bytes: Bytes,
        _keep: Arc<dyn Any + Send + Sync>,
    }
    impl AsRef<[u8]> for KeepingBytes {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Bytes::from_owner(KeepingBytes { bytes, _keep: keep })
}

impl<B: Body<Data = Bytes> + Unpin> Body for Metered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        while this.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => this.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let size = this.rest.len().min(PIECE);
        if size <= this.covered {
            this.covered -= size;
        } else {
            let reservation = this.reservation.get_or_insert_with(|| this.account.reserve());
            // The whole piece counts: otherwise each piece of a stream of small ones would be free.
            ready!(reservation.poll_grow(cx, size + SMALL));
        }
        let piece = this.rest.split_to(size);
        let counted = match this.reservation.take() {
            Some(reservation) => reservation.attach(piece),
            None => piece,
        };
        let counted = if this.is_last() { keep_with(counted, Arc::clone(&this.keep)) } else { counted };
        Poll::Ready(Some(Ok(Frame::data(counted))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let waits = self.rest.len() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(waits));
        }
        hint.set_lower(inner.lower().saturating_add(waits));
        hint
    }
}

/// Marks a response that is completely in memory when its handler is done, for the code that counts it.
#[derive(Debug, Clone, Copy)]
pub struct WholeAnswer;

/// A body in one piece that keeps its reservation until that piece is written.
#[derive(Debug)]
pub struct HeldAnswer<B> {
    body: B,
    reservation: Option<Reservation>,
}

impl<B: Body<Data = Bytes>> HeldAnswer<B> {
    /// Counts the body. It is in memory already, so this does not wait for a full pool.
    pub fn new(body: B, account: &Account) -> Result<Self, Exhausted> {
        let mut reservation = account.reserve();
        let size = body.size_hint().exact().unwrap_or_default();
        reservation.try_grow(usize::try_from(size).unwrap_or(usize::MAX))?;
        Ok(Self { body, reservation: Some(reservation) })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for HeldAnswer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        Poll::Ready(Some(Ok(match (frame.into_data(), self.reservation.take()) {
            (Ok(data), Some(reservation)) => Frame::data(reservation.attach(data)),
            (Ok(data), None) => Frame::data(data),
            (Err(other), _) => other,
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Budget, BudgetOwner, Sizes};
    use futures::{FutureExt, stream};
    use http_body_util::{BodyExt, Full, StreamBody};

    #[tokio::test]
    async fn a_body_that_nobody_writes_stops_at_its_share_and_goes_on_later() {
        let budget = Budget::new(Sizes { tenants: 0, strangers: 1 << 20 });
        let piece = || Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![1; 64 << 10])));
        let body = StreamBody::new(stream::iter((0..100).map(move |_| piece())));
        let mut body = Metered::new(body, budget.account(BudgetOwner::Stranger(None)), Arc::new(()));
        let mut unwritten = Vec::new();
        while let Some(frame) = body.frame().now_or_never() {
            unwritten.push(frame.unwrap().unwrap());
        }
        assert_eq!(unwritten.len(), 8, "half of a MiB");
        let mut seen = unwritten.len();
        drop(unwritten);
        while let Some(frame) = body.frame().await {
            drop(frame.unwrap());
            seen += 1;
        }
        assert_eq!((seen, budget.held()), (100, (0, 0)));
    }
    #[tokio::test]
    async fn a_small_answer_keeps_its_state_until_it_is_written() {
        let budget = Budget::new(Sizes { tenants: 0, strangers: 1 << 20 });
        let account = budget.account(BudgetOwner::Stranger(None));
        let mut state = account.reserve_answer();
        let body = Full::new(Bytes::from_static(b"ok"));
        state.try_grow(ANSWER_STATE + Metered::covered(&body) + SMALL).unwrap();
        let mut body = Metered::new(body, account, Arc::new(state));
        assert_eq!(budget.held(), (0, 16 << 10), "one step");
        let unwritten = body.frame().await.unwrap().unwrap();
        drop(body);
        assert_eq!(budget.held(), (0, 16 << 10), "its only piece is not written");
        drop(unwritten);
        assert_eq!(budget.held(), (0, 0));
    }
}
