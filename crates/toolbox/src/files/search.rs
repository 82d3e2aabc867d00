//! Search by name and by content; the agent does the work.

use std::time::Duration;

use atoll_agentapi::{Search, Searched};

use super::{Files, check};
use crate::ToolboxError;

/// LIMIT: time for a search; the matches found by then are returned.
const SEARCH_LIMIT: Duration = Duration::from_secs(30);
/// LIMIT: matches of one answer.
const FOUND_MAX: u32 = 10_000;

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchResults<T> {
    /// Sorted by path.
    pub items: Vec<T>,
    /// A limit was reached: there may be more.
    pub truncated: bool,
}

/// A search in the content of files.
#[derive(Debug, Clone, Default)]
pub struct Grep {
    /// A regular expression, or plain text.
    pub pattern: String,
    /// The pattern is plain text.
    pub literal: bool,
    /// Ignore case.
    pub ignore_case: bool,
    /// Globs of the files to search; empty: all.
    pub include: Vec<String>,
    /// Globs of excluded entries, with everything below them.
    pub exclude: Vec<String>,
}

/// A line that matches the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The file.
    pub path: String,
    /// From 1.
    pub line: u64,
    /// The line, truncated if it is very long.
    pub content: String,
}

impl Files<'_> {
    /// Paths below a directory that match a glob. A glob with a slash matches the whole path below it, one without a
    /// slash the name at any depth.
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

    /// Paths below a directory whose last name matches a glob.
    pub async fn find(&self, path: &str, name: &str) -> Result<SearchResults<String>, ToolboxError> {
        if name.contains('/') {
            return Err(ToolboxError::Invalid("pattern is for names, which have no '/'".into()));
        }
        self.glob(path, name, &[]).await
    }

    /// Matching lines of files below a directory, or of one file. Binary files are skipped.
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
