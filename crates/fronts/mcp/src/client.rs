//! The client behind a request, and the sandbox that it uses when it names none.
//!
//! The sandbox is bound to a thread whose name is derived from the key and the client, so the service finds it again or creates it,
//! and this front remembers nothing.

use std::collections::BTreeMap;

use atoll_front_kit::ApiError;
use atoll_model::{
    CLIENT_THREADS, Code, CreateSandbox, Lease, OnExit, OnTimeout, Phase, Principal, TimersAsk, UpdateSandbox,
};
use atoll_service::Service;
use axum::http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use crate::era::RequestMeta;

/// Set by `atoll mcp`: one value per process.
const PROCESS: HeaderName = HeaderName::from_static("atoll-mcp-process");
/// Given to clients with a handshake, which say their name only once: a hash of the name and a random part. Remembered nowhere.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// The label of sandboxes that were made for a client; its value is the name of the client's program.
const LABEL: &str = "mcp-client";
/// LIMIT: bytes of a process or session in a header.
const HEADER_MAX: usize = 128;
/// LIMIT: characters of a name in a label.
const NAME_MAX: usize = 64;

/// A client's own sandbox is stopped when it has been idle for so long. Its files stay, and the next call starts it again.
const STOP_AFTER_S: i64 = 30 * 60;
/// It is deleted when it has been stopped for so long.
const DELETE_AFTER_S: i64 = 24 * 60 * 60;
/// A client's own sandbox that `sandbox_pause` paused is stopped after so long, and then deleted as above.
const STOP_PAUSED_AFTER_S: u64 = 24 * 60 * 60;
/// The annotation of a sandbox whose lifetime is that limit; its value is the `on_timeout` from before. Annotations are written by
/// fronts only: no request of a user sets one.
const PAUSE_LIMIT: &str = "mcp.pause_limit";

/// The timers of a sandbox that has no other end: it is stopped when nobody uses it, and deleted later.
pub(crate) fn idle_timers() -> TimersAsk {
    TimersAsk { auto_stop_s: Some(STOP_AFTER_S), auto_delete_s: Some(DELETE_AFTER_S), ..TimersAsk::default() }
}

/// A client of the server.
#[derive(Debug, Clone)]
pub(crate) struct McpClient {
    /// The name of its program, as far as this request says it.
    name: String,
    /// The thread of its own sandbox.
    pub(crate) thread: String,
    /// The session that it was given, if it had a handshake.
    pub(crate) session: Option<String>,
}

impl McpClient {
    /// The client of a request: a process of `atoll mcp`, or the key with the name of the client's program.
    pub(crate) fn of(who: &Principal, meta: &RequestMeta, headers: &HeaderMap) -> Self {
        let name = meta.client_name().unwrap_or_default();
        let header = |field: HeaderName| {
            headers.get(field)?.to_str().ok().filter(|text| !text.is_empty() && text.len() <= HEADER_MAX)
        };
        let identity = match (header(PROCESS), name, header(SESSION)) {
            (Some(process), _, _) => format!("process\0{process}"),
            (None, "", Some(session)) => {
                format!("program\0{}", session.split('.').next().unwrap_or_default())
            }
            (None, name, _) => format!("program\0{}", program(name)),
        };
        let session = header(SESSION).map(str::to_owned);
        let thread = format!("{CLIENT_THREADS}{}", digest(&[who.key.as_str(), &identity]));
        let name = name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
        Self { name, thread, session }
    }

    /// The client's own sandbox, which is created if there is none.
    pub(crate) async fn own_sandbox(&self, service: &Service, who: &Principal) -> Result<Lease, ApiError> {
        let spec = CreateSandbox {
            thread: Some(self.thread.clone()),
            labels: self.labels(),
            timers: idle_timers(),
            // A paused sandbox would never be stopped.
            on_exit: Some(OnExit::Keep),
            ..CreateSandbox::default()
        };
        // On the heap: the future of a create is large, and this one is deep inside others.
        let (lease, _) = Box::pin(service.sandboxes().create(who, spec, true)).await?;
        match lease.phase {
            Phase::Failed => Err(ApiError::new(
                Code::PhaseConflict,
                format!("the sandbox of this client, {}, has failed", lease.id),
            )
            .hint("call sandbox_delete; the next call makes a new one")),
            _ => self.without_pause_limit(service, who, lease).await,
        }
    }

