//! The keeper of one run of CRIU: a child of the launcher that makes the mounts for CRIU, runs it, and reports how it
//! ended.
//!
//! The keeper has its own mount namespace with a private `/tmp`, and with a `/run` that all runs share (CRIU caches
//! there what it has detected about the kernel). It continues when launcher and server die: an interrupted dump would
//! leave half-stopped processes, a complete one leaves them unchanged. The keeper makes no decisions; the server
//! decides whether a restored sandbox may run.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::dump_repair;
use super::mounts::{Handover, MountRequest, SharedMounts, attach_tmpfs, mapped_clone};
use super::protocol::{Criu, FIRST_HANDED, Rebuild, SAY, StepFailure, StepResult, Upper};
use super::serve::{user_namespace, whole_map};
use crate::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, CloneSide};

/// The folder with the parts of a restored sandbox, each under the name that the checkpoint has for it.
pub(crate) const RESTORE: &str = "/run/restore";

/// CRIU's working folder, in the keeper's mount namespace.
pub(crate) const WORK: &str = "/tmp";
/// The name of CRIU's log file there.
pub(crate) const LOG: &str = "criu.log";

/// The script that CRIU runs between its steps. For two actions the script asks the server, which answers when it has
/// done its part. Without an answer the restore is aborted: the script kills the restored processes, because CRIU only
/// logs a failure of the last step. It also kills CRIU and its helpers, because CRIU traces every thread by then and
/// would wait for the first process for ever. CRIU's scripts have only the first three descriptors, so the script opens
/// the keeper's pipes again.
const ACTION: &str = r#"#!/bin/sh
case $CRTOOLS_SCRIPT_ACTION in
setup-namespaces | pre-resume) ;;
*) exit 0 ;;
esac
if echo "$CRTOOLS_SCRIPT_ACTION $CRTOOLS_INIT_PID" >"$ATOLL_LINE/3" &&
  read -r answer <"$ATOLL_LINE/4" && [ "$answer" = ok ]; then exit 0; fi
kill -9 "$CRTOOLS_INIT_PID"
criu=$PPID
read -r name <"/proc/$criu/comm"
if [ "$name" = sh ]; then read -r _ _ _ criu _ <"/proc/$criu/stat"; fi
read -r helpers <"/proc/$criu/task/$criu/children"
kill -9 "$criu"
for helper in $helpers; do [ "$helper" = $$ ] || kill -9 "$helper"; done
exit 1
"#;

/// Above every descriptor number that is passed to CRIU.
const ABOVE_ALL: i32 = 40;

/// Starts a keeper and does not wait for it.
pub(super) fn begin(
    launcher: &OwnedFd,
    fixed: &SharedMounts,
    criu: &Criu,
    descriptors: Vec<OwnedFd>,
) -> Result<(), StepFailure> {
    // SAFETY: the launcher has one thread.
    match unsafe { sys::fork() }.step("fork")? {
        CloneSide::Parent { .. } => Ok(()),
        CloneSide::Child => {
            sys::close_for_good(launcher.as_fd());
            sys::reap_children_by_kernel(false);
            sys::unblock_signals();
            // A copy that is not overwritten when descriptors are passed on.
            let line =
                descriptors.first().and_then(|line| sys::duplicate_above(line.as_fd(), ABOVE_ALL).ok());
            let said = match keep(fixed, criu, &descriptors) {
                Ok(0) => "ended 0 ".to_owned(),
                Ok(code) => format!("ended {code} {}", complaint()),
                Err(failure) => format!("failed {failure}"),
            };
            if let Some(line) = line {
                // A newline within a message would start another message.
                let _ = fs::File::from(line).write_all((said.replace('\n', " ") + "\n").as_bytes());
            }
            sys::exit_now(0)
        }
    }
}

