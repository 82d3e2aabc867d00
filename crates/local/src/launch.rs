//! Starts and ends agents. The bookkeeping (turns, starts that outlive their caller, deaths, removals) is `atoll-instances`.

use std::convert::Infallible;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atoll_agentapi::{AgentClient, InitRequest};
use atoll_instances::{
    FilesState, InstanceLauncher, Instances, PoolKey, ReadyInstance, RemainsCleaner, RunningInstance,
    SandboxSlot, failed,
};
use atoll_model::policy::egress::Egress;
use atoll_model::{Limits, SandboxId, Storage};
use atoll_provider::{
    Booted, Capability, FilesOrigin, InstanceDemands, InstanceSpec, NoticeKind, ProviderError,
};

use crate::folder::{
    InstanceRecord, NamedFolder, SOCKET, SandboxFolders, WORKSPACE, remove_aside, temporary,
};
use crate::instance::LocalInstance;
use crate::processes::{INSTANCE_VARIABLE, InstanceProcesses, boot_id, start_time};
use crate::{LocalShared, TEMPLATE, blocking, random_hex};

/// LIMIT: an agent answers within milliseconds of its start.
const AGENT_WITHIN: Duration = Duration::from_secs(10);
/// How often a new agent is called.
const AGENT_POLL: Duration = Duration::from_millis(1);
/// Bytes of an agent's token.
const TOKEN_BYTES: usize = 32;

/// What an ended instance leaves.
#[derive(Debug, Default)]
pub(crate) struct LocalRemains {
    pub(crate) instance: Option<(SandboxId, InstanceRecord)>,
    /// A folder that has no name of a sandbox any more.
    pub(crate) folder: Option<PathBuf>,
    /// A folder that still has the name of its sandbox.
    pub(crate) named: Option<NamedFolder>,
}

/// Removes what ended instances leave.
#[derive(Debug, Clone)]
pub(crate) struct LocalCleaner {
    pub(crate) folders: SandboxFolders,
    pub(crate) processes: InstanceProcesses,
}

impl RemainsCleaner for LocalCleaner {
    type Remains = LocalRemains;

    fn try_clear(&self, remains: &mut LocalRemains, _: u32) -> io::Result<bool> {
        if let Some((sandbox, record)) = &remains.instance {
            self.processes.clear(record)?;
            // The next instance may have been recorded already.
            if self.folders.record(sandbox).is_some_and(|current| current == *record) {
                self.folders.remove_record(sandbox)?;
            }
            remains.instance = None;
        }
        if let Some(named) = &remains.named {
            remains.folder = self.folders.put_aside_named(named)?;
            remains.named = None;
        }
        if let Some(folder) = &remains.folder {
            remove_aside(folder)?;
            remains.folder = None;
        }
        Ok(true)
    }
}

/// There is no pool: a start takes a few milliseconds.
#[derive(Debug)]
pub(crate) struct NoReadyInstance(Infallible);

impl ReadyInstance for NoReadyInstance {
    fn name(&self) -> &str {
        match self.0 {}
    }
}

impl LocalShared {
    fn missing(&self, capability: Capability) -> ProviderError {
        let hint =
            "choose a provider that has it; `atoll provider ls --wide` shows what each can do".to_owned();
        ProviderError::MissingCapability { provider: self.config.name, capability, hint }
    }

    /// What nothing on this machine would enforce is refused.
    fn refuse_what_cannot_be(&self, spec: &InstanceSpec) -> Result<(), ProviderError> {
        if !spec.mounts.is_empty() {
            return Err(self.missing(Capability::Volume));
        }
        if spec.origin != FilesOrigin::Template {
            return Err(self.missing(Capability::Snapshot));
        }
        self.check_demands(&spec.demands())
    }

