//! Files: read, write, edit, list, search.

use atoll_front_kit::{ApiError, lossy_text};
use atoll_toolbox::{Edit, EntryKind, FilePart, Grep, ListOptions};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use super::schema::{self, ToolDescription, ToolHints};
use super::{TEXT_MAX, ToolAnswer};
use crate::methods::McpCall;

/// LIMIT: bytes of one call of file_read.
const READ_MAX: u64 = 256 << 10;
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
            description: "Reads a file, or a part of it by bytes. Text comes as text, anything else as base64.",
            hints: ToolHints::Reads,
            arguments: vec![
                path(absolute),
                sandbox(),
                optional("offset", integer("First byte; default: 0", 0, None)),
                optional("limit", integer("Bytes at most; default: 30000", 1, Some(READ_MAX))),
            ],
            answer: vec![
                sandbox_id(),
                required("content", text("The content, as encoding says")),
                required("encoding", words("How content is written", &["text", "base64"])),
                required("size", integer("Bytes of the whole file", 0, None)),
                required("next", integer("The byte after this part; equal to size at the end", 0, None)),
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
    #[serde(default)]
    offset: u64,
    limit: Option<u64>,
}

#[derive(Serialize)]
struct ReadAnswer {
    sandbox: String,
    content: String,
    encoding: ContentEncoding,
    size: u64,
    next: u64,
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
    let part = FilePart::Bytes { offset: args.offset, limit: Some(limit) };
    let body = tools.toolbox.files().read(&args.path, part).await?;
    let size = body.size;
    let mut bytes = Vec::new();
    let mut stream = std::pin::pin!(body.into_stream());
    while let Some(chunk) = stream.next().await {
        bytes.extend_from_slice(&chunk?);
    }
    // A character that the limit cut in two is left to the next part.
    let mut whole = bytes.len();
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
        && error.valid_up_to() > 0
        && args.offset + (bytes.len() as u64) < size
    {
        whole = error.valid_up_to();
    }
    bytes.truncate(whole);
    let next = args.offset.min(size) + bytes.len() as u64;
    let (content, encoding) = match String::from_utf8(bytes) {
        Ok(text) => (text, ContentEncoding::Text),
        Err(raw) => (STANDARD.encode(raw.as_bytes()), ContentEncoding::Base64),
    };
    ToolAnswer::of(&ReadAnswer { sandbox: tools.id(), content, encoding, size, next })
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
