//! The server as a systemd service: its unit, and whether this machine runs it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::failure::Failure;

/// The unit, for a program at [`PACKAGED`].
const UNIT: &str = include_str!("../../../../deploy/atoll.service");
/// Where packages put the program.
const PACKAGED: &str = "/usr/bin/atoll";
/// The name of the unit.
pub(crate) const NAME: &str = "atoll.service";
/// Where `atoll server install` puts the unit.
pub(crate) const UNIT_PATH: &str = "/etc/systemd/system/atoll.service";
/// Where units of administrators and packages are.
const UNIT_FOLDERS: [&str; 3] = ["/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system"];

/// The unit for a program at this path.
pub(crate) fn unit(program: &Path) -> String {
    UNIT.replace(&format!("ExecStart={PACKAGED} "), &format!("ExecStart={} ", program.display()))
}

/// Whether systemd is the init of this machine.
pub(crate) fn is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The installed unit, if this machine runs systemd.
pub(crate) fn installed() -> Option<PathBuf> {
    let units = UNIT_FOLDERS.iter().map(|folder| Path::new(folder).join(NAME));
    units.filter(|_| is_running()).find(|unit| unit.exists())
}

/// Runs `systemctl`.
pub(crate) fn systemctl(words: &[&str]) -> Result<(), Failure> {
    run(Command::new("systemctl").args(words), &format!("systemctl {}", words.join(" ")))
}

/// Runs a program of the machine; what it prints is shown.
pub(crate) fn run(command: &mut Command, line: &str) -> Result<(), Failure> {
    let failed = |why: String| Failure::new("failed", format!("`{line}` failed: {why}"));
    let status = command.status().map_err(|cause| failed(cause.to_string()))?;
    if status.success() {
        return Ok(());
    }
    Err(failed(status.to_string()).hint(format!("journalctl -u {NAME} -n 50 shows the log of the service")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(unit: &'a str, name: &str) -> Option<&'a str> {
        unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    /// What keeps sandboxes alive when the service is stopped or restarted, and lets the engine work.
    #[test]
    fn the_unit_ends_the_server_alone() {
        for (name, value) in [
            ("KillMode", "process"),
            ("Delegate", "yes"),
            ("OOMPolicy", "continue"),
            ("Type", "notify"),
            ("Restart", "on-failure"),
            ("TasksMax", "infinity"),
            ("RuntimeDirectory", "atoll"),
            ("StateDirectory", "atoll"),
            ("StateDirectoryMode", "0700"),
        ] {
            assert_eq!(line(UNIT, name), Some(value), "{name}");
        }
        assert!(
            line(UNIT, "LimitNOFILE").is_some_and(|limit| limit.parse::<u64>().is_ok_and(|n| n >= 65_536))
        );
        // These give the service mounts of its own, which would end with it, or filters that sandboxes inherit.
        let harmful = [
            "Private",
            "Protect",
            "ReadOnly",
            "Inaccessible",
            "Bind",
            "TemporaryFileSystem",
            "RootDirectory",
            "NoNewPrivileges",
            "Restrict",
            "SystemCall",
            "LockPersonality",
            "MemoryDeny",
            "DynamicUser",
            "MountFlags",
        ];
        let options = UNIT.lines().filter(|line| !line.starts_with('#'));
        let found: Vec<&str> =
            options.filter(|line| harmful.iter().any(|name| line.starts_with(name))).collect();
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn the_unit_starts_the_installed_program() {
        let unit = unit(Path::new("/opt/atoll/bin/atoll"));
        assert_eq!(
            line(&unit, "ExecStart"),
            Some("/opt/atoll/bin/atoll serve --config /etc/atoll/config.toml")
        );
    }
}
