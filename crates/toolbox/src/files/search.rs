//! Search by name and by content, done by the agent.

use std::time::Duration;

use atoll_agentapi::{Search, Searched};

use super::{Files, check};
use crate::ToolboxError;

/// LIMIT: time for a search; what is found by then is answered.
const SEARCH_LIMIT: Duration = Duration::from_secs(30);
/// LIMIT: more than anybody reads, little enough for one answer.
const FOUND_MAX: u32 = 10_000;

/// What a search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchResults<T> {
    /// Sorted by path.
    pub items: Vec<T>,
    /// A bound was met: there may be more.
    pub truncated: bool,
}

/// What to look for in files.
#[derive(Debug, Clone, Default)]
pub struct Grep {
    /// A regular expression, or plain text.
    pub pattern: String,
    /// It is plain text.
    pub literal: bool,
    /// Small and capital letters are the same.
    pub ignore_case: bool,
    /// Globs of the files to look into; empty: all.
    pub include: Vec<String>,
    /// Globs of what is left out, with all below it.
    pub exclude: Vec<String>,
}

/// A line that holds the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The file.
    pub path: String,
    /// From 1.
    pub line: u64,
    /// The line, cut if it is very long.
    pub content: String,
}

impl Files<'_> {
    /// Paths below a directory that a glob matches. One with a slash is for the whole path below it, one without for the
    /// name at any depth.
    pub async fn glob(
        &self,
        path: &str,
        pattern: &str,
        exclude: &[String],
    ) -> Result<SearchResults<String>, ToolboxError> {
        let search = Search {
            include: vec![some(pattern)?],
            exclude: bytes(exclude),
            max: FOUND_MAX,
            ..Default::default()
        };
        let found = self.search(path, search).await?;
        let items = found.entries.iter().map(|entry| lossy(&entry.path)).collect();
        Ok(SearchResults { items, truncated: found.truncated })
    }

    /// Paths below a directory whose last name a glob matches.
    pub async fn find(&self, path: &str, name: &str) -> Result<SearchResults<String>, ToolboxError> {
        if name.contains('/') {
            return Err(ToolboxError::Invalid("pattern is for names, which have no '/'".into()));
        }
        self.glob(path, name, &[]).await
    }

    /// Lines of files below a directory, or of one file. Binary files are left out.
    pub async fn grep(&self, path: &str, grep: &Grep) -> Result<SearchResults<Match>, ToolboxError> {
        let search = Search {
            include: bytes(&grep.include),
            exclude: bytes(&grep.exclude),
            pattern: some(&grep.pattern)?,
            literal: grep.literal,
            ignore_case: grep.ignore_case,
            max: FOUND_MAX,
            ..Default::default()
        };
        let found = self.search(path, search).await?;
        let items = found
            .matches
            .iter()
            .map(|found| Match { path: lossy(&found.path), line: found.line, content: lossy(&found.content) })
            .collect();
        Ok(SearchResults { items, truncated: found.truncated })
    }

    async fn search(&self, path: &str, search: Search) -> Result<Searched, ToolboxError> {
        check(path)?;
        let search = Search { path: path.as_bytes().to_vec(), limit: SEARCH_LIMIT, ..search };
        self.toolbox.sandbox.search(search, self.user()).await.map_err(ToolboxError::file)
    }
}

fn some(pattern: &str) -> Result<Vec<u8>, ToolboxError> {
    if pattern.is_empty() {
        return Err(ToolboxError::Invalid("pattern must not be empty".into()));
    }
    Ok(pattern.as_bytes().to_vec())
}

fn bytes(globs: &[String]) -> Vec<Vec<u8>> {
    globs.iter().map(|glob| glob.as_bytes().to_vec()).collect()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
