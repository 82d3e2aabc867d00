//! Search by name and by content, and edits of text.

use atoll_client::files::{
    EditBody, EditResult, GrepBody, GrepMatch, GrepResult, SearchBody, SearchResult, TextEdit,
};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok};
use atoll_toolbox::{Edit, Grep, Match};
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::FromCore;
use crate::exec::EXEC_MAX;
use crate::tools::tools;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(search)).routes(routes!(grep)).routes(routes!(edit))
}

impl FromCore<Match> for GrepMatch {
    fn from_core(found: Match) -> Self {
        Self { path: found.path, line: found.line, text: found.content }
    }
}

fn to_edit(TextEdit { find, replace, all }: TextEdit) -> Edit {
    Edit { find, replace, unique: !all }
}

/// Finds files by a glob: `*`, `?`, `[a-z]`, `{a,b}` and `**`.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/files/search", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = SearchBody, responses((status = 200, body = SearchResult)))]
pub(crate) async fn search(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<SearchBody>,
) -> Result<JsonResponse<SearchResult>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    let path = tools.directory(body.path);
    let found = tools.toolbox.files().glob(&path, &body.pattern, &body.exclude).await?;
    Ok(ok(SearchResult { items: found.items, truncated: found.truncated }))
}

/// Finds lines of text files that match a regular expression or contain a text.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/files/grep", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GrepBody, responses((status = 200, body = GrepResult)))]
pub(crate) async fn grep(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GrepBody>,
) -> Result<JsonResponse<GrepResult>, ApiError> {
    let GrepBody { path, pattern, literal, ignore_case, include, exclude } = body;
    let tools = tools(&app, &who, &ident).await?;
    let grep = Grep { pattern, literal, ignore_case, include, exclude };
    let found = tools.toolbox.files().grep(&tools.directory(path), &grep).await?;
    let items = found.items.into_iter().map(GrepMatch::from_core).collect();
    Ok(ok(GrepResult { items, truncated: found.truncated }))
}

/// Replaces exact text in a file. If a text is not found, or found more than once without `all`, nothing is changed.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/files/edit", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = EditBody, responses((status = 200, body = EditResult)))]
pub(crate) async fn edit(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<EditBody, EXEC_MAX>,
) -> Result<JsonResponse<EditResult>, ApiError> {
    let edits: Vec<Edit> = body.edits.into_iter().map(to_edit).collect();
    let tools = tools(&app, &who, &ident).await?;
    let edited = tools.toolbox.files().edit(&body.path, &edits).await?;
    Ok(ok(EditResult { replacements: edited.replacements, diff: edited.diff }))
}