    /// Limits how long the client's own sandbox may be paused: idle timers do not count in a pause. Other sandboxes are
    /// left as they are.
    pub(crate) async fn set_pause_limit(
        &self,
        service: &Service,
        who: &Principal,
        id: &str,
    ) -> Result<(), ApiError> {
        let lease = service.sandboxes().get(who, id).await?;
        if let Some(change) = pause_limit(&lease).filter(|_| self.owns(&lease)) {
            service.sandboxes().update(who, id, change).await?;
        }
        Ok(())
    }

    /// Ends that limit when the sandbox is used again.
    pub(crate) async fn without_pause_limit(
        &self,
        service: &Service,
        who: &Principal,
        lease: Lease,
    ) -> Result<Lease, ApiError> {
        match end_of_pause_limit(&lease).filter(|_| self.owns(&lease)) {
            Some(change) => Ok(service.sandboxes().update(who, lease.id.as_str(), change).await?),
            None => Ok(lease),
        }
    }

    fn owns(&self, lease: &Lease) -> bool {
        lease.thread.as_deref() == Some(&self.thread)
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let name = Some(self.name.clone()).filter(|name| !name.is_empty());
        name.map(|name| (LABEL.to_owned(), name)).into_iter().collect()
    }

    /// The client's own sandbox, if it has one.
    pub(crate) async fn existing_sandbox(
        &self,
        service: &Service,
        who: &Principal,
    ) -> Result<String, ApiError> {
        let none = || {
            ApiError::new(Code::SandboxNotFound, "this client has no sandbox of its own yet")
                .hint("name a sandbox; sandbox_list shows them")
        };
        match service.sandboxes().thread(who, &self.thread).await {
            Ok(thread) => thread.sandbox.map(|(sandbox, _)| sandbox.to_string()).ok_or_else(none),
            Err(error) if error.code == Code::ThreadNotFound => Err(none()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The change that limits a pause; `None` for a sandbox that has a lifetime.
fn pause_limit(lease: &Lease) -> Option<UpdateSandbox> {
    if lease.timeout_at.is_some() {
        return None;
    }
    let mut annotations = lease.annotations.clone();
    annotations.insert(PAUSE_LIMIT.to_owned(), word(lease.on_timeout)?);
    Some(UpdateSandbox {
        timeout_s: Some(Some(STOP_PAUSED_AFTER_S)),
        on_timeout: Some(OnTimeout::Stop),
        annotations: Some(annotations),
        ..UpdateSandbox::default()
    })
}

/// The change that ends it; `None` if there is none. A lifetime that the user has set meanwhile stays.
fn end_of_pause_limit(lease: &Lease) -> Option<UpdateSandbox> {
    let mut annotations = lease.annotations.clone();
    let before = annotations.remove(PAUSE_LIMIT)?;
    let is_unchanged = (lease.timeout_s, lease.on_timeout) == (Some(STOP_PAUSED_AFTER_S), OnTimeout::Stop);
    let ended = UpdateSandbox { annotations: Some(annotations), ..UpdateSandbox::default() };
    Some(match is_unchanged {
        true => UpdateSandbox {
            timeout_s: Some(None),
            on_timeout: serde_json::from_value(before.into()).ok(),
            ..ended
        },
        false => ended,
    })
}

fn word(on_timeout: OnTimeout) -> Option<String> {
    serde_json::to_value(on_timeout).ok()?.as_str().map(str::to_owned)
}

/// A new session of a client with this name. Its first part is the same for all of them.
pub(crate) fn new_session(name: &str) -> Result<String, ApiError> {
    let mut random = [0_u8; 10];
    getrandom::fill(&mut random)
        .map_err(|_| ApiError::new(Code::Internal, "the machine has no random bytes"))?;
    Ok(format!("{}.{}", program(name), hex::encode(random)))
}

/// A program by its name, as the first part of a session.
fn program(name: &str) -> String {
    digest(&["program", name])
}

/// LIMIT: 20 bytes, which do not collide by chance.
fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex::encode(&hash.finalize()[..20])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::{KeyId, Scope, TenantId};
    use serde_json::json;

    fn who(key: u8) -> Principal {
        Principal {
            key: KeyId::from_entropy([key; 20]),
            key_name: None,
            tenant: TenantId::from_entropy([1; 20]),
            scope: Scope::User,
        }
    }

    fn thread(key: u8, name: Option<&str>, headers: &[(HeaderName, &str)]) -> String {
        let meta: RequestMeta = match name {
            Some(name) => serde_json::from_value(json!({ "clientInfo": { "name": name } })).unwrap(),
            None => RequestMeta::default(),
        };
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        McpClient::of(&who(key), &meta, &headers).thread
    }

    #[test]
    fn key_and_name_make_a_client_whichever_way_the_name_is_said() {
        let named = thread(1, Some("claude"), &[]);
        assert_eq!(named, thread(1, Some("claude"), &[]));
        let sessions = [new_session("claude").unwrap(), new_session("claude").unwrap()];
        assert_ne!(sessions[0], sessions[1]);
        for session in sessions {
            assert_eq!(named, thread(1, None, &[(SESSION, &session)]));
        }
        assert_ne!(named, thread(2, Some("claude"), &[]));
        assert_ne!(named, thread(1, Some("codex"), &[]));
        assert_ne!(named, thread(1, None, &[]));
    }

    #[test]
    fn a_process_is_a_client_of_its_own() {
        let one = thread(1, Some("claude"), &[(PROCESS, "a")]);
        assert_eq!(one, thread(1, None, &[(PROCESS, "a")]));
        assert_ne!(one, thread(1, Some("claude"), &[(PROCESS, "b")]));
        assert_ne!(one, thread(1, Some("claude"), &[]));
        assert_ne!(one, thread(2, Some("claude"), &[(PROCESS, "a")]));
    }

    /// A lease as the store may contain it.
    fn lease(change: &serde_json::Value) -> Lease {
        let at = json!({ "wall_ms": 1_800_000_000_000_i64, "boot_id": "b", "boot_ms": 1 });
        let limits = json!({ "cpu_milli": 500, "memory_mib": 512, "disk_mib": 1024, "pids": 64 });
        let mut lease = json!({
            "id": "aaaaaaaaaaaaaaaaaaaa", "tenant": "tttttttttttttttttttt", "labels": {}, "env": {}, "limits": limits,
            "provider": "fake", "template": "base", "template_version": "1", "user": "user", "workdir": "/",
            "network": "allow-all", "storage": "disk", "intent": "run", "phase": "running", "stage": "booting",
            "reason": { "code": "requested" }, "generation": 1, "wake": "any", "public": false,
            "created_at": at.clone(), "phase_at": at, "on_timeout": "delete", "annotations": { "e2b.made": "true" },
        });
        for (key, value) in change.as_object().unwrap() {
            lease[key] = value.clone();
        }
        serde_json::from_value(lease).unwrap()
    }

    #[test]
    fn the_limit_of_a_pause_is_known_by_its_annotation_and_not_by_its_numbers() {
        let limit = pause_limit(&lease(&json!({}))).unwrap();
        let annotations = limit.annotations.unwrap();
        assert_eq!(annotations[PAUSE_LIMIT], "delete");
        assert_eq!((limit.timeout_s, limit.on_timeout), (Some(Some(86_400)), Some(OnTimeout::Stop)));
        let at = json!({ "wall_ms": 1_800_086_400_000_i64, "boot_id": "b", "boot_ms": 1 });
        let mut numbers = json!({ "timeout_s": 86_400, "on_timeout": "stop", "timeout_at": at });
        assert_eq!(pause_limit(&lease(&numbers)), None, "it has a lifetime");
        assert_eq!(
            end_of_pause_limit(&lease(&numbers)),
            None,
            "the user's own lifetime has the same numbers"
        );
        numbers["annotations"] = json!(annotations);
        let ended = end_of_pause_limit(&lease(&numbers)).unwrap();
        assert_eq!((ended.timeout_s, ended.on_timeout), (Some(None), Some(OnTimeout::Delete)));
        assert_eq!(ended.annotations.unwrap(), lease(&json!({})).annotations);
        numbers["timeout_s"] = json!(60);
        let kept = end_of_pause_limit(&lease(&numbers)).unwrap();
        assert_eq!((kept.timeout_s, kept.on_timeout), (None, None), "the user has set another one meanwhile");
        assert!(!kept.annotations.unwrap().contains_key(PAUSE_LIMIT));
    }
}
