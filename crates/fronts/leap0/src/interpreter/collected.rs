//! Runs an execution to its end and returns it as one response.

use std::collections::BTreeMap;

use atoll_front_kit::CollectedExecution;
use atoll_toolbox::Rich;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The last line on stderr if output was cut.
const TRUNCATED: &str =
    "[atoll: output truncated: the beginning is kept; stream it, or write it to a file]\n";

#[derive(Debug, Serialize)]
pub(super) struct Executed {
    context_id: String,
    items: Vec<Output>,
    logs: ExecutionLogs,
    error: Option<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_count: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ExecutionLogs {
    #[serde(serialize_with = "as_lines")]
    stdout: String,
    #[serde(serialize_with = "as_lines")]
    stderr: String,
}

#[derive(Debug, Serialize)]
struct Failure {
    name: String,
    value: String,
    traceback: String,
}

/// COMPAT(leap0): the JavaScript SDK takes a missing field and refuses null; see tests/leap0/test_javascript.py.
#[derive(Debug, Serialize)]
struct Output {
    is_primary: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    markdown: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    svg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    png: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jpeg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pdf: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    javascript: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<BTreeMap<String, Value>>,
}

impl From<Rich> for Output {
    fn from(rich: Rich) -> Self {
        let mut extra = rich.extra;
        let more = [("data", rich.data), ("chart", rich.chart)];
        extra.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Self {
            is_primary: rich.is_main,
            text: rich.text,
            html: rich.html,
            markdown: rich.markdown,
            svg: rich.svg,
            png: rich.png,
            jpeg: rich.jpeg,
            pdf: rich.pdf,
            latex: rich.latex,
            json: rich.json,
            javascript: rich.javascript,
            extra: (!extra.is_empty()).then_some(extra),
        }
    }
}

impl From<CollectedExecution> for Executed {
    fn from(mut done: CollectedExecution) -> Self {
        if done.dropped > 0 {
            done.stderr.push_str(&format!("({} bytes of output were lost)\n", done.dropped));
        }
        if done.truncated {
            done.stderr.push_str(TRUNCATED);
        }
        let failed = done.error.map(|error| Failure {
            name: error.name,
            value: error.value,
            traceback: error.traceback,
        });
        Self {
            context_id: done.context,
            items: done.results.into_iter().map(Output::from).collect(),
            logs: ExecutionLogs { stdout: done.stdout, stderr: done.stderr },
            error: if done.timed_out { Some(timed_out()) } else { failed },
            execution_count: done.count,
        }
    }
}

fn timed_out() -> Failure {
    Failure {
        name: "TimeoutError".to_owned(),
        value: "the execution took longer than its timeout and was interrupted".to_owned(),
        traceback: String::new(),
    }
}

/// Lines with their line ends, so that joining them gives the output back.
fn as_lines<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(text.split_inclusive('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_join_to_what_was_written() {
        let logs = ExecutionLogs { stdout: "a\nb\n\nc".to_owned(), stderr: String::new() };
        let shown = serde_json::to_value(&logs).unwrap_or_default();
        assert_eq!(shown, serde_json::json!({ "stdout": ["a\n", "b\n", "\n", "c"], "stderr": [] }));
    }
}
