//! The tools: their descriptions, and the call of one by its name.
//!
//! A tool reads its arguments, calls the service or the toolbox, and answers with a value that its output schema describes. A
//! failure is an answer too (`isError`), so that a model can read it.

mod files;
mod ports;
mod running;
mod sandboxes;
mod schema;
mod shell;
mod snapshots;

use atoll_front_kit::{ApiError, parse_json, toolbox};
use atoll_service::SandboxSession;
use atoll_toolbox::Toolbox;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::methods::McpCall;
use schema::ToolDescription;

/// LIMIT: bytes of one text in an answer; a model reads some 25,000 tokens at most.
const TEXT_MAX: usize = 30_000;

/// All tools, in the order of the list.
fn descriptions() -> Vec<ToolDescription> {
    [
        sandboxes::descriptions(),
        shell::descriptions(),
        running::descriptions(),
        files::descriptions(),
        ports::descriptions(),
        snapshots::descriptions(),
    ]
    .concat()
}

/// The tools as the protocol lists them.
pub(crate) fn list() -> Vec<Value> {
    descriptions().into_iter().map(ToolDescription::into_json).collect()
}

/// Calls a tool; `None` if there is none with this name.
pub(crate) async fn call(call: &McpCall, name: &str, arguments: &str) -> Option<Value> {
    let answered = match name {
        "sandbox_create" => run(arguments, |args| sandboxes::create(call, args)).await,
        "sandbox_list" => run(arguments, |args| sandboxes::list(call, args)).await,
        "sandbox_pause" => run(arguments, |args| sandboxes::pause(call, args)).await,
        "sandbox_resume" => run(arguments, |args| sandboxes::resume(call, args)).await,
        "sandbox_fork" => run(arguments, |args| sandboxes::fork(call, args)).await,
        "sandbox_delete" => run(arguments, |args| sandboxes::delete(call, args)).await,
        "shell" => run(arguments, |args| shell::run(call, args)).await,
        "shell_start" => run(arguments, |args| shell::start(call, args)).await,
        "shell_poll" => run(arguments, |args| shell::poll(call, args)).await,
        "run_code" => run(arguments, |args| running::run_code(call, args)).await,
        "file_read" => run(arguments, |args| files::read(call, args)).await,
        "file_write" => run(arguments, |args| files::write(call, args)).await,
        "file_edit" => run(arguments, |args| files::edit(call, args)).await,
        "file_list" => run(arguments, |args| files::list(call, args)).await,
        "file_search" => run(arguments, |args| files::search(call, args)).await,
        "preview" => run(arguments, |args| ports::preview(call, args)).await,
        "egress_explain" => run(arguments, |args| ports::explain(call, args)).await,
        "snapshot" => run(arguments, |args| snapshots::take(call, args)).await,
        "rollback" => run(arguments, |args| snapshots::rollback(call, args)).await,
        _ => return None,
    };
    Some(answered.unwrap_or_else(|error| failure(&error)))
}

/// The answer of a tool: a value for programs, and images for models that see.
struct ToolAnswer {
    value: Value,
    images: Vec<ToolImage>,
    /// The command or the code failed.
    is_error: bool,
}

struct ToolImage {
    mime_type: &'static str,
    base64: String,
}

impl ToolAnswer {
    fn of(value: &impl Serialize) -> Result<Self, ApiError> {
        let value = serde_json::to_value(value).map_err(|error| {
            ApiError::new(atoll_model::Code::Internal, "the answer of a tool could not be written")
                .caused_by(error)
        })?;
        Ok(Self { value, images: Vec::new(), is_error: false })
    }

    /// The value is also in the content as text, for clients that know no structured content.
    fn into_json(self) -> Value {
        let mut content = vec![json!({ "type": "text", "text": self.value.to_string() })];
        content.extend(
            self.images
                .into_iter()
                .map(|image| json!({ "type": "image", "mimeType": image.mime_type, "data": image.base64 })),
        );
        json!({ "content": content, "structuredContent": self.value, "isError": self.is_error })
    }
}

async fn run<A: DeserializeOwned, F: Future<Output = Result<ToolAnswer, ApiError>>>(
    arguments: &str,
    tool: impl FnOnce(A) -> F,
) -> Result<Value, ApiError> {
    // On the heap: a tool that creates a sandbox has a large future.
    Ok(Box::pin(tool(parse_json(arguments.as_bytes())?)).await?.into_json())
}

