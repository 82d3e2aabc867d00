//! The settings of a provider of kind `docker`.

use std::collections::BTreeMap;

use atoll_provider::ProviderError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The part `docker` of a provider's settings file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DockerSettings {
    /// The image of sandboxes whose request names none.
    pub image: String,
    /// The working directory of sandboxes; made when missing.
    pub mount_path: String,
    /// The daemon: `unix://` and the path of its socket, or `tcp://` and its address.
    pub host: String,
    /// The network of sandboxes.
    pub network: DockerNetwork,
    /// Whether missing images are pulled.
    pub pull: DockerPull,
    /// Whether the daemon is on another machine; `None`: one at `tcp://` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<bool>,
}

impl Default for DockerSettings {
    fn default() -> Self {
        Self {
            image: "python:3.12-slim".to_owned(),
            mount_path: "/workspace".to_owned(),
            host: atoll_model::DOCKER_HOST.to_owned(),
            network: DockerNetwork::default(),
            pull: DockerPull::default(),
            remote: None,
        }
    }
}

/// Whether images that the daemon does not have are pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DockerPull {
    /// They are refused. A pull makes the daemon connect to whatever address a caller names.
    Never,
    /// They are pulled when a sandbox needs them.
    #[default]
    Missing,
}

/// Where a daemon is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DockerHost {
    /// The path of its socket.
    Socket(String),
    /// Its address, without TLS.
    Tcp(String),
}

impl std::fmt::Display for DockerHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix://{path}"),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// The network of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DockerNetwork {
    /// Loopback only.
    None,
    /// Docker's default bridge: the internet, and whatever else the daemon allows.
    #[default]
    Bridge,
}

impl DockerNetwork {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bridge => "bridge",
        }
    }
}

impl DockerSettings {
    /// The settings in the section of a file.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] where a field is unknown or has a wrong value.
    pub fn from_section(section: BTreeMap<String, Value>) -> Result<Self, ProviderError> {
        let section = Value::Object(section.into_iter().collect());
        serde_json::from_value(section).map_err(|bad| ProviderError::Unsupported {
            what: format!("the section docker: {bad}"),
            hint: "correct the settings of this provider".to_owned(),
        })
    }

    /// Where the daemon is.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] where a setting cannot be used; the message says which.
    pub(crate) fn daemon(&self) -> Result<DockerHost, ProviderError> {
        let refused = |what: String, hint: &str| ProviderError::Unsupported { what, hint: hint.to_owned() };
        if !self.mount_path.starts_with('/') {
            return Err(refused(
                format!("docker.mount_path {}", self.mount_path),
                "give an absolute path, such as /workspace",
            ));
        }
        let is_address = |text: &str| {
            let (name, port) = text.rsplit_once(':').unwrap_or_default();
            !name.is_empty() && !name.contains('/') && port.parse::<u16>().is_ok()
        };
        match self.host.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Ok(DockerHost::Socket(path.to_owned())),
            Some(("tcp", address)) if is_address(address) => Ok(DockerHost::Tcp(address.to_owned())),
            _ => Err(refused(
                format!("docker.host {}", self.host),
                "give unix:///path/of/docker.sock or tcp://HOST:PORT; for TLS or SSH, forward the daemon's socket to \
                 this machine and set docker.remote to true",
            )),
        }
    }

    /// Whether the daemon's containers are on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote.unwrap_or_else(|| self.host.starts_with("tcp://"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DockerSettings, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn missing_fields_have_defaults_and_unknown_fields_are_refused() {
        let settings = parse("{}").unwrap();
        assert_eq!(
            (settings.image.as_str(), settings.mount_path.as_str()),
            ("python:3.12-slim", "/workspace")
        );
        assert_eq!((settings.network, settings.pull), (DockerNetwork::Bridge, DockerPull::Missing));
        assert_eq!(settings.daemon().unwrap().to_string(), "unix:///var/run/docker.sock");
        assert!(!settings.is_remote());
        let closed = parse(r#"{"image": "app", "network": "none", "pull": "never"}"#).unwrap();
        assert_eq!(
            (closed.image.as_str(), closed.network, closed.pull),
            ("app", DockerNetwork::None, DockerPull::Never)
        );
        assert!(parse(r#"{"imagee": "x"}"#).is_err());
        assert!(parse(r#"{"network": "host"}"#).is_err());
    }

    #[test]
    fn a_daemon_at_an_address_is_on_another_machine_unless_the_settings_say_otherwise() {
        let settings = |text: &str| parse(text).unwrap();
        let remote = settings(r#"{"host": "tcp://10.0.0.1:2375"}"#);
        assert_eq!(
            (remote.daemon().unwrap().to_string().as_str(), remote.is_remote()),
            ("tcp://10.0.0.1:2375", true)
        );
        assert!(!settings(r#"{"host": "tcp://127.0.0.1:2375", "remote": false}"#).is_remote());
        assert!(settings(r#"{"remote": true}"#).is_remote());
    }

    #[test]
    fn hosts_and_paths_that_cannot_be_used_are_refused_by_name() {
        for (text, named) in [
            (r#"{"host": "tcp://10.0.0.1"}"#, "docker.host"),
            (r#"{"host": "ssh://somewhere"}"#, "docker.host"),
            (r#"{"host": "unix://docker.sock"}"#, "docker.host"),
            (r#"{"host": "/var/run/docker.sock"}"#, "docker.host"),
            (r#"{"mount_path": "work"}"#, "docker.mount_path"),
        ] {
            let refused = parse(text).unwrap().daemon().unwrap_err();
            assert!(
                matches!(refused, ProviderError::Unsupported { .. }) && refused.to_string().contains(named)
            );
        }
    }
}
