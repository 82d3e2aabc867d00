//! The tools of a sandbox through the native API: code, search and edits, git, shell sessions, language servers.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::{Client, Options, Value, World, json, run, run_with};
use reqwest::Method;

fn path(id: &str, below: &str) -> String {
    format!("/v1/sandboxes/{id}/{below}")
}

/// A sandbox with an interpreter kernel.
fn with_kernel(body: impl AsyncFnOnce(&World, Client, String) + Send) {
    let options = Options { template: "code-interpreter-slim", ..Options::default() };
    run_with(options, async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 2048 })).await;
        body(w, client, id).await;
    });
}

async fn code(client: &Client, id: &str, body: Value) -> Value {
    client.post(&path(id, "code"), body).await.ok()
}

#[test]
fn code_keeps_its_state_and_answers_with_results_charts_and_errors() {
    with_kernel(async |w, client, id| {
        let first = code(&client, &id, json!({ "code": "x = 41\nprint('hällo')" })).await;
        assert_eq!((&first["stdout"], &first["execution_count"]), (&json!("hällo\n"), &json!(1)));
        assert_eq!(first["context"], "default-python");
        let value = code(&client, &id, json!({ "code": "x + 1" })).await;
        assert_eq!(value["results"], json!([{ "is_main": true, "text": "42" }]));

        let failed = code(&client, &id, json!({ "code": "1/0" })).await;
        assert_eq!(failed["exception"]["name"], "ZeroDivisionError");
        assert!(failed["exception"]["traceback"].as_str().unwrap().contains("Traceback"), "{failed}");
        assert_eq!((&failed["timed_out"], &failed["truncated"]), (&json!(false), &json!(false)));

        let plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.title('T')\nplt.show()";
        let shown = code(&client, &id, json!({ "code": plot })).await["results"][0].clone();
        assert_eq!((&shown["chart"]["type"], &shown["chart"]["title"]), (&json!("line"), &json!("T")));
        assert!(shown["png"].as_str().unwrap().starts_with("iVBOR"), "a picture too");

        let env = json!({ "code": "import os; os.environ['ONLY_NOW']", "env": { "ONLY_NOW": "yes" } });
        assert_eq!(code(&client, &id, env).await["results"][0]["text"], "'yes'");
        let slow = json!({ "code": "import time\ntime.sleep(60)", "timeout_s": 1.5 });
        assert_eq!(code(&client, &id, slow).await["timed_out"], true);
        assert_eq!(code(&client, &id, json!({ "code": "x" })).await["results"][0]["text"], "41");

        let flood = code(&client, &id, json!({ "code": "print('a' * (17 << 20))" })).await;
        assert_eq!(flood["truncated"], true);
        assert_eq!(flood["stdout"].as_str().unwrap().len(), 16 << 20);

        contexts(&client, &id).await;
        streams(&client, &id).await;
        command_line(w, &client, &id).await;
    });
}

