//! What the server says about itself to its operator: the checks of `atoll doctor` and the options in effect.

use std::path::{Path, PathBuf};

use atoll_client::server::{ServerReport, ServerSetting};
use atoll_front_native::ServerReporter;
use clap::{Arg, ArgMatches, CommandFactory, parser::ValueSource};

use super::checks::checks;
use crate::cli::Cli;

/// The reporter of the native API.
pub(super) fn reporter(data: &Path) -> ServerReporter {
    let data: PathBuf = data.to_owned();
    ServerReporter::new(move || ServerReport {
        checks: checks(&data),
        settings: options(&data, std::env::args_os()),
        ..ServerReport::default()
    })
}

/// The options that these arguments, which started the server, and the environment give. Keys and passwords are never options.
fn options(
    data: &Path,
    arguments: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
) -> Vec<ServerSetting> {
    let grammar = Cli::command();
    let Ok(matches) = grammar.clone().try_get_matches_from(arguments) else { return Vec::new() };
    let Some(("serve", matches)) = matches.subcommand() else { return Vec::new() };
    let Some(serve) = grammar.find_subcommand("serve") else { return Vec::new() };
    let folder = grammar.get_arguments().find(|option| option.get_id() == "data");
    let folder = folder
        .map(|option| ServerSetting { values: vec![data.display().to_string()], ..setting(option, matches) });
    let shown = serve.get_arguments().filter(|option| option.get_long().is_some() && !option.is_hide_set());
    folder.into_iter().chain(shown.map(|option| setting(option, matches))).collect()
}

fn setting(option: &Arg, matches: &ArgMatches) -> ServerSetting {
    let id = option.get_id().as_str();
    let values = matches.get_raw(id).into_iter().flatten();
    let source = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => "option".to_owned(),
        Some(ValueSource::EnvVariable) => match option.get_env() {
            Some(name) => format!("environment ({})", name.to_string_lossy()),
            None => "environment".to_owned(),
        },
        _ => "default".to_owned(),
    };
    ServerSetting {
        name: format!("--{}", option.get_long().unwrap_or(id)),
        values: values.map(|value| value.to_string_lossy().into_owned()).collect(),
        source,
        about: option.get_help().map(ToString::to_string).unwrap_or_default(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_have_their_values_and_where_they_come_from() {
        let settings = options(
            Path::new("/data"),
            ["atoll", "serve", "--pool", "7", "--allow-local", "--data", "/data"],
        );
        let find = |name: &str| settings.iter().find(|one| one.name == name).unwrap();
        assert_eq!((&*find("--pool").values, &*find("--pool").source), (&["7".to_owned()][..], "option"));
        assert_eq!(find("--allow-local").values, ["true"]);
        assert_eq!(find("--data").values, ["/data"]);
        assert_eq!(find("--domain").values, ["localhost"]);
        assert!(settings.iter().all(|one| !one.about.is_empty()), "{settings:?}");
    }

    #[test]
    fn another_command_has_no_options_of_a_server() {
        assert!(options(Path::new("/data"), ["atoll", "ls"]).is_empty());
    }
}
