//! A terminal over a WebSocket, as a browser would hold it.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::client::Client;

/// One attached socket.
pub struct Screen {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    seen: String,
    /// Control messages that came.
    pub controls: Vec<Value>,
    /// Whether the server closed.
    pub closed: bool,
}

/// How to ask for the socket.
#[derive(Default, Clone, Copy)]
pub struct Knock<'a> {
    /// An Origin header.
    pub origin: Option<&'a str>,
    /// Show the key in the sub-protocol instead of a header.
    pub key_in_protocol: bool,
    /// Show no key at all.
    pub without_key: bool,
}

impl Screen {
    /// Attaches to a terminal.
    pub async fn attach(client: &Client, sandbox: &str, terminal: &str) -> Self {
        Self::knock(client, sandbox, terminal, Knock::default()).await.expect("the socket opens")
    }

    /// Connects to the socket of any front at this path.
    pub async fn connect(client: &Client, path: &str) -> Self {
        Self::ask(client, path, Knock::default()).await.expect("the socket opens")
    }

    /// Tries to attach; answers the status of a refusal.
    pub async fn knock(
        client: &Client,
        sandbox: &str,
        terminal: &str,
        knock: Knock<'_>,
    ) -> Result<Self, u16> {
        Self::ask(client, &format!("/v1/sandboxes/{sandbox}/terminals/{terminal}/ws"), knock).await
    }

    async fn ask(client: &Client, path: &str, knock: Knock<'_>) -> Result<Self, u16> {
        let base = client.base().replacen("http", "ws", 1);
        let mut request = format!("{base}{path}").into_client_request().expect("a request");
        let headers = request.headers_mut();
        if knock.key_in_protocol {
            let value = format!("atoll, atoll.key.{}", client.key());
            headers.insert("sec-websocket-protocol", value.parse().expect("a header"));
        } else if !knock.without_key {
            headers.insert("authorization", format!("Bearer {}", client.key()).parse().expect("a header"));
        }
        if let Some(origin) = knock.origin {
            headers.insert("origin", origin.parse().expect("a header"));
        }
        match tokio_tungstenite::connect_async(request).await {
            Ok((socket, _)) => Ok(Self { socket, seen: String::new(), controls: Vec::new(), closed: false }),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(other) => panic!("the socket: {other:?}"),
        }
    }

    /// Types bytes.
    pub async fn input(&mut self, bytes: impl Into<Vec<u8>>) {
        self.socket.send(Message::binary(bytes.into())).await.expect("the socket takes input");
    }

    /// Sends a control message.
    pub async fn control(&mut self, message: Value) {
        self.socket.send(Message::text(message.to_string())).await.expect("the socket takes a message");
    }

    /// Reads until the screen shows `text`; answers all that was seen so far.
    pub async fn wait_for(&mut self, text: &str) -> String {
        let deadline = tokio::time::Instant::now() + crate::poll::PATIENCE;
        let mut searched = 0;
        while !self.seen.get(searched..).is_some_and(|rest| rest.contains(text)) {
            // A flood is searched once, not again with every piece.
            searched = self.seen.floor_char_boundary(self.seen.len().saturating_sub(text.len()));
            let Ok(more) = tokio::time::timeout_at(deadline, self.step()).await else {
                panic!("{text:?} was not shown; seen: {:?}", tail(&self.seen))
            };
            assert!(more, "the socket closed before {text:?}; seen: {:?}", tail(&self.seen));
        }
        self.seen.clone()
    }

    /// Reads until a control message of that type came.
    pub async fn wait_control(&mut self, kind: &str) -> Value {
        let deadline = tokio::time::Instant::now() + crate::poll::PATIENCE;
        loop {
            if let Some(found) = self.controls.iter().find(|c| c["type"] == kind) {
                return found.clone();
            }
            let more =
                tokio::time::timeout_at(deadline, self.step()).await.expect("a control message in time");
            assert!(more, "the socket closed before {kind}; seen: {:?}", self.seen);
        }
    }

    /// Reads whatever comes for a while.
    pub async fn read_for(&mut self, time: Duration) {
        let deadline = tokio::time::Instant::now() + time;
        while let Ok(true) = tokio::time::timeout_at(deadline, self.step()).await {}
    }

    /// All that was seen so far.
    pub fn seen(&self) -> &str {
        &self.seen
    }

    /// Forgets what was seen.
    pub fn clear(&mut self) {
        self.seen.clear();
    }

    async fn step(&mut self) -> bool {
        match self.socket.next().await {
            Some(Ok(Message::Binary(bytes))) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
            Some(Ok(Message::Text(text))) => {
                self.controls.push(serde_json::from_str(&text).expect("control is JSON"))
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => {
                self.closed = true;
                return false;
            }
            Some(Ok(_)) => {}
        }
        true
    }
}

fn tail(text: &str) -> &str {
    &text[text.floor_char_boundary(text.len().saturating_sub(400))..]
}
