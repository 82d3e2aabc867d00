//! The settings of `POST /init`: environment, default user and directory, limits to report, the token.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use atoll_agentapi::{AgentLimits, InitRequest};
use subtle::ConstantTimeEq;

use crate::error::AgentError;
use crate::host_mode::HostMode;
use crate::users::{self, User};

/// The default search path for programs.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The folder with the commands of the agent.
const OWN_COMMANDS: &str = "/.atoll/bin";

/// Where `pip install` and other installers put the programs of a user, below the home.
const USERS_COMMANDS: &str = ".local/bin";

/// `ss` of iproute2 reads its tables from here if this variable is set. Otherwise it asks for a netlink socket first, which the
/// sandbox refuses, and prints that error before it reads the same tables.
const SOCKET_TABLES: (&str, &str) = ("PROC_ROOT", "/proc");

/// LIMIT: tokens have 40-128 characters; longer ones are invalid.
pub(crate) const TOKEN_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Settings {
    state: Mutex<SettingsState>,
    /// `None`: the agent is in a sandbox.
    host: Option<HostMode>,
}

#[derive(Debug)]
struct SettingsState {
    token: Vec<u8>,
    envs: BTreeMap<String, String>,
    user: String,
    workdir: String,
    limits: AgentLimits,
}

impl Settings {
    pub(crate) fn new(token: Vec<u8>, host: Option<HostMode>) -> Self {
        let state = SettingsState {
            token,
            envs: BTreeMap::new(),
            user: host.as_ref().map_or("root", HostMode::user_name).into(),
            workdir: String::new(),
            limits: AgentLimits::default(),
        };
        Self { state: Mutex::new(state), host }
    }

    /// Whether there is no sandbox around the agent.
    pub(crate) fn is_host(&self) -> bool {
        self.host.is_some()
    }

    /// A user by name or number.
    pub(crate) fn find_user(&self, name: &str) -> Result<User, AgentError> {
        match &self.host {
            Some(host) => host.user(name),
            None => users::find(name),
        }
    }

    /// Whether this is the agent token; takes the same time for every input.
    pub(crate) fn is_token(&self, shown: &[u8]) -> bool {
        self.lock().token.as_slice().ct_eq(shown).into()
    }

    /// Applies the settings that are present: all of them or, after a refusal, none.
    pub(crate) fn apply(&self, request: InitRequest) -> Result<(), AgentError> {
        let bad = |text: &str| text.contains('\0');
        if let Some(token) = &request.access_token
            && (token.len() < 16 || token.len() > TOKEN_MAX || !token.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(AgentError::Invalid("a token is 16 to 1024 printable characters".into()));
        }
        if let Some(envs) = &request.env_vars
            && envs
                .iter()
                .any(|(name, value)| name.is_empty() || name.contains('=') || bad(name) || bad(value))
        {
            return Err(AgentError::Invalid(
                "an environment variable needs a name without '=' and no NUL".into(),
            ));
        }
        let mut state = self.lock();
        if let Some(token) = request.access_token {
            state.token = token.into_bytes();
        }
        if let Some(envs) = request.env_vars {
            state.envs = envs;
        }
        if let Some(user) = request.default_user.filter(|user| !user.is_empty()) {
            state.user = user;
        }
        if let Some(workdir) = request.default_workdir {
            state.workdir = workdir;
        }
        if let Some(limits) = request.limits {
            state.limits = limits;
        }
        Ok(())
    }

    /// The current settings in the form of a request; without the token.
    pub(crate) fn told(&self) -> InitRequest {
        let state = self.lock();
        InitRequest {
            env_vars: Some(state.envs.clone()),
            default_user: Some(state.user.clone()),
            default_workdir: Some(state.workdir.clone()),
            limits: Some(state.limits),
            ..InitRequest::default()
        }
    }

    pub(crate) fn envs(&self) -> BTreeMap<String, String> {
        self.lock().envs.clone()
    }

    pub(crate) fn default_user(&self) -> String {
        self.lock().user.clone()
    }

    pub(crate) fn limits(&self) -> AgentLimits {
        self.lock().limits
    }

