//! A request for a new sandbox in E2B's form, in both versions of the call.

use std::collections::BTreeMap;

use atoll_front_kit::ApiError;
use atoll_model::{CreateSandbox, MountAsk, OnTimeout, Origin, TimeoutCounts, TimersAsk, Wake};
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::annotations;
use crate::network::NetworkBody;

/// LIMIT: that of E2B, for the bytes of an idempotency key.
const KEY_MAX: usize = 255;
/// How long a paused sandbox keeps its memory on this machine before it is written to disk.
const CHECKPOINT_AFTER_S: i64 = 300;

/// The version of a call: they differ in the default lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

impl Version {
    /// The default lifetime in seconds.
    pub(crate) const fn lifetime(self) -> u64 {
        match self {
            Self::One => 15,
            Self::Two => 300,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateSandboxRequest {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    #[serde(default)]
    timeout: Option<u64>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    auto_pause: Option<bool>,
    #[serde(default)]
    auto_pause_memory: Option<bool>,
    #[serde(default)]
    auto_resume: Option<AutoResume>,
    #[serde(default, rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    #[serde(default)]
    pub(super) network: Option<NetworkBody>,
    #[serde(default)]
    iam: Option<serde_json::Value>,
    #[serde(default)]
    volume_mounts: Option<Vec<VolumeMount>>,
}

#[derive(Deserialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

/// A volume and its mount point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeMount {
    pub(crate) name: String,
    pub(crate) path: String,
}

impl CreateSandboxRequest {
    /// `word` is the core's name of the template or the snapshot.
    pub(super) fn into_spec(
        self,
        word: String,
        version: Version,
        idempotency_key: Option<String>,
        checkpoints: bool,
    ) -> Result<CreateSandbox, ApiError> {
        if self.iam.as_ref().is_some_and(asks_for_tokens) {
            return Err(super::no_iam());
        }
        let wakes = self.auto_resume.as_ref().is_some_and(|resume| resume.enabled);
        let on_timeout = self.on_timeout(wakes)?;
        let network = match (self.network, self.allow_internet_access) {
            (None, None) => None,
            (network, internet) => Some(network.unwrap_or_default().meant(internet)?),
        };
        let mounts = self.volume_mounts.unwrap_or_default();
        let timers = TimersAsk {
            checkpoint_after_s: checkpoints.then_some(CHECKPOINT_AFTER_S),
            ..TimersAsk::default()
        };
        Ok(CreateSandbox {
            from: Origin::Named(word),
            labels: self.metadata.unwrap_or_default(),
            env: environment(self.env_vars.unwrap_or_default()),
            timeout_s: Some(self.timeout.unwrap_or(version.lifetime())),
            on_timeout,
            timeout_counts: TimeoutCounts::Awake,
            wake: if wakes { Wake::Any } else { Wake::Explicit },
            public: network.as_ref().is_none_or(|meant| meant.public),
            mask_host: network.as_ref().and_then(|meant| meant.mask_host.clone()),
            https_ports: network.as_ref().map(|meant| meant.https_ports.clone()).unwrap_or_default(),
            annotations: annotations::of_new(&self.template_id, network.as_ref(), &mounts),
            network: network.map(|meant| meant.policy),
            mounts: mounts.into_iter().map(mount).collect(),
            timers,
            idempotency_key,
            ..CreateSandbox::default()
        })
    }

    fn on_timeout(&self, wakes: bool) -> Result<OnTimeout, ApiError> {
        match (self.auto_pause.unwrap_or(false), self.auto_pause_memory.unwrap_or(true)) {
            (true, true) => Ok(OnTimeout::Pause),
            (false, true) => Ok(OnTimeout::Delete),
            (false, false) => Err(ApiError::field("autoPauseMemory", "false needs autoPause to be true")),
            (true, false) if wakes => Err(ApiError::field(
                "autoPauseMemory",
                "false cannot be combined with autoResume: a sandbox without memory starts only with connect",
            )),
            (true, false) => Ok(OnTimeout::Stop),
        }
    }
}

/// The environment of every process in a sandbox of E2B. The core replaces the placeholders when it passes the
/// environment on.
fn environment(asked: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = [
        ("E2B_SANDBOX", "true"),
        ("E2B_SANDBOX_ID", "{sandbox.id}"),
        ("E2B_TEMPLATE_ID", "{sandbox.template}"),
    ];
    let mut all: BTreeMap<_, _> =
        own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    all.extend(asked);
    all
}

fn asks_for_tokens(iam: &serde_json::Value) -> bool {
    iam.get("tokens").and_then(serde_json::Value::as_object).is_some_and(|tokens| !tokens.is_empty())
}

fn mount(mount: VolumeMount) -> MountAsk {
    MountAsk { volume: mount.name, path: mount.path, sub_path: None, read_only: false }
}

/// `Idempotency-Key`, if one was sent.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let is_plain = |key: &&str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !key.is_empty() && key.len() <= KEY_MAX && key.bytes().all(plain)
    };
    match value.to_str().ok().filter(is_plain) {
        Some(key) => Ok(Some(key.to_owned())),
        None => Err(ApiError::field("Idempotency-Key", "must have 1 to 255 of a-z, 0-9 and -")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(body: serde_json::Value, version: Version) -> Result<CreateSandbox, ApiError> {
        let body: CreateSandboxRequest = atoll_front_kit::parse_json_or_empty(body.to_string().as_bytes())?;
        let word = body.template_id.clone();
        body.into_spec(word, version, None, true)
    }

    #[test]
    fn a_plain_create_takes_the_vendors_defaults() {
        let two = spec(json!({ "templateID": "base", "metadata": {}, "envVars": {} }), Version::Two).unwrap();
        assert_eq!(two.from, Origin::Named("base".to_owned()));
        assert_eq!((two.timeout_s, two.on_timeout, two.wake), (Some(300), OnTimeout::Delete, Wake::Explicit));
        assert_eq!((two.network.clone(), two.public), (None, true));
        assert_eq!(two.annotations["e2b.made"], "true");
        two.check().unwrap();
        let one = spec(json!({ "templateID": "base", "secure": true }), Version::One).unwrap();
        assert_eq!(one.timeout_s, Some(15));
    }

    #[test]
    fn everything_that_can_be_asked_for_arrives() {
        let spec = spec(
            json!({
                "templateID": "t", "timeout": 60, "metadata": { "a": "b" }, "envVars": { "X": "1" }, "autoPause": true,
                "autoPauseMemory": true, "autoResume": { "enabled": true }, "allow_internet_access": false,
                "network": { "allowPublicTraffic": false }, "mcp": { "duckduckgo": {} }, "iam": { "tokens": {} },
                "volumeMounts": [{ "name": "v", "path": "/mnt/v" }],
            }),
            Version::Two,
        )
        .unwrap();
        assert_eq!((spec.timeout_s, spec.on_timeout, spec.wake), (Some(60), OnTimeout::Pause, Wake::Any));
        assert_eq!((spec.labels["a"].as_str(), spec.env["X"].as_str()), ("b", "1"));
        assert_eq!(spec.network, Some(atoll_model::NetworkPolicy::deny_all()));
        assert!(!spec.public);
        assert_eq!((spec.mounts[0].volume.as_str(), spec.mounts[0].path.as_str()), ("v", "/mnt/v"));
        assert_eq!(spec.annotations["e2b.internet"], "false");
        spec.check().unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (body, status, word) in [
            (json!({}), 400, "templateID"),
            (json!({ "templateID": "t", "timeout": -1 }), 400, "timeout"),
            (json!({ "templateID": "t", "metadata": { "a": 1 } }), 400, "metadata"),
            (json!({ "templateID": "t", "autoPauseMemory": false }), 400, "autoPauseMemory"),
            (
                json!({ "templateID": "t", "autoPause": true, "autoPauseMemory": false, "autoResume": { "enabled": true } }),
                400,
                "autoResume",
            ),
            (json!({ "templateID": "t", "iam": { "tokens": { "a": { "audience": "x" } } } }), 501, "iam"),
        ] {
            let refused = spec(body, Version::Two).unwrap_err();
            assert_eq!(refused.status().as_u16(), status, "{}", refused.message);
            assert!(refused.message.contains(word), "{}", refused.message);
        }
    }

    #[test]
    fn files_alone_are_kept_where_that_was_asked_for() {
        let body = json!({ "templateID": "t", "autoPause": true, "autoPauseMemory": false });
        assert_eq!(spec(body, Version::Two).unwrap().on_timeout, OnTimeout::Stop);
    }

    #[test]
    fn only_plain_keys_repeat_a_create() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("idempotency-key", text.parse().unwrap());
            idempotency_key(&headers)
        };
        assert_eq!(of("a-1").unwrap().as_deref(), Some("a-1"));
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
        for bad in ["", "A", "a b", &"a".repeat(256)] {
            assert_eq!(of(bad).unwrap_err().status().as_u16(), 400, "{bad}");
        }
    }
}
