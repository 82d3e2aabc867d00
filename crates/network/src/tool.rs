//! Runs a helper program (`nft`, `iptables-legacy`) to its end, with a deadline.
//!
//! Only for set-up and for `doctor`; no request starts a program.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// LIMIT: loading the rules takes some milliseconds; a machine with many other rules needs longer to list them.
const DEADLINE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(1);

/// The result of a program.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `command` with `input`, in the network namespace of the calling thread.
pub(crate) fn run(command: &mut Command, input: &str) -> io::Result<Finished> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        // Threads serve the pipes during the wait, so that neither side can block the other.
        scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(input.as_bytes())));
        let stdout = scope.spawn(move || read_all(stdout));
        let stderr = scope.spawn(move || read_all(stderr));
        let status = wait(&mut child)?;
        let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        Ok(Finished { status, stdout, stderr })
    })
}

/// `nft`, also found in system folders that are not in a normal user's path.
pub(crate) fn nft() -> Command {
    let places = ["/usr/sbin/nft", "/sbin/nft", "/usr/local/sbin/nft"];
    Command::new(places.into_iter().find(|place| Path::new(place).exists()).unwrap_or("nft"))
}

fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    let started_at = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started_at.elapsed() > DEADLINE {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PAUSE);
    }
}

fn read_all(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // Bytes from before an error are still useful.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
