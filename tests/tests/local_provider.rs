//! The provider `local` with a real server: refused until the operator allows it, everything that people do in a sandbox, the
//! end of its processes, and adoption after a crash of the server.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Output;

use atoll_tests::proc::Process;
use atoll_tests::terminal::Screen;
use atoll_tests::{Client, Options, Value, World, json, run_with, until};
use reqwest::Method;

async fn atoll(w: &World, words: &[&str]) -> Output {
    let mut command = w.command();
    command.args(words);
    w.output(command).await
}

async fn create(client: &Client) -> String {
    client.create(json!({ "provider": "local" })).await
}

fn write_settings(w: &World, text: &str) {
    std::fs::create_dir_all(w.data().join("sandboxes")).unwrap();
    std::fs::write(w.data().join("sandboxes/local.json"), text).unwrap();
}

#[test]
fn it_is_refused_until_a_file_enables_it_and_other_tenants_need_their_own_permission() {
    // The audit would find the files of a provider that was opened meanwhile.
    let options = Options { audit: false, ..Options::default() };
    run_with(options, async |w| {
        let (first, other) = (w.first_tenant().await, w.tenant("acme").await);
        let asked = json!({ "provider": "local" });
        let refused = first.post("/v1/sandboxes", asked.clone()).await.refused(403, "provider_not_allowed");
        assert!(refused["hint"].as_str().unwrap().contains("--allow-local"), "{refused}");
        let set = atoll(w, &["provider", "set", "local", "--on-exit", "pause"]).await;
        assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
        until("the file is noticed", async || {
            let listed = w.admin().get("/v1/providers").await.ok();
            listed["items"].as_array().unwrap().iter().any(|one| one["name"] == "local").then_some(())
        })
        .await;
        first.post("/v1/sandboxes", asked.clone()).await.refused(403, "provider_not_allowed");

        write_settings(w, r#"{"provider": "local", "enabled": true}"#);
        let id = until("it is enabled", async || {
            let made = first.post("/v1/sandboxes", asked.clone()).await;
            (made.status == 201).then(|| made.ok()["id"].as_str().unwrap().to_owned())
        })
        .await;
        assert_eq!(first.sandbox(&id).await["isolation"], "none");
        let listed = first.get("/v1/sandboxes").await.ok();
        assert_eq!(listed["items"][0]["isolation"], "none");
        let providers = first.get("/v1/providers").await.ok();
        let local = providers["items"].as_array().unwrap().iter().find(|one| one["name"] == "local").unwrap();
        assert_eq!((&local["isolation"], &local["kind"]), (&json!("none"), &json!("local")), "{local}");
        let table = atoll(w, &["ls"]).await;
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        assert!(table.lines().next().unwrap().contains("ISOLATION") && table.contains("none"), "{table}");

        let refused = other.post("/v1/sandboxes", asked.clone()).await.refused(403, "provider_not_allowed");
        assert!(refused["message"].as_str().unwrap().contains("this tenant"), "{refused}");
        let allowed =
            atoll(w, &["tenant", "providers", "acme", "--allow", "container", "--allow", "local"]).await;
        assert!(allowed.status.success(), "{allowed:?}");
        let second = create(&other).await;
        other.remove(&second).await;

        write_settings(w, r#"{"provider": "local", "enabled": false}"#);
        until("it is disabled", async || {
            let made = first.post("/v1/sandboxes", asked.clone()).await;
            if made.status == 201 {
                first.remove(made.ok()["id"].as_str().unwrap()).await;
            }
            (made.status == 403).then_some(())
        })
        .await;
        assert_eq!(first.sh(&id, "echo goes on").await.text(), "goes on");
        first.remove(&id).await;
        until("nothing is left of its sandboxes", async || {
            let mut left = std::fs::read_dir(w.data().join("local")).unwrap().flatten();
            left.all(|entry| entry.file_name() == ".cgroup").then_some(())
        })
        .await;
        let ended = w.stop_server(nix::sys::signal::Signal::SIGTERM).await;
        assert!(ended.success(), "{ended}");
    });
}

fn options() -> Options {
    let options = Options::default().env("ATOLL_ALLOW_LOCAL", "true");
    options.env("E2B_API_KEY", "canary-of-the-server").env("SECRET_OF_THE_SERVER", "canary-of-the-server")
}

async fn commands_and_files(client: &Client, id: &str, workspace: &Path) {
    let seen = client.sh(id, "pwd; echo $HOME; env").await;
    let seen = seen.text();
    let place = workspace.display().to_string();
    assert!(seen.starts_with(&format!("{place}\n{place}\n")), "{seen}");
    assert!(!seen.contains("canary-of-the-server"), "the environment of the server is visible: {seen}");
    assert_eq!(client.write_file(id, "notes/a.txt", "hello").await.status, 200);
    assert_eq!(std::fs::read_to_string(workspace.join("notes/a.txt")).unwrap(), "hello");
    assert_eq!(client.sh(id, "cat notes/a.txt").await.text(), "hello");
    assert_eq!(client.read_file(id, &format!("{place}/notes/a.txt")).await.bytes, b"hello".as_slice());

    let as_nobody = client.try_exec(id, json!({ "argv": ["id"], "user": "nobody" })).await;
    let refused = as_nobody.refused(501, "unsupported");
    assert!(refused["message"].as_str().unwrap().contains("no isolation"), "{refused}");
}

async fn terminal(client: &Client, id: &str, workspace: &Path) {
    let opened = client
        .post(&format!("/v1/sandboxes/{id}/terminals"), json!({ "thread": "t", "cols": 200, "rows": 24 }))
        .await;
    let terminal = opened.ok()["id"].as_str().unwrap().to_owned();
    let mut screen = Screen::attach(client, id, &terminal).await;
    screen.input("echo at=$(pwd)\n").await;
    screen.wait_for(&format!("at={}", workspace.display())).await;
    screen.input("exit\n").await;
}

/// A server in the sandbox is reached through a preview; the server of Atoll itself is not.
async fn preview(client: &Client, id: &str) {
    let app = "import http.server; http.server.HTTPServer(('127.0.0.1', 8123), http.server.SimpleHTTPRequestHandler).serve_forever()";
    let body = json!({ "argv": ["python3", "-c", app], "detach": true });
    client.try_exec(id, body).await.ok();
    let previews = format!("/v1/sandboxes/{id}/previews");
    let made = client.post(&previews, json!({ "port": 8123 })).await.ok();
    let token = made["token"].as_str().unwrap().to_owned();
    let get = async |port: u16, token: &str| {
        reqwest::get(format!("http://127.0.0.1:7070/p/{id}/{port}/notes/a.txt?atoll_token={token}"))
            .await
            .unwrap()
    };
    let text = until("the app answers", async || {
        let answer = get(8123, &token).await;
        if answer.status() == 200 { answer.text().await.ok() } else { None }
    })
    .await;
    assert_eq!(text, "hello");
    let own = client.post(&previews, json!({ "port": 7070 })).await.ok();
    let refused = get(7070, own["token"].as_str().unwrap()).await;
    assert!(!refused.status().is_success(), "the port of the server itself is reached");
}

async fn tools(client: &Client, id: &str) {
    let answer = client.post(&format!("/v1/sandboxes/{id}/code"), json!({ "code": "6 * 7" })).await.ok();
    assert_eq!(answer["results"][0]["text"], "42", "{answer}");
}

/// Starts a process that leaves its parent and its session; returns its pid, which is one of this machine.
async fn daemon(client: &Client, id: &str) -> i32 {
    let line = "rm -f pid; setsid sh -c 'setsid sh -c \"echo \\$\\$ >pid; exec sleep 600\" &' >/dev/null 2>&1 </dev/null; \
                while ! [ -s pid ]; do sleep 0.01; done; cat pid";
    let pid = client.sh(id, line).await.text().parse().unwrap();
    assert!(is_alive(pid));
    pid
}

fn is_alive(pid: i32) -> bool {
    Process::read(pid).is_some_and(|process| process.state != 'Z')
}

#[test]
fn people_work_in_it_and_its_processes_end_with_it() {
    run_with(options(), async |w| {
        let client = w.first_tenant().await;
        let made = atoll(w, &["create", "--provider", "local", "--name", "dev"]).await;
        let told = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(made.status.success() && told.contains("warning: isolation: none"), "{told}");
        let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let workspace = w.data().join("local").join(&id).join("workspace").canonicalize().unwrap();
        assert_eq!(client.sandbox(&id).await["workdir"], json!(workspace), "where the page opens its files");
        commands_and_files(&client, &id, &workspace).await;
        let measured = client.session(Method::GET, &format!("{id}/metrics")).await;
        let disk = measured["metrics"]["disk_used_gb"].as_f64();
        assert!(disk.is_some_and(|disk| disk >= 0.0), "the workspace is measured: {measured}");
        let (from, to) = (workspace.join("notes/a.txt").display().to_string(), format!("{id}:copied.txt"));
        let copied = atoll(w, &["cp", &from, &to]).await;
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        assert!(workspace.join("copied.txt").exists(), "a relative path is below the workspace");
        terminal(&client, &id, &workspace).await;
        if std::process::Command::new("python3").arg("--version").output().is_ok() {
            preview(&client, &id).await;
            tools(&client, &id).await;
        }
        let closed = json!({ "provider": "local", "network": "deny-all" });
        let refused = client.post("/v1/sandboxes", closed).await.refused(501, "unsupported");
        assert!(refused["message"].as_str().unwrap().contains("egress"), "{refused}");
        let template = json!({ "provider": "local", "template": "busybox" });
        let made = client.post("/v1/sandboxes", template).await.ok();
        assert_eq!(made["template"], "local", "the default template of the server means this machine");
        client.remove(made["id"].as_str().unwrap()).await;
        let other = json!({ "provider": "local", "template": "alpine" });
        client.post("/v1/sandboxes", other).await.refused(404, "template_not_found");
        let snapshot = client.post(&format!("/v1/sandboxes/{id}/snapshots"), json!({})).await;
        let refused = snapshot.refused(501, "unsupported");
        assert!(refused["message"].as_str().unwrap().contains("snapshot"), "{refused}");

        let stopped = daemon(&client, &id).await;
        client.act(&id, "stop").await.ok();
        assert!(!is_alive(stopped), "a stop ends every process");
        client.act(&id, "start").await.ok();
        assert_eq!(client.sh(&id, "cat notes/a.txt").await.text(), "hello", "files outlive a stop");
        let deleted = daemon(&client, &id).await;
        client.remove(&id).await;
        assert!(!is_alive(deleted), "a delete ends every process");
        until("the folder is removed", async || (!w.data().join("local").join(&id).exists()).then_some(()))
            .await;
    });
}

#[test]
fn it_outlives_a_crash_of_the_server_and_a_dead_agent_is_told() {
    run_with(options(), async |w| {
        let client = w.first_tenant().await;
        let (id, doomed) = (create(&client).await, create(&client).await);
        let daemon = daemon(&client, &id).await;
        let record: Value = serde_json::from_slice(
            &std::fs::read(w.data().join("local").join(&doomed).join("instance.json")).unwrap(),
        )
        .unwrap();
        w.stop_server(nix::sys::signal::Signal::SIGKILL).await;
        let agent = nix::unistd::Pid::from_raw(i32::try_from(record["pid"].as_i64().unwrap()).unwrap());
        nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGKILL).unwrap();
        w.start_server().await;
        assert_eq!(client.sandbox(&id).await["phase"], "running");
        assert!(is_alive(daemon), "processes outlive the server");
        assert_eq!(client.sh(&id, "cat pid").await.text(), daemon.to_string());
        assert_ne!(client.sandbox(&doomed).await["phase"], "running", "its agent is dead");
        client.act(&id, "pause").await.ok();
        w.crash_server().await;
        assert_eq!(client.sandbox(&id).await["phase"], "paused");
        client.act(&id, "resume").await.ok();
        assert!(is_alive(daemon));
        client.remove(&id).await;
        client.remove(&doomed).await;
        assert!(!is_alive(daemon));
    });
}
