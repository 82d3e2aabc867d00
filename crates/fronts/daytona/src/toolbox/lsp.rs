//! Language servers of a project.
//!
//! Language servers accept absolute paths only. Relative ones are resolved here as Daytona's daemon does: against the
//! working directory, including those of files.

use atoll_front_kit::{ApiError, Json, JsonResponse, Query, ok};
use atoll_toolbox::{Completion, LspLanguage, LspServer, Symbol, TextPosition};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::inside::Inside;
use super::refusal::{bad, of_file, of_lsp};
use crate::DaytonaApp;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/lsp/start", post(start))
        .route("/lsp/stop", post(stop))
        .route("/lsp/did-open", post(did_open))
        .route("/lsp/did-close", post(did_close))
        .route("/lsp/completions", post(completions))
        .route("/lsp/document-symbols", get(document_symbols))
        .route("/lsp/workspacesymbols", get(workspace_symbols))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerBody {
    language_id: String,
    path_to_project: String,
}

impl ServerBody {
    async fn project(&self, inside: &Inside) -> Result<String, ApiError> {
        if self.path_to_project.is_empty() {
            return Err(bad("path is required"));
        }
        absolute(inside, &self.path_to_project).await
    }

    async fn server<'a>(&self, inside: &'a Inside) -> Result<LspServer<'a>, ApiError> {
        let language = LspLanguage::parse(&self.language_id).map_err(of_lsp)?;
        Ok(inside.toolbox.lsp(language, self.project(inside).await?))
    }
}

/// A path resolved against the working directory, or the home folder if it begins with `~`.
async fn absolute(inside: &Inside, path: &str) -> Result<String, ApiError> {
    Ok(match path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        Some(rest) => clean(&format!("{}/{rest}", inside.home().await?)),
        None if path.starts_with('/') => clean(path),
        None => clean(&format!("{}/{path}", inside.work_dir().await?)),
    })
}

/// An absolute path without `.`, `..` and empty parts, so that a language server sees one name for each file.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[derive(Debug, Deserialize)]
struct DocumentBody {
    #[serde(flatten)]
    server: ServerBody,
    /// `file://` in front of a path as the user wrote it.
    uri: String,
}

impl DocumentBody {
    /// The file as an absolute path. A relative path that names no file below the working directory is resolved in the
    /// project.
    async fn path(&self, inside: &Inside) -> Result<String, ApiError> {
        let path = self.uri.strip_prefix("file://").unwrap_or(&self.uri);
        if path.is_empty() {
            return Err(bad("uri is required"));
        }
        let found = absolute(inside, path).await?;
        if path.starts_with(['/', '~']) {
            return Ok(found);
        }
        let files = inside.toolbox.files();
        if files.exists(&found).await.map_err(of_file)? {
            return Ok(found);
        }
        let of_project = clean(&format!("{}/{path}", self.server.project(inside).await?));
        let is_there = files.exists(&of_project).await.map_err(of_file)?;
        Ok(if is_there { of_project } else { found })
    }
}

async fn start(inside: Inside, Json(body): Json<ServerBody>) -> Result<StatusCode, ApiError> {
    body.server(&inside).await?.start().await.map_err(of_lsp)?;
    Ok(StatusCode::OK)
}

async fn stop(inside: Inside, Json(body): Json<ServerBody>) -> Result<StatusCode, ApiError> {
    body.server(&inside).await?.stop().await.map_err(of_lsp)?;
    Ok(StatusCode::OK)
}

async fn did_open(inside: Inside, Json(body): Json<DocumentBody>) -> Result<StatusCode, ApiError> {
    let path = body.path(&inside).await?;
    body.server.server(&inside).await?.did_open(&path).await.map_err(of_lsp)?;
    Ok(StatusCode::OK)
}

async fn did_close(inside: Inside, Json(body): Json<DocumentBody>) -> Result<StatusCode, ApiError> {
    let path = body.path(&inside).await?;
    body.server.server(&inside).await?.did_close(&path).await.map_err(of_lsp)?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
struct CompletionsBody {
    #[serde(flatten)]
    document: DocumentBody,
    position: Position,
    #[serde(default)]
    context: Option<Value>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Position {
    line: u32,
    character: u32,
}

impl From<TextPosition> for Position {
    fn from(TextPosition { line, character }: TextPosition) -> Self {
        Self { line, character }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Completions {
    is_incomplete: bool,
    items: Vec<Item>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// An object: the SDK refuses a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    documentation: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    insert_text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_text: Option<String>,
}

impl From<Completion> for Item {
    fn from(one: Completion) -> Self {
        Self {
            label: one.label,
            kind: one.kind,
            detail: one.detail,
            documentation: one.documentation.map(|text| json!({ "kind": "plaintext", "value": text })),
            insert_text: one.insert_text,
            filter_text: one.filter_text,
            sort_text: one.sort_text,
        }
    }
}

async fn completions(
    inside: Inside,
    Json(body): Json<CompletionsBody>,
) -> Result<JsonResponse<Completions>, ApiError> {
    let path = body.document.path(&inside).await?;
    let place = TextPosition { line: body.position.line, character: body.position.character };
    let server = body.document.server.server(&inside).await?;
    let found = server.completions(&path, place, body.context).await.map_err(of_lsp)?;
    let items = found.items.into_iter().map(Item::from).collect();
    Ok(ok(Completions { is_incomplete: found.is_incomplete, items }))
}

fn symbol(symbol: Symbol) -> Value {
    let (start, end) = (Position::from(symbol.range.0), Position::from(symbol.range.1));
    json!({
        "name": symbol.name,
        "kind": symbol.kind,
        "location": { "uri": symbol.uri, "range": { "start": start, "end": end } },
    })
}

async fn document_symbols(
    inside: Inside,
    Query(query): Query<DocumentBody>,
) -> Result<JsonResponse<Vec<Value>>, ApiError> {
    let path = query.path(&inside).await?;
    let found = query.server.server(&inside).await?.document_symbols(&path).await.map_err(of_lsp)?;
    Ok(ok(found.into_iter().map(symbol).collect()))
}

#[derive(Debug, Deserialize)]
struct SymbolsQuery {
    #[serde(flatten)]
    server: ServerBody,
    query: String,
}

async fn workspace_symbols(
    inside: Inside,
    Query(query): Query<SymbolsQuery>,
) -> Result<JsonResponse<Vec<Value>>, ApiError> {
    let found = query.server.server(&inside).await?.workspace_symbols(&query.query).await.map_err(of_lsp)?;
    Ok(ok(found.into_iter().map(symbol).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for (path, wanted) in
            [("/a/./b//c/", "/a/b/c"), ("/a/../../b", "/b"), ("/", "/"), ("//x", "/x"), ("/a b/~", "/a b/~")]
        {
            assert_eq!(clean(path), wanted, "{path}");
        }
    }
}
