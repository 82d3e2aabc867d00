//! A minimal agent for tests: it accepts the init request, checks its token, and simulates a handful of programs.
//!
//! | program | does |
//! |---|---|
//! | `echo a b` | writes `a b` and a line end, exits 0 |
//! | `false` | exits 1 |
//! | `yell` | writes to stderr, ends by signal 9 |
//! | `late` | reports that its timeout passed |
//! | `cut` | the connection breaks in the middle |
//! | `wait`, `sh` | starts and never ends |
//! | `tell` | writes the first half of [`TOLD`]; a reader that attaches again gets the rest and the exit |
//! | anything else | is not found |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::watch;

use super::trees::TreeSettings;
use super::volumes::MountedVolume;
use super::{FakeFiles, TreeFault, trees};

/// The state of an agent, shared with the tests.
pub(super) struct FakeAgentState {
    /// An init request may change it.
    pub(super) token: Mutex<String>,
    /// The hold that a program inside requests.
    pub(super) held_s: AtomicU64,
    /// The files of its sandbox.
    pub(super) files: Arc<Mutex<FakeFiles>>,
    /// Its mounted volumes.
    mounts: Vec<MountedVolume>,
    /// The environment of every command.
    pub(super) env: Mutex<BTreeMap<String, String>>,
    /// The requests that it received, in order.
    pub(super) asked: Mutex<Vec<String>>,
    /// While it is frozen no request is answered.
    pub(super) frozen: watch::Sender<bool>,
    trees: Arc<Mutex<TreeSettings>>,
}

