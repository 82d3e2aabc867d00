//! What a client asks of a sandbox: the bodies of create and update.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use atoll_front_kit::{ApiError, double_option};
use atoll_model::{CreateSandbox, LimitsAsk, MountAsk, Origin, TimersAsk, UpdateSandbox};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::{OnExit, OnTimeout, Storage, Wake};
use crate::network::Network;

/// What to make. Everything has a default.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CreateBody {
    /// `name`, `name:tag`, `name@sha256:…` or an alias; the server's default template where absent.
    #[schema(example = "debian")]
    template: Option<String>,
    /// An image of a registry, pulled when it is not here, instead of a template.
    #[schema(example = "python:3.12-slim")]
    image: Option<String>,
    /// Make it from this snapshot, by id or name, instead of a template.
    snapshot: Option<String>,
    /// With `snapshot`: its processes too. Refused where the snapshot has none.
    memory: bool,
    /// Make it from this archive, by its key, instead of a template.
    archive: Option<String>,
    /// Unique within the tenant: letters, digits, `-`, `_`, `.`.
    name: Option<String>,
    labels: BTreeMap<String, String>,
    /// Volumes in it.
    mounts: Vec<MountBody>,
    /// Environment of every command.
    env: BTreeMap<String, String>,
    /// Names in `env` that no fork and no snapshot inherits.
    private_env: BTreeSet<String>,
    /// Cores, fractions allowed.
    #[schema(example = 1.0)]
    cpu: Option<f64>,
    #[schema(example = 512)]
    memory_mib: Option<i64>,
    #[schema(example = 2048)]
    disk_mib: Option<i64>,
    /// Processes and threads.
    pids: Option<i64>,
    /// `allow-all` where absent, or what the snapshot had.
    network: Option<Network>,
    storage: Option<Storage>,
    /// Default user of commands.
    user: Option<String>,
    /// Started at every boot; its output is in the logs.
    command: Option<Vec<String>>,
    /// Absolute lifetime in seconds.
    #[schema(example = 3600)]
    timeout_s: Option<u64>,
    on_timeout: Option<OnTimeout>,
    /// Stop after so many idle seconds; -1 is never.
    auto_stop_s: Option<i64>,
    /// Pause after so many idle seconds; -1 is never.
    #[schema(example = 600)]
    auto_pause_s: Option<i64>,
    /// Write the memory to disk after so many seconds of pause; -1 is never.
    checkpoint_after_s: Option<i64>,
    /// Archive after so many seconds of stop; -1 is never.
    auto_archive_s: Option<i64>,
    /// Delete after so many seconds of stop; 0: with the stop; -1 is never.
    auto_delete_s: Option<i64>,
    on_exit: Option<OnExit>,
    /// Binds it to a thread of conversation; `DELETE /v1/threads/{thread}` does to it what `on_exit` says.
    thread: Option<String>,
    wake: Option<Wake>,
    /// Its ports are open to everybody who knows where they are; without it by key and preview only.
    public: bool,
}

impl CreateBody {
    pub(super) fn into_spec(self, idempotency_key: Option<String>) -> Result<CreateSandbox, ApiError> {
        Ok(CreateSandbox {
            from: origin(&self.image, &self.template, self.snapshot, self.memory, self.archive)?,
            template: self.template,
            name: self.name,
            labels: self.labels,
            env: self.env,
            private_env: self.private_env,
            limits: LimitsAsk {
                cpu: self.cpu,
                memory_mib: self.memory_mib,
                disk_mib: self.disk_mib,
                pids: self.pids,
            },
            network: self.network.map(Into::into),
            storage: self.storage.map(Into::into).unwrap_or_default(),
            user: self.user,
            workdir: None,
            command: self.command,
            timeout_s: self.timeout_s,
            on_timeout: self.on_timeout.map(Into::into).unwrap_or_default(),
            timeout_counts: Default::default(),
            id: None,
            timers: TimersAsk {
                auto_stop_s: self.auto_stop_s,
                auto_pause_s: self.auto_pause_s,
                checkpoint_after_s: self.checkpoint_after_s,
                auto_archive_s: self.auto_archive_s,
                auto_delete_s: self.auto_delete_s,
            },
            on_exit: self.on_exit.map(Into::into).unwrap_or_default(),
            thread: self.thread,
            wake: self.wake.map(Into::into).unwrap_or_default(),
            idempotency_key,
            image: self.image,
            mounts: self.mounts.into_iter().map(Into::into).collect(),
            build: None,
            public: self.public,
            mask_host: None,
            https_ports: BTreeSet::new(),
            annotations: BTreeMap::new(),
            secrets: BTreeMap::new(),
        })
    }
}

/// A volume in a sandbox.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountBody {
    /// By id or name.
    #[schema(example = "data")]
    volume: String,
    /// Where inside; absolute.
    #[schema(example = "/data")]
    path: String,
    /// Only this folder of it; made when missing.
    sub_path: Option<String>,
    /// Nothing can be written through it.
    #[serde(default)]
    #[schema(required = false)]
    read_only: bool,
}

impl From<MountBody> for MountAsk {
    fn from(body: MountBody) -> Self {
        let MountBody { volume, path, sub_path, read_only } = body;
        Self { volume, path, sub_path, read_only }
    }
}

