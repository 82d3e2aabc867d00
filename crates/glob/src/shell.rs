//! Shell patterns: `*`, `?`, `[…]`, `{a,b}` and `**`. Each becomes a regular expression, whose matching takes linear
//! time for every glob, so that no pattern can keep a thread busy.

use regex::bytes::{Regex, RegexBuilder};

/// LIMIT: nesting of groups in a pattern; the pattern compiler recurses, and the agent's threads have small stacks.
pub const NEST_MAX: u32 = 24;

/// LIMIT: globs of one request, and bytes of each.
const GLOBS_MAX: usize = 256;
const GLOB_MAX: usize = 1024;
/// LIMIT: memory of one compiled set.
const COMPILED_MAX: usize = 4 << 20;

/// Why a set of globs is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadGlobs {
    #[error("at most {GLOBS_MAX} globs of {GLOB_MAX} bytes each can be searched for")]
    TooMany,
    #[error("a glob must be UTF-8")]
    NotText,
    #[error("a glob is too large, or its braces nest too deep")]
    TooLarge,
}

/// A set of globs. One without a slash matches names, one with a slash the path below the top, one with a leading slash
/// the whole path.
#[derive(Debug, Default)]
pub struct Globs {
    names: Option<Regex>,
    below: Option<Regex>,
    whole: Option<Regex>,
}

