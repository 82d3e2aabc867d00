//! Encodes executions for contexts and decodes their output. Bridges answer in JSON lines; a shell, R and Java write
//! between markers that contain the random name of the execution.

use std::collections::VecDeque;

use atoll_agentapi::ProcessEvent;
use atoll_budget::{Account, Reservation};
use bytes::Bytes;
use serde_json::json;

use super::wire::{BridgeMessage, Lines, Markers, ShellOutput, Utf8, is_heavy};
use super::{Execute, ExecutionEvent, InterpreterContext, Language, Rich};
use crate::ToolboxError;

/// Replaces a result with too many values.
const LEFT_OUT: &str =
    "a result was left out because it has too many values; print it, or write it to a file\n";

/// The error of code that closed its standard output.
const OUTPUT_CLOSED: &str = "the code closed or redirected its own standard output, so its output and exit code are unknown; restart the context";

/// LIMIT: bytes of standard error that wait for the beginning of standard output. Both begin together, unless the code
/// that ran before replaced the program that prints the marks.
const EARLY_MAX: usize = 1 << 20;

/// The input for the context, and the decoder of its output. What the decoder holds is charged to the account.
pub(super) fn request(
    account: &Account,
    context: &InterpreterContext,
    id: &str,
    execute: &Execute,
) -> (Bytes, Decoder) {
    match context.language {
        Language::Python | Language::JavaScript | Language::TypeScript => {
            let (code, env, base) = (&execute.code, &execute.env, &context.base);
            let request = json!({ "op": "execute", "id": id, "code": code, "env": env, "base": base });
            (format!("{request}\n").into(), Decoder::Bridge(Lines::new(account)))
        }
        Language::Bash => (script(id, execute).into(), Decoder::shell(id, account)),
        Language::R => {
            let code = execute.code.trim_end_matches('\n');
            let lines = code.split('\n').count();
            (format!("{}{code}\n", header(id, lines, execute)).into(), Decoder::shell(id, account))
        }
        Language::Java => (
            format!("{}{}", header(id, execute.code.len(), execute), execute.code).into(),
            Decoder::shell(id, account),
        ),
    }
}

/// The header before raw code: its length, and its environment.
fn header(id: &str, size: usize, execute: &Execute) -> String {
    let mut text = format!("x {id} {size} {}\n", execute.env.len());
    for (name, value) in &execute.env {
        text.push_str(&format!("{name}="));
        value.bytes().for_each(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        });
        text.push('\n');
    }
    text
}

/// The code as one argument of `eval`, between two markers on each stream. `command` keeps a shell alive that would
/// exit on a syntax error; the trap keeps it alive when the code is interrupted.
fn script(id: &str, execute: &Execute) -> String {
    let mut env = String::new();
    for (name, value) in &execute.env {
        env.push_str(&format!("{name}={} ", quoted(value)));
    }
    let code = quoted(&execute.code);
    // On separate lines: after an error in the code some shells skip the rest of its line.
    [
        format!("trap : INT; __atoll_n=$((__atoll_n+1)); printf '\\036{id} s\\036' >&2; printf '\\036{id} s %d\\036' \"$__atoll_n\""),
        format!("{env}command eval {code} </dev/null"),
        format!("printf '\\036{id} e %d\\036' \"$?\"; printf '\\036{id} e\\036' >&2\n"),
    ]
    .join("\n")
}

/// As one shell word, with any content.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Decodes the output of a context.
pub(super) enum Decoder {
    Bridge(Lines),
    Shell(Box<Shell>),
}

/// Both streams of a shell, and its exit code.
pub(super) struct Shell {
    out: Side,
    err: Side,
    code: Option<i32>,
}

/// One of a shell's two streams.
struct Side {
    markers: Markers,
    text: Utf8,
    begun: bool,
    ended: bool,
    /// Output that arrived before the other stream had its start marker.
    early: String,
    /// A marked part that is being received.
    telling: Option<(DecoderState, String)>,
    /// For the bytes of that part.
    charged: Reservation,
    /// An error with a name was received.
    failed: bool,
}

/// The kind of a marked part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    Result,
    Mistake,
}

/// LIMIT: bytes of a marked part; the rest is dropped, and so is what the budget has no room for.
const TOLD_MAX: usize = 32 << 20;

impl Side {
    fn new(id: &str, account: &Account) -> Self {
        Self {
            markers: Markers::new(id),
            text: Utf8::default(),
            begun: false,
            ended: false,
            early: String::new(),
            telling: None,
            charged: account.reserve(),
            failed: false,
        }
    }

