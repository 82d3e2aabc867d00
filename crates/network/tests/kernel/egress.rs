//! Address lists, fresh answers, and records.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_model::policy::egress::ranges::Ranges;
use atoll_model::policy::egress::{DirectMode, Egress, TenantFloor, compile};
use atoll_model::{EgressRecord, EgressVerdict, NetworkLimits, NetworkMode, NetworkPolicy, SandboxId};
use atoll_network::{Flows, Fresh, GATE_PORT, GATEWAY, Opener, netns};

use crate::kernel::world::{FORBIDDEN, HOST_WAN, INTERNET, Sandbox, TCP_PORT, World, ip};

/// More addresses of the internet.
pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 200);
const ECHO_PORT: u16 = 8082;

pub(crate) fn custom(allowed: &[&str]) -> NetworkPolicy {
    NetworkPolicy {
        mode: NetworkMode::Custom,
        allow_cidrs: allowed.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        ..NetworkPolicy::default()
    }
}

pub(crate) fn compiled(policy: &NetworkPolicy) -> Egress {
    compile(&TenantFloor { private_when_named: true, policy: None }, None, policy, &[])
}

pub(crate) fn wide_world() -> World {
    let world = World::new();
    netns::run_in(world.internet.as_fd(), || {
        ip(&format!("addr add {NEAR}/32 dev lo"));
        ip(&format!("addr add {FAR}/32 dev lo"));
    })
    .unwrap();
    // Bound to one address each, so that replies come from it.
    for address in [NEAR, FAR] {
        let socket =
            netns::run_in(world.internet.as_fd(), || UdpSocket::bind((address, ECHO_PORT))).unwrap().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        });
    }
    world
}

fn change(world: &mut World, sandbox: &Sandbox, policy: &NetworkPolicy) {
    world.handle().set_policy(sandbox.link, &compiled(policy), sandbox.namespace.as_fd()).unwrap();
}

#[test]
fn only_listed_addresses_are_reached_and_the_host_never() {
    let mut world = wide_world();
    let policy = custom(&["198.51.100.0/25", "203.0.113.0/24", "10.1.2.0/24", "0.0.0.0/1"]);
    let sandbox = world.sandbox(&compiled(&policy));
    assert!(sandbox.ask(NEAR, TCP_PORT).is_ok());
    sandbox.assert_reaches_internet();
    sandbox.assert_refused(FAR, TCP_PORT);
    sandbox.assert_refused(HOST_WAN, crate::kernel::world::HOST_PORT);
    // A named private range is reachable if the operator allows it. All other forbidden ranges stay closed.
    assert!(sandbox.ask(FORBIDDEN[0], TCP_PORT).is_ok());
    for address in &FORBIDDEN[1..] {
        sandbox.assert_refused(*address, TCP_PORT);
    }
    // The policy has no names, so DNS is closed.
    sandbox.assert_refused(GATEWAY, 53);
}

#[test]
fn the_kernel_holds_the_floor_below_every_list() {
    let mut world = wide_world();
    // A list that no policy compiles to: all addresses.
    let all = Egress { direct_mode: DirectMode::Listed, direct: Ranges::all(), ..Egress::default() };
    let (sandbox, other) = (world.sandbox(&all), world.sandbox(&Egress::open()));
    assert!(sandbox.ask(NEAR, TCP_PORT).is_ok());
    for address in &FORBIDDEN[..3] {
        assert!(sandbox.ask(*address, TCP_PORT).is_ok(), "{address} is private, and listed");
    }
    for address in &FORBIDDEN[3..] {
        sandbox.assert_refused(*address, TCP_PORT);
    }
    let block = world.config.block;
    for address in [HOST_WAN, block.host_address(), block.router_address(), other.link.address] {
        sandbox.assert_refused(address, crate::kernel::world::HOST_PORT);
    }
    // An address of the host within a listed private range.
    let own = Ipv4Addr::new(10, 200, 0, 1);
    world.in_host(|| ip(&format!("addr add {own}/32 dev lo")));
    assert!(world.in_host(|| crate::kernel::world::ask(own, crate::kernel::world::HOST_PORT)).is_ok());
    sandbox.assert_unreachable(own, crate::kernel::world::HOST_PORT);
    world.router().refresh_host().unwrap();
    sandbox.assert_refused(own, crate::kernel::world::HOST_PORT);
}

