//! Queries of sandboxes: which are accepted, and which are dropped.

#![allow(clippy::unwrap_used)]
use hickory_proto::rr::rdata::{AAAA, CNAME, TXT};
use proptest::prelude::*;

use super::*;

const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn question(text: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name(text), kind));
    message.to_vec().unwrap()
}

fn asked(text: &str) -> DnsQuery {
    DnsQuery::parse(&question(text, RecordType::A)).unwrap()
}

fn answer(code: ResponseCode, records: Vec<Record>) -> Vec<u8> {
    let mut message = Message::response(1, OpCode::Query);
    message.metadata.response_code = code;
    message.add_query(Query::query(name("a.test."), RecordType::A));
    message.add_answers(records);
    message.to_vec().unwrap()
}

fn address(of: &str, ttl: u32, to: Ipv4Addr) -> Record {
    Record::from_rdata(name(of), ttl, RData::A(A(to)))
}

fn alias(of: &str, ttl: u32, to: &str) -> Record {
    Record::from_rdata(name(of), ttl, RData::CNAME(CNAME(name(to))))
}

#[test]
fn a_question_is_read_in_lower_case_and_answered_as_it_was_written() {
    let asked = asked("ExAmPle.COM.");
    assert_eq!((asked.name.as_deref(), asked.kind()), (Some("example.com"), QueryKind::Address4));
    let bytes = asked.answer(ResponseCode::NoError, &[PUBLIC], 60);
    let answer = Message::from_vec(&bytes).unwrap();
    assert_eq!(answer.metadata.id, 0x1234);
    assert_eq!(answer.queries[0].name.to_ascii(), "ExAmPle.COM.");
    assert_eq!(answer.answers, [address("ExAmPle.COM.", 60, PUBLIC)]);
    assert!(answer.metadata.recursion_available && answer.metadata.recursion_desired);
}

#[test]
fn only_the_name_goes_upstream() {
    let mut message = Message::from_vec(&question("WWW.Example.com.", RecordType::A)).unwrap();
    let mut edns = Edns::new();
    let secret = hickory_proto::rr::rdata::opt::EdnsOption::Unknown(65001, b"exfiltrate".to_vec());
    edns.options_mut().insert(secret);
    message.set_edns(edns);
    message.metadata.checking_disabled = true;
    let asked = DnsQuery::parse(&message.to_vec().unwrap()).unwrap();
    let upstream = asked.upstream().unwrap();
    let sent = upstream.bytes();
    assert!(!sent.windows(4).any(|window| window == b"exfi"));
    let sent = Message::from_vec(sent).unwrap();
    assert_eq!(sent.queries, [Query::query(name("www.example.com."), RecordType::A)]);
    assert_eq!(sent.queries[0].name.to_ascii(), "www.example.com.");
    assert!(!sent.metadata.checking_disabled);
}

#[test]
fn aliases_are_followed_and_strangers_left_out() {
    let records = vec![
        alias("a.test.", 30, "B.test."),
        address("evil.test.", 1, Ipv4Addr::new(198, 51, 100, 1)),
        alias("b.test.", 200, "c.test."),
        address("c.test.", 100, PUBLIC),
        address("c.test.", 100, PUBLIC),
        Record::from_rdata(name("c.test."), 1, RData::AAAA(AAAA("2001:db8::1".parse().unwrap()))),
        Record::from_rdata(name("a.test."), 1, RData::TXT(TXT::new(vec!["x".into()]))),
    ];
    let found = asked("a.test.").read(&answer(ResponseCode::NoError, records));
    assert_eq!(found, UpstreamAnswer::Addresses { addresses: vec![PUBLIC], ttl: 30 });
}

#[test]
fn aliases_in_a_circle_lead_nowhere() {
    let records = vec![alias("a.test.", 30, "b.test."), alias("b.test.", 30, "a.test.")];
    let found = asked("a.test.").read(&answer(ResponseCode::NoError, records));
    assert_eq!(found, UpstreamAnswer::Addresses { addresses: vec![], ttl: 30 });
}

#[test]
fn times_and_counts_are_bounded() {
    let many = |ttl| (0..100).map(|last| address("a.test.", ttl, Ipv4Addr::new(203, 0, 113, last))).collect();
    for (ttl, kept) in [(0, 5), (60, 60), (u32::MAX, 300)] {
        let found = asked("a.test.").read(&answer(ResponseCode::NoError, many(ttl)));
        assert!(
            matches!(found, UpstreamAnswer::Addresses { addresses, ttl } if addresses.len() == MOST_ADDRESSES && ttl == kept)
        );
    }
    let label = "a".repeat(60);
    let long = asked(&format!("{label}.{label}.{label}.{label}.test."));
    let addresses = [PUBLIC; MOST_ADDRESSES];
    assert!(long.answer(ResponseCode::NoError, &addresses, 60).len() <= 512);
}

