//! A sandbox at the gate: its policy, the DNS answers that it received, and its flows.
//!
//! ```text
//! kernel lock ─┬─ answer: decide, store, open in the kernel
//!              └─ admit:  policy, remove, close in the kernel, end flows
//! ```
//!
//! Changes in the kernel happen under one lock per sandbox, so that an answer and a change of policy cannot overtake
//! each other. The state lock is held only for lookups.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::policy::egress::ranges::is_stand_in;
use atoll_model::policy::egress::{DirectMode, Dns, Egress, NameVerdict, Rewrite};
use atoll_model::{EgressRecord, EgressWhat, SandboxId};

use super::answers::Answers;
use super::authority::Authority;
use super::bucket::{Bucket, Rate};
use super::flow::{Budget, Flow, FlowCarrier, FlowDescription};
use super::{Log, Opener};
use crate::address::SandboxLink;

/// LIMIT: flows through the gate at a time, unless the policy sets a limit.
const FLOWS: usize = 1024;
/// LIMIT: rate of new flows.
const ARRIVALS: Rate = Rate { per_second: 200, burst: 600 };
/// LIMIT: rate of queries. A build that installs hundreds of packages sends some dozens a second.
const QUESTIONS: Rate = Rate { per_second: 100, burst: 300 };
/// LIMIT: records of rate-limit refusals; one a second is enough.
const COMPLAINTS: Rate = Rate { per_second: 1, burst: 2 };
/// LIMIT: names whose bytes are counted.
const MOST_NAMES: usize = 4096;
/// How much longer than its answer an address stays open: a client connects some time after its query.
const GRACE: Duration = Duration::from_secs(30);

/// Why traffic is refused: the rule, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EgressRefusal(pub(crate) String);

/// A sandbox at the gate.
pub(crate) struct Guest {
    pub(crate) link: SandboxLink,
    pub(crate) sandbox: SandboxId,
    pub(crate) questions: Bucket,
    pub(crate) complaints: Bucket,
    arrivals: Bucket,
    log: Log,
    opener: Arc<dyn Opener>,
    kernel: Mutex<()>,
    state: Mutex<GuestState>,
    /// Bytes per name; shared with every [`Budget`].
    limit: Arc<AtomicU64>,
    authority: Mutex<Option<Arc<Authority>>>,
}

struct GuestState {
    egress: Arc<Egress>,
    gone: bool,
    answers: Answers,
    flows: HashMap<u64, Arc<Flow>>,
    next_flow: u64,
    spent: HashMap<String, Arc<AtomicU64>>,
}

impl Guest {
    pub(crate) fn new(
        link: SandboxLink,
        sandbox: SandboxId,
        egress: Arc<Egress>,
        opener: Arc<dyn Opener>,
        log: Log,
    ) -> Self {
        let limit = egress.limits.bytes_per_destination.unwrap_or(u64::MAX);
        Self {
            link,
            sandbox,
            questions: Bucket::new(QUESTIONS),
            complaints: Bucket::new(COMPLAINTS),
            arrivals: Bucket::new(ARRIVALS),
            log,
            opener,
            kernel: Mutex::default(),
            state: Mutex::new(GuestState {
                egress,
                gone: false,
                answers: Answers::default(),
                flows: HashMap::new(),
                next_flow: 0,
                spent: HashMap::new(),
            }),
            limit: Arc::new(AtomicU64::new(limit)),
            authority: Mutex::default(),
        }
    }

    /// Applies a new policy: ends everything that is no longer allowed, in the kernel and here.
    pub(crate) fn change(&self, egress: Arc<Egress>) {
        let _order = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        self.limit.store(egress.limits.bytes_per_destination.unwrap_or(u64::MAX), Ordering::Relaxed);
        let (closed, ended) = {
            let mut state = self.state();
            // Another way out is another connection: no flow stays on a way that the policy no longer has.
            let other_way = state.egress.proxies != egress.proxies;
            state.egress = Arc::clone(&egress);
            let closed = state.answers.retain(|name, address| may_hold(&egress, name, address));
            let ended: Vec<_> =
                state.flows.values().filter(|flow| other_way || !may_go_on(&egress, flow)).cloned().collect();
            (closed, ended)
        };
        ended.iter().for_each(|flow| flow.end("the policy changed"));
        self.close(&closed);
    }

