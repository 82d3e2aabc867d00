//! Grammar of `atoll tls` and `atoll env`.

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::commands::env::{SDKS, SdkEnvironment};

/// One of the SDKs that `atoll env` knows.
fn sdk() -> impl TypedValueParser<Value = &'static SdkEnvironment> {
    PossibleValuesParser::new(SDKS.iter().map(|sdk| sdk.name)).try_map(|name| {
        SDKS.iter().find(|sdk| sdk.name == name).ok_or("not an SDK that this command supports")
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tls {
    /// Make a local authority and a certificate for the names of this server; renews what is there
    #[command(after_help = "Examples:
  atoll tls init                                    for localhost and everything below it
  atoll tls init --domain preview.example.com       as `serve --domain` was told
  curl --cacert ~/.atoll/tls/ca.pem https://localhost:7443/health")]
    Init {
        /// Name below which previews live [default: that of the server of DATA, else localhost]
        #[arg(long, value_name = "NAME", value_parser = super::serve::domain)]
        domain: Option<atoll_proxy::Domain>,
        /// Make a new authority too; whoever trusted the old one has to trust the new one
        #[arg(short, long)]
        force: bool,
    },
    /// Show where the files are, for which names, and until when
    Show,
    /// Print the certificate of the authority, for others to trust
    Ca,
}

/// Prints what points an official SDK at this server: eval "$(atoll env e2b)"
#[derive(Debug, Clone, Args)]
pub(crate) struct Env {
    /// Whose SDK
    #[arg(value_parser = sdk())]
    pub(crate) sdk: &'static SdkEnvironment,
    /// For which shell; fish reads it with `atoll env leap0 --shell fish | source`
    #[arg(long, default_value = "sh")]
    pub(crate) shell: Shell,
    /// Print a key too: a fresh one named `env` that sees its tenant only, or yours if you may make none
    #[arg(long)]
    pub(crate) with_key: bool,
    /// With --with-key: print the key that you use, the admin key of this machine if you said none
    #[arg(long, requires = "with_key")]
    pub(crate) admin: bool,
    /// E2B: everything over TLS by names below a domain, instead of three URLs over plain HTTP
    #[arg(long)]
    pub(crate) tls: bool,
    /// Use this server as proxy for HTTPS; it leads to sandboxes only, so other HTTPS fails [auto and never: no]
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) proxy: Proxy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// And bash, zsh, dash
    Sh,
    Fish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proxy {
    Auto,
    Always,
    Never,
}
