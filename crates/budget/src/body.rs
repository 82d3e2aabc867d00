//! Request bodies that are read completely.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;

use crate::{Exhausted, RequestBudget};

/// Limits of a body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// The maximal size.
    pub bytes: usize,
    /// How long it may take to arrive.
    pub within: Duration,
}

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError<E> {
    /// It is larger than the limit.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// It took longer than the limit.
    #[error("the body did not arrive within {} s", .0.as_secs())]
    TooSlow(Duration),
    /// The connection broke.
    #[error("the body ended early")]
    Broken(E),
    /// The memory budget is used up.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

/// The cost of a byte of a body: itself, and the value that is parsed from it.
const COST: usize = 2;

/// Reads a body to its end. It is counted, as it arrives, until the request's budget is dropped; while the budget is
/// used up, nothing more is read from the client.
pub async fn read_whole<B>(
    body: B,
    limits: BodyLimits,
    budget: Option<&RequestBudget>,
) -> Result<Bytes, BodyError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > limits.bytes as u64 {
        return Err(BodyError::TooLarge(limits.bytes));
    }
    let reading = gather(body, limits.bytes, budget);
    tokio::time::timeout(limits.within, reading).await.unwrap_or(Err(BodyError::TooSlow(limits.within)))
}

async fn gather<B>(
    mut body: B,
    most: usize,
    budget: Option<&RequestBudget>,
) -> Result<Bytes, BodyError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut whole = BytesMut::new();
    let mut first: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let Ok(chunk) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        let size = first.as_ref().map_or(0, Bytes::len) + whole.len() + chunk.len();
        if size > most {
            return Err(BodyError::TooLarge(most));
        }
        if let Some(budget) = budget {
            budget.hold_body(size.saturating_mul(COST)).await?;
        }
        // Most bodies are one chunk, which is passed on without a copy.
        if first.is_none() && whole.is_empty() {
            first = Some(chunk);
            continue;
        }
        if let Some(first) = first.take() {
            whole.extend_from_slice(&first);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Budget, BudgetOwner, Sizes};
    use futures::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    const LIMITS: BodyLimits = BodyLimits { bytes: 1 << 20, within: Duration::from_secs(30) };

    #[tokio::test(start_paused = true)]
    async fn a_body_is_counted_until_its_request_ends() {
        let budget = Budget::new(Sizes { tenants: 0, strangers: 8 << 20 });
        let request = || RequestBudget::new(budget.account(BudgetOwner::Stranger(None)), 0);
        let body = || Full::new(Bytes::from(vec![b'x'; 1 << 20]));
        let mut held = Vec::new();
        let refused = loop {
            let request = request();
            match read_whole(body(), LIMITS, Some(&request)).await {
                Ok(_) => held.push(request),
                Err(error) => break error,
            }
            assert!(held.len() < 3, "two MiB each, of four");
        };
        assert!(matches!(refused, BodyError::Exhausted(Exhausted::Owner)), "{refused:?}");
        drop(held);
        assert_eq!(budget.held(), (0, 0));
        assert_eq!(read_whole(body(), LIMITS, Some(&request())).await.unwrap().len(), 1 << 20);
    }

    #[tokio::test(start_paused = true)]
    async fn limits_are_told_apart() {
        let large = Full::new(Bytes::from(vec![0; (1 << 20) + 1]));
        assert!(matches!(read_whole(large, LIMITS, None).await, Err(BodyError::TooLarge(_))));
        let never = StreamBody::new(stream::pending::<Result<Frame<Bytes>, std::io::Error>>());
        assert!(matches!(read_whole(never, LIMITS, None).await, Err(BodyError::TooSlow(_))));
        let pieces = ["ab", "cd"]
            .map(|text| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(text.as_bytes()))));
        assert_eq!(read_whole(StreamBody::new(stream::iter(pieces)), LIMITS, None).await.unwrap(), "abcd");
    }
}
