//! Pause and resume: every process is frozen, and then its memory may be written to disk.
//!
//! ```text
//! freeze ─► dump (left frozen) ─► hashes, manifest ─► all on disk ─► rename ─► end the processes
//! ```
//!
//! Up to the rename there is a frozen instance; after it there is a checkpoint. After a crash that leaves both, the
//! checkpoint counts, because some of the processes may have been killed already. So no process of a sandbox ever runs
//! while the sandbox has a complete checkpoint.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use atoll_instances::RunningInstance;
use atoll_model::{MemoryLocation, SandboxId, Storage};
use atoll_network::SandboxLink;
use atoll_provider::{AGENT_PORT, Capability, ProviderError, Target};
use tokio::sync::oneshot;

use super::instance::{self, Live};
use super::provide::LEAST_FREE;
use super::reaper::InstanceRemains;
use super::snapshot::blocking;
use super::{EngineShared, SandboxSlot, failed};
use crate::checkpoint::{
    CheckpointManifest, Criu, Draft, DumpAsk, Obstacle, REMEDY, boot_id, close_abandoned, in_vfork, lasting,
    nameless_bytes, outside_mounts, wait_for_images,
};
use crate::launcher::protocol;
use crate::launcher::{CriuMessage, LaunchError};

/// LIMIT: some gigabytes of memory to a slow disk. A longer dump is given up; adoption waits for a CRIU that is still
/// running.
const DUMP_WITHIN: Duration = Duration::from_secs(300);
/// LIMIT: packets that were in flight when the sandbox was frozen have arrived by then, so CRIU finds sockets that do
/// not change.
const DUMP_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// LIMIT: how often, and for how long at most each time, a frozen sandbox runs again so that a vfork under way can
/// complete.
const VFORK_TRIES: u32 = 30;
const VFORK_MOST: Duration = Duration::from_millis(20);
/// LIMIT: killed processes are gone within milliseconds; the reaper handles the rest.
const DEAD_WITHIN: Duration = Duration::from_secs(2);

impl EngineShared {
    /// Whether memory can be written to disk on this machine.
    pub(super) fn can_checkpoint(&self) -> bool {
        self.criu.is_ok()
    }

    pub(super) fn criu(&self) -> Result<&Criu, ProviderError> {
        self.criu.as_ref().map_err(|why| ProviderError::MissingCapability {
            provider: "container",
            capability: Capability::Checkpoint,
            hint: format!("{why}: {REMEDY}"),
        })
    }

