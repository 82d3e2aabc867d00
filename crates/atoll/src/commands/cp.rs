//! `atoll cp`: copies files and directories in both directions, and `-` for stdin and stdout.
//!
//! A sandbox is untrusted: a name from inside must be a single plain path component or it is refused, files are written
//! to a temporary name and renamed, and no symbolic link below the target is followed. Links stay links. Devices,
//! sockets and pipes are skipped, and their number is reported. `atoll volume put` and `get` do the same with a volume.
//! Its files are written one by one, so links are skipped too, and the exit status reports it.

mod download;
mod endpoint;
mod upload;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use atoll_client::files::EntryKind;
use futures::{Stream, StreamExt};

use super::{CommandContext, suggest};
use crate::{
    cli::{sandbox::Cp, values::CopyEndpoint},
    client::Client,
    failure::Failure,
    human::bytes,
    out::Out,
};
pub(super) use endpoint::{CopyEntry, EndpointKind, SandboxEnd};

/// The result of a copy.
#[derive(Debug, Default, serde::Serialize)]
pub(super) struct CopySummary {
    /// Files and links.
    files: u64,
    bytes: u64,
    /// Devices, sockets and pipes.
    skipped: u64,
    /// Links that the other side does not support.
    #[serde(skip)]
    links_lost: u64,
}

impl CopySummary {
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.skipped += other.skipped;
        self.links_lost += other.links_lost;
    }
}

pub(super) async fn cp(context: &CommandContext, mut args: Cp) -> Result<(), Failure> {
    let Some(to) = args.places.pop() else {
        return Err(Failure::usage("nothing to copy", "write `atoll cp SRC DST`"));
    };
    let client = context.client()?;
    let to = if args.places.len() > 1 { as_directory(to)? } else { to };
    let mut copied = CopySummary::default();
    for from in &args.places {
        let one = one(context, &client, from, &to).await;
        context.out.status_done();
        match one {
            Ok(one) => copied.add(&one),
            Err(failure) => {
                let ident = [from, &to].into_iter().find_map(|place| match place {
                    CopyEndpoint::Inside { sandbox, .. } => Some(sandbox.as_str()),
                    CopyEndpoint::Here(_) | CopyEndpoint::Stream => None,
                });
                return Err(suggest(&client, ident.unwrap_or(""), failure).await);
            }
        }
    }
    let to_stdout = if matches!(to, CopyEndpoint::Stream) { ToStdout::Yes } else { ToStdout::No };
    report(context, &copied, to_stdout)
}

/// The destination of several sources: a directory on either side.
fn as_directory(to: CopyEndpoint) -> Result<CopyEndpoint, Failure> {
    match to {
        CopyEndpoint::Inside { sandbox, path } => {
            Ok(CopyEndpoint::Inside { sandbox, path: format!("{}/", path.trim_end_matches('/')) })
        }
        CopyEndpoint::Here(path) if path.is_dir() => Ok(CopyEndpoint::Here(path)),
        CopyEndpoint::Here(path) => Err(Failure::usage(
            format!("{} is not a directory", path.display()),
            "several sources need a destination directory that exists",
        )),
        CopyEndpoint::Stream => {
            Err(Failure::usage("several sources cannot go to stdout", "copy one at a time"))
        }
    }
}

async fn one(
    context: &CommandContext,
    client: &Client,
    from: &CopyEndpoint,
    to: &CopyEndpoint,
) -> Result<CopySummary, Failure> {
    match (from, to) {
        (CopyEndpoint::Inside { sandbox, path }, CopyEndpoint::Inside { sandbox: other, path: target }) => {
            let from = SandboxEnd::sandbox(client, sandbox);
            let to = SandboxEnd::sandbox(client, other);
            between(context, &from, path, &to, target).await
        }
        (CopyEndpoint::Inside { sandbox, path }, to) => {
            download::copy(context, &SandboxEnd::sandbox(client, sandbox), path, to).await
        }
        (from, CopyEndpoint::Inside { sandbox, path }) => {
            upload::copy(context, from, &SandboxEnd::sandbox(client, sandbox), path).await
        }
        (CopyEndpoint::Here(_) | CopyEndpoint::Stream, CopyEndpoint::Here(_) | CopyEndpoint::Stream) => {
            Err(Failure::usage(
                "neither side is in a sandbox",
                "write one side as NAME:PATH, such as `atoll cp file box:/tmp/file`",
            ))
        }
    }
}

/// Copies a local path, or stdin, to `path` in the sandbox.
pub(super) async fn put(
    context: &CommandContext,
    from: &CopyEndpoint,
    to: &SandboxEnd<'_>,
    path: &str,
) -> Result<(), Failure> {
    let copied = upload::copy(context, from, to, path).await;
    context.out.status_done();
    report(context, &copied?, ToStdout::No)
}

