//! Threads on a real server: one sandbox and one provider each, terminals that keep their place, and the orderly end.
#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::terminal::Screen;
use atoll_tests::{Client, Value, World, json, run, until};
use nix::sys::signal::Signal;
use reqwest::Method;

/// The database for writing, beside the server.
fn database(w: &World) -> rusqlite::Connection {
    rusqlite::Connection::open(w.data().join("sandbox.db")).unwrap()
}

async fn becomes(client: &Client, id: &str, phase: &str) -> Value {
    until(&format!("{id} becomes {phase}"), async || {
        let now = client.sandbox(id).await;
        (now["phase"] == phase).then_some(now)
    })
    .await
}

/// Creates with this body; the status and the id.
async fn create(client: &Client, body: Value) -> (u16, String) {
    let answer = client.post("/v1/sandboxes", body).await;
    (answer.status, answer.ok()["id"].as_str().unwrap().to_owned())
}

#[test]
fn a_thread_has_one_sandbox_and_one_provider_for_good() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let talk = json!({ "thread": "conversation/7", "provider": "container" });
        let (made, id) = create(&client, talk.clone()).await;
        assert_eq!(made, 201);
        for body in [talk.clone(), json!({ "thread": "conversation/7" })] {
            assert_eq!(create(&client, body).await, (200, id.clone()));
        }
        let shown = client.get("/v1/threads/conversation%2F7").await.ok();
        assert_eq!(
            (&shown["sandbox"], &shown["provider"], &shown["phase"]),
            (&json!(id), &json!("container"), &json!("running"))
        );
        assert_eq!(client.sandbox(&id).await["on_exit"], "pause", "the default of threads");
        let unknown = json!({ "thread": "conversation/7", "provider": "nowhere" });
        client.post("/v1/sandboxes", unknown).await.refused(404, "provider_not_found");
        // This server has one provider, so another binding is written for it.
        database(w).execute("UPDATE threads SET provider = 'elsewhere'", []).unwrap();
        let refused = client.post("/v1/sandboxes", talk.clone()).await.refused(409, "thread_bound");
        assert!(refused["message"].as_str().unwrap().contains("elsewhere"), "{refused}");
        database(w).execute("UPDATE threads SET provider = 'container'", []).unwrap();

        client.remove(&id).await;
        w.crash_server().await;
        let shown = client.get("/v1/threads/conversation%2F7").await.ok();
        assert_eq!((&shown["sandbox"], &shown["provider"]), (&Value::Null, &json!("container")));
        let (made, next) = create(&client, talk).await;
        assert!(made == 201 && next != id, "{made} {next}");
        let other = w.tenant("other").await;
        other.get("/v1/threads/conversation%2F7").await.refused(404, "thread_not_found");
        assert_eq!(other.get("/v1/threads").await.ok()["items"], json!([]));
        assert_eq!(create(&other, json!({ "thread": "conversation/7" })).await.0, 201);
    });
}

#[test]
fn threads_are_listed_in_pages_and_bad_input_is_refused() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let mut ids = Vec::new();
        for n in 0..3 {
            ids.push(create(&client, json!({ "thread": format!("t{n}") })).await.1);
        }
        let page = client.get("/v1/threads?limit=2").await.ok();
        let names = |page: &Value| {
            let items = page["items"].as_array().unwrap();
            items.iter().map(|one| one["thread"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&page), ["t2", "t1"]);
        let cursor = page["next_cursor"].as_str().unwrap();
        let last = client.get(&format!("/v1/threads?limit=2&cursor={cursor}")).await.ok();
        assert_eq!((names(&last), &last["next_cursor"]), (vec!["t0".to_owned()], &Value::Null));
        for bad in ["limit=0", "limit=-1", "limit=x", "cursor=%27;DROP", "colour=red"] {
            let answer = client.raw(Method::GET, &format!("/v1/threads?{bad}")).send().await.unwrap();
            assert_eq!(answer.status(), 400, "{bad}");
        }
        for bad in ["%00", "a%0Ab", &"x".repeat(256)] {
            let answer = client.raw(Method::GET, &format!("/v1/threads/{bad}")).send().await.unwrap();
            assert_eq!(answer.status(), 400, "{bad}");
        }
        for odd in ["..%2F..%2Fetc", "%27%20OR%201=1--", "%F0%9F%90%9A"] {
            client.get(&format!("/v1/threads/{odd}")).await.refused(404, "thread_not_found");
        }
        // A hundred at once make one sandbox.
        let racing = (0..20).map(|_| create(&client, json!({ "thread": "race" })));
        let raced = futures::future::join_all(racing).await;
        assert!(raced.iter().all(|(_, id)| *id == raced[0].1), "{raced:?}");
        assert_eq!(raced.iter().filter(|(status, _)| *status == 201).count(), 1);
    });
}

