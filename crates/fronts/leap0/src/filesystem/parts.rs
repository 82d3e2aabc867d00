//! The parts of an upload, read with a bound on what is held. The parser behind this takes all that a client has sent
//! whenever it is asked, and keeps the head of a part until it ends; so it is given one piece at a time, and the next one
//! only when it can go on in no other way.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use multer::{Field, Multipart};

/// LIMIT: the head of a part is its name and a type; a piece of a body that comes with it may be larger.
const HEAD_MAX: usize = 1 << 20;

/// Why there is no next part.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoPart {
    #[error("the head of a part is longer than {HEAD_MAX} bytes, or there is none")]
    TooLong,
    #[error("the parts cannot be read")]
    Malformed(#[from] multer::Error),
}

/// What the parser may take now.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    taken: AtomicUsize,
}

/// All parts of a body, one after the other.
pub(super) struct Parts {
    parser: Multipart<'static>,
    gate: Arc<Gate>,
}

impl Parts {
    pub(super) fn new(body: Body, boundary: String) -> Self {
        let gate = Arc::new(Gate::default());
        let (held, mut body) = (Arc::clone(&gate), body.into_data_stream());
        let pieces = stream::poll_fn(move |cx| {
            // Nobody is woken: whoever asks opens the gate first if it has to wait.
            if !held.open.swap(false, Ordering::Relaxed) {
                return Poll::Pending;
            }
            let piece = body.poll_next_unpin(cx);
            if let Poll::Ready(Some(Ok(piece))) = &piece {
                held.taken.fetch_add(piece.len().max(1), Ordering::Relaxed);
            }
            piece
        });
        Self { parser: Multipart::new(pieces, boundary), gate }
    }

    /// The next part; the one before must have been dropped.
    pub(super) async fn next(&mut self) -> Result<Option<Part>, NoPart> {
        let gate = Arc::clone(&self.gate);
        gate.taken.store(0, Ordering::Relaxed);
        let next = std::future::poll_fn(|cx| {
            let polled = gate.drive(cx, HEAD_MAX, |cx| self.parser.poll_next_field(cx));
            polled.map(|next| next.ok_or(NoPart::TooLong)?.map_err(NoPart::from))
        });
        Ok(next.await?.map(|field| Part { field, gate: Arc::clone(&self.gate) }))
    }
}

impl Gate {
    /// Asks with what is held already, then with one piece more at a time. `None`: that took more than `max`.
    fn drive<T>(
        &self,
        cx: &mut Context<'_>,
        max: usize,
        mut ask: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Option<T>> {
        let mut polled = ask(cx);
        while polled.is_pending() {
            let before = self.taken.load(Ordering::Relaxed);
            if before > max {
                return Poll::Ready(None);
            }
            self.open.store(true, Ordering::Relaxed);
            polled = ask(cx);
            self.open.store(false, Ordering::Relaxed);
            if polled.is_pending() && self.taken.load(Ordering::Relaxed) == before {
                // The client has sent no more; it wakes us when it has.
                return Poll::Pending;
            }
        }
        polled.map(Some)
    }
}

/// One part: a stream of its content.
pub(super) struct Part {
    field: Field<'static>,
    gate: Arc<Gate>,
}

impl Part {
    pub(super) fn name(&self) -> Option<&str> {
        self.field.name()
    }
}

impl Stream for Part {
    type Item = Result<Bytes, multer::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { field, gate } = &mut *self;
        // Content is handed on as it comes, so nothing piles up.
        gate.drive(cx, usize::MAX, |cx| field.poll_next_unpin(cx)).map(Option::flatten)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parts(pieces: Vec<Bytes>) -> (Parts, Arc<AtomicUsize>) {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let pieces = stream::iter(pieces).map(move |piece| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(piece)
        });
        (Parts::new(Body::from_stream(pieces), "b".to_owned()), taken)
    }

    #[tokio::test]
    async fn parts_come_whole_however_the_body_is_cut() {
        let body = b"--b\r\nContent-Disposition: form-data; name=\"/a\"\r\n\r\none\r\n--b\r\n\
            Content-Disposition: form-data; name=\"/b\"\r\n\r\n\r\n-\r\n--\r\n--b--\r\n";
        for cut in 1..body.len() {
            let (mut parts, _) = parts(body.chunks(cut).map(Bytes::copy_from_slice).collect());
            for (name, content) in [("/a", &b"one"[..]), ("/b", b"\r\n-\r\n--")] {
                let mut part = parts.next().await.unwrap().unwrap();
                assert_eq!(part.name(), Some(name), "cut at {cut}");
                let mut whole = Vec::new();
                while let Some(piece) = part.next().await {
                    whole.extend_from_slice(&piece.unwrap());
                }
                assert_eq!(whole, content, "cut at {cut}");
            }
            assert!(parts.next().await.unwrap().is_none(), "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_given_up() {
        for first in ["--b\r\nContent-Disposition: form-data; name=\"/a", "nothing"] {
            let piece = Bytes::from(vec![b'x'; 64 << 10]);
            let pieces = std::iter::once(Bytes::from(first)).chain(std::iter::repeat_n(piece, 1_000));
            let (mut parts, taken) = parts(pieces.collect());
            assert!(matches!(parts.next().await, Err(NoPart::TooLong)), "{first}");
            assert!(taken.load(Ordering::Relaxed) < 32, "{first}");
        }
    }

    #[tokio::test]
    async fn what_comes_later_is_not_taken_before_its_turn() {
        let head = "--b\r\nContent-Disposition: form-data; name=\"/a\"\r\n\r\nx\r\n";
        let pieces: Vec<Bytes> = (0..100).map(|_| Bytes::from(head.repeat(10))).collect();
        let (mut parts, taken) = parts(pieces);
        for _ in 0..10 {
            let mut part = parts.next().await.unwrap().unwrap();
            while part.next().await.is_some() {}
        }
        assert!(taken.load(Ordering::Relaxed) <= 3, "{} pieces were taken", taken.load(Ordering::Relaxed));
    }

    async fn read_any(bytes: &[u8], piece: usize) -> Option<Vec<(Option<String>, Vec<u8>)>> {
        let (mut parts, _) = parts(bytes.chunks(piece).map(Bytes::copy_from_slice).collect());
        let mut all = Vec::new();
        while let Some(mut part) = parts.next().await.ok()? {
            let mut content = Vec::new();
            while let Some(piece) = part.next().await {
                content.extend_from_slice(&piece.ok()?);
            }
            all.push((part.name().map(str::to_owned), content));
        }
        Some(all)
    }

    #[test]
    fn any_form_is_read_or_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        atoll_robustness::check!("multipart", |bytes| {
            let parts = runtime.block_on(read_any(bytes, 100)).unwrap_or_default();
            assert!(parts.iter().map(|(_, content)| content.len()).sum::<usize>() <= bytes.len());
        });
    }
}
