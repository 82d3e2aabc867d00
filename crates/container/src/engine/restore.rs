//! Restores an instance from its memory on disk: mounts and cgroups as in a cold start, and processes from CRIU.
//!
//! ```text
//! check ─► ids, cgroups, layer ─► launcher: mounts, CRIU ─┬ namespaces ► veth, address ┬► frozen ─► spent on disk ─► thaw
//!                                                          └────────────────────────────┘
//! ```
//!
//! No process of the sandbox runs before the checkpoint is spent, and it is spent only when everything else is ready. A
//! crash between the two leaves a frozen instance and a record that names it. Adoption finds both, and the service lets
//! the instance run.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_image::Template;
use atoll_instances::{Instances, RemainsCleaner};
use atoll_model::policy::egress::Egress;
use atoll_model::{Limits, Storage};
use atoll_network::{LinkError, SandboxLink};
use atoll_provider::{Booted, InstanceSpec, ProviderError};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::cold_start::{not_launched, outside_of};
use super::instance::{self, Facts, Live};
use super::reaper::{HostResources, InstanceRemains};
use super::snapshot::blocking;
use super::{EngineShared, SandboxSlot, claim, failed};
use crate::checkpoint::{
    CheckpointManifest, Checkpoints, RestoreAsk, Restored, VerifyError, close_halves, hold_images,
    users_image,
};
use crate::launcher::protocol::{self, MountSpec, Rebuild, Rootfs, Upper};
use crate::launcher::{CriuChannel, CriuMessage};

/// LIMIT: some gigabytes of memory from a slow disk.
const RESTORE_WITHIN: Duration = Duration::from_secs(300);
/// LIMIT: killed processes are gone within milliseconds.
const DEAD_WITHIN: Duration = Duration::from_secs(5);
/// LIMIT: cgroups and link of a failed restore are usually gone within some tens of milliseconds; the reaper handles
/// the rest.
const CLEAR_WITHIN: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

/// The source of the memory, and what happens to it after the restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckpointSource {
    /// The sandbox's own checkpoint, which is spent.
    Own,
    /// A snapshot's checkpoint, which stays unchanged.
    Kept,
}

/// The restored processes when CRIU is done.
struct RestoredInstance {
    pid: i32,
    pidfd: OwnedFd,
    netns: OwnedFd,
    link: SandboxLink,
}

impl EngineShared {
    /// Runs as a task of its own: a caller that goes away must not leave half an instance.
    pub(super) async fn restore(self: &Arc<Self>, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let own_spec = spec.clone();
        let work =
            move |engine: Arc<Self>, slot| async move { engine.restore_in_turn(&own_spec, &slot).await };
        Instances::restore(self, &spec.sandbox, work).await
    }

    async fn restore_in_turn(
        self: &Arc<Self>,
        spec: &InstanceSpec,
        slot: &Arc<SandboxSlot>,
    ) -> Result<Booted, ProviderError> {
        let gone = || ProviderError::Gone { sandbox: spec.sandbox.clone() };
        if slot.live().is_some() || !self.checkpoints.exists(&spec.sandbox) || slot.is_doomed() {
            self.instances.forget_empty(&spec.sandbox, slot);
            return Err(gone());
        }
        let folder = self.checkpoints.path(&spec.sandbox);
        let restored = self.restore_from(&folder, CheckpointSource::Own, spec).await;
        let (live, booted) = match restored {
            Ok(restored) => restored,
            Err(error) => {
                self.instances.forget_empty(&spec.sandbox, slot);
                return Err(error);
            }
        };
        Instances::settle_in(self, spec, slot, live);
        self.reach("restore.watched");
        let (checkpoints, sandbox) = (self.checkpoints.clone(), spec.sandbox.clone());
        let failpoint = self.resources.failpoint.clone();
        // The disk space is freed in the background.
        self.instances.spawn(async move {
            let _ = tokio::task::spawn_blocking(move || checkpoints.free_spent(&sandbox)).await;
            failpoint.reach("restore.freed");
        });
        Ok(booted)
    }

