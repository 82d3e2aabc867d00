//! Texts that name secrets of a tenant: `Bearer {secret:GITHUB}`. Pure functions: the caller provides the values.

/// LIMIT: length of a name.
const NAME_MAX: usize = 64;
/// LIMIT: bytes of a value; it has to fit into a header.
pub const SECRET_BYTES_MAX: usize = 8 << 10;
const OPEN: &str = "{secret:";

/// Why a text, a name or a value cannot be used. Never contains a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// The name of a secret is wrong.
    #[error(
        "the name of a secret has 1 to {NAME_MAX} letters, digits, '_', '.' or '-', and starts with a letter or '_'"
    )]
    Name,
    /// `{secret:` is not followed by a name and `}`.
    #[error("{{secret: must be followed by the name of a secret and a closing brace")]
    Text,
    /// It is too short or too long.
    #[error("a secret has 1 to {SECRET_BYTES_MAX} bytes")]
    Length,
    /// It contains characters that are not allowed in a header.
    #[error("a secret must not contain control characters or line ends")]
    Control,
}

/// Checks the name of a secret.
pub fn check_secret_name(name: &str) -> Result<(), BadSecret> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    let begins = |b: &u8| b.is_ascii_alphabetic() || *b == b'_';
    if name.len() <= NAME_MAX && name.as_bytes().first().is_some_and(begins) && name.bytes().all(plain) {
        Ok(())
    } else {
        Err(BadSecret::Name)
    }
}

/// Checks the value of a secret.
pub fn check_secret_value(value: &str) -> Result<(), BadSecret> {
    if value.is_empty() || value.len() > SECRET_BYTES_MAX {
        return Err(BadSecret::Length);
    }
    if value.bytes().any(|b| (b < 0x20 && b != b'\t') || b == 0x7f) {
        return Err(BadSecret::Control);
    }
    Ok(())
}

/// The names of secrets in a text, in order.
pub fn secrets_in(text: &str) -> Result<Vec<&str>, BadSecret> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(OPEN) {
        let (name, behind) = after.split_once('}').ok_or(BadSecret::Text)?;
        check_secret_name(name).map_err(|_| BadSecret::Text)?;
        names.push(name);
        rest = behind;
    }
    Ok(names)
}

/// The text with the names replaced by the values. `None` if a name is unknown, or if the result is longer than a value
/// may be: a secret that is named often and then changed to a long one must not fill the memory. Inserted values are
/// not searched again: a value that has the form of a name stays unchanged.
#[must_use]
pub fn fill_secrets<'a>(text: &str, value_of: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        let (name, behind) = after.split_once('}')?;
        filled.push_str(before);
        filled.push_str(value_of(name)?);
        if filled.len() > SECRET_BYTES_MAX {
            return None;
        }
        rest = behind;
    }
    filled.push_str(rest);
    (filled.len() <= SECRET_BYTES_MAX).then_some(filled)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn value_of(name: &str) -> Option<&'static str> {
        match name {
            "A" => Some("alpha"),
            "B" => Some("{secret:A}"),
            _ => None,
        }
    }

    #[test]
    fn names_are_found_and_filled_in_once() {
        assert_eq!(secrets_in("Bearer {secret:A}, {secret:B.c-d}").unwrap(), ["A", "B.c-d"]);
        assert_eq!(secrets_in("plain {A} {} secret:A").unwrap(), Vec::<&str>::new());
        assert_eq!(fill_secrets("x{secret:A}y{secret:A}", value_of).unwrap(), "xalphayalpha");
        assert_eq!(fill_secrets("{secret:B}", value_of).unwrap(), "{secret:A}");
        assert_eq!(fill_secrets("{secret:C}", value_of), None);
    }

    #[test]
    fn a_secret_that_is_named_often_does_not_grow_beyond_a_value() {
        let (text, long) = ("{secret:A}".repeat(700), "x".repeat(SECRET_BYTES_MAX));
        assert_eq!(fill_secrets(&text, |_| Some("x")).unwrap().len(), 700);
        assert_eq!(fill_secrets(&text, |_| Some(&long)), None);
        assert_eq!(fill_secrets("{secret:A}", |_| Some(&long)), Some(long.clone()));
        assert_eq!(fill_secrets("{secret:A}.", |_| Some(&long)), None);
    }

    #[test]
    fn odd_texts_names_and_values_are_refused() {
        for text in
            ["{secret:}", "{secret:A", "{secret:a b}", "{secret:{secret:A}}", "{secret:1}", "{secret: A}"]
        {
            assert_eq!(secrets_in(text), Err(BadSecret::Text), "{text}");
        }
        for name in ["", "1a", ".a", "-a", "a b", "a/b", "é", &"a".repeat(65)] {
            assert_eq!(check_secret_name(name), Err(BadSecret::Name), "{name}");
        }
        for name in ["_", "A1", "GITHUB_TOKEN", "a.b-c", &"a".repeat(64)] {
            assert_eq!(check_secret_name(name), Ok(()), "{name}");
        }
        assert_eq!(check_secret_value(""), Err(BadSecret::Length));
        assert_eq!(check_secret_value(&"x".repeat(SECRET_BYTES_MAX + 1)), Err(BadSecret::Length));
        for value in ["a\nb", "a\r", "\0", "\u{7f}"] {
            assert_eq!(check_secret_value(value), Err(BadSecret::Control));
        }
        assert_eq!(check_secret_value("a b\t{}"), Ok(()));
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_can_be_filled_in(text in "(\\{secret:|\\}|[a-z{}: ]){0,12}") {
            if let Ok(names) = secrets_in(&text) {
                prop_assert!(fill_secrets(&text, |_| Some("v")).is_some());
                let unknown = fill_secrets(&text, |_| None);
                prop_assert_eq!(unknown.is_some(), names.is_empty());
            }
        }
    }

    #[test]
    fn a_text_whose_secrets_are_known_is_filled_within_bounds() {
        atoll_robustness::check("secret_text", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let filled = fill_secrets(&text, |_| Some("value"));
            assert!(filled.as_ref().is_none_or(|filled| filled.len() <= SECRET_BYTES_MAX));
            if let Ok(names) = secrets_in(&text) {
                assert!(names.iter().all(|name| check_secret_name(name).is_ok()));
            }
        });
    }
}
