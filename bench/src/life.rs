//! The life of a sandbox: pause, checkpoint, snapshot, fork, rollback, archive, wake, and many timers at once.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Options;
use crate::http::Client;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

/// What a sandbox has written before it is snapshotted, forked and rolled back.
const WRITTEN_MB: u64 = 500;

pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start(options, place, 0)?;
    let mut client = server.client()?;
    pause(options, &mut client, report)?;
    wake(options, &mut client, report)?;
    checkpoint(options, &mut client, report)?;
    copies(options, &mut client, report)?;
    dirty(options, &mut client, report)?;
    fork_many(options, &mut client, report)?;
    archive(options, &mut client, report)?;
    steps(&server, report)?;
    timers(options, &server, report)
}

fn latency(p50_ms: f64) -> Option<Bar> {
    Some(Bar::Latency { p50_ms, p99_ms: None })
}

/// Posts, checks the answer and says how long it took.
fn timed(client: &mut Client, path: &str, body: &Value) -> Result<(Duration, Value)> {
    let begin = Instant::now();
    let answer = client.post(path, body)?;
    let took = begin.elapsed();
    Ok((took, answer.json().with_context(|| format!("POST {path}"))?))
}

fn verb(client: &mut Client, id: &str, verb: &str, body: Value) -> Result<(Duration, Value)> {
    timed(client, &format!("/v1/sandboxes/{id}/{verb}"), &body)
}

fn large(client: &mut Client) -> Result<String> {
    let body = json!({ "template": server::TEMPLATE, "memory_mib": 1024, "disk_mib": 4096 });
    let made = client.post("/v1/sandboxes", &body)?.json()?;
    Ok(made["id"].as_str().context("no id in the answer")?.to_owned())
}

fn shell(client: &mut Client, id: &str, line: &str) -> Result<()> {
    server::exec(client, id, &["/bin/sh", "-c", line]).map(drop)
}

/// Freezing and thawing, as a user sees it; what the freezer itself takes is in the steps.
fn pause(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let id = server::create(client)?;
    let (mut pauses, mut resumes) = (Samples::default(), Samples::default());
    for _ in 0..if options.quick { 40 } else { 200 } {
        pauses.add(verb(client, &id, "pause", json!({}))?.0);
        resumes.add(verb(client, &id, "resume", json!({}))?.0);
    }
    report.row("pause over HTTP (freeze and two commits)", &pauses, None);
    report.row("resume over HTTP (thaw and two commits)", &resumes, None);
    server::delete(client, &id)
}

/// What a request that finds the sandbox frozen pays for waking it.
fn wake(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let id = server::create(client)?;
    let (mut awake, mut asleep) = (Samples::default(), Samples::default());
    for round in 0..if options.quick { 40 } else { 200 } {
        let begin = Instant::now();
        server::exec(client, &id, &["/bin/true"])?;
        if round >= 10 {
            awake.add(begin.elapsed());
        }
        verb(client, &id, "pause", json!({}))?;
        let begin = Instant::now();
        server::exec(client, &id, &["/bin/true"])?;
        if round >= 10 {
            asleep.add(begin.elapsed());
        }
    }
    report.row("exec that wakes a frozen sandbox", &asleep, None);
    report.scaled_figure("waking a frozen sandbox adds to a request", asleep.p50() - awake.p50(), "ms", 5.0);
    server::delete(client, &id)
}

/// A Python process that holds 50 MB of noise.
const HOLDER: &str =
    "import os,time\nd=os.urandom(50*1000*1000)\nopen('/tmp/held','w').write('1')\ntime.sleep(10**6)";

fn checkpoint(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let doctor = client.get("/v1/info").and_then(|answer| answer.json());
    if doctor.is_ok_and(|info| info["capabilities"]["checkpoints"] == false) {
        report.note("checkpoint and restore: this machine has no CRIU that works");
        return Ok(());
    }
    let id = large(client)?;
    let body = json!({ "argv": ["python3", "-c", HOLDER], "detach": true });
    client.post(&format!("/v1/sandboxes/{id}/exec"), &body)?.json()?;
    shell(client, &id, "while ! [ -e /tmp/held ]; do sleep 0.05; done")?;
    let (mut down, mut up) = (Samples::default(), Samples::default());
    for _ in 0..if options.quick { 5 } else { 15 } {
        down.add(verb(client, &id, "pause", json!({ "memory": "disk" }))?.0);
        up.add(verb(client, &id, "resume", json!({}))?.0);
    }
    report.row("pause to disk over HTTP, durable: Python process with 50 MB", &down, None);
    report.row("resume from disk over HTTP: the same", &up, latency(350.0));
    server::delete(client, &id)
}

