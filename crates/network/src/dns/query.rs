//! Queries and answers of gated DNS: parses the query, builds the upstream query, reads its answer, and builds the
//! sandbox's answer.
//!
//! Only the name of a sandbox's query is sent upstream, and only addresses of an upstream answer are returned: all
//! other bytes are generated here. So neither direction can carry other data.

use std::net::Ipv4Addr;

use atoll_model::is_host_name;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::message::Question;

/// LIMIT: addresses in an answer; with the longest name they fit into the smallest UDP answer.
pub(crate) const MOST_ADDRESSES: usize = 12;
/// LIMIT: aliases that are followed.
const MOST_ALIASES: usize = 12;
/// The minimal and maximal lifetime of an answer, in seconds.
const TTL: std::ops::RangeInclusive<u32> = 5..=300;
const PAYLOAD: u16 = 1232;

/// A query of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct DnsQuery {
    id: u16,
    recursion_desired: bool,
    has_edns: bool,
    query: Query,
    /// The name in lower case, if it is a valid host name.
    pub(crate) name: Option<String>,
}

/// The type of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryKind {
    Address4,
    Address6,
    /// How to reach a service: browsers ask for it together with the addresses.
    Service,
    Other,
}

/// The result of an upstream query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamAnswer {
    /// Addresses, in order; may be empty.
    Addresses { addresses: Vec<Ipv4Addr>, ttl: u32 },
    /// The name does not exist.
    NoName,
    /// The answer was truncated: ask over TCP.
    Truncated,
    /// The server failed.
    Failed,
}

impl DnsQuery {
    /// `None` unless the bytes are one plain query.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let message = Message::from_vec(bytes).ok()?;
        let metadata = &message.metadata;
        let is_question = metadata.message_type == MessageType::Query && metadata.op_code == OpCode::Query;
        let [query] = message.queries.as_slice() else { return None };
        let is_plain = message.answers.is_empty() && message.authorities.is_empty();
        (is_question && is_plain).then(|| Self {
            id: metadata.id,
            recursion_desired: metadata.recursion_desired,
            has_edns: message.edns.is_some(),
            name: host_name(&query.name),
            query: query.clone(),
        })
    }

    pub(crate) fn kind(&self) -> QueryKind {
        match (self.query.query_class, self.query.query_type) {
            (DNSClass::IN, RecordType::A) => QueryKind::Address4,
            (DNSClass::IN, RecordType::AAAA) => QueryKind::Address6,
            (DNSClass::IN, RecordType::HTTPS | RecordType::SVCB) => QueryKind::Service,
            _ => QueryKind::Other,
        }
    }

    /// The upstream query: only for the name's IPv4 addresses.
    pub(crate) fn upstream(&self) -> Option<Question> {
        let name = Name::from_ascii(format!("{}.", self.name.as_ref()?)).ok()?;
        let mut message = Message::new(0, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name, RecordType::A));
        let mut edns = Edns::new();
        edns.set_max_payload(PAYLOAD).set_version(0);
        message.set_edns(edns);
        Question::parse(&message.to_vec().ok()?)
    }

    /// Builds an answer: these addresses for the name, as the sandbox wrote it.
    pub(crate) fn answer(&self, code: ResponseCode, addresses: &[Ipv4Addr], ttl: u32) -> Vec<u8> {
        let mut message = Message::response(self.id, OpCode::Query);
        message.metadata.recursion_desired = self.recursion_desired;
        message.metadata.recursion_available = true;
        message.metadata.response_code = code;
        message.add_query(self.query.clone());
        let record =
            |address: &Ipv4Addr| Record::from_rdata(self.query.name.clone(), ttl, RData::A(A(*address)));
        message.add_answers(addresses.iter().take(MOST_ADDRESSES).map(record));
        if self.has_edns {
            let mut edns = Edns::new();
            edns.set_max_payload(PAYLOAD).set_version(0);
            message.set_edns(edns);
        }
        message.to_vec().unwrap_or_default()
    }

    /// Reads the upstream answer about the name. Only records that are reached from it by aliases count.
    pub(crate) fn read(&self, answer: &[u8]) -> UpstreamAnswer {
        let Ok(message) = Message::from_vec(answer) else { return UpstreamAnswer::Failed };
        match (message.metadata.truncation, message.metadata.response_code) {
            (true, _) => return UpstreamAnswer::Truncated,
            (false, ResponseCode::NoError) => {}
            (false, ResponseCode::NXDomain) => return UpstreamAnswer::NoName,
            (false, _) => return UpstreamAnswer::Failed,
        }
        let (addresses, ttl) = follow(&self.query.name, &message.answers);
        UpstreamAnswer::Addresses { addresses, ttl: ttl.clamp(*TTL.start(), *TTL.end()) }
    }
}

/// Every IPv4 address in a relayed answer; for the log.
pub(crate) fn addresses_in(answer: &[u8]) -> Vec<Ipv4Addr> {
    let Ok(message) = Message::from_vec(answer) else { return Vec::new() };
    let addresses = message.answers.iter().filter_map(|record| match &record.data {
        RData::A(A(address)) => Some(*address),
        _ => None,
    });
    addresses.take(MOST_ADDRESSES).collect()
}

fn follow(asked: &Name, records: &[Record]) -> (Vec<Ipv4Addr>, u32) {
    let (mut name, mut ttl) = (asked.clone(), *TTL.end());
    for _ in 0..MOST_ALIASES {
        let of_name =
            || records.iter().filter(|record| record.dns_class == DNSClass::IN && same(&record.name, &name));
        let mut addresses = Vec::new();
        let mut alias = None;
        for record in of_name() {
            match &record.data {
                RData::A(A(address)) if !addresses.contains(address) => addresses.push(*address),
                RData::CNAME(target) => alias = Some(target.0.clone()),
                _ => continue,
            }
            ttl = ttl.min(record.ttl);
        }
        match (addresses.is_empty(), alias) {
            (true, Some(next)) => name = next,
            (true, None) | (false, _) => {
                addresses.truncate(MOST_ADDRESSES);
                return (addresses, ttl);
            }
        }
    }
    (Vec::new(), ttl)
}

fn same(a: &Name, b: &Name) -> bool {
    a.eq_ignore_root(b)
}

/// A name as text, if it is a valid host name. A dot within a label does not separate labels.
fn host_name(name: &Name) -> Option<String> {
    let labels: Vec<String> = name
        .iter()
        .map(|label| String::from_utf8(label.to_ascii_lowercase()).ok().filter(|label| !label.contains('.')))
        .collect::<Option<_>>()?;
    let name = labels.join(".");
    is_host_name(&name).then_some(name)
}

#[cfg(test)]
#[path = "query/tests.rs"]
mod tests;
