//! Images: how fast layers unpack beside `tar -x`, pulls beside docker and podman from the same registry, what a second sandbox
//! and a build that is wholly cached cost, and the server's memory while a gigabyte comes in.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use atoll_image::{Bounds, Images};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::layout::{self, Packed};
use crate::peers;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

const REGISTRY: &str = "127.0.0.1:5000";

pub(crate) fn measure(options: &Options, place: &Path, rootfs: &Path, report: &mut Report) -> Result<()> {
    let home = place.join("images-bench");
    std::fs::create_dir_all(&home)?;
    let image = layout::of_rootfs(rootfs, &home.join("debian"))?;
    unpack(options, &home, &image, report)?;
    let _registry = Registry::start(&home)?;
    layout::send(&home.join("debian"), &format!("{REGISTRY}/debian:bench"))?;
    let server = Server::start_with(
        options,
        place,
        0,
        &[("ATOLL_REGISTRY_INSECURE", REGISTRY), ("ATOLL_IMAGE_GRACE_S", "0")],
    )?;
    pulls(options, &home, &server, &image, report)?;
    second_sandbox(options, &server, report)?;
    cached_build(options, &home, &server, report)?;
    memory(options, &home, &server, report)
}

/// The registry of Debian's package, on the loopback of this namespace.
struct Registry(Child);

impl Registry {
    fn start(home: &Path) -> Result<Self> {
        let config = home.join("registry.yml");
        let store = home.join("registry");
        let text = format!(
            "version: 0.1\nlog: {{ level: error, accesslog: {{ disabled: true }} }}\nstorage:\n  filesystem: {{ rootdirectory: {} \
             }}\nhttp:\n  addr: {REGISTRY}\n",
            store.display()
        );
        std::fs::write(&config, text)?;
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("docker-registry (package docker-registry)")?;
        let begin = Instant::now();
        while std::net::TcpStream::connect(REGISTRY).is_err() {
            ensure!(begin.elapsed() < Duration::from_secs(20), "the registry does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self(child))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Layers from plain tars into the store, beside `tar -x` of the same tars on the same disk. In turn, so that both see the same
/// machine; the best of each, since noise only adds.
fn unpack(options: &Options, home: &Path, image: &Packed, report: &mut Report) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..if options.quick { 2 } else { 5 } {
        let (ours_at, theirs_at) = (home.join(format!("ours-{round}")), home.join(format!("theirs-{round}")));
        settle();
        ours.push(timed(|| unpack_ours(&ours_at, &image.tars))?);
        std::fs::create_dir_all(&theirs_at)?;
        settle();
        theirs.push(timed(|| unpack_theirs(&theirs_at, &image.tars))?);
        for folder in [ours_at, theirs_at] {
            std::fs::remove_dir_all(folder)?;
        }
    }
    let (ours, theirs) = (best(&ours), best(&theirs));
    let mb = image.tar_bytes as f64 / 1e6;
    report.figure(
        &format!("unpack of {mb:.0} MB in {} layers, verified, beside", image.tars.len()),
        mb / ours,
        "MB/s",
        None,
    );
    report.figure("`tar -x` of the same, not verified", mb / theirs, "MB/s", None);
    report.figure("unpack, of the speed of `tar -x`", 100.0 * theirs / ours, "%", Some(Bar::AtLeast(60.0)));
    Ok(())
}

fn unpack_ours(dir: &Path, tars: &[PathBuf]) -> Result<()> {
    let images = Images::open(dir, Bounds::default())?;
    for tar in tars {
        images.add_layer(None, std::fs::File::open(tar)?, &CancellationToken::new())?;
    }
    Ok(())
}

fn unpack_theirs(dir: &Path, tars: &[PathBuf]) -> Result<()> {
    for tar in tars {
        let done = Command::new("tar")
            .args(["--numeric-owner", "--xattrs", "-xpf"])
            .arg(tar)
            .arg("-C")
            .arg(dir)
            .status()?;
        ensure!(done.success(), "tar -x failed");
    }
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64())
}

fn best(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::INFINITY, f64::min)
}

/// What was written before must not be paid for by the next one.
fn settle() {
    let _ = Command::new("sync").status();
    std::thread::sleep(Duration::from_millis(300));
}

/// The same image from the same registry by us, by docker and by podman, in turn; each starts with nothing.
fn pulls(options: &Options, home: &Path, server: &Server, image: &Packed, report: &mut Report) -> Result<()> {
    let name = format!("{REGISTRY}/debian:bench");
    let rounds = if options.quick { 1 } else { 3 };
    let docker = peers::start_docker(&home.join("docker"));
    let podman = peers::podman_base(&short(home).join("podman"));
    let (mut ours, mut dockers, mut podmans) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        settle();
        ours.push(timed(|| run(server.command(options).args(["template", "pull", &name])))?);
        run(server.command(options).args(["template", "rm", &name]))?;
        run(server.command(options).args(["template", "gc"]))?;
        if let Ok(docker) = &docker {
            settle();
            dockers.push(timed(|| run(docker.command().args(["pull", "-q", &name])))?);
            run(docker.command().args(["rmi", &name]))?;
        }
        if let Ok(podman) = &podman {
            settle();
            podmans.push(timed(|| run(podman().args(["pull", "-q", "--tls-verify=false", &name])))?);
            run(podman().args(["rmi", &name]))?;
        }
    }
    let mb = image.packed_bytes as f64 / 1e6;
    let ours_s = best(&ours);
    report.figure(&format!("`atoll template pull` of {mb:.0} MB (gzip) from loopback"), ours_s, "s", None);
    let mut fastest = f64::INFINITY;
    for (who, seconds, missing) in
        [("docker pull", &dockers, docker.err()), ("podman pull", &podmans, podman.err())]
    {
        match missing {
            Some(why) => report.note(format!("`{who}`: {why:#}")),
            None => {
                report.figure(&format!("`{who}` of the same, beside"), best(seconds), "s", None);
                fastest = fastest.min(best(seconds));
            }
        }
    }
    if fastest.is_finite() {
        report.figure(
            "pull, of the time of the faster of them",
            100.0 * ours_s / fastest,
            "%",
            Some(Bar::AtMost(100.0)),
        );
    }
    breakdown(home, image, ours_s, report)?;
    run(server.command(options).args(["template", "pull", &name]))
}

