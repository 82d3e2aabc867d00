//! The environment of one test: a data folder, a network namespace in place of the host's, an engine in it, and a leak
//! check.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod layered_templates;
pub(crate) mod small_disk;
pub(crate) mod snapshot_helpers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::{AgentClient, AgentToken, StartProcess};
use atoll_container::testing::LeakCheck;
use atoll_container::{Engine, EngineConfig, LauncherCommand};
use atoll_image::{Bounds, Catalog, Images};
use atoll_model::policy::egress::Egress;
use atoll_model::{InstanceId, Limits, SandboxId, Storage};
use atoll_provider::support::*;
use atoll_provider::{Booted, FilesOrigin, InstanceSpec, Provider, Target};

pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) images: Arc<Images>,
    pub(crate) config: EngineConfig,
}

/// Runs a test in its own environment, and then checks that nothing is left.
pub(crate) fn in_world<F: Future<Output = World>>(
    adjust: impl FnOnce(&mut EngineConfig) + Send + 'static,
    test: impl FnOnce(World) -> F + Send + 'static,
) {
    in_world_with(None, adjust, test);
}

/// The same with its data below another folder.
pub(crate) fn in_world_below<F: Future<Output = World>>(
    below: &str,
    adjust: impl FnOnce(&mut EngineConfig) + Send + 'static,
    test: impl FnOnce(World) -> F + Send + 'static,
) {
    in_world_of(below, None, adjust, test);
}

/// The same with existing templates.
pub(crate) fn in_world_with<F: Future<Output = World>>(
    templates: Option<PathBuf>,
    adjust: impl FnOnce(&mut EngineConfig) + Send + 'static,
    test: impl FnOnce(World) -> F + Send + 'static,
) {
    in_world_of("/var/tmp", templates, adjust, test);
}

fn in_world_of<F: Future<Output = World>>(
    below: &str,
    templates: Option<PathBuf>,
    adjust: impl FnOnce(&mut EngineConfig) + Send + 'static,
    test: impl FnOnce(World) -> F + Send + 'static,
) {
    // The prefix appears in mountinfo and on loop devices; the folder is removed at the end.
    let folder = tempfile::Builder::new().prefix("atoll-engine-").tempdir_in(below).unwrap();
    let data = folder.path().to_owned();
    let check = LeakCheck::before(&data);
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_test_writer()
        .try_init();
    let worker = std::thread::spawn(move || {
        let host = atoll_network::netns::create().unwrap();
        atoll_network::netns::join(std::os::fd::AsFd::as_fd(&host)).unwrap();
        // As on every host.
        atoll_network::loopback_up().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let is_made = templates.is_some();
            let folder = templates.unwrap_or_else(|| data.join("templates"));
            let images = Images::open(data.join("images"), Bounds::default()).unwrap();
            let catalog = Arc::new(Catalog::open(folder).unwrap().with_images(Arc::clone(&images)));
            if !is_made {
                let make = Arc::clone(&catalog);
                tokio::task::spawn_blocking(move || make.make_busybox().unwrap()).await.unwrap();
            }
            let mut config = config(&data);
            adjust(&mut config);
            let engine = Arc::new(Engine::open(config.clone(), Arc::clone(&catalog)).await.unwrap());
            // As a server does: an earlier server with this block may have left instances.
            engine.adopt(Vec::new(), Vec::new()).await.unwrap();
            let world = test(World { engine, catalog, images, config }).await;
            world.engine.close().await;
            world.engine.settle(Duration::from_secs(20)).await.unwrap();
            let engine = Arc::into_inner(world.engine).expect("the test holds the engine no more");
            engine.uninstall().await.unwrap();
        });
    });
    if let Err(panic) = worker.join() {
        atoll_container::testing::scrub(folder.path());
        std::panic::resume_unwind(panic);
    }
    check.after().unwrap();
}

pub(crate) fn config(data: &Path) -> EngineConfig {
    let mut config = EngineConfig::new(data);
    config.launcher = LauncherCommand {
        program: PathBuf::from(env!("CARGO_BIN_EXE_atoll-launcher")),
        arguments: Vec::new(),
    };
    config.agent = std::env::var_os("ATOLL_TEST_AGENT").map(PathBuf::from);
    config
}

