//! Patterns: one part of a path in `COPY` (`*`, `?`, `[a-z]`, as Go's `filepath.Match` has them), and whole paths in
//! `.dockerignore` (`**` too, and `!`). Matching takes at most the product of both lengths, whatever the pattern, and all of it
//! that a build does is counted: both lengths are chosen by a stranger.

/// LIMIT: lines of a `.dockerignore`, and characters of each.
const LINES_MAX: usize = 10_000;
const LINE_MAX: usize = 4096;

/// LIMIT: characters looked at for one `.dockerignore` or one `COPY`: seconds of a core, and a hundred times what people need.
pub(crate) const WORK_MAX: u64 = 10_000_000_000;

/// A pattern, read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    One(char),
    /// Any but a slash.
    Any,
    /// Any number but of slashes.
    Star,
    /// Nothing, or anything that ends with a slash.
    Folders,
    /// Anything.
    Rest,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// Whether a part of a path is a pattern.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

impl Glob {
    /// One part of a path; two stars are one.
    pub(crate) fn part(text: &str) -> Result<Self, String> {
        Self::read(text, false)
    }

    /// A whole path.
    pub(crate) fn path(text: &str) -> Result<Self, String> {
        Self::read(text, true)
    }

    fn read(text: &str, deep: bool) -> Result<Self, String> {
        let bad = || format!("the pattern {text:?} is not well formed");
        let mut chars = text.chars().peekable();
        let mut tokens = Vec::new();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                '*' if deep && chars.peek() == Some(&'*') => {
                    chars.next();
                    chars.next_if_eq(&'/');
                    if chars.peek().is_some() { Token::Folders } else { Token::Rest }
                }
                '*' => Token::Star,
                '?' => Token::Any,
                '\\' => Token::One(chars.next().ok_or_else(bad)?),
                '[' => {
                    let negated = chars.next_if_eq(&'^').is_some();
                    let mut ranges = Vec::new();
                    while ranges.is_empty() || chars.peek() != Some(&']') {
                        let low = literal(&mut chars).ok_or_else(bad)?;
                        let high = match chars.next_if_eq(&'-') {
                            Some(_) => literal(&mut chars).ok_or_else(bad)?,
                            None => low,
                        };
                        ranges.push((low, high));
                    }
                    chars.next();
                    Token::Class { negated, ranges }
                }
                other => Token::One(other),
            });
        }
        Ok(Self { tokens })
    }

    /// Whether it matches, counting what that took.
    pub(crate) fn matches(&self, text: &str, work: &mut u64) -> bool {
        let text: Vec<char> = text.chars().collect();
        self.matches_any(&text, &[text.len()], work)
    }

    /// Whether it matches the text up to one of these places.
    fn matches_any(&self, text: &[char], ends: &[usize], work: &mut u64) -> bool {
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

fn literal(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<char> {
    match chars.next()? {
        '\\' => chars.next(),
        '-' | ']' => None,
        other => Some(other),
    }
}

impl Token {
    /// Moves on; `false`: nothing is reached any more.
    fn step(&self, text: &[char], reach: &mut [bool]) -> bool {
        match self {
            Self::Star => {
                for at in 1..reach.len() {
                    reach[at] |= reach[at - 1] && text[at - 1] != '/';
                }
            }
            Self::Rest => {
                let first = reach.iter().position(|r| *r).unwrap_or(reach.len());
                reach[first..].fill(true);
            }
            Self::Folders => {
                let first = reach.iter().position(|r| *r).unwrap_or(reach.len());
                for at in first + 1..reach.len() {
                    reach[at] |= text[at - 1] == '/';
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

    fn fits(&self, c: char) -> bool {
        match self {
            Self::One(one) => *one == c,
            Self::Any => c != '/',
            Self::Class { negated, ranges } => {
                c != '/' && ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
            Self::Star | Self::Folders | Self::Rest => false,
        }
    }
}

/// A `.dockerignore`: the last line that speaks of a path, or of a folder above it, decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore {
    lines: Vec<(bool, Glob)>,
}

impl Ignore {
    /// Reads the text of a `.dockerignore`. Lines that are no pattern are left out, as are those beyond the bound.
    pub fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().filter(|line| !line.starts_with('#') && line.len() <= LINE_MAX);
        Self { lines: lines.filter_map(line).take(LINES_MAX).collect() }
    }

    /// Patterns of `--exclude`.
    pub(crate) fn of(patterns: &[String]) -> Self {
        Self { lines: patterns.iter().filter_map(|pattern| line(pattern)).collect() }
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether a path (relative, without `./` in front) is left out.
    pub fn is_ignored(&self, path: &str) -> bool {
        self.is_ignored_within(path, &mut 0)
    }

    /// The same, counting what it takes; beyond [`WORK_MAX`] the answer means nothing.
    pub(crate) fn is_ignored_within(&self, path: &str, work: &mut u64) -> bool {
        let path: Vec<char> = path.trim_matches('/').chars().collect();
        let mut ends: Vec<usize> = (0..path.len()).filter(|at| path[*at] == '/').collect();
        ends.push(path.len());
        let mut speaks = |glob: &Glob| glob.matches_any(&path, &ends, work);
        self.lines.iter().rev().find(|(_, glob)| speaks(glob)).is_some_and(|(kept, _)| !kept)
    }

    /// Whether a line with `!` takes something back in: then folders that are left out must be looked into.
    pub fn has_exceptions(&self) -> bool {
        self.lines.iter().any(|(kept, _)| *kept)
    }
}

fn line(text: &str) -> Option<(bool, Glob)> {
    let text = text.trim();
    let (kept, text) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest.trim()));
    if text.is_empty() {
        return None;
    }
    let clean = super::path::clean(text);
    // The context itself cannot be left out; Docker passes over such a line.
    let clean = clean.strip_prefix('/').filter(|rest| !rest.is_empty())?;
    Glob::path(clean).ok().map(|glob| (kept, glob))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_match_as_in_go() {
        for (pattern, name, fits) in [
            ("*", "abc", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abd", false),
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
        ] {
            assert_eq!(Glob::part(pattern).unwrap().matches(name, &mut 0), fits, "{pattern} {name}");
        }
        for bad in ["[", "[a", "a\\", "[-]", "[]", "[]a]"] {
            assert!(Glob::part(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn work_is_counted_and_ends() {
        let path = "a/".repeat(2000);
        let text = format!("{}b\n", "**/".repeat(1300)).repeat(10_000);
        let (ignore, mut work) = (Ignore::parse(&text), WORK_MAX - 100_000_000);
        assert!(!ignore.is_ignored_within(&path, &mut work));
        assert!(work > WORK_MAX && work < WORK_MAX + 10_000, "{work}");
    }

    fn ignored(text: &str, path: &str) -> bool {
        Ignore::parse(text).is_ignored(path)
    }

    #[test]
    fn ignored_paths_are_dockers() {
        for (text, path, out) in [
            ("node_modules", "node_modules", true),
            ("node_modules", "node_modules/a/b", true),
            ("node_modules", "src/node_modules", false),
            ("**/node_modules", "src/x/node_modules/y", true),
            ("**/node_modules", "node_modules", true),
            ("/a", "a", true),
            ("a/", "a/b", true),
            ("./a", "a", true),
            ("a/../b", "b", true),
            ("*.md", "x.md", true),
            ("*.md", "d/x.md", false),
            ("**/*.md", "d/e/x.md", true),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("a/**/c", "a/b/x/c", true),
            ("a/**/c", "a/c", true),
            ("*\n!README.md", "README.md", false),
            ("*\n!README.md", "x", true),
            ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", true),
            ("*.md\n!README*.md\nREADME-secret.md", "README.md", false),
            ("# x\n\n", "# x", false),
            ("*/temp*", "a/temporary.txt", true),
            ("*/*/temp*", "a/b/temp", true),
            ("temp?", "tempa", true),
            ("a\n!a/b", "a/b/c", false),
            ("!a\na", "a", true),
            (".", "a", false),
            ("a b", "a b", true),
            ("\u{feff}x", "x", true),
        ] {
            assert_eq!(ignored(text, path), out, "{text:?} {path}");
        }
        assert!(Ignore::parse("!x").has_exceptions() && !Ignore::parse("x").has_exceptions());
    }

    proptest! {
        #[test]
        fn a_plain_path_matches_itself_and_what_is_below(path in "[a-z]{1,5}(/[a-z]{1,5}){0,3}", below in "[a-z]{1,5}") {
            prop_assert!(ignored(&path, &path));
            let (deeper, lines) = (format!("{path}/{below}"), format!("{path}\n!{path}"));
            prop_assert!(ignored(&path, &deeper));
            prop_assert!(!ignored(&lines, &path));
        }

        #[test]
        fn two_stars_match_at_any_depth(above in "([a-z]{1,3}/){0,5}", name in "[a-z]{1,5}") {
            let (text, path) = (format!("**/{name}"), format!("{above}{name}"));
            prop_assert!(ignored(&text, &path));
            let (text, path) = (format!("{above}**"), format!("{above}{name}"));
            prop_assert!(ignored(&text, &path));
        }

        #[test]
        fn no_pattern_panics_or_takes_long(text in "[*?a/\\[\\]\\\\^!-]{0,80}", path in "[a/]{0,200}") {
            let _ = ignored(&text, &path);
            let _ = Glob::part(&text).map(|glob| glob.matches(&path, &mut 0));
        }
    }

    #[test]
    fn any_ignore_file_is_read_and_asked() {
        atoll_robustness::check!("dockerignore", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let ignore = Ignore::parse(&text);
            let _ = ignore.has_exceptions();
            let last: String = text.lines().last().unwrap_or_default().chars().take(100).collect();
            for path in ["src/deep/main.rs", "a", &last] {
                assert!(!ignore.is_empty() || !ignore.is_ignored(path));
            }
        });
    }
}
