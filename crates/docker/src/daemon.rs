//! Calls to the Docker daemon. Each one is limited in time, and each failure is a typed error.

mod volumes;

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::Duration;

use atoll_model::{InstanceId, Limits, SandboxId};
use atoll_provider::{
    InstanceActivity, InstanceSpec, InstanceUsage, NetworkBytes, ProviderError, ProviderImage,
};
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::{
    ContainerCreateBody, ContainerStatsResponse, ContainerSummary, ContainerSummaryStateEnum,
    ContainerUpdateBody, MountPoint, SystemInfo,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptionsBuilder,
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    RenameContainerOptionsBuilder, StatsOptionsBuilder, UploadToContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures::{Stream, StreamExt};
use tokio::io::AsyncWrite;

pub(crate) use volumes::{FoundVolume, VolumeRole};

use crate::settings::DockerHost;
use crate::{DockerNetwork, agent_folder, failed};

/// LIMIT: bytes of the name of an image.
const IMAGE_NAME_MAX: usize = 512;
/// LIMIT: the daemon answers in milliseconds; a busy one in seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// LIMIT: making, starting, ending and removing a container, on a machine under heavy load.
const CHANGE_WITHIN: Duration = Duration::from_secs(30);
/// LIMIT: pulling an image.
const PULL_WITHIN: Duration = Duration::from_secs(600);
/// LIMIT: bytes of one read of an exec's output.
const EXEC_BUFFER: usize = 64 << 10;
/// How often a removal under way is looked at.
const REMOVAL_POLL: Duration = Duration::from_millis(20);

/// The server to which a container or volume belongs.
const OWNER_LABEL: &str = "atoll.owner";
/// The sandbox of a container.
const SANDBOX_LABEL: &str = "atoll.sandbox";
/// The first instance of a sandbox. Labels cannot change, so the current one is in the container's name.
const INSTANCE_LABEL: &str = "atoll.instance";
/// The network of a container: lists of Podman do not contain it.
const NETWORK_LABEL: &str = "atoll.network";
/// The limits with which a container was made: older versions of Podman cannot change them.
const LIMITS_LABEL: &str = "atoll.limits";

const MIB: i64 = 1 << 20;

/// A daemon, and the label of the containers that are this server's.
#[derive(Debug)]
pub(crate) struct Daemon {
    host: DockerHost,
    owner: String,
    docker: OnceLock<Docker>,
}

/// Why a call failed.
pub(crate) enum CallError {
    /// The daemon refused it.
    Refused { step: &'static str, status: u16, message: String },
    /// The daemon did not answer.
    Other(ProviderError),
}

/// Standard input and output of a process that the daemon started in a container.
pub(crate) struct ExecPipes {
    pub(crate) output: Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>,
    pub(crate) input: Pin<Box<dyn AsyncWrite + Send>>,
}

impl CallError {
    fn is(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == wanted)
    }
}

impl From<CallError> for ProviderError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Other(error) => error,
            CallError::Refused { message, .. } if message.contains("no space left on device") => {
                Self::Exhausted { what: "disk space of the Docker daemon".to_owned() }
            }
            CallError::Refused { step, message, .. } => {
                Self::Failed { step: format!("{step} by the Docker daemon"), cause: message.into() }
            }
        }
    }
}

/// A container of this server.
#[derive(Debug, Clone)]
pub(crate) struct FoundContainer {
    pub(crate) id: String,
    pub(crate) sandbox: SandboxId,
    pub(crate) instance: InstanceId,
    /// `None` while it does not run.
    pub(crate) activity: Option<InstanceActivity>,
    /// Whether it was made with a network.
    pub(crate) has_network: bool,
    /// The limits with which it was made, as text.
    pub(crate) made_with: String,
}

/// Limits as text.
pub(crate) fn limits_text(limits: &Limits) -> String {
    format!("memory_mib={} cpu_milli={} pids={}", limits.memory_mib, limits.cpu_milli, limits.pids)
}

/// The name of a sandbox's container while it runs this instance, or did so last.
pub(crate) fn container_name(sandbox: &SandboxId, instance: &InstanceId) -> String {
    format!("atoll-{sandbox}.{instance}")
}

/// The sandbox and the instance in the labels and the name of a container.
pub(crate) fn identity(labels: &HashMap<String, String>, name: &str) -> Option<(SandboxId, InstanceId)> {
    let sandbox = labels.get(SANDBOX_LABEL)?.parse().ok()?;
    let named = name.rsplit_once('.').and_then(|(_, instance)| instance.parse().ok());
    let instance = named.or_else(|| labels.get(INSTANCE_LABEL)?.parse().ok())?;
    Some((sandbox, instance))
}

