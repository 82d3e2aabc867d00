//! The grammar of host names. It is strict: invalid host names are refused, and a name that does not match exactly is
//! not a preview.
//!
//! ```text
//! <port>-<id>.<domain>   <id>-<port>.<domain>   <id>.<domain>   <id>-<port>-<token>.<domain>
//! ```
//!
//! Below a domain of one label the same forms are also valid below `atoll.` ([`SECOND_LABEL`] explains why).

use atoll_model::SandboxId;

use crate::local_ca::SECOND_LABEL;

/// LIMIT: the limits of DNS.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// The domain of previews, in lower case and without a final dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    name: String,
    /// Used if certificates with a wildcard need it.
    second: Option<String>,
    /// Names below the domain that belong to the server, in lower case.
    own_hosts: Vec<String>,
}

impl Domain {
    /// Parses a plain name such as `localhost` or `preview.example.com`; `None` if it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_address = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
        let second = (!name.contains('.')).then(|| format!("{SECOND_LABEL}.{name}"));
        (is_name(&name) && !name.contains('_') && !is_address).then_some(Self {
            name,
            second,
            own_hosts: Vec::new(),
        })
    }

    /// The same domain, with names that belong to the server and not to a sandbox.
    #[must_use]
    pub(crate) fn with_own_hosts(self, hosts: impl IntoIterator<Item = String>) -> Self {
        Self { own_hosts: hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect(), ..self }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The domain under which any TLS client accepts previews, whatever its rules for wildcards.
    #[must_use]
    pub fn for_tls(&self) -> &str {
        self.second.as_deref().unwrap_or(&self.name)
    }

    /// Whether a name is the domain itself.
    pub(crate) fn is(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case(&self.name)
            || self.second.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(name))
    }

    /// Whether a name belongs to the server: the domain itself, or one below it that no sandbox has.
    pub(crate) fn is_own(&self, name: &str) -> bool {
        self.is(name) || self.own_hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// The part of a lower-case name before the domain.
    fn label<'a>(&self, name: &'a str) -> Option<&'a str> {
        let below = |domain: &str| name.strip_suffix(domain)?.strip_suffix('.');
        self.second.as_deref().and_then(below).or_else(|| below(&self.name))
    }
}

/// The meaning of a host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// A port of a sandbox; `None`: its default port.
    Preview(SandboxId, Option<u16>),
    /// A port of a sandbox, with a token.
    Presigned(SandboxId, u16, String),
    /// A name below the domain that is not a preview.
    Nothing,
    /// Any other name: the server itself.
    Other,
}

/// Not a host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the Host header is not a host name")]
pub(crate) struct BadHost;

/// Parses `Host` or the authority of a request's URL.
pub(crate) fn parse(host: &str, domain: &Domain) -> Result<Named, BadHost> {
    let name = without_port(host)?;
    if name.starts_with('[') {
        return Ok(Named::Other);
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if !is_name(&name) {
        return Err(BadHost);
    }
    if domain.is_own(&name) {
        return Ok(Named::Other);
    }
    let Some(label) = domain.label(&name) else { return Ok(Named::Other) };
    let named = preview(label).map(|(id, port)| Named::Preview(id, port)).or_else(|| presigned(label));
    Ok(named.unwrap_or(Named::Nothing))
}

fn presigned(label: &str) -> Option<Named> {
    let mut parts = label.splitn(3, '-');
    let (id, number, token) = (parts.next()?, parts.next()?, parts.next()?);
    if !crate::presigned::is_token(token) {
        return None;
    }
    Some(Named::Presigned(id.parse().ok()?, port(number)?, token.to_owned()))
}

fn preview(label: &str) -> Option<(SandboxId, Option<u16>)> {
    match label.split_once('-') {
        None => Some((label.parse().ok()?, None)),
        Some((first, last)) => match first.parse() {
            Ok(id) => Some((id, Some(port(last)?))),
            Err(_) => Some((last.parse().ok()?, Some(port(first)?))),
        },
    }
}

/// A port in canonical form: no sign, no leading zero, not zero.
pub(crate) fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

/// The name before `:port`, which may be empty as a URL allows; an address in brackets keeps them.
fn without_port(host: &str) -> Result<&str, BadHost> {
    let (name, rest) = match host.find(']') {
        Some(end) if host.starts_with('[') => {
            let inside = &host[1..end];
            let plain = |b: u8| b.is_ascii_hexdigit() || matches!(b, b':' | b'.');
            if inside.parse::<std::net::Ipv6Addr>().is_err() || !inside.bytes().all(plain) {
                return Err(BadHost);
            }
            host.split_at(end + 1)
        }
        _ => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Ok(name),
        Some("") => Ok(name),
        Some(text) if text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit()) => {
            text.parse::<u16>().map(|_| name).map_err(|_| BadHost)
        }
        None | Some(_) => Err(BadHost),
    }
}