    /// Removes the sandbox: none of its addresses stays open.
    pub(crate) fn leave(&self) {
        let _order = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let (closed, ended) = {
            let mut state = self.state();
            state.gone = true;
            state.egress = Arc::new(Egress::closed());
            let flows: Vec<_> = state.flows.values().cloned().collect();
            (state.answers.retain(|_, _| false), flows)
        };
        ended.iter().for_each(|flow| flow.end("the sandbox ended"));
        self.close(&closed);
    }

    fn close(&self, addresses: &[Ipv4Addr]) {
        if addresses.is_empty() {
            return;
        }
        if let Err(error) = self.opener.close(self.link, addresses) {
            // They expire with their timeout, and until then the gate refuses connections to them.
            tracing::warn!(sandbox = %self.sandbox, %error, "addresses could not be closed in the kernel");
        }
    }

    pub(crate) fn egress(&self) -> Arc<Egress> {
        Arc::clone(&self.state().egress)
    }

    pub(crate) fn log(&self, record: EgressRecord) {
        (self.log)(&self.sandbox, record);
    }

    /// Opens the addresses of an answer before the answer is sent; returns the allowed ones. Blocks for as long as the
    /// kernel takes.
    pub(crate) fn open(
        &self,
        name: &str,
        addresses: &[Ipv4Addr],
        ttl: Duration,
    ) -> Result<Vec<Ipv4Addr>, EgressRefusal> {
        let _order = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let good_for = ttl + GRACE;
        let allowed = {
            let mut state = self.state();
            let egress = Arc::clone(&state.egress);
            let rule = match (state.gone, egress.judge(name)) {
                (true, _) => Some("the sandbox ended".to_owned()),
                (false, NameVerdict::Refused { rule }) => Some(rule),
                (false, NameVerdict::Allowed { .. } | NameVerdict::Changed { .. }) => None,
            };
            if let Some(rule) = rule {
                return Err(EgressRefusal(rule));
            }
            let (allowed, why) = split(&egress, addresses);
            if let (true, Some(why)) = (allowed.is_empty(), why) {
                return Err(EgressRefusal(why));
            }
            state.answers.remember(name, &allowed, good_for, Instant::now());
            allowed
        };
        if !allowed.is_empty() {
            self.opener.open(self.link, &allowed, good_for).map_err(|error| {
                tracing::warn!(sandbox = %self.sandbox, %error, "an answer could not be opened in the kernel");
                EgressRefusal("the kernel could not open it".to_owned())
            })?;
        }
        Ok(allowed)
    }

    /// Admits a new flow if there is a free slot: the limit of the policy, and never more than `most`.
    pub(crate) fn arrive(self: &Arc<Self>, to: SocketAddrV4, most: usize) -> Result<Visit, EgressRefusal> {
        if !self.arrivals.take() {
            return Err(EgressRefusal("limits: too many connections per second".to_owned()));
        }
        let mut state = self.state();
        let most = state.egress.limits.connections.map_or(FLOWS, |most| most as usize).min(most);
        if state.gone || state.flows.len() >= most {
            return Err(EgressRefusal("limits: connections".to_owned()));
        }
        state.next_flow += 1;
        let flow = Arc::new(Flow::new(state.next_flow, to));
        state.flows.insert(flow.id, Arc::clone(&flow));
        Ok(Visit { guest: Arc::clone(self), flow })
    }

    /// Decides about a flow to a name, with the current policy, and binds the flow to that name. No change of policy
    /// can miss the flow.
    pub(crate) fn decide(
        &self,
        flow: &Flow,
        what: EgressWhat,
        name: &str,
        hides: bool,
    ) -> Result<FlowCarrier, EgressRefusal> {
        let mut state = self.state();
        // A connection that was admitted for a name stays valid for it after the DNS answer has expired.
        let holds = flow.about().is_some_and(|about| about.name.as_deref() == Some(name));
        let fresh = holds || state.answers.is_fresh(name, flow.address(), Instant::now());
        let (passage, rule) = passage(&state.egress, fresh, name, flow.address(), what)?;
        let (passage, rule) = match (hides, passage) {
            (true, FlowCarrier::Opaque) => {
                direct(&state.egress, flow.address(), "ech: the name asked for may be hidden")?
            }
            _ => (passage, rule),
        };
        let budget = self.budget(&mut state, name)?;
        let record =
            flow.is_about(FlowDescription { what, name: Some(name.to_owned()), passage, rule }, Some(budget));
        drop(state);
        record.into_iter().for_each(|record| self.log(record));
        Ok(passage)
    }

