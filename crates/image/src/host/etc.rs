//! `/etc` of a host template: generated files, and copies of the few host files that programs in `/usr` need.
//!
//! Only files that every user of the host may read are copied. The table deliberately omits accounts, shadow, keys,
//! tokens, mounts, and settings that often contain credentials (gitconfig, npmrc, pip.conf, environment).

use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use super::HostSource;
use super::skeleton::{self, FolderOwner};
use crate::error::TemplateError;

/// "*" in place of a password: no login is possible, and there is no shadow file to read.
pub(crate) const PASSWD: &str = "root:*:0:0:root:/root:/bin/bash\n\
                                 daemon:*:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
                                 nobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
                                 user:*:1000:1000:user:/home/user:/bin/bash\n";

/// Files that are the same in every generated root.
#[rustfmt::skip]
const OWN: &[(&str, &str)] = &[
    ("passwd", PASSWD),
    // The group id of tty is 5: terminals in a sandbox belong to it.
    ("group", "root:*:0:\ndaemon:*:1:\ntty:*:5:\nutmp:*:43:\nstaff:*:50:\nusers:*:100:\nuser:*:1000:\nnogroup:*:65534:\n"),
    ("hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
    ("hostname", "sandbox\n"),
    // The router's address in every sandbox; DNS is answered there.
    ("resolv.conf", "nameserver 169.254.0.1\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nrpc: files\n"),
    // Empty, so that a login shell starts as fast as any other.
    ("profile", ""),
    // A prompt with user, host and folder; bash's default shows its version.
    ("bash.bashrc", "PS1='\\u@\\h:\\w\\$ '\n"),
    ("shells", "/bin/sh\n/bin/bash\n"),
    ("fstab", ""),
    ("machine-id", ""),
];

/// Files that are copied from the host's `/etc`, and why. A `*` at the end matches any rest of the name.
#[rustfmt::skip]
const COPIED: &[(&str, &str)] = &[
    ("ld.so.cache",         "where the dynamic linker finds libraries"),
    ("ld.so.conf",          "what that cache is made from, for ldconfig inside"),
    ("ld.so.conf.d",        "the same"),
    ("alternatives",        "half of the names in /usr/bin are links through here (awk, cc, java, editor)"),
    ("ssl/certs",           "certificate authorities: TLS fails without"),
    ("ssl/openssl.cnf",     "/usr/lib/ssl/openssl.cnf is a link to it"),
    ("ca-certificates.conf","which of the authorities are trusted, for update-ca-certificates inside"),
    ("localtime",           "the time zone"),
    ("timezone",            "its name"),
    ("os-release",          "which system this is"),
    ("debian_version",      "the same, older habit"),
    ("mime.types",          "Python's mimetypes and web servers"),
    ("protocols",           "getprotobyname"),
    ("services",            "getservbyname"),
    ("magic*",              "the program file"),
    ("python3*",            "/usr/lib/python3.*/sitecustomize.py is a link to it"),
    ("perl",                "on the search path of perl"),
    ("java-*",              "the configuration in /usr/lib/jvm is a link to it; java does not start without"),
    ("fonts",               "fontconfig: drawing text"),
    ("inputrc",             "keys of the shell's line editor"),
];

/// Skipped although the table names their folder: they identify the host.
const SKIPPED: &[&str] = &["etc/ssl/certs/ssl-cert-snakeoil.pem"];

/// LIMIT: the largest useful file (a bundle of authorities, a linker cache) has a few hundred kB.
const FILE_MAX: u64 = 8 << 20;
/// LIMIT: no path in the table is nested deeper.
const DEPTH_MAX: usize = 6;

/// Fills the `/etc` of a host template.
pub(crate) fn build(source: &HostSource, etc: &Path) -> Result<(), TemplateError> {
    own(etc)?;
    skeleton::folder(&etc.join("skel"), 0o755, FolderOwner::Root)?;
    skeleton::folder(&etc.join("opt"), 0o755, FolderOwner::Root)?;
    skeleton::folder(&etc.join("ssl"), 0o755, FolderOwner::Root)?;
    skeleton::link(Path::new("../proc/self/mounts"), &etc.join("mtab"))?;
    let copier = Copier { source, etc };
    for (pattern, _why) in COPIED {
        for relative in matching(&source.root.join("etc"), pattern) {
            copier.copy(&Path::new("etc").join(relative), 0)?;
        }
    }
    Ok(())
}

/// Writes the generated files.
pub(crate) fn own(etc: &Path) -> Result<(), TemplateError> {
    OWN.iter().try_for_each(|(name, content)| skeleton::file(&etc.join(name), content.as_bytes(), 0o644))
}

fn matching(etc: &Path, pattern: &str) -> Vec<PathBuf> {
    let Some(prefix) = pattern.strip_suffix('*') else {
        return vec![PathBuf::from(pattern)];
    };
    let Ok(entries) = std::fs::read_dir(etc) else { return Vec::new() };
    let mut names: Vec<PathBuf> = entries.flatten().map(|entry| PathBuf::from(entry.file_name())).collect();
    names.retain(|name| name.as_os_str().as_encoded_bytes().starts_with(prefix.as_bytes()));
    names.sort();
    names
}

/// Copies public files. Paths are relative to the host's root and begin with `etc/`.
struct Copier<'a> {
    source: &'a HostSource,
    etc: &'a Path,
}

