//! Authenticates a request to a sandbox and connects to its agent. A key, the sandbox's own token, or a signed link is
//! accepted.

use std::sync::Arc;

use atoll_front_kit::{ApiError, RequestBudget, authenticate, bearer, lossy_text, toolbox};
use atoll_model::{Lease, Principal, SandboxId};
use atoll_service::{Grant, SandboxSession, SandboxTarget, TokenOf};
use atoll_toolbox::{Interpreter, Toolbox};
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri};

use super::refusal::{bad, of_file};
use crate::DaytonaApp;
use crate::error::daemon;

const TOKEN_HEADER: &str = "x-daytona-preview-token";
const TOKEN_QUERY: &str = "DAYTONA_SANDBOX_AUTH_KEY";

/// A running sandbox that the caller may use. As long as it is held, the sandbox does not count as idle.
pub(super) struct Inside {
    pub(super) toolbox: Toolbox,
    pub(super) sandbox: SandboxSession,
    /// The holder of a key; `None` if the caller used the sandbox's own token.
    pub(super) who: Option<Principal>,
}

impl FromRequestParts<DaytonaApp> for Inside {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &DaytonaApp) -> Result<Self, ApiError> {
        let ident = sandbox_of(parts, app).await?;
        let (grant, who) = admit(app, &ident, &parts.headers, &parts.uri).await?;
        let inside = Self::open(&grant, who).await?;
        RequestBudget::charge(&parts.extensions, inside.sandbox.account.clone());
        Ok(inside)
    }
}

impl Inside {
    pub(super) async fn open(grant: &Grant<SandboxTarget>, who: Option<Principal>) -> Result<Self, ApiError> {
        let sandbox = grant.session().await.map_err(ApiError::from)?;
        Ok(Self { toolbox: toolbox(&sandbox), sandbox, who })
    }

    /// COMPAT(daytona): runs Python in any image that has it, with a plain worker if there is no kernel.
    pub(super) fn interpreter(&self) -> Interpreter<'_> {
        self.toolbox.interpreter().or_plain_python()
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.sandbox.lease
    }

    /// A path as Daytona interprets it: relative ones are below the working directory.
    pub(super) fn path(&self, given: &str) -> Result<String, ApiError> {
        if given.is_empty() {
            return Err(bad("path is required"));
        }
        Ok(below(&self.lease().workdir, given))
    }

    /// The home folder of the sandbox's user, as an absolute path.
    pub(super) async fn home(&self) -> Result<String, ApiError> {
        let home = self.toolbox.files().stat("~").await.map_err(of_file)?;
        Ok(lossy_text(&home.path))
    }

    /// The working directory, as an absolute path.
    pub(super) async fn work_dir(&self) -> Result<String, ApiError> {
        match self.lease().workdir.as_str() {
            "" => self.home().await,
            workdir => Ok(workdir.to_owned()),
        }
    }

    /// A working directory for a process; by default the sandbox's.
    pub(super) fn cwd(&self, given: Option<&str>) -> Option<String> {
        given.filter(|cwd| !cwd.is_empty()).map(|cwd| below(&self.lease().workdir, cwd))
    }
}

/// If the working directory is the user's home, the agent resolves relative paths.
pub(super) fn below(workdir: &str, path: &str) -> String {
    match workdir {
        _ if path.starts_with('/') || path == "~" || path.starts_with("~/") => path.to_owned(),
        "" => path.to_owned(),
        workdir => format!("{}/{path}", workdir.trim_end_matches('/')),
    }
}

/// The sandbox in the path of the request.
pub(super) async fn sandbox_of(parts: &mut Parts, app: &DaytonaApp) -> Result<String, ApiError> {
    let params = RawPathParams::from_request_parts(parts, app).await;
    let params = params.map_err(|rejection| bad(rejection.body_text()))?;
    let named = params.iter().find(|(name, _)| *name == "sandbox").map(|(_, value)| value.to_owned());
    named.ok_or_else(|| bad("the request does not name a sandbox"))
}

/// Accepts a key, or the sandbox's token in a header or in the query (browsers cannot set headers on a socket).
async fn admit(
    app: &DaytonaApp,
    ident: &str,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<(Grant<SandboxTarget>, Option<Principal>), ApiError> {
    if bearer(headers).is_none()
        && let Some(token) = token(headers, uri)
    {
        let sandbox: SandboxId = ident.parse().map_err(|_| unknown())?;
        return Ok((app.service.access().admit_token(&sandbox, TokenOf::Agent, &token)?, None));
    }
    let who = authenticate(app, headers).await?;
    let grant = app.service.access().admit_key(&who, ident).await?;
    Ok((grant, Some(who)))
}

fn unknown() -> ApiError {
    daemon(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "the request has no valid access token of this sandbox")
}

fn token(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let header = headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    header.or_else(|| {
        let pairs = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        pairs.into_iter().find(|(name, _)| name == TOKEN_QUERY).map(|(_, value)| value.into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_below_the_working_directory() {
        assert_eq!(below("/srv/app", "a/b"), "/srv/app/a/b");
        assert_eq!(below("/", "a"), "/a");
        assert_eq!(below("/srv", "/etc/x"), "/etc/x");
        assert_eq!(below("/srv", "~/x"), "~/x");
        assert_eq!(below("", "x"), "x");
    }

    #[test]
    fn a_token_is_in_the_header_or_in_the_query() {
        let uri: Uri = "/x?a=1&DAYTONA_SANDBOX_AUTH_KEY=t%2B1".parse().unwrap_or_default();
        assert_eq!(token(&HeaderMap::new(), &uri).as_deref(), Some("t+1"));
        assert_eq!(token(&HeaderMap::new(), &Uri::from_static("/x?a=1")), None);
    }
}
