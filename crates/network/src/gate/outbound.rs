//! Connections out of the gate: sockets are made in the router namespace, so that its rules apply to them, and TLS
//! servers must have a certificate that the host's roots trust.
//!
//! A socket belongs permanently to the namespace in which it was made, so one thread lives in the router's namespace
//! and makes them.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{OnceCell, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::netns;

/// LIMIT: queued sockets; one takes microseconds.
const QUEUE: usize = 1024;
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(15);
/// When a silent peer is probed, and how soon it counts as dead.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
/// A file with additional roots: for servers in a company, and for tests.
const MORE_ROOTS: &str = "ATOLL_EGRESS_ROOTS";

type ConnectJob = oneshot::Sender<io::Result<OwnedFd>>;

/// Makes connections from the router namespace. Its thread ends when it is dropped.
pub(crate) struct Outbound {
    jobs: SyncSender<ConnectJob>,
    tls: OnceCell<Arc<ClientConfig>>,
}

impl Outbound {
    pub(crate) fn start(router: BorrowedFd<'_>) -> io::Result<Self> {
        let router = router.try_clone_to_owned()?;
        let (jobs, queue) = sync_channel(QUEUE);
        let (ready, joined) = sync_channel(1);
        std::thread::Builder::new().name("gate-sockets".into()).spawn(move || {
            use std::os::fd::AsFd;
            let result = netns::join(router.as_fd());
            let is_there = result.is_ok();
            if ready.send(result).is_ok() && is_there {
                make_sockets(&queue);
            }
        })?;
        joined.recv().map_err(io::Error::other)??;
        Ok(Self { jobs, tls: OnceCell::new() })
    }

    /// Connects to an address from the router namespace.
    pub(crate) async fn connect(&self, to: SocketAddrV4) -> io::Result<TcpStream> {
        let (answer, socket) = oneshot::channel();
        self.jobs.try_send(answer).map_err(|_| io::ErrorKind::WouldBlock)?;
        let connect = async {
            let fd = socket.await.map_err(io::Error::other)??;
            let stream = TcpSocket::from_std_stream(fd.into()).connect(SocketAddr::V4(to)).await?;
            prepare(&stream)?;
            Ok(stream)
        };
        timeout(CONNECT_DEADLINE, connect).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Starts TLS with a server that proves the name `name`.
    pub(crate) async fn secure(&self, stream: TcpStream, name: &str) -> io::Result<TlsStream<TcpStream>> {
        let config = self.tls.get_or_try_init(load_roots).await?;
        let name = name.to_owned().try_into().map_err(io::Error::other)?;
        let handshake = TlsConnector::from(Arc::clone(config)).connect(name, stream);
        timeout(HANDSHAKE_DEADLINE, handshake).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Sends small messages at once, and enables the detection of dead peers.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    Ok(())
}

fn make_sockets(queue: &Receiver<ConnectJob>) {
    while let Ok(answer) = queue.recv() {
        if answer.is_closed() {
            continue;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP));
        // This fails when the caller has gone away; the socket is closed.
        let _ = answer.send(socket.map_err(io::Error::from));
    }
}

/// Reads the host's roots once, at the first use: many files, so not on the runtime's threads.
async fn load_roots() -> io::Result<Arc<ClientConfig>> {
    tokio::task::spawn_blocking(|| {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if let Some(path) = std::env::var_os(MORE_ROOTS) {
            use rustls::pki_types::CertificateDer;
            use rustls::pki_types::pem::PemObject;
            let more = CertificateDer::pem_file_iter(&path).map_err(io::Error::other)?;
            roots.add_parsable_certificates(more.filter_map(Result::ok));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    })
    .await
    .map_err(io::Error::other)?
}
