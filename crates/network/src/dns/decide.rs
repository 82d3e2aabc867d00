//! Decides about a query of a sandbox: refused, relayed, or answered with addresses that have been opened.
//!
//! | DNS mode | name | query | answer |
//! |---|---|---|---|
//! | closed | any | any | refused |
//! | gated | not allowed | any | refused; no query is sent upstream |
//! | gated | allowed | A | its addresses without the forbidden ones; opened before the answer is sent |
//! | gated | allowed | any other type | empty: no IPv6, no records that could carry data or ECH keys |
//! | free | changed by the policy | any | as gated |
//! | free | any, through a proxy | any | as gated |
//! | free | other | any | the upstream answer, unchanged |
//!
//! Through a proxy, a name that no name server here knows is answered with an address that stands for it ([`stand_in`]): the gate
//! passes the name on, and the proxy resolves it. Names of the proxy's own surroundings are answered so only if a policy lists them.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::policy::egress::ranges::stand_in;
use atoll_model::policy::egress::{Dns, Egress, NameVerdict};
use atoll_model::{EgressRecord, EgressVerdict, EgressWhat};
use hickory_proto::op::ResponseCode;

use super::message::Question;
use super::query::{self, DnsQuery, QueryKind, UpstreamAnswer};
use super::relay::{self, Transport};
use super::upstream::Upstreams;
use crate::gate::{EgressRefusal, Guest, now_ms};

/// The answer to a query, in bytes.
pub(crate) async fn answer(
    question: &Question,
    guest: &Arc<Guest>,
    upstreams: &Upstreams,
    transport: Transport,
) -> Vec<u8> {
    let Some(asked) = DnsQuery::parse(question.bytes()) else { return question.failure() };
    if !guest.questions.take() {
        if guest.complaints.take() {
            record(guest, &asked, EgressVerdict::Refused, "limits: too many questions per second", &[]);
        }
        return asked.answer(ResponseCode::Refused, &[], 0);
    }
    let egress = guest.egress();
    let verdict = asked.name.as_deref().map(|name| egress.judge(name));
    match (egress.dns, verdict) {
        (Dns::Closed, _) => refuse(guest, &asked, &egress.no_name()),
        (Dns::Free, Some(NameVerdict::Changed { rule, .. })) => gated(asked, guest, upstreams, rule).await,
        (Dns::Free, Some(NameVerdict::Allowed { rule })) if egress.is_proxied() => {
            gated(asked, guest, upstreams, rule).await
        }
        (Dns::Free, _) if egress.is_proxied() => refuse(guest, &asked, "not a name of a host"),
        (Dns::Free, _) => relayed(question, &asked, guest, upstreams, transport).await,
        (Dns::Gated, Some(NameVerdict::Allowed { rule } | NameVerdict::Changed { rule, .. })) => {
            gated(asked, guest, upstreams, rule).await
        }
        (Dns::Gated, Some(NameVerdict::Refused { rule })) => refuse(guest, &asked, &rule),
        (Dns::Gated, None) => refuse(guest, &asked, "not a name of a host"),
    }
}

fn refuse(guest: &Guest, asked: &DnsQuery, rule: &str) -> Vec<u8> {
    record(guest, asked, EgressVerdict::Refused, rule, &[]);
    asked.answer(ResponseCode::Refused, &[], 0)
}

/// Forwards the query unchanged, and returns its answer.
async fn relayed(
    question: &Question,
    asked: &DnsQuery,
    guest: &Guest,
    upstreams: &Upstreams,
    transport: Transport,
) -> Vec<u8> {
    let answer = relay::ask(question, upstreams, transport).await;
    // Every resolver sends this query together with the IPv4 one: a record would add nothing.
    if !matches!(asked.kind(), QueryKind::Address6 | QueryKind::Service) {
        match &answer {
            Some(answer) => {
                let addresses = query::addresses_in(answer);
                record(guest, asked, EgressVerdict::Allowed, "allow-all", &addresses);
            }
            None => record(guest, asked, EgressVerdict::Failed, "no name server answered", &[]),
        }
    }
    answer.unwrap_or_else(|| question.failure())
}

/// Answers a query for an allowed name.
async fn gated(asked: DnsQuery, guest: &Arc<Guest>, upstreams: &Upstreams, rule: String) -> Vec<u8> {
    match asked.kind() {
        QueryKind::Address4 => {}
        // Every client sends this query too: an empty answer is correct, and not a refusal.
        QueryKind::Address6 | QueryKind::Service => return asked.answer(ResponseCode::NoError, &[], 0),
        QueryKind::Other => {
            record(guest, &asked, EgressVerdict::Refused, "dns: only addresses are answered", &[]);
            return asked.answer(ResponseCode::NoError, &[], 0);
        }
    }
    let found = ask_upstream(&asked, upstreams, guest.egress().is_proxied()).await;
    let (addresses, ttl) = match stand_in_for(&asked, &guest.egress(), found) {
        UpstreamAnswer::Addresses { addresses, ttl } => (addresses, ttl),
        UpstreamAnswer::NoName => {
            record(guest, &asked, EgressVerdict::Failed, "no such name", &[]);
            return asked.answer(ResponseCode::NXDomain, &[], 0);
        }
        UpstreamAnswer::Truncated | UpstreamAnswer::Failed => {
            record(guest, &asked, EgressVerdict::Failed, "no name server answered", &[]);
            return asked.answer(ResponseCode::ServFail, &[], 0);
        }
    };
    match open(guest, &asked, addresses, ttl).await {
        Ok(open) => {
            record(guest, &asked, EgressVerdict::Allowed, &rule, &open);
            asked.answer(ResponseCode::NoError, &open, ttl)
        }
        Err(EgressRefusal(rule)) => refuse(guest, &asked, &rule),
    }
}

