//! Docker's patterns: single path components in `COPY` (as in Go's `filepath.Match`), and whole paths in
//! `.dockerignore` and `--exclude`.

/// LIMIT: characters compared for one `.dockerignore` or one `COPY`: seconds of a core, and a hundred times the usual
/// need.
pub const WORK_MAX: u64 = 10_000_000_000;

/// The pattern is malformed: a bracket that is not closed, or a trailing backslash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pattern {0:?} is not well formed")]
pub struct BadPattern(pub String);

/// Whether a name or path contains a pattern character.
#[must_use]
pub fn is_pattern(text: impl AsRef<[u8]>) -> bool {
    text.as_ref().iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
}

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    tokens: Vec<Token>,
}

/// A character, or a byte that is not part of one.
type Unit = u32;

const SLASH: Unit = b'/' as Unit;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    One(Unit),
    /// Any character except a slash.
    Any,
    /// Any number of characters except slashes.
    Star,
    /// The empty text, or any text that ends with a slash.
    Folders,
    /// Any text.
    Rest,
    Class {
        negated: bool,
        ranges: Vec<(Unit, Unit)>,
    },
}

impl Glob {
    /// For one component of a path; two stars are equal to one.
    pub fn name(pattern: impl AsRef<[u8]>) -> Result<Self, BadPattern> {
        Self::read(pattern.as_ref(), false)
    }

    /// For a whole path.
    pub fn path(pattern: impl AsRef<[u8]>) -> Result<Self, BadPattern> {
        Self::read(pattern.as_ref(), true)
    }

    fn read(pattern: &[u8], is_path: bool) -> Result<Self, BadPattern> {
        let bad = || BadPattern(String::from_utf8_lossy(pattern).into_owned());
        let sign = |sign: u8| Unit::from(sign);
        let mut units = units(pattern).into_iter().peekable();
        let mut tokens = Vec::new();
        while let Some(unit) = units.next() {
            tokens.push(match u8::try_from(unit).unwrap_or(0) {
                b'*' if is_path && units.peek() == Some(&sign(b'*')) => {
                    units.next();
                    units.next_if_eq(&SLASH);
                    if units.peek().is_some() { Token::Folders } else { Token::Rest }
                }
                b'*' => Token::Star,
                b'?' => Token::Any,
                b'\\' => Token::One(units.next().ok_or_else(bad)?),
                b'[' => {
                    let negated = units.next_if_eq(&sign(b'^')).is_some();
                    let mut ranges = Vec::new();
                    while ranges.is_empty() || units.peek() != Some(&sign(b']')) {
                        let low = literal(&mut units).ok_or_else(bad)?;
                        let high = match units.next_if_eq(&sign(b'-')) {
                            Some(_) => literal(&mut units).ok_or_else(bad)?,
                            None => low,
                        };
                        ranges.push((low, high));
                    }
                    units.next();
                    Token::Class { negated, ranges }
                }
                _ => Token::One(unit),
            });
        }
        Ok(Self { tokens })
    }

    /// Whether it matches. The work is added to `work`; beyond [`WORK_MAX`] nothing matches.
    pub fn matches(&self, text: impl AsRef<[u8]>, work: &mut u64) -> bool {
        let text = units(text.as_ref());
        self.matches_any(&text, &[text.len()], work)
    }

    /// Whether it matches the text up to one of these positions.
    fn matches_any(&self, text: &[Unit], ends: &[usize], work: &mut u64) -> bool {
        if *work > WORK_MAX {
            return false;
        }
        // `reach[n]`: the tokens so far match the first `n` characters.
        let mut reach = vec![false; text.len() + 1];
        reach[0] = true;
        for token in &self.tokens {
            *work += reach.len() as u64;
            if *work > WORK_MAX || !token.step(text, &mut reach) {
                return false;
            }
        }
        ends.iter().any(|end| reach[*end])
    }
}

/// The characters of a text. Bytes that are not UTF-8 get values above all characters.
fn units(text: &[u8]) -> Vec<Unit> {
    const BYTES: Unit = 0x11_0000;
    let mut units = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        units.extend(chunk.valid().chars().map(Unit::from));
        units.extend(chunk.invalid().iter().map(|byte| BYTES + Unit::from(*byte)));
    }
    units
}

fn literal(units: &mut impl Iterator<Item = Unit>) -> Option<Unit> {
    let unit = units.next()?;
    match u8::try_from(unit) {
        Ok(b'\\') => units.next(),
        Ok(b'-' | b']') => None,
        _ => Some(unit),
    }
}

impl Token {
    /// Advances by one token; `false`: no position is reachable any more.
    fn step(&self, text: &[Unit], reach: &mut [bool]) -> bool {
        match self {
            Self::Star => {
                for at in 1..reach.len() {
                    reach[at] |= reach[at - 1] && text[at - 1] != SLASH;
                }
            }
            Self::Rest => {
                let first = reach.iter().position(|r| *r).unwrap_or(reach.len());
                reach[first..].fill(true);
            }
            Self::Folders => {
                let first = reach.iter().position(|r| *r).unwrap_or(reach.len());
                for at in first + 1..reach.len() {
                    reach[at] |= text[at - 1] == SLASH;
                }
            }
            Self::One(_) | Self::Any | Self::Class { .. } => {
                for at in (1..reach.len()).rev() {
                    reach[at] = reach[at - 1] && self.fits(text[at - 1]);
                }
                reach[0] = false;
            }
        }
        reach.contains(&true)
    }