/// LIMIT of podman's: a path of its own has 50 characters at most.
fn short(home: &Path) -> &Path {
    home.parent().unwrap_or(home)
}

/// Where the time of a pull goes: each part alone, by the plainest tool for it.
fn breakdown(home: &Path, image: &Packed, ours_s: f64, report: &mut Report) -> Result<()> {
    let shell = |line: &str| timed(|| run(Command::new("sh").arg("-ec").arg(line)));
    let blobs: Vec<String> = image.blobs.iter().map(|path| path.display().to_string()).collect();
    let blobs = blobs.join(" ");
    settle();
    let fetch = shell(&format!(
        "for b in {blobs}; do curl -sf -o {}/fetched http://{REGISTRY}/v2/debian/blobs/sha256:$(basename $b); done",
        home.display()
    ))?;
    let hash = shell(&format!("sha256sum {blobs} >/dev/null"))?;
    let gunzip = shell(&format!("for b in {blobs}; do gzip -dc $b >/dev/null; done"))?;
    let tars: Vec<String> = image.tars.iter().map(|path| path.display().to_string()).collect();
    let into = home.join("breakdown");
    std::fs::create_dir_all(&into)?;
    settle();
    let untar = shell(&format!(
        "for t in {}; do tar --numeric-owner -xpf $t -C {}; done",
        tars.join(" "),
        into.display()
    ))?;
    std::fs::remove_dir_all(&into)?;
    report.section(
        "Where the time of a pull goes",
        format!(
            "One after the other on one core: fetch with curl {fetch:.2} s, SHA-256 of what came {hash:.2} s, gunzip {gunzip:.2} s, \
             `tar -x` {untar:.2} s; {:.2} s in all. Ours, with the layers in parallel: {ours_s:.2} s.",
            fetch + hash + gunzip + untar
        ),
    );
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())
}

