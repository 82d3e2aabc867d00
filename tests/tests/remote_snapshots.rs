//! Snapshots of sandboxes at a vendor with E2B's API: taken, used, rolled back to and removed by a real server, over lost replies and
//! over crashes at every named step.
#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::fault_proxy::{Fault, FaultProxy};
use atoll_tests::{Client, Options, Value, json, run_with, until};

use crate::remote_agentbay_server::forget_providers;
use crate::remote_server::{CrashWorld, E2B, RemoteService, SERVICE, configure, objects};

async fn snapshots(client: &Client) -> Vec<Value> {
    client.get("/v1/snapshots").await.ok()["items"].as_array().unwrap().clone()
}

async fn text(client: &Client, id: &str) -> String {
    client.sh(id, "cat /workspace/note").await.text().to_owned()
}

async fn write(client: &Client, id: &str, text: &'static str) {
    client.write_file(id, "/workspace/note", text).await.ok();
}

#[test]
fn a_snapshot_at_e2b_is_taken_copied_rolled_back_to_and_removed() {
    run_with(Options::default(), async |w| {
        let service = RemoteService::start(w, "busybox").await;
        let account = service.account().await;
        let proxy = FaultProxy::start(SERVICE.parse().unwrap()).await;
        configure(w, &E2B, &proxy, account.key(), "busybox").await;
        let client = w.first_tenant().await;
        let id = client.create(json!({ "provider": "cloud" })).await;
        let at = |path: &str| format!("/v1/sandboxes/{id}{path}");
        write(&client, &id, "then").await;
        // Every second reply to a snapshot or a create is lost after it was done.
        let mut nth = 0;
        proxy.set_rule(move |method, path| {
            let is_meant =
                method == "POST" && (path.ends_with("/snapshots") || path.ends_with("/v2/sandboxes"));
            nth += i32::from(is_meant);
            if is_meant && nth % 2 == 1 { Fault::LoseReply } else { Fault::None }
        });
        let taken = client.post(&at("/snapshots"), json!({ "name": "golden" })).await.ok();
        assert_eq!((&taken["state"], &taken["memory"]), (&json!("ready"), &json!(false)), "{taken}");
        assert_eq!(snapshots(&account).await.len(), 1, "one, although its reply was lost");
        client.post_empty("/v1/snapshots/golden/verify").await.ok();
        write(&client, &id, "now").await;

        let copy = client.create(json!({ "snapshot": "golden" })).await;
        assert_eq!((text(&client, &copy).await.as_str(), text(&client, &id).await.as_str()), ("then", "now"));
        assert_eq!(client.sandbox(&copy).await["provider"], "cloud");
        let forked = client.post(&at("/fork"), json!({ "count": 2 })).await.ok();
        for fork in forked["sandboxes"].as_array().unwrap() {
            let fork = fork["id"].as_str().unwrap();
            assert_eq!(text(&client, fork).await, "now");
            client.remove(fork).await;
        }
        until("the fork's own snapshot is removed", async || {
            (snapshots(&account).await.len() == 1).then_some(())
        })
        .await;
        for again in ["rolled back", "and once more"] {
            client.post(&at("/rollback"), json!({ "snapshot": "golden" })).await.ok();
            assert_eq!(text(&client, &id).await, "then", "{again}");
            write(&client, &id, "later").await;
        }
        assert_eq!(objects(&account).await.len(), 2, "the sandbox and its copy, each with one object");
        // A crash keeps what is known, and the copy needs no snapshot.
        w.crash_server().await;
        assert_eq!(snapshots(&account).await.len(), 1);
        assert_eq!(text(&client, &id).await, "later");
        client.delete("/v1/snapshots/golden").await.ok();
        assert_eq!(snapshots(&account).await, Vec::<Value>::new());
        assert_eq!(text(&client, &copy).await, "then");
        // A snapshot that was removed at the service is noticed.
        let lost = client.post(&at("/snapshots"), json!({ "name": "lost" })).await.ok();
        let theirs = snapshots(&account).await[0]["id"].as_str().unwrap().to_owned();
        account.delete(&format!("/v1/snapshots/{theirs}")).await.ok();
        client.post_empty("/v1/snapshots/lost/verify").await.refused(409, "damaged");
        client.post(&at("/rollback"), json!({ "snapshot": lost["id"] })).await.refused(409, "damaged");
        client.delete("/v1/snapshots/lost").await.ok();
        for sandbox in [&id, &copy] {
            client.remove(sandbox).await;
        }
        assert_eq!(objects(&account).await, Vec::<Value>::new());
        forget_providers(w);
        service.uninstall().await;
    });
}