fn found(summary: ContainerSummary) -> Option<FoundContainer> {
    let names = summary.names.unwrap_or_default();
    let name = names.first().map(String::as_str).unwrap_or_default();
    let labels = summary.labels.unwrap_or_default();
    let (sandbox, instance) = identity(&labels, name)?;
    let activity = match summary.state? {
        ContainerSummaryStateEnum::RUNNING
        | ContainerSummaryStateEnum::RESTARTING
        | ContainerSummaryStateEnum::STOPPING => Some(InstanceActivity::Running),
        ContainerSummaryStateEnum::PAUSED => Some(InstanceActivity::Paused),
        _ => None,
    };
    let has_network = labels.get(NETWORK_LABEL).is_none_or(|network| network != DockerNetwork::None.name());
    let made_with = labels.get(LIMITS_LABEL).cloned().unwrap_or_default();
    Some(FoundContainer { id: summary.id?, sandbox, instance, activity, has_network, made_with })
}

impl Daemon {
    pub(crate) fn new(host: DockerHost, owner: &str) -> Self {
        Self { host, owner: owner.to_owned(), docker: OnceLock::new() }
    }

    /// The client. A connection is made for each call, so one client outlives restarts of the daemon.
    pub(crate) fn docker(&self) -> Result<Docker, ProviderError> {
        if let Some(docker) = self.docker.get() {
            return Ok(docker.clone());
        }
        let within = CHANGE_WITHIN.as_secs();
        let client = match &self.host {
            DockerHost::Socket(path) => Docker::connect_with_unix(path, within, API_DEFAULT_VERSION),
            DockerHost::Tcp(address) => Docker::connect_with_http(address, within, API_DEFAULT_VERSION),
        };
        let docker = client.map_err(|error| self.unreachable("connecting to the Docker daemon", &error))?;
        Ok(self.docker.get_or_init(|| docker).clone())
    }

    fn unreachable(&self, step: &str, error: &Error) -> ProviderError {
        ProviderError::Transient {
            what: step.to_owned(),
            why: format!(
                "the Docker daemon at {} cannot be reached ({error}); start it, or correct docker.host in \
                 the settings of this provider",
                self.host
            ),
        }
    }

