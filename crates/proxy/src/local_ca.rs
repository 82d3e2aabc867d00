//! A certificate authority for one machine and one domain, and its certificate for this server.
//!
//! Its certificate limits what it may sign: names below `localhost`, below the domain and below further names of the server,
//! loopback addresses and further addresses of the server. So clients that trust it trust it only for those. Pure except for randomness: it writes no file and reads no clock.

use std::fmt;
use std::net::IpAddr;

use crate::Domain;
use rcgen::date_time_ymd as ymd;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};

/// The label below which previews are also found if the domain has only one label: OpenSSL, and so Python, accepts no
/// certificate for `*.localhost`, because a wildcard needs two dots after it.
pub(crate) const SECOND_LABEL: &str = "atoll";
const NAME: &str = "Atoll local CA";
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

/// A date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IssueDate {
    /// With four digits.
    pub year: i16,
    /// From 1.
    pub month: u8,
    /// From 1.
    pub day: u8,
}

impl IssueDate {
    /// The current date, in UTC.
    #[expect(clippy::disallowed_methods, reason = "the validity of a certificate is wall time")]
    #[must_use]
    pub fn now() -> Self {
        let date = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        let small = |n: i8| u8::try_from(n).unwrap_or(1);
        Self { year: date.year(), month: small(date.month()), day: small(date.day()) }
    }

    /// The same day in another year; the day is at most the 28th, because the 29th of February may not exist.
    fn in_years<T>(self, years: i16, date: impl Fn(i32, u8, u8) -> T) -> T {
        date(i32::from(self.year + years), self.month, self.day.min(28))
    }
}

/// A name or an address at which clients reach a server, besides its domain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostName {
    /// In lower case; never a wildcard.
    Name(String),
    Address(IpAddr),
}

impl HostName {
    /// Parses `atoll.example.com`, `10.0.0.5` or `2001:db8::1`; `None` if it is neither a name nor an address.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return (!address.is_unspecified()).then_some(Self::Address(address));
        }
        Domain::parse(text).map(|name| Self::Name(name.as_str().to_owned()))
    }

    /// Whether an authority for this name may also sign for `other`: the same address, or the name and names below it.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(own), Self::Name(other)) => {
                other.strip_suffix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (Self::Address(own), Self::Address(other)) => own == other,
            (Self::Name(_), Self::Address(_)) | (Self::Address(_), Self::Name(_)) => false,
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The authority.
pub struct LocalCa {
    domain: String,
    /// What else it may sign for.
    hosts: Vec<HostName>,
    key: KeyPair,
    params: CertificateParams,
    certificate: String,
}

impl std::fmt::Debug for LocalCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalCa").field("domain", &self.domain).finish_non_exhaustive()
    }
}

/// A certificate of the authority, in PEM.
#[derive(Clone)]
pub struct Leaf {
    /// The certificate, followed by the authority's.
    pub chain: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leaf").finish_non_exhaustive()
    }
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("no certificate for {domain} could be made")]
pub struct NotMade {
    /// The domain.
    pub domain: String,
    #[source]
    pub cause: rcgen::Error,
}

impl LocalCa {
    /// Makes a new authority for a domain and further names and addresses, valid for ten years.
    pub fn make(domain: &str, hosts: &[HostName], today: IssueDate) -> Result<Self, NotMade> {
        Self::try_make(domain, hosts, today).map_err(|cause| not_made(domain, cause))
    }

