//! The template `busybox`: one static program under a few hundred names. It has two megabytes and is made quickly; it
//! is meant for trials and for tests of the kernel side.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::TemplateError;
use crate::host::{etc, hash_file, skeleton};
use crate::manifest::{TemplateKind, TemplateManifest};
use crate::tool::Tool;

pub(crate) const NAME: &str = "busybox";

const BUSYBOX: Tool =
    Tool { name: "busybox", package: "busybox-static", template: NAME, limit: Duration::from_secs(10) };

/// Where Debian's package installs the program.
const PLACES: &[&str] = &["/usr/bin/busybox", "/bin/busybox"];

/// Fills `folder` with root and manifest.
pub(crate) fn build(folder: &Path) -> Result<(), TemplateError> {
    let program =
        PLACES.iter().map(PathBuf::from).find(|path| path.is_file()).ok_or_else(|| BUSYBOX.missing())?;
    let content = std::fs::read(&program).map_err(TemplateError::io("read", &program))?;
    if !is_static(&content) {
        return Err(TemplateError::NotStatic { path: program });
    }
    let rootfs = folder.join("rootfs");
    skeleton::folders(&rootfs)?;
    for name in ["bin", "sbin", "usr/bin", "usr/sbin"] {
        skeleton::folder(&rootfs.join(name), 0o755, skeleton::FolderOwner::Root)?;
    }
    skeleton::file(&rootfs.join("bin/busybox"), &content, 0o755)?;
    for applet in applets(&program)? {
        skeleton::link(Path::new("/bin/busybox"), &rootfs.join(applet))?;
    }
    etc::own(&rootfs.join("etc"))?;
    // The template has no bash.
    let passwd = etc::PASSWD.replace("/bin/bash", "/bin/sh");
    skeleton::file(&rootfs.join("etc/passwd"), passwd.as_bytes(), 0o644)?;

    let digest = hash_file(&program).map_err(TemplateError::io("read", &program))?;
    TemplateManifest::new(NAME, TemplateKind::Rootfs, digest).write(folder)
}

/// The paths of all applets except the program itself.
fn applets(program: &Path) -> Result<Vec<String>, TemplateError> {
    let output = BUSYBOX.output(Command::new(program).arg("--list-full"))?;
    let list = String::from_utf8_lossy(&output);
    let known = |path: &&str| {
        ["bin/", "sbin/", "usr/bin/", "usr/sbin/"]
            .iter()
            .any(|folder| path.strip_prefix(folder).is_some_and(is_plain))
    };
    Ok(list.lines().filter(known).filter(|path| *path != "bin/busybox").map(str::to_owned).collect())
}

/// `[` and `[[` are applets too; a separator or a name with a leading dot is not.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

/// Whether a 64-bit ELF program has no interpreter. Anything else counts as dynamic.
fn is_static(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let u16_at = |at: usize| elf.get(at..at + 2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let u32_at = |at: usize| elf.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let (Some(b"\x7fELF\x02\x01"), Some(table), Some(size), Some(count)) =
        (elf.get(..6), u32_at(32), u16_at(54), u16_at(56))
    else {
        return false;
    };
    let kinds: Vec<Option<u32>> = (0..count).map(|row| u32_at(table as usize + row * size)).collect();
    !kinds.is_empty() && kinds.iter().all(|kind| kind.is_some_and(|kind| kind != INTERPRETER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_an_interpreter_or_a_broken_header_is_not_static() {
        let shell = std::fs::read("/bin/sh").expect("every Linux has a shell");
        assert!(!is_static(&shell), "the shell of Debian is dynamic");
        assert!(!is_static(b""));
        assert!(!is_static(b"\x7fELF\x02\x01"));
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(&shell[..70]), "a truncated table does not count as static");
    }
}