async fn contexts(client: &Client, id: &str) {
    let made = client.post(&path(id, "code/contexts"), json!({ "cwd": "/tmp" })).await;
    assert_eq!(made.status, 201, "{made}");
    let context = made.ok()["id"].as_str().unwrap().to_owned();
    let here = json!({ "code": "import os; os.getcwd(), 'x' in globals()", "context": context });
    assert_eq!(code(client, id, here).await["results"][0]["text"], "('/tmp', False)");
    let listed = client.get(&path(id, "code/contexts")).await.ok();
    let ids: Vec<&str> =
        listed["items"].as_array().unwrap().iter().filter_map(|c| c["id"].as_str()).collect();
    assert_eq!(ids, ["default-python", &context]);

    let one = path(id, &format!("code/contexts/{context}"));
    assert_eq!(client.get(&one).await.ok()["cwd"], "/tmp");
    assert_eq!(client.post_empty(&format!("{one}/restart")).await.ok()["id"], context.as_str());
    let forgotten = code(client, id, json!({ "code": "os", "context": context })).await;
    assert_eq!(forgotten["exception"]["name"], "NameError");

    // An interrupt ends the code and keeps its context.
    let body = json!({ "code": "y = 7\nprint('on', flush=True)\nwhile True: pass", "context": context });
    let mut events = client.events(Method::POST, &path(id, "code/stream"), Some(&body)).await;
    events.find("stdout").await;
    assert_eq!(client.post_empty(&format!("{one}/interrupt")).await.status, 204);
    assert_eq!(events.find("exception").await.data["name"], "KeyboardInterrupt");
    assert_eq!(events.find("end").await.data, json!({ "timed_out": false }));
    let kept = code(client, id, json!({ "code": "y", "context": context })).await;
    assert_eq!(kept["results"][0]["text"], "7");

    assert_eq!(client.delete(&one).await.status, 204);
    client.get(&one).await.refused(404, "process_not_found");
    let gone = client.post(&path(id, "code"), json!({ "code": "1", "context": context })).await;
    gone.refused(404, "process_not_found");
    let both = json!({ "code": "1", "context": "a", "language": "r" });
    client.post(&path(id, "code"), both).await.refused(400, "invalid_request");
    let none = json!({ "code": "1", "timeout_s": 0 });
    client.post(&path(id, "code"), none).await.refused(400, "invalid_request");
    let r = client.post(&path(id, "code"), json!({ "code": "1", "language": "java" })).await;
    assert!(r.refused(501, "tool_missing")["hint"].as_str().unwrap().contains("JDK"));
}

/// The processes of contexts in a sandbox.
async fn context_processes(client: &Client, id: &str) -> usize {
    let processes = client.get(&path(id, "processes")).await.ok();
    let tags = processes["items"].as_array().unwrap().iter().filter_map(|process| process["tag"].as_str());
    tags.filter(|tag| tag.starts_with("atoll-context/")).count()
}

#[test]
fn first_calls_and_restarts_at_once_use_one_process() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let body = |n: usize| json!({ "code": format!("x{n}={n}; echo call {n}"), "language": "bash" });
        let calls = (0..6).map(|n| code(&client, &id, body(n)));
        for (n, told) in futures::future::join_all(calls).await.into_iter().enumerate() {
            assert_eq!(told["exception"], Value::Null, "{told}");
            assert_eq!(told["stdout"], format!("call {n}\n"), "{told}");
        }
        assert_eq!(context_processes(&client, &id).await, 1);
        let all = json!({ "code": "echo $x0 $x1 $x2 $x3 $x4 $x5", "language": "bash" });
        assert_eq!(
            code(&client, &id, all).await["stdout"],
            "0 1 2 3 4 5\n",
            "one context has run all of them"
        );
        let restart = path(&id, "code/contexts/default-bash/restart");
        let restarts = (0..6).map(|_| client.post_empty(&restart));
        for restarted in futures::future::join_all(restarts).await {
            assert_eq!(restarted.ok()["id"], "default-bash");
        }
        assert_eq!(context_processes(&client, &id).await, 1);
        let told = code(&client, &id, body(7)).await;
        assert_eq!(told["stdout"], "call 7\n", "{told}");
    });
}

#[test]
fn a_client_that_goes_away_leaves_a_context_that_can_be_used() {
    run(async |w| {
        let client = w.tenant("acme").await;
        for wait_ms in [1, 4, 10, 20] {
            let id = client.create(json!({})).await;
            let body = json!({ "code": "echo gone", "language": "bash" });
            let call = client.raw(Method::POST, &path(&id, "code")).json(&body).send();
            let _ = tokio::time::timeout(std::time::Duration::from_millis(wait_ms), call).await;
            let told = code(&client, &id, json!({ "code": "echo here", "language": "bash" })).await;
            assert_eq!((&told["stdout"], &told["exception"]), (&json!("here\n"), &Value::Null), "{told}");
            assert_eq!(context_processes(&client, &id).await, 1);
        }
    });
}