/// Creates from the pulled image beside creates from the template that is a folder.
fn second_sandbox(options: &Options, server: &Server, report: &mut Report) -> Result<()> {
    let mut client = server.client()?;
    let (mut image, mut plain) = (Samples::default(), Samples::default());
    let name = format!("{REGISTRY}/debian:bench");
    for round in 0..if options.quick { 20 } else { 100 } {
        for (template, samples) in [(name.as_str(), &mut image), (server::TEMPLATE, &mut plain)] {
            let body = json!({ "template": template, "memory_mib": 256, "disk_mib": 1024 });
            let begin = Instant::now();
            let made = client.post("/v1/sandboxes", &body)?.json()?;
            let took = begin.elapsed();
            server::delete(&mut client, made["id"].as_str().context("no id")?)?;
            // The first of each warms what is kept.
            if round > 0 {
                samples.add(took);
            }
        }
    }
    report.row("create from a pulled image of several layers, cold, over HTTP", &image, None);
    report.row("create from a built-in template, cold, beside", &plain, None);
    let more = image.p50() - plain.p50();
    report.scaled_figure("added by being an image at p50", more, "ms", 2.0);
    Ok(())
}

/// A build of which nothing has to be done, as a person sees it.
fn cached_build(options: &Options, home: &Path, server: &Server, report: &mut Report) -> Result<()> {
    let folder = home.join("context");
    std::fs::create_dir_all(folder.join("src"))?;
    for n in 0..50 {
        std::fs::write(folder.join(format!("src/file{n}")), vec![b'x'; 4_000])?;
    }
    let dockerfile = format!(
        "FROM {}\nENV A=1\nWORKDIR /app\nCOPY src src\nRUN echo one > one\nRUN echo two > two\nRUN echo three > three\nUSER root\nCMD [\"sh\"]\n",
        server::TEMPLATE
    );
    std::fs::write(folder.join("Dockerfile"), dockerfile)?;
    let build = || run(server.command(options).args(["template", "build", "-t", "bench-build"]).arg(&folder));
    let mut fresh = Samples::default();
    let begin = Instant::now();
    build()?;
    fresh.add(begin.elapsed());
    let mut cached = Samples::default();
    for _ in 0..if options.quick { 5 } else { 20 } {
        let begin = Instant::now();
        build()?;
        cached.add(begin.elapsed());
    }
    report.row("`atoll template build` of nine steps, nothing cached", &fresh, None);
    let bar = Bar::Latency { p50_ms: 150.0, p99_ms: None };
    report.row("the same again, everything cached, command line included", &cached, Some(bar));
    Ok(())
}

/// The server's memory while a gigabyte that does not compress comes in.
fn memory(options: &Options, home: &Path, server: &Server, report: &mut Report) -> Result<()> {
    let total_mb = if options.quick { 256 } else { 1_024 };
    layout::of_noise(&home.join("noise"), total_mb)?;
    let name = format!("{REGISTRY}/noise:bench");
    layout::send(&home.join("noise"), &name)?;
    std::fs::remove_dir_all(home.join("noise"))?;
    std::thread::sleep(Duration::from_secs(1));
    let idle = resident_mib(server.pid())?;
    let done = Arc::new(AtomicBool::new(false));
    let (ended, pid) = (done.clone(), server.pid());
    let watcher = std::thread::spawn(move || {
        let mut most: f64 = 0.0;
        while !ended.load(Ordering::Relaxed) {
            most = most.max(resident_mib(pid).unwrap_or(0.0));
            std::thread::sleep(Duration::from_millis(10));
        }
        most
    });
    let took = timed(|| run(server.command(options).args(["template", "pull", &name])));
    done.store(true, Ordering::Relaxed);
    let most = watcher.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
    let took = took?;
    run(server.command(options).args(["template", "rm", &name]))?;
    run(server.command(options).args(["template", "gc"]))?;
    report.figure(
        &format!("pull of {total_mb} MB that does not compress"),
        f64::from(total_mb) / took,
        "MB/s",
        None,
    );
    report.figure("the server's memory meanwhile, over idle", most - idle, "MiB", Some(Bar::AtMost(100.0)));
    Ok(())
}

fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1_024.0)
}
