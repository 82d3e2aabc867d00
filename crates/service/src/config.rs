//! What the service must be told; every field has a default that suits one machine.

use std::path::PathBuf;
use std::time::Duration;

use atoll_model::Limits;
use atoll_model::policy::egress::OperatorFloors;

/// Settings of the service. Filled in by the binary, never read from the environment here.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// The folder of this server; `admin.key` is written here at the first start.
    pub data: PathBuf,
    /// Where archives go: a folder, or `s3://…` as [`atoll_image::archive::Archives::open`] takes it.
    pub archive: String,
    /// The template of a create that names none.
    pub default_template: String,
    /// The most live sandboxes on this node.
    pub live_max: u64,
    /// Memory limits may add up to this many times the memory.
    pub overcommit: f64,
    /// Disk limits of sandboxes and volumes may add up to this many times the space there is.
    pub disk_overcommit: f64,
    /// Folders with uploads of tenants, each with one folder per tenant; they count against the tenant's disk quota.
    pub upload_folders: Vec<PathBuf>,
    /// Limits of a create that names none.
    pub default_limits: Limits,
    /// What narrows the network of every sandbox; checked by whoever fills it in.
    pub egress: OperatorFloors,
    /// How long a create, start, stop or delete waits before it answers `deadline_exceeded`; the work goes on.
    pub create_wait: Duration,
    /// How many creates and boots may be at the provider at once; the others wait their turn.
    pub creates_at_once: usize,
    /// How long a request waits for a sandbox that it wakes.
    pub wake_wait: Duration,
    /// How many requests may wait for one sandbox to wake.
    pub wake_waiters: usize,
    /// How often the use of every running sandbox is written down; zero switches it off.
    pub sample_every: Duration,
    /// How many samples are kept per sandbox.
    pub samples_kept: u32,
    /// How many events are kept in all.
    pub events_kept: u64,
    /// How long the record of a deleted sandbox is kept.
    pub deleted_kept: Duration,
    /// How long a create waits for its image; the fetch goes on.
    pub pull_wait: Duration,
    /// How much of what build steps made is kept though no template needs it.
    pub build_cache_bytes: u64,
    /// How long a build may take that says nothing of it.
    pub build_timeout: Duration,
    /// How much the context of a build may have, before and after it is decompressed.
    pub build_context_bytes: u64,
    /// How much a volume may hold that says nothing of it.
    pub volume_mib: u32,
    /// Folders of the host below which volumes may lie; canonical. None: no folder of the host is shown to a sandbox.
    pub volume_roots: Vec<PathBuf>,
}

impl ServiceConfig {
    /// The defaults, over the folder `data`.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let data = data.into();
        Self {
            archive: data.join("archive").to_string_lossy().into_owned(),
            default_template: "host".to_owned(),
            live_max: 2_000,
            overcommit: 50.0,
            // LIMIT: most sandboxes write a small part of their limit; 1 promises nothing twice.
            disk_overcommit: 50.0,
            upload_folders: vec![data.join("builds/uploads")],
            data,
            default_limits: Limits::default(),
            egress: OperatorFloors::default(),
            create_wait: Duration::from_secs(30),
            creates_at_once: (cores * 2).clamp(4, 64),
            wake_wait: Duration::from_secs(60),
            // LIMIT: a burst of one client; whoever comes after them is told when to try again.
            wake_waiters: 1_024,
            sample_every: Duration::from_secs(10),
            // LIMIT: one hour at the default interval.
            samples_kept: 360,
            // LIMIT: about 50 MB of rows; a follower that was away longer starts at the oldest kept.
            events_kept: 200_000,
            deleted_kept: Duration::from_secs(7 * 24 * 3_600),
            // LIMIT: large images over slow lines; whoever cannot wait asks again and finds it nearer.
            pull_wait: Duration::from_secs(600),
            // LIMIT: a few images of a usual size.
            build_cache_bytes: 10 << 30,
            build_timeout: Duration::from_secs(30 * 60),
            // LIMIT: who needs more of the host's files has a volume.
            build_context_bytes: 8 << 30,
            volume_mib: 10_240,
            volume_roots: Vec::new(),
        }
    }
}
