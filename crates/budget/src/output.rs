//! Collects the output of a command: its beginning and its end, as far as the budget allows, and the number of missing
//! bytes.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{Account, Reservation, SMALL};

/// How much of an output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Bytes of its beginning.
    pub head: usize,
    /// Bytes of its end.
    pub tail: usize,
}

impl Keep {
    /// The beginning alone.
    #[must_use]
    pub const fn head(bytes: usize) -> Self {
        Self { head: bytes, tail: 0 }
    }

    /// Half from the beginning, half from the end.
    #[must_use]
    pub const fn both(bytes: usize) -> Self {
        Self { head: bytes / 2, tail: bytes - bytes / 2 }
    }
}

/// The part of the uncounted first bytes that is reserved for the end.
const TAIL_SMALL: usize = SMALL / 4;

/// Collects one output.
#[derive(Debug)]
pub struct Collector {
    keep: Keep,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    written: u64,
    reservation: Reservation,
    /// The number of bytes that the reservation allows.
    room: usize,
    /// Once refused, it never grows again: the command continues, and its response says what is missing.
    is_refused: bool,
}

impl Collector {
    /// Charged to this account.
    #[must_use]
    pub fn new(account: &Account, keep: Keep) -> Self {
        Self {
            keep,
            head: Vec::new(),
            tail: VecDeque::new(),
            written: 0,
            reservation: account.reserve(),
            room: SMALL,
            is_refused: false,
        }
    }

    /// Adds bytes. Waits shortly for free budget; nothing more is read from the command meanwhile.
    pub async fn push(&mut self, data: &[u8]) {
        self.written += data.len() as u64;
        let rest = self.push_head(data).await;
        if !rest.is_empty() && self.keep.tail > 0 {
            self.push_tail(rest).await;
        }
    }

    /// Counts bytes that were lost before they arrived here.
    pub const fn lost(&mut self, bytes: u64) {
        self.written += bytes;
    }

    async fn push_head<'d>(&mut self, data: &'d [u8]) -> &'d [u8] {
        // Bytes after a gap belong to the end.
        if self.written - data.len() as u64 > self.head.len() as u64 {
            return data;
        }
        let aside = if self.keep.tail > 0 { TAIL_SMALL } else { 0 };
        let wanted = data.len().min(self.keep.head - self.head.len());
        self.grow(self.head.len() + wanted + aside).await;
        let fits = wanted.min(self.room.saturating_sub(self.head.len() + aside));
        self.head.extend_from_slice(&data[..fits]);
        &data[fits..]
    }

    async fn push_tail(&mut self, data: &[u8]) {
        let wanted = self.keep.tail.min(self.tail.len() + data.len());
        self.grow(self.head.len() + wanted).await;
        let most = self.keep.tail.min(self.room - self.head.len());
        let data = &data[data.len().saturating_sub(most)..];
        let excess = (self.tail.len() + data.len()).saturating_sub(most);
        self.tail.drain(..excess.min(self.tail.len()));
        self.tail.extend(data);
    }

    async fn grow(&mut self, bytes: usize) {
        if bytes <= self.room || self.is_refused {
            return;
        }
        match self.reservation.grow(bytes).await {
            Ok(()) => self.room = bytes,
            Err(_) => self.is_refused = true,
        }
    }

    /// The kept output.
    #[must_use]
    pub fn finish(self) -> CollectedOutput {
        let Self { head, tail, written, mut reservation, .. } = self;
        let kept = (head.len() + tail.len()) as u64;
        let of_tail = reservation.split(tail.len());
        CollectedOutput {
            head: reservation.attach(head),
            tail: of_tail.attach(Vec::from(tail)),
            written,
            omitted: written.saturating_sub(kept),
        }
    }
}

/// The kept part of an output. Its bytes are counted until they are dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CollectedOutput {
    /// From the beginning.
    pub head: Bytes,
    /// From the end: the bytes after the head, without the missing ones.
    pub tail: Bytes,
    /// The total number of bytes.
    pub written: u64,
    /// The number of missing bytes between both.
    pub omitted: u64,
}

impl CollectedOutput {
    /// Whether bytes are missing.
    #[must_use]
    pub const fn is_truncated(&self) -> bool {
        self.omitted > 0
    }

