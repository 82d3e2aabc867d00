//! Proxies that connections are passed on through: their addresses as operators and users write them, and the hosts that are reached
//! without one. A password is in no text that this code makes.

use std::fmt;
use std::str::FromStr;

use super::Cidr;

/// LIMIT: what proxies accept.
const CREDENTIAL_MAX: usize = 255;
const HOST_MAX: usize = 253;

/// How a proxy is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyKind {
    /// HTTP, with CONNECT.
    Http,
    /// SOCKS5, with the name of the destination.
    Socks5,
}

impl ProxyKind {
    /// The scheme of its address.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Socks5 => "socks5",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 3128,
            Self::Socks5 => 1080,
        }
    }
}

/// User and password of a proxy. Never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ProxyCredentials {
    /// The user.
    pub user: String,
    /// The password; may be empty.
    pub password: String,
}

impl fmt::Debug for ProxyCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxyCredentials(..)")
    }
}

/// A proxy: `http://[USER:PASSWORD@]HOST:PORT` or `socks5://…`. It is shown without its credentials.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ProxyUrl {
    /// How it is spoken to.
    pub kind: ProxyKind,
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What it wants to see, if anything.
    pub credentials: Option<ProxyCredentials>,
}

/// Why a text is not a proxy. The text is not part of it: it may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a proxy: {0}")]
pub struct BadProxy(&'static str);

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.kind.as_str(), self.authority())
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyUrl({self})")
    }
}

impl ProxyUrl {
    /// `host:port`, with brackets around an IPv6 address.
    #[must_use]
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }

    /// The address with its credentials, for a program or library that has to log in. Never for a log or an answer.
    #[must_use]
    pub fn with_credentials(&self) -> String {
        match &self.credentials {
            None => self.to_string(),
            Some(known) => format!(
                "{}://{}:{}@{}",
                self.kind.as_str(),
                encoded(&known.user),
                encoded(&known.password),
                self.authority()
            ),
        }
    }
}

impl FromStr for ProxyUrl {
    type Err = BadProxy;

    fn from_str(text: &str) -> Result<Self, BadProxy> {
        let (kind, rest) = match text.split_once("://") {
            Some(("http", rest)) => (ProxyKind::Http, rest),
            Some(("socks5" | "socks5h", rest)) => (ProxyKind::Socks5, rest),
            Some(("https", _)) => {
                return Err(BadProxy("a proxy is spoken to by http or socks5, not by https"));
            }
            Some(_) => return Err(BadProxy("write http://HOST:PORT or socks5://HOST:PORT")),
            None => (ProxyKind::Http, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (credentials, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(credentials(login)?), place),
            None => (None, rest),
        };
        let (host, port) = host_and_port(place)?;
        Ok(Self { kind, host, port: port.unwrap_or(kind.default_port()), credentials })
    }
}

fn credentials(login: &str) -> Result<ProxyCredentials, BadProxy> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let bad = || BadProxy("its user or password is not valid: encode special characters as %XX");
    let user = decoded(user).ok_or_else(bad)?;
    let password = decoded(password).ok_or_else(bad)?;
    if user.is_empty() || user.contains(':') || user.len() > CREDENTIAL_MAX || password.len() > CREDENTIAL_MAX
    {
        return Err(bad());
    }
    Ok(ProxyCredentials { user, password })
}

/// Reads `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`.
fn host_and_port(place: &str) -> Result<(String, Option<u16>), BadProxy> {
    let bad = || BadProxy("it has no valid host; write HOST:PORT without a path");
    let (host, port) = match place.strip_prefix('[') {
        Some(six) => {
            let (host, rest) = six.split_once(']').ok_or_else(bad)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
            (host, rest.strip_prefix(':').or_else(|| (!rest.is_empty()).then_some("x")))
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    if host.is_empty() || host.len() > HOST_MAX || !host.chars().all(is_plain) {
        return Err(bad());
    }
    let port = port.map(|digits| {
        let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u16>().ok()).flatten();
        number.filter(|port| *port > 0).ok_or(BadProxy("its port is not a number between 1 and 65535"))
    });
    Ok((host.to_ascii_lowercase(), port.transpose()?))
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit =
                    |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                bytes.push(digit(rest.next()?)? << 4 | digit(rest.next()?)?);
            }
            plain => bytes.push(plain),
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
        out
    })
}

