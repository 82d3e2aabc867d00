//! The real command line against a real server: exit codes, streams, files, terminals, errors that help.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Instant;

use atoll_tests::poll::PATIENCE;
use atoll_tests::{Options, Value, World, json, run, run_with, until};
use nix::sys::signal::Signal;

/// Runs `atoll` with these words.
fn atoll(w: &World, words: &[&str]) -> Output {
    w.command().args(words).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// As [`atoll`], fails unless it succeeded; what it printed.
fn ok(w: &World, words: &[&str]) -> String {
    let done = atoll(w, words);
    assert!(done.status.success(), "atoll {words:?}: {} {}", done.status, text(&done.stderr));
    text(&done.stdout)
}

fn fed(w: &World, words: &[&str], input: &[u8]) -> Output {
    let mut child = w
        .command()
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_admins_name_means_a_sandbox_of_the_keys_own_tenant() {
    run(async |w| {
        let acme = w.tenant("acme").await;
        let theirs = acme.create(json!({ "name": "box" })).await;
        let snapshot =
            acme.post(&format!("/v1/sandboxes/{theirs}/snapshots"), json!({ "name": "s" })).await.ok();
        // The own tenant has none: nothing happens to the other one, and the error says where it is.
        for words in
            [&["rm", "-f", "box"][..], &["exec", "box", "true"], &["stop", "box"], &["inspect", "box"]]
        {
            let done = atoll(w, words);
            let said = text(&done.stderr);
            assert!(words[0] == "rm" || !done.status.success(), "{words:?}");
            assert!(
                words[0] == "rm" || (said.contains("--tenant acme") && said.contains(&theirs)),
                "{words:?}: {said}"
            );
            assert_eq!(acme.sandbox(&theirs).await["phase"], "running", "{words:?}");
        }
        // By its tenant, its id, or the begin of the id.
        assert_eq!(ok(w, &["--tenant", "acme", "exec", "box", "echo", "hi"]), "hi\n");
        assert_eq!(ok(w, &["exec", &theirs, "echo", "hi"]), "hi\n");
        assert_eq!(ok(w, &["exec", "--tenant", "acme", &theirs[..8], "echo", "hi"]), "hi\n");
        let lost = text(&atoll(w, &["stop", "other", "--tenant", "acme"]).stderr);
        assert!(lost.contains("the tenant acme has no sandbox other"), "{lost}");
        let unused = text(&atoll(w, &["--tenant", "acme", "version"]).stderr);
        assert!(unused.contains("name a sandbox"), "{unused}");
        // Both have one: the name is the own one's.
        let own = w.admin().create(json!({ "name": "box" })).await;
        ok(w, &["exec", "box", "sh", "-c", "echo own > /tmp/who"]);
        assert_eq!(w.admin().sh(&own, "cat /tmp/who").await.stdout, "own\n");
        assert_eq!(acme.sh(&theirs, "ls /tmp").await.stdout, "");
        // Snapshots of several tenants have a column for it.
        assert!(!ok(w, &["snapshot", "ls"]).contains("TENANT"));
        ok(w, &["snapshot", "box", "--name", "s"]);
        let table = ok(w, &["snapshot", "ls"]);
        assert!(table.contains("TENANT") && table.contains("acme") && table.contains("default"), "{table}");
        assert!(ok(w, &["snapshot", "show", "box:s"]).contains(&own));
        assert!(ok(w, &["snapshot", "show", snapshot["id"].as_str().unwrap()]).contains(&theirs));
        ok(w, &["rm", "-f", "box"]);
        assert_eq!(acme.sandbox(&theirs).await["phase"], "running");
        ok(w, &["--tenant", "acme", "rm", "-f", "box", "--snapshots"]);
    });
}

#[test]
fn a_cpu_limit_that_the_machine_cannot_have_is_refused_with_the_largest_one() {
    run(async |w| {
        let cores = std::thread::available_parallelism().unwrap().get();
        let asked = (cores * 16 + 1).to_string();
        for queue in [&[][..], &["--queue"]] {
            let done = atoll(w, &[&["create", "--cpu", &asked][..], queue].concat());
            let said = text(&done.stderr);
            assert!(!done.status.success());
            assert!(said.contains("--cpu") && said.contains(&format!("at most {}", cores * 16)), "{said}");
            assert!(said.contains(&format!("the {cores} cores")) && !said.contains("thousandths"), "{said}");
            assert!(!said.contains("queue"), "{said}");
        }
        let body = json!({ "cpu": cores * 16 + 1 });
        let refused = w.admin().post("/v1/sandboxes", body).await;
        refused.refused(400, "invalid_request");
    });
}

#[test]
fn run_passes_streams_and_exit_codes_through_and_leaves_nothing() {
    run(async |w| {
        let done = atoll(w, &["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
        assert_eq!(
            (done.status.code(), text(&done.stdout).as_str(), text(&done.stderr).as_str()),
            (Some(7), "out\n", "err\n")
        );
        let done = fed(w, &["run", "--", "cat"], b"piped \xff bytes");
        assert_eq!(done.stdout, b"piped \xff bytes", "{}", text(&done.stderr));
        let done = fed(w, &["run", "--", "wc", "-c"], &vec![b'x'; 3_000_000]);
        assert_eq!(text(&done.stdout).trim(), "3000000", "{}", text(&done.stderr));
        assert_eq!(atoll(w, &["run", "--timeout", "1s", "--", "sleep", "60"]).status.code(), Some(124));
        assert_eq!(atoll(w, &["run", "--", "no-such-program"]).status.code(), Some(127));
        assert_eq!(atoll(w, &["run", "--", "sh", "-c", "kill -9 $$"]).status.code(), Some(137));
        let large = atoll(w, &["run", "--", "head", "-c", "20000000", "/dev/zero"]);
        assert_eq!(large.stdout.len(), 20_000_000, "{}", text(&large.stderr));
        let options = [
            "run",
            "--env",
            "A=1",
            "--label",
            "x=y",
            "--cpu",
            "0.5",
            "--memory",
            "64m",
            "--disk",
            "64m",
            "--network",
            "deny-all",
            "--",
            "sh",
            "-c",
            "echo $A",
        ];
        assert_eq!(ok(w, &options), "1\n");
        assert_eq!(w.admin().get("/v1/sandboxes").await.ok()["items"], json!([]), "run deletes what it made");
        // Ended by the keyboard it cleans up too.
        let mut child = w
            .command()
            .args(["run", "--", "sleep", "600"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("it runs", async || {
            (w.admin().get("/v1/sandboxes?phase=running").await.ok()["items"].as_array().unwrap().len() == 1)
                .then_some(())
        })
        .await;
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(child.id().cast_signed()),
            nix::sys::signal::Signal::SIGINT,
        )
        .unwrap();
        until("it is gone", async || child.try_wait().unwrap()).await;
        until("its sandbox is gone", async || {
            (w.admin().get("/v1/sandboxes").await.ok()["items"] == json!([])).then_some(())
        })
        .await;
    });
}

#[test]
fn a_server_that_listens_everywhere_serves_its_own_machine_and_warns() {
    run(async |w| {
        w.stop_server(Signal::SIGTERM).await;
        let log = w.folder().join("everywhere.log");
        let on_machine = || {
            let mut command = w.command();
            command.env_remove("ATOLL_URL").stdin(Stdio::null());
            command
        };
        let mut server = on_machine()
            .args(["serve", "--listen", "0.0.0.0:7070"])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        until("commands find it and have its key", async || {
            on_machine().arg("ls").output().unwrap().status.success().then_some(())
        })
        .await;
        let status = on_machine().args(["server", "status"]).output().unwrap();
        assert!(text(&status.stdout).contains("http://127.0.0.1:7070"), "{}", text(&status.stdout));
        let log = std::fs::read_to_string(log).unwrap();
        for said in [text(&status.stderr), log] {
            assert!(said.contains("clear text to 0.0.0.0:7070"), "{said}");
        }
        let stopped = on_machine().args(["server", "stop"]).output().unwrap();
        assert!(stopped.status.success(), "{}", text(&stopped.stderr));
        assert!(server.wait().unwrap().success());
        w.start_server().await;
    });
}

#[test]
fn the_daily_verbs_work_by_name_prefix_and_alias() {
    run(async |w| {
        let made: Value = serde_json::from_str(&ok(
            w,
            &["create", "--json", "--name", "box", "--label", "team=red", "--timeout", "1h"],
        ))
        .unwrap();
        let id = made["id"].as_str().unwrap().to_owned();
        assert_eq!(ok(w, &["exec", "box", "--", "echo", "hi"]), "hi\n");
        assert_eq!(ok(w, &["exec", &id[..6], "echo", "hi"]), "hi\n");
        for list in [&["ls"][..], &["list"], &["ls", "-a"], &["ls", "--label", "team=red"]] {
            assert!(ok(w, list).contains("box"), "{list:?}");
        }
        assert_eq!(ok(w, &["ls", "-q"]).trim(), id);
        assert!(!ok(w, &["ls", "--label", "team=blue", "-q"]).contains(&id));
        let listed: Value = serde_json::from_str(&ok(w, &["ls", "--json"])).unwrap();
        assert!(listed.to_string().contains(&id));
        assert!(ok(w, &["inspect", "box"]).contains(&id));
        ok(w, &["stop", "box"]);
        assert!(ok(w, &["ls"]).contains("stopped"));
        ok(w, &["update", "box", "--wake", "explicit", "--label", "team=blue"]);
        let refused = atoll(w, &["exec", "box", "true"]);
        assert!(
            refused.status.code() == Some(125) && text(&refused.stderr).contains("start"),
            "{}",
            text(&refused.stderr)
        );
        ok(w, &["start", "box"]);
        ok(w, &["update", "box", "--wake", "any"]);
        ok(w, &["stop", "box"]);
        assert_eq!(ok(w, &["exec", "box", "echo", "woken"]), "woken\n", "a request wakes it");
        assert!(ok(w, &["events"]).contains("running"));
        assert!(ok(w, &["top", "--json"]).contains(&id) || ok(w, &["top"]).contains("box"));
        ok(w, &["rm", "-f", "box"]);
        assert_eq!(ok(w, &["ls", "-q"]), "");
    });
}

#[test]
fn the_verbs_of_life_work_from_the_shell() {
    run(async |w| {
        ok(w, &["create", "--name", "box", "--auto-pause", "1h", "--private-env", "KEY", "--env", "KEY=1"]);
        ok(w, &["exec", "box", "sh", "-c", "echo one > f; sleep 600 >/dev/null 2>&1 &"]);
        ok(w, &["pause", "box"]);
        assert!(ok(w, &["ls"]).contains("paused"));
        assert!(ok(w, &["top"]).contains("paused"));
        ok(w, &["resume", "box"]);
        ok(w, &["snapshot", "box", "--name", "clean"]);
        assert!(ok(w, &["snapshot", "ls"]).contains("clean"));
        ok(w, &["snapshot", "verify", "clean"]);
        ok(w, &["exec", "box", "sh", "-c", "echo two > f"]);
        let forks = ok(w, &["fork", "box", "-n", "2"]);
        let forks: Vec<&str> = forks.lines().collect();
        assert_eq!(forks.len(), 2);
        assert_eq!(ok(w, &["exec", forks[0], "cat", "f"]), "two\n");
        assert_eq!(ok(w, &["exec", forks[1], "sh", "-c", "echo ${KEY-none}"]), "none\n", "it is private");
        ok(w, &["rollback", "box", "clean"]);
        assert_eq!(ok(w, &["exec", "box", "cat", "f"]), "one\n");
        ok(w, &["create", "--name", "child", "--snapshot", "clean"]);
        assert_eq!(ok(w, &["exec", "child", "cat", "f"]), "one\n");
        let shown = ok(w, &["inspect", "box"]);
        assert!(shown.contains("pause after 1h idle") && shown.contains(forks[0]), "{shown}");
        ok(w, &["hold", "box", "10m", "--reason", "a build"]);
        assert!(ok(w, &["inspect", "box"]).contains("a build"));
        ok(w, &["hold", "box", "--release"]);
        ok(w, &["extend", "box", "1h"]);
        ok(w, &["resize", "box", "--memory", "256m", "--cpu", "0.5"]);
        ok(w, &["archive", "box"]);
        assert!(ok(w, &["ls"]).contains("archived"));
        let shown: Value = serde_json::from_str(&ok(w, &["inspect", "--json", "box"])).unwrap();
        let key = shown["archive"]["key"].as_str().unwrap().to_owned();
        let copy = ok(w, &["restore", "--from", &key]);
        assert_eq!(ok(w, &["exec", copy.trim(), "cat", "f"]), "one\n");
        ok(w, &["restore", "box"]);
        assert!(ok(w, &["ls"]).contains("stopped"));
        assert_eq!(ok(w, &["exec", "box", "cat", "f"]), "one\n");
        ok(w, &["snapshot", "rm", "clean"]);
        ok(w, &["create", "--name", "bound", "--thread", "t", "--on-exit", "destroy"]);
        ok(w, &["thread", "end", "t"]);
        assert!(!ok(w, &["ls"]).contains("bound"));
        ok(w, &["rm", "--all", "--force"]);
    });
}

#[test]
fn files_are_copied_in_and_out() {
    run(async |w| {
        ok(w, &["create", "--name", "box"]);
        let here = w.folder().join("here");
        std::fs::create_dir_all(here.join("sub")).unwrap();
        std::fs::write(here.join("one"), [0, 1, 2, 255]).unwrap();
        std::fs::write(here.join("sub/two"), "two").unwrap();
        let here = here.display().to_string();
        ok(w, &["cp", &format!("{here}/one"), "box:/tmp/uno"]);
        let back = w.folder().join("back");
        ok(w, &["cp", "box:/tmp/uno", &back.display().to_string()]);
        assert_eq!(std::fs::read(&back).unwrap(), [0, 1, 2, 255]);
        ok(w, &["cp", &here, "box:/home/user/tree"]);
        assert_eq!(ok(w, &["exec", "box", "cat", "/home/user/tree/sub/two"]), "two");
        let tree = w.folder().join("tree");
        ok(w, &["cp", "box:/home/user/tree", &tree.display().to_string()]);
        assert_eq!(std::fs::read_to_string(tree.join("sub/two")).unwrap(), "two");
        let missing = atoll(w, &["cp", "box:/none", "/tmp/never"]);
        assert!(!missing.status.success() && text(&missing.stderr).contains("/none"));
    });
}

#[test]
fn logs_show_the_start_command_and_follow() {
    run(async |w| {
        ok(w, &["create", "--name", "box", "--", "sh", "-c", "echo first; sleep 2; echo second; sleep 600"]);
        until("the first line", async || ok(w, &["logs", "box"]).contains("first").then_some(())).await;
        let mut following = w
            .command()
            .args(["logs", "-f", "box"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = following.stdout.take().unwrap();
        let seen = tokio::task::spawn_blocking(move || {
            let (mut seen, mut part) = (String::new(), [0; 512]);
            while !seen.contains("second") {
                let n = std::io::Read::read(&mut out, &mut part).unwrap();
                assert!(n > 0, "it ended: {seen}");
                seen.push_str(&text(&part[..n]));
            }
            seen
        });
        let seen = tokio::time::timeout(PATIENCE, seen).await.unwrap().unwrap();
        assert!(seen.contains("first"));
        following.kill().unwrap();
        following.wait().unwrap();
    });
}

#[test]
fn a_shell_in_a_terminal_is_a_terminal() {
    run(async |w| {
        ok(w, &["create", "--name", "box"]);
        let program = atoll_tests::world::program().display().to_string();
        // `script` gives the command line a terminal of its own.
        let mut script = w.command();
        let line = format!("stty rows 31 cols 97; {program} sh box");
        let mut wrapped = std::process::Command::new("script");
        wrapped.args(["-qec", &line, "/dev/null"]).envs(
            script.get_envs().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned()))).collect::<Vec<_>>(),
        );
        drop(std::mem::replace(&mut script, std::process::Command::new("true")));
        let mut child = wrapped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut keys = child.stdin.take().unwrap();
        let mut screen = child.stdout.take().unwrap();
        let typed = tokio::task::spawn_blocking(move || {
            let (mut seen, mut part) = (String::new(), [0; 512]);
            keys.write_all(b"tty; stty size; echo do''ne\n").unwrap();
            while !seen.contains("done") {
                let n = std::io::Read::read(&mut screen, &mut part).unwrap();
                assert!(n > 0, "it ended: {seen}");
                seen.push_str(&text(&part[..n]));
            }
            keys.write_all(b"exit 3\n").unwrap();
            // Reading on until the end, so that nothing blocks.
            let _ = std::io::Read::read_to_string(&mut screen, &mut String::new());
            seen
        });
        let seen = tokio::time::timeout(PATIENCE, typed).await.unwrap().unwrap();
        assert!(seen.contains("/dev/pts/") && seen.contains("31 97"), "{seen}");
        let status = until("it ends", async || child.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(3));
    });
}

#[test]
fn errors_say_what_to_try() {
    run(async |w| {
        ok(w, &["create", "--name", "box"]);
        for (words, hint) in [
            (&["exec", "bx", "true"][..], "ls"),
            (&["create", "--template", "busybx"], "busybox"),
            (&["rm", "nothing-there"], "nothing-there"),
            (&["create", "--name", "box"], "box"),
        ] {
            let done = atoll(w, words);
            let said = text(&done.stderr);
            assert!(!done.status.success() && said.contains(hint), "{words:?}: {said}");
            assert!(!said.contains("panicked") && !said.contains("Error {"), "{said}");
            assert!(done.stdout.is_empty(), "errors go to stderr: {}", text(&done.stdout));
        }
        let machine = atoll(w, &["--json", "exec", "bx", "true"]);
        let error: Value = serde_json::from_str(text(&machine.stderr).lines().last().unwrap()).unwrap();
        assert!(error.to_string().contains("sandbox_not_found"), "{error}");
        let wrong = w.command().env("ATOLL_API_KEY", "atl_wrong").args(["ls"]).output().unwrap();
        let said = text(&wrong.stderr);
        assert!(!wrong.status.success() && said.contains("does not know this key"), "{said}");
        assert!(said.contains("ATOLL_API_KEY") && !said.contains("Bearer"), "{said}");
        let usage = atoll(w, &["dance"]);
        assert_eq!(usage.status.code(), Some(2));
        let away = w.command().env("ATOLL_URL", "http://127.0.0.1:9").args(["ls"]).output().unwrap();
        assert!(
            !away.status.success() && text(&away.stderr).contains("127.0.0.1:9"),
            "{}",
            text(&away.stderr)
        );
        assert!(!text(&away.stderr).contains('\u{1b}'), "no colour when asked not to");
    });
}

#[test]
fn keys_templates_doctor_version_and_completions() {
    run(async |w| {
        let made: Value = serde_json::from_str(&ok(w, &["key", "create", "--json", "--name", "ci"])).unwrap();
        let secret = made["secret"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        let with_key = w.command().env("ATOLL_API_KEY", &secret).args(["ls"]).output().unwrap();
        assert!(with_key.status.success(), "{}", text(&with_key.stderr));
        assert!(!ok(w, &["key", "ls"]).contains(&secret));
        let providers: Value = serde_json::from_str(&ok(w, &["provider", "ls", "--json"])).unwrap();
        let container = &providers[0];
        assert_eq!((&container["isolation"], &container["default"]), (&json!("container"), &json!(true)));
        assert!(ok(w, &["provider", "ls"]).contains("container"));
        assert!(ok(w, &["template", "ls"]).contains("busybox"));
        let doctor = atoll(w, &["doctor"]);
        let said = text(&doctor.stdout) + &text(&doctor.stderr);
        for part in ["control groups", "namespace", "overlay", "nft", "CRIU", "KVM", "disk"] {
            assert!(said.to_lowercase().contains(&part.to_lowercase()), "{part}: {said}");
        }
        assert!(ok(w, &["version"]).contains(env!("CARGO_PKG_VERSION")));
        assert!(ok(w, &["completions", "bash"]).contains("atoll"));
        let document: Value = serde_json::from_str(&ok(w, &["openapi"])).unwrap();
        assert_eq!(
            &document,
            w.admin().contract().document(),
            "the committed and the served document are one"
        );
    });
}

#[test]
fn run_starts_a_server_by_itself_when_none_answers() {
    run_with(Options { audit: false, ..Options::default() }, async |w| {
        w.stop_server(nix::sys::signal::Signal::SIGTERM).await;
        w.forget_server();
        let started = Instant::now();
        let done = w
            .command()
            .env_remove("ATOLL_URL")
            .args(["run", "--", "echo", "by itself"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(
            (done.status.code(), text(&done.stdout).as_str()),
            (Some(0), "by itself\n"),
            "{}",
            text(&done.stderr)
        );
        assert!(started.elapsed() < PATIENCE);
        let again = w
            .command()
            .env_remove("ATOLL_URL")
            .args(["run", "--", "echo", "again"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(text(&again.stdout), "again\n", "{}", text(&again.stderr));
        let mut stop = w.command();
        stop.env_remove("ATOLL_URL").args(["server", "stop"]);
        let stopped = w.output(stop).await;
        assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    });
}
