//! The launcher's mounts: those that it prepares once ([`SharedMounts`]) and those that it makes for each sandbox
//! ([`Handover`]).
//!
//! Layers are separate clones, mapped to the sandbox's ids, so that files on disk keep canonical ids. On kernels from
//! 6.15 none of them is ever attached; on older kernels (`legacy`) they are attached in the launcher's private mount
//! namespace while the overlay is mounted by path.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
    move_mount, open_tree,
};

use super::protocol::{
    BOOT_PART, Hello, MAP, MountSpec, Mounted, Rebuild, Rootfs, Spawn, StepFailure, StepResult, Upper,
    mount_part,
};
use super::serve::user_namespace;
use crate::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY};

/// Mounts that all sandboxes share.
pub(super) struct SharedMounts {
    pub(super) stage: PathBuf,
    agent: PathBuf,
    legacy: bool,
}

impl SharedMounts {
    /// Makes the launcher's mount namespace private and small, and fills `stage` with the device folder and the empty
    /// folder.
    pub(super) fn prepare(hello: &Hello) -> Result<Self, StepFailure> {
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .step("make mounts private")?;
        let needed: Vec<&Path> =
            hello.needed.iter().map(PathBuf::as_path).chain([&*hello.stage, &*hello.agent]).collect();
        trim(&needed).step("let go of other mounts")?;
        rustix::process::umask(Mode::empty());
        let stage = hello.stage.clone();
        attach_tmpfs(&stage, c"mode=0755,size=1m").step("mount the stage")?;
        for name in ["root", "dev", "empty", "layers", "restore", "run", BOOT_PART, AGENTS] {
            fs::create_dir(stage.join(name)).step("make the stage")?;
        }
        // LIMIT: a page for each sandbox.
        attach_tmpfs(&stage.join(BOOT_PART), c"mode=0755,size=256m").step("mount the folder of boot ids")?;
        attach_tmpfs(&stage.join(AGENTS), c"mode=0755,size=256m").step("mount the place for agents")?;
        fill_dev(&stage.join("dev")).step("make the device folder")?;
        // A first process starts in its own copy of this folder, whatever the permissions of the folders above it.
        std::env::set_current_dir(stage.join("root")).step("enter the stage")?;
        Ok(Self { stage, agent: hello.agent.clone(), legacy: hello.legacy })
    }
}

/// A folder of the stage with a copy of each agent in use.
const AGENTS: &str = "agents";

impl SharedMounts {
    /// The folder of an agent, on a separate file system: a sandbox can read the source path of a mount, and a folder
    /// of DATA would reveal the host's path.
    fn agent(&self, folder: &Path) -> io::Result<PathBuf> {
        let name = folder.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let at = self.stage.join(AGENTS).join(name);
        if at.exists() {
            return Ok(at);
        }
        // Restores copy too, each in its own process: the first one puts its copy in place, the others use that copy.
        let draft = self.stage.join(AGENTS).join(format!(".{}", std::process::id()));
        let _ = fs::remove_dir_all(&draft);
        copy_folder(folder, &draft)?;
        if let Err(cause) = fs::rename(&draft, &at) {
            let _ = fs::remove_dir_all(&draft);
            if !at.exists() {
                return Err(cause);
            }
        }
        Ok(at)
    }
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Detaches, in this namespace, every mount that leads to none of `needed`. Otherwise the launcher would keep file
/// systems in use that the host unmounts, and every sandbox would start with a copy of all of them.
fn trim(needed: &[&Path]) -> io::Result<()> {
    let points = atoll_storage::mountinfo::read()?;
    for point in points.iter().rev().map(|mount| mount.point.as_path()) {
        // A mount below a needed path is kept: an operator may have the templates on a separate disk. Below `/usr` only
        // the files of `/usr` itself are shown, so no mount there is needed.
        let on_the_way = needed
            .iter()
            .any(|path| path.starts_with(point) || (point.starts_with(path) && *path != Path::new("/usr")));
        if !on_the_way && point != Path::new("/proc") && point != Path::new("/sys") {
            // It may have been detached together with its parent.
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        }
    }
    Ok(())
}

pub(super) fn attach_tmpfs(at: &Path, options: &std::ffi::CStr) -> io::Result<()> {
    Ok(rustix::mount::mount("tmpfs", at, "tmpfs", rustix::mount::MountFlags::NOSUID, options)?)
}

/// The devices of every sandbox. They are made once here. Sandboxes see the folder read-only, and the devices cgroup
/// allows them to open the nodes.
fn fill_dev(at: &Path) -> io::Result<()> {
    attach_tmpfs(at, c"mode=0755,size=64k")?;
    let nodes =
        [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
    for (name, major, minor) in nodes {
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(
            CWD,
            at.join(name),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            device,
        )?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        std::os::unix::fs::symlink(target, at.join(name))?;
    }
    fs::create_dir(at.join("pts"))?;
    fs::create_dir(at.join("shm"))
}

/// The name of the sandbox's own layer among the attached layers.
const CHANGES: &str = "changes";

/// A request for the mounts of one sandbox.
pub(super) struct MountRequest<'a> {
    rootfs: &'a Rootfs,
    first_id: u32,
    sudo: bool,
    /// An agent other than the launcher's own.
    agent: Option<&'a Path>,
    mounts: &'a [MountSpec],
    /// One descriptor for each mount from outside.
    descriptors: &'a [OwnedFd],
    boot_id: Option<&'a str>,
}

impl<'a> MountRequest<'a> {
    pub(super) fn to_spawn(spawn: &'a Spawn, descriptors: &'a [OwnedFd]) -> Self {
        Self {
            rootfs: &spawn.rootfs,
            first_id: spawn.first_id,
            sudo: spawn.sudo,
            agent: None,
            mounts: &spawn.mounts,
            descriptors,
            boot_id: Some(&spawn.boot_id),
        }
    }

