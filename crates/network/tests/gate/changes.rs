//! Changed requests: the sandbox uses a secret that never exists inside it.

use std::io::{Read, Write};

use atoll_model::{EgressVerdict, EgressWhat};
use atoll_network::authority;

use crate::gate::servers::Entry;
use crate::gate::world::{OTHER, SEED, SITE, World, tls};

const SECRET: &str = "Bearer canary-7f3a";

fn policy(mode: &str, secret: &str) -> String {
    format!(
        r#"{{"mode":"{mode}","transforms":[{{"domain":"a.test","inject_headers":{{"Authorization":{{"sealed":"{secret}"}}}},"strip_headers":["Cookie"]}}]}}"#
    )
}

fn world(mode: &str) -> World {
    let world = World::new(&policy(mode, SECRET));
    world.internet.name("a.test", &[Entry::Address(SITE, 60)]);
    world.internet.name("b.test", &[Entry::Address(SITE, 60)]);
    world.resolve("a.test");
    world
}

fn own_authority() -> String {
    authority(&SEED)
}

fn ask(world: &World, name: &str, roots: &str, request: &str) -> std::io::Result<String> {
    let mut stream = tls(world.connect(SITE, 443), name, roots);
    stream.write_all(request.as_bytes())?;
    let mut buffer = [0u8; 8192];
    let len = stream.read(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

#[test]
fn a_secret_is_put_in_outside_and_what_shall_go_goes() {
    for mode in ["custom", "allow-all"] {
        let world = world(mode);
        let request =
            "GET /me HTTP/1.1\r\nHost: a.test\r\nAuthorization: mine\r\nCookie: c=1\r\nAccept: */*\r\n\r\n";
        let answer = ask(&world, "a.test", &own_authority(), request).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("X-Site"), "{answer}");
        let heard = world.internet.requests.lock().unwrap()[0].clone();
        assert!(heard.contains(SECRET) && !heard.contains("mine") && !heard.contains("c=1"), "{heard}");
        assert!(heard.contains("Accept: */*"));
        let record = world.recorded(|record| record.what == EgressWhat::Tls);
        assert_eq!((record.verdict, record.rule.as_str()), (EgressVerdict::Allowed, "transforms: a.test"));
        assert!(!format!("{:?}", world.records.lock().unwrap()).contains("canary"));
    }
}

#[test]
fn a_client_that_trusts_the_public_roots_alone_does_not_get_through() {
    let world = world("custom");
    let pem = world.internet.authority_pem.clone();
    assert!(ask(&world, "a.test", &pem, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").is_err());
    assert!(world.internet.requests.lock().unwrap().is_empty());
    assert_eq!(world.recorded(|record| record.what == EgressWhat::Tls).verdict, EgressVerdict::Failed);
}

#[test]
fn a_secret_never_goes_to_another_host_back_in_an_echo_or_in_the_clear() {
    let world = world("custom");
    let ask = |request: &str| ask(&world, "a.test", &own_authority(), request).unwrap();
    assert!(ask("GET / HTTP/1.1\r\nHost: b.test\r\n\r\n").starts_with("HTTP/1.1 403"));
    assert!(ask("TRACE / HTTP/1.1\r\nHost: a.test\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(world.internet.requests.lock().unwrap().is_empty());
    let redirect = ask("GET /redirect HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(redirect.starts_with("HTTP/1.1 302") && redirect.contains("http://evil.test/"), "{redirect}");
    assert_eq!(world.internet.requests.lock().unwrap().len(), 1, "the redirect was not followed");
    world.internet.requests.lock().unwrap().clear();
    world.say(
        SITE,
        80,
        b"GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: mine\r\nConnection: close\r\n\r\n",
    );
    let heard = world.internet.requests.lock().unwrap()[0].clone();
    assert!(!heard.contains("canary") && !heard.contains("mine"), "{heard}");
}

#[test]
fn an_address_that_was_no_answer_gets_no_secret() {
    let world = world("allow-all");
    let request = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let mut stream = tls(world.connect(OTHER, 443), "a.test", &world.internet.authority_pem);
    stream.write_all(request.as_bytes()).unwrap();
    let mut buffer = [0u8; 4096];
    assert!(stream.read(&mut buffer).unwrap() > 0, "it passes unread, as packets do");
    assert!(!world.internet.requests.lock().unwrap()[0].contains("canary"));
}

#[test]
fn a_new_secret_is_used_on_a_connection_that_is_open() {
    let world = world("custom");
    let mut stream = tls(world.connect(SITE, 443), "a.test", &own_authority());
    let mut ask = || {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
        let mut buffer = [0u8; 4096];
        assert!(stream.read(&mut buffer).unwrap() > 0);
    };
    ask();
    world.admit(&policy("custom", "Bearer rotated"));
    ask();
    let heard = world.internet.requests.lock().unwrap().clone();
    assert!(heard[0].contains("canary") && heard[1].contains("rotated") && !heard[1].contains("canary"));
}

#[test]
fn a_websocket_goes_on_with_its_secret() {
    let world = world("custom");
    let mut stream = tls(world.connect(SITE, 443), "a.test", &own_authority());
    stream
        .write_all(b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        .unwrap();
    let mut buffer = [0u8; 4096];
    let len = stream.read(&mut buffer).unwrap();
    assert!(buffer[..len].starts_with(b"HTTP/1.1 101"));
    stream.write_all(b"frame").unwrap();
    let len = stream.read(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"frame");
    assert!(world.internet.requests.lock().unwrap()[0].contains(SECRET));
}

#[test]
fn a_server_that_cannot_prove_its_name_gets_nothing() {
    let world = World::new(
        r#"{"mode":"custom","transforms":[{"domain":"other.test","inject_headers":{"Authorization":{"sealed":"canary"}}}]}"#,
    );
    world.internet.name("other.test", &[Entry::Address(SITE, 60)]);
    world.resolve("other.test");
    let request = "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n";
    let answer = ask(&world, "other.test", &own_authority(), request).unwrap();
    assert!(answer.starts_with("HTTP/1.1 502") && !answer.contains("canary"), "{answer}");
    assert!(world.internet.requests.lock().unwrap().is_empty());
    let record = world.recorded(|record| record.verdict == EgressVerdict::Failed);
    assert!(record.rule.starts_with("tls: "), "{}", record.rule);
}
