//! Operations that envd lacks: search in names and lines, copies, owners and modes. Older agents return
//! `unimplemented`.

use std::time::Duration;

use super::files::entry_of;
use super::{AgentClient, CALL_LIMIT, Entry, TREE_LIMIT};
use crate::error::AgentError;
use crate::proto::agent;

/// A search request. `Default` with a path: everything below it.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// A directory, or one file.
    pub path: Vec<u8>,
    /// Levels below it; 0: the agent's maximum.
    pub depth: u32,
    /// Globs; without a slash for the name, with one for the path below `path`. Empty: everything.
    pub include: Vec<Vec<u8>>,
    /// Globs of excluded entries, with everything below them.
    pub exclude: Vec<Vec<u8>>,
    /// The pattern for lines; empty: search for entries.
    pub pattern: Vec<u8>,
    /// The pattern is plain text, not a regular expression.
    pub literal: bool,
    /// Ignore case.
    pub ignore_case: bool,
    /// The maximal number of results; 0: the agent's limit.
    pub max: u32,
    /// The time limit.
    pub limit: Duration,
}

/// A line that matches a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchMatch {
    /// Absolute path.
    pub path: Vec<u8>,
    /// From 1.
    pub line: u64,
    /// Without its line end; long lines are truncated.
    pub content: Vec<u8>,
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Searched {
    /// Results without a pattern.
    pub entries: Vec<Entry>,
    /// Results with a pattern.
    pub matches: Vec<SearchMatch>,
    /// A limit was reached: there may be more.
    pub truncated: bool,
}

impl AgentClient {
    /// Searches for names or lines with the permissions of `user`. Symbolic links are not followed.
    pub async fn search(&self, what: Search, user: Option<&str>) -> Result<Searched, AgentError> {
        let limit = what.limit;
        let request = agent::SearchRequest {
            path: what.path,
            user: user.unwrap_or_default().to_owned(),
            depth: what.depth,
            include: what.include,
            exclude: what.exclude,
            pattern: what.pattern,
            literal: what.literal,
            ignore_case: what.ignore_case,
            max: what.max,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            ..Default::default()
        };
        let answer: agent::SearchResponse =
            self.unary_within(limit + CALL_LIMIT, "/atoll.agent.v1.Agent/Search", &request).await?;
        let found = |m: agent::SearchMatch| SearchMatch { path: m.path, line: m.line, content: m.content };
        Ok(Searched {
            entries: answer.entries.into_iter().map(Entry::from).collect(),
            matches: answer.matches.into_iter().map(found).collect(),
            truncated: answer.truncated,
        })
    }

    /// Copies a file or link, or (`recursive`) a directory. Without `overwrite` an existing destination is
    /// `already_exists`.
    pub async fn copy(
        &self,
        source: impl AsRef<[u8]>,
        destination: impl AsRef<[u8]>,
        user: Option<&str>,
        recursive: bool,
        overwrite: bool,
    ) -> Result<Entry, AgentError> {
        let request = agent::CopyRequest {
            source: source.as_ref().to_vec(),
            destination: destination.as_ref().to_vec(),
            user: user.unwrap_or_default().to_owned(),
            recursive,
            overwrite,
            ..Default::default()
        };
        entry_of(self.unary_within(TREE_LIMIT, "/atoll.agent.v1.Agent/Copy", &request).await?)
    }

    /// Renames as [`AgentClient::move_entry`], but an existing destination stays: `already_exists`.
    pub async fn move_new(
        &self,
        source: impl AsRef<[u8]>,
        destination: impl AsRef<[u8]>,
        user: Option<&str>,
    ) -> Result<Entry, AgentError> {
        let request = agent::MoveRequest {
            source: source.as_ref().to_vec(),
            destination: destination.as_ref().to_vec(),
            user: user.unwrap_or_default().to_owned(),
            keep: true,
            ..Default::default()
        };
        entry_of(self.unary_within(TREE_LIMIT, "/atoll.agent.v1.Agent/Move", &request).await?)
    }

    /// Changes mode, owner or group of a path's target. Names or numbers in the sandbox; `None`: unchanged.
    pub async fn change(
        &self,
        path: impl AsRef<[u8]>,
        user: Option<&str>,
        mode: Option<u32>,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> Result<Entry, AgentError> {
        let request = agent::ChangeRequest {
            path: path.as_ref().to_vec(),
            user: user.unwrap_or_default().to_owned(),
            mode,
            owner: owner.unwrap_or_default().to_owned(),
            group: group.unwrap_or_default().to_owned(),
            ..Default::default()
        };
        entry_of(self.unary("/atoll.agent.v1.Agent/Change", &request).await?)
    }
}
