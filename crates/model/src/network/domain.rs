//! Host names and patterns for them, in canonical form only: lower case, ASCII, no final dot.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// LIMIT: the limits of DNS.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A name, all names below one (`*.example.com`), or every name (`*`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DomainPattern(PatternKind);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum PatternKind {
    Every,
    Below(String),
    Exactly(String),
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a domain: {why}")]
pub struct BadDomain {
    text: String,
    why: &'static str,
}

impl DomainPattern {
    /// Whether the pattern matches a name (lower case, no final dot).
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match &self.0 {
            PatternKind::Every => true,
            PatternKind::Below(parent) => {
                name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            PatternKind::Exactly(exact) => name == exact,
        }
    }

    /// Whether it matches only a single name.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self.0, PatternKind::Exactly(_))
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PatternKind::Every => f.write_str("*"),
            PatternKind::Below(parent) => write!(f, "*.{parent}"),
            PatternKind::Exactly(exact) => f.write_str(exact),
        }
    }
}

impl FromStr for DomainPattern {
    type Err = BadDomain;

    fn from_str(text: &str) -> Result<Self, BadDomain> {
        let bad = |why| BadDomain { text: text.chars().take(64).collect(), why };
        if text == "*" {
            return Ok(Self(PatternKind::Every));
        }
        let (wild, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if !name.is_ascii() {
            return Err(bad("write names with non-ASCII letters in their xn-- form"));
        }
        if name.contains('*') {
            return Err(bad("a star is allowed only at the beginning, as in *.example.com"));
        }
        if !is_host_name(&name) {
            return Err(bad(
                "write a name such as example.com or *.example.com, without scheme, port or path",
            ));
        }
        if !name.contains('.') {
            return Err(bad("it needs at least two labels"));
        }
        Ok(Self(if wild { PatternKind::Below(name) } else { PatternKind::Exactly(name) }))
    }
}

/// Whether a text is a host name in canonical form: labels of lower-case letters, digits, inner hyphens and
/// underscores, and not an address (the last label is not a number).
#[must_use]
pub fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LONGEST_LABEL).contains(&label.len())
            && label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |label: &str| {
        label.bytes().all(|b| b.is_ascii_digit())
            || label.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    name.len() <= LONGEST_NAME
        && name.split('.').all(is_label)
        && !name.rsplit('.').next().is_some_and(is_number)
}

impl TryFrom<String> for DomainPattern {
    type Error = BadDomain;

    fn try_from(text: String) -> Result<Self, BadDomain> {
        text.parse()
    }
}

impl From<DomainPattern> for String {
    fn from(pattern: DomainPattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_mean_what_they_say() {
        let below: DomainPattern = "*.Example.com.".parse().unwrap();
        assert_eq!(below.to_string(), "*.example.com");
        assert!(below.matches("a.example.com") && below.matches("a.b.example.com"));
        for other in ["example.com", "badexample.com", ".example.com", "example.com.evil", "a.example.org"] {
            assert!(!below.matches(other), "{other}");
        }
        assert!("example.com".parse::<DomainPattern>().unwrap().matches("example.com"));
        assert!("*".parse::<DomainPattern>().unwrap().matches("anything.at.all"));
    }

    #[test]
    fn odd_patterns_are_refused() {
        for bad in [
            "",
            ".",
            "com",
            "*.com",
            "**.example.com",
            "a.*.com",
            "http://example.com",
            "example.com:443",
            "example.com/x",
            "1.2.3.4",
            "0x7f.1",
            "exa mple.com",
            "-a.com",
            "a-.com",
            "a..com",
            "bücher.de",
            "[::1]",
            "user@example.com",
            "*example.com",
            "a.0x7f000001",
        ] {
            assert!(bad.parse::<DomainPattern>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in "[a-zA-Z0-9.*_-]{0,40}") {
            if let Ok(pattern) = text.parse::<DomainPattern>() {
                prop_assert_eq!(pattern.to_string().parse::<DomainPattern>().unwrap(), pattern);
            }
        }

        #[test]
        fn a_pattern_below_a_name_never_matches_outside_it(name in "[a-z0-9.-]{0,40}") {
            let below: DomainPattern = "*.example.com".parse().unwrap();
            prop_assert_eq!(below.matches(&name), name.ends_with(".example.com") && name.len() > 12);
        }
    }

    #[test]
    fn a_pattern_that_is_read_is_written_back_the_same() {
        atoll_robustness::check("domain_pattern", |bytes| {
            if let Ok(pattern) = String::from_utf8_lossy(bytes).parse::<DomainPattern>() {
                assert_eq!(pattern.to_string().parse::<DomainPattern>().ok(), Some(pattern));
            }
        });
    }
}