    fn fits(&self, unit: Unit) -> bool {
        match self {
            Self::One(one) => *one == unit,
            Self::Any => unit != SLASH,
            Self::Class { negated, ranges } => {
                unit != SLASH && ranges.iter().any(|(low, high)| (*low..=*high).contains(&unit)) != *negated
            }
            Self::Star | Self::Folders | Self::Rest => false,
        }
    }
}

/// Patterns that exclude paths, and exceptions that keep some: the last one that matches a path, or a folder above it,
/// decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exclusions {
    rules: Vec<(Effect, Glob)>,
}

/// The effect of a pattern on the paths that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Exclude,
    /// Written with a leading `!`.
    Keep,
}

impl FromIterator<(Effect, Glob)> for Exclusions {
    fn from_iter<I: IntoIterator<Item = (Effect, Glob)>>(rules: I) -> Self {
        Self { rules: rules.into_iter().collect() }
    }
}

impl Exclusions {
    /// Whether there are no patterns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether an entry below an excluded folder may be kept, so that the folder must be searched.
    #[must_use]
    pub fn has_exceptions(&self) -> bool {
        self.rules.iter().any(|(effect, _)| *effect == Effect::Keep)
    }

    /// Whether a path (relative, without a leading `./`) is excluded; adds the work to `work`.
    pub fn is_excluded(&self, path: impl AsRef<[u8]>, work: &mut u64) -> bool {
        if self.rules.is_empty() {
            return false;
        }
        let text = units(path.as_ref());
        // The ends of its parent folders and of the path itself.
        let ends = text.iter().enumerate().filter(|(_, unit)| **unit == SLASH).map(|(at, _)| at);
        let ends: Vec<usize> = ends.chain([text.len()]).collect();
        let last = self.rules.iter().rev().find(|(_, glob)| glob.matches_any(&text, &ends, work));
        last.is_some_and(|(effect, _)| *effect == Effect::Exclude)
    }
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
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abd", false),
            ("a?c", "abc", true),
            ("a?c", "aüc", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("*.txt", ".txt", true),
            ("a*b*c", "aXbYbZc", true),
            ("**", "ab", true),
            ("*", "a/b", false),
            ("[a\\]]", "]", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Glob::name(pattern).unwrap().matches(name, &mut 0), fits, "{pattern} {name}");
        }
        for bad in ["[", "[a", "a\\", "[-]", "[]", "[]a]"] {
            assert!(Glob::name(bad).is_err(), "{bad}");
        }
        assert!(Glob::name("[a-z]*\\[").is_ok());
    }

    #[test]
    fn bytes_that_are_no_utf_8_are_one_character_each() {
        let glob = Glob::name(b"a?[^a-z]\xff*").unwrap();
        assert!(glob.matches(b"a\xfe\xfd\xffb", &mut 0));
        assert!(!glob.matches(b"a\xfeb\xffb", &mut 0));
    }

    #[test]
    fn the_last_pattern_that_matches_decides() {
        let excluded = |patterns: &[&str], path: &str| {
            let rules = patterns.iter().map(|pattern| match pattern.strip_prefix('!') {
                Some(kept) => (Effect::Keep, Glob::path(kept).unwrap()),
                None => (Effect::Exclude, Glob::path(pattern).unwrap()),
            });
            rules.collect::<Exclusions>().is_excluded(path, &mut 0)
        };
        assert!(excluded(&["node_modules"], "node_modules/a/b"));
        assert!(!excluded(&["node_modules"], "src/node_modules"));
        assert!(excluded(&["**/node_modules"], "src/x/node_modules/y"));
        assert!(excluded(&["**/*.o"], "a.o") && excluded(&["a/**"], "a/b/c"));
        assert!(!excluded(&["a/**/c"], "a/b") && !excluded(&["a/**"], "a"));
        assert!(!excluded(&["*.md", "!README.md"], "README.md"));
        assert!(excluded(&["!README.md", "*.md"], "README.md"));
        assert!(!excluded(&[], "a"));
    }

    proptest! {
        #[test]
        fn a_plain_name_matches_itself_and_a_star_everything(name in "[a-z.]{0,20}") {
            prop_assert!(Glob::name(&name).unwrap().matches(&name, &mut 0));
            prop_assert!(Glob::name("*").unwrap().matches(&name, &mut 0));
        }

        #[test]
        fn no_pattern_panics_or_takes_more_than_both_lengths(
            pattern in "[*?a/\\[\\]\\\\^-]{0,80}",
            name in "[a/]{0,200}",
        ) {
            for glob in [Glob::name(&pattern), Glob::path(&pattern)].into_iter().flatten() {
                let mut work = 0;
                let _ = glob.matches(&name, &mut work);
                prop_assert!(work <= (pattern.len() * (name.len() + 1)) as u64);
            }
        }
    }

    #[test]
    fn work_ends_where_it_is_bounded() {
        let glob = Glob::path("**/".repeat(1_300) + "b").unwrap();
        let mut work = WORK_MAX - 10_000;
        assert!(!glob.matches("a/".repeat(2_000), &mut work));
        assert!(work > WORK_MAX && work < WORK_MAX + 10_000, "{work}");
        assert!(!glob.matches("b", &mut work), "nothing matches any more");
    }
}
