//! Terminals over WebSocket: a shell bound to a thread that keeps its place, and abuse of it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use atoll_tests::terminal::{Knock, Screen};
use atoll_tests::{Client, Options, Value, json, run, run_with, until};
use reqwest::{Method, RequestBuilder};

async fn open(client: &Client, id: &str, thread: &str) -> String {
    let body = json!({ "thread": thread, "cols": 80, "rows": 24 });
    let opened = client.post(&format!("/v1/sandboxes/{id}/terminals"), body).await.ok();
    opened["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_terminal_keeps_directory_and_environment_between_attachments() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let terminal = open(&client, &id, "thread-1").await;
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("cd /tmp; export MARK=kept; echo re''ady\n").await;
        screen.wait_for("ready").await;
        drop(screen);
        assert_eq!(
            open(&client, &id, "thread-1").await,
            terminal,
            "the same thread finds its terminal again"
        );
        assert_ne!(open(&client, &id, "thread-2").await, terminal);
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("echo at=$(pwd) mark=$MARK\n").await;
        screen.wait_for("at=/tmp mark=kept").await;
        let list = client.get(&format!("/v1/sandboxes/{id}/terminals")).await.ok();
        assert_eq!(list["items"].as_array().unwrap().len(), 2, "{list}");
        screen.input("exit 5\n").await;
        let exit = screen.wait_control("exit").await;
        assert_eq!(exit["exit_code"], 5, "{exit}");
        until("a new one takes its place", async || {
            (open(&client, &id, "thread-1").await != terminal).then_some(())
        })
        .await;
    });
}

#[test]
fn two_screens_see_the_same_and_the_size_follows() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let terminal = open(&client, &id, "t").await;
        let mut one = Screen::attach(&client, &id, &terminal).await;
        let mut two = Screen::attach(&client, &id, &terminal).await;
        one.control(json!({ "type": "resize", "cols": 101, "rows": 37 })).await;
        one.control(json!({ "type": "input", "data": "stty size\n" })).await;
        one.wait_for("37 101").await;
        two.wait_for("37 101").await;
        one.input(vec![3]).await;
        let late = {
            drop(one);
            Screen::attach(&client, &id, &terminal).await
        };
        let mut late = late;
        late.wait_for("37 101").await;
        client.delete(&format!("/v1/sandboxes/{id}/terminals/{terminal}")).await.ok();
        two.wait_control("exit").await;
    });
}

#[test]
fn a_terminal_survives_a_crash_of_the_server() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let terminal = open(&client, &id, "t").await;
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("cd /etc; A=still; echo re''ady\n").await;
        screen.wait_for("ready").await;
        w.crash_server().await;
        assert_eq!(open(&client, &id, "t").await, terminal);
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("echo $(pwd) $A here\n").await;
        screen.wait_for("/etc still here").await;
    });
}

/// The shells of terminals that run in a sandbox, by their tags.
async fn shells(client: &Client, id: &str) -> Vec<String> {
    let processes = client.get(&format!("/v1/sandboxes/{id}/processes")).await.ok();
    let tags = processes["items"].as_array().unwrap().iter().filter_map(|process| process["tag"].as_str());
    tags.filter(|tag| tag.starts_with("terminal-")).map(str::to_owned).collect()
}

async fn terminals(client: &Client, id: &str) -> Vec<Value> {
    let list = client.get(&format!("/v1/sandboxes/{id}/terminals")).await.ok();
    list["items"].as_array().unwrap().clone()
}