#[test]
fn a_burst_does_not_pass_the_limit_of_contexts() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let at = path(&id, "code/contexts");
        let made = (0..40).map(|_| client.post(&at, json!({ "language": "bash" })));
        let made = futures::future::join_all(made).await;
        assert_eq!(made.iter().filter(|answer| answer.status == 201).count(), 32);
        assert_eq!(context_processes(&client, &id).await, 32);
    });
}

#[test]
fn requests_end_though_the_code_hides_its_end() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let bash = |code: &str| json!({ "code": code, "language": "bash" });
        let quiet = code(&client, &id, bash("exec 2>/dev/null; echo hi")).await;
        assert_eq!((&quiet["stdout"], &quiet["exception"]), (&json!("hi\n"), &Value::Null), "{quiet}");
        client.post_empty(&path(&id, "code/contexts/default-bash/restart")).await.ok();
        let closed = code(&client, &id, bash("exec >/dev/null; echo lost")).await;
        assert_eq!(closed["exception"]["name"], "OutputClosed", "{closed}");
    });
}

#[test]
fn a_session_command_whose_end_cannot_be_seen_is_an_error() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        for name in ["removed", "silent"] {
            client.post(&path(&id, "sessions"), json!({ "name": name })).await.ok();
        }
        let silent = json!({ "command": "set -n", "timeout_s": 1.5 });
        client.post(&path(&id, "sessions/silent/exec"), silent).await.refused(504, "deadline_exceeded");
        let both = json!({ "command": "true", "timeout_s": 1, "detach": true });
        client.post(&path(&id, "sessions/silent/exec"), both).await.refused(400, "invalid_request");
        let removed = json!({ "command": "rm -rf /tmp/.atoll-sessions; echo gone" });
        let refused = client.post(&path(&id, "sessions/removed/exec"), removed).await;
        let refused = refused.refused(404, "process_not_found");
        assert!(refused["message"].as_str().unwrap().contains("folder was removed"), "{refused}");
    });
}

async fn streams(client: &Client, id: &str) {
    let waiting = "import os, sys, time\nprint('one', flush=True)\n\
                while not os.path.exists('/tmp/go'): time.sleep(0.05)\nprint('two', file=sys.stderr)\n3";
    let body = json!({ "code": waiting });
    let mut events = client.events(Method::POST, &path(id, "code/stream"), Some(&body)).await;
    assert_eq!(events.find("start").await.data["context"], "default-python");
    assert_eq!(events.find("stdout").await.data["data"], "one\n");
    // Output is sent as it comes: the code goes on only after its first line was read.
    client.sh(id, "touch /tmp/go").await.text();
    assert_eq!(events.find("stderr").await.data["data"], "two\n");
    assert_eq!(events.find("result").await.data, json!({ "is_main": true, "text": "3" }));
    assert_eq!(events.find("end").await.data, json!({ "timed_out": false }));
    assert!(events.next().await.is_none());

    let endless = json!({ "code": "while True: pass", "timeout_s": 1.5 });
    let events = client.events(Method::POST, &path(id, "code/stream"), Some(&endless)).await.rest().await;
    assert_eq!(events.last().unwrap().data, json!({ "timed_out": true }), "{events:?}");

    // A client that goes away interrupts its code.
    let forever = json!({ "code": "print('on', flush=True)\nwhile True: pass" });
    let mut events = client.events(Method::POST, &path(id, "code/stream"), Some(&forever)).await;
    events.find("stdout").await;
    drop(events);
    assert_eq!(code(client, id, json!({ "code": "1 + 1" })).await["results"][0]["text"], "2");
}

