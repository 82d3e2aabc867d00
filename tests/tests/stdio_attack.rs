//! `atoll mcp` on stdin and stdout with clients that mean harm: huge lines, garbage, half a message, and answers that nobody reads.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::{Client, Value, World, json, proc, run, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// LIMIT: what one process may hold, whatever comes.
const MEMORY_MAX_KIB: u64 = 200 << 10;

/// A process, and its pipes as far as the client uses them.
struct McpProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl McpProcess {
    fn start(w: &World, client: &Client) -> Self {
        let mut command = w.command();
        command.arg("mcp").env("ATOLL_API_KEY", client.key());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        Self { child, stdin, stdout }
    }

    fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stdin.as_mut().unwrap().write_all(bytes)
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn works(&mut self) {
        self.send(b"{\"jsonrpc\":\"2.0\",\"id\":\"alive\",\"method\":\"ping\"}\n").unwrap();
        assert_eq!(self.answer()["id"], "alive");
    }

    fn peak_kib(&self) -> u64 {
        proc::status(self.child.id().cast_signed(), "VmHWM").unwrap_or(0)
    }

    /// Ends within a time, by a signal or because its input ended.
    async fn ends(&mut self, signal: Option<Signal>) -> std::process::ExitStatus {
        match signal {
            Some(signal) => kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap(),
            None => drop(self.stdin.take()),
        }
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if begun.elapsed() > Duration::from_secs(12) {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!("it does not end");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn nothing_is_left(client: &Client) {
    until("the sandboxes of the processes are deleted", async || {
        client.get("/v1/sandboxes").await.ok()["items"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
}

fn call(id: u32, command: &str) -> String {
    let params = json!({ "name": "shell", "arguments": { "command": command } });
    format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }))
}

/// Attack N27.
#[test]
fn garbage_and_half_messages_are_answered_or_passed_over() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let mut process = McpProcess::start(w, &client);
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let nested = format!(
            "{{\"id\":1,\"method\":\"ping\",\"params\":{}1{}}}",
            "{\"a\":".repeat(5_000),
            "}".repeat(5_000)
        );
        let lines: [&[u8]; 9] = [
            b"\xff\xfe\x00\x01",
            b"{\"jsonrpc\":\"2.0\",\"id\":1",
            b"null",
            b"{\"id\":{\"a\":1},\"method\":7}",
            b"{\"id\":1,\"method\":\"\\u0000\\ud800\"}",
            b"GET / HTTP/1.1",
            b"Content-Length: 10",
            deep.as_bytes(),
            nested.as_bytes(),
        ];
        for line in lines {
            process.send(&[line, b"\n"].concat()).unwrap();
            let answer = process.answer();
            assert!(
                answer["error"]["code"].is_i64(),
                "{:?}: {answer}",
                String::from_utf8_lossy(&line[..line.len().min(60)])
            );
        }
        // Blank lines and notifications have no answer.
        process.send(b"\n\r\n   \n{\"method\":\"notifications/none\"}\n{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":[1]}}\n").unwrap();
        process.works();
        // Ten thousand lines of garbage, all answered.
        let mut stdin = process.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            (0..10_000).for_each(|_| stdin.write_all(b"{garbage\n").unwrap());
            stdin
        });
        (0..10_000).for_each(|_| assert_eq!(process.answer()["error"]["code"], -32_700));
        process.stdin = Some(writer.join().unwrap());
        process.works();
        // Half a message and the end.
        process.send(b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/ca").unwrap();
        assert!(process.ends(None).await.success());
        nothing_is_left(&client).await;
    });
}

/// Attack N27.
#[test]
fn a_line_without_an_end_is_bounded_and_ends_the_process() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let mut process = McpProcess::start(w, &client);
        process.send(call(1, "true").as_bytes()).unwrap();
        process.answer();
        let piece = vec![b'x'; 1 << 20];
        // The process closes its end; how far the writing gets depends on the pipe.
        let sent = (0..256).take_while(|_| process.send(&piece).is_ok()).count();
        assert!(sent < 64, "{sent} MiB were taken");
        assert!(process.peak_kib() < MEMORY_MAX_KIB, "{} KiB", process.peak_kib());
        assert!(!process.ends(None).await.success());
        nothing_is_left(&client).await;
    });
}

/// Attack N27: the pipe is full and stays full. The process holds a bounded number of answers, and still obeys its signals.
#[test]
fn a_client_that_never_reads_is_held_back_and_cannot_keep_the_process() {
    run(async |w| {
        let client = w.tenant("acme").await;
        for (signal, flood) in [
            (Signal::SIGTERM, call(2, "head -c 500000 /dev/zero | tr '\\0' x")),
            (Signal::SIGINT, "{garbage\n".to_owned()),
            (Signal::SIGTERM, "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/list\"}\n".to_owned()),
        ] {
            let mut process = McpProcess::start(w, &client);
            process.send(call(1, "true").as_bytes()).unwrap();
            process.answer();
            let mut stdin = process.stdin.take().unwrap();
            // Ends when the process does: then the pipe is closed.
            let writer = std::thread::spawn(move || {
                let lines = flood.repeat(50);
                while stdin.write_all(lines.as_bytes()).is_ok() {}
            });
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(process.peak_kib() < MEMORY_MAX_KIB, "{} KiB", process.peak_kib());
            let begun = Instant::now();
            process.ends(Some(signal)).await;
            assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
            writer.join().unwrap();
            nothing_is_left(&client).await;
        }
        // One that closes its end instead.
        let mut process = McpProcess::start(w, &client);
        process.send(call(1, "true").as_bytes()).unwrap();
        process.answer();
        drop(process.stdout.take());
        while process.send(b"{garbage\n").is_ok() {}
        process.ends(None).await;
        nothing_is_left(&client).await;
    });
}

/// Attack N27: a thousand requests at once, and the same id for all of them.
#[test]
fn too_many_requests_are_refused_each_with_its_id() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let mut process = McpProcess::start(w, &client);
        let mut stdin = process.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            for id in 0..1_000 {
                let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"tools/list\"}}\n", id % 500);
                stdin.write_all(line.as_bytes()).unwrap();
            }
            stdin
        });
        for _ in 0..1_000 {
            let answer = process.answer();
            assert!(
                answer["id"].is_u64() && (answer["result"].is_object() || answer["error"].is_object()),
                "{answer}"
            );
        }
        process.stdin = Some(writer.join().unwrap());
        process.works();
        assert!(process.ends(None).await.success());
        let mut rest = String::new();
        process.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        nothing_is_left(&client).await;
    });
}
