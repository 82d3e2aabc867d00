//! A create request in Daytona's form, with its defaults.

use std::collections::BTreeMap;

use atoll_front_kit::ApiError;
use atoll_model::{CreateSandbox, LimitsAsk, MountAsk, OnTimeout, Origin, QueueAsk, TimersAsk, Wake};
use serde::Deserialize;

use super::response::note;
use crate::error::unsupported_field;
use crate::network::NetworkBody;

/// COMPAT(daytona): the vendor's defaults.
pub(crate) const CPU: u32 = 1;
pub(crate) const MEMORY_GIB: u32 = 1;
pub(crate) const DISK_GIB: u32 = 3;
const AUTO_STOP_MIN: i64 = 15;
const AUTO_ARCHIVE_MIN: i64 = 7 * 24 * 60;
/// LIMIT: that of the vendor; 0 means the maximum too.
const AUTO_ARCHIVE_MIN_MAX: i64 = 30 * 24 * 60;
/// LIMIT: a year, the maximum of a lease.
const MINUTES_MAX: i64 = 365 * 24 * 60;
/// LIMIT: a day, as the core accepts it.
const QUEUE_MINUTES_MAX: i64 = 24 * 60;
/// LIMIT: bytes of a Dockerfile that is recorded; longer ones are built but not shown later.
const DOCKERFILE_NOTED: usize = 24 << 10;

/// Every field is optional.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct CreateSandboxRequest {
    name: Option<String>,
    snapshot: Option<String>,
    user: Option<String>,
    env: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
    public: Option<bool>,
    network_block_all: Option<bool>,
    network_allow_list: Option<String>,
    domain_allow_list: Option<String>,
    kvm: Option<bool>,
    outbound_proxy_url: Option<String>,
    otel_endpoint_override: Option<String>,
    linked_sandbox: Option<String>,
    spot: Option<bool>,
    target: Option<String>,
    #[serde(deserialize_with = "crate::whole_number::whole")]
    cpu: Option<u32>,
    gpu: Option<i64>,
    gpu_type: Option<Vec<String>>,
    #[serde(deserialize_with = "crate::whole_number::whole")]
    memory: Option<u32>,
    #[serde(deserialize_with = "crate::whole_number::whole")]
    disk: Option<u32>,
    auto_stop_interval: Option<i64>,
    auto_pause_interval: Option<i64>,
    auto_archive_interval: Option<i64>,
    auto_delete_interval: Option<i64>,
    ttl_minutes: Option<i64>,
    queue_timeout: Option<i64>,
    volumes: Option<Vec<VolumeAsk>>,
    pub(crate) build_info: Option<BuildAsk>,
    secrets: Option<Vec<BTreeMap<String, String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeAsk {
    volume_id: String,
    mount_path: String,
    subpath: Option<String>,
}

/// A Dockerfile and its contexts.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BuildAsk {
    pub(crate) dockerfile_content: String,
    #[serde(default)]
    pub(crate) context_hashes: Option<Vec<String>>,
}

