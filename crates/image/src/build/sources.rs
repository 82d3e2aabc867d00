//! What `COPY` and `ADD` find in a context, and what it is called below the destination.

use super::context::{Context, EntryKind};
use super::path;
use super::pattern::{Glob, Ignore, is_pattern};
use super::step::Matched;

/// LIMIT: sources that all patterns of one step match.
const SOURCES_MAX: usize = 100_000;

/// What one step finds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) entries: Vec<Matched>,
    /// Archives that are extracted.
    pub(crate) extract: Vec<String>,
    /// How many sources there are, patterns counted by what they match.
    pub(crate) tops: usize,
}

/// What is wrong with a source, and a way out.
pub(crate) type Missing = (String, Option<String>);

/// How sources are looked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner<'a> {
    /// Sources keep their path.
    pub(crate) parents: bool,
    /// Archives are extracted.
    pub(crate) extracts: bool,
    pub(crate) exclude: &'a Ignore,
}

impl Found {
    /// Looks for one source, as it is written.
    pub(crate) fn look(&mut self, context: &Context, word: &str, how: Manner<'_>) -> Result<(), Missing> {
        // What follows `/./` is what `--parents` keeps.
        let above = |at: usize| path::clean(&word[..at]).split('/').filter(|part| !part.is_empty()).count();
        let pivot = word.find("/./").map_or(0, above);
        let clean = path::clean(word);
        let asked = &clean[1..];
        let matched = match is_pattern(asked) {
            true => expand(context, asked)?,
            false => vec![asked.to_owned()],
        };
        if self.tops + matched.len() > SOURCES_MAX {
            return Err((format!("more than {SOURCES_MAX} sources match"), None));
        }
        for top in matched {
            self.add(context, &top, pivot, how)?;
        }
        Ok(())
    }

    fn add(&mut self, context: &Context, top: &str, pivot: usize, how: Manner<'_>) -> Result<(), Missing> {
        let real = context.resolve(top, false).filter(|real| real.is_empty() || context.get(real).is_some());
        let real = real.ok_or_else(|| missing(context, top))?;
        let kept = top.split('/').skip(pivot).collect::<Vec<_>>().join("/");
        self.tops += 1;
        match context.get(&real).map(|entry| &entry.kind) {
            None | Some(EntryKind::Folder) => {
                let prefix = if how.parents && !kept.is_empty() { format!("{kept}/") } else { String::new() };
                let own = if prefix.is_empty() { "./".to_owned() } else { prefix.clone() };
                self.entries.push(Matched { path: real.clone(), name: own });
                let skip = if real.is_empty() { 0 } else { real.len() + 1 };
                for (below, _) in context.seen_below(&real) {
                    let name = &below[skip..];
                    if how.exclude.is_empty() || !how.exclude.is_ignored(name) {
                        self.entries.push(Matched { path: below.clone(), name: format!("{prefix}{name}") });
                    }
                }
            }
            Some(EntryKind::File { .. } | EntryKind::Link(_)) => {
                let base = path::base(top);
                if how.exclude.is_ignored(base) {
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

fn missing(context: &Context, asked: &str) -> Missing {
    let why = format!("{asked:?} is not in the build context");
    if context.is_hidden(asked) {
        return (why, Some("its .dockerignore leaves it out".into()));
    }
    let (folder, base) = asked.rsplit_once('/').unwrap_or(("", asked));
    let names = context.names_in(folder);
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

/// The paths that a pattern matches, sorted.
fn expand(context: &Context, pattern: &str) -> Result<Vec<String>, Missing> {
    let join =
        |above: &str, name: &str| if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
    let mut found = vec![String::new()];
    for part in pattern.split('/') {
        if !is_pattern(part) {
            found = found.iter().map(|above| join(above, part)).collect();
            continue;
        }
        let glob = Glob::part(part).map_err(|why| (why, None))?;
        let mut next = Vec::new();
        for above in &found {
            let Some(folder) = context.resolve(above, false) else { continue };
            let fits = context.names_in(&folder).into_iter().filter(|name| glob.matches(name));
            next.extend(fits.map(|name| join(above, name)));
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
