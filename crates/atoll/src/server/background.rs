//! Starts a server in the background when none answers, and waits until it is healthy.
//!
//! The new server leaves this session by itself (`serve --background`), so that neither Ctrl-C nor the end of the
//! terminal reaches it. Its log is in `DATA/logs`.

use std::{
    fs::{DirBuilder, OpenOptions},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::{
    config_file,
    log_files::{log_path, make_folder, start_path},
    server_file,
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
            start(global, Some(&client.address.listen()), out).await?;
            // The first start wrote the key.
            Client::new(global)
        }
        Err(failure) => Err(failure),
    }
}

/// Starts a server and waits until it is healthy. Without `listen` its settings decide where it listens.
pub(crate) async fn start(global: &Global, listen: Option<&str>, out: Out) -> Result<(), Failure> {
    let (data, config) = (global.data_dir(), config_file::find(global));
    let log = start_path(&data);
    // Where a configuration file may say another address, the server of an address that the user named has that one.
    let listen = listen.filter(|_| config.is_none() || global.url.is_some());
    let mut child = spawn(&data, config.as_deref(), listen, &log)?;
    out.status("starting a server …");
    let deadline = tokio::time::Instant::now() + HEALTHY_WITHIN;
    loop {
        // The server of this process, which has written down where it listens by then.
        let is_up = server_file::read(&data).is_some_and(|note| note.pid == child.id());
        if is_up && Client::new(global)?.health().await.is_ok() {
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
    let at = server_file::read(&data).map_or_else(String::new, |note| note.url);
    out.say(&format!(
        "atoll: started a server at {at} (log: {}; end it with `atoll server stop`)",
        log_path(&data).display()
    ));
    Ok(())
}

fn spawn(data: &Path, config: Option<&Path>, listen: Option<&str>, log: &Path) -> Result<Child, Failure> {
    let cannot = |what: String, e: std::io::Error| {
        Failure::new("no_server", format!("no server answers, and none can be started: {what}: {e}"))
            .hint("start one as root: `sudo atoll serve`")
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .map_err(|e| cannot(format!("{} cannot be created", data.display()), e))?;
    make_folder(data).map_err(|e| cannot(format!("{} cannot be created", log.display()), e))?;
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(log)
        .map_err(|e| cannot(format!("{} cannot be written", log.display()), e))?;
    let errors = file
        .try_clone()
        .map_err(|e| cannot("its log file cannot be shared with the server".to_owned(), e))?;
    let program = std::env::current_exe().map_err(|e| cannot("this program is not found".to_owned(), e))?;
    let mut command = Command::new(program);
    command.args(["serve", "--background", "--log-format", "json", "--data"]).arg(data);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    if let Some(listen) = listen {
        command.args(["--listen", listen]);
    }
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn()
        .map_err(|e| cannot("a server cannot be started".to_owned(), e))
}

fn failed(what: &str, log: &Path) -> Failure {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let (cause, hint) = cause(&text);
    let doctor = format!("`atoll doctor` shows what this machine lacks; the whole log is {}", log.display());
    Failure::new("no_server", format!("{what}: {}", crate::human::harmless(cause)))
        .hint(hint.map_or(doctor, |hint| crate::human::harmless(hint).to_string()))
}

/// The last error of a log with its hint; without one, the last line.
fn cause(log: &str) -> (&str, Option<&str>) {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let Some(at) = lines.iter().rposition(|line| line.starts_with("error: ")) else {
        return (lines.last().copied().unwrap_or("the log is empty"), None);
    };
    let hint = lines.get(at + 1).and_then(|line| line.strip_prefix("hint: "));
    (lines[at].trim_start_matches("error: "), hint)
}

#[cfg(test)]
mod tests {
    use super::cause;

    #[test]
    fn the_reason_of_a_failed_start_is_the_error_and_not_its_hint() {
        let log = "{\"level\":\"INFO\"}\nerror: the server needs root\n hint: use sudo\n";
        assert_eq!(cause(log), ("the server needs root", Some("use sudo")));
        assert_eq!(cause("a\n\nb\n"), ("b", None));
        assert_eq!(cause(""), ("the log is empty", None));
    }
}
