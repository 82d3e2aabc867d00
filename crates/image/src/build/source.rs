//! Prepares the text of a Dockerfile for the parser: each instruction on one line, here-documents cut out.
//!
//! The parser supports only one here-document, at the beginning of a `RUN`. So they are cut out here, by Docker's
//! rules, and attached to their instruction by its line. Line numbers stay correct: joined or cut lines are replaced by
//! empty lines.

use super::error::BadDockerfile;

/// LIMIT: bytes of a Dockerfile.
pub(crate) const TEXT_MAX: usize = 1 << 20;

/// Replaces the `<` of a here-document in the line that the parser sees.
pub(crate) const MASK: char = '\u{1}';

/// The text and lines for the parser.
#[derive(Debug)]
pub(crate) struct DockerfileSource {
    pub(crate) text: String,
    pub(crate) escape: char,
    pub(crate) lines: Vec<InstructionLine>,
}

/// One instruction.
#[derive(Debug)]
pub(crate) struct InstructionLine {
    /// The line where it begins, from 1.
    pub(crate) number: usize,
    /// As one line.
    pub(crate) text: String,
    pub(crate) documents: Vec<Document>,
}

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) name: String,
    /// Whether variables in it are expanded: its name is not quoted.
    pub(crate) expands: bool,
    /// `<<-`: leading tabs are removed.
    pub(crate) trims: bool,
    pub(crate) content: String,
}

impl Document {
    /// The content, without leading tabs for `<<-`.
    pub(crate) fn trimmed(&self) -> String {
        match self.trims {
            true => self.content.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect(),
            false => self.content.clone(),
        }
    }
}

impl DockerfileSource {
    pub(crate) fn read(text: &str) -> Result<Self, BadDockerfile> {
        if text.len() > TEXT_MAX {
            return Err(BadDockerfile::at(0, format!("a Dockerfile has at most {TEXT_MAX} bytes")));
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if let Some(at) = text.find(['\0', MASK]) {
            let line = text[..at].matches('\n').count() + 1;
            return Err(BadDockerfile::at(line, "a Dockerfile must not contain control characters"));
        }
        let physical: Vec<&str> = text.lines().collect();
        let directives = directives(&physical);
        let escape = escape(&physical[..directives]);
        let mut source = Self { text: String::with_capacity(text.len()), escape, lines: Vec::new() };
        for line in &physical[..directives] {
            source.push(line);
        }
        let mut at = directives;
        while at < physical.len() {
            at = source.instruction(&physical, at)?;
        }
        Ok(source)
    }

    fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Joins the instruction that begins here; returns the first line after it.
    fn instruction(&mut self, physical: &[&str], from: usize) -> Result<usize, BadDockerfile> {
        let first = physical[from].trim_start();
        if first.is_empty() || first.starts_with('#') {
            self.push("");
            return Ok(from + 1);
        }
        let (mut joined, mut more) = self.cut_continuation(first);
        let mut at = from + 1;
        while more && at < physical.len() {
            let line = physical[at];
            at += 1;
            let seen = line.trim_start();
            if seen.is_empty() || seen.starts_with('#') {
                continue;
            }
            let (part, goes_on) = self.cut_continuation(line);
            joined.push_str(part.as_str());
            more = goes_on;
        }
        // Two escapes at the end leave one, which would join the next line.
        let joined = joined.trim_end().trim_end_matches(self.escape).trim_end().to_owned();
        let mut documents = Vec::new();
        for (name, expands, trims) in opened(&joined, self.escape) {
            let mut document = Document { name, expands, trims, content: String::new() };
            at = document.take(physical, at, from + 1)?;
            documents.push(document);
        }
        let shown = match documents.is_empty() {
            true => joined.clone(),
            false => joined.replace("<<", &String::from_iter([MASK, MASK])),
        };
        self.push(&shown);
        (from + 1..at).for_each(|_| self.text.push('\n'));
        self.lines.push(InstructionLine { number: from + 1, text: joined, documents });
        Ok(at)
    }

    /// A line without the escape at its end, and whether it had one.
    fn cut_continuation(&self, line: &str) -> (String, bool) {
        let end = line.trim_end_matches([' ', '\t', '\r']);
        match end.strip_suffix(self.escape) {
            Some(cut) => (cut.to_owned(), true),
            None => (line.trim_end_matches('\r').to_owned(), false),
        }
    }
}

impl Document {
    fn take(&mut self, physical: &[&str], from: usize, opened_at: usize) -> Result<usize, BadDockerfile> {
        for (at, line) in physical.iter().enumerate().skip(from) {
            let end = if self.trims { line.trim_start_matches('\t') } else { line };
            if end == self.name {
                return Ok(at + 1);
            }
            self.content.push_str(line);
            self.content.push('\n');
        }
        let why = format!("the here-document <<{} has no end", self.name);
        Err(BadDockerfile::at(opened_at, why).hint(format!("end it with {} on its own line", self.name)))
    }
}

/// Number of directives (`# syntax=…` and the like) at the top. The first other comment ends them.
fn directives(physical: &[&str]) -> usize {
    let is_directive = |line: &&&str| {
        let rest = line.trim().strip_prefix('#').map(str::trim_start);
        rest.and_then(|rest| rest.split_once('=')).is_some_and(|(name, _)| {
            ["syntax", "escape", "check"].iter().any(|known| name.trim().eq_ignore_ascii_case(known))
        })
    };
    physical.iter().take_while(is_directive).count()
}

fn escape(directives: &[&str]) -> char {
    let is_escape = |line: &&str| {
        let rest = line.trim().strip_prefix('#')?;
        let (name, value) = rest.split_once('=')?;
        name.trim().eq_ignore_ascii_case("escape").then(|| value.trim().starts_with('`'))
    };
    match directives.iter().find_map(is_escape) {
        Some(true) => '`',
        Some(false) | None => '\\',
    }
}

/// The here-documents that a line opens: name, whether variables are expanded, whether tabs are removed.
fn opened(line: &str, escape: char) -> Vec<(String, bool, bool)> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let takes = ["RUN", "COPY", "ADD"].iter().any(|name| word.eq_ignore_ascii_case(name));
    if !takes || !rest.contains("<<") {
        return Vec::new();
    }
    let mut arguments = rest.trim_start();
    while arguments.starts_with("--") {
        arguments = arguments.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start());
    }
    if arguments.starts_with('[') && serde_json::from_str::<Vec<String>>(arguments).is_ok() {
        return Vec::new();
    }
    super::words::words(rest, escape).iter().filter_map(|word| open(word)).collect()
}

