//! Makes a child from a plan: pipes or a terminal, fork, and in the child everything up to execve.
//!
//! The child of a threaded process may only make plain system calls, so all memory that it needs is prepared before. It
//! is a real fork, not a vfork: a process of the sandbox could stop a child that shares the agent's memory, and with it
//! the agent. An error in the child is reported through a close-on-exec pipe as (step, errno); if the pipe closes
//! without a report, the program runs.

use std::ffi::{CStr, CString, c_char};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::OpenptFlags;

use super::Plan;
use crate::error::AgentError;

/// The descriptor limit for children: the one that the agent was started with. Set once by `main`.
pub(crate) static CHILD_NOFILE: OnceLock<libc::rlimit> = OnceLock::new();

/// A started child whose exec result is not known yet.
pub(super) struct Child {
    pub(super) pid: u32,
    /// Reports why the program could not be executed, or closes.
    pub(super) verdict: OwnedFd,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) terminal: Option<OwnedFd>,
}

/// The step of the child that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SpawnStep {
    Session = 1,
    Stdio = 2,
    Identity = 3,
    Cwd = 4,
    Exec = 5,
}

impl SpawnStep {
    pub(super) fn from_raw(raw: u8) -> Self {
        match raw {
            1 => Self::Session,
            2 => Self::Stdio,
            3 => Self::Identity,
            4 => Self::Cwd,
            _ => Self::Exec,
        }
    }
}

pub(super) fn spawn(plan: &Plan) -> Result<Child, AgentError> {
    let image = Image::new(plan)?;
    let wires = StdioPipes::open(plan).map_err(|errno| AgentError::from_errno(errno, "start"))?;
    let (verdict, report) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|errno| AgentError::from_errno(errno, "start"))?;
    let task = Task {
        image: &image,
        stdio: wires.child_side(),
        terminal: plan.pty.is_some(),
        report: report.as_raw_fd(),
        nofile: CHILD_NOFILE.get().copied(),
    };
    // SAFETY: a plain fork (SIGCHLD only, no shared memory, same stack). The child runs only `Task::run`, which makes
    // system calls on memory prepared above and never returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD as libc::c_ulong, 0, 0, 0, 0) };
    if pid == 0 {
        task.run();
    }
    let Some(pid) = u32::try_from(pid).ok().filter(|pid| *pid > 0) else {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN);
        return Err(AgentError::from_errno(errno, "start"));
    };
    Ok(wires.into_child(pid, verdict))
}

/// The agent's and the child's ends of stdio.
struct StdioPipes {
    stdin: (Option<OwnedFd>, OwnedFd),
    stdout: Option<(OwnedFd, OwnedFd)>,
    stderr: Option<(OwnedFd, OwnedFd)>,
    terminal: Option<OwnedFd>,
}

impl StdioPipes {
    fn open(plan: &Plan) -> Result<Self, Errno> {
        match plan.pty {
            Some(size) => Self::terminal(plan, size.into()),
            None => Self::pipes(plan.stdin),
        }
    }

    fn pipes(stdin: bool) -> Result<Self, Errno> {
        let stdin = if stdin {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            (Some(ours), theirs)
        } else {
            let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            (None, null)
        };
        let output = || {
            let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            Ok::<_, Errno>((ours, theirs))
        };
        Ok(Self { stdin, stdout: Some(output()?), stderr: Some(output()?), terminal: None })
    }

    fn terminal(plan: &Plan, size: rustix::termios::Winsize) -> Result<Self, Errno> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags)?;
        rustix::pty::unlockpt(&ours)?;
        // By descriptor, not by name: the sandbox controls the content of /dev/pts.
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
        rustix::termios::tcsetwinsize(&ours, size)?;
        // Programs like script and tmux reopen their terminal by name, so it belongs to the user.
        let ids = &plan.user.ids;
        let _ = rustix::fs::fchown(
            &theirs,
            Some(rustix::fs::Uid::from_raw(ids.uid)),
            Some(rustix::fs::Gid::from_raw(ids.gid)),
        );
        let _ = rustix::fs::fchmod(&theirs, Mode::from_raw_mode(0o620));
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok(Self { stdin: (None, theirs), stdout: None, stderr: None, terminal: Some(ours) })
    }

    fn child_side(&self) -> [RawFd; 3] {
        let stdin = self.stdin.1.as_raw_fd();
        let side =
            |wire: &Option<(OwnedFd, OwnedFd)>| wire.as_ref().map_or(stdin, |(_, theirs)| theirs.as_raw_fd());
        [stdin, side(&self.stdout), side(&self.stderr)]
    }

    fn into_child(self, pid: u32, verdict: OwnedFd) -> Child {
        let ours = |wire: Option<(OwnedFd, OwnedFd)>| wire.map(|(ours, _)| ours);
        let (stdout, stderr) = (ours(self.stdout), ours(self.stderr));
        Child { pid, verdict, stdin: self.stdin.0, stdout, stderr, terminal: self.terminal }
    }
}

