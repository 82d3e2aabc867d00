//! Addresses that an open sandbox reaches, and those that no sandbox reaches.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use atoll_model::policy::egress::Egress;
use atoll_network::GATEWAY;

use crate::kernel::world::{FORBIDDEN, HOST_PORT, HOST_WAN, INTERNET, TCP_PORT, UDP_PORT, World, ask, ip};

#[test]
fn open_sandbox_reaches_the_internet_through_both_translations() {
    for everywhere in [false, true] {
        let mut world = World::with_forwarding(everywhere);
        world.sandbox(&Egress::open()).assert_reaches_internet();
    }
}

#[test]
fn private_link_local_and_metadata_addresses_are_refused() {
    let mut world = World::new();
    let sandbox = world.sandbox(&Egress::open());
    for &address in FORBIDDEN {
        // The host gets an answer there, so only the rules block the sandbox.
        assert!(world.in_host(|| ask(address, TCP_PORT)).is_ok(), "{address}");
        sandbox.assert_refused(address, TCP_PORT);
    }
    for address in [Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(240, 0, 0, 1), Ipv4Addr::new(0, 1, 2, 3)] {
        sandbox.assert_unreachable(address, TCP_PORT);
    }
    sandbox.assert_reaches_internet();
}

#[test]
fn the_host_is_not_reachable_by_any_of_its_addresses() {
    let mut world = World::new();
    let sandbox = world.sandbox(&Egress::open());
    let block = world.config.block;
    sandbox.assert_refused(HOST_WAN, HOST_PORT);
    sandbox.assert_refused(block.host_address(), HOST_PORT);
    sandbox.assert_refused(block.router_address(), HOST_PORT);
    sandbox.assert_refused(GATEWAY, HOST_PORT);

    // An address that the host gets later, outside every private range: no reply until refreshed, refused afterwards.
    let later = Ipv4Addr::new(198, 51, 100, 77);
    world.in_host(|| ip(&format!("addr add {later}/32 dev lo")));
    assert!(world.in_host(|| ask(later, HOST_PORT)).is_ok());
    sandbox.assert_unreachable(later, HOST_PORT);
    world.router().refresh_host().unwrap();
    sandbox.assert_refused(later, HOST_PORT);
    world.in_host(|| ip(&format!("addr del {later}/32 dev lo")));
    world.router().refresh_host().unwrap();
    sandbox.assert_reaches_internet();
}

#[test]
fn the_host_is_not_reachable_even_if_every_rule_in_the_router_is_lost() {
    let mut world = World::new();
    let sandbox = world.sandbox(&Egress::open());
    let block = world.config.block;
    world.in_router(|| {
        // The gate connects from here, and only to the internet.
        assert!(ask(INTERNET, TCP_PORT).is_ok());
        for address in [block.host_address(), HOST_WAN, crate::kernel::world::FORBIDDEN[3]] {
            let started_at = std::time::Instant::now();
            assert!(ask(address, HOST_PORT).is_err(), "{address}");
            assert!(started_at.elapsed() < crate::kernel::world::QUICK, "{address} was silent");
        }
        assert!(std::process::Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success());
        // Forwarded packets still pass, so only the host's table is in effect.
        assert!(ask(INTERNET, TCP_PORT).is_ok());
        for address in [block.host_address(), HOST_WAN] {
            assert!(ask(address, HOST_PORT).is_err(), "{address}");
        }
    });
    // Without the router's address translation a sandbox's own address is not accepted either.
    sandbox.assert_unreachable(INTERNET, TCP_PORT);
}

#[test]
fn sandboxes_do_not_reach_each_other() {
    let mut world = World::new();
    let (one, other) = (world.sandbox(&Egress::open()), world.sandbox(&Egress::open()));
    crate::kernel::world::serve_tcp(std::os::fd::AsFd::as_fd(&other.namespace), 9000);
    assert!(other.ask(other.link.address, 9000).is_ok());
    one.assert_refused(other.link.address, 9000);
    // The internet cannot connect to the sandbox either, even if it knows the address.
    let internet = std::os::fd::AsFd::as_fd(&world.internet);
    let called_in = atoll_network::netns::run_in(internet, || {
        ip(&format!("route add {} via {HOST_WAN}", world.config.block.router_address()));
        ip(&format!("route add 100.64.0.0/10 via {HOST_WAN}"));
        ask(other.link.address, 9000).is_ok() || ask(world.config.block.router_address(), 53).is_ok()
    });
    assert!(!called_in.unwrap());
}

#[test]
fn a_forged_source_address_is_dropped() {
    let mut world = World::new();
    let (forger, victim) = (world.sandbox(&Egress::open()), world.sandbox(&Egress::open()));
    // The kernel's own source check would drop it as well; it is disabled, so only the rule is in effect.
    world.in_router(|| {
        for interface in ["all".to_owned(), forger.link.name(), victim.link.name()] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "0").unwrap();
        }
    });
    forger.ip(&format!("addr add {}/32 dev eth0", victim.link.address));
    forger.inside(|| {
        let forged = UdpSocket::bind((victim.link.address, 0)).unwrap();
        forged.send_to(b"forged", (INTERNET, UDP_PORT)).unwrap();
        let honest = UdpSocket::bind((forger.link.address, 0)).unwrap();
        honest.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        honest.send_to(b"honest", (INTERNET, UDP_PORT)).unwrap();
        honest.recv(&mut [0; 16]).unwrap();
    });
    let heard = world.heard.lock().unwrap();
    assert!(heard.iter().any(|(bytes, _)| bytes == b"honest"));
    assert!(!heard.iter().any(|(bytes, _)| bytes == b"forged"));
}

