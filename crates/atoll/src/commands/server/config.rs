//! `atoll server config`: the settings that a server started here has.

use std::ffi::OsString;

use clap::{CommandFactory, parser::ValueSource};
use serde_json::json;

use crate::{
    cli::Cli,
    commands::CommandContext,
    failure::Failure,
    serve,
    server::{config_file, config_text},
};

/// The data folder of a packaged server.
pub(super) const SERVICE_DATA: &str = "/var/lib/atoll";

pub(super) fn config(context: &CommandContext, options: Vec<OsString>) -> Result<(), Failure> {
    let global = &context.global;
    let mut line: Vec<OsString> = vec!["atoll".into(), "serve".into()];
    // The server reads the environment itself.
    let own = Cli::command().try_get_matches_from(std::env::args_os());
    let is_option =
        |id: &str| own.as_ref().is_ok_and(|own| own.value_source(id) == Some(ValueSource::CommandLine));
    for (id, value) in [("config", &global.config), ("data", &global.data)] {
        if let Some(path) = value.as_ref().filter(|_| is_option(id)) {
            line.extend([format!("--{id}").into(), path.into()]);
        }
    }
    line.extend(options);
    let merged = config_file::with_file(line)?;
    let cli = merged.cli()?;
    let mut data = cli.global;
    config_file::apply_to_client(&mut data);
    let settings = serve::settings_of(&data.data_dir(), &merged);
    if context.out.json {
        let file = merged.path().map(|path| path.display().to_string());
        return context.out.json(&json!({ "file": file, "settings": settings }));
    }
    match merged.path() {
        Some(path) => context.out.tell(&format!("configuration file: {}", path.display())),
        None => context.out.tell("no configuration file"),
    }
    let name = |name: &str| name.trim_start_matches("--").to_owned();
    let width = settings.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
    let values: Vec<String> = settings.iter().map(|setting| setting.values.join(",")).collect();
    let middle = values.iter().map(|value| value.chars().count()).max().unwrap_or(0).min(40);
    for (setting, value) in settings.iter().zip(&values) {
        let value = if value.is_empty() { "-" } else { value };
        context.out.line(&format!("{:width$}  {value:middle$}  {}", name(&setting.name), setting.source))?;
    }
    Ok(())
}

pub(super) fn example(context: &CommandContext) -> Result<(), Failure> {
    let data = context
        .global
        .data
        .as_ref()
        .map_or_else(|| SERVICE_DATA.to_owned(), |data| data.display().to_string());
    context.out.bytes(config_text::example(&data).as_bytes())
}

pub(super) fn reference(context: &CommandContext) -> Result<(), Failure> {
    context.out.bytes(config_text::reference().as_bytes())
}