/// `[n]<<[-]name`, with optional quotes around the name.
fn open(word: &str) -> Option<(String, bool, bool)> {
    let rest = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<")?;
    let (rest, trims) = rest.strip_prefix('-').map_or((rest, false), |rest| (rest, true));
    if rest.is_empty() || rest.contains('<') {
        return None;
    }
    let name: String = rest.chars().filter(|c| !matches!(c, '"' | '\'' | '\\')).collect();
    let expands = name == rest;
    (!name.is_empty()).then_some((name, expands, trims))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn joined(text: &str) -> Vec<(usize, String)> {
        DockerfileSource::read(text).unwrap().lines.into_iter().map(|line| (line.number, line.text)).collect()
    }

    #[test]
    fn lines_are_joined_and_keep_their_numbers() {
        let text = "# a comment\nFROM x\n\nRUN a \\\n  # inside\n\n  b \\  \n c\nRUN d\\\\\nRUN e";
        let own = |n: usize, text: &str| (n, text.to_owned());
        assert_eq!(joined(text), [own(2, "FROM x"), own(4, "RUN a   b  c"), own(9, "RUN d\\RUN e")]);
        let source = DockerfileSource::read(text).unwrap();
        assert_eq!(source.text.lines().count(), text.lines().count());
        assert_eq!(source.text.lines().nth(3), Some("RUN a   b  c"));
        assert_eq!(
            joined("# escape=`\nFROM x\nRUN a `\n b\\\nRUN c"),
            [own(2, "FROM x"), own(3, "RUN a  b\\"), own(5, "RUN c")]
        );
    }

    #[test]
    fn here_documents_are_cut_out_wherever_they_are_opened() {
        let text = "FROM x\nRUN <<EOF\n# kept\nFROM y\nEOF\nRUN cat <<-'A' > /x && cat <<B\n\tone\n\tA\ntwo\nB\nCOPY <<c.txt <<\"d\" /\n$c\nc.txt\n$d\nd\nRUN [\"cat\", \"<<EOF\"]\nRUN cat <<<x\n";
        let source = DockerfileSource::read(text).unwrap();
        let documents: Vec<Vec<(String, bool, bool, String)>> = source
            .lines
            .iter()
            .map(|line| {
                line.documents.iter().map(|d| (d.name.clone(), d.expands, d.trims, d.trimmed())).collect()
            })
            .collect();
        let own =
            |name: &str, expands, trims, content: &str| (name.to_owned(), expands, trims, content.to_owned());
        assert_eq!(documents[1], [own("EOF", true, false, "# kept\nFROM y\n")]);
        assert_eq!(documents[2], [own("A", false, true, "one\n"), own("B", true, false, "two\n")]);
        assert_eq!(documents[3], [own("c.txt", true, false, "$c\n"), own("d", false, false, "$d\n")]);
        assert!(documents[4].is_empty() && documents[5].is_empty());
        assert_eq!(source.lines.last().unwrap().number, 17);
    }

    #[test]
    fn what_never_ends_is_refused_with_its_line() {
        let error = DockerfileSource::read("FROM x\nRUN <<EOF\nnothing").unwrap_err();
        assert_eq!((error.line, error.hint.is_some()), (2, true));
        assert!(DockerfileSource::read(&"#\n".repeat(TEXT_MAX)).is_err());
        assert_eq!(DockerfileSource::read("FROM x\nRUN a\u{1}b").unwrap_err().line, 2);
    }
}
