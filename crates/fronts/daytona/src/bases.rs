//! What the stages of a Dockerfile begin from, and whether they say who commands run as and where. Only that much of it is
//! read here: what the file means is for the core, which also refuses what is wrong in it.

use std::collections::BTreeMap;

/// What the last stage is in the end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Last {
    /// What it begins from that is no stage of the same file.
    pub(crate) base: String,
    pub(crate) says_user: bool,
    pub(crate) says_workdir: bool,
}

#[derive(Debug)]
struct Stage {
    /// In which line it begins.
    line: usize,
    base: String,
    name: Option<String>,
    says_user: bool,
    says_workdir: bool,
}

/// Every base that is no stage of the same file.
pub(crate) fn all(text: &str) -> Vec<String> {
    let stages = stages(text);
    let foreign = (0..stages.len()).filter(|at| earlier(&stages, *at).is_none());
    foreign.map(|at| stages[at].base.clone()).collect()
}

/// The last stage with all that it is built on.
pub(crate) fn last(text: &str) -> Option<Last> {
    let stages = stages(text);
    let mut at = stages.len().checked_sub(1)?;
    let (mut says_user, mut says_workdir) = (false, false);
    loop {
        says_user |= stages[at].says_user;
        says_workdir |= stages[at].says_workdir;
        match earlier(&stages, at) {
            Some(below) => at = below,
            None => return Some(Last { base: stages[at].base.clone(), says_user, says_workdir }),
        }
    }
}

/// The same file with other names for its bases. No line moves.
pub(crate) fn renamed(text: &str, names: &BTreeMap<String, String>) -> String {
    let stages = stages(text);
    let named = |line: usize| {
        let at = stages.iter().position(|stage| stage.line == line)?;
        let base = &stages[at].base;
        let new = names.get(base).filter(|_| earlier(&stages, at).is_none())?;
        Some((base, new))
    };
    let lines = text.lines().enumerate().map(|(line, text)| match named(line) {
        Some((base, new)) => text.replacen(base.as_str(), new, 1),
        None => text.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

/// The stage before this one that it begins from.
fn earlier(stages: &[Stage], at: usize) -> Option<usize> {
    let is_meant =
        |stage: &Stage| stage.name.as_ref().is_some_and(|n| n.eq_ignore_ascii_case(&stages[at].base));
    stages[..at].iter().rposition(is_meant)
}

fn stages(text: &str) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    let mut goes_on = false;
    let mut until: Option<String> = None;
    for (line, text) in text.lines().enumerate() {
        let text = text.trim();
        if let Some(end) = &until {
            if text == end {
                until = None;
            }
            continue;
        }
        if text.starts_with('#') {
            continue;
        }
        let begins = !std::mem::replace(&mut goes_on, text.ends_with('\\'));
        until = here_document(text);
        let mut words = text.split_whitespace();
        let Some(word) = words.next().filter(|_| begins) else { continue };
        match (word.to_ascii_uppercase().as_str(), stages.last_mut()) {
            ("FROM", _) => stages.extend(stage(line, words)),
            ("USER", Some(stage)) => stage.says_user = true,
            ("WORKDIR", Some(stage)) => stage.says_workdir = true,
            _ => {}
        }
    }
    stages
}

fn stage<'a>(line: usize, words: impl Iterator<Item = &'a str>) -> Option<Stage> {
    let mut words = words.skip_while(|word| word.starts_with("--"));
    let base = words.next()?.to_owned();
    let name = words.next().filter(|word| word.eq_ignore_ascii_case("as")).and_then(|_| words.next());
    Some(Stage { line, base, name: name.map(str::to_owned), says_user: false, says_workdir: false })
}

/// The word that ends the text which a line begins, as `EOF` of `RUN <<EOF`.
fn here_document(line: &str) -> Option<String> {
    let instruction = line.split_whitespace().next()?.to_ascii_uppercase();
    if !matches!(instruction.as_str(), "RUN" | "COPY" | "ADD") {
        return None;
    }
    let rest = line.split_once("<<")?.1.trim_start_matches('-');
    let word: String = rest
        .trim_start_matches(['"', '\''])
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(text: &str) -> (String, bool, bool) {
        let last = last(text).unwrap();
        (last.base, last.says_user, last.says_workdir)
    }

    #[test]
    fn the_last_stage_is_followed_to_what_it_begins_from() {
        assert_eq!(of("FROM daytona\nRUN true\n"), ("daytona".into(), false, false));
        assert_eq!(
            of("from --platform=linux/amd64 daytona as a\nUSER x\nFROM A\n"),
            ("daytona".into(), true, false)
        );
        assert_eq!(
            of("FROM debian AS tools\nUSER x\nFROM daytona\nWORKDIR /w\n"),
            ("daytona".into(), false, true)
        );
        assert_eq!(last("# nothing\n"), None);
    }

    #[test]
    fn words_inside_other_instructions_say_nothing() {
        let text = "FROM daytona\nRUN echo \\\n# a comment\nUSER x\nRUN <<EOF\nUSER y\nFROM z\nEOF\nRUN a <<'X_1'\nUSER\nX_1\n";
        assert_eq!(of(text), ("daytona".into(), false, false));
        assert_eq!(of("FROM daytona\nRUN <<EOF\nEOF\nUSER z\n"), ("daytona".into(), true, false));
    }

    #[test]
    fn bases_get_other_names_and_stages_keep_theirs() {
        let text = "FROM daytonaio/sandbox:0.4.3 AS daytona\nRUN x\nFROM daytona\n";
        assert_eq!(all(text), ["daytonaio/sandbox:0.4.3"]);
        let names = [
            ("daytonaio/sandbox:0.4.3".to_owned(), "slim".to_owned()),
            ("daytona".to_owned(), "no".to_owned()),
        ];
        assert_eq!(renamed(text, &names.into()), "FROM slim AS daytona\nRUN x\nFROM daytona\n");
    }
}