    /// Runs to its end, also when the caller goes away: otherwise a freeze still under way could undo the thaw of
    /// another caller.
    #[expect(
        clippy::disallowed_methods,
        reason = "must come to its end when the caller goes away; the caller waits for it otherwise"
    )]
    pub(super) async fn pause(self: &Arc<Self>, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let (engine, target) = (Arc::clone(self), target.clone());
        let pausing = tokio::spawn(async move { engine.pause_in_turn(&target).await });
        pausing.await.map_err(failed("pausing"))?
    }

    async fn pause_in_turn(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let slot = self.instances.slot(&target.sandbox);
        let _turn = slot.turn().await;
        match self.instances.live(target) {
            Ok(live) => {
                self.freeze(&live).await?;
                Ok(MemoryLocation::Live)
            }
            Err(_) if self.checkpoints.exists(&target.sandbox) => Ok(MemoryLocation::Disk),
            Err(gone) => {
                self.instances.forget_empty(&target.sandbox, &slot);
                Err(gone)
            }
        }
    }

    /// Runs to its end, as [`EngineShared::pause`] does.
    #[expect(
        clippy::disallowed_methods,
        reason = "must come to its end when the caller goes away; the caller waits for it otherwise"
    )]
    pub(super) async fn resume(self: &Arc<Self>, target: &Target) -> Result<(), ProviderError> {
        let (engine, target) = (Arc::clone(self), target.clone());
        let resuming = tokio::spawn(async move { engine.resume_in_turn(&target).await });
        resuming.await.map_err(failed("resuming"))?
    }

    async fn resume_in_turn(&self, target: &Target) -> Result<(), ProviderError> {
        let gone = || ProviderError::Gone { sandbox: target.sandbox.clone() };
        let slot = self.instances.existing_slot(&target.sandbox).ok_or_else(gone)?;
        let _turn = slot.turn().await;
        let live = self.instances.live(target)?;
        let (cgroups, checkpoints) = (Arc::clone(&self.resources.cgroups), self.checkpoints.clone());
        let sandbox = target.sandbox.clone();
        let thaw = move || {
            checkpoints.discard(&sandbox)?;
            cgroups.thaw(&live.facts.cgroup)
        };
        self.blocking.run(thaw).await.map_err(failed("thawing"))
    }

    pub(super) async fn freeze(&self, live: &Arc<Live>) -> Result<(), ProviderError> {
        let (cgroups, live) = (Arc::clone(&self.resources.cgroups), Arc::clone(live));
        let freeze = move || {
            let frozen = cgroups.freeze(&live.facts.cgroup);
            if frozen.is_err() {
                let _ = cgroups.thaw(&live.facts.cgroup);
            }
            frozen
        };
        self.blocking.run(freeze).await.map_err(failed("freezing"))
    }

    /// Runs as a task of its own: if the caller goes away before the rename, a frozen instance is left; after it, a
    /// checkpoint; never anything in between.
    #[expect(
        clippy::disallowed_methods,
        reason = "must come to its end when the caller goes away; `start_begins` counts it, and a closing server waits"
    )]
    pub(super) async fn checkpoint(self: &Arc<Self>, target: &Target) -> Result<(), ProviderError> {
        let (engine, target) = (Arc::clone(self), target.clone());
        let (mut answer, waiting) = oneshot::channel();
        // Counted like a start, so that a closing server waits for it.
        engine.instances.start_begins();
        tokio::spawn(async move {
            let outcome = engine.checkpoint_in_turn(&target, &mut answer).await;
            engine.instances.start_ends();
            let _ = answer.send(outcome);
        });
        waiting.await.map_err(failed("checkpointing"))?
    }

    async fn checkpoint_in_turn(
        self: &Arc<Self>,
        target: &Target,
        caller: &mut oneshot::Sender<Result<(), ProviderError>>,
    ) -> Result<(), ProviderError> {
        let slot = self.instances.slot(&target.sandbox);
        let _turn = slot.turn().await;
        let _changing = self.instances.hold_off_adoption().await;
        if caller.is_closed() {
            // An earlier caller may have resumed the sandbox since, and no caller is left who would thaw it.
            return Err(ProviderError::Gone { sandbox: target.sandbox.clone() });
        }
        let live = match self.instances.live(target) {
            Ok(live) => live,
            Err(_) if self.checkpoints.exists(&target.sandbox) => return Ok(()),
            Err(gone) => {
                self.instances.forget_empty(&target.sandbox, &slot);
                return Err(gone);
            }
        };
        self.freeze(&live).await?;
        self.reach("checkpoint.frozen");
        let draft = self.draft(&target.sandbox).await?;
        self.reach("checkpoint.drafted");
        let outcome = self.write_checkpoint(&target.sandbox, &live, draft, caller).await;
        if outcome.is_err() {
            let (checkpoints, sandbox) = (self.checkpoints.clone(), target.sandbox.clone());
            let _ = blocking(move || checkpoints.drop_draft(&sandbox)).await;
            return outcome;
        }
        let ending = Instant::now();
        self.end_checkpointed(&slot, &live).await;
        self.note_memory("end", ending);
        Ok(())
    }

    async fn draft(&self, sandbox: &SandboxId) -> Result<Draft, ProviderError> {
        let (checkpoints, sandbox) = (self.checkpoints.clone(), sandbox.clone());
        blocking(move || checkpoints.draft(&sandbox)).await.map_err(failed("reserving disk space for memory"))
    }

    async fn write_checkpoint(
        &self,
        sandbox: &SandboxId,
        live: &Arc<Live>,
        draft: Draft,
        caller: &oneshot::Sender<Result<(), ProviderError>>,
    ) -> Result<(), ProviderError> {
        let folder = draft.folder.clone();
        self.dump(sandbox, live, draft).await?;
        self.reach("checkpoint.dumped");
        if caller.is_closed() {
            return Err(ProviderError::Gone { sandbox: sandbox.clone() });
        }
        let begun = Instant::now();
        let (checkpoints, sandbox) = (self.checkpoints.clone(), sandbox.clone());
        let committed = blocking(move || checkpoints.commit(&sandbox, &folder)).await;
        self.note_memory("sync to disk", begun);
        self.reach("checkpoint.committed");
        committed.map_err(not_written)
    }

    /// Dumps a frozen instance into a draft and seals it. Nothing is synced. The instance is frozen before and after,
    /// also on an error; the caller thaws it. If it was frozen in the middle of a vfork, it runs for some milliseconds
    /// first.
    pub(super) async fn dump(
        &self,
        sandbox: &SandboxId,
        live: &Arc<Live>,
        draft: Draft,
    ) -> Result<(CheckpointManifest, String), ProviderError> {
        let criu = self.criu()?;
        if live.facts.storage == Storage::Memory {
            return Err(ProviderError::Unsupported {
                what: "writing the memory of a sandbox with files in memory to disk".into(),
                hint: "its files end with its processes; create it with storage on disk".into(),
            });
        }
        self.make_room(sandbox, live).await?;
        let begun = Instant::now();
        if let Some(obstacle) = self.obstacle(live, lasting).await? {
            return Err(held_up(&obstacle.to_string()));
        }
        let (mut manifest, draft) = self.dump_or_again(criu, sandbox, live, draft).await?;
        self.reach("dump.frozen");
        self.memory_begins();
        self.note_memory("dump", begun);
        let sealing = Instant::now();
        let sealed = blocking(move || {
            let hash = manifest.seal(&draft.folder)?;
            Ok((manifest, hash))
        })
        .await;
        self.note_memory("hashes", sealing);
        self.reach("dump.sealed");
        sealed.map_err(not_written)
    }

    /// Runs CRIU, and runs it again after a failure that may be temporary: the network is not locked, so a packet in
    /// flight can change a connection while CRIU reads it. The instance is frozen when this returns.
    async fn dump_or_again(
        &self,
        criu: &Criu,
        sandbox: &SandboxId,
        live: &Arc<Live>,
        draft: Draft,
    ) -> Result<(CheckpointManifest, Draft), ProviderError> {
        let folder = draft.folder.clone();
        let first = match self.dump_once(criu, sandbox, live, draft).await {
            Ok(dumped) => return Ok(dumped),
            Err(NotDumped::Provider(error)) => return Err(error),
            Err(NotDumped::Refused(complaint)) if complaint.is_out_of_space() => return Err(complaint.into()),
            Err(NotDumped::Refused(complaint)) => complaint,
        };
        if instance::is_dead(live.pidfd()).unwrap_or(false) {
            tracing::error!(%sandbox, code = first.code, "CRIU was killed while it worked in the first process, which ended too");
            return Err(ProviderError::Gone { sandbox: sandbox.clone() });
        }
        tracing::warn!(%sandbox, code = first.code, complaint = first.text, "CRIU failed; it is run once more");
        metrics::counter!("atoll_dumps_repeated_total").increment(1);
        tokio::time::sleep(DUMP_AGAIN_AFTER).await;
        let draft = blocking(move || Draft::begin(&folder))
            .await
            .map_err(failed("reserving disk space for memory"))?;
        match self.dump_once(criu, sandbox, live, draft).await {
            Ok(dumped) => Ok(dumped),
            Err(NotDumped::Provider(error)) => Err(error),
            Err(NotDumped::Refused(complaint)) => {
                tracing::warn!(%sandbox, code = complaint.code, complaint = complaint.text, "CRIU could not write a sandbox to disk");
                Err(complaint.into())
            }
        }
    }

    async fn dump_once(
        &self,
        criu: &Criu,
        sandbox: &SandboxId,
        live: &Arc<Live>,
        draft: Draft,
    ) -> Result<(CheckpointManifest, Draft), NotDumped> {
        self.vforks_end(live).await?;
        self.close_abandoned(live).await?;
        self.reach("dump.begin");
        let dumped = match self.run_dump(criu, sandbox, live, &draft).await {
            Ok(manifest) => Ok((manifest, draft)),
            Err(NotDumped::Provider(error)) => Err(error.into()),
            Err(refused @ NotDumped::Refused(_)) => {
                // A CRIU whose launcher and keeper were killed goes on alone, and holds the images until it ends.
                let (folder, until) = (draft.folder.clone(), Instant::now() + DUMP_WITHIN);
                drop(draft);
                let waited = blocking(move || wait_for_images(&folder, until)).await;
                waited.map_err(failed("waiting for CRIU"))?;
                Err(refused)
            }
        };
        // CRIU leaves the instance frozen. A CRIU that was killed does not.
        self.freeze(live).await?;
        dumped
    }

    /// Closes connections to the agent whose other end, a connection of this or an earlier server, is gone. They are of
    /// no use, and the data left in their queues can make CRIU fail.
    async fn close_abandoned(&self, live: &Arc<Live>) -> Result<(), ProviderError> {
        let live = Arc::clone(live);
        let close = move || close_abandoned(live.netns(), AGENT_PORT);
        let closed = blocking(close).await.map_err(failed("closing abandoned connections"))?;
        if closed > 0 {
            tracing::debug!(closed, "abandoned connections to the agent were closed");
        }
        Ok(())
    }

    /// Makes sure that no process of the frozen instance is in the middle of a vfork, where CRIU cannot stop it.
    async fn vforks_end(&self, live: &Arc<Live>) -> Result<(), ProviderError> {
        for tries in 0..=VFORK_TRIES {
            let Some(obstacle) = self.obstacle(live, in_vfork).await? else { return Ok(()) };
            if tries == VFORK_TRIES {
                return Err(held_up(&obstacle.to_string()));
            }
            let (cgroups, thawed) = (Arc::clone(&self.resources.cgroups), Arc::clone(live));
            let thaw = self.blocking.run(move || cgroups.thaw(&thawed.facts.cgroup)).await;
            thaw.map_err(failed("thawing"))?;
            tokio::time::sleep(Duration::from_millis(1 << tries.min(8)).min(VFORK_MOST)).await;
            self.freeze(live).await?;
        }
        Ok(())
    }

    async fn obstacle(
        &self,
        live: &Arc<Live>,
        look: fn(&[i32]) -> Option<Obstacle>,
    ) -> Result<Option<Obstacle>, ProviderError> {
        let (cgroups, live) = (Arc::clone(&self.resources.cgroups), Arc::clone(live));
        let look = move || Ok(look(&cgroups.processes(&live.facts.cgroup)?));
        blocking(look).await.map_err(failed("inspecting the sandbox"))
    }

    /// Refuses a dump that does not fit on the disk before anything is written, and otherwise makes the pool grow in
    /// time.
    async fn make_room(&self, sandbox: &SandboxId, live: &Arc<Live>) -> Result<(), ProviderError> {
        let (resources, live, name) = (Arc::clone(&self.resources), Arc::clone(live), sandbox.to_string());
        let look = move || {
            let cgroup = &live.facts.cgroup;
            let nameless = nameless_bytes(&resources.cgroups.processes(cgroup)?);
            let needed = resources.cgroups.figures(cgroup)?.memory_bytes.saturating_add(nameless);
            if resources.layers.space()?.free_for_memory <= needed.saturating_add(LEAST_FREE) {
                return Ok(Some("disk space for memory"));
            }
            if !resources.layers.admits_memory(&name, needed)? {
                return Ok(Some("disk space for memory in the share of this tenant"));
            }
            // CRIU may write faster than the pool grows by itself.
            resources.layers.grow_for_memory(needed)?;
            Ok(None)
        };
        match blocking(look).await.map_err(failed("measuring free space"))? {
            None => Ok(()),
            Some(what) => Err(ProviderError::Exhausted { what: what.to_owned() }),
        }
    }

    async fn run_dump(
        &self,
        criu: &Criu,
        sandbox: &SandboxId,
        live: &Arc<Live>,
        draft: &Draft,
    ) -> Result<CheckpointManifest, NotDumped> {
        let facts = &live.facts;
        let step = "inspecting the sandbox";
        let (mut outside, agent) = outside_mounts(facts.pid).map_err(failed(step))?;
        let mounts = facts.mounts.iter().enumerate();
        outside.extend(mounts.map(|(index, at)| (at.clone(), protocol::mount_part(index))));
        let freezer =
            self.resources.cgroups.freezer(&facts.cgroup).and_then(File::open).map_err(failed(step))?;
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(failed("copying a descriptor"));
        let descriptors = vec![copy(&draft.images)?, freezer.into()];
        let hierarchies = hierarchies(facts.pid, &facts.cgroup).map_err(failed("inspecting the sandbox"))?;
        let watched = places_to_watch(facts.pid).map_err(failed("inspecting the sandbox"))?;
        let ask = DumpAsk {
            watched: &watched,
            pid: facts.pid,
            first_id: facts.first_id,
            outside: &outside,
            hierarchies: &hierarchies,
        };
        let (arguments, environment) = criu.dump(&ask);
        let request = protocol::Criu {
            id: 0,
            program: criu.program().to_owned(),
            arguments,
            environment,
            rebuild: None,
        };
        let launched = self.launcher.criu(request, descriptors).await;
        let mut line = launched.map_err(|cause| match cause {
            LaunchError::Died | LaunchError::Start(_) => NotDumped::Refused(CriuFailure::of_launcher(&cause)),
            LaunchError::Late | LaunchError::Step { .. } => failed("launching CRIU")(cause).into(),
        })?;
        self.reach("dump.started");
        let late = |_| ProviderError::Late { what: "writing memory to disk".into(), after: DUMP_WITHIN };
        let step = "writing memory to disk";
        let heard = tokio::time::timeout(DUMP_WITHIN, line.hear()).await.map_err(late)?;
        // The line ends when launcher and keeper were killed. It is tried again.
        match heard.map_err(|_| NotDumped::Refused(CriuFailure::of_launcher(&LaunchError::Died)))? {
            CriuMessage::Ended(0, _) => {}
            CriuMessage::Ended(code, text) => return Err(NotDumped::Refused(CriuFailure { code, text })),
            CriuMessage::Failed(why) => return Err(failed(step)(io::Error::other(why)).into()),
            CriuMessage::Step { action, .. } => {
                let why = format!("CRIU came to {action} in a dump");
                return Err(failed(step)(io::Error::other(why)).into());
            }
        }
        self.reach("dump.written");
        let mut manifest = CheckpointManifest::new(sandbox, criu.version());
        manifest.template.clone_from(&facts.template);
        manifest.template_version.clone_from(&facts.template_version);
        manifest.addresses =
            facts.link.map(|link| link.address).into_iter().chain(facts.earlier.clone()).collect();
        manifest.six = holds_ipv6(facts.pid);
        manifest.boot_id = boot_id(facts.pid, &outside).map_err(failed(step))?;
        manifest.refuses_special_bits = instance::refuses_special_bits(facts.pid).map_err(failed(step))?;
        (manifest.outside, manifest.agent) = (outside, agent);
        Ok(manifest)
    }

    /// Ends an instance whose memory is on disk. It is frozen, and none of its processes runs another instruction.
    async fn end_checkpointed(&self, slot: &SandboxSlot, live: &Arc<Live>) {
        live.expect_end();
        slot.set_live(None);
        let (resources, doomed) = (Arc::clone(&self.resources), Arc::clone(live));
        let work = move || resources.kill_all(&doomed.facts.cgroup);
        if let Err(cause) = self.blocking.run(work).await {
            tracing::warn!(%cause, "a checkpointed sandbox's processes could not be ended at once");
        }
        self.reach("checkpoint.killed");
        // Meanwhile the kernel closes its connections and informs their peers; the link is removed after that.
        let _ = tokio::time::timeout(DEAD_WITHIN, live.dead()).await;
        self.reach("checkpoint.dead");
        if let Some(link) = live.facts.link {
            let _ = self.resources.networks.detach(link);
        }
        self.reach("checkpoint.detached");
        self.instances.reaper().take(InstanceRemains {
            cgroup: Some(live.facts.cgroup.clone()),
            link: live.facts.link,
            first_id: Some(live.facts.first_id),
            ..InstanceRemains::default()
        });
    }

    pub(super) fn reach(&self, place: &'static str) {
        self.resources.failpoint.reach(place);
    }

    pub(super) fn memory_begins(&self) {
        self.memory_times.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Records the duration of a step of a checkpoint or restore.
    pub(super) fn note_memory(&self, step: &'static str, since: Instant) {
        let took = since.elapsed();
        metrics::histogram!("atoll_memory_step_seconds", "step" => step).record(took);
        let mut times = self.memory_times.lock().unwrap_or_else(PoisonError::into_inner);
        times.push((step.to_owned(), u32::try_from(took.as_micros()).unwrap_or(u32::MAX)));
    }

    /// Removes everything of a sandbox's memory on disk.
    pub(super) async fn remove_checkpoint(&self, sandbox: &SandboxId) -> Result<(), ProviderError> {
        let (checkpoints, sandbox) = (self.checkpoints.clone(), sandbox.clone());
        blocking(move || checkpoints.remove(&sandbox)).await.map_err(failed("removing a checkpoint"))
    }
}

