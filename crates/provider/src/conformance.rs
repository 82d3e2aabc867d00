//! Requirements for every provider. Each case creates and removes its own sandboxes. Run all cases against one
//! provider, one after the other, and do a leak check at the end.
//!
//! ```ignore
//! let fixture = Fixture { provider, template: "busybox".into(), template_version, inside: Arc::new(MyInside) };
//! for case in conformance::all() {
//!     case.run(fixture.clone()).await;
//! }
//! ```

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "test code behind a feature")]

mod agent_access;
mod basics;
mod capability_table;
mod captures;
mod checkpoints;
mod memories;
mod packs;
mod pauses;
mod reach;
mod refusals;
mod sessions;
mod sizes;
mod snapshots;
mod volumes;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::egress::Egress;
use atoll_model::{InstanceId, Limits, MemoryLocation, SandboxId, SnapshotId, Storage};

use crate::{
    AGENT_PORT, Adopted, AdoptionOutcome, Booted, ByteStream, Capability, FilesOrigin, InstanceDemands,
    InstanceSpec, KnownSandbox, NoticeKind, Provider, ProviderError, RolledBack, Target,
};

pub use agent_access::AgentAccess;
pub use capability_table::check_capability_table;

/// Operations inside an instance; the tests of a provider implement them, usually with [`AgentAccess`].
#[async_trait]
pub trait InstanceAccess: Send + Sync {
    /// Writes a small file at an absolute path.
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]);
    /// Reads a file; `None` if it does not exist.
    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>>;
    /// Whether a small file can be written at an absolute path.
    async fn may_write(&self, live: &Live<'_>, path: &str) -> bool;
    /// Starts a process that holds a text only in its memory; it replaces an earlier one.
    async fn hold_memory(&self, live: &Live<'_>, text: &str);
    /// The text that the process holds; `None` if there is no such process.
    async fn memory(&self, live: &Live<'_>) -> Option<String>;
    /// Ends the instance's first process from outside, as a crash would.
    async fn kill(&self, live: &Live<'_>);
}

/// A live instance with everything that is needed to use its agent.
pub struct Live<'a> {
    /// Its provider.
    pub provider: &'a Arc<dyn Provider>,
    /// The instance.
    pub target: Target,
    /// The provider's result when the instance was made.
    pub booted: Booted,
    /// The token of its agent.
    pub token: String,
}

impl Live<'_> {
    /// A byte stream to its agent.
    pub async fn dial(&self) -> Result<Box<dyn ByteStream>, ProviderError> {
        self.provider.dial(&self.target, AGENT_PORT).await
    }

    /// Asks the instance for a sign of life: a connection to its agent, or where it has none, its usage.
    pub async fn probe(&self) -> Result<(), ProviderError> {
        if self.provider.capabilities().has(Capability::Agent) {
            return self.dial().await.map(drop);
        }
        self.provider.usage(&self.target).await.map(drop)
    }
}

/// A provider under test.
#[derive(Clone)]
pub struct Fixture {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// A small template that it has.
    pub template: String,
    /// Its version.
    pub template_version: String,
    /// Operations inside an instance.
    pub inside: Arc<dyn InstanceAccess>,
}

/// One case with the capabilities that it needs.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What a provider must be able to do for it.
    pub needs: &'static [Capability],
    body: fn(Fixture) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Case {
    /// Runs it where the provider can do what it needs; answers whether it did.
    pub async fn run(&self, fixture: Fixture) -> bool {
        let able = fixture.provider.capabilities();
        let is_possible = self.needs.iter().all(|need| able.has(*need));
        if is_possible {
            (self.body)(fixture).await;
        }
        is_possible
    }
}

/// Every case. What a provider lacks is not left untested: `refusals` calls it, and wants the typed error.
#[must_use]
pub fn all() -> Vec<Case> {
    macro_rules! cases {
        ($($module:ident::$name:ident: [$($need:ident),*],)*) => { vec![$(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            needs: &[$(Capability::$need),*],
            body: |fixture| Box::pin($module::$name(fixture)),
        }),*] };
    }
    cases![
        basics::a_created_instance_is_dialled_and_measured: [Agent],
        basics::a_closed_port_says_so: [DialStream],
        basics::an_unknown_template_is_refused_and_leaves_nothing: [],
        basics::halt_keeps_files_and_boot_finds_them: [KeepFiles],
        basics::halt_and_destroy_may_be_repeated: [],
        basics::what_was_never_there_is_gone: [],
        basics::a_call_that_names_an_older_instance_does_nothing: [KeepFiles],
        basics::destroy_without_an_instance_removes_the_files: [],
        basics::adoption_keeps_the_known_and_removes_the_rest: [],
        basics::adoption_says_what_is_gone: [],
        basics::a_death_is_told_within_seconds: [],
        basics::limits_change_while_it_runs: [Resize],
        basics::its_policy_changes_while_it_runs: [Egress],
        basics::many_creates_at_once_are_all_different: [],
        basics::a_create_that_is_dropped_half_way_can_be_destroyed: [],
        pauses::a_pause_keeps_everything_and_may_be_repeated: [Pause],
        pauses::a_paused_instance_stays_so_over_an_adoption_where_that_is_wanted: [Pause],
        pauses::a_paused_sandbox_can_be_halted_and_destroyed: [Pause],
        pauses::pausing_what_does_not_run_is_gone: [Pause],
        checkpoints::a_checkpoint_keeps_memory_and_files_and_is_spent_by_its_restore: [Checkpoint],
        checkpoints::a_checkpoint_that_is_dropped_half_way_loses_nothing: [Checkpoint],
        checkpoints::a_restore_that_is_dropped_half_way_loses_nothing: [Checkpoint],
        checkpoints::halt_drops_a_checkpoint_and_keeps_the_files: [Checkpoint],
        checkpoints::adoption_keeps_a_checkpoint_only_of_what_is_paused: [Checkpoint],
        checkpoints::destroy_removes_a_checkpoint: [Checkpoint],
        snapshots::a_snapshot_is_taken_of_what_runs_stands_still_or_is_stopped: [Snapshot],
        snapshots::a_sandbox_from_a_snapshot_is_independent_both_ways: [Snapshot],
        snapshots::rollback_puts_the_files_back: [Snapshot],
        snapshots::a_damaged_or_unknown_snapshot_is_refused: [Snapshot],
        snapshots::removing_a_snapshot_may_be_repeated: [Snapshot],
        snapshots::adoption_removes_snapshots_that_nobody_knows: [Snapshot],
        snapshots::a_snapshot_that_is_dropped_half_way_leaves_the_sandbox_running: [Snapshot],
        memories::a_snapshot_with_memory_makes_running_copies: [Snapshot, Checkpoint],
        memories::rollback_puts_memory_back_where_the_snapshot_has_it: [Snapshot, Checkpoint],
        memories::a_snapshot_of_a_checkpointed_sandbox_has_its_memory: [Snapshot, Checkpoint],
        memories::a_stopped_sandbox_has_no_memory_to_keep: [Snapshot, Checkpoint],
        packs::a_pack_becomes_the_same_files_here_and_elsewhere: [Archive],
        packs::a_pack_that_breaks_off_leaves_nothing: [Archive],
        packs::a_pack_that_nobody_reads_to_its_end_changes_nothing: [Archive],
        sessions::a_command_tells_its_output_and_its_exit: [Session],
        sessions::a_command_that_takes_too_long_is_ended: [Session],
        sessions::running_commands_are_listed_and_end_with_their_instance: [Session],
        sessions::input_is_read_until_it_is_closed: [Session, Stdin],
        sessions::a_signal_ends_a_command: [Session, Signal],
        sessions::files_are_written_read_listed_renamed_and_removed: [Session],
        sessions::a_broken_upload_changes_nothing: [Session],
        sessions::what_is_not_there_is_refused: [Session],
        reach::every_policy_is_taken_by_a_live_instance: [Egress],
        reach::an_instance_begins_with_its_policy_whatever_it_is: [Egress],
        reach::an_authority_belongs_to_its_seed: [Egress],
        sizes::a_limit_below_use_is_refused_with_the_figures: [Resize],
        sizes::limits_of_files_alone_change_too: [KeepFiles, DiskLimit, Resize],
        captures::a_capture_holds_what_was_changed_and_nothing_else: [Capture],
        volumes::a_volume_is_made_copied_resized_and_removed: [Volume],
        volumes::a_sweep_removes_volumes_that_nobody_knows: [Volume],
        volumes::sandboxes_share_a_volume_and_it_outlives_them: [Volume],
        volumes::mounts_stay_and_no_copy_of_a_sandbox_has_a_volumes_files: [Volume],
        volumes::an_unknown_volume_is_refused_and_leaves_nothing: [Volume],
        volumes::files_of_a_volume_are_there_without_a_sandbox: [Volume],
        refusals::what_is_missing_is_refused_by_its_name: [],
    ]
}

