//! Holds that keep a sandbox awake, longer lifetimes, and the reasons why a sandbox is awake. These calls never wake a
//! sandbox.

use atoll_model::policy::deadlines::Due;
use atoll_model::{Code, Hold, Lease, OnTimeout, Phase, Principal};

use crate::create::timeout_at;
use crate::deadlines::next_due;
use crate::driver::{DriverMessage, Edit};
use crate::error::phase_conflict;
use crate::sandboxes::{Sandboxes, ask};
use crate::{Awake, HoldAsk, NextTimer, ServiceError};

/// LIMIT: a forgotten hold ends by itself.
const HOLD_S_MAX: u64 = 24 * 3_600;
const REASON_MAX: usize = 256;
/// LIMIT: the maximum of any timeout.
const EXTEND_S_MAX: u64 = 365 * 24 * 3_600;
/// How old a check may be for a response.
const FRESH_MS: i64 = 1_000;

impl Sandboxes {
    /// Keeps a sandbox from being idle until a deadline. A new hold replaces the old one.
    pub async fn hold(&self, who: &Principal, ident: &str, ask: HoldAsk) -> Result<Lease, ServiceError> {
        within("for_s", ask.for_s, HOLD_S_MAX)?;
        if let Some(reason) = &ask.reason
            && (reason.is_empty() || reason.len() > REASON_MAX || reason.chars().any(char::is_control))
        {
            let message = format!("reason must have 1 to {REASON_MAX} printable characters");
            return Err(ServiceError::new(Code::InvalidRequest, message));
        }
        self.edit(
            who,
            ident,
            Box::new(move |lease, now| {
                refuse_ending(lease, "hold")?;
                lease.hold = Some(Hold { until: timeout_at(now, ask.for_s), reason: ask.reason });
                Ok(vec!["hold"])
            }),
        )
        .await
    }

    /// Releases a hold. Without one nothing happens.
    pub async fn release(&self, who: &Principal, ident: &str) -> Result<Lease, ServiceError> {
        // The idle time begins at the end of the hold.
        let _busy = self.driven(who, ident).await?.activity.begin(crate::activity::ActivityKind::Request);
        self.edit(
            who,
            ident,
            Box::new(|lease, _| Ok(if lease.hold.take().is_some() { vec!["hold"] } else { vec![] })),
        )
        .await
    }

    /// Extends the lifetime of a sandbox to at least this many seconds from now; never shortens it. A sandbox without a
    /// timeout stays unchanged.
    pub async fn extend(&self, who: &Principal, ident: &str, seconds: u64) -> Result<Lease, ServiceError> {
        within("seconds", seconds, EXTEND_S_MAX)?;
        self.edit(
            who,
            ident,
            Box::new(move |lease, now| {
                refuse_ending(lease, "extend")?;
                let until = timeout_at(now, seconds);
                match &lease.timeout_at {
                    Some(at) if until.ms_after(at) > 0 => {
                        lease.timeout_at = Some(until);
                        lease.timeout_s = Some(seconds);
                        Ok(vec!["timeout_s"])
                    }
                    Some(_) | None => Ok(vec![]),
                }
            }),
        )
        .await
    }

    /// Why it is awake, since when, and its next timer. Never wakes it.
    pub async fn awake(&self, who: &Principal, ident: &str) -> Result<Awake, ServiceError> {
        let (lease, Some(handle)) = self.find(who, ident).await? else {
            return Ok(Awake { because: vec![], active_at_ms: None, idle: true, next: None });
        };
        let mut active_at_ms = lease.active_at.as_ref().map(|at| at.wall_ms);
        let mut because = vec![];
        if lease.phase == Phase::Running {
            if handle.activity.wants_look(&self.inner.clock.now(), FRESH_MS) {
                crate::idle::look(&self.inner, &handle).await;
            }
            let now = self.inner.clock.now();
            because = handle.activity.because(&lease, &now);
            active_at_ms = Some(handle.activity.active_at(&now).wall_ms);
        }
        let now = self.inner.clock.now();
        let next = next_due(&handle.lease(), &handle.activity, &now).and_then(|(at, due)| {
            // By the current wall clock, which may have jumped since the timer was set.
            let at_ms = now.wall_ms.saturating_add(at.ms_after(&now));
            what(due).map(|what| NextTimer { at_ms, what })
        });
        Ok(Awake { idle: because.is_empty(), because, active_at_ms, next })
    }

    async fn edit(&self, who: &Principal, ident: &str, edit: Edit) -> Result<Lease, ServiceError> {
        let handle = self.driven(who, ident).await?;
        let lease = ask(&handle, |reply| DriverMessage::Edit { edit, reply }).await?;
        Ok(lease.as_ref().clone())
    }
}

fn within(field: &str, seconds: u64, max: u64) -> Result<(), ServiceError> {
    if (1..=max).contains(&seconds) {
        return Ok(());
    }
    let problem = format!("must be between 1 and {max} seconds");
    Err(ServiceError::new(Code::InvalidRequest, format!("{field} {problem}")).about(field, problem))
}

fn refuse_ending(lease: &Lease, what: &str) -> Result<(), ServiceError> {
    match lease.phase {
        Phase::Deleting | Phase::Deleted => Err(phase_conflict(lease, what)),
        _ => Ok(()),
    }
}

const fn what(due: Due) -> Option<&'static str> {
    match due {
        Due::PhaseOverdue | Due::QueueTimeout => None,
        Due::Timeout(OnTimeout::Pause) | Due::IdlePause => Some("pause"),
        Due::Timeout(OnTimeout::Stop) | Due::IdleStop => Some("stop"),
        Due::Checkpoint => Some("checkpoint"),
        Due::Archive => Some("archive"),
        Due::Timeout(OnTimeout::Delete) | Due::Delete => Some("delete"),
    }
}
