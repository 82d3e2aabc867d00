//! An execution of code to its end, collected within the byte budget.

use atoll_budget::{Account, Reservation};
use atoll_toolbox::{Execution, ExecutionEvent, Rich, ToolboxError};
use bytes::Bytes;

/// LIMIT: text and results of one answer; clients that want more stream it.
const KEPT_MAX: usize = 16 << 20;

/// Everything that an execution produced, within the limit. Its bytes are counted until it is dropped.
#[derive(Debug)]
pub struct CollectedExecution {
    /// Id of the context.
    pub context: String,
    /// Number of the execution in its context; `None` if it did not start.
    pub count: Option<u64>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Values and displays.
    pub results: Vec<Rich>,
    /// The error of the code.
    pub error: Option<ExecutionError>,
    /// Whether the timeout ended it.
    pub timed_out: bool,
    /// Whether some output was left out because of the limit.
    pub truncated: bool,
    /// Bytes of output that were lost because they were not read in time.
    pub dropped: u64,
    left: usize,
    held: Reservation,
}

/// An error of the code.
#[derive(Debug, Default)]
pub struct ExecutionError {
    /// The name of the error.
    pub name: String,
    /// Its text.
    pub value: String,
    /// Where it happened.
    pub traceback: String,
}

impl CollectedExecution {
    /// Runs an execution to its end.
    pub async fn collect(mut execution: Execution, account: &Account) -> Result<Self, ToolboxError> {
        let mut done = Self {
            context: execution.context().id.clone(),
            count: None,
            stdout: String::new(),
            stderr: String::new(),
            results: Vec::new(),
            error: None,
            timed_out: false,
            truncated: false,
            dropped: 0,
            left: KEPT_MAX,
            held: account.reserve(),
        };
        while let Some(event) = execution.next().await {
            let event = event?;
            if event == ExecutionEvent::End {
                break;
            }
            done.take(event);
            if done.left > 0 && done.held.grow(KEPT_MAX - done.left).await.is_err() {
                done.left = 0;
            }
            done.truncated |= done.left == 0;
        }
        Ok(done)
    }

    /// The standard output. Everything stays counted until these bytes are dropped, so they are written last.
    #[must_use]
    pub fn into_stdout(self) -> Bytes {
        self.held.attach(self.stdout)
    }

    fn take(&mut self, event: ExecutionEvent) {
        match event {
            ExecutionEvent::Started { count } => self.count = Some(count),
            ExecutionEvent::Stdout(text) => keep(&mut self.stdout, &text, &mut self.left),
            ExecutionEvent::Stderr(text) => keep(&mut self.stderr, &text, &mut self.left),
            ExecutionEvent::Result(rich) => match self.left.checked_sub(size(&rich)) {
                Some(left) => {
                    self.left = left;
                    self.results.push(*rich);
                }
                None => self.truncated = true,
            },
            ExecutionEvent::Error { name, value, traceback } if self.error.is_none() => {
                let mut error = ExecutionError::default();
                for (into, text) in
                    [(&mut error.name, name), (&mut error.value, value), (&mut error.traceback, traceback)]
                {
                    keep(into, &text, &mut self.left);
                }
                self.error = Some(error);
            }
            ExecutionEvent::Error { .. } => {}
            ExecutionEvent::TimedOut => self.timed_out = true,
            ExecutionEvent::Dropped(bytes) => self.dropped += bytes,
            ExecutionEvent::End => {}
        }
    }
}

/// As much of the text as the limit allows, cut between characters.
fn keep(into: &mut String, text: &str, left: &mut usize) {
    let mut fits = text.len().min(*left);
    while !text.is_char_boundary(fits) {
        fits -= 1;
    }
    into.push_str(&text[..fits]);
    *left = if fits < text.len() { 0 } else { *left - fits };
}

/// The bytes of a result in all its forms, as JSON.
fn size(rich: &Rich) -> usize {
    let Rich {
        is_main: _,
        text,
        html,
        markdown,
        svg,
        png,
        jpeg,
        pdf,
        latex,
        json,
        javascript,
        data,
        chart,
        extra,
    } = rich;
    let texts = [text, html, markdown, svg, png, jpeg, pdf, latex, javascript];
    let values = [json, data, chart].into_iter().flatten().chain(extra.values());
    texts.into_iter().flatten().map(|text| json_len(text)).sum::<usize>()
        + values.map(|value| value.to_string().len()).sum::<usize>()
}

fn json_len(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..b' ' => 6,
        _ => 1,
    };
    text.bytes().map(escaped).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_nothing_follows_a_cut() {
        let (mut kept, mut left) = (String::new(), 4);
        keep(&mut kept, "aéé", &mut left);
        assert_eq!((kept.as_str(), left), ("aé", 0));
        keep(&mut kept, "b", &mut left);
        assert_eq!(kept, "aé");
    }

    #[test]
    fn every_form_of_a_result_counts() {
        let rich = Rich {
            text: Some("a\"\0".to_owned()),
            json: Some(serde_json::json!([1])),
            extra: [("x/y".to_owned(), serde_json::json!("ab"))].into(),
            ..Rich::default()
        };
        assert_eq!(size(&rich), 1 + 2 + 6 + 3 + 4);
    }
}
