//! The settings of the service; every field has a default that suits one machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::Limits;
use atoll_model::ProxyUrl;
use atoll_model::policy::egress::OperatorFloors;
use atoll_model::policy::queue::QueueLimits;

use crate::company::CompanyFiles;

/// Settings of the service. The binary fills them in; they are never read from the environment here.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// The folder of this server; `admin.key` is written here at the first start.
    pub data: PathBuf,
    /// The location of archives: a folder, or `s3://…` as [`atoll_image::archive::Archives::open`] accepts it.
    pub archive: String,
    /// The template of a create that names none.
    pub default_template: String,
    /// Whether templates of the catalogue are made when a sandbox first needs them.
    pub make_at_first_use: bool,
    /// The most live sandboxes on this node.
    pub live_max: u64,
    /// Memory limits may add up to this many times the memory.
    pub overcommit: f64,
    /// Disk limits of sandboxes and volumes may add up to this many times the available space.
    pub disk_overcommit: f64,
    /// Limits of a create that names none.
    pub default_limits: Limits,
    /// The operator's network policy, which narrows the network of every sandbox; the code that sets it must check it.
    pub egress: OperatorFloors,
    /// The proxy that connections of sandboxes are passed on through, where their network has no other way out.
    pub egress_proxy: Option<ProxyUrl>,
    /// What every sandbox gets of the operator's network: authorities and mirrors.
    pub company: Arc<CompanyFiles>,
    /// How long a create, start, stop or delete waits before it returns `deadline_exceeded`; the operation continues.
    pub create_wait: Duration,
    /// How many creates and boots may run at the provider at once; the others wait.
    pub creates_at_once: usize,
    /// How long a request waits for a sandbox that it wakes.
    pub wake_wait: Duration,
    /// How many requests may wait for one sandbox to wake.
    pub wake_waiters: usize,
    /// How often the resource usage of every running sandbox is recorded; zero disables it.
    pub sample_every: Duration,
    /// How many samples are kept per sandbox.
    pub samples_kept: u32,
    /// How many events are kept in all.
    pub events_kept: u64,
    /// How long the record of a deleted sandbox is kept.
    pub deleted_kept: Duration,
    /// How many creates may be queued on this node.
    pub queue_limits: QueueLimits,
    /// How long a queued create waits for a place unless it says otherwise.
    pub queue_timeout: Duration,
    /// How long a create waits for its image; the pull continues.
    pub pull_wait: Duration,
    /// How many bytes of step results are kept that no template needs.
    pub build_cache_bytes: u64,
    /// The default timeout of a build.
    pub build_timeout: Duration,
    /// The maximum size of the context of a build, before and after decompression.
    pub build_context_bytes: u64,
    /// The default size of a volume.
    pub volume_mib: u32,
    /// Folders of the host below which volumes may be; canonical. If empty, no folder of the host is visible in a
    /// sandbox.
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
            make_at_first_use: true,
            live_max: 2_000,
            overcommit: 50.0,
            // LIMIT: most sandboxes write a small part of their limit; 1 disables overcommitment.
            disk_overcommit: 50.0,
            data,
            default_limits: Limits::default(),
            egress: OperatorFloors::default(),
            egress_proxy: None,
            company: Arc::default(),
            create_wait: Duration::from_secs(30),
            creates_at_once: (cores * 2).clamp(4, 64),
            wake_wait: Duration::from_secs(60),
            // LIMIT: a burst of one client; further requests are refused with a time to retry.
            wake_waiters: 1_024,
            sample_every: Duration::from_secs(10),
            // LIMIT: one hour at the default interval.
            samples_kept: 360,
            // LIMIT: about 50 MB of rows; a follower that was away longer starts at the oldest kept.
            events_kept: 200_000,
            deleted_kept: Duration::from_secs(7 * 24 * 3_600),
            // LIMIT: each has a row and a small task; beyond that a caller is better told that the server is full.
            queue_limits: QueueLimits { total: 5_000, per_tenant: 1_000 },
            queue_timeout: Duration::from_secs(600),
            // LIMIT: large images over slow connections; a caller that cannot wait retries and finds the pull advanced.
            pull_wait: Duration::from_secs(600),
            // LIMIT: a few images of a usual size.
            build_cache_bytes: 10 << 30,
            build_timeout: Duration::from_secs(30 * 60),
            // LIMIT: for more files of the host a volume is suitable.
            build_context_bytes: 8 << 30,
            volume_mib: 10_240,
            volume_roots: Vec::new(),
        }
    }
}
