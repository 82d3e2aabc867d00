//! The client of a server's `/v1`: address, key and TLS; errors in the form that the user reads.
//!
//! It makes no decisions that belong to the server, and never sends the admin key of this machine to another one.

pub(crate) mod address;
mod notices;
pub(crate) mod similar_names;
pub(crate) mod trust;

use std::{ops::Deref, sync::Arc, time::Duration};

use atoll_client::client::{ApiError, ClientError, MapError, VERSION_HEADER};

use crate::{cli::Global, failure::Failure};
use address::Address;
use notices::Notices;

/// A connection to one server with one key.
#[derive(Clone)]
pub(crate) struct Client {
    api: atoll_client::client::Client<CliErrors>,
    pub(crate) address: Address,
    key: Option<String>,
    /// For a server with HTTPS.
    tls: Option<Arc<rustls::ClientConfig>>,
}

/// Events of a stream.
pub(crate) type Events = atoll_client::client::Events<CliErrors>;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

impl Client {
    /// Finds the server and the key; sends no request yet.
    pub(crate) fn new(global: &Global) -> Result<Self, Failure> {
        Self::at(Address::find(global)?, global)
    }

    /// The same, never through a Unix socket: for requests that are about the key itself.
    pub(crate) fn at_port(global: &Global) -> Result<Self, Failure> {
        Self::at(Address::of_port(global)?, global)
    }

    fn at(address: Address, global: &Global) -> Result<Self, Failure> {
        let key = address.key(global)?;
        Self::open(global, address, key)
    }

    /// Without a key: it is what the login is for.
    pub(crate) fn for_login(global: &Global) -> Result<Self, Failure> {
        let address = Address::find(global)?;
        Notices::of(global).clear_text(&address);
        Self::open(global, address, None)
    }

    fn open(global: &Global, address: Address, key: Option<String>) -> Result<Self, Failure> {
        let notices = Notices::of(global);
        if key.is_some() {
            notices.clear_text(&address);
        }
        let tls = if address.is_https() { Some(trust::config(global)?) } else { None };
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .tcp_nodelay(true)
            .user_agent(concat!("atoll-cli/", env!("CARGO_PKG_VERSION")));
        // A server on this machine is never behind a proxy, whatever the variables of the network say.
        if address.is_local() {
            http = http.no_proxy();
        }
        if let Some(path) = address.unix_socket() {
            http = http.unix_socket(path);
        }
        if let Some(tls) = &tls {
            http = http.tls_backend_preconfigured(rustls::ClientConfig::clone(tls));
        }
        let http = http
            .build()
            .map_err(|e| Failure::new("internal", format!("the HTTP client cannot be created: {e}")))?;
        let errors = CliErrors { address: address.clone(), has_key: key.is_some(), notices };
        let api = atoll_client::client::Client::new(http, address.url().clone(), key.clone(), errors);
        Ok(Self { api, address, key, tls })
    }

    /// A byte stream to the server, inside TLS if the address requires it, for a WebSocket.
    pub(crate) async fn connect(&self) -> Result<Box<dyn ByteStream>, Failure> {
        let broken = |e: &dyn std::fmt::Display| {
            Failure::new("no_server", format!("no connection to {}: {e}", self.address))
        };
        if let Some(path) = self.address.unix_socket() {
            return Ok(Box::new(tokio::net::UnixStream::connect(path).await.map_err(|e| broken(&e))?));
        }
        let (host, port) = self.address.authority().ok_or_else(|| broken(&"it has no host"))?;
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

    /// The key, for a WebSocket.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }
}

impl Deref for Client {
    type Target = atoll_client::client::Client<CliErrors>;

    fn deref(&self) -> &Self::Target {
        &self.api
    }
}

/// Makes failures with hints for the contacted server.
#[derive(Clone)]
pub(crate) struct CliErrors {
    address: Address,
    has_key: bool,
    notices: Notices,
}

impl MapError for CliErrors {
    type Error = Failure;