    fn try_make(domain: &str, hosts: &[HostName], today: IssueDate) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = params(domain, hosts);
        params.not_before = today.in_years(-1, ymd);
        params.not_after = today.in_years(10, ymd);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { domain: domain.to_owned(), hosts: hosts.to_owned(), key, params, certificate })
    }

    /// Opens an existing authority from its files; it was made for this domain and these names and addresses.
    pub fn open(domain: &str, hosts: &[HostName], certificate: &str, key: &str) -> Result<Self, NotMade> {
        let key = KeyPair::from_pem(key).map_err(|cause| not_made(domain, cause))?;
        let (certificate, params) = (certificate.to_owned(), params(domain, hosts));
        Ok(Self { domain: domain.to_owned(), hosts: hosts.to_owned(), key, params, certificate })
    }

    /// Whether its certificate allows it to sign for this name or address.
    #[must_use]
    pub fn may_sign(&self, host: &HostName) -> bool {
        let own = ["localhost", self.domain.as_str()].map(|name| HostName::Name(name.to_owned()));
        own.iter().chain(&self.hosts).any(|known| known.covers(host))
            || matches!(host, HostName::Address(IpAddr::V4(address)) if address.is_loopback())
            || matches!(host, HostName::Address(IpAddr::V6(address)) if address.is_loopback())
    }

    /// Its certificate as PEM, which clients have to trust.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its key, in PEM.
    #[must_use]
    pub fn key(&self) -> String {
        self.key.serialize_pem()
    }

    /// A certificate for every name of a server of this domain, and for further ones that it may sign for. It is valid for two
    /// years, because some clients accept no longer validity.
    pub fn leaf(&self, hosts: &[HostName], today: IssueDate) -> Result<Leaf, NotMade> {
        self.try_leaf(hosts, today).map_err(|cause| not_made(&self.domain, cause))
    }

    fn try_leaf(&self, hosts: &[HostName], today: IssueDate) -> Result<Leaf, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut all = names(&self.domain);
        all.extend(hosts.iter().filter_map(|host| match host {
            HostName::Name(name) => Some(name.clone()),
            HostName::Address(_) => None,
        }));
        all.sort_unstable();
        all.dedup();
        let mut leaf = CertificateParams::new(all)?;
        leaf.not_before = today.in_years(-1, ymd);
        leaf.not_after = today.in_years(1, ymd);
        leaf.distinguished_name = called("Atoll");
        leaf.is_ca = IsCa::ExplicitNoCa;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let mut addresses: Vec<IpAddr> = LOOPBACK.iter().filter_map(|ip| ip.parse().ok()).collect();
        addresses.extend(hosts.iter().filter_map(|host| match host {
            HostName::Name(_) => None,
            HostName::Address(address) => Some(*address),
        }));
        addresses.sort_unstable();
        addresses.dedup();
        leaf.subject_alt_names.extend(addresses.into_iter().map(SanType::IpAddress));
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = leaf.signed_by(&key, &issuer)?;
        Ok(Leaf { chain: format!("{}{}", certificate.pem(), self.certificate), key: key.serialize_pem() })
    }
}

/// Every name of the server. Never a wildcard with a single label after it: almost no client accepts it, and clients
/// that check name constraints refuse the whole certificate because of it.
#[must_use]
pub fn names(domain: &str) -> Vec<String> {
    let mut names = Vec::new();
    for base in ["localhost", domain] {
        names.push(base.to_owned());
        let below = if base.contains('.') { base.to_owned() } else { format!("{SECOND_LABEL}.{base}") };
        names.extend([format!("*.{below}"), below]);
    }
    names.sort_unstable();
    names.dedup();
    names
}

fn params(domain: &str, hosts: &[HostName]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = called(NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let below = |name: &str| GeneralSubtree::DnsName(name.to_owned());
    let mut permitted_subtrees = vec![
        below("localhost"),
        below(domain),
        GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([127, 0, 0, 0], 8)),
        GeneralSubtree::IpAddress(CidrSubnet::from_v6_prefix(std::net::Ipv6Addr::LOCALHOST.octets(), 128)),
    ];
    permitted_subtrees.extend(hosts.iter().map(|host| match host {
        HostName::Name(name) => below(name),
        HostName::Address(IpAddr::V4(address)) => {
            GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix(address.octets(), 32))
        }
        HostName::Address(IpAddr::V6(address)) => {
            GeneralSubtree::IpAddress(CidrSubnet::from_v6_prefix(address.octets(), 128))
        }
    }));
    params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    params
}

fn called(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn not_made(domain: &str, cause: rcgen::Error) -> NotMade {
    NotMade { domain: domain.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_signs_for_what_it_was_made_for() {
        let today = IssueDate { year: 2026, month: 11, day: 15 };
        let host = |text: &str| HostName::parse(text).expect("valid");
        let ca =
            LocalCa::make("localhost", &[host("lab.example.com"), host("10.0.0.5")], today).expect("made");
        for fine in ["Lab.example.com", "a.lab.example.com", "10.0.0.5", "127.0.0.9", "::1", "x.localhost"] {
            assert!(ca.may_sign(&host(fine)), "{fine}");
        }
        for other in ["example.com", "xlab.example.com", "10.0.0.6", "2001:db8::1"] {
            assert!(!ca.may_sign(&host(other)), "{other}");
        }
        assert!(ca.leaf(&[host("lab.example.com"), host("10.0.0.5"), host("127.0.0.1")], today).is_ok());
        for odd in ["", "*.example.com", "a b", "0.0.0.0", "::", "10.0.0.256", "http://a"] {
            assert_eq!(HostName::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_domain_of_one_label_has_a_second_form() {
        assert_eq!(names("localhost"), ["*.atoll.localhost", "atoll.localhost", "localhost"]);
        let more = names("preview.example.com");
        assert!(more.contains(&"*.preview.example.com".to_owned()) && more.len() == 5, "{more:?}");
    }
}
