//! The cold start: creates an instance up to an agent that answers.
//!
//! ```text
//! layer, cgroups (a thread) ► launcher: clone3 ─┬► launcher: mounts ──────┐
//!                                               └► veth, rules (a thread) ┴► first process ► agent ► answer
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use atoll_cgroup::CgroupEntry;
use atoll_image::Template;
use atoll_model::policy::egress::Egress;
use atoll_model::{Limits, SandboxId, SnapshotId, Storage};
use atoll_network::SandboxLink;
use atoll_provider::{AGENT_PORT, FilesOrigin, InstanceMount, InstanceSpec, ProviderError};
use rustix::pipe::PipeFlags;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::instance::{self, Facts, Live};
use super::reaper::InstanceRemains;
use super::{EngineShared, SandboxSlot, failed, mounts, snapshot};
use crate::launcher::protocol::{
    FirstProcessReply, FirstProcessRequest, MountSpec, Rootfs, Spawn, Times, Upper,
};
use crate::launcher::wire;
use crate::launcher::{LaunchError, Spawning};
use atoll_storage::{Layers, Seal};

/// LIMIT: a start takes some milliseconds; on a machine under heavy load a hundred starts may be queued.
const START_WITHIN: Duration = Duration::from_secs(20);
/// LIMIT: how often a start is tried whose launcher died under it. A new launcher may be killed too, but one that dies
/// each time is an error of the machine.
const STARTS_MOST: u32 = 3;
/// LIMIT: an agent answers within a millisecond of its start.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// LIMIT: a file takes at least a block; this bounds the inodes of a layer in memory.
const BYTES_PER_INODE: u64 = 4_096;
const MIB: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub(super) enum LayerPlan {
    /// Made now, under this name.
    Fresh(String),
    /// Left by an earlier instance.
    Kept(String),
    /// A copy of a snapshot, under this name.
    Copy { name: String, snapshot: SnapshotId, seal: Seal },
    /// In memory.
    Memory,
}

impl LayerPlan {
    /// The layer of a sandbox that has no files yet.
    pub(super) fn of_new(spec: &InstanceSpec) -> Result<Self, ProviderError> {
        let name = spec.sandbox.as_str().to_owned();
        match &spec.origin {
            FilesOrigin::Template => Ok(Self::Fresh(name)),
            FilesOrigin::Snapshot { snapshot, seal, .. } => {
                Ok(Self::Copy { name, snapshot: snapshot.clone(), seal: snapshot::parse(snapshot, seal)? })
            }
        }
    }

    fn name(&self) -> Option<&String> {
        match self {
            Self::Fresh(name) | Self::Kept(name) | Self::Copy { name, .. } => Some(name),
            Self::Memory => None,
        }
    }

    /// The layer that is made for this instance; it is removed if the start fails.
    fn made(&self) -> Option<&String> {
        match self {
            Self::Fresh(name) | Self::Copy { name, .. } => Some(name),
            Self::Kept(_) | Self::Memory => None,
        }
    }

    /// The layer whose limit is lifted during the start: a sandbox with a full disk must start too.
    fn open(&self) -> Option<&String> {
        match self {
            Self::Kept(name) | Self::Copy { name, .. } => Some(name),
            Self::Fresh(_) | Self::Memory => None,
        }
    }
}

/// The request for one start.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// The name of the instance's cgroups.
    pub(super) name: String,
    pub(super) template: Arc<Template>,
    pub(super) layer: LayerPlan,
    pub(super) limits: Limits,
    pub(super) hostname: String,
    /// The network policy; without an owner the instance has no network yet.
    pub(super) network: Arc<Egress>,
    /// The sandbox; `None` for an instance of the pool.
    pub(super) owner: Option<(SandboxId, Arc<SandboxSlot>)>,
    /// Mounts besides the root.
    pub(super) mounts: Vec<InstanceMount>,
}

