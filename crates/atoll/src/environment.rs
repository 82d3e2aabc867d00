//! Every environment variable that the binary reads, in one place. Some are read by crates that also work without the
//! binary: `ATOLL_CACHE`, `ATOLL_DEBIAN_MIRROR` and the `AWS_*` of object storage by image; `ATOLL_CRIU` (the program
//! that writes memory to disk) and `ATOLL_LEGACY_KERNEL=1` (the code for kernels before 6.15, which a whole test run
//! uses) by container; `ATOLL_EGRESS_ROOTS` (a PEM file with more roots for servers whose requests are changed) by
//! network. `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, also in lower case, are read by [`of_network`].
//!
//! `clap` reads them by these names, so each is also a flag and appears in `--help`.

/// URL of the server for the command line.
pub(crate) const URL: &str = "ATOLL_URL";
/// Key for that server; without it the command line reads `DATA/admin.key`.
pub(crate) const API_KEY: &str = "ATOLL_API_KEY";
/// PEM file with an authority to trust for HTTPS, besides the system's.
pub(crate) const CA: &str = "ATOLL_CA";
/// Name of the stored server that commands use.
pub(crate) const CONTEXT: &str = "ATOLL_CONTEXT";
/// Folder of the server's state; default `~/.atoll`.
pub(crate) const DATA: &str = "ATOLL_DATA";
/// Configuration file of the server.
pub(crate) const CONFIG: &str = "ATOLL_CONFIG";
/// Unix socket of the server, or `off`.
pub(crate) const SOCKET: &str = "ATOLL_SOCKET";
/// Name of this server among those that share its database.
pub(crate) const NODE: &str = "ATOLL_NODE";
/// Path of the database.
pub(crate) const DATABASE: &str = "ATOLL_DATABASE";
/// Address and port of `atoll serve`.
pub(crate) const LISTEN: &str = "ATOLL_LISTEN";
/// Domain of previews.
pub(crate) const DOMAIN: &str = "ATOLL_DOMAIN";
/// Origins whose pages may open WebSockets, separated by commas.
pub(crate) const ALLOW_ORIGIN: &str = "ATOLL_ALLOW_ORIGIN";
/// Whether the web page is left out.
pub(crate) const NO_UI: &str = "ATOLL_NO_UI";
/// Port for TLS; 0 disables it.
pub(crate) const TLS_PORT: &str = "ATOLL_TLS_PORT";
/// Certificate for TLS.
pub(crate) const TLS_CERT: &str = "ATOLL_TLS_CERT";
/// The key of that certificate.
pub(crate) const TLS_KEY: &str = "ATOLL_TLS_KEY";
/// Default template of sandboxes.
pub(crate) const TEMPLATE: &str = "ATOLL_TEMPLATE";
/// Default provider of sandboxes.
pub(crate) const PROVIDER: &str = "ATOLL_PROVIDER";
/// Whether the provider `local` may be used.
pub(crate) const ALLOW_LOCAL: &str = "ATOLL_ALLOW_LOCAL";
/// Whether the template `host` also shows `/usr/local` and `/usr/src`.
pub(crate) const HOST_LOCAL: &str = "ATOLL_HOST_LOCAL";
/// Whether the templates of the vendors' default names are made at the first start.
pub(crate) const MAKE_TEMPLATES: &str = "ATOLL_MAKE_TEMPLATES";
/// Ready instances to keep per frequently used template.
pub(crate) const POOL: &str = "ATOLL_POOL";
pub(crate) const WARM_KERNELS: &str = "ATOLL_WARM_KERNELS";
/// The maximal number of sandboxes on this node.
pub(crate) const LIVE_MAX: &str = "ATOLL_LIVE_MAX";
/// How far memory limits may exceed the memory of the machine.
pub(crate) const OVERCOMMIT: &str = "ATOLL_OVERCOMMIT";
/// How far disk limits may exceed the space of the pool.
pub(crate) const DISK_OVERCOMMIT: &str = "ATOLL_DISK_OVERCOMMIT";
/// The size of sandboxes of the E2B front.
pub(crate) const E2B_CPU: &str = "ATOLL_E2B_CPU";
pub(crate) const E2B_MEMORY: &str = "ATOLL_E2B_MEMORY";
/// The part of the pool that one tenant may fill.
pub(crate) const TENANT_DISK_SHARE: &str = "ATOLL_TENANT_DISK_SHARE";
/// Space that stays free on the disk of the data folder.
pub(crate) const DISK_RESERVE: &str = "ATOLL_DISK_RESERVE";
/// Filter of log lines, in the syntax of `tracing`.
pub(crate) const LOG: &str = "ATOLL_LOG";
/// Format of log lines.
pub(crate) const LOG_FORMAT: &str = "ATOLL_LOG_FORMAT";
/// Storage for archives.
pub(crate) const ARCHIVE: &str = "ATOLL_ARCHIVE";
/// Tenants that may reach private ranges named in an allow list.
pub(crate) const EGRESS_PRIVATE: &str = "ATOLL_EGRESS_PRIVATE";
/// File with a policy that restricts every sandbox.
pub(crate) const EGRESS_POLICY: &str = "ATOLL_EGRESS_POLICY";
/// Files with certificate authorities, separated by commas.
pub(crate) const EXTRA_CA: &str = "ATOLL_EXTRA_CA";
/// Whether the authorities that were added to this machine stay outside of sandboxes.
pub(crate) const NO_HOST_CA: &str = "ATOLL_NO_HOST_CA";
/// The server's own proxy, in place of the usual variables.
pub(crate) const PROXY: &str = "ATOLL_PROXY";
/// The hosts that it reaches without one.
pub(crate) const NO_PROXY_HOSTS: &str = "ATOLL_NO_PROXY";
/// The proxy that connections of sandboxes are passed on through.
pub(crate) const EGRESS_PROXY: &str = "ATOLL_EGRESS_PROXY";
/// Mirrors of package registries for sandboxes and template builds.
pub(crate) const MIRROR_DEBIAN: &str = "ATOLL_MIRROR_DEBIAN";
pub(crate) const MIRROR_PYPI: &str = "ATOLL_MIRROR_PYPI";
pub(crate) const MIRROR_NPM: &str = "ATOLL_MIRROR_NPM";
/// Registries that may be used without TLS, separated by commas.
pub(crate) const REGISTRY_INSECURE: &str = "ATOLL_REGISTRY_INSECURE";
/// Folders below which host folders may become volumes, separated by commas.
pub(crate) const VOLUME_ROOTS: &str = "ATOLL_VOLUME_ROOTS";
/// Maximal unpacked size of one image.
pub(crate) const IMAGE_MAX: &str = "ATOLL_IMAGE_MAX";
/// Maximal number of entries of one layer.
pub(crate) const IMAGE_MAX_ENTRIES: &str = "ATOLL_IMAGE_MAX_ENTRIES";
/// Minimal age of image files that garbage collection removes.
pub(crate) const IMAGE_GRACE_S: &str = "ATOLL_IMAGE_GRACE_S";
/// Default time limit of a build.
pub(crate) const BUILD_TIMEOUT: &str = "ATOLL_BUILD_TIMEOUT";
/// Maximal size of a build context.
pub(crate) const BUILD_CONTEXT_MAX: &str = "ATOLL_BUILD_CONTEXT_MAX";
/// Path of an agent binary to use instead of the one inside the program.
pub(crate) const AGENT: &str = "ATOLL_AGENT";

