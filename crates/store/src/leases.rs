//! Which leases to list, and in which order. Plain data.

use atoll_model::{Phase, TenantId};

/// From here to there, both included; `None` is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Not less.
    pub min: Option<i64>,
    /// Not more.
    pub max: Option<i64>,
}

/// What a list is sorted by; what is equal, by when it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    /// When it was asked for.
    #[default]
    Created,
    /// When it last began to run, or was asked for where it never did.
    Started,
    /// Its name, or its id where it has none.
    Name,
    /// Cores.
    Cpu,
    /// Memory.
    Memory,
    /// Disk.
    Disk,
    /// When something last worked in it, as far as it is written.
    Active,
}

/// Which leases to list.
#[derive(Debug, Clone, Default)]
pub struct LeaseQuery {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// In any of these; empty: in any but deleted.
    pub phases: Vec<Phase>,
    /// With all of these.
    pub labels: Vec<(String, String)>,
    /// With exactly this name.
    pub name: Option<String>,
    /// Whose name, or id where there is none, begins so; upper and lower case are the same.
    pub name_prefix: Option<String>,
    /// Whose id begins so; upper and lower case are the same.
    pub id_prefix: Option<String>,
    /// Of this template, with whatever tag unless it names one.
    pub template: Option<String>,
    /// Made from any of these, each a template as above or the id of a snapshot; empty: from anything.
    pub made_from: Vec<String>,
    /// Whose ports are open to everybody, or are not.
    pub public: Option<bool>,
    /// That last began to run at or after this, in milliseconds since the Unix epoch.
    pub started_after_ms: Option<i64>,
    /// That were asked for then, in milliseconds since the Unix epoch.
    pub created_ms: Span,
    /// With such limits.
    pub cpu_milli: Span,
    /// With such limits.
    pub memory_mib: Span,
    /// With such limits.
    pub disk_mib: Span,
    /// Records of deleted ones too.
    pub include_deleted: bool,
    /// By what they are sorted.
    pub sort: SortBy,
    /// The smallest or oldest first.
    pub ascending: bool,
    /// At most this many.
    pub limit: u32,
    /// Where the page before ended; of a list with the same order.
    pub cursor: Option<String>,
}
