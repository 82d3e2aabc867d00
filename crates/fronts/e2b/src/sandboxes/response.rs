//! A sandbox as E2B describes it: after a create, alone, and in a list.

use std::collections::BTreeMap;

use atoll_front_kit::rfc3339;
use atoll_model::{Lease, OnTimeout, Source, Wake};
use atoll_service::{ENVD_VERSION, Service, TokenOf};
use serde::Serialize;

use super::request::VolumeMount;
use crate::annotations;
use crate::network::NetworkShown;
use crate::states::{SandboxState, pause_mode, state};

/// The SDKs require it and do not use it.
const CLIENT_ID: &str = "atoll";
/// The end of a sandbox without an end.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// The description with the credentials for its ports.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxResponse {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    alias: String,
    envd_access_token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<String>,
    domain: String,
}

impl SandboxResponse {
    pub(crate) fn new(service: &Service, lease: &Lease, domain: String) -> Self {
        Self {
            template_id: template_id(lease),
            sandbox_id: lease.id.to_string(),
            client_id: CLIENT_ID,
            envd_version: ENVD_VERSION,
            alias: alias(lease),
            envd_access_token: service.access().token(lease, TokenOf::Agent),
            traffic_access_token: (!lease.public).then(|| service.access().token(lease, TokenOf::Ports)),
            domain,
        }
    }
}

/// The description in a list.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listed {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    alias: String,
    started_at: String,
    end_at: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u32,
    metadata: BTreeMap<String, String>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_mounts: Option<Vec<VolumeMount>>,
}

impl From<&Lease> for Listed {
    fn from(lease: &Lease) -> Self {
        // A deleted sandbox is not listed; this is one that is being removed.
        let state = state(lease.phase).unwrap_or(SandboxState::Paused);
        Self {
            template_id: template_id(lease),
            sandbox_id: lease.id.to_string(),
            client_id: CLIENT_ID,
            envd_version: ENVD_VERSION,
            alias: alias(lease),
            started_at: rfc3339(lease.started_at.as_ref().unwrap_or(&lease.created_at).wall_ms),
            end_at: end_at(lease, state),
            cpu_count: lease.limits.cpu_milli.div_ceil(1_000),
            memory_mb: lease.limits.memory_mib,
            disk_size_mb: lease.limits.disk_mib,
            metadata: lease.labels.clone(),
            state: state.as_str(),
            volume_mounts: annotations::mounts(lease),
        }
    }
}

/// The description of one sandbox.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Detail {
    #[serde(flatten)]
    listed: Listed,
    envd_access_token: String,
    domain: String,
    allow_internet_access: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkShown>,
    lifecycle: Lifecycle,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_mode: Option<&'static str>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
    auto_resume: bool,
    on_timeout: &'static str,
}

impl Detail {
    pub(crate) fn new(service: &Service, lease: &Lease, domain: String) -> Self {
        Self::with_token(lease, domain, service.access().token(lease, TokenOf::Agent))
    }

    fn with_token(lease: &Lease, domain: String, envd_access_token: String) -> Self {
        Self {
            listed: Listed::from(lease),
            envd_access_token,
            domain,
            allow_internet_access: annotations::internet(lease),
            network: annotations::network(lease),
            lifecycle: Lifecycle {
                auto_resume: lease.wake == Wake::Any,
                on_timeout: match lease.on_timeout {
                    OnTimeout::Delete => "kill",
                    OnTimeout::Stop | OnTimeout::Pause => "pause",
                },
            },
            pause_mode: pause_mode(lease),
        }
    }
}

/// In E2B's API a snapshot is a template.
fn template_id(lease: &Lease) -> String {
    match &lease.source {
        Source::Snapshot { snapshot, fork: false, .. } => snapshot.to_string(),
        Source::Snapshot { .. } | Source::Template | Source::Archive { .. } => lease.template.clone(),
    }
}

