//! Copies out of a sandbox: a file, a directory recursively, or to stdout. All input is untrusted.

use std::{
    fs,
    io::{Seek, SeekFrom, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use atoll_client::files::EntryKind;
use base64::Engine as _;

use super::{CopyEntry, CopySummary, SandboxEnd, TransferStatus, last_part};
use crate::{
    cli::values::CopyEndpoint,
    commands::CommandContext,
    failure::Failure,
    human::{bytes, harmless},
};

/// LIMIT: a program in the sandbox can make an endless tree; beyond this it counts as an attack.
const ENTRIES_MAX: u64 = 1_000_000;
const DEPTH_MAX: usize = 256;

pub(super) async fn copy(
    context: &CommandContext,
    from: &SandboxEnd<'_>,
    path: &str,
    to: &CopyEndpoint,
) -> Result<CopySummary, Failure> {
    let path = from.absolute(path).await?;
    let CopyEndpoint::Here(target) = to else {
        return stream(context, from, &path).await;
    };
    let entry = from.stat(&path).await?;
    let target = if target.is_dir() { target.join(checked(last_part(&path))?) } else { target.clone() };
    let mut copied = CopySummary::default();
    match entry.kind {
        EntryKind::Directory => directory(context, from, &path, &target, &mut copied).await?,
        // A link that the user names is followed by the server inside the sandbox, so it can only lead inside.
        EntryKind::File | EntryKind::Symlink => {
            file(context, from, &path, &target, &entry, &mut copied).await?;
        }
        EntryKind::Other => {
            return Err(Failure::usage(
                format!("{path} is a device, a socket or a pipe"),
                "only files and directories are copied",
            ));
        }
    }
    Ok(copied)
}

async fn stream(context: &CommandContext, from: &SandboxEnd<'_>, path: &str) -> Result<CopySummary, Failure> {
    let mut answer = from.read(path).await?;
    let mut copied = CopySummary { files: 1, ..CopySummary::default() };
    while let Some(piece) = answer.chunk().await.map_err(|_| broken(path))? {
        context.out.bytes(&piece)?;
        copied.bytes += piece.len() as u64;
    }
    Ok(copied)
}

async fn directory(
    context: &CommandContext,
    from: &SandboxEnd<'_>,
    path: &str,
    target: &Path,
    copied: &mut CopySummary,
) -> Result<(), Failure> {
    let mut left: Vec<(String, PathBuf, usize)> = vec![(path.to_owned(), target.to_owned(), 0)];
    let mut seen = 0;
    while let Some((there, here, depth)) = left.pop() {
        make_directory(&here, depth == 0)?;
        let (entries, truncated) = from.list(&there).await?;
        if truncated {
            return Err(Failure::new("too_many", format!("{there} has more entries than can be listed"))
                .hint("copy a tar archive instead"));
        }
        for entry in entries {
            seen += 1;
            if seen > ENTRIES_MAX || depth > DEPTH_MAX {
                return Err(Failure::new("too_many", "the directory tree inside is too deep")
                    .hint("copy a part of it"));
            }
            let name = name(&entry)?;
            let below = format!("{}/{name}", there.trim_end_matches('/'));
            match entry.kind {
                EntryKind::Directory => left.push((below, here.join(&name), depth + 1)),
                EntryKind::File => {
                    file(context, from, &below, &here.join(&name), &entry, copied).await?;
                    context.out.status(&format!(
                        "{} files, {}",
                        copied.files,
                        crate::human::bytes(copied.bytes)
                    ));
                }
                EntryKind::Symlink => link(&entry, &here.join(&name), copied)?,
                EntryKind::Other => copied.skipped += 1,
            }
        }
    }
    Ok(())
}

/// Below the target only real directories are entered: a link there may come from an earlier copy.
fn make_directory(path: &Path, is_top: bool) -> Result<(), Failure> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() || (is_top && path.is_dir()) => Ok(()),
        Ok(_) => Err(Failure::new("exists", format!("{} exists and is not a directory", path.display()))
            .hint("choose another destination")),
        Err(_) => fs::create_dir(path).map_err(|e| unwritable(path, &e)),
    }
}

async fn file(
    context: &CommandContext,
    from: &SandboxEnd<'_>,
    path: &str,
    target: &Path,
    entry: &CopyEntry,
    copied: &mut CopySummary,
) -> Result<(), Failure> {
    let mut status = TransferStatus::new(context.out, last_part(path), entry.size);
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    refuse_full_disk(path, entry, folder)?;
    let mut answer = from.read(path).await?;
    let fresh = PartialFile(folder.join(format!(".atoll-cp-{}-{}", std::process::id(), copied.files)));
    let mut opened = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh.0)
        .map_err(|e| unwritable(target, &e))?;
    while let Some(piece) = answer.chunk().await.map_err(|_| broken(path))? {
        // Zeros stay a hole: a file inside may be one that is far larger than what it holds.
        let is_hole = piece.iter().all(|byte| *byte == 0);
        let written = match is_hole {
            true => opened.seek(SeekFrom::Current(i64::try_from(piece.len()).unwrap_or(0))).map(drop),
            false => opened.write_all(&piece),
        };
        written.map_err(|e| unwritable(target, &e))?;
        copied.bytes += piece.len() as u64;
        status.add(piece.len());
    }
    let length = opened.stream_position().and_then(|length| opened.set_len(length));
    length.map_err(|e| unwritable(target, &e))?;
    let mode = fs::Permissions::from_mode(entry.permissions().unwrap_or(0o644));
    opened.set_permissions(mode).map_err(|e| unwritable(target, &e))?;
    // A rename replaces a link instead of following it.
    fs::rename(&fresh.0, target).map_err(|e| unwritable(target, &e))?;
    copied.files += 1;
    Ok(())
}

