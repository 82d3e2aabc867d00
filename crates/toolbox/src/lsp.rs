//! Language servers: one process in the sandbox per language and project, used over its stdin and stdout.
//!
//! ```text
//!  host                                     inside the sandbox
//!  LspServer ── stdin, JSON-RPC frames ───▸ pylsp, typescript-language-server
//!            ◂── stdout, JSON-RPC frames ──
//! ```
//!
//! The server is found by the tag of its process, so no state is kept on the host. Its output is untrusted: frames are
//! bounded, and an answer is matched by a unique id.

mod call;
mod responses;
mod wire;

use std::time::Duration;

use atoll_agentapi::{AgentError, ProcessInfo, RpcCode, StartProcess};
use serde_json::{Value, json};

pub use responses::{Completion, Completions, Symbol, TextPosition};

use crate::error::said;
use crate::{FilePart, Toolbox, ToolboxError};
use call::LspConnection;

/// LIMIT: a server reads a whole project before its first answer.
const START_LIMIT: Duration = Duration::from_secs(60);
/// LIMIT: an answer about one position in a large project.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// How long a server may take to end by itself.
const LEAVE: Duration = Duration::from_secs(3);
/// LIMIT: bytes of an edited document.
const DOCUMENT_MAX: u64 = 16 << 20;

/// LIMIT: files that a server is asked about one by one.
const FILES_MAX: usize = 200;

const TAG: &str = "atoll-lsp/";
const SIGKILL: i32 = 9;

/// A supported language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LspLanguage {
    /// With pylsp, or pyright.
    Python,
    /// With typescript-language-server.
    TypeScript,
    /// With typescript-language-server.
    JavaScript,
}

impl LspLanguage {
    /// Parses a name.
    pub fn parse(name: &str) -> Result<Self, ToolboxError> {
        match name {
            "python" => Ok(Self::Python),
            "typescript" => Ok(Self::TypeScript),
            "javascript" => Ok(Self::JavaScript),
            _ => Err(ToolboxError::Invalid(format!(
                "language must be python, typescript or javascript, not {name:?}"
            ))),
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::TypeScript => "typescript",
            Self::JavaScript => "javascript",
        }
    }

    const fn programs(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Python => &[("pylsp", &[]), ("pyright-langserver", &["--stdio"])],
            Self::TypeScript | Self::JavaScript => &[("typescript-language-server", &["--stdio"])],
        }
    }

    const fn hint(self) -> &'static str {
        match self {
            Self::Python => {
                "install one inside: apt-get install python3-pylsp, or pip install python-lsp-server"
            }
            Self::TypeScript | Self::JavaScript => {
                "install it inside: sudo npm install -g typescript@5.9 typescript-language-server@5, which needs Node 20"
            }
        }
    }
}

/// The server of one language and one project. Paths are absolute.
#[derive(Debug)]
pub struct LspServer<'a> {
    toolbox: &'a Toolbox,
    language: LspLanguage,
    project: String,
}

impl Toolbox {
    /// The language server of a project.
    pub fn lsp(&self, language: LspLanguage, project: impl Into<String>) -> LspServer<'_> {
        LspServer { toolbox: self, language, project: project.into() }
    }
}