    /// For formats without a field for it: the parts of a text that mentions, at the gap and in its last line, that
    /// bytes are missing.
    #[must_use]
    pub fn with_notice(self) -> Vec<Bytes> {
        if !self.is_truncated() {
            // Bytes that did not fit into the head.
            return vec![self.head, self.tail];
        }
        let TruncationLines { gap, last } =
            TruncationLines::new(self.written, self.head.len(), self.tail.len());
        let last = if self.tail.ends_with(b"\n") { last } else { format!("\n{last}") };
        vec![self.head, gap.into(), self.tail, last.into()]
    }

    /// The kept bytes, without a mark for the gap.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        [&self.head[..], &self.tail[..]].concat()
    }
}

/// The notices about a missing part of a text.
#[derive(Debug)]
pub struct TruncationLines {
    /// The notice at the gap.
    pub gap: String,
    /// The last line.
    pub last: String,
}

impl TruncationLines {
    /// For a text of `written` bytes of which so many are kept.
    #[must_use]
    pub fn new(written: u64, head: usize, tail: usize) -> Self {
        let omitted = written.saturating_sub((head + tail) as u64);
        Self {
            gap: format!("\n[atoll: {omitted} bytes left out here]\n"),
            last: format!(
                "[atoll: output truncated: {written} bytes were written, the first {head} and the last {tail} are kept; \
                 write large output to a file]\n"
            ),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Budget, BudgetOwner, Sizes};

    fn account(size: u64) -> (Budget, Account) {
        let budget = Budget::new(Sizes { tenants: 0, strangers: size });
        let account = budget.account(BudgetOwner::Stranger(None));
        (budget, account)
    }

    /// Bytes that identify their position in the output.
    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    async fn collect(account: &Account, keep: Keep, data: &[u8], piece: usize) -> CollectedOutput {
        let mut collector = Collector::new(account, keep);
        for piece in data.chunks(piece) {
            collector.push(piece).await;
        }
        collector.finish()
    }

    #[tokio::test]
    async fn the_beginning_and_the_end_are_kept_however_it_is_cut() {
        let (budget, account) = account(16 << 20);
        let data = sample(300_000);
        for piece in [1_000, 4_096, 70_001, 300_000] {
            let kept = collect(&account, Keep::both(100_001), &data, piece).await;
            assert_eq!(kept.head, data[..50_000], "{piece}");
            assert_eq!(kept.tail, data[300_000 - 50_001..], "{piece}");
            assert_eq!((kept.written, kept.omitted), (300_000, 199_999), "{piece}");
            let whole = collect(&account, Keep::both(300_000), &data, piece).await;
            assert_eq!((whole.to_vec() == data, whole.is_truncated()), (true, false), "{piece}");
            assert_eq!(whole.with_notice().concat(), data, "{piece}");
            let head = collect(&account, Keep::head(100_000), &data, piece).await;
            assert_eq!((head.head.len(), head.tail.len(), head.omitted), (100_000, 0, 200_000), "{piece}");
        }
        assert_eq!(budget.held(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn without_room_little_is_kept_and_the_answer_says_so() {
        let (budget, account) = account(1 << 20);
        let mut others = account.reserve();
        others.try_grow(512 << 10).unwrap();
        let data = sample(5 << 20);
        let kept = collect(&account, Keep::both(16 << 20), &data, 30_000).await;
        assert_eq!((kept.head.len(), kept.tail.len()), (SMALL - TAIL_SMALL, TAIL_SMALL));
        assert_eq!(kept.tail, data[data.len() - TAIL_SMALL..]);
        let text = String::from_utf8_lossy(&kept.with_notice().concat()).into_owned();
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("[atoll: output truncated: 5242880 bytes were written"), "{last}");
        drop(others);
        assert_eq!(budget.held(), (0, 0));
    }

    #[tokio::test]
    async fn lost_bytes_are_a_gap() {
        let (_, account) = account(1 << 20);
        let mut collector = Collector::new(&account, Keep::both(1_000));
        collector.push(b"begin").await;
        collector.lost(7);
        collector.push(b"end\n").await;
        let kept = collector.finish();
        assert_eq!((&kept.head[..], &kept.tail[..], kept.omitted), (&b"begin"[..], &b"end\n"[..], 7));
    }
}