/// Runs CRIU; returns its exit code, or 128 plus the signal that ended it.
fn keep(fixed: &SharedMounts, criu: &Criu, descriptors: &[OwnedFd]) -> Result<i32, StepFailure> {
    // SAFETY: this process has one thread, so no other thread is affected by the new mount namespace.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.step("unshare mounts")?;
    let outside = criu.rebuild.iter().flat_map(|rebuild| &rebuild.mounts).filter(|one| one.is_from_outside());
    let handed = descriptors.len().saturating_sub(outside.count());
    let (descriptors, mounts) = descriptors.split_at(handed);
    let rebuilt = criu.rebuild.as_ref().map(|rebuild| Rebuilt::make(fixed, rebuild, mounts)).transpose()?;
    let run = rustix::mount::mount_bind(fixed.stage.join("run"), "/run");
    run.step("mount a place for CRIU's memory")?;
    let data = fixed.stage.parent().filter(|data| data.starts_with(WORK));
    let data =
        data.map(|at| clone_all(at).map(|clone| (at, clone))).transpose().step("clone the data folder")?;
    attach_tmpfs(Path::new(WORK), c"mode=1777").step("mount a place for CRIU's work")?;
    if let Some((at, clone)) = data {
        // The data folder is below the path that CRIU's working folder now covers.
        fs::create_dir_all(at).step("make a place for the data folder")?;
        move_mount(clone.as_fd(), "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .step("attach the data folder")?;
    }
    // The launcher has detached the host's `/dev`; these devices are enough.
    rustix::mount::mount_bind(fixed.stage.join("dev"), "/dev").step("mount devices")?;
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NOEXEC;
    rustix::mount::mount("devpts", "/dev/pts", "devpts", flags, c"newinstance").step("mount terminals")?;
    if let Some(rebuilt) = rebuilt {
        rebuilt.attach()?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    sys::plain_securebits().step("reset secure bits")?;
    hand_down(descriptors).step("hand descriptors down")?;
    let mut command = Command::new(&criu.program);
    command.args(&criu.arguments).env_clear().envs(criu.environment.iter().map(|(key, value)| (key, value)));
    command.env("ATOLL_LINE", format!("/proc/{}/fd", std::process::id()));
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    sys::adopt_orphans().step("become a reaper of orphans")?;
    if criu.rebuild.is_none() {
        spare_from_oom_killer();
    }
    let begun = wall_time();
    let status = command.status().step("run CRIU")?;
    if !status.success() {
        end_orphans();
    }
    if let (Some(rebuild), false) = (&criu.rebuild, status.success())
        && let Upper::Folder(layer) = &rebuild.rootfs.upper
    {
        remove_ghosts(layer, begun);
    }
    // A CRIU that was killed has not cleaned up, or an earlier one has not.
    let freezer = dump_freezer();
    let is_damaged = || status.signal().is_some() || !status.success() && dump_repair::is_needed(&freezer);
    if criu.rebuild.is_none() && is_damaged() {
        dump_repair::repair(&freezer);
    }
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// The folder of the sandbox's cgroup, as passed for a dump.
fn dump_freezer() -> PathBuf {
    format!("/proc/self/fd/{}", FIRST_HANDED + 1).into()
}

/// Protects CRIU from the OOM killer, because a CRIU that is killed in the middle of a dump leaves its code in the
/// processes. Best effort: it needs CAP_SYS_RESOURCE. Not used for a restore, whose processes would inherit the
/// setting; a restore is simply retried.
fn spare_from_oom_killer() {
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
}

/// Ends the leftovers of a failed CRIU: helpers that hold its images, and restored processes that had not entered their
/// cgroups. Both would wait for CRIU for ever.
fn end_orphans() {
    /// LIMIT: each try ends one generation of a process tree; killed processes are gone within milliseconds.
    const TRIES: u32 = 500;
    let own = format!("/proc/self/task/{}/children", std::process::id());
    for _ in 0..TRIES {
        let children = fs::read_to_string(&own).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        let mut left = false;
        for child in children.filter_map(rustix::process::Pid::from_raw) {
            left = true;
            let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG);
        }
        if !left {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// A detached clone of a folder with all mounts below it.
fn clone_all(at: &Path) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, at, flags)?)
}

/// The first errors in CRIU's log, as one line.
fn complaint() -> String {
    let log = fs::read(Path::new(WORK).join(LOG)).unwrap_or_default();
    errors(&String::from_utf8_lossy(&log))
}

fn errors(log: &str) -> String {
    /// LIMIT: the first errors name the cause, later ones are consequences.
    const ERRORS: usize = 3;
    const LENGTH: usize = 1_000;
    // These two messages also appear on healthy machines.
    let is_noise =
        |text: &str| text.contains("tun: Unable to create tun") || text.contains("setup RLIMIT_NOFILE");
    let found = log.lines().filter_map(|line| line.split_once("Error ").map(|(_, rest)| rest));
    let found: Vec<&str> = found.filter(|text| !is_noise(text)).take(ERRORS).collect();
    if found.is_empty() {
        "it did not say why".into()
    } else {
        found.join("; ").chars().take(LENGTH).collect()
    }
}

#[allow(clippy::disallowed_methods, reason = "it is compared with the times of files")]
fn wall_time() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

/// Removes files that an aborted restore made for open files without a name and did not unlink: the next restore would
/// fail because of them. During a restore only CRIU writes to the layer, so older files belong to the sandbox.
fn remove_ghosts(folder: &Path, begun: std::time::SystemTime) {
    /// LIMIT: file times may be one clock tick behind.
    const TICK: std::time::Duration = std::time::Duration::from_millis(20);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (Ok(about), name) = (entry.metadata(), entry.file_name()) else { continue };
        if about.is_dir() {
            remove_ghosts(&entry.path(), begun);
            continue;
        }
        let is_new = about.modified().is_ok_and(|at| at + TICK >= begun)
            || about.created().is_ok_and(|at| at + TICK >= begun);
        let name = name.to_string_lossy();
        if is_new && name.ends_with(".ghost") && name.contains(".cr.") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Duplicates the descriptors to the numbers at which CRIU and its scripts expect them.
fn hand_down(descriptors: &[OwnedFd]) -> io::Result<()> {
    let copies: Vec<OwnedFd> = descriptors
        .iter()
        .map(|descriptor| sys::duplicate_above(descriptor.as_fd(), ABOVE_ALL))
        .collect::<io::Result<_>>()?;
    for (number, copy) in (SAY..).zip(&copies) {
        sys::place_descriptor(copy.as_fd(), number)?;
    }
    Ok(())
}

/// The mounts of a restored sandbox, not attached yet.
struct Rebuilt<'a> {
    handover: Handover,
    images: OwnedFd,
    replaced: &'a [(String, Vec<u8>)],
}

impl<'a> Rebuilt<'a> {
    fn make(fixed: &SharedMounts, rebuild: &'a Rebuild, mounts: &[OwnedFd]) -> Result<Self, StepFailure> {
        let map = whole_map(rebuild.first_id);
        let users = user_namespace(rebuild.first_id, &(map.clone(), map))?;
        let handover = Handover::make(fixed, &MountRequest::to_rebuild(rebuild, mounts), users.as_fd())?;
        let attributes = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC;
        // CRIU opens the images as root of the sandbox.
        let images =
            mapped_clone(&rebuild.images, attributes, users.as_fd()).step("clone the images' folder")?;
        Ok(Self { handover, images, replaced: &rebuild.replaced })
    }

    fn attach(self) -> Result<(), StepFailure> {
        let at = Path::new(RESTORE);
        fs::create_dir_all(at).step("make a place for the tree")?;
        attach_tmpfs(at, c"mode=0755,size=1m").step("mount a place for the tree")?;
        for (name, mount) in
            self.handover.named().into_iter().chain([("images".to_owned(), self.images.as_fd())])
        {
            attach(mount, &at.join(name)).step("attach a part of the tree")?;
        }
        for (name, content) in self.replaced {
            let stand_in = at.join(name);
            fs::write(&stand_in, content).step("write an image")?;
            // Readable by root of the sandbox too: it contains no secret.
            fs::set_permissions(&stand_in, std::os::unix::fs::PermissionsExt::from_mode(0o644))
                .step("write an image")?;
            rustix::mount::mount_bind(&stand_in, at.join("images").join(name)).step("replace an image")?;
        }
        let mut script = fs::OpenOptions::new();
        let script = script.create_new(true).write(true).mode(0o755).open(at.join("action"));
        script.and_then(|mut file| file.write_all(ACTION.as_bytes())).step("write the action script")
    }
}

fn attach(mount: BorrowedFd<'_>, at: &Path) -> io::Result<()> {
    match FileType::from_raw_mode(rustix::fs::fstat(mount)?.st_mode) {
        FileType::Directory => fs::create_dir(at)?,
        _ => drop(fs::File::create_new(at)?),
    }
    Ok(move_mount(mount, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_errors_of_a_log_are_told() {
        let log = "(0.1) Warn x\n(0.1) Error (criu/tun.c:8): tun: Unable to create tun: y\n\
            (0.2) Error (criu/a.c:1): tty: no\n(0.3) Error (criu/b.c:2): so\n";
        assert_eq!(errors(log), "(criu/a.c:1): tty: no; (criu/b.c:2): so");
        assert_eq!(errors(""), "it did not say why");
    }
}
