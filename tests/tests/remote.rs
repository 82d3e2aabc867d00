//! Shared by the tests of providers that are clients of a vendor's API, with a second Atoll server as the service: the conformance
//! suite, and faults on the way to the service.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atoll_agentapi::ProcessEvent;
use atoll_model::ErrorKind;
use atoll_provider::conformance::{self, Fixture};
use atoll_provider::{InstanceSpec, Provider, StartedProcess};
use atoll_tests::fault_proxy::{Fault, FaultProxy};
use atoll_tests::remote_access::SessionAccess;
pub(crate) use atoll_tests::remote_access::{shell, target};
use atoll_tests::{Client, Value, World, run, until};
use futures::StreamExt;

const SERVICE: &str = "127.0.0.1:7070";
pub(crate) const TEMPLATE: &str = "busybox";
pub(crate) const GRACE: Duration = Duration::from_secs(2);
const CREATES: usize = 50;

/// What differs between the kinds of providers.
pub(crate) struct RemoteKind {
    /// Its name, and that of its provider.
    pub(crate) name: &'static str,
    /// Where objects are made.
    pub(crate) create_path: &'static str,
    /// In the path of every list.
    pub(crate) list_part: &'static str,
    /// In the path of every delete.
    pub(crate) object_part: &'static str,
    /// The path of the front.
    pub(crate) prefix: &'static str,
    /// The user of commands that need all rights, where users can be chosen.
    pub(crate) user: Option<&'static str>,
    /// Cases of the conformance suite that it has at least.
    pub(crate) cases: usize,
    /// A provider that is not used yet.
    pub(crate) open: fn(&RemoteWorld<'_>, owner: &str) -> Arc<dyn Provider>,
}

impl RemoteKind {
    fn is_create(&self, method: &str, path: &str) -> bool {
        method == "POST" && path == self.create_path
    }
}

/// A service, an account of it, and a proxy before it.
pub(crate) struct RemoteWorld<'w> {
    pub(crate) kind: &'static RemoteKind,
    pub(crate) world: &'w World,
    pub(crate) proxy: FaultProxy,
    pub(crate) account: Client,
}

impl<'w> RemoteWorld<'w> {
    pub(crate) async fn open(world: &'w World, kind: &'static RemoteKind) -> Self {
        let proxy = FaultProxy::start(SERVICE.parse().unwrap()).await;
        Self { kind, world, proxy, account: world.first_tenant().await }
    }

    /// The address of a path of the service, through the proxy.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.proxy.address)
    }

    /// A provider of the server `owner`, as it is after a start of that server.
    pub(crate) async fn provider(&self, owner: &str) -> Arc<dyn Provider> {
        begun((self.kind.open)(self, owner)).await
    }

    pub(crate) fn fixture(&self, provider: &Arc<dyn Provider>) -> Fixture {
        let account = self.account.clone();
        Fixture {
            provider: Arc::clone(provider),
            template: TEMPLATE.to_owned(),
            template_version: TEMPLATE.to_owned(),
            inside: Arc::new(SessionAccess::new(self.kind.user, move |id| {
                let account = account.clone();
                Box::pin(async move { drop(account.remove(&id).await) })
            })),
        }
    }

    /// Waits until the objects were listed so many times more.
    pub(crate) async fn watch_rounds(&self, rounds: usize) {
        let before = self.proxy.count("GET", self.kind.list_part);
        until("the objects are listed", async || {
            (self.proxy.count("GET", self.kind.list_part) >= before + rounds).then_some(())
        })
        .await;
    }

    /// Waits until everything that is removed after the grace time would be.
    pub(crate) async fn after_grace(&self) {
        self.watch_rounds(2).await;
        let seen = Instant::now();
        until("the grace time is over", async || (seen.elapsed() > GRACE).then_some(())).await;
        self.watch_rounds(4).await;
    }

    /// The sandboxes of an owner at the service: the service's ids, and those of its labels.
    pub(crate) async fn objects(&self, owner: &str) -> Vec<(String, String)> {
        let listed = self.account.get("/v1/sandboxes?limit=100").await.ok();
        let items = listed["items"].as_array().unwrap().clone();
        let own = items.iter().filter(|item| item["labels"]["atoll.owner"] == owner);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        own.map(|item| (text(&item["id"]), text(&item["labels"]["atoll.sandbox"]))).collect()
    }
}

/// Adopts nothing, and begins the watch: a server listens to its providers.
pub(crate) async fn begun(provider: Arc<dyn Provider>) -> Arc<dyn Provider> {
    assert!(provider.adopt(Vec::new(), Vec::new()).await.unwrap().is_empty());
    drop(provider.notices());
    provider
}

