//! Runs code that keeps its state between executions: contexts, and executions in them.

use atoll_client::code::{
    CodeBody, CodeContext, CodeContextBody, CodeContextList, CodeEnd, CodeException, CodeLanguage,
    CodeOutput, CodeResult, CodeStart,
};
use atoll_client::exec::{DroppedOutput, OutputChunk, StreamError};
use atoll_front_kit::{
    ApiError, Caller, CollectedExecution, ExecutionError, JsonObject, JsonResponse, OptionalStrictJson, Path,
    StrictJson, created, ok, rfc3339_millis, stream_json,
};
use atoll_model::Principal;
use atoll_toolbox::{
    Execute, Execution, ExecutionEvent, Interpreter, InterpreterContext, Language, NewContext, Rich,
    ToolboxError,
};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::response::sse::Event;
use futures::{Stream, StreamExt, stream};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromApi, FromCore, IntoApi, IntoCore};
use crate::exec::{EXEC_MAX, seconds};
use crate::sse;
use crate::tools::{SandboxTools, tools};

/// LIMIT: bytes of one event of output; clients accept events of 16 MiB, and JSON makes text up to six times longer.
const CHUNK_BYTES: usize = 256 << 10;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(run))
        .routes(routes!(run_stream))
        .routes(routes!(list, create))
        .routes(routes!(find, remove))
        .routes(routes!(restart))
        .routes(routes!(interrupt))
}

const fn language(language: CodeLanguage) -> Language {
    match language {
        CodeLanguage::Python => Language::Python,
        CodeLanguage::JavaScript => Language::JavaScript,
        CodeLanguage::TypeScript => Language::TypeScript,
        CodeLanguage::Bash => Language::Bash,
        CodeLanguage::R => Language::R,
        CodeLanguage::Java => Language::Java,
    }
}

impl FromCore<Language> for CodeLanguage {
    fn from_core(language: Language) -> Self {
        match language {
            Language::Python => Self::Python,
            Language::JavaScript => Self::JavaScript,
            Language::TypeScript => Self::TypeScript,
            Language::Bash => Self::Bash,
            Language::R => Self::R,
            Language::Java => Self::Java,
        }
    }
}

impl FromCore<InterpreterContext> for CodeContext {
    fn from_core(context: InterpreterContext) -> Self {
        Self {
            id: context.id,
            language: context.language.into_api(),
            cwd: context.cwd,
            created_at: rfc3339_millis(i64::try_from(context.created_at_ms).unwrap_or_default()),
        }
    }
}

impl FromApi<CodeBody> for Execute {
    fn from_api(body: CodeBody) -> Result<Self, ApiError> {
        let timeout = body.timeout_s.map(seconds).transpose()?;
        Ok(Self { code: body.code, env: body.env, timeout })
    }
}

impl FromCore<Rich> for CodeOutput {
    fn from_core(rich: Rich) -> Self {
        Self {
            is_main: rich.is_main,
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
            data: rich.data,
            chart: rich.chart,
            extra: rich.extra,
        }
    }
}

impl FromCore<ExecutionError> for CodeException {
    fn from_core(error: ExecutionError) -> Self {
        Self { name: error.name, value: error.value, traceback: error.traceback }
    }
}

/// The response of type [`CodeResult`], whose texts are encoded while they are written.
fn result(mut done: CollectedExecution) -> JsonObject {
    let outputs: Vec<CodeOutput> =
        std::mem::take(&mut done.results).into_iter().map(CodeOutput::from_core).collect();
    JsonObject::new()
        .field("context", &done.context)
        .field("execution_count", &done.count)
        .field("results", &outputs)
        .field("exception", &done.error.take().map(CodeException::from_core))
        .field("timed_out", &done.timed_out)
        .field("truncated", &(done.truncated || done.dropped > 0))
        .text("stderr", std::mem::take(&mut done.stderr).into())
        .text("stdout", done.into_stdout())
}

impl SandboxTools {
    /// In a sandbox without ipykernel, Python runs in a plain worker.
    fn interpreter(&self) -> Interpreter<'_> {
        self.toolbox.interpreter().or_plain_python()
    }
}

async fn begin(
    app: &App,
    who: &Principal,
    ident: &str,
    body: CodeBody,
) -> Result<(SandboxTools, Execution), ApiError> {
    if body.context.is_some() && body.language.is_some() {
        return Err(ApiError::invalid("context and language cannot be combined")
            .hint("code in a context is written in the language of the context"));
    }
    let (context, default) = (body.context.clone(), language(body.language.unwrap_or_default()));
    let execute: Execute = body.into_core()?;
    let tools = tools(app, who, ident).await?;
    let interpreter = tools.interpreter();
    let context = match context {
        Some(id) => interpreter.context(&id).await?,
        None => interpreter.default_context(default).await?,
    };
    let execution = interpreter.execute(&context, execute).await?;
    Ok((tools, execution))
}

/// Runs code and returns when it has ended. An error of the code is in `exception`.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/code", tag = "code",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = CodeBody, responses((status = 200, body = CodeResult)))]
pub(crate) async fn run(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<CodeBody, EXEC_MAX>,
) -> Result<Response, ApiError> {
    let (tools, execution) = begin(&app, &who, &ident, body).await?;
    Ok(stream_json(result(CollectedExecution::collect(execution, &tools.sandbox.account).await?)))
}