/// The arguments of execve in their final form. The vectors own the memory that the pointer arrays point to.
struct Image {
    candidates: Vec<CString>,
    _strings: Vec<CString>,
    argv: Vec<*const c_char>,
    /// As `argv`, for the sh that replaces a missing bash: a multi-call program checks the first word.
    sh_argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    cwd: CString,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// The ids are those of the agent and stay.
    is_own_user: bool,
}

impl Image {
    fn new(plan: &Plan) -> Result<Self, AgentError> {
        let text = |bytes: Vec<u8>, what: &str| {
            CString::new(bytes)
                .map_err(|_| AgentError::Invalid(format!("{what} must not contain a NUL byte")))
        };
        let mut strings = vec![text(plan.cmd.clone().into_bytes(), "cmd")?];
        for arg in &plan.args {
            strings.push(text(arg.clone().into_bytes(), "an argument")?);
        }
        let argc = strings.len();
        for (name, value) in &plan.envs {
            if name.is_empty() || name.contains('=') {
                return Err(AgentError::Invalid("an environment variable needs a name without '='".into()));
            }
            strings.push(text(format!("{name}={value}").into_bytes(), "the environment")?);
        }
        let pointers = |part: &[CString]| -> Vec<*const c_char> {
            part.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
        };
        let (argv, envp) = (pointers(&strings[..argc]), pointers(&strings[argc..]));
        let sh_argv = std::iter::once(SH.as_ptr()).chain(argv[1..].iter().copied()).collect();
        Ok(Self {
            candidates: candidates(plan)?,
            argv,
            sh_argv,
            envp,
            _strings: strings,
            cwd: text(plan.cwd.clone().into_bytes(), "cwd")?,
            uid: plan.user.ids.uid,
            gid: plan.user.ids.gid,
            groups: plan.user.ids.groups.clone(),
            is_own_user: plan.user.ids.is_own,
        })
    }
}

const SH: &CStr = c"/bin/sh";

/// The paths to try: the command itself if it is a path, else below each directory of PATH. A missing bash is replaced
/// by sh, which every image with a shell has.
fn candidates(plan: &Plan) -> Result<Vec<CString>, AgentError> {
    if plan.cmd.is_empty() {
        return Err(AgentError::Invalid("cmd is empty".into()));
    }
    let nul = |_| AgentError::Invalid("cmd must not contain a NUL byte".into());
    let mut paths = Vec::new();
    if plan.cmd.contains('/') {
        paths.push(CString::new(plan.cmd.as_str()).map_err(nul)?);
    } else {
        let dirs = plan.envs.get("PATH").map_or(crate::settings::DEFAULT_PATH, String::as_str);
        for dir in dirs.split(':').filter(|dir| dir.starts_with('/')) {
            paths.push(CString::new(format!("{dir}/{}", plan.cmd)).map_err(nul)?);
        }
    }
    if matches!(plan.cmd.as_str(), "/bin/bash" | "/usr/bin/bash" | "bash") {
        paths.push(SH.into());
    }
    Ok(paths)
}

/// The work of the child. Only system calls from here on: no allocation, no lock, no panic.
struct Task<'a> {
    image: &'a Image,
    stdio: [RawFd; 3],
    terminal: bool,
    report: RawFd,
    nofile: Option<libc::rlimit>,
}