    /// Handles output of the running code.
    fn wrote(&mut self, bytes: &[u8], into: &mut VecDeque<ExecutionEvent>) {
        let text = self.text.feed(bytes);
        let Some((_, told)) = &mut self.telling else {
            return push_text(into, text, ExecutionEvent::Stdout);
        };
        let all = told.len() + text.len();
        if all <= TOLD_MAX && self.charged.try_grow(all).is_ok() {
            told.push_str(&text);
        }
    }

    /// The end of a marked part.
    fn told(&mut self) -> Option<ExecutionEvent> {
        let (what, text) = self.telling.take()?;
        self.charged.shrink(0);
        Some(match what {
            DecoderState::Result => {
                let data = [("text/plain".to_owned(), text.into())].into_iter().collect();
                ExecutionEvent::Result(Box::new(Rich::of(data, true)))
            }
            DecoderState::Mistake => {
                self.failed = true;
                let (name, value) = text.split_once('\n').unwrap_or((&text, ""));
                let traceback = format!("{name}: {value}");
                ExecutionEvent::Error { name: name.into(), value: value.into(), traceback }
            }
        })
    }
}

impl Decoder {
    fn shell(id: &str, account: &Account) -> Self {
        let (out, err) = (Side::new(id, account), Side::new(id, account));
        Self::Shell(Box::new(Shell { out, err, code: None }))
    }

    /// Whether output is passed on as the program writes it, piece by piece.
    pub(super) fn reads_raw_output(&self) -> bool {
        matches!(self, Self::Shell(_))
    }

    pub(super) fn stdout(
        &mut self,
        id: &str,
        data: &[u8],
        into: &mut VecDeque<ExecutionEvent>,
    ) -> Result<(), ToolboxError> {
        match self {
            Self::Bridge(lines) => {
                for line in lines.feed(data)? {
                    if is_heavy(&line) && names(&line, id) {
                        into.push_back(ExecutionEvent::Stderr(LEFT_OUT.to_owned()));
                        continue;
                    }
                    into.extend(
                        BridgeMessage::parse(&line)
                            .filter(|told| told.id.as_deref() == Some(id))
                            .and_then(event),
                    );
                }
            }
            Self::Shell(shell) => {
                let Shell { out, err, code } = &mut **shell;
                for shown in out.markers.feed(data) {
                    match shown {
                        // Output before the first marker belongs to another execution.
                        ShellOutput::Output(bytes) if out.begun && !out.ended => out.wrote(&bytes, into),
                        ShellOutput::Output(_) => {}
                        ShellOutput::Marker(words) => {
                            let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
                            match words.first().map_or("", String::as_str) {
                                "s" => {
                                    out.begun = true;
                                    into.push_back(ExecutionEvent::Started { count: number(1).unwrap_or(0) });
                                    push_text(into, std::mem::take(&mut err.early), ExecutionEvent::Stderr);
                                }
                                "r" => out.telling = Some((DecoderState::Result, String::new())),
                                "x" => out.telling = Some((DecoderState::Mistake, String::new())),
                                "q" => into.extend(out.told()),
                                _ => {
                                    out.ended = true;
                                    *code = words.get(1).and_then(|word| word.parse().ok());
                                }
                            }
                        }
                    }
                }
                self.finish(into);
            }
        }
        Ok(())
    }

    pub(super) fn stderr(&mut self, data: &[u8], into: &mut VecDeque<ExecutionEvent>) {
        // A bridge's own stderr is only for debugging.
        let Self::Shell(shell) = self else { return };
        let Shell { out, err, .. } = &mut **shell;
        for shown in err.markers.feed(data) {
            match shown {
                ShellOutput::Output(bytes) if err.begun && !err.ended => {
                    let text = err.text.feed(&bytes);
                    // The streams are read in parallel: this one may be ahead.
                    if out.begun {
                        push_text(into, text, ExecutionEvent::Stderr);
                    } else if err.early.len() + text.len() <= EARLY_MAX {
                        err.early.push_str(&text);
                    }
                }
                ShellOutput::Output(_) => {}
                ShellOutput::Marker(words) if words.first().is_some_and(|word| word == "s") => {
                    err.begun = true
                }
                ShellOutput::Marker(_) => err.ended = true,
            }
        }
        self.finish(into);
    }

    /// Whether one stream of a shell has marked its end and the other has not.
    pub(super) fn lacks_an_end(&self) -> bool {
        matches!(self, Self::Shell(shell) if shell.out.ended != shell.err.ended)
    }

    /// Whether an event belongs to the stream that has not marked its end.
    pub(super) fn is_of_open_stream(&self, event: &ProcessEvent) -> bool {
        match (self, event) {
            (Self::Shell(shell), ProcessEvent::Stdout(_) | ProcessEvent::Pty(_)) => !shell.out.ended,
            (Self::Shell(shell), ProcessEvent::Stderr(_)) => !shell.err.ended,
            _ => false,
        }
    }