    /// Decides about a flow without a name.
    pub(crate) fn decide_nameless(
        &self,
        flow: &Flow,
        what: EgressWhat,
        otherwise: &str,
    ) -> Result<FlowCarrier, EgressRefusal> {
        let mut state = self.state();
        let (passage, rule) = direct(&state.egress, flow.address(), otherwise)?;
        let budget = self.budget(&mut state, &flow.address().to_string())?;
        flow.is_about(FlowDescription { what, name: None, passage, rule }, Some(budget));
        Ok(passage)
    }

    /// The host that a proxy is asked for: the name where the policy or a fresh answer binds the flow to it, otherwise the address.
    pub(crate) fn destination(&self, flow: &Flow, name: Option<&str>) -> Result<String, EgressRefusal> {
        let state = self.state();
        let (address, now) = (flow.address(), Instant::now());
        let is_bound = |name: &str| {
            let about = flow.about().filter(|about| about.passage != FlowCarrier::Direct);
            let holds = about.is_some_and(|about| about.name.as_deref() == Some(name));
            holds || state.answers.is_fresh(name, address, now)
        };
        if let Some(name) = name.filter(|name| is_bound(name)) {
            return Ok(name.to_owned());
        }
        if !is_stand_in(address) {
            return Ok(address.to_string());
        }
        let only = state.answers.only_name_of(address, now).map(str::to_owned);
        only.ok_or_else(|| EgressRefusal("the address stands for no name; resolve the name again".to_owned()))
    }

    /// Whether an address is a valid answer for a name.
    pub(crate) fn is_answer(&self, name: &str, address: Ipv4Addr) -> bool {
        self.state().answers.is_fresh(name, address, Instant::now())
    }

    /// Whether an address is reachable without the gate.
    pub(crate) fn reaches_directly(&self, address: Ipv4Addr) -> bool {
        direct(&self.state().egress, address, "").is_ok()
    }

    /// The changes to requests for a name, by the current policy.
    pub(crate) fn rewrite_for(&self, name: &str) -> Option<Rewrite> {
        let egress = self.egress();
        match egress.judge(name) {
            NameVerdict::Changed { .. } => egress.rewrite_for(name),
            NameVerdict::Allowed { .. } | NameVerdict::Refused { .. } => None,
        }
    }

    /// The sandbox's certificate authority; `None` if the policy has no seed.
    pub(crate) fn authority(&self) -> Option<Arc<Authority>> {
        let seed = self.egress().seed.clone()?;
        let mut kept = self.authority.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(authority) = kept.as_ref().filter(|authority| authority.is_of(&seed)) {
            return Some(Arc::clone(authority));
        }
        let authority = Arc::new(Authority::new(&seed));
        *kept = Some(Arc::clone(&authority));
        Some(authority)
    }

    fn budget(&self, state: &mut GuestState, name: &str) -> Result<Budget, EgressRefusal> {
        let over = || EgressRefusal("limits: bytes_per_destination".to_owned());
        if !state.spent.contains_key(name) && state.spent.len() >= MOST_NAMES {
            let limited = state.egress.limits.bytes_per_destination.is_some();
            // Removing a name would reset its budget; without a budget nothing is lost.
            if limited {
                return Err(over());
            }
            state.spent.clear();
        }
        let spent = Arc::clone(state.spent.entry(name.to_owned()).or_default());
        let budget = Budget { spent, limit: Arc::clone(&self.limit) };
        if budget.is_spent() { Err(over()) } else { Ok(budget) }
    }

    fn state(&self) -> MutexGuard<'_, GuestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flow and its slot, which is given back when dropped.
pub(crate) struct Visit {
    pub(crate) guest: Arc<Guest>,
    pub(crate) flow: Arc<Flow>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.guest.state().flows.remove(&self.flow.id);
    }
}

