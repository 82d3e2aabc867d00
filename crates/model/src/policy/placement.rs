//! Whether this node has capacity. Reservations are counted, not limits: most sandboxes are idle.

use crate::{Limits, LimitsAsk};

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
    /// Whether sandboxes have a disk limit. Without one nothing is reserved for them.
    pub limits_disk: bool,
    /// Sum of the disk limits of sandboxes and volumes.
    pub disk_limits_mib: u64,
    /// Disk limits may add up to this many times the space.
    pub disk_overcommit: f64,
    /// What one tenant may take of the space; `None`: all of it.
    pub disk_share: Option<DiskShare>,
    /// Live sandboxes.
    pub live: u64,
    /// Sum of their memory limits.
    pub memory_limits_mib: u64,
    /// The maximal number of sandboxes on this node.
    pub live_max: u64,
    /// Limits may add up to this many times the memory.
    pub overcommit: f64,
}

/// The part of the disk that one tenant may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskShare {
    /// How much.
    pub mib: u64,
    /// Whether the kernel refuses a write beyond it. Otherwise no more than the share may be promised.
    pub is_enforced: bool,
}

// LIMIT: the measured need of an idle sandbox, rounded up.
const RESERVED_MIB: u64 = 8;
const RESERVED_CPU_MILLI: u64 = 10;
// LIMIT: kept free so that a full node can still delete, log and answer.
const MEMORY_FLOOR_MIB: u64 = 256;
const DISK_FLOOR_MIB: u64 = 64;
/// A hundred idle sandboxes share one core; above that, creates are refused.
const CPU_OVERCOMMIT: u64 = 20;

/// LIMIT: the CPU limit of one sandbox may exceed the cores of the node this many times. A request that was written for a larger
/// machine works here too; one far beyond it is a mistake.
const CPU_LIMIT_FACTOR: u64 = 16;

/// A default size that one sandbox of this machine may have: its cores and half of its memory. A machine that does not say what it
/// has bounds nothing.
#[must_use]
pub fn bounded_default(node: &Node, default: LimitsAsk) -> LimitsAsk {
    let milli = u32::try_from(node.cpu_total_milli).ok().filter(|milli| *milli > 0);
    let cores = milli.map_or(f64::MAX, |milli| f64::from(milli) / 1_000.0);
    let memory = i64::try_from(node.memory_total_mib / 2).ok().filter(|mib| *mib > 0).unwrap_or(i64::MAX);
    LimitsAsk {
        cpu: default.cpu.map(|cpu| cpu.min(cores)),
        memory_mib: default.memory_mib.map(|mib| mib.min(memory)),
        ..default
    }
}

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

    /// Whether disk is missing: it comes back only when something is deleted.
    #[must_use]
    pub fn is_of_disk(&self) -> bool {
        [FREE_DISK, COMMITTABLE_DISK, SHARE].contains(&self.what)
    }

    /// Whether the caller's tenant has used up its share, whatever others do.
    #[must_use]
    pub fn is_of_tenant(&self) -> bool {
        self.what == SHARE
    }
}

const PLACES: &str = "places for sandboxes";
const FREE_DISK: &str = "MiB of free disk";
const COMMITTABLE_DISK: &str = "MiB of committable disk";
const SHARE: &str = "MiB of committable disk in the share of this tenant";

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

/// A CPU limit that no sandbox of the machine may have, however empty it is.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{asked} cores are more than {largest}, {CPU_LIMIT_FACTOR} times the {cores} cores of this machine")]
pub struct TooManyCores {
    /// What was asked for.
    pub asked: f64,
    /// The cores of the machine.
    pub cores: f64,
    /// The largest limit of one sandbox.
    pub largest: f64,
}

impl TooManyCores {
    /// What is wrong, as the part of a sentence that follows the name of the field.
    #[must_use]
    pub fn problem(&self) -> String {
        let Self { asked, cores, largest } = self;
        format!(
            "must be at most {largest}, {CPU_LIMIT_FACTOR} times the {cores} cores of this machine, not {asked}"
        )
    }
}