    /// Ends the execution without the marker of one stream, which the code has closed or redirected.
    pub(super) fn end_without_marker(&mut self, into: &mut VecDeque<ExecutionEvent>) {
        let Self::Shell(shell) = self else { return };
        let Shell { out, err, code } = &mut **shell;
        if !out.ended {
            // The exit code comes with the marker of this stream.
            into.push_back(ExecutionEvent::Error {
                name: "OutputClosed".into(),
                value: OUTPUT_CLOSED.into(),
                traceback: String::new(),
            });
            *code = Some(0);
        }
        (out.ended, err.ended) = (true, true);
        self.finish(into);
    }

    /// Both streams mark their end; the execution ends with the later one.
    fn finish(&mut self, into: &mut VecDeque<ExecutionEvent>) {
        let Self::Shell(shell) = self else { return };
        let Shell { out, err, code } = &mut **shell;
        if !(out.ended && err.ended) {
            return;
        }
        let Some(code) = code.take() else { return };
        if code != 0 && !out.failed {
            let value = code.to_string();
            into.push_back(ExecutionEvent::Error {
                name: "ExitCode".into(),
                value,
                traceback: String::new(),
            });
        }
        into.push_back(ExecutionEvent::End);
    }
}

/// Whether a skipped line belongs to this execution: a bridge puts the name first, and only it knows the name.
fn names(line: &[u8], id: &str) -> bool {
    let beginning = &line[..line.len().min(256)];
    beginning.windows(id.len()).any(|window| window == id.as_bytes())
}

fn push_text(into: &mut VecDeque<ExecutionEvent>, text: String, make: fn(String) -> ExecutionEvent) {
    if !text.is_empty() {
        into.push_back(make(text));
    }
}

