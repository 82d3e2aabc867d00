//! Files of a session: described and changed by scripts, read and written in windows.
//!
//! The service carries messages of at most 63 KiB, so a file is read by `read_file` in windows of 50 KiB. It is written in windows
//! too: text by `write_file`, bytes that are no text by a script, because that tool takes only text.

use atoll_agentapi::{Entry, EntryKind};
use atoll_model::ErrorKind;
use atoll_remote::{CallError, Repeat};
use bytes::{Bytes, BytesMut};
use serde_json::json;

use crate::api::AgentbayApi;
use crate::jobs::JOBS;
use crate::shell::{ScriptError, decoded, encoded, quoted};

/// Bytes of a window.
pub(crate) const WINDOW: usize = 50 << 10;
/// LIMIT: bytes that a script carries, before their encoding.
pub(crate) const SCRIPT_CONTENT: usize = 33 << 10;
/// LIMIT: a window as the text of a JSON document.
const TEXT_MAX: usize = 58 << 10;
/// LIMIT: bytes of a list of entries.
const LIST_MAX: usize = 8 << 20;
/// LIMIT: attempts to append one window.
const ATTEMPTS: u32 = 3;
/// The facts of an entry, in the order in which they are read.
const FACTS: &str = "%f %s %u %g %Y %U %G";
/// The mode of a new file.
const NEW_MODE: u32 = 0o644;

fn cut() -> CallError {
    CallError::Unanswered { why: "the facts about a file cannot be read".to_owned() }
}

