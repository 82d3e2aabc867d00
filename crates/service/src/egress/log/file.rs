//! The files of one log: two generations of lines, and what a learned policy needs from removed ones. Everything here
//! blocks. A line that was torn by a crash is skipped; on a full disk lines are lost, but the sandbox continues.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_disk::{Purpose, Reserve};
use atoll_model::policy::egress::learn::ObservedTargets;
use atoll_model::{EgressRecord, SandboxId};

/// LIMIT: bytes of each of the two generations: some ten thousand lines.
const GENERATION_BYTES: u64 = 4 << 20;
/// LIMIT: names, rules and addresses are short; a longer line was not written by Atoll.
const LINE_BYTES: usize = 4 << 10;

pub(super) struct LogFile {
    now: PathBuf,
    before: PathBuf,
    seen: PathBuf,
    generation_bytes: u64,
    /// Bytes in the newest generation; `None` if it was not read yet.
    size: Option<u64>,
    failing: bool,
    disk: Arc<Reserve>,
}

/// Makes the folder of all logs if it does not exist.
pub(super) fn make_folder(dir: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Sandboxes that have files here.
pub(super) fn found(dir: &Path) -> Vec<SandboxId> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut ids: Vec<SandboxId> = names.filter_map(|name| name.split('.').next()?.parse().ok()).collect();
    ids.sort();
    ids.dedup();
    ids
}

impl LogFile {
    pub(super) fn new(dir: &Path, sandbox: &SandboxId, disk: &Arc<Reserve>) -> Self {
        let file = |end: &str| dir.join(format!("{sandbox}.{end}"));
        Self {
            now: file("jsonl"),
            before: file("1.jsonl"),
            seen: file("seen.json"),
            generation_bytes: GENERATION_BYTES,
            size: None,
            failing: false,
            disk: Arc::clone(disk),
        }
    }

    pub(super) fn append(&mut self, records: &[EgressRecord]) {
        let mut lines = Vec::with_capacity(records.len() * 200);
        for record in records {
            match serde_json::to_vec(record) {
                Ok(line) if line.len() < LINE_BYTES => {
                    lines.extend_from_slice(&line);
                    lines.push(b'\n');
                }
                Ok(_) | Err(_) => {
                    tracing::warn!(what = ?record.what, "an egress record is too long to be kept")
                }
            }
        }
        match self.write(&lines) {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.size = None;
                // It is logged once: it may fail as long as the disk is full.
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(path = %self.now.display(), %error, "egress records cannot be written");
                }
            }
        }
    }

    fn write(&mut self, lines: &[u8]) -> std::io::Result<()> {
        let mut size = match self.size {
            Some(size) => size,
            None => self.mend()?,
        };
        let more = lines.len() as u64;
        if size > 0 && size + more > self.generation_bytes {
            self.turn()?;
            size = 0;
        }
        if let Some(dir) = self.now.parent() {
            self.disk.admit(dir, Purpose::Records, more)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.now)?;
        file.write_all(lines)?;
        self.size = Some(size + more);
        Ok(())
    }

    /// Reads the size of the file. A last line without an end was torn by a crash: it is ended, so that the next one is
    /// complete.
    fn mend(&self) -> std::io::Result<u64> {
        if let Some(dir) = self.now.parent() {
            make_folder(dir)?;
        }
        let mut file = match OpenOptions::new().read(true).append(true).open(&self.now) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        let size = file.seek(SeekFrom::End(0))?;
        if size == 0 {
            return Ok(0);
        }
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last == *b"\n" {
            return Ok(size);
        }
        file.write_all(b"\n")?;
        Ok(size + 1)
    }

    /// The newest generation becomes the older one; a summary of the removed one is kept.
    fn turn(&self) -> std::io::Result<()> {
        let mut seen = self.kept();
        let old = read(&self.before);
        records(&old).for_each(|record| seen.note(&record));
        if !old.is_empty() {
            let beside = self.seen.with_extension("new");
            let text = serde_json::to_vec(&seen).map_err(std::io::Error::other)?;
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
            file.write_all(&text)?;
            std::fs::rename(&beside, &self.seen)?;
        }
        std::fs::rename(&self.now, &self.before)
    }

    fn kept(&self) -> ObservedTargets {
        serde_json::from_slice(&read(&self.seen)).unwrap_or_default()
    }

    /// The newest matching records, at most `limit`, in order.
    pub(super) fn newest(&mut self, limit: usize, fits: impl Fn(&EgressRecord) -> bool) -> Vec<EgressRecord> {
        let mut found = Vec::new();
        for path in [&self.now, &self.before] {
            let text = read(path);
            let lines =
                text.rsplit(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
            found.extend(lines.filter(|record| fits(record)).take(limit - found.len()));
            if found.len() == limit {
                break;
            }
        }
        found.reverse();
        found
    }

    /// The reached targets, as far as they are known.
    pub(super) fn seen(&self) -> ObservedTargets {
        let mut seen = self.kept();
        for path in [&self.before, &self.now] {
            records(&read(path)).for_each(|record| seen.note(&record));
        }
        seen
    }

    pub(super) fn remove(&mut self) {
        for path in [&self.now, &self.before, &self.seen, &self.seen.with_extension("new")] {
            match std::fs::remove_file(path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "an egress log could not be removed")
                }
            }
        }
        self.size = None;
    }
}

