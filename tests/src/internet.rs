//! A small internet: one network namespace with name servers, web servers with and without TLS, and echoes, on public and on
//! decoy addresses. Everything answers, so that "unreachable" in a test is the policy's doing and not an absence.
//!
//! ```text
//! ground ── up0 ─── inet0   203.0.113.1   the host's name server        198.51.100.10-.30  honest web servers
//!                           8.8.8.8, 1.1.1.1  resolvers of the world    198.51.100.66      the evil one
//!                           10/8, 192.168/16, 169.254.169.254, 168.63.129.16 …  decoys
//! ```
//!
//! It is also the witness: it keeps every question, every request and the count of every packet that arrived
//! ([`Internet::questions`], [`Internet::requests`], [`Internet::packets`]). Names are answered as a test scripts them.
//! Its thread ends with the process. It never reaches anything but the ground it was joined to.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock, mpsc};

use nix::sched::{CloneFlags, unshare};

use crate::namespaces::ip;
use crate::poll::PATIENCE;

pub mod names;
pub mod packets;
pub mod trust;
pub mod web;

pub use names::{Asked, Record, Say, Twist};
pub use packets::Arrived;
pub use web::Request;

/// A public address that answers.
pub const PUBLIC: &str = "203.0.113.1";
/// A name that the internet's name server knows, for [`PUBLIC`].
pub const NAME: &str = "service.example.test";
/// What the web server answers.
pub const GREETING: &str = "hello from the internet";
/// Addresses that answer too and that no sandbox may ever reach.
pub const DECOYS: &[&str] = &[
    "10.1.2.3",
    "172.20.0.9",
    "192.168.77.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "192.0.0.8",
    "168.63.129.16",
];

/// The web server of the names that tests allow.
pub const GOOD: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
/// Another honest one.
pub const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 20);
/// One address that serves good and evil names alike, as content networks do.
pub const SHARED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 30);
/// The one that must see nothing.
pub const EVIL: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 66);
/// Well-known public resolvers.
pub const RESOLVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(8, 8, 8, 8), Ipv4Addr::new(1, 1, 1, 1)];
/// The evil one's IPv6 address; [`HOST6`] is the host's on the same wire.
pub const EVIL6: &str = "2001:db8:66::66";
/// The host's IPv6 address.
pub const HOST6: &str = "2001:db8:66::2";

/// Where the host sends all other IPv6 to.
pub const GATE6: &str = "2001:db8:66::1";
/// An honest web server that is reached by IPv6 alone.
pub const GOOD6: &str = "2001:db8:10::10";

/// Plain HTTP is spoken on these.
pub const WEB_PORTS: [u16; 5] = [80, 8080, 8443, 2375, 3128];
/// TLS is spoken on these.
pub const TLS_PORTS: [u16; 3] = [443, 853, 4443];
/// What comes is given back on these, over TCP: echo, ssh, smtp, a tunnel's.
pub const ECHO_PORTS: [u16; 4] = [7, 22, 25, 51820];
/// And on these over UDP: echo, QUIC, NTP, a tunnel's.
pub const UDP_PORTS: [u16; 4] = [7, 443, 123, 51820];

/// Where to find it, what it says and what it saw. Clones are the same internet.
#[derive(Debug, Clone)]
pub struct Internet {
    /// Its public address.
    pub address: Ipv4Addr,
    names: names::Zone,
    seen: web::Seen,
    packets: packets::Counter,
    trust: Arc<trust::Authority>,
    runtime: Arc<OnceLock<tokio::runtime::Handle>>,
}

impl Internet {
    /// From now on a port of every address leads to an address of the host, as a reverse proxy somewhere would.
    pub async fn relays(&self, port: u16, to: SocketAddr) {
        let runtime = self.runtime.get().expect("the internet is up");
        runtime.spawn(packets::relay_streams(port, to)).await.expect("the internet takes it");
    }

    /// Every answer for a name from now on; `*.example.test` means all below.
    pub fn says(&self, name: &str, say: Say) {
        self.names.script(name, move |_, _| say.clone());
    }

    /// Answers in turn, the last one for ever.
    pub fn says_in_turn(&self, name: &str, says: Vec<Say>) {
        self.names.script(name, move |_, nth| says[nth.min(says.len() - 1)].clone());
    }

    /// Answers made by a function of the question and of how many came before.
    pub fn scripts(&self, name: &str, script: impl Fn(&Asked, usize) -> Say + Send + Sync + 'static) {
        self.names.script(name, script);
    }

    /// Every question that any name server saw.
    pub fn questions(&self) -> Vec<Asked> {
        self.packets.settle();
        self.names.asked()
    }

    /// Questions whose name contains a text.
    pub fn questions_with(&self, text: &str) -> Vec<Asked> {
        self.questions().into_iter().filter(|asked| asked.name.contains(text)).collect()
    }

    /// Every request that any web server saw.
    pub fn requests(&self) -> Vec<Request> {
        self.packets.settle();
        self.seen.requests()
    }

