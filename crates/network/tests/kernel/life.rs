//! Start, crash, sweep, teardown.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use atoll_model::policy::egress::Egress;
use atoll_network::{LinkError, Router, loopback_up, netns, network_facts, setup_from_outside};

use crate::kernel::world::{INTERNET, TCP_PORT, World, ip};

#[test]
fn router_is_found_again_after_a_crash_and_sandboxes_go_on() {
    let mut world = World::new();
    let (open, closed) = (world.sandbox(&Egress::open()), world.sandbox(&Egress::closed()));
    let inode = std::fs::metadata(&world.config.pin).unwrap().ino();
    world.crash();
    open.assert_reaches_internet();
    world.open();
    assert_eq!(std::fs::metadata(&world.config.pin).unwrap().ino(), inode);
    let sweep = world.handle().sweep(&[open.link, closed.link]).unwrap();
    assert_eq!(sweep, atoll_network::Sweep::default());
    open.assert_reaches_internet();
    closed.assert_refused(INTERNET, TCP_PORT);
    // The policies were adopted unchanged.
    world.handle().set_policy(closed.link, &Egress::open(), closed.namespace.as_fd()).unwrap();
    closed.assert_reaches_internet();
    world.handle().detach(open.link).unwrap();
    open.assert_unreachable(INTERNET, TCP_PORT);
}

#[test]
fn half_made_routers_are_completed() {
    let mut world = World::new();
    let name = world.config.block.host_interface();
    // A crash between pin and uplink.
    world.crash();
    world.in_host(|| ip(&format!("link del {name}")));
    world.open();
    world.sandbox(&Egress::open()).assert_reaches_internet();
    // A crash before the pin was mounted: an empty file, and the uplink of a router that is gone.
    let old = world.router.take().unwrap();
    world.crash();
    let status = std::process::Command::new("umount").arg("-l").arg(&world.config.pin).status().unwrap();
    assert!(status.success());
    drop(old);
    world.open();
    world.sandbox(&Egress::open()).assert_reaches_internet();
}

#[test]
fn sweep_removes_what_nobody_claims() {
    let mut world = World::new();
    let kept = world.sandbox(&Egress::open());
    let lost: Vec<_> = (0..70).map(|_| world.sandbox(&Egress::open())).collect();
    let vanished = world.sandbox(&Egress::open());
    world.crash();
    world.open();
    drop(netns::run_in(world.router().namespace(), || ip(&format!("link del {}", vanished.link.name()))));
    let sweep = world.handle().sweep(&[kept.link, vanished.link]).unwrap();
    assert_eq!(sweep.removed_links.len(), lost.len());
    assert_eq!(sweep.missing, [vanished.link]);
    assert_eq!(sweep.removed_elements, 2 * (lost.len() + 1));
    assert_eq!(world.handle().list_links().unwrap(), [kept.link]);
    let rules =
        world.in_router(|| std::process::Command::new("nft").args(["list", "ruleset"]).output().unwrap());
    let rules = String::from_utf8(rules.stdout).unwrap();
    assert!(!lost.iter().any(|lost| rules.contains(&format!("\"{}\"", lost.link.name()))));
    let routes = world.in_router(|| std::process::Command::new("ip").args(["route"]).output().unwrap());
    let routes = String::from_utf8(routes.stdout).unwrap();
    // By the first word: the uplink's own address may contain "100." too, depending on the block.
    let to_sandboxes: Vec<&str> = routes.lines().filter(|line| line.starts_with("100.")).collect();
    assert!(
        matches!(to_sandboxes[..], [only] if only.starts_with(&format!("{} ", kept.link.address))),
        "{routes}"
    );
    kept.assert_reaches_internet();
}

