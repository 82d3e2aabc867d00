//! MCP: the call of a tool over stdio and over HTTP, alone and by a hundred clients at once.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Options;
use crate::http::Client;
use crate::report::{Bar, Report};
use crate::server::Server;
use crate::stats::Samples;

const CLIENTS: usize = 100;
/// The first calls make the sandbox and warm caches.
const WARM: usize = 20;

/// `shell {command: "true"}` in the client's own sandbox.
fn call(client: Option<&str>) -> Value {
    let mut call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "shell", "arguments": { "command": "true" } } });
    if let Some(name) = client {
        call["params"]["_meta"] =
            json!({ "io.modelcontextprotocol/clientInfo": { "name": name, "version": "1" } });
    }
    call
}

fn check(answer: &Value) -> Result<()> {
    ensure!(answer["result"]["structuredContent"]["exit_code"] == 0, "{answer}");
    Ok(())
}

/// All rows.
pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    // What a hundred sandboxes may use together is more than a small machine has.
    let overcommit = [("ATOLL_OVERCOMMIT", "1000"), ("ATOLL_DISK_OVERCOMMIT", "1000")];
    let server = Server::start_with(options, place, 0, &overcommit)?;
    let rounds = if options.quick { 200 } else { 1_000 };
    let bar = Some(Bar::Latency { p50_ms: 5.0, p99_ms: None });
    report.row("MCP over HTTP: shell {command: \"true\"}", &over_http(&server, rounds)?, bar);
    report.row("MCP over stdio: shell {command: \"true\"}", &over_stdio(options, &server, rounds)?, bar);
    let (samples, spread) = at_once(&server, if options.quick { 3 } else { 10 })?;
    let bar = Some(Bar::Latency { p50_ms: 100.0, p99_ms: Some(100.0) });
    report.row(&format!("MCP: {CLIENTS} clients call it at the same moment"), &samples, bar);
    report.row(&format!("MCP: {CLIENTS} clients call it once a second each"), &spread, None);
    Ok(())
}

fn over_http(server: &Server, rounds: usize) -> Result<Samples> {
    let mut client = server.client()?;
    let mut samples = Samples::default();
    for round in 0..rounds + WARM {
        let begin = Instant::now();
        let answer = client.post("/mcp", &call(Some("bench")))?;
        let took = begin.elapsed();
        check(&answer.json()?)?;
        if round >= WARM {
            samples.add(took);
        }
    }
    forget(&mut client, "bench")?;
    Ok(samples)
}

/// Deletes the sandbox of a client.
fn forget(client: &mut Client, name: &str) -> Result<()> {
    let mut delete = call(Some(name));
    delete["params"]["name"] = json!("sandbox_delete");
    delete["params"]["arguments"] = json!({});
    client.post("/mcp", &delete)?.json().map(drop)
}

/// `atoll mcp`, as an agent starts it.
struct StdioBridge {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

fn over_stdio(options: &Options, server: &Server, rounds: usize) -> Result<Samples> {
    let (address, key) = server.address();
    let mut child = Command::new(&options.atoll)
        .arg("mcp")
        .env("ATOLL_URL", format!("http://{address}"))
        .env("ATOLL_API_KEY", key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start atoll mcp")?;
    let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().context("no stdout")?));
    let mut bridge = StdioBridge { child, stdin, stdout };
    let message = call(None).to_string();
    let mut samples = Samples::default();
    for round in 0..rounds + WARM {
        let begin = Instant::now();
        writeln!(bridge.stdin.as_mut().context("no stdin")?, "{message}")?;
        let mut line = String::new();
        bridge.stdout.read_line(&mut line)?;
        let took = begin.elapsed();
        check(&serde_json::from_str(&line)?)?;
        if round >= WARM {
            samples.add(took);
        }
    }
    drop(bridge.stdin.take());
    ensure!(bridge.child.wait()?.success(), "atoll mcp failed");
    Ok(samples)
}

/// A hundred clients with a sandbox each: all at the same moment, and each in its own part of a second.
fn at_once(server: &Server, rounds: usize) -> Result<(Samples, Samples)> {
    let barrier = Arc::new(Barrier::new(CLIENTS));
    let threads: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (barrier, (address, key)) = (barrier.clone(), server.address());
            std::thread::spawn(move || one_client(&barrier, &address, &key, number, rounds))
        })
        .collect();
    let (mut together, mut spread) = (Samples::default(), Samples::default());
    for thread in threads {
        let taken = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        taken.0.into_iter().for_each(|took| together.add(took));
        taken.1.into_iter().for_each(|took| spread.add(took));
    }
    Ok((together, spread))
}

type Taken = (Vec<Duration>, Vec<Duration>);

fn one_client(barrier: &Barrier, address: &str, key: &str, number: usize, rounds: usize) -> Result<Taken> {
    let name = format!("bench {number}");
    let mut client = Client::connect(address, key)?;
    let mut timed = || -> Result<Duration> {
        let begin = Instant::now();
        let answer = client.post("/mcp", &call(Some(&name)))?;
        let took = begin.elapsed();
        check(&answer.json()?)?;
        Ok(took)
    };
    let made = timed();
    let (mut together, mut spread) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        barrier.wait();
        together.push(timed()?);
    }
    barrier.wait();
    std::thread::sleep(Duration::from_millis(1_000 * number as u64 / CLIENTS as u64));
    for _ in 0..rounds {
        let begin = Instant::now();
        spread.push(timed()?);
        std::thread::sleep(Duration::from_secs(1).saturating_sub(begin.elapsed()));
    }
    made?;
    forget(&mut client, &name)?;
    Ok((together, spread))
}