/// A missing or unreadable file counts as empty.
fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_default()
}

fn records(text: &[u8]) -> impl Iterator<Item = EgressRecord> + '_ {
    text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use atoll_model::{EgressVerdict, EgressWhat, NetworkLimits};

    use super::*;

    fn record(n: i64) -> EgressRecord {
        EgressRecord {
            at_ms: n,
            what: EgressWhat::Dns,
            verdict: EgressVerdict::Allowed,
            rule: "allow-all".to_owned(),
            name: Some(format!("h{n}.example.com")),
            // Without an answer a name is not learned.
            address: Some([203, 0, 113, 1].into()),
            port: None,
            protocol: None,
            sent: 0,
            received: 0,
        }
    }

    fn log(dir: &Path) -> LogFile {
        let id = SandboxId::from_entropy([7; 20]);
        LogFile { generation_bytes: 2_600, ..LogFile::new(dir, &id, &Reserve::new(0)) }
    }

    fn numbers(records: &[EgressRecord]) -> Vec<i64> {
        records.iter().map(|record| record.at_ms).collect()
    }

    #[test]
    fn it_is_bounded_and_the_newest_are_read_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir.path().join("egress"));
        for n in 0..60 {
            log.append(&[record(n)]);
        }
        assert_eq!(numbers(&log.newest(3, |_| true)), [57, 58, 59]);
        assert_eq!(numbers(&log.newest(2, |record| record.at_ms % 10 == 0)), [40, 50]);
        let all = log.newest(1_000, |_| true);
        assert!(all.len() < 40 && numbers(&all).windows(2).all(|pair| pair[1] == pair[0] + 1));
        let bytes: u64 = std::fs::read_dir(dir.path().join("egress"))
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|end| end == "jsonl"))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        assert!(bytes <= 5_200, "{bytes}");
        // A removed generation is still part of what is learned.
        assert_eq!(log.seen().policy(NetworkLimits::default()).allow_domains.len(), 60);
        assert_eq!(found(&dir.path().join("egress")).len(), 1);
        log.remove();
        assert_eq!(found(&dir.path().join("egress")).len(), 0);
    }

    #[test]
    fn a_torn_line_costs_itself_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = log(dir.path());
        first.append(&[record(1), record(2)]);
        let file = OpenOptions::new().write(true).open(&first.now).unwrap();
        file.set_len(file.metadata().unwrap().len() - 5).unwrap();
        let mut again = log(dir.path());
        assert_eq!(numbers(&again.newest(10, |_| true)), [1]);
        again.append(&[record(3)]);
        assert_eq!(numbers(&again.newest(10, |_| true)), [1, 3]);
    }
}
