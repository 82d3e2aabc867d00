//! Queries for leases: filters and order. Plain data.

use atoll_model::{Phase, TenantId};

/// An inclusive range; `None` is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// The minimum.
    pub min: Option<i64>,
    /// The maximum.
    pub max: Option<i64>,
}

/// The sort order of a list; equal rows are sorted by creation time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    /// When it was requested.
    #[default]
    Created,
    /// When it last began to run; if it never did, when it was requested.
    Started,
    /// Its name, or its id if it has none.
    Name,
    /// Cores.
    Cpu,
    /// Memory.
    Memory,
    /// Disk.
    Disk,
    /// The last stored activity.
    Active,
}

/// Which leases to list.
#[derive(Debug, Clone, Default)]
pub struct LeaseQuery {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// In one of these phases; empty: in any phase but deleted.
    pub phases: Vec<Phase>,
    /// With all of these labels.
    pub labels: Vec<(String, String)>,
    /// With exactly this name.
    pub name: Option<String>,
    /// With this prefix of the name, or of the id if it has no name; case-insensitive.
    pub name_prefix: Option<String>,
    /// With this prefix of the id; case-insensitive.
    pub id_prefix: Option<String>,
    /// At this provider.
    pub provider: Option<String>,
    /// Of this template, with any tag unless it names one.
    pub template: Option<String>,
    /// Created from one of these, each a template as above or the id of a snapshot; empty: any.
    pub made_from: Vec<String>,
    /// Whether its ports are public.
    pub public: Option<bool>,
    /// Last began to run at or after this time, in milliseconds since the Unix epoch.
    pub started_after_ms: Option<i64>,
    /// Requested in this period, in milliseconds since the Unix epoch.
    pub created_ms: Span,
    /// With a CPU limit in this range.
    pub cpu_milli: Span,
    /// With a memory limit in this range.
    pub memory_mib: Span,
    /// With a disk limit in this range.
    pub disk_mib: Span,
    /// Also return deleted ones.
    pub include_deleted: bool,
    /// The sort order.
    pub sort: SortBy,
    /// The smallest or oldest first.
    pub ascending: bool,
    /// At most this many.
    pub limit: u32,
    /// The cursor of the previous page; of a list with the same order.
    pub cursor: Option<String>,
}
