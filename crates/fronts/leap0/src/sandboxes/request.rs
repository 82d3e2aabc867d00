//! A create request in Leap0's form, with its defaults.

use std::collections::BTreeMap;

use atoll_front_kit::ApiError;
use atoll_model::{CreateSandbox, LimitsAsk, OnTimeout, TimersAsk, Wake};
use atoll_service::TemplateRecord;
use serde::Deserialize;

use crate::mounts::MountBody;
use crate::policy::PolicyBody;

/// COMPAT(leap0): the defaults of the SDK.
const TEMPLATE: &str = "system/debian:bookworm";
const VCPU: f64 = 1.0;
const MEMORY_MIB: i64 = 1_024;
const TIMEOUT_S: u64 = 300;

/// The JavaScript SDK writes `memory_mib` and `timeout_min` where the Python SDK writes `memory` and `timeout`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CreateSandboxRequest {
    template_name: Option<String>,
    vcpu: Option<f64>,
    memory: Option<i64>,
    memory_mib: Option<i64>,
    timeout: Option<u64>,
    timeout_min: Option<u64>,
    auto_pause: Option<bool>,
    env_vars: Option<BTreeMap<String, String>>,
    network_policy: Option<PolicyBody>,
    mounts: Option<Vec<MountBody>>,
}

impl CreateSandboxRequest {
    pub(super) fn template_name(&self) -> &str {
        self.template_name.as_deref().map(str::trim).filter(|name| !name.is_empty()).unwrap_or(TEMPLATE)
    }

    /// `checkpoints`: whether the memory of a sandbox can be written to disk.
    pub(super) fn into_spec(
        self,
        template: &TemplateRecord,
        checkpoints: bool,
    ) -> Result<CreateSandbox, ApiError> {
        let auto_pause = self.auto_pause.unwrap_or(false);
        let mounts = self.mounts.unwrap_or_default();
        Ok(CreateSandbox {
            template: Some(match template.tag.as_deref() {
                Some(tag) => format!("{}:{tag}", template.name),
                None => template.name.clone(),
            }),
            workdir: crate::templates::workdir(template),
            mounts: mounts.into_iter().map(MountBody::into_ask).collect::<Result<_, _>>()?,
            env: self.env_vars.unwrap_or_default(),
            limits: LimitsAsk {
                cpu: Some(self.vcpu.unwrap_or(VCPU)),
                memory_mib: Some(self.memory.or(self.memory_mib).unwrap_or(MEMORY_MIB)),
                ..LimitsAsk::default()
            },
            network: self.network_policy.map(PolicyBody::into_policy).transpose()?,
            timeout_s: Some(lifetime(self.timeout, self.timeout_min)),
            on_timeout: on_timeout(auto_pause),
            wake: Wake::Any,
            timers: pause_timers(checkpoints),
            ..CreateSandbox::default()
        })
    }
}

/// The memory of a sandbox that is paused at the end of its lifetime goes to disk at once, as in a pause by request.
pub(crate) fn pause_timers(checkpoints: bool) -> TimersAsk {
    TimersAsk { checkpoint_after_s: checkpoints.then_some(0), ..TimersAsk::default() }
}

/// The lifetime in seconds, from either field.
pub(crate) fn lifetime(seconds: Option<u64>, minutes: Option<u64>) -> u64 {
    seconds.or(minutes.map(|minutes| minutes.saturating_mul(60))).unwrap_or(TIMEOUT_S)
}

pub(crate) const fn on_timeout(auto_pause: bool) -> OnTimeout {
    if auto_pause { OnTimeout::Pause } else { OnTimeout::Delete }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::NetworkMode;

    fn spec(text: &str) -> Result<CreateSandbox, ApiError> {
        let body: CreateSandboxRequest = atoll_front_kit::parse_json_or_empty(text.as_bytes())?;
        let name = body.template_name().to_owned();
        body.into_spec(&TemplateRecord { name, ..TemplateRecord::default() }, true)
    }

    #[test]
    fn an_empty_create_takes_the_vendors_defaults() {
        let spec = spec("{}").unwrap();
        assert_eq!(spec.template.as_deref(), Some(TEMPLATE));
        assert_eq!((spec.limits.cpu, spec.limits.memory_mib), (Some(1.0), Some(1_024)));
        assert_eq!((spec.timeout_s, spec.on_timeout, spec.wake), (Some(300), OnTimeout::Delete, Wake::Any));
        assert_eq!(spec.network, None);
        assert_eq!(spec.timers.checkpoint_after_s, Some(0));
        spec.check().unwrap();
    }

    #[test]
    fn a_provider_without_checkpoints_gets_no_timer_for_them() {
        assert_eq!(pause_timers(false), TimersAsk::default());
    }

    #[test]
    fn both_sdks_are_understood() {
        let python = r#"{"template_name":" t ","vcpu":2,"memory":2048,"timeout":60,"auto_pause":true,
            "otel_export":false,"env_vars":{"A":"1"},"network_policy":{"mode":"deny-all"}}"#;
        let javascript = r#"{"template_name":"t","vcpu":2,"memory_mib":2048,"timeout_min":1,"auto_pause":true,
            "env_vars":{"A":"1"},"network_policy":{"mode":"deny-all"},"mounts":[]}"#;
        let (one, other) = (spec(python).unwrap(), spec(javascript).unwrap());
        assert_eq!(one, other);
        assert_eq!((one.timeout_s, one.on_timeout), (Some(60), OnTimeout::Pause));
        assert_eq!(one.network.unwrap().mode, NetworkMode::DenyAll);
    }

    #[test]
    fn commands_start_in_workspace_and_volumes_are_mounted() {
        let mounts = r#"{"mounts":[{"type":"object-storage","bucket":"data","endpoint":"atoll://volumes",
            "mount_path":"/data","prefix":"a/b/","read_only":true}]}"#;
        let spec = spec(mounts).unwrap();
        assert_eq!(spec.workdir.as_deref(), Some("/workspace"));
        assert_eq!((spec.mounts[0].volume.as_str(), spec.mounts[0].path.as_str()), ("data", "/data"));
        assert_eq!((spec.mounts[0].sub_path.as_deref(), spec.mounts[0].read_only), (Some("a/b"), true));
        spec.check().unwrap();
    }
}
