//! Forms with files, both ways. Coming in, a part is a stream whose pieces are handed on as they came, without a copy; only the
//! few bytes that may begin a boundary wait for the next piece. Going out, a part says its name, its length and its type.

use std::time::Duration;

use atoll_front_kit::ApiError;
use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use memchr::memmem;

/// LIMIT: the head of a part is a name, a path and a type.
const HEAD_MAX: usize = 32 << 10;
/// LIMIT: a client that says nothing for so long holds a connection.
const PIECE_WITHIN: Duration = Duration::from_secs(60);

/// Why a form can't be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadForm {
    #[error("the form ended in the middle")]
    Ended,
    #[error("the head of a part is longer than {HEAD_MAX} bytes, or there is none")]
    Head,
    #[error("the form did not go on for {} s", PIECE_WITHIN.as_secs())]
    Stalled,
    #[error("the form broke off")]
    Broken(#[source] axum::Error),
}

impl From<BadForm> for ApiError {
    fn from(error: BadForm) -> Self {
        super::refusal::bad(error.to_string()).caused_by(error)
    }
}

impl From<BadForm> for std::io::Error {
    fn from(error: BadForm) -> Self {
        Self::other(error)
    }
}

/// What the head of a part says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) name: String,
    pub(super) filename: Option<String>,
}

/// The parts of a form, one after the other.
pub(super) struct Form {
    body: BodyDataStream,
    /// `CRLF--boundary`.
    mark: memmem::Finder<'static>,
    held: Bytes,
    state: Where,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// In front of a boundary: what comes until then is skipped.
    Before,
    /// In a part's content.
    Content,
    /// Right behind a boundary.
    Behind,
    /// Behind the last boundary.
    End,
}

impl Form {
    /// By the type of its content, which names the boundary.
    pub(super) fn open(content_type: Option<&str>, body: Body) -> Option<Self> {
        let content_type = content_type?;
        let rest = content_type.get(..20).filter(|kind| kind.eq_ignore_ascii_case("multipart/form-data;"))?;
        let boundary =
            parameter(&content_type[rest.len() - 1..], "boundary").filter(|text| !text.is_empty())?;
        let mark = memmem::Finder::new(&[b"\r\n--", boundary.as_bytes()].concat()).into_owned();
        // The first boundary has no line before it; with one it is found as all others are.
        Some(Self {
            body: body.into_data_stream(),
            mark,
            held: Bytes::from_static(b"\r\n"),
            state: Where::Before,
        })
    }

    /// The next part; what is left of the one before is skipped. `None`: there is none.
    pub(super) async fn next(&mut self) -> Result<Option<Head>, BadForm> {
        while self.chunk().await?.is_some() {}
        if self.state == Where::Behind {
            self.line_end().await?;
        }
        if self.state == Where::End {
            return Ok(None);
        }
        let head = self.head().await?;
        self.state = Where::Content;
        Ok(Some(head))
    }

    /// A piece of the part's content; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, BadForm> {
        if matches!(self.state, Where::Behind | Where::End) {
            return Ok(None);
        }
        loop {
            if let Some(at) = self.mark.find(&self.held) {
                if at > 0 {
                    return Ok(Some(self.held.split_to(at)));
                }
                let _ = self.held.split_to(self.mark.needle().len());
                self.state = Where::Behind;
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

    /// Behind a boundary: two dashes end the form, a line end begins a part.
    async fn line_end(&mut self) -> Result<(), BadForm> {
        while self.held.len() < 2 {
            self.more().await?;
        }
        if self.held.starts_with(b"--") {
            self.state = Where::End;
        }
        Ok(())
    }

    async fn head(&mut self) -> Result<Head, BadForm> {
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

    /// Takes the next piece behind what is held.
    async fn more(&mut self) -> Result<(), BadForm> {
        let next =
            tokio::time::timeout(PIECE_WITHIN, self.body.next()).await.map_err(|_| BadForm::Stalled)?;
        let piece = next.ok_or(BadForm::Ended)?.map_err(BadForm::Broken)?;
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
    // A mark begins with a line end, which most pieces have none of at their end.
    memchr::memchr_iter(b'\r', tail).find(|at| mark.starts_with(&tail[*at..])).map_or(0, |at| longest - at)
}

fn parse_head(head: &[u8]) -> Option<Head> {
    let text = String::from_utf8_lossy(head);
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let name = parameter(line, "name")?;
    Some(Head { name, filename: parameter(line, "filename") })
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

/// A value and what follows it. A backslash is kept unless a quote or another one follows: paths may hold some.
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

/// Browsers and their like write quotes and line ends so.
fn unescaped(value: &str) -> String {
    value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

/// What stands between the parts of an answer: random, so that no file holds it.
#[derive(Debug, Clone)]
pub(super) struct Boundary(String);

impl Boundary {
    pub(super) fn random() -> Result<Self, ApiError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|cause| {
            ApiError::new(atoll_model::Code::Internal, "no random bytes").caused_by(cause)
        })?;
        Ok(Self(format!("atoll-{}", hex::encode(random))))
    }

    /// The type of the whole answer.
    pub(super) fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={}", self.0)
    }

    /// The head of a part: `file` or `error`, and the path as it was asked for, which is how the SDKs find it.
    pub(super) fn head(&self, name: &str, path: &str, kind: &str, len: u64) -> Bytes {
        let mut disposition = format!("form-data; name=\"{name}\"; filename=\"{}\"", escaped(path));
        if !path.bytes().all(|b| b.is_ascii_graphic() || b == b' ') || path.contains(['"', '\\']) {
            disposition.push_str("; filename*=UTF-8''");
            disposition.push_str(&percent(path));
        }
        Bytes::from(format!(
            "--{}\r\nContent-Disposition: {disposition}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n\r\n",
            self.0
        ))
    }

    /// The end of the last part.
    pub(super) fn last(&self) -> Bytes {
        Bytes::from(format!("--{}--\r\n", self.0))
    }
}

/// A path inside quotes; a line end, which would begin a head of its own, becomes a blank.
fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for c in path.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => text.push(' '),
            c => text.push(c),
        }
    }
    text
}

