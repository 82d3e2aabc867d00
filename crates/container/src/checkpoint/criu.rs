//! CRIU: where it is, and what it is told. Flags are those that a sandbox of ours needs, tried on exactly such sandboxes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::manifest::CheckpointManifest;
use crate::launcher::protocol::{FIRST_HANDED, is_mount_part};
use crate::launcher::{LOG, RESTORE, WORK};

/// Older ones cannot read current kernels' time pages, or refuse every TCP socket.
const LEAST: (u32, u32) = (4, 2);
/// LIMIT: a deleted file that is still open goes into the images up to this size.
const GHOST_LIMIT: &str = "1G";
/// A CRIU that can be used.
#[derive(Debug, Clone)]
pub(crate) struct Criu {
    program: PathBuf,
    version: String,
    /// Loaded into it, see `crates/preload`.
    preload: PathBuf,
}

/// Looks for CRIU; answers its path and version, or why there is none.
///
/// `ATOLL_CRIU` names one. Else the one that `scripts/get-criu` fetched, else the system's.
pub(crate) fn find() -> Result<(PathBuf, String), String> {
    if let Some(named) = std::env::var_os("ATOLL_CRIU") {
        let named = PathBuf::from(named);
        return version(&named).map(|version| (named, version));
    }
    let mut why = "criu is not installed".to_owned();
    for program in fetched().into_iter().chain(installed()) {
        match version(&program) {
            Ok(version) => return Ok((program, version)),
            Err(cause) => why = cause,
        }
    }
    Err(why)
}

/// Those in the cache, the newest first.
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
        return Err(format!("criu {number} is too old, {}.{} is needed", LEAST.0, LEAST.1));
    }
    Ok(number.to_owned())
}

/// What a dump is about.
#[derive(Debug)]
pub(crate) struct DumpAsk<'a> {
    pub(crate) pid: i32,
    pub(crate) first_id: u32,
    /// Mounts from outside: where they are, and which part of ours they are.
    pub(crate) outside: &'a [(String, String)],
    /// Where watched files are looked for: an overlay's file handles cannot be opened.
    pub(crate) watched: &'a [String],
    /// Its cgroup hierarchies of v1, as the kernel names them; none on v2.
    pub(crate) hierarchies: &'a [String],
}

/// What a restore is about.
#[derive(Debug)]
pub(crate) struct RestoreAsk<'a> {
    pub(crate) manifest: &'a CheckpointManifest,
    pub(crate) first_id: u32,
    /// The new cgroup of each hierarchy, as `controller` and path.
    pub(crate) cgroups: &'a [(String, String)],
}

impl Criu {
    /// Finds one and what goes with it; `Err` says why there is none.
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

    /// Handed descriptors: images, freezer.
    pub(crate) fn dump(&self, ask: &DumpAsk<'_>) -> (Vec<String>, Vec<(String, String)>) {
        let mut arguments: Vec<String> = vec!["dump".into(), "--tree".into(), ask.pid.to_string()];
        arguments.extend([
            format!("--images-dir={}", handed(0)),
            // It is frozen and stays so: they are caught first, thawed then, and frozen again before they are let go of.
            format!("--freeze-cgroup={}", handed(1)),
            "--leave-running".into(),
            "--root=/".into(),
            // The host may dial a frozen one: that it does not answer is no reason to refuse.
            "--skip-in-flight".into(),
            format!("--ghost-limit={GHOST_LIMIT}"),
            "--force-irmap".into(),
        ]);
        arguments.extend(ask.watched.iter().map(|path| format!("--irmap-scan-path={path}")));
        arguments.extend(common());
        // In all others it sits where we do, and CRIU would write down every cgroup of the machine, to make them again.
        arguments.extend(ask.hierarchies.iter().map(|name| format!("--cgroup-dump-controller={name}")));
        for (point, part) in ask.outside {
            arguments.extend(["--external".into(), format!("mnt[{point}]:{}", key(point, part))]);
        }
        let mut environment = self.environment(ask.first_id);
        environment.push(("ATOLL_CRIU_ROOT".into(), format!("/proc/{}/root", ask.pid)));
        (arguments, environment)
    }

    /// Handed descriptors: none that it needs.
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

/// What both directions must be told alike.
fn common() -> Vec<String> {
    let verbosity = std::env::var("ATOLL_CRIU_VERBOSITY").unwrap_or_else(|_| "2".into());
    vec![
        format!("-v{verbosity}"),
        format!("--work-dir={WORK}"),
        format!("--log-file={LOG}"),
        "--manage-cgroups=soft".into(),
        // Its network is made anew by the router.
        "--empty-ns=net".into(),
        // All of its processes stand still, so nothing inside sends, and connections to others end with the restore anyway. A
        // lock of its own costs 60 ms each way.
        "--network-lock=skip".into(),
        "--tcp-established".into(),
        "--file-locks".into(),
    ]
}

fn handed(index: i32) -> String {
    format!("/proc/self/fd/{}", FIRST_HANDED + index)
}

/// The name of a mount point inside the images. Parts that stand for many have one of their points each; a volume's point is
/// anybody's choice, so its part is its name.
fn key(point: &str, part: &str) -> String {
    if is_mount_part(part) { part.to_owned() } else { point.replace('/', "_") }
}
