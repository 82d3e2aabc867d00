//! Lists and trees of directories.

use std::time::Duration;

use atoll_agentapi::{Entry, EntryKind, Search};

use super::{Files, check};
use crate::ToolboxError;

/// LIMIT: time for a walk; the entries found by then are returned.
const WALK_LIMIT: Duration = Duration::from_secs(30);
/// LIMIT: more levels than the agent returns.
const LEVELS_MAX: usize = 128;

/// Options of a list.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Levels; 1 is the directory alone, `None` is the agent's maximum.
    pub depth: Option<u32>,
    /// Globs of excluded entries, with everything below them.
    pub exclude: Vec<String>,
}

/// The content of a directory, sorted, children after their parent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Entries.
    pub entries: Vec<Entry>,
    /// There are more entries than the agent returns at once.
    pub truncated: bool,
}

/// The names below a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// The first level, each with its children.
    pub nodes: Vec<Node>,
    /// There are more entries than the agent returns at once.
    pub truncated: bool,
}

/// A name in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name.
    pub name: String,
    /// Whether it can have children.
    pub is_dir: bool,
    /// The children; `None` for entries that are not directories, or below the requested depth.
    pub children: Option<Vec<Node>>,
}

impl Files<'_> {
    /// The content of a directory.
    pub async fn list(&self, path: &str, query: &ListOptions) -> Result<Listing, ToolboxError> {
        check(path)?;
        let top = self.stat(path).await?;
        if self.real_kind(&top).await? != EntryKind::Directory {
            return Err(ToolboxError::Invalid(format!("path '{path}' is not a directory")));
        }
        let search = Search {
            path: path.as_bytes().to_vec(),
            depth: query.depth.unwrap_or(0),
            exclude: query.exclude.iter().map(|glob| glob.as_bytes().to_vec()).collect(),
            limit: WALK_LIMIT,
            ..Default::default()
        };
        let found = self.toolbox.sandbox.search(search, self.user()).await.map_err(ToolboxError::file)?;
        Ok(Listing { entries: found.entries, truncated: found.truncated })
    }

    /// The names below a directory as a tree, `depth` levels of it.
    pub async fn tree(
        &self,
        path: &str,
        depth: Option<u32>,
        exclude: &[String],
    ) -> Result<Tree, ToolboxError> {
        let query = ListOptions { depth: depth.map(|depth| depth.max(1)), exclude: exclude.to_vec() };
        let Listing { entries, truncated } = self.list(path, &query).await?;
        let top = entries.first().map(|first| depth_of(&first.path)).unwrap_or(0);
        let bottom = depth.map_or(usize::MAX, |depth| top + depth.max(1) as usize - 1);
        let mut rest = entries.iter().peekable();
        // The agent has its own limit; but its answer is untrusted, and every level uses stack space.
        let bottom = bottom.min(top + LEVELS_MAX);
        Ok(Tree { nodes: nodes(&mut rest, top, bottom), truncated })
    }
}

/// The entries of one level, each with its children one level deeper. The number of levels is limited.
fn nodes<'e>(
    rest: &mut std::iter::Peekable<impl Iterator<Item = &'e Entry>>,
    level: usize,
    bottom: usize,
) -> Vec<Node> {
    let mut found = Vec::new();
    while let Some(entry) = rest.next_if(|entry| depth_of(&entry.path) >= level) {
        let is_dir = entry.kind == EntryKind::Directory;
        let below = if is_dir && level < bottom { nodes(rest, level + 1, bottom) } else { Vec::new() };
        let children = (is_dir && level < bottom).then_some(below);
        found.push(Node { name: String::from_utf8_lossy(&entry.name).into_owned(), is_dir, children });
    }
    found
}

fn depth_of(path: &[u8]) -> usize {
    path.iter().filter(|byte| **byte == b'/').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: EntryKind) -> Entry {
        Entry {
            name: path.rsplit('/').next().unwrap_or_default().into(),
            path: path.into(),
            kind,
            size: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            owner: String::new(),
            group: String::new(),
            modified_at_ms: 0,
            symlink_target: None,
            metadata: Default::default(),
        }
    }

    #[test]
    fn a_list_becomes_a_tree() {
        use EntryKind::{Directory as D, File as F};
        let entries = [
            entry("/t/a", D),
            entry("/t/a/b", D),
            entry("/t/a/b/c", F),
            entry("/t/a/d", F),
            entry("/t/e", F),
        ];
        let tree = nodes(&mut entries.iter().peekable(), 2, usize::MAX);
        assert_eq!(tree.len(), 2);
        let a = tree[0].children.as_ref().map(|children| {
            children
                .iter()
                .map(|node| (node.name.as_str(), node.children.as_ref().map(Vec::len)))
                .collect::<Vec<_>>()
        });
        assert_eq!(a, Some(vec![("b", Some(1)), ("d", None)]));
        let deep: Vec<Entry> = (1..5_000).map(|n| entry(&"/d".repeat(n), D)).collect();
        let mut level = &nodes(&mut deep.iter().peekable(), 1, LEVELS_MAX);
        let mut levels = 0;
        while let Some(below) = level.first().and_then(|node| node.children.as_ref()) {
            (level, levels) = (below, levels + 1);
        }
        assert!(levels <= LEVELS_MAX);
        let shallow = nodes(&mut entries[..1].iter().peekable(), 2, 2);
        assert_eq!(shallow[0].children, None, "its children were not asked for");
    }
}