impl Globs {
    pub fn parse(globs: &[Vec<u8>]) -> Result<Self, BadGlobs> {
        if globs.len() > GLOBS_MAX || globs.iter().any(|glob| glob.len() > GLOB_MAX) {
            return Err(BadGlobs::TooMany);
        }
        let (mut names, mut below, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for glob in globs {
            let text = std::str::from_utf8(glob)
                .map_err(|_| BadGlobs::NotText)?
                .trim_start_matches("./")
                .trim_end_matches('/');
            match text {
                "" => {}
                _ if text.starts_with('/') => whole.push(translate(text)),
                _ if text.contains('/') => below.push(translate(text)),
                // Two stars alone match everything.
                _ => names.push(translate(text)),
            }
        }
        Ok(Self { names: compile(&names)?, below: compile(&below)?, whole: compile(&whole)? })
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_none() && self.below.is_none() && self.whole.is_none()
    }

    /// Whether one of them matches this entry: its last name, its path below the top, its whole path.
    pub fn match_any(&self, name: &[u8], below: &[u8], whole: &[u8]) -> bool {
        let is =
            |regex: &Option<Regex>, text: &[u8]| regex.as_ref().is_some_and(|regex| regex.is_match(text));
        is(&self.names, name) || is(&self.below, below) || is(&self.whole, whole)
    }
}

fn compile(parts: &[String]) -> Result<Option<Regex>, BadGlobs> {
    if parts.is_empty() {
        return Ok(None);
    }
    let regex = RegexBuilder::new(&format!("^(?:{})$", parts.join("|")))
        .dot_matches_new_line(true)
        .size_limit(COMPILED_MAX)
        .dfa_size_limit(COMPILED_MAX)
        .nest_limit(NEST_MAX)
        .build();
    regex.map(Some).map_err(|_| BadGlobs::TooLarge)
}

/// One glob as a regular expression. Malformed parts are literal text.
fn translate(glob: &str) -> String {
    const ONE: &str = "(?:[^/]|(?-u:[^/]))";
    let chars: Vec<char> = glob.chars().collect();
    let (mut out, mut at, mut open) = (String::new(), 0, 0u32);
    while let Some(&c) = chars.get(at) {
        at += 1;
        match c {
            '*' if chars.get(at) == Some(&'*') => {
                at += 1;
                let starts = out.is_empty() || out.ends_with('/');
                if starts && chars.get(at) == Some(&'/') {
                    at += 1;
                    out.push_str("(?:(?s-u:.)*/)?");
                } else {
                    out.push_str("(?s-u:.)*");
                }
            }
            '*' => out.push_str("(?-u:[^/])*"),
            '?' => out.push_str(ONE),
            '[' => match class(&chars[at..]) {
                Some((text, used)) => {
                    out.push_str(&text);
                    at += used;
                }
                None => out.push_str("\\["),
            },
            '{' if chars[at..].contains(&'}') => {
                open += 1;
                out.push_str("(?:");
            }
            '}' if open > 0 => {
                open -= 1;
                out.push(')');
            }
            ',' if open > 0 => out.push('|'),
            '\\' => {
                let literal = chars.get(at).copied().unwrap_or('\\');
                at += 1;
                push_literal(&mut out, literal);
            }
            other => push_literal(&mut out, other),
        }
    }
    out.extend(std::iter::repeat_n(')', open as usize));
    out
}

/// A class of characters, and its length including the closing bracket.
fn class(rest: &[char]) -> Option<(String, usize)> {
    let negated = matches!(rest.first(), Some('!' | '^'));
    let from = usize::from(negated);
    // A bracket in the first position is literal.
    let end = from + 1 + rest.get(from + 1..)?.iter().position(|c| *c == ']')?;
    let mut text = String::from(if negated { "[^/" } else { "[" });
    for (at, c) in rest[from..end].iter().enumerate() {
        let is_range = *c == '-' && at > 0 && at + 1 < end - from;
        if !is_range && !c.is_alphanumeric() {
            text.push('\\');
        }
        text.push(*c);
    }
    text.push(']');
    // A range in reverse order is not a class.
    Regex::new(&text).ok().map(|_| (text, end + 1))
}

fn push_literal(out: &mut String, c: char) {
    if c.is_ascii_punctuation() && c != '/' {
        out.push('\\');
    }
    out.push(c);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hit(glob: &str, below: &str) -> bool {
        let globs = Globs::parse(&[glob.as_bytes().to_vec()]).unwrap();
        let name = below.rsplit('/').next().unwrap();
        globs.match_any(name.as_bytes(), below.as_bytes(), format!("/top/{below}").as_bytes())
    }

    #[test]
    fn globs_mean_what_people_mean() {
        let yes = [
            ("*.rs", "src/main.rs"),
            ("src/*.rs", "src/main.rs"),
            ("**/*.rs", "main.rs"),
            ("**/*.rs", "a/b/main.rs"),
            ("src/**", "src/a/b"),
            ("a/**/z", "a/z"),
            ("a/**/z", "a/b/c/z"),
            ("?.txt", "é.txt"),
            ("[a-c]*", "x/bee"),
            ("[!a]*", "bee"),
            ("*.{js,ts}", "x.ts"),
            ("node_modules/", "node_modules"),
            ("./x/y", "x/y"),
            ("/top/a*", "abc"),
            ("a\\*b", "a*b"),
            ("we.ird+(n)", "we.ird+(n)"),
            ("**", "a"),
        ];
        for (glob, path) in yes {
            assert!(hit(glob, path), "{glob} should match {path}");
        }
        let no = [
            ("*.rs", "main.rsx"),
            ("src/*.rs", "src/a/main.rs"),
            ("?.txt", "ab.txt"),
            ("[!a]*", "abc"),
            ("*.{js,ts}", "x.rs"),
            ("a*", "b/ca"),
            ("we.ird", "weXird"),
        ];
        for (glob, path) in no {
            assert!(!hit(glob, path), "{glob} should not match {path}");
        }
    }

    #[test]
    fn names_need_not_be_utf_8() {
        let globs = Globs::parse(&[b"a?b*".to_vec()]).unwrap();
        assert!(globs.match_any(b"a\xffb\xfe\xfd", b"", b""));
    }

    #[test]
    fn many_stars_cost_nothing() {
        let began = std::time::Instant::now();
        assert!(!hit(&"a*".repeat(200), &"a".repeat(199)));
        assert!(began.elapsed() < std::time::Duration::from_secs(60));
    }

    proptest! {
        #[test]
        fn no_glob_makes_the_translation_panic(glob in "[a*?\\[\\]{},!\\\\/.é-]{0,24}", path in "[a-z/.]{0,12}") {
            let globs = Globs::parse(&[glob.into_bytes()]);
            if let Ok(globs) = globs {
                let _ = globs.match_any(path.as_bytes(), path.as_bytes(), path.as_bytes());
            }
        }

        #[test]
        fn plain_names_match_themselves_alone(name in "[a-zA-Z0-9_.+@=-]{1,12}", other in "[a-zA-Z0-9_.+@=-]{1,12}") {
            prop_assert!(hit(&name, &name));
            prop_assert_eq!(hit(&name, &other), name == other);
        }
    }

    #[test]
    fn any_globs_are_read_and_asked() {
        atoll_robustness::check("glob", |bytes| {
            let globs: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            if let Ok(globs) = Globs::parse(&globs) {
                let path = &bytes[..bytes.len().min(100)];
                let _ = globs.match_any(b"main.rs", b"src/main.rs", b"/top/src/main.rs");
                let _ = globs.match_any(path, path, path);
            }
        });
    }
}
