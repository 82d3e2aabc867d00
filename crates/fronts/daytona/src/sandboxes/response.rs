//! A sandbox as Daytona describes it. The Python SDK needs some numbers as integers and some fields always, and gets
//! them so.

use std::collections::BTreeMap;

use atoll_front_kit::rfc3339_millis;
use atoll_model::{Lease, NetworkMode, NetworkPolicy, OnTimeout, Phase, Reason, Timestamp};
use serde::Serialize;

use crate::origin::Origin;
use crate::states::{desired, state};

/// Names of annotations that a create stores for later responses. No rule reads them.
pub(crate) mod note {
    /// The snapshot as the user named it.
    pub(crate) const SNAPSHOT: &str = "daytona.snapshot";
    /// The region as the user named it.
    pub(crate) const TARGET: &str = "daytona.target";
    /// Names of variables that the user set, as a JSON list: a template adds its own variables.
    pub(crate) const ENV: &str = "daytona.env";
    /// The Dockerfile that it was built from.
    pub(crate) const DOCKERFILE: &str = "daytona.dockerfile";
    /// Its contexts, separated by commas.
    pub(crate) const CONTEXTS: &str = "daytona.contexts";
    /// Minutes that the user would wait for capacity.
    pub(crate) const QUEUE_TIMEOUT: &str = "daytona.queue_timeout";
}

/// The only region, which is this server.
pub(crate) const REGION: &str = "local";
/// Daytona's class for a sandbox of Atoll.
pub(crate) const CLASS: &str = "container";

/// The full description.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxResponse {
    #[serde(flatten)]
    pub(crate) item: Item,
    env: BTreeMap<String, String>,
    kvm: bool,
    volumes: Vec<VolumeMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_info: Option<BuildInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backup_created_at: Option<String>,
}

/// The description in a list.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    pub(crate) id: String,
    organization_id: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    user: String,
    labels: BTreeMap<String, String>,
    public: bool,
    network_block_all: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_allow_list: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain_allow_list: Option<String>,
    target: String,
    cpu: u32,
    gpu: u32,
    memory: u32,
    disk: u32,
    pub(crate) state: &'static str,
    pub(crate) desired_state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error_reason: Option<String>,
    recoverable: bool,
    backup_state: &'static str,
    auto_stop_interval: u64,
    auto_pause_interval: u64,
    auto_archive_interval: u64,
    auto_delete_interval: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_destroy_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_timeout: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_timed_out_at: Option<String>,
    created_at: String,
    updated_at: String,
    last_activity_at: String,
    sandbox_class: &'static str,
    daemon_version: &'static str,
    runner_id: &'static str,
    toolbox_proxy_url: String,
}

/// A mounted volume.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct VolumeMount {
    volume_id: String,
    mount_path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    subpath: Option<String>,
}

/// The Dockerfile that it was built from.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BuildInfo {
    pub(crate) dockerfile_content: String,
    pub(crate) context_hashes: Vec<String>,
    pub(crate) created_at: String,
    pub(crate) updated_at: String,
    pub(crate) snapshot_ref: String,
}

impl SandboxResponse {
    pub(crate) fn of(lease: &Lease, origin: &Origin) -> Self {
        let named: Option<Vec<String>> =
            lease.annotations.get(note::ENV).and_then(|names| serde_json::from_str(names).ok());
        let env = match named {
            Some(named) => named
                .into_iter()
                .filter_map(|name| lease.env.get(&name).map(|value| (name.clone(), value.clone())))
                .collect(),
            // Another front created the sandbox: all variables are the user's.
            None => lease.env.clone(),
        };
        let volumes = lease.mounts.iter().map(|mount| VolumeMount {
            volume_id: mount.volume.to_string(),
            mount_path: mount.path.clone(),
            subpath: mount.sub_path.clone(),
        });
        Self {
            item: Item::of(lease, origin),
            env,
            kvm: false,
            volumes: volumes.collect(),
            build_info: build_info(lease),
            backup_created_at: is_backed_up(lease).then(|| rfc3339_millis(lease.phase_at.wall_ms)),
        }
    }
}