/// The fields that name a beginning exclude each other: none of them could win without a surprise.
fn origin(
    image: &Option<String>,
    template: &Option<String>,
    snapshot: Option<String>,
    memory: bool,
    archive: Option<String>,
) -> Result<Origin, ApiError> {
    let others =
        [("template", template.is_some()), ("snapshot", snapshot.is_some()), ("archive", archive.is_some())];
    if let (Some(_), Some((other, _))) = (image, others.iter().find(|(_, said)| *said)) {
        return Err(ApiError::invalid(format!("image and {other} exclude each other")));
    }
    match (template, snapshot, archive) {
        (None, Some(snapshot), None) => Ok(Origin::Snapshot { snapshot, memory }),
        (_, Some(_), Some(_)) => Err(ApiError::invalid("snapshot and archive exclude each other")),
        (Some(_), Some(_), None) => Err(ApiError::invalid("template and snapshot exclude each other")
            .hint("a snapshot keeps the template of its sandbox")),
        (Some(_), None, Some(_)) => Err(ApiError::invalid("template and archive exclude each other")
            .hint("an archive keeps the template of its sandbox")),
        (_, None, _) if memory => Err(ApiError::invalid("memory needs a snapshot")
            .hint("limits are called memory_mib; memory takes the processes of a snapshot")),
        (None, None, Some(key)) => Ok(Origin::Archive { key }),
        (_, None, None) => Ok(Origin::Template),
    }
}

/// What to change; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpdateBody {
    /// Replaces all labels.
    labels: Option<BTreeMap<String, String>>,
    cpu: Option<f64>,
    memory_mib: Option<i64>,
    disk_mib: Option<i64>,
    pids: Option<i64>,
    /// Replaces the whole policy; connections that it still allows go on.
    network: Option<Network>,
    /// A new lifetime from now on; null removes it.
    #[serde(deserialize_with = "double_option")]
    #[schema(value_type = Option<u64>)]
    timeout_s: Option<Option<NonZeroU64>>,
    on_timeout: Option<OnTimeout>,
    /// Stop after so many idle seconds; -1 is never.
    auto_stop_s: Option<i64>,
    /// Pause after so many idle seconds; -1 is never.
    auto_pause_s: Option<i64>,
    /// Write the memory to disk after so many seconds of pause; -1 is never.
    checkpoint_after_s: Option<i64>,
    /// Archive after so many seconds of stop; -1 is never.
    auto_archive_s: Option<i64>,
    /// Delete after so many seconds of stop; 0: with the stop; -1 is never.
    auto_delete_s: Option<i64>,
    on_exit: Option<OnExit>,
    wake: Option<Wake>,
    /// Whether its ports are open to everybody.
    public: Option<bool>,
}

impl From<UpdateBody> for UpdateSandbox {
    fn from(body: UpdateBody) -> Self {
        Self {
            labels: body.labels,
            env: None,
            limits: LimitsAsk {
                cpu: body.cpu,
                memory_mib: body.memory_mib,
                disk_mib: body.disk_mib,
                pids: body.pids,
            },
            network: body.network.map(Into::into),
            // To end one now there is delete.
            timeout_s: body.timeout_s.map(|seconds| seconds.map(NonZeroU64::get)),
            on_timeout: body.on_timeout.map(Into::into),
            timers: TimersAsk {
                auto_stop_s: body.auto_stop_s,
                auto_pause_s: body.auto_pause_s,
                checkpoint_after_s: body.checkpoint_after_s,
                auto_archive_s: body.auto_archive_s,
                auto_delete_s: body.auto_delete_s,
            },
            on_exit: body.on_exit.map(Into::into),
            wake: body.wake.map(Into::into),
            public: body.public,
            timeout_at_least_s: None,
            timeout_counts: None,
            mask_host: None,
            https_ports: None,
            annotations: None,
            secrets: None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_front_kit::parse_json;

    #[test]
    fn a_timeout_of_null_is_told_from_none() {
        let change = |text: &str| UpdateSandbox::from(parse_json::<UpdateBody>(text.as_bytes()).unwrap());
        assert_eq!(change("{}").timeout_s, None);
        assert_eq!(change("{\"timeout_s\":null}").timeout_s, Some(None));
        assert_eq!(change("{\"timeout_s\":9}").timeout_s, Some(Some(9)));
        assert!(parse_json::<UpdateBody>(b"{\"timeout_s\":0}").unwrap_err().message.contains("timeout_s"));
    }

    #[test]
    fn numbers_that_fit_nowhere_name_their_field() {
        let error = parse_json::<CreateBody>(b"{\"memory_mib\":1e300}").unwrap_err();
        assert!(error.message.starts_with("memory_mib"), "{error:?}");
        let error = parse_json::<CreateBody>(b"{\"labels\":{\"a\":1}}").unwrap_err();
        assert!(error.message.starts_with("labels.a"), "{error:?}");
    }

    #[test]
    fn a_sandbox_begins_as_one_thing() {
        let from = |text: &str| {
            parse_json::<CreateBody>(text.as_bytes()).unwrap().into_spec(None).map(|spec| spec.from)
        };
        assert_eq!(from("{}").unwrap(), Origin::Template);
        assert_eq!(
            from("{\"snapshot\":\"s\",\"memory\":true}").unwrap(),
            Origin::Snapshot { snapshot: "s".to_owned(), memory: true }
        );
        assert_eq!(from("{\"archive\":\"k\"}").unwrap(), Origin::Archive { key: "k".to_owned() });
        for bad in [
            "{\"memory\":true}",
            "{\"archive\":\"k\",\"memory\":true}",
            "{\"snapshot\":\"s\",\"archive\":\"k\"}",
            "{\"snapshot\":\"s\",\"template\":\"t\"}",
            "{\"archive\":\"k\",\"template\":\"t\"}",
            "{\"image\":\"i\",\"template\":\"t\"}",
            "{\"image\":\"i\",\"snapshot\":\"s\"}",
            "{\"image\":\"i\",\"archive\":\"k\"}",
        ] {
            assert!(from(bad).is_err(), "{bad}");
        }
    }
}
