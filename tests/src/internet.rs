//! A small internet: one network namespace with a web server, an echo server and a name server on public and on decoy addresses.
//!
//! The decoys are private, link-local and metadata addresses that really answer, so that "unreachable" in a test is the
//! policy's doing and not an absence. Its threads end with the process.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use crate::ground::ip;

/// A public address that answers.
pub const PUBLIC: &str = "203.0.113.1";
/// A name that the internet's name server knows, for [`PUBLIC`].
pub const NAME: &str = "service.example.test";
/// What the web server answers.
pub const GREETING: &str = "hello from the internet";
/// Addresses that answer too and that no sandbox may ever reach.
pub const DECOYS: &[&str] = &[
    "10.1.2.3",
    "172.20.0.9",
    "192.168.77.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "192.0.0.8",
];

/// Where to find it.
#[derive(Debug, Clone, Copy)]
pub struct Internet {
    /// Its public address.
    pub address: Ipv4Addr,
}

/// Starts it and joins the calling thread's namespace to it.
pub(crate) fn start() -> Internet {
    let (tell_id, id) = mpsc::channel();
    let (joined, wait_joined) = mpsc::channel::<()>();
    let (tell_ready, ready) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace for the internet");
        tell_id.send(nix::unistd::gettid()).expect("the ground listens");
        wait_joined.recv().expect("the ground joins");
        serve();
        tell_ready.send(()).expect("the ground waits");
        // The namespace lives as long as a thread of it.
        std::thread::park();
    });
    let far = id.recv().expect("the internet has a thread");
    ip(&format!("link add up0 type veth peer name inet0 netns {far}"));
    ip("addr add 203.0.113.2/24 dev up0");
    ip("link set up0 up");
    ip("route add default via 203.0.113.1");
    joined.send(()).expect("the internet waits");
    ready.recv_timeout(Duration::from_secs(10)).expect("the internet is up");
    Internet { address: PUBLIC.parse().expect("an address") }
}

fn serve() {
    ip("link set lo up");
    ip("addr add 203.0.113.1/24 dev inet0");
    ip("link set inet0 up");
    for decoy in DECOYS {
        ip(&format!("addr add {decoy}/32 dev lo"));
    }
    let web = TcpListener::bind("0.0.0.0:80").expect("port 80");
    std::thread::spawn(move || serve_web(&web));
    let echo = TcpListener::bind("0.0.0.0:7").expect("port 7");
    std::thread::spawn(move || serve_echo(&echo));
    let names = UdpSocket::bind("0.0.0.0:53").expect("port 53");
    std::thread::spawn(move || serve_names(&names));
}

fn serve_web(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut stream = stream;
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let mut request = [0; 2048];
            if stream.read(&mut request).is_ok_and(|n| n > 0) {
                let length = GREETING.len();
                let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n{GREETING}");
            }
        });
    }
}

/// Gives back whatever comes, for as long as the other side lives.
fn serve_echo(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let (mut from, mut to) = (&stream, &stream);
            let _ = std::io::copy(&mut from, &mut to);
        });
    }
}

fn serve_names(socket: &UdpSocket) {
    let mut packet = [0; 1500];
    while let Ok((length, from)) = socket.recv_from(&mut packet) {
        if let Some(answer) = answer_name(&packet[..length]) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// Answers one question: an address for [`NAME`], no such name for the rest.
fn answer_name(query: &[u8]) -> Option<Vec<u8>> {
    let question = query.get(12..)?;
    let end = question.iter().position(|byte| *byte == 0)?;
    let name = labels(&question[..end])?;
    let kind = u16::from_be_bytes(question.get(end + 1..end + 3)?.try_into().ok()?);
    let question = question.get(..end + 5)?;
    let known = name.eq_ignore_ascii_case(NAME);
    let has_address = known && kind == 1;
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, if known { 0x80 } else { 0x83 }, 0, 1, 0, u8::from(has_address), 0, 0, 0, 0]);
    answer.extend(question);
    if has_address {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        answer.extend(PUBLIC.parse::<Ipv4Addr>().ok()?.octets());
    }
    Some(answer)
}

fn labels(mut wire: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = wire.split_first() {
        let (label, rest) = rest.split_at_checked(usize::from(*length))?;
        parts.push(String::from_utf8_lossy(label).into_owned());
        wire = rest;
    }
    Some(parts.join("."))
}
