//! What the adapter of one instance knows: its provider, the settings of the sandbox, and its processes.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use atoll_agentapi::{InitRequest, Metrics, RpcCode};
use atoll_provider::{Capability, Provider, SessionSupport, Target};
use base64::Engine;
use http::{HeaderMap, header};
use tokio::task::JoinSet;

use crate::error::SessionRefusal;
use crate::process::{LogSource, ProcessTable};
use crate::ring::OutputRing;

/// LIMIT: what a kernel takes as a path.
const PATH_MAX: usize = 4_095;

/// The tasks of an adapter. A task must not keep them alive, so it holds them weakly.
pub(crate) type TaskSet = Weak<Mutex<JoinSet<()>>>;

pub(crate) struct AdapterState {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) target: Target,
    settings: RwLock<InitRequest>,
    pub(crate) processes: ProcessTable,
    pub(crate) logs: Arc<OutputRing<LogSource>>,
    tasks: TaskSet,
}

impl AdapterState {
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        target: Target,
        settings: InitRequest,
        tasks: TaskSet,
    ) -> Self {
        let total = Arc::new(AtomicUsize::new(0));
        Self {
            provider,
            target,
            settings: RwLock::new(InitRequest { access_token: None, ..settings }),
            logs: OutputRing::new(&total),
            processes: ProcessTable::new(total),
            tasks,
        }
    }

    /// The provider's own calls.
    pub(crate) fn session(&self) -> Result<&dyn SessionSupport, SessionRefusal> {
        Ok(self.provider.session_support()?)
    }

    /// Refuses what the provider says that it cannot do.
    pub(crate) fn need(&self, capability: Capability) -> Result<(), SessionRefusal> {
        match self.provider.capabilities().has(capability) {
            true => Ok(()),
            false => Err(self.provider.missing(capability).into()),
        }
    }

    /// The refusal of what only Atoll's agent can do.
    pub(crate) fn agent_only(&self, what: &str) -> SessionRefusal {
        let (provider, capability) = (self.provider.name(), Capability::Agent);
        let message =
            format!("{what} is not possible: provider {provider} lacks the capability {capability}");
        SessionRefusal::new(RpcCode::Unimplemented, message)
    }

    /// Runs a task until the adapter ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = self.tasks.upgrade() {
            tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
        }
    }

    /// Settings that are not in the request stay.
    pub(crate) fn apply(&self, request: InitRequest) {
        let mut settings = self.settings.write().unwrap_or_else(PoisonError::into_inner);
        let InitRequest { env_vars, access_token: _, default_user, default_workdir, hostname, limits } =
            request;
        settings.env_vars = env_vars.or(settings.env_vars.take());
        settings.default_user = default_user.or(settings.default_user.take());
        settings.default_workdir = default_workdir.or(settings.default_workdir.take());
        settings.hostname = hostname.or(settings.hostname.take());
        settings.limits = limits.or(settings.limits);
    }

    pub(crate) fn settings(&self) -> InitRequest {
        self.read().clone()
    }

    /// The environment of a process.
    pub(crate) fn environment(&self, added: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut env = self.read().env_vars.clone().unwrap_or_default();
        env.extend(added.clone());
        env
    }

    /// The folder of a process; `None`: the vendor's default.
    pub(crate) fn folder(&self, asked: &str) -> Result<Option<String>, SessionRefusal> {
        match (asked.is_empty(), self.workdir()) {
            (true, folder) => Ok(folder),
            (false, _) => self.path(asked.as_bytes()).map(Some),
        }
    }

    /// An absolute path. A relative one lies below the folder of the sandbox.
    pub(crate) fn path(&self, raw: &[u8]) -> Result<String, SessionRefusal> {
        let raw = std::str::from_utf8(raw)
            .map_err(|_| SessionRefusal::invalid("this provider takes paths in UTF-8 only"))?;
        if raw.contains('\0') {
            return Err(SessionRefusal::invalid("a path must not contain a NUL byte"));
        }
        let below = raw.strip_prefix("~/").unwrap_or(if raw == "~" { "" } else { raw });
        let whole = match raw.starts_with('/') {
            true => raw.to_owned(),
            false => format!("{}/{below}", self.workdir().unwrap_or_default()),
        };
        let path = normalized(&whole);
        match path.len() > PATH_MAX {
            true => Err(SessionRefusal::invalid("the path is too long")),
            false => Ok(path),
        }
    }

    /// The user of a request: the named one, that of the `Authorization` header, or the default one. `None`: the provider has no
    /// choice of users.
    pub(crate) fn user(&self, headers: &HeaderMap, named: &str) -> Result<Option<String>, SessionRefusal> {
        let named = match named.is_empty() {
            true => basic_user(headers),
            false => Some(named.to_owned()),
        };
        let default = self.read().default_user.clone().filter(|user| !user.is_empty());
        match named {
            _ if self.need(Capability::User).is_ok() => Ok(named.or(default)),
            Some(user) if default.as_ref() != Some(&user) => {
                Err(self.provider.missing(Capability::User).into())
            }
            _ => Ok(None),
        }
    }

    /// The use of the instance as the provider measures it.
    pub(crate) async fn metrics(&self, now_ms: u64) -> Result<Metrics, SessionRefusal> {
        let usage = self.provider.usage(&self.target).await?;
        let limits = self.read().limits.unwrap_or_default();
        Ok(Metrics {
            ts: i64::try_from(now_ms / 1_000).unwrap_or(i64::MAX),
            cpu_count: limits.cpu_count,
            mem_total: limits.memory_bytes,
            mem_used: usage.memory_bytes,
            mem_cache: usage.cache_bytes,
            mem_total_mib: limits.memory_bytes >> 20,
            mem_used_mib: usage.memory_bytes >> 20,
            disk_used: usage.disk_bytes.unwrap_or(0),
            disk_total: limits.disk_bytes,
            ..Metrics::default()
        })
    }

    fn workdir(&self) -> Option<String> {
        self.read().default_workdir.clone().filter(|folder| folder.starts_with('/'))
    }

    fn read(&self) -> RwLockReadGuard<'_, InitRequest> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without `.`, `..` and repeated slashes.
