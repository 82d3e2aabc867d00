//! Trees through the real `tar`, over a provider whose sandboxes are folders of this machine. Paths of the sandbox are those of the
//! machine, below a temporary folder. What needs root is left out where the tests run as another user.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Weak;

use atoll_agentapi::InitRequest;
use atoll_example_provider::{FolderProvider, TEMPLATE};
use atoll_model::policy::egress::Egress;
use atoll_model::{InstanceId, Limits, SandboxId, Storage};
use atoll_provider::{FilesOrigin, InstanceSpec, Provider, Target};

use super::*;

/// A user that owns nothing here.
const NOBODY: u32 = 65_534;

struct TarSandbox {
    provider: Arc<FolderProvider>,
    state: Arc<AdapterState>,
    root: tempfile::TempDir,
}

impl TarSandbox {
    /// `number` distinguishes the sandboxes of tests that run at the same time.
    async fn new(number: u8) -> Self {
        let root = tempfile::tempdir().unwrap();
        let provider = Arc::new(FolderProvider::new(root.path(), "this server"));
        let spec = InstanceSpec {
            sandbox: SandboxId::from_entropy([number; 20]),
            instance: InstanceId::from_entropy([number; 20]),
            template: TEMPLATE.to_owned(),
            template_version: "1".to_owned(),
            limits: Limits { memory_mib: 64, disk_mib: 64, pids: 64, cpu_milli: 500 },
            network: Arc::new(Egress::closed()),
            storage: Storage::Disk,
            hostname: "tar".to_owned(),
            origin: FilesOrigin::Template,
            mounts: Vec::new(),
        };
        let files = provider.files(&spec.sandbox);
        fs::create_dir_all(files.parent().unwrap()).unwrap();
        symlink("/", files).unwrap();
        provider.create(&spec).await.unwrap();
        let target = Target { sandbox: spec.sandbox, instance: Some(spec.instance) };
        let state = AdapterState::new(provider.clone(), target, InitRequest::default(), Weak::new());
        Self { provider, state: Arc::new(state), root }
    }