    fn answered(&self, headers: &reqwest::header::HeaderMap) {
        if let Some(version) = headers.get(VERSION_HEADER).and_then(|version| version.to_str().ok()) {
            self.notices.version(&self.address, version);
        }
    }

    fn map(&self, error: ClientError) -> Failure {
        match error {
            ClientError::Refused(refused) => self.refused(*refused),
            ClientError::Unexplained { status, request_id } => {
                let mut failure = self.not_ours(format!("answered {status} without an error message"));
                failure.request_id = request_id;
                failure
            }
            ClientError::NotUnderstood(cause) if cause.is_data() => Failure::new(
                "bad_answer",
                format!("the answer of {} has an unknown form: {cause}", self.address),
            )
            .hint("`atoll version` shows whether client and server have the same version"),
            ClientError::NotUnderstood(cause) => {
                self.not_ours(format!("sent an answer that is not JSON: {cause}"))
            }
            ClientError::EventTooLarge => {
                Failure::new("bad_answer", "the server sent an event that is too large")
            }
            ClientError::Http(cause) => self.unreachable(&cause),
            ClientError::BadAddress { .. } => Failure::new("invalid_request", error.to_string()),
        }
    }
}

impl CliErrors {
    fn not_ours(&self, what: String) -> Failure {
        Failure::new("bad_answer", format!("{} {what}", self.address))
            .hint("is this the address of an Atoll server?")
    }

    fn refused(&self, error: ApiError) -> Failure {
        let message = in_options(placeless(&error.message), error.field.as_deref());
        let mut failure = Failure::new(error.code, message);
        failure.hint = error.hint.as_deref().map(without_routes);
        failure.field = error.field.map(String::into_boxed_str);
        failure.request_id = error.request_id;
        if failure.is("tenant_not_found") && failure.hint.is_none() {
            failure.hint = Some("`atoll tenant ls` shows every tenant".to_owned());
        }
        // The server's hint for a missing or wrong key is for authors of clients; this client knows where it looked for a key.
        if error.status == 401 && (failure.hint.is_none() || failure.is("unauthenticated")) {
            let refused = if self.has_key { "the server does not know this key; " } else { "" };
            failure.hint = Some(format!("{refused}{}", self.address.key_hint()));
        }
        failure
    }

