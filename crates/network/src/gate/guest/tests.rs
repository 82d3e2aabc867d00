//! State of a sandbox at the gate: answers, their expiry, limits and budgets.

#![allow(clippy::unwrap_used)]
use atoll_model::NetworkPolicy;
use atoll_model::policy::egress::ranges::stand_in;
use atoll_model::policy::egress::{EgressProxy, OpenedTransform, TenantFloor, compile};

use super::*;

const SITE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const TTL: Duration = Duration::from_secs(60);

/// The recorded kernel operations, in order.
#[derive(Default)]
struct RecordedOpens(Mutex<Vec<String>>);

impl Opener for RecordedOpens {
    fn open(&self, _: SandboxLink, addresses: &[Ipv4Addr], _: Duration) -> std::io::Result<()> {
        self.0.lock().unwrap().push(format!("open {addresses:?}"));
        Ok(())
    }

    fn close(&self, _: SandboxLink, addresses: &[Ipv4Addr]) -> std::io::Result<()> {
        self.0.lock().unwrap().push(format!("close {addresses:?}"));
        Ok(())
    }
}

fn policy(json: &str) -> Arc<Egress> {
    let policy: NetworkPolicy = serde_json::from_str(json).unwrap();
    let opened: Vec<OpenedTransform> = policy
        .transforms
        .iter()
        .map(|transform| OpenedTransform {
            domain: transform.domain.clone(),
            inject: vec![],
            strip: vec![],
            plain_http: false,
        })
        .collect();
    Arc::new(compile(&TenantFloor::default(), None, &policy, &opened))
}

