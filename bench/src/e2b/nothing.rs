//! A server that speaks as much of E2B's wire as the SDK needs to go on, and does nothing: what the SDK takes against it is
//! the SDK's own. A thread per connection, no library.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::Result;

const TEN_MB: usize = 10_000_000;
const SANDBOX: &str = r#"{"templateID":"base","sandboxID":"nothing","clientID":"none","envdVersion":"0.6.13","envdAccessToken":"none","domain":"localhost"}"#;

/// Serves until the process ends.
pub(super) fn serve(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                // A client that goes away is the end of its thread.
                let _ = client(stream);
            });
        }
    });
}

fn client(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(256 << 10, stream);
    while let Some(asked) = Asked::read(&mut reader)? {
        let answer = answer(&asked);
        reader.get_mut().write_all(&answer)?;
    }
    Ok(())
}

/// As much of a request as matters here.
struct Asked {
    method: String,
    path: String,
}

impl Asked {
    fn read(reader: &mut BufReader<TcpStream>) -> Result<Option<Self>> {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let asked = Self { method: method.to_owned(), path: path.to_owned() };
        let (mut length, mut chunked) = (0, false);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            chunked |= line.starts_with("transfer-encoding:") && line.ends_with("chunked");
        }
        if chunked { skip_chunks(reader)? } else { skip(reader, length)? }
        Ok(Some(asked))
    }
}

fn skip(reader: &mut BufReader<TcpStream>, length: u64) -> Result<()> {
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(())
}

fn skip_chunks(reader: &mut BufReader<TcpStream>) -> Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = u64::from_str_radix(line.trim(), 16)?;
        skip(reader, size + 2)?;
        if size == 0 {
            return Ok(());
        }
    }
}

fn answer(asked: &Asked) -> Vec<u8> {
    match (asked.method.as_str(), asked.path.split('?').next().unwrap_or_default()) {
        ("DELETE", _) => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        ("POST", "/process.Process/Start") => whole(200, "application/connect+json", &hello()),
        ("POST", "/execute") => whole(200, "application/x-ndjson", two().as_bytes()),
        ("GET", "/files") => whole(200, "application/octet-stream", &vec![b'x'; TEN_MB]),
        ("POST", "/files") => {
            whole(200, "application/json", br#"[{"name":"ten","path":"/tmp/ten","type":"file"}]"#)
        }
        ("POST", path) if path.ends_with("/sandboxes") => whole(201, "application/json", SANDBOX.as_bytes()),
        _ => whole(404, "application/json", br#"{"code":404,"message":"nothing here"}"#),
    }
}

fn whole(status: u16, kind: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// The events of `echo hi`, each in its frame.
fn hello() -> Vec<u8> {
    let events = [
        r#"{"event":{"start":{"pid":7}}}"#,
        r#"{"event":{"data":{"stdout":"aGkK"}}}"#,
        r#"{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}"#,
    ];
    let framed = events.iter().map(|event| (0, *event)).chain([(2, "{}")]);
    let mut frames = Vec::new();
    for (flag, text) in framed {
        frames.push(flag);
        frames.extend(u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
        frames.extend(text.as_bytes());
    }
    frames
}

/// The lines of `1+1`.
fn two() -> &'static str {
    "{\"type\":\"number_of_executions\",\"execution_count\":1}\n{\"type\":\"result\",\"text\":\"2\",\"is_main_result\":true}\n\
     {\"type\":\"end_of_execution\"}\n"
}