    /// Makes the instance of `spec` from the images in `folder`, on the sandbox's layer. On an error nothing of it is
    /// left, and none of its processes has run.
    pub(super) async fn restore_from(
        &self,
        folder: &Path,
        source: CheckpointSource,
        spec: &InstanceSpec,
    ) -> Result<(Arc<Live>, Booted), ProviderError> {
        if spec.storage == Storage::Memory {
            return Err(ProviderError::Unsupported {
                what: "restoring memory for a sandbox with files in memory".into(),
                hint: "use storage on disk".into(),
            });
        }
        self.need_ipv6(&spec.network).await?;
        let begun = Instant::now();
        self.criu()?;
        let manifest = self.verified(folder).await?;
        // The memory of a snapshot is checked by its seal and may be used for other sandboxes.
        if let (CheckpointSource::Own, Some(why)) = (source, manifest.is_of_another(&spec.sandbox)) {
            return Err(ProviderError::Damaged { what: "the checkpoint".into(), why });
        }
        self.reach("restore.verified");
        self.memory_begins();
        self.note_memory("check", begun);
        let template = self.template(spec).await?;
        if template.digest != manifest.template_version {
            return Err(ProviderError::NoTemplate { template: manifest.template });
        }
        let live = self.restore_or_again(folder, source, spec, &manifest, &template).await?;
        let facts = serde_json::to_value(&live.facts).map_err(failed("writing facts"))?;
        Ok((live, Booted { facts, agent_token: None, from_pool: false }))
    }

    /// Runs CRIU, and a second time if a signal ended it or the launcher died: the images are unchanged, and none of the
    /// processes has run.
    async fn restore_or_again(
        &self,
        folder: &Path,
        source: CheckpointSource,
        spec: &InstanceSpec,
        manifest: &CheckpointManifest,
        template: &Template,
    ) -> Result<Arc<Live>, ProviderError> {
        let mut is_second = false;
        loop {
            let mut remains = InstanceRemains::default();
            let outcome = self.restore_onto(folder, source, spec, manifest, template, &mut remains).await;
            let error = match outcome {
                Ok(live) => return Ok(live),
                Err(error) => error,
            };
            let is_clear = self.undo_restore(spec, remains).await;
            if is_second || !is_clear || !matches!(error, ProviderError::Transient { .. }) {
                return Err(error);
            }
            tracing::warn!(sandbox = %spec.sandbox, %error, "a restore failed; it is tried once more");
            metrics::counter!("atoll_restores_repeated_total").increment(1);
            is_second = true;
        }
    }

    async fn verified(&self, folder: &Path) -> Result<CheckpointManifest, ProviderError> {
        let folder = folder.to_owned();
        let verified = blocking(move || Ok(CheckpointManifest::verify(&folder))).await;
        match verified.map_err(failed("reading a checkpoint"))? {
            Ok((manifest, _)) => Ok(manifest),
            Err(error) if error.is_damage() => Err(damaged(&error)),
            Err(error) => Err(failed("reading a checkpoint")(error)),
        }
    }

    async fn restore_onto(
        &self,
        folder: &Path,
        source: CheckpointSource,
        spec: &InstanceSpec,
        manifest: &CheckpointManifest,
        template: &Template,
        remains: &mut InstanceRemains,
    ) -> Result<Arc<Live>, ProviderError> {
        let first_id =
            self.numbers().take().map_err(|_| ProviderError::Exhausted { what: "id ranges".into() })?;
        remains.first_id = Some(first_id);
        remains.cgroup = Some(spec.instance.as_str().to_owned());
        let found = self.find_mounts(&spec.mounts).await?;
        same_mounts(manifest, &found.mounts)?;
        let request = self.restore_request(folder, spec, manifest, template, first_id, found.mounts).await?;
        self.reach("restore.prepared");
        let images = folder.to_owned();
        let held = blocking(move || hold_images(&images)).await.map_err(failed("holding the images"))?;
        let launched = self.launcher.criu(request, [held].into_iter().chain(found.clones).collect()).await;
        let mut line = launched.map_err(not_launched("launching CRIU"))?;
        self.reach("restore.started");
        let late = |_| ProviderError::Late { what: "restoring memory".into(), after: RESTORE_WITHIN };
        let begun = Instant::now();
        let restoring = self.attend(&mut line, spec, manifest, remains);
        let standing = tokio::time::timeout(RESTORE_WITHIN, restoring).await.map_err(late)??;
        self.note_memory("CRIU", begun);
        self.reach("restore.standing");
        self.let_go(source, spec, manifest, standing, first_id).await
    }

