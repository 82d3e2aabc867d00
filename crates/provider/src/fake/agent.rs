//! Just enough of an agent for tests: it is greeted, checks its token, and "runs" a handful of programs.
//!
//! | program | does |
//! |---|---|
//! | `echo a b` | writes `a b` and a line end, exits 0 |
//! | `false` | exits 1 |
//! | `yell` | writes to stderr, dies of signal 9 |
//! | `late` | says that its timeout passed |
//! | `cut` | the connection breaks in the middle |
//! | anything else | is not found |

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::watch;

/// Serves one connection until it ends; while it is frozen it stands still.
pub(super) async fn serve(
    stream: DuplexStream,
    token: Arc<Mutex<String>>,
    mut frozen: watch::Receiver<bool>,
) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        if frozen.wait_for(|frozen| !frozen).await.is_err() {
            return;
        }
        let is_trusted = request.token == *token.lock().unwrap();
        let answer = if is_trusted || request.path == "/health" {
            if is_trusted && request.path == "/init" {
                rotate(&request.body, &token);
            }
            answer(&request)
        } else {
            plain(401, r#"{"code":"unauthenticated","message":"wrong token"}"#)
        };
        let Some(answer) = answer else { return };
        if stream.get_mut().write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// A greeting may bring a new token; it counts from the next request on.
fn rotate(body: &[u8], token: &Mutex<String>) {
    let greeting = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    if let Some(next) = greeting["accessToken"].as_str() {
        next.clone_into(&mut token.lock().unwrap());
    }
}

struct Request {
    path: String,
    token: String,
    body: Vec<u8>,
}

async fn read(stream: &mut BufReader<DuplexStream>) -> Option<Request> {
    let mut first = String::new();
    stream.read_line(&mut first).await.ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let (mut token, mut length) = (String::new(), 0usize);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "x-access-token" => token = value.trim().to_owned(),
            "content-length" => length = value.trim().parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { path, token, body })
}

/// `None`: break the connection.
fn answer(request: &Request) -> Option<Vec<u8>> {
    match request.path.as_str() {
        "/health" => plain(204, ""),
        "/init" => {
            plain(200, r#"{"agentVersion":"fake","envdVersion":"0.0.0","generation":1,"features":[]}"#)
        }
        "/atoll.agent.v1.Agent/Start" => start(request.body.get(5..)?),
        "/atoll.agent.v1.Agent/List" => plain(200, ""),
        _ => plain(404, r#"{"code":"unimplemented","message":"the fake cannot do that"}"#),
    }
}

fn plain(status: u16, body: &str) -> Option<Vec<u8>> {
    let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
    if status == 204 {
        head = format!("HTTP/1.1 {status} X\r\n");
    }
    write!(head, "\r\n{body}").ok()?;
    Some(head.into_bytes())
}

fn start(message: &[u8]) -> Option<Vec<u8>> {
    let texts = fields(message)?;
    let text = |number| texts.iter().filter(move |(n, _)| *n == number).map(|(_, text)| text.as_str());
    let args = text(2).collect::<Vec<_>>().join(" ");
    let mut frames = frame(0, &field(1, &[8, 7]));
    match text(1).next()? {
        "echo" => {
            frames.extend(frame(0, &field(2, format!("{args}\n").as_bytes())));
            frames.extend(frame(0, &field(6, &[])));
        }
        "false" => frames.extend(frame(0, &field(6, &[8, 1]))),
        "yell" => {
            frames.extend(frame(0, &field(3, b"ow\n")));
            frames.extend(frame(0, &field(6, &[16, 9])));
        }
        "late" => frames.extend(frame(0, &field(6, &[16, 9, 24, 1]))),
        "cut" => return None,
        _ => return plain(404, r#"{"code":"not_found","message":"no such program"}"#),
    }
    frames.extend(frame(2, b"{}"));
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/connect+proto\r\ncontent-length: {}\r\n\r\n",
        frames.len()
    );
    Some([head.into_bytes(), frames].concat())
}

fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&[flags][..], &len, payload].concat()
}

/// A length-delimited protobuf field; all of ours are shorter than 128 bytes or cut to it.
fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let payload = &payload[..payload.len().min(127)];
    [&[number << 3 | 2, u8::try_from(payload.len()).expect("cut before")], payload].concat()
}

/// The length-delimited fields of a message as text; numbers are skipped.
fn fields(mut message: &[u8]) -> Option<Vec<(u64, String)>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let value = varint(&mut message)?;
        if key & 7 == 2 {
            let (text, rest) = message.split_at_checked(usize::try_from(value).ok()?)?;
            found.push((key >> 3, String::from_utf8_lossy(text).into_owned()));
            message = rest;
        }
    }
    Some(found)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