fn event(told: BridgeMessage) -> Option<ExecutionEvent> {
    Some(match told.kind.as_str() {
        "started" => ExecutionEvent::Started { count: told.count },
        "stdout" => ExecutionEvent::Stdout(told.text),
        "stderr" => ExecutionEvent::Stderr(told.text),
        "result" => ExecutionEvent::Result(Box::new(Rich::of(told.data, told.main))),
        "error" => ExecutionEvent::Error { name: told.name, value: told.value, traceback: told.traceback },
        "end" => ExecutionEvent::End,
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_budget::{Budget, BudgetOwner};

    fn account() -> Account {
        Budget::default().account(BudgetOwner::Stranger(None))
    }

    fn context(language: Language) -> InterpreterContext {
        InterpreterContext {
            id: "c".into(),
            language,
            cwd: String::new(),
            created_at_ms: 0,
            pid: 1,
            base: None,
        }
    }

    #[test]
    fn code_is_one_word_of_a_shell() {
        assert_eq!(quoted("a'b; rm -rf /"), r"'a'\''b; rm -rf /'");
        let execute = Execute { code: "echo 'x'".into(), ..Default::default() };
        assert!(script("id", &execute).contains(r"command eval 'echo '\''x'\''' </dev/null"));
    }

    #[test]
    fn standard_error_that_waits_for_the_other_stream_is_bounded() {
        let (_, mut decoder) = request(&account(), &context(Language::Bash), "n", &Execute::default());
        let mut events = VecDeque::new();
        decoder.stderr(b"\x1en s\x1e", &mut events);
        for _ in 0..64 {
            decoder.stderr(&[b'a'; 64 << 10], &mut events);
        }
        assert!(events.is_empty());
        decoder.stdout("n", b"\x1en s 3\x1ehi", &mut events).unwrap();
        let kept = events.iter().map(|event| match event {
            ExecutionEvent::Stderr(text) => text.len(),
            _ => 0,
        });
        let kept: usize = kept.sum();
        assert!((1..=EARLY_MAX).contains(&kept), "{kept}");
    }

    #[test]
    fn a_shell_ends_when_both_of_its_streams_do() {
        let (_, mut decoder) = request(&account(), &context(Language::Bash), "n", &Execute::default());
        let mut events = VecDeque::new();
        // The second stream may be read first.
        decoder.stderr(b"old\x1en s\x1eah", &mut events);
        decoder.stdout("n", b"old\x1en s 3\x1ehi", &mut events).unwrap();
        decoder.stdout("n", b"\x1en e 2\x1e", &mut events).unwrap();
        decoder.stderr(b"oh", &mut events);
        assert!(!events.contains(&ExecutionEvent::End));
        decoder.stderr(b"\x1en e\x1e", &mut events);
        let error =
            ExecutionEvent::Error { name: "ExitCode".into(), value: "2".into(), traceback: String::new() };
        let expected = [
            ExecutionEvent::Started { count: 3 },
            ExecutionEvent::Stderr("ah".into()),
            ExecutionEvent::Stdout("hi".into()),
            ExecutionEvent::Stderr("oh".into()),
            error,
            ExecutionEvent::End,
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn code_that_redirected_a_stream_ends_without_its_marker() {
        let (_, mut decoder) = request(&account(), &context(Language::Bash), "n", &Execute::default());
        let mut events = VecDeque::new();
        decoder.stderr(b"\x1en s\x1e", &mut events);
        decoder.stdout("n", b"\x1en s 1\x1ehi", &mut events).unwrap();
        assert!(!decoder.lacks_an_end());
        decoder.stdout("n", b"\x1en e 0\x1e", &mut events).unwrap();
        assert!(decoder.lacks_an_end());
        assert!(decoder.is_of_open_stream(&ProcessEvent::Stderr(Bytes::new())));
        assert!(!decoder.is_of_open_stream(&ProcessEvent::Stdout(Bytes::new())));
        decoder.end_without_marker(&mut events);
        assert!(!decoder.lacks_an_end());
        let expected =
            [ExecutionEvent::Started { count: 1 }, ExecutionEvent::Stdout("hi".into()), ExecutionEvent::End];
        assert_eq!(events, expected);

        let (_, mut decoder) = request(&account(), &context(Language::Bash), "n", &Execute::default());
        let mut events = VecDeque::new();
        decoder.stderr(b"\x1en s\x1e\x1en e\x1e", &mut events);
        assert!(decoder.lacks_an_end());
        decoder.end_without_marker(&mut events);
        assert!(
            matches!(&events[0], ExecutionEvent::Error { name, .. } if name == "OutputClosed"),
            "{events:?}"
        );
        assert_eq!(events.back(), Some(&ExecutionEvent::End));
    }

    #[test]
    fn results_and_mistakes_are_told_between_markers() {
        let (wire, mut decoder) = request(
            &account(),
            &context(Language::R),
            "n",
            &Execute { code: "x\ny\n".into(), env: [("A".into(), "b c".into())].into(), timeout: None },
        );
        assert_eq!(wire, "x n 2 1\nA=b%20c\nx\ny\n");
        let mut events = VecDeque::new();
        decoder.stderr(b"\x1en s\x1e\x1en e\x1e", &mut events);
        let wire = b"\x1en s 1\x1ehi\n\x1en r\x1e[1] 42\x1en q\x1e\x1en x\x1esimpleError\nno\x1en q\x1e\x1en e 1\x1e";
        decoder.stdout("n", wire, &mut events).unwrap();
        let result = Rich { is_main: true, text: Some("[1] 42".into()), ..Rich::default() };
        let error = ExecutionEvent::Error {
            name: "simpleError".into(),
            value: "no".into(),
            traceback: "simpleError: no".into(),
        };
        let expected = [
            ExecutionEvent::Started { count: 1 },
            ExecutionEvent::Stdout("hi\n".into()),
            ExecutionEvent::Result(Box::new(result)),
            error,
            ExecutionEvent::End,
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn a_result_of_too_many_values_is_left_out_and_said_to_be() {
        let (_, mut decoder) = request(&account(), &context(Language::Python), "mine", &Execute::default());
        let heavy = |id: &str| {
            let many = "0,".repeat(600_000);
            format!("{{\"type\":\"result\",\"id\":\"{id}\",\"data\":{{\"application/json\":[{many}0]}}}}\n")
        };
        let mut events = VecDeque::new();
        decoder.stdout("mine", heavy("mine").as_bytes(), &mut events).unwrap();
        decoder.stdout("mine", heavy("other").as_bytes(), &mut events).unwrap();
        assert_eq!(events, [ExecutionEvent::Stderr(LEFT_OUT.to_owned())]);
    }

    #[test]
    fn lines_for_others_are_not_ours() {
        let (_, mut decoder) = request(&account(), &context(Language::Python), "mine", &Execute::default());
        let mut events = VecDeque::new();
        let wire = b"{\"type\":\"stdout\",\"id\":\"other\",\"text\":\"a\"}\nnoise\n{\"type\":\"end\",\"id\":\"mine\"}\n";
        decoder.stdout("mine", wire, &mut events).unwrap();
        assert_eq!(events, [ExecutionEvent::End]);
    }

    #[test]
    fn any_output_of_a_context_is_decoded_or_refused() {
        atoll_robustness::check("context_output", |bytes| {
            for language in [Language::Python, Language::Bash] {
                let (_, mut decoder) = request(&account(), &context(language), "n", &Execute::default());
                let mut events = VecDeque::new();
                for piece in bytes.chunks(100) {
                    let _ = decoder.stdout("n", piece, &mut events);
                    decoder.stderr(piece, &mut events);
                }
                assert!(events.len() <= 4 * bytes.len() + 4);
            }
        });
    }
}
