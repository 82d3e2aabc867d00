//! A service over the fake provider and a real SQLite file, on a clock that only the test moves.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_image::images::NewVersion;
use atoll_image::{Bounds, Images};
use atoll_model::{Code, CreateSandbox, Lease, Phase, Principal, SandboxId, StartSettings};
use atoll_provider::Provider;
use atoll_provider::fake::{FakeProvider, TEMPLATE};
use atoll_service::{
    BuildProvider, FailPoint, Fetch, Fetched, MakeProgress, Progressed, ProviderFiles, ProviderRegistry,
    Service, ServiceConfig, ServiceError, TemplateRecord, TemplateSource, TestClock,
};
use atoll_store::{SqliteStore, Store, StoreConfig};

pub struct World {
    pub service: Service,
    pub fake: Arc<FakeProvider>,
    pub clock: Arc<TestClock>,
    pub admin: Principal,
    pub admin_key: String,
    pub store: Arc<dyn Store>,
    pub images: Arc<Images>,
    /// The requests to registries.
    pub fetches: Fetches,
    dir: Option<tempfile::TempDir>,
    // While a blocking task runs, tokio advances a paused clock only explicitly. Without it every wait for the store's
    // threads would let all timers fire.
    _hold_time: std::sync::mpsc::Sender<()>,
}

pub type Fetches = Arc<Mutex<Vec<Fetch>>>;
pub type Configure = Box<dyn FnOnce(&mut ServiceConfig)>;

#[derive(Default)]
pub struct Options {
    pub config: Option<Configure>,
    pub failpoint: Option<FailPoint>,
    /// The version of the only template; by default `1`.
    pub template_version: Option<&'static str>,
    /// The folder of another world whose database this one shares, and the node of this one.
    pub beside: Option<(PathBuf, &'static str)>,
    /// A second provider beside the first.
    pub second: Option<Arc<FakeProvider>>,
    /// Opens the providers of settings files.
    pub builder: Option<Arc<dyn BuildProvider>>,
    /// The operator allows the provider `local`.
    pub allows_local: bool,
    /// A provider of another kind beside them.
    pub other: Option<Arc<dyn Provider>>,
    /// How the template that is made at its first use is made.
    pub maker: Arc<Maker>,
}

/// The making of `data-science`: it waits until the test lets it end.
#[derive(Default)]
pub struct Maker {
    pub begun: std::sync::atomic::AtomicU32,
    /// `Some(true)`: it succeeds.
    pub end: Mutex<Option<bool>>,
    made: std::sync::atomic::AtomicBool,
}

impl Maker {
    pub fn end(&self, succeeds: bool) {
        *self.end.lock().unwrap() = Some(succeeds);
    }

