//! `CONNECT`, for clients that cannot resolve the names of previews: they use this server as their HTTPS proxy.
//!
//! It leads only to this server: to the TLS listener for names of previews, and to the listener of the port for the
//! server's own names. No socket is opened; the connection is served inside the original one, and cannot be nested
//! further.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use atoll_model::Code;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use super::HttpServer;
use super::connection::Arrival;
use crate::host::{self, Domain, Named};
use crate::page::ProxyError;

const HTTPS: u16 = 443;

/// The listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Tls,
}

/// The ports of the listeners; zero if there is none.
#[derive(Debug, Clone, Copy)]
struct Ports {
    plain: u16,
    tls: u16,
}

impl HttpServer {
    pub(super) fn connect(&self, request: Request<Incoming>, arrival: Arrival) -> Response<Body> {
        let refuse = |refusal: ProxyError| refusal.render();
        let ports = Ports {
            plain: self.0.plain_port.load(Ordering::Relaxed),
            tls: self.0.tls_port.load(Ordering::Relaxed),
        };
        let target = request.uri().authority().map_or("", http::uri::Authority::as_str);
        let way = way(target, self.0.proxy.domain(), ports);
        let Some(way) = way.filter(|_| !arrival.is_inside && !arrival.is_secure) else {
            return refuse(
                ProxyError::new(Code::Forbidden, "this proxy connects only to sandboxes of this server")
                    .hint("for other hosts, unset HTTPS_PROXY or list them in NO_PROXY"),
            );
        };
        let tls = self.0.tls.get().cloned();
        if way == Way::Tls && tls.is_none() {
            return refuse(
                ProxyError::new(Code::PortClosed, "this server has no certificate yet")
                    .hint("atoll tls init"),
            );
        }
        let server = self.clone();
        let arrival = Arrival { is_secure: way == Way::Tls, is_inside: true, user: None, ..arrival };
        let evicted = arrival.connection.evicted();
        self.spawn(Box::pin(async move {
            let Ok(stream) = hyper::upgrade::on(request).await else { return };
            // Boxed, because a connection inside a connection would be a recursive type.
            let inside: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match tls {
                Some(tls) if way == Way::Tls => {
                    Box::pin(async move { server.secure(TokioIo::new(stream), tls, arrival).await })
                }
                Some(_) | None => {
                    Box::pin(async move { server.connection(TokioIo::new(stream), arrival).await })
                }
            };
            tokio::select! { () = inside => {}, () = evicted.cancelled() => {} }
        }));
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::OK;
        response
    }
}

/// The listener for a target; `None`: the target is not this server.
fn way(target: &str, domain: &Domain, ports: Ports) -> Option<Way> {
    let (name, port) = target.rsplit_once(':')?;
    let port = host::port(port)?;
    let to_tls = port == HTTPS || port == ports.tls;
    match host::parse(target, domain).ok()? {
        Named::Preview(..) | Named::Presigned(..) => to_tls.then_some(Way::Tls),
        Named::Nothing => None,
        Named::Other => {
            let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
            let is_ours = match address {
                Ok(address) => {
                    address == IpAddr::from([127, 0, 0, 1])
                        || address == IpAddr::from(std::net::Ipv6Addr::LOCALHOST)
                }
                Err(_) => name.eq_ignore_ascii_case("localhost") || domain.is_own(name),
            };
            match is_ours {
                true if port == ports.plain => Some(Way::Plain),
                true if port == ports.tls || (port == HTTPS && address.is_err()) => Some(Way::Tls),
                true | false => None,
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_and_ports_lead_anywhere() {
        let id = "abcdefghij0123456789";
        let ports = Ports { plain: 7070, tls: 7443 };
        let domain = Domain::local();
        let way = |target: &str| way(target, &domain, ports);
        for target in [
            format!("{id}.localhost:443"),
            format!("{id}-3000.localhost:443"),
            format!("3000-{id}.localhost:7443"),
            format!("{id}.atoll.localhost:7443"),
            "localhost:7443".to_owned(),
            "atoll.localhost:443".to_owned(),
            "127.0.0.1:7443".to_owned(),
            "api.atoll.localhost:7443".to_owned(),
            "Sandbox.localhost:443".to_owned(),
        ] {
            assert_eq!(way(&target), Some(Way::Tls), "{target}");
        }
        for target in ["127.0.0.1:7070", "localhost:7070", "[::1]:7070"] {
            assert_eq!(way(target), Some(Way::Plain), "{target}");
        }
        for target in [
            format!("{id}.localhost:80"),
            format!("{id}.localhost:7070"),
            format!("{id}.localhost"),
            format!("{id}.localhost.evil.example:443"),
            "127.0.0.1:22".to_owned(),
            "127.0.0.1:443".to_owned(),
            "127.0.0.2:7070".to_owned(),
            "0.0.0.0:7070".to_owned(),
            "2130706433:7070".to_owned(),
            "[::ffff:127.0.0.1]:7070".to_owned(),
            "169.254.169.254:80".to_owned(),
            "169.254.169.254:7443".to_owned(),
            "pypi.org:443".to_owned(),
            "x.localhost:443".to_owned(),
            "api.localhost.evil.example:443".to_owned(),
            "api.evil.example:443".to_owned(),
            "localhost:0".to_owned(),
            "localhost:07070".to_owned(),
            String::new(),
            ":7070".to_owned(),
        ] {
            assert_eq!(way(&target), None, "{target}");
        }
    }

    #[test]
    fn any_target_leads_to_us_or_nowhere() {
        let domain = Domain::local();
        atoll_robustness::check("connect_target", |bytes| {
            let target = String::from_utf8_lossy(bytes);
            if way(&target, &domain, Ports { plain: 7070, tls: 7443 }).is_some() {
                assert!([":7070", ":7443", ":443"].iter().any(|port| target.ends_with(port)));
            }
        });
    }
}
