//! Grammar of `atoll context`, `login`, `logout` and `whoami`.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  atoll login https://atoll.example.com:7443         stores a context with a key of its own
  atoll context add ci https://atoll.example.com:7443 --key-stdin < key.txt
  atoll context use ci
  atoll --context ci ls
  atoll context use local                            back to the server of this machine")]
pub(crate) enum Context {
    /// Store a server under a name; --ca stores its authority too
    Add {
        /// Name of the context
        name: String,
        /// URL of the server
        #[arg(value_name = "URL")]
        server: String,
        /// Read an API key from stdin and store it
        #[arg(long)]
        key_stdin: bool,
        /// Replace a context of this name
        #[arg(short, long)]
        force: bool,
    },
    /// Use a context for commands that name no server; `local` is the server of this machine
    Use {
        /// Name of the context
        name: String,
    },
    /// List contexts
    #[command(visible_alias = "list")]
    Ls,
    /// Remove contexts with their keys from this machine; `atoll logout` also revokes the key
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Names of contexts
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Show a context, without its key
    Show {
        /// Name of the context [default: the current one]
        name: Option<String>,
    },
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Prints a code and a link. Somebody who has a key opens the link and types the code, or runs
`atoll login approve CODE` on the server. The code works once, within five minutes.

Examples:
  atoll login https://atoll.example.com:7443
  atoll login https://10.0.0.5:7443 --ca atoll-ca.pem --name lab
  sudo atoll login approve BCDF-GHJK                 on the server"
)]
pub(crate) struct Login {
    /// URL of the server [default: that of the current context]
    #[arg(value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Name of the context to store [default: the host of the URL]
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(subcommand)]
    pub(crate) decision: Option<LoginDecision>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoginDecision {
    /// Approve a login: its command line gets a key
    Approve {
        /// Code that the command line shows
        code: String,
        /// Tenant of the key [default: the tenant of the key that you use]
        #[arg(long)]
        tenant: Option<String>,
        /// Give it an admin key, which sees every tenant and may manage keys, tenants and templates
        #[arg(long)]
        admin: bool,
        /// Do not ask for confirmation
        #[arg(short, long, visible_alias = "yes")]
        force: bool,
    },
    /// Refuse a login
    Deny {
        /// Code that the command line shows
        code: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Logout {
    /// Name of the context [default: the current one]
    pub(crate) name: Option<String>,
    /// Forget the key also if the server cannot be reached to revoke it
    #[arg(short, long)]
    pub(crate) force: bool,
}
