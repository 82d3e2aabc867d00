//! Repairs the processes of a dump whose CRIU was killed.
//!
//! CRIU runs its own code inside every process. When CRIU's end of the socket closes, that code returns to where the
//! process was. It leaves behind:
//!
//! - its mapping (`/memfd:CRIUMFD`), which the next CRIU takes for the program's text and cannot write to, so that
//!   every later dump would fail;
//! - connections in repair mode, which neither send nor reply;
//! - for some microseconds, an instruction or a file name at the beginning of the program's text.
//!
//! A process in which CRIU was just running an injected system call ends with SIGTRAP, because only CRIU had its
//! registers. That is not repaired.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::tracee::Tracee;

/// The name of CRIU's mapping, and of the file behind it.
const CRIU_MEMORY: &str = "/memfd:CRIUMFD";
/// The bytes that CRIU writes into the text of a process: a syscall instruction, and the name of its file.
const INJECTED: usize = 16;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const FILE_NAME: &[u8] = b"CRIUMFD";
/// LIMIT: how often, every 5 ms, a process is checked that still executes CRIU's code.
const TRIES: u32 = 400;

/// Repairs all processes of a cgroup as far as possible. The cgroup is thawed for the repair and frozen again.
pub(super) fn repair(freezer: &Path) {
    set_frozen(freezer, false);
    let processes = processes(freezer);
    // The text first, because the processes run already.
    for pid in &processes {
        let _ = restore_text(*pid);
    }
    for pid in &processes {
        let _ = end_repair_mode(*pid);
        let _ = remove_code(*pid);
    }
    set_frozen(freezer, true);
}

/// Whether a process of a cgroup still contains CRIU's code.
pub(super) fn is_needed(freezer: &Path) -> bool {
    let has_code = |pid: i32| Mapping::of(pid).is_ok_and(|all| all.iter().any(Mapping::is_of_criu));
    processes(freezer).into_iter().any(has_code)
}

/// Requests the new state; the server waits until it is reached.
fn set_frozen(freezer: &Path, frozen: bool) {
    let v1 = freezer.join("freezer.state");
    let _ = if v1.exists() {
        fs::write(v1, if frozen { "FROZEN" } else { "THAWED" })
    } else {
        fs::write(freezer.join("cgroup.freeze"), if frozen { "1" } else { "0" })
    };
}

fn processes(freezer: &Path) -> Vec<i32> {
    let listed = fs::read_to_string(freezer.join("cgroup.procs")).unwrap_or_default();
    listed.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    rights: String,
    offset: u64,
    name: String,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?.to_owned();
        let offset = fields.next()?;
        let name = fields.nth(2).unwrap_or_default().trim_start().to_owned();
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        Some(Self { start: number(start)?, end: number(end)?, rights, offset: number(offset)?, name })
    }

    fn of(pid: i32) -> io::Result<Vec<Self>> {
        let text = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        Ok(text.lines().filter_map(Self::parse).collect())
    }

    fn is_of_criu(&self) -> bool {
        self.name.starts_with(CRIU_MEMORY)
    }

    /// Whether the mapping is the process's own code. `[vsyscall]`, the last entry, is an address of the kernel.
    fn is_text(&self) -> bool {
        self.rights.contains('x') && !self.is_of_criu() && self.name != "[vsyscall]"
    }
}

/// Restores the beginning of the first text mapping if CRIU has overwritten it.
fn restore_text(pid: i32) -> io::Result<()> {
    let Some(text) = Mapping::of(pid)?.into_iter().find(Mapping::is_text) else { return Ok(()) };
    let memory = fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let mut now = [0; INJECTED];
    memory.read_exact_at(&mut now, text.start)?;
    let mut before = [0; INJECTED];
    if text.name == "[vdso]" {
        // All processes have the same vdso.
        let own = Mapping::of(std::process::id().cast_signed())?;
        let own = own.into_iter().find(|own| own.name == "[vdso]").ok_or(io::ErrorKind::NotFound)?;
        fs::File::open("/proc/self/mem")?.read_exact_at(&mut before, own.start)?;
    } else if text.name.starts_with('/') {
        let file = fs::File::open(format!("/proc/{pid}/map_files/{:x}-{:x}", text.start, text.end))?;
        file.read_exact_at(&mut before, text.offset)?;
    } else {
        return Ok(());
    }
    if !has_injected(&now, &before) {
        return Ok(());
    }
    // A thread at this address has lost its registers. It ends now, at CRIU's own instruction, and not after a later
    // restore.
    let site = text.start..=text.start + INJECTED as u64;
    for _ in 0..TRIES {
        let threads = stop_all(pid)?;
        let stands_there = |thread: &Tracee| thread.registers().is_ok_and(|at| site.contains(&at.rip));
        if !threads.iter().any(stands_there) {
            return memory.write_all_at(&before, text.start);
        }
        drop(threads);
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn has_injected(now: &[u8; INJECTED], before: &[u8; INJECTED]) -> bool {
    let has = |at: usize, what: &[u8]| now[at..].starts_with(what) && !before[at..].starts_with(what);
    has(0, &SYSCALL) || has(8, FILE_NAME)
}

/// Ends the repair mode of connections, so that they send and reply again.
fn end_repair_mode(pid: i32) -> io::Result<()> {
    let process = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    for (number, target) in open_files(pid)? {
        if target.starts_with("socket:")
            && let Ok(socket) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())
            && crate::sys::tcp_repair(socket.as_fd()).unwrap_or(false)
        {
            crate::sys::end_tcp_repair(socket.as_fd())?;
        }
    }
    Ok(())
}

/// The descriptors of a process, and the target of each.
fn open_files(pid: i32) -> io::Result<Vec<(i32, String)>> {
    let about = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
    };
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().filter_map(about).collect())
}