    /// Requests that arrived at an address.
    pub fn requests_to(&self, address: impl Into<IpAddr>) -> Vec<Request> {
        let address = address.into();
        self.requests().into_iter().filter(|request| request.to.ip() == address).collect()
    }

    /// What arrived at an address, by protocol and port, since the beginning or the last [`Internet::forget`].
    pub fn packets(&self, address: impl Into<IpAddr>) -> BTreeMap<(u8, u16), Arrived> {
        self.packets.at(address.into())
    }

    /// Fails if a single packet came to the address.
    pub fn untouched(&self, address: impl Into<IpAddr>, after: &str) {
        let address = address.into();
        let came = self.packets(address);
        assert!(came.is_empty(), "{after}: {address} saw {came:?}\n{:#?}", self.requests_to(address));
    }

    /// Fails if a decoy or the evil server saw a single packet.
    pub fn unharmed(&self, after: &str) {
        for decoy in DECOYS {
            self.untouched(decoy.parse::<IpAddr>().expect("an address"), after);
        }
        self.untouched(EVIL, after);
        self.untouched(EVIL6.parse::<IpAddr>().expect("an address"), after);
    }

    /// Forgets all that was seen; what is scripted stays.
    pub fn forget(&self) {
        self.packets.settle();
        self.names.forget();
        self.seen.forget();
        self.packets.forget();
    }

    /// The certificate of the authority that all its TLS servers are vouched for by.
    pub fn authority_pem(&self) -> &str {
        self.trust.pem()
    }
}

/// Starts it and joins the calling thread's namespace to it.
pub(crate) fn start() -> Internet {
    let (tell_id, id) = mpsc::channel();
    let (joined, wait_joined) = mpsc::channel::<()>();
    let (tell_ready, ready) = mpsc::channel::<()>();
    let internet = Internet {
        address: PUBLIC.parse().expect("an address"),
        names: names::Zone::default(),
        seen: web::Seen::default(),
        packets: packets::Counter::default(),
        trust: Arc::new(trust::Authority::new()),
        runtime: Arc::default(),
    };
    let known = [(NAME, PUBLIC.parse().expect("an address")), ("good.test", GOOD), ("api.good.test", GOOD)];
    for (name, address) in known.into_iter().chain([("other.test", OTHER), ("evil.test", EVIL)]) {
        internet.says(name, Say::a([address]));
    }
    let inside = internet.clone();
    std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace for the internet");
        tell_id.send(nix::unistd::gettid()).expect("the ground listens");
        wait_joined.recv().expect("the ground joins");
        give_addresses();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        inside.runtime.set(runtime.handle().clone()).expect("one start");
        runtime.block_on(async {
            serve(&inside).await;
            tell_ready.send(()).expect("the ground waits");
            // The namespace lives as long as a thread of it.
            std::future::pending::<()>().await;
        });
    });
    let far = id.recv().expect("the internet has a thread");
    ip(&format!("link add up0 type veth peer name inet0 netns {far}"));
    ip("addr add 203.0.113.2/24 dev up0");
    ip(&format!("addr add {HOST6}/64 dev up0 nodad"));
    ip("link set up0 up");
    ip("route add default via 203.0.113.1");
    ip(&format!("-6 route add default via {GATE6}"));
    joined.send(()).expect("the internet waits");
    ready.recv_timeout(PATIENCE).expect("the internet is up");
    internet
}

fn give_addresses() {
    ip("link set lo up");
    ip("addr add 203.0.113.1/24 dev inet0");
    ip(&format!("addr add {EVIL6}/64 dev inet0 nodad"));
    ip(&format!("addr add {GATE6}/64 dev inet0 nodad"));
    ip(&format!("addr add {GOOD6}/128 dev lo nodad"));
    ip("link set inet0 up");
    for address in more_addresses() {
        ip(&format!("addr add {address}/32 dev lo"));
    }
}

/// All but the one on the wire.
fn more_addresses() -> Vec<Ipv4Addr> {
    let decoys = DECOYS.iter().map(|decoy| decoy.parse().expect("an address"));
    decoys.chain([GOOD, OTHER, SHARED, EVIL]).chain(RESOLVERS).collect()
}

async fn serve(internet: &Internet) {
    // Datagrams are answered from the address that they came to, so each address has its own socket.
    let all: Vec<IpAddr> = more_addresses().into_iter().chain([internet.address]).map(IpAddr::V4).collect();
    for address in all.into_iter().chain([EVIL6, GOOD6].map(|six| six.parse().expect("an address"))) {
        names::serve(address, &internet.names).await;
        for port in UDP_PORTS {
            packets::echo_datagrams(address, port).await;
        }
    }
    for port in WEB_PORTS {
        web::serve(port, None, &internet.seen).await;
    }
    for port in TLS_PORTS {
        web::serve(port, Some(internet.trust.acceptor()), &internet.seen).await;
    }
    for port in ECHO_PORTS {
        packets::echo_streams(port).await;
    }
    internet.packets.start();
}
