//! Starts the real agent and connects to it.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(unsafe_code, reason = "descriptors are handed to the agent between fork and exec")]
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_agentapi::{AgentClient, AgentToken, CommandOutput, InitRequest, StartProcess};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const TOKEN: &str = "test-token-0123456789abcdef";

/// LIMIT: what a loaded machine may need for an operation that takes milliseconds on a quiet one.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct TestAgent {
    pub child: Child,
    pub address: SocketAddr,
    pub client: AgentClient,
    pub dir: tempfile::TempDir,
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl TestAgent {
    /// The agent as an ordinary process of this machine.
    pub fn start() -> Self {
        Self::launch(Command::new(env!("CARGO_BIN_EXE_atoll-agent")))
    }

    /// The agent as PID 1 of its own pid and mount namespaces.
    pub fn start_as_pid_1() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--fork", "--pid", "--mount-proc", "--kill-child", env!("CARGO_BIN_EXE_atoll-agent")]);
        Self::launch(command)
    }

    /// The agent as PID 1, after a shell ran `before` (in the same process, so limits and cgroups stay).
    pub fn start_after(before: &str) -> Self {
        let mut command = Command::new("sh");
        let agent = env!("CARGO_BIN_EXE_atoll-agent");
        let script = format!("{before}; exec unshare --fork --pid --mount-proc --kill-child {agent} \"$@\"");
        command.args(["-c", &script, "sh"]);
        Self::launch(command)
    }

    fn launch(mut command: Command) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(TOKEN.as_bytes()).unwrap();
        drop(writer);
        command.args(["--listen-fd", "3", "--token-fd", "4"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("SECRET_OF_HOST", "1");
        hand_down(&mut command, [listener.as_raw_fd(), reader.as_raw_fd()]);
        let child = command.spawn().unwrap();
        let connect = move || TcpStream::connect(address);
        let client = AgentClient::new(connect, &AgentToken::new(TOKEN));
        Self { child, address, client, dir: tempfile::tempdir().unwrap() }
    }

    pub async fn with(self, request: InitRequest) -> Self {
        self.client.init(&request).await.unwrap();
        self
    }

    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir.path().display())
    }

    pub async fn sh(&self, script: &str) -> CommandOutput {
        self.client.run(sh(script), 64 << 20).await.unwrap()
    }

    /// Runs a script until it prints this text, because the effect may take a while.
    pub async fn sh_until(&self, script: &str, printed: &str) {
        let begun = Instant::now();
        loop {
            let said = self.sh(script).await.stdout;
            if said == printed.as_bytes() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{script}: {}", String::from_utf8_lossy(&said));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// One raw HTTP exchange: status, head, body.
    pub async fn raw(&self, request: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let cut = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8_lossy(&answer[..cut]).to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = if head.contains("transfer-encoding: chunked") {
            unchunk(&answer[cut..])
        } else {
            answer[cut..].to_vec()
        };
        (status, head, body)
    }

    /// A request with the token and `Connection: close`.
    pub async fn http(
        &self,
        method: &str,
        target: &str,
        headers: &str,
        body: &[u8],
    ) -> (u16, String, Vec<u8>) {
        let mut request = format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\nX-Access-Token: {TOKEN}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        )
        .into_bytes();
        request.extend(body);
        self.raw(&request).await
    }

    /// A unary Connect call in JSON.
    pub async fn json(&self, path: &str, body: &str) -> (u16, serde_json::Value) {
        let (status, _, body) =
            self.http("POST", path, "Content-Type: application/json\r\n", body.as_bytes()).await;
        (status, serde_json::from_slice(&body).unwrap_or(serde_json::Value::Null))
    }

    /// A server-streaming Connect call in JSON: all frames, the end frame last.
    pub async fn json_stream(&self, path: &str, headers: &str, body: &str) -> Vec<serde_json::Value> {
        let mut framed = vec![0u8];
        framed.extend((body.len() as u32).to_be_bytes());
        framed.extend(body.as_bytes());
        let headers =
            format!("Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\n{headers}");
        let (status, head, body) = self.http("POST", path, &headers, &framed).await;
        assert_eq!(status, 200, "{head} {}", String::from_utf8_lossy(&body));
        frames(&body)
    }
}

fn hand_down(command: &mut Command, fds: [RawFd; 2]) {
    // SAFETY: only fcntl and dup2 run between fork and exec. High numbers first, so that neither overwrites the other.
    unsafe {
        command.pre_exec(move || {
            let high = fds.map(|fd| libc::fcntl(fd, libc::F_DUPFD, 100));
            for (target, fd) in (3..).zip(high) {
                if libc::dup2(fd, target) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                libc::close(fd);
            }
            Ok(())
        });
    }
}

pub fn sh(script: &str) -> StartProcess {
    StartProcess {
        cmd: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        cwd: "/".into(),
        ..StartProcess::default()
    }
}

pub fn command(words: &[&str]) -> StartProcess {
    StartProcess {
        cmd: words[0].into(),
        args: words[1..].iter().map(|&word| word.into()).collect(),
        cwd: "/".into(),
        ..StartProcess::default()
    }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap().trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
    body
}

pub fn frames(mut body: &[u8]) -> Vec<serde_json::Value> {
    let mut frames = Vec::new();
    while body.len() >= 5 {
        let len = u32::from_be_bytes([body[1], body[2], body[3], body[4]]) as usize;
        let mut value: serde_json::Value = serde_json::from_slice(&body[5..5 + len]).unwrap();
        if body[0] & 2 != 0 {
            value = serde_json::json!({ "end": value });
        }
        frames.push(value);
        body = &body[5 + len..];
    }
    frames
}
