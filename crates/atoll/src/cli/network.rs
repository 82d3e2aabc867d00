//! Grammar of what a sandbox may reach: the options of create, run, update and tenants, the egress log, secrets.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::values::{Bytes, Injection, Removal, Seconds, amount, injection, rate, removal, seconds};

/// What may be reached, how requests are changed, and how much may pass.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Reach {
    /// allow-all (the public internet), deny-all (nothing), custom (only what is listed), or a JSON file (- is stdin)
    #[arg(long, value_name = "MODE|FILE", help_heading = "Network")]
    pub(crate) network: Option<String>,
    /// A name to reach over TLS and HTTP: example.com, or *.example.com for all below it
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub(crate) allow_domain: Vec<String>,
    /// Addresses to reach by every protocol, such as 203.0.113.0/24
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) allow_cidr: Vec<String>,
    /// Addresses not to reach, whatever else is allowed
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) deny_cidr: Vec<String>,
    /// Set a header outside the sandbox: 'api.example.com:Authorization=Bearer {secret:NAME}'
    #[arg(long, value_parser = injection, value_name = "DOMAIN:HEADER=VALUE", help_heading = "Network")]
    pub(crate) inject: Vec<Injection>,
    /// Take a header away outside the sandbox
    #[arg(long, value_parser = removal, value_name = "DOMAIN:HEADER", help_heading = "Network")]
    pub(crate) strip: Vec<Removal>,
    /// Most bytes per second out of it, such as 500k, 10m or 100mbit
    #[arg(long, value_parser = rate, value_name = "RATE", help_heading = "Network")]
    pub(crate) up: Option<Bytes>,
    /// Most bytes per second into it
    #[arg(long, value_parser = rate, value_name = "RATE", help_heading = "Network")]
    pub(crate) down: Option<Bytes>,
    /// Most connections at a time
    #[arg(long, value_name = "N", help_heading = "Network")]
    pub(crate) connections: Option<u32>,
    /// Most bytes exchanged with one name or address until it is started anew, such as 100m
    #[arg(long, value_parser = amount, value_name = "SIZE", help_heading = "Network")]
    pub(crate) bytes_per_destination: Option<Bytes>,
    /// Reach everything and record it; `run` then prints the smallest policy for it, `egress SANDBOX --policy` does for others
    #[arg(long, help_heading = "Network")]
    pub(crate) learn: bool,
}

impl Reach {
    /// Whether anything was said.
    pub(crate) fn is_silent(&self) -> bool {
        let lists = [&self.allow_domain, &self.allow_cidr, &self.deny_cidr];
        self.network.is_none()
            && lists.iter().all(|list| list.is_empty())
            && self.inject.is_empty()
            && self.strip.is_empty()
            && !self.limits()
            && !self.learn
    }

    /// Whether a limit was said.
    pub(crate) fn limits(&self) -> bool {
        [self.up, self.down, self.bytes_per_destination].iter().any(Option::is_some)
            || self.connections.is_some()
    }
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  atoll egress box                          what it wanted to reach, and what was decided
  atoll egress box -f --verdict refused     what is refused, as it happens
  atoll create --learn --name box           reach everything, and record it
  atoll egress box --policy > policy.json   the smallest policy for what was recorded
  atoll update box --network policy.json    which then holds, without a restart")]
pub(crate) struct Egress {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// Print what is recorded, then stay and print what comes
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print the smallest policy that would have allowed what is recorded, as --network takes it
    #[arg(long, conflicts_with_all = ["follow", "limit", "since", "verdict"])]
    pub(crate) policy: bool,
    /// The newest so many of what is recorded; with -f also 0 [default: 100]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) limit: Option<u32>,
    /// Only of the last so long, such as 10m
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) since: Option<Seconds>,
    /// Only these
    #[arg(long, value_enum)]
    pub(crate) verdict: Option<VerdictFilter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerdictFilter {
    /// It passed
    Allowed,
    /// It did not
    Refused,
    /// It was allowed and could not be done
    Failed,
}

impl From<VerdictFilter> for atoll_wire::words::EgressVerdict {
    fn from(word: VerdictFilter) -> Self {
        match word {
            VerdictFilter::Allowed => Self::Allowed,
            VerdictFilter::Refused => Self::Refused,
            VerdictFilter::Failed => Self::Failed,
        }
    }
}

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  printf %s \"$KEY\" | atoll secret create OPENAI    from a pipe; typed values are not shown
  atoll create --inject 'api.openai.com:Authorization=Bearer {secret:OPENAI}'
  atoll secret rotate OPENAI --from-env NEW_KEY    sandboxes that use it have it at once")]
pub(crate) enum Secret {
    /// List secrets, without their values
    #[command(visible_alias = "list")]
    Ls,
    /// Keep a secret; policies name it {secret:NAME}
    #[command(after_help = "Examples:
  printf %s \"$KEY\" | atoll secret create OPENAI    from a pipe
  atoll secret create OPENAI                       typed, and not shown
  atoll secret create OPENAI --from-env OPENAI_API_KEY")]
    Create {
        /// Letters, digits, _ . and -
        name: String,
        #[command(flatten)]
        value: SecretValue,
    },
    /// Replace the value of a secret; sandboxes that use it have the new one at once
    #[command(
        visible_alias = "set",
        after_help = "Examples:
  printf %s \"$NEW\" | atoll secret rotate OPENAI
  atoll secret rotate OPENAI --from-file key.txt"
    )]
    Rotate {
        /// Which
        name: String,
        #[command(flatten)]
        value: SecretValue,
    },
    /// Remove secrets that no sandbox uses
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Which
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// Where a value comes from; never an argument, which everybody on the machine can read.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct SecretValue {
    /// Read the value from this file [default: stdin]
    #[arg(long, value_name = "FILE", conflicts_with = "from_env")]
    pub(crate) from_file: Option<PathBuf>,
    /// Take the value of this variable
    #[arg(long, value_name = "NAME")]
    pub(crate) from_env: Option<String>,
    /// Taken so that it can be refused with the way to do it, and without being repeated
    #[arg(hide = true)]
    pub(crate) argument: Option<String>,
}