    /// The environment of a process: defaults of its user, then the sandbox's, then the request's.
    pub(crate) fn environment(
        &self,
        user: &User,
        request: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let basics = [
            ("PATH", DEFAULT_PATH),
            ("HOME", &user.home),
            ("USER", &user.name),
            ("LOGNAME", &user.name),
            SOCKET_TABLES,
        ];
        let mut all: BTreeMap<String, String> = match &self.host {
            Some(host) => host.environment(),
            None => basics.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        };
        let own_commands = self.host.as_ref().map_or(OWN_COMMANDS, HostMode::commands);
        all.extend(self.lock().envs.clone());
        if let (Some(path), Some(folder)) = (all.get_mut("PATH"), users_commands(user))
            && !path.split(':').any(|dir| dir == folder)
        {
            // First, as in Debian's profile: what a user installs wins over the system's.
            let gap = if path.is_empty() { "" } else { ":" };
            *path = format!("{folder}{gap}{path}");
        }
        all.extend(request.clone());
        if let Some(path) = all.get_mut("PATH").filter(|path| !path.split(':').any(|dir| dir == own_commands))
        {
            // Last, so that it hides no other program.
            let gap = if path.is_empty() { "" } else { ":" };
            *path = format!("{path}{gap}{own_commands}");
        }
        all
    }

    /// The working directory of a process: empty → default directory or home; `~` and relative → home.
    pub(crate) fn cwd(&self, user: &User, asked: &str) -> String {
        let workdir = self.lock().workdir.clone();
        let path = match (asked.is_empty(), workdir.is_empty()) {
            (false, _) => asked,
            (true, false) => &workdir,
            (true, true) => return user.home.clone(),
        };
        match path.strip_prefix('~') {
            Some("") => user.home.clone(),
            Some(rest) if rest.starts_with('/') => format!("{}{rest}", user.home),
            _ if path.starts_with('/') => path.to_owned(),
            _ => format!("{}/{path}", user.home.trim_end_matches('/')),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SettingsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The folder of the user's own programs; `None` for a user without a home of its own.
fn users_commands(user: &User) -> Option<String> {
    let home = user.home.trim_end_matches('/');
    let is_usable = home.starts_with('/') && !home.contains(':');
    is_usable.then(|| format!("{home}/{USERS_COMMANDS}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::users::Ids;

    fn user() -> User {
        User { name: "user".into(), home: "/home/user".into(), ids: Ids::ROOT }
    }

    #[test]
    fn the_request_wins_over_the_sandbox_and_the_sandbox_over_the_basics() {
        let settings = Settings::new(b"token".to_vec(), None);
        let envs = [("PATH".to_owned(), "/p".to_owned()), ("A".to_owned(), "sandbox".to_owned())].into();
        settings.apply(InitRequest { env_vars: Some(envs), ..InitRequest::default() }).unwrap();
        let all = settings.environment(&user(), &[("A".to_owned(), "request".to_owned())].into());
        assert_eq!(
            (all["PATH"].as_str(), all["A"].as_str(), all["LOGNAME"].as_str()),
            ("/home/user/.local/bin:/p:/.atoll/bin", "request", "user")
        );
        assert_eq!(all["PROC_ROOT"], "/proc", "`ss` asks for no netlink socket");
    }

    #[test]
    fn programs_that_a_user_installs_are_found_unless_the_request_has_a_path() {
        let settings = Settings::new(b"token".to_vec(), None);
        let path = |home: &str, request: &[(&str, &str)]| {
            let user = User { home: home.into(), ..user() };
            let request = request.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            settings.environment(&user, &request)["PATH"].clone()
        };
        assert_eq!(path("/root", &[]), format!("/root/.local/bin:{DEFAULT_PATH}:/.atoll/bin"));
        for odd in ["", "/", "/a:b", "relative"] {
            assert_eq!(path(odd, &[]), format!("{DEFAULT_PATH}:/.atoll/bin"), "{odd}");
        }
        assert_eq!(path("/home/user", &[("PATH", "/bin")]), "/bin:/.atoll/bin");
    }

    #[test]
    fn a_working_directory_is_found_as_envd_finds_it() {
        let settings = Settings::new(Vec::new(), None);
        let cwd = |asked: &str| settings.cwd(&user(), asked);
        assert_eq!(
            [cwd(""), cwd("~"), cwd("~/a"), cwd("a"), cwd("/a")],
            ["/home/user", "/home/user", "/home/user/a", "/home/user/a", "/a"]
        );
        settings
            .apply(InitRequest { default_workdir: Some("/work".into()), ..InitRequest::default() })
            .unwrap();
        assert_eq!(settings.cwd(&user(), ""), "/work");
    }

    #[test]
    fn a_refused_init_changes_nothing() {
        let settings = Settings::new(b"old-token".to_vec(), None);
        let request = InitRequest {
            access_token: Some("short".into()),
            default_user: Some("x".into()),
            ..InitRequest::default()
        };
        assert!(settings.apply(request).is_err());
        assert!(settings.is_token(b"old-token") && settings.default_user() == "root");
    }
}