/// LIMIT: any single step of any provider, on a busy machine.
const STEP: Duration = Duration::from_secs(90);
/// LIMIT: a running agent answers much earlier.
const SILENCE: Duration = Duration::from_millis(400);

fn random() -> [u8; 20] {
    use std::hash::{BuildHasher, RandomState};
    let mut bytes = [0u8; 20];
    for chunk in bytes.chunks_mut(8) {
        let word = RandomState::new().hash_one(std::time::Instant::now()).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

impl Fixture {
    /// The specification of a new sandbox.
    #[must_use]
    pub fn spec(&self) -> InstanceSpec {
        InstanceSpec {
            sandbox: SandboxId::from_entropy(random()),
            instance: InstanceId::from_entropy(random()),
            template: self.template.clone(),
            template_version: self.template_version.clone(),
            limits: Limits { memory_mib: 64, disk_mib: 64, pids: 64, cpu_milli: 500 },
            network: Arc::new(self.network()),
            storage: Storage::Disk,
            hostname: "conformance".to_owned(),
            origin: FilesOrigin::Template,
            mounts: Vec::new(),
        }
    }

    /// A provider that can enforce nothing refuses a policy that forbids something.
    fn network(&self) -> Egress {
        let closed = Egress::closed();
        let demands = InstanceDemands {
            network: &closed,
            made_with: None,
            storage: Storage::Disk,
            limits_asked: false,
        };
        let is_refused = self.provider.check_demands(&demands).is_err();
        if is_refused { Egress::open() } else { closed }
    }

    async fn create(&self, spec: &InstanceSpec) -> Live<'_> {
        self.live(spec, self.provider.create(spec), None).await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Live<'_> {
        self.live(spec, self.provider.boot(spec), None).await
    }

    /// Restores the sandbox's checkpoint: its agent keeps its token.
    async fn restore(&self, spec: &InstanceSpec, token: &str) -> Live<'_> {
        self.live(spec, self.provider.restore(spec), Some(token)).await
    }

    async fn live(
        &self,
        spec: &InstanceSpec,
        made: impl Future<Output = Result<Booted, ProviderError>>,
        had: Option<&str>,
    ) -> Live<'_> {
        let booted = tokio::time::timeout(STEP, made).await.expect("in time").expect("made");
        assert_eq!(booted.agent_token.is_none(), had.is_some(), "processes that live on keep their token");
        let token = booted.agent_token.clone().or(had.map(str::to_owned)).expect("one of them");
        Live { provider: &self.provider, target: target(spec), booted, token }
    }

    /// Another live sandbox, made from a snapshot.
    async fn copy(
        &self,
        of: &InstanceSpec,
        shot: &TakenSnapshot,
        memory: Option<&str>,
    ) -> (InstanceSpec, Live<'_>) {
        let spec = InstanceSpec { origin: shot.origin(memory.is_some()), ..self.spec() };
        let spec = InstanceSpec { limits: of.limits, ..spec };
        let live = self.live(&spec, self.provider.create(&spec), memory).await;
        (spec, live)
    }

    async fn shoot(&self, target: &Target, memory: bool) -> TakenSnapshot {
        let id = SnapshotId::from_entropy(random());
        let made = tokio::time::timeout(STEP, self.provider.snapshot(target, &id, memory)).await;
        let made = made.expect("in time").expect("a snapshot");
        assert_eq!(made.memory, memory, "what is said to be in it");
        TakenSnapshot { id, seal: made.seal }
    }

    async fn pause(&self, live: &Live<'_>) {
        assert_eq!(self.provider.pause(&live.target).await.expect("paused"), MemoryLocation::Live);
    }

    /// Pauses the sandbox and writes its memory to disk.
    async fn checkpoint(&self, live: &Live<'_>) {
        self.pause(live).await;
        let done = tokio::time::timeout(STEP, self.provider.checkpoint(&live.target)).await;
        done.expect("in time").expect("checkpointed");
    }

    /// Whether the agent does not answer.
    async fn is_silent(&self, live: &Live<'_>) -> bool {
        tokio::time::timeout(SILENCE, self.inside.read(live, "/tmp/silence")).await.is_err()
    }

    async fn remove(&self, shot: &TakenSnapshot) {
        self.provider.remove_snapshot(&shot.id).await.expect("removed");
    }

    async fn destroy(&self, spec: &InstanceSpec) {
        self.provider.destroy(&target(spec)).await.expect("destroyed");
        self.provider.settle(STEP).await.expect("settled");
    }
}