fn normalized(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        if name == ".." {
            names.pop();
        } else {
            names.push(name);
        }
    }
    format!("/{}", names.join("/"))
}

/// The user of a Basic `Authorization` header; other schemes name none.
fn basic_user(headers: &HeaderMap) -> Option<String> {
    let encoded = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let pair = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
    let user = String::from_utf8(pair).ok()?.split(':').next()?.to_owned();
    Some(user).filter(|user| !user.is_empty())
}

/// Unix milliseconds, for the times that users see of processes and of their output.
#[expect(
    clippy::disallowed_methods,
    reason = "an agent has the clock of its sandbox; this one has the server's"
)]
pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_model::SandboxId;
    use atoll_provider::fake::FakeProvider;

    fn state(settings: InitRequest) -> AdapterState {
        let sandbox = SandboxId::from_entropy([3; 20]);
        AdapterState::new(FakeProvider::new(), Target { sandbox, instance: None }, settings, Weak::new())
    }

    #[test]
    fn paths_are_absolute_and_clean() {
        let state =
            state(InitRequest { default_workdir: Some("/home/user".into()), ..InitRequest::default() });
        for (raw, want) in [
            ("/a//b/./c/../d/", "/a/b/d"),
            ("notes.txt", "/home/user/notes.txt"),
            ("~/x", "/home/user/x"),
            ("~", "/home/user"),
            ("/../../etc", "/etc"),
            ("", "/home/user"),
        ] {
            assert_eq!(state.path(raw.as_bytes()).unwrap(), want, "{raw}");
        }
        assert!(state.path(b"/a\0b").is_err());
        assert!(state.path(b"/\xff").is_err());
    }

    #[test]
    fn settings_that_are_not_sent_stay() {
        let state = state(InitRequest { default_user: Some("user".into()), ..InitRequest::default() });
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        state.apply(InitRequest { env_vars: Some(env.clone()), ..InitRequest::default() });
        let now = state.settings();
        assert_eq!((now.default_user.as_deref(), now.env_vars), (Some("user"), Some(env)));
        let added = BTreeMap::from([("A".to_owned(), "2".to_owned()), ("B".to_owned(), "3".to_owned())]);
        assert_eq!(state.environment(&added), added, "the request has precedence");
    }

    #[test]
    fn the_user_of_a_request_is_its_name_its_header_or_the_default() {
        let state = state(InitRequest { default_user: Some("user".into()), ..InitRequest::default() });
        let mut headers = HeaderMap::new();
        assert_eq!(state.user(&headers, "").unwrap().as_deref(), Some("user"));
        headers.insert(header::AUTHORIZATION, "Basic cm9vdDo=".parse().unwrap());
        assert_eq!(state.user(&headers, "").unwrap().as_deref(), Some("root"));
        assert_eq!(state.user(&headers, "other").unwrap().as_deref(), Some("other"));
    }
}
