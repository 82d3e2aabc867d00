//! Server-sent events, and lines of JSON, as a stream.
//!
//! LIMIT: one event may have 16 MiB; an Atoll server sends no larger ones.

use bytes::{Buf, BytesMut};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Answer;
use super::error::{ClientError, MapError};
use crate::code::CodeEvent;
use crate::exec::ExecEvent;

/// One event: its name and its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    pub name: String,
    pub data: String,
}

const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The events of one answer.
pub struct Events<M> {
    answer: reqwest::Response,
    parser: Parser,
    ended: bool,
    errors: M,
}

impl<M: MapError> Events<M> {
    /// Reads the answer as events, or as lines of JSON, by its content type.
    pub(super) fn new(answer: reqwest::Response, errors: M) -> Self {
        let kind = answer.headers().get(reqwest::header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let lines = kind.is_some_and(|kind| !kind.starts_with("text/event-stream"));
        Self { answer, parser: Parser { lines, ..Parser::default() }, ended: false, errors }
    }

    /// The next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<SseEvent>, M::Error> {
        loop {
            if let Some(event) = self.parser.next().map_err(|error| self.errors.map(error))? {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            match self.answer.chunk().await {
                Ok(Some(chunk)) => self.parser.push(&chunk),
                Ok(None) => {
                    self.ended = true;
                    self.parser.finish();
                }
                Err(cause) => return Err(self.errors.map(ClientError::Http(cause))),
            }
        }
    }
}

impl<M: MapError> Events<M> {
    /// Reads the data of an event.
    pub fn read<T: DeserializeOwned>(&self, event: &SseEvent) -> Result<Answer<T>, M::Error> {
        Answer::read(event.data.as_bytes())
            .map_err(|cause| self.errors.map(ClientError::NotUnderstood(cause)))
    }

    /// The next event of a command.
    pub async fn next_exec(&mut self) -> Result<Option<ExecEvent>, M::Error> {
        self.next_with(ExecEvent::parse).await
    }

    /// The next event of an execution of code.
    pub async fn next_code(&mut self) -> Result<Option<CodeEvent>, M::Error> {
        self.next_with(CodeEvent::parse).await
    }

    async fn next_with<T>(
        &mut self,
        parse: impl Fn(&str, &str) -> Result<T, serde_json::Error>,
    ) -> Result<Option<T>, M::Error> {
        let Some(event) = self.next().await? else { return Ok(None) };
        let read = parse(&event.name, &event.data);
        read.map(Some).map_err(|cause| self.errors.map(ClientError::NotUnderstood(cause)))
    }
}

impl SseEvent {
    /// Its data as JSON; null if it is not JSON.
    pub fn raw(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or(Value::Null)
    }
}

#[derive(Default)]
struct Parser {
    buffer: BytesMut,
    /// Where the search for the next line end continues, so that a long line is not searched repeatedly.
    searched: usize,
    name: String,
    data: Option<String>,
    lines: bool,
}

impl Parser {
    fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The end of the stream ends the last line.
    fn finish(&mut self) {
        if self.lines && !self.buffer.is_empty() && self.buffer.last() != Some(&b'\n') {
            self.buffer.extend_from_slice(b"\n");
        }
    }

    fn next(&mut self) -> Result<Option<SseEvent>, ClientError> {
        while let Some(line) = self.line() {
            if let Some(event) = self.take(&line) {
                return Ok(Some(event));
            }
        }
        let pending = self.buffer.len() + self.data.as_ref().map_or(0, String::len);
        if pending > EVENT_BYTES_MAX {
            return Err(ClientError::EventTooLarge);
        }
        Ok(None)
    }

    fn line(&mut self) -> Option<String> {
        let Some(offset) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let mut line = self.buffer.split_to(self.searched + offset);
        self.buffer.advance(1);
        self.searched = 0;
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    fn take(&mut self, line: &str) -> Option<SseEvent> {
        if self.lines {
            let named = SseEvent { name: "line".to_owned(), data: line.to_owned() };
            return (!line.is_empty()).then_some(named);
        }
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            return self.data.take().map(|data| SseEvent { name, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            // Comments keep the connection alive; ids and retry times are for browsers.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(parser: &mut Parser) -> Vec<SseEvent> {
        std::iter::from_fn(|| parser.next().expect("small")).collect()
    }

    fn event(name: &str, data: &str) -> SseEvent {
        SseEvent { name: name.into(), data: data.into() }
    }

    #[test]
    fn events_come_whole_however_the_bytes_are_cut() {
        let text = ": hi\n\nevent: start\ndata: {\"pid\":7}\n\nid: 4\ndata: a\r\ndata: b\r\n\r\nevent: x\n\n";
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let mut seen = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                parser.push(chunk);
                seen.extend(events(&mut parser));
            }
            assert_eq!(seen, [event("start", "{\"pid\":7}"), event("", "a\nb")], "cut at {size}");
        }
    }

    #[test]
    fn lines_of_json_are_events_too() {
        let mut parser = Parser { lines: true, ..Parser::default() };
        parser.push(b"{\"a\":1}\n\n{\"b\":2}");
        parser.finish();
        assert_eq!(events(&mut parser), [event("line", "{\"a\":1}"), event("line", "{\"b\":2}")]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = Parser::default();
        parser.push(&vec![b'x'; EVENT_BYTES_MAX + 1]);
        assert!(parser.next().is_err());
    }

    #[test]
    fn any_event_stream_is_read_the_same_however_it_is_cut() {
        let read = |bytes: &[u8], piece: usize| {
            let (mut parser, mut seen) = (Parser::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                parser.push(piece);
                seen.extend(events(&mut parser));
            }
            seen
        };
        atoll_robustness::check("event_stream", |bytes| {
            let whole = read(bytes, bytes.len().max(1));
            for event in &whole {
                let _ = ExecEvent::parse(&event.name, &event.data);
            }
            assert_eq!(read(bytes, 7), whole);
        });
    }
}
