//! Reading server-sent events from a streaming answer.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::Value;

use crate::poll::PATIENCE;

/// One event; comments are left out.
#[derive(Debug, Clone)]
pub struct SseEvent {
    /// Its name; `message` when it has none.
    pub name: String,
    /// Its id, where the server gave one.
    pub id: Option<String>,
    /// Its data as JSON.
    pub data: Value,
}

/// The events of one answer, in order.
pub struct Events {
    bytes: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    pending: Vec<u8>,
}

impl Events {
    /// Reads events from the body of an answer.
    pub fn of(response: reqwest::Response) -> Self {
        Self { bytes: response.bytes_stream().boxed(), pending: Vec::new() }
    }

    /// The next event; `None` when the stream ended. Fails after [`PATIENCE`] of silence.
    pub async fn next(&mut self) -> Option<SseEvent> {
        self.next_within(PATIENCE)
            .await
            .unwrap_or_else(|_| panic!("neither an event nor the end within {PATIENCE:?}"))
    }

    /// The next event; `Err` when none came in time.
    pub async fn next_within(
        &mut self,
        limit: Duration,
    ) -> Result<Option<SseEvent>, tokio::time::error::Elapsed> {
        tokio::time::timeout(limit, self.read()).await
    }

    /// Reads until an event of that name came.
    pub async fn find(&mut self, name: &str) -> SseEvent {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("the stream ended before {name}"));
            if event.name == name {
                return event;
            }
        }
    }

    /// Reads to the end.
    pub async fn rest(mut self) -> Vec<SseEvent> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }

    async fn read(&mut self) -> Option<SseEvent> {
        loop {
            while let Some(block) = self.cut_block() {
                if let Some(event) = parse(&block) {
                    return Some(event);
                }
            }
            match self.bytes.next().await {
                Some(Ok(more)) => self.pending.extend_from_slice(&more),
                Some(Err(_)) | None => return None,
            }
        }
    }

    fn cut_block(&mut self) -> Option<String> {
        let end = self.pending.windows(2).position(|pair| pair == b"\n\n")?;
        let block: Vec<u8> = self.pending.drain(..end + 2).collect();
        Some(String::from_utf8(block).expect("events are UTF-8"))
    }
}

fn parse(block: &str) -> Option<SseEvent> {
    let (mut name, mut id, mut data) = (None, None, None::<String>);
    for line in block.lines() {
        let Some((field, value)) = line.split_once(':') else { continue };
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => name = Some(value.to_owned()),
            "id" => id = Some(value.to_owned()),
            "data" => {
                let text = data.get_or_insert_default();
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(value);
            }
            _ => {}
        }
    }
    let data = data?;
    let data = serde_json::from_str(&data).unwrap_or(Value::String(data));
    Some(SseEvent { name: name.unwrap_or_else(|| "message".to_owned()), id, data })
}

/// The text of all `stdout` events.
pub fn stdout_of(events: &[SseEvent]) -> String {
    events.iter().filter(|event| event.name == "stdout").map(|event| text_of(&event.data)).collect()
}

/// Text of an output event, whichever form it came in.
pub fn text_of(data: &Value) -> String {
    use base64::Engine;
    match (data["data"].as_str(), data["data_base64"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(encoded)) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).expect("base64");
            String::from_utf8_lossy(&bytes).into_owned()
        }
        (None, None) => String::new(),
    }
}