/// Reads one entry: the facts, a slash, and the path.
fn entry(text: &[u8], link: Option<Vec<u8>>) -> Option<Entry> {
    let slash = text.iter().position(|byte| *byte == b'/')?;
    let facts = std::str::from_utf8(&text[..slash]).ok()?;
    let path = &text[slash..];
    let mut words = facts.split(' ');
    let raw_mode = u32::from_str_radix(words.next()?, 16).ok()?;
    let size = words.next()?.parse().ok()?;
    let (uid, gid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let modified_at_s: i64 = words.next()?.parse().ok()?;
    let (owner, group) = (words.next()?.to_owned(), words.next()?.to_owned());
    let kind = match raw_mode & 0o170_000 {
        0o100_000 => EntryKind::File,
        0o040_000 => EntryKind::Directory,
        0o120_000 => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    Some(Entry {
        name: name.to_vec(),
        path: path.to_vec(),
        kind,
        size,
        mode: raw_mode & 0o7777,
        uid,
        gid,
        owner,
        group,
        modified_at_ms: modified_at_s.saturating_mul(1_000),
        symlink_target: link,
        metadata: Default::default(),
    })
}

/// How the next window of an upload goes.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Bytes(Bytes),
}

/// Takes the next window out of the bytes that came so far. Text is not cut within a letter.
fn next_piece(pending: &mut BytesMut) -> Piece {
    let window = &pending[..pending.len().min(WINDOW)];
    let whole = match std::str::from_utf8(window) {
        Ok(text) => text.len(),
        Err(error) if error.error_len().is_none() && window.len() - error.valid_up_to() < 4 => {
            error.valid_up_to()
        }
        Err(_) => 0,
    };
    let is_short = |text: &str| json!(text).to_string().len() <= TEXT_MAX;
    if whole > 0 && std::str::from_utf8(&window[..whole]).is_ok_and(is_short) {
        let text = pending.split_to(whole);
        return Piece::Text(String::from_utf8_lossy(&text).into_owned());
    }
    Piece::Bytes(pending.split_to(pending.len().min(SCRIPT_CONTENT)).freeze())
}

/// A file that is being written, beside its place.
#[derive(Debug)]
pub(crate) struct PartialFile {
    path: String,
    beside: String,
    mode: u32,
    len: u64,
    pending: BytesMut,
}

impl AgentbayApi {
    /// Describes a path; a link is followed where that is asked for.
    pub(crate) async fn stat(&self, id: &str, path: &str, follow: bool) -> Result<Entry, ScriptError> {
        let (word, option) = (quoted(path), if follow { "-L " } else { "" });
        let script = format!(
            r#"P={word}; [ -e "$P" ] || [ -L "$P" ] || no missing "$P is not there"
try stat {option}-c '{FACTS}' -- "$P"; echo "$E"; [ -L "$P" ] && readlink "$P" | base64 | tr -d '\n'"#
        );
        let lines = self.script(id, &script, Repeat::Always).await?;
        let link = lines.get(1).filter(|line| !line.is_empty() && !follow).map(|line| decoded(line));
        let text = [lines.first().ok_or_else(cut)?.as_bytes(), b" ", path.as_bytes()].concat();
        Ok(entry(&text, link.transpose()?).ok_or_else(cut)?)
    }

    /// The entries of one folder.
    pub(crate) async fn list_folder(&self, id: &str, path: &str) -> Result<Vec<Entry>, ScriptError> {
        let (word, base) = (quoted(path), path.trim_end_matches('/'));
        // Each record is a zero byte, the facts and the name; a link has its target in a further record.
        let script = format!(
            r#"P={word}; [ -e "$P" ] || no missing "$P is not there"; [ -d "$P" ] || no invalid "$P is not a folder"
cd "$P" || no forbidden "$P cannot be opened"; F={JOBS}/list-$M; mkdir -p {JOBS}
for N in * .[!.]* ..?*; do [ -e "./$N" ] || [ -L "./$N" ] || continue; printf '%s\0' "./$N"; done >$F.names
xargs -0 stat -c '|{FACTS} %n|' -- <$F.names >$F.facts
for N in * .[!.]* ..?*; do [ -L "./$N" ] && {{ printf '%s\0' "./$N"; readlink "./$N" | tr -d '\n'; printf '\0'; }}; done >$F.links
{{ echo $(wc -c <$F.names) $(wc -c <$F.facts); cat $F.names $F.facts $F.links; }} >$F; rm -f $F.*
echo $(wc -c <$F) $F"#
        );
        let lines = self.script(id, &script, Repeat::Always).await?;
        let (size, file) = lines.first().and_then(|line| line.split_once(' ')).ok_or_else(cut)?;
        let size: usize = size.parse().map_err(|_| cut())?;
        let found = self.whole(id, file, size).await;
        let _ = self.script(id, &format!("rm -f {file}"), Repeat::Always).await;
        Ok(entries(&found?, base).ok_or_else(cut)?)
    }

    /// All bytes of a file of this provider.
    async fn whole(&self, id: &str, file: &str, size: usize) -> Result<Vec<u8>, ScriptError> {
        if size > LIST_MAX {
            return Err(ScriptError::Refused(
                ErrorKind::Exhausted,
                "the folder has too many entries".to_owned(),
            ));
        }
        let mut bytes = Vec::new();
        while bytes.len() < size {
            let window =
                self.read_window(id, file, bytes.len() as u64, WINDOW.min(size - bytes.len())).await?;
            bytes.extend_from_slice(&window);
        }
        Ok(bytes)
    }

    /// Bytes of a file. Never empty: a file that became shorter is an error.
    pub(crate) async fn read_window(
        &self,
        id: &str,
        path: &str,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, ScriptError> {
        let args = json!({ "path": path, "offset": offset, "length": len, "format": "binary" });
        let answer = self.tool(id, "read_file", &args, Repeat::Always).await?;
        if answer.is_error {
            return Err(tool_refusal(&answer.text));
        }
        let bytes = decoded(&answer.text)?;
        if bytes.is_empty() || bytes.len() > len {
            return Err(CallError::Unanswered { why: "the file changed while it was read".to_owned() }.into());
        }
        Ok(bytes.into())
    }

    /// Prepares a file to be written; the folders above it are made.
    pub(crate) async fn begin_file(
        &self,
        id: &str,
        path: &str,
        mode: Option<u32>,
        unique: &str,
    ) -> Result<PartialFile, ScriptError> {
        let folder = path.rsplit_once('/').map_or("/", |(folder, _)| folder);
        let beside = format!("{folder}/.atoll-upload-{unique}");
        let script = format!(
            r#"P={}; D={}; F={}; [ -d "$P" ] && no invalid "$P is a folder"
try mkdir -p "$D/"; M0=-; [ -e "$P" ] && M0=$(stat -L -c %a "$P")
try sh -c ': >"$1"' sh "$F"; echo $M0"#,
            quoted(path),
            quoted(folder),
            quoted(&beside),
        );
        let lines = self.script(id, &script, Repeat::Always).await?;
        let had = lines.first().and_then(|line| u32::from_str_radix(line, 8).ok());
        let mode = mode.or(had).unwrap_or(NEW_MODE) & 0o7777;
        Ok(PartialFile { path: path.to_owned(), beside, mode, len: 0, pending: BytesMut::new() })
    }

    /// Adds bytes; they are sent when a window is full.
    pub(crate) async fn add(
        &self,
        id: &str,
        file: &mut PartialFile,
        bytes: &[u8],
    ) -> Result<(), ScriptError> {
        file.pending.extend_from_slice(bytes);
        while file.pending.len() >= WINDOW {
            self.flush(id, file).await?;
        }
        Ok(())
    }

    /// Appends one window. An answer that was lost is followed by a look at the size, so that no bytes are written twice.
    async fn flush(&self, id: &str, file: &mut PartialFile) -> Result<(), ScriptError> {
        let piece = next_piece(&mut file.pending);
        let len = match &piece {
            Piece::Text(text) => text.len(),
            Piece::Bytes(bytes) => bytes.len(),
        } as u64;
        for attempt in 1.. {
            let error = match self.append(id, &file.beside, &piece).await {
                Ok(()) => break,
                Err(ScriptError::Call(error)) if error.is_uncertain() => error,
                Err(error) => return Err(error),
            };
            let size = self.stat(id, &file.beside, true).await?.size;
            if size == file.len + len {
                break;
            }
            if size != file.len || attempt >= ATTEMPTS {
                return Err(error.into());
            }
        }
        file.len += len;
        Ok(())
    }

    async fn append(&self, id: &str, beside: &str, piece: &Piece) -> Result<(), ScriptError> {
        match piece {
            Piece::Text(text) => {
                let args = json!({ "path": beside, "content": text, "mode": "append" });
                let answer = self.tool(id, "write_file", &args, Repeat::Unsent).await?;
                if answer.is_error { Err(tool_refusal(&answer.text)) } else { Ok(()) }
            }
            Piece::Bytes(bytes) => {
                let line = format!("echo {} | base64 -d >>\"$1\"", encoded(bytes));
                let script = format!("try sh -c {} sh {}", quoted(&line), quoted(beside));
                self.script(id, &script, Repeat::Unsent).await.map(drop)
            }
        }
    }

    /// Sends the rest, and puts the file in its place. May be repeated.
    pub(crate) async fn finish_file(&self, id: &str, mut file: PartialFile) -> Result<(), ScriptError> {
        while !file.pending.is_empty() {
            self.flush(id, &mut file).await?;
        }
        let script = format!(
            r#"P={}; F={}; [ -e "$F" ] || {{ [ "$(wc -c <"$P")" -eq {len} ] && no done ""; }}
[ "$(wc -c <"$F")" -eq {len} ] || no invalid "the file has not the size of what was written"
try chmod {mode:o} "$F"; try mv -f "$F" "$P""#,
            quoted(&file.path),
            quoted(&file.beside),
            len = file.len,
            mode = file.mode,
        );
        match self.script(id, &script, Repeat::Always).await {
            // An answer was lost, and it was done before.
            Err(ScriptError::Refused(_, text)) if text.is_empty() => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Removes what a failed upload left.
    pub(crate) async fn drop_file(&self, id: &str, beside: &str) {
        // It lies beside its place under a name that says what it is, where this fails too.
        let _ = self.script(id, &format!("rm -f {}", quoted(beside)), Repeat::Always).await;
    }

    pub(crate) async fn make_folder(
        &self,
        id: &str,
        path: &str,
        mode: Option<u32>,
    ) -> Result<(), ScriptError> {
        let mode = mode.map_or_else(String::new, |mode| format!("; try chmod {:o} \"$P\"", mode & 0o7777));
        let script = format!(
            r#"P={}; {{ [ -e "$P" ] || [ -L "$P" ]; }} && no exists "$P exists"
try mkdir -p "$(dirname "$P")"; try mkdir "$P"{mode}"#,
            quoted(path)
        );
        self.script(id, &script, Repeat::Unsent).await.map(drop)
    }

    pub(crate) async fn rename(&self, id: &str, from: &str, to: &str) -> Result<(), ScriptError> {
        let script = format!(
            r#"P={}; T={}; [ -e "$P" ] || [ -L "$P" ] || no missing "$P is not there"
[ -d "$T" ] && [ ! -L "$T" ] && no exists "$T is a folder"
try mkdir -p "$(dirname "$T")"; try mv -f "$P" "$T""#,
            quoted(from),
            quoted(to)
        );
        self.script(id, &script, Repeat::Unsent).await.map(drop)
    }

    pub(crate) async fn remove(&self, id: &str, path: &str) -> Result<(), ScriptError> {
        let script = format!(
            r#"P={}; [ -e "$P" ] || [ -L "$P" ] || no missing "$P is not there"; try rm -rf "$P""#,
            quoted(path)
        );
        self.script(id, &script, Repeat::Unsent).await.map(drop)
    }

    /// Makes the working directory, where it is missing. The answer shows that commands can be started, too.
    pub(crate) async fn make_workdir(&self, id: &str, path: &str) -> Result<(), ScriptError> {
        let script = format!("try mkdir -p {}; echo ready", quoted(path));
        self.script(id, &script, Repeat::Always).await.map(drop)
    }
}

impl PartialFile {
    pub(crate) fn beside(&self) -> &str {
        &self.beside
    }

    /// Bytes that came so far.
    pub(crate) fn received(&self) -> u64 {
        self.len + self.pending.len() as u64
    }
}

/// What a tool for files says about a failure.
fn tool_refusal(text: &str) -> ScriptError {
    let text: String = text.chars().filter(|c| !c.is_control()).take(300).collect();
    let lower = text.to_lowercase();
    let kind = match () {
        () if lower.contains("no such file") || lower.contains("not found") || lower.contains("enoent") => {
            ErrorKind::NotFound
        }
        () if lower.contains("permission") => ErrorKind::Forbidden,
        () if lower.contains("no space") => ErrorKind::Exhausted,
        () => ErrorKind::Invalid,
    };
    ScriptError::Refused(kind, text)
}

/// LIMIT: bytes of the facts about one file, before its name. A name that has none is looked for no farther.
const FACTS_MAX: usize = 256;

/// Reads a list: the sizes of its parts, the names, the facts, the targets of links.
fn entries(bytes: &[u8], base: &str) -> Option<Vec<Entry>> {
    let line = bytes.iter().position(|byte| *byte == b'\n')?;
    let mut sizes =
        std::str::from_utf8(&bytes[..line]).ok()?.split(' ').map(|size| size.parse::<usize>().ok());
    let (names_len, facts_len) = (sizes.next()??, sizes.next()??);
    let rest = &bytes[line + 1..];
    let (names, rest) = rest.split_at_checked(names_len)?;
    let (mut facts, links) = rest.split_at_checked(facts_len)?;
    let mut targets = std::collections::HashMap::new();
    let mut words = links.split(|byte| *byte == 0);
    while let (Some(name), Some(target)) = (words.next(), words.next()) {
        targets.insert(name, target.to_vec());
    }
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // A name may have any byte, so the end of a record is found by the name, not by a line.
        let end = [b" ", name, b"|\n"].concat();
        let Some(rest) = facts.strip_prefix(b"|") else { break };
        let near = &rest[..rest.len().min(FACTS_MAX + end.len())];
        let Some(at) = find(near, &end) else { continue };
        let path = [b" ", base.as_bytes(), b"/", name.strip_prefix(b"./")?].concat();
        found.extend(entry(&[&rest[..at], &path].concat(), targets.remove(name)));
        facts = &rest[at + end.len()..];
    }
    Some(found)
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
