//! The owners of files that a move carries. The user of commands may have another number at the target: its files belong to it there
//! too. All other owners keep their numbers, where the target can have them.
//!
//! The server rewrites the numbers in the stream, so that it does not matter what unpacks there: Atoll's agent, or `tar`.

use atoll_tar::stream::{Receiver, StreamError, StreamReader};
use atoll_tar::write::push_header;
use atoll_tar::{BLOCK, TarEntry, padding};
use bytes::Bytes;

/// The numbers of a user and its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileOwner {
    pub(crate) uid: u64,
    pub(crate) gid: u64,
}

impl FileOwner {
    pub(crate) const fn of(entry: &TarEntry) -> Self {
        Self { uid: entry.uid, gid: entry.gid }
    }

    /// A user, by the sandbox's lists of users and groups, as in `/etc/passwd` and `/etc/group`. It is written as Atoll's agent
    /// takes it: `user` or `user:group`, each a name or a number. A number without an account is in the group of root.
    pub(crate) fn in_lists(users: &str, groups: &str, user: &str) -> Option<Self> {
        let accounts = || users.lines().filter_map(Self::account);
        let named = |wanted: &str| accounts().find(|(name, _)| *name == wanted).map(|(_, owner)| owner);
        let numbered = |wanted: &str| {
            let uid = wanted.parse().ok()?;
            let known = accounts().find(|(_, owner)| owner.uid == uid);
            Some(known.map_or(Self { uid, gid: 0 }, |(_, owner)| owner))
        };
        let root = |wanted: &str| (wanted == "root").then_some(Self { uid: 0, gid: 0 });
        let find = |wanted: &str| named(wanted).or_else(|| root(wanted)).or_else(|| numbered(wanted));
        if let Some(owner) = find(user) {
            return Some(owner);
        }
        let (user, group) = user.split_once(':')?;
        let group_named = groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok()).flatten()
        });
        Some(Self { gid: group_named.or_else(|| group.parse().ok())?, ..find(user)? })
    }

    fn account(line: &str) -> Option<(&str, Self)> {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((name, Self { uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()? }))
    }
}

/// What the target does with owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetOwners {
    /// The user of commands; `None`: not known, or everything is done as root of this machine.
    pub(crate) user: Option<FileOwner>,
    /// Files can belong to anyone there; otherwise all of them belong to that user.
    pub(crate) takes_any: bool,
}

/// How owners change on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OwnerMapping {
    /// They do not.
    #[default]
    Kept,
    /// Those of one user become those of another.
    One { from: FileOwner, to: FileOwner },
    /// Everything belongs to this one.
    All(FileOwner),
}

impl OwnerMapping {
    /// `from`: the user of commands at the source. `has_users`: files there can belong to different users.
    pub(crate) fn choose(from: Option<FileOwner>, has_users: bool, target: TargetOwners) -> Self {
        match (target.user, from) {
            (None, _) => Self::Kept,
            (Some(to), _) if !target.takes_any || !has_users => Self::All(to),
            (Some(to), Some(from)) if from != to => Self::One { from, to },
            (Some(_), _) => Self::Kept,
        }
    }

    pub(crate) fn apply(self, owner: FileOwner) -> FileOwner {
        match self {
            Self::Kept => owner,
            Self::One { from, to } => FileOwner {
                uid: if owner.uid == from.uid { to.uid } else { owner.uid },
                gid: if owner.gid == from.gid { to.gid } else { owner.gid },
            },
            Self::All(to) => to,
        }
    }
}

/// Changes the owners in a tar stream.
pub(crate) struct OwnerRewriter {
    reader: StreamReader,
    written: RewrittenStream,
}

struct RewrittenStream {
    mapping: OwnerMapping,
    bytes: Vec<u8>,
    /// Zeros after the content of the current entry.
    padding: usize,
}

impl OwnerRewriter {
    /// `None`: nothing changes.
    pub(crate) fn new(mapping: OwnerMapping) -> Option<Self> {
        let written = RewrittenStream { mapping, bytes: Vec::new(), padding: 0 };
        (mapping != OwnerMapping::Kept).then(|| Self { reader: StreamReader::default(), written })
    }

    /// Takes the next bytes, and gives what becomes of them.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Bytes, StreamError> {
        self.reader.push(bytes, &mut self.written)?;
        Ok(std::mem::take(&mut self.written.bytes).into())
    }

    /// The end of the archive, if the stream is complete.
    pub(crate) fn finish(&self) -> Result<Bytes, StreamError> {
        self.reader.finish()?;
        Ok(Bytes::from_static(&[0; 2 * BLOCK]))
    }
}

impl Receiver for RewrittenStream {
    type Error = StreamError;

    fn begin(&mut self, mut entry: TarEntry) -> Result<(), StreamError> {
        let owner = self.mapping.apply(FileOwner::of(&entry));
        (entry.uid, entry.gid) = (owner.uid, owner.gid);
        self.padding = padding(entry.data_bytes());
        push_header(&mut self.bytes, &entry);
        Ok(())
    }

    fn sparse(&mut self, _entry: &TarEntry) -> Result<(), StreamError> {
        // No source of a move writes one.
        Err(StreamError::Damaged)
    }