    async fn bounded<T>(
        &self,
        step: &'static str,
        within: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, CallError> {
        let late = || ProviderError::Late {
            what: format!("{step} by the Docker daemon at {}", self.host),
            after: within,
        };
        match tokio::time::timeout(within, call).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(Error::DockerResponseServerError { status_code, message })) => {
                Err(CallError::Refused { step, status: status_code, message })
            }
            Ok(Err(Error::DockerStreamError { error })) => {
                Err(CallError::Refused { step, status: 500, message: error })
            }
            Err(_) | Ok(Err(Error::RequestTimeoutError)) => Err(CallError::Other(late())),
            Ok(Err(error)) => Err(CallError::Other(self.unreachable(step, &error))),
        }
    }

    /// The labels of a new container.
    pub(crate) fn labels(&self, spec: &InstanceSpec, network: DockerNetwork) -> HashMap<String, String> {
        let limits = limits_text(&spec.limits);
        let labels = [
            (OWNER_LABEL, self.owner.as_str()),
            (SANDBOX_LABEL, spec.sandbox.as_str()),
            (INSTANCE_LABEL, spec.instance.as_str()),
            (NETWORK_LABEL, network.name()),
            (LIMITS_LABEL, limits.as_str()),
        ];
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    /// The filter for containers and volumes of this server.
    pub(crate) fn owner_filter(&self) -> String {
        format!("{OWNER_LABEL}={}", self.owner)
    }

    async fn list(&self, labels: Vec<String>) -> Result<Vec<FoundContainer>, ProviderError> {
        let filters = HashMap::from([("label", labels)]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let docker = self.docker()?;
        let call = docker.list_containers(Some(options));
        let listed = self.bounded("listing containers", ANSWER_WITHIN, call).await?;
        Ok(listed.into_iter().filter_map(found).collect())
    }

    /// All containers of this server.
    pub(crate) async fn owned(&self) -> Result<Vec<FoundContainer>, ProviderError> {
        self.list(vec![self.owner_filter()]).await
    }

    /// The containers of a sandbox: one, or none. Containers of other servers are never found.
    pub(crate) async fn find(&self, sandbox: &SandboxId) -> Result<Vec<FoundContainer>, ProviderError> {
        self.list(vec![self.owner_filter(), format!("{SANDBOX_LABEL}={sandbox}")]).await
    }

    /// An image of the daemon; `None` where it has none of this name.
    pub(crate) async fn image(&self, name: &str) -> Result<Option<ProviderImage>, ProviderError> {
        if !is_image_name(name) {
            return Ok(None);
        }
        let docker = self.docker()?;
        let call = docker.inspect_image(name);
        let image = match self.bounded("looking for the image", ANSWER_WITHIN, call).await {
            Ok(image) => image,
            // 400: the text can be no name of an image.
            Err(error) if error.is(404) || error.is(400) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let config = image.config.unwrap_or_default();
        let env = config.env.unwrap_or_default();
        let env = env.iter().filter_map(|line| line.split_once('='));
        let user = config.user.filter(|user| !user.is_empty()).unwrap_or_else(|| "root".to_owned());
        Ok(image.id.map(|version| ProviderImage {
            name: name.to_owned(),
            version,
            env: env.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>(),
            user,
            workdir: config.working_dir.unwrap_or_default(),
        }))
    }

    /// Looks for an image in its registry.
    pub(crate) async fn find_in_registry(&self, name: &str) -> Result<(), ProviderError> {
        let docker = self.docker()?;
        let call = docker.inspect_registry_image(name, None);
        match self.bounded("asking the registry", ANSWER_WITHIN, call).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.no_image(format!("looking for the image {name}"), name, error)),
        }
    }

    /// The error of a call about an image that the daemon lacks and its registry did not give.
    fn no_image(&self, what: String, name: &str, error: CallError) -> ProviderError {
        let why = match error {
            CallError::Refused { message, .. } => message,
            CallError::Other(error) => error.to_string(),
        };
        ProviderError::Transient {
            what: format!("{what}, which the Docker daemon at {} does not have,", self.host),
            why: format!("{why}; pull or load it there: docker pull {name}, docker load -i FILE"),
        }
    }

    /// Pulls an image from its registry.
    pub(crate) async fn pull(&self, name: &str) -> Result<(), ProviderError> {
        // Without a tag the daemon would pull every one.
        let has_tag = name.rsplit('/').next().is_some_and(|last| last.contains([':', '@']));
        let whole = if has_tag { name.to_owned() } else { format!("{name}:latest") };
        let options = CreateImageOptionsBuilder::default().from_image(&whole).build();
        let docker = self.docker()?;
        let mut progress = std::pin::pin!(docker.create_image(Some(options), None, None));
        let pulled = async {
            while let Some(step) = progress.next().await {
                step?;
            }
            Ok(())
        };
        match self.bounded("pulling the image", PULL_WITHIN, pulled).await {
            Ok(()) => Ok(()),
            Err(CallError::Refused { status: 404, .. }) => {
                Err(ProviderError::NoTemplate { template: name.to_owned() })
            }
            Err(error) => Err(self.no_image(format!("pulling the image {name}"), name, error)),
        }
    }

    /// Makes a container; `None` where the daemon does not have the image.
    pub(crate) async fn create(
        &self,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<Option<String>, ProviderError> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let docker = self.docker()?;
        let call = docker.create_container(Some(options), body);
        match self.bounded("making the container", CHANGE_WITHIN, call).await {
            Ok(made) => Ok(Some(made.id)),
            Err(error) if error.is(404) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Unpacks an archive at the root of a container that has not started.
    pub(crate) async fn upload(&self, id: &str, archive: Vec<u8>) -> Result<(), ProviderError> {
        let options = UploadToContainerOptionsBuilder::default().path("/").build();
        let docker = self.docker()?;
        let call = docker.upload_to_container(id, Some(options), bollard::body_full(archive.into()));
        Ok(self.bounded("copying the agent into the container", CHANGE_WITHIN, call).await?)
    }

    /// Starts the agent as a process of a running container that carries connections.
    pub(crate) async fn exec_agent(&self, id: &str) -> Result<ExecPipes, ProviderError> {
        let agent = format!("{}/atoll-agent", agent_folder::INSIDE);
        let command = [agent.as_str(), "--connections", "stdio"];
        let config = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            cmd: Some(command.map(str::to_owned).to_vec()),
            user: Some("0:0".to_owned()),
            working_dir: Some("/".to_owned()),
            ..CreateExecOptions::default()
        };
        let docker = self.docker()?;
        let made = self.bounded("making an exec", ANSWER_WITHIN, docker.create_exec(id, config)).await?;
        let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(EXEC_BUFFER) };
        let call = docker.start_exec(&made.id, Some(options));
        match self.bounded("starting an exec", CHANGE_WITHIN, call).await? {
            StartExecResults::Attached { output, input } => Ok(ExecPipes { output, input }),
            StartExecResults::Detached => Err(failed("starting an exec")("the daemon attached no pipes")),
        }
    }

    /// Starts a container; returns its first process.
    pub(crate) async fn start(&self, id: &str) -> Result<i32, ProviderError> {
        let docker = self.docker()?;
        self.bounded("starting the container", CHANGE_WITHIN, docker.start_container(id, None)).await?;
        self.pid(id).await
    }

    /// The first process of a running container; 0 where it does not run.
    pub(crate) async fn pid(&self, id: &str) -> Result<i32, ProviderError> {
        let docker = self.docker()?;
        let call = docker.inspect_container(id, None);
        let state = self.bounded("inspecting the container", ANSWER_WITHIN, call).await?.state;
        Ok(state.and_then(|state| i32::try_from(state.pid?).ok()).unwrap_or(0))
    }

    /// What a container was made to show beside its own files.
    pub(crate) async fn mounts(&self, id: &str) -> Result<Vec<MountPoint>, ProviderError> {
        let docker = self.docker()?;
        let call = docker.inspect_container(id, None);
        let inspected = self.bounded("inspecting the container", ANSWER_WITHIN, call).await?;
        Ok(inspected.mounts.unwrap_or_default())
    }

    /// Gives a container the name of its next instance.
    pub(crate) async fn rename(&self, id: &str, name: &str) -> Result<(), ProviderError> {
        let options = RenameContainerOptionsBuilder::default().name(name).build();
        let docker = self.docker()?;
        let call = docker.rename_container(id, options);
        Ok(self.bounded("renaming the container", ANSWER_WITHIN, call).await?)
    }

    /// Ends the processes of a container, paused or not. One that does not run is fine.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), ProviderError> {
        let options = KillContainerOptionsBuilder::default().signal("SIGKILL").build();
        let docker = self.docker()?;
        let call = docker.kill_container(id, Some(options));
        match self.bounded("ending the container", CHANGE_WITHIN, call).await {
            Err(error) if error.is(404) || error.is(409) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Ends and removes a container with its files. One that is not there is fine.
    pub(crate) async fn remove(&self, container: &FoundContainer) -> Result<(), ProviderError> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let docker = self.docker()?;
        let call = docker.remove_container(&container.id, Some(options));
        match self.bounded("removing the container", CHANGE_WITHIN, call).await {
            Err(error) if error.is(404) => Ok(()),
            // Another removal is under way.
            Err(error) if error.is(409) => self.removed(container).await,
            other => Ok(other?),
        }
    }

    async fn removed(&self, container: &FoundContainer) -> Result<(), ProviderError> {
        let gone = async {
            while self.find(&container.sandbox).await?.iter().any(|found| found.id == container.id) {
                tokio::time::sleep(REMOVAL_POLL).await;
            }
            Ok(())
        };
        let late = |_| ProviderError::Late { what: "removing the container".into(), after: CHANGE_WITHIN };
        tokio::time::timeout(CHANGE_WITHIN, gone).await.map_err(late)?
    }

    /// Freezes a container.
    pub(crate) async fn pause(&self, id: &str) -> Result<(), ProviderError> {
        let docker = self.docker()?;
        Ok(self.bounded("pausing the container", CHANGE_WITHIN, docker.pause_container(id)).await?)
    }

    /// Thaws a container.
    pub(crate) async fn unpause(&self, id: &str) -> Result<(), ProviderError> {
        let docker = self.docker()?;
        Ok(self.bounded("resuming the container", CHANGE_WITHIN, docker.unpause_container(id)).await?)
    }

    /// Changes the limits of a container, running or not; `false` where the daemon cannot, as older versions of Podman.
    pub(crate) async fn limit(&self, id: &str, limits: &Limits) -> Result<bool, ProviderError> {
        let memory = memory_bytes(limits);
        let body = ContainerUpdateBody {
            memory: Some(memory),
            memory_swap: Some(memory),
            nano_cpus: Some(nano_cpus(limits)),
            pids_limit: Some(i64::from(limits.pids)),
            ..ContainerUpdateBody::default()
        };
        let docker = self.docker()?;
        let call = docker.update_container(id, body);
        match self.bounded("changing the limits of the container", ANSWER_WITHIN, call).await {
            // It knows the container, but not the call.
            Err(error) if error.is(404) && self.pid(id).await.is_ok() => Ok(false),
            other => other.map(|_| true).map_err(ProviderError::from),
        }
    }

    /// What a container uses now.
    pub(crate) async fn usage(&self, id: &str) -> Result<InstanceUsage, ProviderError> {
        let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
        let docker = self.docker()?;
        let mut stats = std::pin::pin!(docker.stats(id, Some(options)));
        let call = async { stats.next().await.unwrap_or(Err(Error::RequestTimeoutError)) };
        Ok(usage(&self.bounded("measuring the container", ANSWER_WITHIN, call).await?))
    }

    /// The bytes that a container's own layer has, for which the daemon walks over its files.
    pub(crate) async fn layer_bytes(&self, id: &str) -> Result<Option<u64>, ProviderError> {
        let options = InspectContainerOptionsBuilder::default().size(true).build();
        let docker = self.docker()?;
        let call = docker.inspect_container(id, Some(options));
        let inspected = self.bounded("measuring the files of the container", ANSWER_WITHIN, call).await?;
        Ok(inspected.size_rw.and_then(|bytes| u64::try_from(bytes).ok()))
    }

    /// The machine of the daemon.
    pub(crate) async fn info(&self) -> Result<SystemInfo, ProviderError> {
        let docker = self.docker()?;
        Ok(self.bounded("describing its machine", ANSWER_WITHIN, docker.info()).await?)
    }
}

