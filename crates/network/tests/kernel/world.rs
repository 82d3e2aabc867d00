//! A small network per test: internet ── host ── router ── sandboxes.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_model::policy::egress::Egress;
use atoll_network::{Block, Router, RouterConfig, RouterHandle, SandboxLink, child_setup, netns};
use tempfile::TempDir;

pub(crate) const INTERNET: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
pub(crate) const HOST_WAN: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const TCP_PORT: u16 = 8080;
pub(crate) const UDP_PORT: u16 = 8081;
/// A service of the host itself, like the daemon's API.
pub(crate) const HOST_PORT: u16 = 7070;
/// Addresses that exist behind the host and answer the host, but must not answer a sandbox.
pub(crate) const FORBIDDEN: &[Ipv4Addr] = &[
    Ipv4Addr::new(10, 1, 2, 3),
    Ipv4Addr::new(172, 16, 9, 9),
    Ipv4Addr::new(192, 168, 7, 7),
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(198, 18, 200, 1),
];
/// Long enough for a loaded machine, short enough to distinguish a refusal from silence.
pub(crate) const QUICK: Duration = Duration::from_secs(3);
/// How long an answer is waited for: longer than [`QUICK`], so that silence is told from a refusal.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

static NEXT_BLOCK: AtomicU16 = AtomicU16::new(1);

/// The data that a server has received, with its sender.
pub(crate) type Heard = Arc<Mutex<Vec<(Vec<u8>, SocketAddr)>>>;

pub(crate) struct World {
    pub(crate) host: OwnedFd,
    pub(crate) internet: OwnedFd,
    pub(crate) router: Option<Router>,
    pub(crate) handle: Option<RouterHandle>,
    pub(crate) config: RouterConfig,
    /// The data that the internet's UDP server has received.
    pub(crate) heard: Heard,
    _dir: TempDir,
}

pub(crate) struct Sandbox {
    pub(crate) namespace: OwnedFd,
    pub(crate) link: SandboxLink,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_forwarding(false)
    }

    pub(crate) fn with_forwarding(everywhere: bool) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests make network namespaces and need root");
        let (host, internet) = (netns::create().unwrap(), netns::create().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let block = Block::new(NEXT_BLOCK.fetch_add(1, Ordering::Relaxed)).unwrap();
        let config = RouterConfig { block, pin: dir.path().join("run").join("router.ns") };
        wire(&host, &internet, everywhere);
        let heard = Arc::new(Mutex::new(Vec::new()));
        serve_internet(&internet, Arc::clone(&heard));
        serve_tcp(host.as_fd(), HOST_PORT);
        let mut world = Self { host, internet, router: None, handle: None, config, heard, _dir: dir };
        world.open();
        world
    }

    /// Opens the router, as a launcher does at its start.
    pub(crate) fn open(&mut self) {
        let router = netns::run_in(self.host.as_fd(), || Router::open(self.config.clone())).unwrap().unwrap();
        self.handle = Some(router.handle().unwrap());
        self.router = Some(router);
    }

    /// Drops all state, as a killed launcher does.
    pub(crate) fn crash(&mut self) {
        self.handle = None;
        self.router = None;
    }

    pub(crate) fn router(&self) -> &Router {
        self.router.as_ref().unwrap()
    }

    pub(crate) fn handle(&mut self) -> &mut RouterHandle {
        self.handle.as_mut().unwrap()
    }

    pub(crate) fn sandbox(&mut self, egress: &Egress) -> Sandbox {
        let namespace = netns::create().unwrap();
        let link = self.handle().reserve(None).unwrap();
        self.handle().attach(link, egress, namespace.as_fd()).unwrap();
        netns::run_in(namespace.as_fd(), || child_setup(link.address)).unwrap().unwrap();
        self.wait_for_carrier(link);
        Sandbox { namespace, link }
    }

    /// The kernel brings the router's end up asynchronously, on a loaded machine after some milliseconds. Packets that
    /// the router sends until then are lost, and a caller retries after a second.
    fn wait_for_carrier(&self, link: SandboxLink) {
        let is_up = || {
            let shown = Command::new("ip").args(["-o", "link", "show", &link.name()]).output().unwrap();
            String::from_utf8_lossy(&shown.stdout).contains("state UP")
        };
        self.in_router(|| {
            let started_at = Instant::now();
            while !is_up() && started_at.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    }

    pub(crate) fn in_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(self.host.as_fd(), work).unwrap()
    }

    pub(crate) fn in_router<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(self.router().namespace(), work).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.handle = None;
        if let Some(router) = self.router.take() {
            let torn_down = router.teardown();
            assert!(std::thread::panicking() || torn_down.is_ok(), "{torn_down:?}");
        }
        let pin = &self.config.pin;
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("-l").arg(pin).stderr(std::process::Stdio::null()).status();
        }
    }
}