    /// Makes cgroups and layer, and builds the request to the launcher.
    async fn restore_request(
        &self,
        folder: &Path,
        spec: &InstanceSpec,
        manifest: &CheckpointManifest,
        template: &Template,
        first_id: u32,
        mounts: Vec<MountSpec>,
    ) -> Result<protocol::Criu, ProviderError> {
        let criu = self.criu()?;
        let (cgroups, layers) = (Arc::clone(&self.resources.cgroups), Arc::clone(&self.resources.layers));
        let (name, layer) = (spec.instance.as_str().to_owned(), spec.sandbox.as_str().to_owned());
        let (limits, with_usr) = (spec.limits, template.usr_overlay.is_some());
        let (images, seen) = (folder.to_owned(), manifest.clone());
        let prepare = move || {
            let upper = layers.reopen(&layer, with_usr)?;
            // The memory that CRIU needs for the restore must not count against the sandbox; the sandbox's own limits
            // are set before it runs.
            drop(cgroups.create(&name, &roomy(limits))?);
            Ok((upper, users_image(&images, &seen, first_id)?))
        };
        let (upper, replaced) =
            self.blocking.run(prepare).await.map_err(failed("preparing layer and cgroups"))?;
        let usr = template.usr_overlay.as_ref();
        let rootfs = Rootfs {
            layers: template.layers.clone(),
            usr_layers: usr.map(|usr| usr.layers().map(Path::to_path_buf).to_vec()).unwrap_or_default(),
            upper: Upper::Folder(upper),
            volatile: false,
        };
        let rebuild = Rebuild {
            rootfs,
            first_id,
            sudo: template.sudo,
            agent: self.config.data.join("agent").join(&manifest.agent),
            images: folder.join("images"),
            replaced: vec![replaced],
            mounts,
            boot_id: manifest.boot_id.clone(),
        };
        let homes = self.resources.cgroups.homes(spec.instance.as_str());
        let (arguments, environment) = criu.restore(&RestoreAsk { manifest, first_id, cgroups: &homes });
        let program = criu.program().to_owned();
        Ok(protocol::Criu { id: 0, program, arguments, environment, rebuild: Some(rebuild) })
    }

