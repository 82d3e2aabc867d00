//! IPv6 for sandboxes whose policy names IPv6 ranges, and for no others.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_model::policy::egress::Egress;
use atoll_model::{EgressRecord, EgressVerdict, NetworkLimits, NetworkPolicy, SandboxId};
use atoll_network::{Flows, netns};

use crate::kernel::egress::{compiled, custom};
use crate::kernel::world::{HOST_PORT, INTERNET, QUICK, SILENCE, Sandbox, TCP_PORT, World, ip};

const HOST_WAN6: &str = "2001:db8:9::1";
const INTERNET6: &str = "2001:db8:9::9";
const NEAR6: &str = "2001:db8:a::7";
const FAR6: &str = "2001:db8:b::7";
/// They exist behind the host and answer, but not to a sandbox.
const FORBIDDEN6: [&str; 3] = ["fd12:3456::7", "64:ff9b::cb00:7109", "2002:cb00:7109::7"];

fn wide_world() -> World {
    let world = World::new();
    world.in_host(|| {
        ip(&format!("addr add {HOST_WAN6}/64 dev wan nodad"));
    });
    netns::run_in(world.internet.as_fd(), || {
        ip(&format!("addr add {INTERNET6}/64 dev net nodad"));
        for address in [NEAR6, FAR6].into_iter().chain(FORBIDDEN6) {
            ip(&format!("addr add {address}/128 dev lo nodad"));
        }
    })
    .unwrap();
    world.in_host(|| ip(&format!("-6 route add default via {INTERNET6}")));
    serve(&world.internet, TCP_PORT);
    serve(&world.host, HOST_PORT);
    // The link is new: the first neighbour solicitation may be lost, and is repeated after a second.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60)
        && world.in_host(|| TcpStream::connect_timeout(&at(INTERNET6), Duration::from_secs(2)).is_err())
    {}
    world
}

fn at(address: &str) -> std::net::SocketAddr {
    (address.parse::<IpAddr>().unwrap(), TCP_PORT).into()
}

/// A server that returns the caller's address, over IPv6 only.
fn serve(namespace: &impl AsFd, port: u16) {
    // IPv4 uses the port already.
    let listener = netns::run_in(namespace.as_fd(), || {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET6, rustix::net::SocketType::STREAM, None)?;
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
        rustix::net::bind(&socket, &std::net::SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
        rustix::net::listen(&socket, 64)?;
        Ok::<_, io::Error>(TcpListener::from(socket))
    });
    let listener = listener.unwrap().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(peer.ip().to_string().as_bytes());
        }
    });
}

