//! sandbox ── router (gate) ── internet.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use atoll_model::policy::egress::{Egress, Injected, OpenedTransform, Seed, TenantFloor, compile};
use atoll_model::{EgressRecord, HeaderText, NetworkPolicy, SandboxId};
use atoll_network::{GATE_PORT, GATEWAY, Gate, Opener, SandboxLink, Upstreams, netns};
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};

use crate::gate::servers::{self, Internet};

pub(crate) const SITE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
pub(crate) const OTHER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
pub(crate) const SANDBOX: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 5);
pub(crate) const SEED: Seed = Seed([42; 32]);

/// The recorded kernel operations.
#[derive(Default)]
pub(crate) struct Told(pub(crate) Mutex<Vec<(&'static str, Vec<Ipv4Addr>)>>);

impl Opener for Told {
    fn open(&self, _: SandboxLink, addresses: &[Ipv4Addr], _: Duration) -> std::io::Result<()> {
        self.0.lock().unwrap().push(("open", addresses.to_vec()));
        Ok(())
    }

    fn close(&self, _: SandboxLink, addresses: &[Ipv4Addr]) -> std::io::Result<()> {
        self.0.lock().unwrap().push(("close", addresses.to_vec()));
        Ok(())
    }
}

pub(crate) struct World {
    pub(crate) sandbox: OwnedFd,
    pub(crate) gate: Gate,
    pub(crate) told: Arc<Told>,
    pub(crate) records: Arc<Mutex<Vec<EgressRecord>>>,
    pub(crate) internet: Arc<Internet>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    served: Option<std::thread::JoinHandle<()>>,
}

impl World {
    pub(crate) fn new(policy: &str) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests make network namespaces and need root");
        let [sandbox, router, net] = [(); 3].map(|()| netns::create().unwrap());
        wire(&sandbox, &router, &net);
        let internet = Internet::start(net);
        trust(&internet.authority_pem);
        let told = Arc::new(Told::default());
        let records = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&records);
        let log = Arc::new(move |_: &SandboxId, record| kept.lock().unwrap().push(record));
        let upstreams = Upstreams::fixed(vec![SocketAddr::from((SITE, 53))]);
        let gate = Gate::bind(router.as_fd(), upstreams, told.clone(), log).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let running = gate.clone();
        let served = std::thread::spawn(move || {
            netns::join(router.as_fd()).unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    result = running.run() => panic!("{result:?}"),
                    _ = stopped => {}
                }
            });
        });
        let world = Self { sandbox, gate, told, records, internet, stop: Some(stop), served: Some(served) };
        world.admit(policy);
        world
    }

    pub(crate) fn link() -> SandboxLink {
        SandboxLink { number: 5, address: SANDBOX }
    }

    pub(crate) fn admit(&self, policy: &str) {
        self.gate.admit(Self::link(), &"abcdefghij0123456789".parse().unwrap(), compiled(policy));
    }

    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(self.sandbox.as_fd(), work).unwrap()
    }

    /// Queries the gate for the addresses of a name.
    pub(crate) fn resolve(&self, name: &str) -> (ResponseCode, Vec<Ipv4Addr>) {
        let answer = self.ask(name, RecordType::A);
        let addresses = answer.answers.iter().filter_map(|record| match &record.data {
            RData::A(address) => Some(address.0),
            _ => None,
        });
        (answer.metadata.response_code, addresses.collect())
    }

    pub(crate) fn ask(&self, name: &str, kind: RecordType) -> Message {
        let question = question(name, kind);
        let bytes = self.inside(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.connect((GATEWAY, 53)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket.send(&question).unwrap();
            let mut buffer = vec![0u8; 4096];
            let len = socket.recv(&mut buffer).unwrap();
            buffer.truncate(len);
            buffer
        });
        Message::from_vec(&bytes).unwrap()
    }

    pub(crate) fn connect(&self, address: Ipv4Addr, port: u16) -> TcpStream {
        let stream = self
            .inside(|| TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(3)).unwrap());
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream
    }

    /// Sends bytes to a server and returns what arrives until the end.
    pub(crate) fn say(&self, address: Ipv4Addr, port: u16, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect(address, port);
        stream.write_all(bytes).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    }

    /// The last record that satisfies the condition; waits for it a while.
    pub(crate) fn recorded(&self, is_it: impl Fn(&EgressRecord) -> bool) -> EgressRecord {
        let started_at = Instant::now();
        loop {
            if let Some(record) = self.records.lock().unwrap().iter().rev().find(|record| is_it(record)) {
                return record.clone();
            }
            assert!(
                started_at.elapsed() < Duration::from_secs(60),
                "only {:#?}",
                self.records.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        let _ = self.served.take().map(std::thread::JoinHandle::join);
    }
}

pub(crate) fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(format!("{name}.")).unwrap(), kind));
    message.to_vec().unwrap()
}