#[test]
fn a_terminal_of_a_thread_keeps_its_place_over_pauses_and_restarts() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let (_, id) = create(&client, json!({ "thread": "talk" })).await;
        let path = format!("/v1/sandboxes/{id}/terminals");
        let open = async || {
            let body = json!({ "thread": "talk", "cols": 80, "rows": 24 });
            client.post(&path, body).await.ok()["id"].as_str().unwrap().to_owned()
        };
        let terminal = open().await;
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("cd /tmp; export MARK=kept; echo re''ady\n").await;
        screen.wait_for("ready").await;
        drop(screen);
        let still_there = async |after: &str| {
            assert_eq!(open().await, terminal, "{after}");
            let mut screen = Screen::attach(&client, &id, &terminal).await;
            screen.input(format!("echo {after}: at=$(pwd) mark=$MARK\n")).await;
            screen.wait_for(&format!("{after}: at=/tmp mark=kept")).await;
        };
        client.act(&id, "pause").await.ok();
        client.act(&id, "resume").await.ok();
        still_there("pause").await;
        w.crash_server().await;
        still_there("crash").await;
        // The default of threads: the end of the server pauses, and the next command wakes.
        w.stop_server(Signal::SIGTERM).await;
        w.start_server().await;
        assert_eq!(client.sandbox(&id).await["phase"], "paused");
        still_there("exit").await;
    });
}

#[test]
fn an_orderly_end_pauses_threads_and_a_crash_pauses_nothing() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let (_, bound) = create(&client, json!({ "thread": "a" })).await;
        let (_, goes) = create(&client, json!({ "thread": "b", "on_exit": "destroy" })).await;
        let (_, plain) = create(&client, json!({})).await;
        w.crash_server().await;
        for id in [&bound, &goes, &plain] {
            assert_eq!(client.sandbox(id).await["phase"], "running", "a crash is no exit");
        }
        w.stop_server(Signal::SIGTERM).await;
        w.start_server().await;
        becomes(&client, &goes, "deleted").await;
        assert_eq!(client.sandbox(&bound).await["phase"], "paused");
        assert_eq!(client.sandbox(&plain).await["phase"], "running", "others keep running");
        assert_eq!(client.sh(&bound, "echo awake").await.text(), "awake", "a command wakes it");
    });
}

#[test]
fn an_end_that_was_cut_short_is_finished_at_the_next_start() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let (_, bound) = create(&client, json!({ "thread": "a" })).await;
        let (_, goes) = create(&client, json!({ "thread": "b", "on_exit": "destroy" })).await;
        let fail_at = w.folder().join("fail-at");
        w.crash_server_with(&[("ATOLL_FAIL_AT", &format!("@{}", fail_at.display()))]).await;
        std::fs::write(&fail_at, "exit.marked").unwrap();
        // It aborts between the marks and the first pause.
        let ended = w.stop_server(Signal::SIGTERM).await;
        assert!(!ended.success(), "{ended}");
        w.start_server().await;
        let paused = becomes(&client, &bound, "paused").await;
        becomes(&client, &goes, "deleted").await;
        assert_eq!(paused["intent"], "pause", "{paused}");
        assert_eq!(client.sh(&bound, "echo awake").await.text(), "awake");
        w.crash_server().await;
        assert_eq!(client.sandbox(&bound).await["phase"], "running", "it is finished once");
    });
}

#[test]
fn the_command_line_lists_shows_and_ends_threads() {
    run(async |w: &World| {
        let client = w.first_tenant().await;
        let (_, id) = create(&client, json!({ "thread": "a/b" })).await;
        let atoll = async |words: &[&str]| {
            let mut command = w.command();
            command.args(words);
            let output = w.output(command).await;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.success(), text, String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (ok, table, _) = atoll(&["thread", "ls"]).await;
        assert!(ok && table.contains("a/b") && table.contains(&id) && table.contains("container"), "{table}");
        assert_eq!(atoll(&["thread", "ls", "-q"]).await.1, "a/b\n");
        let listed: Value = serde_json::from_str(&atoll(&["--json", "thread", "ls"]).await.1).unwrap();
        assert_eq!(listed[0]["sandbox"], json!(id), "{listed}");
        let shown: Value =
            serde_json::from_str(&atoll(&["--json", "thread", "show", "a/b"]).await.1).unwrap();
        assert_eq!((&shown["thread"], &shown["phase"]), (&json!("a/b"), &json!("running")));
        let (ok, _, said) = atoll(&["thread", "show", "none"]).await;
        assert!(!ok && said.contains("there is no thread none"), "{said}");
        let (ok, ended, _) = atoll(&["thread", "end", "a/b"]).await;
        assert!(ok && ended.contains("paused"), "{ended}");
    });
}
