//! Finds the server and the key.
//!
//! Order: the user's options and the current context (`contexts.rs`), then what the server of DATA wrote into its file (its Unix socket
//! first), then the socket of the machine's server, then the default port. The admin key in DATA is sent only to servers on this machine,
//! and to none through a socket, where the kernel says who the user is.

use std::{
    fmt,
    io::ErrorKind,
    net::IpAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use reqwest::Url;

use crate::{
    cli::{Global, serve::DEFAULT_SOCKET},
    failure::Failure,
    server::server_file::{self, ServerNote},
};

/// The address of a server with default settings.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// Address of a server, and the state folder of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    url: Url,
    data: PathBuf,
    /// The Unix socket that requests go through; then the host of `url` says nothing.
    socket: Option<PathBuf>,
    /// The running server of `data` listens at this address, so that it is this machine's whatever its form.
    is_own: bool,
    /// The context that it is from.
    context: Option<String>,
}

impl Address {
    /// The Unix socket of this machine's server if the user names neither an address nor a key, else as [`Self::of_port`].
    pub(crate) fn find(global: &Global) -> Result<Self, Failure> {
        let named = global.url.as_deref().and_then(|url| url.strip_prefix("unix:"));
        let socket = match named {
            Some(path) => Some(socket_path(path)?),
            None if global.url.is_none() && global.api_key.is_none() => own_socket(global),
            None => None,
        };
        match socket {
            Some(_) => {
                let url = parse("localhost")?;
                Ok(Self {
                    url,
                    data: global.data_dir(),
                    socket,
                    is_own: true,
                    context: global.context.clone(),
                })
            }
            None => Self::of_port(global),
        }
    }

    /// The address for programs that cannot use a Unix socket: SDKs and browsers.
    pub(crate) fn of_port(global: &Global) -> Result<Self, Failure> {
        let data = global.data_dir();
        let note = server_file::read(&data);
        let said = match &global.url {
            Some(url) if !url.starts_with("unix:") => url.clone(),
            Some(_) | None => note.as_ref().map_or_else(|| DEFAULT_URL.to_owned(), |note| note.url.clone()),
        };
        let url = parse(&said)?;
        // The file of a server that ended says nothing: another machine may have its address now.
        let is_own = note.is_some_and(|note| parse(&note.url).is_ok_and(|own| own == url) && note.is_alive());
        Ok(Self { url, data, socket: None, is_own, context: global.context.clone() })
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    pub(crate) fn unix_socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// `ws://` or `wss://` for a terminal.
    pub(crate) fn socket(&self, path: &str) -> String {
        let url = atoll_client::client::join(&self.url, path);
        url.as_str().replacen("http", "ws", 1)
    }

    pub(crate) fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Host and port to connect to.
    pub(crate) fn authority(&self) -> Option<(String, u16)> {
        let host = self.url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some((host, self.url.port_or_known_default()?))
    }

    pub(crate) fn is_local(&self) -> bool {
        self.is_own || is_loopback(&self.url)
    }

    /// The value of `serve --listen` for this address.
    pub(crate) fn listen(&self) -> String {
        if self.socket.is_some() {
            return DEFAULT_URL.trim_start_matches("http://").to_owned();
        }
        let host = match self.url.host_str() {
            None | Some("localhost") => "127.0.0.1",
            Some(host) => host,
        };
        format!("{host}:{}", self.url.port_or_known_default().unwrap_or(7070))
    }

    /// The key of the user, else the admin key of this machine.
    pub(crate) fn key(&self, global: &Global) -> Result<Option<String>, Failure> {
        if let Some(key) = &global.api_key {
            return checked(key).map(Some);
        }
        if !self.is_local() || self.socket.is_some() {
            return Ok(None);
        }
        let path = self.data.join("admin.key");
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                Err(Failure::new("no_key", format!("the key in {} is not readable by you", path.display()))
                    .hint(
                        "use sudo, or set ATOLL_API_KEY to a key made by `sudo atoll key create`; members of the group atoll \
                         need neither where the server has a Unix socket",
                    ))
            }
            // No server was ever started here; the server decides about requests without a key.
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn key_hint(&self) -> String {
        if let Some(context) = &self.context {
            format!("run `atoll login --context {context}` to get a new one")
        } else if self.is_local() {
            let sudo = if rustix::process::geteuid().is_root() { "" } else { "use sudo, or " };
            format!(
                "{sudo}set ATOLL_API_KEY, or point ATOLL_DATA at the server's folder (now {})",
                self.data.display()
            )
        } else {
            format!("run `atoll login {self}`, or set ATOLL_API_KEY to a key of that server")
        }
    }

    pub(crate) fn start_hint(&self) -> String {
        if self.is_local() {
            "start one with `atoll serve`, or use `atoll run`, which starts one if needed".to_owned()
        } else {
            "check --url or ATOLL_URL, and that a server runs there".to_owned()
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(path) => write!(f, "unix:{}", path.display()),
            None => f.write_str(self.url.as_str().trim_end_matches('/')),
        }
    }
}

/// The path in `unix:PATH` or `unix://PATH`.
fn socket_path(text: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(text.strip_prefix("//").unwrap_or(text));
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    Err(Failure::usage(
        format!("{text:?} is not an absolute path"),
        format!("write it like unix:{DEFAULT_SOCKET}"),
    ))
}

/// The socket of the running server of DATA. Where the user names no data folder and cannot see a running server in it, the socket
/// of the machine's server.
fn own_socket(global: &Global) -> Option<PathBuf> {
    let note = server_file::read(&global.data_dir()).filter(ServerNote::is_alive);
    match note {
        Some(note) => note.socket.filter(|path| answers(path)),
        None if global.data.is_some() => None,
        None => {
            let path = global.machine_socket.clone().unwrap_or_else(|| DEFAULT_SOCKET.into());
            answers(&path).then_some(path)
        }
    }
}

/// Whether a server listens there, or the user lacks the right to know.
fn answers(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(cause) => cause.kind() == ErrorKind::PermissionDenied,
    }
}