/// Opens the addresses before the answer is sent. The kernel needs microseconds, but may be busy with other requests.
async fn open(
    guest: &Arc<Guest>,
    asked: &DnsQuery,
    addresses: Vec<Ipv4Addr>,
    ttl: u32,
) -> Result<Vec<Ipv4Addr>, EgressRefusal> {
    let (guest, name) = (Arc::clone(guest), asked.name.clone().unwrap_or_default());
    let opened =
        tokio::task::spawn_blocking(move || guest.open(&name, &addresses, Duration::from_secs(ttl.into())));
    opened.await.unwrap_or_else(|_| Err(EgressRefusal("the kernel could not open it".to_owned())))
}

/// How long a stand-in is good for, in seconds.
const STAND_IN_TTL: u32 = 60;
/// Names that only mean something in one network: where a proxy is, they mean its own surroundings.
const OWN_NAMES: [&str; 11] = [
    "localhost",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "private",
    "arpa",
    "invalid",
    "onion",
];

/// The address that stands for a name which only the proxy can resolve.
fn stand_in_for(asked: &DnsQuery, egress: &Egress, found: UpstreamAnswer) -> UpstreamAnswer {
    let is_found = matches!(&found, UpstreamAnswer::Addresses { addresses, .. } if !addresses.is_empty());
    let name =
        asked.name.as_deref().filter(|name| !is_found && egress.is_proxied() && may_stand(egress, name));
    match name {
        Some(name) => UpstreamAnswer::Addresses { addresses: vec![stand_in(name)], ttl: STAND_IN_TTL },
        None => found,
    }
}

fn may_stand(egress: &Egress, name: &str) -> bool {
    let is_own = name.rsplit_once('.').is_none_or(|(_, last)| OWN_NAMES.contains(&last));
    let lists = |pattern: &atoll_model::DomainPattern| pattern.to_string() != "*" && pattern.matches(name);
    !is_own || egress.names.iter().any(|layer| layer.patterns.iter().any(lists))
}

/// `spares`: there is another answer if the name servers do not answer, so they are not waited for again and again.
async fn ask_upstream(asked: &DnsQuery, upstreams: &Upstreams, spares: bool) -> UpstreamAnswer {
    let Some(question) = asked.upstream() else { return UpstreamAnswer::Failed };
    if spares && upstreams.are_silent() {
        return UpstreamAnswer::Failed;
    }
    let Some(answer) = relay::ask(&question, upstreams, Transport::Udp).await else {
        upstreams.note_silence();
        return UpstreamAnswer::Failed;
    };
    match asked.read(&answer) {
        UpstreamAnswer::Truncated => match relay::ask(&question, upstreams, Transport::Tcp).await {
            Some(answer) => asked.read(&answer),
            None => UpstreamAnswer::Failed,
        },
        found => found,
    }
}

/// One record per address, so that flows can be matched to names; one record without an address if there is none.
fn record(guest: &Guest, asked: &DnsQuery, verdict: EgressVerdict, rule: &str, addresses: &[Ipv4Addr]) {
    let one = |address: Option<Ipv4Addr>| {
        guest.log(EgressRecord {
            at_ms: now_ms(),
            what: EgressWhat::Dns,
            verdict,
            rule: rule.to_owned(),
            name: asked.name.clone(),
            address: address.map(Into::into),
            port: None,
            protocol: None,
            sent: 0,
            received: 0,
        });
    };
    if addresses.is_empty() {
        one(None);
    }
    addresses.iter().for_each(|address| one(Some(*address)));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use atoll_model::NetworkPolicy;
    use atoll_model::policy::egress::{TenantFloor, compile};

    use super::*;

    #[test]
    fn names_of_the_proxys_surroundings_stand_only_if_they_are_listed() {
        let open = compile(&TenantFloor::default(), None, &NetworkPolicy::allow_all(), &[]);
        let listed = NetworkPolicy {
            mode: atoll_model::NetworkMode::Custom,
            allow_domains: vec!["wiki.corp".parse().unwrap(), "*".parse().unwrap()],
            ..NetworkPolicy::default()
        };
        let listed = compile(&TenantFloor::default(), None, &listed, &[]);
        for (name, in_open, in_listed) in [
            ("pypi.org", true, true),
            ("metadata.google.internal", false, false),
            ("proxy", false, false),
            ("a.localhost", false, false),
            ("wiki.corp", false, true),
        ] {
            assert_eq!((may_stand(&open, name), may_stand(&listed, name)), (in_open, in_listed), "{name}");
        }
    }
}