/// Folders in which processes of the sandbox may watch files: the top-level folders of its root, without the system's.
fn places_to_watch(pid: i32) -> io::Result<Vec<String>> {
    const NOT_WATCHED: [&str; 11] =
        ["proc", "sys", "dev", ".atoll", "usr", "bin", "sbin", "lib", "lib32", "lib64", "boot"];
    /// LIMIT: a root has about twenty.
    const PLACES: usize = 64;
    let mut places = vec!["/usr/local".to_owned()];
    for entry in std::fs::read_dir(format!("/proc/{pid}/root"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if places.len() < PLACES && entry.file_type()?.is_dir() && !NOT_WATCHED.contains(&name.as_str()) {
            places.push(format!("/{name}"));
        }
    }
    Ok(places)
}

/// The names of the v1 hierarchies in which a process has a cgroup of this name.
fn hierarchies(pid: i32, cgroup: &str) -> io::Result<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let of = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        (!names.is_empty() && path.rsplit('/').next() == Some(cgroup)).then(|| names.to_owned())
    };
    Ok(text.lines().filter_map(of).collect())
}

/// Why there is no dump.
enum NotDumped {
    /// CRIU failed.
    Refused(CriuFailure),
    Provider(ProviderError),
}

impl From<ProviderError> for NotDumped {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

/// CRIU's exit code, and the errors in its log.
struct CriuFailure {
    code: i32,
    text: String,
}

impl CriuFailure {
    /// The launcher died, as if CRIU had been killed. No CRIU is left.
    fn of_launcher(cause: &LaunchError) -> Self {
        Self { code: 128 + libc::SIGKILL, text: cause.to_string() }
    }

