//! Port 49999: the code interpreter of sandboxes that were created through this front.
//!
//! A caller with the sandbox's access token may make every call. A caller that may reach the port may also list, create
//! and remove contexts, because the vendor's SDKs send no access token for these calls: it has the traffic token, or
//! nothing if the sandbox is public. Only the access token permits running code.
//!
//! A program in the sandbox may make every call without a token ([`Data::answer_inside`]): it runs beside the kernels.

mod lines;

use std::collections::BTreeMap;

use atoll_front_kit::{BODY_BYTES, RequestBudget, parse_json_or_empty, read_body};
use atoll_model::{Code, ErrorKind, Lease, SandboxId};
use atoll_service::{Grant, INTERPRETERS, InsideCaller, PortQuestion, SandboxTarget, TokenOf};
use atoll_toolbox::{
    Execute, Interpreter, InterpreterContext as Kept, Language, NewContext, Toolbox, ToolboxError,
};
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};

use super::awake::AwakeSandbox;
use super::envd::shown;
use super::refusal::Refusal;
use super::{Data, INTERPRETER, empty};
use crate::annotations;

const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";
/// COMPAT(e2b): the user of the kernels; they start in the home of the sandbox's user all the same.
const USER: &str = "root";
/// The vendor's working directory of code, if the sandbox has no other.
const HOME: &str = "/home/user";
/// The prefix of contexts that exist from the beginning.
const DEFAULT: &str = "default-";
/// Languages with a context from the beginning. They are listed, and created at their first use.
const FROM_THE_BEGINNING: [Language; 2] = [Language::Python, Language::JavaScript];