impl Plan {
    /// Waits for a step until it is done, its sandbox is condemned, or the time is up.
    async fn unless_doomed<T>(
        &self,
        work: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        let doomed = async {
            match &self.owner {
                Some((sandbox, slot)) => {
                    slot.doomed().await;
                    ProviderError::Gone { sandbox: sandbox.clone() }
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            gone = doomed => Err(gone),
            done = work => done,
            () = tokio::time::sleep(START_WITHIN) => {
                Err(ProviderError::Late { what: "starting the sandbox".into(), after: START_WITHIN })
            }
        }
    }
}

impl Plan {
    /// Makes the layer, and records what is mounted in it.
    fn upper(&self, layers: &Layers) -> io::Result<Upper> {
        let upper = self.layer(layers)?;
        if let (Some(name), false) = (self.layer.name(), self.mounts.is_empty()) {
            let places: Vec<String> =
                self.mounts.iter().map(|mount| mount.path.trim_start_matches('/').to_owned()).collect();
            layers.note_mounts(name, &places)?;
        }
        Ok(upper)
    }

    fn layer(&self, layers: &Layers) -> io::Result<Upper> {
        let with_usr = self.template.usr_overlay.is_some();
        let disk_bytes = u64::from(self.limits.disk_mib) * MIB;
        Ok(match &self.layer {
            LayerPlan::Fresh(name) => Upper::Folder(layers.create(name, with_usr, disk_bytes)?),
            LayerPlan::Kept(name) => Upper::Folder(layers.reopen(name, with_usr)?),
            LayerPlan::Copy { name, snapshot, seal } => {
                let made = layers.create_from(name, snapshot.as_str(), seal, with_usr, disk_bytes);
                let path = made.map_err(snapshot::copy_failed)?;
                atoll_storage::renew_machine_id(&path, name)?;
                Upper::Folder(path)
            }
            LayerPlan::Memory => {
                // Above the memory limit a write would end a process instead of failing.
                let bytes = disk_bytes.min(u64::from(self.limits.memory_mib) * MIB);
                Upper::Tmpfs { bytes, inodes: bytes / BYTES_PER_INODE }
            }
        })
    }
}

/// The result of a cold start.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) live: Live,
    pub(super) token: String,
}

/// When dropped without success, hands everything that was made to the reaper.
struct Undo<'a> {
    engine: &'a EngineShared,
    remains: Option<InstanceRemains>,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(mut remains) = self.remains.take() {
            // The reaper works later and by name: the sandbox's own name must be free for the next start.
            if let Some(layer) = remains.layer.take() {
                remains.layer = self.engine.resources.layer_for_reaper(layer);
            }
            self.engine.instances.reaper().take(remains);
        }
    }
}

impl Undo<'_> {
    fn remains(&mut self) -> &mut InstanceRemains {
        self.remains.get_or_insert_default()
    }
}

/// The results of the kernel work that a spawn needs.
struct Prepared {
    upper: Upper,
    entry: atoll_cgroup::CgroupPlacement,
    first_id: u32,
    token: String,
    token_pipe: OwnedFd,
}

/// A full pool is no internal error: there is room again when a sandbox is deleted.
fn not_prepared(cause: io::Error) -> ProviderError {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ProviderError::Exhausted { what: "disk space for sandboxes".into() }
        }
        _ => failed("preparing layer and cgroups")(cause),
    }
}

/// The error of a step of the launcher. If the launcher died, the step may be tried again.
pub(super) fn not_launched(step: &'static str) -> impl Fn(LaunchError) -> ProviderError {
    move |cause| match cause {
        LaunchError::Died | LaunchError::Start(_) => {
            ProviderError::Transient { what: step.to_owned(), why: cause.to_string() }
        }
        LaunchError::Late | LaunchError::Step { .. } => failed(step)(cause),
    }
}

impl EngineShared {
    /// Starts an instance, and starts it again by another launcher if the launcher died under it: no program of the
    /// tenant has run in it. On an error everything that was made is handed to the reaper.
    ///
    /// Do not drop this future: a thread may be making something that would never be removed. It gives up by itself
    /// when its sandbox is condemned.
    pub(super) async fn cold_start(&self, plan: Plan) -> Result<Started, ProviderError> {
        let (mut plan, name) = (plan.clone(), plan.name);
        for attempt in 1..STARTS_MOST {
            match self.cold_start_once(&plan).await {
                Err(error @ ProviderError::Transient { .. }) => {
                    tracing::warn!(instance = name, %error, "a start failed; it is tried again");
                    metrics::counter!("atoll_starts_repeated_total").increment(1);
                    // The reaper removes the cgroups of the failed start later, by their name.
                    plan.name = format!("{name}-{attempt}");
                }
                outcome => return outcome,
            }
        }
        self.cold_start_once(&plan).await
    }

