//! Whether the sandbox is paused. Deadlines count only while it is not: a paused sandbox does not answer, and that is
//! no error.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::AgentError;

/// What the driver of the sandbox knows about the instance of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceLiveness {
    /// It runs: silence counts.
    Beats,
    /// It is paused: no time counts.
    Still,
    /// It ended, or was restored as another instance: further waiting is useless.
    Gone,
}

/// Sets deadlines for waits, and stops their clocks while the sandbox is paused.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    pulse: Option<watch::Receiver<InstanceLiveness>>,
}

impl Patience {
    pub(super) fn new(pulse: watch::Receiver<InstanceLiveness>) -> Self {
        Self { pulse: Some(pulse) }
    }

    /// Resolves when the instance is gone; never, if its state is not known.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let pulse = self.pulse.clone();
        async move {
            match pulse {
                // A dropped sender has the same meaning.
                Some(mut pulse) => drop(pulse.wait_for(|pulse| *pulse == InstanceLiveness::Gone).await),
                None => std::future::pending().await,
            }
        }
    }

    pub(super) async fn within<T>(
        &self,
        what: &'static str,
        limit: Duration,
        call: impl Future<Output = Result<T, AgentError>>,
    ) -> Result<T, AgentError> {
        let Some(mut pulse) = self.pulse.clone() else {
            let late = || Err(AgentError::Deadline { what, limit });
            return tokio::time::timeout(limit, call).await.unwrap_or_else(|_| late());
        };
        tokio::select! {
            // A result that has arrived is returned, even if the instance is gone by now.
            biased;
            done = call => done,
            error = elapse(&mut pulse, what, limit) => Err(error),
        }
    }
}

/// Ends when `limit` has passed while the sandbox was running, or when the instance is gone.
async fn elapse(
    pulse: &mut watch::Receiver<InstanceLiveness>,
    what: &'static str,
    limit: Duration,
) -> AgentError {
    let mut left = limit;
    loop {
        let now = *pulse.borrow_and_update();
        let since = Instant::now();
        let counts = match now {
            InstanceLiveness::Gone => return AgentError::Ended,
            InstanceLiveness::Still => false,
            InstanceLiveness::Beats => true,
        };
        tokio::select! {
            () = tokio::time::sleep(left), if counts => return AgentError::Deadline { what, limit },
            changed = pulse.changed() => {
                if counts {
                    left = left.saturating_sub(since.elapsed());
                }
                if changed.is_err() {
                    // The state is not known any more; the clock continues.
                    tokio::time::sleep(left).await;
                    return AgentError::Deadline { what, limit };
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    #[test]
    fn time_in_which_the_sandbox_stands_still_does_not_count() {
        runtime().block_on(async {
            let (tell, pulse) = watch::channel(InstanceLiveness::Beats);
            let begun = Instant::now();
            let patience = Patience::new(pulse);
            let waiting = patience.within::<()>("x", LIMIT, std::future::pending());
            let life = async {
                tokio::time::sleep(Duration::from_secs(4)).await;
                tell.send_replace(InstanceLiveness::Still);
                tokio::time::sleep(Duration::from_secs(3_600)).await;
                tell.send_replace(InstanceLiveness::Beats);
                std::future::pending::<()>().await;
            };
            let error = tokio::select! { ended = waiting => ended.unwrap_err(), () = life => unreachable!() };
            assert!(matches!(error, AgentError::Deadline { .. }));
            assert_eq!(begun.elapsed().as_secs(), 3_610);
        });
    }

    #[test]
    fn who_waits_for_an_instance_that_is_gone_is_told_at_once() {
        runtime().block_on(async {
            let (tell, pulse) = watch::channel(InstanceLiveness::Still);
            tell.send_replace(InstanceLiveness::Gone);
            let ended = Patience::new(pulse).within::<()>("x", LIMIT, std::future::pending()).await;
            assert!(matches!(ended, Err(AgentError::Ended)));
        });
    }

    #[test]
    fn without_anybody_who_knows_the_clock_goes_on() {
        runtime().block_on(async {
            for pulse in [InstanceLiveness::Still, InstanceLiveness::Beats] {
                let (_, pulse) = watch::channel(pulse);
                let ended = Patience::new(pulse).within::<()>("x", LIMIT, std::future::pending()).await;
                assert!(matches!(ended, Err(AgentError::Deadline { .. })));
            }
        });
    }
}
