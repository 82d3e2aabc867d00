//! The HTTP client of `/v1`: one function per call, answers as JSON, failures as the user reads them.
//!
//! Never decides anything a server could; never sends the admin key of this machine to another one.

pub(crate) mod address;
pub(crate) mod similar_names;
pub(crate) mod sse;
mod trust;

use std::{sync::Arc, time::Duration};

use reqwest::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{cli::Global, failure::Failure};
use address::Address;

/// A connection to one server with one key.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) address: Address,
    key: Option<String>,
    /// For a server that is reached over HTTPS.
    tls: Option<Arc<rustls::ClientConfig>>,
}

/// LIMIT: creating waits up to 30 s at the server; streams have no limit of their own.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

impl Client {
    /// Finds the server and the key; asks nobody yet.
    pub(crate) fn new(global: &Global) -> Result<Self, Failure> {
        let address = Address::find(global)?;
        let key = address.key(global)?;
        let tls = if address.is_https() { Some(trust::config(global)?) } else { None };
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .tcp_nodelay(true)
            .user_agent(concat!("atoll-cli/", env!("CARGO_PKG_VERSION")));
        if let Some(tls) = &tls {
            http = http.tls_backend_preconfigured(rustls::ClientConfig::clone(tls));
        }
        let http = http
            .build()
            .map_err(|e| Failure::new("internal", format!("the HTTP client cannot be made: {e}")))?;
        Ok(Self { http, address, key, tls })
    }

    /// A byte stream to the server, inside TLS where the address says so, for a WebSocket.
    pub(crate) async fn connect(&self) -> Result<Box<dyn ByteStream>, Failure> {
        let broken = |e: &dyn std::fmt::Display| {
            Failure::new("no_server", format!("no connection to {}: {e}", self.address))
        };
        let (host, port) = self.address.authority().ok_or_else(|| broken(&"it names no host"))?;
        let connecting = tokio::net::TcpStream::connect((host.as_str(), port));
        let tcp = match tokio::time::timeout(CONNECT_WITHIN, connecting).await {
            Ok(tcp) => tcp.map_err(|e| broken(&e))?,
            Err(_) => return Err(broken(&"it does not answer")),
        };
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        let name = rustls::pki_types::ServerName::try_from(host).map_err(|e| broken(&e))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls));
        Ok(Box::new(connector.connect(name, tcp).await.map_err(|e| broken(&e))?))
    }

    /// The key, where a WebSocket needs it.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.json(self.request(Method::GET, path)).await
    }

    pub(crate) async fn get_query(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        self.json(self.request(Method::GET, path).query(query)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        self.json(self.request(Method::PATCH, path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.json(self.request(Method::DELETE, path)).await
    }

    /// A request that a command shapes further.
    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let mut request = self.http.request(method, self.address.join(path));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        request
    }

    /// Sends, within the usual time, and reads the answer as JSON; no content is null.
    pub(crate) async fn json(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        let answer = self.send(request.timeout(ANSWER_WITHIN)).await?;
        let body = answer.bytes().await.map_err(|e| self.unreachable(&e))?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|e| {
            Failure::new("bad_answer", format!("{} answered something that is no JSON: {e}", self.address))
                .hint("is this the address of an Atoll server?")
        })
    }

    /// Sends; an answer that is an error becomes a failure.
    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, Failure> {
        let answer = request.send().await.map_err(|e| self.unreachable(&e))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(self.refused(answer).await)
    }

    async fn refused(&self, answer: reqwest::Response) -> Failure {
        let status = answer.status();
        let request_id =
            answer.headers().get("x-request-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
        let body = answer.bytes().await.unwrap_or_default();
        let mut failure = match serde_json::from_slice::<Envelope>(&body) {
            Ok(mut envelope) => {
                envelope.message = placeless(&envelope.message).to_owned();
                envelope.into_failure()
            }
            Err(_) => {
                Failure::new("bad_answer", format!("{} answered {status} without saying why", self.address))
                    .hint("is this the address of an Atoll server?")
            }
        };
        failure.request_id = failure.request_id.or(request_id);
        if failure.is("tenant_not_found") && failure.hint.is_none() {
            failure.hint = Some("`atoll tenant ls` shows every tenant".to_owned());
        }
        // Without a key the server speaks to somebody who writes a client; ours knows where it looked.
        if status == StatusCode::UNAUTHORIZED && (failure.hint.is_none() || self.key.is_none()) {
            failure.hint = Some(self.address.key_hint());
        }
        failure
    }

    fn unreachable(&self, cause: &reqwest::Error) -> Failure {
        if cause.is_timeout() {
            return Failure::new("deadline_exceeded", format!("{} did not answer in time", self.address))
                .hint("atoll server status");
        }
        if let Some(why) = certificate_fault(cause) {
            return Failure::new(
                "untrusted_certificate",
                format!("the certificate of {} is not trusted: {why}", self.address),
            )
            .hint("name the authority that signed it with --ca FILE or ATOLL_CA");
        }
        if cause.is_connect() {
            return Failure::new("no_server", format!("no server answers at {}", self.address))
                .hint(self.address.start_hint());
        }
        Failure::new("no_server", format!("the connection to {} broke", self.address))
            .hint("atoll server status")
    }
}

/// Why a certificate was refused, where that is what broke a connection.
fn certificate_fault(cause: &reqwest::Error) -> Option<String> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(cause);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref::<rustls::Error>() {
            return Some(why.to_string());
        }
        // What an I/O error wraps is not its source; and one may wrap another.
        next = match error.downcast_ref::<std::io::Error>() {
            Some(io) => io.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    None
}

/// Bytes in both directions, plain or inside TLS.
pub(crate) trait ByteStream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> ByteStream for T {}

/// A message without the place in a body that we wrote and the user never saw.
fn placeless(message: &str) -> &str {
    let Some((before, place)) = message.rsplit_once(" at line ") else { return message };
    let is_place = place.split(' ').enumerate().all(|(at, word)| match at {
        1 => word == "column",
        0 | 2 => word.bytes().all(|byte| byte.is_ascii_digit()),
        _ => false,
    });
    if is_place { before } else { message }
}

/// The error envelope of every front.
#[derive(Debug, Deserialize)]
struct Envelope {
    code: String,
    message: String,
    hint: Option<String>,
    request_id: Option<String>,
}

impl Envelope {
    fn into_failure(self) -> Failure {
        let mut failure = Failure::new(self.code, self.message);
        failure.hint = self.hint;
        failure.request_id = self.request_id;
        failure
    }
}

/// A name or id as one segment of a path.
pub(crate) fn segment(text: &str) -> String {
    use std::fmt::Write as _;
    let mut path = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
    // A lone dot segment would be folded away by the URL parser.
    if path.chars().all(|c| c == '.') { path.replace('.', "%2E") } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_what_nobody_wrote_is_left_out() {
        let whole = "network.allow_domains[0] is not valid: \"a b\" is no name";
        assert_eq!(placeless(&format!("{whole} at line 1 column 58")), whole);
        for other in [whole, "x at line one", "stopped at line 1 of the file", "at line 1 column 5 too"] {
            assert_eq!(placeless(other), other);
        }
    }

    #[test]
    fn a_name_stays_one_segment() {
        for (text, want) in
            [("box-1", "box-1"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("a b?", "a%20b%3F"), ("ü", "%C3%BC")]
        {
            assert_eq!(segment(text), want);
        }
    }
}
