//! Grammar of `atoll tls` and `atoll env`.

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

use atoll_proxy::HostName;

use crate::commands::env::{SDKS, SdkEnvironment};

/// One of the SDKs that `atoll env` supports.
fn sdk() -> impl TypedValueParser<Value = &'static SdkEnvironment> {
    PossibleValuesParser::new(SDKS.iter().map(|sdk| sdk.name)).try_map(|name| {
        SDKS.iter().find(|sdk| sdk.name == name).ok_or("not an SDK that this command supports")
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tls {
    /// Create a local certificate authority and a certificate for this server, or renew the certificate
    #[command(after_help = "Examples:
  atoll tls init                                    for localhost and all names below it
  atoll tls init lab.example.com 10.0.0.5           also for this name and this address
  atoll tls init --domain preview.example.com       for a server with `serve --domain`
  curl --cacert ~/.atoll/tls/ca.pem https://localhost:7443/health")]
    Init {
        /// Domain of previews [default: the domain of the server of DATA, else localhost]
        #[arg(long, value_name = "NAME", value_parser = super::serve::domain)]
        domain: Option<atoll_proxy::Domain>,
        /// Further name or address of the server; may be repeated [default: those of the last certificate]
        #[arg(long, value_name = "NAME", value_parser = host)]
        name: Vec<HostName>,
        /// The same as --name
        #[arg(value_name = "NAME", value_parser = host)]
        hosts: Vec<HostName>,
        /// Create a new authority too; clients must then trust the new authority
        #[arg(short, long)]
        force: bool,
    },
    /// Obtain a certificate for public names from an ACME service such as Let's Encrypt; the server renews it
    Acme(Acme),
    /// Show the files, names and expiry of the certificates
    Show,
    /// Print the certificate of the authority, for clients to trust
    Ca,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The service asks for a proof over HTTP: each name must lead to this machine, and port 80 must be reachable
from the Internet. The server opens it only while it proves a name.

Examples:
  atoll tls acme atoll.example.com --email ops@example.com --accept-terms
  atoll tls acme atoll.example.com --accept-terms --staging      a try that counts against no limit
  atoll tls acme atoll.corp --directory https://ca.corp/acme/acme/directory --ca corp.pem --accept-terms"
)]
pub(crate) struct Acme {
    /// Public names of the server
    #[arg(value_name = "NAME", value_parser = super::serve::domain, required_unless_present = "off")]
    pub(crate) names: Vec<atoll_proxy::Domain>,
    /// Where the service sends warnings
    #[arg(long)]
    pub(crate) email: Option<String>,
    /// You have read and accept the terms of the service
    #[arg(long)]
    pub(crate) accept_terms: bool,
    /// Use Let's Encrypt's service for tests, whose certificates no browser trusts
    #[arg(long, conflicts_with = "directory")]
    pub(crate) staging: bool,
    /// Directory of another service; --ca names its authority [default: Let's Encrypt]
    #[arg(long, value_name = "URL")]
    pub(crate) directory: Option<String>,
    /// Where the server answers the service's request for the proof [default: port 80 of every address]
    #[arg(long, value_name = "ADDR")]
    pub(crate) http_listen: Option<std::net::SocketAddr>,
    /// Stop renewing; the certificate stays until it expires
    #[arg(long, conflicts_with_all = ["names", "email", "accept_terms", "staging", "directory", "http_listen"])]
    pub(crate) off: bool,
}

fn host(text: &str) -> Result<HostName, String> {
    HostName::parse(text).ok_or_else(|| format!("{text:?} is neither a host name nor an IP address"))
}

/// Prints the variables that point an official SDK at this server: eval "$(atoll env e2b)"
#[derive(Debug, Clone, Args)]
pub(crate) struct Env {
    /// SDK to configure
    #[arg(value_parser = sdk())]
    pub(crate) sdk: &'static SdkEnvironment,
    /// Shell syntax; fish reads it with `atoll env leap0 --shell fish | source`
    #[arg(long, default_value = "sh")]
    pub(crate) shell: Shell,
    /// Print a key too: a new key named `env-SDK` that sees only its tenant, or your own key if you may not create keys
    #[arg(long)]
    pub(crate) with_key: bool,
    /// With --with-key: print the key that you use, by default the admin key of this machine
    #[arg(long, requires = "with_key")]
    pub(crate) admin: bool,
    /// For E2B and Daytona: use TLS instead of plain HTTP; for E2B with names below a domain
    #[arg(long)]
    pub(crate) tls: bool,
    /// Use this server as HTTPS proxy; it connects only to sandboxes, so other HTTPS requests fail [auto and never:
    /// no]
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) proxy: Proxy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// Also for bash, zsh and dash
    Sh,
    Fish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proxy {
    Auto,
    Always,
    Never,
}
