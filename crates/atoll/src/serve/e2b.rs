//! The E2B front: its settings, and its handler for the ports of sandboxes that its SDKs use.

use std::sync::Arc;

use atoll_front_e2b::{Data, E2b, E2bOptions, Hosts};
use atoll_model::Code;
use atoll_proxy::{Dispatch, PortRequest, PortRequestOrigin, Refused, StandIn};
use atoll_service::Service;
use axum::{body::Body, extract::Request};
use tokio_util::sync::CancellationToken;

use super::settings::Settings;

/// The front of a server whose plain port is `port`.
pub(super) fn front(settings: &Settings, service: &Service, closing: CancellationToken, port: u16) -> E2b {
    let (domain, tls) = (settings.domain.clone(), settings.tls.clone());
    let hosts = move || Hosts {
        plain: format!("{}:{port}", domain.as_str()),
        // A certificate may be added while the server runs.
        tls: tls
            .as_ref()
            .filter(|tls| tls.files.certificate.exists())
            .map(|tls| format!("{}:{}", domain.for_tls(), tls.listen.port())),
    };
    let api_hosts =
        [settings.domain.as_str(), settings.domain.for_tls()].map(|domain| format!("api.{domain}"));
    let options = E2bOptions {
        closing,
        hosts: Arc::new(hosts),
        default_size: settings.e2b_size,
        api_hosts: api_hosts.into(),
    };
    E2b::new(service.clone(), options)
}

/// Handles requests to ports of a sandbox.
pub(super) struct OnPorts(pub(super) Data);

fn asked<'a>(asked: &PortRequest<'a>) -> atoll_front_e2b::DataRequest<'a> {
    atoll_front_e2b::DataRequest {
        sandbox: asked.sandbox,
        port: asked.port,
        by_fields: asked.by == PortRequestOrigin::Fields,
    }
}

impl StandIn for OnPorts {
    fn wants(&self, asked: &PortRequest<'_>) -> bool {
        asked.by != PortRequestOrigin::Path && Data::wants(asked.port)
    }

    fn take<'a>(&'a self, by: PortRequest<'a>, request: Request<Body>) -> Dispatch<'a> {
        Box::pin(self.0.take(asked(&by), request))
    }

    fn refuse<'a>(&'a self, by: PortRequest<'a>, code: Code) -> Refused<'a> {
        Box::pin(self.0.refuse(asked(&by), code))
    }
}