    async fn cold_start_once(&self, plan: &Plan) -> Result<Started, ProviderError> {
        let begun = Instant::now();
        let found = self.find_mounts(&plan.mounts).await?;
        let mut undo = Undo { engine: self, remains: None };
        let prepared = self.prepare(plan, undo.remains()).await?;
        let mut times = vec![("prepare".to_owned(), micros(begun))];
        let Prepared { upper, entry, first_id, token, token_pipe } = prepared;
        self.reach_of_sandbox(plan, "start.prepared");
        let outside: Vec<String> = outside_of(&found.mounts);
        let boot_id = new_boot_id().map_err(failed("making a boot id"))?;
        let request = spawn_request(plan, upper, entry.how, first_id, (found.mounts, boot_id));
        let descriptors = [token_pipe].into_iter().chain(found.clones).chain(entry.descriptors).collect();
        let asked = Instant::now();
        let spawning =
            async { self.launcher.spawn(request, descriptors).await.map_err(not_launched("launching")) };
        let mut spawning = plan.unless_doomed(spawning).await?;
        times.push(("launcher until clone3".to_owned(), micros(asked)));
        self.reach_of_sandbox(plan, "start.spawned");
        undo.remains().pidfd = Some(spawning.pidfd.try_clone().map_err(failed("copying a descriptor"))?);
        let networked = Instant::now();
        let link = self.connect(plan, &spawning, undo.remains()).await?;
        times.push(("network".to_owned(), micros(networked)));
        self.reach_of_sandbox(plan, "start.connected");
        let ready = async {
            times.extend(self.finish(&mut spawning, link).await?);
            // An instance that is to be frozen must answer first. The service greets the agents of sandboxes itself,
            // and their port accepts connections from now on.
            if plan.owner.is_none() {
                self.greet(spawning.netns.as_fd()).await?;
            }
            Ok(())
        };
        plan.unless_doomed(ready).await?;
        if let Some(name) = plan.layer.open() {
            // Before a program of the tenant runs in it.
            let (layers, name, limits) = (Arc::clone(&self.resources.layers), name.clone(), plan.limits);
            let set = move || layers.set_limit(&name, u64::from(limits.disk_mib) * MIB);
            self.blocking.run(set).await.map_err(failed("limiting the layer"))?;
        }
        times.extend(spawning.launcher_times());
        times.push(("total".to_owned(), micros(begun)));
        let facts = Facts {
            boot_id: self.boot_id.clone(),
            pid: spawning.pid,
            started: instance::started(spawning.pid).map_err(failed("reading the start time"))?,
            cgroup: plan.name.clone(),
            first_id,
            link,
            earlier: Vec::new(),
            template: plan.template.name.clone(),
            template_version: plan.template.digest.clone(),
            storage: if matches!(plan.layer, LayerPlan::Memory) { Storage::Memory } else { Storage::Disk },
            mounts: outside,
        };
        let live =
            Live::new(facts, spawning.pidfd, spawning.netns).map_err(failed("watching the first process"))?;
        undo.remains = None;
        self.note_times(&times);
        Ok(Started { live, token })
    }

    /// Starts of the pool, which happen at any time, pass no named place.
    fn reach_of_sandbox(&self, plan: &Plan, place: &'static str) {
        if plan.owner.is_some() {
            self.reach(place);
        }
    }

    /// Makes layer, cgroups, ids and token.
    async fn prepare(&self, plan: &Plan, remains: &mut InstanceRemains) -> Result<Prepared, ProviderError> {
        let first_id =
            self.numbers().take().map_err(|_| ProviderError::Exhausted { what: "id ranges".into() })?;
        remains.first_id = Some(first_id);
        remains.cgroup = Some(plan.name.clone());
        remains.layer = plan.layer.made().cloned();
        let layers = Arc::clone(&self.resources.layers);
        let cgroups = Arc::clone(&self.resources.cgroups);
        let entry = {
            let plan = plan.clone();
            move || Ok((cgroups.create(&plan.name, &plan.limits)?, make_token()?))
        };
        let ((entry, (token, token_pipe)), upper) = if let LayerPlan::Copy { snapshot, .. } = &plan.layer {
            // Both parts wait for the disk, so they run at the same time.
            let upper = {
                let plan = plan.clone();
                move || plan.upper(&layers)
            };
            let (entry, upper) = tokio::join!(self.blocking.run(entry), snapshot::blocking(upper));
            let explain =
                |cause| snapshot::explain(&format!("snapshot {snapshot}"), Some(plan.limits.disk_mib), cause);
            (entry.map_err(not_prepared)?, upper.map_err(explain)?)
        } else {
            let plan = plan.clone();
            let both = self.blocking.run(move || {
                let upper = plan.upper(&layers)?;
                Ok((entry()?, upper))
            });
            both.await.map_err(not_prepared)?
        };
        Ok(Prepared { upper, entry, first_id, token, token_pipe })
    }