    fn make(&self, progress: &mut MakeProgress) -> Result<(), ServiceError> {
        self.begun.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        loop {
            if progress("unpacking packages").is_break() {
                return Err(ServiceError::new(Code::InvalidRequest, "cancelled"));
            }
            match *self.end.lock().unwrap() {
                Some(true) => break,
                Some(false) => return Err(ServiceError::new(Code::NoCapacity, "the disk is full")),
                None => {}
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.made.store(true, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub async fn with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = TestClock::new("boot-1");
        Self::open(dir, FakeProvider::new(), clock, options).await
    }

    /// A second node on the database of this one.
    pub async fn beside(&self, node: &'static str) -> Self {
        let options = Options { beside: Some((self.data(), node)), ..Options::default() };
        Self::open(tempfile::tempdir().unwrap(), FakeProvider::new(), self.clock.clone(), options).await
    }

    pub async fn open(
        dir: tempfile::TempDir,
        fake: Arc<FakeProvider>,
        clock: Arc<TestClock>,
        options: Options,
    ) -> Self {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || held.recv().is_ok());
        let mut store = StoreConfig::new(dir.path());
        if let Some((other, node)) = &options.beside {
            for file in ["secret.key", "admin.key"] {
                std::fs::copy(other.join(file), dir.path().join(file)).unwrap();
            }
            store.database = StoreConfig::default_database(other);
            store.node = Some(node.parse().unwrap());
        }
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open_with(&store).unwrap());
        let mut config = ServiceConfig::new(dir.path());
        config.default_template = TEMPLATE.to_owned();
        config.sample_every = Duration::ZERO;
        if let Some(change) = options.config {
            change(&mut config);
        }
        let failpoint = options.failpoint.unwrap_or_default();
        let bounds = Bounds { grace: Duration::ZERO, disk: atoll_disk::Reserve::new(0), ..Bounds::default() };
        let images = Images::open(dir.path().join("images"), bounds).unwrap();
        let fetches = Fetches::default();
        let templates = Arc::new(OneTemplate {
            version: options.template_version.unwrap_or("1"),
            images: images.clone(),
            fetches: fetches.clone(),
            maker: options.maker,
        });
        let own_clock = clock.clone();
        let providers = ProviderRegistry::new(fake.clone());
        let providers = options.second.into_iter().fold(providers, |all, one| all.with(one));
        let providers = match options.builder {
            Some(builder) => {
                let files = ProviderFiles::new(dir.path(), builder, BTreeMap::new());
                let files = files.allowing_local(options.allows_local);
                providers.with_files(files).await
            }
            None => providers,
        };
        let providers = options.other.into_iter().fold(providers, |all, one| all.with(one));
        let service = Service::open_with(config, store.clone(), providers, templates, own_clock, failpoint)
            .await
            .unwrap();
        let key = std::fs::read_to_string(dir.path().join("admin.key")).unwrap();
        let admin_key = key.trim().to_owned();
        let admin = service.access().authenticate(&admin_key).await.unwrap();
        Self {
            service,
            fake,
            clock,
            admin,
            admin_key,
            store,
            images,
            fetches,
            dir: Some(dir),
            _hold_time: hold,
        }
    }

    /// Ends the server as a crash would and starts the next one over the same data.
    pub async fn crash_and_reopen(mut self) -> Self {
        let dir = self.crash().await;
        Self::open(dir, self.fake.clone(), self.clock.clone(), Options::default()).await
    }

    pub async fn crash(&mut self) -> tempfile::TempDir {
        self.service.abandon().await;
        self.store.close().await;
        self.dir.take().unwrap()
    }

    pub async fn reopen(dir: tempfile::TempDir, fake: Arc<FakeProvider>, clock: Arc<TestClock>) -> Self {
        Self::open(dir, fake, clock, Options::default()).await
    }

    pub fn data(&self) -> PathBuf {
        self.dir.as_ref().unwrap().path().to_owned()
    }

    pub async fn create(&self) -> Lease {
        self.try_create(CreateSandbox::default()).await.unwrap()
    }

    pub async fn try_create(&self, spec: CreateSandbox) -> Result<Lease, ServiceError> {
        self.service.sandboxes().create(&self.admin, spec, true).await.map(|(lease, _)| lease)
    }

    pub async fn get(&self, id: &SandboxId) -> Lease {
        self.service.sandboxes().get(&self.admin, id.as_str()).await.unwrap()
    }

    /// A key of another tenant.
    pub async fn stranger(&self) -> Principal {
        self.tenant("stranger", atoll_model::Quota::default()).await
    }

    /// The holder of a key of a new tenant.
    pub async fn tenant(&self, name: &str, quota: atoll_model::Quota) -> Principal {
        let key = self.tenant_key(name, quota).await;
        self.service.access().authenticate(&key).await.unwrap()
    }

    /// A key of a new tenant.
    pub async fn tenant_key(&self, name: &str, quota: atoll_model::Quota) -> String {
        self.service.access().create_tenant(&self.admin, name, quota).await.unwrap();
        let key = atoll_service::NewKey {
            tenant: Some(name.to_owned()),
            scope: atoll_model::Scope::User,
            name: None,
        };
        self.service.access().create_key(&self.admin, key).await.unwrap().secret
    }

    /// Waits in real time, not in that of the clock, until the phase is reached.
    pub async fn until(&self, id: &SandboxId, phase: Phase) -> Lease {
        for _ in 0..20_000 {
            let lease = self.get(id).await;
            if lease.phase == phase {
                return lease;
            }
            breathe().await;
        }
        panic!("{id} is {:?}, not {phase:?}", self.get(id).await);
    }

    /// Lets every ready task continue, also those that wait for the store's threads.
    pub async fn quiet(&self) {
        for _ in 0..20 {
            breathe().await;
            self.store.ping().await.unwrap();
        }
    }

    pub async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
        self.quiet().await;
    }

    /// Checks that the fake and object storage hold exactly what the store records.
    pub async fn assert_no_leaks(&self) {
        let live = self.store.live().await.unwrap();
        for (id, instance) in &self.fake.holds() {
            let lease = live.iter().map(|(lease, _)| lease).find(|lease| lease.id == *id);
            let lease = lease.unwrap_or_else(|| panic!("{id} leaks"));
            assert_ne!(lease.phase, Phase::Archived, "{id} leaks its files");
            // A sandbox with its memory on disk has no instance; the lease names its former one.
            let on_disk = lease.held == Some(atoll_model::MemoryLocation::Disk) && instance.is_none();
            assert!(on_disk || lease.instance == *instance, "{id} leaks {instance:?}: {lease:?}");
        }
        let mut known: Vec<_> =
            self.store.all_snapshots().await.unwrap().into_iter().map(|snapshot| snapshot.id).collect();
        known.sort();
        let mut held = self.fake.snapshots();
        held.sort();
        assert_eq!(held, known, "snapshots leak");
        for id in self.archived() {
            let named = live.iter().any(|(lease, _)| lease.id.as_str() == id && lease.archive.is_some());
            assert!(named, "the archive of {id} leaks");
        }
    }

