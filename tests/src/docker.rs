//! Debian's Docker as the judge: a daemon of our own with its state in a folder, no network, ended when dropped.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The client of Debian's package; another one may come first in `PATH`.
const CLIENT: &str = "/usr/bin/docker";

/// No network for containers, and no change of the machine's.
pub const NO_NETWORK: &[&str] = &["--bridge=none", "--iptables=false"];

/// A daemon.
pub struct Docker {
    daemon: Child,
    socket: String,
    folder: std::path::PathBuf,
    /// The group of its containers, below the root of every hierarchy.
    cgroup: String,
}

impl Docker {
    /// Starts one over a folder, without a network.
    pub fn start(folder: &Path) -> Self {
        Self::start_with(folder, NO_NETWORK)
    }

    /// Starts one over a folder, in the network and mount namespaces of the calling thread.
    pub fn start_with(folder: &Path, options: &[&str]) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let cgroup = format!("atoll-docker-{}-{number}", std::process::id());
        let socket = format!("unix://{}/docker.sock", folder.display());
        let log = std::fs::File::create(folder.join("dockerd.txt")).expect("a log");
        let daemon = Command::new("/usr/sbin/dockerd")
            .args([
                "-H",
                &socket,
                "--storage-driver",
                "overlay2",
                "--cgroup-parent",
                &format!("/{cgroup}"),
                "--data-root",
            ])
            .arg(folder.join("data"))
            .arg("--exec-root")
            .arg(folder.join("exec"))
            .arg("-p")
            .arg(folder.join("pid"))
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("dockerd of the package docker.io");
        Self { daemon, socket, folder: folder.to_path_buf(), cgroup }.answering()
    }

    fn answering(self) -> Self {
        let begin = Instant::now();
        while !self.run(["version"]).status.success() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the docker daemon does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        self
    }

    /// Its client, with the builder that Debian 12 has.
    pub fn command(&self) -> Command {
        let mut command = Command::new(CLIENT);
        command
            .args(["-H", &self.socket])
            .env("DOCKER_BUILDKIT", "0")
            .env("DOCKER_CONFIG", self.folder.join("client"));
        command
    }

    /// Runs the client to its end.
    pub fn run<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Output {
        self.command().args(words).stdin(Stdio::null()).output().expect("docker of the package docker.io")
    }

    /// As [`Docker::run`]; anything but success fails the test.
    pub fn ok<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
        let done = self.run(words);
        assert!(done.status.success(), "docker: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    }

    /// Its version.
    pub fn version(&self) -> String {
        let text = self.ok(["version", "--format", "{{.Server.Version}}"]);
        String::from_utf8_lossy(&text).trim().to_owned()
    }
}

impl Docker {
    fn end(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.daemon.id().to_string()]).status();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(15) {
            if matches!(self.daemon.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }

    /// The daemon leaves the group of its containers, empty.
    fn remove_cgroups(&self) {
        let root = Path::new("/sys/fs/cgroup");
        let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        for hierarchy in hierarchies.chain([root.to_path_buf()]) {
            let _ = std::fs::remove_dir(hierarchy.join(&self.cgroup));
        }
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        self.end();
        self.remove_cgroups();
        crate::leaks::unmount_below(&self.folder);
    }
}
