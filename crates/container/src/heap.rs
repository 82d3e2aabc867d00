//! Returns memory that the allocator of the server keeps for later to the system.
//!
//! glibc keeps freed memory in the arena of the thread that took it, and returns only what lies at the arena's end.
//! After a burst of large answers hundreds of MiB stay with the server for good.

/// LIMIT: freed bytes that are worth a walk over all arenas, which takes some milliseconds.
const WORTH: usize = 16 << 20;

/// Looks at the heap from time to time.
#[derive(Debug, Default)]
pub struct HeapTrimmer {
    /// Free bytes of the heap after the last look. Pages that were returned still count.
    free_before: usize,
}

impl HeapTrimmer {
    /// Returns free memory to the system if much of it was freed since the last call. Blocks for some milliseconds;
    /// other threads that allocate may wait as long.
    pub fn trim(&mut self) -> bool {
        let free = crate::sys::free_heap_bytes();
        let is_worth = free >= self.free_before.saturating_add(WORTH);
        if is_worth {
            crate::sys::trim_heap();
        }
        // The least since the last trim, so that what is used and freed again counts.
        self.free_before = if is_worth { crate::sys::free_heap_bytes() } else { self.free_before.min(free) };
        is_worth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("our own status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    fn memory_that_many_threads_have_freed_goes_back_to_the_system() {
        let mut heap = HeapTrimmer::default();
        heap.trim();
        let idle = resident_kib();
        // Pieces below the size that is mapped alone; every hundredth stays, so that no arena can shrink at its end.
        let keep_some = || {
            let pieces: Vec<Vec<u8>> = (0..800).map(|n| vec![n as u8; 60_000]).collect();
            let kept = pieces.into_iter().enumerate().filter(|(n, _)| n % 100 == 99);
            kept.map(|(_, kept)| kept).collect::<Vec<_>>()
        };
        let kept: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(keep_some)).collect();
            threads.into_iter().map(|thread| thread.join().expect("ends")).collect()
        });
        let before = resident_kib() - idle;
        assert!(heap.trim(), "much is free");
        let after = resident_kib().saturating_sub(idle);
        assert!(before > 150 * 1024 && after < before / 4, "{before} KiB became {after} KiB");
        assert!(!heap.trim(), "nothing was freed since");
        drop(kept);
    }
}
