//! Templates: the vendor's names for ours. New ones are made on the server, not by this front.

use std::collections::BTreeMap;

use atoll_model::{Code, Lease, Principal};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{patch, post};

use crate::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::input::Path;

/// Says on a sandbox which of the vendor's templates it stands for, where ours has another name.
const LABEL: &str = "leap0.template";
const INTERPRETER: &str = "code-interpreter";

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/template", post(create))
        // Names hold slashes.
        .route("/v1/template/{*id}", patch(rename).delete(remove))
}

/// A template of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
}

/// Our names for one of the vendor's, in the order in which they are tried.
fn names(asked: &str) -> Vec<&str> {
    let system = asked.strip_prefix("system/").map(|name| name.split(':').next().unwrap_or(name));
    match system {
        // The Debian of this server may be a later one than the name says.
        Some("debian") => vec![asked, "debian"],
        // What the interpreter needs is Python (and Node), which Debian's has too.
        Some(INTERPRETER) => vec![asked, INTERPRETER, "debian"],
        Some(_) | None => vec![asked],
    }
}

/// Finds the template that a name means.
pub(crate) async fn resolve(app: &App, who: &Principal, asked: &str) -> Result<Resolved, ApiError> {
    if asked.starts_with("system/desktop") {
        return Err(crate::missing::desktop());
    }
    let mut labels = BTreeMap::new();
    if is_interpreter(asked) {
        labels.insert(LABEL.to_owned(), asked.to_owned());
    }
    let mut missing = None;
    for name in names(asked) {
        match app.service.get_template(who, name).await {
            Ok(found) => return Ok(Resolved { name: found.name, labels }),
            Err(error) if error.code == Code::TemplateNotFound => missing = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(match missing {
        Some(error) => error.into(),
        None => ApiError::new(Code::TemplateNotFound, "there is no such template"),
    })
}

fn is_interpreter(name: &str) -> bool {
    let plain = name.strip_prefix("system/").unwrap_or(name);
    plain.split(':').next() == Some(INTERPRETER)
}

/// Whether a sandbox stands for the vendor's code interpreter.
pub(crate) fn interprets(lease: &Lease) -> bool {
    is_interpreter(&lease.template) || lease.labels.get(LABEL).is_some_and(|name| is_interpreter(name))
}

async fn create(Caller(_): Caller) -> ApiError {
    ApiError::not_here("making a template from an image", "images are not pulled yet; see `atoll template`")
}

async fn rename(Caller(_): Caller) -> ApiError {
    ApiError::not_here("renaming a template", "sandboxes and snapshots name theirs")
}

async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.remove_template(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vendors_names_lead_to_ours() {
        assert_eq!(names("system/debian:bookworm"), ["system/debian:bookworm", "debian"]);
        assert_eq!(
            names("system/code-interpreter:v0.1.0"),
            ["system/code-interpreter:v0.1.0", "code-interpreter", "debian"]
        );
        assert_eq!(names("mine/debian:bookworm"), ["mine/debian:bookworm"]);
        assert_eq!(names("busybox"), ["busybox"]);
    }

    #[test]
    fn an_interpreter_is_known_by_any_version() {
        for name in ["system/code-interpreter:v0.1.0", "system/code-interpreter", "code-interpreter"] {
            assert!(is_interpreter(name), "{name}");
        }
        for name in ["system/debian:bookworm", "my-code-interpreter", "code-interpreters", ""] {
            assert!(!is_interpreter(name), "{name}");
        }
    }
}
