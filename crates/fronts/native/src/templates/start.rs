//! What sandboxes of a template start with, as clients say it: settings and the check that tells when a start is over.

use std::collections::BTreeMap;

use atoll_model::{LimitsAsk, ReadyCheck, StartSettings};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// When what a template starts is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Ready {
    /// Something listens there, loopback included.
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
    /// A line for the shell that exits with 0.
    Command { command: String },
}

fn root() -> String {
    "/".to_owned()
}

const fn fine() -> u16 {
    200
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

/// What sandboxes of a template start with; what is absent is as its steps say.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Start {
    /// Who commands run as.
    pub(crate) user: Option<String>,
    /// Where commands start.
    pub(crate) workdir: Option<String>,
    /// Environment of every command, on top of what its steps say.
    pub(crate) env: BTreeMap<String, String>,
    /// Started at every boot.
    #[schema(example = json!(["python3", "-m", "http.server", "8000"]))]
    pub(crate) command: Option<Vec<String>>,
    /// When that is ready; a build waits for it, and so does every create.
    pub(crate) ready: Option<Ready>,
    /// The port of previews that name none.
    pub(crate) port: Option<u16>,
    /// Cores of sandboxes that ask for none.
    pub(crate) cpu: Option<f64>,
    /// Memory of sandboxes that ask for none.
    pub(crate) memory_mib: Option<i64>,
    /// Disk of sandboxes that ask for none.
    pub(crate) disk_mib: Option<i64>,
    /// Processes and threads of sandboxes that ask for none.
    pub(crate) pids: Option<i64>,
    /// How many instances wait ready for the next create.
    pub(crate) pool: Option<u32>,
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
