//! One build of a template: the request, its progress, and its result.

use serde::{Deserialize, Serialize};

use crate::{BuildId, Code, NodeName, TemplateRef, TenantId, Timestamp};

/// A build: one row of `builds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub id: BuildId,
    /// Its owner.
    pub tenant: TenantId,
    /// The node that runs it.
    #[serde(default)]
    pub node: NodeName,
    /// The template that it makes.
    pub template: TemplateRef,
    /// Further tags for the result.
    #[serde(default)]
    pub tags: Vec<String>,
    pub status: BuildStatus,
    /// The current or last step; 0 before the first.
    pub step: u32,
    /// The number of steps; 0 until it is known.
    pub steps: u32,
    /// The text of that step, shortened.
    #[serde(default)]
    pub step_text: String,
    /// Steps that were taken from the cache.
    #[serde(default)]
    pub cached_steps: u32,
    /// Why it failed.
    #[serde(default)]
    pub failure: Option<BuildFailure>,
    /// The resulting version.
    #[serde(default)]
    pub version: Option<String>,
    /// Notes for the author: ignored instructions, and why.
    #[serde(default)]
    pub notes: Vec<String>,
    /// When it was requested.
    pub created_at: Timestamp,
    /// When it started.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub ended_at: Option<Timestamp>,
}

/// The status of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildStatus {
    /// In the queue.
    Waiting,
    /// Its steps are running.
    Building,
    /// The template exists.
    Ready,
    /// It failed; the failure says why.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl BuildStatus {
    /// Every status, for tables and tests.
    pub const ALL: [BuildStatus; 5] =
        [Self::Waiting, Self::Building, Self::Ready, Self::Failed, Self::Cancelled];

    /// The status as the API shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the status is final.
    #[must_use]
    pub const fn is_end(self) -> bool {
        match self {
            Self::Waiting | Self::Building => false,
            Self::Ready | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// Why a build failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildFailure {
    /// The error code.
    pub code: Code,
    /// What happened, safe to show.
    pub message: String,
    /// What to try.
    #[serde(default)]
    pub hint: Option<String>,
    /// The step that failed.
    #[serde(default)]
    pub step: Option<u32>,
    /// The exit code of its command.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// The end of its output.
    #[serde(default)]
    pub tail: Vec<String>,
}

impl BuildFailure {
    /// The failure in one line: the step, what happened, the end of its output, and what to try.
    #[must_use]
    pub fn summary(&self) -> String {
        let step = self.step.map_or_else(String::new, |step| format!("step {step}: "));
        let tail = self.tail.last().map_or_else(String::new, |line| format!(": {line}"));
        let hint = self.hint.as_ref().map_or_else(String::new, |hint| format!(" ({hint})"));
        format!("{step}{}{tail}{hint}", self.message)
    }
}

/// One line of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildLine {
    /// Counts from 1 without gaps.
    pub seq: u64,
    /// The time, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The source of the line.
    pub level: BuildLevel,
    /// The step; 0: before the first or after the last.
    pub step: u32,
    /// The text; control characters are escaped.
    pub text: String,
}

/// The source of a line in a build's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildLevel {
    /// The builder: a step begins, a base is fetched.
    Info,
    /// The builder: a warning for the author.
    Warn,
    /// The builder: why it failed.
    Error,
    /// Standard output of the step's command.
    Stdout,
    /// Standard error of the step's command.
    Stderr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_ends_with_what_to_try() {
        let failure = BuildFailure {
            code: Code::InvalidRequest,
            message: "no such image".to_owned(),
            hint: Some("log in first".to_owned()),
            step: Some(2),
            exit_code: None,
            tail: vec!["last".to_owned()],
        };
        assert_eq!(failure.summary(), "step 2: no such image: last (log in first)");
    }

    #[test]
    fn every_status_serialises_as_its_text() {
        for status in BuildStatus::ALL {
            assert_eq!(serde_json::to_string(&status).expect("plain enum"), format!("{:?}", status.as_str()));
        }
    }
}
