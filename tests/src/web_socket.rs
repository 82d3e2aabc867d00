//! A program in a sandbox that answers WebSockets, and a conversation with it through a preview of this server.

use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::{Client, until};

const SERVER: &str = "127.0.0.1:7070";
const PORT: u16 = 8080;
/// More than any buffer on the way.
const LARGE: usize = 3 << 20;

/// Answers every message with itself; `push N` with N messages, `close` with a close of its own. Writes a file when a client went
/// away without a close. Standard library only.
const APP: &str = r#"
import base64, hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("upgrade", "websocket"); self.send_header("connection", "Upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.send_header("sec-websocket-protocol", self.headers["sec-websocket-protocol"])
        self.send_header("x-path", self.path)
        self.end_headers()
        self.close_connection = True
        try:
            self.talk()
        except (OSError, EOFError):
            open("/tmp/left", "w").write("yes")
    def exactly(self, size):
        data = self.rfile.read(size)
        if len(data) < size: raise EOFError
        return data
    def receive(self):
        first, size = self.exactly(2)
        size &= 127
        if size == 126: size = int.from_bytes(self.exactly(2), "big")
        elif size == 127: size = int.from_bytes(self.exactly(8), "big")
        mask = self.exactly(4)
        data = self.exactly(size)
        mask = (mask * (size // 4 + 1))[:size]
        plain = int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")
        return first, plain.to_bytes(size, "big")
    def send(self, kind, data):
        size = len(data)
        if size < 126: head = bytes([128 | kind, size])
        elif size < 65536: head = bytes([128 | kind, 126]) + size.to_bytes(2, "big")
        else: head = bytes([128 | kind, 127]) + size.to_bytes(8, "big")
        self.wfile.write(head + data); self.wfile.flush()
    def talk(self):
        message, kind = b"", 0
        while True:
            first, data = self.receive()
            code = first & 15
            if code == 8: return self.send(8, data)
            if code == 9: self.send(10, data); continue
            if code == 10: continue
            kind = code or kind
            message += data
            if not first & 128: continue
            if message.startswith(b"push "):
                for n in range(int(message[5:])): self.send(1, b"%d" % n)
            elif message == b"close": self.send(8, (4001).to_bytes(2, "big") + b"enough"); self.receive(); return
            else: self.send(kind, message)
            message = b""

ThreadingHTTPServer(("127.0.0.1", 8080), App).serve_forever()
"#;

async fn start_app(client: &Client, id: &str) {
    client.write_file(id, "/tmp/app.py", APP).await.ok();
    client.sh(id, "python3 /tmp/app.py </dev/null >/tmp/app.log 2>&1 &").await;
    until("the program listens", async || {
        (client.sh(id, "grep -q ':1F90 ' /proc/net/tcp").await.code == 0).then_some(())
    })
    .await;
}

async fn open(client: &Client, id: &str) -> WebSocketStream<TcpStream> {
    let mut request = format!("ws://{SERVER}/talk/here?a=b").into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("host", format!("{PORT}-{id}.localhost:7070").parse().unwrap());
    headers.insert("x-api-key", client.key().parse().unwrap());
    headers.insert("sec-websocket-protocol", "chat".parse().unwrap());
    let stream = TcpStream::connect(SERVER).await.unwrap();
    let sizes = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(sizes)).await;
    let (socket, answer) = opened.unwrap_or_else(|error| panic!("no socket: {error:?}"));
    assert_eq!(answer.headers()["sec-websocket-protocol"], "chat");
    assert!(answer.headers()["x-path"].to_str().unwrap().starts_with("/talk/here?"), "{answer:?}");
    socket
}

async fn next(socket: &mut WebSocketStream<TcpStream>) -> Message {
    socket.next().await.expect("a message").expect("no error")
}

/// Starts the program in a sandbox with python and talks to it: messages both ways, large ones, pings, and every kind of end.
pub async fn converse(client: &Client, id: &str) {
    start_app(client, id).await;
    let mut socket = open(client, id).await;
    let large: Vec<u8> = (0..LARGE).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for message in [Message::text("hello"), Message::binary(vec![0, 255, 1]), Message::binary(large)] {
        socket.send(message.clone()).await.unwrap();
        assert!(next(&mut socket).await == message, "another message came back");
    }
    // Many on their way at once, and many that answer one.
    for n in 0..100 {
        socket.feed(Message::text(format!("message {n}"))).await.unwrap();
    }
    socket.flush().await.unwrap();
    for n in 0..100 {
        assert_eq!(next(&mut socket).await, Message::text(format!("message {n}")));
    }
    socket.send(Message::text("push 100")).await.unwrap();
    for n in 0..100 {
        assert_eq!(next(&mut socket).await, Message::text(n.to_string()));
    }
    socket.send(Message::Ping(Bytes::from_static(b"beat"))).await.unwrap();
    assert_eq!(next(&mut socket).await, Message::Pong(Bytes::from_static(b"beat")));
    // A close of the client, one of the program, and a client that goes without one.
    let bye = CloseFrame { code: CloseCode::Normal, reason: "bye".into() };
    socket.close(Some(bye.clone())).await.unwrap();
    assert_eq!(next(&mut socket).await, Message::Close(Some(bye)));
    assert!(socket.next().await.is_none_or(|end| end.is_err()), "nothing comes after a close");
    let mut socket = open(client, id).await;
    socket.send(Message::text("close")).await.unwrap();
    let enough = CloseFrame { code: CloseCode::from(4001), reason: "enough".into() };
    assert_eq!(next(&mut socket).await, Message::Close(Some(enough)));
    assert!(socket.next().await.is_none_or(|end| end.is_err()), "the close was answered");
    assert_ne!(client.sh(id, "cat /tmp/left").await.code, 0, "both were closed in order");
    drop(open(client, id).await);
    until("the program sees its client go", async || {
        (client.sh(id, "cat /tmp/left").await.code == 0).then_some(())
    })
    .await;
}
