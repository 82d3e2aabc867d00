//! What the operator says about the way out of this network.

use std::sync::OnceLock;

use atoll_model::{BadProxy, NoProxy, ProxyKind, ProxyUrl};

use crate::authorities::Authority;
use crate::mirrors::Mirrors;

/// The settings of this process.
static CURRENT: OnceLock<OutboundSettings> = OnceLock::new();

/// Proxies and added authorities.
#[derive(Debug, Clone, Default)]
pub struct OutboundSettings {
    /// For `http://`.
    pub http: Option<ProxyUrl>,
    /// For `https://`.
    pub https: Option<ProxyUrl>,
    /// The hosts that are reached without one.
    pub no_proxy: NoProxy,
    /// The same as it was written, for programs that this server starts.
    pub no_proxy_text: String,
    /// Authorities that are trusted beside those of the machine.
    pub authorities: Vec<Authority>,
    /// For the packages of templates.
    pub mirrors: Mirrors,
}

/// A proxy in a flag or variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {cause}")]
pub struct BadProxySetting {
    /// The variable or flag.
    pub name: String,
    /// Why.
    pub cause: String,
}

/// Sets the settings of this process. Only the first call has an effect; it answers whether it was this one.
pub fn configure(settings: OutboundSettings) -> bool {
    CURRENT.set(settings).is_ok()
}

/// The settings of this process; without [`configure`] everything is reached directly.
#[must_use]
pub fn current() -> &'static OutboundSettings {
    CURRENT.get_or_init(OutboundSettings::default)
}

impl OutboundSettings {
    /// The settings in variables, as `variable` returns them. `proxy` and `no_proxy` are flags, which win.
    ///
    /// # Errors
    /// A proxy that is not one; its text is not repeated.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
        proxy: Option<&ProxyUrl>,
        no_proxy: Option<&str>,
    ) -> Result<Self, BadProxySetting> {
        let first = |names: [&str; 2]| {
            let found = names.into_iter().find_map(|name| Some((name.to_owned(), variable(name)?)));
            found.filter(|(_, value)| !value.trim().is_empty())
        };
        let read = |names: [&str; 2]| match (proxy, first(names)) {
            (Some(flag), _) => Ok(Some(flag.clone())),
            (None, None) => Ok(None),
            (None, Some((name, value))) => {
                let bad = |cause: BadProxy| BadProxySetting { name: name.clone(), cause: cause.to_string() };
                let proxy: ProxyUrl = value.trim().parse().map_err(bad)?;
                match proxy.kind {
                    ProxyKind::Http => Ok(Some(proxy)),
                    ProxyKind::Socks5 => {
                        Err(BadProxySetting { name, cause: "not a proxy that speaks HTTP".to_owned() })
                    }
                }
            }
        };
        let listed = no_proxy.map(str::to_owned).or_else(|| Some(first(["no_proxy", "NO_PROXY"])?.1));
        let listed = listed.unwrap_or_default();
        Ok(Self {
            http: read(["http_proxy", "HTTP_PROXY"])?,
            https: read(["https_proxy", "HTTPS_PROXY"])?,
            no_proxy: NoProxy::parse(&listed),
            no_proxy_text: listed,
            authorities: Vec::new(),
            mirrors: Mirrors::default(),
        })
    }

    /// The proxy for a host; `None`: it is reached directly. This machine always is.
    #[must_use]
    pub fn proxy_for(&self, is_tls: bool, host: &str, port: u16) -> Option<&ProxyUrl> {
        let bare = host.trim_matches(['[', ']']);
        let is_here = bare == "localhost"
            || bare.ends_with(".localhost")
            || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        let proxy = if is_tls { self.https.as_ref() } else { self.http.as_ref() };
        proxy.filter(|_| !is_here && !self.no_proxy.matches(host, port))
    }

    /// Whether a host is the one of a proxy.
    #[must_use]
    pub fn is_proxy_host(&self, host: &str) -> bool {
        [&self.http, &self.https].into_iter().flatten().any(|proxy| proxy.host == host)
    }

    /// The variables for a program that this server starts, with credentials. An empty list if there is no proxy.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        for (names, proxy) in
            [(["http_proxy", "HTTP_PROXY"], &self.http), (["https_proxy", "HTTPS_PROXY"], &self.https)]
        {
            let Some(proxy) = proxy else { continue };
            all.extend(names.map(|name| (name, proxy.with_credentials())));
        }
        if !all.is_empty() {
            all.extend(["no_proxy", "NO_PROXY"].map(|name| (name, self.no_proxy_text.clone())));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(variables: &[(&str, &str)], flag: Option<&str>) -> Result<OutboundSettings, BadProxySetting> {
        let flag = flag.map(|flag| flag.parse::<ProxyUrl>().unwrap());
        let value = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        OutboundSettings::read(value, flag.as_ref(), None)
    }

    #[test]
    fn lower_case_wins_and_a_flag_wins_over_both() {
        let variables = [
            ("HTTP_PROXY", "http://upper:1"),
            ("http_proxy", "http://lower:2"),
            ("HTTPS_PROXY", "tls:3"),
            ("NO_PROXY", ".corp.test,10.0.0.0/8"),
        ];
        let both = read(&variables, None).unwrap();
        assert_eq!(both.proxy_for(false, "a.test", 80).unwrap().authority(), "lower:2");
        assert_eq!(both.proxy_for(true, "a.test", 443).unwrap().authority(), "tls:3");
        for direct in ["a.corp.test", "10.1.2.3", "localhost", "a.localhost", "127.0.0.9", "[::1]", "::1"] {
            assert_eq!(both.proxy_for(true, direct, 443), None, "{direct}");
        }
        assert!(both.is_proxy_host("tls") && !both.is_proxy_host("a.test"));
        let flag = read(&variables, Some("http://flag:4")).unwrap();
        assert_eq!(flag.proxy_for(true, "a.test", 443).unwrap().authority(), "flag:4");
        assert!(read(&[("http_proxy", " ")], None).unwrap().http.is_none());
    }

    #[test]
    fn a_bad_proxy_is_named_by_its_variable_and_never_repeated() {
        for bad in ["https://me:canary@h:1", "socks5://me:canary@h:1", "http://me:canary@h:0"] {
            let why = read(&[("HTTPS_PROXY", bad)], None).unwrap_err().to_string();
            assert!(why.starts_with("HTTPS_PROXY is not a proxy") && !why.contains("canary"), "{why}");
        }
        let settings = read(&[("HTTPS_PROXY", "http://me:canary@h:1")], None).unwrap();
        assert!(!format!("{settings:?}").contains("canary"));
        assert!(settings.variables()[0].1.contains("canary"), "a program has to log in");
    }
}
