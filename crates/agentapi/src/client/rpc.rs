//! Connect RPC over the transport, binary codec: unary calls and server streams.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use buffa::Message;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use serde::Deserialize;

use super::liveness::Patience;
use super::transport::{AgentResponse, BodyReader, Transport, TransportBody, full};
use super::{ANSWER_MAX, AgentClient, CALL_LIMIT};
use crate::error::{AgentError, RpcCode};

/// LIMIT: an agent's output events have at most 32 KiB of data; the rest is for future agents.
const FRAME_MAX: usize = 1 << 20;

/// LIMIT: errors are one sentence.
const ERROR_MAX: usize = 64 * 1024;

/// How often the agent is asked for a keep-alive, and how long silence is tolerated. A paused sandbox is silent too:
/// that does not count if the client knows about the pause.
const KEEPALIVE_S: &str = "20";
const SILENCE_LIMIT: Duration = Duration::from_secs(90);

const FLAG_COMPRESSED: u8 = 1;
const FLAG_END: u8 = 2;

impl AgentClient {
    /// The current token.
    pub(super) fn token(&self) -> HeaderValue {
        self.inner.token.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Added last, so that a header of the caller cannot replace it.
    pub(super) fn add_file_rights(&self, headers: &mut HeaderMap) {
        if self.root_files {
            headers.insert(crate::FILE_RIGHTS_HEADER, HeaderValue::from_static(crate::FILE_RIGHTS_ROOT));
        }
    }

    pub(super) fn request(
        &self,
        method: Method,
        uri: &str,
        user: Option<&str>,
    ) -> Result<Request<TransportBody>, AgentError> {
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, HeaderValue::from_static("agent"))
            .header(crate::TOKEN_HEADER, self.token())
            .body(full(Bytes::new()))
            .map_err(|_| AgentError::Argument("the request has no valid address"))?;
        self.add_file_rights(request.headers_mut());
        if let Some(user) = user {
            request.headers_mut().insert(header::AUTHORIZATION, basic_user(user)?);
        }
        Ok(request)
    }

    /// One request and one answer, with the default limit.
    pub(super) async fn unary<Q: Message, A: Message>(
        &self,
        uri: &'static str,
        message: &Q,
    ) -> Result<A, AgentError> {
        self.unary_within(CALL_LIMIT, uri, message).await
    }

    /// One request and one answer, within a limit.
    pub(super) async fn unary_within<Q: Message, A: Message>(
        &self,
        limit: Duration,
        uri: &'static str,
        message: &Q,
    ) -> Result<A, AgentError> {
        let request = self.request(Method::POST, uri, None)?;
        let link = RpcLink { transport: &self.inner.transport, patience: &self.patience };
        link.unary(limit, uri, request, message).await
    }

    /// One request, a stream of frames.
    pub(super) async fn stream<Q: Message>(
        &self,
        uri: &'static str,
        message: &Q,
    ) -> Result<Frames, AgentError> {
        let request = self.request(Method::POST, uri, None)?;
        let link = RpcLink { transport: &self.inner.transport, patience: &self.patience };
        link.stream(CALL_LIMIT, uri, request, message).await
    }
}

/// Where calls are sent, and how long their answers may take.
pub(super) struct RpcLink<'a> {
    pub(super) transport: &'a Arc<Transport>,
    pub(super) patience: &'a Patience,
}