/// Snapshot, fork and rollback of a sandbox with much on its disk, written and synced.
fn copies(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let id = large(client)?;
    shell(client, &id, &format!("head -c {WRITTEN_MB}000000 /dev/urandom > /home/user/big; sync"))?;
    let (mut snapshots, mut forks, mut backs) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..if options.quick { 8 } else { 30 } {
        let (took, made) = verb(client, &id, "snapshots", json!({}))?;
        snapshots.add(took);
        let snapshot = made["id"].as_str().context("no snapshot id")?.to_owned();
        let begin = Instant::now();
        let (_, forked) = verb(client, &id, "fork", json!({ "count": 1 }))?;
        let child = forked["sandboxes"][0]["id"].as_str().context("no child")?.to_owned();
        server::exec(client, &child, &["/bin/echo", "hi"])?;
        forks.add(begin.elapsed());
        server::delete(client, &child)?;
        backs.add(verb(client, &id, "rollback", json!({ "snapshot": snapshot }))?.0);
        client.delete(&format!("/v1/snapshots/{snapshot}"))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let of = format!("of a sandbox with {WRITTEN_MB} MB written and synced");
    report.row(&format!("snapshot {of}"), &snapshots, latency(6.0));
    report.row(&format!("fork to first output {of}"), &forks, latency(12.0));
    report.row(&format!("rollback until it runs again, {of}"), &backs, latency(20.0));
    server::delete(client, &id)
}

/// The same snapshot when all of it is still in the page cache.
fn dirty(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let id = large(client)?;
    let (mut took, mut stood) = (Samples::default(), Samples::default());
    for _ in 0..if options.quick { 2 } else { 5 } {
        shell(client, &id, &format!("head -c {WRITTEN_MB}000000 /dev/zero | tr '\\0' x > /home/user/big"))?;
        let (all, made) = verb(client, &id, "snapshots", json!({}))?;
        took.add(all);
        stood.add(Duration::from_micros(made["stood_still_us"].as_u64().unwrap_or(0)));
        client.delete(&format!("/v1/snapshots/{}", made["id"].as_str().context("no snapshot id")?))?;
    }
    report.row(&format!("snapshot with {WRITTEN_MB} MB just written, nothing synced"), &took, None);
    report.row("of that the sandbox stood still", &stood, None);
    server::delete(client, &id)
}

fn fork_many(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let id = server::create(client)?;
    shell(client, &id, "head -c 20000000 /dev/urandom > /home/user/big; sync")?;
    let mut samples = Samples::default();
    for _ in 0..if options.quick { 3 } else { 10 } {
        let (took, forked) = verb(client, &id, "fork", json!({ "count": 20 }))?;
        samples.add(took);
        let children = forked["sandboxes"].as_array().context("no children")?.clone();
        ensure!(children.len() == 20, "{} children", children.len());
        for child in children {
            server::delete(client, child["id"].as_str().context("no id")?)?;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    report.row("fork 20, all answered Running", &samples, latency(200.0));
    server::delete(client, &id)
}

/// Half of it compresses, as people's files do.
fn archive(options: &Options, client: &mut Client, report: &mut Report) -> Result<()> {
    let id = large(client)?;
    let half = WRITTEN_MB / 2;
    let line = format!(
        "head -c {half}000000 /dev/urandom > /home/user/noise; yes some plain text | head -c {half}000000 > /home/user/text; sync"
    );
    shell(client, &id, &line)?;
    let (mut out, mut back) = (Samples::default(), Samples::default());
    for _ in 0..if options.quick { 1 } else { 3 } {
        verb(client, &id, "stop", json!({}))?;
        out.add(verb(client, &id, "archive", json!({}))?.0);
        back.add(verb(client, &id, "restore", json!({}))?.0);
        verb(client, &id, "start", json!({}))?;
    }
    #[expect(clippy::cast_precision_loss, reason = "hundreds of megabytes")]
    let speed = |samples: &Samples| WRITTEN_MB as f64 / (samples.p50() / 1_000.0);
    report.figure("archive to a local folder, durable", speed(&out), "MB/s", Some(Bar::AtLeast(150.0)));
    report.figure("restore from it, durable", speed(&back), "MB/s", Some(Bar::AtLeast(150.0)));
    server::delete(client, &id)
}

/// What the provider's own part of each took, by the server's clock.
fn steps(server: &Server, report: &mut Report) -> Result<()> {
    let bars = [("freeze", 1.0), ("thaw", 1.0), ("checkpoint", 250.0), ("restore", 350.0)];
    let answer = server.client()?.get("/metrics")?;
    let text = String::from_utf8_lossy(&answer.body);
    let median = |step: &str| {
        let label = format!("step=\"{step}\"");
        let is_it = |line: &&str| {
            line.starts_with("atoll_") && line.contains(&label) && line.contains("quantile=\"0.5\"")
        };
        text.lines().find(is_it).and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    for (step, bar) in bars {
        match median(step) {
            Some(seconds) => report.scaled_figure(
                &format!("{step}, the provider's part (median)"),
                seconds * 1_000.0,
                "ms",
                bar,
            ),
            None => report.note(format!("{step}: the server has no figure for it")),
        }
    }
    let mut parts = String::from("| step | median ms |\n|---|---|\n");
    for step in ["dump", "hashes", "sync to disk", "end", "check", "CRIU", "let go", "snapshot", "rollback"] {
        if let Some(seconds) = median(step) {
            let _ = writeln!(parts, "| {step} | {:.2} |", seconds * 1_000.0);
        }
    }
    report.section("Where checkpoint, restore, snapshot and rollback spend their time", parts);
    Ok(())
}

/// Two hundred sandboxes whose time is over in the same second.
fn timers(options: &Options, server: &Server, report: &mut Report) -> Result<()> {
    let count = if options.quick { 60 } else { 200 };
    let mut client = server.client()?;
    let ids: Vec<String> = (0..count).map(|_| server::create(&mut client)).collect::<Result<_>>()?;
    // Each is given its time so that all end together.
    let end = Instant::now() + Duration::from_secs(6);
    for id in &ids {
        let left = end.saturating_duration_since(Instant::now()).as_secs_f64().round().max(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a handful of seconds")]
        let body = json!({ "timeout_s": left as u64, "on_timeout": "pause" });
        client.patch(&format!("/v1/sandboxes/{id}"), &body)?.json()?;
    }
    let mut api = Samples::default();
    while Instant::now() < end + Duration::from_secs(3) {
        let begin = Instant::now();
        client.get(&format!("/v1/sandboxes/{}", ids[api.count() % ids.len()]))?.json()?;
        api.add(begin.elapsed());
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut late: f64 = 0.0;
    for id in &ids {
        let lease = client.get(&format!("/v1/sandboxes/{id}"))?.json()?;
        ensure!(lease["phase"] == "paused", "{id} is {}", lease["phase"]);
        late = late.max(lateness_ms(&lease)?);
    }
    report.scaled_figure(
        &format!("{count} timers in the same second: the latest was late by"),
        late,
        "ms",
        2_000.0,
    );
    report.scaled_figure("a get meanwhile, p99", api.percentile(99), "ms", 50.0);
    for id in &ids {
        server::delete(&mut client, id)?;
    }
    Ok(())
}

/// How long after its timeout a paused sandbox came to rest.
fn lateness_ms(lease: &Value) -> Result<f64> {
    let ms = |field: &str| -> Result<i64> {
        let text = lease[field].as_str().with_context(|| format!("no {field} in {lease}"))?;
        Ok(text.parse::<jiff::Timestamp>()?.as_millisecond())
    };
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of seconds")]
    Ok((ms("phase_at")? - ms("timeout_at")?) as f64)
}
