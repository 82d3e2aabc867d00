//! Grammar of network options: those of create, run, update and tenants, the egress log, secrets.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::values::{Bytes, Injection, Removal, Seconds, amount, injection, rate, removal, seconds};

/// Network policy options.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Reach {
    /// Network mode: allow-all (the public internet), deny-all (nothing), custom (only listed destinations); or a
    /// JSON file with a policy (- is stdin)
    #[arg(long, value_name = "MODE|FILE", help_heading = "Network")]
    pub(crate) network: Option<String>,
    /// Allow a domain over TLS and HTTP: example.com, or *.example.com for all names below it
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub(crate) allow_domain: Vec<String>,
    /// Allow an address range for every protocol, such as 203.0.113.0/24
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) allow_cidr: Vec<String>,
    /// Refuse an address range; has precedence over the allow lists
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) deny_cidr: Vec<String>,
    /// Set a header outside the sandbox: 'api.example.com:Authorization=Bearer {secret:NAME}'
    #[arg(long, value_parser = injection, value_name = "DOMAIN:HEADER=VALUE", help_heading = "Network")]
    pub(crate) inject: Vec<Injection>,
    /// Remove a header outside the sandbox
    #[arg(long, value_parser = removal, value_name = "DOMAIN:HEADER", help_heading = "Network")]
    pub(crate) strip: Vec<Removal>,
    /// Upload limit in bytes per second, such as 500k, 10m or 100mbit
    #[arg(long, value_parser = rate, value_name = "RATE", help_heading = "Network")]
    pub(crate) up: Option<Bytes>,
    /// Download limit in bytes per second
    #[arg(long, value_parser = rate, value_name = "RATE", help_heading = "Network")]
    pub(crate) down: Option<Bytes>,
    /// Limit of simultaneous connections
    #[arg(long, value_name = "N", help_heading = "Network")]
    pub(crate) connections: Option<u32>,
    /// Limit of bytes exchanged with one name or address until the sandbox is restarted, such as 100m
    #[arg(long, value_parser = amount, value_name = "SIZE", help_heading = "Network")]
    pub(crate) bytes_per_destination: Option<Bytes>,
    /// Allow all public destinations and record them; `run` then prints the smallest policy for them, as `egress
    /// SANDBOX --policy` does
    #[arg(long, help_heading = "Network")]
    pub(crate) learn: bool,
}

impl Reach {
    /// Whether no option was given.
    pub(crate) fn is_silent(&self) -> bool {
        let lists = [&self.allow_domain, &self.allow_cidr, &self.deny_cidr];
        self.network.is_none()
            && lists.iter().all(|list| list.is_empty())
            && self.inject.is_empty()
            && self.strip.is_empty()
            && !self.limits()
            && !self.learn
    }

    /// Whether a limit was given.
    pub(crate) fn limits(&self) -> bool {
        [self.up, self.down, self.bytes_per_destination].iter().any(Option::is_some)
            || self.connections.is_some()
    }
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  atoll egress box                          list connection attempts and decisions
  atoll egress box -f --verdict refused     follow refused attempts
  atoll create --learn --name box           allow everything and record it
  atoll egress box --policy > policy.json   write the smallest policy for the records
  atoll update box --network policy.json    use it, without a restart")]
pub(crate) struct Egress {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Print the existing records, then follow new ones
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print the smallest policy that allows all recorded connections, for use with --network
    #[arg(long, conflicts_with_all = ["follow", "limit", "since", "verdict"])]
    pub(crate) policy: bool,
    /// Number of newest records to print; with -f also 0 [default: 100]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) limit: Option<u32>,
    /// Only records of this last time span, such as 10m
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) since: Option<Seconds>,
    /// Only records with this verdict
    #[arg(long, value_enum)]
    pub(crate) verdict: Option<VerdictFilter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerdictFilter {
    /// The connection was allowed
    Allowed,
    /// The connection was refused
    Refused,
    /// The connection was allowed but failed
    Failed,
}

impl From<VerdictFilter> for atoll_client::words::EgressVerdict {
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
  printf %s \"$KEY\" | atoll secret create OPENAI    from a pipe; a typed value is not shown
  atoll create --inject 'api.openai.com:Authorization=Bearer {secret:OPENAI}'
  atoll secret rotate OPENAI --from-env NEW_KEY    sandboxes use the new value at once")]
pub(crate) enum Secret {
    /// List secrets, without their values
    #[command(visible_alias = "list")]
    Ls,
    /// Create a secret; policies refer to it as {secret:NAME}
    #[command(after_help = "Examples:
  printf %s \"$KEY\" | atoll secret create OPENAI    from a pipe
  atoll secret create OPENAI                       typed; the value is not shown
  atoll secret create OPENAI --from-env OPENAI_API_KEY")]
    Create {
        /// Name of the secret: letters, digits, _ . and -
        name: String,
        #[command(flatten)]
        value: SecretValue,
    },
    /// Replace the value of a secret; sandboxes use the new value at once
    #[command(
        visible_alias = "set",
        after_help = "Examples:
  printf %s \"$NEW\" | atoll secret rotate OPENAI
  atoll secret rotate OPENAI --from-file key.txt"
    )]
    Rotate {
        /// Name of the secret
        name: String,
        #[command(flatten)]
        value: SecretValue,
    },
    /// Remove secrets that no sandbox uses
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Names of secrets
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
    /// Read the value from this environment variable
    #[arg(long, value_name = "NAME")]
    pub(crate) from_env: Option<String>,
    /// Taken so that it can be refused with the way to do it, and without being repeated
    #[arg(hide = true)]
    pub(crate) argument: Option<String>,
}