fn page() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/providers.md")
}

pub(crate) fn conformance_suite_holds(kind: &'static RemoteKind) {
    run(async |w| {
        let remote = RemoteWorld::open(w, kind).await;
        let provider = remote.provider("suite").await;
        conformance::check_capability_table(&page(), kind.name, &provider.capabilities(), false);
        let mut ran = Vec::new();
        for case in conformance::all() {
            let started = Instant::now();
            if case.run(remote.fixture(&provider)).await {
                ran.push((case.name, started.elapsed()));
            }
            assert_eq!(remote.objects("suite").await, [], "{} left something", case.name);
            let records = std::fs::read_dir(w.folder().join("suite")).map_or(0, Iterator::count);
            assert_eq!(records, 0, "{} left a record", case.name);
        }
        assert!(ran.len() >= kind.cases, "{ran:?}");
    });
}

pub(crate) fn fifty_creates_make_fifty_sandboxes(kind: &'static RemoteKind) {
    run(async |w| {
        let remote = RemoteWorld::open(w, kind).await;
        let provider = remote.provider("race").await;
        let nth = AtomicU32::new(0);
        remote.proxy.set_rule(move |method, path| {
            match kind.is_create(method, path) && nth.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                true => Fault::LoseReply,
                false => Fault::None,
            }
        });
        let fixture = remote.fixture(&provider);
        let specs: Vec<InstanceSpec> = (0..CREATES).map(|_| fixture.spec()).collect();
        let mut creates = tokio::task::JoinSet::new();
        for spec in specs.clone() {
            let provider = Arc::clone(&provider);
            creates.spawn(async move { provider.create(&spec).await.map(|booted| booted.facts) });
        }
        let made: BTreeSet<String> = creates
            .join_all()
            .await
            .into_iter()
            .map(|facts| facts.unwrap()["object"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(made.len(), CREATES, "each sandbox has an object of its own");
        let wanted: BTreeSet<String> = specs.iter().map(|spec| spec.sandbox.to_string()).collect();
        remote.after_grace().await;
        let objects = remote.objects("race").await;
        assert_eq!(objects.len(), CREATES, "no object too many, and none too few");
        assert_eq!(objects.iter().map(|(_, sandbox)| sandbox.clone()).collect::<BTreeSet<_>>(), wanted);
        assert_eq!(objects.iter().map(|(id, _)| id.clone()).collect::<BTreeSet<_>>(), made);
        for spec in &specs {
            provider.destroy(&target(spec)).await.unwrap();
        }
        assert_eq!(remote.objects("race").await, []);
    });
}

pub(crate) fn statuses_are_waited_for_or_told(kind: &'static RemoteKind) {
    run(async |w| {
        let remote = RemoteWorld::open(w, kind).await;
        let provider = remote.provider("statuses").await;
        let fixture = remote.fixture(&provider);
        for (status, lines) in [(429, "retry-after: 1\r\n"), (500, ""), (503, "")] {
            let mut left = 2;
            remote.proxy.set_rule(move |method, path| {
                let is_meant = kind.is_create(method, path) && left > 0;
                left -= i32::from(is_meant);
                if is_meant { Fault::Answer(status, lines) } else { Fault::None }
            });
            let spec = fixture.spec();
            provider.create(&spec).await.unwrap_or_else(|error| panic!("{status}: {error}"));
            assert_eq!(remote.objects("statuses").await.len(), 1, "{status}");
            // Every other call may be repeated: the first of each kind fails.
            let mut seen = BTreeSet::new();
            remote.proxy.set_rule(move |method, path| {
                let is_first = path.starts_with(kind.prefix) && seen.insert(format!("{method} {path}"));
                if is_first { Fault::Answer(500, "") } else { Fault::None }
            });
            if provider.capabilities().pauses {
                provider.pause(&target(&spec)).await.unwrap();
                provider.resume(&target(&spec)).await.unwrap();
            } else {
                provider.halt(&target(&spec)).await.unwrap();
                provider.boot(&spec).await.unwrap();
            }
            provider.destroy(&target(&spec)).await.unwrap();
            assert_eq!(remote.objects("statuses").await, []);
        }
        // A quota does not pass.
        remote.proxy.set_rule(|method, _| match method {
            "POST" => Fault::Answer(429, "should-retry: false\r\n"),
            _ => Fault::None,
        });
        let refused = provider.create(&fixture.spec()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
        remote.proxy.set_rule(|_, _| Fault::Answer(401, ""));
        let refused = provider.create(&fixture.spec()).await.unwrap_err();
        assert!(refused.to_string().contains("does not accept the key"), "{refused}");
        assert!(!format!("{refused:?}").contains(remote.account.key()));
    });
}

pub(crate) fn strays_are_removed_and_those_of_others_stay(kind: &'static RemoteKind) {
    run(async |w| {
        let remote = RemoteWorld::open(w, kind).await;
        let (ours, theirs) = (remote.provider("ours").await, remote.provider("theirs").await);
        let other = remote.fixture(&theirs).spec();
        theirs.create(&other).await.unwrap();
        let unlabelled = remote.account.create(atoll_tests::json!({})).await;
        // The create is done and its reply lost; then the service is away, so it can be neither found nor removed.
        remote.proxy.set_rule(|method, path| match kind.is_create(method, path) {
            true => Fault::LoseReply,
            false => Fault::Answer(500, ""),
        });
        let spec = remote.fixture(&ours).spec();
        let refused = ours.create(&spec).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert_eq!(remote.objects("ours").await.len(), 1);
        remote.proxy.set_rule(|_, _| Fault::None);
        until("the object is removed after the grace time", async || {
            remote.objects("ours").await.is_empty().then_some(())
        })
        .await;
        ours.destroy(&target(&other)).await.unwrap();
        ours.adopt(Vec::new(), Vec::new()).await.unwrap();
        remote.after_grace().await;
        assert_eq!(remote.objects("theirs").await.len(), 1, "an object of another server");
        assert_eq!(remote.account.sandbox(&unlabelled).await["phase"], "running");
        assert!(theirs.usage(&target(&other)).await.is_ok());
        theirs.destroy(&target(&other)).await.unwrap();
        remote.account.remove(&unlabelled).await;
    });
}

pub(crate) fn half_open_streams_go_on(kind: &'static RemoteKind) {
    run(async |w| {
        let remote = RemoteWorld::open(w, kind).await;
        let provider = remote.provider("streams").await;
        let spec = remote.fixture(&provider).spec();
        provider.create(&spec).await.unwrap();
        let session = provider.session_support().unwrap();
        let line = "echo first; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo second; exit 7";
        let StartedProcess { mut output, .. } =
            session.start_process(&target(&spec), shell(line)).await.unwrap();
        assert_eq!(output.next().await.unwrap().unwrap(), ProcessEvent::Stdout("first\n".into()));
        remote.proxy.freeze(true);
        // The stream is silent for longer than it may be, and is given up.
        let thaw = async {
            let frozen = Instant::now();
            until("the stream was silent for too long", async || {
                (frozen.elapsed() > Duration::from_secs(5)).then_some(())
            })
            .await;
            remote.proxy.freeze(false);
            until("the process can be told to go on", async || {
                let content = futures::stream::empty().boxed();
                session.write_file(&target(&spec), "/tmp/go", None, None, Some(0), content).await.ok()
            })
            .await;
        };
        let rest = async {
            let mut events = Vec::new();
            while let Some(event) = output.next().await {
                events.push(event.unwrap());
            }
            events
        };
        let (events, ()) = tokio::join!(rest, thaw);
        assert_eq!(events.first(), Some(&ProcessEvent::Stdout("second\n".into())), "{events:?}");
        assert!(
            matches!(events.last(), Some(ProcessEvent::Exit(status)) if status.code == Some(7)),
            "{events:?}"
        );
        provider.destroy(&target(&spec)).await.unwrap();
    });
}

pub(crate) fn dead_service_is_refused_at_once(kind: &'static RemoteKind) {
    run(async |w| {
        let remote = RemoteWorld::open(w, kind).await;
        let provider = remote.provider("dead").await;
        let spec = remote.fixture(&provider).spec();
        provider.create(&spec).await.unwrap();
        remote.proxy.set_rule(|_, _| Fault::Answer(500, ""));
        until("calls are refused without being sent", async || {
            let before = remote.proxy.count("DELETE", kind.object_part);
            let refused = provider.destroy(&target(&spec)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            let is_sent = remote.proxy.count("DELETE", kind.object_part) > before;
            (!is_sent && refused.to_string().contains("the next attempt is in")).then_some(())
        })
        .await;
        let started = Instant::now();
        assert!(provider.owned().await.is_err());
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        remote.proxy.set_rule(|_, _| Fault::None);
        until("the service is used again", async || provider.destroy(&target(&spec)).await.ok()).await;
        assert_eq!(remote.objects("dead").await, []);
    });
}