impl CreateSandboxRequest {
    /// The snapshot in the request.
    pub(crate) fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_deref().map(str::trim).filter(|name| !name.is_empty())
    }

    /// Sets the snapshot to show if the request has none.
    pub(crate) fn name_snapshot(&mut self, name: &str) {
        if self.snapshot().is_none() {
            self.snapshot = Some(name.to_owned());
        }
    }

    pub(crate) fn names_archive(&self) -> bool {
        self.auto_archive_interval.is_some()
    }

    pub(crate) fn names_user(&self) -> bool {
        self.user.is_some()
    }

    /// The specification for the core. The source of the sandbox is set later.
    pub(crate) fn into_spec(self) -> Result<CreateSandbox, ApiError> {
        self.refuse_what_is_not_here()?;
        let timers = self.timers()?;
        let network =
            NetworkBody::new(self.network_block_all, self.network_allow_list, self.domain_allow_list);
        let ttl = minutes("ttlMinutes", self.ttl_minutes.unwrap_or(0), 0)?;
        let env = self.env.unwrap_or_default();
        let mut annotations = BTreeMap::new();
        let names: Vec<&String> = env.keys().collect();
        annotations.insert(note::ENV.to_owned(), serde_json::to_string(&names).unwrap_or_default());
        if let Some(snapshot) = self.snapshot.filter(|name| !name.trim().is_empty()) {
            annotations.insert(note::SNAPSHOT.to_owned(), snapshot);
        }
        if let Some(target) = self.target.filter(|target| !target.is_empty()) {
            annotations.insert(note::TARGET.to_owned(), target);
        }
        if let Some(minutes) = self.queue_timeout {
            annotations.insert(note::QUEUE_TIMEOUT.to_owned(), minutes.to_string());
        }
        if let Some(build) = &self.build_info {
            let mut text = build.dockerfile_content.clone();
            text.truncate(text.floor_char_boundary(DOCKERFILE_NOTED));
            annotations.insert(note::DOCKERFILE.to_owned(), text);
            let contexts = build.context_hashes.as_deref().unwrap_or_default().join(",");
            annotations.insert(note::CONTEXTS.to_owned(), contexts);
        }
        let network = network.new_policy(&mut annotations)?;
        let mounts = self.volumes.unwrap_or_default().into_iter().map(|ask| MountAsk {
            volume: ask.volume_id,
            path: trimmed(&ask.mount_path),
            sub_path: ask.subpath.map(|sub| sub.trim_matches('/').to_owned()).filter(|sub| !sub.is_empty()),
            read_only: false,
        });
        Ok(CreateSandbox {
            name: self.name.filter(|name| !name.is_empty()),
            labels: self.labels.unwrap_or_default(),
            env,
            limits: limits(self.cpu, self.memory, self.disk),
            network,
            user: self.user.filter(|user| !user.is_empty()),
            timeout_s: (ttl > 0).then_some(ttl),
            on_timeout: OnTimeout::Delete,
            from: Origin::Template,
            timers,
            wake: Wake::Explicit,
            mounts: mounts.collect(),
            public: self.public.unwrap_or(false),
            annotations,
            secrets: crate::secrets::attached(self.secrets.unwrap_or_default())?,
            queue: self
                .queue_timeout
                .map(|minutes| QueueAsk { timeout_s: Some(minutes.unsigned_abs() * 60) }),
            ..CreateSandbox::default()
        })
    }

    /// Whether it waits for a place on a full server.
    pub(crate) fn is_queued(&self) -> bool {
        self.queue_timeout.is_some()
    }

    fn refuse_what_is_not_here(&self) -> Result<(), ApiError> {
        refuse_gpu(self.gpu)?;
        check_gpu_types(self.gpu_type.as_deref())?;
        let not_here = |what: &str, why: &str| Err(unsupported_field(what, why));
        if self.spot == Some(true) {
            return not_here("spot", "this server has no GPUs");
        }
        if self.kvm == Some(true) {
            return not_here("kvm", "sandboxes are containers without /dev/kvm");
        }
        if self.outbound_proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
            return not_here("outboundProxyUrl", "set HTTPS_PROXY in env, or use domainAllowList");
        }
        if self.otel_endpoint_override.as_deref().is_some_and(|url| !url.is_empty()) {
            return not_here("otelEndpointOverride", "sandboxes send no telemetry");
        }
        if self.linked_sandbox.as_deref().is_some_and(|id| !id.is_empty()) {
            return not_here(
                "linkedSandbox",
                "there is no network between sandboxes; share a volume, or open a port with a preview link",
            );
        }
        if self.queue_timeout.is_some_and(|minutes| minutes < 1) {
            return Err(ApiError::invalid("queueTimeout: must be at least 1"));
        }
        if self.queue_timeout.is_some_and(|minutes| minutes > QUEUE_MINUTES_MAX) {
            return Err(ApiError::invalid(format!("queueTimeout: must be at most {QUEUE_MINUTES_MAX}")));
        }
        Ok(())
    }

    fn timers(&self) -> Result<TimersAsk, ApiError> {
        let stop = self.auto_stop_interval;
        let pause = self.auto_pause_interval.unwrap_or(0);
        if stop.is_some_and(|stop| stop != 0) && pause != 0 {
            return Err(ApiError::invalid(
                "autoStopInterval and autoPauseInterval cannot be combined: set one of them to 0",
            ));
        }
        if pause != 0 && self.auto_delete_interval == Some(0) {
            return Err(ApiError::invalid("ephemeral sandboxes cannot pause automatically"));
        }
        // A request for a pause disables the default stop.
        let stop = stop.unwrap_or(if pause == 0 { AUTO_STOP_MIN } else { 0 });
        Ok(TimersAsk {
            auto_stop_s: Some(auto_stop(stop)?),
            auto_pause_s: Some(auto_pause(pause)?),
            auto_archive_s: Some(auto_archive(self.auto_archive_interval.unwrap_or(AUTO_ARCHIVE_MIN))?),
            auto_delete_s: Some(auto_delete(self.auto_delete_interval.unwrap_or(-1))?),
            ..TimersAsk::default()
        })
    }
}

