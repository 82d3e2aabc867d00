//! Multipart forms in both directions. A received part is a stream whose pieces are passed on without a copy; only the
//! few bytes that may begin a boundary wait for the next piece. For responses, [`Boundary`] writes the separators
//! between parts.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::Code;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use memchr::memmem;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::ApiError;

/// LIMIT: bytes of the head of a part: a name, a path and a type.
const HEAD_MAX: usize = 32 << 10;
/// LIMIT: a client that sends nothing for this long only holds a connection.
const PIECE_WITHIN: Duration = Duration::from_secs(60);

/// Why a form cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadForm {
    #[error("the form ended in the middle")]
    Ended,
    #[error("the head of a part is longer than {HEAD_MAX} bytes, or there is none")]
    Head,
    #[error("the form stalled for {} s", PIECE_WITHIN.as_secs())]
    Stalled,
    #[error("the form ended early")]
    Broken(#[source] std::io::Error),
}

impl From<BadForm> for std::io::Error {
    fn from(error: BadForm) -> Self {
        match error {
            BadForm::Stalled => Self::new(std::io::ErrorKind::TimedOut, error),
            _ => Self::other(error),
        }
    }
}

/// The parts of a form, one after the other.
pub struct Form(Arc<Mutex<FormReader>>);

impl Form {
    /// A form from a client; `None` if the content type is another one, or has no boundary.
    #[must_use]
    pub fn open(content_type: Option<&str>, body: Body) -> Option<Self> {
        let pieces = stream::unfold(Some(body.into_data_stream()), |body| async move {
            let mut body = body?;
            match tokio::time::timeout(PIECE_WITHIN, body.next()).await {
                Ok(None) => None,
                Ok(Some(Ok(piece))) => Some((Ok(piece), Some(body))),
                Ok(Some(Err(cause))) => Some((Err(std::io::Error::other(cause)), None)),
                Err(_) => Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
            }
        });
        Self::from_stream(content_type, pieces.boxed())
    }

    /// The same from a stream that ends with an error of the kind `TimedOut` if the client stalls.
    #[must_use]
    pub fn from_stream(
        content_type: Option<&str>,
        pieces: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Option<Self> {
        let content_type = content_type?;
        let rest = content_type.get(..20).filter(|kind| kind.eq_ignore_ascii_case("multipart/form-data;"))?;
        let boundary =
            parameter(&content_type[rest.len() - 1..], "boundary").filter(|text| !text.is_empty())?;
        let mark = memmem::Finder::new(&[b"\r\n--", boundary.as_bytes()].concat()).into_owned();
        // The first boundary has no line before it; with an added one it is found like all others.
        let held = Bytes::from_static(b"\r\n");
        Some(Self(Arc::new(Mutex::new(FormReader { pieces, mark, held, at: FormPosition::Before }))))
    }

    /// The next part, once the previous one was dropped; its unread content is skipped. `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Part>, BadForm> {
        let mut reader = Arc::clone(&self.0).lock_owned().await;
        let Some((name, filename)) = reader.next().await? else { return Ok(None) };
        Ok(Some(Part { name, filename, reader }))
    }
}

/// One part of a form.
pub struct Part {
    /// The name of its field, if any.
    pub name: Option<String>,
    pub filename: Option<String>,
    reader: OwnedMutexGuard<FormReader>,
}

impl Part {
    /// A piece of its content; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, BadForm> {
        self.reader.chunk().await
    }

    /// Its content as a stream.
    #[must_use]
    pub fn into_stream(self) -> BoxStream<'static, std::io::Result<Bytes>> {
        let pieces = stream::unfold(Some(self), |part| async move {
            let mut part = part?;
            match part.chunk().await {
                Ok(None) => None,
                Ok(Some(piece)) => Some((Ok(piece), Some(part))),
                Err(error) => Some((Err(error.into()), None)),
            }
        });
        pieces.boxed()
    }
}

