//! Which folders a move carries, and where they are at the target. Pure: it reads no file.
//!
//! Paths are kept wherever the target has a file system of its own, because programs store absolute paths. At a target without
//! isolation everything is below the sandbox's own folder.

use atoll_model::Mount;

/// A folder that is carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CarriedFolder {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Folders below it that are not part of it, relative to it.
    pub(crate) without: Vec<String>,
}

/// All folders, and the new working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CarriedFolders {
    pub(crate) folders: Vec<CarriedFolder>,
    pub(crate) workdir: String,
}

/// The places of a sandbox at one provider.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) home: &'a str,
    pub(crate) workdir: &'a str,
}

/// Folders of a system that are never carried as a whole.
const SYSTEM: &[&str] = &[
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc",
    "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var",
];
/// Nothing below these is a file of the sandbox.
const NEVER: &[&str] = &["/dev", "/proc", "/sys", "/run", "/.atoll"];

/// Chooses the folders. `keeps_paths`: the target has a file system of its own.
pub(crate) fn choose(source: Places<'_>, target_home: &str, keeps_paths: bool) -> CarriedFolders {
    let has_home = is_carried(source.home) && is_carried(target_home);
    let in_home = below(source.home, source.workdir).filter(|_| has_home);
    let home =
        CarriedFolder { from: source.home.to_owned(), to: target_home.to_owned(), without: Vec::new() };
    if let Some(path) = in_home {
        return CarriedFolders { folders: vec![home], workdir: join(target_home, path) };
    }
    let mut folders: Vec<_> = has_home.then_some(home).into_iter().collect();
    if !is_carried(source.workdir) {
        let workdir = if keeps_paths { source.workdir } else { target_home };
        return CarriedFolders { folders, workdir: workdir.to_owned() };
    }
    let name = source.workdir.rsplit('/').next().unwrap_or_default();
    let to = if keeps_paths { source.workdir.to_owned() } else { join(target_home, name) };
    if let Some(inside) = below(target_home, &to).filter(|inside| !inside.is_empty())
        && let Some(home) = folders.first_mut()
    {
        home.without.push(inside.to_owned());
    }
    folders.push(CarriedFolder { from: source.workdir.to_owned(), to: to.clone(), without: Vec::new() });
    CarriedFolders { folders, workdir: to }
}

impl CarriedFolders {
    /// Leaves out volumes that are mounted below the folders.
    pub(crate) fn without_mounts(mut self, mounts: &[Mount]) -> Self {
        for folder in &mut self.folders {
            let inside = mounts.iter().filter_map(|mount| below(&folder.from, &mount.path));
            folder.without.extend(inside.filter(|path| !path.is_empty()).map(str::to_owned));
        }
        self
    }

    /// A folder at the target that two folders of the source would share.
    pub(crate) fn shared(&self) -> Option<&str> {
        let [first, second] = self.folders.as_slice() else { return None };
        (first.to == second.to).then_some(first.to.as_str())
    }

    /// Whether a path of the source, without its leading slash, is carried.
    pub(crate) fn carry(&self, path: &str) -> bool {
        let path = format!("/{path}");
        self.folders.iter().any(|folder| below(&folder.from, &path).is_some())
    }
}

impl CarriedFolder {
    /// The folders that are left out, as patterns that match exactly them.
    pub(crate) fn patterns(&self) -> Vec<Vec<u8>> {
        self.without.iter().map(|path| literal(path)).collect()
    }
}

/// A path without empty parts, `.` and `..`, so that paths can be compared as texts. A path that is not absolute stays as it is.
pub(crate) fn cleaned(path: &str) -> String {
    if !path.starts_with('/') {
        return path.to_owned();
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Whether a folder may be carried as a whole.
fn is_carried(path: &str) -> bool {
    path.starts_with('/')
        && !SYSTEM.contains(&path)
        && !NEVER.iter().any(|never| below(never, path).is_some())
}

/// The path of `inner` relative to `outer`, if it is inside; empty for the same folder.
pub(crate) fn below<'a>(outer: &str, inner: &'a str) -> Option<&'a str> {
    let rest = inner.strip_prefix(outer.trim_end_matches('/'))?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('/') }
}