    /// Does the server's part at each step of CRIU.
    async fn attend(
        &self,
        line: &mut CriuChannel,
        spec: &InstanceSpec,
        manifest: &CheckpointManifest,
        remains: &mut InstanceRemains,
    ) -> Result<RestoredInstance, ProviderError> {
        let step = "restoring memory";
        let failure = |why: String| failed(step)(io::Error::other(why));
        let mut standing: Option<RestoredInstance> = None;
        let mut is_frozen = false;
        // The keeper of CRIU was killed, and with its channel closed no process that CRIU restores ever runs.
        let killed =
            |cause: io::Error| ProviderError::Transient { what: step.into(), why: cause.to_string() };
        loop {
            match line.hear().await.map_err(killed)? {
                CriuMessage::Step { action, pid } if action == "setup-namespaces" => {
                    standing = Some(self.connect_restored(spec, manifest, pid, remains).await?);
                    self.reach("restore.connected");
                }
                CriuMessage::Step { action, .. } if action == "pre-resume" => {
                    let (cgroups, name) =
                        (Arc::clone(&self.resources.cgroups), spec.instance.as_str().to_owned());
                    self.blocking.run(move || cgroups.freeze(&name)).await.map_err(failed("freezing"))?;
                    self.reach("restore.frozen");
                    is_frozen = true;
                }
                CriuMessage::Step { action, .. } => return Err(failure(format!("CRIU came to {action}"))),
                CriuMessage::Failed(why) => return Err(failure(why)),
                CriuMessage::Ended(0, _) => {
                    return standing
                        .filter(|_| is_frozen)
                        .ok_or_else(|| failure("CRIU skipped a step".into()));
                }
                CriuMessage::Ended(code, _) if code > 128 => {
                    let why = format!("CRIU was ended by signal {}", code - 128);
                    return Err(ProviderError::Transient { what: step.into(), why });
                }
                CriuMessage::Ended(code, complaint) => {
                    return Err(failure(format!("CRIU ended with {code}: {complaint}")));
                }
            }
            line.go_on().await.map_err(killed)?;
        }
    }

    /// Makes the network of the new namespaces: loopback, the veth, and every address that the sockets may use.
    ///
    /// No traffic passes yet. CRIU sends the unsent data of sockets, and a reply from outside, such as a reset, would
    /// make the whole restore fail.
    async fn connect_restored(
        &self,
        spec: &InstanceSpec,
        manifest: &CheckpointManifest,
        pid: i32,
        remains: &mut InstanceRemains,
    ) -> Result<RestoredInstance, ProviderError> {
        let step = "finding the restored process";
        let id =
            Pid::from_raw(pid).ok_or_else(|| failed(step)(io::Error::from(io::ErrorKind::InvalidData)))?;
        let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(failed(step))?;
        let netns: OwnedFd = File::open(format!("/proc/{pid}/ns/net")).map_err(failed(step))?.into();
        let link = self.reserve_again(manifest).map_err(failed("reserving an address"))?;
        remains.link = Some(link);
        let (resources, egress) = (Arc::clone(&self.resources), Arc::clone(&spec.network));
        let inside = netns.try_clone().map_err(failed("copying a descriptor"))?;
        let earlier = earlier(manifest, link.address);
        let silent = has_silent_way6(manifest, &egress);
        let six = if silent { manifest.addresses.clone() } else { earlier.clone() };
        let holds_six = manifest.six && !six.is_empty();
        let connect = move || {
            let inside = inside.as_fd();
            resources.networks.connect(link, &egress, inside).map_err(io::Error::other)?;
            atoll_network::setup_from_outside(inside, link.address).map_err(io::Error::other)?;
            atoll_network::add_to_loopback(inside, &earlier).map_err(io::Error::other)?;
            if holds_six {
                atoll_network::add_to_loopback6(inside, &six).map_err(io::Error::other)?;
            }
            if silent {
                atoll_network::add_silent_way6(inside).map_err(io::Error::other)?;
            }
            Ok(())
        };
        self.blocking.run(connect).await.map_err(failed("connecting the network"))?;
        Ok(RestoredInstance { pid, pidfd, netns, link })
    }

    /// The address that the sandbox had, if it is free.
    fn reserve_again(&self, manifest: &CheckpointManifest) -> Result<SandboxLink, LinkError> {
        let mut router = self.router();
        match manifest.addresses.first() {
            Some(address) => router.reserve(Some(*address)).or_else(|_| router.reserve(None)),
            None => router.reserve(None),
        }
    }