#[test]
fn what_is_denied_is_refused_and_all_else_is_reached() {
    let mut world = wide_world();
    let policy =
        NetworkPolicy { deny_cidrs: vec!["198.51.100.7".parse().unwrap()], ..NetworkPolicy::allow_all() };
    let sandbox = world.sandbox(&compiled(&policy));
    sandbox.assert_refused(NEAR, TCP_PORT);
    assert!(sandbox.ask(FAR, TCP_PORT).is_ok());
    for address in FORBIDDEN {
        sandbox.assert_refused(*address, TCP_PORT);
    }
    change(&mut world, &sandbox, &NetworkPolicy::allow_all());
    assert!(sandbox.ask(NEAR, TCP_PORT).is_ok());
    change(&mut world, &sandbox, &policy);
    sandbox.assert_refused(NEAR, TCP_PORT);
}

/// A connection from the sandbox to a new server at `to`.
pub(crate) fn connected(world: &World, sandbox: &Sandbox, to: Ipv4Addr) -> (TcpStream, TcpStream) {
    let listener = netns::run_in(world.internet.as_fd(), || TcpListener::bind((to, 8090))).unwrap().unwrap();
    let inside =
        sandbox.inside(|| TcpStream::connect_timeout(&(to, 8090).into(), Duration::from_secs(20))).unwrap();
    let (outside, _) = listener.accept().unwrap();
    for stream in [&inside, &outside] {
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    (inside, outside)
}

pub(crate) fn passes(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    let mut byte = [0];
    from.write_all(b"x").is_ok() && to.read_exact(&mut byte).is_ok()
}

#[test]
fn a_changed_list_cuts_what_it_no_longer_names_and_nothing_else() {
    let mut world = wide_world();
    let sandbox = world.sandbox(&compiled(&custom(&["198.51.100.7", "198.51.100.200"])));
    let (mut kept_in, mut kept_out) = connected(&world, &sandbox, NEAR);
    let (mut cut_in, mut cut_out) = connected(&world, &sandbox, FAR);
    assert!(passes(&mut kept_out, &mut kept_in) && passes(&mut cut_out, &mut cut_in));
    change(&mut world, &sandbox, &custom(&["198.51.100.0/26", "203.0.113.0/24"]));
    // The server sends first: nothing may arrive on the closed connection, and the other one continues unaided.
    assert!(!passes(&mut cut_out, &mut cut_in), "it still hears what it may not reach");
    assert!(passes(&mut kept_out, &mut kept_in), "an allowed connection was dropped");
    assert!(passes(&mut kept_in, &mut kept_out));
    assert!(!passes(&mut cut_in, &mut cut_out), "it still talks to what it may not reach");
    // From a list to everything and back: the connection continues.
    change(&mut world, &sandbox, &NetworkPolicy::allow_all());
    assert!(passes(&mut kept_out, &mut kept_in));
    change(&mut world, &sandbox, &custom(&["198.51.100.7"]));
    assert!(passes(&mut kept_out, &mut kept_in) && passes(&mut kept_in, &mut kept_out));
    change(&mut world, &sandbox, &NetworkPolicy::deny_all());
    assert!(!passes(&mut kept_out, &mut kept_in));
}

/// Takes the place of the gate, and returns the original destination of a connection.
pub(crate) fn serve_gate(world: &World) {
    let listener = netns::run_in(world.router().namespace(), || TcpListener::bind((GATEWAY, GATE_PORT)))
        .unwrap()
        .unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let meant = rustix::net::sockopt::ip_original_dst(&stream).unwrap();
            let _ = stream.write_all(format!("gate {meant}").as_bytes());
        }
    });
}

