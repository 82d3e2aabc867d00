//! The agent's HTTP server: authentication, routes, and error responses. RPC paths are passed to `rpc`.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_agentapi::{Features, InitReply, InitRequest, Metrics};
use base64::Engine;
use bytes::Bytes;
use connectrpc::ConnectRpcService;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited, StreamBody};
use hyper::body::Incoming;
use tower::Service;

use crate::error::AgentError;
use crate::files;
use crate::state::Agent;
use crate::users::{self, User};

/// LIMIT: bytes of settings with a large environment.
const INIT_MAX: usize = 4 << 20;

pub(crate) type AgentBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Handles the requests of one connection.
#[derive(Clone)]
pub(crate) struct ConnectionHandler {
    pub(crate) agent: Arc<Agent>,
    pub(crate) rpc: ConnectRpcService,
    /// Ends this connection.
    pub(crate) end: files::ConnectionEnd,
}

impl ConnectionHandler {
    /// Handles a request. A connection is `known` from the moment that it presents the token, because a response may
    /// take long, for example that of an upload or of one of many starts at once.
    pub(crate) async fn answer(&self, request: Request<Incoming>, known: &AtomicBool) -> Response<AgentBody> {
        let path = request.uri().path();
        if path == "/health" && request.method() == Method::GET {
            return empty(StatusCode::NO_CONTENT);
        }
        if path == "/hold" {
            // For programs in the sandbox, which have no token; its effect is limited.
            return self.hold(&request).unwrap_or_else(|refusal| refused(&refusal));
        }
        let shown =
            request.headers().get(atoll_agentapi::TOKEN_HEADER).map_or(&b""[..], HeaderValue::as_bytes);
        if !self.agent.settings.is_token(shown) {
            let rpc = !matches!(path, "/init" | "/envs" | "/metrics" | "/files");
            return unauthenticated(rpc);
        }
        known.store(true, Ordering::Relaxed);
        self.route(request).await.unwrap_or_else(|refusal| refused(&refusal))
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<AgentBody>, AgentError> {
        let method = request.method().clone();
        match (method, request.uri().path()) {
            (Method::POST, "/init") => self.init(request).await,
            (Method::GET, "/init") => Ok(json(&self.agent.settings.told())),
            (Method::GET, "/envs") => Ok(json(&self.agent.settings.envs())),
            (Method::GET, "/metrics") => Ok(json(&self.metrics())),
            (Method::GET, "/files") => {
                let user = self.file_user(&request)?;
                let path = files::decode_query(request.uri().query().unwrap_or_default(), "path")
                    .unwrap_or_default();
                files::get(&self.agent, &user, &path, request.headers(), &self.end).await
            }
            (Method::POST, "/files" | "/archive/unpack" | "/archive/pack") => self.transfer(request).await,
            (_, "/init" | "/envs" | "/metrics" | "/files") => Ok(empty(StatusCode::METHOD_NOT_ALLOWED)),
            _ => {
                let Ok(response) = self.rpc.clone().call(request).await;
                Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
            }
        }
    }

    /// Uploads and downloads of files and archives.
    async fn transfer(&self, mut request: Request<Incoming>) -> Result<Response<AgentBody>, AgentError> {
        let user = match self.file_user(&request) {
            Ok(user) => user,
            Err(refusal) => {
                // A client that is still sending would find the connection closed and never see the error.
                files::drain(request.body_mut()).await;
                return Err(refusal);
            }
        };
        match request.uri().path() {
            "/archive/unpack" => files::archive::unpack(&self.agent, &user, request).await,
            "/archive/pack" => files::archive::pack(&self.agent, &user, request, &self.end).await,
            _ => files::post(&self.agent, &user, request).await,
        }
    }

    fn hold(&self, request: &Request<Incoming>) -> Result<Response<AgentBody>, AgentError> {
        let query = request.uri().query().unwrap_or_default();
        let text = |name| files::decode_query(query, name).and_then(|value| String::from_utf8(value).ok());
        let name = text("name").unwrap_or_default();
        Ok(json(&match *request.method() {
            Method::GET => self.agent.holds.read(),
            Method::POST => {
                let seconds = text("seconds").and_then(|seconds| seconds.parse().ok());
                let missing = || AgentError::Invalid("seconds must be a number".into());
                self.agent.holds.add(&name, seconds.ok_or_else(missing)?)?
            }
            Method::DELETE => self.agent.holds.release(&name),
            _ => return Ok(empty(StatusCode::METHOD_NOT_ALLOWED)),
        }))
    }

    fn metrics(&self) -> Metrics {
        let settings = &self.agent.settings;
        self.agent.meter.read(settings.limits(), settings.is_host())
    }

    async fn init(&self, request: Request<Incoming>) -> Result<Response<AgentBody>, AgentError> {
        let wants_reply = request.headers().contains_key(atoll_agentapi::INIT_HEADER);
        let body = Limited::new(request.into_body(), INIT_MAX)
            .collect()
            .await
            .map_err(|_| AgentError::Invalid("the init request is too large or incomplete".into()))?
            .to_bytes();
        let parsed = if body.is_empty() { Ok(InitRequest::default()) } else { serde_json::from_slice(&body) };
        let settings =
            parsed.map_err(|_| AgentError::Invalid("the init request is not valid JSON for it".into()))?;
        let (hostname, workdir) = (settings.hostname.clone(), settings.default_workdir.clone());
        self.agent.settings.apply(settings)?;
        let is_host = self.agent.settings.is_host();
        if let Some(workdir) = workdir.filter(|dir| dir.starts_with('/') && !is_host) {
            // An image may name a folder that none of its layers has, and its programs expect it. It is made before the
            // response, because the next request may start a program there. A failure is reported when a program needs
            // the folder.
            let _ = crate::workdir::ensure(&workdir, &self.agent.settings.default_user());
        }
        if let Some(name) = hostname.filter(|_| !is_host) {
            // Not awaited: a create should not wait for it, and the first command arrives later anyway. The job also
            // starts the first worker.
            let _ = self.agent.workers.begin(&users::Ids::ROOT, move || {
                crate::hosts::add(&name);
                Ok(())
            });
        }
        // Now, while there is room for it: programs in the sandbox may use up the process limit later.
        self.agent.workers.warm();
        if !wants_reply {
            return Ok(empty(StatusCode::NO_CONTENT));
        }
        Ok(json(&InitReply {
            agent_version: env!("CARGO_PKG_VERSION").into(),
            envd_version: atoll_agentapi::ENVD_VERSION.into(),
            generation: atoll_agentapi::GENERATION,
            features: Features::ALL.iter().map(|&feature| feature.to_owned()).collect(),
        }))
    }

    /// The user of a file request: `username`, the Basic user, or the default.
    fn file_user(&self, request: &Request<Incoming>) -> Result<User, AgentError> {
        let query = request.uri().query().unwrap_or_default();
        match files::decode_query(query, "username").filter(|name| !name.is_empty()) {
            Some(name) => file_user(&self.agent, request.headers(), &String::from_utf8_lossy(&name)),
            None => file_user(&self.agent, request.headers(), ""),
        }
    }
}

/// The user of a file operation, with the permissions that the host grants. Only the host has the token, and it does
/// not forward headers of this name.
pub(crate) fn file_user(agent: &Agent, headers: &HeaderMap, named: &str) -> Result<User, AgentError> {
    let mut user = request_user(agent, headers, named)?;
    let rights = headers.get(atoll_agentapi::FILE_RIGHTS_HEADER);
    user.ids.root_files =
        !user.ids.is_own && rights.is_some_and(|rights| rights == atoll_agentapi::FILE_RIGHTS_ROOT);
    Ok(user)
}

/// The user of a request: the named one, the Basic user, or the default.
pub(crate) fn request_user(agent: &Agent, headers: &HeaderMap, named: &str) -> Result<User, AgentError> {
    if !named.is_empty() {
        return agent.settings.find_user(named);
    }
    match basic_user(headers)? {
        Some(name) if !name.is_empty() => agent.settings.find_user(&name),
        _ => agent.settings.find_user(&agent.settings.default_user()),
    }
}

fn basic_user(headers: &HeaderMap) -> Result<Option<String>, AgentError> {
    let bad = || AgentError::Unauthenticated("the authorization header names no user".into());
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(|_| bad())?;
    // Other schemes are for the proxy and name no user.
    let Some(encoded) = text.strip_prefix("Basic ") else { return Ok(None) };
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).map_err(|_| bad())?;
    let pair = String::from_utf8(decoded).map_err(|_| bad())?;
    Ok(Some(pair.split(':').next().unwrap_or_default().to_owned()))
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> AgentBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn streamed(chunks: impl Stream<Item = Result<Bytes, AgentError>> + Send + 'static) -> AgentBody {
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data).map_err(Into::into))).boxed_unsync()
}

fn empty(status: StatusCode) -> Response<AgentBody> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

pub(crate) fn json(value: &impl serde::Serialize) -> Response<AgentBody> {
    let mut response = Response::new(full(serde_json::to_vec(value).unwrap_or_default()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An error response in envd's format.
pub(crate) fn refused(refusal: &AgentError) -> Response<AgentBody> {
    let status = refusal.http_status();
    let mut response = json(&serde_json::json!({ "code": status.as_u16(), "message": refusal.to_string() }));
    *response.status_mut() = status;
    response
}

fn unauthenticated(rpc: bool) -> Response<AgentBody> {
    let refusal = AgentError::Unauthenticated("the access token is missing or wrong".into());
    if !rpc {
        return refused(&refusal);
    }
    let mut response =
        json(&serde_json::json!({ "code": "unauthenticated", "message": refusal.to_string() }));
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_basic_user_is_read_and_other_schemes_name_nobody() {
        let user = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(text).unwrap());
            basic_user(&headers)
        };
        assert_eq!(user("Basic cm9vdDo=").unwrap().as_deref(), Some("root"));
        assert_eq!(user("Bearer abc").unwrap(), None);
        assert!(user("Basic ***").is_err());
    }
}