#[test]
fn a_crash_while_a_terminal_is_opened_leaves_no_shell_without_a_terminal() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let place_file = w.folder().join("fail-at");
        w.crash_server_with(&[("ATOLL_FAIL_AT", &format!("@{}", place_file.display()))]).await;
        for (place, running) in [("terminal.row", 0), ("terminal.shell", 1)] {
            std::fs::write(&place_file, place).unwrap();
            let body = json!({ "thread": place, "cols": 80, "rows": 24 });
            let opening = client.raw(Method::POST, &format!("/v1/sandboxes/{id}/terminals")).json(&body);
            assert!(opening.send().await.is_err(), "{place}: the server ends");
            until("the server ended", async || w.server_exit().map(drop)).await;
            w.forget_server();
            w.start_server().await;
            assert_eq!(shells(&client, &id).await.len(), running, "{place}");
            let terminal = open(&client, &id, place).await;
            assert_eq!(shells(&client, &id).await, [format!("terminal-{terminal}")], "{place}");
            let mut screen = Screen::attach(&client, &id, &terminal).await;
            screen.input("echo re''ady\n").await;
            screen.wait_for("ready").await;
            client.delete(&format!("/v1/sandboxes/{id}/terminals/{terminal}")).await.ok();
            assert!(shells(&client, &id).await.is_empty(), "{place}");
        }
    });
}

#[test]
fn a_shell_that_ignores_hangup_ends_with_its_terminal() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let terminal = open(&client, &id, "t").await;
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("trap '' HUP; echo re''ady\n").await;
        screen.wait_for("ready").await;
        client.delete(&format!("/v1/sandboxes/{id}/terminals/{terminal}")).await.ok();
        assert!(shells(&client, &id).await.is_empty());
        assert!(terminals(&client, &id).await.is_empty());
    });
}

#[test]
fn a_fork_with_memory_has_the_terminals_of_its_source() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let terminal = open(&client, &id, "t").await;
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("A=forked; echo re''ady\n").await;
        screen.wait_for("ready").await;
        drop(screen);
        let asked = json!({ "count": 1, "memory": true });
        let forked = client.post(&format!("/v1/sandboxes/{id}/fork"), asked).await.ok();
        assert_eq!(forked["memory"], true, "{forked}");
        let fork = forked["sandboxes"][0]["id"].as_str().unwrap();
        let copied = open(&client, fork, "t").await;
        assert_ne!(copied, terminal);
        assert_eq!(shells(&client, fork).await.len(), 1, "the shell of the fork is used");
        let mut screen = Screen::attach(&client, fork, &copied).await;
        screen.input("echo it=$A\n").await;
        screen.wait_for("it=forked").await;
        client.delete(&format!("/v1/sandboxes/{fork}/terminals/{copied}")).await.ok();
        assert!(shells(&client, fork).await.is_empty());
        assert_eq!(terminals(&client, &id).await.len(), 1, "the source keeps its own");
    });
}

#[test]
fn clients_that_open_at_once_or_go_away_leave_one_shell_per_terminal() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let path = format!("/v1/sandboxes/{id}/terminals");
        let opened = futures::future::join_all((0..8).map(|_| open(&client, &id, "same"))).await;
        assert!(opened.iter().all(|terminal| *terminal == opened[0]), "{opened:?}");
        assert_eq!(shells(&client, &id).await, [format!("terminal-{}", opened[0])]);
        for n in 0..8 {
            let body = json!({ "thread": format!("gone-{n}"), "cols": 80, "rows": 24 });
            let opening = client.raw(Method::POST, &path).json(&body).send();
            let _ = tokio::time::timeout(Duration::from_millis(n), opening).await;
        }
        until("each shell has a terminal, and each terminal a shell", async || {
            let mut shells = shells(&client, &id).await;
            let listed = terminals(&client, &id).await;
            let tag = |terminal: &Value| format!("terminal-{}", terminal["id"].as_str().unwrap());
            let mut tags: Vec<String> = listed.iter().map(tag).collect();
            shells.sort();
            tags.sort();
            (shells == tags).then_some(())
        })
        .await;
    });
}

#[test]
fn a_burst_does_not_pass_the_limit_of_terminals() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let path = format!("/leap0/v1/sandbox/{id}/pty");
        let lazy = |n: usize| {
            let body = json!({ "id": format!("t{n}"), "lazy_start": true });
            let request = client.raw(Method::POST, &path).json(&body);
            async move { request.send().await.unwrap().status().is_success() }
        };
        let made = futures::future::join_all((0..80).map(lazy)).await;
        assert_eq!(made.iter().filter(|made| **made).count(), 64);
        assert_eq!(get(&client, &path).await["items"].as_array().unwrap().len(), 64);
        let refused = json!({ "thread": "one more", "cols": 80, "rows": 24 });
        client
            .post(&format!("/v1/sandboxes/{id}/terminals"), refused)
            .await
            .refused(429, "sandbox_exhausted");
    });
}

