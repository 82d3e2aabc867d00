//! Finds CRIU and builds its arguments. The flags are the ones that a sandbox needs; they were tested with real
//! sandboxes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::manifest::CheckpointManifest;
use crate::launcher::protocol::{FIRST_HANDED, is_mount_part};
use crate::launcher::{LOG, RESTORE, WORK};

/// Older versions cannot read the time pages of current kernels, or refuse every TCP socket.
const LEAST: (u32, u32) = (4, 2);
/// LIMIT: a deleted file that is still open is saved in the images up to this size.
const GHOST_LIMIT: &str = "1G";
/// A usable CRIU.
#[derive(Debug, Clone)]
pub(crate) struct Criu {
    program: PathBuf,
    version: String,
    /// The library that is loaded into CRIU, see `crates/preload`.
    preload: PathBuf,
}

/// What to do where no CRIU can be used; `docs/tour.md` says the same.
pub(crate) const REMEDY: &str = "install CRIU 4.2 or later with scripts/get-criu, as `make run` does, or put one into PATH or ATOLL_CRIU, \
                                 and restart the server";

/// Finds CRIU; returns its path and version, or why none can be used.
///
/// `ATOLL_CRIU` names a program. Without it, the program of the package is used, else the one that `scripts/get-criu`
/// fetched, else the system's.
pub(crate) fn find() -> Result<(PathBuf, String), String> {
    if let Some(named) = std::env::var_os("ATOLL_CRIU") {
        let named = PathBuf::from(named);
        return version(&named).map(|version| (named, version));
    }
    let mut why = "CRIU is not installed".to_owned();
    let own = std::env::current_exe().ok();
    let packaged = own.as_deref().and_then(packaged);
    for program in packaged.into_iter().chain(fetched()).chain(installed()) {
        match version(&program) {
            Ok(version) => return Ok((program, version)),
            Err(cause) => why = cause,
        }
    }
    Err(why)
}

/// The program that a package of Atoll put beside the binary: `PREFIX/lib/atoll/criu/criu` for `PREFIX/bin/atoll`.
fn packaged(binary: &Path) -> Option<PathBuf> {
    let prefix = binary.parent()?.parent()?;
    Some(prefix.join("lib/atoll/criu/criu")).filter(|program| program.is_file())
}

/// The programs in the cache, the newest first.
fn fetched() -> Vec<PathBuf> {
    let cache = std::env::var_os("ATOLL_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/atoll")));
    let Some(cache) = cache else { return Vec::new() };
    let entries = std::fs::read_dir(cache.join("criu")).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path().join("criu")).filter(|program| program.is_file()).collect();
    found.sort();
    found.reverse();
    found
}

fn installed() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&path)
        .map(|folder| folder.join("criu"))
        .filter(|program| program.is_file())
        .collect()
}

fn version(program: &Path) -> Result<String, String> {
    let said = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| format!("{}: {cause}", program.display()))?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let number = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let number = number.ok_or_else(|| format!("{} does not report its version", program.display()))?;
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < LEAST {
        return Err(format!("CRIU {number} is too old, {}.{} is needed", LEAST.0, LEAST.1));
    }
    Ok(number.to_owned())
}

/// The subject of a dump.
#[derive(Debug)]
pub(crate) struct DumpAsk<'a> {
    pub(crate) pid: i32,
    pub(crate) first_id: u32,
    /// Mounts from outside the sandbox: the mount point, and the part of the launcher protocol that it belongs to.
    pub(crate) outside: &'a [(String, String)],
    /// Folders in which CRIU searches for watched files, because file handles of an overlay cannot be opened.
    pub(crate) watched: &'a [String],
    /// The v1 cgroup hierarchies of the sandbox, as the kernel names them; empty on v2.
    pub(crate) hierarchies: &'a [String],
}

/// The subject of a restore.
#[derive(Debug)]
pub(crate) struct RestoreAsk<'a> {
    pub(crate) manifest: &'a CheckpointManifest,
    pub(crate) first_id: u32,
    /// The new cgroup in each hierarchy, as `controller` and path.
    pub(crate) cgroups: &'a [(String, String)],
}

