//! `atoll server`: manages the server of this machine, by systemd where it is installed as a service, else as a process of its own.

mod config;
mod install;

use std::{process::Command, time::Duration};

use jiff::Timestamp;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;

use super::{CommandContext, backup};
use crate::{
    cli::server::Server,
    failure::Failure,
    human::age,
    serve,
    server::{
        background,
        log_files::{self, LogReader},
        server_file, service_unit,
    },
};

/// LIMIT: sandboxes that are bound to the server get 10 s, the rest 2 s; a server that takes longer is stuck.
const END_WITHIN: Duration = Duration::from_secs(30);

pub(super) async fn server(context: &CommandContext, command: Server) -> Result<(), Failure> {
    match command {
        Server::Status => status(context).await,
        Server::Install { print, root } => install::install(context, print, root),
        Server::Start => start(context).await,
        Server::Stop => {
            let (url, pid) = stop_any(context).await?;
            if context.out.json {
                return context.out.json(&json!({"stopped": pid}));
            }
            context.out.line(&format!(
                "stopped the server at {url}; sandboxes keep running, except those with another --on-exit"
            ))
        }
        Server::Restart => {
            if is_service(context) {
                service_unit::systemctl(&["restart", service_unit::NAME])?;
                return status(context).await;
            }
            if running(context).is_some() {
                stop(context).await?;
            }
            start(context).await
        }
        Server::Uninstall { force, keep_data } => uninstall(context, force, keep_data).await,
        Server::Logs { follow, lines } => logs(context, follow, lines).await,
        Server::Config { example: true, .. } => config::example(context),
        Server::Config { reference: true, .. } => config::reference(context),
        Server::Config { options, .. } => config::config(context, options),
        Server::Backup(args) => backup::backup(context, args).await,
        Server::Restore(args) => backup::restore(context, args).await,
    }
}

/// Whether the command is about the systemd service: a user who names a data folder or a file means another server.
fn is_service(context: &CommandContext) -> bool {
    let global = &context.global;
    global.data.is_none() && global.config.is_none() && service_unit::installed().is_some()
}

/// The running server of the data folder.
fn running(context: &CommandContext) -> Option<server_file::ServerNote> {
    server_file::read(&context.global.data_dir()).filter(server_file::ServerNote::is_alive)
}

async fn start(context: &CommandContext) -> Result<(), Failure> {
    if is_service(context) {
        service_unit::systemctl(&["start", service_unit::NAME])?;
    } else if running(context).is_none() {
        background::start(&context.global, None, context.out).await?;
    }
    status(context).await
}

/// Stops the service or the process; returns its address and process.
async fn stop_any(context: &CommandContext) -> Result<(String, u32), Failure> {
    let note = running(context);
    if is_service(context) {
        service_unit::systemctl(&["stop", service_unit::NAME])?;
        return Ok(note.map_or_else(Default::default, |note| (note.url, note.pid)));
    }
    stop(context).await.map(|note| (note.url, note.pid))
}

async fn status(context: &CommandContext) -> Result<(), Failure> {
    let client = context.client()?;
    let health = client.health().await?;
    let (data, url) = (context.global.data_dir(), client.address.to_string());
    // The server that answers may not be the one of DATA.
    let socket = client.address.unix_socket();
    let note = server_file::read(&data).filter(|note| {
        note.is_alive() && (note.url == url || (socket.is_some() && note.socket.as_deref() == socket))
    });
    let url = note.as_ref().map_or(url, |note| note.url.clone());
    let pid = note.as_ref().map(|note| note.pid);
    let warning = note.as_ref().and_then(server_file::ServerNote::clear_text_warning);
    let since = note.and(server_file::written_at(&data)).and_then(|at| Timestamp::try_from(at).ok());
    if context.out.json {
        let since = since.map(|at| format!("{at:.3}"));
        return context.out.json(&json!({"url": url, "pid": pid, "since": since, "health": health}));
    }
    let version = &health.version;
    let pid = pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
    let up = since.map_or_else(String::new, |at| format!(" for {}", age(Some(at), Timestamp::now())));
    context.out.line(&format!("running at {url}{up} (version {version}{pid})"))?;
    warning.into_iter().for_each(|warning| context.out.say(&format!("atoll: {warning}")));
    Ok(())
}

