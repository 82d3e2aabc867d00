//! `atoll server install`: the systemd unit, and a configuration file if there is none.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use nix::unistd::Group;
use serde_json::json;

use super::config::SERVICE_DATA;
use crate::{
    commands::CommandContext,
    failure::Failure,
    serve::GROUP,
    server::{
        config_file::MACHINE_FILE,
        config_text,
        service_unit::{self, UNIT_PATH},
    },
};

/// What was done, one line each.
#[derive(Default)]
struct InstallSteps(Vec<String>);

pub(super) fn install(context: &CommandContext, print: bool, root: Option<PathBuf>) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|cause| failed("this program is not found", &cause))?;
    let data = context.global.data.as_deref().unwrap_or(Path::new(SERVICE_DATA));
    let (unit, config) = (service_unit::unit(&program), config_text::example(&data.display().to_string()));
    if print {
        if context.out.json {
            return context.out.json(&json!({ "unit": unit, "config": config }));
        }
        return context.out.bytes(format!("# {UNIT_PATH}\n{unit}\n# {MACHINE_FILE}\n{config}").as_bytes());
    }
    let below = |path: &str| match &root {
        Some(root) => root.join(path.trim_start_matches('/')),
        None => PathBuf::from(path),
    };
    let mut steps = InstallSteps::default();
    write_unit(&below(UNIT_PATH), &unit, &mut steps)?;
    write_config(&below(MACHINE_FILE), &config, &mut steps)?;
    if root.is_none() {
        make_group(&mut steps)?;
        if service_unit::is_running() {
            service_unit::systemctl(&["daemon-reload"])?;
            steps.0.push("systemd has read the unit".to_owned());
        }
    }
    if context.out.json {
        return context.out.json(&json!({ "done": steps.0 }));
    }
    steps.0.iter().try_for_each(|step| context.out.line(step))?;
    context.out.tell(match service_unit::is_running() {
        true => "next: systemctl enable --now atoll (or: atoll server start)",
        false => "this machine does not run systemd; `atoll server start` starts the server as a process of its own",
    });
    Ok(())
}

fn write_unit(path: &Path, text: &str, steps: &mut InstallSteps) -> Result<(), Failure> {
    let before = fs::read_to_string(path).ok();
    if before.as_deref() == Some(text) {
        steps.0.push(format!("kept {}", path.display()));
        return Ok(());
    }
    let fresh = path.with_extension("service.new");
    let written =
        make_folder(path).and_then(|()| fs::write(&fresh, text)).and_then(|()| fs::rename(&fresh, path));
    written.map_err(|cause| failed(&format!("{} cannot be written", path.display()), &cause))?;
    let verb = if before.is_some() { "replaced" } else { "wrote" };
    steps.0.push(format!("{verb} {}", path.display()));
    Ok(())
}

/// The settings of the operator are never replaced.
fn write_config(path: &Path, text: &str, steps: &mut InstallSteps) -> Result<(), Failure> {
    let cannot = |cause| failed(&format!("{} cannot be written", path.display()), &cause);
    make_folder(path).map_err(cannot)?;
    match OpenOptions::new().write(true).create_new(true).mode(0o644).open(path) {
        Ok(mut file) => {
            file.write_all(text.as_bytes()).map_err(cannot)?;
            steps.0.push(format!("wrote {}", path.display()));
            Ok(())
        }
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {
            steps.0.push(format!("kept {}", path.display()));
            Ok(())
        }
        Err(cause) => Err(cannot(cause)),
    }
}

fn make_folder(file: &Path) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o755).create(folder)
}

/// Members of the group use the server through its socket.
fn make_group(steps: &mut InstallSteps) -> Result<(), Failure> {
    let found =
        Group::from_name(GROUP).map_err(|cause| failed("the groups cannot be read", &cause.into()))?;
    if found.is_some() {
        steps.0.push(format!("kept the group {GROUP}"));
        return Ok(());
    }
    service_unit::run(
        Command::new("groupadd").args(["--system", GROUP]),
        &format!("groupadd --system {GROUP}"),
    )?;
    steps.0.push(format!(
        "made the group {GROUP}; its members use the server without root: usermod -aG {GROUP} NAME"
    ));
    Ok(())
}

fn failed(what: &str, cause: &std::io::Error) -> Failure {
    Failure::new("io", format!("{what}: {cause}")).hint("use sudo")
}
