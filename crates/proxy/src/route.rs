//! Detects previews: by their host first, then by the header fields of a front, then by a path below `/p/`.
//!
//! The authority of a URL in absolute form and `Host` must be the same; two different hosts are refused.

use atoll_model::SandboxId;
use http::header::{HOST, HeaderName};
use http::{HeaderMap, Uri};

use crate::host::{self, Domain, Named};
use crate::proxy::PortRequestOrigin;

/// The destination of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Not a sandbox: the fronts.
    Elsewhere,
    /// A port of a sandbox.
    Preview(Preview),
    /// None.
    Refused(Misrouted),
}

/// A port of a sandbox, as named in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    pub(crate) sandbox: SandboxId,
    /// `None`: the sandbox's default port.
    pub(crate) port: Option<u16>,
    pub(crate) by: RoutedBy,
    /// The token, if the host contains one.
    pub(crate) token: Option<String>,
}

/// How it was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoutedBy {
    /// By host: an origin of its own.
    Host,
    /// Below `/p/`, on the origin of the API. The number of bytes of the path that belong to the proxy.
    Path(usize),
    /// By fields, on the origin of the API.
    Fields,
}

impl From<RoutedBy> for PortRequestOrigin {
    fn from(by: RoutedBy) -> Self {
        match by {
            RoutedBy::Host => Self::Host,
            RoutedBy::Path(_) => Self::Path,
            RoutedBy::Fields => Self::Fields,
        }
    }
}

/// Header fields in which a front's clients name a sandbox and a port, whatever the path. Only the names are taken from
/// them; the destination comes from the server's own state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRoute {
    /// Contains the id of a sandbox.
    pub sandbox: HeaderName,
    /// Contains a port; without it, the sandbox's default port is used.
    pub port: HeaderName,
}

/// Why a request has no destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misrouted {
    /// `Host` is present twice, is not a host name, or differs from the host of the URL.
    #[error("the Host header is ambiguous: send exactly one plain host name")]
    BadHost,
    /// Below the domain of previews, but not a preview.
    #[error("this host name does not name a sandbox")]
    NoPreview,
    /// Below `/p/`, but not a preview.
    #[error("this path does not name a sandbox: previews are at /p/SANDBOX/PORT/")]
    NoPath,
    /// The fields of a front are present twice, or contain no valid sandbox or port.
    #[error("the header fields do not name a sandbox and a port")]
    NoField,
}

const PREFIX: &str = "/p/";

pub(crate) fn route(uri: &Uri, headers: &HeaderMap, domain: &Domain, fields: &[FieldRoute]) -> Route {
    match named(uri, headers, domain) {
        Err(misrouted) => Route::Refused(misrouted),
        Ok(Named::Nothing) => Route::Refused(Misrouted::NoPreview),
        Ok(Named::Preview(sandbox, port)) => {
            Route::Preview(Preview { sandbox, port, by: RoutedBy::Host, token: None })
        }
        Ok(Named::Presigned(sandbox, port, token)) => {
            Route::Preview(Preview { sandbox, port: Some(port), by: RoutedBy::Host, token: Some(token) })
        }
        Ok(Named::Other) => match fields.iter().find(|fields| headers.contains_key(&fields.sandbox)) {
            Some(fields) => {
                by_fields(headers, fields).map_or(Route::Refused(Misrouted::NoField), Route::Preview)
            }
            None => match uri.path().strip_prefix(PREFIX) {
                None => Route::Elsewhere,
                Some(rest) => by_path(rest).map_or(Route::Refused(Misrouted::NoPath), Route::Preview),
            },
        },
    }
}

fn by_fields(headers: &HeaderMap, fields: &FieldRoute) -> Option<Preview> {
    let only = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (value, None) => Some(value),
            (_, Some(_)) => None,
        }
    };
    let sandbox = only(&fields.sandbox)??.to_str().ok()?.parse().ok()?;
    let port = match only(&fields.port)? {
        Some(port) => Some(host::port(port.to_str().ok()?)?),
        None => None,
    };
    Some(Preview { sandbox, port, by: RoutedBy::Fields, token: None })
}

fn named(uri: &Uri, headers: &HeaderMap, domain: &Domain) -> Result<Named, Misrouted> {
    let parse = |text: &str| host::parse(text, domain).map_err(|_| Misrouted::BadHost);
    let mut hosts = headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(Misrouted::BadHost);
    }
    let host = host.map(|host| host.to_str().map_err(|_| Misrouted::BadHost)).transpose()?;
    let authority = uri.authority().map(http::uri::Authority::as_str);
    match (host, authority) {
        (None, None) => Ok(Named::Other),
        (Some(one), None) | (None, Some(one)) => parse(one),
        (Some(host), Some(authority)) if host.eq_ignore_ascii_case(authority) => parse(host),
        (Some(_), Some(_)) => Err(Misrouted::BadHost),
    }
}

