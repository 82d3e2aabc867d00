//! Paths as text, without a file system: normalised as Go's `path.Clean` does, always from a root.

/// Absolute, without `.`, `..`, repeated slashes and a trailing slash. No path leads above the root.
pub(crate) fn clean(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

/// A path that may be relative to a working directory.
pub(crate) fn join(workdir: &str, path: &str) -> String {
    match path.starts_with('/') {
        true => clean(path),
        false => clean(&format!("{workdir}/{path}")),
    }
}

/// The last component; empty for the root.
pub(crate) fn base(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Whether a destination is written as a folder.
pub(crate) fn is_folder(text: &str) -> bool {
    text.ends_with('/') || text == "." || text == ".." || text.ends_with("/.") || text.ends_with("/..")
}
