//! A server that says what an SDK needs to go on, and does nothing: what the SDK takes against it is the SDK's own. A thread
//! per connection, no library.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::Result;

/// What is said to a method and a path without its query, by the server at this address.
pub(crate) type Answers = fn(&str, &str, &str) -> Vec<u8>;

/// Serves at a port of its own until the process ends; answers its address.
pub(crate) fn serve(answers: Answers) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let own = address.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let own = own.clone();
            std::thread::spawn(move || {
                // A client that goes away is the end of its thread.
                let _ = client(stream, answers, &own);
            });
        }
    });
    Ok(address)
}

fn client(stream: TcpStream, answers: Answers, own: &str) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(256 << 10, stream);
    while let Some(asked) = Asked::read(&mut reader)? {
        let path = asked.path.split('?').next().unwrap_or_default();
        let answer = answers(&asked.method, path, own);
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
        if chunked {
            skip_chunks(reader)?
        } else {
            skip(reader, length)?
        }
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

/// A whole answer.
pub(crate) fn whole(status: u16, kind: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}
