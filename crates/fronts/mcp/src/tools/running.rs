//! Code that keeps what it defined for the next call.

use std::borrow::Cow;

use atoll_front_kit::{ApiError, CollectedExecution};
use atoll_toolbox::{CollectedOutput, Execute, Language, Rich};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::schema::{self, ToolDescription, ToolHints};
use super::shell::timeout;
use super::{SandboxTools, TEXT_MAX, ToolAnswer, ToolImage};
use crate::methods::McpCall;

/// LIMIT: images of one answer, and bytes of each in base64.
const IMAGES_MAX: usize = 4;
const IMAGE_BYTES_MAX: usize = 1 << 20;

pub(super) fn descriptions() -> Vec<ToolDescription> {
    use schema::{flag, integer, nullable_text, optional, required, sandbox, text, texts, words};
    vec![ToolDescription {
        name: "run_code",
        title: "Run code",
        description: "Runs code in the sandbox. Variables, imports and functions are kept for the next call in the same language. \
            Returns output, the value of the last expression, and images such as plots.",
        hints: ToolHints::Runs,
        arguments: vec![
            required("code", text("The code")),
            optional("language", words("Default: python", &Language::ALL.map(Language::as_str))),
            sandbox(),
            optional(
                "timeout_s",
                integer("Seconds after which the code is interrupted; default: 50", 1, Some(3_600)),
            ),
        ],
        answer: vec![
            schema::sandbox_id(),
            required("stdout", text("Standard output")),
            required("stderr", text("Standard error")),
            required("results", texts("The value of the last expression and displayed data, as text")),
            required("error", nullable_text("The error of the code, with its traceback")),
            required("timed_out", flag("Whether timeout_s passed")),
            required("images", integer("Number of images that follow in the content", 0, None)),
            required(
                "stdout_file",
                nullable_text("File in the sandbox with the whole standard output, if it was cut"),
            ),
            required(
                "stderr_file",
                nullable_text("File in the sandbox with the whole standard error, if it was cut"),
            ),
        ],
    }]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CodeArguments {
    code: String,
    language: Option<String>,
    sandbox: Option<String>,
    timeout_s: Option<u64>,
}

#[derive(Serialize)]
struct CodeAnswer {
    sandbox: String,
    stdout: String,
    stderr: String,
    results: Vec<String>,
    error: Option<String>,
    timed_out: bool,
    images: usize,
    stdout_file: Option<String>,
    stderr_file: Option<String>,
}

pub(super) async fn run_code(call: &McpCall, args: CodeArguments) -> Result<ToolAnswer, ApiError> {
    let language = Language::parse(args.language.as_deref().unwrap_or("python"))?;
    let execute = Execute { code: args.code, timeout: Some(timeout(args.timeout_s)?), ..Execute::default() };
    let tools = call.tools(args.sandbox).await?;
    let interpreter = tools.toolbox.interpreter().or_plain_python();
    let context = interpreter.default_context(language).await?;
    let execution = interpreter.execute(&context, execute).await?;
    let mut done = CollectedExecution::collect(execution, &tools.session.account).await?;
    let results = std::mem::take(&mut done.results);
    let texts = results.iter().filter_map(shown).collect();
    let images: Vec<ToolImage> = results.into_iter().filter_map(image).take(IMAGES_MAX).collect();
    let error = done.error.take().map(|error| match error.traceback.is_empty() {
        true => format!("{}: {}", error.name, error.value),
        false => error.traceback,
    });
    let error = match error {
        Some(error) => Some(excerpt(&tools, error).await?.0),
        None => None,
    };
    let (stdout, stdout_file) = excerpt(&tools, std::mem::take(&mut done.stdout)).await?;
    let (stderr, stderr_file) = excerpt(&tools, std::mem::take(&mut done.stderr)).await?;
    let is_error = error.is_some() || done.timed_out;
    let value = CodeAnswer {
        sandbox: tools.id(),
        stdout,
        stderr,
        results: texts,
        error,
        timed_out: done.timed_out,
        images: images.len(),
        stdout_file,
        stderr_file,
    };
    Ok(ToolAnswer { images, is_error, ..ToolAnswer::of(&value)? })
}

async fn excerpt(tools: &SandboxTools, text: String) -> Result<(String, Option<String>), ApiError> {
    if text.len() <= TEXT_MAX {
        return Ok((text, None));
    }
    let written = text.len() as u64;
    let output = CollectedOutput { head: Bytes::from(text), written, ..CollectedOutput::default() };
    let excerpt = tools.toolbox.excerpt(&output, TEXT_MAX).await?;
    Ok((excerpt.text, excerpt.file))
}

/// The text of a result, cut if it is very long.
fn shown(rich: &Rich) -> Option<String> {
    let text = rich.text.as_deref().or(rich.markdown.as_deref());
    let text = match (text, &rich.json) {
        (Some(text), _) => Cow::Borrowed(text),
        (None, Some(json)) => Cow::Owned(json.to_string()),
        (None, None) => return None,
    };
    let cut = text.floor_char_boundary(TEXT_MAX);
    Some(if cut < text.len() { format!("{}\n[cut here]", &text[..cut]) } else { text.into_owned() })
}

fn image(rich: Rich) -> Option<ToolImage> {
    let (mime_type, data) = match (rich.png, rich.jpeg) {
        (Some(png), _) => ("image/png", png),
        (None, Some(jpeg)) => ("image/jpeg", jpeg),
        (None, None) => return None,
    };
    if data.len() > IMAGE_BYTES_MAX {
        return None;
    }
    // Interpreters break lines of base64.
    Some(ToolImage { mime_type, base64: data.split_ascii_whitespace().collect() })
}
