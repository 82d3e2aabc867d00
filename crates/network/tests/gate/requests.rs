//! Plain HTTP through the gate.

use std::io::{Read, Write};

use atoll_model::{EgressVerdict, EgressWhat};

use crate::gate::servers::Entry;
use crate::gate::world::{OTHER, SITE, World};

fn world() -> World {
    let world = World::new(r#"{"mode":"custom","allow_domains":["a.test","b.test","c.test"]}"#);
    world.internet.name("a.test", &[Entry::Address(SITE, 60)]);
    world.internet.name("b.test", &[Entry::Address(OTHER, 60)]);
    world.internet.name("c.test", &[Entry::Address(SITE, 60)]);
    for name in ["a.test", "b.test", "c.test"] {
        world.resolve(name);
    }
    world
}

fn status(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer).split(' ').nth(1).unwrap_or("none").to_owned()
}

#[test]
fn an_allowed_host_is_served_and_recorded() {
    let world = world();
    let answer =
        world.say(SITE, 80, b"GET /x?y HTTP/1.1\r\nHost: A.test\r\nX-Mine: 1\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&answer), "200");
    let request = world.internet.requests.lock().unwrap()[0].clone();
    assert!(request.starts_with("GET /x?y HTTP/1.1\r\n") && request.contains("X-Mine: 1"), "{request}");
    assert!(request.to_ascii_lowercase().contains("host: a.test\r\n"), "{request}");
    let record = world.recorded(|record| record.what == EgressWhat::Http);
    assert_eq!((record.verdict, record.name.as_deref()), (EgressVerdict::Allowed, Some("a.test")));
    assert!(record.sent > 50 && record.received > 50);
}

#[test]
fn every_request_on_a_connection_is_judged() {
    let world = world();
    let mut stream = world.connect(SITE, 80);
    let mut ask = |host: &str| {
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
        let mut buffer = [0u8; 4096];
        let len = stream.read(&mut buffer).unwrap();
        status(&buffer[..len])
    };
    assert_eq!([ask("a.test"), ask("c.test"), ask("a.test"), ask("b.test")], ["200", "200", "200", "403"]);
    assert_eq!(world.internet.requests.lock().unwrap().len(), 3);
    let record = world.recorded(|record| record.verdict == EgressVerdict::Refused);
    assert_eq!(record.rule, "the address is no fresh answer for this name");
    world.recorded(|record| record.name.as_deref() == Some("c.test") && record.received > 0);
}

#[test]
fn a_pipelined_request_for_another_host_does_not_slip_through() {
    let world = world();
    let both = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\nGET /evil HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let answer = String::from_utf8_lossy(&world.say(SITE, 80, both)).into_owned();
    assert!(answer.contains("200 OK") && answer.contains("403"), "{answer}");
    assert!(!world.internet.requests.lock().unwrap().iter().any(|head| head.contains("evil")));
}

#[test]
fn requests_that_could_mean_two_things_are_refused() {
    let world = world();
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "403"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a.test\r\nHost: evil.test\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a.test, evil.test\r\n\r\n", "400"),
        ("GET http://evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400"),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400"),
        ("CONNECT evil.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n", "405"),
        ("GET / HTTP/1.1\r\nHost: a.test:8080\r\n\r\n", "421"),
        ("GET / HTTP/1.1\r\nHost: 203.0.113.9\r\n\r\n", "400"),
        (
            "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "400",
        ),
        ("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", "400"),
        ("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\nHost: a.test\n\n", "400"),
        ("GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a.test\r\n folded\r\n\r\n", "400"),
    ] {
        let answer = world.say(SITE, 80, request.as_bytes());
        assert_eq!(status(&answer), expected, "{request:?} {:?}", String::from_utf8_lossy(&answer));
    }
    let heard = world.internet.requests.lock().unwrap().clone();
    assert!(heard.is_empty(), "{heard:?}");
}

#[test]
fn two_lengths_on_a_later_request_are_put_right_and_end_the_connection() {
    let world = world();
    let smuggled = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
                    GET /evil HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let requests = format!("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n{smuggled}");
    world.say(SITE, 80, requests.as_bytes());
    let heard = world.internet.requests.lock().unwrap().clone();
    assert!(!heard.iter().any(|head| head.contains("evil")), "{heard:?}");
    assert!(
        heard.len() <= 2
            && !heard.iter().any(|head| head.to_ascii_lowercase().contains("content-length: 60"))
    );
}

#[test]
fn bodies_pass_in_both_ways_of_framing_and_websockets_go_on() {
    let world = world();
    for body in
        ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
    {
        let request = format!("POST / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{body}");
        assert_eq!(status(&world.say(SITE, 80, request.as_bytes())), "200");
    }
    let mut stream = world.connect(SITE, 80);
    stream
        .write_all(b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .unwrap();
    let mut buffer = [0u8; 4096];
    let len = stream.read(&mut buffer).unwrap();
    assert_eq!(status(&buffer[..len]), "101");
    stream.write_all(b"frame").unwrap();
    let len = stream.read(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"frame");
    drop(stream);
    let h2c = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n";
    assert_eq!(status(&world.say(SITE, 80, h2c)), "200");
    let heard = world.internet.requests.lock().unwrap().clone();
    assert!(!heard.iter().any(|head| head.to_ascii_lowercase().contains("h2c")), "{heard:?}");
}

#[test]
fn a_head_request_keeps_its_length_and_a_closed_server_is_asked_anew() {
    let world = world();
    let answer = world.say(SITE, 80, b"HEAD /big HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(answer.contains("content-length: 1048576") && answer.ends_with("\r\n\r\n"), "{answer}");
    let mut stream = world.connect(SITE, 80);
    for _ in 0..5 {
        stream.write_all(b"GET /once HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
        let mut buffer = [0u8; 4096];
        let len = stream.read(&mut buffer).unwrap();
        assert_eq!(status(&buffer[..len]), "200");
    }
}

#[test]
fn where_packets_pass_anyway_requests_pass_unread() {
    let world = World::new(r#"{"mode":"custom","allow_domains":["a.test"],"allow_cidrs":["203.0.113.9"]}"#);
    let answer = world.say(
        SITE,
        80,
        b"GET / HTTP/1.1\r\nHost: 203.0.113.9\r\nConnection: close\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    );
    assert_eq!(status(&answer), "200");
}

#[test]
fn a_server_that_is_not_there_is_said_and_recorded_once() {
    let world = world();
    let answer = world.say(SITE, 8080, b"GET / HTTP/1.1\r\nHost: a.test:8080\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&answer), "502");
    let record = world.recorded(|record| record.what == EgressWhat::Http);
    assert_eq!(
        (record.verdict, record.rule.as_str()),
        (EgressVerdict::Failed, "connect: refused by the server")
    );
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(
        world.records.lock().unwrap().iter().filter(|record| record.what == EgressWhat::Http).count(),
        1
    );
}
