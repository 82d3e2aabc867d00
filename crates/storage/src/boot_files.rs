//! The files that engine, agent and service write into a sandbox at boot. A capture leaves them out.
//!
//! - The engine makes the folders for its mounts: its own, and those of volumes, which it records beside the layer.
//! - The engine gives a copy of a sandbox a machine id.
//! - The agent adds the host name to `/etc/hosts`.
//! - The service adds a certificate authority if the egress proxy changes requests.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::machine_id;
use super::walk::WalkEntry;

/// Folders on which the engine mounts a file system; the content that a layer has in them is never visible.
const OURS: [&[u8]; 4] = [b".atoll", b"dev", b"proc", b"sys"];
const HOSTS: &[u8] = b"etc/hosts";
/// The temporary file that the agent renames to `/etc/hosts`.
const HOSTS_NEXT: &[u8] = b"etc/hosts.atoll";
const AUTHORITY: &str = "usr/local/share/ca-certificates/atoll-egress.crt";
const BUNDLE: &[u8] = b"etc/ssl/certs/ca-certificates.crt";
const MACHINE_IDS: [&[u8]; 2] = [b"etc/machine-id", b"var/lib/dbus/machine-id"];
/// The file beside a layer that lists its mount points, one per line.
const MOUNTS: &str = "mounts";
/// LIMIT: bytes of a file to which Atoll adds lines; a larger one was not written by Atoll.
const SMALL: u64 = 4 << 20;

/// What of a file is ours.
pub(crate) enum Trace {
    /// No part.
    None,
    /// The whole file.
    Ours,
    /// Possibly some lines; the content of the file.
    Mixed(Vec<u8>),
}

/// What to look for in one sandbox.
pub(crate) struct Traces {
    /// Mount points of volumes.
    mounts: HashSet<Vec<u8>>,
    machine_id: String,
    authority: Option<Vec<u8>>,
}

impl Traces {
    /// `name`: the sandbox's, which its machine id comes from.
    pub(crate) fn of(layer: &Path, upper: BorrowedFd<'_>, name: &str) -> io::Result<Self> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let authority = match rustix::fs::openat2(upper, AUTHORITY, flags, Mode::empty(), resolve) {
            Ok(file) => read_small(&file.into())?,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => None,
            Err(error) => return Err(error.into()),
        };
        let mounts = noted_mounts(layer)?.into_iter().map(String::into_bytes).collect();
        Ok(Self { mounts, machine_id: machine_id::of(name), authority })
    }

    /// Whether a folder is one that something was mounted on.
    pub(crate) fn is_mounted_on(&self, path: &[u8]) -> bool {
        is_ours(path) || self.mounts.contains(path)
    }

    /// What of an entry is ours.
    pub(crate) fn look(&self, here: BorrowedFd<'_>, entry: &WalkEntry, path: &[u8]) -> io::Result<Trace> {
        if entry.kind != FileType::RegularFile {
            return Ok(Trace::None);
        }
        if path == AUTHORITY.as_bytes() || path == HOSTS_NEXT {
            return Ok(Trace::Ours);
        }
        let is_id = MACHINE_IDS.contains(&path);
        let is_mixed = path == HOSTS || (path == BUNDLE && self.authority.is_some());
        if !is_id && !is_mixed {
            return Ok(Trace::None);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(here, &entry.name, flags, Mode::empty())?;
        Ok(match read_small(&file.into())? {
            Some(content) if is_id && content == self.machine_id.as_bytes() => Trace::Ours,
            Some(content) if is_mixed => Trace::Mixed(content),
            _ => Trace::None,
        })
    }

    /// The content of a mixed file without what is ours. `below`: what the template has there.
    pub(crate) fn without_ours(&self, path: &[u8], content: &[u8], below: Option<&[u8]>) -> Vec<u8> {
        match &self.authority {
            Some(authority) if path == BUNDLE => without(content, authority.trim_ascii()),
            _ if path == HOSTS => without_names(content, below.unwrap_or_default()),
            _ => content.to_vec(),
        }
    }
}

/// Notes beside a layer where volumes are mounted in it, without the leading slash.
pub(crate) fn note_mounts(layer: &Path, places: &[String]) -> io::Result<()> {
    let mut all = noted_mounts(layer)?;
    let before = all.len();
    all.extend(places.iter().cloned());
    if all.len() == before {
        return Ok(());
    }
    let text = all.into_iter().collect::<Vec<_>>().join("\n");
    std::fs::write(layer.join(MOUNTS), text)
}

fn noted_mounts(layer: &Path) -> io::Result<BTreeSet<String>> {
    match std::fs::read_to_string(layer.join(MOUNTS)) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

/// Whether a folder is a mount point of the engine.
fn is_ours(path: &[u8]) -> bool {
    OURS.contains(&path)
}

/// Whether a path is such a folder, or in one.
pub(crate) fn is_inside_ours(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').next().is_some_and(is_ours)
}

/// The content of a small regular file.
pub(crate) fn read_small(file: &File) -> io::Result<Option<Vec<u8>>> {
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut content = Vec::new();
    file.take(SMALL + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= SMALL).then_some(content))
}

fn without(content: &[u8], part: &[u8]) -> Vec<u8> {
    let at = content.windows(part.len().max(1)).position(|window| window == part);
    match at {
        Some(at) if !part.is_empty() => {
            let rest = content[at + part.len()..].strip_prefix(b"\n").unwrap_or_default();
            [&content[..at], rest].concat()
        }
        _ => content.to_vec(),
    }
}

/// The content without the lines for host names that the agent added. (The same line, if a user wrote it, is of no use
/// in another sandbox either.)
fn without_names(content: &[u8], below: &[u8]) -> Vec<u8> {
    let is_name = |line: &[u8]| {
        line.strip_prefix(b"127.0.1.1\t").is_some_and(|name| {
            !name.is_empty()
                && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        })
    };
    let known: Vec<&[u8]> = below.split(|byte| *byte == b'\n').collect();
    let mut kept = Vec::with_capacity(content.len());
    let mut has_left_out = false;
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        if is_name(text) && !known.contains(&text) {
            has_left_out = true;
        } else {
            kept.extend_from_slice(line);
        }
    }
    // The agent ends the last line with a line feed before it adds a line.
    if has_left_out && kept.strip_suffix(b"\n") == Some(below) {
        kept.pop();
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_ours_are_taken_from_hosts() {
        let below = b"127.0.0.1\tlocalhost\n";
        assert_eq!(without_names(b"127.0.0.1\tlocalhost\n127.0.1.1\tbox\n", below), below);
        assert_eq!(without_names(b"a\n127.0.1.1\tbox\n", b"a"), b"a");
        assert_eq!(without_names(b"127.0.1.1\tbox\n1.2.3.4 x\n", b""), b"1.2.3.4 x\n");
        let own = b"127.0.1.1\tdebian\n";
        assert_eq!(without_names(own, own), own);
        assert_eq!(without_names(b"127.0.1.1\tbox also\n", b""), b"127.0.1.1\tbox also\n");
    }

    #[test]
    fn an_authority_leaves_the_bundle_as_it_was() {
        assert_eq!(without(b"A\nB\nOURS\n", b"OURS"), b"A\nB\n");
        assert_eq!(without(b"A\n", b"OURS"), b"A\n");
        assert_eq!(without(b"A\n", b""), b"A\n");
    }
}