impl Item {
    pub(crate) fn of(lease: &Lease, origin: &Origin) -> Self {
        let noted = |word: &str| lease.annotations.get(word).cloned();
        let built = lease.annotations.contains_key(note::DOCKERFILE);
        let minutes = |seconds: Option<u64>| seconds.map_or(0, |s| s.div_ceil(60));
        let active = lease.active_at.as_ref().unwrap_or(&lease.phase_at);
        let (network_allow_list, domain_allow_list) = lists(&lease.network);
        let destroys = lease.timeout_at.as_ref().filter(|_| lease.on_timeout == OnTimeout::Delete);
        Self {
            id: lease.id.to_string(),
            organization_id: lease.tenant.to_string(),
            name: lease.name.clone().unwrap_or_else(|| lease.id.to_string()),
            snapshot: (!built).then(|| noted(note::SNAPSHOT).unwrap_or_else(|| lease.template.clone())),
            user: lease.user.clone(),
            labels: lease.labels.clone(),
            public: lease.public,
            network_block_all: crate::network::blocks_all(lease),
            network_allow_list,
            domain_allow_list,
            target: noted(note::TARGET).unwrap_or_else(|| REGION.to_owned()),
            cpu: cores(lease),
            gpu: 0,
            memory: gib(lease.limits.memory_mib),
            disk: gib(lease.limits.disk_mib),
            state: state(lease),
            desired_state: desired(lease.intent),
            error_reason: error_reason(lease),
            recoverable: lease.is_recoverable(),
            backup_state: if is_backed_up(lease) { "Completed" } else { "None" },
            auto_stop_interval: minutes(lease.timers.auto_stop_s),
            auto_pause_interval: minutes(lease.timers.auto_pause_s),
            auto_archive_interval: minutes(lease.timers.auto_archive_s),
            auto_delete_interval: lease
                .timers
                .auto_delete_s
                .map_or(-1, |s| i64::try_from(s.div_ceil(60)).unwrap_or(i64::MAX)),
            auto_destroy_at: destroys.map(|at| rfc3339_millis(at.wall_ms)),
            queue_timeout: noted(note::QUEUE_TIMEOUT).and_then(|minutes| minutes.parse().ok()),
            queue_timed_out_at: timed_out_in_queue(lease).map(|at| rfc3339_millis(at.wall_ms)),
            created_at: rfc3339_millis(lease.created_at.wall_ms),
            updated_at: rfc3339_millis(lease.phase_at.wall_ms),
            last_activity_at: rfc3339_millis(active.wall_ms),
            sandbox_class: CLASS,
            daemon_version: env!("CARGO_PKG_VERSION"),
            runner_id: REGION,
            toolbox_proxy_url: origin.toolbox(),
        }
    }
}

fn hashes(joined: Option<&str>) -> Vec<String> {
    joined.unwrap_or_default().split(',').filter(|hash| !hash.is_empty()).map(str::to_owned).collect()
}

/// Whole cores, rounded up.
pub(crate) fn cores(lease: &Lease) -> u32 {
    lease.limits.cpu_milli.div_ceil(1_000)
}

/// Whole GiB, rounded up.
pub(crate) const fn gib(mib: u32) -> u32 {
    mib.div_ceil(1_024)
}

/// Whether the files are in object storage.
fn is_backed_up(lease: &Lease) -> bool {
    lease.phase == Phase::Archived
}

fn lists(network: &NetworkPolicy) -> (Option<String>, Option<String>) {
    if network.mode != NetworkMode::Custom {
        return (None, None);
    }
    let joined = |texts: Vec<String>| (!texts.is_empty()).then(|| texts.join(","));
    (
        joined(network.allow_cidrs.iter().map(ToString::to_string).collect()),
        joined(network.allow_domains.iter().map(ToString::to_string).collect()),
    )
}