    fn content(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<(), StreamError> {
        self.bytes.extend_from_slice(&[0; BLOCK][..self.padding]);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use atoll_tar::TarKind;

    use super::*;
    use crate::moving::manifest::{Comparison, Manifest};

    const fn owner(uid: u64, gid: u64) -> FileOwner {
        FileOwner { uid, gid }
    }

    #[test]
    fn a_user_is_found_in_a_list() {
        let list =
            "root:x:0:0::/root:/bin/sh\nuserx:x:1:2::/:\nuser:x:1000:1001::/home/user:/bin/sh\nbad:x:one:1\n";
        let groups = "staff:x:50:user\nbroken\n";
        for (user, expected) in [
            ("user", Some(owner(1_000, 1_001))),
            ("1000", Some(owner(1_000, 1_001))),
            ("4000", Some(owner(4_000, 0))),
            ("4000:4001", Some(owner(4_000, 4_001))),
            ("user:staff", Some(owner(1_000, 50))),
            ("user:nobody", None),
            ("bad", None),
            ("x", None),
        ] {
            assert_eq!(FileOwner::in_lists(list, groups, user), expected, "{user}");
        }
    }

    #[test]
    fn the_owners_depend_on_both_ends() {
        let (user, other) = (Some(owner(1_000, 1_000)), owner(1_001, 1_002));
        let any = |user| TargetOwners { user, takes_any: true };
        let single = TargetOwners { user: Some(other), takes_any: false };
        let one = OwnerMapping::One { from: owner(1_000, 1_000), to: other };
        for (from, has_users, target, expected) in [
            (user, true, any(user), OwnerMapping::Kept),
            (user, true, any(Some(other)), one),
            (user, true, any(None), OwnerMapping::Kept),
            (None, true, any(Some(other)), OwnerMapping::Kept),
            (user, true, single, OwnerMapping::All(other)),
            (None, false, any(Some(other)), OwnerMapping::All(other)),
            (None, false, any(None), OwnerMapping::Kept),
        ] {
            assert_eq!(OwnerMapping::choose(from, has_users, target), expected);
        }
        assert_eq!(one.apply(owner(1_000, 1_000)), other);
        assert_eq!(one.apply(owner(0, 1_000)), owner(0, 1_002));
        assert_eq!(one.apply(owner(7, 8)), owner(7, 8));
    }

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        let long = format!("{}/name", "folder/".repeat(40));
        let entry = |name: &str, kind, link: &str, content: &[u8], (uid, gid)| TarEntry {
            name: name.into(),
            kind,
            link: link.into(),
            mode: 0o4751,
            uid,
            gid,
            size: content.len() as u64,
            mtime: (1_700_000_000, 0),
            xattrs: vec![(b"user.x".to_vec(), b"1".to_vec())],
            ..TarEntry::default()
        };
        for (name, kind, link, content, owner) in [
            ("./", TarKind::Folder, "", &b""[..], (1_000, 1_000)),
            ("a b\nc", TarKind::File, "", &[7; 1_300][..], (1_000, 1_000)),
            ("empty", TarKind::File, "", b"", (0, 1_000)),
            (&long, TarKind::File, "", &[1; BLOCK], (3_000_000, 5)),
            ("link", TarKind::Symlink, "/does/not/exist", b"", (1_000, 1_000)),
            ("second", TarKind::HardLink, "a b\nc", b"", (1_000, 1_000)),
            ("holes", TarKind::File, "", &[9; 700], (1_000, 1_000)),
        ] {
            let mut entry = entry(name, kind, link, content, owner);
            if name == "holes" {
                (entry.size, entry.map) = (1 << 40, Some(vec![(4_096, 500), (1 << 39, 200)]));
            }
            push_header(&mut out, &entry);
            out.extend_from_slice(content);
            out.resize(out.len() + padding(content.len() as u64), 0);
        }
        out.resize(out.len() + 2 * BLOCK, 0);
        out
    }

    fn rewritten(mapping: OwnerMapping, stream: &[u8], piece: usize) -> Vec<u8> {
        let mut rewriter = OwnerRewriter::new(mapping).unwrap();
        let mut out: Vec<u8> = stream.chunks(piece).flat_map(|piece| rewriter.push(piece).unwrap()).collect();
        out.extend(rewriter.finish().unwrap());
        out
    }

    #[test]
    fn only_owners_change_however_the_stream_is_cut() {
        let mapping = OwnerMapping::One { from: owner(1_000, 1_000), to: owner(5_000_000, 1_001) };
        let before = stream();
        let whole = rewritten(mapping, &before, before.len());
        assert_eq!(rewritten(mapping, &before, 7), whole);
        let digest = |mut manifest: Manifest, stream: &[u8]| {
            manifest.push(stream).unwrap();
            manifest.finish().unwrap()
        };
        let sent = digest(Manifest::default(), &before);
        assert_eq!(sent.compare(&digest(Manifest::like(&sent), &whole)), Comparison::OtherOwners);
        let mapped = digest(Manifest::of_source(mapping, Some(owner(1_000, 1_000))), &before);
        assert_eq!(mapped.compare(&digest(Manifest::like(&mapped), &whole)), Comparison::Same);
        assert_eq!(mapped.top.unwrap().owner, owner(5_000_000, 1_001));
        // Of another user or group.
        assert_eq!(mapped.others.count, 2);
        assert_eq!(mapped.others.names[0], atoll_tar::shown(b"empty"));
    }

    #[test]
    fn a_stream_that_ends_early_is_not_completed() {
        let mut rewriter = OwnerRewriter::new(OwnerMapping::All(owner(1, 1))).unwrap();
        rewriter.push(&stream()[..2 * BLOCK + 10]).unwrap();
        assert_eq!(rewriter.finish(), Err(StreamError::Incomplete));
        assert!(OwnerRewriter::new(OwnerMapping::Kept).is_none());
    }
}
