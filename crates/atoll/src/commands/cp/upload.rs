//! Copies into a sandbox: a file, a directory recursively, or stdin.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use tokio_util::io::ReaderStream;

use super::{CopySummary, SandboxEnd, TransferStatus, counted, last_part};
use crate::{
    cli::values::CopyEndpoint,
    commands::{
        CommandContext,
        build::context::{pack_all, pack_holes},
        progress::Progress,
    },
    failure::Failure,
};

pub(super) async fn copy(
    context: &CommandContext,
    from: &CopyEndpoint,
    to: &SandboxEnd<'_>,
    path: &str,
) -> Result<CopySummary, Failure> {
    let CopyEndpoint::Here(source) = from else {
        let target = to.absolute(path).await?;
        let (body, bytes) =
            counted(ReaderStream::new(tokio::io::stdin()), TransferStatus::new(context.out, "stdin", None));
        to.write(&target, None, body).await?;
        return Ok(CopySummary { files: 1, bytes: bytes.load(Ordering::Relaxed), ..CopySummary::default() });
    };
    let about = std::fs::metadata(source).map_err(|e| unreadable(source, &e))?;
    let name =
        source.canonicalize().ok().and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()));
    let target = to.target(path, name.as_deref().unwrap_or("root")).await?;
    let mut copied = CopySummary::default();
    if about.is_dir() && to.takes_archives() {
        return archive(context, source, to, &target).await;
    } else if about.is_dir() {
        directory(context, source, to, &target, &mut copied).await?;
    } else if about.is_file() {
        if to.takes_archives() && sparse_file(context, source, to, &target, &mut copied).await? {
            return Ok(copied);
        }
        file(context, source, to, &target, &mut copied).await?;
    } else {
        return Err(Failure::usage(
            format!("{} is neither a file nor a directory", source.display()),
            "pipe it: `… | atoll cp - NAME:PATH`",
        ));
    }
    Ok(copied)
}

/// Sends a file with large holes as an archive, in which they need no space. `false`: it has none.
async fn sparse_file(
    context: &CommandContext,
    source: &Path,
    to: &SandboxEnd<'_>,
    target: &str,
    copied: &mut CopySummary,
) -> Result<bool, Failure> {
    let Some((folder, name)) = target.rsplit_once('/') else { return Ok(false) };
    let mut progress = Progress::new(context.out, false);
    let Some(packed) = pack_holes(source, name, progress.transfer("copying", None)) else { return Ok(false) };
    let fault = packed.fault();
    let sent = to.write_archive(if folder.is_empty() { "/" } else { folder }, packed.body).await;
    progress.done();
    sent.map_err(|failure| fault.or(failure))?;
    copied.files += 1;
    copied.bytes += std::fs::metadata(source).map_err(|e| unreadable(source, &e))?.len();
    Ok(true)
}

/// Sends a directory as one tar stream, in which links stay links.
async fn archive(
    context: &CommandContext,
    source: &Path,
    to: &SandboxEnd<'_>,
    target: &str,
) -> Result<CopySummary, Failure> {
    to.make_folder(target).await?;
    let mut progress = Progress::new(context.out, false);
    let (packed, count) = pack_all(source, progress.transfer("copying", None));
    let fault = packed.fault();
    let sent = to.write_archive(target, packed.body).await;
    progress.done();
    sent.map_err(|failure| fault.or(failure).hint("files that were copied before stay"))?;
    Ok(CopySummary {
        files: count.files.load(Ordering::Relaxed),
        bytes: count.bytes.load(Ordering::Relaxed),
        skipped: count.skipped.load(Ordering::Relaxed),
        links_lost: 0,
    })
}

/// Walks without recursion, so that a deep tree uses memory and not the stack.
async fn directory(
    context: &CommandContext,
    source: &Path,
    to: &SandboxEnd<'_>,
    target: &str,
    copied: &mut CopySummary,
) -> Result<(), Failure> {
    let mut left: Vec<(PathBuf, String)> = vec![(source.to_owned(), target.to_owned())];
    while let Some((here, there)) = left.pop() {
        to.make_folder(&there).await?;
        for entry in std::fs::read_dir(&here).map_err(|e| unreadable(&here, &e))? {
            let entry = entry.map_err(|e| unreadable(&here, &e))?;
            let kind = entry.file_type().map_err(|e| unreadable(&entry.path(), &e))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                return Err(Failure::usage(
                    format!("{} has a name that is not UTF-8", entry.path().display()),
                    "rename it, or copy a tar archive instead",
                ));
            };
            let path = format!("{}/{name}", there.trim_end_matches('/'));
            if kind.is_dir() {
                left.push((entry.path(), path));
            } else if kind.is_file() {
                file(context, &entry.path(), to, &path, copied).await?;
                context.out.status(&format!("{} files, {}", copied.files, crate::human::bytes(copied.bytes)));
            } else if kind.is_symlink() {
                copied.links_lost += 1;
            } else {
                copied.skipped += 1;
            }
        }
    }
    Ok(())
}

async fn file(
    context: &CommandContext,
    source: &Path,
    to: &SandboxEnd<'_>,
    target: &str,
    copied: &mut CopySummary,
) -> Result<(), Failure> {
    let opened = tokio::fs::File::open(source).await.map_err(|e| unreadable(source, &e))?;
    let about = opened.metadata().await.map_err(|e| unreadable(source, &e))?;
    let mode = about.permissions().mode() & 0o777;
    // LIMIT: pieces are large enough that system calls do not matter.
    let status = TransferStatus::new(context.out, last_part(target), Some(about.len()));
    let (body, bytes) = counted(ReaderStream::with_capacity(opened, 256 * 1024), status);
    to.write(target, Some(mode), body).await?;
    copied.files += 1;
    copied.bytes += bytes.load(Ordering::Relaxed);
    Ok(())
}

fn unreadable(path: &Path, cause: &std::io::Error) -> Failure {
    Failure::new("io", format!("{} cannot be read: {cause}", path.display()))
}
