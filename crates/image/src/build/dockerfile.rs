//! Parses the text of a Dockerfile into instructions. The grammar is that of `parse-dockerfile`. Everything that it
//! does not check (pairs, here-documents, unknown flags) is checked here, so that planning can rely on it.

use parse_dockerfile::{self as grammar, Instruction as Parsed};

use super::error::BadDockerfile;
use super::instruction::{CommandForm, CopyWords, Flag, Instruction, InstructionKind, SourceWord};
use super::source::{DockerfileSource, Document, InstructionLine, MASK};
use super::words::{pairs, words};

/// LIMIT: instructions of one Dockerfile.
pub(crate) const STEPS_MAX: usize = 1000;
/// LIMIT: stages of one Dockerfile.
pub(crate) const STAGES_MAX: usize = 100;

/// A parsed Dockerfile.
#[derive(Debug, Clone)]
pub struct Dockerfile {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) escape: char,
}

impl Dockerfile {
    /// Parses the text. The error names the line and the instruction.
    pub fn parse(text: &str) -> Result<Self, BadDockerfile> {
        let source = DockerfileSource::read(text)?;
        if source.lines.len() > STEPS_MAX {
            let line = source.lines.get(STEPS_MAX).map_or(0, |line| line.number);
            return Err(BadDockerfile::at(
                line,
                format!("a Dockerfile has at most {STEPS_MAX} instructions"),
            ));
        }
        let parsed = grammar::parse_iter(&source.text).map_err(|error| of_grammar(&error, &source))?;
        let mut lines = source.lines.iter();
        let mut instructions = Vec::with_capacity(source.lines.len());
        for found in parsed {
            let found = found.map_err(|error| of_grammar(&error, &source))?;
            let line =
                lines.next().ok_or_else(|| BadDockerfile::at(0, "a line contains two instructions"))?;
            let kind = kind_of(found, line, source.escape)
                .map_err(|why| BadDockerfile { why: format!("{}: {}", word_of(line), why.why), ..why })?;
            instructions.push(Instruction { line: line.number, text: shown(&line.text), kind });
        }
        let stages = instructions.iter().filter(|i| matches!(i.kind, InstructionKind::From { .. })).count();
        if stages > STAGES_MAX {
            return Err(BadDockerfile::at(0, format!("a Dockerfile has at most {STAGES_MAX} stages")));
        }
        Ok(Self { instructions, escape: source.escape })
    }
}

/// Whether a build of this text reads a context: any `COPY` or `ADD` without `--from`, or a mount of one. True for a
/// text that cannot be parsed.
pub fn needs_context(text: &str) -> bool {
    let from = |flags: &[Flag]| flags.iter().any(|flag| flag.name == "from");
    let Ok(dockerfile) = Dockerfile::parse(text) else { return true };
    dockerfile.instructions.iter().any(|instruction| match &instruction.kind {
        InstructionKind::Copy(copy) => {
            !from(&copy.flags) && copy.sources.iter().any(|source| matches!(source, SourceWord::Path(_)))
        }
        InstructionKind::Run { flags, .. } => flags.iter().any(|flag| {
            let value = flag.value.as_deref().unwrap_or_default();
            let kind = value.split(',').find_map(|part| part.strip_prefix("type=")).unwrap_or("bind");
            flag.name == "mount" && kind == "bind" && !value.split(',').any(|part| part.starts_with("from="))
        }),
        _ => false,
    })
}

/// LIMIT: characters of a step's text in logs.
const SHOWN_MAX: usize = 300;

