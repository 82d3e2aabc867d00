//! Files through the API beside a plain copy over loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;

use crate::Options;
use crate::http::{CHUNK, Client};
use crate::report::{Bar, Report};
use crate::server::{self, Server};

/// Upload and download, as a share of the loopback copy, and the server's memory beside it.
pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let total = if options.quick { 128 } else { 512 } * 1024 * 1024;
    let server = Server::start(options, place, 0)?;
    let mut client = server.client()?;
    let body = json!({ "template": server::TEMPLATE, "cpu": 2, "memory_mib": 4096, "disk_mib": 8192 });
    let made = client.post("/v1/sandboxes", &body)?.json()?;
    let id = made["id"].as_str().context("no id")?.to_owned();
    let loopback = best_of(3, || loopback_copy(total))?;
    let ceiling = best_of(3, || inside_write(&mut client, &id, total))?;
    let before = resident_kib(server.pid())?;
    let path = format!("/v1/sandboxes/{id}/files?path=/home/user/big");
    let up = best_of(3, || {
        let begin = Instant::now();
        client.put_zeros(&path, total)?.json()?;
        Ok(rate(total, begin))
    })?;
    let down = best_of(3, || {
        let begin = Instant::now();
        let got = client.drain(&path)?;
        anyhow::ensure!(got == total, "{got} of {total} bytes came back");
        Ok(rate(total, begin))
    })?;
    let grown = resident_kib(server.pid())? - before;
    let mib = total / 1_048_576;
    report.figure(&format!("plain loopback TCP copy of {mib} MiB"), loopback, "MB/s", None);
    report.figure("`dd bs=1M` inside the sandbox (the file system's own ceiling)", ceiling, "MB/s", None);
    report.figure("file download through the API", down, "MB/s", None);
    report.figure("file upload through the API", up, "MB/s", None);
    report.figure(
        "download, share of the loopback copy",
        100.0 * down / loopback,
        "%",
        Some(Bar::AtLeast(40.0)),
    );
    report.figure("upload, share of the loopback copy", 100.0 * up / loopback, "%", Some(Bar::AtLeast(40.0)));
    #[expect(clippy::cast_precision_loss, reason = "KiB of memory")]
    let grown = grown as f64 / 1024.0;
    report.figure("server memory grown by the transfers", grown, "MiB", Some(Bar::AtMost(32.0)));
    server::delete(&mut client, &id)
}

/// What the sandbox's file system takes from a program inside, the end of its start-up included.
fn inside_write(client: &mut Client, id: &str, total: usize) -> Result<f64> {
    let count = format!("count={}", total / 1_048_576);
    let begin = Instant::now();
    server::exec(client, id, &["/bin/dd", "if=/dev/zero", "of=/home/user/ceiling", "bs=1M", &count])?;
    let rate = rate(total, begin);
    server::exec(client, id, &["/bin/rm", "/home/user/ceiling"])?;
    Ok(rate)
}

pub(crate) fn best_of(tries: usize, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut best: f64 = 0.0;
    for _ in 0..tries {
        best = best.max(run()?);
    }
    Ok(best)
}

#[expect(clippy::cast_precision_loss, reason = "bytes below 2^53")]
pub(crate) fn rate(bytes: usize, begin: Instant) -> f64 {
    bytes as f64 / 1e6 / begin.elapsed().as_secs_f64()
}

fn loopback_copy(total: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let reader = std::thread::spawn(move || -> Result<usize> {
        let (mut stream, _) = listener.accept()?;
        let mut sink = vec![0u8; CHUNK];
        let mut got = 0;
        loop {
            match stream.read(&mut sink)? {
                0 => return Ok(got),
                n => got += n,
            }
        }
    });
    let begin = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    let chunk = vec![0u8; CHUNK];
    for _ in 0..total / CHUNK {
        stream.write_all(&chunk)?;
    }
    drop(stream);
    let got = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    anyhow::ensure!(got == total, "the copy lost bytes");
    Ok(rate(total, begin))
}

/// Resident memory of a process.
pub(crate) fn resident_kib(pid: u32) -> Result<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|v| v.trim().trim_end_matches(" kB").parse().ok())
        .context("no VmRSS")
}