/// Is the CPU limit one that a sandbox of this machine may have? A machine that does not say what it has bounds nothing.
pub fn check_cores(node: &Node, limits: &Limits) -> Result<(), TooManyCores> {
    let largest = node.cpu_total_milli.saturating_mul(CPU_LIMIT_FACTOR);
    if largest == 0 || u64::from(limits.cpu_milli) <= largest {
        return Ok(());
    }
    let in_cores = |milli: u64| f64::from(u32::try_from(milli).unwrap_or(u32::MAX)) / 1_000.0;
    let (asked, cores) = (in_cores(limits.cpu_milli.into()), in_cores(node.cpu_total_milli));
    Err(TooManyCores { asked, cores, largest: in_cores(largest) })
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

/// Are so many MiB free for files? Where there are no limits, only the floor must be.
pub fn admit_free(node: &Node, mib: u64) -> Result<(), NoRoom> {
    let mib = if node.limits_disk { mib } else { 0 };
    enough(FREE_DISK, node.disk_free_mib, DISK_FLOOR_MIB.saturating_add(mib), 30)
}

/// May so many MiB more of disk be committed?
pub fn promise_disk(node: &Node, mib: u64) -> Result<(), NoRoom> {
    if !node.limits_disk {
        return Ok(());
    }
    let promised = node.disk_limits_mib.saturating_add(mib);
    let promisable = overcommitted(node.disk_total_mib, node.disk_overcommit);
    enough(COMMITTABLE_DISK, promisable, promised, 60)
}

/// May so many MiB more of disk be committed to a tenant that has `promised_mib` already?
pub fn promise_share(node: &Node, promised_mib: u64, mib: u64) -> Result<(), NoRoom> {
    let Some(share) = node.disk_share else { return Ok(()) };
    let factor = if share.is_enforced { node.disk_overcommit } else { 1.0 };
    enough(SHARE, overcommitted(share.mib, factor), promised_mib.saturating_add(mib), 60)
}

/// May a copy that takes about so much disk be stored on `node`?
pub fn admit_copy(node: &Node, mib: u64) -> Result<(), NoRoom> {
    enough(FREE_DISK, node.disk_copy_mib, DISK_FLOOR_MIB.saturating_add(mib), 30)
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
            limits_disk: true,
            disk_limits_mib: 0,
            disk_overcommit: 50.0,
            disk_share: None,
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
    fn a_default_size_is_bounded_by_the_machine() {
        let asked =
            LimitsAsk { cpu: Some(4.0), memory_mib: Some(16_384), pids: Some(7), ..LimitsAsk::default() };
        let bounded = bounded_default(&node(), asked);
        assert_eq!((bounded.cpu, bounded.memory_mib, bounded.pids), (Some(2.0), Some(12_000), Some(7)));
        let small = LimitsAsk { cpu: Some(0.5), memory_mib: Some(512), ..LimitsAsk::default() };
        assert_eq!(bounded_default(&node(), small), small);
        let unknown = Node { memory_total_mib: 0, cpu_total_milli: 0, ..node() };
        assert_eq!(bounded_default(&unknown, asked), asked);
    }

    #[test]
    fn a_cpu_limit_far_beyond_the_cores_is_refused() {
        let of =
            |cores: u32| check_cores(&node(), &Limits { cpu_milli: cores * 1_000, ..Default::default() });
        assert_eq!(of(32), Ok(()));
        let refusal = of(64).expect_err("two cores");
        assert_eq!(refusal, TooManyCores { asked: 64.0, cores: 2.0, largest: 32.0 });
        assert_eq!(refusal.to_string(), "64 cores are more than 32, 16 times the 2 cores of this machine");
        let unknown = Node { cpu_total_milli: 0, ..node() };
        assert_eq!(check_cores(&unknown, &Limits { cpu_milli: 64_000, ..Default::default() }), Ok(()));
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
            assert_eq!(refusal.is_of_disk(), what.ends_with("disk"), "{what}");
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
    fn a_share_is_overcommitted_only_where_the_kernel_holds_it() {
        let shared = |is_enforced| Node { disk_share: Some(DiskShare { mib: 1_000, is_enforced }), ..node() };
        assert_eq!(promise_share(&node(), u64::MAX, 1), Ok(()), "without a share there is no bound");
        assert_eq!(promise_share(&shared(true), 49_000, 1_000), Ok(()));
        assert!(promise_share(&shared(true), 49_000, 1_001).expect_err("full").is_of_tenant());
        assert_eq!(promise_share(&shared(false), 900, 100), Ok(()));
        assert!(promise_share(&shared(false), 900, 101).expect_err("full").is_of_tenant());
    }

    #[test]
    fn without_disk_limits_nothing_is_reserved_and_only_a_full_disk_refuses() {
        let unlimited = Node { limits_disk: false, disk_free_mib: 100, disk_limits_mib: u64::MAX, ..node() };
        assert_eq!(admit_disk(&unlimited, 10_240), Ok(()));
        assert!(admit_disk(&Node { disk_free_mib: 63, ..unlimited }, 0).expect_err("full").is_of_disk());
        assert_eq!(admit_disk(&Node { limits_disk: true, ..unlimited }, 1).expect_err("full").need, u64::MAX);
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