/// A call of a vendor's API, which is not in the native document.
async fn vendor(request: RequestBuilder) -> Value {
    let answer = request.send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status.is_success(), "{status}: {text}");
    serde_json::from_str(&text).unwrap_or_default()
}

async fn post(client: &Client, path: &str, body: Value) -> Value {
    vendor(client.raw(Method::POST, path).json(&body)).await
}

async fn get(client: &Client, path: &str) -> Value {
    vendor(client.raw(Method::GET, path)).await
}

#[test]
fn terminals_of_vendors_survive_a_crash_of_the_server() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let daytona = format!("/daytona/toolbox/{id}/process/pty");
        let leap0 = format!("/leap0/v1/sandbox/{id}/pty");
        let body = json!({ "id": "d", "cols": 100, "rows": 30, "cwd": "/etc", "envs": { "A": "first" } });
        post(&client, &daytona, body).await;
        post(&client, &format!("{daytona}/d/resize"), json!({ "cols": 120, "rows": 40 })).await;
        let body = json!({ "id": "l", "cols": 90, "rows": 20, "cwd": "/var", "envs": { "A": "second" } });
        post(&client, &leap0, body).await;
        let body = json!({ "id": "lazy", "lazy_start": true, "cwd": "/usr", "envs": { "A": "third" } });
        assert_eq!(post(&client, &leap0, body).await["active"], false);
        post(&client, &format!("{leap0}/lazy/resize"), json!({ "cols": 70, "rows": 10 })).await;
        let mut screen = Screen::connect(&client, &format!("{daytona}/d/connect")).await;
        screen.input("cd /usr; B=kept; echo re''ady\n").await;
        screen.wait_for("ready").await;
        w.crash_server().await;
        let listed = get(&client, &daytona).await["sessions"].clone();
        let shown = listed.as_array().unwrap().iter().find(|pty| pty["id"] == "d").unwrap();
        assert_eq!((&shown["cols"], &shown["rows"]), (&json!(120), &json!(40)), "{listed}");
        assert_eq!((&shown["cwd"], &shown["envs"]), (&json!("/etc"), &json!({ "A": "first" })));
        let listed = get(&client, &leap0).await["items"].clone();
        let shown = |id: &str| listed.as_array().unwrap().iter().find(|pty| pty["id"] == id).unwrap().clone();
        assert_eq!((&shown("l")["cols"], &shown("l")["cwd"]), (&json!(90), &json!("/var")), "{listed}");
        assert_eq!((&shown("l")["envs"]["A"], &shown("l")["active"]), (&json!("second"), &json!(true)));
        assert_eq!((&shown("lazy")["rows"], &shown("lazy")["active"]), (&json!(10), &json!(false)));
        let again = client.raw(Method::POST, &leap0).json(&json!({ "id": "l" })).send().await.unwrap();
        assert_eq!(again.status(), 409);
        // The same shell, with what it had, and one that starts only now.
        for (path, said) in [
            (format!("{daytona}/d/connect"), "at=/usr a=first b=kept size=40 120"),
            (format!("{leap0}/l/connect"), "at=/var a=second b= size=20 90"),
            (format!("{leap0}/lazy/connect"), "at=/usr a=third b= size=10 70"),
        ] {
            let mut screen = Screen::connect(&client, &path).await;
            screen.input("echo at=$(pwd) a=$A b=$B size=$(stty size)\n").await;
            screen.wait_for(said).await;
        }
        assert_eq!(get(&client, &format!("{leap0}/lazy")).await["active"], true);
    });
}

