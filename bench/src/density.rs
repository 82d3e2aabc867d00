//! What an idle sandbox costs, and whether a thousand fit.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Options;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::transfer::resident_kib;

/// Fills the node with idle sandboxes and reads the kernel's own figures.
pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start(options, place, 0)?;
    let mut client = server.client()?;
    let wanted = if options.quick { 100 } else { 1_000 };
    let free_mib = mem_available_kib()? / 1024;
    let count = if free_mib < wanted as u64 * 8 { 100 } else { wanted };
    if count < 1_000 {
        let why = if options.quick { "a quick run".to_owned() } else { format!("{free_mib} MiB are free") };
        report.note(format!("1,000 live sandboxes: {count} instead ({why})"));
    }
    std::thread::sleep(Duration::from_secs(2));
    let (held_before, server_before) = (held_kib()?, resident_kib(server.pid())?);
    let begin = Instant::now();
    let ids: Vec<String> = (0..count).map(|_| server::create(&mut client)).collect::<Result<_>>()?;
    let took = begin.elapsed();
    std::thread::sleep(Duration::from_secs(2));
    let whole_kib = held_kib()? - held_before;
    let server_kib = resident_kib(server.pid())? - server_before;
    let agents_kib = private_kib_of_agents()?;
    let per = |kib: i64| mib(kib) / count as f64;
    report.figure(
        &format!("idle sandboxes alive at once ({:.1} s to create)", took.as_secs_f64()),
        count as f64,
        "",
        None,
    );
    let all = "idle memory per sandbox: growth of all anonymous and kernel memory of the machine";
    report.figure(all, per(whole_kib), "MiB", Some(Bar::AtMost(3.0)));
    report.figure("of it private memory of the agent", per(agents_kib), "MiB", None);
    report.figure("of it growth of the server", per(server_kib), "MiB", None);
    let mut answered = 0;
    for id in ids.iter().step_by(ids.len() / 50) {
        answered += usize::from(server::exec(&mut client, id, &["/bin/true"]).is_ok());
    }
    let asked = ids.iter().step_by(ids.len() / 50).count();
    report.figure(
        "sandboxes of a sample that do not answer an exec",
        (asked - answered) as f64,
        "",
        Some(Bar::AtMost(0.0)),
    );
    let begin = Instant::now();
    for id in &ids {
        server::delete(&mut client, id)?;
    }
    report.figure(
        "delete, one after the other, mean",
        begin.elapsed().as_secs_f64() * 1_000.0 / count as f64,
        "ms",
        None,
    );
    // What a thousand endings leave to the kernel's own time must not disturb what is measured next.
    std::thread::sleep(Duration::from_secs(5));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "KiB of memory")]
fn mib(kib: i64) -> f64 {
    kib as f64 / 1024.0
}

fn mem_available_kib() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    text.lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|v| v.trim().trim_end_matches(" kB").parse().ok())
        .context("no MemAvailable")
}

/// Memory that is neither free nor page cache: of processes, and the kernel's for them.
fn held_kib() -> Result<i64> {
    const PARTS: [&str; 6] =
        ["AnonPages", "SUnreclaim", "SReclaimable", "KernelStack", "PageTables", "Percpu"];
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let part = |line: &str| {
        let (name, value) = line.split_once(':')?;
        PARTS.contains(&name).then(|| value.trim().trim_end_matches(" kB").parse::<i64>().ok())?
    };
    Ok(text.lines().filter_map(part).sum())
}

/// Sum of private pages of every process named like the agent.
fn private_kib_of_agents() -> Result<i64> {
    let mut sum = 0;
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.trim() != "atoll-agent" {
            continue;
        }
        let rollup = std::fs::read_to_string(path.join("smaps_rollup")).unwrap_or_default();
        sum += rollup
            .lines()
            .filter(|l| l.starts_with("Private_"))
            .filter_map(|l| l.split_whitespace().nth(1)?.parse::<i64>().ok())
            .sum::<i64>();
    }
    Ok(sum)
}