/// COMPAT(daytona): a request for a GPU is a bad request if there is none.
pub(crate) fn refuse_gpu(gpu: Option<i64>) -> Result<(), ApiError> {
    match gpu {
        None | Some(0) => Ok(()),
        Some(n) if n < 0 => Err(ApiError::invalid("gpu: must not be negative")),
        Some(_) => Err(unsupported_field("gpu", "this server has no GPU")),
    }
}

/// COMPAT(daytona): the GPU types of the vendor's API.
const GPU_TYPES: [&str; 8] =
    ["H100", "H200", "B200", "B300", "RTX-PRO-6000", "RTX-4090", "RTX-5090", "MI355X"];

/// A preference among GPU types. It has no effect without a GPU, but must be valid.
pub(crate) fn check_gpu_types(asked: Option<&[String]>) -> Result<(), ApiError> {
    match asked.unwrap_or_default().iter().find(|kind| !GPU_TYPES.contains(&kind.as_str())) {
        None => Ok(()),
        Some(odd) => {
            let odd: String = odd.chars().take(64).collect();
            Err(ApiError::invalid(format!("gpuType: {odd:?} is not one of {}", GPU_TYPES.join(", "))))
        }
    }
}

/// Requested limits in cores and GiB.
pub(crate) fn limits(cpu: Option<u32>, memory: Option<u32>, disk: Option<u32>) -> LimitsAsk {
    let mib = |gib: u32| i64::from(gib).saturating_mul(1_024);
    LimitsAsk {
        cpu: cpu.map(f64::from),
        memory_mib: memory.map(mib),
        disk_mib: disk.map(mib),
        ..LimitsAsk::default()
    }
}

/// 0 disables the timer.
pub(crate) fn auto_stop(minutes_asked: i64) -> Result<i64, ApiError> {
    or_never(minutes("autoStopInterval", minutes_asked, 0)?)
}

/// 0 disables the timer.
pub(crate) fn auto_pause(minutes_asked: i64) -> Result<i64, ApiError> {
    or_never(minutes("autoPauseInterval", minutes_asked, 0)?)
}

/// 0, and every longer time, means the maximum.
pub(crate) fn auto_archive(minutes_asked: i64) -> Result<i64, ApiError> {
    if minutes_asked < 0 {
        return Err(ApiError::invalid("autoArchiveInterval: must not be negative"));
    }
    let asked = if minutes_asked == 0 { AUTO_ARCHIVE_MIN_MAX } else { minutes_asked };
    Ok(asked.min(AUTO_ARCHIVE_MIN_MAX) * 60)
}

