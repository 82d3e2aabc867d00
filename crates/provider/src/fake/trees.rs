//! Trees of the minimal agent: describing, listing, removing, packing and unpacking. A folder is a prefix of paths.

use std::collections::BTreeMap;
use std::io::Read;

use super::FakeFiles;

/// What goes wrong in the next unpack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeFault {
    /// A byte of a file is written wrong.
    Damage,
    /// The disk is full.
    Full,
}

/// How the agents of a provider treat trees.
#[derive(Debug, Default)]
pub(super) struct TreeSettings {
    /// What goes wrong in the next unpacks.
    pub(super) faults: Vec<TreeFault>,
    /// The list of users has `user` with these numbers of itself and its group.
    pub(super) user: Option<(u64, u64)>,
    /// Owners of files, by path; all other files belong to `user`.
    pub(super) owners: BTreeMap<String, (u64, u64)>,
    /// As with `tar` instead of Atoll's agent: an owner cannot be named.
    pub(super) unpacks_by_tar: bool,
}

impl TreeSettings {
    fn user(&self) -> (u64, u64) {
        self.user.unwrap_or((1_000, 0))
    }

    /// The list of users, if the test has set one.
    pub(super) fn passwd(&self) -> Option<Vec<u8>> {
        let (uid, gid) = self.user?;
        Some(format!("root:x:0:0::/root:/bin/sh\nuser:x:{uid}:{gid}::/home/user:/bin/sh\n").into_bytes())
    }

    pub(super) fn owner(&self, path: &str) -> (u64, u64) {
        self.owners.get(path).copied().unwrap_or(self.user())
    }
}

/// The absolute path that a caller means; the home of `root` is `/root`, that of everyone else `/home/user`.
pub(super) fn resolve(path: &str, user: &str) -> String {
    let home = if user == "root" { "/root" } else { "/home/user" };
    match path.strip_prefix('~') {
        Some(rest) => format!("{home}{rest}"),
        None => path.to_owned(),
    }
}

/// Whether it is a folder: the homes are, and everything above a file.
pub(super) fn is_folder(files: &FakeFiles, path: &str) -> bool {
    matches!(path, "/" | "/root" | "/home/user") || files.keys().any(|name| below(path, name).is_some())
}

/// The names directly in a folder, and whether each is a folder.
pub(super) fn names_in(files: &FakeFiles, folder: &str) -> Vec<(String, bool)> {
    let inside = files.keys().filter_map(|name| below(folder, name));
    let mut names: Vec<_> = inside
        .map(|path| match path.split_once('/') {
            Some((first, _)) => (first.to_owned(), true),
            None => (path.to_owned(), false),
        })
        .collect();
    names.dedup();
    names
}

/// Removes a file or a folder.
pub(super) fn remove(files: &mut FakeFiles, path: &str) {
    files.retain(|name, _| name != path && below(path, name).is_none());
}

/// A folder as a tar, as the agent would pack its content. `ask` is the body of the request.
pub(super) fn pack(files: &FakeFiles, ask: &[u8], user: &str, settings: &TreeSettings) -> Option<Vec<u8>> {
    let items: Vec<&[u8]> = ask.split(|byte| *byte == 0).filter(|item| !item.is_empty()).collect();
    let text = |sign: u8| {
        items
            .iter()
            .filter_map(move |item| item.strip_prefix(&[sign]))
            .map(|text| String::from_utf8_lossy(text).replace('\\', ""))
    };
    let source = resolve(&text(b's').next()?, user);
    let excluded: Vec<String> = text(b'x').collect();
    let mut tar = tar::Builder::new(Vec::new());
    let mut top = tar::Header::new_ustar();
    top.set_entry_type(tar::EntryType::Directory);
    top.set_mode(0o755);
    top.set_uid(settings.user().0);
    top.set_gid(settings.user().1);
    top.set_size(0);
    tar.append_data(&mut top, "./", std::io::empty()).ok()?;
    for (path, content) in files.iter().filter_map(|(name, content)| Some((below(&source, name)?, content))) {
        let is_left_out = excluded.iter().any(|out| path == out || below(out, path).is_some());
        if is_left_out {
            continue;
        }
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        let (uid, gid) = settings.owner(&format!("{source}/{path}"));
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, path, content.as_slice()).ok()?;
    }
    tar.into_inner().ok()
}

/// Writes the files of a tar below a folder, with their owners. Answers their number and bytes.
pub(super) fn unpack(
    files: &mut FakeFiles,
    dest: &str,
    tar: &[u8],
    fault: Option<TreeFault>,
    settings: &mut TreeSettings,
) -> Option<(u64, u64)> {
    let (mut entries, mut bytes) = (0, 0);
    for entry in tar::Archive::new(tar).entries().ok()? {
        let mut entry = entry.ok()?;
        if entry.header().entry_type() != tar::EntryType::Regular {
            continue;
        }
        let path = entry.path().ok()?.to_string_lossy().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).ok()?;
        entries += 1;
        bytes += content.len() as u64;
        if let (Some(TreeFault::Damage), Some(first)) = (fault, content.first_mut()) {
            *first ^= 1;
        }
        let path = format!("{dest}/{path}");
        let owner = (entry.header().uid().ok()?, entry.header().gid().ok()?);
        settings.owners.insert(path.clone(), owner);
        files.insert(path, content);
    }
    Some((entries, bytes))
}

fn below<'a>(folder: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(folder.trim_end_matches('/'))?.strip_prefix('/')
}