fn named() -> NetworkPolicy {
    NetworkPolicy { allow_domains: vec!["example.com".parse().unwrap()], ..custom(&[]) }
}

#[test]
fn a_fresh_answer_leads_to_the_gate_for_one_sandbox_and_for_a_while() {
    let mut world = wide_world();
    serve_gate(&world);
    let fresh = Fresh::open(world.router().namespace()).unwrap();
    let (sandbox, other) = (world.sandbox(&compiled(&named())), world.sandbox(&compiled(&named())));
    sandbox.assert_refused(NEAR, TCP_PORT);
    // The gate is reachable only through a DNS answer.
    sandbox.assert_refused(GATEWAY, GATE_PORT);
    fresh.open(sandbox.link, &[NEAR, FAR], Duration::from_secs(4)).unwrap();
    fresh.open(sandbox.link, &[NEAR], Duration::from_secs(30)).unwrap();
    assert_eq!(sandbox.ask(NEAR, 443).unwrap(), format!("gate {NEAR}:443"));
    assert_eq!(sandbox.ask(FAR, 80).unwrap(), format!("gate {FAR}:80"));
    other.assert_refused(NEAR, TCP_PORT);
    // Names are reachable only over TCP.
    assert!(!hears_udp(&sandbox, NEAR));
    std::thread::sleep(Duration::from_millis(4_300));
    sandbox.assert_refused(FAR, TCP_PORT);
    assert!(sandbox.ask(NEAR, 443).is_ok(), "its time was extended");
    fresh.close(sandbox.link, &[NEAR, FAR]).unwrap();
    sandbox.assert_refused(NEAR, TCP_PORT);
    // A fresh answer has precedence over a list and over an open policy.
    change(&mut world, &sandbox, &NetworkPolicy::allow_all());
    fresh.open(sandbox.link, &[NEAR], Duration::from_secs(30)).unwrap();
    assert!(sandbox.ask(NEAR, TCP_PORT).unwrap().starts_with("gate"));
    assert!(!hears_udp(&sandbox, NEAR));
    assert!(hears_udp(&sandbox, FAR));
    change(&mut world, &sandbox, &NetworkPolicy::deny_all());
    sandbox.assert_unreachable(NEAR, TCP_PORT);
}

#[test]
fn one_sandbox_has_only_so_many_fresh_answers() {
    let world = World::new();
    let fresh = Fresh::open(world.router().namespace()).unwrap();
    let link = atoll_network::SandboxLink { number: 9, address: atoll_network::SandboxLink::address_of(9) };
    let many: Vec<Ipv4Addr> = (0..1_024u32).map(|n| Ipv4Addr::from(0x0808_0000 + n)).collect();
    for chunk in many.chunks(64) {
        fresh.open(link, chunk, Duration::from_secs(60)).unwrap();
    }
    fresh.open(link, &many[..1], Duration::from_secs(60)).unwrap();
    let error = fresh.open(link, &[NEAR], Duration::from_secs(60)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded);
    fresh.close(link, &many).unwrap();
    fresh.open(link, &[NEAR], Duration::from_secs(60)).unwrap();
}

pub(crate) fn hears_udp(sandbox: &Sandbox, from: Ipv4Addr) -> bool {
    sandbox.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket.connect((from, ECHO_PORT)).unwrap();
        let _ = socket.send(b"hello");
        socket.recv(&mut [0; 64]).is_ok()
    })
}

/// All records of a sandbox within some seconds, until `enough`.
pub(crate) fn told(flows: &Flows, enough: impl Fn(&[EgressRecord]) -> bool) -> Vec<EgressRecord> {
    let started_at = Instant::now();
    let mut all = Vec::new();
    while started_at.elapsed() < Duration::from_secs(8) && !enough(&all) {
        all.extend(flows.read().unwrap().into_iter().map(|(_, record)| record));
        std::thread::sleep(Duration::from_millis(100));
    }
    all
}

