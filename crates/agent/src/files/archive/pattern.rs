//! The entries that a pack excludes: Docker's patterns, limited in number.

use atoll_glob::docker::{BadPattern, Effect, Exclusions, Glob};

use crate::error::AgentError;

/// LIMIT: patterns of one pack.
const PATTERNS_MAX: usize = 1000;

impl From<BadPattern> for AgentError {
    fn from(bad: BadPattern) -> Self {
        let text = format!("the pattern '{}' is not well formed", crate::files::shown(bad.0.as_bytes()));
        Self::Invalid(text)
    }
}

/// Patterns of excluded entries.
#[derive(Debug, Default)]
pub(super) struct Excluded(Exclusions);

impl Excluded {
    pub(super) fn parse(patterns: &[Vec<u8>]) -> Result<Self, AgentError> {
        if patterns.len() > PATTERNS_MAX {
            return Err(AgentError::Invalid(format!("at most {PATTERNS_MAX} exclude patterns are allowed")));
        }
        let rules = patterns.iter().map(|pattern| {
            let (effect, text) = match pattern.strip_prefix(b"!") {
                Some(rest) => (Effect::Keep, rest),
                None => (Effect::Exclude, &pattern[..]),
            };
            let parts = text.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".");
            Ok((effect, Glob::path(parts.collect::<Vec<_>>().join(&b'/'))?))
        });
        rules.collect::<Result<_, BadPattern>>().map(Self).map_err(AgentError::from)
    }

    /// Whether an excluded folder can be skipped with everything below it.
    pub(super) fn may_prune(&self) -> bool {
        !self.0.has_exceptions()
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        self.0.is_excluded(path, &mut 0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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

    #[test]
    fn any_patterns_are_read_and_asked() {
        atoll_robustness::check("archive_pattern", |bytes| {
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