    fn unreachable(&self, cause: &reqwest::Error) -> Failure {
        if cause.is_timeout() {
            return Failure::new("deadline_exceeded", format!("{} did not answer in time", self.address))
                .hint("atoll server status");
        }
        match tls_error(cause) {
            Some(rustls::Error::InvalidCertificate(why)) => {
                return Failure::new(
                    "untrusted_certificate",
                    format!("the certificate of {} is not trusted: {why}", self.address),
                )
                .hint("set the authority that signed it with --ca FILE or ATOLL_CA");
            }
            Some(rustls::Error::InvalidMessage(_)) => {
                return Failure::new("no_server", format!("{} does not speak TLS", self.address))
                    .hint("use http:// for this port; TLS is on port 7443 by default");
            }
            Some(_) | None => {}
        }
        if let Some(path) = self.address.unix_socket().filter(|_| is_denied(cause)) {
            let message = format!("you may not use the socket {}", path.display());
            return Failure::new("forbidden", message).hint(format!(
                "use sudo, or become a member of the group: sudo usermod -aG {} $USER, then log in again",
                crate::serve::GROUP
            ));
        }
        if cause.is_connect() {
            return Failure::new("no_server", format!("no server answers at {}", self.address))
                .hint(self.address.start_hint());
        }
        let tls = if self.address.is_https() { "" } else { "; if this port speaks TLS, use https://" };
        Failure::new("no_server", format!("the connection to {} broke", self.address))
            .hint(format!("`atoll server status` shows the server of this machine{tls}"))
    }
}

/// The error of TLS that broke the connection, if one did.
fn tls_error(cause: &reqwest::Error) -> Option<&rustls::Error> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(cause);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        // An error inside an I/O error is not its source; and one may wrap another.
        next = match error.downcast_ref::<std::io::Error>() {
            Some(io) => io.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    None
}

/// Whether the user lacks the right to connect.
fn is_denied(cause: &reqwest::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(cause);
    while let Some(error) = next {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Bytes in both directions, plain or inside TLS.
pub(crate) trait ByteStream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> ByteStream for T {}

/// Replaces the API field at the start of a message by the option that the user typed.
fn in_options(message: &str, field: Option<&str>) -> String {
    // Some errors only begin with their field; a name with an underscore is not an English word.
    let first = message.split([' ', ':']).next().filter(|word| word.contains('_'));
    let option = field.or(first).and_then(|field| OPTIONS.iter().find(|(known, _)| *known == field));
    match option.and_then(|(field, option)| Some((option, message.strip_prefix(field)?))) {
        Some((option, rest)) => format!("{option}{rest}"),
        None => message.to_owned(),
    }
}

/// A hint without the routes of the API that it names before a command: `GET /v1/volumes, or atoll volume ls`.
fn without_routes(hint: &str) -> String {
    let mut text = hint.to_owned();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        while let Some((before, rest)) = text.split_once(&format!("{method} /"))
            && let Some((_, command)) = rest.split_once(", or atoll ")
        {
            text = format!("{before}atoll {command}");
        }
    }
    text
}

/// Fields of the API whose options have another name.
const OPTIONS: [(&str, &str); 18] = [
    ("cpu", "--cpu"),
    ("memory_mib", "--memory"),
    ("disk_mib", "--disk"),
    ("size_mib", "--size"),
    ("pids", "--pids"),
    ("timeout_s", "--timeout"),
    ("queue", "--queue"),
    ("queue_timeout_s", "--queue-timeout"),
    ("for_s", "DURATION"),
    ("seconds", "DURATION"),
    ("expires_s", "--expires"),
    ("auto_stop_s", "--auto-stop"),
    ("auto_pause_s", "--auto-pause"),
    ("checkpoint_after_s", "--checkpoint-after"),
    ("auto_archive_s", "--auto-archive"),
    ("auto_delete_s", "--auto-delete"),
    ("count", "--count"),
    ("thread", "--thread"),
];

/// A message without the position in a request body that the user never saw.
fn placeless(message: &str) -> &str {
    let Some((before, place)) = message.rsplit_once(" at line ") else { return message };
    let is_place = place.split(' ').enumerate().all(|(at, word)| match at {
        1 => word == "column",
        0 | 2 => word.bytes().all(|byte| byte.is_ascii_digit()),
        _ => false,
    });
    if is_place { before } else { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_named_by_the_option_that_was_typed() {
        assert_eq!(
            in_options("memory_mib: must be between 16 and 64", Some("memory_mib")),
            "--memory: must be between 16 and 64"
        );
        assert_eq!(in_options("name: is taken", Some("name")), "name: is taken");
        assert_eq!(in_options("for_s must be less", None), "DURATION must be less");
        assert_eq!(in_options("cpu is busy", None), "cpu is busy");
    }

    #[test]
    fn a_hint_names_the_command_and_not_the_route() {
        for (hint, shown) in [
            ("list them: GET /v1/volumes, or atoll volume ls", "list them: atoll volume ls"),
            (
                "create it first: POST /v1/secrets, or atoll secret create",
                "create it first: atoll secret create",
            ),
            ("start it first, or wait", "start it first, or wait"),
            ("use GET /x of that service", "use GET /x of that service"),
        ] {
            assert_eq!(without_routes(hint), shown);
        }
    }

    #[test]
    fn a_place_in_what_nobody_wrote_is_left_out() {
        let whole = "network.allow_domains[0] is not valid: \"a b\" is no name";
        assert_eq!(placeless(&format!("{whole} at line 1 column 58")), whole);
        for other in [whole, "x at line one", "stopped at line 1 of the file", "at line 1 column 5 too"] {
            assert_eq!(placeless(other), other);
        }
    }
}
