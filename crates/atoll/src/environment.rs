//! Every environment variable that the binary reads, in one place. A few are read by crates that also run without it:
//! `ATOLL_CACHE`, `ATOLL_DEBIAN_MIRROR` and the `AWS_*` of object storage by image, `ATOLL_CRIU` (the program that brings
//! memory to disk) and `ATOLL_LEGACY_KERNEL=1` (the paths for kernels before 6.15, which a whole test run takes) by container,
//! `ATOLL_EGRESS_ROOTS` (a PEM file with more roots for servers whose requests are changed) by network.
//!
//! `clap` reads them by these names, so each is also a flag and shows in `--help`.

/// Address of the server the command line talks to.
pub(crate) const URL: &str = "ATOLL_URL";
/// Key shown to that server; without it the command line reads `DATA/admin.key`.
pub(crate) const API_KEY: &str = "ATOLL_API_KEY";
/// PEM file with an authority to trust for HTTPS, besides the system's.
pub(crate) const CA: &str = "ATOLL_CA";
/// Folder of the server's state; `~/.atoll` unless said otherwise.
pub(crate) const DATA: &str = "ATOLL_DATA";
/// Where `atoll serve` listens.
pub(crate) const LISTEN: &str = "ATOLL_LISTEN";
/// Name below which previews live.
pub(crate) const DOMAIN: &str = "ATOLL_DOMAIN";
/// Origins whose pages may open WebSockets, separated by commas.
pub(crate) const ALLOW_ORIGIN: &str = "ATOLL_ALLOW_ORIGIN";
/// Where TLS is served; 0: nowhere.
pub(crate) const TLS_PORT: &str = "ATOLL_TLS_PORT";
/// The certificate for it.
pub(crate) const TLS_CERT: &str = "ATOLL_TLS_CERT";
/// The key of that certificate.
pub(crate) const TLS_KEY: &str = "ATOLL_TLS_KEY";
/// Template of sandboxes that name none.
pub(crate) const TEMPLATE: &str = "ATOLL_TEMPLATE";
/// Whether the template `host` shows `/usr/local` and `/usr/src` too.
pub(crate) const HOST_LOCAL: &str = "ATOLL_HOST_LOCAL";
/// Whether the templates behind the vendors' default names are made at the first start.
pub(crate) const MAKE_TEMPLATES: &str = "ATOLL_MAKE_TEMPLATES";
/// Ready instances kept per popular template.
pub(crate) const POOL: &str = "ATOLL_POOL";
pub(crate) const WARM_KERNELS: &str = "ATOLL_WARM_KERNELS";
/// The most sandboxes that may live at once on this node.
pub(crate) const LIVE_MAX: &str = "ATOLL_LIVE_MAX";
/// How far limits may exceed what the machine has.
pub(crate) const OVERCOMMIT: &str = "ATOLL_OVERCOMMIT";
/// How far disk limits may exceed the space of the pool.
pub(crate) const DISK_OVERCOMMIT: &str = "ATOLL_DISK_OVERCOMMIT";
/// Space that stays free on the disk of the data folder.
pub(crate) const DISK_RESERVE: &str = "ATOLL_DISK_RESERVE";
/// Which log lines are written, as `tracing` filters are.
pub(crate) const LOG: &str = "ATOLL_LOG";
/// Form of the log lines.
pub(crate) const LOG_FORMAT: &str = "ATOLL_LOG_FORMAT";
/// Where the archives of sandboxes go.
pub(crate) const ARCHIVE: &str = "ATOLL_ARCHIVE";
/// Which tenants may reach private ranges that an allow list names.
pub(crate) const EGRESS_PRIVATE: &str = "ATOLL_EGRESS_PRIVATE";
/// File with the policy that narrows every sandbox.
pub(crate) const EGRESS_POLICY: &str = "ATOLL_EGRESS_POLICY";
/// Registries that are spoken to without TLS, separated by commas.
pub(crate) const REGISTRY_INSECURE: &str = "ATOLL_REGISTRY_INSECURE";
/// Folders below which folders of the host may become volumes, separated by commas.
pub(crate) const VOLUME_ROOTS: &str = "ATOLL_VOLUME_ROOTS";
/// The most that one image may hold.
pub(crate) const IMAGE_MAX: &str = "ATOLL_IMAGE_MAX";
/// The most entries of one layer.
pub(crate) const IMAGE_MAX_ENTRIES: &str = "ATOLL_IMAGE_MAX_ENTRIES";
/// How old something of an image has to be before it is collected.
pub(crate) const IMAGE_GRACE_S: &str = "ATOLL_IMAGE_GRACE_S";
/// How long a build may take that says nothing else.
pub(crate) const BUILD_TIMEOUT: &str = "ATOLL_BUILD_TIMEOUT";
/// The most that the folder of a build may hold.
pub(crate) const BUILD_CONTEXT_MAX: &str = "ATOLL_BUILD_CONTEXT_MAX";
/// Path of an agent binary to use instead of the one inside the program.
pub(crate) const AGENT: &str = "ATOLL_AGENT";

/// Debug builds only: the named place at which a test wants the server to die.
const FAIL_AT: &str = "ATOLL_FAIL_AT";

/// Set to anything: no colour (the convention of no-color.org).
const NO_COLOR: &str = "NO_COLOR";
const HOME: &str = "HOME";
const SUDO_USER: &str = "SUDO_USER";
const TERM: &str = "TERM";
const SHELL_COLUMNS: &str = "COLUMNS";

/// Whether the user asked for no colour.
pub(crate) fn no_color() -> bool {
    std::env::var_os(NO_COLOR).is_some_and(|v| !v.is_empty())
}

/// Home folder of the user; root's own when it is not set, as under some supervisors.
pub(crate) fn home() -> std::path::PathBuf {
    std::env::var_os(HOME).filter(|v| !v.is_empty()).map_or_else(|| "/root".into(), Into::into)
}

/// Whether somebody other than root started us through sudo; then root's folder is not theirs.
pub(crate) fn through_sudo() -> bool {
    std::env::var_os(SUDO_USER).is_some_and(|user| !user.is_empty() && user != "root")
}

/// Kind of the user's terminal, passed on to shells inside.
pub(crate) fn term() -> String {
    std::env::var(TERM).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| "xterm-256color".to_owned())
}

/// Where a test wants the server to die.
pub(crate) fn fail_at() -> Option<String> {
    std::env::var(FAIL_AT).ok()
}

/// Width the shell believes in, for output that is no terminal.
pub(crate) fn columns() -> Option<u16> {
    std::env::var(SHELL_COLUMNS).ok()?.parse().ok()
}

/// The value of a variable that the user named with `--env NAME`.
pub(crate) fn of_user(name: &str) -> Option<String> {
    std::env::var(name).ok()
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
            DATA,
            LISTEN,
            DOMAIN,
            TEMPLATE,
            HOST_LOCAL,
            POOL,
            WARM_KERNELS,
            LIVE_MAX,
            OVERCOMMIT,
            DISK_OVERCOMMIT,
            DISK_RESERVE,
            LOG,
            LOG_FORMAT,
            AGENT,
            ARCHIVE,
            EGRESS_PRIVATE,
            EGRESS_POLICY,
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