impl LspServer<'_> {
    /// Starts the server and waits until it is ready. A running one is no error.
    pub async fn start(&self) -> Result<(), ToolboxError> {
        // Of several callers at once, one starts it and the others wait until it is ready.
        let _turn = self.toolbox.sandbox.setup_locks().lock(&self.tag()).await;
        if self.pid().await?.is_some() {
            return Ok(());
        }
        let mut missing = None;
        for (program, args) in self.language.programs() {
            match self.launch(program, args).await {
                Err(error @ ToolboxError::ToolMissing { .. }) => missing = missing.or(Some(error)),
                started => return started,
            }
        }
        Err(missing
            .unwrap_or(ToolboxError::ToolMissing { tool: "language server", hint: self.language.hint() }))
    }

    async fn launch(&self, program: &'static str, args: &[&str]) -> Result<(), ToolboxError> {
        let start = StartProcess {
            cmd: program.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            cwd: self.project.clone(),
            tag: self.tag(),
            stdin: true,
            user: self.toolbox.user.clone(),
            ..Default::default()
        };
        let sandbox = &self.toolbox.sandbox;
        let (started, stream) = sandbox.start(start).await.map_err(|cause| match cause {
            AgentError::Refused { code: RpcCode::NotFound, message }
                if message.contains("command not found") =>
            {
                ToolboxError::ToolMissing { tool: program, hint: self.language.hint() }
            }
            cause => ToolboxError::process(cause),
        })?;
        let mut call = LspConnection::over(self.toolbox, started.pid, stream);
        let greeted = async {
            call.ask("initialize", initialize(&self.project)).await?;
            call.tell("initialized", json!({})).await
        };
        let greeted =
            tokio::time::timeout(START_LIMIT, greeted).await.unwrap_or(Err(ToolboxError::TimedOut {
                what: "the start of a language server",
                limit: START_LIMIT,
            }));
        if let Err(error) = greeted {
            let _ = sandbox.signal(started.pid, SIGKILL).await;
            return Err(match call.words() {
                words if words.is_empty() => error,
                words => ToolboxError::Conflict(format!("{error}: {}", said(&words))),
            });
        }
        Ok(())
    }

    /// Ends the server.
    pub async fn stop(&self) -> Result<(), ToolboxError> {
        let mut call = self.call().await?;
        let asked = async {
            let _ = call.ask("shutdown", Value::Null).await;
            let _ = call.tell("exit", Value::Null).await;
            call.end().await;
        };
        if tokio::time::timeout(LEAVE, asked).await.is_err() {
            match self.toolbox.sandbox.signal(call.pid(), SIGKILL).await {
                Err(error) if error.kind() != atoll_model::ErrorKind::NotFound => {
                    return Err(ToolboxError::process(error));
                }
                _ => {}
            }
            // A second stop must find no server: the answer waits for the end of the process.
            let _ = tokio::time::timeout(LEAVE, call.end()).await;
        }
        Ok(())
    }

    /// Reports that a file is open, with its current content.
    pub async fn did_open(&self, path: &str) -> Result<(), ToolboxError> {
        self.did_open_as(path, None, 1).await
    }

    /// Reports that a version of a file with this text is open; `None`: the current content.
    pub async fn did_open_as(
        &self,
        path: &str,
        text: Option<String>,
        version: i64,
    ) -> Result<(), ToolboxError> {
        let mut call = self.call().await?;
        let text = match text {
            Some(text) => text,
            None => {
                let bytes = self.toolbox.files().read_bytes(path, FilePart::Whole, DOCUMENT_MAX).await?;
                String::from_utf8(bytes)
                    .map_err(|_| ToolboxError::Invalid(format!("path '{path}' is not text")))?
            }
        };
        let document = json!({
            "uri": uri(path), "languageId": self.document_language(path), "version": version, "text": text,
        });
        call.tell("textDocument/didOpen", json!({ "textDocument": document })).await
    }

    /// Reports that a file is closed.
    pub async fn did_close(&self, path: &str) -> Result<(), ToolboxError> {
        let document = json!({ "textDocument": { "uri": uri(path) } });
        self.call().await?.tell("textDocument/didClose", document).await
    }

    /// Completions at a position; line and character count from 0. `context` is that of the protocol.
    pub async fn completions(
        &self,
        path: &str,
        place: TextPosition,
        context: Option<Value>,
    ) -> Result<Completions, ToolboxError> {
        let mut params = json!({
            "textDocument": { "uri": uri(path) },
            "position": { "line": place.line, "character": place.character },
        });
        if let Some(context) = context {
            params["context"] = context;
        }
        Ok(responses::completions(&self.asked("textDocument/completion", params).await?))
    }

    /// The same as the server's raw `result`.
    pub async fn raw_completions(&self, path: &str, place: TextPosition) -> Result<Value, ToolboxError> {
        let position = json!({ "line": place.line, "character": place.character });
        let params = json!({ "textDocument": { "uri": uri(path) }, "position": position });
        self.asked("textDocument/completion", params).await
    }

    /// The symbols of a file.
    pub async fn document_symbols(&self, path: &str) -> Result<Vec<Symbol>, ToolboxError> {
        Ok(responses::symbols(&self.raw_document_symbols(path).await?, &uri(path)))
    }

    /// The same as the server's raw `result`.
    pub async fn raw_document_symbols(&self, path: &str) -> Result<Value, ToolboxError> {
        self.asked("textDocument/documentSymbol", json!({ "textDocument": { "uri": uri(path) } })).await
    }

    /// The symbols of the project with such a name. A server that supports only single files is asked about each of
    /// them.
    pub async fn workspace_symbols(&self, query: &str) -> Result<Vec<Symbol>, ToolboxError> {
        let told = self.asked("workspace/symbol", json!({ "query": query })).await?;
        if !told.is_null() {
            return Ok(responses::symbols(&told, ""));
        }
        let each = async {
            let (mut found, wanted) = (Vec::new(), query.to_lowercase());
            let files = self.toolbox.files().glob(&self.project, self.files(), &left_out()).await?;
            for file in files.items.iter().take(FILES_MAX) {
                let symbols = self.document_symbols(file).await?;
                found.extend(
                    symbols.into_iter().filter(|symbol| symbol.name.to_lowercase().contains(&wanted)),
                );
            }
            Ok(found)
        };
        let limit = CALL_LIMIT;
        tokio::time::timeout(limit, each)
            .await
            .unwrap_or(Err(ToolboxError::TimedOut { what: "the language server's answer", limit }))
    }

    /// The files of the language, as a glob.
    const fn files(&self) -> &'static str {
        match self.language {
            LspLanguage::Python => "*.py",
            LspLanguage::TypeScript | LspLanguage::JavaScript => "*.{ts,tsx,js,jsx,mjs,cjs}",
        }
    }

    async fn asked(&self, method: &str, params: Value) -> Result<Value, ToolboxError> {
        let mut call = self.call().await?;
        let limit = CALL_LIMIT;
        tokio::time::timeout(limit, call.ask(method, params))
            .await
            .unwrap_or(Err(ToolboxError::TimedOut { what: "the language server's answer", limit }))
    }

    async fn call(&self) -> Result<LspConnection, ToolboxError> {
        let Some(pid) = self.pid().await? else {
            let language = self.language.as_str();
            let message = format!("no {language} server was started for {:?}", self.project);
            return Err(ToolboxError::NotFound(message));
        };
        LspConnection::attach(self.toolbox, pid).await
    }

    async fn pid(&self) -> Result<Option<u32>, ToolboxError> {
        let (wanted, found) = (self.tag(), self.toolbox.sandbox.list().await.map_err(ToolboxError::process)?);
        let older = |process: &ProcessInfo| (process.started_at_ms, process.pid);
        let server = found.into_iter().filter(|process| process.tag == wanted).min_by_key(older);
        Ok(server.map(|process| process.pid))
    }

    fn tag(&self) -> String {
        // Both languages have one server; a project has one of it.
        let family = match self.language {
            LspLanguage::Python => "python",
            LspLanguage::TypeScript | LspLanguage::JavaScript => "typescript",
        };
        format!("{TAG}{family}/{}", hex::encode(&self.project))
    }

    fn document_language(&self, path: &str) -> &'static str {
        match (self.language, path.rsplit('.').next()) {
            (LspLanguage::Python, _) => "python",
            (_, Some("tsx")) => "typescriptreact",
            (_, Some("jsx")) => "javascriptreact",
            (_, Some("js" | "mjs" | "cjs")) => "javascript",
            (language, _) => language.as_str(),
        }
    }
}

