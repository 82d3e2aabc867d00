//! Git's settings, and stored credentials for later calls.

use std::time::Duration;

use atoll_agentapi::StartProcess;

use super::{Git, GitOutput, environment, plain, words};
use crate::ToolboxError;
use crate::error::said;

/// LIMIT: a helper writes one line to a file.
const STORE_LIMIT: Duration = Duration::from_secs(30);

/// The scope of settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ConfigScope {
    /// Of the user.
    #[default]
    Global,
    /// Of this repository.
    Local,
    /// Of all users in the sandbox.
    System,
}

impl ConfigScope {
    const fn option(self) -> &'static str {
        match self {
            Self::Global => "--global",
            Self::Local => "--local",
            Self::System => "--system",
        }
    }
}

/// Credentials in a file of the user that git finds by itself. Not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredCredentials {
    /// Usually `https`.
    pub protocol: String,
    /// Only for this host.
    pub host: String,
    /// The user name.
    pub username: String,
    /// Password or token.
    pub password: String,
}

impl std::fmt::Debug for StoredCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredCredentials").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Git<'_> {
    /// A setting; `None` if it is not set.
    pub async fn config_get(&self, key: &str, scope: ConfigScope) -> Result<Option<String>, ToolboxError> {
        let output = self.here(words(["config", scope.option(), "--get", plain("key", key)?])).await?;
        match output.exit_code {
            0 => Ok(Some(output.stdout.trim_end_matches('\n').to_owned())),
            1 => Ok(None),
            _ => Err(output.failure()),
        }
    }

    /// Changes a setting.
    pub async fn config_set(
        &self,
        key: &str,
        value: &str,
        scope: ConfigScope,
    ) -> Result<GitOutput, ToolboxError> {
        if value.contains('\0') {
            return Err(ToolboxError::Invalid("value must not contain a NUL byte".into()));
        }
        self.here(words(["config", scope.option(), "--replace-all", "--", plain("key", key)?, value])).await
    }

    /// Stores credentials for git's own store helper. They are in the sandbox, readable by its user.
    pub async fn store_credentials(&self, keep: &StoredCredentials) -> Result<(), ToolboxError> {
        let StoredCredentials { protocol, host, username, password } = keep;
        let fields = [protocol, host, username, password];
        // The protocol between git and its helper has one line per value.
        if fields.iter().any(|text| text.is_empty() || text.chars().any(char::is_control)) {
            let message =
                "username, password, host and protocol must not be empty or contain control characters";
            return Err(ToolboxError::Invalid(message.into()));
        }
        self.config_set("credential.helper", "store", ConfigScope::Global).await?.checked()?;
        let input = format!("protocol={protocol}\nhost={host}\nusername={username}\npassword={password}\n\n");
        let start = StartProcess {
            cmd: "git".to_owned(),
            args: words(["credential-store", "store"]),
            envs: environment(Default::default()),
            stdin: true,
            tag: "toolbox-git".to_owned(),
            user: self.toolbox.user.clone(),
            timeout: Some(STORE_LIMIT),
            ..Default::default()
        };
        let stored = self.toolbox.collect(start, Some(input.into_bytes()), "git").await?;
        match stored.exit_code {
            0 => Ok(()),
            _ => Err(ToolboxError::Conflict(said(&String::from_utf8_lossy(&stored.output.head)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let keep = StoredCredentials {
            protocol: "https".into(),
            host: "h".into(),
            username: "u".into(),
            password: "canary".into(),
        };
        assert!(!format!("{keep:?}").contains("canary"));
    }
}
