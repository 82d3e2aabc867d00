//! Grammar of `atoll serve`.

use clap::{Args, ValueEnum};

use crate::environment as env;

/// Settings of a server. What is not said here has an embedded default; there is no configuration file to keep.
#[derive(Debug, Clone, Args)]
pub(crate) struct Serve {
    /// Address and port; port 0 takes a free one
    #[arg(long, env = env::LISTEN, hide_env_values = true, default_value = "127.0.0.1:7070", value_name = "ADDR")]
    pub(crate) listen: std::net::SocketAddr,
    /// Name below which previews live: PORT-SANDBOX.NAME leads to that port
    #[arg(long, env = env::DOMAIN, hide_env_values = true, default_value = "localhost", value_name = "NAME", value_parser = domain)]
    pub(crate) domain: atoll_proxy::Domain,
    /// Template of sandboxes that name none
    #[arg(long, visible_alias = "default-template", env = env::TEMPLATE, hide_env_values = true, default_value = "host", value_name = "NAME")]
    pub(crate) template: String,
    /// Template `host` shows /usr/local and /usr/src of this machine too
    #[arg(long, env = env::HOST_LOCAL, hide_env_values = true)]
    pub(crate) host_local: bool,
    /// Ready instances kept per popular template; 0 makes every start a cold one
    #[arg(long, env = env::POOL, hide_env_values = true, default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) pool: u16,
    /// The most sandboxes that may live at once
    #[arg(long, env = env::LIVE_MAX, hide_env_values = true, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) live_max: u64,
    /// Memory limits may add up to this many times the memory of the machine
    #[arg(long, env = env::OVERCOMMIT, hide_env_values = true, default_value_t = 50.0, value_parser = overcommit)]
    pub(crate) overcommit: f64,
    /// Where archives go: a folder, or s3://BUCKET/PREFIX with credentials in AWS_* [default: DATA/archive]
    #[arg(long, env = env::ARCHIVE, hide_env_values = true, value_name = "URL")]
    pub(crate) archive: Option<String>,
    /// Agent binary [default: the one inside this program]
    #[arg(long, env = env::AGENT, hide_env_values = true, value_name = "FILE")]
    pub(crate) agent: Option<std::path::PathBuf>,
    /// Which log lines, such as `debug` or `atoll_service=debug,info` [default: info; on a terminal warnings only]
    #[arg(long, env = env::LOG, hide_env_values = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Form of the log lines [default: text on a terminal, else json]
    #[arg(long, env = env::LOG_FORMAT, hide_env_values = true)]
    pub(crate) log_format: Option<LogFormat>,
    /// Once ready, make a sandbox, run a line of Python in it and say what to try next
    #[arg(long)]
    pub(crate) tour: bool,
    /// Leave the session of the terminal; for servers started by `atoll run`
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Json,
    Text,
}

fn domain(text: &str) -> Result<atoll_proxy::Domain, String> {
    atoll_proxy::Domain::parse(text).ok_or_else(|| format!("{text:?} is not a plain host name"))
}

fn overcommit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (1.0..=1_000.0).contains(&ratio) => Ok(ratio),
        _ => Err(format!("{text:?} is not a ratio between 1 and 1000")),
    }
}
