//! Opens and closes policies of running sandboxes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use atoll_model::policy::egress::Egress;
use atoll_network::netns;

use crate::kernel::world::{INTERNET, TCP_PORT, World};

#[test]
fn deny_all_is_refused_quickly_however_often_it_is_tried() {
    let mut world = World::new();
    let sandbox = world.sandbox(&Egress::closed());
    for _ in 0..300 {
        sandbox.assert_refused(INTERNET, TCP_PORT);
    }
}

#[test]
fn policy_changes_while_the_sandbox_runs() {
    let mut world = World::new();
    let (sandbox, witness) = (world.sandbox(&Egress::closed()), world.sandbox(&Egress::open()));
    sandbox.assert_refused(INTERNET, TCP_PORT);
    world.handle().set_policy(sandbox.link, &Egress::open(), sandbox.namespace.as_fd()).unwrap();
    sandbox.assert_reaches_internet();
    world.handle().set_policy(sandbox.link, &Egress::open(), sandbox.namespace.as_fd()).unwrap();
    world.handle().set_policy(sandbox.link, &Egress::closed(), sandbox.namespace.as_fd()).unwrap();
    sandbox.assert_refused(INTERNET, TCP_PORT);
    witness.assert_reaches_internet();
}

#[test]
fn closing_cuts_connections_that_exist() {
    let mut world = World::new();
    let sandbox = world.sandbox(&Egress::open());
    let listener = netns::run_in(world.internet.as_fd(), || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8090)))
        .unwrap()
        .unwrap();
    let mut inside = sandbox
        .inside(|| TcpStream::connect_timeout(&(INTERNET, 8090).into(), Duration::from_secs(20)))
        .unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    for stream in [&inside, &outside] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    let mut byte = [0u8; 1];
    inside.write_all(b"a").unwrap();
    outside.read_exact(&mut byte).unwrap();
    for stream in [&inside, &outside] {
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    }

    world.handle().set_policy(sandbox.link, &Egress::closed(), sandbox.namespace.as_fd()).unwrap();
    outside.write_all(b"b").unwrap();
    assert!(inside.read_exact(&mut byte).is_err(), "a closed sandbox still hears the internet");
    let _ = inside.write_all(b"c");
    assert!(outside.read_exact(&mut byte).is_err(), "a closed sandbox still talks to the internet");
}

#[test]
fn detached_sandbox_is_unreachable_and_its_link_goes_later() {
    let mut world = World::new();
    let (sandbox, witness) = (world.sandbox(&Egress::open()), world.sandbox(&Egress::open()));
    sandbox.assert_reaches_internet();
    world.handle().detach(sandbox.link).unwrap();
    sandbox.assert_unreachable(INTERNET, TCP_PORT);
    assert!(world.handle().list_links().unwrap().contains(&sandbox.link));
    assert!(!world.handle().release(sandbox.link).unwrap());
    world.handle().delete_links(&[sandbox.link]).unwrap();
    assert!(!world.handle().list_links().unwrap().contains(&sandbox.link));
    assert!(world.handle().detach(sandbox.link).is_err(), "a deleted link is not known any more");
    witness.assert_reaches_internet();
}
