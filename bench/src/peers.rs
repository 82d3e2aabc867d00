//! The peers a user would pick, in the same run, on the same root filesystem: docker, podman, runc, bwrap.
//!
//! Each keeps its data below our own folder and its firewall rules in our network namespace.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::Options;
use crate::report::Report;
use crate::stats::Samples;

/// Runs one peer `count` times: its own folder, the root filesystem, the count.
type Peer = fn(&Path, &Path, usize) -> Result<Samples>;

/// Times every peer that is installed; says which are not.
pub(crate) fn measure(options: &Options, place: &Path, rootfs: &Path, report: &mut Report) -> Result<()> {
    let count = if options.quick { 5 } else { 30 };
    let peers: [(&str, &str, Peer); 4] = [
        ("bwrap", "bubblewrap", bwrap),
        ("runc run", "runc", runc),
        ("podman run", "podman", podman),
        ("docker run", "docker.io", docker),
    ];
    for (name, package, run) in peers {
        let home = place.join(name.replace(' ', "-"));
        std::fs::create_dir_all(&home)?;
        match run(&home, rootfs, count) {
            Ok(samples) => {
                report.row(&format!("`{name}` echo hi, beside"), &samples, None);
                report.peers_ms.push((name.to_owned(), samples.p50()));
            }
            Err(error) => report.note(format!("`{name}` (package {package}): {error:#}")),
        }
    }
    Ok(())
}

fn program(candidates: &[&str]) -> Result<PathBuf> {
    candidates
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .with_context(|| format!("not installed ({})", candidates.join(", ")))
}

fn sample(count: usize, mut command: impl FnMut() -> Command) -> Result<Samples> {
    let mut samples = Samples::default();
    for round in 0..=count {
        let begin = Instant::now();
        let output = command().stdin(Stdio::null()).output()?;
        let took = begin.elapsed();
        if output.stdout != b"hi\n" {
            bail!("{} {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        // The first one warms caches.
        if round > 0 {
            samples.add(took);
        }
    }
    Ok(samples)
}

fn bwrap(_home: &Path, rootfs: &Path, count: usize) -> Result<Samples> {
    let bwrap = program(&["/usr/bin/bwrap"])?;
    sample(count, || {
        let mut command = Command::new(&bwrap);
        command
            .args(["--unshare-all", "--ro-bind"])
            .arg(rootfs)
            .args(["/", "--proc", "/proc", "--dev", "/dev"]);
        command.args(["/bin/echo", "hi"]);
        command
    })
}

fn runc(home: &Path, rootfs: &Path, count: usize) -> Result<Samples> {
    let runc = program(&["/usr/sbin/runc", "/usr/bin/runc"])?;
    let spec = Command::new(&runc).arg("spec").current_dir(home).status()?;
    ensure!(spec.success(), "runc spec failed");
    let path = home.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = serde_json::json!(["/bin/echo", "hi"]);
    config["process"]["rlimits"] = serde_json::json!([]);
    config["root"]["path"] = rootfs.display().to_string().into();
    config["root"]["readonly"] = true.into();
    config["linux"]["resources"]["memory"] = serde_json::json!({ "limit": 268_435_456 });
    config["linux"]["resources"]["pids"] = serde_json::json!({ "limit": 512 });
    std::fs::write(&path, config.to_string())?;
    let mut number = 0;
    sample(count, || {
        number += 1;
        let mut command = Command::new(&runc);
        command.arg("--root").arg(home.join("state")).args(["run", "--bundle"]).arg(home);
        command.arg(format!("atoll-bench-{}-{number}", std::process::id()));
        command
    })
}

/// Commands of a podman with its state below a folder.
pub(crate) fn podman_base(home: &Path) -> Result<impl Fn() -> Command + use<>> {
    std::fs::create_dir_all(home)?;
    let podman = program(&["/usr/bin/podman"])?;
    let config = home.join("containers.conf");
    std::fs::write(
        &config,
        "[containers]\ndefault_ulimits = [\"nofile=20000:20000\", \"nproc=4096:4096\"]\n\
         [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n",
    )?;
    let (root, runroot) = (home.join("root"), home.join("runroot"));
    Ok(move || {
        let mut command = Command::new(&podman);
        command.env("CONTAINERS_CONF", &config).arg("--root").arg(&root);
        command.arg("--runroot").arg(&runroot).args(["--runtime", "runc"]);
        command
    })
}

fn podman(home: &Path, rootfs: &Path, count: usize) -> Result<Samples> {
    let base = podman_base(home)?;
    import(base(), rootfs)?;
    sample(count, || {
        let mut command = base();
        command.args(["run", "--rm", IMAGE, "/bin/echo", "hi"]);
        command
    })
}

pub(crate) const IMAGE: &str = "atoll-bench:latest";

/// Feeds the root filesystem to `<engine> import -`.
pub(crate) fn import(mut engine: Command, rootfs: &Path) -> Result<()> {
    let mut tar = Command::new("tar")
        .arg("-C")
        .arg(rootfs)
        .args(["--numeric-owner", "-c", "."])
        .stdout(Stdio::piped())
        .spawn()?;
    let stream = tar.stdout.take().context("tar has no output")?;
    let output = engine.args(["import", "-", IMAGE]).stdin(stream).output()?;
    ensure!(tar.wait()?.success(), "tar failed");
    ensure!(output.status.success(), "import: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A docker daemon of ours, ended when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(15) {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A docker daemon of ours with its state below a folder; ended when dropped.
pub(crate) struct Docker {
    _daemon: Daemon,
    client: PathBuf,
    socket: String,
}

impl Docker {
    /// Its client.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.client);
        command.args(["-H", &self.socket]);
        command
    }
}

pub(crate) fn start_docker(home: &Path) -> Result<Docker> {
    std::fs::create_dir_all(home)?;
    let client = program(&["/usr/bin/docker"])?;
    let dockerd = program(&["/usr/sbin/dockerd", "/usr/bin/dockerd"])?;
    let socket = format!("unix://{}/docker.sock", home.display());
    let log = std::fs::File::create(home.join("log"))?;
    let daemon = Command::new(dockerd)
        .args(["-H", &socket, "--storage-driver", "overlay2", "--data-root"])
        .arg(home.join("data"))
        .arg("--exec-root")
        .arg(home.join("exec"))
        .arg("-p")
        .arg(home.join("pid"))
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let docker = Docker { _daemon: Daemon(daemon), client, socket };
    wait_for(&|| docker.command())?;
    Ok(docker)
}

fn docker(home: &Path, rootfs: &Path, count: usize) -> Result<Samples> {
    let docker = start_docker(home)?;
    import(docker.command(), rootfs)?;
    sample(count, || {
        let mut command = docker.command();
        command.args(["run", "--rm", IMAGE, "/bin/echo", "hi"]);
        command
    })
}

fn wait_for(base: &dyn Fn() -> Command) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(30) {
        if base().arg("version").output()?.status.success() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bail!("the docker daemon did not answer within 30 s")
}
