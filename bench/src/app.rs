//! The app that the rows about previews ask: this program again, inside a sandbox. A thread per connection, no library.
//!
//! `/` answers at once, `/spin` after about 0.3 ms of CPU, `/mib/N` with N MiB, an upgrade is kept open after a greeting.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;

const STACK: usize = 128 << 10;
const SPIN: Duration = Duration::from_micros(300);
const PIECE: usize = 256 << 10;
/// A WebSocket frame with the text "hi".
pub(crate) const GREETING: &[u8] = &[0x81, 2, b'h', b'i'];

static OPEN: Mutex<Vec<TcpStream>> = Mutex::new(Vec::new());

/// Serves until it is killed.
pub(crate) fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::Builder::new().stack_size(STACK).spawn(move || {
            // A client that goes away is the end of its thread.
            let _ = client(stream);
        })?;
    }
    Ok(())
}

fn client(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    loop {
        first.clear();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut upgrades = false;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            if line.trim_end().is_empty() {
                break;
            }
            upgrades |= line.get(..8).is_some_and(|name| name.eq_ignore_ascii_case("upgrade:"));
        }
        if upgrades {
            return upgrade(reader.into_inner());
        }
        answer(reader.get_mut(), first.split(' ').nth(1).unwrap_or("/"))?;
    }
}

fn answer(stream: &mut TcpStream, path: &str) -> Result<()> {
    if let Some(mib) = path.strip_prefix("/mib/").and_then(|n| n.parse::<usize>().ok()) {
        let total = mib << 20;
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n").as_bytes())?;
        let piece = vec![b'x'; PIECE];
        for _ in 0..total / PIECE {
            stream.write_all(&piece)?;
        }
        return Ok(());
    }
    if path == "/spin" {
        let until = cpu_time() + SPIN;
        while cpu_time() < until {
            std::hint::spin_loop();
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok")?;
    Ok(())
}

/// Of this thread: what others take meanwhile does not count.
fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Without a thread of its own from here on.
fn upgrade(mut stream: TcpStream) -> Result<()> {
    stream.write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    )?;
    stream.write_all(GREETING)?;
    if let Ok(mut open) = OPEN.lock() {
        open.push(stream);
    }
    Ok(())
}
