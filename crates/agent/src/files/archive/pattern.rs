//! Patterns in the manner of Docker: `*`, `?`, `[a-z]`, `[^a-z]`, `\x`, none of which goes over a slash, and `**` for any
//! number of folders. Matching takes at most the product of both lengths, whatever the pattern.

use crate::error::AgentError;

/// LIMIT: patterns of one ask.
const PATTERNS_MAX: usize = 1000;

/// Whether a name holds a sign that makes it a pattern.
pub(super) fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|b| matches!(b, b'*' | b'?' | b'[' | b'\\'))
}

/// Refuses what no name can match by mistake of its writer: a bracket that is not closed, a backslash at the end.
pub(super) fn check(pattern: &[u8]) -> Result<(), AgentError> {
    let mut rest = pattern;
    while !rest.is_empty() {
        rest = match one(rest, b'x') {
            Some((_, rest)) => rest,
            None => {
                let text = format!("the pattern '{}' is not well formed", crate::files::shown(pattern));
                return Err(AgentError::Invalid(text));
            }
        };
    }
    Ok(())
}

/// Whether a name (without a slash) matches a pattern (without one).
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (pattern, name);
    // Where the last star was: what follows it, and how much of the name it has not taken yet.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = p {
            (p, star) = (rest, Some((rest, n)));
            continue;
        }
        let step = match (p.is_empty(), n.split_first()) {
            (true, None) => return true,
            (false, Some((first, others))) => {
                one(p, *first).and_then(|(fits, rest)| fits.then_some((rest, others)))
            }
            (true, Some(_)) | (false, None) => None,
        };
        match (step, star) {
            (Some(next), _) => (p, n) = next,
            (None, Some((after, [_, taken @ ..]))) => {
                (p, n, star) = (after, taken, Some((after, taken)));
            }
            (None, _) => return false,
        }
    }
}

/// One element of a pattern (never a star) against one byte, and what follows the element. `None`: not well formed.
fn one(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    match pattern {
        [b'?', rest @ ..] | [b'*', rest @ ..] => Some((true, rest)),
        [b'\\', literal, rest @ ..] => Some((*literal == byte, rest)),
        [b'\\'] | [] => None,
        [b'[', rest @ ..] => class(rest, byte),
        [literal, rest @ ..] => Some((*literal == byte, rest)),
    }
}

fn class(mut rest: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let mut negated = false;
    if let [b'^', inner @ ..] = rest {
        (rest, negated) = (inner, true);
    }
    let (mut fits, mut items) = (false, 0);
    loop {
        if let [b']', after @ ..] = rest
            && items > 0
        {
            return Some((fits != negated, after));
        }
        let (low, after) = literal(rest)?;
        let (high, after) = match after {
            [b'-', range @ ..] => literal(range)?,
            _ => (low, after),
        };
        fits |= (low..=high).contains(&byte);
        (rest, items) = (after, items + 1);
    }
}

fn literal(rest: &[u8]) -> Option<(u8, &[u8])> {
    match rest {
        [b'\\', byte, rest @ ..] => Some((*byte, rest)),
        [] | [b'\\'] | [b'-' | b']', ..] => None,
        [byte, rest @ ..] => Some((*byte, rest)),
    }
}

/// What is left out: the last pattern that speaks of an entry, or of a folder above it, decides.
#[derive(Debug, Default)]
pub(super) struct Excluded {
    patterns: Vec<(bool, Vec<Vec<u8>>)>,
}

impl Excluded {
    pub(super) fn parse(patterns: &[Vec<u8>]) -> Result<Self, AgentError> {
        if patterns.len() > PATTERNS_MAX {
            return Err(AgentError::Invalid(format!(
                "at most {PATTERNS_MAX} patterns can leave something out"
            )));
        }
        let mut parsed = Vec::new();
        for pattern in patterns {
            let (kept, text) = match pattern.strip_prefix(b"!") {
                Some(rest) => (true, rest),
                None => (false, &pattern[..]),
            };
            let parts: Vec<Vec<u8>> = parts(text).map(<[u8]>::to_vec).collect();
            parts.iter().try_for_each(|part| check(part))?;
            parsed.push((kept, parts));
        }
        Ok(Self { patterns: parsed })
    }