/// A slash is no letter of such a value either.
fn percent(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures::stream;

    fn form(pieces: Vec<Bytes>) -> Form {
        let body = Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)));
        Form::open(Some("multipart/form-data; boundary=\"b\""), body).unwrap()
    }

    async fn read(form: &mut Form) -> Vec<(String, Option<String>, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(head) = form.next().await.unwrap() {
            let mut content = Vec::new();
            while let Some(piece) = form.chunk().await.unwrap() {
                content.extend_from_slice(&piece);
            }
            all.push((head.name, head.filename, content));
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
        while let Some(head) = form.next().await.unwrap() {
            names.push(head.name);
        }
        assert_eq!(names, ["files[0].path", "files[0].file", "e"]);
    }

    #[tokio::test]
    async fn a_form_that_breaks_off_is_an_error() {
        for cut in [3, 40, 80, 200, BODY.len() - 6] {
            let mut form = form(vec![Bytes::copy_from_slice(&BODY[..cut])]);
            let outcome = async {
                while form.next().await?.is_some() {
                    while form.chunk().await?.is_some() {}
                }
                Ok::<_, BadForm>(())
            };
            assert!(outcome.await.is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_hostile_path_stays_inside_its_quotes() {
        let boundary = Boundary("b".to_owned());
        let head = boundary.head("file", "/tmp/a\"; x=\r\nX-Evil: 1\\ü", "application/octet-stream", 3);
        let text = std::str::from_utf8(&head).unwrap();
        assert_eq!(text.matches("\r\n").count(), 5);
        assert!(
            text.contains("filename*=UTF-8''%2Ftmp%2Fa%22%3B%20x%3D%0D%0AX-Evil%3A%201%5C%C3%BC"),
            "{text}"
        );
        let plain = boundary.head("file", "/a b.txt", "t", 0);
        assert!(!std::str::from_utf8(&plain).unwrap().contains("filename*"));
    }

    async fn read_any(bytes: &[u8], piece: usize) -> Option<Vec<(Head, Vec<u8>)>> {
        let mut form = form(bytes.chunks(piece).map(Bytes::copy_from_slice).collect());
        let mut all = Vec::new();
        while let Some(head) = form.next().await.ok()? {
            let mut content = Vec::new();
            while let Some(piece) = form.chunk().await.ok()? {
                content.extend_from_slice(&piece);
            }
            all.push((head, content));
        }
        Some(all)
    }

    #[test]
    fn any_form_is_read_the_same_however_it_is_cut() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        atoll_robustness::check!("multipart", |bytes| {
            let _ = Form::open(Some(&String::from_utf8_lossy(bytes)), Body::empty());
            let whole = runtime.block_on(read_any(bytes, bytes.len().max(1)));
            // A head that is too long is refused only while its end has not come.
            if bytes.len() <= HEAD_MAX {
                assert_eq!(runtime.block_on(read_any(bytes, 7)), whole);
            }
        });
    }
}