#[test]
fn numbers_and_addresses_come_back_only_when_the_kernel_is_done() {
    let mut world = World::new();
    let sandbox = world.sandbox(&Egress::open());
    let link = sandbox.link;
    assert!(matches!(world.handle().reserve(Some(link.address)), Err(LinkError::AddressInUse { .. })));
    assert!(matches!(world.handle().reserve(Some(INTERNET)), Err(LinkError::NotASandboxAddress { .. })));
    world.handle().detach(link).unwrap();
    drop(sandbox);
    // The namespace ends with a delay.
    let started_at = Instant::now();
    while !world.handle().release(link).unwrap() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "the link never went");
        std::thread::sleep(Duration::from_millis(5));
    }
    let again = world.handle().reserve(Some(link.address)).unwrap();
    assert_ne!(again.number, link.number, "a restored sandbox keeps its address, not its interface");
    assert_eq!(again.address, link.address);
}

#[test]
fn restored_sandbox_gets_its_old_address_back() {
    let mut world = World::new();
    let first = world.sandbox(&Egress::open());
    world.handle().delete_links(&[first.link]).unwrap();
    world.handle().keep_address(first.link.address);
    assert!(world.handle().reserve(Some(first.link.address)).is_err());
    world.handle().free_address(first.link.address);
    let link = world.handle().reserve(Some(first.link.address)).unwrap();
    let namespace = netns::create().unwrap();
    world.handle().attach(link, &Egress::open(), namespace.as_fd()).unwrap();
    setup_from_outside(namespace.as_fd(), link.address).unwrap();
    crate::kernel::world::Sandbox { namespace, link }.assert_reaches_internet();
}

#[test]
fn pool_instance_has_only_loopback_until_it_is_claimed() {
    let mut world = World::new();
    let namespace = netns::create().unwrap();
    netns::run_in(namespace.as_fd(), loopback_up).unwrap().unwrap();
    let link = world.handle().reserve(None).unwrap();
    let sandbox = crate::kernel::world::Sandbox { namespace, link };
    assert!(sandbox.ask(INTERNET, TCP_PORT).is_err());
    let home = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    world.handle().attach(link, &Egress::open(), sandbox.namespace.as_fd()).unwrap();
    setup_from_outside(sandbox.namespace.as_fd(), link.address).unwrap();
    assert_eq!(std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino(), home);
    sandbox.assert_reaches_internet();
}

