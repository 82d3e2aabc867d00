//! Adds the sandbox's own name to its `/etc/hosts`, so that programs that look it up (sudo, java, databases) need no
//! DNS query.
//!
//! The file belongs to the sandbox and is untrusted: its size is limited, and links and pipes are left alone. After a
//! failure the name is just not found.

use std::fs::File;
use std::io::{self, Read, Write};

use rustix::fs::{FileType, Mode, OFlags};

use crate::files::open;

const PATH: &str = "/etc/hosts";
/// LIMIT: block lists have thousands of lines; a larger file is refused.
const FILE_MAX: u64 = 1 << 20;

/// Adds a line for `name` unless there is one.
pub(crate) fn add(name: &str) {
    // The error cannot be reported to a caller, and a full disk must not keep a sandbox from starting.
    let _ = add_to(PATH, name);
}

fn add_to(path: &str, name: &str) -> io::Result<()> {
    let fits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    if !fits {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let known = match regular(path) {
        Ok(file) => read(file)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let is_there = known.lines().any(|line| {
        let entry = line.split('#').next().unwrap_or_default();
        entry.split_ascii_whitespace().skip(1).any(|word| word == name)
    });
    if is_there {
        return Ok(());
    }
    let gap = if known.is_empty() || known.ends_with('\n') { "" } else { "\n" };
    // Renaming a new file takes 0.1 ms; opening the template's file for writing would copy it and wait for the disk,
    // 0.6 ms.
    let next = format!("{path}.atoll");
    let _ = std::fs::remove_file(&next);
    let written = create(&next)
        .and_then(|mut file| file.write_all(format!("{known}{gap}127.0.1.1\t{name}\n").as_bytes()))
        .and_then(|()| std::fs::rename(&next, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&next);
    }
    written
}

fn create(path: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    Ok(open(path.as_bytes(), flags, Mode::from_raw_mode(0o644))?.into())
}

fn regular(path: &str) -> io::Result<File> {
    // NONBLOCK: a pipe must not block PID 1.
    let file = open(path.as_bytes(), OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn read(file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn after(before: Option<&str>, name: &str) -> (bool, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        if let Some(text) = before {
            std::fs::write(&path, text).unwrap();
        }
        let is_ok = add_to(path.to_str().unwrap(), name).is_ok();
        (is_ok, std::fs::read_to_string(&path).unwrap_or_default())
    }

    #[test]
    fn the_own_name_is_added_once() {
        let known = "127.0.0.1\tlocalhost\n";
        assert_eq!(after(Some(known), "box"), (true, format!("{known}127.0.1.1\tbox\n")));
        assert_eq!(after(Some("127.0.0.1 a box # x"), "box"), (true, "127.0.0.1 a box # x".into()));
        assert_eq!(after(Some("1.1.1.1 a # box"), "box").1, "1.1.1.1 a # box\n127.0.1.1\tbox\n");
        assert_eq!(after(None, "box").1, "127.0.1.1\tbox\n");
    }

    #[test]
    fn odd_names_and_odd_files_are_left_alone() {
        assert_eq!(after(Some(""), "a\n6.6.6.6 bank"), (false, String::new()));
        let huge = "#".repeat(usize::try_from(FILE_MAX).unwrap() + 1);
        assert_eq!(after(Some(&huge), "box"), (false, huge));
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("hosts");
        std::os::unix::fs::symlink(folder.path().join("target"), &link).unwrap();
        assert!(add_to(link.to_str().unwrap(), "box").is_err());
        assert!(!folder.path().join("target").exists());
    }

    #[test]
    fn any_hosts_file_gets_the_name_once() {
        atoll_robustness::check("hosts_file", |bytes| {
            let (_, text) = after(Some(&String::from_utf8_lossy(bytes)), "box");
            assert_eq!(after(Some(&text), "box"), (true, text));
        });
    }
}
