//! The Unix socket: daily use on the server's machine without root and without a key.
//!
//! ```text
//! lock PATH.lock ─ does anybody answer? ─ bind PATH.new ─ owner and mode ─ rename to PATH … end: remove
//! ```
//!
//! The lock is held as long as the server lives, so that the socket of a running server is never replaced, and that of a killed one
//! always. The kernel lets root and the group connect; [`identify`] asks it again who connected.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind},
    os::{
        fd::AsFd,
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
            net::UnixStream as BlockingStream,
        },
    },
    path::{Path, PathBuf},
};

use atoll_service::{PeerRole, UnixPeer};
use nix::unistd::{Gid, Group, Uid, User};
use rustix::fs::{FlockOperation, flock};
use tokio::net::{UnixListener, UnixStream};

use crate::{cli::serve::DEFAULT_SOCKET, failure::Failure};

/// Members of this group are users of the server.
pub(crate) const GROUP: &str = "atoll";

/// An open socket. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    /// The file at `path`, so that the socket of another program is not removed.
    inode: u64,
    group: Option<Gid>,
    listener: Option<UnixListener>,
    _lock: File,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
enum SocketError {
    #[error("another server has the socket {}", .0.display())]
    Taken(PathBuf),
    #[error("{} is not a socket, and is not replaced", .0.display())]
    NotASocket(PathBuf),
    #[error("the socket {} cannot be opened", path.display())]
    Failed {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// Opens the socket at `path`. Of several servers on one machine, the first one has the default path.
pub(super) fn open(path: Option<&Path>) -> Result<Option<Socket>, Failure> {
    let Some(path) = path else { return Ok(None) };
    match Socket::bind(path) {
        Ok(socket) => {
            tracing::info!(socket = %path.display(), group = socket.group.map(Gid::as_raw), "listens at the socket");
            Ok(Some(socket))
        }
        Err(error @ SocketError::Taken(_)) if path == Path::new(DEFAULT_SOCKET) => {
            tracing::warn!("{error}; this one is reached by its address only (--socket sets another path)");
            Ok(None)
        }
        Err(error) => Err(super::failed("the Unix socket cannot be used", &error)
            .hint("set another path with --socket, or --socket off")),
    }
}

impl Socket {
    fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |cause| SocketError::Failed { path: path.to_owned(), cause };
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed)?;
        }
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(beside(path, "lock"))
            .map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SocketError::Taken(path.to_owned())),
            Err(cause) => return Err(failed(cause.into())),
        }
        check_replaceable(path)?;
        let group = group().map_err(failed)?;
        let fresh = beside(path, "new");
        let _ = fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh).map_err(failed)?;
        // Until here only root can connect: others lack the right to write to the file.
        std::os::unix::fs::chown(&fresh, None, group.map(Gid::as_raw)).map_err(failed)?;
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        fs::set_permissions(&fresh, fs::Permissions::from_mode(mode)).map_err(failed)?;
        let inode = fs::metadata(&fresh).map_err(failed)?.ino();
        fs::rename(&fresh, path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), inode, group, listener: Some(listener), _lock: lock })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The listener, once, and how to find out who is at the other end of its connections.
    pub(super) fn listener(
        &mut self,
    ) -> Option<(UnixListener, impl Fn(&UnixStream) -> io::Result<UnixPeer> + use<>)> {
        let group = self.group;
        self.listener.take().map(|listener| (listener, move |stream: &UnixStream| identify(stream, group)))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A path beside the socket.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// A socket without a listening server is replaced; any other file is kept.
fn check_replaceable(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NotASocket(path.to_owned())),
        Ok(_) => {}
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(SocketError::Failed { path: path.to_owned(), cause }),
    }
    match BlockingStream::connect(path) {
        Ok(_) => Err(SocketError::Taken(path.to_owned())),
        Err(cause) if cause.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(cause) => Err(SocketError::Failed { path: path.to_owned(), cause }),
    }
}

fn group() -> io::Result<Option<Gid>> {
    Ok(Group::from_name(GROUP)?.map(|group| group.gid))
}

/// Who is at the other end. The groups are those of the process when it connected, as the kernel knows them.
fn identify(stream: &UnixStream, group: Option<Gid>) -> io::Result<UnixPeer> {
    let credentials = stream.peer_cred()?;
    let uid = credentials.uid();
    let is_member = |group: Gid| -> io::Result<bool> {
        let groups = atoll_container::peer_groups(stream.as_fd())?;
        Ok(credentials.gid() == group.as_raw() || groups.contains(&group.as_raw()))
    };
    let role = match group {
        _ if uid == 0 => PeerRole::Root,
        Some(group) if is_member(group)? => PeerRole::Member,
        Some(_) | None => PeerRole::Stranger,
    };
    let name = User::from_uid(Uid::from_raw(uid))?.map_or_else(|| uid.to_string(), |user| user.name);
    Ok(UnixPeer { uid, name, role })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_replaced_only_when_nobody_answers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/atoll.sock");
        let first = Socket::bind(&path).unwrap();
        assert!(matches!(Socket::bind(&path), Err(SocketError::Taken(_))), "its lock is held");
        // As after a kill: the file is there, and no process has its lock.
        let mut left = first;
        left.inode = 0;
        drop(left);
        assert!(path.exists());
        let second = Socket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o007, 0, "nothing for others");
        drop(second);
        assert!(!path.exists(), "removed at the end");
        // A listener of another program, which knows nothing of the lock.
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(Socket::bind(&path), Err(SocketError::Taken(_))));
        drop(other);
        drop(Socket::bind(&path).unwrap());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Socket::bind(&path), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn the_kernel_says_who_is_at_the_other_end() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let peer = identify(&one, None).unwrap();
        assert_eq!(peer.uid, own);
        assert_eq!(peer.role == PeerRole::Root, own == 0);
        // The group of this process.
        let peer = identify(&one, Some(Gid::current())).unwrap();
        assert_eq!(peer.role, if own == 0 { PeerRole::Root } else { PeerRole::Member });
    }
}
