//! `atoll-hold`, the command in the sandbox: the agent's program under another name.
//!
//! ```text
//! atoll-hold 10m           keep the sandbox awake for ten minutes
//! atoll-hold -- make all   keep it awake while this runs
//! atoll-hold --release     release the timed hold
//! atoll-hold               say for how long it is kept awake
//! ```
//! While a command runs, a separate process renews its hold every 30 seconds for a minute. The command replaces this
//! process, so exit code, signals and terminal are its own, and the hold of a killed command ends within a minute.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::time::Duration;

use atoll_agentapi::HoldStatus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The name of the program for this command.
pub(crate) const NAME: &str = "atoll-hold";

const RENEW_S: i64 = 30;
const LEASE_S: u64 = 60;
const WAIT: Duration = Duration::from_secs(10);
const USAGE: &str = "usage: atoll-hold [DURATION | --release | -- COMMAND [ARGUMENT]...]\n\
    Prevents idle timers from acting on the sandbox: for a time (90s, 10m, 1h30m; at most 24h), or while a command runs.\n";

/// Runs the command with these arguments.
pub(crate) fn run(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let first = words.next();
    let asked = match first.as_ref().and_then(|word| word.to_str()) {
        None if first.is_none() => ask("GET", ""),
        Some("--release") => ask("DELETE", ""),
        Some("--") => return hold_while(words.collect()),
        Some("-h" | "--help") => return say(&mut io::stdout(), USAGE, 0),
        Some(word) if seconds(word).is_some() && words.next().is_none() => {
            ask("POST", &format!("?seconds={}", seconds(word).unwrap_or(0)))
        }
        _ => return say(&mut io::stderr(), USAGE, 2),
    };
    match asked {
        Ok(0) => say(&mut io::stdout(), "not held\n", 0),
        Ok(held) => say(&mut io::stdout(), &format!("held for {held} s\n"), 0),
        Err(cause) => say(&mut io::stderr(), &format!("{NAME}: {cause}\n"), 1),
    }
}

fn say(to: &mut impl Write, text: &str, code: u8) -> ExitCode {
    let _ = to.write_all(text.as_bytes());
    ExitCode::from(code)
}

/// Parses `90`, `90s`, `10m`, `1h30m`.
fn seconds(text: &str) -> Option<u64> {
    if let Ok(plain) = text.parse() {
        return Some(plain);
    }
    let (mut all, mut number) = (0u64, String::new());
    for letter in text.chars() {
        let unit = match letter {
            '0'..='9' => {
                number.push(letter);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return None,
        };
        all = all.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        number.clear();
    }
    number.is_empty().then_some(all)
}

/// Sends a request to the agent; returns how long the sandbox is held.
fn ask(method: &str, query: &str) -> io::Result<u64> {
    if let Some(path) = std::env::var_os(crate::host_mode::SOCKET_VARIABLE) {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(WAIT))?;
        stream.set_write_timeout(Some(WAIT))?;
        return ask_on(stream, method, query);
    }
    let port = std::env::var("ATOLL_AGENT_PORT").ok().and_then(|port| port.parse().ok());
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.unwrap_or(atoll_agentapi::AGENT_PORT)))?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    ask_on(stream, method, query)
}

fn ask_on(mut stream: impl Read + Write, method: &str, query: &str) -> io::Result<u64> {
    let head = format!(
        "{method} /hold{query} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(64 * 1024).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    if head.split(' ').nth(1) == Some("200") {
        return Ok(serde_json::from_str::<HoldStatus>(body)?.held_s);
    }
    let told = serde_json::from_str::<serde_json::Value>(body).unwrap_or_default();
    Err(io::Error::other(told["message"].as_str().unwrap_or("the agent refused").to_owned()))
}

fn hold_while(words: Vec<OsString>) -> ExitCode {
    let mut words = words.into_iter();
    let Some(program) = words.next() else { return say(&mut io::stderr(), USAGE, 2) };
    if let Err(cause) = hold_beside() {
        // The command runs even without the hold.
        say(&mut io::stderr(), &format!("{NAME}: the sandbox is not held: {cause}\n"), 0);
    }
    let cause = std::process::Command::new(&program).args(words).exec();
    let code = if cause.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    say(&mut io::stderr(), &format!("{NAME}: {}: {cause}\n", program.display()), code)
}

/// Takes a hold and leaves a process that renews it as long as this one lives.
fn hold_beside() -> io::Result<()> {
    let own = rustix::process::getpid();
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(|_| io::ErrorKind::Unsupported)?;
    let name = format!("{}-{:016x}", own.as_raw_nonzero(), u64::from_ne_bytes(random));
    ask("POST", &format!("?seconds={LEASE_S}&name={name}"))?;
    let watched = pidfd_open(own, PidfdFlags::empty())?;
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // Forked twice, so that the command has no child that it did not start.
            // SAFETY: as above; _exit ends the process in between without running anything else.
            if unsafe { libc::fork() } == 0 {
                renew(&watched, &name);
            }
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        child => {
            let child = Pid::from_raw(child).ok_or(io::ErrorKind::InvalidData)?;
            while let Err(rustix::io::Errno::INTR) =
                rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
            {}
            Ok(())
        }
    }
}

/// Renews the hold until the watched process ends.
fn renew(watched: &OwnedFd, name: &str) {
    let _ = rustix::process::setsid();
    // The inherited pipes are replaced, so that their readers do not wait for this process.
    if let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()) {
        for stdio in 0..3 {
            // SAFETY: dup2 between descriptors of this process; no object in it owns these three.
            unsafe { libc::dup2(null.as_raw_fd(), stdio) };
        }
    }
    let _ = std::env::set_current_dir("/");
    loop {
        let mut ends = [PollFd::new(watched, PollFlags::IN)];
        let interval = Timespec { tv_sec: RENEW_S, tv_nsec: 0 };
        match poll(&mut ends, Some(&interval)) {
            Ok(0) => _ = ask("POST", &format!("?seconds={LEASE_S}&name={name}")),
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    let _ = ask("DELETE", &format!("?name={name}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, expected) in
            [("90", Some(90)), ("90s", Some(90)), ("10m", Some(600)), ("1h30m", Some(5400)), ("0s", Some(0))]
        {
            assert_eq!(seconds(text), expected, "{text}");
        }
        for bad in ["", "m", "10x", "1h30", "-5m", "99999999999999999999h", "1 h"] {
            assert_eq!(seconds(bad).filter(|_| !bad.is_empty()), None, "{bad}");
        }
    }
}