    pub(super) fn to_rebuild(rebuild: &'a Rebuild, descriptors: &'a [OwnedFd]) -> Self {
        Self {
            rootfs: &rebuild.rootfs,
            first_id: rebuild.first_id,
            sudo: rebuild.sudo,
            agent: Some(&rebuild.agent),
            mounts: &rebuild.mounts,
            descriptors,
            boot_id: rebuild.boot_id.as_deref(),
        }
    }
}

/// The mounts of one sandbox, detached, ready to be passed to its first process.
pub(super) struct Handover {
    root: OwnedFd,
    agent: OwnedFd,
    dev: OwnedFd,
    empty: OwnedFd,
    /// The file with the boot id.
    boot: Option<OwnedFd>,
    usr: Option<OwnedFd>,
    /// Mounts from outside, in order.
    mounts: Vec<OwnedFd>,
    /// Held only to close them later.
    _layers: Vec<OwnedFd>,
}

impl Handover {
    pub(super) fn make(
        fixed: &SharedMounts,
        ask: &MountRequest<'_>,
        users: BorrowedFd<'_>,
    ) -> Result<Self, StepFailure> {
        let read_only = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV;
        let agent = fixed.agent(ask.agent.unwrap_or(&fixed.agent)).step("copy the agent's folder")?;
        let agent = mapped_clone(&agent, read_only, users).step("clone the agent's folder")?;
        let dev = mapped_clone(&fixed.stage.join("dev"), ATTR_RDONLY | ATTR_NOSUID | ATTR_NOEXEC, users)
            .step("clone the device folder")?;
        let empty = mapped_clone(&fixed.stage.join("empty"), read_only | ATTR_NOEXEC, users)
            .step("clone the empty folder")?;
        let boot = ask.boot_id.map(|id| boot_file(fixed, ask.first_id, id, users)).transpose();
        let boot = boot.step("make the boot id")?;
        let mut layers = Vec::new();
        let changes = open_upper(ask.rootfs, ask.first_id, users)?;
        // Both overlays write to this layer. It is attached, because old kernels cannot clone a mount that is not
        // attached.
        let mut attached = AttachedLayers::default();
        if fixed.legacy {
            attached.add(fixed, changes.as_fd(), CHANGES).step("attach the sandbox's layer")?;
        }
        let mut overlay = |lower: &[PathBuf], names: (&str, &str)| {
            let attributes = if ask.sudo { ATTR_NODEV } else { ATTR_NODEV | ATTR_NOSUID };
            let plan = Overlay { fixed, ask, users, changes: changes.as_fd(), names, attributes };
            plan.mount(lower, &mut layers)
        };
        let root = overlay(&ask.rootfs.layers, ("upper", "work"))?;
        let usr = match &ask.rootfs.usr_layers[..] {
            [] => None,
            lower => Some(overlay(lower, ("usr-upper", "usr-work"))?),
        };
        drop(attached);
        layers.push(changes);
        let mounts = map_mounts(ask, users)?;
        Ok(Self { root, agent, dev, empty, boot, usr, mounts, _layers: layers })
    }