fn ask(sandbox: &Sandbox, to: &str, port: u16) -> io::Result<String> {
    let to: IpAddr = to.parse().unwrap();
    sandbox.inside(|| {
        let mut stream = TcpStream::connect_timeout(&(to, port).into(), SILENCE)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
}

/// Refused with an error, and at once.
fn assert_refused(sandbox: &Sandbox, to: &str, port: u16) {
    let started_at = Instant::now();
    let error = ask(sandbox, to, port).expect_err(&format!("{to}:{port} must not answer"));
    let took = started_at.elapsed();
    assert!(took < QUICK, "{to}:{port} was silent for {took:?}: {error}");
    let expected = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NetworkUnreachable];
    assert!(expected.contains(&error.kind()), "{to}:{port} said {error}");
}

fn change(world: &mut World, sandbox: &Sandbox, egress: &Egress) {
    world.handle().set_policy(sandbox.link, egress, sandbox.namespace.as_fd()).unwrap();
}

fn addresses(sandbox: &Sandbox) -> String {
    let shown = sandbox
        .inside(|| Command::new("ip").args(["-6", "-o", "addr", "show", "dev", "eth0"]).output().unwrap());
    String::from_utf8(shown.stdout).unwrap()
}

fn setting(world: &World, name: &str) -> String {
    let path = format!("/proc/sys/net/ipv6/conf/{name}");
    world.in_host(|| std::fs::read_to_string(path).unwrap().trim().to_owned())
}

fn rules(world: &World) -> String {
    let rules = world.in_router(|| Command::new("nft").args(["list", "ruleset"]).output());
    String::from_utf8(rules.unwrap().stdout).unwrap()
}

#[test]
fn named_ranges_are_reached_and_nothing_else_is() {
    let mut world = wide_world();
    let policy = custom(&["2001:db8:a::/48", "2001:db8:9::/64", "203.0.113.0/24"]);
    let (sandbox, other) = (world.sandbox(&compiled(&policy)), world.sandbox(&compiled(&policy)));
    assert_eq!(ask(&sandbox, NEAR6, TCP_PORT).unwrap(), HOST_WAN6);
    assert_eq!(ask(&sandbox, INTERNET6, TCP_PORT).unwrap(), HOST_WAN6);
    sandbox.assert_reaches_internet();
    for _ in 0..30 {
        assert_refused(&sandbox, FAR6, TCP_PORT);
    }
    for address in FORBIDDEN6 {
        assert_refused(&sandbox, address, TCP_PORT);
    }
    // The host, though its address is in a range; its uplink and the router's; and the other sandbox.
    assert_refused(&sandbox, HOST_WAN6, HOST_PORT);
    let block = 0x8000 | world.config.block.number();
    for end in ["1", "2"] {
        assert_refused(&sandbox, &format!("fd61:746f:6c6c:{block:x}::{end}"), HOST_PORT);
    }
    serve(&other.namespace, HOST_PORT);
    // The kernel enters the route to an address in the background, after the request for the address was answered.
    let began = Instant::now();
    while let Err(error) = other.inside(|| TcpStream::connect((other.link.address6(), HOST_PORT))) {
        assert!(began.elapsed() < Duration::from_secs(60), "the other sandbox cannot reach itself: {error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_refused(&sandbox, &other.link.address6().to_string(), HOST_PORT);
    assert!(ask(&sandbox, "fe80::1", HOST_PORT).is_err());
    assert_eq!(addresses(&sandbox).lines().count(), 1, "{}", addresses(&sandbox));
}

#[test]
fn even_everything_is_only_everything_public() {
    let mut world = wide_world();
    let sandbox = world.sandbox(&compiled(&custom(&["::/0"])));
    for address in [NEAR6, FAR6, INTERNET6] {
        assert_eq!(ask(&sandbox, address, TCP_PORT).unwrap(), HOST_WAN6);
    }
    for address in FORBIDDEN6 {
        assert_refused(&sandbox, address, TCP_PORT);
    }
    assert_refused(&sandbox, HOST_WAN6, HOST_PORT);
    sandbox.assert_refused(INTERNET, TCP_PORT);
}

#[test]
fn who_names_no_range_has_no_ipv6_and_the_host_is_left_alone() {
    let mut world = wide_world();
    let open = world.sandbox(&Egress::open());
    assert_eq!(addresses(&open), "");
    assert!(ask(&open, NEAR6, TCP_PORT).is_err());
    assert_eq!(
        (setting(&world, "wan/force_forwarding"), setting(&world, "all/forwarding")),
        ("0".into(), "0".into())
    );
    // Even if it configures everything that another sandbox has.
    let named = world.sandbox(&compiled(&custom(&["2001:db8:a::/48"])));
    assert!(ask(&named, NEAR6, TCP_PORT).is_ok());
    for address in [open.link.address6(), named.link.address6()] {
        open.ip(&format!("-6 addr add {address}/128 dev eth0 nodad"));
        open.ip("-6 route replace default via fe80::1 dev eth0 onlink");
        assert!(ask(&open, NEAR6, TCP_PORT).is_err(), "with {address}");
        open.ip(&format!("-6 addr del {address}/128 dev eth0"));
    }
    // Only single interfaces forward, and only for Atoll; router advertisements are still accepted.
    assert_eq!(
        (setting(&world, "wan/force_forwarding"), setting(&world, "all/forwarding")),
        ("1".into(), "0".into())
    );
    assert_eq!(
        (setting(&world, "wan/forwarding"), setting(&world, "wan/accept_ra")),
        ("0".into(), "1".into())
    );
    let table = world.config.block.host_table();
    let opened =
        world.in_host(|| Command::new("nft").args(["list", "set", "inet", &table, "opened6"]).output());
    assert!(String::from_utf8(opened.unwrap().stdout).unwrap().contains("\"wan\""));
}

#[test]
fn a_packet_with_a_foreign_source_is_dropped() {
    let mut world = wide_world();
    let policy = compiled(&custom(&["2001:db8:a::/48"]));
    let (sandbox, other) = (world.sandbox(&policy), world.sandbox(&policy));
    let heard = netns::run_in(world.internet.as_fd(), || UdpSocket::bind((NEAR6, 8099))).unwrap().unwrap();
    heard.set_read_timeout(Some(SILENCE)).unwrap();
    let send_from = |source: Ipv6Addr| {
        sandbox.inside(|| UdpSocket::bind((source, 0)).unwrap().send_to(b"x", (NEAR6, 8099)).unwrap());
        heard.recv_from(&mut [0; 16]).map(|(_, from)| from.ip().to_string())
    };
    assert_eq!(send_from(sandbox.link.address6()).unwrap(), HOST_WAN6);
    heard.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    for source in [other.link.address6(), FAR6.parse().unwrap(), HOST_WAN6.parse().unwrap()] {
        sandbox.ip(&format!("-6 addr add {source}/128 dev eth0 nodad"));
        assert!(send_from(source).is_err(), "{source} passed");
    }
}

#[test]
fn ranges_come_and_go_while_it_runs() {
    let mut world = wide_world();
    let sandbox = world.sandbox(&Egress::closed());
    assert!(ask(&sandbox, NEAR6, TCP_PORT).is_err());
    change(&mut world, &sandbox, &compiled(&custom(&["2001:db8:a::7", "2001:db8:b::7"])));
    let listener = netns::run_in(world.internet.as_fd(), || TcpListener::bind((Ipv6Addr::UNSPECIFIED, 8090)));
    let listener = listener.unwrap().unwrap();
    let connect = |to: &str| {
        let inside = sandbox.inside(|| TcpStream::connect((to, 8090))).unwrap();
        let outside = listener.accept().unwrap().0;
        for stream in [&inside, &outside] {
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        }
        (inside, outside)
    };
    let passes = |from: &mut TcpStream, to: &mut TcpStream| {
        from.write_all(b"x").is_ok() && to.read_exact(&mut [0]).is_ok()
    };
    let ((mut kept_in, mut kept_out), (mut cut_in, mut cut_out)) = (connect(NEAR6), connect(FAR6));
    assert!(passes(&mut kept_out, &mut kept_in) && passes(&mut cut_out, &mut cut_in));
    change(&mut world, &sandbox, &compiled(&custom(&["2001:db8:a::/64", "203.0.113.0/24"])));
    assert!(!passes(&mut cut_out, &mut cut_in) && !passes(&mut cut_in, &mut cut_out));
    assert!(passes(&mut kept_out, &mut kept_in) && passes(&mut kept_in, &mut kept_out));
    sandbox.assert_reaches_internet();
    change(&mut world, &sandbox, &compiled(&NetworkPolicy::allow_all()));
    assert!(!passes(&mut kept_out, &mut kept_in) && ask(&sandbox, NEAR6, TCP_PORT).is_err());
    assert_eq!(addresses(&sandbox), "");
    sandbox.assert_reaches_internet();
    // Once more, and then detached.
    change(&mut world, &sandbox, &compiled(&custom(&["2001:db8:a::/64"])));
    assert!(ask(&sandbox, NEAR6, TCP_PORT).is_ok());
    world.handle().detach(sandbox.link).unwrap();
    assert!(ask(&sandbox, NEAR6, TCP_PORT).is_err());
    let (rules, number) = (rules(&world), sandbox.link.number);
    for object in ["d", "c", "q", "b", "e", "f", "r", "g", "s"] {
        assert!(!rules.contains(&format!("{object}{number} ")), "{object}{number} is left: {rules}");
    }
}

#[test]
fn a_crash_leaves_it_in_force_and_a_sweep_removes_what_nobody_claims() {
    let mut world = wide_world();
    let limits = NetworkLimits {
        connections: Some(50),
        bytes_per_destination: Some(1 << 20),
        ..NetworkLimits::default()
    };
    let policy = NetworkPolicy { limits, ..custom(&["2001:db8:a::/48"]) };
    let (kept, lost) = (world.sandbox(&compiled(&policy)), world.sandbox(&compiled(&policy)));
    world.crash();
    assert!(ask(&kept, NEAR6, TCP_PORT).is_ok());
    world.open();
    let sweep = world.handle().sweep(&[kept.link]).unwrap();
    assert_eq!(sweep.removed_links, [lost.link]);
    assert!(ask(&kept, NEAR6, TCP_PORT).is_ok());
    assert_refused(&kept, FAR6, TCP_PORT);
    assert!(rules(&world).contains(&format!("chain e{} ", kept.link.number)));
    assert!(!rules(&world).contains(&format!("e{} ", lost.link.number)));
    change(&mut world, &kept, &compiled(&policy));
    assert!(ask(&kept, NEAR6, TCP_PORT).is_ok());
    change(&mut world, &kept, &compiled(&custom(&["2001:db8:b::/48"])));
    assert_refused(&kept, NEAR6, TCP_PORT);
    assert!(ask(&kept, FAR6, TCP_PORT).is_ok());
    world.router().refresh_host().unwrap();
    assert!(ask(&kept, FAR6, TCP_PORT).is_ok());
    change(&mut world, &kept, &Egress::closed());
    assert!(ask(&kept, FAR6, TCP_PORT).is_err());
    // Another program changed the installed rules.
    change(&mut world, &kept, &compiled(&policy));
    let flushed =
        world.in_router(|| Command::new("nft").args(["flush", "set", "inet", "atoll", "own6"]).status());
    assert!(flushed.unwrap().success());
    change(&mut world, &kept, &Egress::closed());
    assert!(ask(&kept, NEAR6, TCP_PORT).is_err());
    assert!(!rules(&world).contains(&format!("e{} ", kept.link.number)));
}

#[test]
fn limits_hold_and_flows_are_written_down() {
    let mut world = wide_world();
    let flows = Flows::open(world.router().namespace()).unwrap();
    let limits = NetworkLimits {
        connections: Some(3),
        bytes_per_destination: Some(20_000),
        ..NetworkLimits::default()
    };
    let egress = Arc::new(compiled(&NetworkPolicy { limits, ..custom(&["2001:db8::/32"]) }));
    let sandbox = world.sandbox(&egress);
    flows.admit(sandbox.link, &SandboxId::from_entropy([3; 20]), Arc::clone(&egress));
    let listener = netns::run_in(world.internet.as_fd(), || TcpListener::bind((Ipv6Addr::UNSPECIFIED, 8090)));
    let listener = listener.unwrap().unwrap();
    let connect = |to: &str| {
        let to: IpAddr = to.parse().unwrap();
        sandbox.inside(|| TcpStream::connect_timeout(&(to, 8090).into(), Duration::from_secs(4)))
    };
    let held: Vec<_> = (0..3).map(|_| (connect(FAR6).unwrap(), listener.accept().unwrap())).collect();
    assert!(connect(FAR6).is_err(), "a fourth connection");
    let (mut inside, (mut outside, _)) = held.into_iter().next().unwrap();
    outside.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut came = 0;
    while inside.write_all(&[7; 1_000]).is_ok() {
        match outside.read(&mut [0; 4_096]) {
            Ok(len) if len > 0 => came += len,
            _ => break,
        }
    }
    assert!((5_000..21_000).contains(&came), "{came} bytes came");
    assert!(ask(&sandbox, "fd12:3456::7", TCP_PORT).is_err());
    let mut told: Vec<EgressRecord> = Vec::new();
    let (began, is_told) =
        (Instant::now(), |told: &[EgressRecord], rule: &str| told.iter().any(|record| record.rule == rule));
    let awaited =
        ["allow_cidrs", "limits: connections", "limits: bytes_per_destination", "never: not public"];
    while began.elapsed() < Duration::from_secs(30) && !awaited.iter().all(|rule| is_told(&told, rule)) {
        std::thread::sleep(Duration::from_millis(100));
        told.extend(flows.read().unwrap().into_iter().map(|(_, record)| record));
    }
    let find = |address: &str, verdict| {
        let address: IpAddr = address.parse().unwrap();
        told.iter().find(|r| r.address == Some(address) && r.verdict == verdict)
    };
    let passed = find(FAR6, EgressVerdict::Allowed).unwrap();
    assert_eq!(
        (passed.rule.as_str(), passed.port, passed.protocol.as_deref()),
        ("allow_cidrs", Some(8090), Some("tcp"))
    );
    assert!(told.iter().any(|r| r.rule == "limits: connections"), "{told:?}");
    assert!(told.iter().any(|r| r.rule == "limits: bytes_per_destination"), "{told:?}");
    assert_eq!(find("fd12:3456::7", EgressVerdict::Refused).unwrap().rule, "never: not public");
    world.handle().detach(sandbox.link).unwrap();
    flows.dismiss(sandbox.link);
    flows.read().unwrap();
    assert!(!rules(&world).contains(&sandbox.link.address6().to_string()));
}

#[test]
fn a_host_without_a_way_out_says_so_at_once_and_one_that_forwards_is_left_as_it_is() {
    let mut world = wide_world();
    world.in_host(|| ip("-6 route del default"));
    let sandbox = world.sandbox(&compiled(&custom(&["2001:db8:a::/48"])));
    let began = Instant::now();
    let error = ask(&sandbox, NEAR6, TCP_PORT).unwrap_err();
    assert!(began.elapsed() < QUICK, "{error} after {:?}", began.elapsed());
    assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable);
    assert_eq!(setting(&world, "wan/force_forwarding"), "0");
    // IPv6 exists now, and the operator enables forwarding.
    world.in_host(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        ip(&format!("-6 route add default via {INTERNET6}"));
    });
    world.router().refresh_host().unwrap();
    assert_eq!(ask(&sandbox, NEAR6, TCP_PORT).unwrap(), HOST_WAN6);
    assert_eq!(setting(&world, "wan/force_forwarding"), "0");
}

#[test]
fn teardown_puts_forwarding_by_ipv6_back() {
    let mut world = wide_world();
    let sandbox = world.sandbox(&compiled(&custom(&["2001:db8:a::/48"])));
    assert!(ask(&sandbox, NEAR6, TCP_PORT).is_ok());
    assert_eq!(setting(&world, "wan/force_forwarding"), "1");
    world.handle = None;
    world.router.take().unwrap().teardown().unwrap();
    assert_eq!(
        (setting(&world, "wan/force_forwarding"), setting(&world, "all/forwarding")),
        ("0".into(), "0".into())
    );
}
