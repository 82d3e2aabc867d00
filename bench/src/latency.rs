//! Create, burst and exec, over HTTP on one keep-alive connection.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::Options;
use crate::http::Client;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

/// Create to the first command's output, claimed from the pool.
pub(crate) fn warm(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start(options, place, 8)?;
    std::thread::sleep(Duration::from_millis(1_500));
    let samples = create_to_output(&server, if options.quick { 60 } else { 300 }, Duration::from_millis(60))?;
    let bar = Bar::Latency { p50_ms: 4.0, p99_ms: Some(20.0) };
    report.row("create → first output over HTTP, pool", &samples, Some(bar));
    Ok(())
}

/// The same without a pool.
pub(crate) fn cold(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start(options, place, 0)?;
    create_to_output(&server, 5, Duration::from_millis(20))?;
    let samples = create_to_output(&server, if options.quick { 60 } else { 300 }, Duration::from_millis(60))?;
    let bar = Bar::Latency { p50_ms: 10.0, p99_ms: Some(30.0) };
    report.row("create → first output over HTTP, cold", &samples, Some(bar));
    report.cold_ms = Some(samples.p50());
    report.section("Where a cold create spends its time", breakdown(&server)?);
    Ok(())
}

/// The server's own medians, step by step.
fn breakdown(server: &Server) -> Result<String> {
    let answer = server.client()?.get("/metrics")?;
    let text = String::from_utf8_lossy(&answer.body);
    let mut rows = String::from("| step | median ms |\n|---|---|\n");
    for (title, metric) in [("service", "atoll_step_seconds"), ("engine", "atoll_cold_step_seconds")] {
        for line in text.lines().filter(|l| l.starts_with(metric) && l.contains("quantile=\"0.5\"")) {
            let step = line.split("step=\"").nth(1).and_then(|s| s.split('"').next()).unwrap_or("?");
            let seconds: f64 = line.rsplit(' ').next().and_then(|v| v.parse().ok()).unwrap_or(f64::NAN);
            rows.push_str(&format!("| {title}: {step} | {:.2} |\n", seconds * 1_000.0));
        }
    }
    Ok(rows)
}

fn create_to_output(server: &Server, count: usize, pause: Duration) -> Result<Samples> {
    let mut client = server.client()?;
    let mut samples = Samples::default();
    for _ in 0..count {
        let begin = Instant::now();
        let made = server::create(&mut client);
        let ran = made.as_ref().ok().map(|id| server::exec(&mut client, id, &["/bin/echo", "hi"]));
        let took = begin.elapsed();
        match (&made, ran) {
            (Ok(_), Some(Ok(answer))) if answer["stdout"] == "hi\n" => samples.add(took),
            (made, ran) => {
                eprintln!("failed: {made:?} {ran:?}");
                samples.fail();
            }
        }
        if let Ok(id) = made {
            server::delete(&mut client, &id)?;
        }
        std::thread::sleep(pause);
    }
    Ok(samples)
}

/// A hundred creates at once, each answered Running.
pub(crate) fn burst(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start(options, place, 8)?;
    std::thread::sleep(Duration::from_millis(1_000));
    let rounds = if options.quick { 2 } else { 5 };
    let (mut totals, mut failed) = (Samples::default(), 0);
    for _ in 0..rounds {
        let (took, ids, bad) = one_burst(&server)?;
        totals.add(took);
        failed += bad;
        let mut client = server.client()?;
        for id in ids {
            server::delete(&mut client, &id)?;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    report.scaled_figure(
        "100 concurrent creates, all answered Running (median of the rounds)",
        totals.p50(),
        "ms",
        700.0,
    );
    report.figure("creates that failed in those bursts", f64::from(failed), "", Some(Bar::AtMost(0.0)));
    Ok(())
}

fn one_burst(server: &Server) -> Result<(Duration, Vec<String>, u32)> {
    let barrier = Arc::new(Barrier::new(101));
    let threads: Vec<_> = (0..100)
        .map(|_| {
            let (barrier, (address, key)) = (barrier.clone(), server.address());
            std::thread::spawn(move || -> Result<String> {
                let client = Client::connect(&address, &key);
                barrier.wait();
                server::create(&mut client?)
            })
        })
        .collect();
    barrier.wait();
    let begin = Instant::now();
    let answers: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    let took = begin.elapsed();
    let mut ids = Vec::new();
    let mut failed = 0;
    for answer in answers {
        match answer {
            Ok(Ok(id)) => ids.push(id),
            Ok(Err(error)) => {
                eprintln!("create failed: {error:#}");
                failed += 1;
            }
            Err(_) => failed += 1,
        }
    }
    Ok((took, ids, failed))
}

/// A command in a running sandbox.
pub(crate) fn exec(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start(options, place, 0)?;
    let mut client = server.client()?;
    let id = server::create(&mut client)?;
    let mut samples = Samples::default();
    for round in 0..if options.quick { 220 } else { 1_020 } {
        let begin = Instant::now();
        let ran = server::exec(&mut client, &id, &["/bin/true"]);
        let took = begin.elapsed();
        match ran {
            // The first ones warm caches.
            Ok(_) if round >= 20 => samples.add(took),
            Ok(_) => {}
            Err(error) => {
                eprintln!("exec failed: {error:#}");
                samples.fail();
            }
        }
    }
    report.row(
        "exec /bin/true round trip over HTTP",
        &samples,
        Some(Bar::Latency { p50_ms: 2.0, p99_ms: None }),
    );
    server::delete(&mut client, &id)
}