struct FormReader {
    pieces: BoxStream<'static, std::io::Result<Bytes>>,
    /// `CRLF--boundary`.
    mark: memmem::Finder<'static>,
    held: Bytes,
    at: FormPosition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormPosition {
    /// Before a boundary: content until then is skipped.
    Before,
    /// In a part's content.
    Content,
    /// Right after a boundary.
    Behind,
    /// After the last boundary.
    End,
}

impl FormReader {
    /// Name and file name of the next part.
    async fn next(&mut self) -> Result<Option<(Option<String>, Option<String>)>, BadForm> {
        let mut preamble = 0;
        while let Some(skipped) = self.chunk().await? {
            if self.at == FormPosition::Before {
                preamble += skipped.len();
            }
            if preamble > HEAD_MAX {
                return Err(BadForm::Head);
            }
        }
        if self.at == FormPosition::Behind {
            self.line_end().await?;
        }
        if self.at == FormPosition::End {
            return Ok(None);
        }
        let head = self.head().await?;
        self.at = FormPosition::Content;
        Ok(Some(head))
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, BadForm> {
        if matches!(self.at, FormPosition::Behind | FormPosition::End) {
            return Ok(None);
        }
        loop {
            if let Some(at) = self.mark.find(&self.held) {
                if at > 0 {
                    return Ok(Some(self.held.split_to(at)));
                }
                let _ = self.held.split_to(self.mark.needle().len());
                self.at = FormPosition::Behind;
                return Ok(None);
            }
            let keep = partial(&self.held, self.mark.needle());
            let ready = self.held.len() - keep;
            if ready > 0 {
                return Ok(Some(self.held.split_to(ready)));
            }
            self.more().await?;
        }
    }

    /// After a boundary: two dashes end the form, a line end begins a part.
    async fn line_end(&mut self) -> Result<(), BadForm> {
        while self.held.len() < 2 {
            self.more().await?;
        }
        if self.held.starts_with(b"--") {
            self.at = FormPosition::End;
        }
        Ok(())
    }

    async fn head(&mut self) -> Result<(Option<String>, Option<String>), BadForm> {
        loop {
            if let Some(end) = memmem::find(&self.held, b"\r\n\r\n") {
                let head = self.held.split_to(end + 4);
                return parse_head(&head).ok_or(BadForm::Head);
            }
            if self.held.len() > HEAD_MAX {
                return Err(BadForm::Head);
            }
            self.more().await?;
        }
    }

    /// Reads the next piece after the held one.
    async fn more(&mut self) -> Result<(), BadForm> {
        let piece = self.pieces.next().await.ok_or(BadForm::Ended)?.map_err(|cause| match cause.kind() {
            std::io::ErrorKind::TimedOut => BadForm::Stalled,
            _ => BadForm::Broken(cause),
        })?;
        if self.held.is_empty() {
            self.held = piece;
        } else {
            let mut joined = BytesMut::with_capacity(self.held.len() + piece.len());
            joined.extend_from_slice(&self.held);
            joined.extend_from_slice(&piece);
            self.held = joined.freeze();
        }
        Ok(())
    }
}

/// How much of the end may be the beginning of a mark.
fn partial(text: &[u8], mark: &[u8]) -> usize {
    let longest = text.len().min(mark.len() - 1);
    let tail = &text[text.len() - longest..];
    // A mark begins with a line end, which most pieces do not have at their end.
    memchr::memchr_iter(b'\r', tail).find(|at| mark.starts_with(&tail[*at..])).map_or(0, |at| longest - at)
}

fn parse_head(head: &[u8]) -> Option<(Option<String>, Option<String>)> {
    let text = String::from_utf8_lossy(head);
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    Some((parameter(line, "name"), parameter(line, "filename")))
}

/// A parameter of a head: a word, or a text in quotes.
fn parameter(line: &str, wanted: &str) -> Option<String> {
    let mut rest = line;
    while let Some(at) = rest.find(';') {
        rest = rest[at + 1..].trim_start();
        let (name, value) = rest.split_once('=')?;
        let (value, after) = quoted(value.trim_start());
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
    None
}

/// A value and the rest after it. A backslash is kept unless a quote or another backslash follows: paths may contain
/// backslashes.
fn quoted(text: &str) -> (String, &str) {
    let Some(inner) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return (text[..end].trim().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = inner.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (unescaped(&value), &inner[at + 1..]),
            '\\' if matches!(chars.peek(), Some((_, '"' | '\\'))) => {
                value.extend(chars.next().map(|(_, c)| c));
            }
            c => value.push(c),
        }
    }
    (unescaped(&value), "")
}

/// Decodes quotes and line ends as browsers encode them.
fn unescaped(value: &str) -> String {
    value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

/// The separator between the parts of a response: random, so that no file contains it.
#[derive(Debug, Clone)]
pub struct Boundary(String);

impl Boundary {
    /// The bytes after the content of every part.
    pub const PART_END: Bytes = Bytes::from_static(b"\r\n");

    pub fn random() -> Result<Self, ApiError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|cause| ApiError::new(Code::Internal, "no random bytes").caused_by(cause))?;
        Ok(Self(format!("atoll-{}", hex::encode(random))))
    }

