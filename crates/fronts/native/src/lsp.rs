//! Language servers: a process in the sandbox per language and project.

use atoll_client::lsp::{
    LspBody, LspCompletion, LspCompletionBody, LspCompletions, LspFileBody, LspLanguage, LspOpenBody,
    LspPosition, LspSymbol, LspSymbolBody, LspSymbols,
};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok};
use atoll_toolbox::{Completion, LspServer, Symbol, TextPosition};
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};
use crate::exec::EXEC_MAX;
use crate::tools::{SandboxTools, tools};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(stop))
        .routes(routes!(open))
        .routes(routes!(close))
        .routes(routes!(completions))
        .routes(routes!(symbols))
}

impl SandboxTools {
    fn lsp(&self, language: LspLanguage, project: &str) -> Result<LspServer<'_>, ApiError> {
        let language = match language {
            LspLanguage::Python => atoll_toolbox::LspLanguage::Python,
            LspLanguage::TypeScript => atoll_toolbox::LspLanguage::TypeScript,
            LspLanguage::JavaScript => atoll_toolbox::LspLanguage::JavaScript,
        };
        let project = match absolute("project", project)?.trim_end_matches('/') {
            "" => "/",
            project => project,
        };
        Ok(self.toolbox.lsp(language, project))
    }
}

fn absolute<'a>(field: &str, path: &'a str) -> Result<&'a str, ApiError> {
    if path.starts_with('/') { Ok(path) } else { Err(ApiError::field(field, "must be an absolute path")) }
}

impl FromCore<Completion> for LspCompletion {
    fn from_core(completion: Completion) -> Self {
        Self {
            label: completion.label,
            kind: completion.kind,
            detail: completion.detail,
            documentation: completion.documentation,
            insert_text: completion.insert_text,
            filter_text: completion.filter_text,
            sort_text: completion.sort_text,
        }
    }
}

impl FromCore<TextPosition> for LspPosition {
    fn from_core(TextPosition { line, character }: TextPosition) -> Self {
        Self { line, character }
    }
}

impl FromCore<Symbol> for LspSymbol {
    fn from_core(symbol: Symbol) -> Self {
        Self {
            name: symbol.name,
            kind: symbol.kind,
            uri: symbol.uri,
            start: symbol.range.0.into_api(),
            end: symbol.range.1.into_api(),
        }
    }
}

/// Starts the language server of a project and waits until it is ready. One that already runs is kept.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/lsp/start", tag = "lsp",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = LspBody, responses((status = 204, description = "Ready")))]
pub(crate) async fn start(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<LspBody>,
) -> Result<StatusCode, ApiError> {
    tools(&app, &who, &ident).await?.lsp(body.language, &body.project)?.start().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stops the language server of a project.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/lsp/stop", tag = "lsp",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = LspBody, responses((status = 204, description = "Stopped")))]
pub(crate) async fn stop(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<LspBody>,
) -> Result<StatusCode, ApiError> {
    tools(&app, &who, &ident).await?.lsp(body.language, &body.project)?.stop().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Opens a file, or gives the server a newer version of its text.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/lsp/open", tag = "lsp",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = LspOpenBody, responses((status = 204, description = "Opened")))]
pub(crate) async fn open(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<LspOpenBody, EXEC_MAX>,
) -> Result<StatusCode, ApiError> {
    let path = absolute("path", &body.path)?;
    let tools = tools(&app, &who, &ident).await?;
    let server = tools.lsp(body.language, &body.project)?;
    server.did_open_as(path, body.text, body.version.unwrap_or(1)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Closes a file.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/lsp/close", tag = "lsp",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = LspFileBody, responses((status = 204, description = "Closed")))]
pub(crate) async fn close(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<LspFileBody>,
) -> Result<StatusCode, ApiError> {
    let path = absolute("path", &body.path)?;
    tools(&app, &who, &ident).await?.lsp(body.language, &body.project)?.did_close(path).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns completions at a position of an open file.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/lsp/completions", tag = "lsp",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = LspCompletionBody, responses((status = 200, body = LspCompletions)))]
pub(crate) async fn completions(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<LspCompletionBody>,
) -> Result<JsonResponse<LspCompletions>, ApiError> {
    let path = absolute("path", &body.path)?;
    let place = TextPosition { line: body.line, character: body.character };
    let tools = tools(&app, &who, &ident).await?;
    let found = tools.lsp(body.language, &body.project)?.completions(path, place, None).await?;
    let items = found.items.into_iter().map(LspCompletion::from_core).collect();
    Ok(ok(LspCompletions { is_incomplete: found.is_incomplete, items }))
}

/// Returns the symbols of a file, or those of the project whose name contains a text.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/lsp/symbols", tag = "lsp",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = LspSymbolBody, responses((status = 200, body = LspSymbols)))]
pub(crate) async fn symbols(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<LspSymbolBody>,
) -> Result<JsonResponse<LspSymbols>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    let server = tools.lsp(body.language, &body.project)?;
    let found = match (body.path, body.query) {
        (Some(path), None) => server.document_symbols(absolute("path", &path)?).await?,
        (None, Some(query)) => server.workspace_symbols(&query).await?,
        _ => return Err(ApiError::invalid("exactly one of path and query must be given")),
    };
    Ok(ok(LspSymbols { items: found.into_iter().map(LspSymbol::from_core).collect() }))
}