/// The template as the user named it, without a tag.
fn alias(lease: &Lease) -> String {
    let asked = lease.annotations.get(annotations::TEMPLATE).unwrap_or(&lease.template);
    asked.rsplit_once(':').map_or(asked.as_str(), |(name, _)| name).to_owned()
}

/// The end of a paused sandbox is the time of the pause.
fn end_at(lease: &Lease, state: SandboxState) -> String {
    match (state, &lease.timeout_at) {
        (SandboxState::Paused, _) => rfc3339(lease.phase_at.wall_ms),
        (SandboxState::Running, Some(at)) => rfc3339(at.wall_ms),
        (SandboxState::Running, None) => NEVER.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A lease as the store may contain it.
    pub(crate) fn lease(more: serde_json::Value) -> Lease {
        let at = |ms: i64| json!({ "wall_ms": ms, "boot_id": "b", "boot_ms": ms });
        let mut base = json!({
            "id": "aaaaaaaaaaaaaaaaaaaa", "tenant": "tttttttttttttttttttt", "name": null, "labels": { "k": "v" }, "env": {},
            "provider": "fake", "template": "debian", "template_version": "1", "user": "user", "workdir": "/",
            "command": null, "limits": { "cpu_milli": 1500, "memory_mib": 512, "disk_mib": 2048, "pids": 512 },
            "network": "allow-all", "storage": "disk", "intent": "run", "phase": "running", "stage": "booting",
            "reason": { "code": "requested" }, "generation": 1, "instance": null, "timeout_s": 300,
            "timeout_at": at(1_800_000_300_000), "on_timeout": "delete", "created_at": at(1_800_000_000_000),
            "phase_at": at(1_800_000_100_000), "wake": "explicit", "public": true,
            "annotations": { "e2b.made": "true", "e2b.template": "base" },
        });
        for (key, value) in more.as_object().unwrap() {
            base[key] = value.clone();
        }
        serde_json::from_value(base).unwrap()
    }

    #[test]
    fn a_running_sandbox_is_shown_like_this() {
        let lease = lease(json!({}));
        let shown = Detail::with_token(&lease, "localhost:7070".to_owned(), "token".to_owned());
        assert_eq!(
            serde_json::to_value(&shown).unwrap(),
            json!({
                "templateID": "debian", "sandboxID": "aaaaaaaaaaaaaaaaaaaa", "clientID": "atoll", "envdVersion": "0.6.13",
                "alias": "base", "startedAt": "2027-01-15T08:00:00Z", "endAt": "2027-01-15T08:05:00Z", "cpuCount": 2,
                "memoryMB": 512, "diskSizeMB": 2048, "metadata": { "k": "v" }, "state": "running",
                "envdAccessToken": "token", "domain": "localhost:7070", "allowInternetAccess": null,
                "lifecycle": { "autoResume": false, "onTimeout": "kill" },
            })
        );
    }

    #[test]
    fn a_sandbox_that_sleeps_says_what_was_kept_and_ended_when_it_fell_asleep() {
        for (phase, mode) in [("paused", "full"), ("stopped", "filesystem")] {
            let lease = lease(json!({ "phase": phase }));
            let shown = Detail::with_token(&lease, String::new(), String::new());
            let shown = serde_json::to_value(&shown).unwrap();
            assert_eq!((shown["state"].as_str(), shown["pauseMode"].as_str()), (Some("paused"), Some(mode)));
            assert_eq!(shown["endAt"], "2027-01-15T08:01:40Z");
            assert_eq!(shown["lifecycle"]["onTimeout"], "kill");
        }
    }

    #[test]
    fn what_was_made_elsewhere_is_shown_too() {
        let lease =
            lease(json!({ "annotations": {}, "timeout_at": null, "on_timeout": "stop", "wake": "any" }));
        let shown = serde_json::to_value(Detail::with_token(&lease, String::new(), String::new())).unwrap();
        assert_eq!((shown["alias"].as_str(), shown["endAt"].as_str()), (Some("debian"), Some(NEVER)));
        assert_eq!(shown["lifecycle"], json!({ "autoResume": true, "onTimeout": "pause" }));
    }
}