/// Whether the host is this machine's loopback.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback()),
        None => false,
    }
}

/// A key as it can be sent.
pub(crate) fn checked(key: &str) -> Result<String, Failure> {
    let key = key.trim();
    if key.is_empty() || key.chars().any(|c| c.is_control() || !c.is_ascii()) {
        return Err(Failure::usage("the API key contains invalid characters", "copy it again"));
    }
    Ok(key.to_owned())
}

/// The address of a server, with or without a scheme.
pub(crate) fn parse(text: &str) -> Result<Url, Failure> {
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let refuse = |why: String| Failure::usage(why, format!("write it like {DEFAULT_URL}"));
    let url = Url::parse(&with_scheme).map_err(|e| refuse(format!("{text:?} is not an address: {e}")))?;
    match url.scheme() {
        "http" | "https" if url.host_str().is_some() => Ok(url),
        _ => Err(refuse(format!("{text:?} is not an HTTP address"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::server_file::ServerNote;

    fn at(url: &str) -> Address {
        Address {
            url: parse(url).expect("valid"),
            data: "/nowhere".into(),
            socket: None,
            is_own: false,
            context: None,
        }
    }

    #[test]
    fn only_this_machine_is_local() {
        for url in ["http://127.0.0.1:7070", "localhost:1", "http://[::1]:7070/", "127.9.9.9:80"] {
            assert!(at(url).is_local(), "{url}");
        }
        for url in ["http://10.0.0.1:7070", "http://127.0.0.1.example.com", "http://localhost.example"] {
            assert!(!at(url).is_local(), "{url}");
        }
    }

    #[test]
    fn the_running_server_of_the_folder_is_local_at_any_address() {
        let data = tempfile::tempdir().expect("temporary folder");
        let find = |url: Option<&str>| {
            let data = Some(data.path().to_owned());
            Address::find(&Global { url: url.map(str::to_owned), data, ..Global::default() }).expect("valid")
        };
        let note = ServerNote::new("192.0.2.7:7070".parse().expect("an address"), "localhost", None);
        server_file::write(data.path(), &note).expect("writable");
        assert!(find(None).is_local() && find(Some("192.0.2.7:7070")).is_local());
        assert!(!find(Some("192.0.2.8:7070")).is_local() && !find(Some("https://192.0.2.7:7070")).is_local());
        // Its address may be that of another machine by now.
        server_file::write(data.path(), &ServerNote { started: note.started + 1, ..note }).expect("writable");
        assert!(!find(None).is_local());
    }

    #[test]
    fn a_socket_is_used_when_the_user_names_neither_address_nor_key() {
        let data = tempfile::tempdir().expect("temporary folder");
        let path = data.path().join("s.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let note = ServerNote::new("127.0.0.1:9".parse().expect("an address"), "localhost", None);
        let note = ServerNote { socket: Some(path.clone()), ..note };
        server_file::write(data.path(), &note).expect("writable");
        let global = Global { data: Some(data.path().to_owned()), ..Global::default() };
        let find = |global: &Global| Address::find(global).expect("valid");
        let own = find(&global);
        assert_eq!((own.to_string(), own.is_local()), (format!("unix:{}", path.display()), true));
        assert_eq!(own.key(&global).expect("no key is needed"), None);
        assert_eq!(Address::of_port(&global).expect("valid").to_string(), "http://127.0.0.1:9");
        let named = |url: &str| Global { url: Some(url.to_owned()), ..global.clone() };
        assert_eq!(find(&named("http://127.0.0.1:9")).unix_socket(), None);
        assert_eq!(find(&named("unix:///a/b")).unix_socket(), Some(Path::new("/a/b")));
        assert!(Address::find(&named("unix:relative")).is_err());
        let with_key = Global { api_key: Some("atl_1".to_owned()), ..global.clone() };
        assert_eq!(find(&with_key).unix_socket(), None);
        std::fs::remove_file(&path).expect("there");
        assert_eq!(find(&global).unix_socket(), None, "its server has lost it");
    }

    #[test]
    fn paths_are_put_behind_a_prefix() {
        assert_eq!(at("http://h:1/base/").socket("/v1/x"), "ws://h:1/base/v1/x");
        assert_eq!(at("h:1").socket("/v1/x"), "ws://h:1/v1/x");
        assert_eq!(at("https://h").socket("/v1/x"), "wss://h/v1/x");
        assert_eq!(at("https://[::1]").authority(), Some(("::1".to_owned(), 443)));
        assert_eq!(at("localhost").listen(), "127.0.0.1:80");
        assert_eq!(at("[::1]:9").listen(), "[::1]:9");
    }

    #[test]
    fn nonsense_is_refused_before_calling() {
        for url in ["", "ftp://x", "http://", "https://", "::::"] {
            assert!(parse(url).is_err(), "{url:?}");
        }
        assert!(checked("a\nb").is_err());
    }
}
