//! Expands variables in the words of a Dockerfile as a shell does: quotes, escapes, `$A`, `${A:-b}`, `${A:+b}`,
//! `${A:?b}`, `${A#b}`, `${A##b}`, `${A%b}`, `${A%%b}`, `${A/b/c}`, `${A//b/c}`. No other part of a shell.

use std::collections::BTreeMap;

/// LIMIT: bytes of a word after expansion; `ENV A=$A$A` doubles with every line.
const WORD_MAX: usize = 256 << 10;
/// LIMIT: nesting depth of `${A:-${B:-…}}`.
const DEPTH_MAX: usize = 32;
/// LIMIT: length of a value that is matched against a pattern in braces, because the time is quadratic.
const MATCHED_MAX: usize = 1024;

/// The rules for expansion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lex {
    /// `\`, or the character of the escape directive.
    pub(crate) escape: char,
    /// Quotes are literal: the text is a document, not a word.
    pub(crate) document: bool,
}

/// Variables by name.
pub(crate) type Vars = BTreeMap<String, String>;

impl Lex {
    /// The word with its variables expanded and its quotes removed. The error gives the reason without the word.
    pub(crate) fn expand(&self, word: &str, vars: &Vars) -> Result<String, String> {
        let mut reader =
            WordReader { lex: *self, vars, chars: word.chars().collect(), at: 0, depth: 0, written: 0 };
        reader.until(None)
    }
}

struct WordReader<'a> {
    lex: Lex,
    vars: &'a Vars,
    chars: Vec<char>,
    at: usize,
    depth: usize,
    written: usize,
}

impl WordReader<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn grow(&mut self, bytes: usize) -> Result<(), String> {
        self.written += bytes;
        match self.written > WORD_MAX {
            true => Err(format!("it is longer than {WORD_MAX} bytes after its variables are expanded")),
            false => Ok(()),
        }
    }

    /// Reads up to an unquoted stop character, which is not consumed, or to the end.
    fn until(&mut self, stop: Option<char>) -> Result<String, String> {
        let mut out = String::new();
        loop {
            match self.peek() {
                None if stop.is_some() => return Err("a brace is not closed".into()),
                None => return Ok(out),
                Some(c) if Some(c) == stop => return Ok(out),
                Some('\'') if !self.lex.document => self.single(&mut out)?,
                Some('"') if !self.lex.document => self.double(&mut out)?,
                Some('$') => out.push_str(&self.dollar()?),
                Some(c) if c == self.lex.escape => {
                    self.at += 1;
                    out.extend(self.next());
                }
                Some(c) => {
                    self.at += 1;
                    self.grow(c.len_utf8())?;
                    out.push(c);
                }
            }
        }
    }

    fn single(&mut self, out: &mut String) -> Result<(), String> {
        self.at += 1;
        loop {
            match self.next() {
                None => return Err("a single quote is not closed".into()),
                Some('\'') => return Ok(()),
                Some(c) => out.push(c),
            }
        }
    }

    fn double(&mut self, out: &mut String) -> Result<(), String> {
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err("a double quote is not closed".into()),
                Some('"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some('$') => out.push_str(&self.dollar()?),
                Some(c) if c == self.lex.escape => {
                    self.at += 1;
                    match self.peek() {
                        Some(next) if next == '"' || next == '$' || next == c => {
                            self.at += 1;
                            out.push(next);
                        }
                        _ => out.push(c),
                    }
                }
                Some(c) => {
                    self.at += 1;
                    out.push(c);
                }
            }
        }
    }

    fn dollar(&mut self) -> Result<String, String> {
        self.at += 1;
        if self.peek() != Some('{') {
            let name = self.name();
            let value = if name.is_empty() { "$" } else { self.vars.get(&name).map_or("", String::as_str) };
            let value = value.to_owned();
            self.grow(value.len())?;
            return Ok(value);
        }
        self.at += 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("braces nest deeper than {DEPTH_MAX}"));
        }
        let name = self.name();
        if name.is_empty() {
            return Err("a variable in braces has no name".into());
        }
        let value = self.braced(&name)?;
        self.depth -= 1;
        self.grow(value.len())?;
        Ok(value)
    }

    /// Reads the rest of an expansion after the name in braces.
    fn braced(&mut self, name: &str) -> Result<String, String> {
        let set = self.vars.get(name).cloned();
        let colon = self.peek() == Some(':');
        if colon {
            self.at += 1;
        }
        let sign = self.next().ok_or("a brace is not closed")?;
        // With a colon an empty value counts as unset.
        let found = if colon { set.clone().filter(|value| !value.is_empty()) } else { set.clone() };
        match sign {
            '}' if !colon => Ok(set.unwrap_or_default()),
            '-' => Ok(found.unwrap_or(self.word()?)),
            '+' => {
                let word = self.word()?;
                Ok(if found.is_some() { word } else { String::new() })
            }
            '?' => {
                let word = self.word()?;
                let why = if word.is_empty() { "is not set" } else { &word };
                found.ok_or_else(|| format!("{name}: {why}"))
            }
            '#' | '%' if !colon => {
                let greedy = self.peek() == Some(sign);
                self.at += usize::from(greedy);
                let pattern = self.word()?;
                trim(&set.unwrap_or_default(), &pattern, sign == '%', greedy)
            }
            '/' if !colon => {
                let all = self.peek() == Some('/');
                self.at += usize::from(all);
                let pattern = self.until(Some('/'))?;
                self.at += 1;
                let with = self.word()?;
                replace(&set.unwrap_or_default(), &pattern, &with, all)
            }
            _ => Err(format!("\"{sign}\" is no modifier of a variable")),
        }
    }

    fn word(&mut self) -> Result<String, String> {
        let word = self.until(Some('}'))?;
        self.at += 1;
        Ok(word)
    }

    fn name(&mut self) -> String {
        let from = self.at;
        match self.peek() {
            Some(c) if c.is_ascii_digit() => {
                while self.peek().is_some_and(|c| c.is_ascii_digit()) {
                    self.at += 1;
                }
            }
            Some('@' | '*' | '#' | '?' | '!') if self.lex.document => {}
            Some('@' | '*' | '!') => self.at += 1,
            _ => {
                while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
                    self.at += 1;
                }
            }
        }
        self.chars[from..self.at].iter().collect()
    }
}

