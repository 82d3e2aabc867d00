//! Grammar of `atoll tls` and `atoll env`.

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

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
  atoll tls init --domain preview.example.com       for a server with `serve --domain`
  curl --cacert ~/.atoll/tls/ca.pem https://localhost:7443/health")]
    Init {
        /// Domain of previews [default: the domain of the server of DATA, else localhost]
        #[arg(long, value_name = "NAME", value_parser = super::serve::domain)]
        domain: Option<atoll_proxy::Domain>,
        /// Create a new authority too; clients must then trust the new authority
        #[arg(short, long)]
        force: bool,
    },
    /// Show the files, names and expiry of the certificates
    Show,
    /// Print the certificate of the authority, for clients to trust
    Ca,
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
