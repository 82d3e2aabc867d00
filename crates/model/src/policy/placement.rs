//! Whether this node has capacity. Reservations are counted, not limits: most sandboxes are idle.

use crate::Limits;

/// The capacity of the node and its commitments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Node {
    /// Memory that is really free now; page cache counts as free.
    pub memory_free_mib: u64,
    /// All of its memory.
    pub memory_total_mib: u64,
    /// Cores, in thousandths.
    pub cpu_total_milli: u64,
    /// Space that layers and volumes can still take; the reserve is excluded.
    pub disk_free_mib: u64,
    /// Space that pauses and snapshots can still take, including the reserve.
    pub disk_copy_mib: u64,
    /// All space that layers and volumes can take.
    pub disk_total_mib: u64,
    /// Sum of the disk limits of sandboxes and volumes.
    pub disk_limits_mib: u64,
    /// Disk limits may add up to this many times the space.
    pub disk_overcommit: f64,
    /// Live sandboxes.
    pub live: u64,
    /// Sum of their memory limits.
    pub memory_limits_mib: u64,
    /// The maximal number of sandboxes on this node.
    pub live_max: u64,
    /// Limits may add up to this many times the memory.
    pub overcommit: f64,
}

// LIMIT: the measured need of an idle sandbox, rounded up.
const RESERVED_MIB: u64 = 8;
const RESERVED_CPU_MILLI: u64 = 10;
// LIMIT: kept free so that a full node can still delete, log and answer.
const MEMORY_FLOOR_MIB: u64 = 256;
const DISK_FLOOR_MIB: u64 = 64;
/// A hundred idle sandboxes share one core; above that, creates are refused.
const CPU_OVERCOMMIT: u64 = 20;

/// There is no capacity now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this node has no capacity: it has {have} {what} and needs {need}")]
pub struct NoRoom {
    /// The resource.
    pub what: &'static str,
    /// The available amount.
    pub have: u64,
    /// The needed amount.
    pub need: u64,
    /// When to try again.
    pub retry_after_s: u32,
}

impl NoRoom {
    /// Whether the whole node has no place left, at any of its providers.
    #[must_use]
    pub fn is_of_node(&self) -> bool {
        self.what == PLACES
    }
}

const PLACES: &str = "places for sandboxes";

/// May one more sandbox of `limits` start on `node`? [`admit_disk`] decides about its files.
pub fn admit(node: &Node, limits: &Limits) -> Result<(), NoRoom> {
    enough(PLACES, node.live_max.saturating_sub(node.live), 1, 5)?;
    enough("MiB of free memory", node.memory_free_mib, RESERVED_MIB + MEMORY_FLOOR_MIB, 5)?;
    let promised = node.memory_limits_mib + u64::from(limits.memory_mib);
    let promisable = overcommitted(node.memory_total_mib, node.overcommit);
    enough("MiB of committable memory", promisable, promised, 10)?;
    let cpu = (node.live + 1) * RESERVED_CPU_MILLI;
    enough("thousandths of a core", node.cpu_total_milli * CPU_OVERCOMMIT, cpu, 5)
}

/// Could a sandbox of `limits`, with files on this disk or without, run on `node` if it were empty? If not, it need not
/// wait for a place.
pub fn admit_alone(node: &Node, limits: &Limits, has_files: bool) -> Result<(), NoRoom> {
    let empty = Node {
        live: 0,
        memory_limits_mib: 0,
        disk_limits_mib: 0,
        memory_free_mib: node.memory_total_mib,
        disk_free_mib: node.disk_total_mib,
        ..*node
    };
    admit(&empty, limits)?;
    if has_files { admit_disk(&empty, limits.disk_mib.into()) } else { Ok(()) }
}

/// May files of at most so many MiB be made on `node`? Limits may add up to more than the disk, by the operator's
/// factor, but a single limit may not exceed it.
pub fn admit_disk(node: &Node, mib: u64) -> Result<(), NoRoom> {
    promise_disk(node, mib)?;
    admit_free(node, mib)
}

/// Are so many MiB free for files?
pub fn admit_free(node: &Node, mib: u64) -> Result<(), NoRoom> {
    enough("MiB of free disk", node.disk_free_mib, DISK_FLOOR_MIB.saturating_add(mib), 30)
}

