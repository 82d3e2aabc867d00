//! Apps that use TLS themselves. The certificate of such an app is not verified: the connection is inside its sandbox,
//! where it cannot be intercepted, and the sandbox's owner could present any certificate.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_model::Code;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::page::ProxyError;

/// LIMIT: a program on the same machine.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// A TLS connection over a stream to an app; `host` is the requested name.
pub(crate) async fn secured<S>(
    stream: S,
    host: Option<&str>,
    offer: &[&[u8]],
) -> Result<TlsStream<S>, ProxyError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let failed = || {
        ProxyError::new(Code::BadAnswer, "the app does not speak TLS, but this port is configured for TLS")
            .hint("check the log of the app")
    };
    let name = host.map(|host| host.split(':').next().unwrap_or_default().to_owned());
    let name = name.and_then(|name| ServerName::try_from(name).ok());
    let name = name.or_else(|| ServerName::try_from("localhost").ok()).ok_or_else(failed)?;
    let mut config = config().ok_or_else(failed)?;
    config.alpn_protocols = offer.iter().map(|protocol| protocol.to_vec()).collect();
    let connect = TlsConnector::from(Arc::new(config)).connect(name, stream);
    match tokio::time::timeout(HANDSHAKE_WITHIN, connect).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "an app did not accept a TLS connection");
            Err(failed())
        }
        Err(_) => Err(failed()),
    }
}

fn config() -> Option<ClientConfig> {
    static CONFIG: OnceLock<Option<ClientConfig>> = OnceLock::new();
    let made = CONFIG.get_or_init(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().ok()?;
        let verifier = Arc::new(AnyCertificateVerifier(provider));
        Some(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    });
    made.clone()
}

/// Accepts any certificate whose holder has its key.
#[derive(Debug)]
struct AnyCertificateVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificateVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsAcceptor;

    use super::*;

    fn app() -> TlsAcceptor {
        let made = rcgen::generate_simple_self_signed(vec!["whatever".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    #[tokio::test]
    async fn an_app_with_a_certificate_of_its_own_is_spoken_to_in_tls() {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let served = tokio::spawn(async move {
            let mut stream = app().accept(theirs).await.unwrap();
            let name = stream.get_ref().1.server_name().map(str::to_owned);
            let mut asked = [0; 4];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(&asked).await.unwrap();
            stream.shutdown().await.unwrap();
            name
        });
        let mut stream = secured(ours, Some("app.test:443"), &[]).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"ping");
        assert_eq!(served.await.unwrap().as_deref(), Some("app.test"));
    }

    #[tokio::test]
    async fn an_app_that_speaks_no_tls_is_a_bad_answer() {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(async move { theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await });
        let refusal = secured(ours, None, &[]).await.unwrap_err();
        assert_eq!(refusal.code, Code::BadAnswer);
    }
}