    /// The type of the whole response.
    #[must_use]
    pub fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={}", self.0)
    }

    /// The beginning of a part: the boundary and these header fields, each `Name: value`. A line end inside a field
    /// would begin another one; the caller must escape it.
    #[must_use]
    pub fn part(&self, fields: &[&str]) -> Bytes {
        Bytes::from(format!("--{}\r\n{}\r\n\r\n", self.0, fields.join("\r\n")))
    }

    /// The end of the last part.
    #[must_use]
    pub fn last(&self) -> Bytes {
        Bytes::from(format!("--{}--\r\n", self.0))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn form(pieces: Vec<Bytes>) -> Form {
        let body = Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)));
        Form::open(Some("multipart/form-data; boundary=\"b\""), body).unwrap()
    }

    async fn read(form: &mut Form) -> Vec<(String, Option<String>, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(mut part) = form.next().await.unwrap() {
            let mut content = Vec::new();
            while let Some(piece) = part.chunk().await.unwrap() {
                content.extend_from_slice(&piece);
            }
            all.push((part.name.clone().unwrap_or_default(), part.filename.clone(), content));
        }
        all
    }

    const BODY: &[u8] = b"--b\r\nContent-Disposition: form-data; name=\"files[0].path\"\r\n\r\n/a b\r\n--b\r\n\
        content-disposition: form-data; name=\"files[0].file\"; filename=\"/a \\\"b\"\r\nContent-Type: x/y\r\n\r\n\
        \r\n--\r\n--c\r\n-\r\n--b\r\nContent-Disposition: form-data; name=\"e\"\r\n\r\n\r\n--b--\r\n";

    #[tokio::test]
    async fn parts_come_whole_however_the_body_is_cut() {
        for cut in 1..BODY.len() {
            let mut form = form(BODY.chunks(cut).map(Bytes::copy_from_slice).collect());
            let parts = read(&mut form).await;
            assert_eq!(parts.len(), 3, "cut at {cut}");
            assert_eq!(parts[0], ("files[0].path".into(), None, b"/a b".to_vec()), "cut at {cut}");
            assert_eq!(parts[1].1.as_deref(), Some("/a \"b"), "cut at {cut}");
            assert_eq!(parts[1].2, b"\r\n--\r\n--c\r\n-", "cut at {cut}");
            assert_eq!(parts[2].2, b"", "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn what_is_left_of_a_part_is_skipped() {
        let mut form = form(BODY.chunks(7).map(Bytes::copy_from_slice).collect());
        let mut names = Vec::new();
        while let Some(part) = form.next().await.unwrap() {
            names.push(part.name.clone().unwrap());
        }
        assert_eq!(names, ["files[0].path", "files[0].file", "e"]);
    }

    #[tokio::test]
    async fn a_form_that_breaks_off_is_an_error() {
        for cut in [3, 40, 80, 200, BODY.len() - 6] {
            let mut form = form(vec![Bytes::copy_from_slice(&BODY[..cut])]);
            let outcome = async {
                while let Some(mut part) = form.next().await? {
                    while part.chunk().await?.is_some() {}
                }
                Ok::<_, BadForm>(())
            };
            assert!(outcome.await.is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn parts_of_an_answer_stand_between_boundaries_that_no_file_holds() {
        let boundary = Boundary("b".to_owned());
        assert_eq!(boundary.part(&["A: 1", "B: 2"]), "--b\r\nA: 1\r\nB: 2\r\n\r\n");
        assert_eq!(boundary.last(), "--b--\r\n");
        assert_ne!(Boundary::random().unwrap().0, Boundary::random().unwrap().0);
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_given_up() {
        for first in ["--b\r\nContent-Disposition: form-data; name=\"/a", "nothing"] {
            let taken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let counted = Arc::clone(&taken);
            let piece = Bytes::from(vec![b'x'; 64 << 10]);
            let pieces = std::iter::once(Bytes::from(first)).chain(std::iter::repeat_n(piece, 1_000));
            let body = Body::from_stream(stream::iter(pieces).map(move |piece| {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok::<_, std::io::Error>(piece)
            }));
            let mut form = Form::open(Some("multipart/form-data; boundary=b"), body).unwrap();
            let refused = form.next().await.err();
            assert!(matches!(refused, Some(BadForm::Head)), "{first}");
            let taken = taken.load(std::sync::atomic::Ordering::Relaxed);
            assert!(taken < 4, "{taken} pieces were taken");
        }
    }

    #[tokio::test]
    async fn pieces_are_taken_only_when_their_turn_comes() {
        let taken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let head = "--b\r\nContent-Disposition: form-data; name=\"/a\"\r\n\r\nx\r\n";
        let pieces = stream::iter((0..100).map(|_| Bytes::from(head.repeat(10)))).map(move |piece| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok::<_, std::io::Error>(piece)
        });
        let mut form =
            Form::open(Some("multipart/form-data; boundary=b"), Body::from_stream(pieces)).unwrap();
        for _ in 0..10 {
            assert_eq!(form.next().await.unwrap().unwrap().name.as_deref(), Some("/a"));
        }
        assert!(taken.load(std::sync::atomic::Ordering::Relaxed) <= 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stalls_is_given_up() {
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::copy_from_slice(&BODY[..64]))]);
        let body = Body::from_stream(first.chain(stream::pending()));
        let mut form = Form::open(Some("multipart/form-data; boundary=b"), body).unwrap();
        let part = form.next().await.unwrap().unwrap();
        let mut content = part.into_stream();
        while let Some(piece) = content.next().await {
            if let Err(error) = piece {
                assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
                return;
            }
        }
        panic!("the part ended");
    }

    async fn read_any(bytes: &[u8], piece: usize) -> Option<Vec<(Option<String>, Option<String>, Vec<u8>)>> {
        let mut form = form(bytes.chunks(piece).map(Bytes::copy_from_slice).collect());
        let mut all = Vec::new();
        while let Some(mut part) = form.next().await.ok()? {
            let mut content = Vec::new();
            while let Some(piece) = part.chunk().await.ok()? {
                content.extend_from_slice(&piece);
            }
            all.push((part.name.clone(), part.filename.clone(), content));
        }
        Some(all)
    }

    #[test]
    fn any_form_is_read_the_same_however_it_is_cut() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        atoll_robustness::check("multipart", |bytes| {
            let _ = Form::open(Some(&String::from_utf8_lossy(bytes)), Body::empty());
            let whole = runtime.block_on(read_any(bytes, bytes.len().max(1)));
            // A long head is refused only if its end has not been received yet.
            if bytes.len() <= HEAD_MAX {
                assert_eq!(runtime.block_on(read_any(bytes, 7)), whole);
            }
        });
    }
}