    /// The mounts, each with its name in a checkpoint.
    pub(super) fn named(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let mut all = vec![
            ("root".to_owned(), self.root.as_fd()),
            ("agent".to_owned(), self.agent.as_fd()),
            ("dev".to_owned(), self.dev.as_fd()),
            ("empty".to_owned(), self.empty.as_fd()),
        ];
        all.extend(self.boot.as_ref().map(|boot| (BOOT_PART.to_owned(), boot.as_fd())));
        all.extend(self.usr.as_ref().map(|usr| ("usr".to_owned(), usr.as_fd())));
        all.extend(self.mounts.iter().enumerate().map(|(index, mount)| (mount_part(index), mount.as_fd())));
        all
    }

    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.root.as_fd(), self.agent.as_fd(), self.dev.as_fd(), self.empty.as_fd()];
        all.extend(self.boot.as_ref().map(AsFd::as_fd));
        all.extend(self.usr.as_ref().map(AsFd::as_fd));
        all.extend(self.mounts.iter().map(AsFd::as_fd));
        all
    }
}

/// Maps the received mounts to the ids of the sandbox, and sets their restrictions (nosuid, nodev, read-only). The
/// server opened and cloned them, so no path of a tenant is resolved here.
fn map_mounts(ask: &MountRequest<'_>, users: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, StepFailure> {
    let outside = ask.mounts.iter().filter(|mount| mount.is_from_outside());
    let mut mapped = Vec::new();
    for (mount, descriptor) in outside.zip(ask.descriptors) {
        let plain = ATTR_NOSUID | ATTR_NODEV;
        let attributes = if mount.read_only { plain | ATTR_RDONLY } else { plain };
        let step = format!("{MAP}{}", mount.at);
        let own;
        let users = match mount.what {
            Mounted::Folder { owner, seen_as } => {
                let map = |host: u32, inside: u32| format!("{host} {} 1", ask.first_id + inside);
                let maps = (map(owner.0, seen_as.0), map(owner.1, seen_as.1));
                own = user_namespace(ask.first_id, &maps)?;
                own.as_fd()
            }
            Mounted::Volume | Mounted::Memory { .. } => users,
        };
        sys::mount_setattr(descriptor.as_fd(), attributes, Some(users)).step(&step)?;
        mapped.push(descriptor.try_clone().step("copy a descriptor")?);
    }
    Ok(mapped)
}

/// A read-only file with a boot id. Its name is the first id of the sandbox's range, which is unique and is reused only
/// when this sandbox is gone. So there are never more files than ranges, and no cleanup is needed.
fn boot_file(fixed: &SharedMounts, first_id: u32, id: &str, users: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = fixed.stage.join(BOOT_PART).join(first_id.to_string());
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path)?;
    file.write_all(format!("{id}\n").as_bytes())?;
    mapped_clone(&path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC, users)
}

/// A detached clone of the mount at `path`, with ids mapped by `users`.
pub(super) fn mapped_clone(path: &Path, attributes: u64, users: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, path, flags)?;
    sys::mount_setattr(mount.as_fd(), attributes, Some(users))?;
    Ok(mount)
}

/// The folder with `upper` and `work`, mapped for the sandbox.
fn open_upper(rootfs: &Rootfs, first_id: u32, users: BorrowedFd<'_>) -> Result<OwnedFd, StepFailure> {
    match &rootfs.upper {
        Upper::Folder(path) => mapped_clone(path, ATTR_NODEV, users).step("clone the sandbox's layer"),
        Upper::Tmpfs { bytes, inodes } => {
            memory_layer(*bytes, *inodes, first_id, !rootfs.usr_layers.is_empty())
                .step("make a layer in memory")
        }
    }
}

/// A tmpfs ends with its instance, so its files have the sandbox's own ids and no map is needed.
fn memory_layer(bytes: u64, inodes: u64, first_id: u32, with_usr: bool) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in
        [("size", bytes.to_string()), ("nr_inodes", inodes.to_string()), ("mode", "0755".to_owned())]
    {
        fsconfig_set_string(context.as_fd(), key, value)?;
    }
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)?;
    let names: &[&str] =
        if with_usr { &["upper", "work", "usr-upper", "usr-work"] } else { &["upper", "work"] };
    for name in names {
        rustix::fs::mkdirat(&mount, *name, Mode::from_raw_mode(0o755))?;
        let owner = (rustix::fs::Uid::from_raw(first_id), rustix::fs::Gid::from_raw(first_id));
        rustix::fs::chownat(
            &mount,
            *name,
            Some(owner.0),
            Some(owner.1),
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )?;
    }
    Ok(mount)
}

/// One overlay to be mounted.
struct Overlay<'a> {
    fixed: &'a SharedMounts,
    ask: &'a MountRequest<'a>,
    users: BorrowedFd<'a>,
    changes: BorrowedFd<'a>,
    names: (&'a str, &'a str),
    attributes: u64,
}