async fn command_line(w: &World, client: &Client, id: &str) {
    let atoll = |words: &[&str], input: &str| {
        let mut child = w.command();
        child.env("ATOLL_API_KEY", client.key()).arg("code").args(words);
        let mut child = child
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    let printed = |out: &str| (Some(0), out.to_owned(), String::new());
    assert_eq!(atoll(&[id, "--", "print(1)"], ""), printed("1\n"));
    assert_eq!(atoll(&[id], "z = 20\nz + 1"), printed("21\n"));
    assert_eq!(atoll(&[id, "-"], "z"), printed("20\n"), "the context keeps its state");
    assert_eq!(atoll(&[id, "--language", "js", "--", "[1, 2].length"], ""), printed("2\n"));
    assert_eq!(atoll(&[id, "-l", "bash", "-e", "A=5", "--", "echo $A"], ""), printed("5\n"));
    let (status, out, err) = atoll(&[id, "--", "print('before')\n1/0"], "");
    assert_eq!((status, out.as_str()), (Some(1), "before\n"));
    assert!(err.contains("Traceback") && err.contains("1/0") && !err.contains('\x1b'), "{err}");
    assert_eq!(atoll(&[id, "--timeout", "1s", "--", "while True: pass"], "").0, Some(124));
    assert_eq!(atoll(&[id, "--context", "nope", "1"], "").0, Some(125));
    let (status, out, _) = atoll(&["--json", id, "--", "print(1)\n2"], "");
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!((status, names), (Some(0), vec!["start", "stdout", "result", "end"]));
    assert_eq!((&events[1]["data"], &events[2]["text"]), (&json!("1\n"), &json!("2")));
}

#[test]
fn code_runs_where_there_is_python_without_a_kernel() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let ran = code(&client, &id, json!({ "code": "x = 20\nx + 1" })).await;
        assert_eq!(ran["results"][0]["text"], "21");
    });
}

async fn edit(client: &Client, id: &str, edits: Value) -> atoll_tests::Answer {
    client.post(&path(id, "files/edit"), json!({ "path": "/home/user/p/a.py", "edits": edits })).await
}

#[test]
fn files_are_searched_and_edited_without_any_program_inside() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let setup = "mkdir -p ~/p/lib && cd ~/p && printf 'one\ntwo\nTWO 2\n' >a.py && echo two >lib/b.txt && \
                     printf 'two\\0' >c.bin && chmod 750 a.py";
        client.sh(&id, setup).await.text();
        let search = async |body: Value| client.post(&path(&id, "files/search"), body).await;
        let found = search(json!({ "path": "/home/user/p", "pattern": "*.{py,txt}" })).await.ok();
        let all = json!(["/home/user/p/a.py", "/home/user/p/lib/b.txt"]);
        assert_eq!((&found["items"], &found["truncated"]), (&all, &json!(false)));
        let found =
            search(json!({ "path": "/home/user/p", "pattern": "*", "exclude": ["lib", "*.bin"] })).await;
        assert_eq!(found.ok()["items"], json!(["/home/user/p/a.py"]));
        assert!(!search(json!({ "pattern": "b.txt" })).await.ok()["items"].as_array().unwrap().is_empty());
        search(json!({ "path": "/nowhere", "pattern": "*" })).await.refused(404, "file_not_found");
        search(json!({ "pattern": "" })).await.refused(400, "invalid_argument");

        let grep = async |body: Value| client.post(&path(&id, "files/grep"), body).await;
        let line = |path: &str, line: u64, text: &str| json!({ "path": path, "line": line, "text": text });
        let found =
            grep(json!({ "path": "/home/user/p", "pattern": "^t.o", "ignore_case": true })).await.ok();
        let lines = json!([
            line("/home/user/p/a.py", 2, "two"),
            line("/home/user/p/a.py", 3, "TWO 2"),
            line("/home/user/p/lib/b.txt", 1, "two")
        ]);
        assert_eq!(found["items"], lines, "binary files are left out");
        let found = grep(json!({ "path": "/home/user/p", "pattern": "t.o", "literal": true })).await.ok();
        assert_eq!(found["items"], json!([]));
        let found =
            grep(json!({ "path": "/home/user/p", "pattern": "two", "include": ["*.txt"] })).await.ok();
        assert_eq!(found["items"].as_array().unwrap().len(), 1);
        grep(json!({ "pattern": "(" })).await.refused(400, "invalid_argument");
        client.sh(&id, "seq 30000 >~/p/many").await.text();
        let found = grep(json!({ "path": "/home/user/p/many", "pattern": "." })).await.ok();
        assert_eq!((found["items"].as_array().unwrap().len(), &found["truncated"]), (10_000, &json!(true)));

        edits(&client, &id).await;
        grep_of_the_command_line(w, &client, &id);
    });
}

