//! One connection through the gate: its subject, its byte counts, and when it must end.
//!
//! ```text
//! accepted ── peeked ── named (allowed) ── carried ── ended: by a side, by idleness, by a policy, by a budget
//! ```
//!
//! A short flow makes one record, at its end. A longer one makes one early and then one per minute, each with the bytes
//! since the last record; so the sum is always right.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use atoll_model::{EgressRecord, EgressVerdict, EgressWhat};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// When a long flow is first recorded, and how often after that.
const FIRST_RECORD: Duration = Duration::from_secs(1);
const NEXT_RECORD: Duration = Duration::from_secs(60);
/// LIMIT: the longest time without traffic. Dead peers are detected much earlier, by keepalive probes.
const IDLE_MAX: Duration = Duration::from_secs(3600);

/// How a flow is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowCarrier {
    /// Bytes are forwarded unread, because the name is allowed.
    Opaque,
    /// Plain HTTP for an allowed name, request by request.
    Requests,
    /// Requests are changed.
    Changed,
    /// The address is also reachable without the gate, so the name does not matter.
    Direct,
}

/// The subject of a flow, once it is known.
#[derive(Clone, Debug)]
pub(crate) struct FlowDescription {
    pub(crate) what: EgressWhat,
    pub(crate) name: Option<String>,
    pub(crate) passage: FlowCarrier,
    pub(crate) rule: String,
}

/// Bytes exchanged with one name, shared by all its flows, and their limit.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) spent: Arc<AtomicU64>,
    pub(crate) limit: Arc<AtomicU64>,
}

impl Budget {
    pub(crate) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) id: u64,
    /// The address that the sandbox connected to.
    pub(crate) to: SocketAddrV4,
    /// Cancelled when the flow must end at once.
    pub(crate) ended: CancellationToken,
    started_at: Instant,
    active_ms: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    state: Mutex<FlowState>,
}

#[derive(Debug, Default)]
struct FlowState {
    about: Option<FlowDescription>,
    budget: Option<Budget>,
    /// Why the flow was ended.
    reason: Option<String>,
    /// Bytes that are recorded already.
    recorded: (u64, u64),
}

