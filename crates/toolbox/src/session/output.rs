//! The collected output of a session's command: its beginning and its end, in order.

use std::collections::VecDeque;

use atoll_budget::{Account, SMALL, TruncationLines};
use bytes::Bytes;

use super::LogEvent;

/// LIMIT: bytes that are kept of both streams together: half of the beginning and half of the end.
const HALF_MAX: usize = 8 << 20;
/// How much of the end is kept if the budget is used up.
const END_MIN: usize = SMALL / 4;

/// Output of both streams. Its bytes are counted until they are dropped.
#[derive(Debug, Default)]
pub struct CommandOutput {
    head: Vec<LogEvent>,
    tail: VecDeque<LogEvent>,
    head_bytes: usize,
    tail_bytes: usize,
    written: u64,
    omitted: u64,
    is_refused: bool,
}

impl CommandOutput {
    /// All pieces in order. If some are missing, a line says so at the gap, and the last line repeats it.
    #[must_use]
    pub fn into_pieces(self) -> Vec<LogEvent> {
        let mut pieces = self.head;
        if self.omitted > 0 {
            let lines = TruncationLines::new(self.written, self.head_bytes, self.tail_bytes);
            let ends = matches!(self.tail.back(), Some(LogEvent::Stdout(data) | LogEvent::Stderr(data)) if data.ends_with(b"\n"));
            pieces.push(LogEvent::Stdout(lines.gap.into()));
            pieces.extend(self.tail);
            let last = if ends { lines.last } else { format!("\n{}", lines.last) };
            pieces.push(LogEvent::Stdout(last.into()));
        } else {
            pieces.extend(self.tail);
        }
        pieces
    }

    pub(super) async fn push(&mut self, account: &Account, event: LogEvent) {
        let (data, stream): (Bytes, fn(Bytes) -> LogEvent) = match event {
            LogEvent::Stdout(data) => (data, LogEvent::Stdout),
            LogEvent::Stderr(data) => (data, LogEvent::Stderr),
            LogEvent::Exit(_) => return,
        };
        self.written += data.len() as u64;
        let fits = self.tail.is_empty() && self.omitted == 0 && self.head_bytes + data.len() <= HALF_MAX;
        let held = self.held(account, data.clone()).await;
        match held {
            Some(data) if fits => {
                self.head_bytes += data.len();
                self.head.push(stream(data));
            }
            Some(data) => self.push_tail(stream(data)),
            None => self.push_refused(account, &data, stream),
        }
    }

    fn push_tail(&mut self, event: LogEvent) {
        self.tail_bytes += event.len();
        self.tail.push_back(event);
        while self.tail_bytes > HALF_MAX {
            self.forget_oldest();
        }
    }

    /// Frees its own memory, and keeps at least the very end.
    fn push_refused(&mut self, account: &Account, data: &Bytes, stream: fn(Bytes) -> LogEvent) {
        while !self.tail.is_empty() {
            self.forget_oldest();
            let mut reservation = account.reserve();
            if reservation.try_grow(data.len() + SMALL).is_ok() {
                return self.push_tail(stream(reservation.attach(data.clone())));
            }
        }
        let end = Bytes::copy_from_slice(&data[data.len().saturating_sub(END_MIN)..]);
        self.omitted += (data.len() - end.len()) as u64;
        self.push_tail(stream(end));
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.tail.pop_front() {
            self.tail_bytes -= oldest.len();
            self.omitted += oldest.len() as u64;
        }
    }

    /// The bytes, charged to the account; `None`: the budget is used up. Waits only once.
    async fn held(&mut self, account: &Account, data: Bytes) -> Option<Bytes> {
        let mut reservation = account.reserve();
        // The whole piece counts, because there are many pieces.
        let size = data.len() + SMALL;
        let grown = if self.is_refused { reservation.try_grow(size) } else { reservation.grow(size).await };
        self.is_refused |= grown.is_err();
        grown.is_ok().then(|| reservation.attach(data))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_budget::{Budget, BudgetOwner, Sizes};

    const PIECE: usize = 256 << 10;

    async fn collect(account: &Account, pieces: usize) -> CommandOutput {
        let mut output = CommandOutput::default();
        for number in 0..pieces {
            let data = Bytes::from(vec![u8::try_from(number % 200).unwrap(); PIECE]);
            let event = if number % 2 == 0 { LogEvent::Stdout(data) } else { LogEvent::Stderr(data) };
            output.push(account, event).await;
        }
        output
    }

    #[tokio::test(start_paused = true)]
    async fn the_beginning_and_the_end_are_kept_as_far_as_there_is_room() {
        for (size, is_short) in [(512 << 20, false), (2 << 20, true)] {
            let budget = Budget::new(Sizes { tenants: 0, strangers: size });
            let account = budget.account(BudgetOwner::Stranger(None));
            let output = collect(&account, 100).await;
            let kept = output.head_bytes + output.tail_bytes;
            assert_eq!(output.written, output.omitted + kept as u64);
            // The first bytes of a reservation are free.
            let most = if is_short { (1 << 20) + (16 << 10) } else { 16 << 20 };
            assert!(kept <= most, "{kept}");
            let pieces = output.into_pieces();
            let first = |event: &LogEvent| match event {
                LogEvent::Stdout(data) | LogEvent::Stderr(data) => data[0],
                LogEvent::Exit(_) => 255,
            };
            assert_eq!((first(&pieces[0]), first(&pieces[pieces.len() - 2])), (0, 99));
            let LogEvent::Stdout(last) = pieces.last().unwrap() else { panic!("a line") };
            assert!(String::from_utf8_lossy(last).contains("output truncated"), "{last:?}");
            drop(pieces);
            assert_eq!(budget.held(), (0, 0));
        }
    }
}