pub(crate) fn memory_bytes(limits: &Limits) -> i64 {
    i64::from(limits.memory_mib) * MIB
}

pub(crate) fn nano_cpus(limits: &Limits) -> i64 {
    i64::from(limits.cpu_milli) * 1_000_000
}

fn usage(stats: &ContainerStatsResponse) -> InstanceUsage {
    let memory = stats.memory_stats.as_ref();
    let figures = memory.and_then(|memory| memory.stats.as_ref());
    // The first name is that of cgroup v1.
    let cache = figures.and_then(|all| all.get("total_inactive_file").or_else(|| all.get("inactive_file")));
    let cpu = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()?.total_usage);
    let pids = stats.pids_stats.as_ref().and_then(|pids| pids.current);
    let networks = stats.networks.as_ref().map(|all| {
        all.values().fold(NetworkBytes::default(), |sum, one| NetworkBytes {
            received: sum.received + one.rx_bytes.unwrap_or(0),
            sent: sum.sent + one.tx_bytes.unwrap_or(0),
        })
    });
    InstanceUsage {
        cpu_us: cpu.unwrap_or(0) / 1_000,
        memory_bytes: memory.and_then(|memory| memory.usage).unwrap_or(0),
        cache_bytes: cache.copied().unwrap_or(0),
        pids: pids.and_then(|pids| u32::try_from(pids).ok()).unwrap_or(0),
        // Another call tells it.
        disk_bytes: None,
        network: networks,
    }
}
/// Whether a text can be the name or the id of an image. Anything else must not become a part of a path of the daemon's API:
/// names come from tenants, and `..` would lead to other objects.
pub(crate) fn is_image_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@');
    let parts = || name.split(['/', ':', '@']);
    name.len() <= IMAGE_NAME_MAX
        && name.chars().all(is_plain)
        && parts().all(|part| part.starts_with(|c: char| c.is_ascii_alphanumeric()) && !part.contains(".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_images_become_parts_of_a_path() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let pinned = format!("registry:5000/team/app@{digest}");
        for name in ["busybox", "python:3.12-slim", "ghcr.io/a_b/c-d:v1", digest.as_str(), pinned.as_str()] {
            assert!(is_image_name(name), "{name}");
        }
        let long = "a".repeat(IMAGE_NAME_MAX + 1);
        for name in [
            "",
            "..",
            "../containers/db",
            "a/../../containers/db",
            "a/..",
            "/a",
            "a/",
            "a//b",
            "a?b",
            "a#b",
            "a%2fb",
            "a b",
            "get?names=a",
            ".a",
            "a:..",
            long.as_str(),
        ] {
            assert!(!is_image_name(name), "{name}");
        }
    }
}
