//! TLS and other protocols through the gate.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use atoll_model::{EgressVerdict, EgressWhat};

use crate::gate::servers::Entry;
use crate::gate::world::{OTHER, SITE, World, tls};

const NAMES: &str = r#"{"mode":"custom","allow_domains":["a.test","b.test"]}"#;

fn world(policy: &str) -> World {
    let world = World::new(policy);
    world.internet.name("a.test", &[Entry::Address(SITE, 60)]);
    world.internet.name("b.test", &[Entry::Address(OTHER, 60)]);
    world.resolve("a.test");
    world
}

fn get(world: &World, name: &str) -> std::io::Result<String> {
    get_at(world, name, 443)
}

fn get_at(world: &World, name: &str, port: u16) -> std::io::Result<String> {
    let mut stream = tls(world.connect(SITE, port), name, &world.internet.authority_pem);
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes())?;
    let mut buffer = [0u8; 4096];
    let len = stream.read(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

#[test]
fn an_allowed_name_passes_unread_and_is_recorded_with_its_bytes() {
    let world = world(NAMES);
    assert!(get(&world, "a.test").unwrap().starts_with("HTTP/1.1 200"));
    let record = world.recorded(|record| record.what == EgressWhat::Tls);
    assert_eq!((record.verdict, record.name.as_deref()), (EgressVerdict::Allowed, Some("a.test")));
    assert!(record.sent > 300 && record.received > 800, "{record:?}");
    assert_eq!((record.address, record.port), (Some(SITE.into()), Some(443)));
}

#[test]
fn a_server_that_asks_for_a_second_hello_is_reached() {
    let world = world(NAMES);
    assert!(get_at(&world, "a.test", 444).unwrap().starts_with("HTTP/1.1 200"));
}

#[test]
fn another_name_at_the_same_address_is_refused_with_an_alert() {
    let world = world(NAMES);
    for (name, rule) in
        [("evil.test", "not in allow_domains"), ("b.test", "the address is no fresh answer for this name")]
    {
        let error = get(&world, name).unwrap_err().to_string();
        assert!(error.contains("AccessDenied"), "{error}");
        let record =
            world.recorded(|record| record.name.as_deref() == Some(name) && record.what == EgressWhat::Tls);
        assert_eq!((record.verdict, record.rule.as_str()), (EgressVerdict::Refused, rule));
    }
    assert!(world.internet.requests.lock().unwrap().is_empty());
}

#[test]
fn what_is_neither_tls_nor_http_is_refused() {
    let world = world(NAMES);
    for bytes in [
        &b"SSH-2.0-OpenSSH\r\n"[..],
        b"\x00\x01\x02",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\x05\x02aaaa",
    ] {
        assert!(world.say(SITE, 22, bytes).is_empty());
        let record = world.recorded(|record| record.what == EgressWhat::Flow);
        assert_eq!(record.verdict, EgressVerdict::Refused);
    }
}

#[test]
fn where_packets_pass_anyway_every_protocol_passes() {
    let world = world(r#"{"mode":"custom","allow_domains":["a.test"],"allow_cidrs":["203.0.113.9"]}"#);
    assert_eq!(world.say(SITE, 22, b""), b"SSH-2.0-test\r\n", "the server speaks first");
    assert!(get(&world, "b.test").unwrap().starts_with("HTTP/1.1 200"), "no name is needed");
}

#[test]
fn a_narrower_policy_ends_a_flow_in_milliseconds_and_lets_others_go_on() {
    let world = world(NAMES);
    world.internet.name("b.test", &[Entry::Address(SITE, 60)]);
    world.resolve("b.test");
    let open = |name: &str| {
        let mut stream = tls(world.connect(SITE, 443), name, &world.internet.authority_pem);
        stream
            .write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\nUpgrade: websocket\r\n\r\n").as_bytes())
            .unwrap();
        let mut buffer = [0u8; 4096];
        assert!(stream.read(&mut buffer).unwrap() > 0);
        stream
    };
    let (mut ends, mut stays) = (open("a.test"), open("b.test"));
    let started_at = Instant::now();
    world.admit(r#"{"mode":"custom","allow_domains":["b.test"]}"#);
    let admitted = started_at.elapsed();
    let mut buffer = [0u8; 64];
    let read = ends.read(&mut buffer);
    let ended = started_at.elapsed();
    assert!(!matches!(read, Ok(1..)), "{read:?}");
    println!("policy change: admit {admitted:?}, flow ended after {ended:?}");
    assert!(ended < Duration::from_secs(5), "{ended:?}");
    stays.write_all(b"still here").unwrap();
    let len = stays.read(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"still here");
    let record = world.recorded(|record| record.rule == "the policy changed");
    assert_eq!((record.verdict, record.name.as_deref()), (EgressVerdict::Refused, Some("a.test")));
    world.gate.dismiss(World::link());
    assert!(!matches!(stays.read(&mut buffer), Ok(1..)));
}

#[test]
fn a_budget_ends_a_flow_and_limits_refuse_the_next() {
    let world = world(
        r#"{"mode":"custom","allow_domains":["a.test"],"limits":{"connections":2,"bytes_per_destination":200000}}"#,
    );
    let mut stream = tls(world.connect(SITE, 443), "a.test", &world.internet.authority_pem);
    stream.write_all(b"GET /big HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    assert!(heard.len() < 600_000, "{}", heard.len());
    world.recorded(|record| record.rule == "limits: bytes_per_destination" && record.received > 100_000);
    assert!(get(&world, "a.test").is_err(), "the budget is spent");
    let held: Vec<_> = (0..2).map(|_| world.connect(SITE, 443)).collect();
    std::thread::sleep(Duration::from_millis(500));
    assert!(world.say(SITE, 443, b"\x16").is_empty());
    world.recorded(|record| record.rule == "limits: connections");
    drop(held);
}