fn join(folder: &str, path: &str) -> String {
    match path {
        "" => folder.to_owned(),
        path => format!("{}/{path}", folder.trim_end_matches('/')),
    }
}

/// A pattern of a pack that matches one path.
fn literal(path: &str) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(path.len());
    for byte in path.bytes() {
        // A leading `!` would be an exception.
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'!' | b'^') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn folder(from: &str, to: &str, without: &[&str]) -> CarriedFolder {
        let without = without.iter().map(|path| (*path).to_owned()).collect();
        CarriedFolder { from: from.to_owned(), to: to.to_owned(), without }
    }

    fn chosen(home: &str, workdir: &str, target_home: &str, keeps_paths: bool) -> CarriedFolders {
        choose(Places { home, workdir }, target_home, keeps_paths)
    }

    #[test]
    fn a_working_directory_in_the_home_travels_with_it() {
        let same = chosen("/root", "/root", "/root", true);
        assert_eq!((&same.folders[..], &same.workdir[..]), (&[folder("/root", "/root", &[])][..], "/root"));
        let other = chosen("/data/s/workspace", "/data/s/workspace/app", "/home/user", true);
        assert_eq!(other.folders, [folder("/data/s/workspace", "/home/user", &[])]);
        assert_eq!(other.workdir, "/home/user/app");
    }

    #[test]
    fn another_working_directory_keeps_its_path_or_gets_one_in_the_only_folder() {
        let kept = chosen("/root", "/workspace", "/root", true);
        assert_eq!(kept.folders, [folder("/root", "/root", &[]), folder("/workspace", "/workspace", &[])]);
        assert_eq!(kept.workdir, "/workspace");
        let local = chosen("/root", "/workspace", "/d/s/workspace", false);
        assert_eq!(
            local.folders,
            [
                folder("/root", "/d/s/workspace", &["workspace"]),
                folder("/workspace", "/d/s/workspace/workspace", &[])
            ]
        );
        assert_eq!(local.workdir, "/d/s/workspace/workspace");
    }

    #[test]
    fn folders_of_the_system_are_never_carried() {
        for workdir in ["/", "/etc", "/usr", "/proc/1", "/sys/fs", "/dev/shm", "relative"] {
            let found = chosen("/root", workdir, "/root", true);
            assert_eq!(found.folders, [folder("/root", "/root", &[])], "{workdir}");
        }
        assert_eq!(chosen("/", "/", "/", true).folders, []);
        assert_eq!(chosen("/", "/srv/app", "/root", true).folders, [folder("/srv/app", "/srv/app", &[])]);
        assert_eq!(chosen("/root", "/", "/d/s", false).workdir, "/d/s");
    }

    #[test]
    fn two_folders_of_the_source_may_not_become_one() {
        assert_eq!(chosen("/root", "/home/user", "/home/user", true).shared(), Some("/home/user"));
        assert_eq!(chosen("/root", "/workspace", "/root", true).shared(), None);
    }

    #[test]
    fn mounts_are_left_out_by_their_exact_name() {
        let volume = atoll_model::VolumeId::from_entropy([7; 20]);
        let at = |path: &str| Mount {
            volume: volume.clone(),
            path: path.to_owned(),
            sub_path: None,
            read_only: false,
        };
        let found =
            chosen("/root", "/root", "/root", true).without_mounts(&[at("/root/a*[b]"), at("/other")]);
        assert_eq!(found.folders[0].without, ["a*[b]"]);
        assert_eq!(found.folders[0].patterns(), [b"a\\*\\[b\\]".to_vec()]);
        assert!(found.carry("root/x") && !found.carry("rootless/x") && !found.carry("etc/passwd"));
    }

    #[test]
    fn paths_are_compared_without_their_detours() {
        for (path, clean) in [
            ("/etc/", "/etc"),
            ("//", "/"),
            ("/x/../etc", "/etc"),
            ("/usr/.", "/usr"),
            ("/a/b/..", "/a"),
            ("/../..", "/"),
            ("/home/user/app", "/home/user/app"),
            ("app", "app"),
        ] {
            assert_eq!(cleaned(path), clean, "{path}");
        }
    }
}