/// Folders with foreign code are not searched.
fn left_out() -> [String; 4] {
    [".git", "node_modules", ".venv", "__pycache__"].map(str::to_owned)
}

/// Few capabilities are announced, so that answers are simple.
fn initialize(project: &str) -> Value {
    let root = uri(project);
    json!({
        "processId": null,
        "rootPath": project,
        "rootUri": root,
        "workspaceFolders": [{ "uri": root, "name": "project" }],
        "capabilities": {
            "textDocument": {
                "synchronization": { "didSave": false },
                "completion": { "completionItem": { "snippetSupport": false, "documentationFormat": ["plaintext"] } },
                "documentSymbol": { "hierarchicalDocumentSymbolSupport": false },
            },
            "workspace": { "symbol": {}, "workspaceFolders": true },
        },
    })
}

/// A path as a URI of the protocol.
fn uri(path: &str) -> String {
    let mut uri = String::from("file://");
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                uri.push(char::from(byte))
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_an_address() {
        assert_eq!(uri("/a b/ü.py"), "file:///a%20b/%C3%BC.py");
    }

    #[test]
    fn languages_go_by_their_names() {
        for language in [LspLanguage::Python, LspLanguage::TypeScript, LspLanguage::JavaScript] {
            assert_eq!(LspLanguage::parse(language.as_str()).unwrap(), language);
        }
        assert!(LspLanguage::parse("cobol").is_err());
    }
}