#[test]
fn failures_are_told_apart() {
    assert_eq!(asked("a.test.").read(&answer(ResponseCode::NXDomain, vec![])), UpstreamAnswer::NoName);
    assert_eq!(asked("a.test.").read(&answer(ResponseCode::ServFail, vec![])), UpstreamAnswer::Failed);
    assert_eq!(asked("a.test.").read(b"rubbish"), UpstreamAnswer::Failed);
    let mut cut = Message::from_vec(&answer(ResponseCode::NoError, vec![])).unwrap();
    cut.metadata.truncation = true;
    assert_eq!(asked("a.test.").read(&cut.to_vec().unwrap()), UpstreamAnswer::Truncated);
}

#[test]
fn a_name_that_is_no_host_has_no_name() {
    for bytes in [
        &b"\x03a.b\x04test\x00"[..],
        b"\x02\xff\xfe\x04test\x00",
        b"\x00",
        b"\x01*\x04test\x00",
        b"\x011\x012\x00",
    ] {
        let message = [&[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], bytes, &[0, 1, 0, 1]].concat();
        let asked = DnsQuery::parse(&message).unwrap();
        assert_eq!(asked.name, None, "{bytes:?}");
        assert!(asked.upstream().is_none());
    }
}

#[test]
fn every_other_class_and_type_is_other() {
    for kind in [RecordType::TXT, RecordType::ANY, RecordType::MX, RecordType::NULL] {
        assert_eq!(DnsQuery::parse(&question("a.test.", kind)).unwrap().kind(), QueryKind::Other);
    }
    let mut chaos = question("a.test.", RecordType::A);
    *chaos.last_mut().unwrap() = 3;
    assert_eq!(DnsQuery::parse(&chaos).unwrap().kind(), QueryKind::Other);
    assert_eq!(DnsQuery::parse(&question("a.test.", RecordType::AAAA)).unwrap().kind(), QueryKind::Address6);
}

/// Queries and answers in hex; none causes a panic, and none is misinterpreted.
#[test]
fn the_corpus_makes_nothing_fall_over() {
    for line in include_str!("../../../tests/corpus/dns.txt").lines().filter(|line| !line.starts_with('#')) {
        let bytes: Vec<u8> =
            (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap()).collect();
        let read = asked("example.com.").read(&bytes);
        assert!(
            !matches!(read, UpstreamAnswer::Addresses { addresses, .. } if !addresses.is_empty()),
            "{line}"
        );
        if let Some(question) = Question::parse(&bytes)
            && let Some(asked) = DnsQuery::parse(question.bytes())
        {
            assert!(asked.name.as_deref().is_none_or(is_host_name));
            let _ = (asked.upstream(), asked.answer(ResponseCode::Refused, &[], 0));
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = asked("a.test.").read(&bytes);
        let _ = addresses_in(&bytes);
        if let Some(asked) = DnsQuery::parse(&bytes) {
            let _ = (asked.kind(), asked.upstream(), asked.answer(ResponseCode::NoError, &[PUBLIC], 5));
        }
    }

    #[test]
    fn a_changed_byte_never_adds_an_address_under_another_name(at in 0usize..200, byte: u8) {
        let records = vec![alias("a.test.", 30, "b.test."), address("b.test.", 30, PUBLIC)];
        let mut bytes = answer(ResponseCode::NoError, records);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let UpstreamAnswer::Addresses { addresses, ttl } = asked("a.test.").read(&bytes) {
            prop_assert!(addresses.len() <= 1 && TTL.contains(&ttl));
        }
    }

    #[test]
    fn a_host_name_survives_the_way_there_and_back(text in "[a-z0-9]{1,20}(\\.[a-z]{1,10}){1,4}") {
        let asked = asked(&format!("{text}."));
        prop_assert_eq!(asked.name.as_deref(), Some(text.as_str()));
        let upstream = DnsQuery::parse(asked.upstream().unwrap().bytes()).unwrap();
        prop_assert_eq!(upstream.name, asked.name);
    }
}

#[test]
fn any_query_is_refused_or_answered_within_bounds() {
    atoll_robustness::check("dns_query", |bytes| {
        let failure = Question::parse(bytes).map(|question| question.failure());
        assert!(failure.is_none_or(|failure| failure.len() <= bytes.len()));
        let Some(asked) = DnsQuery::parse(bytes) else { return };
        let _ = (asked.kind(), asked.upstream());
        let answer = asked.answer(ResponseCode::NoError, &[PUBLIC; 100], 60);
        assert!(answer.is_empty() || Message::from_vec(&answer).is_ok());
    });
}

#[test]
fn any_answer_is_read_within_bounds() {
    let sent = Question::parse(&question("a.test.", RecordType::A)).unwrap();
    atoll_robustness::check("dns_answer", |bytes| {
        if let UpstreamAnswer::Addresses { addresses, ttl } = asked("a.test.").read(bytes) {
            assert!(addresses.len() <= MOST_ADDRESSES && TTL.contains(&ttl));
        }
        assert!(addresses_in(bytes).len() <= MOST_ADDRESSES);
        let id = bytes.first_chunk().copied().unwrap_or_default();
        if let Some(accepted) = sent.accept(id, bytes.to_vec()) {
            assert!(accepted[..2] == [0x12, 0x34] && accepted.len() == bytes.len());
        }
    });
}