/// A snapshot that was taken.
struct TakenSnapshot {
    id: SnapshotId,
    seal: String,
}

impl TakenSnapshot {
    fn origin(&self, memory: bool) -> FilesOrigin {
        FilesOrigin::Snapshot { snapshot: self.id.clone(), seal: self.seal.clone(), memory }
    }
}

/// A random text that only one process holds.
fn page() -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    while text.len() < 4_096 {
        for byte in random() {
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}

fn is_damaged<T>(outcome: Result<T, ProviderError>) -> bool {
    matches!(outcome, Err(ProviderError::Damaged { .. }))
}

fn target(spec: &InstanceSpec) -> Target {
    Target { sandbox: spec.sandbox.clone(), instance: Some(spec.instance.clone()) }
}

fn files_only(spec: &InstanceSpec) -> Target {
    Target { sandbox: spec.sandbox.clone(), instance: None }
}

fn again(spec: &InstanceSpec) -> InstanceSpec {
    InstanceSpec { instance: InstanceId::from_entropy(random()), ..spec.clone() }
}

fn is_missing(error: &ProviderError, wanted: Capability) -> bool {
    matches!(error, ProviderError::MissingCapability { capability, .. } if *capability == wanted)
}

fn is_gone<T>(outcome: Result<T, ProviderError>) -> bool {
    matches!(outcome, Err(ProviderError::Gone { .. }))
}

/// The same, paused or in a transition from or to a pause.
fn known_paused(spec: &InstanceSpec, facts: serde_json::Value) -> KnownSandbox {
    KnownSandbox { instance: Some((spec.instance.clone(), facts)), paused: true, ..known(spec, None) }
}

fn known(spec: &InstanceSpec, live: Option<&Live<'_>>) -> KnownSandbox {
    KnownSandbox {
        sandbox: spec.sandbox.clone(),
        instance: live.map(|live| (spec.instance.clone(), live.booted.facts.clone())),
        storage: spec.storage,
        limits: spec.limits,
        network: Arc::clone(&spec.network),
        paused: false,
    }
}

fn adopted(spec: &InstanceSpec, fate: AdoptionOutcome) -> Adopted {
    Adopted { instance: spec.instance.clone(), fate, facts: None }
}
