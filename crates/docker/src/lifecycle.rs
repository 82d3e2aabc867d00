//! Create, boot, halt and destroy. The changes of one sandbox take turns; each runs as a task of its own, so that
//! a caller that goes away leaves nothing half made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_model::policy::egress::Egress;
use atoll_model::policy::placement::Node;
use atoll_model::{InstanceId, Limits, SandboxId, Storage};
use atoll_provider::{
    AGENT_PORT, Booted, Capability, FilesOrigin, InstanceDemands, InstanceSpec, ProviderError, ProviderImage,
    Target,
};
use bollard::models::{ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType};

use crate::agent_folder;
use crate::daemon::{FoundContainer, container_name, is_image_name, limits_text, memory_bytes, nano_cpus};
use crate::mounts::{self, BoundFolder};
use crate::slot::{LiveContainer, NotLive, SandboxSlot};
use crate::{DockerNetwork, DockerPull, Shared, failed};

/// LIMIT: an agent answers within milliseconds of its start.
const AGENT_WITHIN: Duration = Duration::from_secs(10);
/// How often a new agent is called.
const AGENT_POLL: Duration = Duration::from_millis(2);
const MIB: u64 = 1 << 20;
/// The disk of a daemon on another machine: 1 TiB.
const UNKNOWN_DISK_MIB: u64 = 1 << 20;

fn gone(sandbox: &SandboxId) -> ProviderError {
    ProviderError::Gone { sandbox: sandbox.clone() }
}

