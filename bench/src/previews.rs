//! Previews beside the same app without a proxy, and beside haproxy in front of it.
//!
//! The app is in a sandbox. Who asks directly does so in that sandbox's network namespace, and haproxy, which listens where
//! our server does, reaches into it, so that all of them ask the very same process; every ratio is the best of a few rounds
//! that take turns.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::Options;
use crate::app::GREETING;
use crate::http::Client;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;
use crate::transfer::{best_of, rate, resident_kib};

const APP_PORT: u16 = 8080;
const HAPROXY_PORT: u16 = 9080;
const OUR_PORT: u16 = 7070;
/// The app's network, by the name that haproxy knows it by.
const NAMESPACE: &str = "atoll-bench-app";
const CLIENTS: &str = "32";
const SOCKETS: usize = 2_000;

/// The app, and how to be beside it.
struct Bed {
    id: String,
    key: String,
    pid: String,
    seconds: u32,
}

pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start(options, place, 0)?;
    let bed = Bed::make(&server, &mut server.client()?, if options.quick { 2 } else { 5 })?;
    let measured = rows(options, place, &server, &bed, report);
    server::delete(&mut server.client()?, &bed.id)?;
    measured
}

fn rows(options: &Options, place: &Path, server: &Server, bed: &Bed, report: &mut Report) -> Result<()> {
    if Command::new("wrk").arg("-v").output().is_ok() {
        rates(place, bed, report)?;
    } else {
        report.note("previews: requests per second need `wrk`");
    }
    added_latency(bed, report)?;
    let mib = if options.quick { 256 } else { 1_024 };
    stream(bed, mib, report)?;
    sockets(server, bed, report)
}

impl Bed {
    /// This very program becomes the app.
    fn make(server: &Server, client: &mut Client, seconds: u32) -> Result<Self> {
        let limits = json!({ "template": server::TEMPLATE, "cpu": 2, "memory_mib": 2048, "disk_mib": 2048, "pids": 4096 });
        let made = client.post("/v1/sandboxes", &limits)?.json()?;
        let id = made["id"].as_str().context("no id in the answer")?.to_owned();
        let program = std::fs::read(std::env::current_exe()?)?;
        client.put(&format!("/v1/sandboxes/{id}/files?path=/home/user/app"), &program)?.json()?;
        let start = format!("chmod +x app; setsid ./app --app {APP_PORT} </dev/null >/dev/null 2>&1 &");
        server::exec(client, &id, &["/bin/sh", "-c", &format!("cd /home/user; {start}")])?;
        let (_, key) = server.address();
        let mut bed = Self { id, key, pid: String::new(), seconds };
        bed.pid = bed.find_app()?;
        Ok(bed)
    }

