//! Debian's Docker as the judge: a daemon of our own with its state in a folder, no network, ended when dropped.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The client of Debian's package; another one may come first in `PATH`.
const CLIENT: &str = "/usr/bin/docker";

/// A daemon.
pub struct Docker {
    daemon: Child,
    socket: String,
    folder: std::path::PathBuf,
}

impl Docker {
    /// Starts one over a folder, in the network and mount namespaces of the calling thread.
    pub fn start(folder: &Path) -> Self {
        let socket = format!("unix://{}/docker.sock", folder.display());
        let log = std::fs::File::create(folder.join("dockerd.txt")).expect("a log");
        let daemon = Command::new("/usr/sbin/dockerd")
            .args([
                "-H",
                &socket,
                "--storage-driver",
                "overlay2",
                "--bridge=none",
                "--iptables=false",
                "--data-root",
            ])
            .arg(folder.join("data"))
            .arg("--exec-root")
            .arg(folder.join("exec"))
            .arg("-p")
            .arg(folder.join("pid"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("dockerd of the package docker.io");
        let docker = Self { daemon, socket, folder: folder.to_path_buf() };
        let begin = Instant::now();
        while !docker.run(["version"]).status.success() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the docker daemon does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        docker
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

impl Drop for Docker {
    fn drop(&mut self) {
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
}
