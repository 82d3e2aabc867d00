//! The configuration file: every setting of `atoll serve`, by the name of its option.
//!
//! ```text
//! option ─► environment ─► file ─► default          the first that says something decides
//! ```
//!
//! There is no second list of settings: a setting is an option of `atoll serve` that has an environment variable. What the file says
//! is added to the command line as options, where neither the command line nor the environment says anything, and parsed by the
//! same grammar.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, parser::ValueSource};
use toml_edit::{Document, Item, Value};

use crate::{
    cli::{Cli, Global},
    client::similar_names,
    environment,
    failure::Failure,
};

/// The file of the machine's server.
pub(crate) const MACHINE_FILE: &str = "/etc/atoll/config.toml";
/// The file in a data folder.
const NAME: &str = "config.toml";

/// A parsed file.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    entries: Vec<ConfigEntry>,
}

/// One line of the file.
#[derive(Debug)]
struct ConfigEntry {
    key: String,
    line: usize,
    value: EntryValue,
}

#[derive(Debug, PartialEq)]
enum EntryValue {
    Switch(bool),
    Texts(Vec<String>),
}

/// The file that a server with these options reads: the named one, else that of the data folder if the folder is named, else
/// that of the machine, else that of the default data folder.
pub(crate) fn find(global: &Global) -> Option<PathBuf> {
    if let Some(file) = &global.config {
        return Some(file.clone());
    }
    let own = |folder: &Path| Some(folder.join(NAME)).filter(|file| file.exists());
    match &global.data {
        Some(folder) => own(folder),
        None => Some(PathBuf::from(MACHINE_FILE))
            .filter(|file| file.exists())
            .or_else(|| own(&environment::default_data())),
    }
}

/// What other commands than `serve` take from the file: where the server keeps its files, and its socket. A file that cannot be
/// read says nothing; the server itself refuses it.
pub(crate) fn apply_to_client(global: &mut Global) {
    let Some(file) = find(global).and_then(|path| ConfigFile::read(&path).ok()) else { return };
    let text = |key: &str| match file.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    {
        Some(EntryValue::Texts(texts)) => texts.first().cloned(),
        Some(EntryValue::Switch(_)) | None => None,
    };
    global.machine_data = text("data").map(PathBuf::from);
    global.machine_socket = text("socket").map(PathBuf::from);
}

/// The command line `arguments`, which starts a server, with what the configuration file adds.
pub(crate) fn with_file(arguments: Vec<OsString>) -> Result<MergedSettings, Failure> {
    let usage = |error: clap::Error| Failure::usage(one_line(&error), "atoll serve --help");
    let given = Cli::command().try_get_matches_from(&arguments).map_err(usage)?;
    let mut global = Global::from_arg_matches(&given).map_err(usage)?;
    global.drop_empty();
    let Some(path) = find(&global) else {
        return Ok(MergedSettings { arguments, file: None, from_file: Vec::new() });
    };
    let file = ConfigFile::read(&path)?;
    let grammar = serve_grammar();
    let given = given.subcommand_matches("serve").unwrap_or(&given);
    let (mut merged, mut from_file) = (arguments, Vec::new());
    for entry in &file.entries {
        let setting = file.setting(&grammar, entry, &global)?;
        let words = file.words(entry, setting)?;
        if !is_given(given, setting) {
            merged.extend(words.into_iter().map(OsString::from));
            from_file.push((entry.key.clone(), entry.line));
        }
    }
    match Cli::command().try_get_matches_from(&merged) {
        Ok(_) => Ok(MergedSettings { arguments: merged, file: Some(file), from_file }),
        Err(error) => Err(file.refused(&error)),
    }
}