async fn edits(client: &Client, id: &str) {
    let two = json!([{ "find": "one", "replace": "1" }, { "find": "two", "replace": "2" }]);
    let edited = edit(client, id, two).await.ok();
    assert_eq!(edited["replacements"], 2);
    assert!(edited["diff"].as_str().unwrap().contains("-one\n-two\n+1\n+2\n"), "{edited}");
    let text = async || client.sh(id, "stat -c %a ~/p/a.py; cat ~/p/a.py").await.text().to_owned();
    assert_eq!(text().await, "750\n1\n2\nTWO 2", "the mode is kept");

    let twice =
        edit(client, id, json!([{ "find": "1", "replace": "9" }, { "find": "2", "replace": "3" }])).await;
    assert!(twice.refused(400, "invalid_argument")["message"].as_str().unwrap().contains("2 times"));
    let none = edit(client, id, json!([{ "find": "nine", "replace": "9" }])).await;
    assert!(none.refused(400, "invalid_argument")["message"].as_str().unwrap().contains("does not contain"));
    edit(client, id, json!([])).await.refused(400, "invalid_argument");
    assert_eq!(text().await, "750\n1\n2\nTWO 2", "all edits or none");
    let every = edit(client, id, json!([{ "find": "2", "replace": "3", "all": true }])).await.ok();
    assert_eq!((every["replacements"].clone(), text().await.as_str()), (json!(2), "750\n1\n3\nTWO 3"));
}

fn grep_of_the_command_line(w: &World, client: &Client, id: &str) {
    let grep = |words: &[&str]| {
        let done = w.command().env("ATOLL_API_KEY", client.key()).arg("grep").args(words).output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let line = "/home/user/p/lib/b.txt:1:two\n".to_owned();
    assert_eq!(grep(&["-i", "--include", "*.txt", id, "TWO", "/home/user/p"]), (Some(0), line));
    assert_eq!(grep(&[id, "nothing-like-that", "/home/user/p"]), (Some(1), String::new()));
    assert_eq!(grep(&["no-such-box", "x"]).0, Some(125));
}

#[test]
fn git_goes_from_a_clone_to_a_shared_branch() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let git = async |verb: &str, body: Value| client.post(&path(&id, &format!("git/{verb}")), body).await;
        let read = async |what: &str| client.get(&path(&id, &format!("git/{what}"))).await;
        git("init", json!({ "path": "/home/user/shared.git", "bare": true, "branch": "main" })).await.ok();
        git("clone", json!({ "url": "/home/user/shared.git", "path": "/home/user/one" })).await.ok();
        let fresh = read("status?path=/home/user/one").await.ok();
        assert_eq!(
            (&fresh["branch"], &fresh["commit"], &fresh["files"]),
            (&json!("main"), &Value::Null, &json!([]))
        );
        assert_eq!(read("log?path=/home/user/one").await.ok()["items"], json!([]));

        client.sh(&id, "printf 'one\\n' >~/one/a.txt").await.text();
        let status = read("status?path=/home/user/one").await.ok();
        let file = |staged: &str, worktree: &str| json!([{ "path": "a.txt", "from": null, "staged": staged, "worktree": worktree }]);
        assert_eq!(status["files"], file("untracked", "untracked"));
        git("add", json!({ "path": "/home/user/one", "files": ["a.txt"] })).await.ok();
        assert_eq!(read("status?path=/home/user/one").await.ok()["files"], file("added", "unmodified"));
        let by = json!({ "path": "/home/user/one", "message": "first\n\nbody", "author": "Ada", "email": "ada@example.com" });
        let made = git("commit", by.clone()).await;
        assert_eq!(made.status, 201, "{made}");
        let hash = made.ok()["hash"].as_str().unwrap().to_owned();
        git("commit", by).await.refused(400, "invalid_argument");
        let log = read("log?path=/home/user/one&limit=1").await.ok();
        assert_eq!((&log["items"][0]["hash"], &log["items"][0]["author"]), (&json!(hash), &json!("Ada")));
        assert_eq!(log["items"][0]["message"], "first\n\nbody");

        git("push", json!({ "path": "/home/user/one", "set_upstream": true })).await.ok();
        git("clone", json!({ "url": "file:///home/user/shared.git", "path": "/home/user/two", "depth": 1 }))
            .await
            .ok();
        branches(&client, &id).await;
        let pulled = git("pull", json!({ "path": "/home/user/one", "branch": "topic" })).await.ok();
        assert!(pulled["output"].as_str().unwrap().contains("a.txt"), "{pulled}");
        assert_eq!(client.sh(&id, "cat ~/one/a.txt").await.text(), "one\ntwo");
        let remotes = read("remotes?path=/home/user/one").await.ok();
        assert_eq!(remotes["items"], json!([{ "name": "origin", "url": "/home/user/shared.git" }]));

        read("status?path=/tmp").await.refused(404, "file_not_found");
        git("checkout", json!({ "path": "/home/user/one", "target": "--orphan" }))
            .await
            .refused(400, "invalid_argument");
        let both = read("diff?path=/home/user/one&staged=1&target=HEAD").await;
        both.refused(400, "invalid_request");
        credentials_stay_out_of_the_repository(&client, &id).await;
        git_of_the_command_line(w, &client, &id);
    });
}