    /// Makes the veth while the launcher makes the mounts.
    async fn connect(
        &self,
        plan: &Plan,
        spawning: &Spawning,
        remains: &mut InstanceRemains,
    ) -> Result<Option<SandboxLink>, ProviderError> {
        let Some((sandbox, _)) = plan.owner.clone() else { return Ok(None) };
        let link = self.router().reserve(None).map_err(failed("reserving an address"))?;
        remains.link = Some(link);
        let (resources, egress) = (Arc::clone(&self.resources), Arc::clone(&plan.network));
        let netns = spawning.netns.try_clone().map_err(failed("copying a descriptor"))?;
        let work = move || {
            resources.networks.attach(link, &sandbox, &egress, netns.as_fd()).map_err(io::Error::other)
        };
        self.blocking.run(work).await.map_err(failed("connecting the network"))?;
        Ok(Some(link))
    }

    /// Reports to the first process that its network is ready, and waits until it listens.
    async fn finish(
        &self,
        spawning: &mut Spawning,
        link: Option<SandboxLink>,
    ) -> Result<Times, ProviderError> {
        let step = "passing the descriptors to the first process";
        let tell =
            serde_json::to_vec(&FirstProcessRequest::Network { address: link.map(|link| link.address) })
                .map_err(failed(step))?;
        tell_or_listen(&spawning.control, &tell).map_err(failed(step))?;
        rustix::io::ioctl_fionbio(&spawning.control, true).map_err(failed(step))?;
        let control =
            crate::sys::watch(spawning.control.try_clone().map_err(failed(step))?).map_err(failed(step))?;
        let mut mounted = None;
        // Both branches only wait and take one message, so a dropped branch loses nothing.
        let told = loop {
            tokio::select! {
                told = hear(&control) => break told.map_err(failed(step))?,
                done = spawning.mounted(), if mounted.is_none() => match done {
                    Ok(()) => mounted = Some(()),
                    // When the process has ended, the launcher only reports that the mounts were not taken; the process
                    // itself reports why.
                    Err(cause) => break Some(last_word(&control).ok_or(cause).map_err(not_launched("making its mounts"))?),
                },
            }
        };
        match told {
            Some(FirstProcessReply::Ready { times }) => Ok(times),
            Some(FirstProcessReply::Failed(failure)) => {
                Err(mounts::explain(&failure).unwrap_or_else(|| failed(step)(failure)))
            }
            None => {
                // The process ended without a report. If the launcher ended it, its reason is still to come.
                if mounted.is_none() {
                    let reason = tokio::time::timeout(ANSWER_WITHIN, spawning.mounted()).await;
                    reason.unwrap_or(Ok(())).map_err(not_launched("making its mounts"))?;
                }
                // It was killed, as the launcher may be; it has run no program of the tenant.
                let why = "the first process was killed while it was prepared".to_owned();
                Err(ProviderError::Transient { what: step.to_owned(), why })
            }
        }
    }

    /// Checks that the agent answers.
    pub(super) async fn greet(&self, netns: std::os::fd::BorrowedFd<'_>) -> Result<(), ProviderError> {
        let late = |_| ProviderError::Late { what: "asking the agent".into(), after: ANSWER_WITHIN };
        let asked = tokio::time::timeout(ANSWER_WITHIN, self.ask_agent(netns)).await.map_err(late)?;
        asked.map_err(failed("asking the agent"))
    }