fn shown(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_whitespace() {
        if out.len() + word.len() > SHOWN_MAX {
            out.push_str(" …");
            break;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

fn word_of(line: &InstructionLine) -> String {
    line.text.split_whitespace().next().unwrap_or_default().to_ascii_uppercase()
}

/// LIMIT: the edit distance up to which a similar word is suggested.
const TYPO: usize = 2;

const WORDS: [&str; 18] = [
    "ADD",
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "RUN",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
];

fn of_grammar(error: &grammar::Error, source: &DockerfileSource) -> BadDockerfile {
    let line = source.lines.iter().rev().find(|line| line.number <= error.line());
    let said = error.to_string();
    let why = said.split(" at line ").next().unwrap_or(&said).to_owned();
    let Some(line) = line else { return BadDockerfile::at(error.line(), why) };
    let word = word_of(line);
    if !WORDS.contains(&word.as_str()) {
        let near = WORDS.iter().min_by_key(|known| strsim::levenshtein(known, &word));
        let bad = BadDockerfile::at(line.number, format!("{word} is not a Dockerfile instruction"));
        return match near.filter(|known| strsim::levenshtein(known, &word) <= TYPO) {
            Some(known) => bad.hint(format!("did you mean {known}?")),
            None => bad,
        };
    }
    BadDockerfile::at(line.number, format!("{word}: {why}"))
}

fn kind_of(
    parsed: Parsed<'_>,
    line: &InstructionLine,
    escape: char,
) -> Result<InstructionKind, BadDockerfile> {
    let bad = |why: String| BadDockerfile::at(line.number, why);
    let own = |text: &str| text.replace(MASK, "<");
    Ok(match parsed {
        Parsed::From(from) => {
            let flags = known(flags(&from.options), &["platform"], line)?;
            let platform = flags.into_iter().next().and_then(|flag| flag.value);
            let name = from.as_.map(|(_, name)| name.value.to_ascii_lowercase());
            if let Some(name) = &name
                && !is_stage_name(name)
            {
                return Err(bad(format!("{name:?} is not a valid stage name")).hint(
                    "the name of a stage starts with a letter and contains letters, digits, \"-\", \"_\" and \".\"",
                ));
            }
            InstructionKind::From { platform, image: from.image.value.into_owned(), name }
        }
        Parsed::Arg(arg) => InstructionKind::Arg(arguments(&arg.arguments.value, escape).map_err(bad)?),
        Parsed::Env(env) => InstructionKind::Env(pairs(&env.arguments.value, escape).map_err(bad)?),
        Parsed::Label(label) => InstructionKind::Label(pairs(&label.arguments.value, escape).map_err(bad)?),
        Parsed::Run(run) => {
            let flags = known(flags(&run.options), &["mount", "network", "security"], line)?;
            let command = command(&run.arguments);
            if matches!(&command, CommandForm::Shell(text) if text.is_empty()) {
                return Err(bad("it needs a command".into()));
            }
            InstructionKind::Run { flags, command, documents: line.documents.clone() }
        }
        Parsed::Copy(copy) => {
            let names = ["from", "chown", "chmod", "link", "parents", "exclude"];
            let flags = known(flags(&copy.options), &names, line)?;
            InstructionKind::Copy(copy_words(false, flags, &copy.src, &own(&copy.dest.value), line)?)
        }
        Parsed::Add(add) => {
            let names = ["chown", "chmod", "link", "exclude", "checksum", "keep-git-dir", "unpack"];
            let flags = known(flags(&add.options), &names, line)?;
            InstructionKind::Copy(copy_words(true, flags, &add.src, &own(&add.dest.value), line)?)
        }
        Parsed::Workdir(workdir) => InstructionKind::Workdir(workdir.arguments.value.into_owned()),
        Parsed::User(user) => InstructionKind::User(user.arguments.value.into_owned()),
        Parsed::Cmd(cmd) => InstructionKind::Cmd(command(&cmd.arguments)),
        Parsed::Entrypoint(entrypoint) => InstructionKind::Entrypoint(command(&entrypoint.arguments)),
        Parsed::Expose(expose) => InstructionKind::Expose(owned(&expose.arguments)),
        Parsed::Volume(volume) => InstructionKind::Volume(match &volume.arguments {
            grammar::JsonOrStringArray::Json(list) => owned(&list.value),
            grammar::JsonOrStringArray::String(list) => owned(list),
        }),
        Parsed::Stopsignal(signal) => InstructionKind::StopSignal(signal.arguments.value.into_owned()),
        Parsed::Shell(shell) => InstructionKind::Shell(owned(&shell.arguments)),
        Parsed::Healthcheck(_) => InstructionKind::Healthcheck,
        Parsed::Maintainer(maintainer) => InstructionKind::Maintainer(maintainer.name.value.into_owned()),
        Parsed::Onbuild(_) => {
            return Err(bad(
                "it acts in later builds that use this image, which Atoll does not support".into()
            )
            .hint("write the instruction into the Dockerfile that needs it"));
        }
        _ => return Err(bad("it is not supported".into())),
    })
}

fn is_stage_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn owned(list: &[grammar::UnescapedString<'_>]) -> Vec<String> {
    list.iter().map(|item| item.value.clone().into_owned()).collect()
}

fn command(parsed: &grammar::Command<'_>) -> CommandForm {
    match parsed {
        grammar::Command::Exec(list) => CommandForm::Exec(owned(&list.value)),
        grammar::Command::Shell(text) => CommandForm::Shell(text.value.replace(MASK, "<").trim().to_owned()),
        _ => CommandForm::Exec(Vec::new()),
    }
}

fn flags(parsed: &[grammar::Flag<'_>]) -> Vec<Flag> {
    let own = |flag: &grammar::Flag<'_>| Flag {
        name: flag.name.value.clone().into_owned(),
        value: flag.value.as_ref().map(|value| value.value.clone().into_owned()),
    };
    parsed.iter().map(own).collect()
}

fn known(flags: Vec<Flag>, names: &[&str], line: &InstructionLine) -> Result<Vec<Flag>, BadDockerfile> {
    let repeats = |name: &str| matches!(name, "mount" | "exclude");
    for (at, flag) in flags.iter().enumerate() {
        if !names.contains(&flag.name.as_str()) {
            let bad = BadDockerfile::at(line.number, format!("it has no flag --{}", flag.name));
            let list: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
            return Err(bad.hint(format!("it has {}", list.join(", "))));
        }
        if !repeats(&flag.name) && flags[..at].iter().any(|other| other.name == flag.name) {
            return Err(BadDockerfile::at(line.number, format!("--{} is repeated", flag.name)));
        }
        if flag.value.is_none()
            && !matches!(flag.name.as_str(), "link" | "parents" | "unpack" | "keep-git-dir")
        {
            return Err(BadDockerfile::at(line.number, format!("--{} needs a value", flag.name)));
        }
    }
    Ok(flags)
}

fn arguments(rest: &str, escape: char) -> Result<Vec<(String, Option<String>)>, String> {
    let own = |word: String| match word.split_once('=') {
        Some(("", _)) => Err(format!("{word:?} has no name before its \"=\"")),
        Some((name, value)) => Ok((name.to_owned(), Some(value.to_owned()))),
        None => Ok((word, None)),
    };
    words(rest, escape).into_iter().map(own).collect()
}

fn copy_words(
    add: bool,
    flags: Vec<Flag>,
    parsed: &[grammar::Source<'_>],
    dest: &str,
    line: &InstructionLine,
) -> Result<CopyWords, BadDockerfile> {
    let mut documents = line.documents.iter();
    let mut sources = Vec::new();
    for source in parsed {
        let grammar::Source::Path(path) = source else {
            return Err(BadDockerfile::at(line.number, "its here-document is malformed"));
        };
        sources.push(match path.value.contains(MASK) {
            true => SourceWord::Document(next_document(&mut documents, line)?),
            false => SourceWord::Path(path.value.clone().into_owned()),
        });
    }
    Ok(CopyWords { add, flags, sources, dest: dest.to_owned() })
}

fn next_document<'a>(
    documents: &mut impl Iterator<Item = &'a Document>,
    line: &InstructionLine,
) -> Result<Document, BadDockerfile> {
    let missing = || BadDockerfile::at(line.number, "its here-documents must come before the destination");
    documents.next().cloned().ok_or_else(missing)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> (usize, String) {
        let error = Dockerfile::parse(text).unwrap_err();
        (
            error.line,
            format!("{}{}", error.why, error.hint.map(|hint| format!(" ({hint})")).unwrap_or_default()),
        )
    }

    #[test]
    fn errors_name_the_line_the_instruction_and_a_way_out() {
        for (text, line, said) in [
            ("FROM a\nRUM x", 2, "did you mean RUN?"),
            ("FROM a\n\nENV", 3, "ENV:"),
            ("FROM a\nENV A=1 B", 2, "quote values"),
            ("RUN x", 1, "RUN:"),
            ("FROM a\nCOPY --form=x a b", 2, "--from"),
            ("FROM a\nCOPY a", 2, "COPY:"),
            ("FROM a\nSHELL /bin/sh", 2, "SHELL:"),
            ("FROM a AS 1x", 1, "not a valid stage name"),
            ("FROM a\nONBUILD RUN x", 2, "ONBUILD:"),
            ("FROM a\nRUN <<EOF\nx", 2, "has no end"),
            ("FROM a\nCOPY --chown=a --chown=b x y", 2, "repeated"),
            ("FROM a b", 1, "FROM:"),
            ("", 0, ""),
        ] {
            let (at, why) = error(text);
            assert!((at == line || line == 0) && why.contains(said), "{text:?}: {at} {why}");
        }
    }

    #[test]
    fn bounds_hold() {
        assert!(error(&format!("FROM a\n{}", "RUN x\n".repeat(1001))).1.contains("1000 instructions"));
        assert!(error(&"FROM a\n".repeat(101)).1.contains("100 stages"));
    }

    #[test]
    fn a_context_is_needed_only_where_files_of_it_are_read() {
        assert!(!needs_context("FROM a\nRUN x\nCOPY --from=a /b /c\nCOPY <<x /y\nx\n"));
        assert!(
            needs_context("FROM a\nCOPY . .")
                && needs_context("nonsense")
                && needs_context("FROM a\nRUN --mount=target=/x ls")
        );
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "(FROM|RUN|COPY|ENV|ARG|#|<<E|E|\\[|\\]|\"|\\\\|\n| |=|a){0,60}") {
            let _ = Dockerfile::parse(&text);
            let _ = Dockerfile::parse(&format!("FROM a\n{text}"));
        }
    }

    #[test]
    fn any_dockerfile_is_read_or_refused() {
        atoll_robustness::check("dockerfile", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = needs_context(&text);
            match Dockerfile::parse(&text) {
                Ok(file) => assert!(file.instructions.len() <= STEPS_MAX),
                Err(bad) => assert!(bad.line <= text.lines().count().max(1), "{bad:?}"),
            }
        });
    }
}