/// Runs code and streams its output and results.
///
/// Events: `start {context, execution_count}`, `stdout` and `stderr {data}`, `result` (a `CodeOutput`), `exception
/// {name, value, traceback}`, `dropped {bytes}` if the client reads too slowly, and at the end `end {timed_out}` or
/// `error {code, message}`. Closing the stream interrupts the code.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/code/stream", tag = "code",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = CodeBody,
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn run_stream(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<CodeBody, EXEC_MAX>,
) -> Result<Response, ApiError> {
    let (tools, execution) = begin(&app, &who, &ident, body).await?;
    Ok(sse::respond(&app, follow(tools, execution)))
}

fn follow(tools: SandboxTools, execution: Execution) -> impl Stream<Item = Event> + Send + 'static {
    let context = execution.context().id.clone();
    let mut timed_out = false;
    execution.into_stream().flat_map(move |event| {
        let _awake = &tools;
        timed_out |= matches!(event, Ok(ExecutionEvent::TimedOut));
        stream::iter(rendered(event, &context, timed_out))
    })
}

fn rendered(
    event: Result<ExecutionEvent, ToolboxError>,
    context: &str,
    timed_out: bool,
) -> Box<dyn Iterator<Item = Event> + Send> {
    let event = match event {
        Ok(ExecutionEvent::Started { count }) => {
            sse::event("start", &CodeStart { context: context.to_owned(), execution_count: count })
        }
        Ok(ExecutionEvent::Stdout(text)) => return Box::new(chunks("stdout", text)),
        Ok(ExecutionEvent::Stderr(text)) => return Box::new(chunks("stderr", text)),
        Ok(ExecutionEvent::Result(rich)) => sse::event("result", &CodeOutput::from_core(*rich)),
        Ok(ExecutionEvent::Error { name, value, traceback }) => {
            sse::event("exception", &CodeException { name, value, traceback })
        }
        Ok(ExecutionEvent::Dropped(bytes)) => sse::event("dropped", &DroppedOutput { bytes }),
        // The last event reports it.
        Ok(ExecutionEvent::TimedOut) => return Box::new(std::iter::empty()),
        Ok(ExecutionEvent::End) => sse::event("end", &CodeEnd { timed_out }),
        Err(error) => sse::event("error", &StreamError::from_core(error)),
    };
    Box::new(std::iter::once(event))
}

/// Output in events of at most [`CHUNK_BYTES`], whatever the size of one write. Each is made when it is sent.
fn chunks(name: &'static str, text: String) -> impl Iterator<Item = Event> + Send {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = &text[at..];
        let data = rest[..rest.floor_char_boundary(CHUNK_BYTES)].to_owned();
        at += data.len();
        (!data.is_empty()).then(|| sse::event(name, &OutputChunk::Text { data }))
    })
}

/// Lists the contexts of a sandbox, oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/code/contexts", tag = "code",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = CodeContextList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<CodeContextList>, ApiError> {
    let found = tools(&app, &who, &ident).await?.interpreter().contexts().await?;
    Ok(ok(CodeContextList { items: found.into_iter().map(CodeContext::from_core).collect() }))
}

/// Creates a context. Returns when code can run in it.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/code/contexts", tag = "code",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = CodeContextBody, responses((status = 201, body = CodeContext)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    OptionalStrictJson(body): OptionalStrictJson<CodeContextBody>,
) -> Result<JsonResponse<CodeContext>, ApiError> {
    let new = NewContext { language: language(body.language), cwd: body.cwd };
    let tools = tools(&app, &who, &ident).await?;
    Ok(created(tools.interpreter().create_context(&new).await?.into_api()))
}

/// Returns a context.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/code/contexts/{context}", tag = "code",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("context" = String, Path)),
    responses((status = 200, body = CodeContext)))]
pub(crate) async fn find(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, context)): Path<(String, String)>,
) -> Result<JsonResponse<CodeContext>, ApiError> {
    Ok(ok(tools(&app, &who, &ident).await?.interpreter().context(&context).await?.into_api()))
}

/// Ends a context. What was defined in it is lost.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/code/contexts/{context}", tag = "code",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("context" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, context)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    tools(&app, &who, &ident).await?.interpreter().delete_context(&context).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends what runs in a context and starts it again with nothing defined in it. Its id stays.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/code/contexts/{context}/restart", tag = "code",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("context" = String, Path)),
    responses((status = 200, body = CodeContext)))]
pub(crate) async fn restart(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, context)): Path<(String, String)>,
) -> Result<JsonResponse<CodeContext>, ApiError> {
    Ok(ok(tools(&app, &who, &ident).await?.interpreter().restart(&context).await?.into_api()))
}

/// Interrupts the code that runs in a context. What was defined in it is kept.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/code/contexts/{context}/interrupt", tag = "code",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("context" = String, Path)),
    responses((status = 204, description = "Interrupted")))]
pub(crate) async fn interrupt(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, context)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    tools(&app, &who, &ident).await?.interpreter().interrupt(&context).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_output_comes_in_pieces_that_end_between_characters() {
        let count = |text: &str| chunks("stdout", text.to_owned()).count();
        let text = "é".repeat(CHUNK_BYTES);
        assert_eq!((count(&text), count(&text[..CHUNK_BYTES]), count("")), (2, 1, 0));
        assert_eq!(count(&format!("a{text}")), 3);
    }
}