/// The places of a snapshot, its removal and a rollback.
const PLACES: &[&str] = &[
    "snapshot.row",
    "snapshot.made",
    "snapshot.ready",
    "snapshot.deleting",
    "snapshot.removed",
    "rollback.before",
    "rollback.after",
];

#[test]
fn a_crash_at_every_step_of_a_snapshot_leaves_one_or_none() {
    run_with(Options::default(), async |w| {
        let service = RemoteService::start(w, "busybox").await;
        let account = service.account().await;
        let proxy = FaultProxy::start(SERVICE.parse().unwrap()).await;
        configure(w, &E2B, &proxy, account.key(), "busybox").await;
        let crashes = CrashWorld { world: w, client: w.first_tenant().await, provider: "cloud" };
        let client = &crashes.client;
        let fail_at = crashes.listen_for_places().await;
        let id = client.create(json!({ "provider": "cloud" })).await;
        let at = |path: &str| format!("/v1/sandboxes/{id}{path}");
        for place in PLACES {
            write(client, &id, "then").await;
            let is_taken = !matches!(*place, "snapshot.row" | "snapshot.made" | "snapshot.ready");
            if is_taken {
                client.post(&at("/snapshots"), json!({ "name": "golden" })).await.ok();
                write(client, &id, "now").await;
            }
            let (path, body) = match place.split_once('.').unwrap() {
                ("rollback", _) => (("POST", at("/rollback")), Some(json!({ "snapshot": "golden" }))),
                _ if is_taken => (("DELETE", "/v1/snapshots/golden".to_owned()), None),
                _ => (("POST", at("/snapshots")), Some(json!({ "name": "golden" }))),
            };
            assert!(
                crashes.ask_and_die(&fail_at, place, (path.0, &path.1, body)).await,
                "{place} was not reached"
            );
            let own = until(place, async || {
                let (own, theirs) = (snapshots(client).await, snapshots(&account).await);
                let phase = client.sandbox(&id).await["phase"].as_str().unwrap().to_owned();
                let rests = ["running", "stopped"].contains(&phase.as_str());
                let is_whole = own.iter().all(|item| item["state"] == "ready");
                (rests && is_whole && own.len() == theirs.len()).then_some(own)
            })
            .await;
            assert!(own.len() <= 1, "{place}: {own:?}");
            let at_service = objects(&account).await;
            assert_eq!(at_service.len(), 1, "{place}: {at_service:?}");
            if client.sandbox(&id).await["phase"] == "stopped" {
                client.act(&id, "start").await.ok();
            }
            let found = text(client, &id).await;
            match *place {
                "rollback.before" | "rollback.after" => {
                    assert!(["then", "now"].contains(&found.as_str()), "{place}: {found}")
                }
                "snapshot.deleting" | "snapshot.removed" => {
                    assert_eq!((found.as_str(), own.len()), ("now", 0), "{place}")
                }
                _ => assert_eq!(found, "then", "{place}"),
            }
            if !own.is_empty() {
                client.post_empty("/v1/snapshots/golden/verify").await.ok();
                client.delete("/v1/snapshots/golden").await.ok();
            }
        }
        client.remove(&id).await;
        assert_eq!((objects(&account).await, snapshots(&account).await), (Vec::new(), Vec::new()));
        w.crash_server_with(&[("ATOLL_FAIL_AT", "")]).await;
        forget_providers(w);
        service.uninstall().await;
    });
}
