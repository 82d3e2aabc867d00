//! Runs one command in the user's shell: both streams are returned as one text.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_front_kit::{ApiError, Json, JsonObject, ok, stream_json};
use atoll_toolbox::{ShellLine, ToolboxError};
use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::{Deserialize, Serialize};

use super::inside::Inside;
use super::refusal::{bad, of_process};
use crate::DaytonaApp;

/// LIMIT: a year counts as unlimited.
const TIMEOUT_MAX_S: u64 = 365 * 24 * 3_600;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new().route("/process/execute", post(execute))
}

#[derive(Debug, Deserialize)]
struct ExecuteRequest {
    command: String,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    /// Seconds; 0 or absent: no timeout.
    timeout: Option<u64>,
    /// Atoll's own field: the user that runs the command, instead of the sandbox's.
    user: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Executed {
    exit_code: i32,
    result: String,
}

async fn execute(inside: Inside, Json(body): Json<ExecuteRequest>) -> Result<Response, ApiError> {
    if body.command.trim().is_empty() {
        return Err(bad("command is required"));
    }
    let env = variables(body.envs)?;
    let cwd = inside.cwd(body.cwd.as_deref());
    let line = ShellLine { line: body.command, cwd, env, timeout: timeout(body.timeout) };
    // The sandbox does not count as idle until the answer is complete.
    let Inside { toolbox, sandbox: _busy, .. } = inside;
    match toolbox.as_user(body.user).shell(line).await {
        Ok(ran) => {
            let answer = JsonObject::new().field("exitCode", &ran.exit_code);
            Ok(stream_json(answer.texts("result", ran.output.with_notice())))
        }
        Err(error) => match not_started(&error) {
            Some(result) => Ok(ok(Executed { exit_code: -1, result }).into_response()),
            None => Err(of_process(error)),
        },
    }
}

pub(super) fn timeout(seconds: Option<u64>) -> Option<Duration> {
    seconds.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.min(TIMEOUT_MAX_S)))
}

/// COMPAT(daytona): a variable name that a shell cannot read is a bad request.
pub(super) fn variables(
    given: Option<BTreeMap<String, String>>,
) -> Result<BTreeMap<String, String>, ApiError> {
    let env = given.unwrap_or_default();
    for (name, value) in &env {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || !name.chars().all(word) {
            return Err(bad(format!("{name:?} can't name an environment variable")));
        }
        if value.contains('\0') {
            return Err(bad(format!("the value of {name} contains a NUL byte")));
        }
    }
    Ok(env)
}

/// COMPAT(daytona): a command that could not be started, as in a missing folder, ends with -1.
pub(super) fn not_started(error: &ToolboxError) -> Option<String> {
    use atoll_model::ErrorKind as K;
    let refused = matches!(error, ToolboxError::Agent { .. });
    let could_be_asked = matches!(error.kind(), K::NotFound | K::Invalid | K::Forbidden | K::Conflict);
    (refused && could_be_asked).then(|| error.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_names_that_a_shell_reads() {
        let env = |name: &str| variables(Some([(name.to_owned(), "x".to_owned())].into()));
        for good in ["A", "_a1", "Path_2"] {
            assert!(env(good).is_ok(), "{good}");
        }
        for bad in ["", "1A", "A-B", "A=B", "a b", "ü", "A\0"] {
            assert_eq!(env(bad).unwrap_err().status().as_u16(), 400, "{bad:?}");
        }
    }

    #[test]
    fn no_timeout_and_zero_are_the_same() {
        assert_eq!((timeout(None), timeout(Some(0))), (None, None));
        assert_eq!(timeout(Some(3)), Some(Duration::from_secs(3)));
        assert_eq!(timeout(Some(u64::MAX)), Some(Duration::from_secs(TIMEOUT_MAX_S)));
    }
}