    /// The app's process as the host sees it, once it listens.
    fn find_app(&self) -> Result<String> {
        let begun = Instant::now();
        let wanted = format!("./app\0--app\0{APP_PORT}\0");
        while begun.elapsed() < Duration::from_secs(10) {
            for entry in std::fs::read_dir("/proc")?.flatten() {
                if std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes())
                    && self.ask().is_ok_and(|status| status == 200)
                {
                    return Ok(entry.file_name().to_string_lossy().into_owned());
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the app does not listen")
    }

    fn ask(&self) -> Result<u16> {
        Ok(self.client()?.get("/")?.status)
    }

    fn host(&self) -> String {
        format!("{APP_PORT}-{}.localhost", self.id)
    }

    /// A client of the app through the proxy.
    fn client(&self) -> Result<Client> {
        Client::connect_as("127.0.0.1:7070", &self.host(), &self.key)
    }

    /// A command in the app's network.
    fn beside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid, "-n", "--", program]);
        command
    }

    /// Requests per second to `path` at a port; the app's own is asked beside it.
    fn wrk(&self, path: &str, port: u16) -> Result<f64> {
        let mut command = if port == APP_PORT { self.beside("wrk") } else { Command::new("wrk") };
        let host = format!("Host: {}", self.host());
        let key = format!("X-API-Key: {}", self.key);
        let lasts = format!("{}s", self.seconds);
        let url = format!("http://127.0.0.1:{port}{path}");
        // Every way gets the same head.
        let output =
            command.args(["-t1", "-c", CLIENTS, "-d", &lasts, "-H", &host, "-H", &key, &url]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        anyhow::ensure!(!text.contains("Non-2xx"), "wrk: {text}");
        let figure = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
        figure.and_then(|figure| figure.trim().parse().ok()).with_context(|| format!("wrk: {text}"))
    }

    /// This program again, beside the app: `--probe`.
    fn probe(&self, what: &str) -> Result<String> {
        let program = std::env::current_exe()?;
        let address = format!("127.0.0.1:{APP_PORT}");
        let arguments = ["--probe", what, &address, &self.host(), &self.key];
        let output = self.beside(&program.to_string_lossy()).args(arguments).output()?;
        anyhow::ensure!(output.status.success(), "probe {what}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// What `--probe` does: the same measurement as through the proxy, at another address.
pub(crate) fn probe(what: &[String]) -> Result<String> {
    let [what, address, host, key] = what else { bail!("what, address, host, key") };
    let mut client = Client::connect_as(address, host, key)?;
    match what.as_str() {
        "paced" => {
            let samples = paced(&mut client)?;
            Ok(format!("{} {}", samples.p50(), samples.percentile(99)))
        }
        mib => Ok(fetch(&mut client, mib.parse()?)?.to_string()),
    }
}

fn rates(place: &Path, bed: &Bed, report: &mut Report) -> Result<()> {
    let rounds = 3;
    let (mut direct, mut ours) = (0.0_f64, 0.0_f64);
    for _ in 0..rounds {
        direct = direct.max(bed.wrk("/spin", APP_PORT)?);
        ours = ours.max(bed.wrk("/spin", OUR_PORT)?);
    }
    report.figure("an app of 0.3 ms CPU, asked directly", direct, "req/s", None);
    report.figure("the same as a preview", ours, "req/s", None);
    let share = 100.0 * ours / direct;
    report.figure("preview, share of direct (0.3 ms of CPU)", share, "%", Some(Bar::AtLeast(70.0)));
    let Some(_haproxy) = haproxy(place, bed)? else {
        report.note("previews: the comparison needs `haproxy`");
        return Ok(());
    };
    let (mut direct, mut theirs, mut ours) = (0.0_f64, 0.0_f64, 0.0_f64);
    for _ in 0..rounds {
        direct = direct.max(bed.wrk("/", APP_PORT)?);
        theirs = theirs.max(bed.wrk("/", HAPROXY_PORT)?);
        ours = ours.max(bed.wrk("/", OUR_PORT)?);
    }
    report.figure("an app that does nothing, asked directly", direct, "req/s", None);
    report.figure("the same behind haproxy", theirs, "req/s", None);
    report.figure("the same as a preview", ours, "req/s", None);
    let share = 100.0 * ours / theirs;
    report.figure(
        "preview, share of haproxy (an app that does nothing)",
        share,
        "%",
        Some(Bar::AtLeast(80.0)),
    );
    Ok(())
}

/// Ended when dropped.
struct Haproxy(Child);

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = Command::new("ip").args(["netns", "delete", NAMESPACE]).status();
    }
}

fn haproxy(place: &Path, bed: &Bed) -> Result<Option<Haproxy>> {
    let program = ["/usr/sbin/haproxy", "/usr/bin/haproxy"].into_iter().find(|path| Path::new(path).exists());
    let Some(program) = program else { return Ok(None) };
    let file = place.join("haproxy.cfg");
    // As a proxy for the web is set up: keep-alive on both sides, the client's address told, connections shared.
    let text = format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n option forwardfor\n \
         http-reuse always\nfrontend f\n bind 127.0.0.1:{HAPROXY_PORT}\n default_backend b\nbackend b\n \
         server s 127.0.0.1:{APP_PORT} namespace {NAMESPACE}\n"
    );
    std::fs::write(&file, text)?;
    let named = Command::new("ip").args(["netns", "attach", NAMESPACE, &bed.pid]).status()?;
    anyhow::ensure!(named.success(), "the app's network cannot be named");
    let child = Command::new(program)
        .arg("-db")
        .arg("-f")
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let haproxy = Haproxy(child);
    std::thread::sleep(Duration::from_millis(500));
    Ok(Some(haproxy))
}