/// What went wrong and what to try, as text.
fn failure(error: &ApiError) -> Value {
    if error.kind() == atoll_model::ErrorKind::Internal {
        let cause = error.cause.as_deref().map(|cause| atoll_front_kit::error_chain(cause));
        tracing::error!(code = error.code.as_str(), error = error.message, cause, "a tool failed");
    }
    let sentence = error.sentence(|core| Some(core.to_owned()));
    let text = format!("{}: {sentence}", error.code.as_str());
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

impl McpCall {
    /// The id of the named sandbox, or of the client's own, which is created if there is none.
    async fn sandbox(&self, named: Option<String>) -> Result<String, ApiError> {
        let lease = match named {
            Some(named) => self.mcp.service.sandboxes().get(&self.who, &named).await?,
            None => self.client.own_sandbox(&self.mcp.service, &self.who).await?,
        };
        Ok(lease.id.to_string())
    }

    /// The named sandbox, or the client's own if there is one.
    async fn existing(&self, named: Option<String>) -> Result<String, ApiError> {
        match named {
            Some(named) => Ok(named),
            None => self.client.existing_sandbox(&self.mcp.service, &self.who).await,
        }
    }

    /// The tools of the named sandbox or the client's own, which is woken.
    async fn tools(&self, named: Option<String>) -> Result<SandboxTools, ApiError> {
        let sandbox = self.sandbox(named).await?;
        let session = self.mcp.service.sandboxes().session(&self.who, &sandbox).await?;
        Ok(SandboxTools { toolbox: toolbox(&session), session })
    }
}

/// The tools of one sandbox, which does not count as idle while this is held.
struct SandboxTools {
    toolbox: Toolbox,
    session: SandboxSession,
}

impl SandboxTools {
    /// The directory that a request names, or the sandbox's working directory.
    fn directory(&self, named: Option<String>) -> String {
        let workdir = &self.session.lease.workdir;
        named.unwrap_or_else(|| if workdir.is_empty() { "~".to_owned() } else { workdir.clone() })
    }

    fn id(&self) -> String {
        self.session.lease.id.to_string()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_tool_of_the_issue_is_listed_with_schemas_and_annotations() {
        let listed = list();
        let names: BTreeSet<&str> = listed.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), listed.len());
        assert_eq!(listed.len(), 19);
        for tool in &listed {
            assert!(tool["description"].as_str().unwrap().len() > 20, "{tool}");
            let annotations = tool["annotations"].as_object().unwrap();
            for hint in ["title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
                assert!(annotations.contains_key(hint), "{tool}");
            }
            for schema in ["inputSchema", "outputSchema"] {
                assert_eq!(tool[schema]["type"], "object", "{tool}");
                jsonschema::meta::validate(&tool[schema]).unwrap();
            }
        }
    }

    /// serde lists the known fields in its error about an unknown one.
    fn accepted<A: DeserializeOwned>() -> BTreeSet<String> {
        let error = serde_json::from_str::<A>("{\"no_such_argument\":1}").err().unwrap().to_string();
        assert!(error.contains("no_such_argument"), "{error}");
        error.split('`').skip(3).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn a_tool_takes_the_arguments_that_its_schema_lists() {
        let listed = list();
        let known = |name: &str| -> BTreeSet<String> {
            let tool = listed.iter().find(|tool| tool["name"] == name).unwrap();
            tool["inputSchema"]["properties"].as_object().unwrap().keys().cloned().collect()
        };
        for (name, fields) in [
            ("sandbox_create", accepted::<sandboxes::CreateArguments>()),
            ("sandbox_list", accepted::<sandboxes::ListArguments>()),
            ("sandbox_pause", accepted::<sandboxes::SandboxArguments>()),
            ("sandbox_resume", accepted::<sandboxes::SandboxArguments>()),
            ("sandbox_fork", accepted::<sandboxes::ForkArguments>()),
            ("sandbox_delete", accepted::<sandboxes::SandboxArguments>()),
            ("shell", accepted::<shell::ShellArguments>()),
            ("shell_start", accepted::<shell::StartArguments>()),
            ("shell_poll", accepted::<shell::PollArguments>()),
            ("run_code", accepted::<running::CodeArguments>()),
            ("file_read", accepted::<files::ReadArguments>()),
            ("file_write", accepted::<files::WriteArguments>()),
            ("file_edit", accepted::<files::EditArguments>()),
            ("file_list", accepted::<files::ListArguments>()),
            ("file_search", accepted::<files::SearchArguments>()),
            ("preview", accepted::<ports::PreviewArguments>()),
            ("egress_explain", accepted::<ports::ExplainArguments>()),
            ("snapshot", accepted::<snapshots::TakeArguments>()),
            ("rollback", accepted::<snapshots::RollbackArguments>()),
        ] {
            assert_eq!(known(name), fields, "{name}");
        }
    }
}