/// `reach[n]`: the pattern up to the current position matches the first `n` characters. `*` also matches slashes here.
fn prefixes(text: &[char], pattern: &[char]) -> Vec<bool> {
    let mut reach = vec![false; text.len() + 1];
    reach[0] = true;
    for sign in pattern {
        if *sign == '*' {
            let first = reach.iter().position(|r| *r).unwrap_or(reach.len());
            reach[first..].fill(true);
            continue;
        }
        for at in (1..=text.len()).rev() {
            reach[at] = reach[at - 1] && (*sign == '?' || text[at - 1] == *sign);
        }
        reach[0] = false;
    }
    reach
}

fn bounded(value: &str, pattern: &str) -> Result<(Vec<char>, Vec<char>), String> {
    match value.len() > MATCHED_MAX || pattern.len() > MATCHED_MAX {
        true => Err(format!("values and patterns in braces are at most {MATCHED_MAX} bytes")),
        false => Ok((value.chars().collect(), pattern.chars().collect())),
    }
}

fn trim(value: &str, pattern: &str, from_end: bool, greedy: bool) -> Result<String, String> {
    let (mut text, mut pattern) = bounded(value, pattern)?;
    if from_end {
        text.reverse();
        pattern.reverse();
    }
    let reach = prefixes(&text, &pattern);
    let cut = if greedy { reach.iter().rposition(|r| *r) } else { reach.iter().position(|r| *r) };
    let mut rest = text[cut.unwrap_or(0)..].to_vec();
    if from_end {
        rest.reverse();
    }
    Ok(rest.into_iter().collect())
}

