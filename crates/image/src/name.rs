//! Names of templates: which are valid, and which known name is similar to a mistyped one.
//!
//! A name becomes a folder, so its alphabet is limited: no separator, no leading dot, no character that a shell or a
//! path interprets. An alias never becomes a path and may also have the form of an image reference
//! (`system/debian:bookworm`).

use crate::error::TemplateError;

/// LIMIT: longer than names that people type, shorter than the limit of every file system.
const NAME_MAX: usize = 64;
/// LIMIT: enough for an image reference with registry, path and tag; longer names are not looked up or echoed.
const ALIAS_MAX: usize = 128;

/// Checks a name that is about to become a folder.
pub(crate) fn check_name(name: &str) -> Result<(), TemplateError> {
    check(name, NAME_MAX, |c| matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '-'))
}

/// Checks a name or alias that is only looked up.
pub(crate) fn check_alias(alias: &str) -> Result<(), TemplateError> {
    check(alias, ALIAS_MAX, |c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' | ':' | '/'))
}

fn check(name: &str, max: usize, allowed: impl Fn(char) -> bool) -> Result<(), TemplateError> {
    let refuse = |reason| Err(TemplateError::BadName { name: printable(name), reason });
    if name.is_empty() {
        return refuse("it is empty");
    }
    if name.len() > max {
        return refuse("it is too long");
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return refuse("it must start with a letter or a digit");
    }
    if name.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return refuse("it must not contain folders");
    }
    if !name.chars().all(allowed) {
        return refuse("it has a character outside a-z, 0-9, '.', '_' and '-'");
    }
    Ok(())
}

/// The name, safe to display: control characters are escaped, and it is cut to fit a line.
fn printable(name: &str) -> String {
    name.chars().take(48).flat_map(char::escape_default).collect()
}

/// Known names that are similar to the wanted one, the most similar first.
pub(crate) fn near<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let allowed = (wanted.chars().count() / 3).clamp(1, 2);
    let mut found: Vec<(usize, &str)> = known
        .into_iter()
        .map(|name| (strsim::levenshtein(wanted, name), name))
        .filter(|(steps, name)| *steps <= allowed || (wanted.len() >= 3 && name.starts_with(wanted)))
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused() {
        let long = "a".repeat(300);
        for name in [
            "",
            "..",
            "../x",
            "a/../b",
            "/etc",
            "a\0b",
            ".hidden",
            "-rf",
            "a b",
            "ä",
            "a\nb",
            "A",
            long.as_str(),
        ] {
            assert!(check_name(name).is_err(), "{name:?} must not be a template name");
        }
        for alias in ["", "..", "../x", "a/../b", "a//b", "/etc", "a\0b", "x/", "a b", long.as_str()] {
            assert!(check_alias(alias).is_err(), "{alias:?} must not be an alias");
        }
    }

    #[test]
    fn ordinary_names_and_image_references_are_accepted() {
        for name in ["host", "debian", "my-template_2.0"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for alias in ["base", "system/debian:bookworm", "code-interpreter-v1"] {
            assert!(check_alias(alias).is_ok(), "{alias}");
        }
    }

    #[test]
    fn a_mistyped_name_finds_its_neighbours() {
        let known = ["debian", "host", "busybox"];
        assert_eq!(near("debain", known), ["debian"]);
        assert_eq!(near("hots", known), Vec::<String>::new());
        assert_eq!(near("hos", known), ["host"]);
        assert_eq!(near("busy", known), ["busybox"]);
        assert_eq!(near("zzzzzz", known), Vec::<String>::new());
    }
}