/// A call, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call<'a> {
    Health,
    Execute,
    Contexts,
    Context(&'a str),
    Restart(&'a str),
}

impl<'a> Call<'a> {
    fn of(path: &'a str) -> Option<Self> {
        match path {
            "/health" => return Some(Self::Health),
            "/execute" => return Some(Self::Execute),
            "/contexts" => return Some(Self::Contexts),
            _ => {}
        }
        let (id, call) = match path.strip_prefix("/contexts/")?.split_once('/') {
            None => (path.strip_prefix("/contexts/")?, Self::Context as fn(&'a str) -> Self),
            Some((id, "restart")) => (id, Self::Restart as fn(&'a str) -> Self),
            Some(_) => return None,
        };
        (!id.is_empty()).then(|| call(id))
    }
}

/// Whether a path belongs to the interpreter.
pub(super) fn is_call(path: &str) -> bool {
    Call::of(path).is_some()
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

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateContextRequest {
    language: Option<String>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RunCodeRequest {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
}

impl Data {
    pub(super) async fn interpret(&self, sandbox: &SandboxId, request: Request) -> Result<Response, Refusal> {
        let (parts, body) = request.into_parts();
        let Some(call) = Call::of(parts.uri.path()) else { return Err(Refusal::no_route()) };
        // The caller is authenticated before anything is read or woken.
        let grant = match call {
            Call::Execute => self.runner(sandbox, &parts.headers)?,
            _ => self.visitor(sandbox, &parts.headers).await?,
        };
        self.charge(&parts.extensions, &grant);
        self.call(call, grant, &parts, body).await
    }

    /// Whether programs in a sandbox find the interpreter at its port: in those of this front whose template has kernels.
    /// A command of its own may want the port.
    #[must_use]
    pub fn is_inside(lease: &Lease) -> bool {
        let has_kernels = INTERPRETERS.contains(&lease.template.as_str());
        has_kernels && lease.command.is_none() && lease.annotations.contains_key(annotations::MADE)
    }

    /// Answers a program in a sandbox that connected to the interpreter's port there.
    pub async fn answer_inside(&self, caller: &InsideCaller, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let answer = async {
            let call = Call::of(parts.uri.path()).ok_or_else(Refusal::no_route)?;
            let grant = self.service.access().admit_inside(caller)?;
            self.charge(&parts.extensions, &grant);
            self.call(call, grant, &parts, body).await
        };
        answer.await.unwrap_or_else(|refusal| refusal.render(caller.sandbox()))
    }

    async fn call(
        &self,
        call: Call<'_>,
        grant: Grant<SandboxTarget>,
        parts: &Parts,
        body: Body,
    ) -> Result<Response, Refusal> {
        let budget = RequestBudget::of(&parts.extensions);
        match (&parts.method, call) {
            (&Method::GET, Call::Health) => {
                self.awake(grant).await?;
                Ok(json(&"OK"))
            }
            (&Method::POST, Call::Execute) => {
                let body = self.read::<RunCodeRequest>(body, budget).await?;
                self.execute(self.awake(grant).await?, body).await
            }
            (&Method::GET, Call::Contexts) => self.list(self.awake(grant).await?).await,
            (&Method::POST, Call::Contexts) => {
                let body = self.read::<CreateContextRequest>(body, budget).await?;
                self.create(self.awake(grant).await?, body).await
            }
            (&Method::DELETE, Call::Context(id)) => self.remove(self.awake(grant).await?, id).await,
            (&Method::POST, Call::Restart(id)) => self.restart(self.awake(grant).await?, id).await,
            _ => Ok(empty(StatusCode::METHOD_NOT_ALLOWED)),
        }
    }

    /// Authenticates a caller that runs code.
    fn runner(&self, sandbox: &SandboxId, headers: &HeaderMap) -> Result<Grant<SandboxTarget>, Refusal> {
        let token = shown(headers)?.ok_or_else(|| self.nobody(sandbox))?;
        self.service.access().admit_token(sandbox, TokenOf::Agent, token).map_err(|error| {
            // The same answer as for a sandbox of another front, about which nothing is revealed here.
            let is_hidden = error.code == Code::Unauthenticated && self.known(sandbox).is_none();
            if is_hidden { Refusal::NotFound } else { error.into() }
        })
    }

    /// Authenticates a caller that may reach the port.
    async fn visitor(
        &self,
        sandbox: &SandboxId,
        headers: &HeaderMap,
    ) -> Result<Grant<SandboxTarget>, Refusal> {
        if shown(headers)?.is_some() {
            return self.runner(sandbox, headers);
        }
        let tokens: Vec<String> = headers
            .get(TRAFFIC_TOKEN)
            .and_then(|token| token.to_str().ok())
            .map(str::to_owned)
            .into_iter()
            .collect();
        let access = self.service.access();
        let question = PortQuestion { tokens: &tokens, ..PortQuestion::new(sandbox, Some(INTERPRETER)) };
        match access.reach_port(question).await {
            Ok(answer) => Ok(access.stand_in(&answer.grant)),
            Err(_) if access.glimpse(sandbox).is_none() => Err(Refusal::NotFound),
            Err(error) if error.code == Code::RateLimited => Err(error.into()),
            Err(_) => Err(Refusal::Private),
        }
    }

    async fn read<T: serde::de::DeserializeOwned>(
        &self,
        body: Body,
        budget: Option<&RequestBudget>,
    ) -> Result<T, Refusal> {
        let parsed = match read_body(body, BODY_BYTES, budget).await {
            Ok(bytes) => parse_json_or_empty(&bytes),
            Err(error) => Err(error),
        };
        parsed.map_err(|error| Refusal::Agents(error.status(), error.message))
    }

    async fn execute(&self, awake: AwakeSandbox, body: RunCodeRequest) -> Result<Response, Refusal> {
        let toolbox = toolbox(&awake);
        let interpreter = toolbox.interpreter();
        let begun = async {
            let context = match (&body.context_id, &body.language) {
                (Some(_), Some(_)) => {
                    let message = "Only one of context_id or language can be provided";
                    return Err(ToolboxError::Invalid(message.to_owned()));
                }
                (Some(id), None) => find(&interpreter, id).await?,
                (None, language) => interpreter.default_context(language_of(language.as_deref())?).await?,
            };
            let env = body.env_vars.unwrap_or_default();
            interpreter.execute(&context, Execute { code: body.code, env, timeout: None }).await
        };
        match begun.await {
            Ok(execution) => Ok(lines::answer(self.clone(), awake, execution)),
            Err(_) if !self.still_runs(&awake) => Ok(lines::broken_off()),
            Err(error) => Err(self.refusal(&awake, &error)),
        }
    }

    async fn list(&self, awake: AwakeSandbox) -> Result<Response, Refusal> {
        let toolbox = toolbox(&awake);
        let kept = toolbox.interpreter().contexts().await.map_err(|error| self.refusal(&awake, &error))?;
        Ok(json(&listed(kept, awake.workdir())))
    }

    async fn create(&self, awake: AwakeSandbox, body: CreateContextRequest) -> Result<Response, Refusal> {
        let toolbox = toolbox(&awake);
        let made = async {
            let language = language_of(body.language.as_deref())?;
            let cwd = body.cwd.filter(|cwd| !cwd.is_empty());
            toolbox.interpreter().create_context(&NewContext { language, cwd }).await
        };
        match made.await {
            Ok(context) => Ok(json(&ContextResponse::from(context))),
            Err(error) => match (error.kind(), self.refusal(&awake, &error)) {
                // For a new context, only the requested folder can be missing.
                (ErrorKind::NotFound, Refusal::Agents(_, why)) => {
                    Err(Refusal::Agents(StatusCode::BAD_REQUEST, why))
                }
                (_, refusal) => Err(refusal),
            },
        }
    }

    async fn remove(&self, awake: AwakeSandbox, id: &str) -> Result<Response, Refusal> {
        let toolbox = toolbox(&awake);
        match toolbox.interpreter().delete_context(id).await {
            // A default context that was not used yet counts as removed.
            Err(ToolboxError::NotFound(_)) if default_of(id).is_some() => Ok(empty(StatusCode::OK)),
            Ok(()) => Ok(empty(StatusCode::OK)),
            Err(error) => Err(self.refusal(&awake, &error)),
        }
    }

    async fn restart(&self, awake: AwakeSandbox, id: &str) -> Result<Response, Refusal> {
        let toolbox = toolbox(&awake);
        match toolbox.interpreter().restart(id).await {
            Err(ToolboxError::NotFound(_)) if default_of(id).is_some() => Ok(empty(StatusCode::OK)),
            Ok(_) => Ok(empty(StatusCode::OK)),
            Err(error) => Err(self.refusal(&awake, &error)),
        }
    }

    /// The refusal for an error of a tool, or for a sandbox that no longer runs.
    fn refusal(&self, awake: &AwakeSandbox, error: &ToolboxError) -> Refusal {
        if !self.still_runs(awake) {
            return Refusal::NotFound;
        }
        let status = match error {
            // A language that the sandbox does not have is an error of the request, not of the server.
            ToolboxError::Invalid(_)
            | ToolboxError::Conflict(_)
            | ToolboxError::TooLarge { .. }
            | ToolboxError::ToolMissing { .. } => StatusCode::BAD_REQUEST,
            ToolboxError::NotFound(_) => StatusCode::NOT_FOUND,
            ToolboxError::Agent { .. } if error.kind() == ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let message = match error.hint() {
            Some(hint) => format!("{error} ({hint})"),
            None => error.to_string(),
        };
        Refusal::Agents(status, message)
    }
}

fn toolbox(awake: &AwakeSandbox) -> Toolbox {
    awake.toolbox().as_user(Some(USER.to_owned()))
}

/// COMPAT(e2b): the default contexts are first, used or not; the newest is last.
fn listed(kept: Vec<Kept>, workdir: &str) -> Vec<ContextResponse> {
    let mut rest: Vec<ContextResponse> = kept.into_iter().map(ContextResponse::from).collect();
    let mut all = Vec::new();
    for language in FROM_THE_BEGINNING {
        let id = format!("{DEFAULT}{}", language.as_str());
        match rest.iter().position(|context| context.id == id) {
            Some(at) => all.push(rest.remove(at)),
            None => {
                let cwd = Some(workdir).filter(|dir| !dir.is_empty()).unwrap_or(HOME).to_owned();
                all.push(ContextResponse { id, language: language.as_str(), cwd });
            }
        }
    }
    all.append(&mut rest);
    all
}

async fn find(interpreter: &Interpreter<'_>, id: &str) -> Result<Kept, ToolboxError> {
    match (interpreter.context(id).await, default_of(id)) {
        (Err(ToolboxError::NotFound(_)), Some(language)) => interpreter.default_context(language).await,
        (Err(ToolboxError::NotFound(_)), None) => {
            let shown: String = id.chars().filter(|c| !c.is_control()).take(64).collect();
            Err(ToolboxError::NotFound(format!("Context {shown} not found")))
        }
        (found, _) => found,
    }
}

/// The language of a default context.
fn default_of(id: &str) -> Option<Language> {
    let name = id.strip_prefix(DEFAULT)?;
    Language::ALL.into_iter().find(|language| language.as_str() == name)
}

fn language_of(name: Option<&str>) -> Result<Language, ToolboxError> {
    name.filter(|name| !name.is_empty()).map_or(Ok(Language::Python), Language::parse)
}

fn json(value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("texts and numbers always serialise");
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_their_paths() {
        for (path, call) in [
            ("/health", Call::Health),
            ("/execute", Call::Execute),
            ("/contexts", Call::Contexts),
            ("/contexts/a", Call::Context("a")),
            ("/contexts/a/restart", Call::Restart("a")),
        ] {
            assert_eq!(Call::of(path), Some(call), "{path}");
        }
        for path in
            ["/", "/contexts/", "/contexts//restart", "/contexts/a/b", "/contexts/a/restart/", "/Execute"]
        {
            assert_eq!(Call::of(path), None, "{path}");
        }
    }

    #[test]
    fn bodies_are_read_as_both_sdks_send_them() {
        let py = br#"{"code":"1+1","context_id":null,"language":null,"env_vars":{"A":"b"}}"#;
        let body: RunCodeRequest = parse_json_or_empty(py).unwrap();
        assert_eq!((body.code.as_str(), body.context_id, body.language), ("1+1", None, None));
        let js: RunCodeRequest = parse_json_or_empty(br#"{"code":"1"}"#).unwrap();
        assert!(js.env_vars.is_none());
        assert!(parse_json_or_empty::<RunCodeRequest>(br#"{"context_id":"x"}"#).is_err());
    }

    #[test]
    fn contexts_from_the_beginning_have_a_language() {
        assert_eq!(default_of("default-javascript"), Some(Language::JavaScript));
        assert_eq!(default_of("default-cobol"), None);
        assert_eq!(default_of("abc"), None);
    }
}