    async fn ask_agent(&self, netns: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
        let mut stream =
            self.dialer.dial(netns, AGENT_PORT, ANSWER_WITHIN).await.map_err(io::Error::other)?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        if answer.starts_with(b"HTTP/1.1 2") {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the agent is not healthy"))
    }

    fn note_times(&self, times: &Times) {
        self.cold_starts.fetch_add(1, Ordering::Relaxed);
        for (step, us) in times {
            metrics::histogram!("atoll_cold_step_seconds", "step" => step.clone())
                .record(f64::from(*us) / 1e6);
        }
        *self.last_times.lock().unwrap_or_else(PoisonError::into_inner) = times.clone();
    }
}

/// The mount points of mounts from outside, in order.
pub(super) fn outside_of(mounts: &[MountSpec]) -> Vec<String> {
    mounts.iter().filter(|one| one.is_from_outside()).map(|one| format!("/{}", one.at)).collect()
}

fn spawn_request(
    plan: &Plan,
    upper: Upper,
    cgroup: CgroupEntry,
    first_id: u32,
    (mounts, boot_id): (Vec<MountSpec>, String),
) -> Spawn {
    let usr_layers =
        plan.template.usr_overlay.as_ref().map(|usr| usr.layers().map(std::path::Path::to_path_buf).to_vec());
    Spawn {
        id: 0,
        rootfs: Rootfs {
            layers: plan.template.layers.clone(),
            usr_layers: usr_layers.unwrap_or_default(),
            volatile: matches!(plan.layer, LayerPlan::Memory),
            upper,
        },
        first_id,
        cgroup,
        hostname: plan.hostname.clone(),
        sudo: plan.template.sudo,
        shm_bytes: u64::from(plan.limits.memory_mib) * MIB,
        mounts,
        boot_id,
    }
}

/// A random UUID, like the boot id of a machine.
fn new_boot_id() -> io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let digits = hex::encode(random);
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    Ok(parts.join("-"))
}

/// A new token, and a pipe that holds it for one reader.
fn make_token() -> io::Result<(String, OwnedFd)> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let token = hex::encode(random);
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::write(&write, token.as_bytes())?;
    Ok((token, read))
}

/// Sends a message to a first process. If the process has ended, the send fails silently: its last report says more
/// than a broken pipe.
fn tell_or_listen(control: &OwnedFd, message: &[u8]) -> io::Result<()> {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset};
    match wire::send(control, message, &[]) {
        Err(error) if matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset) => Ok(()),
        other => other,
    }
}

/// The failure that a process reported, if it did.
fn last_word(control: &AsyncFd<OwnedFd>) -> Option<FirstProcessReply> {
    let mut buffer = [0; 4 * 1024];
    let (length, _) = wire::receive(control.get_ref(), &mut buffer).ok()??;
    serde_json::from_slice(&buffer[..length]).ok().filter(|told| matches!(told, FirstProcessReply::Failed(_)))
}

async fn hear(control: &AsyncFd<OwnedFd>) -> io::Result<Option<FirstProcessReply>> {
    let mut buffer = [0; 4 * 1024];
    loop {
        let mut ready = control.readable().await?;
        match ready.try_io(|socket| wire::receive(socket.get_ref(), &mut buffer)) {
            Ok(Ok(Some((length, _)))) => return Ok(Some(serde_json::from_slice(&buffer[..length])?)),
            Ok(Ok(None)) => return Ok(None),
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::launcher::protocol::StepFailure;

    /// The server's end of the control socket of a first process that failed and ended before it received a message.
    fn ended_early() -> OwnedFd {
        let (ours, theirs) = wire::pair().unwrap();
        let failure = StepFailure { step: "find a real folder /proc in the root".into(), errno: libc::ELOOP };
        wire::send(&theirs, &serde_json::to_vec(&FirstProcessReply::Failed(failure)).unwrap(), &[]).unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        ours
    }

    #[tokio::test]
    async fn a_process_that_ended_before_its_network_came_is_heard_all_the_same() {
        let ours = ended_early();
        assert_eq!(wire::send(&ours, b"{}", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        tell_or_listen(&ours, b"{}").unwrap();
        let told = hear(&crate::sys::watch(ours).unwrap()).await.unwrap();
        assert!(
            matches!(&told, Some(FirstProcessReply::Failed(failure)) if failure.step.contains("/proc")),
            "{told:?}"
        );
    }

    #[tokio::test]
    async fn the_last_word_is_there_without_waiting_for_it() {
        let control = crate::sys::watch(ended_early()).unwrap();
        assert!(matches!(last_word(&control), Some(FirstProcessReply::Failed(_))));
        assert!(last_word(&control).is_none());
    }

    #[test]
    fn a_full_pool_is_said_to_be_full() {
        let full = not_prepared(io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(matches!(full, ProviderError::Exhausted { .. }), "{full:?}");
        let other = not_prepared(io::Error::from_raw_os_error(libc::EIO));
        assert!(matches!(other, ProviderError::Failed { .. }), "{other:?}");
    }
}