/// Removes CRIU's code from a process when none of its threads executes it.
fn remove_code(pid: i32) -> io::Result<()> {
    for _ in 0..TRIES {
        let mappings = Mapping::of(pid)?;
        let is_of_criu = |target: &str| target.starts_with(CRIU_MEMORY);
        let files: Vec<i32> =
            open_files(pid)?.into_iter().filter(|(_, of)| is_of_criu(of)).map(|(number, _)| number).collect();
        let left: Vec<&Mapping> = mappings.iter().filter(|mapping| mapping.is_of_criu()).collect();
        if left.is_empty() && files.is_empty() {
            return Ok(());
        }
        let threads = stop_all(pid)?;
        let in_code = |at: u64| left.iter().any(|mapping| (mapping.start..mapping.end).contains(&at));
        let mut is_inside = false;
        for thread in &threads {
            is_inside |= in_code(thread.registers()?.rip);
        }
        if let Some(first) = threads.first().filter(|_| !is_inside) {
            let instruction = syscall_instruction(pid, &mappings)?;
            for mapping in &left {
                first.call(instruction, libc::SYS_munmap, [mapping.start, mapping.end - mapping.start])?;
            }
            for number in files {
                first.call(instruction, libc::SYS_close, [number.cast_unsigned().into(), 0])?;
            }
            return Ok(());
        }
        drop(threads);
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Stops every thread of a process.
fn stop_all(pid: i32) -> io::Result<Vec<Tracee>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut stopped = Vec::new();
    for tid in threads {
        match Tracee::stop(tid) {
            Ok(tracee) => stopped.push(tracee),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(stopped)
}

/// The address of a syscall instruction in the process.
fn syscall_instruction(pid: i32, mappings: &[Mapping]) -> io::Result<u64> {
    /// LIMIT: every program contains one, and so does the vdso.
    const LOOKED_AT: u64 = 16 << 20;
    let memory = fs::File::open(format!("/proc/{pid}/mem"))?;
    for text in mappings.iter().filter(|mapping| mapping.is_text()) {
        let length = usize::try_from((text.end - text.start).min(LOOKED_AT)).unwrap_or(0);
        let mut code = vec![0; length];
        if memory.read_exact_at(&mut code, text.start).is_ok()
            && let Some(at) = code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL)
        {
            return Ok(text.start + at as u64);
        }
    }
    Err(io::Error::other("the process has no instruction for system calls"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn mappings_of_criu_are_told_from_the_process_s_own() {
        let criu = "7f831c476000-7f831c47b000 r-xs 00000000 00:01 50203                      /memfd:CRIUMFD (deleted)";
        let text = "7f831c5a4000-7f831c822000 r-xp 000c7000 00:79 3                          /.atoll/a gent";
        let kernel = "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]";
        let [criu, text, kernel] = [criu, text, kernel].map(|line| Mapping::parse(line).unwrap());
        assert!(criu.is_of_criu() && !criu.is_text() && !kernel.is_text());
        assert!(text.is_text() && !text.is_of_criu());
        assert_eq!((text.offset, text.name.as_str()), (0xc7000, "/.atoll/a gent"));
    }

    #[test]
    fn only_what_criu_writes_is_put_back() {
        let before = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0";
        let mut now = before;
        assert!(!has_injected(&now, &before));
        now[3] = 0;
        assert!(!has_injected(&now, &before), "a debugger's");
        now[8..15].copy_from_slice(FILE_NAME);
        assert!(has_injected(&now, &before));
        now = before;
        now[..2].copy_from_slice(&SYSCALL);
        assert!(has_injected(&now, &before));
    }

    /// System calls that are injected into another process change nothing in it except for their effect.
    #[test]
    fn a_process_is_freed_of_criu_s_mapping_and_runs_on() {
        let memory = rustix::fs::memfd_create("CRIUMFD", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&memory, 8192).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut victim = Victim::begin(&memory, &reader);
        drop(reader);
        let has_code = |pid: i32| Mapping::of(pid).unwrap().iter().any(Mapping::is_of_criu);
        assert!(has_code(victim.0));
        remove_code(victim.0).unwrap();
        assert!(!has_code(victim.0));
        assert!(!open_files(victim.0).unwrap().iter().any(|(_, of)| of.starts_with(CRIU_MEMORY)));
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(victim.end(), 7, "it came back from the read that it waited in");
    }

    struct Victim(i32);

    impl Victim {
        fn begin(memory: &OwnedFd, line: &OwnedFd) -> Self {
            use std::os::fd::AsRawFd as _;
            let (memory, line) = (memory.as_raw_fd(), line.as_raw_fd());
            // SAFETY: the child calls nothing that takes a lock.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: plain system calls on objects of the child.
                unsafe {
                    let rights = libc::PROT_READ | libc::PROT_EXEC;
                    libc::mmap(std::ptr::null_mut(), 8192, rights, libc::MAP_SHARED, memory, 0);
                    let mut byte = 0u8;
                    let read = libc::read(line, (&raw mut byte).cast(), 1);
                    libc::_exit(if read == 1 && byte == b'x' { 7 } else { 1 })
                }
            }
            let waits =
                || fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|at| at.starts_with("0 "));
            while !waits() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Self(pid)
        }

        fn end(&mut self) -> i32 {
            let mut status = 0;
            // SAFETY: `status` lives through the call.
            unsafe { libc::waitpid(self.0, &raw mut status, 0) };
            libc::WEXITSTATUS(status)
        }
    }
}
