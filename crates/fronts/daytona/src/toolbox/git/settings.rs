//! Git's settings, the user's name, and credentials that are stored in the sandbox.

use atoll_front_kit::{ApiError, Json, JsonResponse, Query, ok};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ConfigScope, Inside, StoredCredentials, at, done, of_git, some};
use crate::DaytonaApp;
use crate::toolbox::refusal::bad;
use atoll_toolbox::Git;

/// COMPAT(daytona): the defaults.
const HOST: &str = "github.com";
const PROTOCOL: &str = "https";

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/git/config", get(read).post(write))
        .route("/git/config/user", post(user))
        .route("/git/credentials", post(credentials))
}

fn scope(word: Option<&str>) -> Result<ConfigScope, ApiError> {
    match word {
        None | Some("" | "global") => Ok(ConfigScope::Global),
        Some("local") => Ok(ConfigScope::Local),
        Some("system") => Ok(ConfigScope::System),
        Some(_) => Err(bad("scope must be global, local or system")),
    }
}

/// Settings of a repository need a path; all others do not depend on one.
fn place<'a>(inside: &'a Inside, scope: ConfigScope, path: Option<String>) -> Result<Git<'a>, ApiError> {
    match (scope, some(path)) {
        (ConfigScope::Local, Some(path)) => at(inside, &path),
        (ConfigScope::Local, None) => Err(bad("path is required for scope local")),
        (ConfigScope::Global | ConfigScope::System, _) => Ok(inside.toolbox.git("/")),
    }
}

#[derive(Debug, Deserialize)]
struct ReadQuery {
    key: String,
    scope: Option<String>,
    path: Option<String>,
}

async fn read(inside: Inside, Query(query): Query<ReadQuery>) -> Result<JsonResponse<Value>, ApiError> {
    let scope = scope(query.scope.as_deref())?;
    let value = place(&inside, scope, query.path)?.config_get(&query.key, scope).await.map_err(of_git)?;
    Ok(ok(match value {
        Some(value) => json!({ "value": value }),
        None => json!({}),
    }))
}

#[derive(Debug, Deserialize)]
struct WriteBody {
    key: String,
    value: String,
    scope: Option<String>,
    path: Option<String>,
}

async fn write(inside: Inside, Json(body): Json<WriteBody>) -> Result<StatusCode, ApiError> {
    let scope = scope(body.scope.as_deref())?;
    done(place(&inside, scope, body.path)?.config_set(&body.key, &body.value, scope).await)?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
struct UserBody {
    name: String,
    email: String,
    scope: Option<String>,
    path: Option<String>,
}

async fn user(inside: Inside, Json(body): Json<UserBody>) -> Result<StatusCode, ApiError> {
    let scope = scope(body.scope.as_deref())?;
    let git = place(&inside, scope, body.path)?;
    done(git.config_set("user.name", &body.name, scope).await)?;
    done(git.config_set("user.email", &body.email, scope).await)?;
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
struct CredentialsBody {
    username: String,
    password: String,
    host: Option<String>,
    protocol: Option<String>,
}

async fn credentials(inside: Inside, Json(body): Json<CredentialsBody>) -> Result<StatusCode, ApiError> {
    let keep = StoredCredentials {
        protocol: some(body.protocol).unwrap_or_else(|| PROTOCOL.to_owned()),
        host: some(body.host).unwrap_or_else(|| HOST.to_owned()),
        username: body.username,
        password: body.password,
    };
    inside.toolbox.git("/").store_credentials(&keep).await.map_err(of_git)?;
    Ok(StatusCode::OK)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_the_users_where_nothing_is_said() {
        assert_eq!(scope(None).unwrap(), ConfigScope::Global);
        assert_eq!(scope(Some("local")).unwrap(), ConfigScope::Local);
        assert_eq!(scope(Some("worktree")).unwrap_err().status().as_u16(), 400);
    }
}
