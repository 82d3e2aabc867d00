//! One making of a template: what was asked, how far it is, and why it ended.

use serde::{Deserialize, Serialize};

use crate::{BuildId, Code, TemplateRef, TenantId, Timestamp};

/// A build: one row of `builds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Which.
    pub id: BuildId,
    /// Its owner.
    pub tenant: TenantId,
    /// What it makes.
    pub template: TemplateRef,
    /// Further tags that shall point to what it makes.
    #[serde(default)]
    pub tags: Vec<String>,
    /// How far it is.
    pub status: BuildStatus,
    /// The step that is under way, or was the last; 0 before the first.
    pub step: u32,
    /// How many there are; 0 until that is known.
    pub steps: u32,
    /// That step as its author wrote it, shortened.
    #[serde(default)]
    pub step_text: String,
    /// Steps that were taken from the cache.
    #[serde(default)]
    pub cached_steps: u32,
    /// Why it failed.
    #[serde(default)]
    pub failure: Option<BuildFailure>,
    /// What it made.
    #[serde(default)]
    pub version: Option<String>,
    /// What its author should know: instructions that were left out, and why.
    #[serde(default)]
    pub notes: Vec<String>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When its turn came.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub ended_at: Option<Timestamp>,
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildStatus {
    /// Others are before it.
    Waiting,
    /// Its steps are under way.
    Building,
    /// The template is there.
    Ready,
    /// It could not be made; the failure says why.
    Failed,
    /// Its owner did not want it any more.
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

    /// Whether nothing comes after it.
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
    /// The closed word.
    pub code: Code,
    /// What happened, safe to show.
    pub message: String,
    /// What to try.
    #[serde(default)]
    pub hint: Option<String>,
    /// In which step.
    #[serde(default)]
    pub step: Option<u32>,
    /// What its command exited with.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// The end of what it wrote.
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
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Who says it.
    pub level: BuildLevel,
    /// In which step; 0: before the first or after the last.
    pub step: u32,
    /// What; control characters are shown as escapes.
    pub text: String,
}

/// Who says a line of a build's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildLevel {
    /// The builder: a step begins, a base is fetched.
    Info,
    /// The builder: something is not as its author may think.
    Warn,
    /// The builder: why it failed.
    Error,
    /// The step's command on its first stream.
    Stdout,
    /// The step's command on its second stream.
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
