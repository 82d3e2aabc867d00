//! The provider `docker` with Debian's daemon: the conformance suite, adoption, deaths, other owners, a daemon that is gone.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_docker::{DockerConfig, DockerNetwork, DockerProvider, DockerPull, DockerSettings};
use atoll_model::policy::egress::Egress;
use atoll_model::{ErrorKind, Limits};
use atoll_provider::conformance::{self, AgentAccess, Fixture, Live};
use atoll_provider::{
    AGENT_PORT, AdoptionOutcome, Capability, InstanceMount, InstanceSpec, KnownSandbox, MountSource,
    NoticeKind, Provider, ProviderError, Target,
};
use atoll_tests::docker::{Docker, NO_NETWORK};
use atoll_tests::{image, namespaces};
use nix::mount::{MsFlags, mount, umount};

pub(crate) const IMAGE: &str = "atoll-test/busybox:latest";

/// A daemon with one image, and a folder for data of servers.
pub(crate) struct DockerWorld {
    docker: Option<Docker>,
    pub(crate) folder: tempfile::TempDir,
}

/// Runs a test with a daemon of its own, in network and mount namespaces of its own.
pub(crate) fn in_docker_world<F: Future<Output = ()>>(test: impl FnOnce(DockerWorld) -> F + Send) {
    in_docker_world_with(NO_NETWORK, test);
}

fn in_docker_world_with<F: Future<Output = ()>>(
    options: &[&str],
    test: impl FnOnce(DockerWorld) -> F + Send,
) {
    namespaces::in_own_namespaces(|_internet| {
        let folder = tempfile::Builder::new().prefix("atoll-docker-").tempdir_in("/var/tmp").unwrap();
        let docker = Docker::start_with(folder.path(), options);
        let archive = folder.path().join("image.tar");
        std::fs::write(&archive, image::busybox().docker_archive("atoll-test/busybox")).unwrap();
        docker.ok(["load", "-i", archive.to_str().unwrap()]);
        runtime().block_on(test(DockerWorld { docker: Some(docker), folder }));
    });
}