async fn stop(context: &CommandContext) -> Result<server_file::ServerNote, Failure> {
    let data = context.global.data_dir();
    let absent = || {
        Failure::new("no_server", format!("no server runs for {}", data.display()))
            .hint("choose another folder with --data or ATOLL_DATA")
    };
    let note = server_file::read(&data).ok_or_else(absent)?;
    let pid = i32::try_from(note.pid).ok().and_then(Pid::from_raw).ok_or_else(absent)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| absent())?;
    // Checked after the descriptor is open: from here on the pid cannot be reused.
    if !note.is_alive() {
        return Err(absent());
    }
    pidfd_send_signal(&process, Signal::TERM).map_err(|e| {
        Failure::new("forbidden", format!("the server cannot be stopped: {e}")).hint("use sudo")
    })?;
    let deadline = tokio::time::Instant::now() + END_WITHIN;
    let mut waits_for = String::new();
    while note.is_alive() {
        if tokio::time::Instant::now() > deadline {
            let what =
                if waits_for.is_empty() { String::new() } else { format!("; it waits for {waits_for}") };
            let message = format!("pid {} has not ended yet{what}", note.pid);
            return Err(Failure::new("deadline_exceeded", message).hint("a second signal ends it at once"));
        }
        let now = server_file::read(&data).filter(|now| now.pid == note.pid).and_then(|now| now.waits_for);
        if let Some(now) = now.filter(|now| *now != waits_for) {
            context.out.status(&format!("waiting for {now} …"));
            waits_for = now;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    context.out.status_done();
    Ok(note)
}

/// Stops the server of this folder, if one runs, and removes everything without starting a server.
async fn uninstall(context: &CommandContext, force: bool, keep_data: bool) -> Result<(), Failure> {
    let data = context.global.data_dir();
    if !data.is_dir() {
        return Err(Failure::new("no_server", format!("{} does not exist", data.display()))
            .hint("choose another folder with --data or ATOLL_DATA"));
    }
    let question = match keep_data {
        true => format!("Stop the server of {0} and every sandbox, and keep {0}?", data.display()),
        false => format!("Delete every sandbox of {} and the folder itself?", data.display()),
    };
    if !force && !context.out.ask(&question) {
        return Err(Failure::usage("nothing was removed", "add --force to remove it without confirmation"));
    }
    if server_file::read(&data).is_some_and(|note| note.is_alive()) {
        stop(context).await?;
    }
    let folder = data.display().to_string();
    if keep_data {
        serve::leave_machine(&data).await?;
        return match context.out.json {
            true => context.out.json(&json!({ "kept": folder })),
            false => context.out.line(&format!("nothing runs any more; {folder} is kept")),
        };
    }
    serve::uninstall(&data).await?;
    if context.out.json {
        context.out.json(&json!({ "removed": folder }))
    } else {
        context.out.line(&format!("removed {folder}"))
    }
}

async fn logs(context: &CommandContext, follow: bool, lines: Option<usize>) -> Result<(), Failure> {
    if is_service(context) {
        return journal(follow, lines);
    }
    let data = context.global.data_dir();
    let path = log_files::log_path(&data);
    let cannot = |e: std::io::Error| {
        Failure::new("no_log", format!("{} cannot be read: {e}", path.display())).hint(
            "only servers in the background write it; a server in the foreground writes to its terminal",
        )
    };
    let mut reader = LogReader::open(&data, lines).map_err(cannot)?;
    loop {
        let piece = reader.next_piece().map_err(cannot)?;
        context.out.bytes(&piece)?;
        if piece.is_empty() && !follow {
            return Ok(());
        }
        if piece.is_empty() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// The log of the service.
fn journal(follow: bool, lines: Option<usize>) -> Result<(), Failure> {
    let mut command = Command::new("journalctl");
    command.args(["--unit", service_unit::NAME, "--output", "cat"]);
    if follow {
        command.arg("--follow");
    }
    if let Some(lines) = lines {
        command.args(["--lines", &lines.to_string()]);
    }
    service_unit::run(&mut command, &format!("journalctl --unit {}", service_unit::NAME))
}
