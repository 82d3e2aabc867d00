//! Files: read, write, edit, list, search.

use atoll_front_kit::{ApiError, lossy_text};
use atoll_toolbox::{Edit, EntryKind, FileBody, FilePart, Grep, ListOptions};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use super::schema::{self, ToolDescription, ToolHints};
use super::{TEXT_MAX, ToolAnswer};
use crate::methods::McpCall;

/// LIMIT: bytes of one call of file_read.
const READ_MAX: u64 = 256 << 10;
/// LIMIT: bytes that are passed over to find a line.
const SCAN_MAX: u64 = 256 << 20;
/// LIMIT: entries and matches of one answer.
const ITEMS_MAX: usize = 500;
/// LIMIT: characters of a matching line.
const LINE_MAX: usize = 400;

pub(super) fn descriptions() -> Vec<ToolDescription> {
    use schema::{
        flag, integer, list, nullable_text, optional, required, sandbox, sandbox_id, text, texts, words,
    };
    let path = |what: &str| required("path", text(what));
    let absolute = "Absolute, below ~, or relative to the home of the sandbox's user";
    vec![
        ToolDescription {
            name: "file_read",
            title: "Read a file",
            description: "Reads a file, or a part of it by lines or by bytes. Text comes as text, anything else as base64.",
            hints: ToolHints::Reads,
            arguments: vec![
                path(absolute),
                sandbox(),
                optional("line", integer("First line, from 1; not with offset", 1, None)),
                optional("lines", integer("Lines at most; not with offset", 1, None)),
                optional("offset", integer("First byte; default: 0", 0, None)),
                optional("limit", integer("Bytes at most; default: 30000", 1, Some(READ_MAX))),
            ],
            answer: vec![
                sandbox_id(),
                required("content", text("The content, as encoding says")),
                required("encoding", words("How content is written", &["text", "base64"])),
                required("size", integer("Bytes of the whole file", 0, None)),
                required("next", integer("The byte after this part; equal to size at the end", 0, None)),
                required(
                    "next_line",
                    schema::nullable_integer(
                        "The line after this part, if it was read by lines; null at the end, and where limit cut a line",
                    ),
                ),
            ],
        },
        ToolDescription {
            name: "file_write",
            title: "Write a file",
            description: "Writes a whole file; missing folders are made, an existing file is replaced.",
            hints: ToolHints::Changes,
            arguments: vec![
                path(absolute),
                required("content", text("The content")),
                optional("encoding", words("How content is written; default: text", &["text", "base64"])),
                sandbox(),
            ],
            answer: vec![
                sandbox_id(),
                path("The file"),
                required("bytes", integer("Bytes written", 0, None)),
            ],
        },
        ToolDescription {
            name: "file_edit",
            title: "Edit a file",
            description: "Replaces texts in a file and returns the diff. A text that does not occur, or occurs more than once \
                without all, is an error, and the file stays as it was.",
            hints: ToolHints::Changes,
            arguments: vec![
                path(absolute),
                required(
                    "edits",
                    list(
                        "Applied one after the other",
                        vec![
                            required("find", text("The exact text to find")),
                            required("replace", text("Its replacement")),
                            optional("all", flag("Replace every occurrence; default: false")),
                        ],
                    ),
                ),
                sandbox(),
            ],
            answer: vec![
                sandbox_id(),
                required("replacements", integer("How many texts were replaced", 0, None)),
                required("diff", text("The change as a unified diff")),
            ],
        },
        ToolDescription {
            name: "file_list",
            title: "List a folder",
            description: "Lists a folder, with its subfolders if depth is more than 1.",
            hints: ToolHints::Reads,
            arguments: vec![
                optional("path", text("The folder; default: the working directory of the sandbox")),
                sandbox(),
                optional("depth", integer("Levels; default: 1", 1, Some(32))),
                optional("exclude", texts("Globs of entries to leave out, such as node_modules")),
            ],
            answer: vec![
                sandbox_id(),
                path("The folder"),
                required(
                    "entries",
                    list(
                        "Sorted, children after their folder",
                        vec![
                            path("Path of the entry"),
                            required("kind", words("What it is", &["file", "directory", "symlink", "other"])),
                            required("size", integer("Bytes", 0, None)),
                        ],
                    ),
                ),
                required("truncated", flag("Whether there are more")),
            ],
        },
        ToolDescription {
            name: "file_search",
            title: "Search files",
            description: "Searches files below a folder: by content (pattern), by name (glob), or both.",
            hints: ToolHints::Reads,
            arguments: vec![
                optional("pattern", text("Regular expression to find in files")),
                optional(
                    "glob",
                    text("Glob of file names, such as *.rs; with a slash: of paths below the folder"),
                ),
                optional("path", text("The folder; default: the working directory of the sandbox")),
                optional("literal", flag("pattern is plain text; default: false")),
                optional("ignore_case", flag("Default: false")),
                sandbox(),
            ],
            answer: vec![
                sandbox_id(),
                required(
                    "matches",
                    list(
                        "Sorted by path",
                        vec![
                            path("The file"),
                            required(
                                "line",
                                schema::nullable_integer("Line number from 1; null for a match of the name"),
                            ),
                            required("content", nullable_text("The line")),
                        ],
                    ),
                ),
                required("truncated", flag("Whether there may be more")),
            ],
        },
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArguments {
    path: String,
    sandbox: Option<String>,
    line: Option<u64>,
    lines: Option<u64>,
    offset: Option<u64>,
    limit: Option<u64>,
}

#[derive(Serialize)]
struct ReadAnswer {
    sandbox: String,
    content: String,
    encoding: ContentEncoding,
    size: u64,
    next: u64,
    next_line: Option<u64>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
enum ContentEncoding {
    #[default]
    Text,
    Base64,
}

pub(super) async fn read(call: &McpCall, args: ReadArguments) -> Result<ToolAnswer, ApiError> {
    let limit = args.limit.unwrap_or(TEXT_MAX as u64);
    if !(1..=READ_MAX).contains(&limit) {
        return Err(ApiError::field("limit", format!("must be between 1 and {READ_MAX}")));
    }
    let tools = call.tools(args.sandbox).await?;
    let files = tools.toolbox.files();
    let by_lines = args.line.is_some() || args.lines.is_some();
    let part = match (by_lines, args.offset) {
        (true, Some(_)) => return Err(ApiError::invalid("line and lines cannot be combined with offset")),
        (true, None) => {
            let lines = LineRange { first: args.line.unwrap_or(1), count: args.lines, limit };
            read_lines(files.read(&args.path, FilePart::Whole).await?, lines).await?
        }
        (false, offset) => {
            let offset = offset.unwrap_or(0);
            let body = files.read(&args.path, FilePart::Bytes { offset, limit: Some(limit) }).await?;
            read_bytes(body, offset).await?
        }
    };
    let ReadPart { bytes, size, next, next_line } = part;
    let (content, encoding) = match String::from_utf8(bytes) {
        Ok(text) => (text, ContentEncoding::Text),
        Err(raw) => (STANDARD.encode(raw.as_bytes()), ContentEncoding::Base64),
    };
    ToolAnswer::of(&ReadAnswer { sandbox: tools.id(), content, encoding, size, next, next_line })
}

/// A part of a file, and what is after it.
struct ReadPart {
    bytes: Vec<u8>,
    size: u64,
    next: u64,
    next_line: Option<u64>,
}

async fn read_bytes(body: FileBody, offset: u64) -> Result<ReadPart, ApiError> {
    let size = body.size;
    let mut bytes = Vec::new();
    let mut stream = std::pin::pin!(body.into_stream());
    while let Some(chunk) = stream.next().await {
        bytes.extend_from_slice(&chunk?);
    }
    let is_cut = offset + (bytes.len() as u64) < size;
    bytes.truncate(whole_characters(&bytes, is_cut));
    let next = offset.min(size) + bytes.len() as u64;
    Ok(ReadPart { bytes, size, next, next_line: None })
}

async fn read_lines(body: FileBody, range: LineRange) -> Result<ReadPart, ApiError> {
    let size = body.size;
    let mut lines = LineReader::new(range);
    let mut stream = std::pin::pin!(body.into_stream());
    while !lines.is_full() {
        let Some(chunk) = stream.next().await else { break };
        lines.take(&chunk?);
        if lines.skipped > SCAN_MAX {
            let message =
                format!("the line is not in the first {SCAN_MAX} bytes; read the file from an offset");
            return Err(ApiError::field("line", message));
        }
    }
    Ok(lines.finish(size))
}

/// How many bytes are whole characters; one that was cut in two is left to the next part. What is no text stays as it is.
fn whole_characters(bytes: &[u8], is_cut: bool) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if is_cut && error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// Which lines of a file.
#[derive(Debug, Clone, Copy)]
struct LineRange {
    /// From 1.
    first: u64,
    count: Option<u64>,
    /// Bytes at most.
    limit: u64,
}

/// Takes the lines of a range out of a stream.
struct LineReader {
    range: LineRange,
    /// The line of the next byte.
    line: u64,
    /// Bytes before the range.
    skipped: u64,
    bytes: Vec<u8>,
    /// Ends of whole lines in `bytes`, by their position after the line feed.
    last_end: usize,
}

impl LineReader {
    fn new(range: LineRange) -> Self {
        Self { range, line: 1, skipped: 0, bytes: Vec::new(), last_end: 0 }
    }

    fn has_all_lines(&self) -> bool {
        let after = self.range.count.map(|count| self.range.first.saturating_add(count));
        after.is_some_and(|after| self.line >= after)
    }

    fn is_full(&self) -> bool {
        self.has_all_lines() || self.bytes.len() as u64 >= self.range.limit
    }

    fn take(&mut self, chunk: &[u8]) {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            if self.is_full() {
                return;
            }
            let is_end = piece.ends_with(b"\n");
            if self.line < self.range.first {
                self.skipped += piece.len() as u64;
                self.line += u64::from(is_end);
                continue;
            }
            let space = usize::try_from(self.range.limit).unwrap_or(usize::MAX) - self.bytes.len();
            self.bytes.extend_from_slice(&piece[..piece.len().min(space)]);
            if is_end && piece.len() <= space {
                self.line += 1;
                self.last_end = self.bytes.len();
            }
        }
    }

    /// The part. If the limit cut a line and there is a whole one, the cut one is left to the next part.
    fn finish(mut self, size: u64) -> ReadPart {
        let at = |bytes: &[u8]| (self.skipped + bytes.len() as u64).min(size);
        let is_cut = !self.has_all_lines() && at(&self.bytes) < size;
        if is_cut && self.last_end > 0 {
            self.bytes.truncate(self.last_end);
        } else {
            self.bytes.truncate(whole_characters(&self.bytes, is_cut));
        }
        let next = (self.skipped + self.bytes.len() as u64).min(size);
        let is_at_line = self.last_end == self.bytes.len();
        let next_line = (next < size && is_at_line).then_some(self.line);
        ReadPart { bytes: self.bytes, size, next, next_line }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArguments {
    path: String,
    content: String,
    #[serde(default)]
    encoding: ContentEncoding,
    sandbox: Option<String>,
}

#[derive(Serialize)]
struct WriteAnswer {
    sandbox: String,
    path: String,
    bytes: usize,
}

pub(super) async fn write(call: &McpCall, args: WriteArguments) -> Result<ToolAnswer, ApiError> {
    let content = match args.encoding {
        ContentEncoding::Text => args.content.into_bytes(),
        ContentEncoding::Base64 => STANDARD
            .decode(args.content)
            .map_err(|error| ApiError::field("content", format!("is not base64: {error}")))?,
    };
    let tools = call.tools(args.sandbox).await?;
    let bytes = content.len();
    tools.toolbox.files().write(&args.path, None, content).await?;
    ToolAnswer::of(&WriteAnswer { sandbox: tools.id(), path: args.path, bytes })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EditArguments {
    path: String,
    edits: Vec<EditArgument>,
    sandbox: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EditArgument {
    find: String,
    replace: String,
    #[serde(default)]
    all: bool,
}

#[derive(Serialize)]
struct EditAnswer {
    sandbox: String,
    replacements: u64,
    diff: String,
}

pub(super) async fn edit(call: &McpCall, args: EditArguments) -> Result<ToolAnswer, ApiError> {
    let edits: Vec<Edit> = args
        .edits
        .into_iter()
        .map(|edit| Edit { find: edit.find, replace: edit.replace, unique: !edit.all })
        .collect();
    let tools = call.tools(args.sandbox).await?;
    let edited = tools.toolbox.files().edit(&args.path, &edits).await?;
    let diff = cut(edited.diff, TEXT_MAX);
    ToolAnswer::of(&EditAnswer { sandbox: tools.id(), replacements: edited.replacements, diff })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    path: Option<String>,
    sandbox: Option<String>,
    depth: Option<u32>,
    #[serde(default)]
    exclude: Vec<String>,
}

#[derive(Serialize)]
struct FileList {
    sandbox: String,
    path: String,
    entries: Vec<FileEntry>,
    truncated: bool,
}

#[derive(Serialize)]
struct FileEntry {
    path: String,
    kind: &'static str,
    size: u64,
}

pub(super) async fn list(call: &McpCall, args: ListArguments) -> Result<ToolAnswer, ApiError> {
    let tools = call.tools(args.sandbox).await?;
    let path = tools.directory(args.path);
    let options = ListOptions { depth: Some(args.depth.unwrap_or(1).clamp(1, 32)), exclude: args.exclude };
    let listing = tools.toolbox.files().list(&path, &options).await?;
    let truncated = listing.truncated || listing.entries.len() > ITEMS_MAX;
    let entries = listing.entries.into_iter().take(ITEMS_MAX).map(|entry| FileEntry {
        path: lossy_text(&entry.path),
        kind: kind(entry.kind),
        size: entry.size,
    });
    ToolAnswer::of(&FileList { sandbox: tools.id(), path, entries: entries.collect(), truncated })
}

const fn kind(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink => "symlink",
        EntryKind::Other => "other",
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchArguments {
    pattern: Option<String>,
    glob: Option<String>,
    path: Option<String>,
    #[serde(default)]
    literal: bool,
    #[serde(default)]
    ignore_case: bool,
    sandbox: Option<String>,
}

#[derive(Serialize)]
struct FileMatches {
    sandbox: String,
    matches: Vec<FileMatch>,
    truncated: bool,
}

#[derive(Serialize)]
struct FileMatch {
    path: String,
    line: Option<u64>,
    content: Option<String>,
}

pub(super) async fn search(call: &McpCall, args: SearchArguments) -> Result<ToolAnswer, ApiError> {
    if args.pattern.is_none() && args.glob.is_none() {
        return Err(ApiError::invalid("pattern or glob is missing"));
    }
    let tools = call.tools(args.sandbox).await?;
    let (path, files) = (tools.directory(args.path), tools.toolbox.files());
    let (mut matches, mut truncated): (Vec<FileMatch>, bool) = match (args.pattern, args.glob) {
        (Some(pattern), glob) => {
            let grep = Grep {
                pattern,
                literal: args.literal,
                ignore_case: args.ignore_case,
                include: glob.into_iter().collect(),
                exclude: Vec::new(),
            };
            let found = files.grep(&path, &grep).await?;
            let lines = found.items.into_iter().map(|found| FileMatch {
                path: found.path,
                line: Some(found.line),
                content: Some(cut(found.content, LINE_MAX)),
            });
            (lines.collect(), found.truncated)
        }
        (None, glob) => {
            let found = files.glob(&path, &glob.unwrap_or_default(), &[]).await?;
            let names = found.items.into_iter().map(|path| FileMatch { path, line: None, content: None });
            (names.collect(), found.truncated)
        }
    };
    truncated |= matches.len() > ITEMS_MAX;
    matches.truncate(ITEMS_MAX);
    ToolAnswer::of(&FileMatches { sandbox: tools.id(), matches, truncated })
}

/// A text of at most about `max` bytes, with a mark if it was longer.
fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text, the next byte and the next line, whatever the pieces of the stream.
    fn read(text: &str, first: u64, count: Option<u64>, limit: u64) -> (String, u64, Option<u64>) {
        let mut found = None;
        for size in [1, 2, 3, 7, 1_000] {
            let mut lines = LineReader::new(LineRange { first, count, limit });
            for chunk in text.as_bytes().chunks(size) {
                if lines.is_full() {
                    break;
                }
                lines.take(chunk);
            }
            let part = lines.finish(text.len() as u64);
            let read = (String::from_utf8_lossy(&part.bytes).into_owned(), part.next, part.next_line);
            assert_eq!(*found.get_or_insert_with(|| read.clone()), read, "pieces of {size}");
        }
        found.unwrap_or_default()
    }

    #[test]
    fn lines_are_counted_from_one_and_read_whole() {
        let text = "one\ntwo\nthree\nfour";
        let is = |text: &str, next, line| (text.to_owned(), next, line);
        assert_eq!(read(text, 1, None, 100), is(text, 18, None));
        assert_eq!(read(text, 2, Some(1), 100), is("two\n", 8, Some(3)));
        assert_eq!(read(text, 2, Some(2), 100), is("two\nthree\n", 14, Some(4)));
        assert_eq!(read(text, 4, Some(9), 100), is("four", 18, None));
        assert_eq!(read(text, 9, None, 100), is("", 18, None));
        assert_eq!(read("a\n", 2, None, 100), is("", 2, None));
        // Where the limit falls into a line, that line is left to the next part; a line that is longer than the limit is cut.
        assert_eq!(read(text, 1, None, 6), is("one\n", 4, Some(2)));
        assert_eq!(read(text, 3, None, 3), is("thr", 11, None));
        assert_eq!(read("ää\nb", 1, None, 3), is("ä", 2, None));
    }
}