impl Flow {
    pub(crate) fn new(id: u64, to: SocketAddrV4) -> Self {
        Self {
            id,
            to,
            ended: CancellationToken::new(),
            started_at: Instant::now(),
            active_ms: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        *self.to.ip()
    }

    /// Sets the subject of the flow. Returns a record for the earlier subject if there was another one.
    pub(crate) fn is_about(&self, about: FlowDescription, budget: Option<Budget>) -> Option<EgressRecord> {
        let changed =
            self.about().is_some_and(|before| before.name != about.name || before.passage != about.passage);
        // Bytes up to now belong to the earlier name.
        let record = if changed { self.record() } else { None };
        let mut state = self.state();
        // The head of a request is read before the budget is known to which it belongs.
        if let (None, Some(budget)) = (&state.budget, &budget) {
            budget.spent.fetch_add(self.moved(), Ordering::Relaxed);
        }
        state.about = Some(about);
        state.budget = budget;
        record
    }

    fn moved(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn about(&self) -> Option<FlowDescription> {
        self.state().about.clone()
    }

    /// Ends the flow.
    pub(crate) fn end(&self, reason: &str) {
        self.state().reason.get_or_insert_with(|| reason.to_owned());
        self.ended.cancel();
    }

    /// Counts bytes out of the sandbox; an error once the flow must end.
    pub(crate) fn count_sent(&self, bytes: usize) -> io::Result<()> {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.count(bytes)
    }

    /// Counts bytes into the sandbox; an error once the flow must end.
    pub(crate) fn count_received(&self, bytes: usize) -> io::Result<()> {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.count(bytes)
    }

    fn count(&self, bytes: usize) -> io::Result<()> {
        let now_ms = u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active_ms.store(now_ms, Ordering::Relaxed);
        let over = self.state().budget.as_ref().is_some_and(|budget| {
            budget.spent.fetch_add(bytes as u64, Ordering::Relaxed);
            budget.is_spent()
        });
        if over {
            self.end("limits: bytes_per_destination");
        }
        // A busy flow might otherwise notice its end only after much more traffic.
        if self.ended.is_cancelled() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    /// The bytes since the last record; `None` before the subject is known.
    pub(crate) fn record(&self) -> Option<EgressRecord> {
        let (sent, received) = (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed));
        let mut state = self.state();
        let about = state.about.clone()?;
        let before = std::mem::replace(&mut state.recorded, (sent, received));
        let (verdict, rule) = match &state.reason {
            Some(reason) => (EgressVerdict::Refused, reason.clone()),
            None => (EgressVerdict::Allowed, about.rule),
        };
        drop(state);
        let record = self.decision(about.what, verdict, &rule, about.name);
        Some(EgressRecord { sent: sent - before.0, received: received - before.1, ..record })
    }

    /// A record of a decision, without bytes.
    pub(crate) fn decision(
        &self,
        what: EgressWhat,
        verdict: EgressVerdict,
        rule: &str,
        name: Option<String>,
    ) -> EgressRecord {
        EgressRecord {
            at_ms: now_ms(),
            what,
            verdict,
            rule: rule.to_owned(),
            name,
            address: Some(self.address().into()),
            port: Some(self.to.port()),
            protocol: Some("tcp".to_owned()),
            sent: 0,
            received: 0,
        }
    }

    /// Records the flow periodically, until it has been idle for too long.
    pub(crate) async fn watch(&self, log: impl Fn(EgressRecord)) {
        let mut pause = FIRST_RECORD;
        loop {
            tokio::time::sleep(pause).await;
            pause = NEXT_RECORD;
            let active_at = Duration::from_millis(self.active_ms.load(Ordering::Relaxed));
            if self.started_at.elapsed().saturating_sub(active_at) > IDLE_MAX {
                return;
            }
            let first = self.state().recorded == (0, 0);
            let moved = self.state().recorded
                != (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed));
            if first || moved {
                self.record().into_iter().for_each(&log);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, FlowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the time of a record of the egress log")]
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The sandbox's side of a flow: the peeked bytes come first, and every byte is counted.
#[derive(Debug)]
pub(crate) struct MeteredStream {
    pub(crate) stream: TcpStream,
    pub(crate) peeked: bytes::Bytes,
    pub(crate) flow: Arc<Flow>,
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.peeked.is_empty() {
            std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        } else {
            atoll_relay::stream::read_ahead(&mut self.peeked, buffer);
        }
        Poll::Ready(self.flow.count_sent(buffer.filled().len() - before))
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        Poll::Ready(self.flow.count_received(written).map(|()| written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn flow() -> Flow {
        Flow::new(1, SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 1), 443))
    }

    fn about(name: &str) -> FlowDescription {
        FlowDescription {
            what: EgressWhat::Http,
            name: Some(name.into()),
            passage: FlowCarrier::Requests,
            rule: "allow_domains: *.test".into(),
        }
    }

    #[test]
    fn bytes_are_recorded_once_and_under_the_name_they_belong_to() {
        let flow = flow();
        assert!(flow.record().is_none());
        assert!(flow.is_about(about("a.test"), None).is_none());
        flow.count_sent(10).unwrap();
        flow.count_received(5).unwrap();
        let first = flow.is_about(about("b.test"), None).unwrap();
        assert_eq!((first.name.as_deref(), first.sent, first.received), (Some("a.test"), 10, 5));
        flow.count_sent(1).unwrap();
        assert!(flow.is_about(about("b.test"), None).is_none(), "the same name goes on");
        let last = flow.record().unwrap();
        assert_eq!((last.name.as_deref(), last.sent, last.received), (Some("b.test"), 1, 0));
    }

    #[test]
    fn what_was_read_before_the_name_was_known_is_spent_too() {
        let budget = Budget { spent: Arc::default(), limit: Arc::new(AtomicU64::new(100)) };
        let flow = flow();
        flow.count_sent(70).unwrap();
        flow.is_about(about("a.test"), Some(budget.clone()));
        flow.is_about(about("a.test"), Some(budget.clone()));
        assert_eq!(budget.spent.load(Ordering::Relaxed), 70, "once");
        assert!(flow.count_received(30).is_err());
    }

    #[test]
    fn a_spent_budget_ends_every_flow_that_shares_it() {
        let budget = Budget { spent: Arc::default(), limit: Arc::new(AtomicU64::new(100)) };
        let (one, other) = (flow(), flow());
        one.is_about(about("a.test"), Some(budget.clone()));
        other.is_about(about("a.test"), Some(budget));
        one.count_sent(60).unwrap();
        assert!(!one.ended.is_cancelled());
        assert!(other.count_received(60).is_err());
        assert!(other.ended.is_cancelled());
        assert_eq!(other.record().unwrap().verdict, EgressVerdict::Refused);
        assert!(one.count_sent(1).is_err());
        assert!(one.ended.is_cancelled());
    }
}