    /// The signal that ended CRIU, if one did.
    fn signal(&self) -> Option<i32> {
        (self.code > 128).then_some(self.code - 128)
    }

    fn is_out_of_space(&self) -> bool {
        self.text.contains("No space left") || self.text.contains("quota exceeded")
    }

    /// Whether a retry may succeed: CRIU was ended by a signal, or a process or connection changed while CRIU read it.
    fn may_pass(&self) -> bool {
        /// CRIU's messages about a connection that changed while CRIU read it, a process that it could not stop, and a
        /// process that still contains code of an earlier CRIU.
        const PASSING: [&str; 10] = [
            "recv failed",
            "libsoccr_save() failed",
            "Failed to obtain TCP_INFO",
            "obtained but expected",
            "TCP repair mode",
            "Unable to freeze tasks",
            "Can't seize",
            "seize task",
            "POKEDATA failed",
            "Can't inject",
        ];
        self.signal().is_some() || PASSING.iter().any(|passing| self.text.contains(passing))
    }
}

/// CRIU refused: a process has something that CRIU can't save, the cause is temporary, or the disk is full.
impl From<CriuFailure> for ProviderError {
    fn from(complaint: CriuFailure) -> Self {
        let said = || match complaint.signal() {
            Some(signal) => format!("CRIU was ended by signal {signal}"),
            None => format!("CRIU says: {}", plain(&complaint.text)),
        };
        match () {
            () if complaint.is_out_of_space() => Self::Exhausted { what: "disk space for memory".into() },
            () if complaint.may_pass() => {
                Self::Transient { what: "writing memory to disk".into(), why: said() }
            }
            () => held_up(&said()),
        }
    }
}

fn held_up(why: &str) -> ProviderError {
    ProviderError::Unsupported {
        what: "writing the memory of these processes to disk".into(),
        hint: format!("{why}; end it and try again, or pause the sandbox live"),
    }
}

/// The message without CRIU's source locations.
fn plain(complaint: &str) -> String {
    let without_place =
        |part: &str| match part.trim().strip_prefix('(').and_then(|rest| rest.split_once("): ")) {
            Some((_, said)) => said.to_owned(),
            None => part.trim().to_owned(),
        };
    complaint.split("; ").map(without_place).collect::<Vec<_>>().join("; ")
}

/// A full pool is no internal error.
fn not_written(cause: io::Error) -> ProviderError {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ProviderError::Exhausted { what: "disk space for memory".into() }
        }
        _ => failed("writing a checkpoint")(cause),
    }
}

