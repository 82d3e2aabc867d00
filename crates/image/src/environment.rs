//! All environment variables that this crate reads.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder for cached archives: `$ATOLL_CACHE`, or `~/.cache/atoll`.
pub fn default_cache_dir() -> PathBuf {
    let home = || variable("HOME").map(|home| Path::new(&home).join(".cache/atoll"));
    variable("ATOLL_CACHE")
        .map(PathBuf::from)
        .or_else(home)
        .unwrap_or_else(|| PathBuf::from("/var/cache/atoll"))
}

/// The base address of a Debian mirror: `$ATOLL_DEBIAN_MIRROR`, for hosts whose own apt sources name none.
pub(crate) fn debian_mirror() -> Option<String> {
    // A space or line break would add options or a whole line to the list of sources.
    variable("ATOLL_DEBIAN_MIRROR")
        .and_then(|value| value.into_string().ok())
        .filter(|uri| !uri.contains(char::is_whitespace))
}

/// The endpoint of object storage.
pub(crate) fn s3_endpoint() -> Option<String> {
    ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().find_map(|name| variable(name)?.into_string().ok())
}

/// The search path for programs.
pub(crate) fn program_path() -> OsString {
    variable("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into())
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
