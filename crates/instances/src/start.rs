//! Start, halt and destroy of a sandbox. Those of one sandbox take turns; those of different sandboxes may run at the
//! same time. A start runs as a task of its own, so a caller that goes away does not leave a half-made instance.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::SandboxId;
use atoll_provider::{Booted, InstanceSpec, ProviderError, Target};

use crate::{FilesState, InstanceLauncher, Instances, RunningInstance, SandboxSlot, failed};

/// LIMIT: a kill takes milliseconds; after this time the reaper continues alone.
const DEAD_WITHIN: Duration = Duration::from_secs(2);
/// LIMIT: how long a closing engine waits for starts.
const STARTS_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartKind {
    Start,
    Restore,
}

impl StartKind {
    fn before_adoption(self) -> ProviderError {
        let what = match self {
            Self::Start => "a start before adoption",
            Self::Restore => "a restore before adoption",
        };
        ProviderError::Unsupported {
            what: what.into(),
            hint: "instances of an earlier server may still live; call adopt first".into(),
        }
    }

    fn step(self) -> &'static str {
        match self {
            Self::Start => "starting the sandbox",
            Self::Restore => "restoring the sandbox",
        }
    }
}

impl<L: InstanceLauncher> Instances<L> {
    /// Starts the instance of a sandbox, after the end of one that is still in the slot.
    pub async fn start(
        launcher: &Arc<L>,
        spec: &InstanceSpec,
        files: FilesState,
    ) -> Result<Booted, ProviderError> {
        let own_spec = spec.clone();
        let work = move |launcher: Arc<L>, slot: Arc<SandboxSlot<L::Instance>>| async move {
            Self::start_in_turn(&launcher, &own_spec, files, &slot).await
        };
        Self::run_in_turn(launcher, &spec.sandbox, StartKind::Start, work).await
    }

