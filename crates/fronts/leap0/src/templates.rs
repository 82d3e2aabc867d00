//! Templates: the vendor's names for ours. New ones are made on the server, not by this front.

use atoll_model::{Code, Lease, Principal};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{patch, post};

use crate::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::input::Path;

const INTERPRETER: &str = "code-interpreter";
/// The same without the large libraries.
const INTERPRETER_SLIM: &str = "code-interpreter-slim";
/// The same with R and Java.
const INTERPRETER_FULL: &str = "code-interpreter-full";

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/template", post(create))
        // Names hold slashes.
        .route("/v1/template/{*id}", patch(rename).delete(remove))
}

/// Our names for one of the vendor's, in the order in which they are tried.
fn names(asked: &str) -> Vec<&str> {
    let system = asked.strip_prefix("system/").map(|name| name.split(':').next().unwrap_or(name));
    match system {
        // The Debian of this server may be a later one than the name says.
        Some("debian") => vec![asked, "debian"],
        // Which version is not ours to say; the slim one does where only that was made.
        Some(INTERPRETER) => vec![asked, INTERPRETER, INTERPRETER_FULL, INTERPRETER_SLIM],
        Some(_) | None => vec![asked],
    }
}

/// Finds the template that a name means.
pub(crate) async fn resolve(app: &App, who: &Principal, asked: &str) -> Result<String, ApiError> {
    if asked.starts_with("system/desktop") {
        return Err(crate::missing::desktop());
    }
    let mut missing = None;
    for (tried, name) in names(asked).into_iter().enumerate() {
        match app.service.get_template(who, name).await {
            Ok(found) => return Ok(found.name),
            // Ours that stands for the vendor's is the one to make; its error says how.
            Err(error) if error.code == Code::TemplateNotFound && tried <= 1 => missing = Some(error),
            Err(error) if error.code == Code::TemplateNotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(match missing {
        Some(error) => error.into(),
        None => ApiError::new(Code::TemplateNotFound, "there is no such template"),
    })
}

/// Whether a sandbox was made from an interpreter template.
pub(crate) fn interprets(lease: &Lease) -> bool {
    matches!(lease.template.as_str(), INTERPRETER | INTERPRETER_SLIM | INTERPRETER_FULL)
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
            [
                "system/code-interpreter:v0.1.0",
                "code-interpreter",
                "code-interpreter-full",
                "code-interpreter-slim"
            ]
        );
        assert_eq!(names("mine/debian:bookworm"), ["mine/debian:bookworm"]);
        assert_eq!(names("busybox"), ["busybox"]);
    }
}