impl Sandbox {
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(self.namespace.as_fd(), work).unwrap()
    }

    /// Connects to a server, which returns the address that it sees.
    pub(crate) fn ask(&self, to: Ipv4Addr, port: u16) -> io::Result<String> {
        self.inside(|| ask(to, port))
    }

    pub(crate) fn assert_reaches_internet(&self) {
        let seen = self.ask(INTERNET, TCP_PORT).unwrap();
        assert!(seen.starts_with(&format!("{HOST_WAN}:")), "the internet sees {seen}");
    }

    /// Refused at once: neither an answer nor silence.
    pub(crate) fn assert_refused(&self, to: Ipv4Addr, port: u16) {
        let started_at = Instant::now();
        let error = self.ask(to, port).expect_err(&format!("{to}:{port} must not answer"));
        let took = started_at.elapsed();
        assert!(took < QUICK, "{to}:{port} was silent for {took:?}: {error}");
        let unreachable =
            matches!(error.kind(), io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable);
        assert!(unreachable, "{to}:{port} said {error}");
    }

    /// No answer, either refused or silent.
    pub(crate) fn assert_unreachable(&self, to: Ipv4Addr, port: u16) {
        assert!(self.ask(to, port).is_err(), "{to}:{port} must not answer");
    }

    pub(crate) fn ip(&self, arguments: &str) {
        self.inside(|| ip(arguments));
    }
}

pub(crate) fn ask(to: Ipv4Addr, port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&(to, port).into(), SILENCE)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// A server that returns each caller's address.
pub(crate) fn serve_tcp(namespace: BorrowedFd<'_>, port: u16) {
    let listener =
        netns::run_in(namespace, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))).unwrap().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(peer.to_string().as_bytes());
        }
    });
}

fn serve_internet(internet: &OwnedFd, heard: Heard) {
    serve_tcp(internet.as_fd(), TCP_PORT);
    let socket = netns::run_in(internet.as_fd(), || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, UDP_PORT)))
        .unwrap()
        .unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0u8; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            heard.lock().unwrap().push((buffer[..len].to_vec(), from));
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
}

fn wire(host: &OwnedFd, internet: &OwnedFd, everywhere: bool) {
    use std::os::fd::AsRawFd;
    let internet_path = format!("/proc/{}/fd/{}", std::process::id(), internet.as_raw_fd());
    netns::run_in(host.as_fd(), || {
        let value = if everywhere { "1" } else { "0" };
        std::fs::write("/proc/sys/net/ipv4/ip_forward", value).unwrap();
        std::fs::write("/proc/sys/net/ipv4/conf/default/forwarding", value).unwrap();
        ip("link set lo up");
        ip(&format!("link add wan type veth peer name net netns {internet_path}"));
        ip(&format!("addr add {HOST_WAN}/24 dev wan"));
        ip("link set wan up");
    })
    .unwrap();
    netns::run_in(internet.as_fd(), || {
        ip("link set lo up");
        ip(&format!("addr add {INTERNET}/24 dev net"));
        ip("link set net up");
        for address in FORBIDDEN {
            ip(&format!("addr add {address}/32 dev lo"));
        }
    })
    .unwrap();
    netns::run_in(host.as_fd(), || ip(&format!("route add default via {INTERNET}"))).unwrap();
}