impl RpcLink<'_> {
    /// Sends a message with the head of `request`; reads one answer.
    pub(super) async fn unary<Q: Message, A: Message>(
        &self,
        limit: Duration,
        what: &'static str,
        mut request: Request<TransportBody>,
        message: &Q,
    ) -> Result<A, AgentError> {
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/proto"));
        *request.body_mut() = full(message.encode_to_bytes());
        let call = async {
            let answer = self.transport.send(request).await?;
            accept(answer).await?.read_all(ANSWER_MAX).await
        };
        let answer = self.patience.within(what, limit, call).await?;
        A::decode_from_slice(&answer).map_err(|_| AgentError::Protocol("the message does not decode"))
    }

    /// Sends a message with the head of `request`; reads a stream of frames, whose first has to begin within the limit.
    pub(super) async fn stream<Q: Message>(
        &self,
        limit: Duration,
        what: &'static str,
        mut request: Request<TransportBody>,
        message: &Q,
    ) -> Result<Frames, AgentError> {
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/connect+proto"));
        headers.entry("keepalive-ping-interval").or_insert(HeaderValue::from_static(KEEPALIVE_S));
        *request.body_mut() = full(envelope(message)?);
        let call = async { accept(self.transport.send(request).await?).await };
        let body = self.patience.within(what, limit, call).await?;
        let patience = self.patience.clone();
        Ok(Frames { body, buffered: BytesMut::new(), ended: false, patience, silence: SILENCE_LIMIT })
    }
}

/// The value of `Authorization` that names a user.
pub(super) fn basic_user(user: &str) -> Result<HeaderValue, AgentError> {
    let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:")));
    HeaderValue::try_from(basic).map_err(|_| AgentError::Argument("the user cannot be sent"))
}

fn envelope<Q: Message>(message: &Q) -> Result<Bytes, AgentError> {
    let encoded = message.encode_to_bytes();
    let len = u32::try_from(encoded.len()).map_err(|_| AgentError::Argument("the request is too large"))?;
    let mut framed = BytesMut::with_capacity(5 + encoded.len());
    framed.put_u8(0);
    framed.put_u32(len);
    framed.put(encoded);
    Ok(framed.freeze())
}

/// Turns an error status into an error; returns the body of a successful answer.
pub(super) async fn accept(answer: AgentResponse) -> Result<BodyReader, AgentError> {
    if answer.head.status.is_success() {
        return Ok(answer.body);
    }
    let status = answer.head.status;
    let body = answer.body.read_all(ERROR_MAX).await?;
    Err(refusal(status, &body))
}

/// Connect errors have a word as their code, `/files` errors the HTTP status.
#[derive(Deserialize)]
#[serde(untagged)]
enum WireCode {
    Word(String),
    Status(u16),
}

#[derive(Deserialize)]
struct WireError {
    code: Option<WireCode>,
    #[serde(default)]
    message: String,
}

fn refusal(status: StatusCode, body: &[u8]) -> AgentError {
    match serde_json::from_slice::<WireError>(body) {
        Ok(error) => error.into_refusal(status.as_u16()),
        Err(_) => AgentError::refused(RpcCode::from_http(status.as_u16()), status.as_str()),
    }
}

impl WireError {
    fn into_refusal(self, status: u16) -> AgentError {
        let code = match self.code {
            Some(WireCode::Word(word)) => RpcCode::parse(&word),
            Some(WireCode::Status(status)) => RpcCode::from_http(status),
            None => RpcCode::from_http(status),
        };
        AgentError::refused(code, &self.message)
    }
}

/// The frames of a server stream.
pub(super) struct Frames {
    body: BodyReader,
    buffered: BytesMut,
    ended: bool,
    patience: Patience,
    /// How long the peer may be silent.
    pub(super) silence: Duration,
}

#[derive(Deserialize)]
struct EndOfStream {
    error: Option<WireError>,
}

impl Frames {
    /// The next message, or `None` after a regular end. Cancel-safe: partial frames stay buffered.
    pub(super) async fn next<A: Message>(&mut self) -> Result<Option<A>, AgentError> {
        let patience = self.patience.clone();
        patience.within("stream", self.silence, self.next_unbounded()).await
    }

    async fn next_unbounded<A: Message>(&mut self) -> Result<Option<A>, AgentError> {
        while !self.ended {
            if let Some((flags, payload)) = split_frame(&mut self.buffered)? {
                if flags & FLAG_COMPRESSED != 0 {
                    return Err(AgentError::Protocol("a frame is compressed, which was not requested"));
                }
                if flags & FLAG_END != 0 {
                    self.ended = true;
                    return self.finish(&payload).await.map(|()| None);
                }
                return A::decode_from_slice(&payload)
                    .map(Some)
                    .map_err(|_| AgentError::Protocol("the message does not decode"));
            }
            match self.body.chunk().await? {
                Some(chunk) => self.buffered.extend_from_slice(&chunk),
                None => return Err(AgentError::Protocol("the stream ended in the middle")),
            }
        }
        Ok(None)
    }

