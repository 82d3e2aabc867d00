//! Running commands: results, streams, stdin, users, time limits, processes and signals.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::sse::stdout_of;
use atoll_tests::{Options, json, run, run_with, until};
use base64::Engine;
use reqwest::Method;

#[test]
fn a_command_answers_with_its_streams_and_exit_code() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "env": { "A": "1", "B": "2" } })).await;
        let ran = client.sh(&id, "echo out; echo err >&2; exit 7").await;
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (7, "out\n", "err\n"));
        assert_eq!(
            (&ran.answer["timed_out"], &ran.answer["signal"]),
            (&json!(false), &json!(null)),
            "{}",
            ran.answer
        );
        assert!(ran.answer["pid"].as_u64().is_some_and(|pid| pid > 1));
        let ran = client
            .exec(&id, json!({ "command": "echo $A$B$C; pwd", "env": { "B": "x", "C": "y" }, "cwd": "/tmp" }))
            .await;
        assert_eq!(ran.text(), "1xy\n/tmp");
        let ran = client.exec(&id, json!({ "argv": ["cat"], "stdin": "hällo" })).await;
        assert_eq!(ran.stdout, "hällo");
        let ran = client.exec(&id, json!({ "argv": ["cat"], "stdin_base64": "AP8K" })).await;
        assert_eq!(
            base64::engine::general_purpose::STANDARD
                .decode(ran.answer["stdout_base64"].as_str().unwrap())
                .unwrap(),
            [0, 255, 10]
        );
        let ran = client.sh(&id, "kill -9 $$").await;
        assert_eq!((ran.code, &ran.answer["signal"]), (137, &json!(9)));
        assert_eq!(
            client.exec(&id, json!({ "argv": ["printf", "%s|", "a b", "", "*"] })).await.stdout,
            "a b||*|"
        );
    });
}

#[test]
fn a_command_runs_as_the_user_it_names() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        assert_eq!(client.sh(&id, "id -un; echo $HOME").await.text(), "user\n/home/user");
        assert_eq!(client.sh_root(&id, "id -u; echo $HOME").await.text(), "0\n/root");
        let unknown = client.try_exec(&id, json!({ "argv": ["id"], "user": "nobody-here" })).await;
        unknown.refused(400, "invalid_argument");
        let boxed = client.create(json!({ "user": "root" })).await;
        assert_eq!(client.sh(&boxed, "id -u").await.text(), "0");
    });
}

#[test]
fn a_command_that_takes_too_long_ends_with_124() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let started = Instant::now();
        let ran =
            client.exec(&id, json!({ "command": "echo early; sleep 600 & sleep 600", "timeout_s": 3 })).await;
        assert!(started.elapsed() < Duration::from_secs(60));
        assert_eq!((ran.code, &ran.answer["timed_out"]), (124, &json!(true)), "{}", ran.answer);
        assert_eq!(ran.stdout, "early\n");
        until("its children end too", async || {
            client.sh(&id, "ps | grep '[s]leep'").await.stdout.is_empty().then_some(())
        })
        .await;
        let body = json!({ "command": "echo early; sleep 600", "timeout_s": 0.4 });
        let events = client
            .events(Method::POST, &format!("/v1/sandboxes/{id}/exec/stream"), Some(&body))
            .await
            .rest()
            .await;
        let exit = &events.last().unwrap().data;
        assert_eq!((&exit["exit_code"], &exit["timed_out"]), (&json!(124), &json!(true)));
    });
}

#[test]
fn timeout_at_the_very_end_gives_exactly_one_result() {
    // C11.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let one = async |n: u32| {
            let body = json!({ "argv": ["sleep", "0.1"], "timeout_s": 0.1 + f64::from(n % 5) * 0.001 });
            let ran = client.exec(&id, body).await;
            let fair = (ran.code == 0 && ran.answer["timed_out"] == false)
                || (ran.code == 124 && ran.answer["timed_out"] == true);
            assert!(fair, "{}", ran.answer);
        };
        for round in 0..5 {
            futures::future::join_all((0..8).map(|n| one(n + round))).await;
        }
    });
}

#[test]
fn output_streams_while_the_command_runs() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let path = format!("/v1/sandboxes/{id}/exec/stream");
        let body = json!({ "command": "echo one; read x; echo got $x >&2; exit 3", "stdin": "" });
        let events = client.events(Method::POST, &path, Some(&body)).await.rest().await;
        assert_eq!(events.first().unwrap().name, "start");
        assert_eq!(stdout_of(&events), "one\n");
        assert_eq!(events.last().unwrap().data["exit_code"], 3);
        // The first line is here long before the end.
        let body = json!({ "command": "echo first; sleep 600; echo last" });
        let mut stream = client.events(Method::POST, &path, Some(&body)).await;
        let pid = stream.find("start").await.data["pid"].as_u64().unwrap();
        assert_eq!(stream.find("stdout").await.data["data"], "first\n");
        client
            .post(&format!("/v1/sandboxes/{id}/processes/{pid}/signal"), json!({ "signal": "KILL" }))
            .await
            .ok();
        assert_eq!(stream.find("exit").await.data["signal"], 9);
    });
}