pub(crate) fn sandbox_id() -> SandboxId {
    SandboxId::from_entropy(random())
}

pub(crate) fn instance_id() -> InstanceId {
    InstanceId::from_entropy(random())
}

fn random() -> [u8; 20] {
    use std::io::Read;
    let mut bytes = [0; 20];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

impl World {
    /// A request for a sandbox of the smallest template.
    pub(crate) fn spec(&self) -> InstanceSpec {
        self.spec_of("busybox")
    }

    pub(crate) fn spec_of(&self, template: &str) -> InstanceSpec {
        let found = self.catalog.get(template).unwrap();
        InstanceSpec {
            sandbox: sandbox_id(),
            instance: instance_id(),
            template: found.name.clone(),
            template_version: found.digest.clone(),
            limits: Limits::default(),
            network: std::sync::Arc::new(Egress::open()),
            storage: Storage::Disk,
            hostname: "box".into(),
            origin: FilesOrigin::Template,
            mounts: Vec::new(),
        }
    }

    pub(crate) async fn create(&self, spec: &InstanceSpec) -> Booted {
        self.engine.create(spec).await.unwrap_or_else(|error| panic!("create: {}", chain(&error)))
    }

    /// As [`World::create`], with the error as one line.
    pub(crate) async fn engine_create(&self, spec: &InstanceSpec) -> Result<Booted, String> {
        self.engine.create(spec).await.map_err(|error| chain(&error))
    }

    pub(crate) async fn destroy(&self, spec: &InstanceSpec) {
        self.engine.destroy(&target(spec)).await.unwrap_or_else(|error| panic!("destroy: {}", chain(&error)));
    }

    /// A client of the sandbox's agent.
    pub(crate) fn agent(&self, spec: &InstanceSpec, booted: &Booted) -> AgentClient {
        let (engine, target) = (Arc::downgrade(&self.engine), target(spec));
        let connect = move || {
            let (engine, target) = (engine.clone(), target.clone());
            async move {
                let engine = engine.upgrade().ok_or(std::io::ErrorKind::NotConnected)?;
                engine.dial(&target, atoll_provider::AGENT_PORT).await.map_err(std::io::Error::other)
            }
        };
        AgentClient::new(connect, &AgentToken::new(booted.agent_token.as_deref().unwrap()))
    }

    /// Runs a shell command as root; returns its exit code and its output of both streams.
    pub(crate) async fn sh(&self, spec: &InstanceSpec, booted: &Booted, line: &str) -> (i32, String) {
        self.sh_as(spec, booted, "root", line).await
    }

    pub(crate) async fn sh_as(
        &self,
        spec: &InstanceSpec,
        booted: &Booted,
        user: &str,
        line: &str,
    ) -> (i32, String) {
        let what = StartProcess {
            cmd: "/bin/sh".into(),
            args: vec!["-c".into(), line.into()],
            user: Some(user.into()),
            cwd: "/".into(),
            timeout: Some(Duration::from_secs(100)),
            ..StartProcess::default()
        };
        let output = self.agent(spec, booted).run(what, 1 << 20).await.unwrap();
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        (output.status.shell_code(), String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// Drops the engine without closing it, as a killed server would, and opens the same data folder again.
    pub(crate) async fn reopen(self) -> Self {
        let Self { engine, catalog, images, config } = self;
        drop(engine);
        // The tasks of the old engine end at their next turn, which is later on a busy machine; until then the folder is in use.
        let begun = std::time::Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            match Engine::open(config.clone(), Arc::clone(&catalog)).await {
                Ok(engine) => return Self { engine: Arc::new(engine), catalog, images, config },
                Err(error) if begun.elapsed() > Duration::from_secs(30) => panic!("{}", chain(&error)),
                Err(_) => {}
            }
        }
    }

    /// The pid of the first process, on the host.
    pub(crate) fn pid(booted: &Booted) -> i32 {
        i32::try_from(booted.facts["pid"].as_i64().unwrap()).unwrap()
    }
}

pub(crate) fn target(spec: &InstanceSpec) -> Target {
    Target { sandbox: spec.sandbox.clone(), instance: Some(spec.instance.clone()) }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
