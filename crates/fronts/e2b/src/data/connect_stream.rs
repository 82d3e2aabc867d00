//! The end of a Connect stream whose sandbox stopped in the middle.
//!
//! A stream is a sequence of messages, each with a head of five bytes: flags, and the length in big-endian order. The last message has
//! the flag `END` and a JSON body. The agent cannot send it any more, so it is sent in its place; the body of the response then ends
//! properly, and the client reads an error of the call instead of a broken connection.

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::json;

const END: u8 = 0b10;
const HEAD: usize = 5;

/// COMPAT(e2b): both SDKs report the code `unavailable` as a sandbox that does not run.
const MESSAGE: &str =
    "the sandbox stopped while the request was in flight: it was killed, paused or reached its end of life";

/// Where a stream is in its messages.
#[derive(Debug, Default)]
pub(super) struct ConnectStream {
    /// The bytes of an incomplete head.
    head: Vec<u8>,
    /// The bytes of the message that have not passed yet.
    left: u64,
    is_ended: bool,
}

impl ConnectStream {
    /// `None`: the response is no such stream.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        kind.starts_with("application/connect+").then(Self::default)
    }

    /// Notes bytes that pass to the client.
    pub(super) fn pass(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.left > 0 {
                let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
                self.left -= taken as u64;
                data = &data[taken..];
                continue;
            }
            let taken = (HEAD - self.head.len()).min(data.len());
            self.head.extend_from_slice(&data[..taken]);
            data = &data[taken..];
            if let [flags, length @ ..] = self.head.as_slice()
                && let Ok(length) = <[u8; HEAD - 1]>::try_from(length)
            {
                self.left = u32::from_be_bytes(length).into();
                self.is_ended |= flags & END != 0;
                self.head.clear();
            }
        }
    }

    /// The last message, if it can be sent now: between two messages, and not twice.
    pub(super) fn end(&mut self) -> Option<Bytes> {
        if self.left > 0 || !self.head.is_empty() || self.is_ended {
            return None;
        }
        self.is_ended = true;
        let body = json!({ "error": { "code": "unavailable", "message": MESSAGE } }).to_string();
        let mut message = BytesMut::with_capacity(HEAD + body.len());
        message.put_u8(END);
        message.put_u32(u32::try_from(body.len()).ok()?);
        message.put_slice(body.as_bytes());
        Some(message.freeze())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_connect_streams_have_such_an_end() {
        for (kind, is_stream) in [
            ("application/connect+json", true),
            ("application/connect+proto", true),
            ("application/json", false),
            ("application/octet-stream", false),
        ] {
            let headers = [(CONTENT_TYPE, HeaderValue::from_static(kind))].into_iter().collect();
            assert_eq!(ConnectStream::of(&headers).is_some(), is_stream, "{kind}");
        }
        assert!(ConnectStream::of(&HeaderMap::new()).is_none());
    }

    #[test]
    fn a_stream_is_ended_between_two_messages_and_once() {
        let message = [&[0, 0, 0, 0, 3][..], b"abc"].concat();
        for cut in 0..=message.len() {
            let mut stream = ConnectStream::default();
            stream.pass(&message);
            // In whatever pieces it arrives.
            for byte in &message[..cut] {
                stream.pass(&[*byte]);
            }
            let end = stream.end();
            assert_eq!(end.is_some(), cut == 0 || cut == message.len(), "{cut}");
            let Some(end) = end else { continue };
            assert_eq!(
                (end[0], u32::from_be_bytes(end[1..5].try_into().unwrap()) as usize),
                (2, end.len() - 5)
            );
            let body: serde_json::Value = serde_json::from_slice(&end[5..]).unwrap();
            assert_eq!(body["error"]["code"], "unavailable");
            assert_eq!(stream.end(), None);
        }
        let mut ended = ConnectStream::default();
        ended.pass(&[2, 0, 0, 0, 2, b'{', b'}']);
        assert_eq!(ended.end(), None);
    }
}
