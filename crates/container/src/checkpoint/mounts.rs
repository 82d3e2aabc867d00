//! Finds the mounts of a sandbox that come from outside, which a restore has to provide again.

use std::io;

use crate::launcher::protocol::BOOT_PART;

/// A file of the sandbox is mounted over it.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The boot id that the processes of a sandbox read; `None`: the machine's.
pub(crate) fn boot_id(pid: i32, outside: &[(String, String)]) -> io::Result<Option<String>> {
    if !outside.iter().any(|(_, part)| part == BOOT_PART) {
        return Ok(None);
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/root{BOOT_ID}"))?;
    Ok(Some(text.trim_end().to_owned()))
}

/// The mount points in a process's mount namespace that come from outside, each with its part of the launcher protocol,
/// and the name of the agent's folder.
pub(crate) fn outside_mounts(pid: i32) -> io::Result<(Vec<(String, String)>, String)> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))?).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "the agent's folder in the sandbox is missing")
    })
}

fn parse(text: &str) -> Option<(Vec<(String, String)>, String)> {
    let mut agent = None;
    let mut outside = Vec::new();
    for line in text.lines() {
        let Some((head, tail)) = line.split_once(" - ") else { continue };
        let fields: Vec<&str> = head.split(' ').collect();
        let (Some(root), Some(point), Some(kind)) = (fields.get(3), fields.get(4), tail.split(' ').next())
        else {
            continue;
        };
        let part = match (*point, kind) {
            ("/.atoll", _) => {
                agent = root.rsplit('/').next().map(str::to_owned);
                "agent"
            }
            ("/dev", _) => "dev",
            ("/usr", "overlay") => "usr",
            (BOOT_ID, "tmpfs") => BOOT_PART,
            (point, "tmpfs") if point.starts_with("/proc/") || point.starts_with("/sys/") => {
                if root.ends_with("/null") { "dev/null" } else { "empty" }
            }
            _ => continue,
        };
        outside.push(((*point).to_owned(), part.to_owned()));
    }
    Some((outside, agent?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn mounts_of_ours_are_told_from_the_sandboxs_own() {
        let text = "1 0 0:1 / / rw - overlay none rw\n2 1 0:2 / /proc rw - proc proc rw\n\
            3 2 0:9 /dev/null /proc/kcore ro - tmpfs tmpfs rw\n4 2 0:9 /empty /proc/scsi ro - tmpfs tmpfs rw\n\
            5 1 0:9 /dev /dev ro - tmpfs tmpfs rw\n9 2 0:11 /268435456 /proc/sys/kernel/random/boot_id ro - tmpfs tmpfs rw\n6 5 0:10 / /dev/shm rw - tmpfs none rw\n\
            7 1 8:1 /data/agent/abc /.atoll ro - ext4 /dev/sda rw\n8 1 0:3 / /usr rw - overlay none rw\n";
        let (outside, agent) = parse(text).unwrap();
        let of = |point: &str| outside.iter().find(|(at, _)| at == point).map(|(_, part)| part.as_str());
        assert_eq!(agent, "abc");
        assert_eq!(
            (of("/proc/kcore"), of("/proc/scsi"), of("/dev")),
            (Some("dev/null"), Some("empty"), Some("dev"))
        );
        assert_eq!((of("/usr"), of("/dev/shm"), of("/")), (Some("usr"), None, None));
        assert_eq!(of(BOOT_ID), Some(BOOT_PART));
        assert!(parse("").is_none());
    }

    #[test]
    fn any_mounts_of_a_sandbox_are_read_or_refused() {
        atoll_robustness::check("sandbox_mounts", |bytes| {
            if let Some((outside, agent)) = parse(&String::from_utf8_lossy(bytes)) {
                assert!(!agent.contains('/') && outside.iter().any(|(point, _)| point == "/.atoll"));
            }
        });
    }
}