#[test]
fn what_passes_and_what_is_refused_is_written_down_with_the_rule() {
    let mut world = wide_world();
    let flows = Flows::open(world.router().namespace()).unwrap();
    let egress = Arc::new(compiled(&NetworkPolicy {
        deny_cidrs: vec!["198.51.100.200".parse().unwrap()],
        ..custom(&["198.51.100.0/24"])
    }));
    let sandbox = world.sandbox(&egress);
    let id = SandboxId::from_entropy([3; 20]);
    flows.admit(sandbox.link, &id, Arc::clone(&egress));
    for _ in 0..5 {
        assert!(sandbox.ask(NEAR, TCP_PORT).is_ok());
        sandbox.assert_refused(INTERNET, TCP_PORT);
    }
    assert!(hears_udp(&sandbox, NEAR));
    sandbox.assert_refused(FAR, TCP_PORT);
    sandbox.assert_refused(FORBIDDEN[3], 80);
    sandbox.assert_refused(HOST_WAN, 7070);
    let records = told(&flows, |records| records.len() >= 6 && records.iter().any(|r| r.received > 100));
    let find = |address: Ipv4Addr, protocol: &str| {
        let of = |record: &&EgressRecord| {
            record.address == Some(address.into()) && record.protocol.as_deref() == Some(protocol)
        };
        records.iter().filter(of).collect::<Vec<_>>()
    };
    let tcp = find(NEAR, "tcp");
    assert!(tcp.iter().all(|r| r.verdict == EgressVerdict::Allowed && r.rule == "allow_cidrs"), "{tcp:?}");
    assert_eq!(tcp[0].port, Some(TCP_PORT));
    let (sent, received) = tcp.iter().fold((0, 0), |(s, r), one| (s + one.sent, r + one.received));
    assert!(sent > 5 * 160 && received > 5 * 160 && sent < 5_000, "{sent} {received}");
    assert_eq!(find(NEAR, "udp")[0].port, Some(ECHO_PORT));
    for (address, rule) in [
        (INTERNET, "not in allow_cidrs"),
        (FAR, "deny_cidrs"),
        (FORBIDDEN[3], "never: link-local and metadata"),
        (HOST_WAN, "never: host"),
    ] {
        let found = find(address, "tcp");
        assert!(found.iter().all(|r| r.verdict == EgressVerdict::Refused && r.rule == rule), "{found:?}");
        assert!(matches!(found.len(), 1 | 2), "{address}: {found:?}");
    }
    // No traffic is recorded twice, and a dismissed link is forgotten.
    assert!(told(&flows, |_| false).is_empty());
    world.handle().detach(sandbox.link).unwrap();
    flows.dismiss(sandbox.link);
    assert!(flows.read().unwrap().is_empty());
    let rules = world.in_router(|| std::process::Command::new("nft").args(["list", "ruleset"]).output());
    let rules = String::from_utf8(rules.unwrap().stdout).unwrap();
    assert!(!rules.contains(&sandbox.link.address.to_string()), "{rules}");
}