    /// Sandboxes with objects in object storage.
    pub fn archived(&self) -> Vec<String> {
        let mut found = Vec::new();
        for folder in std::fs::read_dir(self.data().join("archive")).into_iter().flatten() {
            let path = folder.unwrap().path();
            if has_files(&path) {
                found.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
        found
    }
}

fn has_files(path: &std::path::Path) -> bool {
    if !path.is_dir() {
        return true;
    }
    std::fs::read_dir(path).into_iter().flatten().any(|entry| has_files(&entry.unwrap().path()))
}

pub async fn breathe() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    // A real, short pause for threads outside the runtime.
    tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_micros(200))).await.unwrap();
}

/// A version without files, different from any other.
pub fn version(images: &Images, mark: &str, settings: StartSettings) -> String {
    let mut settings = settings;
    settings.env.insert("MARK".to_owned(), mark.to_owned());
    images.put_version(NewVersion { settings, ..NewVersion::default() }).unwrap()
}

struct OneTemplate {
    version: &'static str,
    images: Arc<Images>,
    fetches: Fetches,
    maker: Arc<Maker>,
}

impl TemplateSource for OneTemplate {
    fn resolve(&self, name: &str) -> Result<TemplateRecord, ServiceError> {
        let is_made = self.maker.made.load(std::sync::atomic::Ordering::SeqCst);
        let name = if name == "data-science" && is_made { TEMPLATE } else { name };
        // `broken` is known here and not at the provider; `host` is made automatically.
        if ![TEMPLATE, "broken", "host"].contains(&name) {
            return Err(ServiceError::new(Code::TemplateNotFound, format!("there is no template {name}")));
        }
        Ok(TemplateRecord {
            name: name.to_owned(),
            version: self.version.to_owned(),
            aliases: vec![],
            kind: if name == "host" { "host" } else { "rootfs" }.to_owned(),
            user: "user".to_owned(),
            workdir: "/home/user".to_owned(),
            env: BTreeMap::from([("LANG".to_owned(), "C.UTF-8".to_owned())]),
            sudo: false,
            command: None,
            ..TemplateRecord::default()
        })
    }

    fn pinned(&self, name: &str, version: &str) -> Result<TemplateRecord, ServiceError> {
        let found = self.resolve(name)?;
        if found.version == version {
            return Ok(found);
        }
        Err(ServiceError::new(Code::TemplateNotFound, "another version"))
    }

    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError> {
        Ok(vec![self.resolve(TEMPLATE)?])
    }

    fn make(&self, name: &str, mut progress: MakeProgress) -> Result<TemplateRecord, ServiceError> {
        if name == "data-science" {
            return self.maker.make(&mut progress).and_then(|()| self.resolve(name));
        }
        match progress("making") {
            ControlFlow::Continue(()) => self.resolve(name),
            ControlFlow::Break(()) => Err(ServiceError::new(Code::InvalidRequest, "cancelled")),
        }
    }

    fn remove(&self, _name: &str) -> Result<(), ServiceError> {
        Ok(())
    }

    fn images(&self) -> Option<Arc<Images>> {
        Some(self.images.clone())
    }

    fn user_ids(&self, _template: &str, _version: &str, user: &str) -> Option<(u32, u32)> {
        (user == "user").then_some((1_234, 1_235))
    }

    /// Every image exists, except those named `none`; each is another version.
    fn pull(
        &self,
        images: Arc<Images>,
        ask: Fetch,
    ) -> futures::future::BoxFuture<'static, Result<Fetched, ServiceError>> {
        self.fetches.lock().unwrap().push(ask.clone());
        let count = self.fetches.lock().unwrap().len();
        Box::pin(async move {
            (ask.progress)(Progressed::Step("fetching".to_owned()));
            tokio::task::yield_now().await;
            if ask.image.name == "none" {
                return Err(ServiceError::new(Code::ImageNotFound, "there is no such image"));
            }
            let version = version(&images, &format!("{} {count}", ask.image), StartSettings::default());
            let manifest = match ask.image.digest {
                Some(digest) => digest,
                None => format!("sha256:{}", "ab".repeat(32)),
            };
            Ok(Fetched { version, manifest })
        })
    }
}