impl Shared {
    /// Runs a change of a sandbox in its turn, to its end.
    pub(crate) async fn change<T, W, F>(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        work: W,
    ) -> Result<T, ProviderError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Self>, Arc<SandboxSlot>) -> F + Send + 'static,
        F: Future<Output = Result<T, ProviderError>> + Send + 'static,
    {
        let no_adoption = Arc::clone(&self.adoption).read_owned().await;
        let slot = self.slots.of(sandbox);
        // Taken before the task begins: a destroy after a caller that went away must not overtake a create.
        let turn = Arc::clone(&slot.turn).lock_owned().await;
        let (shared, sandbox) = (Arc::clone(self), sandbox.clone());
        let task = self.changes.spawn(async move {
            let done = work(Arc::clone(&shared), Arc::clone(&slot)).await;
            drop((turn, no_adoption));
            shared.slots.forget_empty(&sandbox, &slot);
            done
        });
        task.await.map_err(failed("changing the container"))?
    }

    /// The image of this name, or the one of the settings.
    pub(crate) async fn image(&self, name: Option<&str>) -> Result<ProviderImage, ProviderError> {
        let name = name.unwrap_or(&self.settings.image);
        let mut image = self.daemon.image(name).await?;
        if image.is_none() && is_image_name(name) && self.settings.pull == DockerPull::Missing {
            self.daemon.pull(name).await?;
            image = self.daemon.image(name).await?;
        }
        let image = image.ok_or_else(|| ProviderError::NoTemplate { template: name.to_owned() })?;
        Ok(ProviderImage { workdir: self.settings.mount_path.clone(), ..image })
    }

    /// Looks for the daemon, and for the default image at the daemon or else in its registry.
    pub(crate) async fn check(&self) -> Result<(), ProviderError> {
        self.node().await?;
        let name = &self.settings.image;
        if self.daemon.image(name).await?.is_some() {
            return Ok(());
        }
        match self.settings.pull {
            DockerPull::Missing => self.daemon.find_in_registry(name).await,
            DockerPull::Never => Err(ProviderError::Transient {
                what: format!("looking for the image {name}"),
                why: format!(
                    "the Docker daemon does not have it, and docker.pull is never; pull or load it there: \
                     docker pull {name}, docker load -i FILE"
                ),
            }),
        }
    }

    pub(crate) async fn create(
        &self,
        spec: &InstanceSpec,
        slot: &SandboxSlot,
    ) -> Result<Booted, ProviderError> {
        self.refuse_what_cannot_be(spec)?;
        let missing = || ProviderError::NoTemplate { template: spec.template.clone() };
        let image = self.daemon.image(&spec.template).await?.ok_or_else(missing)?;
        // A name can mean another image by now; the version does not change.
        let is_exact = spec.template_version.starts_with("sha256:");
        let version = if is_exact { &spec.template_version } else { &image.version };
        let folders = self.open_folders(spec).await?;
        let token = self.new_token(&spec.sandbox)?;
        let name = container_name(&spec.sandbox, &spec.instance);
        let body = self.body(spec, version.clone(), &folders);
        let made = match self.daemon.create(&name, body).await {
            Ok(Some(id)) => self.start(spec, slot, &id, token, &folders).await,
            Ok(None) => Err(missing()),
            Err(error) => Err(mounts::told(error, &folders)),
        };
        if made.is_err()
            && let Err(error) = self.destroy(&spec.sandbox).await
        {
            // Adoption removes it later: no lease knows it.
            tracing::warn!(sandbox = %spec.sandbox, %error, "a container that was not started could not be removed");
        }
        made
    }

    pub(crate) async fn boot(
        &self,
        spec: &InstanceSpec,
        slot: &SandboxSlot,
    ) -> Result<Booted, ProviderError> {
        self.refuse_what_cannot_be(spec)?;
        let found = self.find(&spec.sandbox).await?.ok_or_else(|| gone(&spec.sandbox))?;
        if found.has_network && self.network_of(&spec.network) == DockerNetwork::None {
            // The network of a container is as it was made.
            return Err(self.missing(Capability::Egress));
        }
        let folders = self.open_folders(spec).await?;
        if !mounts::are_same(&self.daemon.mounts(&found.id).await?, &folders) {
            return Err(ProviderError::Unsupported {
                what: "changing the volumes and folders of a container".to_owned(),
                hint: "create a new sandbox with them".to_owned(),
            });
        }
        self.end(&found, slot).await?;
        let token = self.new_token(&spec.sandbox)?;
        self.daemon.rename(&found.id, &container_name(&spec.sandbox, &spec.instance)).await?;
        self.limit(&found, &spec.limits).await?;
        let booted = self.start(spec, slot, &found.id, token, &folders).await;
        if booted.is_err() {
            slot.end(&spec.instance);
            self.daemon.kill(&found.id).await?;
        }
        booted
    }

    /// Changes the limits of a container.
    pub(crate) async fn limit(&self, found: &FoundContainer, limits: &Limits) -> Result<(), ProviderError> {
        match self.daemon.limit(&found.id, limits).await? {
            false if found.made_with != limits_text(limits) => Err(self.missing(Capability::Resize)),
            true | false => Ok(()),
        }
    }

    pub(crate) fn missing(&self, capability: Capability) -> ProviderError {
        let hint =
            "choose a provider that has it; `atoll provider ls --wide` shows what each can do".to_owned();
        ProviderError::MissingCapability { provider: self.name, capability, hint }
    }

    /// The network of an instance: none where its policy denies everything, else that of the settings.
    fn network_of(&self, policy: &Egress) -> DockerNetwork {
        let is_closed = policy.denied_by.is_some() || *policy == Egress::closed();
        if is_closed { DockerNetwork::None } else { self.settings.network }
    }

    /// A token for the agent of a new instance; on this machine it is already where the instance finds it.
    fn new_token(&self, sandbox: &SandboxId) -> Result<String, ProviderError> {
        let token = match self.settings.is_remote() {
            true => agent_folder::new_token(),
            false => self.folders.prepare(sandbox),
        };
        token.map_err(failed("writing the agent's folder"))
    }

    fn refuse_what_cannot_be(&self, spec: &InstanceSpec) -> Result<(), ProviderError> {
        if spec.origin != FilesOrigin::Template {
            return Err(self.missing(Capability::Snapshot));
        }
        self.check_demands(&spec.demands())
    }

    pub(crate) fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        // A sandbox without a network keeps to every policy. Docker's bridge enforces none, and a container keeps its network.
        let made_with = demands.made_with.unwrap_or(demands.network);
        if self.network_of(made_with) == DockerNetwork::Bridge && *demands.network != Egress::open() {
            return Err(self.missing(Capability::Egress));
        }
        match demands.storage {
            Storage::Disk => Ok(()),
            Storage::Memory => Err(ProviderError::Unsupported {
                what: format!("storage memory at provider {}", self.name),
                hint: "use storage disk".to_owned(),
            }),
        }
    }

    fn body(&self, spec: &InstanceSpec, image: String, folders: &[BoundFolder]) -> ContainerCreateBody {
        let memory = memory_bytes(&spec.limits);
        let agent = || Mount {
            target: Some(agent_folder::INSIDE.to_owned()),
            source: Some(self.folders.of(&spec.sandbox).to_string_lossy().into_owned()),
            typ: Some(MountType::BIND),
            read_only: Some(true),
            ..Mount::default()
        };
        let own = (!self.settings.is_remote()).then(agent);
        let mounts = own.into_iter().chain(folders.iter().map(BoundFolder::mount)).collect();
        let host_config = HostConfig {
            network_mode: Some(self.network_of(&spec.network).name().to_owned()),
            mounts: Some(mounts),
            memory: Some(memory),
            // Memory and swap together: no swap.
            memory_swap: Some(memory),
            nano_cpus: Some(nano_cpus(&spec.limits)),
            pids_limit: Some(i64::from(spec.limits.pids)),
            shm_size: Some(memory),
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            ..HostConfig::default()
        };
        let listen = format!("127.0.0.1:{AGENT_PORT}");
        let token = format!("{}/token", agent_folder::INSIDE);
        let arguments = ["--listen", &listen, "--token-file", &token];
        ContainerCreateBody {
            image: Some(image),
            hostname: Some(spec.hostname.clone()),
            entrypoint: Some(vec![format!("{}/atoll-agent", agent_folder::INSIDE)]),
            cmd: Some(arguments.map(str::to_owned).to_vec()),
            // The agent starts programs as the user that a request names.
            user: Some("0:0".to_owned()),
            // A working directory that the daemon makes belongs to root; one that the agent makes belongs to the image's user.
            working_dir: Some("/".to_owned()),
            labels: Some(self.daemon.labels(spec, self.network_of(&spec.network))),
            // The agent keeps nothing that an orderly end would save, and as the first process it ignores SIGTERM.
            stop_signal: Some("SIGKILL".to_owned()),
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }

    /// Starts a container and waits for its agent.
    async fn start(
        &self,
        spec: &InstanceSpec,
        slot: &SandboxSlot,
        id: &str,
        token: String,
        folders: &[BoundFolder],
    ) -> Result<Booted, ProviderError> {
        if self.settings.is_remote() {
            let archive = self.folders.archive(&token).map_err(failed("reading the agent"))?;
            self.daemon.upload(id, archive).await?;
        }
        let started = self.daemon.start(id).await;
        let pid = started.map_err(|error| mounts::told(error, folders))?;
        let live = self.open_live(id, &spec.instance, pid).map_err(|why| self.not_live(why))?;
        let live = Arc::new(live);
        folders.iter().try_for_each(|folder| folder.check(pid))?;
        self.agent_answers(&live).await?;
        self.folders.remove_token(&spec.sandbox).map_err(failed("removing the agent's token"))?;
        let facts = serde_json::json!({ "container": id, "pid": pid });
        slot.set_live(live);
        Ok(Booted { facts, agent_token: Some(token), from_pool: false })
    }

    fn open_live(&self, id: &str, instance: &InstanceId, pid: i32) -> Result<LiveContainer, NotLive> {
        match (self.settings.is_remote(), pid) {
            (_, 0) => Err(NotLive::Ended),
            (true, _) => Ok(LiveContainer::remote(id, instance)),
            (false, _) => LiveContainer::local(id, instance, pid),
        }
    }

    fn not_live(&self, why: NotLive) -> ProviderError {
        match why {
            NotLive::Ended => failed("starting the agent in the container")("the agent has ended"),
            NotLive::Elsewhere => ProviderError::Unsupported {
                what: format!("reaching containers of docker.host {} on this machine", self.settings.host),
                hint: "its daemon is on another machine: set docker.remote to true in the settings of this provider"
                    .to_owned(),
            },
            NotLive::Failed(cause) => failed("finding the container's processes")(cause),
        }
    }

    async fn agent_answers(&self, live: &LiveContainer) -> Result<(), ProviderError> {
        let begun = Instant::now();
        loop {
            let left = AGENT_WITHIN.saturating_sub(begun.elapsed());
            let refusal = match self.connect(live, AGENT_PORT, left).await {
                Ok(_) => return Ok(()),
                Err(refusal) => refusal,
            };
            if live.is_dead() {
                return Err(self.not_live(NotLive::Ended));
            }
            // The daemon could not start the exec: the agent has ended.
            if self.settings.is_remote() && matches!(refusal, ProviderError::Failed { .. }) {
                return Err(refusal);
            }
            if left.is_zero() {
                return Err(ProviderError::Late { what: "starting the agent".into(), after: AGENT_WITHIN });
            }
            tokio::time::sleep(AGENT_POLL).await;
        }
    }

    /// The container of a sandbox.
    pub(crate) async fn find(&self, sandbox: &SandboxId) -> Result<Option<FoundContainer>, ProviderError> {
        Ok(self.daemon.find(sandbox).await?.into_iter().next())
    }

    /// Makes the instance of a container unreachable and ends its processes.
    pub(crate) async fn end(&self, found: &FoundContainer, slot: &SandboxSlot) -> Result<(), ProviderError> {
        slot.end(&found.instance);
        match found.activity {
            Some(_) => self.daemon.kill(&found.id).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn halt(&self, target: &Target, slot: &SandboxSlot) -> Result<(), ProviderError> {
        let Some(found) = self.find(&target.sandbox).await? else { return Ok(()) };
        // A late halt must not end the next instance.
        match &target.instance {
            Some(wanted) if *wanted != found.instance => Ok(()),
            Some(_) | None => self.end(&found, slot).await,
        }
    }

    pub(crate) async fn destroy(&self, sandbox: &SandboxId) -> Result<(), ProviderError> {
        let slot = self.slots.existing(sandbox);
        for found in self.daemon.find(sandbox).await? {
            if let Some(slot) = &slot {
                slot.end(&found.instance);
            }
            self.daemon.remove(&found).await?;
        }
        self.folders.remove(sandbox).map_err(failed("removing the agent's folder"))?;
        self.slots.forget(sandbox);
        Ok(())
    }

    /// The live container that a call means.
    pub(crate) async fn live(&self, target: &Target) -> Result<Arc<LiveContainer>, ProviderError> {
        let is_meant =
            |instance: &InstanceId| target.instance.as_ref().is_none_or(|wanted| wanted == instance);
        let held = self.slots.existing(&target.sandbox).and_then(|slot| slot.live());
        if let Some(live) = held.filter(|live| !live.is_dead()) {
            return if is_meant(&live.instance) { Ok(live) } else { Err(gone(&target.sandbox)) };
        }
        // An instance of an earlier server that has not been adopted: the daemon did not answer then.
        let found = self.find(&target.sandbox).await?.filter(|found| is_meant(&found.instance));
        let found = found.filter(|found| found.activity.is_some()).ok_or_else(|| gone(&target.sandbox))?;
        self.take_up(&found).await?.ok_or_else(|| gone(&target.sandbox))
    }

    /// Holds a running container; `None` where it has ended.
    pub(crate) async fn take_up(
        &self,
        found: &FoundContainer,
    ) -> Result<Option<Arc<LiveContainer>>, ProviderError> {
        let is_found = |live: &Arc<LiveContainer>| {
            live.id == found.id && live.instance == found.instance && !live.is_dead()
        };
        if let Some(live) = self.slots.existing(&found.sandbox).and_then(|slot| slot.live()).filter(is_found)
        {
            return Ok(Some(live));
        }
        let pid = self.daemon.pid(&found.id).await?;
        let live = match self.open_live(&found.id, &found.instance, pid) {
            Ok(live) => Arc::new(live),
            Err(NotLive::Ended) => return Ok(None),
            Err(other) => return Err(self.not_live(other)),
        };
        Ok(self.slots.of(&found.sandbox).set_live(Arc::clone(&live)).then_some(live))
    }

    pub(crate) async fn node(&self) -> Result<Node, ProviderError> {
        let info = self.daemon.info().await?;
        let memory_total_mib = info.mem_total.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0) / MIB;
        let (memory_free_mib, disk_free_mib, disk_total_mib) = match self.settings.is_remote() {
            // Not told by the API: what is used up there is an error of the create.
            true => (memory_total_mib, UNKNOWN_DISK_MIB, UNKNOWN_DISK_MIB),
            false => free_here(&info.docker_root_dir.unwrap_or_else(|| "/".to_owned()))?,
        };
        Ok(Node {
            memory_free_mib: memory_free_mib.min(memory_total_mib),
            memory_total_mib,
            cpu_total_milli: info.ncpu.and_then(|count| u64::try_from(count).ok()).unwrap_or(1) * 1_000,
            disk_free_mib,
            disk_copy_mib: disk_free_mib,
            disk_total_mib,
            limits_disk: false,
            disk_limits_mib: 0,
            disk_overcommit: 0.0,
            disk_share: None,
            live: 0,
            memory_limits_mib: 0,
            live_max: 0,
            overcommit: 0.0,
        })
    }
}

/// Free memory of this machine, and free and total space of a folder, in MiB.
fn free_here(folder: &str) -> Result<(u64, u64, u64), ProviderError> {
    let disk = rustix::fs::statvfs(folder).map_err(failed("measuring free space"))?;
    let disk_mib = |blocks: u64| blocks * disk.f_frsize / MIB;
    let meminfo = std::fs::read_to_string("/proc/meminfo").map_err(failed("reading free memory"))?;
    let free = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let free_kib = free.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok((free_kib.unwrap_or(0) / 1_024, disk_mib(disk.f_bavail), disk_mib(disk.f_blocks)))
}
