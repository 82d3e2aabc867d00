//! The tool `shell`: its answers in both forms, and small scripts of this provider.
//!
//! Images answer in two forms: *wrapped*, a JSON object with `stdout`, `stderr` and `exit_code`, and *raw*, the output alone. A
//! script prints its result between two marks with a random name, so that both forms give the same, and a result that was cut or
//! mixed with other output is noticed.

use std::time::Duration;

use atoll_model::ErrorKind;
use atoll_provider::ProviderError;
use atoll_remote::{CallError, Repeat, random_hex};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::api::{AgentbayApi, ToolAnswer};

/// LIMIT: bytes of a script. The service carries messages of at most 63 KiB.
pub(crate) const SCRIPT_MAX: usize = 48 << 10;
/// The deadline of a script at the service.
const SCRIPT_WITHIN: Duration = Duration::from_secs(50);

/// What a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShellOutput {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: i64,
}

impl ShellOutput {
    /// Reads the text of an answer. One that failed may have the wrapped form, too.
    pub(crate) fn parse(answer: &ToolAnswer) -> Self {
        let raw = || {
            let code = i64::from(answer.is_error);
            let (stdout, stderr) = match answer.is_error {
                true => (String::new(), answer.text.clone()),
                false => (answer.text.clone(), String::new()),
            };
            Self { stdout, stderr, code }
        };
        let Ok(wrapped) = serde_json::from_str::<Value>(&answer.text) else { return raw() };
        let text = |name: &str| wrapped[name].as_str().map(str::to_owned);
        let code = wrapped["exit_code"].as_i64();
        let is_wrapped = match (code, text("stdout"), text("stderr")) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => true,
            // The output of a command that printed JSON.
            _ => false,
        };
        if !is_wrapped {
            return raw();
        }
        let code = code.or_else(|| wrapped["errorCode"].as_i64()).unwrap_or(0);
        let code = if answer.is_error && code == 0 { 1 } else { code };
        Self { stdout: text("stdout").unwrap_or_default(), stderr: text("stderr").unwrap_or_default(), code }
    }
}

/// Why a script has no result.
#[derive(Debug)]
pub(crate) enum ScriptError {
    /// The call failed.
    Call(CallError),
    /// The script refused, with a kind and a sentence.
    Refused(ErrorKind, String),
}

impl From<CallError> for ScriptError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// A text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

pub(crate) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn decoded(text: &str) -> Result<Vec<u8>, CallError> {
    let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    STANDARD.decode(plain).map_err(|_| changed())
}

fn changed() -> CallError {
    CallError::Unanswered { why: "the output of a command was cut or changed".to_owned() }
}

/// Functions for scripts: `no KIND TEXT` refuses; `try COMMAND…` refuses with what a failed command says.
const PRELUDE: &str = r#"
no() { echo "refused $1"; echo "$2"; echo "$M-end"; exit 0; }
try() { E=$("$@" 2>&1) || case $E in
*"ermission denied"*|*"not permitted"*|*"ead-only file"*) no forbidden "$E" ;;
*"No space left"*) no exhausted "$E" ;;
*"No such file"*) no missing "$E" ;;
*) no invalid "$E" ;; esac; }
"#;

fn kind(word: &str) -> ErrorKind {
    match word {
        "missing" => ErrorKind::NotFound,
        "exists" => ErrorKind::Exists,
        "forbidden" => ErrorKind::Forbidden,
        "exhausted" => ErrorKind::Exhausted,
        _ => ErrorKind::Invalid,
    }
}

/// The lines between the marks.
fn result(output: &str, mark: &str) -> Result<Vec<String>, ScriptError> {
    let (begin, end) = (format!("{mark}-begin\n"), format!("{mark}-end"));
    let from = output.find(&begin).ok_or_else(changed)? + begin.len();
    let to = from + output[from..].find(&end).ok_or_else(changed)?;
    let lines: Vec<String> = output[from..to].lines().map(str::to_owned).collect();
    if let Some(word) = lines.first().and_then(|line| line.strip_prefix("refused ")) {
        let text = lines[1..].join(" ");
        let text: String = text.chars().filter(|c| !c.is_control()).take(300).collect();
        return Err(ScriptError::Refused(kind(word), text));
    }
    Ok(lines)
}

impl AgentbayApi {
    /// Runs a script in a session; the result is what it prints, line by line. Its errors are not shown.
    pub(crate) async fn script(
        &self,
        id: &str,
        script: &str,
        repeat: Repeat,
    ) -> Result<Vec<String>, ScriptError> {
        let mark =
            format!("atoll-{}", random_hex().map_err(|error| CallError::NotSent { why: error.to_string() })?);
        let command =
            format!("M={mark}; echo $M-begin; {{ {PRELUDE}\n{script}\n}} 2>/dev/null; echo; echo $M-end");
        let args = json!({ "command": command, "timeout_ms": SCRIPT_WITHIN.as_millis() });
        let output = ShellOutput::parse(&self.tool(id, "shell", &args, repeat).await?);
        if output.stdout.is_empty() && output.code != 0 {
            let why = format!("the shell of the sandbox failed: {}", first_line(&output.stderr));
            return Err(CallError::Unanswered { why }.into());
        }
        result(&output.stdout, &mark)
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).take(200).collect()
}

/// As an error of the provider, without a look whether the session is there.
pub(crate) fn refused(kind: ErrorKind, message: impl Into<String>) -> ProviderError {
    ProviderError::Refused { kind, message: message.into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(text: &str, is_error: bool) -> ShellOutput {
        ShellOutput::parse(&ToolAnswer { text: text.to_owned(), is_error })
    }

    #[test]
    fn both_forms_of_an_answer_are_read() {
        let wrapped = parse(r#"{"stdout": "a\n", "stderr": "b", "exit_code": 3, "traceId": "t"}"#, false);
        assert_eq!(wrapped, ShellOutput { stdout: "a\n".into(), stderr: "b".into(), code: 3 });
        let failed = parse(r#"{"stdout": "", "stderr": "no", "errorCode": 7}"#, true);
        assert_eq!((failed.stderr.as_str(), failed.code), ("no", 7));
        let raw = parse("plain text\n", false);
        assert_eq!((raw.stdout.as_str(), raw.code), ("plain text\n", 0));
        // What a command printed is not taken for the wrapped form.
        for printed in [r#"{"stdout": "x"}"#, "[1, 2]", "42", r#"{"exit_code": 1}"#] {
            assert_eq!(parse(printed, false).stdout, printed);
        }
        assert_eq!(
            parse("killed", true),
            ShellOutput { stdout: String::new(), stderr: "killed".into(), code: 1 }
        );
    }

    #[test]
    fn a_result_is_found_between_other_lines_and_a_cut_one_is_noticed() {
        let lines = |text: &str| result(text, "m").map_err(|error| format!("{error:?}"));
        assert_eq!(lines("banner\nm-begin\none\ntwo\nm-end\n").unwrap(), ["one", "two"]);
        assert!(lines("m-begin\none\n").is_err() && lines("").is_err());
        let refusal = result("m-begin\nrefused missing\nno such file\nm-end\n", "m");
        assert!(
            matches!(refusal, Err(ScriptError::Refused(ErrorKind::NotFound, text)) if text == "no such file")
        );
    }

    #[test]
    fn a_text_is_one_word_of_a_shell() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
    }
}
