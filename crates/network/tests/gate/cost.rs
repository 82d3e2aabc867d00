//! The cost of the gate. Prints figures; its limits are loose, because other tests run at the same time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use atoll_network::GATEWAY;
use hickory_proto::rr::RecordType;

use crate::gate::servers::Entry;
use crate::gate::world::{SITE, World, question, tls};

/// The median duration of many queries to a server, in microseconds.
fn median_us(world: &World, server: Ipv4Addr, name: &str) -> u128 {
    let question = question(name, RecordType::A);
    world.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.connect((server, 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut buffer = [0u8; 512];
        let mut took: Vec<_> = (0..200)
            .map(|_| {
                let started_at = Instant::now();
                socket.send(&question).unwrap();
                socket.recv(&mut buffer).unwrap();
                let took = started_at.elapsed().as_micros();
                // Slower than the query limit.
                std::thread::sleep(Duration::from_millis(4));
                took
            })
            .collect();
        took.sort_unstable();
        took[took.len() / 2]
    })
}

#[test]
fn an_answer_of_the_gate_costs_little() {
    let world = World::new(r#"{"mode":"custom","allow_domains":["a.test"]}"#);
    world.internet.name("a.test", &[Entry::Address(SITE, 60)]);
    let direct = median_us(&world, SITE, "a.test");
    let gated = median_us(&world, GATEWAY, "a.test");
    println!(
        "dns p50: direct {direct} µs, through the gate {gated} µs, added {} µs",
        gated.saturating_sub(direct)
    );
    assert!(gated < direct + 5_000);
}

#[test]
fn a_tunnel_passes_hundreds_of_megabytes_a_second() {
    let world = World::new(r#"{"mode":"custom","allow_domains":["a.test"]}"#);
    world.internet.name("a.test", &[Entry::Address(SITE, 60)]);
    world.resolve("a.test");
    let mut stream = tls(world.connect(SITE, 443), "a.test", &world.internet.authority_pem);
    let (mut got, started_at) = (0usize, Instant::now());
    let mut buffer = vec![0u8; 1 << 20];
    for _ in 0..64 {
        stream.write_all(b"GET /big HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
        let mut left = 1 << 20;
        while left > 0 {
            let len = stream.read(&mut buffer).unwrap();
            got += len;
            left -= len.min(left);
        }
    }
    let rate = got as f64 / started_at.elapsed().as_secs_f64() / 1e6;
    println!("tunnel: {} MiB of TLS at {rate:.0} MB/s", got >> 20);
    assert!(rate > 10.0);
}
