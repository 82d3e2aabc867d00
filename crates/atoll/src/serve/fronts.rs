//! The table of fronts: which front answers a request, in which order.
//!
//! A request that names a sandbox goes to the proxy, which lets the handlers of [`sandbox_ports`] answer in place of
//! the app in the sandbox. Every other request goes to the first front of [`table`] whose mount matches.

use std::sync::Arc;

use atoll_front_daytona::Daytona;
use atoll_front_e2b::{Data, E2b, SignedLinks};
use atoll_front_kit::Dispatch;
use atoll_front_leap0::Leap0;
use atoll_front_leon::Leon;
use atoll_front_mcp::{Mcp, McpOptions};
use atoll_front_native::{Native, Options, PreviewOrigin, Shutdown};
use atoll_front_ui::Ui;
use atoll_proxy::{Closing, FieldRoute, HttpServer, Limits, Proxy, StandIn};
use atoll_service::Service;
use axum::http::HeaderName;
use tokio::sync::watch;

use super::{daytona, e2b, leap0, report, settings::Settings};

struct Fronts {
    daytona: Daytona,
    e2b: E2b,
    e2b_data: Data,
    leap0: Leap0,
    leon: Leon,
    mcp: Mcp,
    /// `None` with `--no-ui`.
    ui: Option<Ui>,
    native: Native,
}

/// The fronts, in the order in which they are tried. The native API takes all remaining paths.
fn table(fronts: Fronts) -> Dispatch {
    let table = Dispatch::default()
        .front(fronts.daytona)
        .front(fronts.e2b)
        .front(fronts.leap0)
        .front(fronts.leon)
        .front(fronts.mcp)
        .front(SignedLinks(fronts.e2b_data));
    let table = match fronts.ui {
        Some(ui) => table.front(ui),
        None => table,
    };
    table.front(fronts.native)
}

/// Fronts that answer in place of an app in a sandbox, in the order in which they are tried.
fn sandbox_ports(fronts: &Fronts) -> Vec<Arc<dyn StandIn>> {
    vec![Arc::new(leap0::OnHost(fronts.leap0.clone())), Arc::new(e2b::OnPorts(fronts.e2b_data.clone()))]
}

/// The headers in which the clients of a front name a sandbox and a port.
fn sandbox_headers() -> Vec<FieldRoute> {
    // COMPAT(e2b): SDKs with a plain sandbox URL send these with every request to a sandbox.
    vec![FieldRoute {
        sandbox: HeaderName::from_static("e2b-sandbox-id"),
        port: HeaderName::from_static("e2b-sandbox-port"),
    }]
}

/// The hosts on which those headers, and not the host, name the sandbox. COMPAT(e2b): SDKs with only a domain use them.
fn sandbox_hosts(settings: &Settings) -> Vec<String> {
    [settings.domain.as_str(), settings.domain.for_tls()].map(|domain| format!("sandbox.{domain}")).into()
}

/// The listeners of a server whose plain port is `port`.
#[expect(clippy::disallowed_methods, reason = "the task ends with the server, when all receivers are gone")]
pub(super) fn server(settings: &Settings, service: &Service, shutdown: &Shutdown, port: u16) -> HttpServer {
    let (draining, forced) = shutdown.tokens();
    let (close, closing) = watch::channel(false);
    let begun = draining.clone();
    tokio::spawn(async move {
        begun.cancelled().await;
        close.send_replace(true);
        // Receivers treat a dropped sender the same way.
        close.closed().await;
    });
    let page = settings.ui.then(|| format!("http://{}:{port}", settings.domain.as_str()));
    let previews = PreviewOrigin { domain: settings.domain.as_str().to_owned(), port };
    let options = Options {
        shutdown: shutdown.clone(),
        previews,
        origins: settings.allow_origins.clone(),
        reporter: report::reporter(settings),
    };
    let mcp = McpOptions {
        preview_domain: settings.domain.as_str().to_owned(),
        preview_port: port,
        listens_locally: settings.listen.ip().is_loopback(),
        origins: settings.allow_origins.clone(),
    };
    let fronts = Fronts {
        daytona: daytona::front(settings, service, draining.clone(), port),
        e2b: e2b::front(settings, service, draining.clone(), port),
        e2b_data: Data::new(service.clone()),
        leap0: leap0::front(settings, service, draining.clone(), port),
        leon: Leon::new(service.clone(), page),
        mcp: Mcp::new(service.clone(), mcp),
        ui: settings.ui.then_some(Ui),
        native: Native::new(service.clone(), options),
    };
    let stand_ins = sandbox_ports(&fronts);
    let table = table(fronts);
    let proxy = Proxy::new(service.clone(), settings.domain.clone(), closing)
        .with_own_hosts([table.hosts(), sandbox_hosts(settings)].concat())
        .with_key_fields(table.key_fields())
        .with_fields(sandbox_headers())
        .with_stand_ins(stand_ins);
    HttpServer::new(
        proxy,
        table.into_router(),
        Limits { drain_for: super::REQUESTS_END_WITHIN, ..Limits::default() },
        Closing { draining, forced },
        settings.allow_origins.clone(),
    )
}