/// Debug builds only: the named place at which a test ends the server.
const FAIL_AT: &str = "ATOLL_FAIL_AT";

/// Any value disables colours (the convention of no-color.org).
const NO_COLOR: &str = "NO_COLOR";
/// Set by systemd for services with `Type=notify`.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
const HOME: &str = "HOME";
const SUDO_USER: &str = "SUDO_USER";
const USER: &str = "USER";
const CONFIG_HOME: &str = "XDG_CONFIG_HOME";
const TERM: &str = "TERM";
const SHELL_COLUMNS: &str = "COLUMNS";

/// Whether a browser could show a window.
pub(crate) fn has_display() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some_and(|v| !v.is_empty()))
}

/// Whether the user disabled colours.
pub(crate) fn no_color() -> bool {
    std::env::var_os(NO_COLOR).is_some_and(|v| !v.is_empty())
}

/// Home folder of the user; root's if it is not set, as under some supervisors.
pub(crate) fn home() -> std::path::PathBuf {
    std::env::var_os(HOME).filter(|v| !v.is_empty()).map_or_else(|| "/root".into(), Into::into)
}

/// The data folder of a server without another one.
pub(crate) fn default_data() -> std::path::PathBuf {
    home().join(".atoll")
}

/// The socket on which systemd waits for the message that the server is ready.
pub(crate) fn notify_socket() -> Option<std::ffi::OsString> {
    std::env::var_os(NOTIFY_SOCKET).filter(|path| !path.is_empty())
}