    /// Attaches the frozen processes to the sandbox, spends the checkpoint, and lets them run.
    async fn let_go(
        &self,
        source: CheckpointSource,
        spec: &InstanceSpec,
        manifest: &CheckpointManifest,
        standing: RestoredInstance,
        first_id: u32,
    ) -> Result<Arc<Live>, ProviderError> {
        let facts = Facts {
            boot_id: self.boot_id.clone(),
            pid: standing.pid,
            started: instance::started(standing.pid).map_err(failed("reading the start time"))?,
            cgroup: spec.instance.as_str().to_owned(),
            first_id,
            link: Some(standing.link),
            earlier: earlier(manifest, standing.link.address),
            template: manifest.template.clone(),
            template_version: manifest.template_version.clone(),
            storage: Storage::Disk,
            mounts: mounts_of(manifest),
        };
        let restored = Restored {
            instance: spec.instance.clone(),
            facts: serde_json::to_value(&facts).map_err(failed("writing facts"))?,
        };
        // Before the checkpoint is spent: after that no step may fail.
        let live =
            Live::new(facts, standing.pidfd, standing.netns).map_err(failed("watching the first process"))?;
        let live = Arc::new(live);
        let (engine, own, silent) =
            (self.handle(), Arc::clone(&live), has_silent_way6(manifest, &spec.network));
        let (home, spec) = (Arc::clone(&self.own_uts), spec.clone());
        let work = move || {
            engine.make_own(&own, &spec, &home, silent)?;
            if source == CheckpointSource::Own {
                engine.spend_and_thaw(&own, &spec, &restored)
            } else {
                engine.resources.cgroups.thaw(&own.facts.cgroup)
            }
        };
        let begun = Instant::now();
        blocking(work).await.map_err(failed("releasing the restored sandbox"))?;
        self.reach("restore.thawed");
        self.note_memory("let go", begun);
        Ok(live)
    }

    fn handle(&self) -> LetGo {
        LetGo { resources: Arc::clone(&self.resources), checkpoints: self.checkpoints.clone() }
    }

