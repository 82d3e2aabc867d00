//! Translates names of Daytona's snapshots and of Atoll's templates.
//!
//! A snapshot of Daytona is either a template or a snapshot of Atoll. The name of a template is lower-case. A name with
//! capital letters becomes `cased/…`, in which `xa` stands for `A` and `x0` for `x`, so that it can be shown as the
//! user wrote it.

use atoll_front_kit::ApiError;
use atoll_model::{Code, LimitsAsk, Principal, TemplateRef};
use atoll_service::TemplateRecord;

use crate::DaytonaApp;
use crate::sandboxes::limits;

/// The name of the default snapshot; `/config` shows it too.
pub(crate) const DEFAULT: &str = "daytona";
/// The user of commands if a template has that user, and its home.
pub(crate) const USER: &str = "daytona";
pub(crate) const HOME: &str = "/home/daytona";
/// COMPAT(daytona): the vendor's general snapshots, with their resources.
const SIZES: [(&str, u32, u32, u32); 3] =
    [("daytona-small", 1, 1, 3), ("daytona-medium", 2, 4, 8), ("daytona-large", 4, 8, 10)];
const CASED: &str = "cased/";

/// The resources of the vendor's sizes.
pub(crate) fn size(name: &str) -> Option<LimitsAsk> {
    SIZES
        .iter()
        .find(|(size, ..)| *size == name)
        .map(|(_, cpu, memory, disk)| limits(Some(*cpu), Some(*memory), Some(*disk)))
}

/// The template name for a snapshot's name.
pub(crate) fn word(name: &str) -> Result<String, ApiError> {
    let word = if name.bytes().any(|b| b.is_ascii_uppercase()) { cased(name) } else { name.to_owned() };
    match word.parse::<TemplateRef>() {
        Ok(_) => Ok(word),
        Err(_) => Err(ApiError::invalid(format!(
            "name: {name:?} is no name of a snapshot: letters, digits and single . _ - between them, a tag behind a colon"
        ))),
    }
}

/// The snapshot's name as the user wrote it.
pub(crate) fn name(word: &str) -> String {
    match word.strip_prefix(CASED) {
        Some(cased) => uncased(cased),
        None => word.to_owned(),
    }
}

fn cased(name: &str) -> String {
    // A tag may contain any letters.
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name, None),
    };
    let mut word = CASED.to_owned();
    for letter in name.chars() {
        match letter {
            'x' => word.push_str("x0"),
            'A'..='Z' => {
                word.push('x');
                word.push(letter.to_ascii_lowercase());
            }
            other => word.push(other),
        }
    }
    match tag {
        Some(tag) => format!("{word}:{tag}"),
        None => word,
    }
}

fn uncased(word: &str) -> String {
    let (word, tag) = match word.rsplit_once(':') {
        Some((word, tag)) => (word, format!(":{tag}")),
        None => (word, String::new()),
    };
    let mut name = String::with_capacity(word.len());
    let mut letters = word.chars();
    while let Some(letter) = letters.next() {
        match letter {
            'x' => match letters.next() {
                Some('0') | None => name.push('x'),
                Some(small) => name.push(small.to_ascii_uppercase()),
            },
            letter => name.push(letter),
        }
    }
    name + &tag
}

/// The template with this name; `None` if there is none (a snapshot may have the name).
pub(crate) async fn template(
    app: &DaytonaApp,
    who: &Principal,
    name: &str,
) -> Result<Option<TemplateRecord>, ApiError> {
    let Ok(word) = word(name) else { return Ok(None) };
    match app.service.templates().get(who, &word).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.code, Code::TemplateNotFound | Code::InvalidRequest) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a template is the one made for this front, which has a user `daytona`.
pub(crate) fn has_daytona(template: &TemplateRecord) -> bool {
    template.tenant.is_none() && template.is_called(DEFAULT)
}

/// The vendor's names of a general template.
pub(crate) fn general_names(template: &TemplateRecord) -> Vec<&'static str> {
    if !has_daytona(template) {
        return Vec::new();
    }
    std::iter::once(DEFAULT).chain(SIZES.iter().map(|(name, ..)| *name)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_back_as_it_was_written() {
        for name_of_user in [
            "app",
            "python-example:1700000000",
            "team/app",
            "My-Snapshot",
            "My_Snap_X:V1",
            "maxX:xX",
            "Team/App.One",
            "a_b",
        ] {
            assert_eq!(name(&word(name_of_user).unwrap()), name_of_user);
        }
        assert_eq!(word("plain").unwrap(), "plain");
        assert_eq!(word("My_Xx:V1").unwrap(), "cased/xmy_xxx0:V1");
        for odd in ["", "a b", "../x", "ä", "-x"] {
            assert_eq!(word(odd).unwrap_err().status().as_u16(), 400, "{odd}");
        }
    }

    #[test]
    fn the_vendors_sizes_are_known() {
        assert_eq!(size("daytona-medium").unwrap().memory_mib, Some(4_096));
        assert_eq!(size("mine"), None);
    }
}