#[test]
fn shell_sessions_survive_a_crash_of_the_server() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let daytona = format!("/daytona/toolbox/{id}/process/session");
        let native = format!("/v1/sandboxes/{id}/sessions");
        post(&client, &daytona, json!({ "sessionId": "d" })).await;
        client.post(&native, json!({ "name": "n", "cwd": "/etc" })).await.ok();
        let prepare = json!({ "command": "cd /usr; export A=first; f() { echo f; }" });
        post(&client, &format!("{daytona}/d/exec"), prepare).await;
        client.post(&format!("{native}/n/exec"), json!({ "command": "export A=second" })).await.ok();
        w.crash_server().await;
        let listed = get(&client, &daytona).await;
        let has = |id: &str| listed.as_array().unwrap().iter().any(|session| session["sessionId"] == id);
        assert!(has("d") && has("n"), "{listed}");
        let said = json!({ "command": "echo $(pwd) $A $(f)" });
        let said = post(&client, &format!("{daytona}/d/exec"), said).await;
        assert_eq!(said["stdout"], "/usr first f\n", "{said}");
        let said = json!({ "command": "echo $(pwd) $A" });
        let said = client.post(&format!("{native}/n/exec"), said).await.ok();
        assert_eq!(said["stdout"], "/etc second\n", "{said}");
        let kept = client.get(&format!("{native}/d")).await.ok();
        assert_eq!(kept["commands"].as_array().unwrap().len(), 2, "{kept}");
    });
}

#[test]
fn a_foreign_page_gets_no_terminal() {
    // N09.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let terminal = open(&client, &id, "t").await;
        let knock = async |knock: Knock<'static>| Screen::knock(&client, &id, &terminal, knock).await;
        for origin in ["https://evil.example", "null", "http://127.0.0.1.evil.example"] {
            assert_eq!(
                knock(Knock { origin: Some(origin), ..Knock::default() }).await.err(),
                Some(403),
                "{origin}"
            );
        }
        assert_eq!(knock(Knock { without_key: true, ..Knock::default() }).await.err(), Some(401));
        let own =
            knock(Knock { origin: Some("http://127.0.0.1:7070"), key_in_protocol: true, ..Knock::default() })
                .await;
        own.expect("our own page with the key in the sub-protocol").wait_for("").await;
        let stranger = w.tenant("stranger").await;
        assert_eq!(Screen::knock(&stranger, &id, &terminal, Knock::default()).await.err(), Some(404));
    });
}

#[test]
fn absurd_sizes_floods_and_rude_closes_are_survived() {
    // C09.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 128 })).await;
        let terminal = open(&client, &id, "t").await;
        let before = atoll_tests::proc::status(w.server_pid(), "VmRSS").unwrap();
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        for (cols, rows) in [(0, 0), (65_535, 65_535), (1, 1), (-1, 24), (100_000, 24)] {
            screen.control(json!({ "type": "resize", "cols": cols, "rows": rows })).await;
        }
        for odd in [
            json!({ "type": "dance" }),
            json!([]),
            json!(null),
            json!({ "type": "input" }),
            json!({ "type": "input", "data": 7 }),
        ] {
            screen.control(odd).await;
        }
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.control(json!({ "type": "resize", "cols": 80, "rows": 24 })).await;
        screen.input("stty size; printf '\\033[6n\\033[c\\033]0;title\\007'; echo al''ive\n").await;
        screen.wait_for("alive").await;
        // A flood of output that the client does not read, then an abrupt close in the middle.
        let mut deaf = Screen::attach(&client, &id, &terminal).await;
        deaf.input("cat /dev/urandom\n").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = atoll_tests::proc::status(w.server_pid(), "VmRSS").unwrap();
        assert!(after < before + 32 * 1024, "the server grew from {before} to {after} KiB");
        drop(deaf);
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input(vec![3]).await;
        screen.input("\n\necho no''w\n").await;
        screen.wait_for("now").await;
        for body in [
            json!({ "thread": "x", "cols": 0, "rows": 0 }),
            json!({ "thread": "", "cols": 80, "rows": 24 }),
            json!({ "thread": "x", "cols": -1, "rows": 24 }),
        ] {
            client.post(&format!("/v1/sandboxes/{id}/terminals"), body).await.refused(400, "invalid_request");
        }
        witness.verify().await;
    });
}