/// May so many MiB more of disk be committed?
pub fn promise_disk(node: &Node, mib: u64) -> Result<(), NoRoom> {
    let promised = node.disk_limits_mib.saturating_add(mib);
    let promisable = overcommitted(node.disk_total_mib, node.disk_overcommit);
    enough("MiB of committable disk", promisable, promised, 60)
}

/// May a copy that takes about so much disk be stored on `node`?
pub fn admit_copy(node: &Node, mib: u64) -> Result<(), NoRoom> {
    enough("MiB of free disk", node.disk_copy_mib, DISK_FLOOR_MIB.saturating_add(mib), 30)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "MiB"
)]
fn overcommitted(total_mib: u64, factor: f64) -> u64 {
    (total_mib as f64 * factor) as u64
}

fn enough(what: &'static str, have: u64, need: u64, retry_after_s: u32) -> Result<(), NoRoom> {
    if have >= need { Ok(()) } else { Err(NoRoom { what, have, need, retry_after_s }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        Node {
            memory_free_mib: 20_000,
            memory_total_mib: 24_000,
            cpu_total_milli: 2_000,
            disk_free_mib: 50_000,
            disk_copy_mib: 51_000,
            disk_total_mib: 60_000,
            disk_limits_mib: 0,
            disk_overcommit: 50.0,
            live: 0,
            memory_limits_mib: 0,
            live_max: 2_000,
            overcommit: 50.0,
        }
    }

    #[test]
    fn a_thousand_default_sandboxes_fit_on_the_reference_machine() {
        let full = Node { live: 999, memory_limits_mib: 999 * 512, disk_limits_mib: 999 * 2_048, ..node() };
        assert_eq!(admit(&full, &Limits::default()), Ok(()));
        assert_eq!(admit_disk(&full, 2_048), Ok(()));
    }

    #[test]
    fn each_shortage_is_named_and_says_when_to_retry() {
        for (short, what) in [
            (Node { live: 2_000, ..node() }, "places for sandboxes"),
            (Node { memory_free_mib: 100, ..node() }, "MiB of free memory"),
            (Node { memory_limits_mib: 24_000 * 50, ..node() }, "MiB of committable memory"),
            (Node { disk_free_mib: 10, ..node() }, "MiB of free disk"),
            (Node { disk_limits_mib: 60_000 * 50, ..node() }, "MiB of committable disk"),
        ] {
            let admitted = admit(&short, &Limits::default()).and_then(|()| admit_disk(&short, 2_048));
            let refusal = admitted.expect_err("short");
            assert_eq!(refusal.what, what);
            assert!(refusal.retry_after_s > 0);
        }
    }

    #[test]
    fn without_overcommit_every_promised_mebibyte_is_there() {
        let strict = Node { disk_overcommit: 1.0, disk_limits_mib: 59_000, ..node() };
        assert_eq!(admit_disk(&strict, 1_000), Ok(()));
        assert_eq!(admit_disk(&strict, 1_001).expect_err("promised").what, "MiB of committable disk");
    }

    #[test]
    fn what_an_empty_node_could_run_is_worth_a_wait() {
        let full = Node { live: 2_000, memory_free_mib: 0, disk_free_mib: 0, ..node() };
        assert!(admit(&full, &Limits::default()).expect_err("full").is_of_node());
        assert_eq!(admit_alone(&full, &Limits::default(), true), Ok(()));
        let large = Limits { disk_mib: 70_000, ..Limits::default() };
        assert!(admit_alone(&full, &large, true).is_err());
        assert_eq!(admit_alone(&full, &large, false), Ok(()));
        assert!(admit_alone(&Node { live_max: 0, ..full }, &Limits::default(), false).is_err());
    }

    #[test]
    fn copies_may_use_what_is_reserved_for_them() {
        let full = Node { disk_free_mib: 0, disk_copy_mib: 1_000, ..node() };
        assert!(admit_disk(&full, 1).is_err());
        assert_eq!(admit_copy(&full, 512), Ok(()));
        assert!(admit_copy(&full, 1_000).is_err());
    }
}
