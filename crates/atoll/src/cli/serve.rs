//! Grammar of `atoll serve`.

use atoll_model::policy::egress::{TenantFloor, check_layer};
use atoll_model::{NetworkPolicy, ProxyKind, ProxyUrl};
use atoll_outbound::Authority;
use clap::{Args, FromArgMatches, ValueEnum};

use crate::{environment as env, failure::Failure};

/// Settings of a server. Every setting has a built-in default, and may also be in the configuration file, by the name of its
/// option: an option with an environment variable is a setting (see `server/config_file.rs`).
#[derive(Debug, Clone, Args)]
pub(crate) struct Serve {
    /// Address and port to listen on; port 0 selects a free port
    #[arg(long, env = env::LISTEN, hide_env_values = true, default_value = "127.0.0.1:7070", value_name = "ADDR")]
    pub(crate) listen: std::net::SocketAddr,
    /// Unix socket for this machine, or `off`; there, root and members of the group `atoll` need no key
    #[arg(long, env = env::SOCKET, hide_env_values = true, default_value = DEFAULT_SOCKET, value_name = "PATH|off", value_parser = socket)]
    pub(crate) socket: SocketSetting,
    /// Name of this server among those that share its database [default: the name that the data folder has, else the
    /// host name]
    #[arg(long, env = env::NODE, hide_env_values = true, value_name = "NAME")]
    pub(crate) node: Option<atoll_model::NodeName>,
    /// SQLite database; several servers on this machine may share one [default: DATA/sandbox.db]
    #[arg(long, env = env::DATABASE, hide_env_values = true, value_name = "PATH", value_parser = database)]
    pub(crate) database: Option<std::path::PathBuf>,
    /// Domain of previews: PORT-SANDBOX.DOMAIN leads to that port
    #[arg(long, env = env::DOMAIN, hide_env_values = true, default_value = "localhost", value_name = "NAME", value_parser = domain)]
    pub(crate) domain: atoll_proxy::Domain,
    /// Origin (https://app.example) whose web pages may open WebSockets of this server; may be repeated
    #[arg(long, env = env::ALLOW_ORIGIN, hide_env_values = true, value_delimiter = ',', value_name = "ORIGIN", value_parser = origin)]
    pub(crate) allow_origin: Vec<String>,
    /// Do not serve the web page; a browser gets the API documentation
    #[arg(long, env = env::NO_UI, hide_env_values = true)]
    pub(crate) no_ui: bool,
    /// TLS port, at the same address; open when there is a certificate; 0 disables TLS
    #[arg(long, env = env::TLS_PORT, hide_env_values = true, default_value_t = 7443, value_name = "PORT")]
    pub(crate) tls_port: u16,
    /// Certificate chain in PEM format [default: the certificate of `atoll tls init`]
    #[arg(long, env = env::TLS_CERT, hide_env_values = true, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<std::path::PathBuf>,
    /// Private key of the certificate in PEM format
    #[arg(long, env = env::TLS_KEY, hide_env_values = true, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<std::path::PathBuf>,
    /// Default template of new sandboxes
    #[arg(long, visible_alias = "default-template", env = env::TEMPLATE, hide_env_values = true, default_value = "host", value_name = "NAME")]
    pub(crate) template: String,
    /// Default provider of new sandboxes and volumes; `atoll provider ls` shows them
    #[arg(long, env = env::PROVIDER, hide_env_values = true, default_value = "container", value_name = "NAME")]
    pub(crate) provider: String,
    /// Allow the provider `local`: sandboxes without isolation, as processes of this machine with the rights of the server
    #[arg(long, env = env::ALLOW_LOCAL, hide_env_values = true)]
    pub(crate) allow_local: bool,
    /// When to make templates without being asked: those of the SDKs' default names (debian, code-interpreter-slim) in the background, and data-science at its first use
    #[arg(long, env = env::MAKE_TEMPLATES, hide_env_values = true, value_enum, default_value_t = MakeTemplates::Auto, value_name = "WHEN")]
    pub(crate) make_templates: MakeTemplates,
    /// Include /usr/local and /usr/src of this machine in the template `host`
    #[arg(long, env = env::HOST_LOCAL, hide_env_values = true)]
    pub(crate) host_local: bool,
    /// Ready instances to keep per frequently used template; with 0 every create is a cold start
    #[arg(long, env = env::POOL, hide_env_values = true, default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) pool: u16,
    /// Ready instances with a running Python kernel to keep per code-interpreter template, some 100 MiB each; none
    /// with --pool 0
    #[arg(long, env = env::WARM_KERNELS, hide_env_values = true, default_value_t = 2, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=32))]
    pub(crate) warm_kernels: u16,
    /// Maximum number of sandboxes
    #[arg(long, env = env::LIVE_MAX, hide_env_values = true, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) live_max: u64,
    /// Memory overcommit: the memory limits of sandboxes may add up to this many times the memory of the machine
    #[arg(long, env = env::OVERCOMMIT, hide_env_values = true, default_value_t = 50.0, value_parser = overcommit)]
    pub(crate) overcommit: f64,
    /// Disk overcommit: the disk limits of sandboxes and volumes may add up to this many times the space of the
    /// pool
    #[arg(long, env = env::DISK_OVERCOMMIT, hide_env_values = true, default_value_t = 50.0, value_parser = overcommit)]
    pub(crate) disk_overcommit: f64,
    /// Part of the pool that the sandboxes and volumes of one tenant may fill once there is a second tenant; 100% is no
    /// limit
    #[arg(long, env = env::TENANT_DISK_SHARE, hide_env_values = true, default_value = "50%", value_name = "PERCENT", value_parser = share)]
    pub(crate) tenant_disk_share: Share,
    /// CPUs of sandboxes that E2B's SDKs create from a template without a size, at most those of the machine
    #[arg(long, env = env::E2B_CPU, hide_env_values = true, default_value_t = 2.0, value_name = "CPUS", value_parser = cpus)]
    pub(crate) e2b_cpu: f64,
    /// Memory of these sandboxes, at most half of the machine's
    #[arg(long, env = env::E2B_MEMORY, hide_env_values = true, default_value = "4g", value_name = "SIZE", value_parser = super::values::mebibytes)]
    pub(crate) e2b_memory: super::values::Mebibytes,
    /// Space to keep free on the disk of the data folder, and in the pool for pauses and snapshots
    #[arg(long, env = env::DISK_RESERVE, hide_env_values = true, default_value = "1g", value_name = "SIZE", value_parser = super::values::mebibytes)]
    pub(crate) disk_reserve: super::values::Mebibytes,
    /// Storage for archives: a folder, or s3://BUCKET/PREFIX with credentials in AWS_* [default: DATA/archive]
    #[arg(long, env = env::ARCHIVE, hide_env_values = true, value_name = "URL")]
    pub(crate) archive: Option<String>,
    /// Tenants whose sandboxes may reach private ranges that their allow list names
    #[arg(long, env = env::EGRESS_PRIVATE, hide_env_values = true, value_enum, default_value_t = EgressPrivate::FirstTenant)]
    pub(crate) egress_private: EgressPrivate,
    /// JSON file with a network policy that narrows every sandbox; read at the start
    #[arg(long, env = env::EGRESS_POLICY, hide_env_values = true, value_name = "FILE", value_parser = egress_policy)]
    pub(crate) egress_policy: Option<NetworkPolicy>,
    /// PEM file with certificate authorities of your network, for this server and every sandbox; may be repeated
    #[arg(long, env = env::EXTRA_CA, hide_env_values = true, value_delimiter = ',', value_name = "FILE", value_parser = authorities, help_heading = "Company network")]
    pub(crate) extra_ca: Vec<AuthorityFile>,
    /// Do not give sandboxes the authorities that were added to this machine
    #[arg(long, env = env::NO_HOST_CA, hide_env_values = true, help_heading = "Company network")]
    pub(crate) no_host_ca: bool,
    /// HTTP proxy for pulls, builds and vendors: http://[USER:PASSWORD@]HOST:PORT [default: HTTPS_PROXY, HTTP_PROXY]
    #[arg(long, env = env::PROXY, hide_env_values = true, value_name = "URL", value_parser = http_proxy, help_heading = "Company network")]
    pub(crate) proxy: Option<ProxyFlag>,
    /// Hosts that are reached without it: names with all below them, addresses, ranges, each with or without :PORT [default:
    /// NO_PROXY]
    #[arg(long, env = env::NO_PROXY_HOSTS, hide_env_values = true, value_name = "LIST", help_heading = "Company network")]
    pub(crate) no_proxy: Option<String>,
    /// Proxy that allowed connections of sandboxes are passed on through: http:// or socks5://[USER:PASSWORD@]HOST:PORT
    #[arg(long, env = env::EGRESS_PROXY, hide_env_values = true, value_name = "URL", value_parser = any_proxy, help_heading = "Company network")]
    pub(crate) egress_proxy: Option<ProxyFlag>,
    /// Mirror of Debian's archive for sandboxes and template builds
    #[arg(long, env = env::MIRROR_DEBIAN, hide_env_values = true, value_name = "URL", value_parser = atoll_outbound::mirrors::parse, help_heading = "Company network")]
    pub(crate) mirror_debian: Option<String>,
    /// Index of Python packages, such as https://mirror.example/pypi/simple
    #[arg(long, env = env::MIRROR_PYPI, hide_env_values = true, value_name = "URL", value_parser = atoll_outbound::mirrors::parse, help_heading = "Company network")]
    pub(crate) mirror_pypi: Option<String>,
    /// Registry of npm packages
    #[arg(long, env = env::MIRROR_NPM, hide_env_values = true, value_name = "URL", value_parser = atoll_outbound::mirrors::parse, help_heading = "Company network")]
    pub(crate) mirror_npm: Option<String>,
    /// Registry that may use plain HTTP and may be on this machine or a private network; may be repeated
    #[arg(long, env = env::REGISTRY_INSECURE, hide_env_values = true, value_delimiter = ',', value_name = "HOST[:PORT]", value_parser = registry, help_heading = "Images, builds, volumes")]
    pub(crate) registry_insecure: Vec<String>,
    /// Folder below which host folders may become volumes; may be repeated
    #[arg(long, env = env::VOLUME_ROOTS, hide_env_values = true, value_delimiter = ',', value_name = "DIR", value_parser = folder, help_heading = "Images, builds, volumes")]
    pub(crate) volume_root: Vec<std::path::PathBuf>,
    /// Maximum unpacked size of an image
    #[arg(long, env = env::IMAGE_MAX, hide_env_values = true, default_value = "32g", value_name = "SIZE", value_parser = super::values::mebibytes, help_heading = "Images, builds, volumes")]
    pub(crate) image_max: super::values::Mebibytes,
    /// Maximum number of files, folders and links in one layer of an image
    #[arg(long, env = env::IMAGE_MAX_ENTRIES, hide_env_values = true, default_value_t = 2_000_000, value_name = "N", help_heading = "Images, builds, volumes")]
    pub(crate) image_max_entries: u64,
    /// Minimum age in seconds of files that garbage collection removes; for tests
    #[arg(long, env = env::IMAGE_GRACE_S, hide = true, value_name = "N")]
    pub(crate) image_grace_s: Option<u64>,
    /// Default time limit of a build
    #[arg(long, env = env::BUILD_TIMEOUT, hide_env_values = true, default_value = "30m", value_name = "DURATION", value_parser = super::values::seconds, help_heading = "Images, builds, volumes")]
    pub(crate) build_timeout: super::values::Seconds,
    /// Maximum size of a build context
    #[arg(long, env = env::BUILD_CONTEXT_MAX, hide_env_values = true, default_value = "8g", value_name = "SIZE", value_parser = super::values::mebibytes, help_heading = "Images, builds, volumes")]
    pub(crate) build_context_max: super::values::Mebibytes,
    /// Agent binary [default: the one inside this program]
    #[arg(long, env = env::AGENT, hide_env_values = true, value_name = "FILE")]
    pub(crate) agent: Option<std::path::PathBuf>,
    /// Log filter, such as `debug` or `atoll_service=debug,info` [default: info; on a terminal warnings only]
    #[arg(long, env = env::LOG, hide_env_values = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Log format [default: text on a terminal, else json]
    #[arg(long, env = env::LOG_FORMAT, hide_env_values = true)]
    pub(crate) log_format: Option<LogFormat>,
    /// When the server is ready, run a line of Python in a new sandbox and print the next commands to try
    #[arg(long)]
    pub(crate) tour: bool,
    /// Detach from the terminal session; for servers that `atoll run` starts
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

impl Serve {
    /// Settings for work on DATA without a server: no pool and no default templates.
    pub(crate) fn bare() -> Result<Self, Failure> {
        let words = [
            "serve",
            "--pool",
            "0",
            "--warm-kernels",
            "0",
            "--make-templates",
            "never",
            "--tls-port",
            "0",
            "--socket",
            "off",
        ];
        let matches = Self::augment_args(clap::Command::new("serve")).try_get_matches_from(words);
        matches
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(|e| Failure::new("usage", e.to_string()).exit(2))
    }
}

/// The socket of a machine's server.
pub(crate) const DEFAULT_SOCKET: &str = "/run/atoll/atoll.sock";
/// LIMIT: bytes in the path of a Unix socket, as the kernel has it.
const SOCKET_PATH_MAX: usize = 100;

/// Where the Unix socket is; `None`: there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketSetting(pub(crate) Option<std::path::PathBuf>);

fn socket(text: &str) -> Result<SocketSetting, String> {
    let path = std::path::Path::new(text);
    match text {
        "off" => Ok(SocketSetting(None)),
        _ if !path.is_absolute() => Err(format!("{text:?} is neither an absolute path nor off")),
        _ if text.len() > SOCKET_PATH_MAX => Err(format!("the path is longer than {SOCKET_PATH_MAX} bytes")),
        _ => Ok(SocketSetting(Some(path.to_owned()))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EgressPrivate {
    /// No tenant
    Never,
    /// The tenant `default`, which the server creates at its first start
    FirstTenant,
    /// Every tenant
    Named,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MakeTemplates {
    /// At the first start, or the first use; needs a Debian mirror, some minutes and 3 GB
    Auto,
    /// Never; use `atoll template make`
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Json,
    Text,
}

/// Read while parsing, so that a server never starts without the policy that the operator requested.
fn egress_policy(path: &str) -> Result<NetworkPolicy, String> {
    let content = std::fs::read(path).map_err(|cause| format!("cannot be read: {cause}"))?;
    let policy = atoll_front_native::read_policy(&content)?;
    let floor = TenantFloor { private_when_named: true, policy: None };
    match check_layer(&policy, &floor) {
        Ok(()) => Ok(policy),
        Err(bad) => Err(match bad.hint {
            Some(hint) => format!("{}: {} ({hint})", bad.field, bad.why),
            None => format!("{}: {}", bad.field, bad.why),
        }),
    }
}

/// Authorities that a file has. Read while parsing, so that a server never starts with half of them.
#[derive(Debug, Clone)]
pub(crate) struct AuthorityFile(pub(crate) Vec<Authority>);

fn authorities(path: &str) -> Result<AuthorityFile, String> {
    let read = atoll_outbound::authorities::read(std::path::Path::new(path));
    read.map(AuthorityFile).map_err(|bad| bad.to_string())
}

/// A proxy, or why its address is not one. Parsing never fails, because clap would repeat the text, which may contain a password.
#[derive(Debug, Clone)]
pub(crate) struct ProxyFlag(pub(crate) Result<ProxyUrl, String>);

fn any_proxy(text: &str) -> Result<ProxyFlag, String> {
    Ok(ProxyFlag(text.parse().map_err(|bad: atoll_model::BadProxy| bad.to_string())))
}

fn http_proxy(text: &str) -> Result<ProxyFlag, String> {
    let ProxyFlag(read) = any_proxy(text)?;
    Ok(ProxyFlag(read.and_then(|proxy| match proxy.kind {
        ProxyKind::Http => Ok(proxy),
        ProxyKind::Socks5 => {
            Err("not a proxy: pulls and builds need one that speaks HTTP: http://HOST:PORT".to_owned())
        }
    })))
}

/// A path, also as `sqlite:PATH`. Its folder must exist, so that a typing error makes no database elsewhere.
fn database(text: &str) -> Result<std::path::PathBuf, String> {
    let path = match text.split_once(':') {
        Some(("sqlite", path)) => path.strip_prefix("//").unwrap_or(path),
        Some((scheme, rest)) if rest.starts_with("//") => {
            return Err(format!("a database of kind {scheme} is not supported; only SQLite is, by path"));
        }
        Some(_) | None => text,
    };
    let cannot = |cause: std::io::Error| format!("its folder cannot be found: {cause}");
    let path = std::path::absolute(path).map_err(cannot)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(format!("{text:?} is not the path of a file"));
    };
    if path.is_dir() {
        return Err(format!("{} is a folder; name a file", path.display()));
    }
    Ok(folder.canonicalize().map_err(cannot)?.join(name))
}

pub(super) fn domain(text: &str) -> Result<atoll_proxy::Domain, String> {
    atoll_proxy::Domain::parse(text).ok_or_else(|| format!("{text:?} is not a plain host name"))
}

/// A host with or without a port, as in image names.
fn origin(text: &str) -> Result<String, String> {
    atoll_model::policy::origin::parse(text).ok_or_else(|| {
        format!("{text:?} is not an origin; write SCHEME://HOST[:PORT], such as https://app.example")
    })
}

fn registry(text: &str) -> Result<String, String> {
    let refuse = || format!("{text:?} is not a registry; write HOST or HOST:PORT, without http://");
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if host.is_empty() || !host.chars().all(plain) || !is_port {
        return Err(refuse());
    }
    Ok(text.to_ascii_lowercase())
}

/// Checked while parsing: otherwise a missing root would be noticed only by the first volume below it.
fn folder(text: &str) -> Result<std::path::PathBuf, String> {
    let path = std::path::Path::new(text);
    if !path.is_absolute() {
        return Err(format!("{text:?} is not an absolute path"));
    }
    let whole = path.canonicalize().map_err(|cause| format!("cannot be found: {cause}"))?;
    if whole == std::path::Path::new("/") {
        return Err("/ cannot be a root for volumes; name a folder".to_owned());
    }
    if !whole.is_dir() {
        return Err("is not a folder".to_owned());
    }
    Ok(whole)
}

fn cpus(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(cpus) if (0.01..=512.0).contains(&cpus) => Ok(cpus),
        _ => Err(format!("{text:?} is not a number of CPUs between 0.01 and 512")),
    }
}

/// A part of a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) per_mille: u64,
}

fn share(text: &str) -> Result<Share, String> {
    let bad = || format!("{text:?} is not a percentage between 0.1% and 100%, such as 50%");
    let (whole, tenths) = match text.strip_suffix('%').unwrap_or(text).split_once('.') {
        Some((whole, tenths)) if tenths.len() == 1 => (whole, tenths),
        Some(_) => return Err(bad()),
        None => (text.strip_suffix('%').unwrap_or(text), "0"),
    };
    let digits =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok());
    let (Some(Some(whole)), Some(Some(tenths))) = (digits(whole), digits(tenths)) else { return Err(bad()) };
    let per_mille = u64::from(whole) * 10 + u64::from(tenths);
    if (1..=1_000).contains(&per_mille) { Ok(Share { per_mille }) } else { Err(bad()) }
}

fn overcommit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (1.0..=1_000.0).contains(&ratio) => Ok(ratio),
        _ => Err(format!("{text:?} is not a ratio between 1 and 1000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_with_a_tenth_at_most() {
        for (text, per_mille) in [("50%", 500), ("50", 500), ("0.1%", 1), ("12.5", 125), ("100%", 1_000)] {
            assert_eq!(share(text), Ok(Share { per_mille }), "{text}");
        }
        for text in ["", "%", "0", "0%", "101", "-5", "1.25%", "+5", "half", "1.%", ".5"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bare_settings_are_valid() {
        let bare = Serve::bare().expect("valid");
        assert_eq!((bare.pool, bare.make_templates), (0, MakeTemplates::Never));
    }

    #[test]
    fn registries_are_hosts_and_never_urls() {
        for fine in ["127.0.0.1:5000", "registry.example", "Localhost:5000"] {
            assert!(registry(fine).is_ok(), "{fine}");
        }
        for bad in ["", "http://a", "a/b", "a:0", "a:x", ":5000", "a b"] {
            assert!(registry(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_database_is_a_file_of_sqlite() {
        let here = tempfile::tempdir().expect("temporary folder");
        let whole = here.path().canonicalize().expect("there").join("shared.db");
        let text = here.path().join("shared.db").to_str().expect("text").to_owned();
        for fine in [text.clone(), format!("sqlite:{text}"), format!("sqlite://{text}")] {
            assert_eq!(database(&fine).as_ref(), Ok(&whole), "{fine}");
        }
        let other = database("postgres://host/atoll").expect_err("not supported");
        assert!(other.contains("postgres") && other.contains("only SQLite"), "{other}");
        for bad in ["/nowhere/at/all/a.db", "/", here.path().to_str().expect("text")] {
            assert!(database(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn roots_of_volumes_are_folders_that_are_there() {
        let here = tempfile::tempdir().expect("temporary folder");
        assert!(folder(here.path().to_str().expect("text")).is_ok());
        for bad in ["/", "relative", "/nowhere/at/all", "/etc/passwd", "/etc/.."] {
            assert!(folder(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_policy_for_all_is_read_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("floor.json");
        let read = |content: &str| {
            std::fs::write(&file, content).expect("writable");
            egress_policy(file.to_str().expect("text"))
        };
        let policy = read(r#"{"mode": "allow-all", "deny_cidrs": ["203.0.113.0/24"]}"#).expect("valid");
        assert_eq!(policy.deny_cidrs.len(), 1);
        assert_eq!(read("\"deny-all\""), Ok(NetworkPolicy::deny_all()));
        for (content, says) in [
            ("", "not valid"),
            ("{\"mode\": \"custom\", \"allow_domains\": [\"a b\"]}", "allow_domains[0]"),
            ("{\"mode\": \"custom\", \"colour\": 1}", "colour"),
            ("{\"mode\": \"custom\", \"learn\": true}", "learn"),
            ("{\"mode\": \"custom\", \"transforms\": [{\"domain\": \"a.com\"}]}", "transforms"),
        ] {
            let why = read(content).expect_err(content);
            assert!(why.contains(says), "{content}: {why}");
        }
        assert!(egress_policy("/nowhere/at/all").is_err_and(|why| why.contains("cannot be read")));
    }
}
