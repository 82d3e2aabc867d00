//! The launcher process: its start, and its loop over requests until the server is gone.
//!
//! It never waits for a first process and never writes into a sandbox's files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use atoll_cgroup::CgroupEntry;

use super::child::{self, ChildContext};
use super::mounts::{Handover, MountRequest, SharedMounts};
use super::protocol::{FirstProcessRequest, Hello, Reply, Request, Spawn, StepFailure, StepResult, Times};
use super::{keeper, wire};
use crate::seccomp::FilterVariant;
use crate::sys::{self, CloneSide};

/// Runs a launcher on the socket at standard input. Returns when the server is gone.
///
/// Call it first in `main`: the process must have one thread only.
pub fn main() -> io::Result<()> {
    match run() {
        // The server went away while a reply was being sent.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(())
        }
        outcome => outcome,
    }
}

fn run() -> io::Result<()> {
    let socket = sys::duplicate_above(io::stdin().as_fd(), 10)?;
    let null = std::fs::File::open("/dev/null")?;
    sys::place_descriptor(null.as_fd(), 0)?;
    let mut buffer = vec![0; wire::MESSAGE_MAX];
    let Some((length, _)) = wire::receive(&socket, &mut buffer)? else { return Ok(()) };
    let hello: Hello = serde_json::from_slice(&buffer[..length])?;
    let fixed = match start(&hello) {
        Ok(fixed) => fixed,
        Err(failure) => return reply(&socket, &Reply::Failed { id: 0, failure }, &[]),
    };
    reply(&socket, &Reply::Ready, &[])?;
    while let Some((length, descriptors)) = wire::receive(&socket, &mut buffer)? {
        match serde_json::from_slice(&buffer[..length])? {
            Request::Spawn(spawn) => serve(&socket, &fixed, &spawn, descriptors)?,
            Request::Criu(criu) => {
                let begun = keeper::begin(&socket, &fixed, &criu, descriptors);
                let answer = match begun {
                    Ok(()) => Reply::Begun { id: criu.id },
                    Err(failure) => Reply::Failed { id: criu.id, failure },
                };
                reply(&socket, &answer, &[])?;
            }
        }
    }
    Ok(())
}

fn start(hello: &Hello) -> Result<SharedMounts, StepFailure> {
    sys::keep_capabilities_over_setuid().step("set secure bits")?;
    sys::reap_children_by_kernel(true);
    // CRIU leaves a restored first process behind; the launcher becomes its parent and reaps it.
    sys::adopt_orphans().step("become a reaper of orphans")?;
    // SAFETY: this process has one thread, so no other thread is affected by the new mount namespace.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.step("unshare mounts")?;
    for variant in FilterVariant::ALL {
        let _ = crate::seccomp::compile(variant);
    }
    SharedMounts::prepare(hello)
}

fn reply(socket: &OwnedFd, reply: &Reply, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    wire::send(socket, &serde_json::to_vec(reply)?, descriptors)
}

fn serve(socket: &OwnedFd, fixed: &SharedMounts, spawn: &Spawn, descriptors: Vec<OwnedFd>) -> io::Result<()> {
    let answer = match launch(socket, fixed, spawn, descriptors) {
        Ok(times) => Reply::Mounted { id: spawn.id, times },
        Err(failure) => Reply::Failed { id: spawn.id, failure },
    };
    reply(socket, &answer, &[])
}

