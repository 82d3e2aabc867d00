//! Finds the server and the key.
//!
//! Order: the user's options and the current context (`contexts.rs`), then the file that the server of DATA wrote, then the default port. The admin key in DATA
//! is sent only to servers on this machine.

use std::{fmt, io::ErrorKind, net::IpAddr, path::PathBuf};

use reqwest::Url;

use crate::{cli::Global, failure::Failure, server::server_file};

/// The address of a server with default settings.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// Address of a server, and the state folder of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    url: Url,
    data: PathBuf,
    /// The running server of `data` listens at this address, so that it is this machine's whatever its form.
    is_own: bool,
    /// The context that it is from.
    context: Option<String>,
}

impl Address {
    pub(crate) fn find(global: &Global) -> Result<Self, Failure> {
        let data = global.data_dir();
        let note = server_file::read(&data);
        let said = match &global.url {
            Some(url) => url.clone(),
            None => note.as_ref().map_or_else(|| DEFAULT_URL.to_owned(), |note| note.url.clone()),
        };
        let url = parse(&said)?;
        // The file of a server that ended says nothing: another machine may have its address now.
        let is_own = note.is_some_and(|note| parse(&note.url).is_ok_and(|own| own == url) && note.is_alive());
        Ok(Self { url, data, is_own, context: global.context.clone() })
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
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
        if !self.is_local() {
            return Ok(None);
        }
        let path = self.data.join("admin.key");
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                Err(Failure::new("no_key", format!("the key in {} is not readable by you", path.display()))
                    .hint("use sudo, or set ATOLL_API_KEY to a key made by `sudo atoll key create`"))
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
        f.write_str(self.url.as_str().trim_end_matches('/'))
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
        Address { url: parse(url).expect("valid"), data: "/nowhere".into(), is_own: false, context: None }
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
