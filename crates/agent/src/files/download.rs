//! `GET /files`: one regular file, complete or one range of it, with the memory that [`super::readers`] allows.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use rustix::fs::{OFlags, StatFs};
use rustix::io::Errno;

use super::readers::{ConnectionEnd, Reader};
use super::{open_regular, resolve};
use crate::error::AgentError;
use crate::http::{AgentBody, streamed};
use crate::state::Agent;
use crate::users::User;

/// LIMIT: bytes of a kernel file without a size (/proc, /sys).
const KERNEL_FILE_MAX: usize = 4 << 20;

struct OpenedFile {
    file: Arc<OwnedFd>,
    size: u64,
    mode: u32,
    modified_s: i64,
    /// The content of a file whose size the kernel does not know in advance.
    content: Option<Bytes>,
}

/// Handles a download request of `user`.
pub(crate) async fn get(
    agent: &Agent,
    user: &User,
    raw: &[u8],
    headers: &HeaderMap,
    connection: &ConnectionEnd,
) -> Result<Response<AgentBody>, AgentError> {
    let path = resolve(raw, user)?;
    let coding = coding(headers)?;
    let reader = agent.readers.begin(connection)?;
    if coding == Coding::Gzip && !reader.is_fast() {
        // A compressor takes more memory than a small chunk.
        return Err(AgentError::Exhausted("too many downloads at once for a compressed one".into()));
    }
    let mut opened = agent.workers.run(&user.ids, move || open(&path)).await?;
    opened.content = opened.content.map(|content| agent.readers.hold_whole(content)).transpose()?;
    let range = match coding {
        Coding::Identity => range(headers, opened.size),
        Coding::Gzip => ByteSelection::Whole,
    };
    let (status, start, len) = match range {
        ByteSelection::Whole => (StatusCode::OK, 0, opened.size),
        ByteSelection::Part { start, len } => (StatusCode::PARTIAL_CONTENT, start, len),
        ByteSelection::Nothing => return Ok(unsatisfiable(opened.size)),
    };
    let mut response = Response::new(body(agent, user, &opened, (start, len), coding, reader));
    *response.status_mut() = status;
    let head = response.headers_mut();
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    head.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    head.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    insert(head, atoll_agentapi::MODE_HEADER, &format!("{:o}", opened.mode & 0o7777));
    insert(head, atoll_agentapi::SIZE_HEADER, &opened.size.to_string());
    insert(head, "atoll-mtime", &opened.modified_s.to_string());
    match coding {
        Coding::Identity => insert(head, "content-length", &len.to_string()),
        Coding::Gzip => insert(head, "content-encoding", "gzip"),
    }
    if status == StatusCode::PARTIAL_CONTENT {
        insert(head, "content-range", &format!("bytes {start}-{}/{}", start + len - 1, opened.size));
    }
    Ok(response)
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn open(path: &[u8]) -> Result<OpenedFile, AgentError> {
    let (file, stat) = open_regular(path, OFlags::RDONLY)?;
    let fresh = rustix::fs::fstatfs(&file).is_ok_and(|fs| is_kernel(&fs));
    let content = if fresh && stat.st_size == 0 { Some(read_kernel_file(&file)?) } else { None };
    let size = content.as_ref().map_or(u64::try_from(stat.st_size).unwrap_or(0), |bytes| bytes.len() as u64);
    Ok(OpenedFile { file: Arc::new(file), size, mode: stat.st_mode, modified_s: stat.st_mtime, content })
}

/// proc, sysfs, cgroup, cgroup2, tracefs, debugfs: files that are generated while they are read.
fn is_kernel(fs: &StatFs) -> bool {
    let magics: [i64; 6] = [0x9fa0, 0x6265_6572, 0x27_e0eb, 0x6367_7270, 0x7472_6163, 0x6462_6720];
    magics.contains(&fs.f_type)
}

/// Such a file may be endless or may block its reader (/proc/kmsg): both are refused.
fn read_kernel_file(file: &OwnedFd) -> Result<Bytes, AgentError> {
    let mut content = Vec::new();
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        match rustix::io::read(file, &mut buffer) {
            Ok(0) => return Ok(content.into()),
            Ok(n) if content.len() + n > KERNEL_FILE_MAX => {
                return Err(AgentError::Invalid("this kernel file is too long to be read".into()));
            }
            Ok(n) => content.extend_from_slice(&buffer[..n]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                return Err(AgentError::Invalid("reading this kernel file would block".into()));
            }
            Err(errno) => return Err(AgentError::from_errno(errno, "read")),
        }
    }
}

