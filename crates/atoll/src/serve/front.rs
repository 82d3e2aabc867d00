//! The doors and what is behind them: a request that names a sandbox goes to the proxy; every other to a front.

use std::sync::Arc;

use atoll_front_e2b::{Data, E2b};
use atoll_front_leap0::Leap0;
use atoll_front_native::{Options, PreviewOrigin, Shutdown};
use atoll_proxy::{Closing, FieldRoute, HttpServer, Limits, Proxy};
use atoll_service::Service;
use axum::Router;
use axum::http::HeaderName;
use tokio::sync::watch;

use super::{daytona, e2b, e2b_data, leap0, settings::Settings};

/// The doors of a server whose plain port is `port`.
#[expect(clippy::disallowed_methods, reason = "ends with the server, when all who listen are gone")]
pub(super) fn server(settings: &Settings, service: &Service, shutdown: &Shutdown, port: u16) -> HttpServer {
    let (draining, forced) = shutdown.tokens();
    let (close, closing) = watch::channel(false);
    let begun = draining.clone();
    tokio::spawn(async move {
        begun.cancelled().await;
        close.send_replace(true);
        // Those who listen take a sender that is gone for the same.
        close.closed().await;
    });
    let leap0 = leap0::front(settings, service, draining.clone(), port);
    let e2b = e2b::front(settings, service, draining.clone(), port);
    let proxy = Proxy::new(service.clone(), settings.domain.clone(), closing)
        .with_fields(fields())
        .with_stand_ins(vec![
            Arc::new(leap0::OnHost(leap0.clone())),
            Arc::new(e2b_data::OnPorts(Data::new(service.clone()))),
        ]);
    let daytona = daytona::front(settings, service, draining.clone(), port);
    let fronts = daytona::mount(fronts(settings, service, shutdown, port, leap0, e2b), daytona);
    HttpServer::new(
        proxy,
        fronts,
        Limits::default(),
        Closing { draining, forced },
        settings.allow_origins.clone(),
    )
}

/// Every path space of the plain and the TLS port.
fn fronts(
    settings: &Settings,
    service: &Service,
    shutdown: &Shutdown,
    port: u16,
    leap0: Leap0,
    e2b: E2b,
) -> Router {
    let previews = PreviewOrigin { domain: settings.domain.as_str().to_owned(), port };
    let options = Options { shutdown: shutdown.clone(), previews, origins: settings.allow_origins.clone() };
    let native = atoll_front_native::router(service.clone(), options);
    // Other fronts are put before it, each below its own path.
    let signed = e2b_data::mount(native, Data::new(service.clone()));
    e2b::mount(leap0::mount(signed, leap0), e2b, settings)
}

/// The fields by which the clients of a front name a sandbox and a port.
fn fields() -> Vec<FieldRoute> {
    // COMPAT(e2b): SDKs with a plain sandbox URL send these with every request to a sandbox.
    vec![FieldRoute {
        sandbox: HeaderName::from_static("e2b-sandbox-id"),
        port: HeaderName::from_static("e2b-sandbox-port"),
    }]
}
