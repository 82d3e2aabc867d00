//! The files that a `.dockerignore` or `--exclude` excludes from a context. Its text is untrusted: lines are bounded
//! here, and [`atoll_glob::docker`] counts the work of matching.

use atoll_glob::docker::{Effect, Exclusions, Glob};

/// LIMIT: lines of a `.dockerignore`, and characters of each.
const LINES_MAX: usize = 10_000;
const LINE_MAX: usize = 4096;

/// A `.dockerignore`: the last line that matches a path, or a folder above it, decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore(Exclusions);

impl Ignore {
    /// Parses the text of a `.dockerignore`. Invalid lines are skipped, as are those beyond the limit.
    pub fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().filter(|line| !line.starts_with('#') && line.len() <= LINE_MAX);
        Self(lines.filter_map(line).take(LINES_MAX).collect())
    }

    /// Patterns of `--exclude`.
    pub(crate) fn of(patterns: &[String]) -> Self {
        Self(patterns.iter().filter_map(|pattern| line(pattern)).collect())
    }

    /// Whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a path (relative, without a leading `./`) is excluded.
    pub fn is_ignored(&self, path: &str) -> bool {
        self.is_ignored_within(path, &mut 0)
    }

    /// The same, with a count of the work; beyond `docker::WORK_MAX` the result is undefined.
    pub(crate) fn is_ignored_within(&self, path: &str, work: &mut u64) -> bool {
        self.0.is_excluded(path.trim_matches('/'), work)
    }

    /// Whether a line with `!` includes paths again: then excluded folders must be searched too.
    pub fn has_exceptions(&self) -> bool {
        self.0.has_exceptions()
    }
}

fn line(text: &str) -> Option<(Effect, Glob)> {
    let text = text.trim();
    let (effect, text) =
        text.strip_prefix('!').map_or((Effect::Exclude, text), |rest| (Effect::Keep, rest.trim()));
    if text.is_empty() {
        return None;
    }
    let clean = super::path::clean(text);
    // The context itself cannot be excluded; Docker skips such a line too.
    let clean = clean.strip_prefix('/').filter(|rest| !rest.is_empty())?;
    Glob::path(clean).ok().map(|glob| (effect, glob))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use atoll_glob::docker::WORK_MAX;

    use super::*;

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
        }
    }

    #[test]
    fn any_ignore_file_is_read_and_asked() {
        atoll_robustness::check("dockerignore", |bytes| {
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
