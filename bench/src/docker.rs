//! The provider `docker` beside Docker's own client: the same daemon, the same image, in turn.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::Options;
use crate::http::Client;
use crate::peers::{self, Docker, IMAGE};
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

const HI: [&str; 2] = ["/bin/echo", "hi"];

/// What is taken in each round.
#[derive(Default)]
struct Rounds {
    create: Samples,
    run: Samples,
    exec: Samples,
    docker_exec: Samples,
}

/// Create and exec over HTTP, beside `docker run` and `docker exec`. Left out where Docker is not installed.
pub(crate) fn measure(options: &Options, place: &Path, rootfs: &Path, report: &mut Report) -> Result<()> {
    let home = place.join("docker-provider");
    let docker = match peers::start_docker(&home) {
        Ok(docker) => docker,
        Err(error) => {
            report.note(format!("the provider docker (package docker.io): {error:#}"));
            return Ok(());
        }
    };
    peers::import(docker.command(), rootfs)?;
    let settings = write_settings(place, &home)?;
    let server = Server::start(options, place, 0)?;
    let taken = rounds(&server, &docker, if options.quick { 5 } else { 30 });
    // The rows that follow know no such provider.
    std::fs::remove_file(&settings)?;
    drop(server);
    let taken = taken?;
    report.row("docker: create → first output over HTTP", &taken.create, None);
    report.row("docker: `docker run` echo hi, beside", &taken.run, None);
    report.row("docker: exec over HTTP", &taken.exec, None);
    report.row("docker: `docker exec` echo hi, beside", &taken.docker_exec, None);
    let ratio = |ours: &Samples, theirs: &Samples| ours.p50() / theirs.p50();
    let (made, ran) = (ratio(&taken.create, &taken.run), ratio(&taken.exec, &taken.docker_exec));
    report.figure("docker: create + exec, of `docker run`", made, "×", Some(Bar::AtMost(1.1)));
    report.figure("docker: exec, of `docker exec`", ran, "×", Some(Bar::AtMost(0.3)));
    Ok(())
}

/// Makes the daemon a provider of the servers that start from now on; its settings file.
pub(crate) fn write_settings(place: &Path, home: &Path) -> Result<PathBuf> {
    let files = server::data_dir(place).join("sandboxes");
    std::fs::create_dir_all(&files)?;
    let settings = files.join("docker.json");
    let host = format!("unix://{}/docker.sock", home.display());
    let document = json!({ "provider": "docker", "docker": { "image": IMAGE, "host": host, "network": "none", "pull": "never" } });
    std::fs::write(&settings, document.to_string())?;
    Ok(settings)
}

fn rounds(server: &Server, docker: &Docker, count: usize) -> Result<Rounds> {
    let mut client = server.client()?;
    let body = json!({ "provider": "docker", "memory_mib": 256, "network": "deny-all" });
    let create = |client: &mut Client| -> Result<String> {
        let made = client.post("/v1/sandboxes", &body)?.json()?;
        Ok(made["id"].as_str().with_context(|| format!("no id in {made}"))?.to_owned())
    };
    let standing = create(&mut client)?;
    let peer = said(docker, &["run", "-d", "--network", "none", IMAGE, "/bin/sleep", "3600"])?;
    let mut taken = Rounds::default();
    for round in 0..=count {
        let begin = Instant::now();
        let id = create(&mut client)?;
        server::exec(&mut client, &id, &HI)?;
        let made = begin.elapsed();
        server::delete(&mut client, &id)?;
        let begin = Instant::now();
        said(docker, &["run", "--rm", "--network", "none", "--memory", "256m", IMAGE, HI[0], HI[1]])?;
        let ran = begin.elapsed();
        let begin = Instant::now();
        server::exec(&mut client, &standing, &HI)?;
        let executed = begin.elapsed();
        let begin = Instant::now();
        said(docker, &["exec", &peer, HI[0], HI[1]])?;
        let docker_executed = begin.elapsed();
        // The first one warms caches.
        if round > 0 {
            taken.create.add(made);
            taken.run.add(ran);
            taken.exec.add(executed);
            taken.docker_exec.add(docker_executed);
        }
    }
    server::delete(&mut client, &standing)?;
    said(docker, &["rm", "-f", &peer])?;
    Ok(taken)
}

/// Runs Docker's client; its output, without the last line's end.
fn said(docker: &Docker, words: &[&str]) -> Result<String> {
    let mut command: Command = docker.command();
    let output = command.args(words).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "docker {words:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