/// The addresses that may be opened, and why one of the others may not.
fn split(egress: &Egress, addresses: &[Ipv4Addr]) -> (Vec<Ipv4Addr>, Option<String>) {
    let mut why = None;
    let allowed = addresses.iter().filter(|address| match egress.judge_address((**address).into()) {
        Ok(()) => true,
        Err(rule) => {
            why = Some(rule);
            false
        }
    });
    (allowed.copied().collect(), why)
}

/// How a flow for a name to an address is forwarded.
fn passage(
    egress: &Egress,
    fresh: bool,
    name: &str,
    address: Ipv4Addr,
    what: EgressWhat,
) -> Result<(FlowCarrier, String), EgressRefusal> {
    egress.judge_address(address.into()).map_err(EgressRefusal)?;
    let by_name = if what == EgressWhat::Http { FlowCarrier::Requests } else { FlowCarrier::Opaque };
    match (egress.dns, egress.judge(name)) {
        (Dns::Closed, _) => direct(egress, address, "no name is allowed"),
        (Dns::Free | Dns::Gated, NameVerdict::Refused { rule }) => direct(egress, address, &rule),
        (Dns::Free | Dns::Gated, _) if !fresh => {
            direct(egress, address, "the address is no fresh answer for this name")
        }
        (Dns::Free | Dns::Gated, NameVerdict::Changed { rule, .. }) => Ok((FlowCarrier::Changed, rule)),
        (Dns::Gated, NameVerdict::Allowed { rule }) => Ok((by_name, rule)),
        (Dns::Free, NameVerdict::Allowed { rule }) => direct(egress, address, &rule),
    }
}

/// Allowed only if packets to the address pass without the gate.
fn direct(
    egress: &Egress,
    address: Ipv4Addr,
    otherwise: &str,
) -> Result<(FlowCarrier, String), EgressRefusal> {
    egress.judge_address(address.into()).map_err(EgressRefusal)?;
    match egress.direct_mode {
        DirectMode::Open => Ok((FlowCarrier::Direct, "allow-all".to_owned())),
        DirectMode::Listed if egress.direct.contains(address.into()) => {
            Ok((FlowCarrier::Direct, "allow_cidrs".to_owned()))
        }
        DirectMode::Listed | DirectMode::Closed => Err(EgressRefusal(otherwise.to_owned())),
    }
}

/// Whether an earlier answer stays valid.
fn may_hold(egress: &Egress, name: &str, address: Ipv4Addr) -> bool {
    let name_stays = match (egress.dns, egress.judge(name)) {
        (Dns::Closed, _) | (_, NameVerdict::Refused { .. }) => false,
        // Names that are not changed use the direct route again, if there is one.
        (Dns::Free, NameVerdict::Allowed { .. }) => egress.is_proxied(),
        (Dns::Gated, NameVerdict::Allowed { .. }) | (_, NameVerdict::Changed { .. }) => true,
    };
    name_stays && egress.judge_address(address.into()).is_ok()
}

/// Whether a flow may continue. An undecided one may: the new policy decides about it later.
fn may_go_on(egress: &Egress, flow: &Flow) -> bool {
    let Some(FlowDescription { name, passage, .. }) = flow.about() else { return true };
    if direct(egress, flow.address(), "").is_ok() && passage != FlowCarrier::Opaque {
        return true;
    }
    let Some(name) = name.filter(|_| egress.judge_address(flow.address().into()).is_ok()) else {
        return false;
    };
    match (egress.dns, egress.judge(&name), passage) {
        (Dns::Closed, _, _) | (_, NameVerdict::Refused { .. }, _) | (_, _, FlowCarrier::Direct) => {
            direct(egress, flow.address(), "").is_ok()
        }
        // A flow that is forwarded unread cannot be changed.
        (_, NameVerdict::Changed { .. }, FlowCarrier::Opaque) => false,
        (_, NameVerdict::Changed { .. }, FlowCarrier::Requests | FlowCarrier::Changed) => true,
        (Dns::Gated, NameVerdict::Allowed { .. }, _) => true,
        (Dns::Free, NameVerdict::Allowed { .. }, _) => direct(egress, flow.address(), "").is_ok(),
    }
}

#[cfg(test)]
#[path = "guest/tests.rs"]
mod tests;
