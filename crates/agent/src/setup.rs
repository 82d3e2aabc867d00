//! The start of the agent: process attributes, options, token, socket.

use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::io::FdFlags;

use crate::host_mode::HostMode;
use crate::process::CHILD_NOFILE;
use crate::settings::TOKEN_MAX;

/// Protects the process against inspection. Each step is best effort: the agent also runs without it.
pub(crate) fn harden() {
    // SAFETY: plain system and library calls with constant or local arguments, before any other thread exists.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        // All signals back to default, including the two that libc reserves and does not touch: the kernel's structure
        // of four words, zeroed, means default.
        let default = [0u64; 4];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8);
        }
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        if libc::getpid() != 1 {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        }
        libc::umask(0o022);
        // One arena: a separate heap for a second thread would cost more private memory than its locks cost time.
        // Chunks of transfers stay below the mmap threshold and are reused, because fresh pages cost more than the copy
        // into them. So the heap keeps what one upload uses, and `give_back_heap` frees it after a large one.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * 1024 * 1024);
    }
    raise_descriptors();
}

/// Makes this process the first one of a sandbox: the OOM killer chooses others before it. Best effort.
pub(crate) fn become_first() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    let _ = std::env::set_current_dir("/");
}

/// Returns free memory to the system. Takes about 0.1 ms.
pub(crate) fn give_back_heap() {
    // SAFETY: only the allocator's own free lists are touched, under its locks.
    unsafe { libc::malloc_trim(0) };
}

/// Raises the descriptor limit of the agent; children get the original limit.
fn raise_descriptors() {
    // SAFETY: the limit structure is local and lives through both calls.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            let _ = CHILD_NOFILE.set(limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Options, as passed by the engine. A first process that inherits no descriptors, as in Docker, gets `--listen` and
/// `--token-file`. Without a sandbox it gets `--workspace`, `--socket`, `--token-fd 0` and, for each control group, `--cgroup`.
#[derive(Debug, Default)]
pub(crate) struct AgentOptions {
    listen_fd: Option<RawFd>,
    listen: Option<std::net::SocketAddr>,
    token_fd: Option<RawFd>,
    token_file: Option<PathBuf>,
    /// Whether this process only carries connections over its standard input and output.
    pub(crate) carries_connections: bool,
    socket: Option<PathBuf>,
    workspace: Option<PathBuf>,
    /// Files into which the agent writes itself, to be in these control groups.
    cgroups: Vec<PathBuf>,
}

/// Where the agent takes connections.
pub(crate) enum AgentListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AgentOptions {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, ()> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            let value = words.next().ok_or(())?;
            match word.as_str() {
                "--listen-fd" => options.listen_fd = Some(value.parse().map_err(|_| ())?),
                "--listen" => options.listen = Some(value.parse().map_err(|_| ())?),
                "--token-fd" => options.token_fd = Some(value.parse().map_err(|_| ())?),
                "--token-file" => options.token_file = Some(value.into()),
                "--connections" if value == "stdio" => options.carries_connections = true,
                "--socket" => options.socket = Some(value.into()),
                "--workspace" => options.workspace = Some(value.into()),
                "--cgroup" => options.cgroups.push(value.into()),
                _ => return Err(()),
            }
        }
        Ok(options)
    }

    /// Reads the token to its end and closes its descriptor. A file with the token is removed; where it is bound read-only,
    /// the host does that when the agent answers.
    pub(crate) fn read_token(&self) -> io::Result<Vec<u8>> {
        let source: Box<dyn Read> = match (self.token_fd, &self.token_file) {
            // Stays open: descriptors 0 to 2 must always be in use.
            (Some(0), _) => Box::new(io::stdin()),
            (Some(fd), _) => Box::new(std::fs::File::from(own(fd)?)),
            (None, Some(path)) => Box::new(std::fs::File::open(path)?),
            (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let mut token = Vec::new();
        source.take(TOKEN_MAX as u64 + 1).read_to_end(&mut token)?;
        if let Some(path) = &self.token_file {
            let _ = std::fs::remove_file(path);
        }
        while token.last().is_some_and(u8::is_ascii_whitespace) {
            token.pop();
        }
        match token.len() {
            1..=TOKEN_MAX => Ok(token),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Enters the control groups, and becomes the first process of a sandbox or an ordinary one of this machine.
    pub(crate) fn enter(&self) -> io::Result<Option<HostMode>> {
        for file in &self.cgroups {
            std::fs::write(file, "0")?;
        }
        match &self.workspace {
            Some(workspace) => HostMode::enter(workspace).map(Some),
            None => {
                become_first();
                Ok(None)
            }
        }
    }

    pub(crate) fn listener(&self) -> io::Result<AgentListener> {
        if let Some(path) = &self.socket {
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            return Ok(AgentListener::Unix(listener));
        }
        let listener = match (self.listen_fd, self.listen) {
            (Some(fd), _) => TcpListener::from(own(fd)?),
            (None, Some(address)) => TcpListener::bind(address)?,
            (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        listener.set_nonblocking(true)?;
        Ok(AgentListener::Tcp(listener))
    }
}

/// Takes over a descriptor from the engine; children must not inherit it.
fn own(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 3 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: F_GETFD only checks whether the number is an open descriptor.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by the contract of the options no other code in this process uses it.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&owned, FdFlags::CLOEXEC)?;
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_or_half_options_are_refused() {
        let parse = |text: &str| AgentOptions::parse(text.split_whitespace().map(str::to_owned));
        assert!(parse("--listen-fd 3 --token-fd 4").is_ok());
        assert!(parse("--listen 127.0.0.1:49983 --token-file /.atoll/token").is_ok());
        assert!(parse("--connections stdio").expect("valid").carries_connections);
        let host = parse("--workspace w --socket s --token-fd 0 --cgroup a --cgroup b").expect("valid");
        assert_eq!((host.cgroups.len(), host.token_fd), (2, Some(0)));
        for bad in ["--connections here", "--listen-fd", "--listen-fd x", "--what 1", "serve now"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_read_from_a_file() {
        let file = std::env::temp_dir().join(format!("atoll-agent-token-{}", std::process::id()));
        std::fs::write(&file, "a-token-of-some-length\n").expect("a file");
        let options = AgentOptions { token_file: Some(file.clone()), ..AgentOptions::default() };
        assert_eq!(options.read_token().expect("read"), b"a-token-of-some-length");
        assert!(!file.exists(), "no other program of the sandbox reads it");
        assert!(options.read_token().is_err() && AgentOptions::default().read_token().is_err());
    }
}
