//! The TLS port: open while there is a certificate, which is loaded again when its files change or on SIGHUP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_proxy::{CertificateFiles, HttpServer, Tls};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::failed;
use super::settings::Settings;
use crate::failure::Failure;
use crate::server::server_file;

/// LIMIT: how long a changed file may go unnoticed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Checks a certificate that the operator named; the default one may be created later.
pub(super) fn check(settings: &Settings) -> Result<(), Failure> {
    match &settings.tls {
        Some(port) if port.is_named => Tls::open(port.files.clone())
            .map(|_| ())
            .map_err(|e| failed("the certificate cannot be used", &e)),
        Some(_) | None => Ok(()),
    }
}

/// The TLS port and its certificate.
#[derive(Debug, Clone)]
pub(super) struct TlsPort {
    pub(super) listen: SocketAddr,
    pub(super) files: CertificateFiles,
    /// The operator named the files, so they must exist.
    pub(super) is_named: bool,
}

/// Serves TLS from the moment there is a certificate until the server closes.
pub(super) async fn serve(server: &HttpServer, settings: &Settings, reload: &Arc<Notify>) {
    let Some(port) = &settings.tls else { return };
    let Some(tls) = certificate(server, &port.files, reload).await else { return };
    let listener = match TcpListener::bind(port.listen).await {
        Ok(listener) => listener,
        Err(cause) => {
            tracing::warn!(address = %port.listen, %cause, "TLS is off: cannot listen; choose another --tls-port");
            return note_port(settings, None);
        }
    };
    let address = listener.local_addr().unwrap_or(port.listen);
    note_port(settings, Some(address.port()));
    tracing::info!(%address, "TLS ready");
    tokio::select! {
        () = server.serve_tls(listener, tls.clone()) => {}
        () = watch(&tls, reload) => {}
    }
}

/// Writes down which port speaks TLS.
fn note_port(settings: &Settings, port: Option<u16>) {
    if let Err(cause) = server_file::update(&settings.data, |note| note.tls_port = port) {
        tracing::warn!(%cause, "`atoll env` will not find the TLS port");
    }
}

/// Waits for the first certificate; `None`: the server closes before there is one.
async fn certificate(server: &HttpServer, files: &CertificateFiles, reload: &Arc<Notify>) -> Option<Tls> {
    let mut said = String::new();
    loop {
        match Tls::open(files.clone()) {
            Ok(tls) => return Some(tls),
            Err(error) => {
                let text = error.to_string();
                if text != said && error.is_missing() {
                    tracing::info!("no certificate, so TLS is off; `atoll tls init` creates one");
                } else if text != said {
                    tracing::warn!(%error, cause = ?std::error::Error::source(&error), "no TLS");
                }
                said = text;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = reload.notified() => {}
            () = server.closes() => return None,
        }
    }
}

/// Loads new certificates as long as it is polled.
async fn watch(tls: &Tls, reload: &Arc<Notify>) {
    loop {
        tokio::select! { () = tokio::time::sleep(LOOK_EVERY) => {}, () = reload.notified() => {} }
        match tls.reload() {
            Ok(false) => {}
            Ok(true) => tracing::info!("a new certificate is in use"),
            Err(error) => {
                tracing::warn!(%error, cause = ?std::error::Error::source(&error), "the previous certificate stays in use");
            }
        }
    }
}