/// One request each millisecond over one connection; a late one does not shift the others.
fn paced(client: &mut Client) -> Result<Samples> {
    let mut samples = Samples::default();
    let begun = Instant::now();
    for n in 0..3_000_u64 {
        let due = begun + Duration::from_millis(n);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        client.get("/")?;
        samples.add(sent.elapsed());
    }
    Ok(samples)
}

fn added_latency(bed: &Bed, report: &mut Report) -> Result<()> {
    let (mut added_p50, mut added_p99) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        let direct = bed.probe("paced")?;
        let mut direct = direct.split(' ').filter_map(|figure| figure.parse::<f64>().ok());
        let (direct_p50, direct_p99) = (direct.next().context("no p50")?, direct.next().context("no p99")?);
        let ours = paced(&mut bed.client()?)?;
        added_p50 = added_p50.min(ours.p50() - direct_p50);
        added_p99 = added_p99.min(ours.percentile(99) - direct_p99);
    }
    report.figure("preview adds at 1,000 req/s, p50", added_p50, "ms", Some(Bar::AtMost(0.3)));
    report.figure("preview adds at 1,000 req/s, p99", added_p99, "ms", None);
    Ok(())
}

fn fetch(client: &mut Client, mib: usize) -> Result<f64> {
    let begun = Instant::now();
    let got = client.drain(&format!("/mib/{mib}"))?;
    Ok(rate(got, begun))
}

fn stream(bed: &Bed, mib: usize, report: &mut Report) -> Result<()> {
    let direct = best_of(3, || Ok(bed.probe(&mib.to_string())?.parse()?))?;
    let ours = best_of(3, || fetch(&mut bed.client()?, mib))?;
    report.figure(&format!("{mib} MiB from the app, directly"), direct, "MB/s", None);
    report.figure("the same as a preview", ours, "MB/s", None);
    report.figure("streamed preview, share of direct", 100.0 * ours / direct, "%", Some(Bar::AtLeast(60.0)));
    Ok(())
}

fn sockets(server: &Server, bed: &Bed, report: &mut Report) -> Result<()> {
    let before = resident_kib(server.pid())?;
    let head = format!(
        "GET /ws HTTP/1.1\r\nHost: {}\r\nX-API-Key: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        bed.host(),
        bed.key
    );
    let mut open = Vec::with_capacity(SOCKETS);
    for _ in 0..SOCKETS {
        let mut socket = TcpStream::connect("127.0.0.1:7070")?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.write_all(head.as_bytes())?;
        open.push(socket);
    }
    for socket in &mut open {
        greeted(socket)?;
    }
    #[expect(clippy::cast_precision_loss, reason = "KiB of memory")]
    let grown = (resident_kib(server.pid())? - before) as f64 / 1024.0;
    let name = format!("server memory grown by {SOCKETS} open WebSockets");
    report.figure(&name, grown, "MiB", Some(Bar::AtMost(150.0)));
    Ok(())
}

/// Reads until the app's first frame.
fn greeted(socket: &mut TcpStream) -> Result<()> {
    let (mut all, mut piece) = (Vec::new(), [0u8; 1_024]);
    while !all.ends_with(GREETING) {
        let size = socket.read(&mut piece)?;
        anyhow::ensure!(size > 0, "a WebSocket was refused: {}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&piece[..size]);
    }
    Ok(())
}
