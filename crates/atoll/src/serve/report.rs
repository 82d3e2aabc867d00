//! What the server says about itself to its operator: the checks of `atoll doctor` and the settings in effect.

use std::path::Path;

use atoll_client::server::{ServerReport, ServerSetting};
use atoll_front_native::ServerReporter;
use clap::CommandFactory;

use super::{checks::checks, settings::Settings};
use crate::{
    cli::Cli,
    server::config_file::{self, MergedSettings, serve_grammar},
};

/// The reporter of the native API.
pub(super) fn reporter(settings: &Settings) -> ServerReporter {
    let (data, settings) = (settings.data.clone(), settings.report.clone());
    ServerReporter::new(move || ServerReport {
        checks: checks(&data),
        settings: settings.clone(),
        ..ServerReport::default()
    })
}

/// The settings of a server with their values, and where each comes from. Credentials are not shown.
pub(crate) fn options(data: &Path, merged: &MergedSettings) -> Vec<ServerSetting> {
    let Ok(matches) = Cli::command().try_get_matches_from(&merged.arguments) else { return Vec::new() };
    let Some(("serve", matches)) = matches.subcommand() else { return Vec::new() };
    let grammar = serve_grammar();
    let shown = config_file::settings(&grammar).filter(|option| !option.is_hide_set());
    let mut shown: Vec<_> = shown.collect();
    shown.sort_by_key(|option| option.get_id() != "data");
    let shown = shown.into_iter().map(|option| {
        let id = option.get_id().as_str();
        let values = matches.get_raw(id).into_iter().flatten();
        let values: Vec<String> = match id {
            "data" => vec![data.display().to_string()],
            _ => values.map(|value| without_credentials(&value.to_string_lossy())).collect(),
        };
        ServerSetting {
            name: format!("--{}", option.get_long().unwrap_or(id)),
            values,
            source: merged.provenance(option, matches).to_string(),
            about: option.get_help().map(ToString::to_string).unwrap_or_default(),
        }
    });
    shown.collect()
}

/// An address without the user and password in it.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://…@{host}{}", &rest[end..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn options_have_their_values_and_where_they_come_from() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, "\npool = 9\nwarm-kernels = 1\n").unwrap();
        let line = [
            "atoll",
            "serve",
            "--pool",
            "7",
            "--allow-local",
            "--data",
            "/data",
            "--config",
            file.to_str().unwrap(),
            "--archive",
            "https://me:secret@example.test/a@b",
        ];
        let merged = config_file::with_file(line.map(OsString::from).into()).unwrap();
        let settings = options(Path::new("/data"), &merged);
        let find = |name: &str| settings.iter().find(|one| one.name == name).unwrap();
        assert_eq!((&*find("--pool").values, &*find("--pool").source), (&["7".to_owned()][..], "option"));
        assert_eq!(find("--warm-kernels").source, format!("{}:3", file.display()));
        assert_eq!(find("--allow-local").values, ["true"]);
        assert_eq!(find("--data").values, ["/data"]);
        assert_eq!(
            (&*find("--domain").values, &*find("--domain").source),
            (&["localhost".to_owned()][..], "default")
        );
        assert_eq!(find("--archive").values, ["https://…@example.test/a@b"]);
        assert!(settings.iter().all(|one| !one.about.is_empty()), "{settings:?}");
    }
}