fn names(names: &str) -> Arc<Egress> {
    policy(&format!(r#"{{"mode":"custom","allow_domains":[{names}]}}"#))
}

fn guest(egress: Arc<Egress>) -> (Arc<Guest>, Arc<RecordedOpens>) {
    let told = Arc::new(RecordedOpens::default());
    let link = SandboxLink { number: 5, address: SandboxLink::address_of(5) };
    let sandbox = "abcdefghij0123456789".parse().unwrap();
    (Arc::new(Guest::new(link, sandbox, egress, told.clone(), Arc::new(|_, _| {}))), told)
}

fn to(address: Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, 443)
}

fn tls(guest: &Arc<Guest>, name: &str, address: Ipv4Addr) -> Result<FlowCarrier, EgressRefusal> {
    let visit = guest.arrive(to(address), 64).unwrap();
    guest.decide(&visit.flow, EgressWhat::Tls, name, false)
}

#[test]
fn an_address_passes_only_as_a_fresh_answer_for_its_name() {
    let (guest, told) = guest(names(r#""a.test","b.test""#));
    assert_eq!(
        tls(&guest, "a.test", SITE),
        Err(EgressRefusal("the address is no fresh answer for this name".into()))
    );
    assert_eq!(guest.open("a.test", &[SITE, PRIVATE], TTL), Ok(vec![SITE]));
    assert_eq!(tls(&guest, "a.test", SITE), Ok(FlowCarrier::Opaque));
    assert!(tls(&guest, "b.test", SITE).is_err(), "an answer for another name");
    assert!(tls(&guest, "c.test", SITE).is_err(), "not allowed at all");
    assert!(tls(&guest, "a.test", OTHER).is_err(), "another address");
    assert_eq!(*told.0.lock().unwrap(), ["open [203.0.113.1]"]);
}

#[test]
fn private_answers_are_never_opened() {
    let (guest, told) = guest(names(r#""a.test""#));
    assert_eq!(guest.open("a.test", &[PRIVATE], TTL), Err(EgressRefusal("never: private".into())));
    assert_eq!(guest.open("c.test", &[SITE], TTL), Err(EgressRefusal("not in allow_domains".into())));
    assert!(told.0.lock().unwrap().is_empty());
}

#[test]
fn a_hidden_name_is_refused_unless_requests_are_changed_or_packets_pass_anyway() {
    let decide = |egress| {
        let (guest, _) = guest(egress);
        guest.open("a.test", &[SITE], TTL).unwrap();
        let visit = guest.arrive(to(SITE), 64).unwrap();
        guest.decide(&visit.flow, EgressWhat::Tls, "a.test", true)
    };
    assert!(decide(names(r#""a.test""#)).is_err());
    assert_eq!(
        decide(policy(r#"{"mode":"custom","transforms":[{"domain":"a.test"}]}"#)),
        Ok(FlowCarrier::Changed)
    );
    let direct = r#"{"mode":"custom","allow_domains":["a.test"],"allow_cidrs":["203.0.113.0/24"]}"#;
    assert_eq!(decide(policy(direct)), Ok(FlowCarrier::Direct));
}

#[test]
fn a_change_is_made_only_for_an_answer_that_was_given() {
    let (guest, _) = guest(policy(r#"{"mode":"allow-all","transforms":[{"domain":"a.test"}]}"#));
    assert_eq!(tls(&guest, "a.test", SITE), Ok(FlowCarrier::Direct), "a made-up address gets no secret");
    guest.open("a.test", &[SITE], TTL).unwrap();
    assert_eq!(tls(&guest, "a.test", SITE), Ok(FlowCarrier::Changed));
    assert_eq!(tls(&guest, "b.test", SITE), Ok(FlowCarrier::Direct), "a neighbour at the same address");
}

#[test]
fn a_narrower_policy_ends_what_is_no_longer_allowed_and_nothing_else() {
    let (guest, told) = guest(names(r#""a.test","b.test""#));
    guest.open("a.test", &[SITE, OTHER], TTL).unwrap();
    guest.open("b.test", &[SITE], TTL).unwrap();
    let visit = |name: &str| {
        let visit = guest.arrive(to(SITE), 64).unwrap();
        guest.decide(&visit.flow, EgressWhat::Tls, name, false).unwrap();
        visit
    };
    let (a, b, undecided) = (visit("a.test"), visit("b.test"), guest.arrive(to(SITE), 64).unwrap());
    guest.change(names(r#""b.test""#));
    assert!(a.flow.ended.is_cancelled() && !b.flow.ended.is_cancelled());
    assert!(!undecided.flow.ended.is_cancelled());
    assert!(guest.decide(&undecided.flow, EgressWhat::Tls, "a.test", false).is_err());
    assert_eq!(told.0.lock().unwrap().last().unwrap(), "close [203.0.113.2]");
    guest.change(Arc::new(Egress::closed()));
    assert!(b.flow.ended.is_cancelled());
    assert_eq!(told.0.lock().unwrap().last().unwrap(), "close [203.0.113.1]");
    assert!(tls(&guest, "b.test", SITE).is_err());
}

#[test]
fn a_denied_range_ends_a_flow_whose_name_is_still_allowed() {
    let (guest, _) = guest(names(r#""a.test""#));
    guest.open("a.test", &[SITE], TTL).unwrap();
    let visit = guest.arrive(to(SITE), 64).unwrap();
    guest.decide(&visit.flow, EgressWhat::Tls, "a.test", false).unwrap();
    guest.change(policy(r#"{"mode":"custom","allow_domains":["a.test"],"deny_cidrs":["203.0.113.1"]}"#));
    assert!(visit.flow.ended.is_cancelled());
}

#[test]
fn an_unread_flow_ends_when_its_requests_shall_be_changed() {
    let (guest, _) = guest(names(r#""a.test""#));
    guest.open("a.test", &[SITE], TTL).unwrap();
    let visit = guest.arrive(to(SITE), 64).unwrap();
    guest.decide(&visit.flow, EgressWhat::Tls, "a.test", false).unwrap();
    guest.change(policy(r#"{"mode":"custom","transforms":[{"domain":"a.test"}]}"#));
    assert!(visit.flow.ended.is_cancelled());
}

#[test]
fn who_leaves_leaves_nothing_open() {
    let (guest, told) = guest(names(r#""a.test""#));
    guest.open("a.test", &[SITE], TTL).unwrap();
    let visit = guest.arrive(to(SITE), 64).unwrap();
    guest.leave();
    assert!(visit.flow.ended.is_cancelled());
    assert_eq!(told.0.lock().unwrap().last().unwrap(), "close [203.0.113.1]");
    assert!(guest.open("a.test", &[SITE], TTL).is_err() && guest.arrive(to(SITE), 64).is_err());
}

#[test]
fn connections_and_bytes_are_limited_by_the_policy() {
    let limited = r#"{"mode":"custom","allow_domains":["a.test"],"limits":{"connections":2,"bytes_per_destination":10}}"#;
    let (guest, _) = guest(policy(limited));
    guest.open("a.test", &[SITE], TTL).unwrap();
    let (one, two) = (guest.arrive(to(SITE), 64).unwrap(), guest.arrive(to(SITE), 64).unwrap());
    assert!(guest.arrive(to(SITE), 64).is_err());
    drop(two);
    assert!(guest.arrive(to(SITE), 64).is_ok(), "a place is given back");
    guest.decide(&one.flow, EgressWhat::Tls, "a.test", false).unwrap();
    assert!(one.flow.count_received(10).is_err());
    assert!(one.flow.ended.is_cancelled());
    assert_eq!(tls(&guest, "a.test", SITE), Err(EgressRefusal("limits: bytes_per_destination".into())));
    guest.change(names(r#""a.test""#));
    assert!(tls(&guest, "a.test", SITE).is_ok(), "without a limit it goes on");
}

#[test]
fn a_request_on_a_connection_that_holds_needs_no_fresh_answer() {
    let (guest, _) = guest(names(r#""a.test","b.test""#));
    guest.open("a.test", &[SITE], TTL).unwrap();
    let visit = guest.arrive(to(SITE), 64).unwrap();
    let http = |name| guest.decide(&visit.flow, EgressWhat::Http, name, false);
    assert_eq!(http("a.test"), Ok(FlowCarrier::Requests));
    guest.state().answers.retain(|_, _| false);
    assert_eq!(http("a.test"), Ok(FlowCarrier::Requests));
    assert!(http("b.test").is_err());
}

fn proxied(egress: Arc<Egress>) -> Arc<Egress> {
    let url = "http://127.0.0.1:3128".parse().unwrap();
    Arc::new(Egress::clone(&egress).through(EgressProxy { url, is_operators: true }))
}

#[test]
fn a_proxy_is_asked_for_the_name_that_a_fresh_answer_binds_to_the_address() {
    let (guest, _) = guest(proxied(policy(r#""allow-all""#)));
    let stand_in = stand_in("only.inside.test");
    assert_eq!(guest.open("only.inside.test", &[stand_in], TTL), Ok(vec![stand_in]));
    assert_eq!(guest.open("good.test", &[SITE], TTL), Ok(vec![SITE]));
    let asked = |address, name| {
        let visit = guest.arrive(to(address), 10).unwrap();
        guest.destination(&visit.flow, name).map_err(|EgressRefusal(rule)| rule)
    };
    assert_eq!(asked(SITE, Some("good.test")), Ok("good.test".to_owned()));
    assert_eq!(asked(SITE, Some("evil.test")), Ok(SITE.to_string()), "the hello alone binds nothing");
    assert_eq!(asked(OTHER, None), Ok(OTHER.to_string()));
    assert_eq!(asked(stand_in, Some("only.inside.test")), Ok("only.inside.test".to_owned()));
    assert_eq!(asked(stand_in, None), Ok("only.inside.test".to_owned()), "ssh says no name");
    assert!(asked(other_stand_in(stand_in), None).is_err());
    // Another name with the same stand-in: the address alone says nothing any more.
    assert_eq!(guest.open("collides.test", &[stand_in], TTL), Ok(vec![stand_in]));
    assert!(asked(stand_in, None).is_err());
}

fn other_stand_in(one: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(one) ^ 1)
}

#[test]
fn another_way_out_ends_every_flow_and_keeps_no_stand_in() {
    let direct = policy(r#""allow-all""#);
    let (guest, _) = guest(proxied(Arc::clone(&direct)));
    let stand_in = stand_in("only.inside.test");
    guest.open("only.inside.test", &[stand_in], TTL).unwrap();
    let visit = guest.arrive(to(stand_in), 10).unwrap();
    assert_eq!(
        guest.decide(&visit.flow, EgressWhat::Tls, "only.inside.test", false),
        Ok(FlowCarrier::Direct)
    );
    guest.change(proxied(Arc::clone(&direct)));
    assert!(!visit.flow.ended.is_cancelled(), "the same way");
    assert!(guest.is_answer("only.inside.test", stand_in));
    guest.change(direct);
    assert!(visit.flow.ended.is_cancelled());
    assert!(!guest.is_answer("only.inside.test", stand_in));
    assert!(
        guest.open("only.inside.test", &[stand_in], TTL).is_err(),
        "it stands for nothing without a proxy"
    );
}