/// Folder of the user's settings: `XDG_CONFIG_HOME`, which counts only as a full path, else `~/.config`.
pub(crate) fn config_home() -> std::path::PathBuf {
    let named = std::env::var_os(CONFIG_HOME).map(std::path::PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| home().join(".config"))
}

/// The user and this machine, such as `anna@laptop`: the name of a key. Printable ASCII.
pub(crate) fn user_at_host() -> String {
    let user = std::env::var(USER).ok().filter(|user| !user.is_empty());
    let user = user.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "unknown" } else { host.trim() };
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '-' };
    // LIMIT: a name of a key has 200 characters at most.
    format!("{user}@{host}").chars().map(plain).take(150).collect()
}

/// Whether a user other than root started this program with sudo; then root's folder is not the user's.
pub(crate) fn through_sudo() -> bool {
    std::env::var_os(SUDO_USER).is_some_and(|user| !user.is_empty() && user != "root")
}

/// Type of the user's terminal, passed on to shells in sandboxes.
pub(crate) fn term() -> String {
    std::env::var(TERM).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| "xterm-256color".to_owned())
}

/// Where a test ends the server.
pub(crate) fn fail_at() -> Option<String> {
    std::env::var(FAIL_AT).ok()
}

/// The terminal width that the shell reports, for output that is not a terminal.
pub(crate) fn columns() -> Option<u16> {
    std::env::var(SHELL_COLUMNS).ok()?.parse().ok()
}

/// The variables that settings of providers are looked up in: keys and addresses of vendors.
pub(crate) fn provider_variables() -> std::collections::BTreeMap<String, String> {
    let names = atoll_model::ProviderKind::variables().into_iter();
    names.filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?))).collect()
}

/// The variables that name the proxies of a network: `HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`, and the same in lower case.
pub(crate) fn of_network(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The value of a variable that the user named with `--env NAME`.
pub(crate) fn of_user(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What commands of sandboxes without isolation see of the environment of the server. Everything else may be a secret.
pub(crate) fn for_local_commands() -> std::collections::BTreeMap<String, String> {
    let names = ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"].into_iter();
    names.filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_of_ours_begins_with_our_name() {
        for name in [
            TLS_PORT,
            TLS_CERT,
            TLS_KEY,
            URL,
            API_KEY,
            CONTEXT,
            DATA,
            CONFIG,
            SOCKET,
            LISTEN,
            DOMAIN,
            TEMPLATE,
            PROVIDER,
            ALLOW_LOCAL,
            HOST_LOCAL,
            POOL,
            WARM_KERNELS,
            LIVE_MAX,
            OVERCOMMIT,
            DISK_OVERCOMMIT,
            E2B_CPU,
            E2B_MEMORY,
            TENANT_DISK_SHARE,
            DISK_RESERVE,
            LOG,
            LOG_FORMAT,
            AGENT,
            ARCHIVE,
            EGRESS_PRIVATE,
            EGRESS_POLICY,
            EXTRA_CA,
            NO_HOST_CA,
            PROXY,
            NO_PROXY_HOSTS,
            EGRESS_PROXY,
            MIRROR_DEBIAN,
            MIRROR_PYPI,
            MIRROR_NPM,
            REGISTRY_INSECURE,
            VOLUME_ROOTS,
            IMAGE_MAX,
            IMAGE_MAX_ENTRIES,
            IMAGE_GRACE_S,
            BUILD_TIMEOUT,
            BUILD_CONTEXT_MAX,
        ] {
            assert!(name.starts_with("ATOLL_"), "{name}");
        }
    }
}