    /// Whether a folder that is left out can be passed over with all below it.
    pub(super) fn may_prune(&self) -> bool {
        self.patterns.iter().all(|(kept, _)| !kept)
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let names: Vec<&[u8]> = parts(path).collect();
        let speaks = |pattern: &[Vec<u8>]| (1..=names.len()).any(|end| path_matches(pattern, &names[..end]));
        self.patterns.iter().rev().find(|(_, pattern)| speaks(pattern)).is_some_and(|(kept, _)| !kept)
    }
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// `reach[n]`: the pattern so far matches the first `n` names.
fn path_matches(pattern: &[Vec<u8>], names: &[&[u8]]) -> bool {
    let mut reach = vec![false; names.len() + 1];
    reach[0] = true;
    for part in pattern {
        if part == b"**" {
            let first = reach.iter().position(|r| *r).unwrap_or(reach.len());
            reach[first..].fill(true);
            continue;
        }
        for at in (1..=names.len()).rev() {
            reach[at] = reach[at - 1] && matches(part, names[at - 1]);
        }
        reach[0] = false;
    }
    reach[names.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_match_as_in_go() {
        for (pattern, name, fits) in [
            ("*", "abc", true),
            ("a*c", "abc", true),
            ("a*c", "abd", false),
            ("a?c", "abc", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("*.txt", ".txt", true),
            ("a*b*c", "aXbYbZc", true),
            ("", "", true),
            ("", "a", false),
            ("[]a]", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
        for bad in ["[", "[a", "a\\", "[-]", "[]"] {
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(check(b"[a-z]*\\[").is_ok());
    }

    #[test]
    fn what_is_left_out_follows_the_last_word() {
        let excluded = |patterns: &[&str], path: &str| {
            let patterns: Vec<Vec<u8>> = patterns.iter().map(|p| p.as_bytes().to_vec()).collect();
            Excluded::parse(&patterns).unwrap().matches(path.as_bytes())
        };
        assert!(excluded(&["node_modules"], "node_modules/a/b"));
        assert!(!excluded(&["node_modules"], "src/node_modules"));
        assert!(excluded(&["**/node_modules"], "src/x/node_modules/y"));
        assert!(
            excluded(&["**/*.o"], "a.o") && excluded(&["a/**"], "a/b/c") && !excluded(&["a/**/c"], "a/b")
        );
        assert!(
            !excluded(&["*.md", "!README.md"], "README.md") && excluded(&["!README.md", "*.md"], "README.md")
        );
    }

    proptest! {
        #[test]
        fn a_plain_name_matches_itself_and_a_star_everything(name in "[a-z.]{0,20}") {
            prop_assert!(matches(name.as_bytes(), name.as_bytes()));
            prop_assert!(matches(b"*", name.as_bytes()));
        }

        #[test]
        fn no_pattern_takes_long_or_panics(pattern in "[*?a\\[\\]\\\\^-]{0,60}", name in "a{0,200}") {
            let _ = check(pattern.as_bytes());
            let _ = matches(pattern.as_bytes(), name.as_bytes());
        }
    }

    #[test]
    fn any_patterns_are_read_and_asked() {
        atoll_robustness::check!("archive_pattern", |bytes| {
            let patterns: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            if let Ok(excluded) = Excluded::parse(&patterns) {
                let _ = excluded.may_prune();
                for path in [&b"src/deep/main.rs"[..], b"a", &bytes[..bytes.len().min(100)]] {
                    let _ = excluded.matches(path);
                }
            }
        });
    }
}