/// When the wait for a place ended without one.
pub(crate) fn timed_out_in_queue(lease: &Lease) -> Option<&Timestamp> {
    lease.queue.as_ref().and_then(|wait| wait.timed_out_at.as_ref())
}

fn error_reason(lease: &Lease) -> Option<String> {
    if lease.phase != Phase::Failed {
        return None;
    }
    Some(match &lease.reason {
        Reason::ImageUnavailable { message } | Reason::Provider { message } => message.clone(),
        Reason::Overdue => "it took too long".to_owned(),
        Reason::QueueTimedOut => "no place was free in time".to_owned(),
        Reason::InstanceDied => "it ended by itself: its first process died or was killed".to_owned(),
        Reason::LostWhileDown => "it no longer existed when the server restarted".to_owned(),
        Reason::Requested
        | Reason::Completed
        | Reason::TimedOut
        | Reason::Idle
        | Reason::Aged
        | Reason::Woken
        | Reason::Exit => "it could not be kept running".to_owned(),
    })
}

fn build_info(lease: &Lease) -> Option<BuildInfo> {
    let dockerfile_content = lease.annotations.get(note::DOCKERFILE)?.clone();
    let at = rfc3339_millis(lease.created_at.wall_ms);
    Some(BuildInfo {
        dockerfile_content,
        context_hashes: hashes(lease.annotations.get(note::CONTEXTS).map(String::as_str)),
        created_at: at.clone(),
        updated_at: at,
        snapshot_ref: lease.template.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_model::Stage;

    #[test]
    fn a_sandbox_is_written_exactly_as_the_python_sdk_wants_it() {
        let mut lease = crate::states::samples::waiting(Stage::Queued);
        lease.name = Some("box".to_owned());
        lease.env = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "of the image".to_owned())].into();
        lease.annotations = [
            (note::ENV.to_owned(), "[\"A\"]".to_owned()),
            (note::DOCKERFILE.to_owned(), "FROM debian".to_owned()),
        ]
        .into();
        lease.labels = [("code-toolbox-language".to_owned(), "python".to_owned())].into();
        let shown = serde_json::to_value(SandboxResponse::of(&lease, &Origin::sample())).expect("plain");
        assert_eq!(
            shown,
            serde_json::json!({
                "id": "cccccccccccccccccccc",
                "organizationId": "bbbbbbbbbbbbbbbbbbbb",
                "name": "box",
                "user": "root",
                "env": { "A": "1" },
                "labels": { "code-toolbox-language": "python" },
                "public": false,
                "networkBlockAll": false,
                "kvm": false,
                "target": "local",
                "cpu": 1,
                "gpu": 0,
                "memory": 1,
                "disk": 2,
                "state": "pending_build",
                "desiredState": "started",
                "recoverable": false,
                "backupState": "None",
                "autoStopInterval": 0,
                "autoPauseInterval": 0,
                "autoArchiveInterval": 0,
                "autoDeleteInterval": -1,
                "volumes": [],
                "buildInfo": {
                    "dockerfileContent": "FROM debian",
                    "contextHashes": [],
                    "createdAt": "1970-01-01T00:00:00.000Z",
                    "updatedAt": "1970-01-01T00:00:00.000Z",
                    "snapshotRef": "daytona-build/app",
                },
                "createdAt": "1970-01-01T00:00:00.000Z",
                "updatedAt": "1970-01-01T00:00:00.000Z",
                "lastActivityAt": "1970-01-01T00:00:00.000Z",
                "sandboxClass": "container",
                "daemonVersion": env!("CARGO_PKG_VERSION"),
                "runnerId": "local",
                "toolboxProxyUrl": "http://127.0.0.1:7070/daytona/toolbox",
            })
        );
        for whole in ["cpu", "gpu", "memory", "disk"] {
            assert!(shown[whole].is_u64(), "{whole}");
        }
    }
}
