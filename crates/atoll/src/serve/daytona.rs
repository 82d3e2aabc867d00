//! The Daytona front: its settings.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use atoll_front_daytona::{Daytona, DaytonaOptions, Hosts, TlsHosts};
use atoll_service::Service;
use tokio_util::sync::CancellationToken;

use super::settings::Settings;

/// Below DATA: build contexts that SDKs upload.
const FOLDER: &str = "builds/daytona";

/// The folder of this front's uploads, with one folder per tenant.
pub(super) fn uploads(data: &Path) -> PathBuf {
    data.join(FOLDER).join("contexts")
}

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
    let options = DaytonaOptions {
        closing,
        hosts: Arc::new(hosts),
        folder: settings.data.join(FOLDER),
        context_bytes: settings.build_context_bytes,
    };
    Daytona::new(service.clone(), options)
}
