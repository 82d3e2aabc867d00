//! The Leap0 front: its settings, and its handler for the hosts of sandboxes that are code interpreters.

use std::sync::Arc;

use atoll_front_leap0::{Hosts, Leap0, Leap0Options};
use atoll_proxy::{Dispatch, PortRequest, PortRequestOrigin, StandIn};
use atoll_service::Service;
use axum::{body::Body, extract::Request};
use tokio_util::sync::CancellationToken;

use super::settings::Settings;

/// The front of a server whose plain port is `port`.
pub(super) fn front(settings: &Settings, service: &Service, closing: CancellationToken, port: u16) -> Leap0 {
    let (domain, tls) = (settings.domain.clone(), settings.tls.clone());
    let hosts = move || match &tls {
        // A certificate may be added while the server runs.
        Some(tls) if tls.files.certificate.exists() => {
            Hosts { scheme: "https", domain: domain.for_tls().to_owned(), port: tls.listen.port() }
        }
        Some(_) | None => Hosts { scheme: "http", domain: domain.as_str().to_owned(), port },
    };
    Leap0::new(service.clone(), Leap0Options { closing, hosts: Arc::new(hosts) })
}

/// Handles requests to the host of a sandbox.
pub(super) struct OnHost(pub(super) Leap0);

impl StandIn for OnHost {
    fn wants(&self, asked: &PortRequest<'_>) -> bool {
        asked.by == PortRequestOrigin::Host && asked.port.is_none()
    }

    fn take<'a>(&'a self, asked: PortRequest<'a>, request: Request<Body>) -> Dispatch<'a> {
        Box::pin(self.0.on_host(asked.sandbox, request))
    }
}
