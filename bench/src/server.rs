//! Starts and ends the server under test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::Options;
use crate::http::Client;
use crate::parts::Part;

/// A server with its own data folder; ended when dropped.
pub(crate) struct Server {
    child: Child,
    address: String,
    key: String,
    data: PathBuf,
}

/// The address of the server under test.
pub(crate) const SERVICE: &str = "127.0.0.1:7070";

/// The template every row uses, unless it says otherwise.
pub(crate) const TEMPLATE: &str = "debian";

/// Makes the template once and answers its root filesystem, which the peers run too.
pub(crate) fn prepare_template(place: &Path) -> Result<PathBuf> {
    make_template(place, TEMPLATE)
}

/// Makes a template where it is missing; answers its root filesystem.
pub(crate) fn make_template(place: &Path, name: &str) -> Result<PathBuf> {
    let data = data_dir(place);
    std::fs::create_dir_all(&data)?;
    let catalog = atoll_image::Catalog::open(data.join("templates"))?;
    let template = match catalog.get(name) {
        Ok(template) => template,
        Err(_) => catalog.make(name, &mut |line: &str| {
            println!("  {line}");
            std::ops::ControlFlow::Continue(())
        })?,
    };
    template.layers.first().cloned().context("the template has no layer")
}

/// Makes the archives of the templates while Debian's mirror can be reached: the measurement runs in a network namespace
/// without a way out, and takes them from the cache.
pub(crate) fn cache_templates(parts: &[Part]) -> Result<()> {
    let place = tempfile::Builder::new().prefix("atoll-bench.").tempdir_in("/var/tmp")?;
    make_template(place.path(), TEMPLATE)?;
    if parts.contains(&Part::E2b) {
        make_template(place.path(), crate::e2b::INTERPRETER)?;
    }
    Ok(())
}

/// Removes all that the servers left: the pool's mount, the router, the cgroups.
pub(crate) fn uninstall(options: &Options, place: &Path) -> Result<()> {
    let mut command = Command::new(&options.atoll);
    command.args(["server", "uninstall", "--force", "--data"]).arg(data_dir(place));
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    bail!("cannot clean up: {}", String::from_utf8_lossy(&output.stderr))
}

pub(crate) fn data_dir(place: &Path) -> PathBuf {
    place.join("data")
}

impl Server {
    /// Starts with `pool` ready instances and waits until it answers.
    pub(crate) fn start(options: &Options, place: &Path, pool: usize) -> Result<Self> {
        Self::start_with(options, place, pool, &[])
    }

    /// As [`Server::start`], with more in its environment.
    pub(crate) fn start_with(
        options: &Options,
        place: &Path,
        pool: usize,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        Self::start_at(options, place, SERVICE, pool, env)
    }

    /// As [`Server::start_with`], at another address. Its data are below `place`.
    pub(crate) fn start_at(
        options: &Options,
        place: &Path,
        address: &str,
        pool: usize,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let data = data_dir(place);
        let address = address.to_owned();
        let log = std::fs::File::create(place.join("server.log"))?;
        let child = Command::new(&options.atoll)
            .args([
                "serve",
                "--listen",
                &address,
                "--template",
                TEMPLATE,
                "--make-templates",
                "never",
                "--tls-port",
                "0",
                "--socket",
                "off",
                "--pool",
                &pool.to_string(),
                "--data",
            ])
            .arg(&data)
            // Authorities that were added to this machine would be written into every sandbox.
            .env("ATOLL_NO_HOST_CA", "true")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", options.atoll.display()))?;
        let mut server = Self { child, address, key: String::new(), data };
        server.wait_until_healthy(place)?;
        server.key = std::fs::read_to_string(server.data.join("admin.key"))?.trim().to_owned();
        Ok(server)
    }

    fn wait_until_healthy(&mut self, place: &Path) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait()? {
                let log = std::fs::read_to_string(place.join("server.log")).unwrap_or_default();
                bail!("the server ended with {status}:\n{log}");
            }
            let healthy = Client::connect(&self.address, "none").and_then(|mut c| c.get("/health"));
            if healthy.is_ok_and(|a| a.status == 200) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the server did not answer within 60 s")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn client(&self) -> Result<Client> {
        Client::connect(&self.address, &self.key)
    }

    /// The command line, as the server's admin.
    pub(crate) fn command(&self, options: &Options) -> Command {
        let mut command = Command::new(&options.atoll);
        command.env("ATOLL_URL", format!("http://{}", self.address)).env("ATOLL_API_KEY", &self.key);
        command
    }

    pub(crate) fn address(&self) -> (String, String) {
        (self.address.clone(), self.key.clone())
    }
}

/// Creates a sandbox and answers its id.
pub(crate) fn create(client: &mut Client) -> Result<String> {
    let body = json!({ "template": TEMPLATE, "memory_mib": 256, "disk_mib": 1024, "network": "allow-all" });
    let made = client.post("/v1/sandboxes", &body)?.json()?;
    Ok(made["id"].as_str().context("no id in the answer")?.to_owned())
}

pub(crate) fn delete(client: &mut Client, id: &str) -> Result<()> {
    client.delete(&format!("/v1/sandboxes/{id}"))?.json().map(drop)
}

/// Runs a command and checks that it succeeded.
pub(crate) fn exec(client: &mut Client, id: &str, argv: &[&str]) -> Result<serde_json::Value> {
    let answer = client.post(&format!("/v1/sandboxes/{id}/exec"), &json!({ "argv": argv }))?.json()?;
    if answer["exit_code"] != 0 {
        bail!("{argv:?} ended with {answer}");
    }
    Ok(answer)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