impl Task<'_> {
    fn run(&self) -> ! {
        let (step, errno) = match self.become_program() {
            Ok(never) => match never {},
            Err(failure) => failure,
        };
        let mut word = [0u8; 5];
        word[0] = step as u8;
        word[1..].copy_from_slice(&errno.to_ne_bytes());
        // SAFETY: plain system calls on a local buffer; _exit does not return.
        unsafe {
            libc::write(self.report, word.as_ptr().cast(), word.len());
            libc::_exit(127)
        }
    }

    fn become_program(&self) -> Result<std::convert::Infallible, (SpawnStep, i32)> {
        self.session().map_err(|errno| (SpawnStep::Session, errno))?;
        self.wire_stdio().map_err(|errno| (SpawnStep::Stdio, errno))?;
        self.limits();
        self.identity().map_err(|errno| (SpawnStep::Identity, errno))?;
        self.cwd().map_err(|errno| (SpawnStep::Cwd, errno))?;
        Err((SpawnStep::Exec, self.execute()))
    }

    fn session(&self) -> Result<(), i32> {
        // SAFETY: plain system calls on local storage.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            check(libc::setsid())?;
            if self.terminal {
                check(libc::ioctl(self.stdio[0], libc::TIOCSCTTY, 0))?;
            }
            libc::umask(0o022);
        }
        Ok(())
    }

    fn wire_stdio(&self) -> Result<(), i32> {
        for (target, source) in (0..).zip(self.stdio) {
            // SAFETY: dup2 on descriptors of the agent. Sources are above 2, since the agent's own stdio is open, so no
            // source is overwritten before its use.
            check(unsafe { libc::dup2(source, target) })?;
        }
        // All descriptors of the agent are close-on-exec already; this covers those that a library may have opened
        // without.
        // SAFETY: close_range with CLOEXEC changes flags in this process's own table only.
        unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(())
    }

    /// Best effort: if a limit cannot be set, the process still starts.
    fn limits(&self) {
        let adjust = c"/proc/self/oom_score_adj";
        // SAFETY: plain system calls on static and local storage.
        unsafe {
            if !self.image.is_own_user {
                let fd = libc::open(adjust.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if fd >= 0 {
                    // Makes the OOM killer choose children before the agent.
                    libc::write(fd, c"500".as_ptr().cast(), 3);
                    libc::close(fd);
                }
            }
            // One byte, not zero: if core_pattern is a pipe, the kernel starts the host's helper even for a limit of
            // zero, and skips it only for a limit of one.
            let no_core = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
            if let Some(nofile) = &self.nofile {
                libc::setrlimit(libc::RLIMIT_NOFILE, nofile);
            }
        }
    }

    /// Raw calls: glibc's wrappers would try to change the agent's other threads, which do not exist in the child.
    fn identity(&self) -> Result<(), i32> {
        let image = self.image;
        if image.is_own_user {
            return Ok(());
        }
        // SAFETY: system calls on memory prepared before the fork.
        unsafe {
            check_long(libc::syscall(libc::SYS_setgroups, image.groups.len(), image.groups.as_ptr()))?;
            check_long(libc::syscall(libc::SYS_setresgid, image.gid, image.gid, image.gid))?;
            check_long(libc::syscall(libc::SYS_setresuid, image.uid, image.uid, image.uid))?;
            if image.uid != 0 {
                // The launcher's securebits might keep capabilities over setresuid, so they are dropped explicitly.
                libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
                check_long(crate::identity::clear_capabilities())?;
            }
        }
        Ok(())
    }

    /// With the user's permissions, and never through a magic link, which could lead out of the root.
    fn cwd(&self) -> Result<(), i32> {
        let fd = crate::files::open_dir_raw(self.image.cwd.as_c_str())?;
        // SAFETY: fchdir on a fresh descriptor; getcwd into a local buffer (raw, as glibc's may allocate).
        unsafe {
            check(libc::fchdir(fd))?;
            let mut place = [0u8; 4096];
            let len = libc::syscall(libc::SYS_getcwd, place.as_mut_ptr(), place.len());
            // ERANGE means a deep but valid path; a path outside the root starts with "(unreachable)".
            if len > 0 && place[0] != b'/' {
                return Err(libc::ENOENT);
            }
        }
        Ok(())
    }

    /// As execvp: a missing candidate is skipped, a forbidden one is remembered, and any other error is returned.
    fn execute(&self) -> i32 {
        let mut answer = libc::ENOENT;
        for path in &self.image.candidates {
            let argv = if path.as_c_str() == SH { &self.image.sh_argv } else { &self.image.argv };
            // SAFETY: argv and envp are null-terminated arrays of strings that live in `image`.
            unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), self.image.envp.as_ptr()) };
            match last_errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => answer = libc::EACCES,
                other => return other,
            }
        }
        answer
    }
}

fn check(result: i32) -> Result<(), i32> {
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

fn check_long(result: libc::c_long) -> Result<(), i32> {
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> i32 {
    // SAFETY: errno's address is valid for the running thread.
    unsafe { *libc::__errno_location() }
}

/// Reads the exec result once the pipe is readable: `None` if it is not known yet, `Some(None)` when the program runs.
#[expect(clippy::option_option, reason = "not yet and no failure are two things")]
pub(super) fn read_verdict(fd: &OwnedFd) -> Option<Option<(SpawnStep, Errno)>> {
    let mut word = [0u8; 5];
    match rustix::io::read(fd, &mut word) {
        Ok(5) => {
            let errno = i32::from_ne_bytes([word[1], word[2], word[3], word[4]]);
            Some(Some((SpawnStep::from_raw(word[0]), Errno::from_raw_os_error(errno))))
        }
        Err(Errno::AGAIN | Errno::INTR) => None,
        Ok(_) | Err(_) => Some(None),
    }
}