impl FakeAgentState {
    pub(super) fn new(
        token: String,
        files: Arc<Mutex<FakeFiles>>,
        mounts: Vec<MountedVolume>,
        trees: Arc<Mutex<TreeSettings>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            token: Mutex::new(token),
            held_s: AtomicU64::new(0),
            files,
            mounts,
            env: Mutex::default(),
            asked: Mutex::default(),
            frozen: watch::Sender::new(false),
            trees,
        })
    }

    /// The file at a path, its name, and whether it may be written.
    fn find(&self, path: &str) -> (Arc<Mutex<FakeFiles>>, String, bool) {
        let seen = self.mounts.iter().find_map(|seen| Some((seen.inside(path)?, !seen.read_only)));
        match seen {
            Some(((files, inside), may_write)) => (files, inside, may_write),
            None => (Arc::clone(&self.files), path.to_owned(), true),
        }
    }

    pub(super) fn read(&self, path: &str) -> Option<Vec<u8>> {
        let (files, path, _) = self.find(path);
        let files = files.lock().unwrap();
        files.get(&path).cloned()
    }

    pub(super) fn write(&self, path: &str, content: Vec<u8>) -> bool {
        let (files, path, may_write) = self.find(path);
        if may_write {
            files.lock().unwrap().insert(path, content);
        }
        may_write
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve(stream: DuplexStream, mind: Arc<FakeAgentState>) {
    let (mut stream, mut frozen) = (BufReader::new(stream), mind.frozen.subscribe());
    while let Some(request) = read(&mut stream).await {
        if frozen.wait_for(|frozen| !frozen).await.is_err() {
            return;
        }
        mind.asked.lock().unwrap().push(format!("{} {}", request.method, request.path));
        let is_trusted = request.token == *mind.token.lock().unwrap();
        let answer = if is_trusted || request.path == "/health" {
            answer(&request, &mind)
        } else {
            plain(401, r#"{"code":"unauthenticated","message":"wrong token"}"#)
        };
        let Some(answer) = answer else { return };
        if stream.get_mut().write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// An init request may set a new token; it is valid from the next request on.
fn greet(body: &[u8], mind: &FakeAgentState) -> Option<Vec<u8>> {
    let greeting = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    if let Some(next) = greeting["accessToken"].as_str() {
        next.clone_into(&mut mind.token.lock().unwrap());
    }
    if let Ok(env) = serde_json::from_value(greeting["envVars"].clone()) {
        *mind.env.lock().unwrap() = env;
    }
    plain(200, r#"{"agentVersion":"fake","envdVersion":"0.0.0","generation":1,"features":[]}"#)
}

struct Request {
    method: String,
    path: String,
    token: String,
    body: Vec<u8>,
}

async fn read(stream: &mut BufReader<DuplexStream>) -> Option<Request> {
    let mut first = String::new();
    stream.read_line(&mut first).await.ok()?;
    let (method, path) = (first.split(' ').next()?.to_owned(), first.split(' ').nth(1)?.to_owned());
    let (mut token, mut length, mut chunked) = (String::new(), 0usize, false);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "x-access-token" => token = value.trim().to_owned(),
            "content-length" => length = value.trim().parse().ok()?,
            "transfer-encoding" => chunked = true,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    while chunked {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).await.ok()?;
        body.extend_from_slice(&chunk[..size]);
        chunked = size > 0;
    }
    Some(Request { method, path, token, body })
}

/// `None`: break the connection.
fn answer(request: &Request, mind: &FakeAgentState) -> Option<Vec<u8>> {
    match request.path.as_str() {
        "/health" => plain(204, ""),
        "/init" => greet(&request.body, mind),
        "/hold" => plain(200, &format!(r#"{{"held_s":{}}}"#, mind.held_s.load(Ordering::Relaxed))),
        "/atoll.agent.v1.Agent/Start" => start(request.body.get(5..)?),
        "/atoll.agent.v1.Agent/Attach" => attach(request.body.get(5..)?),
        "/atoll.agent.v1.Agent/List" => plain(200, ""),
        path if path.starts_with("/files?path=") => file(request, mind),
        path if path.starts_with("/archive/") => archive(request, mind),
        "/atoll.agent.v1.Agent/Stat"
        | "/atoll.agent.v1.Agent/ListDir"
        | "/atoll.agent.v1.Agent/Remove"
        | "/atoll.agent.v1.Agent/Change" => tree(request, mind),
        _ => plain(404, r#"{"code":"unimplemented","message":"the fake cannot do that"}"#),
    }
}

/// Reads or writes a whole file; its path needs no decoding.
fn file(request: &Request, mind: &FakeAgentState) -> Option<Vec<u8>> {
    let path = request.path.strip_prefix("/files?path=")?.split('&').next()?;
    if request.method == "POST" {
        return match mind.write(path, request.body.clone()) {
            true => plain(200, "[]"),
            false => plain(403, r#"{"code":"permission_denied","message":"it is read-only"}"#),
        };
    }
    let passwd = || mind.trees.lock().unwrap().passwd().filter(|_| path == "/etc/passwd");
    match mind.read(path).or_else(passwd) {
        Some(content) => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", content.len());
            Some([head.into_bytes(), content].concat())
        }
        None => plain(404, r#"{"code":"not_found","message":"no such file"}"#),
    }
}

/// Describes, lists, removes or changes a path. Modes and owners are not kept.
fn tree(request: &Request, mind: &FakeAgentState) -> Option<Vec<u8>> {
    let texts = fields(&request.body)?;
    let text = |number| texts.iter().find(|(n, _)| *n == number).map_or("", |(_, text)| text.as_str());
    let path = trees::resolve(text(1), text(2));
    let mut files = mind.files.lock().unwrap();
    let is_folder = trees::is_folder(&files, &path);
    if !is_folder && !files.contains_key(&path) {
        return plain(404, r#"{"code":"not_found","message":"no such file"}"#);
    }
    let entry = |path: &str, is_folder: bool| {
        let name = path.rsplit('/').next().unwrap_or_default();
        [field(1, name.as_bytes()), field(2, path.as_bytes()), vec![3 << 3, if is_folder { 2 } else { 1 }]]
            .concat()
    };
    let message = match request.path.rsplit('/').next()? {
        "ListDir" => {
            let names = trees::names_in(&files, &path).into_iter();
            names
                .flat_map(|(name, is_folder)| field(1, &entry(&format!("{path}/{name}"), is_folder)))
                .collect()
        }
        "Remove" => {
            trees::remove(&mut files, &path);
            Vec::new()
        }
        _ => field(1, &entry(&path, is_folder)),
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", message.len());
    Some([head.into_bytes(), message].concat())
}

/// Packs or unpacks a tree.
fn archive(request: &Request, mind: &FakeAgentState) -> Option<Vec<u8>> {
    let parameter = |name: &str| {
        let pairs = request.path.split_once('?')?.1.split('&');
        pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let user = parameter("username").unwrap_or_default();
    if request.path.starts_with("/archive/pack") {
        let tar = trees::pack(&mind.files.lock().unwrap(), &request.body, user, &mind.trees.lock().unwrap())?;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", tar.len());
        return Some([head.into_bytes(), tar].concat());
    }
    let mut settings = mind.trees.lock().unwrap();
    if settings.unpacks_by_tar && parameter("owner").is_some() {
        return plain(
            501,
            r#"{"code":"unimplemented","message":"an archive with other owners is not possible"}"#,
        );
    }
    let fault = settings.faults.pop();
    if fault == Some(TreeFault::Full) {
        return plain(507, r#"{"code":"resource_exhausted","message":"the disk is full"}"#);
    }
    let dest = trees::resolve(parameter("dest")?, user);
    let mut files = mind.files.lock().unwrap();
    let (entries, bytes) = trees::unpack(&mut files, &dest, &request.body, fault, &mut settings)?;
    plain(200, &format!(r#"{{"entries":{entries},"bytes":{bytes}}}"#))
}

fn plain(status: u16, body: &str) -> Option<Vec<u8>> {
    let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
    if status == 204 {
        head = format!("HTTP/1.1 {status} X\r\n");
    }
    write!(head, "\r\n{body}").ok()?;
    Some(head.into_bytes())
}

/// The pid of `wait`; all others are 7.
const WAITS: u8 = 8;

/// The whole output of `tell`.
pub(super) const TOLD: &str = "to be continued";

/// The output of `tell` from a position on, with its exit.
fn attach(message: &[u8]) -> Option<Vec<u8>> {
    let (mut message, mut pid, mut from) = (message, 0, 0);
    while !message.is_empty() {
        let (key, value) = (varint(&mut message)?, varint(&mut message)?);
        match key >> 3 {
            1 => pid = value,
            3 => from = value,
            _ => {}
        }
    }
    if pid == u64::from(WAITS) {
        return Some(endless(frame(0, &field(1, &[8, WAITS, 16, 0]))));
    }
    let from = usize::try_from(from).ok()?.min(TOLD.len());
    let mut frames = frame(0, &field(1, &[8, 7, 16, u8::try_from(from).ok()?]));
    frames.extend(frame(0, &field(2, &TOLD.as_bytes()[from..])));
    frames.extend(frame(0, &field(6, &[])));
    frames.extend(frame(2, b"{}"));
    Some(whole(frames))
}

/// A stream of unknown length whose rest never arrives.
fn endless(frames: Vec<u8>) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/connect+proto\r\ntransfer-encoding: chunked\r\n";
    let begun = format!("{head}\r\n{:x}\r\n", frames.len());
    [begun.into_bytes(), frames, b"\r\n".to_vec()].concat()
}

/// A complete stream.
fn whole(frames: Vec<u8>) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/connect+proto\r\ncontent-length: {}\r\n\r\n",
        frames.len()
    );
    [head.into_bytes(), frames].concat()
}

fn start(message: &[u8]) -> Option<Vec<u8>> {
    let texts = fields(message)?;
    let text = |number| texts.iter().filter(move |(n, _)| *n == number).map(|(_, text)| text.as_str());
    let args = text(2).collect::<Vec<_>>().join(" ");
    let mut frames = frame(0, &field(1, &[8, 7, 16, 0]));
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
        "wait" | "sh" => return Some(endless(frame(0, &field(1, &[8, WAITS, 16, 0])))),
        "tell" => {
            frames.extend(frame(0, &field(2, &TOLD.as_bytes()[..TOLD.len() / 2])));
            return Some(endless(frames));
        }
        _ => return plain(404, r#"{"code":"not_found","message":"no such program"}"#),
    }
    frames.extend(frame(2, b"{}"));
    Some(whole(frames))
}

fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&[flags][..], &len, payload].concat()
}

/// A length-delimited protobuf field; payloads are cut to 127 bytes.
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
