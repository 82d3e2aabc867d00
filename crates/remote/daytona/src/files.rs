//! Files by the calls of the toolbox.

use atoll_agentapi::{Entry, EntryKind, Range, UploadStream};
use atoll_model::ErrorKind;
use atoll_provider::{FileContent, ProviderError};
use atoll_remote::CallError;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::process::{ToolboxCall, new_token, refused};
use crate::scripts;
use crate::toolbox::{FileInfo, ScriptRun, word};

/// The mode of a new folder.
const FOLDER_MODE: u32 = 0o755;

fn entry(info: FileInfo, path: String) -> Entry {
    let kind = match info.mode.chars().next() {
        Some('d') => EntryKind::Directory,
        Some('l' | 'L') => EntryKind::Symlink,
        Some('-') => EntryKind::File,
        Some(_) => EntryKind::Other,
        None if info.is_dir => EntryKind::Directory,
        None => EntryKind::File,
    };
    let modified = info.modified_at.as_deref().and_then(|at| at.parse::<jiff::Timestamp>().ok());
    Entry {
        name: path.rsplit('/').next().unwrap_or_default().as_bytes().to_vec(),
        path: path.into_bytes(),
        kind,
        size: info.size,
        mode: u32::from_str_radix(&info.permissions, 8).unwrap_or(0) & 0o7777,
        uid: 0,
        gid: 0,
        owner: info.owner,
        group: info.group,
        modified_at_ms: modified.map_or(0, jiff::Timestamp::as_millisecond),
        symlink_target: None,
        metadata: Default::default(),
    }
}

fn is_folder(path: &str) -> ProviderError {
    refused(ErrorKind::Invalid, format!("{path} is a folder"))
}

fn is_no_file(path: &str) -> ProviderError {
    refused(ErrorKind::Invalid, format!("{path} is not a regular file"))
}

/// A path without slashes at its end.
fn trimmed(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    }
}

/// What a program's or the service's sentence about a file says.
fn kind_of(said: &str) -> ErrorKind {
    let said = said.to_ascii_lowercase();
    let has = |any: &[&str]| any.iter().any(|part| said.contains(part));
    if has(&["permission denied", "not permitted", "read-only"]) {
        ErrorKind::Forbidden
    } else if has(&["no space", "quota"]) {
        ErrorKind::Exhausted
    } else {
        ErrorKind::Invalid
    }
}

/// The part of a stream of bytes.
fn cut(
    content: BoxStream<'static, Result<Bytes, CallError>>,
    range: Range,
) -> BoxStream<'static, Result<Bytes, CallError>> {
    let state = (content, range.start, range.len);
    let cut = futures::stream::unfold(state, |(mut content, mut skip, mut left)| async move {
        loop {
            if left == Some(0) {
                return None;
            }
            let mut piece = match content.next().await? {
                Ok(piece) => piece,
                Err(error) => return Some((Err(error), (content, skip, Some(0)))),
            };
            let skipped = skip.min(piece.len() as u64);
            skip -= skipped;
            piece = piece.slice(usize::try_from(skipped).unwrap_or(piece.len())..);
            if let Some(left) = &mut left {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                piece.truncate(taken);
                *left -= taken as u64;
            }
            if !piece.is_empty() {
                return Some((Ok(piece), (content, skip, left)));
            }
        }
    });
    cut.boxed()
}

impl ToolboxCall {
    pub(crate) async fn stat(&self, path: &str) -> Result<Entry, ProviderError> {
        Ok(entry(self.told(self.access.stat(path).await).await?, path.to_owned()))
    }

    pub(crate) async fn list_folder(&self, path: &str) -> Result<Vec<Entry>, ProviderError> {
        let found = self.told(self.access.list(path).await).await?;
        let above = path.trim_end_matches('/');
        let below = found.into_iter().map(|info| {
            let path = format!("{above}/{}", info.name.rsplit('/').next().unwrap_or_default());
            entry(info, path)
        });
        Ok(below.collect())
    }

    pub(crate) async fn read_file(
        self,
        path: &str,
        range: Option<Range>,
    ) -> Result<FileContent, ProviderError> {
        let found = self.stat(path).await?;
        let (size, mode) = match found.kind {
            EntryKind::File => (found.size, found.mode),
            EntryKind::Directory => return Err(is_folder(path)),
            EntryKind::Symlink => self.link_target(path).await?,
            EntryKind::Other => return Err(is_no_file(path)),
        };
        if range.is_some_and(|range| found.kind == EntryKind::File && range.start >= size) {
            return Ok(FileContent { size, mode, stream: futures::stream::empty().boxed() });
        }
        let file = self.told(self.access.download(path).await).await?;
        let content = match range {
            Some(range) => cut(file.content, range),
            None => file.content,
        };
        let stream = futures::stream::unfold((self, content), |(call, mut content)| async move {
            let piece = call.told(content.next().await?).await;
            Some((piece, (call, content)))
        });
        Ok(FileContent { size, mode, stream: stream.boxed() })
    }

    /// The size and the mode of the file that a link leads to.
    async fn link_target(&self, path: &str) -> Result<(u64, u32), ProviderError> {
        let printed = self.script(ScriptRun::new(scripts::LINK_TARGET, vec![path])).await?;
        match self.told(word(&printed)).await? {
            "d" => Err(is_folder(path)),
            "o" => Err(is_no_file(path)),
            "n" => Err(refused(ErrorKind::NotFound, format!("{path} is a link that leads nowhere"))),
            numbers => {
                let (size, mode) = numbers.split_once(' ').unwrap_or_default();
                let mode = u32::from_str_radix(mode, 8).map(|mode| mode & 0o7777);
                size.parse().ok().zip(mode.ok()).ok_or_else(|| self.odd())
            }
        }
    }

