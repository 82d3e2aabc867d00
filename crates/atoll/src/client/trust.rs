//! The certificates that the command line trusts: the system's roots, the file of `--ca`, and the authority that `atoll
//! tls init` made on this machine.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

use crate::{cli::Global, failure::Failure, server::tls_files::TlsFiles};

/// TLS settings for a server with HTTPS.
pub(crate) fn config(global: &Global) -> Result<Arc<ClientConfig>, Failure> {
    let mut roots = RootCertStore::empty();
    // A machine without roots can still trust the local authority.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = &global.ca {
        let found = certificates(file).filter(|found| !found.is_empty()).ok_or_else(|| {
            Failure::usage(
                format!("--ca: {} contains no certificate in PEM format", file.display()),
                "name a PEM file",
            )
        })?;
        roots.add_parsable_certificates(found);
    }
    if let Some(pem) = &global.ca_pem {
        let found = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
        let found = found.map_err(|_| {
            Failure::usage(
                "the authority of the context is not in PEM format",
                "add the context again with --ca",
            )
        })?;
        roots.add_parsable_certificates(found);
    }
    if let Some(ours) = certificates(&TlsFiles::of(&global.data_dir()).ca) {
        roots.add_parsable_certificates(ours);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Failure::new("internal", format!("TLS cannot be set up: {e}")))?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

fn certificates(file: &Path) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(file).ok()?.collect::<Result<Vec<_>, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, "not a certificate").expect("writable");
        let global = Global { ca: Some(file), data: Some(folder.path().to_owned()), ..Global::default() };
        assert_eq!(config(&global).err().map(|failure| failure.code), Some("usage".to_owned()));
        let none = Global { ca: None, ..global };
        assert!(config(&none).is_ok());
    }
}
