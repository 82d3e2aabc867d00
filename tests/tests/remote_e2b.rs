//! The provider `e2b` with a second Atoll server as the service.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use atoll_model::{ErrorKind, InstanceId, SnapshotId};
use atoll_provider::{InstanceSpec, KnownSandbox, NoticeKind, Provider, ProviderError, Target};
use atoll_remote_e2b::{ApiKey, E2bConfig, E2bProvider, E2bSandboxes, E2bSettings, E2bTiming};
use atoll_tests::fault_proxy::Fault;
use atoll_tests::{Value, run, until};
use futures::StreamExt;

use crate::remote::{self, GRACE, RemoteKind, RemoteWorld, TEMPLATE, begun, target};

static KIND: RemoteKind = RemoteKind {
    name: "e2b",
    create_path: "/e2b/v2/sandboxes",
    list_part: "/v2/sandboxes",
    object_part: "/sandboxes/",
    prefix: "/e2b",
    user: Some("root"),
    cases: 31,
    open: |remote, owner| open(remote, owner, settings(remote)),
};

fn settings(remote: &RemoteWorld<'_>) -> E2bSettings {
    E2bSettings {
        api_key: ApiKey::new(remote.account.key().to_owned()),
        api_url: remote.url("/e2b"),
        sandbox_url: Some(remote.url("")),
        template: TEMPLATE.to_owned(),
        cwd: None,
        timeout: 300,
    }
}

fn open(remote: &RemoteWorld<'_>, owner: &str, settings: E2bSettings) -> Arc<dyn Provider> {
    let config = E2bConfig {
        name: "e2b",
        owner: owner.to_owned(),
        data: remote.world.folder().join(owner),
        settings,
        sandboxes: E2bSandboxes::default(),
        timing: E2bTiming {
            watch_every: Duration::from_millis(300),
            grace: GRACE,
            stream_silence: Duration::from_secs(4),
        },
    };
    Arc::new(E2bProvider::open(config).unwrap())
}

#[test]
fn the_conformance_suite_holds_at_a_service_with_the_api_of_e2b() {
    remote::conformance_suite_holds(&KIND);
}

#[test]
fn fifty_creates_whose_replies_are_half_lost_make_fifty_sandboxes() {
    remote::fifty_creates_make_fifty_sandboxes(&KIND);
}

#[test]
fn statuses_that_pass_are_waited_for_and_others_are_told() {
    remote::statuses_are_waited_for_or_told(&KIND);
}

#[test]
fn an_object_that_a_lost_create_left_is_removed_and_those_of_others_stay() {
    remote::strays_are_removed_and_those_of_others_stay(&KIND);
}

#[test]
fn a_half_open_stream_ends_and_the_process_is_attached_again() {
    remote::half_open_streams_go_on(&KIND);
}

#[test]
fn a_service_that_does_not_answer_is_refused_at_once_after_a_while() {
    remote::dead_service_is_refused_at_once(&KIND);
}

#[test]
fn a_snapshot_that_a_lost_reply_left_is_removed_and_those_of_others_stay() {
    run(async |w| {
        let remote = RemoteWorld::open(w, &KIND).await;
        let (ours, theirs) = (remote.provider("ours").await, remote.provider("theirs").await);
        let (own, other) = (remote.fixture(&ours).spec(), remote.fixture(&theirs).spec());
        ours.create(&own).await.unwrap();
        theirs.create(&other).await.unwrap();
        let [kept, lost] = [[1; 20], [2; 20]].map(SnapshotId::from_entropy);
        let seal = theirs.snapshot(&target(&other), &kept, false).await.unwrap().seal;
        let mine = async || {
            let listed = remote.account.get("/v1/snapshots").await.ok()["items"].as_array().unwrap().clone();
            let is_ours = |item: &&Value| item["name"].as_str().is_some_and(|name| name.contains("-ours-"));
            listed.iter().filter(is_ours).count()
        };
        // It is taken and its reply lost; then the service is away, so it can be neither found nor removed.
        remote.proxy.set_rule(|method, path| match method == "POST" && path.ends_with("/snapshots") {
            true => Fault::LoseReply,
            false => Fault::Answer(500, ""),
        });
        let refused = ours.snapshot(&target(&own), &lost, false).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert_eq!(mine().await, 1);
        remote.proxy.set_rule(|_, _| Fault::None);
        until("it is removed", async || (mine().await == 0).then_some(())).await;
        // Neither an adoption nor a removal touches what belongs to another server.
        ours.adopt(Vec::new(), Vec::new()).await.unwrap();
        ours.remove_snapshot(&kept).await.unwrap();
        theirs.verify_snapshot(&kept, &seal).await.unwrap();
        let memory = theirs.snapshot(&target(&other), &lost, true).await.unwrap_err();
        assert!(memory.to_string().contains("checkpoint"), "{memory}");
        theirs.remove_snapshot(&kept).await.unwrap();
        theirs.destroy(&target(&other)).await.unwrap();
    });
}