async fn branches(client: &Client, id: &str) {
    let git = async |verb: &str, body: Value| client.post(&path(id, &format!("git/{verb}")), body).await;
    let at = "/home/user/two";
    git("branches", json!({ "path": at, "name": "topic", "checkout": true })).await.ok();
    git("branches", json!({ "path": at, "name": "topic" })).await.refused(409, "already_exists");
    let listed = client.get(&path(id, &format!("git/branches?path={at}"))).await.ok();
    assert_eq!(listed, json!({ "items": ["main", "topic"], "current": "topic" }));
    client.sh(id, "printf 'two\\n' >>~/two/a.txt").await.text();
    let diff = async |query: &str| client.get(&path(id, &format!("git/diff?path={at}{query}"))).await.ok();
    assert!(diff("").await["output"].as_str().unwrap().contains("\n+two\n"));
    git("add", json!({ "path": at, "files": ["."] })).await.ok();
    assert_eq!(diff("").await["output"], "");
    assert!(diff("&staged=1&context=0").await["output"].as_str().unwrap().contains("\n+two\n"));
    git("reset", json!({ "path": at })).await.ok();
    assert!(diff("").await["output"].as_str().unwrap().contains("\n+two\n"), "unstaged again");
    git("add", json!({ "path": at, "files": ["a.txt"] })).await.ok();
    let commit = json!({ "path": at, "message": "second", "author": "Ada", "email": "ada@example.com" });
    git("commit", commit).await.ok();
    git("push", json!({ "path": at, "set_upstream": true })).await.ok();
    client.sh(id, "echo lost >>~/two/a.txt").await.text();
    git("restore", json!({ "path": at, "files": ["a.txt"] })).await.ok();
    assert_eq!(client.sh(id, "cat ~/two/a.txt").await.text(), "one\ntwo");
    git("checkout", json!({ "path": at, "target": "main" })).await.ok();
    let topic = path(id, &format!("git/branches/topic?path={at}"));
    client.delete(&topic).await.refused(409, "invalid_argument");
    let topic = format!("{topic}&force=1");
    assert_eq!(client.delete(&topic).await.status, 204, "its commits are in no other branch here");
    client.delete(&topic).await.refused(404, "file_not_found");
}