/// Containers of a test that failed end with it.
impl Drop for DockerWorld {
    fn drop(&mut self) {
        let Some(docker) = &self.docker else { return };
        let listed = docker.run(["ps", "-aq"]).stdout;
        let ids = String::from_utf8_lossy(&listed).into_owned();
        if !ids.trim().is_empty() {
            docker.run(["rm", "-f"].into_iter().chain(ids.split_whitespace()));
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Settings by which no daemon connects to anything.
fn closed() -> DockerSettings {
    let image = IMAGE.to_owned();
    DockerSettings {
        image,
        network: DockerNetwork::None,
        pull: DockerPull::Never,
        ..DockerSettings::default()
    }
}

/// Settings for the daemon whose folder this is.
fn at_socket(folder: &Path) -> DockerSettings {
    DockerSettings { host: format!("unix://{}/docker.sock", folder.display()), ..closed() }
}

/// A provider of the server `owner`, as it is after a start of that server.
async fn provider(folder: &Path, owner: &str, settings: DockerSettings) -> Arc<dyn Provider> {
    let data = folder.join(owner);
    std::fs::create_dir_all(&data).unwrap();
    let config = DockerConfig {
        name: "docker",
        owner: owner.to_owned(),
        agent: atoll_container::install_agent(&data, None).unwrap(),
        data: data.join("docker"),
        settings,
    };
    Arc::new(DockerProvider::open(config).await.unwrap())
}

impl DockerWorld {
    pub(crate) fn docker(&self) -> &Docker {
        self.docker.as_ref().unwrap()
    }

    pub(crate) async fn provider(&self, owner: &str) -> Arc<dyn Provider> {
        self.provider_with(owner, at_socket(self.folder.path())).await
    }

    async fn provider_with(&self, owner: &str, settings: DockerSettings) -> Arc<dyn Provider> {
        provider(self.folder.path(), owner, settings).await
    }

    /// What `docker inspect` says about the only container.
    fn inspect(&self, format: &str) -> String {
        let names = self.containers();
        assert_eq!(names.len(), 1, "{names:?}");
        let text = self.docker().ok(["inspect", "--format", format, &names[0]]);
        String::from_utf8(text).unwrap().trim().to_owned()
    }

    /// The execs of the only container.
    fn streams(&self) -> Vec<String> {
        serde_json::from_str::<Option<_>>(&self.inspect("{{json .ExecIDs}}")).unwrap().unwrap_or_default()
    }

    /// Kills the process of an exec, by its id, and waits for its end.
    fn kill_stream(&self, exec: &str) {
        let socket = self.folder.path().join("docker.sock");
        let mut curl = std::process::Command::new("curl");
        curl.arg("-s").arg("--unix-socket").arg(socket).arg(format!("http://docker/exec/{exec}/json"));
        let about: serde_json::Value = serde_json::from_slice(&curl.output().unwrap().stdout).unwrap();
        let pid = about["Pid"].as_i64().unwrap().to_string();
        assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        while Path::new("/proc").join(&pid).exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The names of all volumes.
    pub(crate) fn volumes(&self) -> Vec<String> {
        let text = String::from_utf8(self.docker().ok(["volume", "ls", "-q"])).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The names of all containers, running or not.
    pub(crate) fn containers(&self) -> Vec<String> {
        let text = String::from_utf8(self.docker().ok(["ps", "-a", "--format", "{{.Names}}"])).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

pub(crate) async fn fixture(provider: &Arc<dyn Provider>) -> Fixture {
    let image = provider.image(None).await.unwrap().unwrap();
    Fixture {
        provider: Arc::clone(provider),
        template: image.name,
        template_version: image.version,
        inside: Arc::new(AgentAccess),
    }
}

pub(crate) fn target(spec: &InstanceSpec) -> Target {
    Target { sandbox: spec.sandbox.clone(), instance: Some(spec.instance.clone()) }
}

fn known(spec: &InstanceSpec, facts: serde_json::Value) -> KnownSandbox {
    KnownSandbox {
        sandbox: spec.sandbox.clone(),
        instance: Some((spec.instance.clone(), facts)),
        storage: spec.storage,
        limits: spec.limits,
        network: Arc::clone(&spec.network),
        paused: false,
    }
}

/// Runs every case that the provider can be asked. No case may leave anything.
async fn conform(world: &DockerWorld, settings: DockerSettings) {
    let provider = world.provider_with("conformance", settings).await;
    let mut ran = Vec::new();
    for case in conformance::all() {
        if case.run(fixture(&provider).await).await {
            ran.push(case.name);
        }
        assert_eq!(world.containers(), Vec::<String>::new(), "{} left containers", case.name);
        assert_eq!(world.volumes(), Vec::<String>::new(), "{} left volumes", case.name);
        let folders = std::fs::read_dir(world.folder.path().join("conformance/docker")).unwrap().count();
        assert_eq!(folders, 0, "{} left folders", case.name);
    }
    assert!(ran.len() >= 20, "cases of the base, of connections, pauses and limits: {ran:?}");
    let has_volumes = provider.capabilities().volumes;
    assert_eq!(
        ran.iter().filter(|name| name.starts_with("volumes::")).count(),
        if has_volumes { 6 } else { 0 }
    );
}

#[test]
fn the_docker_provider_passes_the_conformance_suite() {
    in_docker_world(|world| async move {
        conform(&world, at_socket(world.folder.path())).await;
        let able = world.provider("table").await.capabilities();
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/providers.md");
        conformance::check_capability_table(&document, "docker", &able, false);
    });
}

#[test]
fn a_daemon_at_an_address_passes_the_conformance_suite_over_exec_streams() {
    let options = ["--bridge=none", "--iptables=false", "-H", "tcp://127.0.0.1:2375", "--tls=false"];
    in_docker_world_with(&options, |world| async move {
        let host = "tcp://127.0.0.1:2375".to_owned();
        let remote = DockerSettings { host, ..closed() };
        conform(&world, remote.clone()).await;

        // Many connections at once are carried by one exec, which is opened again when it has ended.
        let provider = world.provider_with("streams", remote).await;
        let spec = fixture(&provider).await.spec();
        let spec = InstanceSpec { limits: Limits { pids: 512, ..spec.limits }, ..spec };
        let live = live(&provider, &spec).await;
        assert_eq!(world.inspect("{{len .Mounts}}"), "0", "nothing of this machine is bound");
        let lines = futures::future::join_all((0..40).map(|number| {
            let (live, line) = (&live, format!("sleep 0.2; echo {number}"));
            async move { AgentAccess.run(live, &line).await }
        }));
        for (number, line) in lines.await.into_iter().enumerate() {
            assert_eq!(line.as_deref(), Some(format!("{number}\n").as_str()));
        }
        let streams = world.streams();
        assert_eq!(streams.len(), 1, "one exec carries all connections");
        world.kill_stream(&streams[0]);
        assert_eq!(AgentAccess.run(&live, "echo again").await.as_deref(), Some("again\n"));
        assert!(world.streams().iter().any(|stream| *stream != streams[0]), "it was opened again");
        let large = vec![7; 3 << 20];
        conformance::InstanceAccess::write(&AgentAccess, &live, "/tmp/large", &large).await;
        let back = conformance::InstanceAccess::read(&AgentAccess, &live, "/tmp/large").await;
        assert!(back.is_some_and(|back| back == large), "bytes are carried as they are");
        let token = AgentAccess.run(&live, "ls -A /.atoll").await.unwrap();
        assert_eq!(token, "atoll-agent\nbin\n", "no program inside finds the agent's token");
        provider.destroy(&target(&spec)).await.unwrap();
    });
}

pub(crate) async fn live<'a>(provider: &'a Arc<dyn Provider>, spec: &InstanceSpec) -> Live<'a> {
    let booted = provider.create(spec).await.unwrap();
    let token = booted.agent_token.clone().unwrap();
    Live { provider, target: target(spec), booted, token }
}

#[test]
fn limits_labels_and_networks_are_those_of_the_request() {
    // The bridge is in the network namespace of the test.
    in_docker_world_with(&["--iptables=false"], |world| async move {
        let bridged = DockerSettings { network: DockerNetwork::Bridge, ..at_socket(world.folder.path()) };
        let provider = world.provider_with("ours", bridged).await;
        let closed = fixture(&provider).await.spec();
        let live_closed = live(&provider, &closed).await;
        let links = AgentAccess.run(&live_closed, "cat /proc/net/dev").await.unwrap();
        assert!(links.contains("lo:") && !links.contains("eth0:"), "deny-all has no network: {links}");
        let limits = "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.NanoCpus}} \
                      {{.HostConfig.PidsLimit}}";
        assert_eq!(world.inspect(limits), format!("{0} {0} 500000000 64", 64 << 20));
        let larger = Limits { memory_mib: 96, cpu_milli: 700, pids: 80, ..closed.limits };
        provider.resize(&live_closed.target, &larger).await.unwrap();
        assert_eq!(world.inspect(limits), format!("{0} {0} 700000000 80", 96 << 20));
        assert_eq!(world.inspect("{{index .Config.Labels \"atoll.owner\"}}"), "ours");
        assert_eq!(world.inspect("{{index .Config.Labels \"atoll.sandbox\"}}"), closed.sandbox.as_str());
        assert_eq!(world.inspect("{{index .Config.Labels \"atoll.instance\"}}"), closed.instance.as_str());
        assert_eq!(
            world.inspect("{{len .HostConfig.PortBindings}} {{.HostConfig.PublishAllPorts}}"),
            "0 false"
        );
        provider.destroy(&target(&closed)).await.unwrap();

        let open = InstanceSpec { network: Arc::new(Egress::open()), ..fixture(&provider).await.spec() };
        let live_open = live(&provider, &open).await;
        let links = AgentAccess.run(&live_open, "cat /proc/net/dev").await.unwrap();
        assert!(links.contains("eth0:"), "{links}");
        let gateway = AgentAccess
            .run(&live_open, "ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p'")
            .await
            .unwrap();
        let listener = tokio::net::TcpListener::bind((gateway.trim(), 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let hello = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut connection, b"over the bridge").await.unwrap();
        };
        let line = format!("nc {} {port} </dev/null", gateway.trim());
        let (_, heard) = tokio::join!(hello, AgentAccess.run(&live_open, &line));
        assert_eq!(heard.as_deref(), Some("over the bridge"));

        // A policy that the bridge cannot enforce: at the first start, and at a later one.
        let listed = Egress { learn: true, ..Egress::open() };
        let refused = InstanceSpec { network: Arc::new(listed), ..fixture(&provider).await.spec() };
        assert_missing(&provider.create(&refused).await.unwrap_err(), Capability::Egress);
        provider.halt(&live_open.target).await.unwrap();
        let cut = InstanceSpec { network: Arc::new(Egress::closed()), ..open.clone() };
        assert_missing(&provider.boot(&cut).await.unwrap_err(), Capability::Egress);
        provider.destroy(&target(&open)).await.unwrap();
    });
}

#[test]
fn folders_of_the_operator_are_bound_and_a_link_in_their_path_is_refused() {
    in_docker_world(|world| async move {
        let provider = world.provider("ours").await;
        // Programs in a container can set every bit and make devices, so the host's file system has to ignore both.
        let folder = world.folder.path().canonicalize().unwrap();
        let (unrestricted, shared) = (folder.join("unrestricted"), folder.join("shared"));
        std::fs::create_dir(&unrestricted).unwrap();
        std::fs::create_dir(&shared).unwrap();
        // In the mount namespace of this test.
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("none"), &shared, Some("tmpfs"), flags, None::<&str>).unwrap();
        let mount_of = |path: &std::path::Path, read_only: bool| {
            let source = MountSource::Folder { path: path.to_owned(), sub_path: None, seen_as: (0, 0) };
            InstanceMount { source, path: "/data".to_owned(), read_only }
        };
        let spec =
            InstanceSpec { mounts: vec![mount_of(&unrestricted, false)], ..fixture(&provider).await.spec() };
        let refusal = provider.create(&spec).await.unwrap_err();
        let is_it = matches!(&refusal, ProviderError::NotMountable { why, .. } if why.contains("nosuid"));
        assert!(is_it, "{refusal:?}");
        let spec =
            InstanceSpec { mounts: vec![mount_of(&unrestricted, true)], ..fixture(&provider).await.spec() };
        live(&provider, &spec).await;
        provider.destroy(&target(&spec)).await.unwrap();
        let part = |sub_path: Option<&str>, path: &str, read_only: bool| {
            let sub_path = sub_path.map(str::to_owned);
            let source = MountSource::Folder { path: shared.clone(), sub_path, seen_as: (0, 0) };
            InstanceMount { source, path: path.to_owned(), read_only }
        };
        let mounts =
            vec![part(None, "/data", false), part(Some("a/b"), "/deep/er", false), part(None, "/seen", true)];
        let spec = InstanceSpec { mounts, ..fixture(&provider).await.spec() };
        let first = live(&provider, &spec).await;
        AgentAccess.run(&first, "echo x >/data/x; echo y >/deep/er/y").await.unwrap();
        assert_eq!(std::fs::read_to_string(shared.join("x")).unwrap(), "x\n");
        assert_eq!(std::fs::read_to_string(shared.join("a/b/y")).unwrap(), "y\n");
        assert_eq!(AgentAccess.run(&first, "cat /seen/x").await.as_deref(), Some("x\n"));
        assert_eq!(AgentAccess.run(&first, "echo z >/seen/z").await, None, "it is read-only");
        provider.halt(&first.target).await.unwrap();
        let next = InstanceSpec { instance: fixture(&provider).await.spec().instance, ..spec.clone() };
        let fewer = InstanceSpec { mounts: Vec::new(), ..next.clone() };
        assert!(matches!(provider.boot(&fewer).await.unwrap_err(), ProviderError::Unsupported { .. }));
        provider.boot(&next).await.unwrap();
        provider.destroy(&target(&next)).await.unwrap();

        std::os::unix::fs::symlink("/etc", shared.join("link")).unwrap();
        for refused in [
            part(Some("link"), "/data", false),
            part(Some("link/ssl"), "/data", true),
            part(None, "/.atoll/x", false),
        ] {
            let spec = InstanceSpec { mounts: vec![refused], ..fixture(&provider).await.spec() };
            let refusal = provider.create(&spec).await.unwrap_err();
            assert!(matches!(refusal, ProviderError::NotMountable { .. }), "{refusal}");
        }
        let remote = DockerSettings { remote: Some(true), ..at_socket(world.folder.path()) };
        let remote = world.provider_with("remote", remote).await;
        let volume =
            MountSource::Volume { volume: atoll_model::VolumeId::from_entropy([7; 20]), sub_path: None };
        let volume = InstanceMount { source: volume, path: "/data".to_owned(), read_only: false };
        for refused in [part(None, "/data", false), volume] {
            let spec = InstanceSpec { mounts: vec![refused], ..fixture(&remote).await.spec() };
            assert_missing(&remote.create(&spec).await.unwrap_err(), Capability::Volume);
        }
        assert_eq!(world.containers(), Vec::<String>::new());
        umount(&shared).unwrap();
    });
}

pub(crate) fn assert_missing(refusal: &ProviderError, wanted: Capability) {
    let is_named =
        matches!(refusal, ProviderError::MissingCapability { capability, .. } if *capability == wanted);
    assert!(is_named && refusal.kind() == ErrorKind::Unsupported, "{refusal}");
}

#[test]
fn containers_are_found_again_and_those_of_another_owner_are_left_alone() {
    in_docker_world(|world| async move {
        let (ours, theirs) = (world.provider("ours").await, world.provider("theirs").await);
        let (spec, stray, foreign) =
            (fixture(&ours).await.spec(), fixture(&ours).await.spec(), fixture(&theirs).await.spec());
        let booted = ours.create(&spec).await.unwrap();
        ours.create(&stray).await.unwrap();
        theirs.create(&foreign).await.unwrap();
        world.docker().ok([
            "run",
            "-d",
            "--name",
            "bystander",
            "--network",
            "none",
            IMAGE,
            "/bin/sleep",
            "600",
        ]);

        // As after `kill -9` of the server: another object, which knows only what the store says.
        drop(ours);
        let ours = world.provider("ours").await;
        let adopted = ours.adopt(vec![known(&spec, booted.facts.clone())], Vec::new()).await.unwrap();
        assert_eq!(adopted[0].fate, AdoptionOutcome::Alive);
        assert!(ours.dial(&target(&spec), AGENT_PORT).await.is_ok());
        ours.destroy(&target(&foreign)).await.unwrap();
        assert!(theirs.dial(&target(&foreign), AGENT_PORT).await.is_ok(), "a destroy reached another owner");
        let left = world.containers();
        assert_eq!(left.len(), 3, "{left:?}");
        assert!(!left.iter().any(|name| name.contains(stray.sandbox.as_str())), "{left:?}");

        let mut notices = ours.notices();
        let name = left.iter().find(|name| name.contains(spec.sandbox.as_str())).unwrap();
        world.docker().ok(["kill", name]);
        let notice = tokio::time::timeout(Duration::from_secs(5), notices.recv()).await.unwrap().unwrap();
        assert_eq!((notice.instance, notice.what), (spec.instance.clone(), NoticeKind::Died));
        assert!(matches!(ours.dial(&target(&spec), AGENT_PORT).await, Err(ProviderError::Gone { .. })));

        ours.destroy(&target(&spec)).await.unwrap();
        theirs.destroy(&target(&foreign)).await.unwrap();
        assert_eq!(world.containers(), ["bystander"]);
        world.docker().ok(["rm", "-f", "bystander"]);
    });
}

#[test]
fn an_unknown_image_a_gone_daemon_and_one_that_returns_are_told() {
    in_docker_world(|mut world| async move {
        let provider = world.provider("ours").await;
        let missing = provider.image(Some("no-such/image:9")).await.unwrap_err();
        assert!(matches!(missing, ProviderError::NoTemplate { .. }), "{missing}");
        let pulling = DockerSettings { pull: DockerPull::Missing, ..at_socket(world.folder.path()) };
        let pulling = world.provider_with("pulling", pulling).await;
        let failed = pulling.image(Some("127.0.0.1:1/no-such/image:9")).await.unwrap_err();
        let text = failed.to_string();
        assert!(text.contains("127.0.0.1:1/no-such/image:9") && text.contains("docker load"), "{text}");
        assert!(pulling.image(None).await.is_ok(), "an image that is there is not pulled");
        // A test of the settings looks for the default image, and pulls nothing.
        provider.check().await.unwrap();
        pulling.check().await.unwrap();
        for (pull, told) in
            [(DockerPull::Missing, "docker load"), (DockerPull::Never, "docker.pull is never")]
        {
            let image = "127.0.0.1:1/no-such/image:9".to_owned();
            let absent = DockerSettings { image, pull, ..at_socket(world.folder.path()) };
            let absent = world.provider_with("absent", absent).await.check().await.unwrap_err().to_string();
            assert!(absent.contains("127.0.0.1:1/no-such/image:9") && absent.contains(told), "{absent}");
        }
        let image = provider.image(None).await.unwrap().unwrap();
        assert!(image.version.starts_with("sha256:") && image.workdir == "/workspace", "{image:?}");
        let spec = fixture(&provider).await.spec();
        provider.create(&spec).await.unwrap();
        let mut notices = provider.notices();

        // Debian's daemon ends its containers when it ends.
        world.docker = None;
        let begun = Instant::now();
        let gone = provider.node().await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Unavailable, "{gone}");
        assert!(gone.to_string().contains("docker.sock") && gone.to_string().contains("start it"), "{gone}");
        assert!(provider.destroy(&target(&spec)).await.is_err());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let notice = tokio::time::timeout(Duration::from_secs(5), notices.recv()).await.unwrap().unwrap();
        assert_eq!((notice.instance, notice.what), (spec.instance.clone(), NoticeKind::Died));

        world.docker = Some(Docker::start(world.folder.path()));
        let next = InstanceSpec { instance: fixture(&provider).await.spec().instance, ..spec.clone() };
        provider.boot(&next).await.unwrap();
        assert!(provider.dial(&target(&next), AGENT_PORT).await.is_ok());
        provider.destroy(&target(&next)).await.unwrap();
        assert_eq!(world.containers(), Vec::<String>::new());
    });
}

#[test]
fn a_daemon_that_hangs_is_told() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(folder.path().join("docker.sock")).unwrap();
        let provider = provider(folder.path(), "ours", at_socket(folder.path())).await;
        let begun = Instant::now();
        let late = provider.node().await.unwrap_err();
        assert!(
            matches!(late, ProviderError::Late { .. }) && late.kind() == ErrorKind::Unavailable,
            "{late}"
        );
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        drop(listener);
    });
}
