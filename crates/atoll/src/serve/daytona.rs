//! The Daytona front: its settings.

use std::sync::Arc;

use atoll_front_daytona::{Daytona, DaytonaOptions, Hosts, TlsHosts};
use atoll_service::Service;
use tokio_util::sync::CancellationToken;

use super::settings::Settings;

/// The front of a server whose plain port is `port`.
pub(super) fn front(
    settings: &Settings,
    service: &Service,
    closing: CancellationToken,
    port: u16,
) -> Daytona {
    let (domain, tls) = (settings.domain.clone(), settings.tls.clone());
    let hosts = move || {
        // A certificate may be added while the server runs.
        let tls = tls.as_ref().filter(|tls| tls.files.certificate.exists()).map(|tls| TlsHosts {
            domain: domain.for_tls().to_owned(),
            port: tls.listen.port(),
            is_operators: tls.is_named,
        });
        Hosts { domain: domain.as_str().to_owned(), port, tls }
    };
    let options = DaytonaOptions { closing, hosts: Arc::new(hosts) };
    Daytona::new(service.clone(), options)
}