    /// A new folder of the sandbox.
    fn folder(&self, name: &str) -> PathBuf {
        let path = self.root.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    async fn pack(&self, folder: &Path, patterns: &[&str]) -> Result<Vec<u8>, String> {
        self.pack_with(folder, patterns, false).await
    }

    async fn pack_with(&self, folder: &Path, patterns: &[&str], is_sparse: bool) -> Result<Vec<u8>, String> {
        let patterns = patterns.iter().map(|pattern| format!("x{pattern}\0"));
        let ask = format!("s{}\0{}", folder.display(), patterns.collect::<String>());
        let mut stream = self
            .state
            .pack("contents", is_sparse, ask.as_bytes(), None)
            .await
            .map_err(|refusal| refusal.message)?;
        let mut packed = Vec::new();
        while let Some(chunk) = stream.next().await {
            packed.extend_from_slice(&chunk.map_err(|error| error.to_string())?);
        }
        Ok(packed)
    }

    /// Packs one entry under its name, as a copy by command does.
    async fn pack_named(&self, path: &Path) -> Result<Vec<u8>, String> {
        let ask = format!("s{}\0", path.display());
        let stream = self.state.pack("named", false, ask.as_bytes(), None).await;
        let mut stream = stream.map_err(|refusal| refusal.message)?;
        let mut packed = Vec::new();
        while let Some(chunk) = stream.next().await {
            packed.extend_from_slice(&chunk.map_err(|error| error.to_string())?);
        }
        Ok(packed)
    }

    /// Unpacks below a folder, as a copy by command does.
    async fn unpack_below(&self, folder: &Path, tar: Vec<u8>) -> Result<u64, String> {
        let pairs = [("dest", folder.to_str().unwrap()), ("into", "folder"), ("rules", "copy")];
        let query = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let content = futures::stream::iter([Ok(Bytes::from(tar))]).boxed();
        self.state.unpack(&query, None, content).await.map_err(|refusal| refusal.message)
    }

    async fn unpack(&self, folder: &Path, tar: Vec<u8>) -> Result<u64, String> {
        let query = [("dest".to_owned(), folder.display().to_string()), ("keep".to_owned(), "1".to_owned())];
        let content = futures::stream::iter([Ok(Bytes::from(tar))]).boxed();
        self.state.unpack(&query.into(), None, content).await.map_err(|refusal| refusal.message)
    }

    /// Packs one folder and unpacks it as another.
    async fn copied(&self, from: &Path) -> PathBuf {
        let to = self.folder("copy");
        let tar = self.pack(from, &[]).await.unwrap();
        let bytes = tar.len() as u64;
        assert_eq!(self.unpack(&to, tar).await, Ok(bytes));
        to
    }

    async fn end(self) {
        let mut left = fs::read_dir("/tmp").unwrap().filter_map(Result::ok);
        let own = format!("{}-{}-", TEMPORARY.trim_start_matches("/tmp/"), self.state.target.sandbox);
        let is_own = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&own);
        assert!(!left.any(is_own), "the archive is left");
        self.provider.destroy(&self.state.target).await.unwrap();
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Type and mode, link count, size and content or target of every entry, by name.
fn described(folder: &Path) -> Vec<(Vec<u8>, u32, u64, Vec<u8>)> {
    let mut entries = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(current).unwrap().map(Result::unwrap) {
            let (path, found) = (entry.path(), fs::symlink_metadata(entry.path()).unwrap());
            let content = match found.file_type() {
                kind if kind.is_file() => fs::read(&path).unwrap(),
                kind if kind.is_symlink() => {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                }
                _ => Vec::new(),
            };
            let name = path.strip_prefix(folder).unwrap().as_os_str().as_bytes().to_vec();
            let links = if found.is_dir() { 1 } else { found.nlink() };
            entries.push((name, found.mode(), links, content));
            if found.is_dir() {
                folders.push(path);
            }
        }
    }
    entries.sort();
    entries
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_links_and_odd_names_are_the_same_in_the_copy() {
    let at = TarSandbox::new(11).await;
    let from = at.folder("from");
    let write = |name: &[u8], mode: u32, content: &[u8]| {
        let path = from.join(OsStr::from_bytes(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    write(b"plain", 0o640, b"one");
    write(b"setuid", 0o4755, b"#!/bin/sh\n");
    write(b"closed", if is_root() { 0o000 } else { 0o400 }, b"");
    write(b"with space/new\nline", 0o600, b"two");
    write(b"-rf", 0o644, b"dash");
    write(b"not \xff utf8", 0o644, b"bytes");
    let deep = format!("{}/{}", "long-folder-name/".repeat(20), "n".repeat(250));
    write(deep.as_bytes(), 0o644, b"deep");
    fs::hard_link(from.join("plain"), from.join("second name")).unwrap();
    symlink("plain", from.join("link")).unwrap();
    symlink("/does/not/exist/".repeat(12), from.join("dangling")).unwrap();
    fs::create_dir(from.join("empty")).unwrap();
    fs::set_permissions(from.join("empty"), fs::Permissions::from_mode(0o2711)).unwrap();
    let to = at.copied(&from).await;
    assert_eq!(described(&to), described(&from));
    let numbers = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(numbers("plain"), numbers("second name"), "one file with two names");
    at.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_and_sparse_files_arrive_whole() {
    let at = TarSandbox::new(12).await;
    let from = at.folder("from");
    fs::write(from.join("empty"), b"").unwrap();
    let sparse = fs::File::create(from.join("sparse")).unwrap();
    sparse.set_len(3_000_000).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, b"end", 2_999_997).unwrap();
    drop(sparse);
    let tar = at.pack(&from, &[]).await.unwrap();
    assert!(tar.len() > 3_000_000, "holes are sent as zeros");
    let to = at.copied(&from).await;
    assert_eq!(described(&to), described(&from));
    // Holes that are left out need no space, here and while the archive lies in the sandbox.
    fs::File::options().append(true).open(from.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let tar = at.pack_with(&from, &[], true).await.unwrap();
    assert!(tar.len() < 1 << 20, "{} bytes", tar.len());
    let to = at.folder("holes");
    at.unpack(&to, tar).await.unwrap();
    let found = fs::metadata(to.join("sparse")).unwrap();
    assert!(found.len() == 1 << 40 && found.blocks() * 512 < 1 << 20, "{found:?}");
    // A folder without files is an archive too.
    let nothing = at.folder("nothing");
    let tar = at.pack(&nothing, &[]).await.unwrap();
    at.unpack(&at.root.path().join("new/folder"), tar).await.unwrap();
    assert_eq!(described(&at.root.path().join("new/folder")), []);
    at.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_are_those_of_the_archive_if_root_unpacks_it() {
    if !is_root() {
        return;
    }
    let at = TarSandbox::new(13).await;
    let from = at.folder("from");
    for (name, uid, gid) in [("a", 1_000, 1_001), ("b", 0, 7), ("c", 3_000_000, 65_534)] {
        fs::write(from.join(name), name).unwrap();
        chown(from.join(name), Some(uid), Some(gid)).unwrap();
    }
    symlink("a", from.join("link")).unwrap();
    std::os::unix::fs::lchown(from.join("link"), Some(1_000), Some(1_001)).unwrap();
    let to = at.copied(&from).await;
    for name in ["a", "b", "c", "link"] {
        let owner = |folder: &Path| {
            let found = fs::symlink_metadata(folder.join(name)).unwrap();
            (found.uid(), found.gid())
        };
        assert_eq!(owner(&to), owner(&from), "{name}");
    }
    at.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_out_is_left_out_by_its_exact_name() {
    let at = TarSandbox::new(14).await;
    let from = at.folder("from");
    for name in ["data", "other/data", "data*", "data2"] {
        fs::create_dir_all(from.join(name)).unwrap();
        fs::write(from.join(name).join("file"), name).unwrap();
    }
    let tar = at.pack(&from, &["data", "data\\*"]).await.unwrap();
    let to = at.folder("copy");
    at.unpack(&to, tar).await.unwrap();
    let found: Vec<_> = ["data", "other/data", "data*", "data2"].map(|name| to.join(name).exists()).into();
    assert_eq!(found, [false, true, false, true]);
    at.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_with_the_reason() {
    let at = TarSandbox::new(15).await;
    let missing = at.pack(&at.root.path().join("missing"), &[]).await.unwrap_err();
    assert!(missing.contains("missing") && missing.contains("No such file"), "{missing}");
    let damaged = at.unpack(&at.folder("to"), vec![b'x'; 2_000]).await.unwrap_err();
    assert!(damaged.starts_with("tar ended with 2"), "{damaged}");
    let query = |option: &str| {
        let pairs = [("dest", "/tmp"), ("keep", "1"), (option, "x")];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    };
    for option in ["owner", "mode", "strip"] {
        let empty = futures::stream::iter([]).boxed();
        let refused = at.state.unpack(&query(option), None, empty).await.unwrap_err();
        assert_eq!(refused.code, RpcCode::Unimplemented, "{option}");
    }
    at.end().await;
}

/// Runs a script as a user that is not root.
fn as_nobody(script: &str, args: &[&Path]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(args).env("LC_ALL", "C").current_dir("/");
    command.uid(NOBODY).gid(NOBODY).output().unwrap()
}

#[test]
fn a_file_that_the_user_cannot_read_is_named() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.path().join("open"), "1").unwrap();
    symlink("/does/not/exist", root.path().join("dangling")).unwrap();
    assert!(as_nobody(PACK, &[root.path()]).status.success(), "a link that leads nowhere can be read");
    for name in ["secret file", "secret folder"] {
        let path = root.path().join(name);
        if name.ends_with("file") { fs::write(&path, "2") } else { fs::create_dir(&path) }.unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let output = as_nobody(PACK, &[root.path()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "nothing is sent: {said}");
        assert_eq!(said, format!("{} cannot be read\n", path.display()));
        let _ = fs::remove_file(&path);
    }
}

#[test]
fn all_that_a_user_unpacks_belongs_to_it_if_it_is_not_root() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (from, to, tar) = (root.path().join("from"), root.path().join("to"), root.path().join("a.tar"));
    for folder in [&from, &to] {
        fs::create_dir(folder).unwrap();
    }
    chown(&to, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::write(from.join("file"), "1").unwrap();
    fs::set_permissions(from.join("file"), fs::Permissions::from_mode(0o751)).unwrap();
    chown(from.join("file"), Some(1_000), Some(1_001)).unwrap();
    let mut pack = Command::new("sh");
    let packed = pack.args(["-c", PACK, "sh"]).arg(&from).output().unwrap();
    fs::write(&tar, &packed.stdout).unwrap();
    let output = as_nobody(UNPACK, &[&tar, &to]);
    assert!(output.status.success(), "{output:?}");
    let found = fs::metadata(to.join("file")).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (NOBODY, NOBODY, 0o751));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_copied_under_its_name_with_its_links_and_merges_with_what_is_there() {
    let at = TarSandbox::new(16).await;
    let from = at.folder("from");
    fs::create_dir_all(from.join("-odd name/deep")).unwrap();
    fs::write(from.join("-odd name/deep/file"), "content").unwrap();
    fs::set_permissions(from.join("-odd name/deep/file"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("deep/file", from.join("-odd name/link")).unwrap();
    symlink("/does/not/exist", from.join("-odd name/dangling")).unwrap();
    symlink("-odd name", from.join("way")).unwrap();
    symlink("-odd name/deep/file", from.join("to file")).unwrap();
    let to = at.folder("to");
    fs::create_dir_all(to.join("-odd name/deep")).unwrap();
    for (name, text) in [("-odd name/deep/file", "old"), ("-odd name/kept", "kept")] {
        fs::write(to.join(name), text).unwrap();
    }
    let tar = at.pack_named(&from.join("-odd name")).await.unwrap();
    at.unpack_below(&to, tar).await.unwrap();
    fs::remove_file(to.join("-odd name/kept")).expect("it was kept");
    assert_eq!(described(&to.join("-odd name")), described(&from.join("-odd name")));
    // A link that is named is followed.
    for name in ["way", "to file"] {
        let tar = at.pack_named(&from.join(name)).await.unwrap();
        at.unpack_below(&at.root.path().join("followed/below"), tar).await.unwrap();
    }
    let followed = at.root.path().join("followed/below");
    assert_eq!(described(&followed.join("way")), described(&from.join("-odd name")));
    assert!(fs::symlink_metadata(followed.join("to file")).unwrap().is_file());
    let missing = at.pack_named(&from.join("missing")).await.unwrap_err();
    assert!(missing.contains("missing"), "{missing}");
    assert!(at.pack_named(Path::new("/")).await.is_err());
    at.end().await;
}

#[test]
fn a_copy_belongs_to_the_user_who_unpacks_it_also_by_the_tar_of_busybox() {
    let Some(busybox) = ["/usr/bin/busybox", "/bin/busybox"].iter().find(|path| Path::new(path).exists())
    else {
        return;
    };
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (bin, from, to) = (root.path().join("bin"), root.path().join("from"), root.path().join("to"));
    for folder in [&bin, &from.join("folder"), &to] {
        fs::create_dir_all(folder).unwrap();
    }
    for tool in ["tar", "find", "id"] {
        symlink(busybox, bin.join(tool)).unwrap();
    }
    fs::write(from.join("folder/file"), "1").unwrap();
    chown(from.join("folder/file"), Some(1_000), Some(1_001)).unwrap();
    symlink("file", from.join("folder/link")).unwrap();
    chown(&to, Some(NOBODY), Some(NOBODY)).unwrap();
    let path = format!("PATH={}; ", bin.display());
    let packed = as_nobody(&format!("{path}{PACK_NAMED}"), &[&from, Path::new("folder")]);
    assert!(packed.status.success(), "{packed:?}");
    let tar = root.path().join("a.tar");
    fs::write(&tar, &packed.stdout).unwrap();
    let unpacked = as_nobody(&format!("{path}{UNPACK_BELOW}"), &[&tar, &to]);
    assert!(unpacked.status.success(), "{unpacked:?}");
    let found = fs::metadata(to.join("folder/file")).unwrap();
    assert_eq!((found.uid(), found.gid()), (NOBODY, NOBODY));
    assert_eq!(fs::read_link(to.join("folder/link")).unwrap(), Path::new("file"));
    fs::write(from.join("folder/secret"), "2").unwrap();
    fs::set_permissions(from.join("folder/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let refused = as_nobody(PACK_NAMED, &[&from, Path::new("folder")]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "nothing is sent: {refused:?}");
}