/// Copies `path` in the sandbox to a local path, or to stdout.
pub(super) async fn get(
    context: &CommandContext,
    from: &SandboxEnd<'_>,
    path: &str,
    to: &CopyEndpoint,
) -> Result<(), Failure> {
    let copied = download::copy(context, from, path, to).await;
    context.out.status_done();
    let to_stdout = if matches!(to, CopyEndpoint::Stream) { ToStdout::Yes } else { ToStdout::No };
    report(context, &copied?, to_stdout)
}

/// Whether the copy itself uses stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToStdout {
    Yes,
    No,
}

fn report(context: &CommandContext, copied: &CopySummary, to_stdout: ToStdout) -> Result<(), Failure> {
    let out = context.out;
    if copied.skipped > 0 {
        out.say(&format!("atoll: {} devices, sockets or pipes were left out", copied.skipped));
    }
    if copied.links_lost > 0 {
        let message = format!(
            "{} symbolic links were left out: the file API of volumes does not support them",
            copied.links_lost
        );
        return Err(Failure::new("links_left_out", message)
            .hint("copy into a sandbox that has the volume mounted: atoll cp SRC NAME:PATH"));
    }
    // A copy to `-` uses stdout for its data only.
    if out.json && to_stdout == ToStdout::No {
        return out.json(copied);
    }
    out.tell(&format!("copied {} files, {}", copied.files, bytes(copied.bytes)));
    Ok(())
}

async fn between(
    context: &CommandContext,
    from: &SandboxEnd<'_>,
    path: &str,
    to: &SandboxEnd<'_>,
    target: &str,
) -> Result<CopySummary, Failure> {
    let path = from.absolute(path).await?;
    let entry = from.stat(&path).await?;
    if entry.kind != EntryKind::File {
        return Err(Failure::usage(
            format!("{path} is not a file"),
            "copy a directory between sandboxes through a local folder",
        ));
    }
    let target = to.target(target, last_part(&path)).await?;
    let status = TransferStatus::new(context.out, last_part(&path), entry.size);
    let (body, bytes) = counted(from.read(&path).await?.bytes_stream(), status);
    to.write(&target, entry.permissions(), body).await?;
    Ok(CopySummary { files: 1, bytes: bytes.load(Ordering::Relaxed), ..CopySummary::default() })
}

/// How often the status of a transfer changes.
const STATUS_EVERY: Duration = Duration::from_millis(100);

/// The status line of one file that takes a while.
struct TransferStatus {
    out: Out,
    name: String,
    total: Option<u64>,
    done: u64,
    shown_at: Instant,
}

impl TransferStatus {
    fn new(out: Out, name: &str, total: Option<u64>) -> Self {
        Self { out, name: name.to_owned(), total, done: 0, shown_at: Instant::now() }
    }

    fn add(&mut self, count: usize) {
        self.done += count as u64;
        if self.shown_at.elapsed() >= STATUS_EVERY {
            self.shown_at = Instant::now();
            self.out.status(&self.text());
        }
    }

    fn text(&self) -> String {
        let done = bytes(self.done);
        match self.total.filter(|total| *total > 0) {
            Some(total) => {
                let percent = self.done.min(total).saturating_mul(100) / total;
                format!("{}: {done} of {} ({percent}%)", self.name, bytes(total))
            }
            None => format!("{}: {done}", self.name),
        }
    }
}

/// A stream as a request body, and the number of bytes sent.
fn counted<E>(
    stream: impl Stream<Item = Result<bytes::Bytes, E>> + Send + 'static,
    mut status: TransferStatus,
) -> (reqwest::Body, Arc<AtomicU64>)
where
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    let count = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&count);
    let stream = stream.inspect(move |piece| {
        if let Ok(piece) = piece {
            seen.fetch_add(piece.len() as u64, Ordering::Relaxed);
            status.add(piece.len());
        }
    });
    (reqwest::Body::wrap_stream(stream), count)
}

fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().filter(|part| !part.is_empty()).unwrap_or("root")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_large_file_says_how_far_it_is() {
        let mut status = TransferStatus::new(Out::new(false), "disk.img", Some(4 << 30));
        status.add(1 << 30);
        assert_eq!(status.text(), "disk.img: 1 GiB of 4 GiB (25%)");
        // A file that grows while it is copied.
        status.add(4 << 30);
        assert_eq!(status.text(), "disk.img: 5 GiB of 4 GiB (100%)");
        let mut unknown = TransferStatus::new(Out::new(false), "stdin", None);
        unknown.add(512);
        assert_eq!(unknown.text(), "stdin: 512 B");
    }

    #[test]
    fn the_last_part_names_a_copy() {
        for (path, want) in [("/a/b", "b"), ("/a/b/", "b"), ("b", "b"), ("/", "root")] {
            assert_eq!(last_part(path), want);
        }
    }
}