/// The server is a program in the sandbox that accepts no connection; what counts is what git was given.
async fn credentials_stay_out_of_the_repository(client: &Client, id: &str) {
    let with = json!({ "path": "/home/user/one", "remote": "http://127.0.0.1:9/x.git",
        "credentials": { "username": "u", "password": "canary-secret" } });
    let refused = client.post(&path(id, "git/push"), with).await;
    assert!(refused.status >= 400 && !refused.to_string().contains("canary"), "{refused}");
    let remote =
        json!({ "path": "/home/user/one", "name": "web", "url": "http://u:canary-secret@127.0.0.1:9/x.git" });
    client.post(&path(id, "git/remotes"), remote).await.ok();
    let listed = client.get(&path(id, "git/remotes?path=/home/user/one")).await;
    assert!(listed.ok()["items"].as_array().unwrap().len() == 2 && !listed.to_string().contains("canary"));
    let found =
        client.sh(id, "grep -r canary ~/one/.git ~/.gitconfig ~/.git-credentials 2>/dev/null | wc -l").await;
    assert_eq!(found.text(), "0");
}

fn git_of_the_command_line(w: &World, client: &Client, id: &str) {
    let git = |words: &[&str]| {
        let done = w.command().env("ATOLL_API_KEY", client.key()).arg("git").args(words).output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let (status, log) = git(&[id, "-C", "/home/user/one", "log", "--format=%s", "-n", "1", "main"]);
    assert_eq!((status, log.as_str()), (Some(0), "second\n"));
    assert!(git(&[id, "--", "--version"]).1.starts_with("git version"));
    assert_eq!(git(&[id, "-C", "/tmp", "status"]).0, Some(128), "git's own status");
}

#[test]
fn creates_of_one_session_at_once_start_one_shell() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let all = path(&id, "sessions");
        let creates = (0..8).map(|_| client.post(&all, json!({ "name": "one" })));
        let mut statuses: Vec<u16> =
            futures::future::join_all(creates).await.iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 409, 409, 409, 409, 409, 409, 409]);
        let processes = client.get(&path(&id, "processes")).await.ok();
        let tags =
            processes["items"].as_array().unwrap().iter().filter_map(|process| process["tag"].as_str());
        assert_eq!(tags.filter(|tag| tag.contains("session")).count(), 1, "{processes}");
    });
}

#[test]
fn a_session_keeps_its_state_and_its_output() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let all = path(&id, "sessions");
        let made = client.post(&all, json!({ "name": "build one", "cwd": "/tmp" })).await;
        assert_eq!((made.status, made.ok()), (201, json!({ "name": "build one" })));
        client.post(&all, json!({ "name": "build one" })).await.refused(409, "already_exists");
        assert_eq!(client.get(&all).await.ok()["items"], json!([{ "name": "build one" }]));
        let one = format!("{all}/build%20one");
        let exec = async |body: Value| client.post(&format!("{one}/exec"), body).await;

        exec(json!({ "command": "cd /usr; x=41; f() { echo f$1; }" })).await.ok();
        let ran = exec(json!({ "command": "pwd; echo $((x+1)); f 1 >&2; (exit 3)" })).await.ok();
        assert_eq!(
            (&ran["exit_code"], &ran["stdout"], &ran["stderr"]),
            (&json!(3), &json!("/usr\n42\n"), &json!("f1\n"))
        );
        let kept = client.get(&format!("{one}/commands/{}/logs", ran["id"].as_str().unwrap())).await.ok();
        assert_eq!(kept, json!({ "exit_code": 3, "stdout": "/usr\n42\n", "stderr": "f1\n" }));

        let body = json!({ "command": "echo ready; read line; echo got $line; exit 4", "detach": true, "quiet_stdin": true });
        let started = exec(body).await;
        assert_eq!(started.status, 202, "{started}");
        let command = format!("{one}/commands/{}", started.ok()["id"].as_str().unwrap());
        let mut events = client.events(Method::GET, &format!("{command}/logs/stream"), None).await;
        assert_eq!(events.find("stdout").await.data["data"], "ready\n");
        assert_eq!(client.get(&command).await.ok()["exit_code"], Value::Null);
        let stdin = format!("{command}/stdin");
        let write = client.raw(Method::POST, &stdin).body("word\n");
        assert_eq!(client.judged(write, &Method::POST, &stdin, None).await.status, 204);
        assert_eq!(events.find("stdout").await.data["data"], "got word\n");
        assert_eq!(events.find("exit").await.data["exit_code"], 4);
        assert!(events.next().await.is_none());

        // Its shell has exited; its output is there until it is deleted.
        exec(json!({ "command": "true" })).await.refused(404, "process_not_found");
        let details = client.get(&one).await.ok();
        let codes: Vec<&Value> =
            details["commands"].as_array().unwrap().iter().map(|c| &c["exit_code"]).collect();
        assert_eq!(codes, [&json!(0), &json!(3), &json!(4)]);
        assert_eq!(client.delete(&one).await.status, 204);
        client.get(&one).await.refused(404, "process_not_found");
        client.get(&format!("{one}/commands/x/logs/stream")).await.refused(404, "process_not_found");
    });
}

