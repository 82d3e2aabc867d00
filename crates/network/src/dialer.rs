//! Connecting to a port inside a sandbox, from the server.
//!
//! A socket belongs for ever to the namespace in which it was made. So a dedicated thread steps into the sandbox's namespace
//! for one `socket` call and home again; connecting and waiting are the caller's, in the async runtime. A sandbox whose
//! listener does not accept can therefore never hold a thread. Nothing goes through the launcher: a create never delays a dial.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::error::DialError;
use crate::netns;

/// How many threads and how long a queue.
#[derive(Clone, Copy, Debug)]
pub struct DialerConfig {
    /// One makes some twenty thousand sockets a second; two keep each other's company on a loaded machine.
    pub threads: usize,
    /// Requests waiting for a thread; beyond that a dial fails with [`DialError::Busy`].
    pub queue_len: usize,
}

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
    answer: oneshot::Sender<io::Result<OwnedFd>>,
}

impl Dialer {
    /// Starts the threads. The calling thread's namespace is their home.
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
        // Own copy: the caller may drop its descriptor while the request waits.
        let namespace = namespace.try_clone_to_owned().map_err(failed)?;
        let (answer, socket) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or(DialError::Busy)?;
        jobs.try_send(DialJob { namespace, answer }).map_err(|error| match error {
            TrySendError::Full(_) | TrySendError::Disconnected(_) => DialError::Busy,
        })?;
        let connect = async {
            let fd = socket.await.map_err(|_| DialError::Busy)?.map_err(failed)?;
            connect(fd, port).await.map_err(|cause| match cause.kind() {
                io::ErrorKind::ConnectionRefused => DialError::Refused { port },
                _ => failed(cause),
            })
        };
        tokio::time::timeout(deadline_in, connect).await.unwrap_or(Err(DialError::TimedOut { port }))
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread never waits for anything but the queue, which has just been closed.
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
        let socket = netns::briefly_in_from(home, job.namespace.as_fd(), || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP))?)
        });
        // Nobody waits any more when this fails; the socket closes itself.
        let _ = job.answer.send(socket);
    }
}
