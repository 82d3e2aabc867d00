//! Volumes, and their mounts in sandboxes.

use serde::{Deserialize, Serialize};

use crate::{BadSpec, NodeName, TenantId, Timestamp, VolumeId};

/// A volume: one row of `volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    pub id: VolumeId,
    pub tenant: TenantId,
    /// The node that has its files.
    #[serde(default)]
    pub node: NodeName,
    /// Unique among the tenant's volumes.
    pub name: String,
    /// The provider that keeps its files; sandboxes of others cannot mount it.
    pub provider: String,
    /// The size limit; `None`: a folder of the host, which Atoll does not limit.
    pub size_mib: Option<u32>,
    /// The folder of the host, if the volume is one.
    pub folder: Option<String>,
    /// Whether writing is refused, whatever a mount says.
    pub read_only: bool,
    /// The volume that it was copied from.
    pub parent: Option<VolumeId>,
    pub state: VolumeState,
    /// When it was requested.
    pub created_at: Timestamp,
}

/// The state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// It is recorded, and its files are being made.
    Making,
    /// It can be mounted.
    Ready,
    /// Its files are being removed.
    Deleting,
}

/// A requested mount of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountAsk {
    /// By id or name.
    pub volume: String,
    /// The mount point.
    pub path: String,
    /// Mount only this folder of it; made when missing.
    #[serde(default)]
    pub sub_path: Option<String>,
    /// Refuse writing.
    #[serde(default)]
    pub read_only: bool,
}

/// A mount of a volume in a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub volume: VolumeId,
    /// The mount point; absolute and without `.` or `..`.
    pub path: String,
    /// Only this folder of the volume; relative and without `.` or `..`.
    pub sub_path: Option<String>,
    /// Refuse writing.
    pub read_only: bool,
}

/// LIMIT: each costs a mount at every boot.
pub const MOUNTS_MAX: usize = 16;
const PATH_MAX: usize = 1_024;
/// Paths that the engine mounts itself and that no mount may cover.
const RESERVED: [&str; 5] = ["/proc", "/sys", "/dev", "/.atoll", "/run/atoll"];
/// Folders that are needed to start: mounts inside them are allowed, mounts over a whole one are not.
const WHOLE: [&str; 6] = ["/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// Refuses mounts that hide each other, that cover paths of the engine, or that are not paths.
pub fn check_mounts(mounts: &[MountAsk]) -> Result<(), BadSpec> {
    let bad = |why: String| Err(BadSpec::Text { field: "mounts", why });
    if mounts.len() > MOUNTS_MAX {
        return bad(format!("has more than {MOUNTS_MAX} entries"));
    }
    for (at, mount) in mounts.iter().enumerate() {
        let path = &mount.path;
        let is_clean = path.len() <= PATH_MAX && path.strip_prefix('/').is_some_and(is_clean_relative);
        if !is_clean {
            return bad(format!("has {path:?}, which is not a normalized absolute path below /"));
        }
        if RESERVED.iter().any(|taken| is_within(path, taken)) {
            return bad(format!("has {path:?}, which Atoll reserves"));
        }
        if WHOLE.contains(&path.as_str()) {
            return bad(format!("has {path:?}, which a sandbox needs to start: mount at a folder in it"));
        }
        if let Some(other) =
            mounts[..at].iter().find(|other| is_within(path, &other.path) || is_within(&other.path, path))
        {
            return bad(format!(
                "has {path:?} and {:?}, but a mount cannot be inside another one",
                other.path
            ));
        }
        if mount.sub_path.as_deref().is_some_and(|sub| sub.len() > PATH_MAX || !is_clean_relative(sub)) {
            return bad(format!(
                "has the sub_path {:?}, which is not a normalized relative path",
                mount.sub_path
            ));
        }
    }
    Ok(())
}

fn is_clean_relative(path: &str) -> bool {
    !path.is_empty()
        && !path.chars().any(char::is_control)
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn is_within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str) -> MountAsk {
        MountAsk { volume: "data".into(), path: path.into(), sub_path: None, read_only: false }
    }

    #[test]
    fn clean_places_are_taken_and_others_refused() {
        for good in ["/data", "/home/user/x", "/devices", "/proc2", "/etc/app", "/usr/local", "/tmp", "/var"]
        {
            assert_eq!(check_mounts(&[at(good)]), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/",
            "data",
            "/a/../b",
            "/a//b",
            "/a/",
            "/./a",
            "/proc",
            "/proc/self",
            "/sys/fs/cgroup",
            "/dev",
            "/.atoll/agent",
            "/a\nb",
            "/etc",
            "/usr",
            "/bin",
            "/lib64",
        ] {
            assert!(check_mounts(&[at(bad)]).is_err(), "{bad:?}");
        }
        for bad in ["", "/x", "..", "a/../b", "a/", "./a"] {
            let mount = MountAsk { sub_path: Some(bad.into()), ..at("/data") };
            assert!(check_mounts(&[mount]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn places_that_hide_each_other_are_refused() {
        assert!(check_mounts(&[at("/a"), at("/a")]).is_err());
        assert!(check_mounts(&[at("/a/b"), at("/a")]).is_err());
        assert!(check_mounts(&[at("/a"), at("/a/b/c")]).is_err());
        assert_eq!(check_mounts(&[at("/a"), at("/ab")]), Ok(()));
        let many: Vec<MountAsk> = (0..=MOUNTS_MAX).map(|n| at(&format!("/m{n}"))).collect();
        assert!(check_mounts(&many).is_err());
    }
}
