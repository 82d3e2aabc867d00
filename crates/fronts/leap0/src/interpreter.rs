//! The code interpreter on a sandbox's own host: `https://ID.DOMAIN/execute` and similar paths.
//!
//! It exists only if the sandbox was created from an interpreter template and the caller can see it; every other
//! request goes to the app in the sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_front_kit::{
    ApiError, Caller, CollectedExecution, FrontState, Json, JsonResponse, Path, created, ok,
};
use atoll_model::SandboxId;
use atoll_toolbox::{Execute, InterpreterContext as Kept, Language, NewContext};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::{Deserialize, Serialize};

use crate::Leap0App;
use crate::filesystem::{AwakeFiles, awake};
use crate::response::ItemList;

mod collected;
mod streamed;

use collected::Executed;

/// COMPAT(leap0): the vendor's default.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new()
        .route("/healthz", get(health))
        .route("/contexts", get(list).post(create))
        .route("/contexts/{context}", get(find).delete(remove))
        .route("/execute", post(execute))
        .route("/execute/async", post(stream))
}

/// Whether a request to a sandbox's own host is for its interpreter.
pub(crate) async fn is_meant(app: &Leap0App, sandbox: &SandboxId, path: &str, headers: &HeaderMap) -> bool {
    if !is_call(path) {
        return false;
    }
    // A request without a valid key is left to the proxy, which answers it; the key may also belong to the app.
    let Some(key) = Leap0App::key(headers) else { return false };
    let Ok(who) = app.service.access().identify(key).await else { return false };
    let found = app.service.sandboxes().get(&who, sandbox.as_str()).await;
    found.is_ok_and(|lease| crate::templates::interprets(&lease))
}

fn is_call(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    match path.strip_prefix("/contexts/") {
        Some(context) => !context.is_empty() && !context.contains('/'),
        None => matches!(path, "/healthz" | "/contexts" | "/execute" | "/execute/async"),
    }
}

#[derive(Debug, Serialize)]
struct Healthy {
    status: &'static str,
}

async fn health(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Extension(id): Extension<SandboxId>,
) -> Result<JsonResponse<Healthy>, ApiError> {
    awake(&app, &who, id.as_str()).await?;
    Ok(ok(Healthy { status: "ok" }))
}

#[derive(Debug, Serialize)]
struct ContextResponse {
    id: String,
    language: &'static str,
    cwd: String,
}

impl From<Kept> for ContextResponse {
    fn from(kept: Kept) -> Self {
        Self { language: kept.language.as_str(), id: kept.id, cwd: kept.cwd }
    }
}

/// A language by its name, or by the number that older clients send.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Name(String),
}

fn language(written: Option<&Written>) -> Result<Language, ApiError> {
    match written {
        None | Some(Written::Number(1)) => Ok(Language::Python),
        Some(Written::Number(2)) => Ok(Language::TypeScript),
        Some(Written::Number(_)) => Err(ApiError::field("language", "is not a known language")),
        Some(Written::Name(name)) => {
            Language::parse(name).map_err(|error| ApiError::field("language", error.to_string()))
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContextBody {
    language: Option<Written>,
    cwd: Option<String>,
}

async fn create(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Extension(id): Extension<SandboxId>,
    Json(body): Json<ContextBody>,
) -> Result<JsonResponse<ContextResponse>, ApiError> {
    let new = NewContext { language: language(body.language.as_ref())?, cwd: body.cwd };
    let awake = awake(&app, &who, id.as_str()).await?;
    Ok(created(awake.toolbox.interpreter().create_context(&new).await?.into()))
}

async fn list(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Extension(id): Extension<SandboxId>,
) -> Result<JsonResponse<ItemList<ContextResponse>>, ApiError> {
    let awake = awake(&app, &who, id.as_str()).await?;
    let all = awake.toolbox.interpreter().contexts().await?;
    Ok(ok(ItemList { items: all.into_iter().map(ContextResponse::from).collect() }))
}

async fn find(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Extension(id): Extension<SandboxId>,
    Path(context): Path<String>,
) -> Result<JsonResponse<ContextResponse>, ApiError> {
    let awake = awake(&app, &who, id.as_str()).await?;
    Ok(ok(awake.toolbox.interpreter().context(&context).await?.into()))
}

async fn remove(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Extension(id): Extension<SandboxId>,
    Path(context): Path<String>,
) -> Result<StatusCode, ApiError> {
    let awake = awake(&app, &who, id.as_str()).await?;
    awake.toolbox.interpreter().delete_context(&context).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct RunCodeRequest {
    code: String,
    #[serde(default)]
    language: Option<Written>,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    timeout_ms: Option<u64>,
}

impl RunCodeRequest {
    fn into_execute(self) -> Execute {
        Execute {
            code: self.code,
            env: self.env_vars.unwrap_or_default(),
            timeout: Some(self.timeout_ms.map_or(TIMEOUT, Duration::from_millis)),
        }
    }
}

/// Code without a context runs in the default context of its language, which keeps definitions for later code.
async fn execute(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Extension(id): Extension<SandboxId>,
    Json(body): Json<RunCodeRequest>,
) -> Result<JsonResponse<Executed>, ApiError> {
    let language = language(body.language.as_ref())?;
    let AwakeFiles { toolbox, sandbox } = awake(&app, &who, id.as_str()).await?;
    let interpreter = toolbox.interpreter();
    let context = match &body.context_id {
        Some(id) => interpreter.context(id).await?,
        None => interpreter.default_context(language).await?,
    };
    let execution = interpreter.execute(&context, body.into_execute()).await?;
    Ok(ok(CollectedExecution::collect(execution, &sandbox.account).await?.into()))
}

/// Code without a context runs in a context of its own, which is removed afterwards.
async fn stream(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Extension(id): Extension<SandboxId>,
    Json(body): Json<RunCodeRequest>,
) -> Result<Response, ApiError> {
    let language = language(body.language.as_ref())?;
    let awake = awake(&app, &who, id.as_str()).await?;
    let interpreter = awake.toolbox.interpreter();
    let (context, is_own) = match &body.context_id {
        Some(id) => (interpreter.context(id).await?, false),
        None => (interpreter.create_context(&NewContext { language, cwd: None }).await?, true),
    };
    let execution = interpreter.execute(&context, body.into_execute()).await?;
    let own = is_own.then_some(context.id);
    Ok(streamed::answer(awake, execution, own))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_interpreters_own_paths_are_taken() {
        for path in ["/healthz", "/contexts", "/contexts/", "/contexts/a", "/execute", "/execute/async"] {
            assert!(is_call(path), "{path}");
        }
        for path in ["/", "/contexts/a/b", "/executes", "/execute/sync", "/api/execute", "//execute"] {
            assert!(!is_call(path), "{path}");
        }
    }

    #[test]
    fn a_language_is_a_name_or_a_number() {
        let read = |text: &str| {
            let body: ContextBody = atoll_front_kit::parse_json_or_empty(text.as_bytes()).unwrap();
            language(body.language.as_ref())
        };
        assert_eq!(read("{}").unwrap(), Language::Python);
        assert_eq!(read(r#"{"language":1}"#).unwrap(), Language::Python);
        assert_eq!(read(r#"{"language":2}"#).unwrap(), Language::TypeScript);
        assert_eq!(read(r#"{"language":"js"}"#).unwrap(), Language::JavaScript);
        assert_eq!(read(r#"{"language":9}"#).unwrap_err().field_name(), Some("language"));
        assert_eq!(read(r#"{"language":"cobol"}"#).unwrap_err().field_name(), Some("language"));
    }
}