#[test]
fn a_namespace_that_belongs_to_another_user_namespace_is_attached_and_set_up() {
    let mut world = World::new();
    let mut holder =
        std::process::Command::new("unshare").args(["--user", "--net", "sleep", "60"]).spawn().unwrap();
    let path = format!("/proc/{}/ns", holder.id());
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    let started_at = Instant::now();
    while std::fs::read_link(format!("{path}/net")).unwrap() == ours {
        assert!(started_at.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let namespace = std::fs::File::open(format!("{path}/net")).unwrap().into();
    let link = world.handle().reserve(None).unwrap();
    let sandbox = crate::kernel::world::Sandbox { namespace, link };
    world.handle().attach(link, &Egress::open(), sandbox.namespace.as_fd()).unwrap();
    setup_from_outside(sandbox.namespace.as_fd(), link.address).unwrap();
    sandbox.assert_reaches_internet();
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn teardown_leaves_nothing_and_may_be_followed_by_a_new_start() {
    let mut world = World::new();
    let (name, table) = (world.config.block.host_interface(), world.config.block.host_table());
    world.handle = None;
    world.router.take().unwrap().teardown().unwrap();
    assert!(!world.config.pin.exists());
    assert!(world.in_host(|| Router::find(world.config.clone())).unwrap().is_none());
    world.in_host(|| {
        let links = std::process::Command::new("ip").args(["-o", "link"]).output().unwrap();
        assert!(!String::from_utf8(links.stdout).unwrap().contains(&name));
        let rules = std::process::Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        assert!(!String::from_utf8(rules.stdout).unwrap().contains(&table));
    });
    world.open();
    world.sandbox(&Egress::open()).assert_reaches_internet();
}

fn forwards(world: &World, interface: &str) -> bool {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/forwarding");
    world.in_host(|| std::fs::read_to_string(path).unwrap().trim() == "1")
}

fn is_guarded(world: &World, table: &str) -> bool {
    let arguments = ["list", "set", "inet", table, "opened"];
    let listed = world.in_host(|| std::process::Command::new("nft").args(arguments).output().unwrap());
    String::from_utf8(listed.stdout).unwrap().contains("\"wan\"")
}

#[test]
fn teardown_puts_forwarding_back_as_it_was_found() {
    for was_on in [false, true] {
        let mut world = World::with_forwarding(was_on);
        assert!(forwards(&world, "wan"));
        // Also after a crash: the previous state is stored in the rules.
        world.crash();
        world.open();
        assert_eq!(is_guarded(&world, &world.config.block.host_table()), !was_on);
        world.handle = None;
        world.router.take().unwrap().teardown().unwrap();
        assert_eq!(forwards(&world, "wan"), was_on);
        let everywhere = world.in_host(|| std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap());
        assert_eq!(everywhere.trim() == "1", was_on);
    }
}

#[test]
fn an_interface_that_is_no_way_out_any_more_stops_forwarding() {
    let world = World::new();
    assert!(forwards(&world, "wan"));
    world.in_host(|| ip("route del default"));
    world.router().refresh_host().unwrap();
    assert!(!forwards(&world, "wan") && !is_guarded(&world, &world.config.block.host_table()));
    world.in_host(|| ip(&format!("route add default via {INTERNET}")));
    world.router().refresh_host().unwrap();
    assert!(forwards(&world, "wan") && is_guarded(&world, &world.config.block.host_table()));
}

#[test]
fn the_last_of_two_servers_puts_forwarding_back() {
    let mut world = World::new();
    let config = atoll_network::RouterConfig {
        block: atoll_network::Block::new(31_000 + world.config.block.number()).unwrap(),
        pin: world.config.pin.with_file_name("second.ns"),
    };
    let second = world.in_host(|| Router::open(config.clone())).unwrap();
    world.handle = None;
    world.router.take().unwrap().teardown().unwrap();
    assert!(forwards(&world, "wan") && is_guarded(&world, &config.block.host_table()), "the other needs it");
    second.refresh_host().unwrap();
    second.teardown().unwrap();
    assert!(!forwards(&world, "wan"));
}

#[test]
fn doctor_finds_a_foreign_drop_and_its_line_opens_the_way() {
    let mut world = World::new();
    let sandbox = world.sandbox(&Egress::open());
    let block = world.config.block;
    assert_eq!(world.in_host(|| network_facts(block)).foreign_drops, []);
    let nft = |line: &str| {
        std::process::Command::new("nft").args(line.split_whitespace()).status().unwrap().success()
    };
    world.in_host(|| {
        assert!(nft("add table ip filter"));
        assert!(nft("add chain ip filter FORWARD { type filter hook forward priority 0 ; policy drop ; }"));
    });
    sandbox.assert_unreachable(INTERNET, TCP_PORT);
    let facts = world.in_host(|| network_facts(block));
    assert!(facts.nft_version.is_some() && !facts.ip_forward);
    assert_eq!(facts.foreign_drops.len(), 1);
    let line = facts.foreign_drops[0].opened_by.strip_prefix("nft ").unwrap().to_owned();
    assert!(world.in_host(|| nft(&line)), "{line}");
    sandbox.assert_reaches_internet();
    assert_eq!(world.in_host(|| network_facts(block)).foreign_drops, []);
}

#[test]
fn the_launcher_may_live_in_the_router_namespace() {
    let mut world = World::new();
    let sandbox = world.sandbox(&Egress::closed());
    let router = world.router.take().unwrap();
    let mut handle = world.handle.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            router.join().unwrap();
            let here = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
            let there =
                std::fs::metadata(format!("/proc/self/fd/{}", router.namespace().as_raw_fd())).unwrap().ino();
            assert_eq!(here, there);
            handle.set_policy(sandbox.link, &Egress::open(), sandbox.namespace.as_fd()).unwrap();
        });
    });
    world.router = Some(router);
    sandbox.assert_reaches_internet();
}