/// A command line with what the file adds.
#[derive(Debug)]
pub(crate) struct MergedSettings {
    pub(crate) arguments: Vec<OsString>,
    file: Option<ConfigFile>,
    /// The settings that the file decides, with their lines.
    from_file: Vec<(String, usize)>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Provenance {
    Option,
    Environment(String),
    File { path: PathBuf, line: usize },
    Default,
}

impl std::fmt::Display for Provenance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Option => f.write_str("option"),
            Self::Environment(name) => write!(f, "environment ({name})"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

impl MergedSettings {
    /// The parsed command line.
    pub(crate) fn cli(&self) -> Result<Cli, Failure> {
        let matches = Cli::command().try_get_matches_from(&self.arguments);
        let mut cli = matches
            .and_then(|matches| Cli::from_arg_matches(&matches))
            .map_err(|error| Failure::usage(one_line(&error), "atoll serve --help"))?;
        cli.global.drop_empty();
        Ok(cli)
    }

    /// The file, if there is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// Where the value of an option comes from.
    pub(crate) fn provenance(&self, option: &Arg, matches: &ArgMatches) -> Provenance {
        let long = option.get_long().unwrap_or_default();
        if let Some(file) = &self.file
            && let Some((_, line)) = self.from_file.iter().find(|(key, _)| key == long)
        {
            return Provenance::File { path: file.path.clone(), line: *line };
        }
        match (matches.value_source(option.get_id().as_str()), option.get_env()) {
            (Some(ValueSource::CommandLine), _) => Provenance::Option,
            (Some(ValueSource::EnvVariable), Some(name)) => {
                Provenance::Environment(name.to_string_lossy().into_owned())
            }
            _ => Provenance::Default,
        }
    }
}

/// Whether the command line or the environment says something about a setting.
fn is_given(matches: &ArgMatches, setting: &Arg) -> bool {
    matches!(
        matches.value_source(setting.get_id().as_str()),
        Some(ValueSource::CommandLine | ValueSource::EnvVariable)
    )
}

/// The grammar of `atoll serve`.
pub(crate) fn serve_grammar() -> Command {
    let mut grammar = Cli::command();
    grammar.build();
    grammar.find_subcommand("serve").cloned().unwrap_or(grammar)
}

/// The settings: options of `atoll serve` with an environment variable, and the data folder. Options of every command, such as
/// the address of a server for the command line, are none.
pub(crate) fn settings(serve: &Command) -> impl Iterator<Item = &Arg> {
    serve.get_arguments().filter(|option| {
        let is_setting = option.get_id() == "data" || !option.is_global_set();
        is_setting && option.get_env().is_some() && option.get_long().is_some()
    })
}

/// An error of the grammar in one line, without its usage text.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let said = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl ConfigFile {
    /// Reads and parses a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|cause| {
            Failure::usage(
                format!("the configuration file {} cannot be read: {cause}", path.display()),
                "name another with --config or ATOLL_CONFIG",
            )
        })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let document = Document::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            Failure::usage(
                format!("{}:{line}: {}", path.display(), error.message()),
                "a line is NAME = VALUE; texts are in \"quotes\"",
            )
        })?;
        let mut file = Self { path: path.to_owned(), entries: Vec::new() };
        for (key, item) in document.as_table() {
            let span = document.as_table().key(key).and_then(toml_edit::Key::span).or_else(|| item.span());
            let line = span.map_or(1, |span| line_of(text, span.start));
            let value = value_of(item).ok_or_else(|| {
                let hint = "a value is a text, a number, true, false, or a list of texts";
                file.bad(line, format!("{key} has a value of another kind"), hint)
            })?;
            file.entries.push(ConfigEntry { key: key.to_owned(), line, value });
        }
        Ok(file)
    }

    fn bad(&self, line: usize, what: impl std::fmt::Display, hint: impl Into<String>) -> Failure {
        Failure::usage(format!("{}:{line}: {what}", self.path.display()), hint)
    }

    /// The setting that an entry is about.
    fn setting<'a>(
        &self,
        serve: &'a Command,
        entry: &ConfigEntry,
        global: &Global,
    ) -> Result<&'a Arg, Failure> {
        let known = |option: &&Arg| option.get_long() == Some(entry.key.as_str());
        let Some(setting) = settings(serve).find(known) else {
            let names = settings(serve).filter(|option| !option.is_hide_set()).filter_map(Arg::get_long);
            let hint = match similar_names::nearest(&entry.key.replace('_', "-"), names) {
                Some(name) => format!("did you mean {name}?"),
                None => "`atoll server config` shows every setting".to_owned(),
            };
            return Err(self.bad(entry.line, format!("there is no setting {}", entry.key), hint));
        };
        // A file inside of a data folder belongs to the server of that folder.
        let is_named = global.config.is_some() || self.path == Path::new(MACHINE_FILE);
        if entry.key == "data" && !is_named {
            let what = "a configuration file in the data folder cannot name another data folder";
            return Err(self.bad(entry.line, what, format!("set data in {MACHINE_FILE} or with --data")));
        }
        Ok(setting)
    }

    /// An entry as words of a command line.
    fn words(&self, entry: &ConfigEntry, setting: &Arg) -> Result<Vec<String>, Failure> {
        let key = &entry.key;
        let is_switch = matches!(setting.get_action(), ArgAction::SetTrue);
        match &entry.value {
            EntryValue::Switch(true) if is_switch => Ok(vec![format!("--{key}")]),
            EntryValue::Switch(false) if is_switch => Ok(Vec::new()),
            EntryValue::Switch(_) => Err(self.bad(
                entry.line,
                format!("{key} is not true or false"),
                "write its value in \"quotes\"",
            )),
            EntryValue::Texts(_) if is_switch => {
                Err(self.bad(entry.line, format!("{key} must be true or false"), format!("{key} = true")))
            }
            EntryValue::Texts(texts)
                if texts.len() > 1 && !matches!(setting.get_action(), ArgAction::Append) =>
            {
                Err(self.bad(entry.line, format!("{key} takes one value"), "`atoll serve --help`"))
            }
            EntryValue::Texts(texts) => Ok(texts.iter().map(|text| format!("--{key}={text}")).collect()),
        }
    }

    /// An error of the grammar about what the file says.
    fn refused(&self, error: &clap::Error) -> Failure {
        use clap::error::{ContextKind, ContextValue};
        let option = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            Some(ContextValue::Strings(texts)) => texts.first().cloned(),
            _ => None,
        };
        let key = option.as_deref().and_then(|text| text.trim_start_matches("--").split([' ', '=']).next());
        let entry = self.entries.iter().find(|entry| Some(entry.key.as_str()) == key);
        match entry {
            Some(entry) => self.bad(entry.line, one_line(error), "`atoll serve --help`"),
            None => Failure::usage(
                format!("{}: {}", self.path.display(), one_line(error)),
                "`atoll serve --help`",
            ),
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

fn value_of(item: &Item) -> Option<EntryValue> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::InlineTable(_) => None,
    };
    match item.as_value()? {
        Value::Boolean(switch) => Some(EntryValue::Switch(*switch.value())),
        Value::Array(values) => values.iter().map(text).collect::<Option<_>>().map(EntryValue::Texts),
        one => text(one).map(|text| EntryValue::Texts(vec![text])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings of `atoll serve` with this file and these words.
    fn merged(folder: &Path, text: &str, words: &[&str]) -> Result<MergedSettings, Failure> {
        let file = folder.join("config.toml");
        std::fs::write(&file, text).expect("writable");
        let file = file.to_str().expect("text");
        let line = ["atoll", "serve", "--config", file].into_iter().chain(words.iter().copied());
        with_file(line.map(OsString::from).collect())
    }

    #[test]
    fn an_option_is_stronger_than_the_file_and_the_file_than_the_default() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let text = "# of the test\npool = 7\nwarm-kernels = 1\nno-ui = true\nallow-local = false\nallow-origin = [\"https://a.test\", \"https://b.test\"]\novercommit = 2.5\ndata = \"/srv/atoll\"\n";
        let merged = merged(folder.path(), text, &["--warm-kernels", "3"]).expect("valid");
        let cli = merged.cli().expect("valid");
        let crate::cli::Command::Serve(serve) = cli.command else { panic!("serve") };
        assert_eq!((serve.pool, serve.warm_kernels, serve.no_ui, serve.allow_local), (7, 3, true, false));
        assert_eq!(serve.allow_origin, ["https://a.test", "https://b.test"]);
        assert_eq!(cli.global.data.as_deref(), Some(Path::new("/srv/atoll")));
        let grammar = serve_grammar();
        let matches = Cli::command().try_get_matches_from(&merged.arguments).expect("valid");
        let matches = matches.subcommand_matches("serve").expect("serve");
        let of = |name: &str| {
            let option = settings(&grammar).find(|option| option.get_long() == Some(name)).expect("known");
            merged.provenance(option, matches)
        };
        let line = |line| Provenance::File { path: folder.path().join("config.toml"), line };
        assert_eq!(
            (of("pool"), of("warm-kernels"), of("domain")),
            (line(2), Provenance::Option, Provenance::Default)
        );
        // Also where the file says what is the default.
        assert_eq!((of("allow-local"), of("data")), (line(5), line(8)));
    }

    #[test]
    fn what_is_wrong_in_a_file_has_its_line() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let own = folder.path().join("config.toml").display().to_string();
        for (text, says, hint) in [
            ("\ntls_port = 1", ":2: there is no setting tls_port", "did you mean tls-port?"),
            ("lisen = \"x\"", ":1: there is no setting lisen", "did you mean listen?"),
            ("[serve]\npool = 1", ":1: serve has a value of another kind", "a value is"),
            ("# a\n\npool = \"many\"", ":3: invalid value 'many' for '--pool", "--help"),
            ("pool = true", ":1: pool is not true or false", "quotes"),
            ("no-ui = \"yes\"", ":1: no-ui must be true or false", "no-ui = true"),
            ("pool = [1, 2]", ":1: pool takes one value", "--help"),
            ("pool = ", ":1: ", "NAME = VALUE"),
            ("tour = true", ":1: there is no setting tour", "config"),
            ("url = \"http://a\"", ":1: there is no setting url", "config"),
            ("tls-cert = \"/a\"", "tls-key", "--help"),
        ] {
            let failure = merged(folder.path(), text, &[]).expect_err(text);
            assert!(failure.message.starts_with(&own), "{text}: {failure:?}");
            assert!(failure.message.contains(says), "{text}: {failure:?}");
            assert!(failure.hint.as_deref().is_some_and(|found| found.contains(hint)), "{text}: {failure:?}");
        }
    }

    #[test]
    fn the_file_of_a_named_data_folder_is_read_and_names_no_other_folder() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let global = Global { data: Some(folder.path().to_owned()), ..Global::default() };
        assert_eq!(find(&global), None);
        let file = folder.path().join("config.toml");
        std::fs::write(&file, "data = \"/elsewhere\"\n").expect("writable");
        assert_eq!(find(&global), Some(file));
        let data = folder.path().to_str().expect("text");
        let refused = with_file(["atoll", "serve", "--data", data].map(OsString::from).into());
        assert!(refused.is_err_and(|failure| failure.message.contains("cannot name another data folder")));
    }

    #[test]
    fn every_option_of_the_server_is_a_setting() {
        let grammar = serve_grammar();
        let settings: Vec<&str> = settings(&grammar).filter_map(Arg::get_long).collect();
        assert!(settings.contains(&"data") && settings.contains(&"socket"), "{settings:?}");
        // What is no setting of a server that runs for long.
        let others: Vec<&str> = grammar
            .get_arguments()
            .filter(|option| !option.is_global_set())
            .filter_map(Arg::get_long)
            .filter(|name| !settings.contains(name))
            .collect();
        assert_eq!(others, ["tour", "background", "help"], "a setting has an environment variable too");
    }
}
