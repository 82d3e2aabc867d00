//! The move of a sandbox to another provider: its durable record, its progress, and its report.

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// A move of a sandbox that is not finished. It is part of the lease, so every change of it is a write with the lease's generation.
///
/// Until the write that changes [`Lease::provider`](crate::Lease::provider), the copy at `from` is the sandbox; from then on it is
/// the copy at `to`. The other one is removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxMove {
    /// The provider that it leaves.
    pub from: String,
    /// The provider that it goes to.
    pub to: String,
    /// The template or image that it gets there.
    pub template: String,
    pub stage: MoveStage,
    pub started_at: Timestamp,
    /// What is done so far. Published by its driver, never stored.
    #[serde(skip)]
    pub progress: MoveProgress,
}

impl SandboxMove {
    /// Whether the copy is not complete: an interruption leaves the sandbox where it was.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        self.stage == MoveStage::Copying
    }

    /// The provider of the copy that is not the sandbox.
    #[must_use]
    pub fn other_than(&self, provider: &str) -> &str {
        if self.to == provider { &self.from } else { &self.to }
    }
}

/// How far a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveStage {
    /// The sandbox is being stopped and copied.
    Copying,
    /// It is decided where the sandbox is; what is left at the other provider is being removed.
    Removing,
}

/// The step and the amount of a copy that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveProgress {
    pub step: MoveStep,
    /// Files, folders and links that were sent.
    pub entries: u64,
    /// Bytes of files that were sent.
    pub bytes: u64,
}

/// A step of the copy, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveStep {
    /// The processes of the sandbox are being ended.
    #[default]
    Stopping,
    /// An empty sandbox is being made at the target.
    Preparing,
    /// Files are being sent.
    Copying,
    /// The copy is being read back and compared.
    Comparing,
}

impl MoveStep {
    /// Every step, for tables and tests.
    pub const ALL: [MoveStep; 4] = [Self::Stopping, Self::Preparing, Self::Copying, Self::Comparing];

    /// The step as the API shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::Preparing => "preparing",
            Self::Copying => "copying",
            Self::Comparing => "comparing",
        }
    }
}

/// The result of the last move of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    pub from: String,
    pub to: String,
    pub ended_at: Timestamp,
    /// Why the sandbox stayed where it was; safe to show. `None`: it was moved.
    pub failure: Option<String>,
    /// What was carried.
    pub carried: MoveCarried,
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What is not at the target.
    pub left_behind: Vec<LeftBehind>,
    /// The user of commands before, if the target has one user only: a move back uses it again.
    #[serde(default)]
    pub former_user: Option<String>,
}

/// What a move carries of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveCarried {
    /// Everything that differs from the template.
    Layer,
    /// The home and the working directory.
    Folders,
}

/// Something of a sandbox that is not at the target of its move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBehind {
    pub kind: LeftBehindKind,
    /// Names of some of them: paths, ids or a sentence.
    pub names: Vec<String>,
    /// How many there are.
    pub count: u64,
}

/// LIMIT: names in a report; the count says how many there are.
pub const LEFT_BEHIND_NAMES_MAX: usize = 50;

impl LeftBehind {
    /// One thing, described by a sentence.
    #[must_use]
    pub fn one(kind: LeftBehindKind, sentence: impl Into<String>) -> Self {
        Self { kind, names: vec![sentence.into()], count: 1 }
    }

    /// Several things by name; the list of names is cut. `None`: there are none.
    pub fn several(kind: LeftBehindKind, names: impl IntoIterator<Item = String>) -> Option<Self> {
        let mut left = Self { kind, names: Vec::new(), count: 0 };
        for name in names {
            left.add(name);
        }
        (left.count > 0).then_some(left)
    }

    /// Counts one more.
    pub fn add(&mut self, name: String) {
        self.count += 1;
        if self.names.len() < LEFT_BEHIND_NAMES_MAX {
            self.names.push(name);
        }
    }
}

/// What can be left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftBehindKind {
    /// Processes and their memory.
    Processes,
    /// Files outside the carried folders that differ from the template.
    Files,
    /// Mounted volumes. They stay at their provider.
    Mounts,
    /// Snapshots. They stay at their provider, and the sandbox cannot be rolled back to them.
    Snapshots,
    /// The template: the target has another one.
    Template,
    /// The user of commands: the target does not have it.
    User,
    /// The owners of files: the target has one user only, which cannot give files to others.
    Owners,
}

impl LeftBehindKind {
    /// Every kind, for tables and tests.
    pub const ALL: [LeftBehindKind; 7] = [
        Self::Processes,
        Self::Files,
        Self::Mounts,
        Self::Snapshots,
        Self::Template,
        Self::User,
        Self::Owners,
    ];

    /// The kind as the API shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Files => "files",
            Self::Mounts => "mounts",
            Self::Snapshots => "snapshots",
            Self::Template => "template",
            Self::User => "user",
            Self::Owners => "owners",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut_and_counted() {
        let names = (0..200).map(|n| n.to_string());
        let left = LeftBehind::several(LeftBehindKind::Files, names).expect("some");
        assert_eq!((left.names.len(), left.count), (LEFT_BEHIND_NAMES_MAX, 200));
        assert_eq!(LeftBehind::several(LeftBehindKind::Mounts, []), None);
    }

    #[test]
    fn every_word_is_the_stored_one() {
        for kind in LeftBehindKind::ALL {
            assert_eq!(serde_json::to_string(&kind).expect("plain enum"), format!("{:?}", kind.as_str()));
        }
        for step in MoveStep::ALL {
            assert_eq!(serde_json::to_string(&step).expect("plain enum"), format!("{:?}", step.as_str()));
        }
    }
}