    pub(crate) fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        if *demands.network != Egress::open() {
            return Err(self.missing(Capability::Egress));
        }
        match demands.storage {
            Storage::Disk => Ok(()),
            Storage::Memory => Err(ProviderError::Unsupported {
                what: format!("storage memory at provider {}", self.config.name),
                hint: "use storage disk".to_owned(),
            }),
        }
    }

    /// Makes the folder where it is missing, and starts the agent. Blocks. On an error nothing runs.
    fn start_agent(&self, spec: &InstanceSpec, files: FilesState) -> io::Result<(LocalInstance, String)> {
        let folders = &self.cleaner.folders;
        if files == FilesState::New {
            folders.make(&spec.sandbox)?;
        }
        folders.remove_record(&spec.sandbox)?;
        // The machine may have been restarted since, or cleaned up.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(temporary(&spec.sandbox))?;
        let token = random_hex(TOKEN_BYTES)?;
        let cgroups = self.cleaner.processes.cgroups.as_ref();
        let name = spec.instance.as_str();
        if let Some(cgroups) = cgroups {
            cgroups.create(name, &spec.limits)?;
        }
        let started = self.spawn(spec).and_then(|child| self.record(spec, child, &token));
        if started.is_err()
            && let Some(cgroups) = cgroups
        {
            crate::processes::clear_cgroup(&**cgroups, name)?;
        }
        Ok((started?, token))
    }

    fn spawn(&self, spec: &InstanceSpec) -> io::Result<Child> {
        let folder = self.cleaner.folders.of(&spec.sandbox);
        let mut command = Command::new(self.config.agent.join("atoll-agent"));
        command.args(["--workspace", WORKSPACE, "--socket", SOCKET, "--token-fd", "0"]);
        if let Some(cgroups) = &self.cleaner.processes.cgroups {
            for file in cgroups.entry_files(spec.instance.as_str()) {
                command.arg("--cgroup").arg(file);
            }
        }
        // Keys and other secrets of the server must not be seen inside.
        command.env_clear().envs(&self.config.environment);
        command.env("TMPDIR", temporary(&spec.sandbox)).env("ATOLL_AGENT_SOCKET", folder.join(SOCKET));
        command.env(INSTANCE_VARIABLE, spec.instance.as_str());
        command.current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn()
    }

    /// Records the process, and only then sends it the token that it waits for: an agent that is not recorded does nothing.
    fn record(&self, spec: &InstanceSpec, mut child: Child, token: &str) -> io::Result<LocalInstance> {
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let record = InstanceRecord {
            instance: spec.instance.clone(),
            boot_id: boot_id()?,
            pid,
            started: start_time(pid).unwrap_or(0),
            has_cgroup: self.cleaner.processes.cgroups.is_some(),
        };
        let folders = &self.cleaner.folders;
        let input = child.stdin.take();
        let written = folders.write_record(&spec.sandbox, &record).and_then(|()| match input {
            Some(mut input) => input.write_all(token.as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        });
        if let Err(error) = written {
            // Its input is closed by now, so it has ended or is about to.
            child.kill().and_then(|()| child.wait())?;
            return Err(error);
        }
        let folder = folders.of(&spec.sandbox);
        match LocalInstance::open(&spec.sandbox, &folder, record, &self.cleaner.processes)? {
            Some(live) => {
                live.hold(child);
                Ok(live)
            }
            None => {
                let status = child.wait()?;
                Err(io::Error::other(format!("the agent ended at once with {status}")))
            }
        }
    }

    /// Hands what a failed start made to the reaper, which works later: the sandbox's own name is free for the next start.
    async fn undo_start(&self, sandbox: &SandboxId, files: FilesState, record: Option<InstanceRecord>) {
        let (folders, made) = (self.cleaner.folders.clone(), sandbox.clone());
        let put_aside = move || match files {
            FilesState::New => match folders.put_aside(&made) {
                Ok(folder) => Ok(LocalRemains { folder, ..LocalRemains::default() }),
                Err(cause) => {
                    tracing::warn!(sandbox = %made, %cause, "the files of a failed start are moved aside later");
                    Ok(LocalRemains { named: folders.named(&made), ..LocalRemains::default() })
                }
            },
            FilesState::Kept => Ok(LocalRemains::default()),
        };
        let made = blocking(put_aside).await.unwrap_or_else(|cause| {
            tracing::warn!(%sandbox, %cause, "the files of a failed start are left");
            LocalRemains::default()
        });
        let instance = record.map(|record| (sandbox.clone(), record));
        self.instances.reaper().take(LocalRemains { instance, ..made });
    }

    /// Waits until the agent takes connections.
    async fn agent_answers(
        &self,
        live: &LocalInstance,
        slot: &SandboxSlot<LocalInstance>,
    ) -> Result<(), ProviderError> {
        let begun = Instant::now();
        loop {
            if live.connect().await.is_ok() {
                return Ok(());
            }
            if live.is_dead().map_err(failed("watching the agent"))? {
                return Err(failed("starting the agent")("it has ended"));
            }
            if slot.is_doomed() {
                return Err(ProviderError::Gone { sandbox: live.sandbox.clone() });
            }
            if begun.elapsed() > AGENT_WITHIN {
                return Err(ProviderError::Late { what: "starting the agent".into(), after: AGENT_WITHIN });
            }
            tokio::time::sleep(AGENT_POLL).await;
        }
    }
}

