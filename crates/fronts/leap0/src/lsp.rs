//! Language servers of a project: every call is a POST, and responses contain the answers of the server.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, ok};
use atoll_toolbox::{LspLanguage, LspServer, TextPosition};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Leap0App;
use crate::filesystem::{AwakeFiles, awake};

pub(crate) fn routes() -> Router<Leap0App> {
    let at = |op: &str| format!("/v1/sandbox/{{id}}/lsp/{op}");
    Router::new()
        .route(&at("start"), post(start))
        .route(&at("stop"), post(stop))
        .route(&at("did-open"), post(did_open))
        .route(&at("did-close"), post(did_close))
        .route(&at("completions"), post(completions))
        .route(&at("document-symbols"), post(document_symbols))
}

#[derive(Debug, Deserialize)]
struct ServerBody {
    language_id: String,
    path_to_project: String,
}

impl ServerBody {
    fn server<'a>(&self, awake: &'a AwakeFiles) -> Result<LspServer<'a>, ApiError> {
        let language = LspLanguage::parse(&self.language_id)?;
        if self.path_to_project.is_empty() {
            return Err(ApiError::field("path_to_project", "is required"));
        }
        let project = awake.path(&self.path_to_project);
        let project = match project.trim_end_matches('/') {
            "" => "/",
            project => project,
        };
        Ok(awake.toolbox.lsp(language, project))
    }
}

#[derive(Debug, Serialize)]
struct Done {
    success: bool,
}

async fn start(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<ServerBody>,
) -> Result<JsonResponse<Done>, ApiError> {
    let awake = awake(&app, &who, &id).await?;
    body.server(&awake)?.start().await?;
    Ok(ok(Done { success: true }))
}

async fn stop(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<ServerBody>,
) -> Result<JsonResponse<Done>, ApiError> {
    let awake = awake(&app, &who, &id).await?;
    body.server(&awake)?.stop().await?;
    Ok(ok(Done { success: true }))
}

#[derive(Debug, Deserialize)]
struct DocumentBody {
    #[serde(flatten)]
    server: ServerBody,
    uri: String,
}

impl DocumentBody {
    /// The path in the URI; the SDK writes it without encoding.
    fn path(&self) -> Result<&str, ApiError> {
        match self.uri.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => Ok(path),
            _ => Err(ApiError::field("uri", "must be file:// and an absolute path")),
        }
    }
}

#[derive(Debug, Deserialize)]
struct OpenBody {
    #[serde(flatten)]
    document: DocumentBody,
    version: Option<i64>,
    text: Option<String>,
}

async fn did_open(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<OpenBody>,
) -> Result<StatusCode, ApiError> {
    let path = body.document.path()?;
    let awake = awake(&app, &who, &id).await?;
    let server = body.document.server.server(&awake)?;
    server.did_open_as(path, body.text, body.version.unwrap_or(1)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn did_close(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<DocumentBody>,
) -> Result<StatusCode, ApiError> {
    let path = body.path()?;
    let awake = awake(&app, &who, &id).await?;
    body.server.server(&awake)?.did_close(path).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An answer in the envelope of JSON-RPC. Its id is not used: one request has one answer.
#[derive(Debug, Serialize)]
struct Response {
    jsonrpc: &'static str,
    id: u32,
    result: Value,
}

impl Response {
    const fn of(result: Value) -> Self {
        Self { jsonrpc: "2.0", id: 1, result }
    }
}

#[derive(Debug, Deserialize)]
struct CompletionsBody {
    #[serde(flatten)]
    document: DocumentBody,
    position: Position,
}

#[derive(Debug, Deserialize)]
struct Position {
    line: u32,
    character: u32,
}

async fn completions(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<CompletionsBody>,
) -> Result<JsonResponse<Response>, ApiError> {
    let path = body.document.path()?;
    let place = TextPosition { line: body.position.line, character: body.position.character };
    let awake = awake(&app, &who, &id).await?;
    let found = body.document.server.server(&awake)?.raw_completions(path, place).await?;
    Ok(ok(Response::of(completion_items(found))))
}

/// COMPAT(leap0): programs take a slice of `result`, so it is a list of items, also where the server answers with the object
/// that has such a list.
fn completion_items(found: Value) -> Value {
    match found {
        Value::Object(mut list) => list.remove("items").unwrap_or_else(|| Value::Array(Vec::new())),
        items => items,
    }
}

async fn document_symbols(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<DocumentBody>,
) -> Result<JsonResponse<Response>, ApiError> {
    let path = body.path()?;
    let awake = awake(&app, &who, &id).await?;
    let found = body.server.server(&awake)?.raw_document_symbols(path).await?;
    Ok(ok(Response::of(found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn completions_are_a_list_in_every_form_of_the_protocol() {
        let items = json!([{ "label": "getcwd" }]);
        assert_eq!(completion_items(json!({ "isIncomplete": true, "items": items })), items);
        assert_eq!(completion_items(items.clone()), items);
        assert_eq!(completion_items(json!({ "isIncomplete": false })), json!([]));
        assert_eq!(completion_items(Value::Null), Value::Null);
    }
}