pub(crate) fn compiled(policy: &str) -> Arc<Egress> {
    let policy: NetworkPolicy = serde_json::from_str(policy).unwrap();
    let opened: Vec<OpenedTransform> = policy.transforms.iter().map(opened).collect();
    let mut egress = compile(&TenantFloor::default(), None, &policy, &opened);
    egress.seed = (!egress.changes.is_empty()).then_some(SEED);
    Arc::new(egress)
}

fn opened(transform: &atoll_model::Transform) -> OpenedTransform {
    let inject = transform.inject_headers.iter().map(|(name, value)| {
        let (HeaderText::Plain(value) | HeaderText::Sealed(value)) = value;
        Injected { name: name.clone(), value: value.clone() }
    });
    OpenedTransform {
        domain: transform.domain.clone(),
        inject: inject.collect(),
        strip: transform.strip_headers.clone(),
        plain_http: transform.plain_http,
    }
}

/// Makes the gate trust the web servers of these tests, whichever test runs first: all have the same authority.
fn trust(pem: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without a name, so that it is removed with this process.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(pem.as_bytes()).unwrap();
        let path = format!("/proc/self/fd/{}", file.into_raw_fd());
        // SAFETY: before the first gate runs; the tests read no other variable meanwhile.
        unsafe { std::env::set_var("ATOLL_EGRESS_ROOTS", path) };
    });
}

fn wire(sandbox: &OwnedFd, router: &OwnedFd, net: &OwnedFd) {
    let path = |fd: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    netns::run_in(router.as_fd(), || {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        ip("link set lo up");
        ip(&format!("addr add {GATEWAY}/32 dev lo"));
        ip(&format!("link add s5 type veth peer name eth0 netns {}", path(sandbox)));
        ip("link set s5 up");
        ip(&format!("route add {SANDBOX}/32 dev s5"));
        ip(&format!("link add uplink type veth peer name net netns {}", path(net)));
        ip("addr add 203.0.113.1/24 dev uplink");
        ip("link set uplink up");
        nft(&format!(
            "add table ip test\n\
             add chain ip test pre {{ type nat hook prerouting priority dstnat; }}\n\
             add rule ip test pre iifname s5 ip daddr != {GATEWAY} meta l4proto tcp dnat to {GATEWAY}:{GATE_PORT}\n"
        ));
    })
    .unwrap();
    netns::run_in(net.as_fd(), || {
        ip("link set lo up");
        ip(&format!("addr add {SITE}/24 dev net"));
        ip(&format!("addr add {OTHER}/24 dev net"));
        ip("link set net up");
        ip("route add 100.64.0.0/10 via 203.0.113.1");
    })
    .unwrap();
    netns::run_in(sandbox.as_fd(), || {
        ip("link set lo up");
        ip(&format!("addr add {SANDBOX}/32 dev eth0"));
        ip("link set eth0 up");
        ip(&format!("route add default via {GATEWAY} dev eth0 onlink"));
    })
    .unwrap();
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn nft(rules: &str) {
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{rules}");
}

/// A TLS client in the sandbox that trusts these roots.
pub(crate) fn tls(
    stream: TcpStream,
    name: &str,
    roots_pem: &str,
) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let name = name.to_owned().try_into().unwrap();
    let connection = rustls::ClientConnection::new(servers::client_config(roots_pem), name).unwrap();
    rustls::StreamOwned::new(connection, stream)
}