impl InstanceLauncher for LocalShared {
    type Instance = LocalInstance;
    type Ready = NoReadyInstance;
    type Cleaner = LocalCleaner;

    fn instances(&self) -> &Instances<Self> {
        &self.instances
    }

    async fn launch(
        self: &Arc<Self>,
        spec: &InstanceSpec,
        files: FilesState,
        slot: &Arc<SandboxSlot<LocalInstance>>,
    ) -> Result<(Arc<LocalInstance>, Booted), ProviderError> {
        self.refuse_what_cannot_be(spec)?;
        if files == FilesState::New && spec.template != TEMPLATE {
            return Err(ProviderError::NoTemplate { template: spec.template.clone() });
        }
        if files == FilesState::New && self.cleaner.folders.of(&spec.sandbox).exists() {
            return Err(failed("making the folder of the sandbox")("there is one already"));
        }
        if files == FilesState::Kept && !self.cleaner.folders.owns(&spec.sandbox) {
            return Err(ProviderError::Gone { sandbox: spec.sandbox.clone() });
        }
        let (shared, own) = (Arc::clone(self), spec.clone());
        let (live, token) = match blocking(move || shared.start_agent(&own, files)).await {
            Ok(started) => started,
            Err(error) => {
                self.undo_start(&spec.sandbox, files, None).await;
                return Err(failed("starting the agent")(error));
            }
        };
        let live = Arc::new(live);
        if let Err(error) = self.agent_answers(&live, slot).await {
            let doomed = Arc::clone(&live);
            let ended = blocking(move || doomed.end()).await;
            self.undo_start(&spec.sandbox, files, Some(live.record.clone())).await;
            return Err(ended.err().map_or(error, failed("ending the agent")));
        }
        let facts = serde_json::to_value(&live.record).map_err(failed("writing facts"))?;
        Ok((live, Booted { facts, agent_token: Some(token), from_pool: false }))
    }

    async fn kill(&self, live: &Arc<LocalInstance>) -> Result<(), ProviderError> {
        let doomed = Arc::clone(live);
        blocking(move || doomed.end()).await.map_err(failed("ending the processes of the sandbox"))
    }

    fn remains(&self, live: &LocalInstance) -> Result<LocalRemains, ProviderError> {
        let instance = Some((live.sandbox.clone(), live.record.clone()));
        Ok(LocalRemains { instance, ..LocalRemains::default() })
    }

    async fn remove_memory(&self, _: &SandboxId) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn remove_files(&self, sandbox: &SandboxId) -> Result<(), ProviderError> {
        let (cleaner, sandbox) = (self.cleaner.clone(), sandbox.clone());
        let put_aside = move || {
            // An instance that this server does not hold, as of a create that was cut off by a crash.
            if let Some(record) = cleaner.folders.record(&sandbox) {
                cleaner.processes.clear(&record)?;
            }
            cleaner.folders.put_aside(&sandbox)
        };
        let folder = blocking(put_aside).await.map_err(failed("moving files aside"))?;
        self.instances.reaper().take(LocalRemains { folder, ..LocalRemains::default() });
        Ok(())
    }

    fn new_event(&self, live: &LocalInstance) -> Option<NoticeKind> {
        let cgroups = self.cleaner.processes.cgroups.as_ref().filter(|_| live.record.has_cgroup)?;
        let kills = cgroups.oom_kills(live.cgroup()).ok()?;
        (live.oom_kills.swap(kills, Ordering::SeqCst) < kills).then_some(NoticeKind::OutOfMemory)
    }

    async fn make_ready(self: &Arc<Self>, _: &PoolKey) -> Result<NoReadyInstance, ProviderError> {
        Err(self.missing(Capability::Pool))
    }

    async fn freeze_ready(&self, ready: NoReadyInstance) -> Result<NoReadyInstance, ProviderError> {
        match ready.0 {}
    }

    fn agent_of(self: &Arc<Self>, ready: &NoReadyInstance) -> io::Result<(AgentClient, InitRequest)> {
        match ready.0 {}
    }

    async fn freeze_prepared(&self, ready: NoReadyInstance) -> Result<NoReadyInstance, ProviderError> {
        match ready.0 {}
    }

    fn is_usable(&self, ready: &NoReadyInstance, _: &str) -> bool {
        match ready.0 {}
    }

    fn has_room(&self, ready: &NoReadyInstance, _: &Limits) -> bool {
        match ready.0 {}
    }

    fn discard(&self, ready: NoReadyInstance) {
        match ready.0 {}
    }
}
