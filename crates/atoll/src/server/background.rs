//! Starts a server in the background when none answers, and waits until it is healthy.
//!
//! The new server leaves this session by itself (`serve --background`), so that neither Ctrl-C nor the end of the
//! terminal reaches it. Its output goes to `DATA/server.log`.

use std::{
    fs::{DirBuilder, OpenOptions},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{cli::Global, client::Client, failure::Failure, out::Out};

/// LIMIT: the first start makes the template `host` and adopts live sandboxes.
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A client of a running server; starts one if necessary.
pub(crate) async fn client(global: &Global, out: Out) -> Result<Client, Failure> {
    let client = Client::new(global)?;
    match client.health().await {
        Ok(_) => Ok(client),
        Err(failure) if failure.is("no_server") && client.address.is_local() => {
            start(global, &client, out).await?;
            // The first start wrote the key.
            Client::new(global)
        }
        Err(failure) => Err(failure),
    }
}

/// Path of the log of background servers.
pub(crate) fn log_path(data: &Path) -> PathBuf {
    data.join("server.log")
}

async fn start(global: &Global, client: &Client, out: Out) -> Result<(), Failure> {
    let data = global.data_dir();
    let log = log_path(&data);
    let mut child = spawn(&data, &client.address.listen(), &log)?;
    out.status("starting a server …");
    let deadline = tokio::time::Instant::now() + HEALTHY_WITHIN;
    loop {
        if client.health().await.is_ok() {
            break;
        }
        if let Ok(Some(status)) = child.try_wait() {
            out.status_done();
            return Err(failed(&format!("the server ended at once ({status})"), &log));
        }
        if tokio::time::Instant::now() > deadline {
            out.status_done();
            return Err(failed("the server did not become healthy in time", &log));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    out.status_done();
    out.say(&format!(
        "atoll: started a server at {} (log: {}; end it with `atoll server stop`)",
        client.address,
        log.display()
    ));
    Ok(())
}

fn spawn(data: &Path, listen: &str, log: &Path) -> Result<Child, Failure> {
    let cannot = |what: String, e: std::io::Error| {
        Failure::new("no_server", format!("no server answers, and none can be started: {what}: {e}"))
            .hint("start one as root: `sudo atoll serve`")
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .map_err(|e| cannot(format!("{} cannot be created", data.display()), e))?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)
        .map_err(|e| cannot(format!("{} cannot be written", log.display()), e))?;
    let errors = file
        .try_clone()
        .map_err(|e| cannot("its log file cannot be shared with the server".to_owned(), e))?;
    let program = std::env::current_exe().map_err(|e| cannot("this program is not found".to_owned(), e))?;
    Command::new(program)
        .args(["serve", "--background", "--log-format", "json", "--listen", listen, "--data"])
        .arg(data)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn()
        .map_err(|e| cannot("a server cannot be started".to_owned(), e))
}

fn failed(what: &str, log: &Path) -> Failure {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("the log is empty");
    Failure::new("no_server", format!("{what}: {}", crate::human::harmless(last)))
        .hint(format!("`atoll doctor` shows what this machine lacks; the whole log is {}", log.display()))
}
