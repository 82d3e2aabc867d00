//! The two ends of a copy: what is asked of a running instance, whatever its provider is.

use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::{AgentClient, AgentError, EntryKind, RpcCode, StartProcess};
use atoll_model::{Code, InstanceId, Isolation, Lease};
use atoll_provider::{Capability, Provider};
use rustix::process::{Gid, Uid};

use crate::ServiceError;
use crate::agent::{AgentOperation, refusal};
use crate::company::Inside;
use crate::moving::manifest::TopFolder;
use crate::moving::owners::FileOwner;

/// LIMIT: rounds of emptying a folder of a new sandbox; each list is cut by the agent.
const EMPTY_ROUNDS: u32 = 64;
/// LIMIT: bytes of a list of users or groups.
const LIST_MAX: u64 = 1 << 20;
/// LIMIT: each step of finding the numbers of a user. A sandbox must not hold the turn of its move.
const OWNER_WITHIN: Duration = Duration::from_secs(10);
const SIGKILL: i32 = 9;
/// LIMIT: bytes of two numbers.
const NUMBERS_MAX: usize = 64;

/// One end of a copy: a running instance without programs.
pub(super) struct CopyEnd {
    pub(super) agent: AgentClient,
    pub(super) user: String,
    pub(super) home: String,
    /// The numbers of the user, where they are known. A sandbox without isolation has those of the server, and none where that is
    /// root.
    pub(super) owner: Option<FileOwner>,
}

pub(super) async fn greeted(
    provider: &Arc<dyn Provider>,
    lease: &Lease,
    instance: &InstanceId,
    token: Option<String>,
) -> Result<AgentClient, ServiceError> {
    let agent = crate::agent::client(provider, lease, instance, &token.unwrap_or_default());
    drop(crate::agent::greet(&agent, lease, Inside::default()).await?);
    Ok(agent.with_root_files())
}

pub(super) async fn home_of(agent: &AgentClient, user: &str) -> Result<String, ServiceError> {
    let home = match agent.stat("~", Some(user)).await {
        Ok(entry) => entry.path,
        // A user without a home: nothing of it is carried.
        Err(AgentError::Refused { code: RpcCode::NotFound, .. }) => b"/".to_vec(),
        Err(error) => return Err(refusal(AgentOperation::File, error)),
    };
    Ok(String::from_utf8(home).unwrap_or_else(|_| "/".to_owned()))
}

pub(super) async fn exists(agent: &AgentClient, path: &str) -> Result<bool, ServiceError> {
    match agent.stat(path, None).await {
        Ok(_) => Ok(true),
        Err(AgentError::Refused { code: RpcCode::NotFound, .. }) => Ok(false),
        Err(error) => Err(refusal(AgentOperation::File, error)),
    }
}

/// Removes what the template has in a folder: the copy is to be the same as the source.
pub(super) async fn empty(agent: &AgentClient, folder: &str, user: Option<&str>) -> Result<(), ServiceError> {
    let failed = |error| refusal(AgentOperation::File, error);
    for _ in 0..EMPTY_ROUNDS {
        let entries = match agent.list_dir(folder, user, 1).await {
            Ok((entries, _)) => entries,
            Err(AgentError::Refused { code: RpcCode::NotFound, .. }) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        if entries.is_empty() {
            return Ok(());
        }
        for entry in entries {
            debug_assert!(entry.kind != EntryKind::Directory || entry.path != folder.as_bytes());
            agent.remove(&entry.path, user).await.map_err(failed)?;
        }
    }
    Err(ServiceError::new(Code::SandboxUnavailable, format!("{folder} of the target could not be emptied")))
}

/// Gives the folder itself its mode and its owner.
pub(super) async fn settle_top(
    agent: &AgentClient,
    folder: &str,
    top: Option<TopFolder>,
    owner: Option<(String, Option<String>)>,
) -> Result<(), ServiceError> {
    let (mode, (user, group)) = (top.map(|top| top.mode), owner.unzip());
    if mode.is_none() && user.is_none() {
        return Ok(());
    }
    match agent.change(folder, None, mode, user.as_deref(), group.flatten().as_deref()).await {
        // Where no agent of ours runs, the unpack has done it.
        Ok(_) | Err(AgentError::Refused { code: RpcCode::Unimplemented, .. }) => Ok(()),
        Err(error) => Err(refusal(AgentOperation::File, error)),
    }
}

/// The numbers of a user, where they can be told within a time: by the sandbox's own lists of users and groups where there are
/// several users, else by a program inside.
pub(super) async fn owner_of(agent: &AgentClient, user: &str, provider: &dyn Provider) -> Option<FileOwner> {
    let capabilities = provider.capabilities();
    if !capabilities.users && provider.description().isolation == Isolation::None {
        return server_owner(rustix::process::geteuid(), rustix::process::getegid());
    }
    if capabilities.users {
        let listed = tokio::time::timeout(OWNER_WITHIN, listed_owner(agent, user)).await.ok().flatten();
        // Atoll's agent knows users by these lists only.
        if listed.is_some() || capabilities.has(Capability::Agent) {
            return listed;
        }
    }
    told_owner(agent, capabilities.users.then_some(user)).await
}

/// The owner of all files of a sandbox of this machine without isolation. Those of root may belong to anyone.
fn server_owner(uid: Uid, gid: Gid) -> Option<FileOwner> {
    (!uid.is_root()).then(|| FileOwner { uid: uid.as_raw().into(), gid: gid.as_raw().into() })
}

async fn listed_owner(agent: &AgentClient, user: &str) -> Option<FileOwner> {
    let read = async |path: &str| match agent.read_file(path, None, None).await {
        Ok(list) => list.read_to_end(LIST_MAX).await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    let users = read("/etc/passwd").await;
    let groups = if user.contains(':') { read("/etc/group").await } else { Vec::new() };
    FileOwner::in_lists(&String::from_utf8_lossy(&users), &String::from_utf8_lossy(&groups), user)
}

/// What a program of the sandbox tells, which may be any program and may never end.
async fn told_owner(agent: &AgentClient, user: Option<&str>) -> Option<FileOwner> {
    let ask = StartProcess {
        cmd: "sh".to_owned(),
        args: ["-c", "id -u; id -g"].map(str::to_owned).into(),
        user: user.map(str::to_owned),
        timeout: Some(OWNER_WITHIN),
        ..StartProcess::default()
    };
    let (started, output) = tokio::time::timeout(OWNER_WITHIN, agent.start(ask)).await.ok()?.ok()?;
    let Ok(said) = tokio::time::timeout(OWNER_WITHIN, output.collect(NUMBERS_MAX)).await else {
        // The instance is ended after the copy; a program must not run during it.
        let _ = tokio::time::timeout(OWNER_WITHIN, agent.signal(started.pid, SIGKILL)).await;
        return None;
    };
    let text = String::from_utf8_lossy(&said.ok()?.stdout).into_owned();
    let mut numbers = text.lines().map(|line| line.trim().parse().ok());
    Some(FileOwner { uid: numbers.next()??, gid: numbers.next()?? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_root_owns_the_files_of_its_sandboxes() {
        let (user, group) = (Uid::from_raw(501), Gid::from_raw(20));
        assert_eq!(server_owner(user, group), Some(FileOwner { uid: 501, gid: 20 }));
        assert_eq!(server_owner(Uid::ROOT, group), None);
    }
}