/// A file that cannot fit is refused before a byte of it is copied.
fn refuse_full_disk(path: &str, about: &CopyEntry, folder: &Path) -> Result<(), Failure> {
    // If the disk cannot be measured, the write itself reports the error.
    let Ok(free) = atoll_disk::free_bytes(folder) else { return Ok(()) };
    // A link that the user named has the size of its name.
    let Some(size) = about.size.filter(|size| *size > free) else { return Ok(()) };
    let message =
        format!("{path} has {}, and the disk of {} has {} free", bytes(size), folder.display(), bytes(free));
    Err(Failure::new("disk_full", message).hint(
        "a sparse file is copied with its holes by tar: atoll exec NAME -- tar -Scf - PATH | tar -xf -",
    ))
}

/// Makes a link as it is in the sandbox, whatever its target. Nothing is written or read through it: below the target
/// only real directories are entered.
fn link(entry: &CopyEntry, target: &Path, copied: &mut CopySummary) -> Result<(), Failure> {
    let points_to = entry.symlink_target.as_deref().unwrap_or("");
    if points_to.is_empty() || points_to.contains(char::REPLACEMENT_CHARACTER) {
        copied.skipped += 1;
        return Ok(());
    }
    let folder = target.parent().unwrap_or(Path::new("."));
    let fresh = PartialFile(folder.join(format!(".atoll-cp-{}-{}", std::process::id(), copied.files)));
    std::os::unix::fs::symlink(points_to, &fresh.0).map_err(|e| unwritable(target, &e))?;
    fs::rename(&fresh.0, target).map_err(|e| unwritable(target, &e))?;
    copied.files += 1;
    Ok(())
}

/// A partial file; removed unless it was renamed to its final name.
struct PartialFile(PathBuf);

impl Drop for PartialFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The name of an entry, if it is a single plain path component.
fn name(entry: &CopyEntry) -> Result<String, Failure> {
    if let Some(coded) = &entry.name_base64 {
        let raw = base64::engine::general_purpose::STANDARD.decode(coded).unwrap_or_default();
        let shown = harmless(&String::from_utf8_lossy(&raw));
        return Err(Failure::new("odd_name", format!("{shown:?} inside has a name that is not UTF-8"))
            .hint("copy a tar archive instead"));
    }
    checked(&entry.name).map(str::to_owned)
}

fn checked(name: &str) -> Result<&str, Failure> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(Failure::new(
            "odd_name",
            format!("the sandbox sent {:?} as a file name", harmless(name)),
        )
        .hint("nothing was written for it; programs inside may be hostile"));
    }
    Ok(name)
}

fn unwritable(path: &Path, cause: &std::io::Error) -> Failure {
    Failure::new("io", format!("{} cannot be written: {cause}", path.display()))
}

fn broken(path: &str) -> Failure {
    Failure::new("no_server", format!("the connection broke while {path} was read")).hint("try again")
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::tests::entry;
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for bad in ["", ".", "..", "a/b", "/etc/passwd", "a\0b"] {
            assert!(name(&entry(bad)).is_err(), "{bad:?}");
        }
        assert!(name(&CopyEntry { name_base64: Some("/w==".to_owned()), ..entry("a") }).is_err());
        assert_eq!(name(&entry("..a b")).expect("plain"), "..a b");
    }

    #[test]
    fn a_link_is_copied_as_a_link_and_replaces_what_is_there() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let here = folder.path().join("link");
        fs::write(&here, "old").expect("writable");
        let mut copied = CopySummary::default();
        let entry = CopyEntry { symlink_target: Some("../elsewhere".to_owned()), ..entry("link") };
        link(&entry, &here, &mut copied).expect("made");
        assert_eq!(fs::read_link(&here).expect("a link"), Path::new("../elsewhere"));
        assert_eq!((copied.files, copied.skipped), (1, 0));
    }

    #[test]
    fn a_link_below_the_target_is_not_entered() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).expect("writable");
        assert!(make_directory(&link, false).is_err());
        assert!(make_directory(&link, true).is_ok());
        assert!(make_directory(&folder.path().join("new"), false).is_ok());
        assert!(make_directory(&folder.path().join("new"), false).is_ok());
    }
}