impl Overlay<'_> {
    fn mount(&self, lower: &[PathBuf], layers: &mut Vec<OwnedFd>) -> Result<OwnedFd, StepFailure> {
        let lower = lower
            .iter()
            .map(|path| mapped_clone(path, ATTR_RDONLY, self.users).step("clone a template layer"))
            .collect::<Result<Vec<_>, _>>()?;
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step("open an overlay")?;
        let attached = if self.fixed.legacy {
            Some(self.name_by_path(&context, &lower).step("name the overlay's layers by path")?)
        } else {
            self.name_by_descriptor(&context, &lower).step("name the overlay's layers")?;
            None
        };
        // Set explicitly, whatever the kernel's defaults are: each layer must be complete in itself, because it is
        // captured, copied and packed without the layers below. As a result a moved folder is copied, as `mv` does
        // between disks.
        for (key, value) in [("metacopy", "off"), ("redirect_dir", "follow"), ("index", "off")] {
            fsconfig_set_string(context.as_fd(), key, value).step("set up the overlay")?;
        }
        if self.ask.rootfs.volatile {
            fsconfig_set_flag(context.as_fd(), "volatile").step("make the overlay volatile")?;
        }
        // The overlay uses the file-system ids of its mounter. The sandbox's user namespace has no id 0 of the host, so
        // with id 0 the overlay could not write to its work folder and would silently be read-only.
        sys::with_fs_ids(self.ask.first_id, || fsconfig_create(context.as_fd())).step("mount the overlay")?;
        let attributes = MountAttrFlags::from_bits_retain(u32::try_from(self.attributes).unwrap_or(0));
        let root =
            fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).step("take the overlay")?;
        drop(attached);
        let flags = rustix::fs::fstatvfs(&root).step("inspect the overlay")?.f_flag;
        if flags.contains(StatVfsMountFlags::RDONLY) {
            return Err(StepFailure {
                step: "check that the overlay can be written".into(),
                errno: libc::EROFS,
            });
        }
        layers.extend(lower);
        Ok(root)
    }

    fn name_by_descriptor(&self, context: &OwnedFd, lower: &[OwnedFd]) -> io::Result<()> {
        for layer in lower {
            fsconfig_set_fd(context.as_fd(), "lowerdir+", layer.as_fd())?;
        }
        for (key, name) in [("upperdir", self.names.0), ("workdir", self.names.1)] {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(self.changes, name, flags, Mode::empty())?;
            fsconfig_set_fd(context.as_fd(), key, folder.as_fd())?;
        }
        Ok(())
    }

    fn name_by_path(&self, context: &OwnedFd, lower: &[OwnedFd]) -> io::Result<AttachedLayers> {
        let mut attached = AttachedLayers::default();
        let mut names = Vec::new();
        for (index, layer) in lower.iter().enumerate() {
            names.push(index.to_string());
            attached.add(self.fixed, layer.as_fd(), &index.to_string())?;
        }
        // The kernel accepts at most 255 bytes for all layers, so they are named relative to their folder. The kernel
        // resolves the names at the latest when the overlay is created.
        attached.stay_in(&self.fixed.stage)?;
        let changes = Path::new(CHANGES);
        fsconfig_set_string(context.as_fd(), "lowerdir", names.join(":"))?;
        fsconfig_set_string(context.as_fd(), "upperdir", changes.join(self.names.0))?;
        fsconfig_set_string(context.as_fd(), "workdir", changes.join(self.names.1))?;
        Ok(attached)
    }
}

/// Layers that are attached during the mount.
#[derive(Default)]
struct AttachedLayers {
    points: Vec<PathBuf>,
    /// The previous working directory.
    left: Option<PathBuf>,
}

impl AttachedLayers {
    fn add(&mut self, fixed: &SharedMounts, mount: BorrowedFd<'_>, name: &str) -> io::Result<PathBuf> {
        let at = fixed.stage.join("layers").join(name);
        fs::create_dir_all(&at)?;
        move_mount(mount, "", CWD, &at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        self.points.push(at.clone());
        Ok(at)
    }

    /// Changes to the folder with the layers until this is dropped.
    fn stay_in(&mut self, stage: &Path) -> io::Result<()> {
        std::env::set_current_dir(stage.join("layers"))?;
        self.left = Some(stage.join("root"));
        Ok(())
    }
}

impl Drop for AttachedLayers {
    fn drop(&mut self) {
        if let Some(left) = &self.left
            && std::env::set_current_dir(left).is_err()
        {
            // A first process would start in the wrong folder.
            std::process::abort();
        }
        for point in self.points.iter().rev() {
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        }
    }
}
