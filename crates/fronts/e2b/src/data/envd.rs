//! Port 49983: authenticates requests to the agent and checks their route. A permitted request is forwarded unchanged.

use atoll_model::{Phase, SandboxId};
use atoll_service::{Grant, SandboxTarget, TokenOf};
use axum::extract::Request;
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::refusal::Refusal;
use super::{Data, empty, files};

const TOKEN: &str = atoll_service::TOKEN_HEADER;
/// Headers for the server, not for the agent.
const ASIDE: [&str; 3] = ["e2b-sandbox-id", "e2b-sandbox-port", "e2b-traffic-access-token"];

/// The access rule of a path of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Health,
    Files,
    /// Requires the token.
    Private,
    /// Reserved for the host and its agent, or unknown.
    None,
}

impl Route {
    /// Compares the path as it is written: a path with another encoding is a different one, here and at the agent.
    fn of(path: &str) -> Self {
        let is_method = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
        match path {
            "/health" => Self::Health,
            "/files" => Self::Files,
            "/envs" | "/metrics" | "/files/compose" => Self::Private,
            _ => {
                let rpc = path
                    .strip_prefix("/process.Process/")
                    .or_else(|| path.strip_prefix("/filesystem.Filesystem/"));
                if rpc.is_some_and(is_method) { Self::Private } else { Self::None }
            }
        }
    }
}

impl Data {
    pub(super) async fn envd(&self, sandbox: &SandboxId, mut request: Request) -> Result<Response, Refusal> {
        let route = Route::of(request.uri().path());
        if route == Route::None {
            // The answer is the same for every caller.
            return Err(self.known(sandbox).map_or(Refusal::NotFound, |_| Refusal::no_route()));
        }
        // The caller is authenticated before anything else is reported.
        let grant = match (route, shown(request.headers())?) {
            (Route::Health, shown) if request.method() == Method::GET => {
                let known = shown
                    .and_then(|token| self.service.access().admit_token(sandbox, TokenOf::Agent, token).ok());
                match known {
                    Some(grant) => grant,
                    None => return self.health(sandbox),
                }
            }
            (_, Some(token)) => self.by_token(sandbox, token, route)?,
            (Route::Files, None) => {
                let grant = self.signed_for(sandbox, &request)?;
                files::unsign(&mut request)?;
                grant
            }
            (Route::Health | Route::Private | Route::None, None) => return Err(self.nobody(sandbox)),
        };
        self.charge(request.extensions(), &grant);
        clean(request.headers_mut());
        let awake = self.awake(grant).await?;
        self.forward(awake, request).await
    }

    fn by_token(
        &self,
        sandbox: &SandboxId,
        token: &str,
        route: Route,
    ) -> Result<Grant<SandboxTarget>, Refusal> {
        self.service.access().admit_token(sandbox, TokenOf::Agent, token).map_err(|error| {
            match (Refusal::from(error), route) {
                // COMPAT(e2b): the message of envd.
                (Refusal::Agents(status, _), Route::Files) => {
                    Refusal::Agents(status, "access token present in header but does not match".to_owned())
                }
                (refusal, _) => refusal,
            }
        })
    }

    /// For a request without credentials: the sandbox runs, or is reported as missing. No sandbox is woken for it.
    fn health(&self, sandbox: &SandboxId) -> Result<Response, Refusal> {
        match self.known(sandbox) {
            Some(lease) if lease.phase == Phase::Running => Ok(empty(StatusCode::NO_CONTENT)),
            _ => Err(Refusal::NotFound),
        }
    }

    /// COMPAT(e2b): a deleted sandbox is reported as such, whatever the credentials.
    pub(super) fn nobody(&self, sandbox: &SandboxId) -> Refusal {
        match self.known(sandbox) {
            Some(_) => Refusal::unauthenticated(),
            None => Refusal::NotFound,
        }
    }
}

/// The token in a request; two tokens are refused.
pub(super) fn shown(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(TOKEN).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(token), None) => match token.to_str() {
            Ok("") => Ok(None),
            Ok(token) => Ok(Some(token)),
            Err(_) => Err(Refusal::unauthenticated()),
        },
        (Some(_), Some(_)) => Err(Refusal::unauthenticated()),
    }
}

/// Removes headers that are not for the agent: it reads a user name from `Authorization`, and nothing else.
fn clean(headers: &mut HeaderMap) {
    for name in ASIDE {
        headers.remove(name);
    }
    let names_a_user = |value: &HeaderValue| value.as_bytes().starts_with(b"Basic ");
    if !headers.get_all(AUTHORIZATION).iter().all(names_a_user) {
        headers.remove(AUTHORIZATION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_routes_lead_to_the_agent() {
        for (path, route) in [
            ("/health", Route::Health),
            ("/files", Route::Files),
            ("/envs", Route::Private),
            ("/metrics", Route::Private),
            ("/process.Process/Start", Route::Private),
            ("/filesystem.Filesystem/WatchDir", Route::Private),
        ] {
            assert_eq!(Route::of(path), route, "{path}");
        }
        for path in [
            "/",
            "/init",
            "/hold",
            "/freeze",
            "/archive/pack",
            "/atoll.agent.v1.Agent/Attach",
            "/process.Process/",
            "/process.Process/../init",
            "/process.Process/Start/",
            "/process.Process/%2e%2e",
            "/files/",
            "//files",
            "/%66iles",
            "/health/",
        ] {
            assert_eq!(Route::of(path), Route::None, "{path}");
        }
    }

    #[test]
    fn a_key_does_not_go_inside_and_a_users_name_does() {
        for (value, stays) in [("Basic cm9vdDo=", true), ("Bearer e2b_0", false), ("e2b_0", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            headers.insert("e2b-traffic-access-token", HeaderValue::from_static("t"));
            clean(&mut headers);
            assert_eq!(headers.contains_key(AUTHORIZATION), stays, "{value}");
            assert!(!headers.contains_key("e2b-traffic-access-token"));
        }
    }
}
