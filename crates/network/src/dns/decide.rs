//! Decides about a query of a sandbox: refused, relayed, or answered with addresses that have been opened.
//!
//! | DNS mode | name | query | answer |
//! |---|---|---|---|
//! | closed | any | any | refused |
//! | gated | not allowed | any | refused; no query is sent upstream |
//! | gated | allowed | A | its addresses without the forbidden ones; opened before the answer is sent |
//! | gated | allowed | any other type | empty: no IPv6, no records that could carry data or ECH keys |
//! | free | changed by the policy | any | as gated |
//! | free | other | any | the upstream answer, unchanged |

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::policy::egress::{Dns, NameVerdict};
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
    let (addresses, ttl) = match ask_upstream(&asked, upstreams).await {
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

async fn ask_upstream(asked: &DnsQuery, upstreams: &Upstreams) -> UpstreamAnswer {
    let Some(question) = asked.upstream() else { return UpstreamAnswer::Failed };
    let Some(answer) = relay::ask(&question, upstreams, Transport::Udp).await else {
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
