//! DNS queries to the gate.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use atoll_model::{EgressVerdict, EgressWhat};
use atoll_network::GATEWAY;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::gate::servers::Entry;
use crate::gate::world::{OTHER, SITE, World, question};

const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

fn world() -> World {
    let world = World::new(r#"{"mode":"custom","allow_domains":["a.test","*.a.test"]}"#);
    world.internet.name("a.test", &[Entry::Alias("cdn.example")]);
    world.internet.name("cdn.example", &[Entry::Address(SITE, 60)]);
    world
}

#[test]
fn an_allowed_name_is_open_in_the_kernel_before_its_answer() {
    let world = world();
    assert_eq!(world.resolve("A.Test"), (ResponseCode::NoError, vec![SITE]));
    assert_eq!(*world.told.0.lock().unwrap(), [("open", vec![SITE])]);
    let record = world.recorded(|record| record.what == EgressWhat::Dns);
    assert_eq!((record.name.as_deref(), record.address), (Some("a.test"), Some(SITE.into())));
    assert_eq!(record.rule, "allow_domains: a.test");
}

#[test]
fn nobody_hears_of_a_name_that_is_not_allowed() {
    let world = world();
    for name in
        ["evil.test", "secret-data.evil.test", "aa.test", "a.test.evil.example", "4.3.2.1.in-addr.arpa"]
    {
        assert_eq!(world.resolve(name), (ResponseCode::Refused, vec![]), "{name}");
    }
    for kind in [RecordType::TXT, RecordType::ANY, RecordType::AAAA, RecordType::HTTPS, RecordType::NULL] {
        assert_eq!(world.ask("evil.test", kind).metadata.response_code, ResponseCode::Refused);
        let allowed = world.ask("x.a.test", kind);
        assert_eq!(
            (allowed.metadata.response_code, allowed.answers.len()),
            (ResponseCode::NoError, 0),
            "{kind}"
        );
    }
    assert!(world.internet.asked.lock().unwrap().is_empty());
    assert!(world.told.0.lock().unwrap().is_empty());
}

#[test]
fn a_name_that_leads_inside_is_refused() {
    let world = world();
    world.internet.name("rebind.a.test", &[Entry::Address(PRIVATE, 0)]);
    world.internet.name("meta.a.test", &[Entry::Alias("inner.example")]);
    world.internet.name("inner.example", &[Entry::Address(METADATA, 60)]);
    world.internet.name("mixed.a.test", &[Entry::Address(PRIVATE, 60), Entry::Address(SITE, 60)]);
    assert_eq!(world.resolve("rebind.a.test"), (ResponseCode::Refused, vec![]));
    assert_eq!(world.recorded(|record| record.verdict == EgressVerdict::Refused).rule, "never: private");
    assert_eq!(world.resolve("meta.a.test"), (ResponseCode::Refused, vec![]));
    assert_eq!(world.resolve("mixed.a.test"), (ResponseCode::NoError, vec![SITE]));
    assert_eq!(*world.told.0.lock().unwrap(), [("open", vec![SITE])]);
}

#[test]
fn an_absent_name_says_so_and_a_changed_policy_counts_at_once() {
    let world = world();
    assert_eq!(world.resolve("none.a.test"), (ResponseCode::NXDomain, vec![]));
    world.internet.name("b.test", &[Entry::Address(OTHER, 60)]);
    assert_eq!(world.resolve("b.test").0, ResponseCode::Refused);
    world.admit(r#"{"mode":"custom","allow_domains":["b.test"]}"#);
    assert_eq!(world.resolve("b.test"), (ResponseCode::NoError, vec![OTHER]));
    assert_eq!(world.resolve("a.test").0, ResponseCode::Refused);
    world.admit("\"deny-all\"");
    assert_eq!(world.resolve("b.test").0, ResponseCode::Refused);
    assert_eq!(world.told.0.lock().unwrap().last(), Some(&("close", vec![OTHER])));
}

#[test]
fn in_free_mode_answers_pass_as_they_are_and_are_recorded() {
    let world = World::new("\"allow-all\"");
    world.internet.name("a.test", &[Entry::Address(SITE, 60), Entry::Address(OTHER, 60)]);
    assert_eq!(world.resolve("a.test"), (ResponseCode::NoError, vec![SITE, OTHER]));
    for address in [SITE, OTHER] {
        world.recorded(|record| {
            record.name.as_deref() == Some("a.test") && record.address == Some(address.into())
        });
    }
    assert!(world.told.0.lock().unwrap().is_empty(), "no address is redirected");
}

#[test]
fn a_stranger_gets_no_answer_and_who_asks_too_often_is_refused() {
    let world = world();
    world.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.connect((GATEWAY, 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let question = question("evil.test", RecordType::A);
        let mut buffer = [0u8; 512];
        for _ in 0..500 {
            socket.send(&question).unwrap();
            socket.recv(&mut buffer).unwrap();
        }
    });
    world.recorded(|record| record.rule == "limits: too many questions per second");
    let complaints = |record: &&atoll_model::EgressRecord| record.rule.starts_with("limits");
    assert!(world.records.lock().unwrap().iter().filter(complaints).count() < 10);
    world.gate.dismiss(World::link());
    world.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.connect((GATEWAY, 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.send(&question("a.test", RecordType::A)).unwrap();
        assert!(socket.recv(&mut [0u8; 512]).is_err());
    });
}
