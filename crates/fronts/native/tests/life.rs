//! The whole life of a sandbox over the API: every operation, its response, and its refusals. Each exchange is checked
//! against the document.
#![allow(clippy::unwrap_used)]

use crate::support::{Answer, World};
use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};

/// A world with one key and short helper methods.
struct Desk {
    world: World,
}

impl Desk {
    async fn new() -> Self {
        Self { world: World::new().await }
    }

    async fn ask(&self, method: &str, path: &str, sent: Option<Value>) -> Answer {
        self.world.ask(method, path, Some(&self.world.admin), sent).await
    }

    /// The body of a response that must be a success.
    async fn ok(&self, method: &str, path: &str, sent: Option<Value>) -> Value {
        let answer = self.ask(method, path, sent).await;
        assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.text());
        answer.json()
    }

    async fn refused(&self, method: &str, path: &str, sent: Option<Value>) -> (u16, String) {
        self.ask(method, path, sent).await.refusal()
    }

    /// Creates a sandbox named `box`.
    async fn create(&self) -> Value {
        self.ok("POST", "/v1/sandboxes", Some(json!({ "name": "box" }))).await
    }
}

fn code(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn a_sandbox_is_paused_and_resumed_with_its_memory_live_or_on_disk() {
    let desk = Desk::new().await;
    desk.create().await;
    let paused = desk.ok("POST", "/v1/sandboxes/box/pause", None).await;
    assert_eq!((&paused["phase"], &paused["held"]), (&json!("paused"), &json!("live")), "{paused}");
    let on_disk = desk.ok("POST", "/v1/sandboxes/box/pause", Some(json!({ "memory": "disk" }))).await;
    assert_eq!((&on_disk["phase"], &on_disk["held"]), (&json!("paused"), &json!("disk")), "{on_disk}");
    let running = desk.ok("POST", "/v1/sandboxes/box/resume", None).await;
    assert_eq!((&running["phase"], &running["held"]), (&json!("running"), &Value::Null), "{running}");
    let again = desk.ok("POST", "/v1/sandboxes/box/resume", None).await;
    assert_eq!(again["phase"], "running", "one that runs is left as it is");
    let soon = desk.ok("POST", "/v1/sandboxes/box/pause?wait=0", Some(json!({ "memory": "live" }))).await;
    assert!(["pausing", "paused"].contains(&soon["phase"].as_str().unwrap()), "{soon}");
    assert_eq!(desk.ok("POST", "/v1/sandboxes/box/start", None).await["phase"], "running");
}

#[tokio::test]
async fn memory_on_disk_where_it_cannot_be_had_is_refused_before_anything_is_done() {
    let desk = Desk::new().await;
    desk.world.fake.set_capabilities(|able| able.checkpoints = false);
    desk.create().await;
    let wish = Some(json!({ "memory": "disk" }));
    assert_eq!(desk.refused("POST", "/v1/sandboxes/box/pause", wish).await, code(501, "unsupported"));
    let wish = Some(json!({ "memory": true }));
    assert_eq!(
        desk.refused("POST", "/v1/sandboxes/box/snapshots", wish.clone()).await,
        code(501, "unsupported")
    );
    assert_eq!(desk.ok("GET", "/v1/sandboxes/box", None).await["phase"], "running");
    let forked = desk.ok("POST", "/v1/sandboxes/box/fork", wish).await;
    assert_eq!(forked["memory"], false, "files only, and it says so: {forked}");
    assert!(forked["memory_refused"].as_str().is_some_and(|why| !why.is_empty()), "{forked}");
}

#[tokio::test]
async fn a_snapshot_is_taken_listed_checked_used_and_removed() {
    let desk = Desk::new().await;
    let made = desk.create().await;
    let answer = desk.ask("POST", "/v1/sandboxes/box/snapshots", Some(json!({ "name": "clean" }))).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let taken = answer.json();
    let id = taken["id"].as_str().unwrap();
    assert_eq!(answer.headers[header::LOCATION], format!("/v1/snapshots/{id}"));
    assert_eq!(
        (&taken["name"], &taken["sandbox"], &taken["memory"]),
        (&json!("clean"), &made["id"], &json!(false))
    );
    let again = desk.refused("POST", "/v1/sandboxes/box/snapshots", Some(json!({ "name": "clean" }))).await;
    assert_eq!(again.0, 409, "{again:?}");
    let second = desk.ok("POST", "/v1/sandboxes/box/snapshots", None).await;

    let page = desk.ok("GET", "/v1/snapshots?limit=1", None).await;
    assert_eq!(page["items"][0]["id"], second["id"], "newest first: {page}");
    let rest = format!("/v1/snapshots?limit=1&cursor={}", page["next_cursor"].as_str().unwrap());
    assert_eq!(desk.ok("GET", &rest, None).await["items"][0]["id"], taken["id"]);
    for filter in ["sandbox=box", "name=clean&sandbox=box"] {
        let found = desk.ok("GET", &format!("/v1/snapshots?{filter}"), None).await;
        assert!(!found["items"].as_array().unwrap().is_empty(), "{filter}");
    }
    for by in ["clean", id, &id[..8]] {
        assert_eq!(desk.ok("GET", &format!("/v1/snapshots/{by}"), None).await["id"], taken["id"]);
    }
    assert_eq!(desk.ok("POST", "/v1/snapshots/clean/verify", None).await["id"], taken["id"]);

    let child = desk.ok("POST", "/v1/sandboxes", Some(json!({ "name": "child", "snapshot": "clean" }))).await;
    assert_eq!((&child["parent"], &child["snapshot"]), (&made["id"], &taken["id"]), "{child}");
    let lineage = desk.ok("GET", "/v1/sandboxes/box/lineage", None).await;
    assert_eq!(lineage, json!({ "parent": null, "snapshot": null, "children": [child["id"]] }));
    let lineage = desk.ok("GET", "/v1/sandboxes/child/lineage", None).await;
    assert_eq!(lineage, json!({ "parent": made["id"], "snapshot": taken["id"], "children": [] }));

    let back = desk.ok("POST", "/v1/sandboxes/box/rollback", Some(json!({ "snapshot": "clean" }))).await;
    assert_eq!(back["phase"], "running", "{back}");
    let foreign =
        desk.refused("POST", "/v1/sandboxes/child/rollback", Some(json!({ "snapshot": "clean" }))).await;
    assert_eq!(foreign, code(400, "invalid_request"), "only one's own");

    assert_eq!(desk.ask("DELETE", "/v1/snapshots/clean", None).await.status, 204);
    assert_eq!(desk.refused("GET", "/v1/snapshots/clean", None).await, code(404, "snapshot_not_found"));
    assert_eq!(desk.refused("DELETE", "/v1/snapshots/clean", None).await, code(404, "snapshot_not_found"));
    let gone = Some(json!({ "snapshot": "clean" }));
    assert_eq!(desk.refused("POST", "/v1/sandboxes", gone).await, code(404, "snapshot_not_found"));
}

#[tokio::test]
async fn a_damaged_snapshot_is_not_used() {
    let desk = Desk::new().await;
    desk.create().await;
    let taken = desk.ok("POST", "/v1/sandboxes/box/snapshots", None).await;
    let id = taken["id"].as_str().unwrap();
    assert!(desk.world.fake.damage(&id.parse().unwrap()));
    assert_eq!(desk.refused("POST", &format!("/v1/snapshots/{id}/verify"), None).await, code(409, "damaged"));
    let wish = Some(json!({ "snapshot": id }));
    assert_eq!(desk.refused("POST", "/v1/sandboxes", wish).await, code(409, "damaged"));
}

#[tokio::test]
async fn forks_are_all_there_and_say_what_was_granted() {
    let desk = Desk::new().await;
    let made = desk.ok("POST", "/v1/sandboxes", Some(json!({ "name": "box", "labels": { "a": "b" } }))).await;
    let wish = json!({ "count": 3, "memory": true, "timeout_s": 60 });
    let answer = desk.ask("POST", "/v1/sandboxes/box/fork", Some(wish)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let forked = answer.json();
    let children = forked["sandboxes"].as_array().unwrap();
    assert!(
        children.iter().all(|child| child["snapshot"].is_null() && child["parent"].is_string()),
        "{forked}"
    );
    assert_eq!((children.len(), &forked["memory"]), (3, &json!(true)), "{forked}");
    assert!(forked.get("memory_refused").is_none(), "{forked}");
    for child in children {
        assert_eq!((&child["phase"], &child["parent"]), (&json!("running"), &made["id"]), "{child}");
        assert_eq!((&child["labels"], &child["timeout_s"]), (&json!({ "a": "b" }), &json!(60)), "{child}");
    }
    let one = desk.ok("POST", "/v1/sandboxes/box/fork", None).await;
    assert_eq!(one["sandboxes"].as_array().unwrap().len(), 1, "one unless said otherwise");
    assert_eq!(
        desk.ok("GET", "/v1/snapshots", None).await["items"],
        json!([]),
        "what a fork needs is not listed"
    );
}

#[tokio::test]
async fn what_is_archived_comes_back_and_can_be_made_anew() {
    let desk = Desk::new().await;
    let made = desk.create().await;
    let early = desk.refused("POST", "/v1/sandboxes/box/restore", None).await;
    assert_eq!(early, code(409, "phase_conflict"), "it is not archived");
    let archived = desk.ok("POST", "/v1/sandboxes/box/archive", None).await;
    assert_eq!(archived["phase"], "archived", "{archived}");
    let key = archived["archive"]["key"].as_str().unwrap().to_owned();
    assert!(key.starts_with(made["id"].as_str().unwrap()), "{key}");
    let copy = desk.ok("POST", "/v1/sandboxes", Some(json!({ "name": "copy", "archive": key }))).await;
    assert_eq!((&copy["phase"], &copy["parent"]), (&json!("running"), &made["id"]), "{copy}");
    let back = desk.ok("POST", "/v1/sandboxes/box/restore", None).await;
    assert_eq!(back["phase"], "stopped", "{back}");
    assert_eq!(
        desk.ok("POST", "/v1/sandboxes/box/restore", None).await["phase"],
        "stopped",
        "repeating is fine"
    );
    assert_eq!(desk.ok("POST", "/v1/sandboxes/box/archive?wait=0", None).await["id"], made["id"]);
    assert_eq!(
        desk.ok("POST", "/v1/sandboxes/box/start", None).await["phase"],
        "running",
        "restored and started"
    );
    let none = Some(json!({ "archive": "nothing/here" }));
    assert_eq!(desk.refused("POST", "/v1/sandboxes", none).await, code(404, "archive_not_found"));
}

#[tokio::test]
async fn holds_extensions_and_timers_show_in_the_sandbox() {
    let desk = Desk::new().await;
    let wish = json!({ "name": "box", "auto_pause_s": 600, "auto_stop_s": -1, "checkpoint_after_s": 0,
        "auto_archive_s": 3600, "auto_delete_s": 7200, "on_exit": "pause", "thread": "t1", "wake": "explicit",
        "env": { "A": "1", "TOKEN": "hush" }, "private_env": ["TOKEN"], "timeout_s": 60, "on_timeout": "pause" });
    let made = desk.ok("POST", "/v1/sandboxes", Some(wish)).await;
    for (field, want) in [
        ("auto_pause_s", json!(600)),
        ("auto_stop_s", Value::Null),
        ("checkpoint_after_s", json!(0)),
        ("auto_archive_s", json!(3600)),
        ("auto_delete_s", json!(7200)),
        ("on_exit", json!("pause")),
        ("thread", json!("t1")),
        ("wake", json!("explicit")),
        ("private_env", json!(["TOKEN"])),
        ("on_timeout", json!("pause")),
        ("hold", Value::Null),
    ] {
        assert_eq!(made[field], want, "{field}");
    }
    let held =
        desk.ok("POST", "/v1/sandboxes/box/hold", Some(json!({ "for_s": 120, "reason": "a build" }))).await;
    assert_eq!(held["hold"]["reason"], "a build", "{held}");
    let awake = desk.ok("GET", "/v1/sandboxes/box/awake", None).await;
    assert!(awake["because"].as_array().unwrap().contains(&json!("hold")), "{awake}");
    assert_eq!(awake["idle"], false);
    assert_eq!(desk.ok("DELETE", "/v1/sandboxes/box/hold", None).await["hold"], Value::Null);
    assert_eq!(
        desk.ok("DELETE", "/v1/sandboxes/box/hold", None).await["hold"],
        Value::Null,
        "repeating is fine"
    );

    let longer = desk.ok("POST", "/v1/sandboxes/box/extend", Some(json!({ "seconds": 600 }))).await;
    let shorter = desk.ok("POST", "/v1/sandboxes/box/extend", Some(json!({ "seconds": 1 }))).await;
    assert!(longer["timeout_at"].as_str() > made["timeout_at"].as_str(), "{longer}");
    assert_eq!(shorter["timeout_at"], longer["timeout_at"], "never shortens");
    let changed = json!({ "auto_pause_s": -1, "auto_stop_s": 900, "on_exit": "keep", "wake": "any", "on_timeout": "stop" });
    let changed = desk.ok("PATCH", "/v1/sandboxes/box", Some(changed)).await;
    assert_eq!((&changed["auto_pause_s"], &changed["auto_stop_s"]), (&Value::Null, &json!(900)), "{changed}");
    assert_eq!(
        (&changed["on_exit"], &changed["wake"], &changed["on_timeout"]),
        (&json!("keep"), &json!("any"), &json!("stop"))
    );
    let shown = desk.ok("GET", "/v1/sandboxes/box", None).await;
    assert!(shown["awake"].is_object(), "one sandbox says why it is awake: {shown}");
    assert!(
        desk.ok("GET", "/v1/sandboxes", None).await["items"][0].get("awake").is_none(),
        "a list does not"
    );
}

#[tokio::test]
async fn the_end_of_a_thread_does_what_on_exit_says() {
    let desk = Desk::new().await;
    let wish = json!({ "name": "a", "thread": "t/1", "on_exit": "pause" });
    desk.ok("POST", "/v1/sandboxes", Some(wish)).await;
    // Further sandboxes of a thread are forks.
    let forked = desk.ok("POST", "/v1/sandboxes/a/fork", Some(json!({ "count": 2 }))).await;
    let mut forks = Vec::new();
    for (child, on_exit) in forked["sandboxes"].as_array().unwrap().iter().zip(["destroy", "keep"]) {
        let id = child["id"].as_str().unwrap().to_owned();
        desk.ok("PATCH", &format!("/v1/sandboxes/{id}"), Some(json!({ "on_exit": on_exit }))).await;
        forks.push(id);
    }
    let other = desk.world.tenant("other").await;
    let nothing = desk.world.ask("DELETE", "/v1/threads/t%2F1", Some(&other), None).await;
    assert_eq!(nothing.json()["items"], json!([]), "another tenant's thread is another thread");
    desk.ok("DELETE", "/v1/threads/t%2F1", None).await;
    let phase = async |name: &str| {
        desk.ask("GET", &format!("/v1/sandboxes/{name}"), None).await.json()["phase"].clone()
    };
    assert_eq!((phase("a").await, phase(&forks[1]).await), (json!("paused"), json!("running")));
    let gone = phase(&forks[0]).await;
    assert!(["deleting", "deleted"].contains(&gone.as_str().unwrap()), "{gone}");
}

#[tokio::test]
async fn wishes_that_make_no_sense_are_refused_by_the_name_of_their_field() {
    let desk = Desk::new().await;
    desk.create().await;
    for (path, sent, named) in [
        ("/v1/sandboxes/box/pause", json!({ "memory": "cloud" }), "memory"),
        ("/v1/sandboxes/box/pause", json!({ "memory": 1 }), "memory"),
        ("/v1/sandboxes/box/pause", json!({ "colour": 1 }), "colour"),
        ("/v1/sandboxes/box/pause?wait=maybe", json!({}), "wait"),
        ("/v1/sandboxes/box/snapshots", json!({ "name": "a b" }), "name"),
        ("/v1/sandboxes/box/snapshots", json!({ "memory": "yes" }), "memory"),
        ("/v1/sandboxes/box/fork", json!({ "count": 0 }), "count"),
        ("/v1/sandboxes/box/fork", json!({ "count": 101 }), "count"),
        ("/v1/sandboxes/box/fork", json!({ "count": -1 }), "count"),
        ("/v1/sandboxes/box/fork", json!({ "timeout_s": 0 }), "timeout_s"),
        ("/v1/sandboxes/box/fork", json!({ "labels": { "": "x" } }), "labels"),
        ("/v1/sandboxes/box/rollback", json!({}), "snapshot"),
        ("/v1/sandboxes/box/rollback", json!({ "snapshot": 1 }), "snapshot"),
        ("/v1/sandboxes/box/hold", json!({}), "for_s"),
        ("/v1/sandboxes/box/hold", json!({ "for_s": 0 }), "for_s"),
        ("/v1/sandboxes/box/hold", json!({ "for_s": 86_401 }), "for_s"),
        ("/v1/sandboxes/box/hold", json!({ "for_s": -1 }), "for_s"),
        ("/v1/sandboxes/box/hold", json!({ "for_s": 1, "reason": "x".repeat(10_000) }), "reason"),
        ("/v1/sandboxes/box/extend", json!({ "seconds": 0 }), "seconds"),
        ("/v1/sandboxes/box/extend", json!({ "seconds": u64::MAX }), "seconds"),
        ("/v1/sandboxes", json!({ "auto_stop_s": -2 }), "auto_stop_s"),
        ("/v1/sandboxes", json!({ "auto_stop_s": 0 }), "auto_stop_s"),
        ("/v1/sandboxes", json!({ "auto_pause_s": 1e18 }), "auto_pause_s"),
        ("/v1/sandboxes", json!({ "checkpoint_after_s": -5 }), "checkpoint_after_s"),
        ("/v1/sandboxes", json!({ "auto_archive_s": "soon" }), "auto_archive_s"),
        ("/v1/sandboxes", json!({ "auto_delete_s": i64::MAX }), "auto_delete_s"),
        ("/v1/sandboxes", json!({ "on_exit": "explode" }), "on_exit"),
        ("/v1/sandboxes", json!({ "wake": "never" }), "wake"),
        ("/v1/sandboxes", json!({ "thread": "" }), "thread"),
        ("/v1/sandboxes", json!({ "private_env": ["NOT_THERE"] }), "private_env"),
        ("/v1/sandboxes", json!({ "snapshot": "" }), "snapshot"),
        ("/v1/sandboxes", json!({ "snapshot": "a", "archive": "b" }), "archive"),
        ("/v1/sandboxes", json!({ "memory": true }), "memory"),
    ] {
        let answer = desk.ask("POST", path, Some(sent.clone())).await;
        assert_eq!(answer.refusal(), code(400, "invalid_request"), "{path} {sent}: {}", answer.text());
        assert!(
            answer.json()["message"].as_str().unwrap().contains(named),
            "{path} {sent}: {}",
            answer.text()
        );
    }
    for query in ["limit=0", "limit=-1", "colour=red"] {
        let answer = desk.ask("GET", &format!("/v1/snapshots?{query}"), None).await;
        assert_eq!(answer.refusal(), code(400, "invalid_request"), "{query}");
    }
    let shown = desk.ok("GET", "/v1/sandboxes/box", None).await;
    assert_eq!(shown["phase"], "running", "nothing of it was done");
    assert_eq!(desk.ok("GET", "/v1/snapshots", None).await["items"], json!([]));
}

#[tokio::test]
async fn bodies_that_are_no_objects_are_refused_on_every_verb() {
    let desk = Desk::new().await;
    desk.create().await;
    for verb in ["pause", "snapshots", "fork", "rollback", "hold", "extend"] {
        for (kind, body, status) in
            [("application/json", "[]", 400), ("application/json", "", 400), ("text/plain", "{}", 415)]
        {
            let request = Request::post(format!("/v1/sandboxes/box/{verb}"))
                .header("x-api-key", &desk.world.admin)
                .header(header::CONTENT_TYPE, kind);
            let answer = desk.world.send(request.body(Body::from(body)).unwrap()).await;
            assert_eq!(answer.refusal(), code(status, "invalid_request"), "{verb} {kind} {body:?}");
        }
    }
}

#[tokio::test]
async fn another_tenants_snapshot_looks_like_none() {
    let desk = Desk::new().await;
    let (red, blue) = (desk.world.tenant("red").await, desk.world.tenant("blue").await);
    desk.world.ask("POST", "/v1/sandboxes", Some(&red), Some(json!({ "name": "mine" }))).await;
    let sent = Some(json!({ "name": "moment" }));
    let taken = desk.world.ask("POST", "/v1/sandboxes/mine/snapshots", Some(&red), sent).await.json();
    let id = taken["id"].as_str().unwrap();
    for ident in [id, "moment", &id[..6]] {
        for (method, below) in [("GET", ""), ("DELETE", ""), ("POST", "/verify")] {
            let path = format!("/v1/snapshots/{ident}{below}");
            let answer = desk.world.ask(method, &path, Some(&blue), None).await;
            assert_eq!(answer.refusal(), code(404, "snapshot_not_found"), "{method} {path}");
        }
        let wish = Some(json!({ "snapshot": ident }));
        let answer = desk.world.ask("POST", "/v1/sandboxes", Some(&blue), wish).await;
        assert_eq!(answer.refusal(), code(404, "snapshot_not_found"), "{ident}");
    }
    assert_eq!(desk.world.ask("GET", "/v1/snapshots", Some(&blue), None).await.json()["items"], json!([]));
    assert_eq!(desk.world.ask("GET", "/v1/snapshots/moment", Some(&red), None).await.status, 200);
}

#[tokio::test]
async fn what_happened_is_told_in_events() {
    let desk = Desk::new().await;
    desk.create().await;
    desk.ok("POST", "/v1/sandboxes/box/snapshots", None).await;
    desk.ok("POST", "/v1/sandboxes/box/fork", None).await;
    desk.ok("POST", "/v1/sandboxes/box/pause", None).await;
    desk.ok("POST", "/v1/sandboxes/box/pause", Some(json!({ "memory": "disk" }))).await;
    let events = desk.ok("GET", "/v1/events?sandbox=box&after=0", None).await;
    let kinds: Vec<_> =
        events["items"].as_array().unwrap().iter().filter_map(|e| e["kind"].as_str()).collect();
    for kind in ["phase", "snapshotted", "forked", "checkpointed"] {
        assert!(kinds.contains(&kind), "{kind} is not among {kinds:?}");
    }
}
