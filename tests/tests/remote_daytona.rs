//! The provider `daytona` with a second Atoll server as the service.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use atoll_provider::{NoticeKind, Provider, ProviderError};
use atoll_remote_daytona::{
    ApiKey, DaytonaConfig, DaytonaProvider, DaytonaSandboxes, DaytonaSettings, DaytonaTiming,
};
use atoll_tests::{run, until};

use crate::remote::{self, GRACE, RemoteKind, RemoteWorld, TEMPLATE, begun, target};

static KIND: RemoteKind = RemoteKind {
    name: "daytona",
    create_path: "/daytona/api/sandbox",
    list_part: "/api/sandbox?",
    object_part: "/api/sandbox/",
    prefix: "/daytona/api",
    user: None,
    cases: 20,
    open: |remote, owner| open(remote, owner),
};

fn open(remote: &RemoteWorld<'_>, owner: &str) -> Arc<dyn Provider> {
    let settings = DaytonaSettings {
        api_key: ApiKey::new(remote.account.key().to_owned()),
        api_url: remote.url("/daytona/api"),
        target: Some("local".to_owned()),
        organization: None,
        snapshot: Some(TEMPLATE.to_owned()),
        user: Some("root".to_owned()),
        cwd: Some("/workspace".to_owned()),
        timeout: 300,
    };
    let timing = DaytonaTiming {
        watch_every: Duration::from_millis(300),
        grace: GRACE,
        stream_silence: Duration::from_secs(4),
    };
    let (owner, sandboxes) = (owner.to_owned(), DaytonaSandboxes::default());
    let config = DaytonaConfig { name: "daytona", owner, settings, sandboxes, timing };
    Arc::new(DaytonaProvider::open(config).unwrap())
}

#[test]
fn the_conformance_suite_holds_at_a_service_with_the_api_of_daytona() {
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
fn a_service_that_forgot_or_stopped_a_sandbox_is_noticed() {
    run(async |w| {
        let remote = RemoteWorld::open(w, &KIND).await;
        let provider = begun(open(&remote, "kept")).await;
        let mut notices = provider.notices();
        let spec = remote.fixture(&provider).spec();
        let booted = provider.create(&spec).await.unwrap();
        let id = booted.facts["object"].as_str().unwrap().to_owned();
        // Somebody stops it there: its processes are gone, its files are not.
        remote.account.act(&id, "stop").await.ok();
        let notice = notices.recv().await.unwrap();
        assert_eq!((notice.instance, notice.what), (spec.instance.clone(), NoticeKind::Died));
        let gone = provider.session_support().unwrap().processes(&target(&spec)).await;
        assert!(matches!(gone, Err(ProviderError::Gone { .. })), "{gone:?}");
        let next =
            atoll_provider::InstanceSpec { instance: remote.fixture(&provider).spec().instance, ..spec };
        let booted = provider.boot(&next).await.unwrap();
        assert_eq!(booted.facts["object"], id.as_str(), "the same object runs again");
        // What this server stops stays so.
        provider.halt(&target(&next)).await.unwrap();
        remote.watch_rounds(3).await;
        assert_eq!(remote.account.sandbox(&id).await["phase"], "stopped");
        provider.boot(&next).await.unwrap();
        // The service forgets it.
        remote.account.remove(&id).await;
        let gone = provider.session_support().unwrap().processes(&target(&next)).await;
        assert!(matches!(gone, Err(ProviderError::Gone { .. })), "{gone:?}");
        let notice = notices.recv().await.unwrap();
        assert_eq!((notice.instance, notice.what), (next.instance.clone(), NoticeKind::Died));
        provider.destroy(&target(&next)).await.unwrap();
        until("nothing is left", async || remote.objects("kept").await.is_empty().then_some(())).await;
    });
}