fn body(
    agent: &Agent,
    user: &User,
    opened: &OpenedFile,
    (start, len): (u64, u64),
    coding: Coding,
    reader: Reader,
) -> AgentBody {
    let (workers, ids) = (agent.workers.clone(), user.ids.clone());
    let (file, content) = (Arc::clone(&opened.file), opened.content.clone());
    let (chunk, ahead, reader) = (reader.chunk() as u64, reader.ahead(), Arc::new(reader));
    let offsets = (0..len.div_ceil(chunk)).map(move |n| (start + n * chunk, chunk.min(len - n * chunk)));
    let reads = futures::stream::iter(offsets).map(move |(at, size)| {
        let (workers, ids, file, content) =
            (workers.clone(), ids.clone(), Arc::clone(&file), content.clone());
        let reader = Arc::clone(&reader);
        async move {
            let room = reader.room().await?;
            let bytes = match content {
                Some(content) => content.slice(at as usize..(at + size) as usize),
                None => workers.run(&ids, move || read_exactly(&file, at, size)).await?,
            };
            Ok(room.hold(bytes))
        }
    });
    let chunks = reads.buffered(ahead);
    match coding {
        Coding::Identity => streamed(chunks),
        Coding::Gzip => streamed(compress(chunks)),
    }
}

/// A file that has shrunk meanwhile aborts the download, because its length was already announced.
fn read_exactly(file: &OwnedFd, at: u64, size: u64) -> Result<Bytes, AgentError> {
    let mut buffer = vec![0u8; usize::try_from(size).unwrap_or(0)];
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(file, &mut buffer[filled..], at + filled as u64) {
            Ok(0) => return Err(AgentError::Conflict("the file became shorter while it was read".into())),
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(AgentError::from_errno(errno, "read")),
        }
    }
    Ok(buffer.into())
}

