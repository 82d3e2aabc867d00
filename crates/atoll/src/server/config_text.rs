//! Texts about the settings that are made from the grammar: the commented example of a configuration file, and the reference in
//! `docs/configuration.md`.

use clap::{Arg, ArgAction, Command};

use super::config_file::{serve_grammar, settings};

/// The width of comments.
const WIDTH: usize = 100;

/// The head of the example.
const HEAD: &str = "\
# Settings of the Atoll server. Each is also an option of `atoll serve` (with -- before it) and an environment variable. An
# option takes precedence over the environment, the environment over this file. A line that begins with # is a comment and
# shows the default. `atoll server config` shows every setting in effect and where it comes from.
# After a change: systemctl restart atoll (or atoll server restart); sandboxes keep running.
";

/// A configuration file with every setting, commented out, except the data folder `data`.
pub(crate) fn example(data: &str) -> String {
    let grammar = serve_grammar();
    let mut text = HEAD.to_owned();
    for option in listed_options(&grammar) {
        text.push('\n');
        for line in wrapped(&about(option)) {
            text.push_str(&format!("# {line}\n"));
        }
        let name = option.get_long().unwrap_or_default();
        if name == "data" {
            text.push_str(&format!("data = {data:?}\n"));
        } else {
            text.push_str(&format!("#{name} = {}\n", example_value(option)));
        }
    }
    text
}

/// The table of all settings, as Markdown.
pub(crate) fn reference() -> String {
    let grammar = serve_grammar();
    let mut text = "| setting | environment | default | what it does |\n|---|---|---|---|\n".to_owned();
    for option in listed_options(&grammar) {
        let environment =
            option.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (default, about) = (default(option), about(option));
        text.push_str(&format!(
            "| `{}` | `{environment}` | {} | {} |\n",
            option.get_long().unwrap_or_default(),
            if default.is_empty() { String::new() } else { format!("`{default}`") },
            about.replace('|', "\\|")
        ));
    }
    text
}

/// The settings that the help shows; the data folder first.
fn listed_options(grammar: &Command) -> Vec<&Arg> {
    let mut shown: Vec<&Arg> = settings(grammar).filter(|option| !option.is_hide_set()).collect();
    shown.sort_by_key(|option| option.get_id() != "data");
    shown
}

/// What a setting is for, with its possible values.
fn about(option: &Arg) -> String {
    let mut text = option.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = option
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("{}: {help}", value.get_name()),
            None => value.get_name().to_owned(),
        })
        .collect();
    let is_switch = matches!(option.get_action(), ArgAction::SetTrue);
    if !values.is_empty() && !is_switch {
        text.push_str(&format!(" [{}]", values.join("; ")));
    }
    text
}

fn default(option: &Arg) -> String {
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return "false".to_owned();
    }
    let values: Vec<_> = option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    values.join(",")
}

/// The default as the file has it; for a setting without one, an example of its form.
fn example_value(option: &Arg) -> String {
    let default = default(option);
    if matches!(option.get_action(), ArgAction::Append) {
        return "[]".to_owned();
    }
    let is_number = default.parse::<f64>().is_ok();
    if matches!(option.get_action(), ArgAction::SetTrue) || is_number {
        default
    } else {
        format!("{default:?}")
    }
}

/// Lines of at most [`WIDTH`] characters.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.len() + 1 + word.len() > WIDTH {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::server::config_file::with_file;

    fn in_tree(path: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
    }

    #[test]
    fn the_example_in_the_tree_has_every_setting() {
        let made = example("/var/lib/atoll");
        assert_eq!(
            in_tree("deploy/config.toml"),
            made,
            "make it again: atoll server config --example > deploy/config.toml"
        );
    }

    #[test]
    fn the_reference_in_the_documentation_has_every_setting() {
        let page = in_tree("docs/configuration.md");
        assert!(
            page.contains(&reference()),
            "docs/configuration.md: replace the table by the output of `atoll server config --reference`"
        );
    }

    /// Every line of the example is valid when its # is removed, except those without a default.
    #[test]
    fn the_lines_of_the_example_can_be_used() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("config.toml");
        let grammar = serve_grammar();
        let with_default: Vec<&str> = listed_options(&grammar)
            .into_iter()
            .filter(|option| !default(option).is_empty())
            .filter_map(Arg::get_long)
            .collect();
        let text: String = example("/var/lib/atoll")
            .lines()
            .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
            .filter(|line| line.split(" = ").next().is_some_and(|name| with_default.contains(&name)))
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(text.lines().count() > 15, "{text}");
        std::fs::write(&file, &text).expect("writable");
        let line = ["atoll", "serve", "--config", file.to_str().expect("text")].map(OsString::from);
        with_file(line.into()).map(drop).unwrap_or_else(|failure| panic!("{failure:?}\n{text}"));
    }
}
