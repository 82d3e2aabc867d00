//! Files and folders that exist only while a command runs, beside its secrets: scripts, empty folders, and files that
//! it may read (`--mount=type=tmpfs`, `cache` and `bind`).
//!
//! At an unused path, the file or folder is made and removed again. If a folder with content is at the path, the
//! sandbox is created again with memory mounted over that folder. An existing file at the path is refused: it cannot be
//! hidden.

use std::collections::BTreeSet;

use atoll_agentapi::{AgentClient, EntryKind};
use atoll_image::build::Run;
use atoll_model::Code;

use super::step::ROOT;
use crate::ServiceError;
use crate::agent::{AgentOperation, refusal};

/// What was added to the sandbox for a command.
#[derive(Default)]
pub(super) struct LentFiles {
    /// Paths to remove.
    made: Vec<String>,
    /// Folders to empty.
    filled: Vec<String>,
}

/// The mount targets of a command.
fn targets(run: &Run) -> impl Iterator<Item = &str> {
    let scratch = run.scratch.iter().map(|mount| mount.target.as_str());
    scratch.chain(run.binds.iter().map(|bind| bind.dest.as_str()))
}

/// Existing folders that must be hidden by memory, as found in this sandbox of the step; `over` are those that already
/// are.
pub(super) async fn in_the_way(
    agent: &AgentClient,
    run: &Run,
    over: &BTreeSet<String>,
) -> Result<BTreeSet<String>, ServiceError> {
    let mut found = BTreeSet::new();
    for target in targets(run).filter(|target| !over.contains(*target)) {
        match look(agent, target).await? {
            LentFile::Free | LentFile::Empty => {}
            LentFile::Full => {
                found.insert(target.to_owned());
            }
            LentFile::File => {
                let message = format!("{target} is an existing file, and a mount cannot replace it");
                return Err(ServiceError::new(Code::Unsupported, message)
                    .hint("mount it at an unused path, or COPY it"));
            }
        }
    }
    Ok(found)
}

/// Makes the folders and the script, and records what to remove; files are added afterwards.
pub(super) async fn lend(
    agent: &AgentClient,
    run: &Run,
    over: &BTreeSet<String>,
) -> Result<LentFiles, ServiceError> {
    let mut borrowed = LentFiles::default();
    if let Some(script) = &run.script {
        // It is in memory, which is freed with the sandbox.
        let written = agent.write_bytes(&script.path, ROOT, Some(0o755), script.content.clone()).await;
        written.map_err(|error| refusal(AgentOperation::File, error))?;
    }
    for target in targets(run).filter(|target| !over.contains(*target)) {
        match look(agent, target).await? {
            LentFile::Empty => borrowed.filled.push(target.to_owned()),
            LentFile::Free | LentFile::Full | LentFile::File => borrowed.made.push(target.to_owned()),
        }
    }
    for mount in &run.scratch {
        super::step::make_folder(agent, &mount.target).await?;
    }
    Ok(borrowed)
}

impl LentFiles {
    /// Removes it again.
    pub(super) async fn give_back(&self, agent: &AgentClient) -> Result<(), ServiceError> {
        for path in &self.made {
            remove(agent, path.as_bytes()).await?;
        }
        for folder in &self.filled {
            let found = agent
                .list_dir(folder, ROOT, 1)
                .await
                .map_err(|error| refusal(AgentOperation::File, error))?;
            for entry in found.0 {
                remove(agent, &entry.path).await?;
            }
        }
        Ok(())
    }
}

enum LentFile {
    Free,
    Empty,
    Full,
    File,
}

async fn look(agent: &AgentClient, path: &str) -> Result<LentFile, ServiceError> {
    let entry = match agent.stat(path, ROOT).await.map_err(|error| refusal(AgentOperation::File, error)) {
        Ok(entry) => entry,
        Err(error) if error.code == Code::FileNotFound => return Ok(LentFile::Free),
        Err(error) => return Err(error),
    };
    if entry.kind != EntryKind::Directory {
        return Ok(LentFile::File);
    }
    let (entries, _) =
        agent.list_dir(path, ROOT, 1).await.map_err(|error| refusal(AgentOperation::File, error))?;
    Ok(if entries.is_empty() { LentFile::Empty } else { LentFile::Full })
}

/// The command may have removed it itself.
async fn remove(agent: &AgentClient, path: &[u8]) -> Result<(), ServiceError> {
    match agent.remove(path, ROOT).await.map_err(|error| refusal(AgentOperation::File, error)) {
        Err(error) if error.code == Code::FileNotFound => Ok(()),
        removed => removed,
    }
}
