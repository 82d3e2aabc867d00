//! Parts of a file: by bytes, or by lines from its beginning or end.

use atoll_agentapi::{FileReader, Range};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use super::{Files, check};
use crate::ToolboxError;

/// LIMIT: lines are counted in memory; a longer line is cut.
const LINES_MAX: u64 = 16 << 20;
/// How much of the end of a file is read first to find its last lines, and how much more each time.
const TAIL_STEP: u64 = 64 << 10;

/// A part of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FilePart {
    /// All of it.
    #[default]
    Whole,
    /// Bytes from `offset`, at most `limit` of them.
    Bytes {
        /// The first byte; after the end of the file the part is empty.
        offset: u64,
        /// The maximal number of bytes.
        limit: Option<u64>,
    },
    /// So many lines from the beginning.
    Head(u64),
    /// So many lines before the end.
    Tail(u64),
}

/// A part of a file that is being read.
pub struct FileBody {
    /// Bytes to be read.
    pub len: u64,
    /// Bytes of the whole file when it was opened; 0 if it is not known.
    pub size: u64,
    stream: BoxStream<'static, Result<Bytes, ToolboxError>>,
}

impl std::fmt::Debug for FileBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileBody").field("len", &self.len).field("size", &self.size).finish_non_exhaustive()
    }
}

impl FileBody {
    /// The bytes; it ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, ToolboxError>> + Send + 'static {
        self.stream
    }

    fn of(bytes: Vec<u8>, size: u64) -> Self {
        let len = bytes.len() as u64;
        let once = futures::stream::once(async move { Ok(Bytes::from(bytes)) });
        Self { len, size, stream: once.boxed() }
    }

    fn reading(reader: FileReader) -> Self {
        let (len, size) = (reader.len, reader.size);
        Self {
            len,
            size,
            stream: reader.into_stream().map(|chunk| chunk.map_err(ToolboxError::file)).boxed(),
        }
    }
}

impl Files<'_> {
    /// Opens a part of a file.
    pub async fn read(&self, path: &str, part: FilePart) -> Result<FileBody, ToolboxError> {
        match part {
            FilePart::Whole => Ok(FileBody::reading(self.open(path, None).await?)),
            FilePart::Bytes { offset: 0, limit: None } => Ok(FileBody::reading(self.open(path, None).await?)),
            FilePart::Bytes { offset, limit } => self.bytes(path, offset, limit).await,
            FilePart::Head(lines) => self.head(path, lines).await,
            FilePart::Tail(lines) => self.tail(path, lines).await,
        }
    }

    /// A part of a file in memory, if it has at most `max` bytes.
    pub async fn read_bytes(&self, path: &str, part: FilePart, max: u64) -> Result<Vec<u8>, ToolboxError> {
        let body = self.read(path, part).await?;
        if body.len > max {
            return Err(ToolboxError::TooLarge { what: format!("path '{path}'"), max });
        }
        let mut whole = Vec::new();
        let mut stream = body.stream;
        while let Some(chunk) = stream.next().await {
            whole.extend_from_slice(&chunk?);
        }
        Ok(whole)
    }

    async fn open(&self, path: &str, range: Option<Range>) -> Result<FileReader, ToolboxError> {
        check(path)?;
        self.toolbox.sandbox.read_file(path.as_bytes(), self.user(), range).await.map_err(ToolboxError::file)
    }

    async fn bytes(&self, path: &str, offset: u64, limit: Option<u64>) -> Result<FileBody, ToolboxError> {
        // The agent refuses a range after the end, but a caller that reads piece by piece expects an empty last one.
        // The size comes from opening the file itself, because a symbolic link has its own size.
        let size = self.open(path, None).await?.size;
        if offset >= size || limit == Some(0) {
            return Ok(FileBody::of(Vec::new(), size));
        }
        Ok(FileBody::reading(self.open(path, Some(Range { start: offset, len: limit })).await?))
    }

    async fn head(&self, path: &str, lines: u64) -> Result<FileBody, ToolboxError> {
        let mut reader = self.open(path, None).await?;
        let size = reader.size;
        let mut kept = Vec::new();
        let mut left = lines;
        while left > 0 && (kept.len() as u64) < LINES_MAX {
            let Some(chunk) = reader.next().await else { break };
            let chunk = chunk.map_err(ToolboxError::file)?;
            let (end, ended) = first_lines(&chunk, left);
            kept.extend_from_slice(&chunk[..end]);
            left -= ended;
        }
        Ok(FileBody::of(kept, size))
    }

    async fn tail(&self, path: &str, lines: u64) -> Result<FileBody, ToolboxError> {
        let size = self.open(path, None).await?.size;
        let mut span = TAIL_STEP;
        loop {
            let start = size.saturating_sub(span.min(LINES_MAX));
            let range = (start > 0).then_some(Range { start, len: Some(size - start) });
            let reader = self.open(path, range).await?;
            // It may have grown since its size was read; then it is not loaded completely.
            if reader.len > LINES_MAX {
                return Err(ToolboxError::Conflict(format!("path '{path}' changes while it is read")));
            }
            let bytes = reader.read_to_end(LINES_MAX).await.map_err(ToolboxError::file)?;
            let from = last_lines(&bytes, lines);
            // The lines are complete if an earlier line was seen too, or if nothing comes before them.
            if from > 0 || start == 0 || span >= LINES_MAX {
                return Ok(FileBody::of(bytes[from..].to_vec(), size));
            }
            span = span.saturating_mul(4);
        }
    }
}

/// The end of the first `lines` lines of a piece, and how many lines ended in it.
fn first_lines(bytes: &[u8], lines: u64) -> (usize, u64) {
    let mut ended = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'\n' {
            ended += 1;
            if ended == lines {
                return (at + 1, ended);
            }
        }
    }
    (bytes.len(), ended)
}

/// The start of the last `lines` lines. A final line end does not start another line.
fn last_lines(bytes: &[u8], lines: u64) -> usize {
    if lines == 0 {
        return bytes.len();
    }
    let mut seen = 0;
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    for (at, byte) in body.iter().enumerate().rev() {
        if *byte == b'\n' {
            seen += 1;
            if seen == lines {
                return at + 1;
            }
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_counted_from_both_ends() {
        assert_eq!(first_lines(b"a\nb\nc", 2), (4, 2));
        assert_eq!(first_lines(b"a\nb", 5), (3, 1));
        assert_eq!(&b"a\nb\nc\n"[last_lines(b"a\nb\nc\n", 2)..], b"b\nc\n");
        assert_eq!(&b"a\nb\nc"[last_lines(b"a\nb\nc", 1)..], b"c");
        assert_eq!(last_lines(b"a\n", 0), 2);
        assert_eq!(last_lines(b"", 3), 0);
    }

    proptest! {
        #[test]
        fn head_and_tail_agree_with_splitting(text in "[ab\n]{0,40}", count in 0u64..6) {
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let count_us = usize::try_from(count).unwrap_or(0);
            let head: String = lines.iter().take(count_us).copied().collect();
            let tail: String = lines[lines.len().saturating_sub(count_us)..].concat();
            if count > 0 {
                prop_assert_eq!(&text[..first_lines(text.as_bytes(), count).0], head);
            }
            prop_assert_eq!(&text[last_lines(text.as_bytes(), count)..], tail);
        }
    }
}
