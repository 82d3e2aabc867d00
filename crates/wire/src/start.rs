//! What sandboxes of a template start with: settings, and the check that tells when a start is over.

use std::collections::BTreeMap;

use atoll_model::{LimitsAsk, ReadyCheck, StartSettings};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Ready check of the start command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ready {
    /// A program listens on the port, also if only on loopback.
    Port {
        #[schema(minimum = 1)]
        port: u16,
    },
    /// `http://127.0.0.1:<port><path>` inside answers with this status.
    Url {
        #[schema(minimum = 1)]
        port: u16,
        #[serde(default = "root")]
        #[schema(required = false, example = "/health")]
        path: String,
        /// Default 200.
        #[serde(default = "fine")]
        #[schema(required = false)]
        status: u16,
    },
    /// A shell command that must exit with 0.
    Command { command: String },
}

impl From<Ready> for ReadyCheck {
    fn from(ready: Ready) -> Self {
        match ready {
            Ready::Port { port } => Self::Port { port },
            Ready::Url { port, path, status } => Self::Url { port, path, status },
            Ready::Command { command } => Self::Command { command },
        }
    }
}

impl From<ReadyCheck> for Ready {
    fn from(check: ReadyCheck) -> Self {
        match check {
            ReadyCheck::Port { port } => Self::Port { port },
            ReadyCheck::Url { port, path, status } => Self::Url { port, path, status },
            ReadyCheck::Command { command } => Self::Command { command },
        }
    }
}

/// Start settings of a template. Absent fields have the value from its steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Start {
    /// User that runs commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Environment of every command, in addition to that of its steps.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Start command, which runs at every boot.
    #[schema(example = json!(["python3", "-m", "http.server", "8000"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Ready check of the start command; a build and every create wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// Default port of previews.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Default CPU limit of sandboxes in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Default memory limit of sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    /// Default disk limit of sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    /// Default limit of processes and threads of sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// Number of ready instances to keep for the next creates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<u32>,
}

impl From<Start> for StartSettings {
    fn from(start: Start) -> Self {
        Self {
            user: start.user,
            workdir: start.workdir,
            env: start.env,
            command: start.command,
            ready: start.ready.map(Into::into),
            port: start.port,
            limits: LimitsAsk {
                cpu: start.cpu,
                memory_mib: start.memory_mib,
                disk_mib: start.disk_mib,
                pids: start.pids,
            },
            pool: start.pool,
        }
    }
}

impl Start {
    /// Whether no setting is given.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A check of a newer server that this client does not know is left out.
pub(crate) fn ready_from_answer<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Ready>, D::Error> {
    Ok(Ready::deserialize(serde_json::Value::deserialize(from)?).ok())
}

fn root() -> String {
    "/".to_owned()
}

const fn fine() -> u16 {
    200
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn checks_have_defaults_and_refuse_what_they_do_not_know() {
        let read = |text: &str| serde_json::from_str::<Ready>(text);
        assert_eq!(
            read(r#"{"kind":"url","port":80}"#).unwrap(),
            Ready::Url { port: 80, path: "/".into(), status: 200 }
        );
        assert_eq!(read(r#"{"kind":"port","port":80}"#).unwrap(), Ready::Port { port: 80 });
        for bad in [r#"{"kind":"port"}"#, r#"{"kind":"port","port":80,"x":1}"#, r#"{"kind":"soon"}"#, "{}"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn checks_go_to_the_model_and_back() {
        for check in [
            ReadyCheck::Port { port: 1 },
            ReadyCheck::Url { port: 2, path: "/x".into(), status: 204 },
            ReadyCheck::Command { command: "true".into() },
        ] {
            assert_eq!(ReadyCheck::from(Ready::from(check.clone())), check);
        }
    }
}