#[test]
fn ipv6_is_dropped_even_where_the_router_would_forward_it() {
    let mut world = World::new();
    let (one, other) = (world.sandbox(&Egress::open()), world.sandbox(&Egress::open()));
    let addresses = one.inside(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap());
    assert!(!addresses.contains("eth0"), "eth0 has an IPv6 address: {addresses}");
    for (sandbox, net) in [(&one, "fd01"), (&other, "fd02")] {
        sandbox.ip(&format!("addr add {net}::2/64 dev eth0 nodad"));
        sandbox.ip("route add fd00::/8 dev eth0");
        world.in_router(|| {
            let name = sandbox.link.name();
            for scope in ["all", &name] {
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "0").unwrap();
            }
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
            ip(&format!("addr add {net}::1/64 dev {name} nodad"));
        });
    }
    let listener = other.inside(|| UdpSocket::bind("[fd02::2]:7000").unwrap());
    let router = world.in_router(|| UdpSocket::bind("[fd01::1]:7000").unwrap());
    for socket in [&listener, &router] {
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    }
    let send = || {
        one.inside(|| {
            let socket = UdpSocket::bind("[fd01::2]:0").unwrap();
            let _ = socket.send_to(b"six", "[fd02::2]:7000");
            let _ = socket.send_to(b"six", "[fd01::1]:7000");
        });
    };
    send();
    assert!(listener.recv(&mut [0; 8]).is_err() && router.recv(&mut [0; 8]).is_err());
    // Without the rules the packet passes, so the test really tests the rules.
    world.in_router(|| std::process::Command::new("nft").args(["flush", "ruleset"]).status().unwrap());
    for socket in [&listener, &router] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    send();
    assert!(listener.recv(&mut [0; 8]).is_ok() && router.recv(&mut [0; 8]).is_ok());
}

#[test]
fn an_interface_opened_for_us_forwards_for_nobody_else() {
    for (everywhere, passes) in [(false, false), (true, true)] {
        let world = World::with_forwarding(everywhere);
        let behind = atoll_network::netns::create().unwrap();
        crate::kernel::world::serve_tcp(std::os::fd::AsFd::as_fd(&behind), 9000);
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&behind));
        world.in_host(|| {
            ip(&format!("link add lan type veth peer name up0 netns {path}"));
            ip("addr add 10.77.0.1/24 dev lan");
            ip("link set lan up");
            // The route for replies is open, so that only the incoming direction is tested.
            std::fs::write("/proc/sys/net/ipv4/conf/lan/forwarding", "1").unwrap();
        });
        atoll_network::netns::run_in(std::os::fd::AsFd::as_fd(&behind), || {
            ip("addr add 10.77.0.2/24 dev up0");
            ip("link set up0 up");
            ip("route add default via 10.77.0.1");
        })
        .unwrap();
        world.router().refresh_host().unwrap();
        let internet = std::os::fd::AsFd::as_fd(&world.internet);
        let answer = atoll_network::netns::run_in(internet, || {
            ip(&format!("route add 10.77.0.0/24 via {HOST_WAN}"));
            ask(Ipv4Addr::new(10, 77, 0, 2), 9000)
        });
        assert_eq!(answer.unwrap().is_ok(), passes, "forwarding everywhere: {everywhere}");
    }
}

#[test]
fn two_servers_on_one_host_do_not_meet() {
    let mut first = World::new();
    let second_config = atoll_network::RouterConfig {
        block: atoll_network::Block::new(30_000 + first.config.block.number()).unwrap(),
        pin: first.config.pin.with_file_name("second.ns"),
    };
    let second = first.in_host(|| atoll_network::Router::open(second_config)).unwrap();
    let mut handle = second.handle().unwrap();
    let namespace = atoll_network::netns::create().unwrap();
    let inside = std::os::fd::AsFd::as_fd(&namespace);
    let link = handle.reserve(None).unwrap();
    handle.attach(link, &Egress::open(), inside).unwrap();
    atoll_network::setup_from_outside(inside, link.address).unwrap();
    let sandbox = first.sandbox(&Egress::open());
    sandbox.assert_reaches_internet();
    let seen = atoll_network::netns::run_in(inside, || ask(INTERNET, TCP_PORT)).unwrap().unwrap();
    assert!(seen.starts_with(&format!("{HOST_WAN}:")));
    second.teardown().unwrap();
    sandbox.assert_reaches_internet();
}

#[test]
fn one_sandbox_cannot_fill_the_connection_table() {
    let mut world = World::new();
    let (flooder, witness) = (world.sandbox(&Egress::open()), world.sandbox(&Egress::open()));
    flooder.inside(|| {
        let socket = UdpSocket::bind((flooder.link.address, 0)).unwrap();
        for port in 10_000..16_000 {
            // Refusals of earlier packets are returned as errors here.
            let _ = socket.send_to(b"x", (INTERNET, port));
        }
    });
    let flows: u32 = world.in_router(|| {
        std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap().trim().parse().unwrap()
    });
    assert!((1000..=4200).contains(&flows), "{flows} flows in the router's table");
    witness.assert_reaches_internet();
}
