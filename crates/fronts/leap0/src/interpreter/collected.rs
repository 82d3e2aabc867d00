//! An execution to its end, as one answer.

use std::collections::BTreeMap;

use atoll_budget::Account;
use atoll_front_kit::ApiError;
use atoll_toolbox::{Execution, ExecutionEvent, Rich};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// LIMIT: text and results of one answer; whoever wants more streams it.
const KEPT_MAX: usize = 16 << 20;
/// The last line on stderr where there was more.
const TRUNCATED: &str =
    "[atoll: output truncated: the beginning is kept; stream it, or write it to a file]\n";

#[derive(Debug, Default, Serialize)]
pub(super) struct Executed {
    context_id: String,
    items: Vec<Output>,
    logs: ExecutionLogs,
    error: Option<Failure>,
    execution_count: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
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

#[derive(Debug, Default, Serialize)]
struct Output {
    is_primary: bool,
    text: Option<String>,
    html: Option<String>,
    markdown: Option<String>,
    svg: Option<String>,
    png: Option<String>,
    jpeg: Option<String>,
    pdf: Option<String>,
    latex: Option<String>,
    json: Option<Value>,
    javascript: Option<String>,
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

impl Executed {
    /// All that it tells, as far as `account` has room for it.
    pub(super) async fn collect(mut execution: Execution, account: &Account) -> Result<Self, ApiError> {
        let mut done = Self { context_id: execution.context().id.clone(), ..Self::default() };
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let (mut left, mut reservation) = (KEPT_MAX, account.reserve());
        let mut is_cut = false;
        while let Some(event) = execution.next().await {
            if !is_cut && reservation.grow(KEPT_MAX - left).await.is_err() {
                left = 0;
            }
            is_cut |= left == 0;
            match event? {
                ExecutionEvent::Started { count } => done.execution_count = Some(count),
                ExecutionEvent::Stdout(text) => keep(&mut stdout, &text, &mut left),
                ExecutionEvent::Stderr(text) => keep(&mut stderr, &text, &mut left),
                ExecutionEvent::Result(rich) => {
                    let output = Output::from(*rich);
                    let size = serde_json::to_vec(&output).map_or(usize::MAX, |bytes| bytes.len());
                    if size <= left {
                        left -= size;
                        done.items.push(output);
                    }
                }
                ExecutionEvent::Error { name, value, traceback } => {
                    done.error.get_or_insert(Failure { name, value, traceback });
                }
                ExecutionEvent::TimedOut => done.error = Some(timed_out()),
                ExecutionEvent::Dropped(bytes) => {
                    keep(&mut stderr, &format!("({bytes} bytes of output were lost)\n"), &mut left);
                }
                ExecutionEvent::End => break,
            }
        }
        if is_cut {
            stderr.push_str(TRUNCATED);
        }
        done.logs = ExecutionLogs { stdout, stderr };
        Ok(done)
    }
}

fn timed_out() -> Failure {
    Failure {
        name: "TimeoutError".to_owned(),
        value: "the execution took longer than its timeout and was interrupted".to_owned(),
        traceback: String::new(),
    }
}

/// As much of it as there is room for, cut between characters.
fn keep(into: &mut String, text: &str, left: &mut usize) {
    let mut fits = text.len().min(*left);
    while !text.is_char_boundary(fits) {
        fits -= 1;
    }
    into.push_str(&text[..fits]);
    *left -= fits;
}

/// Lines with their ends, so that joining them gives back what was written.
fn as_lines<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(text.split_inclusive('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_join_to_what_was_written_and_are_cut_between_characters() {
        let logs = ExecutionLogs { stdout: "a\nb\n\nc".to_owned(), stderr: String::new() };
        let shown = serde_json::to_value(&logs).unwrap_or_default();
        assert_eq!(shown, serde_json::json!({ "stdout": ["a\n", "b\n", "\n", "c"], "stderr": [] }));
        let (mut kept, mut left) = (String::new(), 4);
        keep(&mut kept, "aéé", &mut left);
        assert_eq!((kept.as_str(), left), ("aé", 1));
        keep(&mut kept, "é", &mut left);
        assert_eq!(kept, "aé");
    }
}