/// A draft for the dump of a running instance that the caller keeps.
pub(super) fn draft_at(folder: &Path) -> Result<Draft, ProviderError> {
    Draft::begin(folder).map_err(failed("reserving disk space for memory"))
}

/// Whether a socket uses an IPv6 address of the sandbox. A kernel without IPv6 has no such table.
fn holds_ipv6(pid: i32) -> bool {
    ["tcp6", "udp6", "raw6"].into_iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"));
        table.is_ok_and(|table| SandboxLink::is_in_socket_table(&table))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: i32, text: &str) -> ProviderError {
        CriuFailure { code, text: text.to_owned() }.into()
    }

    #[test]
    fn what_may_pass_is_not_called_unsupported() {
        let cut = "(soccr/soccr.c:319): \trecv failed (0, want 29): Success; (criu/sk-tcp.c:153): libsoccr_save() failed with -6";
        let infected = "(compel/src/lib/ptrace.c:35): POKEDATA failed: Input/output error";
        for (code, text) in [(1, cut), (1, infected), (137, "it did not say why")] {
            assert!(matches!(refused(code, text), ProviderError::Transient { .. }), "{text}");
        }
        let kind = refused(1, "(criu/files.c:1): Can't dump file 5 of that type [10600]");
        assert!(matches!(kind, ProviderError::Unsupported { .. }));
        let full = refused(1, "(criu/bfd.c:1): bfd: Error flushing image: No space left on device");
        assert!(matches!(full, ProviderError::Exhausted { .. }));
    }
}