#[test]
fn a_detached_process_lives_on_and_can_be_attached_fed_and_signalled() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let body = json!({ "argv": ["/bin/sh", "-c", "echo ready; while read line; do echo got $line; done; echo end"], "detach": true });
        let started = client.try_exec(&id, body).await;
        assert_eq!(started.status, 202, "{started}");
        let pid = started.ok()["pid"].as_u64().unwrap();
        let base = format!("/v1/sandboxes/{id}/processes");
        let listed = client.get(&base).await.ok();
        let mine = listed["items"].as_array().unwrap().iter().find(|p| p["pid"] == pid).cloned().unwrap();
        assert_eq!(mine["argv"][0], "/bin/sh", "{mine}");
        let mut stream = client.events(Method::GET, &format!("{base}/{pid}/attach?tail=1"), None).await;
        let mut seen = String::new();
        while !seen.contains("ready") {
            seen.push_str(&atoll_tests::sse::text_of(&stream.find("stdout").await.data));
        }
        let stdin = format!("{base}/{pid}/stdin");
        let fed =
            client.judged(client.raw(Method::POST, &stdin).body("x\n"), &Method::POST, &stdin, None).await;
        fed.ok();
        while !seen.contains("got x") {
            seen.push_str(&atoll_tests::sse::text_of(&stream.find("stdout").await.data));
        }
        client.delete(&stdin).await.ok();
        assert_eq!(stream.find("exit").await.data["exit_code"], 0);
        let late =
            client.judged(client.raw(Method::POST, &stdin).body("x\n"), &Method::POST, &stdin, None).await;
        late.refused(404, "process_not_found");
        client
            .post(&format!("{base}/{pid}/signal"), json!({ "signal": 15 }))
            .await
            .refused(404, "process_not_found");
        client
            .post(&format!("{base}/99999/signal"), json!({ "signal": "TERM" }))
            .await
            .refused(404, "process_not_found");
        until("output of detached processes is in the logs", async || {
            let logs = client.raw(Method::GET, &format!("/v1/sandboxes/{id}/logs")).send().await.unwrap();
            logs.text().await.unwrap().contains("got x").then_some(())
        })
        .await;
    });
}

#[test]
fn a_vanished_client_does_not_end_the_command() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let body = json!({ "command": "echo begun; sleep 1; echo done > /tmp/done; sleep 100" });
        let mut stream =
            client.events(Method::POST, &format!("/v1/sandboxes/{id}/exec/stream"), Some(&body)).await;
        let pid = stream.find("start").await.data["pid"].as_u64().unwrap();
        drop(stream);
        until("it went on", async || {
            (client.sh(&id, "cat /tmp/done").await.stdout == "done\n").then_some(())
        })
        .await;
        let listed = client.get(&format!("/v1/sandboxes/{id}/processes")).await.ok();
        assert!(listed["items"].as_array().unwrap().iter().any(|p| p["pid"] == pid), "{listed}");
    });
}

#[test]
fn python_and_git_and_node_work_in_debian() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let ran = client
            .exec(&id, json!({ "argv": ["python3", "-c", "import ssl, sqlite3, json; print(6*7)"] }))
            .await;
        assert_eq!(ran.text(), "42");
        assert_eq!(client.sh(&id, "node -e 'console.log(6*7)'").await.text(), "42");
        let ran = client.exec(&id, json!({ "command": "cd /tmp && git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l" })).await;
        assert_eq!(ran.text(), "1");
        assert_eq!(
            client.exec(&id, json!({ "command": "[[ -n $BASH_VERSION ]] && echo bash" })).await.text(),
            "bash"
        );
    });
}

#[test]
fn the_host_template_shows_programs_and_no_secrets() {
    run_with(Options { template: "host", templates: vec!["busybox"], ..Options::default() }, async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        assert_eq!(
            client.exec(&id, json!({ "argv": ["/usr/bin/python3", "-c", "print(6*7)"] })).await.text(),
            "42"
        );
        let secret = w.canary.secret().display().to_string();
        let looked = client.sh_root(&id, &format!("cat {secret} /etc/shadow 2>&1; ls -A /root /home /run /usr/local /usr/src 2>&1; cat /etc/passwd")).await;
        assert!(!looked.stdout.contains(atoll_tests::canary::SECRET), "{}", looked.stdout);
        let shadow = std::fs::read_to_string("/etc/shadow").unwrap();
        for line in shadow.lines().filter(|line| line.split(':').nth(1).is_some_and(|hash| hash.len() > 4)) {
            assert!(!looked.stdout.contains(line), "a line of the host's shadow");
        }
        let entries: Vec<&str> = looked.stdout.lines().collect();
        assert!(!entries.contains(&".ssh") && !entries.contains(&".cargo"), "{entries:?}");
        client.sh_root(&id, "touch /usr/bin/mine && rm /usr/bin/mine").await.text();
    });
}

#[test]
fn programs_inside_can_ask_to_be_kept_awake() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        assert_eq!(
            client.sh(&id, "atoll-hold 90s; atoll-hold --release").await.text(),
            "held for 90 s\nnot held"
        );
        let ran = client.sh(&id, "atoll-hold -- sh -c 'atoll-hold; exit 6'").await;
        assert_eq!((ran.code, ran.stdout.as_str()), (6, "held for 60 s\n"));
        until("the command's hold ends with it", async || {
            (client.sh(&id, "atoll-hold").await.text() == "not held").then_some(())
        })
        .await;
        // It is not a way around the limits: the sandbox's own program, and nothing of it can be written.
        assert_ne!(client.sh_root(&id, "echo x > /.atoll/bin/atoll-hold").await.code, 0);
        assert_ne!(client.sh_root(&id, "rm /.atoll/bin/atoll-hold").await.code, 0);
    });
}