    /// The bytes go to a file beside it, which is renamed at the end: a broken upload leaves the old content.
    pub(crate) async fn write_file(
        &self,
        path: &str,
        mode: Option<u32>,
        content: UploadStream,
    ) -> Result<(), ProviderError> {
        let path = trimmed(path);
        let (folder, _) = path.rsplit_once('/').unwrap_or_default();
        let unique = new_token()?;
        let beside = format!("{folder}/.atoll-upload-{unique}");
        let written = match self.access.upload(&beside, &unique, content).await {
            Ok(()) => self.replace(&beside, path, mode, &unique).await,
            Err(CallError::Refused { status: 400, message }) => {
                Err(refused(kind_of(&message), format!("{path} cannot be written: {message}")))
            }
            Err(error) => Err(self.explain(error).await),
        };
        if written.is_err()
            && let Err(error) = self.access.remove(&beside).await
            && !error.is_status(404)
        {
            tracing::debug!(sandbox = %self.target.sandbox, %error, "a part of a file could not be removed");
        }
        written
    }

    async fn replace(
        &self,
        beside: &str,
        path: &str,
        mode: Option<u32>,
        token: &str,
    ) -> Result<(), ProviderError> {
        let mode = mode.map_or_else(|| "-".to_owned(), |mode| format!("{:o}", mode & 0o7777));
        let run = ScriptRun::new(scripts::REPLACE, vec![beside, path, &mode, token]);
        let printed = self.script(run).await?;
        self.access.forget_files(token, 0);
        self.moved(path, &printed)
    }

    pub(crate) async fn rename(&self, from: &str, to: &str) -> Result<(), ProviderError> {
        let (from, to, token) = (trimmed(from), trimmed(to), new_token()?);
        let printed = self.script(ScriptRun::new(scripts::RENAME, vec![from, to, &token])).await?;
        self.access.forget_files(&token, 0);
        match word(&printed) {
            Ok("n") => Err(refused(ErrorKind::NotFound, format!("there is no {from}"))),
            _ => self.moved(to, &printed),
        }
    }

    fn moved(&self, to: &str, printed: &str) -> Result<(), ProviderError> {
        match word(printed) {
            Ok("ok") => Ok(()),
            Ok("d") => Err(is_folder(to)),
            _ => {
                let said = self.access.client.redacted(printed);
                Err(refused(kind_of(&said), format!("{to} cannot be written: {said}")))
            }
        }
    }

    pub(crate) async fn make_folder(&self, path: &str, mode: Option<u32>) -> Result<(), ProviderError> {
        match self.access.stat(path).await {
            Ok(_) => return Err(refused(ErrorKind::Exists, format!("{path} exists"))),
            Err(error) if error.is_status(404) => {}
            Err(error) => return Err(self.explain(error).await),
        }
        let mode = mode.map_or(FOLDER_MODE, |mode| mode & 0o7777);
        self.told(self.access.make_folder(path, mode).await).await
    }

    /// A call that is made again, after a lost answer, does not find what it removed.
    pub(crate) async fn remove(&self, path: &str) -> Result<(), ProviderError> {
        self.told(self.access.stat(path).await).await?;
        match self.access.remove(path).await {
            Err(error) if error.is_status(404) => Ok(()),
            outcome => self.told(outcome).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(mode: &str, permissions: &str) -> FileInfo {
        FileInfo {
            name: "a".to_owned(),
            is_dir: mode.starts_with('d'),
            size: 3,
            mode: mode.to_owned(),
            permissions: permissions.to_owned(),
            owner: "daytona".to_owned(),
            group: "daytona".to_owned(),
            modified_at: Some("2025-11-13T02:13:20.123Z".to_owned()),
        }
    }

    #[test]
    fn a_file_is_read_as_the_daemon_describes_it() {
        let file = entry(info("-rw-r-----", "0640"), "/srv/a".to_owned());
        assert_eq!((file.kind, file.mode, file.name.as_slice()), (EntryKind::File, 0o640, &b"a"[..]));
        assert_eq!(file.modified_at_ms, 1_763_000_000_123);
        assert_eq!(entry(info("Lrwxrwxrwx", "0777"), "/a".to_owned()).kind, EntryKind::Symlink);
        assert_eq!(entry(info("drwxr-xr-x", "0755"), "/a".to_owned()).kind, EntryKind::Directory);
        assert_eq!(entry(info("", ""), "/a".to_owned()).kind, EntryKind::File);
    }

    #[test]
    fn sentences_have_the_kind_of_their_reason() {
        assert_eq!(kind_of("mv: cannot move 'a': Permission denied"), ErrorKind::Forbidden);
        assert_eq!(kind_of("mv: can't rename 'a': No space left on device"), ErrorKind::Exhausted);
        assert_eq!(kind_of("mkdir: cannot create directory: Not a directory"), ErrorKind::Invalid);
        assert_eq!((trimmed("/a/b//"), trimmed("/")), ("/a/b", "/"));
    }

    #[tokio::test]
    async fn a_part_of_a_stream_is_cut_out() {
        for (start, len, wanted) in
            [(0, None, "abcdef"), (2, Some(3), "cde"), (4, None, "ef"), (1, Some(0), "")]
        {
            let pieces = ["ab", "cd", "ef"].map(|piece| Ok(Bytes::from(piece)));
            let content = futures::stream::iter(pieces).boxed();
            let read: Vec<Bytes> =
                cut(content, Range { start, len }).filter_map(|piece| async { piece.ok() }).collect().await;
            assert_eq!(read.concat(), wanted.as_bytes(), "{start} {len:?}");
        }
    }
}