    /// Ends the processes of a failed restore. Returns whether their cgroups are gone, so that a retry can use the same
    /// name. The layer must be free before a retry.
    async fn undo_restore(&self, spec: &InstanceSpec, mut remains: InstanceRemains) -> bool {
        let (resources, name) = (Arc::clone(&self.resources), spec.instance.as_str().to_owned());
        let end = move || {
            let begun = Instant::now();
            let mut tries = 0;
            let is_over = || begun.elapsed() >= DEAD_WITHIN;
            let mut ended = Ok(());
            while ended.is_ok() && !is_over() {
                match resources.cgroups.processes(&name) {
                    Ok(left) if left.is_empty() => break,
                    Ok(_) => ended = resources.kill_all(&name),
                    Err(cause) => ended = Err(cause),
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            // The address belongs to the sandbox: the next try should find it free.
            while ended.is_ok()
                && begun.elapsed() < CLEAR_WITHIN
                && !matches!(resources.try_clear(&mut remains, tries), Ok(true))
            {
                tries += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok((remains, tries, ended))
        };
        match blocking(end).await {
            Ok((remains, tries, ended)) => {
                if let Err(cause) = ended {
                    tracing::warn!(sandbox = %spec.sandbox, %cause, "a partly restored sandbox could not be ended at once");
                }
                let is_clear = remains.cgroup.is_none();
                self.instances.reaper().take_after(remains, tries);
                is_clear
            }
            Err(cause) => {
                tracing::error!(sandbox = %spec.sandbox, %cause, "a partly restored sandbox was not ended");
                false
            }
        }
    }
}

/// The state for the last steps of a restore, which run on a thread.
struct LetGo {
    resources: Arc<HostResources>,
    checkpoints: Checkpoints,
}

impl LetGo {
    /// Attaches the frozen processes to the sandbox: closes foreign connections, sets limits and host name, opens the
    /// network.
    fn make_own(&self, live: &Live, spec: &InstanceSpec, home: &OwnedFd, silent: bool) -> io::Result<()> {
        let (resources, name) = (&self.resources, spec.instance.as_str());
        if !resources.cgroups.processes(name)?.contains(&live.facts.pid) {
            return Err(io::Error::other("the restored processes are not in their cgroups"));
        }
        let closed = close_halves(live.netns())?;
        tracing::debug!(closed, "connections to the outside were closed");
        if silent {
            atoll_network::remove_silent_way6(live.netns()).map_err(io::Error::other)?;
        }
        resources.failpoint.reach("restore.closed");
        if let Some(link) = live.facts.link {
            resources.networks.let_through(link, &spec.sandbox, &spec.network).map_err(io::Error::other)?;
        }
        resources.failpoint.reach("restore.open");
        claim::set_hostname(live.pidfd(), home, &spec.hostname)?;
        resources.cgroups.set_limits(name, &spec.limits)?;
        resources.layers.set_limit(spec.sandbox.as_str(), u64::from(spec.limits.disk_mib) * MIB)?;
        resources.failpoint.reach("restore.limited");
        Ok(())
    }

    /// Lets the processes run. If that fails, the checkpoint is usable again: none of them has run.
    fn spend_and_thaw(&self, live: &Live, spec: &InstanceSpec, restored: &Restored) -> io::Result<()> {
        let spent = self.checkpoints.spend(&spec.sandbox, restored);
        let let_run = spent.and_then(|()| {
            self.resources.failpoint.reach("restore.spent");
            self.resources.cgroups.thaw(&live.facts.cgroup)
        });
        if let_run.is_err()
            && let Err(cause) = self.checkpoints.unspend(&spec.sandbox)
        {
            tracing::error!(sandbox = %spec.sandbox, %cause, "a used checkpoint could not be made usable again");
        }
        let_run
    }
}

fn damaged(error: &VerifyError) -> ProviderError {
    ProviderError::Damaged { what: "the checkpoint".into(), why: error.to_string() }
}

/// The mount points of mounts from outside.
fn mounts_of(manifest: &CheckpointManifest) -> Vec<String> {
    let outside = manifest.outside.iter().filter(|(_, part)| protocol::is_mount_part(part));
    outside.map(|(point, _)| point.clone()).collect()
}

/// Open files are saved in the images by their mounts, so the mounts must be the same. The processes keep the seccomp
/// filter that they were started with, so they may write to a folder of the host only if they could before.
fn same_mounts(manifest: &CheckpointManifest, now: &[MountSpec]) -> Result<(), ProviderError> {
    let refused = |path: String, why: &str| Err(ProviderError::NotMountable { path, why: why.to_owned() });
    let (before, now_outside) = (mounts_of(manifest), outside_of(now));
    if before != now_outside {
        let path = before
            .iter()
            .chain(&now_outside)
            .find(|path| before.contains(path) != now_outside.contains(path));
        let path = path.or(now_outside.first()).cloned().unwrap_or_default();
        return refused(path, "memory on disk can be restored only with the mounts that it had");
    }
    match now.iter().find(|mount| mount.is_writable_host_folder()) {
        Some(mount) if !manifest.refuses_special_bits => refused(
            format!("/{}", mount.at),
            "the folder of the host was read-only when the processes were started; mount it read-only, or start the \
             sandbox from its files",
        ),
        _ => Ok(()),
    }
}

/// Whether sockets use IPv6 and the policy no longer allows it.
fn has_silent_way6(manifest: &CheckpointManifest, egress: &Egress) -> bool {
    manifest.six && egress.direct6.is_empty()
}

/// The earlier addresses of the sandbox, without the current one.
fn earlier(manifest: &CheckpointManifest, now: Ipv4Addr) -> Vec<Ipv4Addr> {
    let mut all: Vec<Ipv4Addr> =
        manifest.addresses.iter().copied().filter(|address| *address != now).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Limits with room for CRIU beside the sandbox's processes during the restore.
fn roomy(limits: Limits) -> Limits {
    const CRIU_MIB: u32 = 256;
    const CRIU_PIDS: u32 = 64;
    Limits {
        cpu_milli: limits.cpu_milli.max(8_000),
        memory_mib: limits.memory_mib.saturating_add(CRIU_MIB),
        pids: limits.pids.saturating_add(CRIU_PIDS),
        ..limits
    }
}