    /// Runs `restore` like a start: in the sandbox's turn, to its end, and never during an adoption. It calls
    /// [`Instances::settle_in`] itself, or [`Instances::forget_empty`] when it fails.
    pub async fn restore<W, F>(
        launcher: &Arc<L>,
        sandbox: &SandboxId,
        restore: W,
    ) -> Result<Booted, ProviderError>
    where
        W: FnOnce(Arc<L>, Arc<SandboxSlot<L::Instance>>) -> F + Send + 'static,
        F: Future<Output = Result<Booted, ProviderError>> + Send + 'static,
    {
        Self::run_in_turn(launcher, sandbox, StartKind::Restore, restore).await
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "must come to its end when the caller goes away; the caller waits for it otherwise"
    )]
    async fn run_in_turn<W, F>(
        launcher: &Arc<L>,
        sandbox: &SandboxId,
        kind: StartKind,
        work: W,
    ) -> Result<Booted, ProviderError>
    where
        W: FnOnce(Arc<L>, Arc<SandboxSlot<L::Instance>>) -> F + Send + 'static,
        F: Future<Output = Result<Booted, ProviderError>> + Send + 'static,
    {
        let instances = launcher.instances();
        if instances.needs_adoption.load(Ordering::SeqCst) {
            return Err(kind.before_adoption());
        }
        let slot = instances.slot(sandbox);
        // Taken before the task begins: a destroy after a caller that went away must not overtake the start.
        let turn = Arc::clone(&slot.turn).lock_owned().await;
        let no_adoption = Arc::clone(&instances.adoption).read_owned().await;
        instances.start_begins();
        let launcher = Arc::clone(launcher);
        let task = tokio::spawn(async move {
            let outcome = work(Arc::clone(&launcher), slot).await;
            drop((no_adoption, turn));
            let instances = launcher.instances();
            instances.start_ends();
            if kind == StartKind::Start {
                *instances.last_start.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                instances.pool.wanted.notify_one();
            }
            outcome
        });
        task.await.map_err(failed(kind.step()))?
    }

    async fn start_in_turn(
        launcher: &Arc<L>,
        spec: &InstanceSpec,
        files: FilesState,
        slot: &Arc<SandboxSlot<L::Instance>>,
    ) -> Result<Booted, ProviderError> {
        if let Some((_, live)) = slot.live() {
            // A dead instance stays in its slot until it is ended explicitly.
            Self::end(&**launcher, slot, &live).await?;
        }
        if slot.is_doomed() {
            return Err(ProviderError::Gone { sandbox: spec.sandbox.clone() });
        }
        match launcher.launch(spec, files, slot).await {
            Ok((live, booted)) => {
                Self::settle_in(launcher, spec, slot, live);
                Ok(booted)
            }
            Err(error) => {
                launcher.instances().lock_slots().remove(&spec.sandbox);
                Err(error)
            }
        }
    }

    /// Puts a started instance into its slot and watches it.
    pub fn settle_in(
        launcher: &Arc<L>,
        spec: &InstanceSpec,
        slot: &SandboxSlot<L::Instance>,
        live: Arc<L::Instance>,
    ) {
        slot.set_live(Some((spec.instance.clone(), Arc::clone(&live))));
        Self::watch(launcher, live, &spec.sandbox, &spec.instance);
    }

    /// Ends the instance of a sandbox and keeps its files.
    pub async fn halt(launcher: &L, target: &Target) -> Result<(), ProviderError> {
        let instances = launcher.instances();
        let slot = instances.slot(&target.sandbox);
        let _turn = slot.turn().await;
        // First, so that a crash between the two steps does not restore a halted instance.
        launcher.remove_memory(&target.sandbox).await?;
        match slot.live() {
            Some((instance, live)) if target.instance.as_ref().is_none_or(|wanted| *wanted == instance) => {
                Self::end(launcher, &slot, &live).await
            }
            Some(_) => Ok(()),
            None => {
                instances.forget_empty(&target.sandbox, &slot);
                Ok(())
            }
        }
    }

    /// Ends the instance of a sandbox and removes its files. A start under way gives up.
    pub async fn destroy(launcher: &L, target: &Target) -> Result<(), ProviderError> {
        let instances = launcher.instances();
        let slot = instances.slot(&target.sandbox);
        slot.condemn();
        let _turn = slot.turn().await;
        launcher.remove_memory(&target.sandbox).await?;
        let ended = match slot.live() {
            Some((_, live)) => Self::end(launcher, &slot, &live).await,
            None => Ok(()),
        };
        // The name of the files is freed now and not by the reaper: the same sandbox may be made again before the reaper is done, as
        // by a move back.
        launcher.remove_files(&target.sandbox).await?;
        instances.lock_slots().remove(&target.sandbox);
        ended
    }

    /// Makes an instance unreachable, kills it, and hands the rest to the reaper. Its files stay.
    pub async fn end(
        launcher: &L,
        slot: &SandboxSlot<L::Instance>,
        live: &Arc<L::Instance>,
    ) -> Result<(), ProviderError> {
        live.expect_end();
        let killed = launcher.kill(live).await;
        let dead = tokio::time::timeout(DEAD_WITHIN, live.dead()).await;
        slot.set_live(None);
        launcher.instances().reaper.take(launcher.remains(live)?);
        killed?;
        match dead {
            Ok(outcome) => outcome.map_err(failed("waiting for the sandbox's end")),
            Err(_) => Err(ProviderError::Late { what: "ending the sandbox".into(), after: DEAD_WITHIN }),
        }
    }

    /// Counts work that a closing engine waits for, until [`Instances::start_ends`].
    pub fn start_begins(&self) {
        self.starting.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of work that [`Instances::start_begins`] counted.
    pub fn start_ends(&self) {
        self.starting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until no start is under way.
    pub(crate) async fn starts_end(&self) {
        let begun = Instant::now();
        while self.starting.load(Ordering::SeqCst) > 0 && begun.elapsed() < STARTS_WITHIN {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
