//! The source of time: wall time for people, boot time for decisions. Tests provide their own.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_model::Timestamp;

/// Returns the time. The deadline queue reads it again after every sleep, so a clock may jump.
pub trait Clock: Send + Sync + 'static {
    /// Now, on both clocks.
    fn now(&self) -> Timestamp;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    boot_id: String,
}

impl SystemClock {
    /// Reads the boot id.
    pub fn open() -> std::io::Result<Arc<Self>> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Arc::new(Self { boot_id: boot_id.trim().to_owned() }))
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Timestamp {
            wall_ms: millis(wall),
            boot_id: self.boot_id.clone(),
            boot_ms: boot.tv_sec.saturating_mul(1_000).saturating_add(boot.tv_nsec / 1_000_000),
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A clock on tokio's time, for tests that pause it; its wall clock can be made to jump.
#[derive(Debug)]
pub struct TestClock {
    start: tokio::time::Instant,
    boot_id: String,
    jump_ms: std::sync::atomic::AtomicI64,
}

impl TestClock {
    /// Starts at a fixed time in 2026.
    #[must_use]
    pub fn new(boot_id: &str) -> Arc<Self> {
        Arc::new(Self { start: tokio::time::Instant::now(), boot_id: boot_id.to_owned(), jump_ms: 0.into() })
    }

    /// Moves the wall clock only.
    pub fn jump_wall_ms(&self, ms: i64) {
        self.jump_ms.fetch_add(ms, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let since = millis(self.start.elapsed());
        Timestamp {
            wall_ms: 1_780_000_000_000 + since + self.jump_ms.load(std::sync::atomic::Ordering::SeqCst),
            boot_id: self.boot_id.clone(),
            boot_ms: 1_000_000 + since,
        }
    }
}