    async fn finish(&mut self, payload: &[u8]) -> Result<(), AgentError> {
        let end: EndOfStream = serde_json::from_slice(payload)
            .map_err(|_| AgentError::Protocol("the end of the stream does not decode"))?;
        // Reading to the end gives the connection back. An extra byte only costs the connection.
        if self.body.chunk().await?.is_some() {
            return Err(AgentError::Protocol("bytes after the end of the stream"));
        }
        match end.error {
            Some(error) => Err(error.into_refusal(500)),
            None => Ok(()),
        }
    }
}

/// Removes one complete frame from the front, if there is one.
fn split_frame(buffered: &mut BytesMut) -> Result<Option<(u8, Bytes)>, AgentError> {
    let Some(&[flags, a, b, c, d]) = buffered.first_chunk::<5>() else { return Ok(None) };
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len > FRAME_MAX {
        return Err(AgentError::Protocol("a frame is larger than any can be"));
    }
    if buffered.len() < 5 + len {
        return Ok(None);
    }
    buffered.advance(5);
    Ok(Some((flags, buffered.split_to(len).freeze())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use atoll_model::ErrorKind;

    #[test]
    fn a_huge_frame_is_refused_before_memory_is_taken() {
        let mut bytes = BytesMut::from(&[0u8, 0xff, 0xff, 0xff, 0xff][..]);
        assert!(split_frame(&mut bytes).is_err());
    }

    #[test]
    fn refusals_are_read_from_connect_and_from_files_bodies() {
        let connect = refusal(StatusCode::NOT_FOUND, br#"{"code":"not_found","message":"no"}"#);
        let files = refusal(StatusCode::INSUFFICIENT_STORAGE, br#"{"code":507,"message":"full"}"#);
        let garbage = refusal(StatusCode::UNAUTHORIZED, b"\xff<html>");
        assert_eq!(connect.kind(), ErrorKind::NotFound);
        assert_eq!(files.kind(), ErrorKind::Exhausted);
        assert_eq!(garbage.kind(), ErrorKind::Unauthenticated);
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_whatever_the_split(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8), cut in 1usize..40,
        ) {
            let mut wire = Vec::new();
            for payload in &payloads {
                wire.push(0);
                wire.extend((payload.len() as u32).to_be_bytes());
                wire.extend(payload);
            }
            let (mut buffered, mut seen) = (BytesMut::new(), Vec::new());
            for piece in wire.chunks(cut) {
                buffered.extend_from_slice(piece);
                while let Some((_, payload)) = split_frame(&mut buffered).unwrap() {
                    seen.push(payload.to_vec());
                }
            }
            prop_assert_eq!(seen, payloads);
            prop_assert!(buffered.is_empty());
        }

        #[test]
        fn no_bytes_make_the_frame_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut buffered = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = split_frame(&mut buffered) {}
        }
    }

    #[test]
    fn any_frames_of_an_agent_are_read_or_refused() {
        use crate::proto::agent;
        atoll_robustness::check("agent_frames", |bytes| {
            let (mut buffered, mut payloads) = (BytesMut::from(bytes), 0);
            while let Ok(Some((_, payload))) = split_frame(&mut buffered) {
                payloads += payload.len() + 5;
                let _ = agent::ProcessEvent::decode_from_slice(&payload);
                let _ = agent::WatchEvent::decode_from_slice(&payload);
                let _ = agent::LogEvent::decode_from_slice(&payload);
                let _ = serde_json::from_slice::<EndOfStream>(&payload);
            }
            assert_eq!(payloads + buffered.len(), bytes.len());
        });
    }

    #[test]
    fn any_refusal_of_an_agent_is_an_error() {
        atoll_robustness::check("agent_refusal", |bytes| {
            let _ = refusal(StatusCode::BAD_REQUEST, bytes).to_string();
        });
    }
}
