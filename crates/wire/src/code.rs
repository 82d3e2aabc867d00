//! Code that keeps its state between executions: what to run, where, and what came of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::exec::{DroppedOutput, OutputChunk, StreamError};

/// The language of code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CodeLanguage {
    #[default]
    Python,
    JavaScript,
    TypeScript,
    Bash,
    R,
    Java,
}

/// Code to run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeBody {
    #[schema(example = "print(6*7)")]
    pub code: String,
    /// Context to run in. Default: the default context of the language, which is created when it is first used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Language of the default context; cannot be combined with `context`. Default: python.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<CodeLanguage>,
    /// Variables during this execution, in addition to those of the context.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Time limit, after which the code is interrupted. If it runs for 5 seconds more, its context is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
}

/// Request to create a context.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CodeContextBody {
    /// Default: python.
    pub language: CodeLanguage,
    /// Working directory. Default: the sandbox's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A process in the sandbox that keeps what code defined.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CodeContext {
    pub id: String,
    pub language: CodeLanguage,
    /// Directory in which it was started.
    pub cwd: String,
    #[schema(format = DateTime)]
    pub created_at: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CodeContextList {
    pub items: Vec<CodeContext>,
}

/// Result and output of an execution.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CodeResult {
    /// Id of the context.
    pub context: String,
    /// Number of the execution in its context, from 1; null if it did not start in time.
    pub execution_count: Option<u64>,
    pub stdout: String,
    pub stderr: String,
    /// The value of the last expression, and everything that was displayed.
    pub results: Vec<CodeOutput>,
    /// The error that ended the code.
    pub exception: Option<CodeException>,
    pub timed_out: bool,
    /// Whether the output is longer than shown.
    pub truncated: bool,
}

/// An error of the code.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CodeException {
    #[schema(example = "ZeroDivisionError")]
    pub name: String,
    #[schema(example = "division by zero")]
    pub value: String,
    /// May contain ANSI colours.
    pub traceback: String,
}

/// A value or a display in every form that its type offers. Images and PDF are base64.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct CodeOutput {
    /// Whether it is the value of the last expression.
    pub is_main: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub html: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub markdown: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub latex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub javascript: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub svg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub png: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub jpeg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub pdf: Option<String>,
    /// A table by its columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// A chart as data: type, title, axes and elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chart: Option<Value>,
    /// Other forms by their MIME type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Value>,
}

/// The event `start`: the code has begun to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CodeStart {
    pub context: String,
    pub execution_count: u64,
}

/// The last event of an execution.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CodeEnd {
    pub timed_out: bool,
}

/// One event of an execution that is followed.
#[derive(Debug, Clone)]
pub enum CodeEvent {
    Start(CodeStart),
    Stdout(OutputChunk),
    Stderr(OutputChunk),
    Result(Box<CodeOutput>),
    Exception(CodeException),
    Dropped(DroppedOutput),
    /// The last event.
    End(CodeEnd),
    /// The last event of a stream that broke.
    Error(StreamError),
    /// An event of a newer server.
    Unknown,
}

impl CodeEvent {
    /// Reads an event by its name and data.
    pub fn parse(name: &str, data: &str) -> Result<Self, serde_json::Error> {
        Ok(match name {
            "start" => Self::Start(serde_json::from_str(data)?),
            "stdout" => Self::Stdout(serde_json::from_str(data)?),
            "stderr" => Self::Stderr(serde_json::from_str(data)?),
            "result" => Self::Result(serde_json::from_str(data)?),
            "exception" => Self::Exception(serde_json::from_str(data)?),
            "dropped" => Self::Dropped(serde_json::from_str(data)?),
            "end" => Self::End(serde_json::from_str(data)?),
            "error" => Self::Error(serde_json::from_str(data)?),
            _ => Self::Unknown,
        })
    }
}