/// `host:port`, with brackets around an IPv6 address.
#[must_use]
pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The hosts that are reached without a proxy: `NO_PROXY`.
///
/// | entry | matches |
/// |---|---|
/// | `*` | every host |
/// | `example.com`, `.example.com`, `*.example.com` | the name and all names below it |
/// | `10.0.0.0/8`, `192.0.2.7`, `2001:db8::/32` | addresses, as they are written in a request; names are not resolved |
/// | any of these with `:PORT` | only this port |
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoProxy(Vec<NoProxyEntry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct NoProxyEntry {
    hosts: NoProxyHosts,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NoProxyHosts {
    Every,
    Below(String),
    Range(Cidr),
}

impl NoProxy {
    /// Reads a list that is separated by commas or spaces. Entries that mean nothing match nothing, as everywhere.
    #[must_use]
    pub fn parse(list: &str) -> Self {
        let entries = list.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty());
        Self(entries.filter_map(NoProxyEntry::parse).collect())
    }

    /// Whether a host is reached without a proxy. An IPv6 address may have brackets.
    #[must_use]
    pub fn matches(&self, host: &str, port: u16) -> bool {
        let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
        self.0.iter().any(|entry| entry.matches(&host, port))
    }
}

impl NoProxyEntry {
    fn parse(entry: &str) -> Option<Self> {
        if let Some(range) = range(entry) {
            return Some(Self { hosts: NoProxyHosts::Range(range), port: None });
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) => (host.trim_matches(['[', ']']), Some(port.parse().ok()?)),
            None => (entry.trim_matches(['[', ']']), None),
        };
        let hosts = match (host, range(host)) {
            ("*", _) => NoProxyHosts::Every,
            (_, Some(range)) => NoProxyHosts::Range(range),
            (name, None) => {
                let name = name.strip_prefix('*').unwrap_or(name);
                let name = name.trim_matches('.').to_ascii_lowercase();
                (!name.is_empty()).then_some(NoProxyHosts::Below(name))?
            }
        };
        Some(Self { hosts, port })
    }

    fn matches(&self, host: &str, port: u16) -> bool {
        let is_here = match &self.hosts {
            NoProxyHosts::Every => true,
            NoProxyHosts::Below(name) => {
                host.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            NoProxyHosts::Range(range) => host.parse().is_ok_and(|address| range.contains(address)),
        };
        is_here && self.port.is_none_or(|only| only == port)
    }
}

/// An address or a range; bits after the prefix do not matter here.
fn range(text: &str) -> Option<Cidr> {
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address, Some(len.parse().ok()?)),
        None => (text, None),
    };
    let address: std::net::IpAddr = address.parse().ok()?;
    Cidr::around(address, len.unwrap_or(if address.is_ipv4() { 32 } else { 128 }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn proxies_are_read_and_shown_without_their_credentials() {
        for (text, shown, full) in [
            ("http://proxy.test:3128", "http://proxy.test:3128", "http://proxy.test:3128"),
            ("proxy.test:8080", "http://proxy.test:8080", "http://proxy.test:8080"),
            ("http://Proxy.Test/", "http://proxy.test:3128", "http://proxy.test:3128"),
            ("socks5h://10.0.0.1", "socks5://10.0.0.1:1080", "socks5://10.0.0.1:1080"),
            ("http://[::1]:3128", "http://[::1]:3128", "http://[::1]:3128"),
            ("http://me:p%40ss:w@h:1", "http://h:1", "http://me:p%40ss%3Aw@h:1"),
            ("http://only@h:1", "http://h:1", "http://only:@h:1"),
        ] {
            let proxy: ProxyUrl = text.parse().unwrap();
            assert_eq!(
                (proxy.to_string().as_str(), proxy.with_credentials().as_str()),
                (shown, full),
                "{text}"
            );
            assert!(!format!("{proxy:?}").contains("ss"), "{proxy:?}");
        }
        let known = "http://u:c%C3%A4naRY@h:1".parse::<ProxyUrl>().unwrap().credentials.unwrap();
        assert_eq!((known.user.as_str(), known.password.as_str()), ("u", "cänaRY"));
    }

    #[test]
    fn what_is_no_proxy_is_refused_without_being_repeated() {
        for bad in [
            "",
            "http://",
            "https://user:canary@h:1",
            "ftp://user:canary@h:1",
            "http://user:canary@h:0",
            "http://user:canary@h:99999",
            "http://user:canary@h:1/path",
            "http://user:canary@a b:1",
            "http://:canary@h:1",
            "http://user:canary%0a@h:1",
            "http://user:canary%zz@h:1",
            "http://[::1",
            "http://[::1]x",
            "socks4://h:1",
        ] {
            let why = bad.parse::<ProxyUrl>().unwrap_err().to_string();
            assert!(!why.contains("canary"), "{bad}: {why}");
        }
    }

    #[test]
    fn hosts_without_a_proxy_are_found_by_suffix_range_and_port() {
        let list = NoProxy::parse(
            "localhost, .corp.test,*.Star.test other.test:8443 10.0.0.0/8,192.0.2.7:80,2001:db8::/32,[::1]:81,172.16.5.9/12,:,x:y,/",
        );
        for (host, port) in [
            ("localhost", 1),
            ("a.localhost", 1),
            ("corp.test", 443),
            ("deep.a.CORP.test.", 443),
            ("star.test", 1),
            ("a.star.test", 1),
            ("other.test", 8443),
            ("10.200.3.4", 9),
            ("192.0.2.7", 80),
            ("2001:db8::5", 443),
            ("[2001:db8::5]", 443),
            ("::1", 81),
            ("172.31.0.1", 1),
        ] {
            assert!(list.matches(host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("notcorp.test", 443),
            ("corp.test.evil.test", 443),
            ("other.test", 443),
            ("11.0.0.1", 9),
            ("192.0.2.7", 443),
            ("::1", 80),
            ("2001:db9::5", 443),
            ("ten.test", 1),
            ("", 1),
        ] {
            assert!(!list.matches(host, port), "{host}:{port}");
        }
        assert!(NoProxy::parse("*").matches("anything.test", 1) && !NoProxy::parse("").matches("a.test", 1));
    }

    proptest! {
        #[test]
        fn what_is_read_is_read_the_same_again(text in ".{0,60}", user in "[ -~]{1,20}", password in ".{0,20}") {
            let _ = NoProxy::parse(&text).matches(&text, 443);
            if let Ok(proxy) = text.parse::<ProxyUrl>() {
                prop_assert_eq!(proxy.with_credentials().parse::<ProxyUrl>().unwrap(), proxy);
            }
            if !user.contains(':') && !password.chars().any(char::is_control) {
                let credentials = Some(ProxyCredentials { user, password });
                let proxy = ProxyUrl { kind: ProxyKind::Http, host: "h".into(), port: 1, credentials };
                prop_assert_eq!(proxy.with_credentials().parse::<ProxyUrl>().unwrap(), proxy);
            }
        }
    }
}