/// Clones, passes the process to the server, then makes its mounts while the server makes its network.
fn launch(
    socket: &OwnedFd,
    fixed: &SharedMounts,
    spawn: &Spawn,
    descriptors: Vec<OwnedFd>,
) -> Result<Times, StepFailure> {
    let mut watch = StepTimer::new();
    let mut descriptors = descriptors.into_iter();
    let token =
        descriptors.next().ok_or(io::Error::from(io::ErrorKind::InvalidInput)).step("take the token")?;
    let outside = spawn.mounts.iter().filter(|mount| mount.is_from_outside()).count();
    let mounts: Vec<OwnedFd> = descriptors.by_ref().take(outside).collect();
    let cgroups: Vec<OwnedFd> = descriptors.collect();
    let (ours, theirs) = wire::pair().step("make the control socket")?;
    let born_in = match spawn.cgroup {
        CgroupEntry::Tasks => None,
        CgroupEntry::Born => cgroups.first().map(AsFd::as_fd),
    };
    // SAFETY: the launcher has one thread and has set its secure bits at the start.
    let (pid, pidfd) = match unsafe { sys::clone_into_namespaces(born_in, spawn.first_id) }.step("clone3")? {
        CloneSide::Child => {
            // The child keeps its own end only: with the other end open it would never notice the death of the
            // launcher.
            drop(ours);
            let tasks = match spawn.cgroup {
                CgroupEntry::Tasks => cgroups,
                CgroupEntry::Born => Vec::new(),
            };
            child::run(ChildContext { spawn, launcher: socket.as_fd(), control: theirs, token, tasks })
        }
        CloneSide::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop(theirs);
    watch.lap("clone3");
    let made = map_ids(pid, spawn.first_id).and_then(|namespaces| {
        watch.lap("id maps");
        let (_, net) = &namespaces;
        reply(socket, &Reply::Spawned { id: spawn.id, pid }, &[pidfd.as_fd(), net.as_fd(), ours.as_fd()])
            .step("tell the server")?;
        let handover = Handover::make(fixed, &MountRequest::to_spawn(spawn, &mounts), namespaces.0.as_fd())?;
        watch.lap("mounts");
        let tell = serde_json::to_vec(&FirstProcessRequest::Mounts)
            .map_err(io::Error::from)
            .step("write a message")?;
        wire::send(&ours, &tell, &handover.descriptors()).step("hand the mounts over")?;
        Ok(handover)
    });
    match made {
        Ok(handover) => {
            watch.lap("hand over");
            // Closing a detached mount waits for the kernel, so it is done after the child has everything.
            drop(handover);
            Ok(watch.times)
        }
        Err(failure) => {
            // The process has nothing yet and waits for its mounts.
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            Err(failure)
        }
    }
}

/// Gives the process its ids; returns its user and network namespaces.
fn map_ids(pid: i32, first_id: u32) -> Result<(OwnedFd, OwnedFd), StepFailure> {
    let users = map_users(pid, first_id)?;
    let net = std::fs::File::open(format!("/proc/{pid}/ns/net")).map(OwnedFd::from);
    Ok((users, net.step("open the network namespace")?))
}

fn map_users(pid: i32, first_id: u32) -> Result<OwnedFd, StepFailure> {
    let map = whole_map(first_id);
    write_maps(pid, (&map, &map))
}

/// The id map of a sandbox, equal for users and groups.
pub(super) fn whole_map(first_id: u32) -> String {
    format!("0 {first_id} {}", atoll_instances::IDS_PER_SANDBOX)
}

/// Writes the user and group maps of the process; returns its user namespace.
fn write_maps(pid: i32, (users, groups): (&str, &str)) -> Result<OwnedFd, StepFailure> {
    std::fs::write(format!("/proc/{pid}/uid_map"), users).step("write the uid map")?;
    std::fs::write(format!("/proc/{pid}/gid_map"), groups).step("write the gid map")?;
    std::fs::File::open(format!("/proc/{pid}/ns/user")).map(OwnedFd::from).step("open the user namespace")
}

/// A user namespace with these maps that exists only through its descriptor.
pub(super) fn user_namespace(owner: u32, maps: &(String, String)) -> Result<OwnedFd, StepFailure> {
    // SAFETY: launcher and keeper have one thread; both have the secure bits that the launcher set.
    match unsafe { sys::clone_into_users(owner) }.step("make a user namespace")? {
        CloneSide::Child => sys::wait_for_ever(),
        CloneSide::Parent { pid, pidfd } => {
            let users = write_maps(pid, (&maps.0, &maps.1));
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            users
        }
    }
}

/// Measures the time of steps.
pub(super) struct StepTimer {
    last: Instant,
    pub(super) times: Times,
}

impl StepTimer {
    pub(super) fn new() -> Self {
        Self { last: Instant::now(), times: Times::with_capacity(12) }
    }

    pub(super) fn lap(&mut self, step: &str) {
        let now = Instant::now();
        let took = u32::try_from((now - self.last).as_micros()).unwrap_or(u32::MAX);
        self.times.push((step.to_owned(), took));
        self.last = now;
    }
}