impl Criu {
    /// Finds CRIU and writes its preload library; `Err` says why CRIU cannot be used.
    pub(crate) fn open(data: &Path) -> Result<Self, String> {
        let (program, version) = find()?;
        let program = program.canonicalize().map_err(|cause| cause.to_string())?;
        let preload = crate::agent_binary::criu_preload(data).map_err(|cause| cause.to_string())?;
        Ok(Self { program, version, preload })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Arguments and environment of a dump. Passed descriptors: images, freezer.
    pub(crate) fn dump(&self, ask: &DumpAsk<'_>) -> (Vec<String>, Vec<(String, String)>) {
        let mut arguments: Vec<String> = vec!["dump".into(), "--tree".into(), ask.pid.to_string()];
        arguments.extend([
            format!("--images-dir={}", handed(0)),
            // The cgroup is frozen before and after: CRIU stops the processes, thaws the cgroup, and freezes it again
            // before it detaches.
            format!("--freeze-cgroup={}", handed(1)),
            "--leave-running".into(),
            "--root=/".into(),
            // The host may connect to a frozen sandbox: a connection that is not accepted yet is no reason to refuse.
            "--skip-in-flight".into(),
            format!("--ghost-limit={GHOST_LIMIT}"),
            "--force-irmap".into(),
        ]);
        arguments.extend(ask.watched.iter().map(|path| format!("--irmap-scan-path={path}")));
        arguments.extend(common());
        // In all other hierarchies the sandbox is in the server's cgroup, and CRIU would save every cgroup of the
        // machine to make it again.
        arguments.extend(ask.hierarchies.iter().map(|name| format!("--cgroup-dump-controller={name}")));
        for (point, part) in ask.outside {
            arguments.extend(["--external".into(), format!("mnt[{point}]:{}", key(point, part))]);
        }
        let mut environment = self.environment(ask.first_id);
        environment.push(("ATOLL_CRIU_ROOT".into(), format!("/proc/{}/root", ask.pid)));
        (arguments, environment)
    }

    /// Arguments and environment of a restore. It needs no passed descriptors.
    pub(crate) fn restore(&self, ask: &RestoreAsk<'_>) -> (Vec<String>, Vec<(String, String)>) {
        let mut arguments: Vec<String> = vec![
            "restore".into(),
            "--restore-detached".into(),
            format!("--images-dir={RESTORE}/images"),
            format!("--action-script={RESTORE}/action"),
            format!("--root={RESTORE}/root"),
        ];
        arguments.extend(common());
        for (controller, path) in ask.cgroups {
            let of = if controller.is_empty() { String::new() } else { format!("{controller}:") };
            arguments.push(format!("--cgroup-root={of}{path}"));
        }
        for (point, part) in &ask.manifest.outside {
            arguments.extend(["--external".into(), format!("mnt[{}]:{RESTORE}/{part}", key(point, part))]);
        }
        (arguments, self.environment(ask.first_id))
    }

    fn environment(&self, owner: u32) -> Vec<(String, String)> {
        vec![
            ("PATH".into(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
            ("LD_PRELOAD".into(), self.preload.display().to_string()),
            ("ATOLL_CRIU_OWNER".into(), owner.to_string()),
        ]
    }
}

/// Arguments that a dump and a restore must have in common.
fn common() -> Vec<String> {
    let verbosity = std::env::var("ATOLL_CRIU_VERBOSITY").unwrap_or_else(|_| "2".into());
    vec![
        format!("-v{verbosity}"),
        format!("--work-dir={WORK}"),
        format!("--log-file={LOG}"),
        "--manage-cgroups=soft".into(),
        // The router makes a new network for the sandbox.
        "--empty-ns=net".into(),
        // All processes are frozen, so the sandbox sends nothing, and connections to the outside end with the restore
        // anyway. CRIU's own lock costs 60 ms each way.
        "--network-lock=skip".into(),
        "--tcp-established".into(),
        "--file-locks".into(),
    ]
}

fn handed(index: i32) -> String {
    format!("/proc/self/fd/{}", FIRST_HANDED + index)
}

/// The name of a mount point in the images. A part that stands for several mounts uses the mount point as the name. The
/// mount point of a volume is chosen by the caller, so its name is the part.
fn key(point: &str, part: &str) -> String {
    if is_mount_part(part) { part.to_owned() } else { point.replace('/', "_") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_criu_of_a_package_is_found_below_the_prefix_of_the_binary() {
        let prefix = tempfile::tempdir().expect("temporary folder");
        let binary = prefix.path().join("bin/atoll");
        assert_eq!(packaged(&binary), None);
        let program = prefix.path().join("lib/atoll/criu/criu");
        std::fs::create_dir_all(program.parent().expect("a folder")).expect("writable");
        std::fs::write(&program, "").expect("writable");
        assert_eq!(packaged(&binary), Some(program));
        assert_eq!(packaged(Path::new("atoll")), None);
    }
}
