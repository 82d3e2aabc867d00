//! The sources of `COPY` and `ADD` in a context, and their names below the destination.

use atoll_glob::docker::{Glob, WORK_MAX, is_pattern};

use super::context::{BuildContext, ContextEntryKind};
use super::path;
use super::pattern::Ignore;
use super::step::Matched;

/// LIMIT: sources that all patterns of one step match.
const SOURCES_MAX: usize = 100_000;

/// The matches of one step.
#[derive(Debug, Default)]
pub(crate) struct MatchedSources {
    pub(crate) entries: Vec<Matched>,
    /// Archives to extract.
    pub(crate) extract: Vec<String>,
    /// Number of sources; a pattern counts once per match.
    pub(crate) tops: usize,
    /// Work of matching so far.
    work: u64,
}

/// What is wrong with a source, and a hint.
pub(crate) type Missing = (String, Option<String>);

/// Options of the search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner<'a> {
    /// Sources keep their path.
    pub(crate) parents: bool,
    /// Archives are extracted.
    pub(crate) extracts: bool,
    pub(crate) exclude: &'a Ignore,
}

impl MatchedSources {
    /// Adds the matches of one source as written.
    pub(crate) fn look(
        &mut self,
        context: &BuildContext,
        word: &str,
        how: Manner<'_>,
    ) -> Result<(), Missing> {
        // `--parents` keeps the part after `/./`.
        let above = |at: usize| path::clean(&word[..at]).split('/').filter(|part| !part.is_empty()).count();
        let pivot = word.find("/./").map_or(0, above);
        let clean = path::clean(word);
        let asked = &clean[1..];
        let matched = match is_pattern(asked) {
            true => expand(context, asked, &mut self.work)?,
            false => vec![asked.to_owned()],
        };
        if self.tops + matched.len() > SOURCES_MAX {
            return Err((format!("more than {SOURCES_MAX} sources match"), None));
        }
        for top in matched {
            self.add(context, &top, pivot, how)?;
            if self.work > WORK_MAX {
                return Err(too_long(word));
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        context: &BuildContext,
        top: &str,
        pivot: usize,
        how: Manner<'_>,
    ) -> Result<(), Missing> {
        let real = context.resolve(top, false).filter(|real| real.is_empty() || context.get(real).is_some());
        let real = real.ok_or_else(|| missing(context, top))?;
        let kept = top.split('/').skip(pivot).collect::<Vec<_>>().join("/");
        self.tops += 1;
        match context.get(&real).map(|entry| &entry.kind) {
            None | Some(ContextEntryKind::Folder) => {
                let prefix = if how.parents && !kept.is_empty() { format!("{kept}/") } else { String::new() };
                let own = if prefix.is_empty() { "./".to_owned() } else { prefix.clone() };
                self.entries.push(Matched { path: real.clone(), name: own });
                let skip = if real.is_empty() { 0 } else { real.len() + 1 };
                for (below, _) in context.seen_below(&real) {
                    let name = &below[skip..];
                    if how.exclude.is_empty() || !how.exclude.is_ignored_within(name, &mut self.work) {
                        self.entries.push(Matched { path: below.clone(), name: format!("{prefix}{name}") });
                    }
                }
            }
            Some(ContextEntryKind::File { .. } | ContextEntryKind::Link(_)) => {
                let base = path::base(top);
                if how.exclude.is_ignored_within(base, &mut self.work) {
                    return Ok(());
                }
                if how.extracts && context.is_archive(&real) {
                    self.extract.push(real);
                    return Ok(());
                }
                let name = if how.parents { &kept } else { base };
                self.entries.push(Matched { path: real.clone(), name: name.to_owned() });
            }
        }
        Ok(())
    }
}

fn missing(context: &BuildContext, asked: &str) -> Missing {
    let why = format!("{asked:?} is not in the build context");
    if context.is_hidden(asked) {
        return (why, Some("its .dockerignore excludes it".into()));
    }
    let (folder, base) = asked.rsplit_once('/').unwrap_or(("", asked));
    // LIMIT: each comparison takes time proportional to the product of both lengths.
    let like = |name: &&str| base.len() <= 255 && name.len().abs_diff(base.len()) <= 8;
    let names: Vec<&str> = context.names_in(folder).into_iter().filter(like).take(1000).collect();
    let near = names.iter().min_by_key(|name| strsim::levenshtein(name, base));
    let near = near.filter(|name| strsim::levenshtein(name, base) <= 2);
    (
        why,
        near.map(|name| {
            format!(
                "did you mean {}?",
                if folder.is_empty() { (*name).to_owned() } else { format!("{folder}/{name}") }
            )
        }),
    )
}

fn too_long(pattern: &str) -> Missing {
    let shown: String = pattern.chars().take(100).collect();
    (format!("looking for {shown:?} takes too long"), Some("use shorter patterns, or fewer files".into()))
}

/// The paths that a pattern matches, sorted.
fn expand(context: &BuildContext, pattern: &str, work: &mut u64) -> Result<Vec<String>, Missing> {
    let join =
        |above: &str, name: &str| if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
    let mut found = vec![String::new()];
    for part in pattern.split('/') {
        if !is_pattern(part) {
            found = found.iter().map(|above| join(above, part)).collect();
            continue;
        }
        let glob = Glob::name(part).map_err(|bad| (bad.to_string(), None))?;
        let mut next = Vec::new();
        for above in &found {
            let Some(folder) = context.resolve(above, false) else { continue };
            let names = context.names_in(&folder);
            *work += names.len() as u64;
            let fits = names.into_iter().filter(|name| glob.matches(name, work));
            next.extend(fits.map(|name| join(above, name)));
            if *work > WORK_MAX {
                return Err(too_long(pattern));
            }
            if next.len() > SOURCES_MAX {
                return Err((format!("more than {SOURCES_MAX} paths match {pattern:?}"), None));
            }
        }
        found = next;
    }
    found.retain(|path| context.resolve(path, false).is_some_and(|real| context.get(&real).is_some()));
    found.sort();
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn context(names: impl Iterator<Item = String>) -> Result<BuildContext, super::super::BadContext> {
        let mut tar = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            tar.append_data(&mut header, name, &b""[..]).unwrap();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), tar.into_inner().unwrap()).unwrap();
        BuildContext::open(file.path(), &tokio_util::sync::CancellationToken::new())
    }

    #[test]
    fn deep_folders_that_nobody_named_are_counted_by_their_bytes() {
        let deep = |at: u32| format!("{at}/{}f", "a/".repeat(1900));
        assert!(context((0..5).map(deep)).is_ok());
        let refused = context((0..100).map(deep)).unwrap_err();
        assert!(refused.to_string().contains("bytes of paths"), "{refused}");
    }

    #[test]
    fn a_pattern_that_takes_too_long_is_refused() {
        let context = context((0..20).map(|at| format!("{}{at}", "a".repeat(90)))).unwrap();
        let pattern = format!("{}b", "*a".repeat(60));
        assert_eq!(expand(&context, &pattern, &mut 0).unwrap(), Vec::<String>::new());
        let (why, _) = expand(&context, &pattern, &mut (WORK_MAX - 50_000)).unwrap_err();
        assert!(why.contains("takes too long"), "{why}");
    }
}
