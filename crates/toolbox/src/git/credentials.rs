//! Credentials for one call: in the environment of one process, for one host.

use std::collections::BTreeMap;

use url::Url;

use crate::ToolboxError;

/// A user name and a password or token for HTTP. Not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// May be empty if a token is enough.
    pub username: String,
    /// Password or token.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

const NAME: &str = "ATOLL_GIT_USERNAME";
const SECRET: &str = "ATOLL_GIT_PASSWORD";

/// Reads the two variables. Git runs a helper with a shell; the text is constant.
const HELPER: &str = "!f() { test \"$1\" = get && \
printf 'username=%s\\npassword=%s\\n' \"$ATOLL_GIT_USERNAME\" \"$ATOLL_GIT_PASSWORD\"; }; f";

/// Settings (before git's subcommand) and environment of a call with credentials.
pub(super) struct GitCredentialArgs {
    pub(super) settings: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
}

impl GitCredentialArgs {
    pub(super) fn nothing() -> Self {
        Self { settings: Vec::new(), env: BTreeMap::new() }
    }

    /// Only for the host of an address: they are not sent to targets of redirects or to submodules.
    pub(super) fn to(address: &Url, credentials: &Credentials) -> Result<Self, ToolboxError> {
        let Credentials { username, password } = credentials;
        // The protocol between git and its helper has one line per value.
        if [username, password].iter().any(|text| text.chars().any(char::is_control)) {
            return Err(ToolboxError::Invalid("credentials must not contain control characters".into()));
        }
        let origin = origin(address);
        // Without a name git would ask for one; hosts that accept tokens accept any name.
        let name = if username.is_empty() { "git" } else { username };
        let setting = |value: &str| ["-c".to_owned(), format!("credential.{origin}.helper={value}")];
        // The empty value disables helpers of the sandbox, which would store the credentials.
        let settings = [setting(""), setting(HELPER)].concat();
        let env = [(NAME, name), (SECRET, password.as_str())];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Ok(Self { settings: [vec!["-c".into(), "credential.helper=".into()], settings].concat(), env })
    }
}

/// An address without its credentials, and the credentials.
pub(super) fn split(address: &str) -> (String, Option<Url>, Option<Credentials>) {
    let Some(mut url) = web(address) else { return (address.to_owned(), None, None) };
    if url.username().is_empty() && url.password().is_none() {
        return (address.to_owned(), Some(url), None);
    }
    let credentials = Credentials {
        username: decoded(url.username()),
        password: decoded(url.password().unwrap_or_default()),
    };
    // Both succeed for an address with a host, and every http address has one.
    let _ = (url.set_username(""), url.set_password(None));
    (url.to_string(), Some(url), Some(credentials))
}

/// The address if its scheme is http or https.
pub(super) fn web(address: &str) -> Option<Url> {
    Url::parse(address).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

fn origin(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_address_loses_what_it_has_of_credentials() {
        let (address, url, credentials) = split("https://me:p%40ss@git.example.com:8443/a/b.git");
        assert_eq!(address, "https://git.example.com:8443/a/b.git");
        assert_eq!(origin(&url.unwrap()), "https://git.example.com:8443");
        assert_eq!(credentials, Some(Credentials { username: "me".into(), password: "p@ss".into() }));
        assert_eq!(split("git@example.com:a/b").0, "git@example.com:a/b");
        assert_eq!(split("/srv/a").2, None);
    }

    #[test]
    fn secrets_are_no_arguments() {
        let credentials = Credentials { username: "me".into(), password: "hunter2".into() };
        let shown = GitCredentialArgs::to(&web("https://h/x").unwrap(), &credentials).unwrap();
        assert!(!shown.settings.concat().contains("hunter2"));
        assert_eq!(shown.env[SECRET], "hunter2");
        assert!(!format!("{credentials:?}").contains("hunter2"));
        let broken = Credentials { username: "a\nhost=evil".into(), password: String::new() };
        assert!(GitCredentialArgs::to(&web("https://h/x").unwrap(), &broken).is_err());
    }

    #[test]
    fn an_address_has_no_credentials_after_it_was_split() {
        atoll_robustness::check("git_address", |bytes| {
            let (address, _, _) = split(&String::from_utf8_lossy(bytes));
            assert!(split(&address).2.is_none(), "{address:?}");
        });
    }
}