/// `<id>/<port>/…`, taken literally: nothing is decoded.
fn by_path(rest: &str) -> Option<Preview> {
    let (sandbox, rest) = rest.split_once('/')?;
    let digits = rest.split('/').next().unwrap_or_default();
    let port = host::port(digits)?;
    let ours = PREFIX.len() + sandbox.len() + 1 + digits.len();
    Some(Preview { sandbox: sandbox.parse().ok()?, port: Some(port), by: RoutedBy::Path(ours), token: None })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const ID: &str = "abcdefghij0123456789";

    fn ask(uri: &str, hosts: &[&str]) -> Route {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        route(&uri.parse().unwrap(), &headers, &Domain::local(), &[])
    }

    fn ask_with(host: &str, pairs: &[(&'static str, &str)]) -> Route {
        let mut headers = HeaderMap::new();
        headers.append(HOST, HeaderValue::from_str(host).unwrap());
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let fields = FieldRoute {
            sandbox: HeaderName::from_static("e2b-sandbox-id"),
            port: HeaderName::from_static("e2b-sandbox-port"),
        };
        route(&"/files".parse().unwrap(), &headers, &Domain::local(), &[fields])
    }

    fn preview(port: Option<u16>, by: RoutedBy) -> Route {
        Route::Preview(Preview { sandbox: ID.parse().unwrap(), port, by, token: None })
    }

    #[test]
    fn a_host_wins_over_a_path() {
        let host = format!("80-{ID}.localhost");
        assert_eq!(ask("/", &[&host]), preview(Some(80), RoutedBy::Host));
        assert_eq!(ask("/v1/sandboxes", &[&host]), preview(Some(80), RoutedBy::Host));
        assert_eq!(ask(&format!("/p/{ID}/81/"), &[&host]), preview(Some(80), RoutedBy::Host));
        assert_eq!(ask("/", &[&format!("{ID}.localhost:7070")]), preview(None, RoutedBy::Host));
    }

    #[test]
    fn a_path_leads_to_a_port_and_is_read_as_written() {
        let ours = RoutedBy::Path(PREFIX.len() + 20 + 1 + 2);
        for tail in ["", "/", "/a/../b", "?x=1"] {
            assert_eq!(
                ask(&format!("/p/{ID}/81{tail}"), &["localhost:7070"]),
                preview(Some(81), ours),
                "{tail}"
            );
        }
        for path in [
            "/p/",
            "/p/x/80/",
            &format!("/p/{ID}"),
            &format!("/p/{ID}/"),
            &format!("/p/{ID}/081/"),
            &format!("/p/{ID}/0/"),
            &format!("/p//{ID}/80/"),
            &format!("/p/{ID}/%38%30/"),
            &format!("/p/{ID}/80;x/"),
        ] {
            assert_eq!(ask(path, &["localhost"]), Route::Refused(Misrouted::NoPath), "{path}");
        }
        for path in ["/", "/p", "/v1/health", "/pp/x", &format!("/%70/{ID}/80/"), &format!("//p/{ID}/80/")] {
            assert_eq!(ask(path, &["localhost"]), Route::Elsewhere, "{path}");
        }
    }

    #[test]
    fn fields_of_a_front_lead_to_a_port_and_never_past_a_host() {
        let (id, port) = (("e2b-sandbox-id", ID), ("e2b-sandbox-port", "81"));
        assert_eq!(ask_with("127.0.0.1:7070", &[id, port]), preview(Some(81), RoutedBy::Fields));
        assert_eq!(ask_with("localhost", &[id]), preview(None, RoutedBy::Fields));
        assert_eq!(ask_with("localhost", &[port]), Route::Elsewhere);
        assert_eq!(ask_with(&format!("80-{ID}.localhost"), &[id, port]), preview(Some(80), RoutedBy::Host));
        assert_eq!(ask_with("sandbox.localhost:7443", &[id, port]), preview(Some(81), RoutedBy::Fields));
        assert_eq!(ask_with("sandbox.localhost", &[]), Route::Elsewhere);
        for pairs in [
            &[id, id][..],
            &[id, port, port],
            &[("e2b-sandbox-id", "169.254.169.254")],
            &[("e2b-sandbox-id", "")],
            &[id, ("e2b-sandbox-port", "0")],
            &[id, ("e2b-sandbox-port", "80@evil")],
        ] {
            assert_eq!(ask_with("localhost", pairs), Route::Refused(Misrouted::NoField), "{pairs:?}");
        }
    }

    #[test]
    fn two_hosts_are_none_and_a_url_must_agree_with_its_host() {
        let (host, other) = (format!("80-{ID}.localhost"), format!("81-{ID}.localhost"));
        assert_eq!(ask("/", &[&host, &host]), Route::Refused(Misrouted::BadHost));
        assert_eq!(ask("/", &[&host, "localhost"]), Route::Refused(Misrouted::BadHost));
        assert_eq!(ask(&format!("http://{host}/x"), &[&host]), preview(Some(80), RoutedBy::Host));
        assert_eq!(ask(&format!("http://{host}/x"), &[]), preview(Some(80), RoutedBy::Host));
        assert_eq!(ask(&format!("http://{other}/x"), &[&host]), Route::Refused(Misrouted::BadHost));
        assert_eq!(ask(&format!("http://user@{host}/x"), &[]), Route::Refused(Misrouted::BadHost));
        assert_eq!(ask("/", &[]), Route::Elsewhere);
        assert_eq!(ask("/", &["a b"]), Route::Refused(Misrouted::BadHost));
        assert_eq!(ask("/", &["nobody.localhost"]), Route::Refused(Misrouted::NoPreview));
    }

    #[test]
    fn any_request_is_routed_or_refused() {
        let domain = Domain::local();
        let fields = FieldRoute {
            sandbox: HeaderName::from_static("e2b-sandbox-id"),
            port: HeaderName::from_static("e2b-sandbox-port"),
        };
        atoll_robustness::check("preview_route", |bytes| {
            let mut lines = bytes.split(|byte| *byte == b'\n');
            let Ok(uri) = Uri::try_from(lines.next().unwrap_or_default()) else { return };
            let mut headers = HeaderMap::new();
            for line in lines.take(100) {
                let (name, value) =
                    line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
                let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
                if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
                    headers.append(name, value);
                }
            }
            let _ = route(&uri, &headers, &domain, std::slice::from_ref(&fields));
        });
    }
}
