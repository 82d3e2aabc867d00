//! The log of one build: JSON lines in a file, limited in size, readable while they are written.
//!
//! A follower reads the file and waits for the number of the newest line, so a slow reader has no cost, and the log of
//! an ended build is read in the same way. On a full disk lines are lost, but the build continues.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_disk::{Purpose, Reserve, SpaceWriter};
use atoll_model::{BuildLevel, BuildLine};
use futures::stream::{BoxStream, StreamExt};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::watch;

use crate::Clock;

/// LIMIT: bytes of output of all steps of a build.
const LOG_BYTES: u64 = 32 << 20;
/// LIMIT: bytes of the builder's own lines beyond that, so that its final lines always fit.
const LAST_BYTES: u64 = 4 << 20;
/// LIMIT: a line is cut before it is written here; with its escapes it stays below this.
const LINE_BYTES: u64 = 64 << 10;

/// The log file in the folder of a build.
const FILE: &str = "log.jsonl";

/// Writes lines. Shared by the steps of one build.
pub(super) struct Log {
    clock: Arc<dyn Clock>,
    state: Mutex<BuildLogState>,
    head: watch::Sender<u64>,
}

struct BuildLogState {
    file: Option<File>,
    space: SpaceWriter,
    bytes: u64,
    seq: u64,
}

impl Log {
    /// Makes the folder of a build with an empty log in it.
    pub(super) fn create(
        folder: &Path,
        clock: Arc<dyn Clock>,
        disk: &Arc<Reserve>,
    ) -> std::io::Result<Arc<Self>> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(FILE);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        let space = disk.writer(folder, Purpose::Records)?;
        let state = Mutex::new(BuildLogState { file: Some(file), space, bytes: 0, seq: 0 });
        Ok(Arc::new(Self { clock, state, head: watch::Sender::new(0) }))
    }

    /// Adds a line; a text from a step must be cleaned already.
    pub(super) fn say(&self, level: BuildLevel, step: u32, text: impl Into<String>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let at_ms = self.clock.now().wall_ms;
        let line = BuildLine { seq: state.seq + 1, at_ms, level, step, text: text.into() };
        let Ok(mut bytes) = serde_json::to_vec(&line) else { return };
        bytes.push(b'\n');
        let room = match level {
            BuildLevel::Stdout | BuildLevel::Stderr => LOG_BYTES,
            BuildLevel::Info | BuildLevel::Warn | BuildLevel::Error => LOG_BYTES + LAST_BYTES,
        };
        if state.bytes + bytes.len() as u64 > room {
            return;
        }
        // A line is left out if the reserve has no room; later ones may be written again.
        if state.space.take(bytes.len() as u64).is_err() {
            return;
        }
        let Some(file) = state.file.as_mut() else { return };
        if let Err(error) = file.write_all(&bytes) {
            tracing::error!(%error, "the log of a build cannot be written and ends here");
            state.file = None;
            return;
        }
        state.bytes += bytes.len() as u64;
        state.seq = line.seq;
        self.head.send_replace(line.seq);
    }

    pub(super) fn info(&self, step: u32, text: impl Into<String>) {
        self.say(BuildLevel::Info, step, text);
    }

    /// The number of the newest line; it closes with the build.
    pub(super) fn head(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }
}

/// Lines from number `from` on; with a head also new lines, until the writer is dropped.
pub(super) fn read(
    folder: &Path,
    from: u64,
    head: Option<watch::Receiver<u64>>,
) -> BoxStream<'static, BuildLine> {
    let reader = BuildLogReader { path: folder.join(FILE), file: None, partial: Vec::new(), from, head };
    futures::stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) }).boxed()
}

struct BuildLogReader {
    path: PathBuf,
    file: Option<BufReader<tokio::fs::File>>,
    /// The beginning of a line that is not completely written yet.
    partial: Vec<u8>,
    from: u64,
    head: Option<watch::Receiver<u64>>,
}

impl BuildLogReader {
    async fn next(&mut self) -> Option<BuildLine> {
        loop {
            // This is before the read: a line that is written meanwhile changes the head again.
            let ended = match &mut self.head {
                Some(head) => {
                    head.mark_unchanged();
                    head.has_changed().is_err()
                }
                None => true,
            };
            if let Some(line) = self.line().await {
                if line.seq >= self.from {
                    return Some(line);
                }
                continue;
            }
            if ended {
                return None;
            }
            if let Some(head) = &mut self.head {
                // An error means that the writer was dropped: its last lines are read once more.
                let _ = head.changed().await;
            }
        }
    }

    /// The next complete line; a torn one is skipped.
    async fn line(&mut self) -> Option<BuildLine> {
        if self.file.is_none() {
            self.file = Some(BufReader::new(tokio::fs::File::open(&self.path).await.ok()?));
        }
        let file = self.file.as_mut()?;
        loop {
            let room = LINE_BYTES.saturating_sub(self.partial.len() as u64);
            let read = file.take(room).read_until(b'\n', &mut self.partial).await.ok()?;
            if self.partial.last() == Some(&b'\n') {
                let line = serde_json::from_slice(&self.partial);
                self.partial.clear();
                match line {
                    Ok(line) => return Some(line),
                    Err(_) => continue,
                }
            }
            if self.partial.len() as u64 >= LINE_BYTES {
                self.partial.clear();
                continue;
            }
            if read == 0 {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestClock;

    fn log(folder: &Path) -> Arc<Log> {
        Log::create(folder, TestClock::new("boot"), &Reserve::new(0)).expect("a log")
    }

    #[tokio::test]
    async fn lines_are_read_from_where_the_reader_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = log(folder.path());
        for n in 1..=5 {
            log.info(1, format!("line {n}"));
        }
        let texts: Vec<String> = read(folder.path(), 4, None).map(|line| line.text).collect().await;
        assert_eq!(texts, ["line 4", "line 5"]);
    }

    #[tokio::test]
    async fn who_follows_gets_every_line_once_and_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = log(folder.path());
        log.info(0, "before");
        let followed = read(folder.path(), 0, Some(log.head()));
        let reading = tokio::spawn(followed.map(|line| line.seq).collect::<Vec<u64>>());
        for n in 0..200 {
            log.say(BuildLevel::Stdout, 1, format!("{n}"));
            if n % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        drop(log);
        let seen = tokio::time::timeout(std::time::Duration::from_secs(60), reading).await;
        assert_eq!(seen.expect("an end").expect("no panic"), (1..=201).collect::<Vec<u64>>());
    }

    #[tokio::test]
    async fn a_log_is_bounded_and_a_torn_line_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = log(folder.path());
        log.info(0, "first");
        {
            let path = folder.path().join(FILE);
            let mut file = OpenOptions::new().append(true).open(path).expect("open");
            file.write_all(b"{\"seq\":9,\"at\n").expect("write");
        }
        let long = "x".repeat(50 << 10);
        for _ in 0..1_000 {
            log.say(BuildLevel::Stdout, 1, long.clone());
        }
        log.say(BuildLevel::Error, 1, "last words");
        let bytes = std::fs::metadata(folder.path().join(FILE)).expect("there").len();
        assert!(bytes <= LOG_BYTES + 200, "{bytes}");
        let lines: Vec<BuildLine> = read(folder.path(), 0, None).collect().await;
        assert_eq!((lines[0].text.as_str(), lines[1].seq), ("first", 2));
        assert_eq!(lines.last().map(|line| line.text.as_str()), Some("last words"));
    }
}
