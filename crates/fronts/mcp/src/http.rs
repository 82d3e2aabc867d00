//! One POST: its origin, key, headers and message; and the answer.

use atoll_front_kit::{ApiError, Caller, RequestBudget, read_body};
use atoll_model::policy::origin::{self, OwnHosts};
use atoll_model::{Code, Principal};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Mcp;
use crate::client::{McpClient, SESSION, new_session};
use crate::era::{self, Era, RequestMeta};
use crate::message::{ClientMessage, RpcError, RpcId, RpcResponse};
use crate::methods::{self, McpCall};
use crate::stream::{self, PendingAnswer};

/// LIMIT: a message contains at most the content of one file or the code of one run.
const MESSAGE_MAX: usize = 10 << 20;

/// A request that no page of another origin sent. Checked before the key, whose validity such a page must not learn.
pub(crate) struct OwnOrigin;

impl FromRequestParts<Mcp> for OwnOrigin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, mcp: &Mcp) -> Result<Self, ApiError> {
        let text =
            |name| parts.headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("unreadable"));
        let host = parts.uri.authority().map(|authority| authority.as_str()).or(text(header::HOST));
        let own = OwnHosts {
            domain: &mcp.options.preview_domain,
            origins: &mcp.options.origins,
            listens_locally: mcp.options.listens_locally,
        };
        if !own.admits(host, text(header::ORIGIN)) {
            let message = "this server does not know itself by the host of this request";
            return Err(ApiError::new(Code::Forbidden, message).hint(
                "the operator can add a name: atoll serve --allow-origin https://NAME, or --domain NAME",
            ));
        }
        match origin::may_open_socket(text(header::ORIGIN), host, &mcp.options.origins) {
            true => Ok(Self),
            false => Err(ApiError::new(Code::Forbidden, "web pages of another origin cannot use MCP")
                .hint("the operator can allow an origin: atoll serve --allow-origin ORIGIN")),
        }
    }
}

/// Answers one message.
pub(crate) async fn receive(
    State(mcp): State<Mcp>,
    _origin: OwnOrigin,
    Caller(who): Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let accepts = Accepts::read(&head.headers)?;
    require_json(&head.headers)?;
    let budget = RequestBudget::of(&head.extensions).cloned();
    let body = read_body(body, MESSAGE_MAX, budget.as_ref()).await?;
    Ok(match ClientMessage::parse(&body) {
        Err(error) => refusal(RpcId::Null, error, StatusCode::BAD_REQUEST),
        Ok(ClientMessage::Response) => StatusCode::ACCEPTED.into_response(),
        Ok(ClientMessage::Notification { method, params }) => {
            notify(&mcp, &who, &head.headers, &method, params.as_deref())
        }
        Ok(ClientMessage::Request { id, method, params }) => {
            let incoming = IncomingRequest { who, headers: head.headers, accepts, id, method, params };
            answer(mcp, incoming).await?
        }
    })
}

struct IncomingRequest {
    who: Principal,
    headers: HeaderMap,
    accepts: Accepts,
    id: RpcId,
    method: String,
    params: Option<Box<RawValue>>,
}

async fn answer(mcp: Mcp, incoming: IncomingRequest) -> Result<Response, ApiError> {
    let IncomingRequest { who, headers, accepts, id, method, params } = incoming;
    let meta = match RequestMeta::read(params.as_deref()) {
        Ok(meta) => meta,
        Err(error) => return Ok(refusal(id, error, StatusCode::BAD_REQUEST)),
    };
    let era = match era::classify(&method, &meta, &headers) {
        Ok(era) => era,
        Err(error) => return Ok(refusal(id, error, StatusCode::BAD_REQUEST)),
    };
    let session = match method.as_str() {
        "initialize" => Some(new_session(meta.client_name().unwrap_or_default())?),
        _ => None,
    };
    let client = McpClient::of(&who, &meta, &headers);
    let progress = meta.progress_token().cloned();
    let call = McpCall { mcp, who, client, era };
    let what = meta.tool_name().unwrap_or(&method).to_owned();
    let pending = PendingAnswer { era, progress, what, accepts_events: accepts.events };
    let work = async move {
        tokio::select! {
            // The work is dropped, which ends the command in the sandbox. A cancelled request gets no answer; this is for a client
            // that still reads.
            () = cancelled(&call, &id) => RpcResponse::Error { id, error: methods::cancelled() },
            answered = methods::call(&call, &method, params.as_deref()) => match answered {
                Ok(result) => RpcResponse::Result { id, result },
                Err(error) => RpcResponse::Error { id, error },
            },
        }
    };
    let mut response = stream::respond(pending, Box::pin(work)).await;
    if let Some(session) = session.and_then(|session| HeaderValue::from_str(&session).ok()) {
        response.headers_mut().insert(SESSION, session);
    }
    Ok(response)
}

/// Resolves when the client cancels the request with a message. Since 2026-07-28 it closes the connection instead.
async fn cancelled(call: &McpCall, id: &RpcId) {
    match &call.client.session {
        Some(session) => call.mcp.service.calls().begin(&call.who, session, &id.key()).cancelled().await,
        None => std::future::pending().await,
    }
}

/// Of `notifications/cancelled`.
#[derive(Deserialize)]
struct CancelledParams {
    #[serde(rename = "requestId")]
    request_id: RpcId,
}

/// Takes a notification; one that this server does not know is no error.
fn notify(
    mcp: &Mcp,
    who: &Principal,
    headers: &HeaderMap,
    method: &str,
    params: Option<&RawValue>,
) -> Response {
    if let Err(error) = era::check_notification(headers) {
        return refusal(RpcId::Null, error, StatusCode::BAD_REQUEST);
    }
    if method == "notifications/cancelled"
        && let Some(Ok(cancelled)) =
            params.map(|params| serde_json::from_str::<CancelledParams>(params.get()))
    {
        let client = McpClient::of(who, &RequestMeta::default(), headers);
        let calls = mcp.service.calls();
        let found =
            client.session.is_some_and(|session| calls.cancel(who, &session, &cancelled.request_id.key()));
        tracing::debug!(found, "a client cancels a call");
    }
    StatusCode::ACCEPTED.into_response()
}

fn refusal(id: RpcId, error: RpcError, status: StatusCode) -> Response {
    stream::json_response(status, &RpcResponse::Error { id, error })
}

/// What the client can read.
#[derive(Clone, Copy)]
struct Accepts {
    /// Also an event stream.
    events: bool,
}

impl Accepts {
    /// A client has to accept JSON; it may accept event streams too.
    fn read(headers: &HeaderMap) -> Result<Self, ApiError> {
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let types: Vec<String> = values
            .flat_map(|value| value.split(','))
            .map(|one| one.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
            .collect();
        let any = types.is_empty() || types.iter().any(|one| one == "*/*");
        let has = |wanted: &str| types.iter().any(|one| one == wanted);
        let events = has("text/event-stream") || has("text/*");
        if any || has("application/json") || has("application/*") {
            return Ok(Self { events });
        }
        Err(ApiError::invalid("the client must accept application/json")
            .hint("send Accept: application/json, text/event-stream")
            .with_status(StatusCode::NOT_ACCEPTABLE))
    }
}

fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(ApiError::invalid("the message must be application/json")
            .hint("send Content-Type: application/json")
            .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)),
    }
}

/// The status of an answer.
pub(crate) fn status(era: Era, response: &RpcResponse) -> StatusCode {
    match (era, response) {
        (Era::PerRequest, RpcResponse::Error { error, .. }) => error.status(),
        (Era::PerRequest | Era::Handshake, _) => StatusCode::OK,
    }
}