#[test]
fn the_files_of_a_rollback_are_those_of_the_next_server_too() {
    run(async |w| {
        let remote = RemoteWorld::open(w, &KIND).await;
        let provider = remote.provider("back").await;
        let spec = remote.fixture(&provider).spec();
        provider.create(&spec).await.unwrap();
        let snapshot = SnapshotId::from_entropy([3; 20]);
        let text = async |provider: &Arc<dyn Provider>, spec: &InstanceSpec| {
            let session = provider.session_support().unwrap();
            let file = session.read_file(&target(spec), "/tmp/note", None, None).await.unwrap();
            file.stream.map(|chunk| chunk.unwrap().to_vec()).concat().await
        };
        let write = async |text: &'static str| {
            let content = futures::stream::once(async move { Ok(text.into()) }).boxed();
            let session = provider.session_support().unwrap();
            let len = Some(text.len() as u64);
            session.write_file(&target(&spec), "/tmp/note", None, None, len, content).await.unwrap();
        };
        write("then").await;
        let seal = provider.snapshot(&target(&spec), &snapshot, false).await.unwrap().seal;
        write("now").await;
        provider.halt(&target(&spec)).await.unwrap();
        // The object before the rollback cannot be removed, and the server ends.
        remote.proxy.set_rule(|method, _| match method {
            "DELETE" => Fault::Answer(500, ""),
            _ => Fault::None,
        });
        let files = Target { sandbox: spec.sandbox.clone(), instance: None };
        provider.rollback(&files, &snapshot, &seal, &spec.limits).await.unwrap();
        assert_eq!(remote.objects("back").await.len(), 2);
        drop(provider);
        remote.proxy.set_rule(|_, _| Fault::None);
        let next = open(&remote, "back", settings(&remote));
        let known = KnownSandbox {
            sandbox: spec.sandbox.clone(),
            instance: None,
            storage: spec.storage,
            limits: spec.limits,
            network: Arc::clone(&spec.network),
            paused: false,
        };
        next.adopt(vec![known], vec![snapshot.clone()]).await.unwrap();
        drop(next.notices());
        let again = InstanceSpec { instance: InstanceId::from_entropy([4; 20]), ..spec };
        next.boot(&again).await.unwrap();
        assert_eq!(text(&next, &again).await, b"then");
        until("the object before the rollback is removed", async || {
            (remote.objects("back").await.len() == 1).then_some(())
        })
        .await;
        assert_eq!(text(&next, &again).await, b"then");
        next.destroy(&target(&again)).await.unwrap();
        next.remove_snapshot(&snapshot).await.unwrap();
        assert_eq!(remote.objects("back").await, []);
    });
}

#[test]
fn a_service_that_forgot_or_paused_a_sandbox_is_noticed() {
    run(async |w| {
        let remote = RemoteWorld::open(w, &KIND).await;
        let settings = E2bSettings { timeout: 3, ..settings(&remote) };
        let provider = begun(open(&remote, "kept", settings)).await;
        let mut notices = provider.notices();
        let spec = remote.fixture(&provider).spec();
        let booted = provider.create(&spec).await.unwrap();
        let id = booted.facts["object"].as_str().unwrap().to_owned();
        // Its lifetime is three seconds; it is extended.
        until("its lifetime is extended", async || {
            (remote.proxy.count("POST", "/timeout") >= 5).then_some(())
        })
        .await;
        until("it runs", async || (remote.account.sandbox(&id).await["phase"] == "running").then_some(()))
            .await;
        // Somebody pauses it there: it has to run.
        remote.account.act(&id, "pause").await.ok();
        until("it runs again", async || {
            (remote.account.sandbox(&id).await["phase"] == "running").then_some(())
        })
        .await;
        // What this server pauses stays so.
        provider.pause(&target(&spec)).await.unwrap();
        remote.watch_rounds(3).await;
        assert_eq!(remote.account.sandbox(&id).await["phase"], "paused");
        provider.resume(&target(&spec)).await.unwrap();
        // The service forgets it.
        remote.account.remove(&id).await;
        let gone = provider.session_support().unwrap().processes(&target(&spec)).await;
        assert!(matches!(gone, Err(ProviderError::Gone { .. })), "{gone:?}");
        let notice = notices.recv().await.unwrap();
        assert_eq!((notice.instance, notice.what), (spec.instance.clone(), NoticeKind::Died));
        provider.destroy(&target(&spec)).await.unwrap();
    });
}