#[test]
fn pings_have_one_record_and_a_scan_of_everything_has_a_bound() {
    let mut world = wide_world();
    let flows = Flows::open(world.router().namespace()).unwrap();
    let egress = Arc::new(Egress::open());
    let sandbox = world.sandbox(&egress);
    flows.admit(sandbox.link, &SandboxId::from_entropy([3; 20]), Arc::clone(&egress));
    sandbox.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        (1..900u16).for_each(|port| drop(socket.send_to(b"x", (NEAR, port))));
    });
    let records = told(&flows, |records| !records.is_empty());
    assert_eq!(records.len(), 201, "two hundred, and one for the rest");
    assert!(records.iter().any(|record| record.rule == "many more destinations" && record.sent > 1_000));
    std::thread::sleep(Duration::from_millis(100));
    drop(told(&flows, |records| !records.is_empty()));
    let pinged = sandbox.inside(|| {
        std::process::Command::new("ping")
            .args(["-c3", "-i0.2", &FAR.to_string()])
            .output()
            .map(|out| out.status)
    });
    if pinged.is_ok_and(|status| status.success()) {
        let records = told(&flows, |records| records.iter().any(|r| r.protocol.as_deref() == Some("icmp")));
        let pings: Vec<_> = records.iter().filter(|r| r.protocol.as_deref() == Some("icmp")).collect();
        assert!(pings.len() == 1 && pings[0].received == 3 * 84 && pings[0].port.is_none(), "{pings:?}");
    }
}

#[test]
fn a_policy_is_put_in_force_even_where_somebody_meddled_with_the_old_one() {
    let mut world = wide_world();
    let limits = NetworkLimits { connections: Some(50), ..NetworkLimits::default() };
    let sandbox = world.sandbox(&compiled(&NetworkPolicy { limits, ..custom(&["198.51.100.7"]) }));
    let flushed = world.in_router(|| {
        std::process::Command::new("nft").args(["flush", "set", "inet", "atoll", "capped"]).status().unwrap()
    });
    assert!(flushed.success());
    change(&mut world, &sandbox, &custom(&["198.51.100.200"]));
    assert!(sandbox.ask(FAR, TCP_PORT).is_ok());
    sandbox.assert_refused(NEAR, TCP_PORT);
    change(&mut world, &sandbox, &NetworkPolicy::deny_all());
    sandbox.assert_refused(FAR, TCP_PORT);
}

#[test]
fn lists_and_limits_are_adopted_and_swept() {
    let mut world = wide_world();
    let limits = NetworkLimits {
        connections: Some(50),
        bytes_per_destination: Some(1 << 20),
        down_bytes_per_s: Some(10 << 20),
        up_bytes_per_s: Some(10 << 20),
    };
    let policy = NetworkPolicy { limits, ..custom(&["198.51.100.7"]) };
    let (kept, lost) = (world.sandbox(&compiled(&policy)), world.sandbox(&compiled(&policy)));
    let fresh = Fresh::open(world.router().namespace()).unwrap();
    fresh.open(kept.link, &[FAR], Duration::from_secs(60)).unwrap();
    fresh.open(lost.link, &[FAR], Duration::from_secs(60)).unwrap();
    world.crash();
    world.open();
    let sweep = world.handle().sweep(&[kept.link]).unwrap();
    // own, listed, budgets, capped; and fresh of both: the gate that gave them is gone.
    assert_eq!((sweep.removed_links.len(), sweep.removed_elements), (1, 6));
    assert!(kept.ask(NEAR, TCP_PORT).is_ok());
    kept.assert_refused(INTERNET, TCP_PORT);
    let rules = || {
        let rules = world.in_router(|| std::process::Command::new("nft").args(["list", "ruleset"]).output());
        String::from_utf8(rules.unwrap().stdout).unwrap()
    };
    let (mine, other) = (kept.link.number, lost.link.number);
    assert!(rules().contains(&format!("chain c{mine} ")) && !rules().contains(&format!("c{other} ")));
    change(&mut world, &kept, &custom(&["198.51.100.200"]));
    kept.assert_refused(NEAR, TCP_PORT);
    world.handle().delete_links(&[kept.link]).unwrap();
    let rules = world.in_router(|| std::process::Command::new("nft").args(["list", "ruleset"]).output());
    let rules = String::from_utf8(rules.unwrap().stdout).unwrap();
    for object in ["c", "d", "b", "q"] {
        assert!(!rules.contains(&format!(" {object}{mine} ")), "{object}{mine} is left");
    }
}