fn compress(
    chunks: impl futures::Stream<Item = Result<Bytes, AgentError>> + Send + 'static,
) -> impl futures::Stream<Item = Result<Bytes, AgentError>> + Send + 'static {
    async_stream::stream! {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut chunks = Box::pin(chunks);
        while let Some(chunk) = chunks.next().await {
            let written = match chunk {
                Ok(chunk) => encoder.write_all(&chunk).map_err(|_| AgentError::Internal("compression failed".into())),
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = written {
                yield Err(refusal);
                return;
            }
            let ready = std::mem::take(encoder.get_mut());
            if !ready.is_empty() {
                yield Ok(Bytes::from(ready));
            }
        }
        match encoder.finish() {
            Ok(rest) => yield Ok(Bytes::from(rest)),
            Err(_) => yield Err(AgentError::Internal("compression failed".into())),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Identity,
    Gzip,
}

/// Identity unless the client forbids it: loopback is faster than gzip.
fn coding(headers: &HeaderMap) -> Result<Coding, AgentError> {
    let text = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let quality = |name: &str| {
        text.split(',').find_map(|part| {
            let (coding, parameters) = part.split_once(';').unwrap_or((part, ""));
            let q = parameters
                .trim()
                .strip_prefix("q=")
                .and_then(|q| q.trim().parse::<f32>().ok())
                .unwrap_or(1.0);
            coding.trim().eq_ignore_ascii_case(name).then_some(q)
        })
    };
    let any = quality("*");
    if quality("identity").or(any.filter(|q| *q == 0.0)).unwrap_or(1.0) > 0.0 {
        return Ok(Coding::Identity);
    }
    match quality("gzip").or(any).unwrap_or(0.0) > 0.0 {
        true => Ok(Coding::Gzip),
        false => Err(AgentError::NotAcceptable("only identity and gzip are offered".into())),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteSelection {
    Whole,
    Part { start: u64, len: u64 },
    Nothing,
}

/// A single range is honoured; several, or an invalid one, mean the whole file, as HTTP allows.
fn range(headers: &HeaderMap, size: u64) -> ByteSelection {
    let text = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let Some(spec) = text.and_then(|text| text.trim().strip_prefix("bytes=")) else {
        return ByteSelection::Whole;
    };
    let Some((first, last)) = spec.trim().split_once('-') else { return ByteSelection::Whole };
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    match (first.is_empty(), number(first), last.is_empty(), number(last)) {
        (true, _, false, Some(0)) => ByteSelection::Nothing,
        (true, _, false, Some(_)) if size == 0 => ByteSelection::Nothing,
        (true, _, false, Some(suffix)) => {
            ByteSelection::Part { start: size - suffix.min(size), len: suffix.min(size) }
        }
        (false, Some(start), true, _) if start < size => ByteSelection::Part { start, len: size - start },
        (false, Some(start), false, Some(last)) if start <= last && start < size => {
            ByteSelection::Part { start, len: last.min(size - 1) - start + 1 }
        }
        (false, Some(start), _, last) if start >= size && last.is_none_or(|last| last >= start) => {
            ByteSelection::Nothing
        }
        _ => ByteSelection::Whole,
    }
}

fn unsatisfiable(size: u64) -> Response<AgentBody> {
    let refusal = AgentError::Range("the range is outside the file".into());
    let mut response = crate::http::refused(&refusal);
    insert(response.headers_mut(), "content-range", &format!("bytes */{size}"));
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted(text: &str, size: u64) -> ByteSelection {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_str(text).unwrap());
        range(&headers, size)
    }

    #[test]
    fn ranges_are_read_as_http_says() {
        assert_eq!(wanted("bytes=0-9", 100), ByteSelection::Part { start: 0, len: 10 });
        assert_eq!(wanted("bytes=90-", 100), ByteSelection::Part { start: 90, len: 10 });
        assert_eq!(wanted("bytes=-10", 100), ByteSelection::Part { start: 90, len: 10 });
        assert_eq!(wanted("bytes=-1000", 100), ByteSelection::Part { start: 0, len: 100 });
        assert_eq!(wanted("bytes=50-9999", 100), ByteSelection::Part { start: 50, len: 50 });
        assert_eq!(wanted("bytes=100-", 100), ByteSelection::Nothing);
        assert_eq!(wanted("bytes=-0", 100), ByteSelection::Nothing);
        for whole in ["bytes=0-1,3-4", "bytes=9-3", "bytes=--5", "lines=1-2", "bytes=a-b", "bytes=-"] {
            assert_eq!(wanted(whole, 100), ByteSelection::Whole, "{whole}");
        }
    }

    #[test]
    fn a_client_that_forbids_identity_gets_gzip_or_nothing() {
        let ask = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_str(text).unwrap());
            coding(&headers)
        };
        assert_eq!(ask("gzip, deflate, br").unwrap(), Coding::Identity);
        assert_eq!(ask("gzip, identity;q=0").unwrap(), Coding::Gzip);
        assert!(ask("br, *;q=0").is_err());
    }

    proptest! {
        #[test]
        fn a_part_always_lies_inside_the_file(text in "bytes=[0-9]{0,5}-[0-9]{0,5}", size in 0u64..2000) {
            if let ByteSelection::Part { start, len } = wanted(&text, size) {
                prop_assert!(len > 0 && start + len <= size);
            }
        }
    }

    #[test]
    fn any_range_lies_within_the_file() {
        atoll_robustness::check("range_header", |bytes| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
            for size in [0, 1, 100, u64::MAX] {
                let headers = HeaderMap::from_iter([(header::RANGE, value.clone())]);
                if let ByteSelection::Part { start, len } = range(&headers, size) {
                    assert!(len > 0 && start.checked_add(len).is_some_and(|end| end <= size));
                }
            }
        });
    }
}