#[test]
fn a_language_server_completes_and_finds_symbols() {
    with_kernel(async |_, client, id| {
        let source = "import os\n\nclass Shape:\n    def area(self):\n        return os.pa\n";
        let file = "/home/user/p/m.py";
        client.sh(&id, &format!("mkdir ~/p && printf '%s' '{source}' >~/p/m.py")).await.text();
        let lsp = async |verb: &str, more: Value| {
            let mut body = json!({ "language": "python", "project": "/home/user/p/" });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            client.post(&path(&id, &format!("lsp/{verb}")), body).await
        };
        lsp("symbols", json!({ "path": file })).await.refused(404, "process_not_found");
        for _ in 0..2 {
            assert_eq!(lsp("start", json!({})).await.status, 204, "one that runs is kept");
        }
        assert_eq!(lsp("open", json!({ "path": file })).await.status, 204);
        let found = lsp("completions", json!({ "path": file, "line": 4, "character": 20 })).await.ok();
        let labels = found["items"].as_array().unwrap().iter().filter_map(|item| item["label"].as_str());
        assert!(labels.into_iter().any(|label| label == "path"), "{found}");
        let found = lsp("symbols", json!({ "path": file })).await.ok();
        let shape =
            found["items"].as_array().unwrap().iter().find(|symbol| symbol["name"] == "Shape").unwrap();
        assert_eq!((&shape["uri"], &shape["start"]["line"]), (&json!(format!("file://{file}")), &json!(2)));
        assert_eq!(lsp("symbols", json!({ "query": "shap" })).await.ok()["items"][0]["name"], "Shape");
        let newer = json!({ "path": file, "text": "class Newer: pass\n", "version": 2 });
        assert_eq!(lsp("open", newer).await.status, 204);
        assert_eq!(lsp("symbols", json!({ "path": file })).await.ok()["items"][0]["name"], "Newer");

        lsp("symbols", json!({})).await.refused(400, "invalid_request");
        lsp("open", json!({ "path": "m.py" })).await.refused(400, "invalid_request");
        let typescript = json!({ "language": "typescript" });
        assert_eq!(lsp("start", typescript.clone()).await.status, 204, "the template has this one too");
        assert_eq!(lsp("stop", typescript.clone()).await.status, 204);
        client.sh_root(&id, "rm $(which typescript-language-server)").await.text();
        let none = lsp("start", typescript).await.refused(501, "tool_missing");
        assert!(none["hint"].as_str().unwrap().contains("npm"), "{none}");
        assert_eq!(lsp("close", json!({ "path": file })).await.status, 204);
        assert_eq!(lsp("stop", json!({})).await.status, 204);
        lsp("stop", json!({})).await.refused(404, "process_not_found");
    });
}
