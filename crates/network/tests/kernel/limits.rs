//! Limits: rates, connections, budgets. They can be changed live, and end with the link.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use atoll_model::{NetworkLimits, NetworkPolicy};
use atoll_network::netns;

use crate::kernel::egress::{FAR, NEAR, compiled, wide_world};
use crate::kernel::world::{INTERNET, Sandbox, TCP_PORT, World};

fn limited(limits: NetworkLimits) -> NetworkPolicy {
    NetworkPolicy { limits, ..NetworkPolicy::allow_all() }
}

fn change(world: &mut World, sandbox: &Sandbox, limits: NetworkLimits) {
    let egress = compiled(&limited(limits));
    world.handle().set_policy(sandbox.link, &egress, sandbox.namespace.as_fd()).unwrap();
}

/// Sends the requested number of bytes, or receives all bytes, and then confirms.
fn serve_bytes(world: &World) {
    let listener = netns::run_in(world.internet.as_fd(), || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8095)))
        .unwrap()
        .unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut wanted = [0; 9];
                if stream.read_exact(&mut wanted).is_err() {
                    return;
                }
                let count = usize::try_from(u64::from_be_bytes(wanted[1..].try_into().unwrap())).unwrap();
                if wanted[0] == b'd' {
                    let _ = stream.write_all(&vec![7; count]);
                } else {
                    let mut taken = vec![0; count];
                    let _ = stream.read_exact(&mut taken).and_then(|()| stream.write_all(b"k"));
                }
            });
        }
    });
}

/// How long it takes to receive or send so many bytes.
fn transfer(sandbox: &Sandbox, way: u8, count: usize) -> Option<Duration> {
    sandbox.inside(|| {
        let mut stream = TcpStream::connect_timeout(&(NEAR, 8095).into(), Duration::from_secs(20)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut ask = vec![way];
        ask.extend_from_slice(&(count as u64).to_be_bytes());
        let started_at = Instant::now();
        stream.write_all(&ask).ok()?;
        if way == b'd' {
            stream.read_exact(&mut vec![0; count]).ok()?;
        } else {
            stream.write_all(&vec![1; count]).ok()?;
            stream.read_exact(&mut [0]).ok()?;
        }
        Some(started_at.elapsed())
    })
}

/// The fastest of a few: a busy machine makes a transfer slower, and never faster than a limit.
fn fastest(sandbox: &Sandbox, way: u8, count: usize) -> Duration {
    (0..3).map(|_| transfer(sandbox, way, count).unwrap()).min().unwrap()
}

#[test]
fn rates_hold_both_ways_and_change_while_the_sandbox_runs() {
    const COUNT: usize = 1 << 20;
    let mut world = wide_world();
    serve_bytes(&world);
    let rate = Some(1 << 20);
    let down = NetworkLimits { down_bytes_per_s: rate, ..NetworkLimits::default() };
    let sandbox = world.sandbox(&compiled(&limited(down)));
    let slow = Duration::from_millis(700)..Duration::from_secs(9);
    let took = transfer(&sandbox, b'd', COUNT).unwrap();
    assert!(slow.contains(&took), "1 MiB down at 1 MiB/s took {took:?}");
    let took = fastest(&sandbox, b'u', COUNT);
    assert!(took < Duration::from_millis(700), "this direction has no limit: {took:?}");
    change(&mut world, &sandbox, NetworkLimits { up_bytes_per_s: rate, ..NetworkLimits::default() });
    let took = transfer(&sandbox, b'u', COUNT).unwrap();
    assert!(slow.contains(&took), "1 MiB up at 1 MiB/s took {took:?}");
    let took = fastest(&sandbox, b'd', COUNT);
    assert!(took < Duration::from_millis(700), "the limit is gone: {took:?}");
    change(&mut world, &sandbox, NetworkLimits::default());
    let took = fastest(&sandbox, b'u', COUNT);
    assert!(took < Duration::from_millis(700), "both are gone: {took:?}");
}

#[test]
fn only_so_many_connections_are_open_at_a_time() {
    let mut world = wide_world();
    let five = NetworkLimits { connections: Some(5), ..NetworkLimits::default() };
    let sandbox = world.sandbox(&compiled(&limited(five)));
    let listener =
        netns::run_in(world.internet.as_fd(), || TcpListener::bind((INTERNET, 8096))).unwrap().unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            held.push(stream);
        }
    });
    let open = |count: usize| {
        sandbox.inside(|| {
            let one = || TcpStream::connect_timeout(&(INTERNET, 8096).into(), Duration::from_secs(4));
            (0..count).filter_map(|_| one().ok()).collect::<Vec<_>>()
        })
    };
    // Long enough for the kernel to collect elements without connections.
    std::thread::sleep(Duration::from_millis(2_500));
    let held = open(8);
    assert_eq!(held.len(), 5);
    change(&mut world, &sandbox, NetworkLimits { connections: Some(20), ..NetworkLimits::default() });
    let more = open(3);
    assert_eq!(more.len(), 3);
    change(&mut world, &sandbox, NetworkLimits::default());
    assert_eq!(open(40).len(), 40);
}

#[test]
fn a_budget_is_for_one_destination_and_counts_both_ways() {
    let mut world = wide_world();
    serve_bytes(&world);
    let budget = NetworkLimits { bytes_per_destination: Some(300_000), ..NetworkLimits::default() };
    let sandbox = world.sandbox(&compiled(&limited(budget)));
    assert!(transfer(&sandbox, b'd', 100_000).is_some());
    assert!(transfer(&sandbox, b'u', 100_000).is_some());
    let started_at = Instant::now();
    assert!(transfer(&sandbox, b'd', 200_000).is_none(), "more than its budget passed");
    assert!(started_at.elapsed() < Duration::from_secs(30));
    sandbox.assert_refused(NEAR, TCP_PORT);
    assert!(sandbox.ask(FAR, TCP_PORT).is_ok(), "another destination has a budget of its own");
    change(
        &mut world,
        &sandbox,
        NetworkLimits { bytes_per_destination: Some(600_000), ..NetworkLimits::default() },
    );
    assert!(transfer(&sandbox, b'd', 200_000).is_some());
    change(&mut world, &sandbox, NetworkLimits::default());
    assert!(transfer(&sandbox, b'd', 900_000).is_some());
}
