//! Connections out of the gate: sockets are made in the router namespace, so that its rules apply to them, and TLS
//! servers must have a certificate that the host's roots trust.
//!
//! Where the policy has proxies, they are connected to instead, and asked for the destination one after the other. The operator's proxy
//! is reached from the host's own network, where it may be private or on this machine; one that a user named is reached as the sandbox
//! itself could. There is no way around a proxy that does not answer.
//!
//! A socket belongs permanently to the namespace in which it was made, so one thread lives in the router's namespace
//! and makes them.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use atoll_model::policy::egress::{Egress, EgressProxy};
use atoll_outbound::TunnelError;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use rustls::ClientConfig;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{OnceCell, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::guest::{EgressRefusal, Visit};
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

    /// Connects to the destination of a flow, through the proxies of its policy.
    pub(crate) async fn reach(&self, visit: &Visit, name: Option<&str>) -> io::Result<TcpStream> {
        let egress = visit.guest.egress();
        match egress.proxies.first() {
            None => self.connect(visit.flow.to).await,
            // Boxed: most flows have none, and should not reserve the memory.
            Some(first) => Box::pin(self.reach_through(first, &egress, visit, name)).await,
        }
    }

    async fn reach_through(
        &self,
        first: &EgressProxy,
        egress: &Egress,
        visit: &Visit,
        name: Option<&str>,
    ) -> io::Result<TcpStream> {
        let host = visit.guest.destination(&visit.flow, name);
        let host = host.map_err(|EgressRefusal(rule)| io::Error::other(rule))?;
        let mut stream = if first.is_operators {
            atoll_outbound::connect(&first.url).await?
        } else {
            self.connect_users_proxy(first, egress).await?
        };
        prepare(&stream)?;
        let nexts = egress.proxies.iter().skip(1);
        let nexts = nexts.map(|next| (next.url.host.as_str(), next.url.port));
        let targets = nexts.chain([(host.as_str(), visit.flow.to.port())]);
        for (proxy, (host, port)) in egress.proxies.iter().zip(targets) {
            check_place(host, egress)?;
            atoll_outbound::tunnel(&mut stream, &proxy.url, host, port).await?;
        }
        Ok(stream)
    }

    /// Connects to a proxy that a user named, only where the sandbox itself could connect to.
    async fn connect_users_proxy(&self, proxy: &EgressProxy, egress: &Egress) -> io::Result<TcpStream> {
        check_place(&proxy.url.host, egress)?;
        let down = |why| io::Error::from(TunnelError::Down { why });
        let found = tokio::net::lookup_host((proxy.url.host.as_str(), proxy.url.port));
        let found = timeout(CONNECT_DEADLINE, found).await.map_err(|_| down("its name is not resolved"))?;
        let found = found.map_err(|_| down("its name is not resolved"))?;
        let mut refused = down("it has no IPv4 address");
        for address in found {
            let SocketAddr::V4(address) = address else { continue };
            if egress.shut.contains((*address.ip()).into()) {
                refused = down("its address is not allowed");
                continue;
            }
            match self.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => refused = TunnelError::from(error).into(),
            }
        }
        Err(refused)
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

/// Refuses an address that no sandbox may reach, also where a proxy would connect to it.
fn check_place(host: &str, egress: &Egress) -> io::Result<()> {
    let is_shut = match host.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(address)) => egress.shut.contains(address.into()),
        Ok(std::net::IpAddr::V6(_)) => true,
        Err(_) => false,
    };
    if is_shut { Err(TunnelError::Down { why: "its address is not allowed" }.into()) } else { Ok(()) }
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
        let mut roots = atoll_outbound::roots();
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