fn is_name(name: &str) -> bool {
    // An underscore is not allowed in host names, but many containers have one.
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    let is_label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len())
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= NAME_MAX && name.split('.').all(is_label)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
impl Domain {
    /// `localhost` with the names that the fronts of a server have below it.
    pub(crate) fn local() -> Self {
        let labels = ["api", "sandbox"].into_iter();
        let hosts =
            labels.flat_map(|label| [format!("{label}.localhost"), format!("{label}.atoll.localhost")]);
        Self::parse("localhost").unwrap().with_own_hosts(hosts)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "abcdefghij0123456789";

    fn local() -> Domain {
        Domain::local()
    }

    fn named(host: &str) -> Result<Named, BadHost> {
        parse(host, &local())
    }

    fn way(port: Option<u16>) -> Result<Named, BadHost> {
        Ok(Named::Preview(ID.parse().unwrap(), port))
    }

    #[test]
    fn the_three_forms_lead_to_a_port() {
        assert_eq!(named(&format!("8080-{ID}.localhost")), way(Some(8080)));
        assert_eq!(named(&format!("{ID}-8080.localhost:7070")), way(Some(8080)));
        assert_eq!(named(&format!("{ID}.localhost")), way(None));
        assert_eq!(named(&format!("{}.LocalHost.:7070", ID.to_uppercase())), way(None));
        assert_eq!(named(&format!("{ID}.localhost:")), way(None));
        assert_eq!(named(&format!("{ID}-80.Atoll.localhost:7443")), way(Some(80)));
        // A label of letters and digits can be a port only if it cannot be an id.
        assert_eq!(named(&format!("65535-{ID}.localhost")), way(Some(65_535)));
    }

    #[test]
    fn a_host_may_hold_a_token() {
        let token = "abcdefghijklmnopqrstuvwxyz234567";
        let wanted = Named::Presigned(ID.parse().unwrap(), 80, token.to_owned());
        assert_eq!(named(&format!("{ID}-80-{token}.localhost")), Ok(wanted.clone()));
        assert_eq!(
            named(&format!("{}-80-{}.Localhost:1", ID.to_uppercase(), token.to_uppercase())),
            Ok(wanted)
        );
        for label in [
            format!("80-{ID}-{token}"),
            format!("{ID}-080-{token}"),
            format!("{ID}-80-{}", &token[1..]),
            format!("{ID}-80-{}1", &token[1..]),
            format!("{ID}--{token}"),
        ] {
            assert_eq!(named(&format!("{label}.localhost")), Ok(Named::Nothing), "{label}");
        }
    }

    #[test]
    fn what_is_below_the_domain_and_no_preview_is_nothing() {
        for label in [
            "x".to_owned(),
            "sandboxes".to_owned(),
            format!("0-{ID}"),
            format!("080-{ID}"),
            format!("65536-{ID}"),
            format!("8080-8081-{ID}"),
            format!("{ID}-{ID}"),
            format!("8080-{ID}-8080"),
            format!("8080-{ID}x"),
            format!("8080.{ID}"),
            format!("a.8080-{ID}"),
            format!("{ID}.atoll.atoll"),
            format!("{ID}.xatoll"),
            format!("8080_{ID}"),
            format!("1{}", &ID[1..]),
        ] {
            assert_eq!(named(&format!("{label}.localhost")), Ok(Named::Nothing), "{label}");
        }
    }

    #[test]
    fn other_names_and_addresses_are_the_servers() {
        for host in [
            "localhost",
            "LOCALHOST.:80",
            "atoll.localhost:7443",
            "127.0.0.1:7070",
            "[::1]:7070",
            "[::ffff:127.0.0.1]",
            "atoll_server",
            "api.localhost",
            "Sandbox.atoll.localhost:7443",
            "evillocalhost",
            &format!("8080-{ID}.localhost.evil.example"),
            &format!("8080-{ID}.evil-localhost"),
        ] {
            assert_eq!(named(host), Ok(Named::Other), "{host}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        let long = format!("{}.localhost", "a".repeat(64));
        let longer = format!("{}localhost", "a.".repeat(130));
        for host in [
            "",
            ".",
            "..localhost",
            "a..localhost",
            "user@localhost",
            "a b",
            "a/b",
            "a:b",
            "a:123456",
            "a:65536",
            "a:1:2",
            "[::1",
            "[::1]x",
            "[nonsense]",
            "[fe80::1%25eth0]",
            "-a.localhost",
            "a-.localhost",
            "é.localhost",
            "a\0.localhost",
            "a%2e.localhost",
            "a,b.localhost",
            &long,
            &longer,
        ] {
            assert_eq!(named(host), Err(BadHost), "{host:?}");
        }
    }

    #[test]
    fn a_domain_is_a_plain_name() {
        let domain = Domain::parse("Preview.Example.COM.").unwrap();
        assert_eq!((domain.as_str(), domain.for_tls()), ("preview.example.com", "preview.example.com"));
        assert_eq!(local().for_tls(), "atoll.localhost");
        for text in ["", ".", "a:80", "https://a", "a b", "*.a", "a_b.c", "127.0.0.1", "-a"] {
            assert_eq!(Domain::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(host in ".{0,80}") {
            let _ = named(&host);
        }

        #[test]
        fn whatever_is_a_preview_names_its_id_in_its_first_label(
            host in "[a-zA-Z0-9.:_@\\[\\]-]{0,12}[a-z0-9]{18,22}[-0-9.a-z:]{0,8}\\.?localhost[.:0-9]{0,3}"
        ) {
            if let Ok(Named::Preview(id, port)) = named(&host) {
                let lower = host.to_ascii_lowercase();
                let label = lower.split('.').next().unwrap();
                let forms = match port {
                    None => vec![id.to_string()],
                    Some(port) => vec![format!("{port}-{id}"), format!("{id}-{port}")],
                };
                prop_assert!(forms.iter().any(|form| form == label), "{host} as {id} {port:?}");
                let rest = &lower[label.len()..];
                prop_assert!(rest.starts_with(".localhost") || rest.starts_with(".atoll.localhost"), "{host}");
            }
        }

        #[test]
        fn every_port_and_id_come_back(seed: [u8; 20], number in 1u16.., upper: bool, dot: bool, tail in 0u16..) {
            let id = SandboxId::from_entropy(seed);
            for label in [format!("{number}-{id}"), format!("{id}-{number}")] {
                let label = if upper { label.to_uppercase() } else { label };
                let host = format!("{label}.localhost{}:{tail}", if dot { "." } else { "" });
                prop_assert_eq!(named(&host), Ok(Named::Preview(id.clone(), Some(number))));
            }
        }
    }

    #[test]
    fn any_host_is_a_preview_or_not() {
        atoll_robustness::check("preview_host", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(Named::Preview(id, port)) = named(&text) {
                assert!(text.to_ascii_lowercase().contains(id.as_str()) && port != Some(0));
            }
            if let Some(domain) = Domain::parse(&text) {
                assert_eq!(
                    Domain::parse(domain.as_str()).as_ref().map(Domain::as_str),
                    Some(domain.as_str())
                );
            }
        });
    }
}