fn replace(value: &str, pattern: &str, with: &str, all: bool) -> Result<String, String> {
    let (text, pattern) = bounded(value, pattern)?;
    let (mut out, mut at, mut done) = (String::new(), 0, false);
    while at < text.len() {
        let longest = match done && !all {
            true => None,
            false => prefixes(&text[at..], &pattern).iter().rposition(|r| *r).filter(|len| *len > 0),
        };
        match longest {
            Some(len) => {
                out.push_str(with);
                (at, done) = (at + len, true);
            }
            None => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHELL: Lex = Lex { escape: '\\', document: false };

    fn vars() -> Vars {
        let pairs = [("A", "one"), ("E", ""), ("P", "/usr/local/bin"), ("F", "a.tar.gz"), ("_x1", "under")];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn words_expand_as_a_shell_would() {
        for (word, means) in [
            ("plain", "plain"),
            ("$A", "one"),
            ("${A}s", "ones"),
            ("$As", ""),
            ("$_x1", "under"),
            ("$", "$"),
            ("a$", "a$"),
            ("'$A'", "$A"),
            ("\"$A b\"", "one b"),
            ("\\$A", "$A"),
            ("\"\\$A\"", "$A"),
            ("\"\\n\"", "\\n"),
            ("\\n", "n"),
            ("a'b'\"c\"d", "abcd"),
            ("''", ""),
            ("${A:-x}", "one"),
            ("${E:-x}", "x"),
            ("${E-x}", ""),
            ("${N-x}", "x"),
            ("${N:-$A}", "one"),
            ("${N:-${M:-deep}}", "deep"),
            ("${A:+x}", "x"),
            ("${E:+x}", ""),
            ("${E+x}", "x"),
            ("${N+x}", ""),
            ("${P#/usr}", "/local/bin"),
            ("${P#*/}", "usr/local/bin"),
            ("${P##*/}", "bin"),
            ("${F%.*}", "a.tar"),
            ("${F%%.*}", "a"),
            ("${P/local/share}", "/usr/share/bin"),
            ("${P//\\//-}", "-usr-local-bin"),
            ("${F//?/x}", "xxxxxxxx"),
            ("${A:?no}", "one"),
            ("tail\\", "tail"),
            ("ü$A→", "üone→"),
            ("${N:-'a}b'}", "a}b"),
        ] {
            assert_eq!(SHELL.expand(word, &vars()).as_deref(), Ok(means), "{word}");
        }
        for bad in ["'a", "\"a", "${A", "${}", "${A:-", "${A!x}", "${N:?must be set}", "${A:x}"] {
            assert!(SHELL.expand(bad, &vars()).is_err(), "{bad}");
        }
        assert_eq!(SHELL.expand("${N:?must be set}", &vars()), Err("N: must be set".into()));
    }

    #[test]
    fn a_document_keeps_its_quotes() {
        let document = Lex { escape: '\\', document: true };
        assert_eq!(document.expand("it's \"$A\" \\$A\n", &vars()).unwrap(), "it's \"one\" $A\n");
    }

    #[test]
    fn growth_and_depth_are_bounded() {
        let mut vars = vars();
        vars.insert("B".into(), "x".repeat(100_000));
        assert!(SHELL.expand("$B$B", &vars).is_ok());
        assert!(SHELL.expand("$B$B$B", &vars).is_err());
        assert!(SHELL.expand(&format!("{}{}", "${N:-".repeat(100), "}".repeat(100)), &vars).is_err());
        assert!(SHELL.expand("${B#x}", &vars).is_err());
    }

    proptest! {
        #[test]
        fn any_word_is_expanded_or_refused(word in "[a-zA${}:+/#%*'\"\\\\-]{0,60}") {
            let _ = SHELL.expand(&word, &vars());
        }

        #[test]
        fn a_word_in_single_quotes_is_itself(word in "[^']{0,60}") {
            prop_assert_eq!(SHELL.expand(&format!("'{word}'"), &vars()).unwrap(), word);
        }
    }

    #[test]
    fn any_word_of_a_dockerfile_is_expanded_within_bounds() {
        atoll_robustness::check("dockerfile_word", |bytes| {
            let word = String::from_utf8_lossy(bytes);
            for lex in [SHELL, Lex { escape: '`', document: true }] {
                let expanded = lex.expand(&word, &vars());
                assert!(expanded.is_err() || expanded.is_ok_and(|expanded| expanded.len() <= WORD_MAX));
            }
        });
    }
}
