//! Connects the server to a port inside a sandbox, and lets it listen on one.
//!
//! A socket belongs permanently to the namespace in which it was made. So a dedicated thread enters the sandbox's
//! namespace, makes the socket and returns; the caller connects, accepts and waits in the async runtime. A sandbox whose
//! listener does not accept can therefore never block a thread. The launcher is not involved, so a create never delays
//! a connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::error::DialError;
use crate::netns;

#[derive(Clone, Copy, Debug)]
pub struct DialerConfig {
    /// One thread makes about twenty thousand sockets a second; two reduce delays on a loaded machine.
    pub threads: usize,
    /// Requests waiting for a thread; beyond that a call fails with [`DialError::Busy`].
    pub queue_len: usize,
}

/// LIMIT: connections from inside that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;

impl Default for DialerConfig {
    fn default() -> Self {
        Self { threads: 2, queue_len: 1024 }
    }
}

/// Makes connections into sandboxes. Dropping it ends its threads.
#[derive(Debug)]
pub struct Dialer {
    jobs: Option<SyncSender<DialJob>>,
    threads: Vec<JoinHandle<()>>,
}

struct DialJob {
    namespace: OwnedFd,
    purpose: SocketPurpose,
    answer: oneshot::Sender<io::Result<OwnedFd>>,
}

/// What a new socket is for.
#[derive(Clone, Copy)]
enum SocketPurpose {
    Connect,
    /// On this port of the loopback address.
    Listen(u16),
}

impl SocketPurpose {
    /// Makes the socket, in the namespace of the calling thread.
    fn socket(self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        if let Self::Listen(port) = self {
            // Closed connections of an earlier listener do not hold the port; a program that listens on it does.
            rustix::net::sockopt::set_socket_reuseaddr(&fd, true)?;
            rustix::net::bind(&fd, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
            rustix::net::listen(&fd, BACKLOG)?;
        }
        Ok(fd)
    }
}

impl Dialer {
    /// Starts the threads, in the network namespace of the calling thread.
    pub fn start(config: DialerConfig) -> io::Result<Self> {
        let (jobs, queue) = sync_channel(config.queue_len.max(1));
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..config.threads.max(1))
            .map(|number| {
                let queue = Arc::clone(&queue);
                let home = netns::current()?;
                std::thread::Builder::new()
                    .name(format!("dialer-{number}"))
                    .spawn(move || serve(&queue, home.as_fd()))
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self { jobs: Some(jobs), threads })
    }

    /// Connects to `127.0.0.1:port` inside `namespace`. The stream has TCP_NODELAY set.
    pub async fn dial(
        &self,
        namespace: BorrowedFd<'_>,
        port: u16,
        deadline_in: Duration,
    ) -> Result<TcpStream, DialError> {
        let failed = |cause| DialError::Failed { port, cause };
        let socket = self.request(namespace, port, SocketPurpose::Connect)?;
        let connect = async {
            let fd = socket.await.map_err(|_| DialError::Busy)?.map_err(failed)?;
            connect(fd, port).await.map_err(|cause| match cause.kind() {
                io::ErrorKind::ConnectionRefused => DialError::Refused { port },
                _ => failed(cause),
            })
        };
        tokio::time::timeout(deadline_in, connect).await.unwrap_or(Err(DialError::TimedOut { port }))
    }

    /// Listens on `127.0.0.1:port` inside `namespace`; `None`: a program inside has the port. The caller drops the
    /// listener when the sandbox ends, because it keeps the namespace.
    pub async fn listen(
        &self,
        namespace: BorrowedFd<'_>,
        port: u16,
    ) -> Result<Option<TcpListener>, DialError> {
        let failed = |cause| DialError::Failed { port, cause };
        let socket = self.request(namespace, port, SocketPurpose::Listen(port))?;
        match socket.await.map_err(|_| DialError::Busy)? {
            Ok(fd) => TcpListener::from_std(fd.into()).map(Some).map_err(failed),
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// Asks a thread for a socket.
    fn request(
        &self,
        namespace: BorrowedFd<'_>,
        port: u16,
        purpose: SocketPurpose,
    ) -> Result<oneshot::Receiver<io::Result<OwnedFd>>, DialError> {
        // A copy, because the caller may drop its descriptor while the request waits.
        let namespace = namespace.try_clone_to_owned().map_err(|cause| DialError::Failed { port, cause })?;
        let (answer, socket) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or(DialError::Busy)?;
        jobs.try_send(DialJob { namespace, purpose, answer }).map_err(|error| match error {
            TrySendError::Full(_) | TrySendError::Disconnected(_) => DialError::Busy,
        })?;
        Ok(socket)
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread waits only for the queue, which has just been closed.
            let _ = thread.join();
        }
    }
}

async fn connect(fd: OwnedFd, port: u16) -> io::Result<TcpStream> {
    let socket = TcpSocket::from_std_stream(fd.into());
    socket.set_nodelay(true)?;
    socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}

fn serve(queue: &Mutex<Receiver<DialJob>>, home: BorrowedFd<'_>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        if job.answer.is_closed() {
            continue;
        }
        let socket = netns::briefly_in_from(home, job.namespace.as_fd(), || job.purpose.socket());
        // This fails when the caller has gone away; the socket is closed.
        let _ = job.answer.send(socket);
    }
}
