//! What leaves a sandbox: how soon a changed policy holds among many sandboxes, and what the name gate adds to a question.
//!
//! The upstream name server is a thread of this program on the loopback of the benchmark's own namespace; the host's
//! resolv.conf names it in this mount namespace only.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Options;
use crate::http::Client;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

/// What every name is.
const ANSWER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);

/// Asks for new names, one at a time and below the gate's rate, and prints the microseconds of each answer.
const ASK: &str = r#"
import json, os, socket, sys, time
server, count = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(2); s.connect((server, 53))
took = []
for n in range(count):
    label = b"n%07d" % n
    question = os.urandom(2) + bytes.fromhex("01000001000000000000") + bytes([len(label)]) + label + b"\5bench\4test\0\0\1\0\1"
    began = time.perf_counter()
    s.send(question)
    answer = s.recv(4096)
    if answer[:2] == question[:2] and answer[6:8] != b"\0\0": took.append(round((time.perf_counter() - began) * 1e6))
    else: took.append(None)
    time.sleep(0.012)
print(json.dumps(took))
"#;

pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    serve_names(place)?;
    let server = Server::start(options, place, 0)?;
    let mut client = server.client()?;
    names(options, &mut client, report)?;
    changes(options, &mut client, report)
}

/// Starts the upstream name server and makes it the host's.
fn serve_names(place: &Path) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 53)).context("port 53 of the loopback")?;
    std::thread::spawn(move || {
        let mut packet = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut packet) {
            if let Some(answer) = answer(&packet[..length]) {
                // Who does not get an answer says so.
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    let file = place.join("resolv.conf");
    std::fs::write(&file, "nameserver 127.0.0.1\n")?;
    let target = std::fs::canonicalize("/etc/resolv.conf").unwrap_or_else(|_| "/etc/resolv.conf".into());
    let bound = Command::new("mount").arg("--bind").arg(&file).arg(&target).status()?;
    ensure!(bound.success(), "cannot bind {}", target.display());
    Ok(())
}

/// The same address for every name; the question must stand alone, without a name in parts.
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let name = query.get(12..)?.iter().position(|byte| *byte == 0)?;
    let question = query.get(12..12 + name + 5)?;
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    answer.extend(question);
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    answer.extend(ANSWER.octets());
    Some(answer)
}

/// A question through the gate beside the same question asked directly on the host.
fn names(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let count = if options.quick { "150" } else { "500" };
    let id = create(client, &json!({ "mode": "custom", "allow_domains": ["*.bench.test"] }))?;
    let inside = server::exec(client, &id, &["python3", "-c", ASK, "169.254.0.1", count])?;
    let gate = samples(inside["stdout"].as_str().context("no output")?)?;
    let direct = Command::new("python3").args(["-c", ASK, "127.0.0.1", count]).output()?;
    let direct = samples(&String::from_utf8_lossy(&direct.stdout))?;
    report.row("DNS question on the host, asked directly", &direct, None);
    report.row("DNS question in a sandbox, through the gate, its address opened", &gate, None);
    let added = gate.p50() - direct.p50();
    report.scaled_figure("added by the DNS gate at p50", added, "ms", 1.0);
    server::delete(client, &id)
}

fn samples(text: &str) -> Result<Samples> {
    let took: Vec<Option<u64>> = serde_json::from_str(text.trim()).with_context(|| format!("{text:?}"))?;
    let mut samples = Samples::default();
    for took in took {
        match took {
            Some(us) => samples.add(Duration::from_micros(us)),
            None => samples.fail(),
        }
    }
    Ok(samples)
}

fn create(client: &mut Client, network: &Value) -> Result<String> {
    let body =
        json!({ "template": server::TEMPLATE, "memory_mib": 256, "disk_mib": 1024, "network": network });
    let made = client.post("/v1/sandboxes", &body)?.json()?;
    Ok(made["id"].as_str().context("no id in the answer")?.to_owned())
}

/// Policies that differ in every part.
fn policy(round: usize) -> Value {
    match round % 4 {
        0 => {
            json!({ "mode": "custom", "allow_domains": ["*.bench.test"], "allow_cidrs": ["198.51.100.0/24", "203.0.113.0/24"] })
        }
        1 => json!("deny-all"),
        2 => json!({ "mode": "allow-all", "deny_cidrs": ["198.51.100.10/32"] }),
        _ => json!("allow-all"),
    }
}

/// Changes of one sandbox's policy among many; an answered change holds, as the suites show packet by packet.
fn changes(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let alive = if options.quick { 100 } else { 500 };
    let ids: Vec<String> = (0..alive).map(|n| create(client, &policy(n))).collect::<Result<_>>()?;
    let mut samples = Samples::default();
    for round in 0..if options.quick { 100 } else { 400 } {
        let path = format!("/v1/sandboxes/{}", ids[round * 37 % ids.len()]);
        let body = json!({ "network": policy(round + round / 4) });
        let begin = Instant::now();
        let answer = client.patch(&path, &body)?;
        let took = begin.elapsed();
        answer.json()?;
        if round >= 8 {
            samples.add(took);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let bar = Bar::Latency { p50_ms: 10.0, p99_ms: None };
    report.row(
        &format!("policy change of one sandbox, live, beside {alive} sandboxes, over HTTP"),
        &samples,
        Some(bar),
    );
    for id in &ids {
        server::delete(client, id)?;
    }
    std::thread::sleep(Duration::from_secs(2));
    Ok(())
}