/// A negative value disables the timer; 0 deletes the sandbox when it stops.
pub(crate) fn auto_delete(minutes_asked: i64) -> Result<i64, ApiError> {
    if minutes_asked < 0 {
        return Ok(-1);
    }
    let seconds = minutes("autoDeleteInterval", minutes_asked, 0)?;
    Ok(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// Minutes as seconds.
pub(crate) fn minutes(field: &str, asked: i64, least: i64) -> Result<u64, ApiError> {
    if !(least..=MINUTES_MAX).contains(&asked) {
        return Err(ApiError::invalid(format!("{field}: must be between {least} and {MINUTES_MAX} minutes")));
    }
    Ok(asked.unsigned_abs() * 60)
}

fn or_never(seconds: u64) -> Result<i64, ApiError> {
    Ok(match seconds {
        0 => -1,
        seconds => i64::try_from(seconds).unwrap_or(i64::MAX),
    })
}

/// The core accepts normalized paths only; a slash at the end is ignored.
fn trimmed(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" => path.to_owned(),
        path => path.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::NetworkMode;

    fn spec(text: &str) -> Result<CreateSandbox, ApiError> {
        let body: CreateSandboxRequest = atoll_front_kit::parse_json_or_empty(text.as_bytes())?;
        let spec = body.into_spec()?;
        spec.check().map_err(|bad| ApiError::invalid(bad.to_string()))?;
        Ok(spec)
    }

    #[test]
    fn what_the_python_sdk_sends_by_default_takes_the_vendors_defaults() {
        let text = r#"{"env":{},"labels":{"code-toolbox-language":"python"},"target":"local","volumes":[]}"#;
        let spec = spec(text).unwrap();
        assert_eq!(spec.labels["code-toolbox-language"], "python");
        let timers = spec.timers;
        assert_eq!(
            (timers.auto_stop_s, timers.auto_pause_s, timers.auto_archive_s, timers.auto_delete_s),
            (Some(900), Some(-1), Some(604_800), Some(-1))
        );
        assert_eq!((spec.timeout_s, spec.wake, spec.public), (None, Wake::Explicit, false));
        assert_eq!(spec.network, None);
    }

    #[test]
    fn everything_that_can_be_asked_for_is_understood() {
        let spec = spec(
            r#"{"name":"box","user":"root","env":{"A":"1"},"public":true,"networkAllowList":"10.0.0.0/8,203.0.113.9/24",
                "cpu":2,"memory":4.0,"disk":8.0,"autoStopInterval":0,"autoPauseInterval":5,"autoArchiveInterval":0,
                "gpu":0,"gpuType":["H100"],"autoDeleteInterval":60,"ttlMinutes":30,"queueTimeout":2,
                "volumes":[{"volumeId":"v","mountPath":"/data/","subpath":"a/b"}]}"#,
        )
        .unwrap();
        let timers = spec.timers;
        assert_eq!(
            (timers.auto_stop_s, timers.auto_pause_s, timers.auto_archive_s, timers.auto_delete_s),
            (Some(-1), Some(300), Some(2_592_000), Some(3_600))
        );
        assert_eq!((spec.timeout_s, spec.public), (Some(1_800), true));
        assert_eq!(
            (spec.limits.cpu, spec.limits.memory_mib, spec.limits.disk_mib),
            (Some(2.0), Some(4_096), Some(8_192))
        );
        let network = spec.network.unwrap();
        assert_eq!((network.mode, network.allow_cidrs.len()), (NetworkMode::Custom, 2));
        assert_eq!(
            (spec.mounts[0].path.as_str(), spec.mounts[0].sub_path.as_deref()),
            ("/data", Some("a/b"))
        );
    }

    #[test]
    fn what_cannot_be_is_a_bad_request() {
        for text in [
            r#"{"gpu":1}"#,
            r#"{"gpu":-1}"#,
            r#"{"gpuType":["nonsense"]}"#,
            r#"{"gpuType":"H100"}"#,
            r#"{"kvm":true}"#,
            r#"{"spot":true}"#,
            r#"{"autoStopInterval":-1}"#,
            r#"{"autoStopInterval":5,"autoPauseInterval":5}"#,
            r#"{"autoPauseInterval":5,"autoDeleteInterval":0}"#,
            r#"{"autoArchiveInterval":-1}"#,
            r#"{"ttlMinutes":-1}"#,
            r#"{"queueTimeout":0}"#,
            r#"{"queueTimeout":1441}"#,
            r#"{"networkAllowList":"10.0.0.0"}"#,
            r#"{"networkAllowList":"nonsense"}"#,
            r#"{"cpu":1.5}"#,
            r#"{"labels":{"a":1}}"#,
            r#"{"name":"a b"}"#,
            r#"{"outboundProxyUrl":"http://x"}"#,
        ] {
            assert_eq!(spec(text).unwrap_err().status().as_u16(), 400, "{text}");
        }
    }

    #[test]
    fn ephemeral_is_deleted_with_its_stop() {
        assert_eq!(spec(r#"{"autoDeleteInterval":0}"#).unwrap().timers.auto_delete_s, Some(0));
    }
}
