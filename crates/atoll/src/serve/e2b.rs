//! The E2B front: its settings, and its handler for the ports of sandboxes that its SDKs use.

use std::sync::Arc;

use atoll_front_e2b::{Data, E2b, E2bOptions, Hosts};
use atoll_model::{Code, Lease};
use atoll_proxy::{Dispatch, PortRequest, PortRequestOrigin, Refused, StandIn, serve_inside};
use atoll_service::{ByteStream, InsideCaller, InsidePort, Service};
use axum::{body::Body, extract::Request};
use futures::future::BoxFuture;
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

/// The code interpreter for programs inside a sandbox.
pub(super) struct InsideInterpreter {
    pub(super) service: Service,
}

impl InsidePort for InsideInterpreter {
    fn port(&self) -> u16 {
        Data::interpreter_port()
    }

    fn wants(&self, lease: &Lease) -> bool {
        Data::is_inside(lease)
    }

    fn serve(&self, caller: InsideCaller, connection: Box<dyn ByteStream>) -> BoxFuture<'static, ()> {
        let (service, data) = (self.service.clone(), Data::new(self.service.clone()));
        Box::pin(async move {
            let answer = |request| data.answer_inside(&caller, request);
            serve_inside(connection, service.budget(), answer).await;
        })
    }
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
