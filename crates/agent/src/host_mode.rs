//! The agent as an ordinary process of a machine, without a sandbox around it (`--workspace`).
//!
//! Everything runs as the user that the agent was started as. Nothing of the machine is changed: no user, no `/etc/hosts`, no
//! folder outside of the workspace. The environment of commands is the one that the agent was started with, which its starter
//! has cleaned.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::error::AgentError;
use crate::settings::DEFAULT_PATH;
use crate::users::{Accounts, Ids, User};

/// Where commands find the socket of the agent.
pub(crate) const SOCKET_VARIABLE: &str = "ATOLL_AGENT_SOCKET";

#[derive(Debug)]
pub(crate) struct HostMode {
    user: User,
    environment: BTreeMap<String, String>,
    /// The folder with the commands of the agent.
    commands: String,
}

impl HostMode {
    /// Leaves the session of the starter, whose terminal must not end the agent.
    pub(crate) fn enter(workspace: &Path) -> io::Result<Self> {
        let _ = rustix::process::setsid();
        let text = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
        };
        let home = text(&workspace.canonicalize()?)?;
        let program = std::env::current_exe()?;
        let commands = text(&program.parent().unwrap_or(Path::new("/")).join("bin"))?;
        reset_oom_score();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let name = Accounts::read().map_or_else(|_| uid.to_string(), |accounts| accounts.user_name(uid));
        let ids = Ids { uid, gid, is_own: true, ..Ids::ROOT };
        let user = User { name, home, ids };
        Ok(Self { environment: environment(&user, std::env::vars()), user, commands })
    }

    pub(crate) fn user_name(&self) -> &str {
        &self.user.name
    }

    /// The agent's own user; every other one is refused.
    pub(crate) fn user(&self, asked: &str) -> Result<User, AgentError> {
        let own = &self.user;
        if asked == own.name || asked == own.ids.uid.to_string() {
            return Ok(own.clone());
        }
        let shown: String = asked.chars().filter(|c| !c.is_control()).take(64).collect();
        Err(AgentError::Unsupported(format!(
            "user '{shown}' cannot be used: this sandbox has no isolation, and everything in it runs as '{}'",
            own.name
        )))
    }

    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        self.environment.clone()
    }

    pub(crate) fn commands(&self) -> &str {
        &self.commands
    }
}

fn environment(user: &User, inherited: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = inherited.collect();
    for (name, default) in [("PATH", DEFAULT_PATH), ("LANG", "C.UTF-8")] {
        all.entry(name.to_owned()).or_insert_with(|| default.to_owned());
    }
    for (name, value) in [("HOME", &user.home), ("USER", &user.name), ("LOGNAME", &user.name)] {
        all.insert(name.to_owned(), value.clone());
    }
    all
}

/// The server is protected from the OOM killer, and a child inherits that. Ordinary processes are not protected.
fn reset_oom_score() {
    const PATH: &str = "/proc/self/oom_score_adj";
    let inherited = std::fs::read_to_string(PATH).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if inherited.is_some_and(|score| score < 0) {
        let _ = std::fs::write(PATH, "0");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn host() -> HostMode {
        let ids = Ids { uid: 1000, gid: 1000, is_own: true, ..Ids::ROOT };
        let user = User { name: "dev".into(), home: "/data/workspace".into(), ids };
        let inherited = [("TZ", "UTC"), ("HOME", "/root")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let environment = environment(&user, inherited.into_iter());
        HostMode { user, environment, commands: "/data/agent/bin".into() }
    }

    #[test]
    fn only_the_own_user_can_be_used() {
        let host = host();
        for own in ["dev", "1000"] {
            assert!(host.user(own).unwrap().ids.is_own, "{own}");
        }
        for other in ["root", "user", "0", "1000:0", ""] {
            let refused = host.user(other).unwrap_err();
            assert!(
                matches!(&refused, AgentError::Unsupported(text) if text.contains("no isolation")),
                "{other}"
            );
        }
    }

    #[test]
    fn home_is_the_workspace_and_defaults_are_filled_in() {
        let all = host().environment();
        let get = |name: &str| all[name].as_str();
        assert_eq!((get("HOME"), get("USER"), get("TZ")), ("/data/workspace", "dev", "UTC"));
        assert_eq!((get("PATH"), get("LANG")), (DEFAULT_PATH, "C.UTF-8"));
    }
}