impl Copier<'_> {
    /// Copies a file, link or folder; silently skips what is missing or not public.
    fn copy(&self, relative: &Path, depth: usize) -> Result<(), TemplateError> {
        let from = self.source.root.join(relative);
        let Ok(metadata) = std::fs::symlink_metadata(&from) else { return Ok(()) };
        if depth > DEPTH_MAX || SKIPPED.iter().any(|skipped| relative == Path::new(skipped)) {
            return Ok(());
        }
        let to = self.etc.join(relative.strip_prefix("etc").expect("every path begins with etc/"));
        if metadata.is_symlink() {
            return self.copy_link(relative, &from, &to);
        }
        if metadata.is_dir() && readable(&metadata, 0o005) {
            skeleton::folder(&to, 0o755, FolderOwner::Root)?;
            for entry in std::fs::read_dir(&from).map_err(TemplateError::io("list", &from))?.flatten() {
                self.copy(&relative.join(entry.file_name()), depth + 1)?;
            }
            return Ok(());
        }
        if metadata.is_file() { self.copy_file(&from, &to) } else { Ok(()) }
    }

    /// A link that works in the sandbox stays a link; otherwise the file behind it is copied.
    fn copy_link(&self, relative: &Path, from: &Path, to: &Path) -> Result<(), TemplateError> {
        let target = std::fs::read_link(from).map_err(TemplateError::io("read", from))?;
        let place = normal(&relative.parent().unwrap_or(Path::new("")).join(&target));
        let sibling = place.parent() == relative.parent();
        if sibling || self.shown(&place) {
            return skeleton::link(&target, to);
        }
        // An alternative is copied only as a link: a program from elsewhere is not copied.
        if relative.starts_with("etc/alternatives") {
            return Ok(());
        }
        // The kernel follows chains of links; a chain through another root cannot be followed and is skipped.
        match std::fs::canonicalize(self.source.root.join(&place)) {
            Ok(real) if real.starts_with(&self.source.root) => self.copy_file(&real, to),
            _ => Ok(()),
        }
    }

    /// Whether a path of the host has the same name in the sandbox.
    fn shown(&self, place: &Path) -> bool {
        let left_out = ["usr/local", "usr/src"].iter().any(|folder| place.starts_with(folder));
        place.starts_with("usr") && (self.source.with_local || !left_out)
    }

    fn copy_file(&self, from: &Path, to: &Path) -> Result<(), TemplateError> {
        let Ok(metadata) = std::fs::metadata(from) else { return Ok(()) };
        let reachable = from.ancestors().skip(1).take_while(|folder| *folder != self.source.root);
        let public = readable(&metadata, 0o004)
            && reachable.into_iter().all(|f| std::fs::metadata(f).is_ok_and(|m| readable(&m, 0o001)));
        if !metadata.is_file() || !public || metadata.len() > FILE_MAX {
            return Ok(());
        }
        let content = std::fs::read(from).map_err(TemplateError::io("read", from))?;
        // A file that all may read can still be private: a private key is never copied, wherever it is.
        if content.windows(KEY.len()).any(|window| window == KEY) {
            return Ok(());
        }
        skeleton::file(to, &content, 0o644 | (metadata.permissions().mode() & 0o111))
    }
}

const KEY: &[u8] = b"PRIVATE KEY-----";

fn readable(metadata: &std::fs::Metadata, bits: u32) -> bool {
    metadata.permissions().mode() & bits == bits
}

/// A path from the root, without `..` and without the leading slash.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::Prefix(_) => out = PathBuf::new(),
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            Component::Normal(name) => out.push(name),
        }
    }
    out
}
