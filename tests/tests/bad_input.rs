//! Input that makes no sense gets the documented code, and nothing has changed after it.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::client::escape;
use atoll_tests::{json, run};
use reqwest::Method;
use serde_json::Value;

#[test]
fn creates_without_sense_are_refused_and_name_the_field() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let long = "x".repeat(5000);
        let mut labels = serde_json::Map::new();
        (0..100).for_each(|n| _ = labels.insert(format!("k{n}"), json!("v")));
        let cases: Vec<(Value, &str)> = vec![
            (json!({ "cpu": -1 }), "cpu"),
            (json!({ "cpu": 0 }), "cpu"),
            (json!({ "cpu": 1e300 }), "cpu"),
            (json!({ "memory_mib": 0 }), "memory_mib"),
            (json!({ "memory_mib": -5 }), "memory_mib"),
            (json!({ "memory_mib": 9_000_000_000_000_i64 }), "memory_mib"),
            (json!({ "memory_mib": "lots" }), "memory_mib"),
            (json!({ "disk_mib": -1 }), "disk_mib"),
            (json!({ "pids": 0 }), "pids"),
            (json!({ "pids": 1.5 }), "pids"),
            (json!({ "name": "" }), "name"),
            (json!({ "name": "a b" }), "name"),
            (json!({ "name": "../up" }), "name"),
            (json!({ "name": "ünïcode" }), "name"),
            (json!({ "name": "nul\u{0}byte" }), "name"),
            (json!({ "name": "line\nend" }), "name"),
            (json!({ "name": long }), "name"),
            (json!({ "name": "abcdefghijklmnopqrst" }), "name"),
            (json!({ "labels": labels }), "labels"),
            (json!({ "labels": { "": "x" } }), "labels"),
            (json!({ "labels": { "a": 1 } }), "labels"),
            (json!({ "env": { "A=B": "x" } }), "env"),
            (json!({ "env": { "": "x" } }), "env"),
            (json!({ "env": { "A": "\u{0}" } }), "env"),
            (json!({ "network": "sometimes" }), "network"),
            (json!({ "storage": "cloud" }), "storage"),
            (json!({ "user": "" }), "user"),
            (json!({ "command": [] }), "command"),
            (json!({ "command": "a string" }), "command"),
            (json!({ "command": ["a\u{0}b"] }), "command"),
            (json!({ "timeout_s": 0 }), "timeout_s"),
            (json!({ "timeout_s": -1 }), "timeout_s"),
            (json!({ "timeout_s": u64::MAX }), "timeout_s"),
            (json!({ "on_timeout": "explode" }), "on_timeout"),
            (json!({ "colour": "red" }), "colour"),
            (json!({ "template": "" }), "template"),
        ];
        for (body, field) in cases {
            let answer = client.post("/v1/sandboxes", body.clone()).await;
            let envelope = answer.refused(400, "invalid_request");
            let message = envelope["message"].as_str().unwrap();
            assert!(message.contains(field), "{field} is not named for {body}: {message}");
        }
        for template in ["none-such", "../../etc", "debain", "a/../b"] {
            let answer = client.post("/v1/sandboxes", json!({ "template": template })).await;
            assert!(
                matches!(
                    (answer.status, answer.code().as_str()),
                    (404, "template_not_found") | (400, "invalid_request")
                ),
                "{answer}"
            );
        }
        let near = client
            .post("/v1/sandboxes", json!({ "template": "busybx" }))
            .await
            .refused(404, "template_not_found");
        assert!(near.to_string().contains("busybox"), "the hint names the near one: {near}");
        assert_eq!(client.get("/v1/sandboxes?all=1").await.ok()["items"], json!([]), "nothing was made");
    });
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let send = async |method: Method, path: &str, kind: &str, body: Vec<u8>| {
            let request = client.raw(method.clone(), path).header("content-type", kind).body(body);
            client.judged(request, &method, path, None).await
        };
        let create = "/v1/sandboxes";
        let json_type = "application/json";
        for body in [
            "",
            "{",
            "[]",
            "42",
            "nul",
            "{\"cpu\": NaN}",
            "{\"cpu\": 1e999}",
            "\u{feff}{}",
            "{\"name\":\"a\",\"name\":\"b\"}",
        ] {
            send(Method::POST, create, json_type, body.into()).await.refused(400, "invalid_request");
        }
        send(Method::POST, create, json_type, vec![0xff, 0xfe, 0]).await.refused(400, "invalid_request");
        let deep = "[".repeat(100_000);
        send(Method::POST, create, json_type, deep.into()).await.refused(400, "invalid_request");
        let huge = format!("{{\"name\":\"{}\"}}", "x".repeat(2 << 20));
        send(Method::POST, create, json_type, huge.into()).await.refused(413, "payload_too_large");
        client.get("/v1/nothing/here").await.refused(404, "route_not_found");
        send(Method::PUT, create, json_type, b"{}".to_vec()).await.refused(405, "method_not_allowed");
        for id in ["zzzzzzzzzzzzzzzzzzzz", "zz", "%00", "..%2f..", "a%20b", "%F0%9F%8F%9D"] {
            let answer = client.get(&format!("/v1/sandboxes/{id}")).await;
            assert!(matches!(answer.code().as_str(), "sandbox_not_found" | "invalid_request"), "{answer}");
            let answer = client.delete(&format!("/v1/sandboxes/{id}")).await;
            assert!(matches!(answer.code().as_str(), "sandbox_not_found" | "invalid_request"), "{answer}");
        }
        let echo =
            client.raw(Method::GET, "/v1/version").header("x-request-id", "mine-123").send().await.unwrap();
        assert_eq!(echo.headers()["x-request-id"], "mine-123");
        let odd = client
            .raw(Method::GET, "/v1/version")
            .header("x-request-id", "x".repeat(5000))
            .send()
            .await
            .unwrap();
        assert!(odd.headers()["x-request-id"].len() < 200);
    });
}

#[test]
fn commands_that_cannot_run_say_why() {
    // C08.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let exec = async |body: Value| client.try_exec(&id, body).await;
        for body in [
            json!({}),
            json!({ "argv": [] }),
            json!({ "argv": [""] }),
            json!({ "argv": ["a"], "command": "b" }),
            json!({ "command": "" }),
            json!({ "argv": ["true"], "colour": 1 }),
            json!({ "argv": "true" }),
            json!({ "argv": ["true"], "timeout_s": -1 }),
            json!({ "argv": ["true"], "timeout_s": 1e300 }),
            json!({ "argv": ["cat"], "stdin": "a", "stdin_base64": "YQ==" }),
            json!({ "argv": ["cat"], "stdin_base64": "not base64!" }),
        ] {
            exec(body).await.refused(400, "invalid_request");
        }
        for body in [
            json!({ "argv": ["echo", "a\u{0}b"] }),
            json!({ "argv": ["true"], "env": { "A": "x\u{0}" } }),
            json!({ "argv": ["true"], "env": { "A=": "x" } }),
            json!({ "argv": ["true"], "cwd": "/none" }),
            json!({ "argv": ["true"], "cwd": "/etc/passwd" }),
            json!({ "argv": ["true"], "cwd": "a\u{0}" }),
        ] {
            let answer = exec(body.clone()).await;
            assert!(
                answer.status == 400
                    && matches!(answer.code().as_str(), "invalid_argument" | "invalid_request"),
                "{body}: {answer}"
            );
        }
        client.sh(&id, "echo text > plain; mkdir folder; printf '#!/none/such\\n' > script; chmod +x script; printf '\\177ELF' > elf; chmod +x elf").await.text();
        // A program that is not there is 127, one that cannot be run is 126, as a shell says it.
        for (program, code) in [
            ("no-such-program", 127),
            ("/none/such", 127),
            ("./plain", 126),
            ("/home/user/folder", 126),
            ("/home/user/elf", 126),
        ] {
            let answer = exec(json!({ "argv": [program] })).await;
            let fair = answer.status == 400 && answer.code() == "invalid_argument"
                || answer.status == 200 && answer.json()["exit_code"] == code;
            assert!(fair, "{program}: {answer}");
        }
        let megabyte = exec(json!({ "argv": ["echo", "x".repeat(1 << 20)] })).await;
        assert!(
            matches!(
                (megabyte.status, megabyte.code().as_str()),
                (400, "invalid_argument" | "invalid_request")
            ),
            "{megabyte}"
        );
        let many: Vec<String> = (0..20_000).map(|n| format!("argument-{n}")).collect();
        let many = [vec!["true".to_owned()], many].concat();
        let many = exec(json!({ "argv": many })).await;
        assert!(many.status == 200 || many.status == 400, "{many}");
        let env: serde_json::Map<String, Value> =
            (0..10_000).map(|n| (format!("VARIABLE_{n}"), json!("v"))).collect();
        let env = exec(json!({ "argv": ["true"], "env": env })).await;
        assert!(env.status == 200 || env.status == 400, "{env}");
        // The agent itself is not moved by the environment of what it starts.
        let preload = exec(json!({ "argv": ["/bin/echo", "fine"], "env": { "LD_PRELOAD": "/home/user/evil.so", "LD_LIBRARY_PATH": "/home/user", "PATH": "/home/user" } })).await;
        assert_eq!(preload.ok()["stdout"], "fine\n");
        assert_eq!(client.sh(&id, "echo alive").await.text(), "alive");
    });
}

#[test]
fn verbs_in_the_wrong_phase_say_so() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "wake": "explicit" })).await;
        client.act(&id, "start").await.ok();
        client.act(&id, "restore").await.refused(409, "phase_conflict");
        client.act(&id, "stop").await.ok();
        client.act(&id, "pause").await.refused(409, "phase_conflict");
        for path in [
            format!("/v1/sandboxes/{id}/files?path=/etc/passwd"),
            format!("/v1/sandboxes/{id}/processes"),
            format!("/v1/sandboxes/{id}/files/list?path=/"),
        ] {
            client.get(&path).await.refused(409, "asleep");
        }
        client.remove(&id).await;
        for verb in ["start", "stop", "restart", "pause", "resume", "archive", "restore", "fork", "snapshots"]
        {
            let answer = client.act(&id, verb).await;
            assert!(matches!(answer.code().as_str(), "phase_conflict" | "sandbox_not_found"), "{answer}");
        }
        let answer = client.patch(&format!("/v1/sandboxes/{id}"), json!({ "labels": {} })).await;
        assert!(matches!(answer.code().as_str(), "phase_conflict" | "sandbox_not_found"), "{answer}");
        client.remove(&id).await;
    });
}

#[test]
fn changes_without_sense_change_nothing() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "labels": { "a": "b" } })).await;
        let path = format!("/v1/sandboxes/{id}");
        let before = client.sandbox(&id).await;
        for body in [
            json!({ "cpu": -1 }),
            json!({ "memory_mib": 0 }),
            json!({ "name": "new" }),
            json!({ "phase": "deleted" }),
            json!({ "labels": { "": "x" } }),
            json!({ "timeout_s": 0 }),
            json!({ "network": "open" }),
        ] {
            client.patch(&path, body).await.refused(400, "invalid_request");
        }
        let after = client.sandbox(&id).await;
        assert_eq!(
            (&after["labels"], &after["cpu"], &after["generation"]),
            (&before["labels"], &before["cpu"], &before["generation"])
        );
    });
}

#[test]
fn odd_files_are_refused_and_nobody_waits_for_them() {
    // B07.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.sh(&id, "mkfifo fifo; ln -s /dev/zero zero; ln -s loop loop").await.text();
        let started = std::time::Instant::now();
        for path in [
            "/home/user/fifo",
            "/home/user/zero",
            "/dev/zero",
            "/dev/tty",
            "/dev/null",
            "/dev/random",
            "/proc/kmsg",
            "/proc/1/mem",
            "/home/user/loop",
            "/dev/ptmx",
            "/home",
        ] {
            let answer = client.read_file(&id, path).await;
            assert!(answer.status == 400 || answer.status == 404, "read {path}: {answer}");
            let answer = client.write_file(&id, path, "x").await;
            assert!(
                answer.status >= 400 && answer.status < 500
                    || path.ends_with("zero")
                    || path.ends_with("loop")
                    || path.ends_with("fifo"),
                "write {path}: {answer}"
            );
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "{:?}", started.elapsed());
        assert_eq!(client.sh(&id, "test -c /dev/null && echo still").await.text(), "still");
        let query = format!("/v1/sandboxes/{id}/files?path={}&mode=banana", escape("/tmp/x"));
        client
            .judged(client.raw(Method::PUT, &query).body("x"), &Method::PUT, &query, None)
            .await
            .refused(400, "invalid_request");
        witness.verify().await;
    });
}

#[test]
fn wishes_of_a_life_without_sense_are_refused_and_change_nothing() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "timeout_s": 600 })).await;
        let path = format!("/v1/sandboxes/{id}");
        let before = client.sandbox(&id).await;
        let long = "x".repeat(300);
        let cases: Vec<(&str, Value, &str)> = vec![
            ("pause", json!({ "memory": "cloud" }), "memory"),
            ("pause", json!({ "colour": 1 }), "colour"),
            ("snapshots", json!({ "name": "" }), "name"),
            ("snapshots", json!({ "name": "../up" }), "name"),
            ("snapshots", json!({ "name": long }), "name"),
            ("snapshots", json!({ "memory": "yes" }), "memory"),
            ("fork", json!({ "count": 0 }), "count"),
            ("fork", json!({ "count": 101 }), "count"),
            ("fork", json!({ "count": -1 }), "count"),
            ("fork", json!({ "count": 1.5 }), "count"),
            ("fork", json!({ "count": 1, "labels": { "": "x" } }), "labels"),
            ("fork", json!({ "count": 1, "timeout_s": 0 }), "timeout_s"),
            ("rollback", json!({}), "snapshot"),
            ("rollback", json!({ "snapshot": 5 }), "snapshot"),
            ("hold", json!({}), "for_s"),
            ("hold", json!({ "for_s": 0 }), "for_s"),
            ("hold", json!({ "for_s": 86_401 }), "for_s"),
            ("hold", json!({ "for_s": u64::MAX }), "for_s"),
            ("hold", json!({ "for_s": -1 }), "for_s"),
            ("extend", json!({}), "seconds"),
            ("extend", json!({ "seconds": 0 }), "seconds"),
            ("extend", json!({ "seconds": u64::MAX }), "seconds"),
        ];
        for (verb, body, field) in cases {
            let envelope =
                client.post(&format!("{path}/{verb}"), body.clone()).await.refused(400, "invalid_request");
            let message = envelope["message"].as_str().unwrap();
            assert!(message.contains(field), "{verb}: {field} is not named for {body}: {message}");
        }
        client
            .post(&format!("{path}/rollback"), json!({ "snapshot": "no-such" }))
            .await
            .refused(404, "snapshot_not_found");
        client.act(&id, "restore").await.refused(409, "phase_conflict");
        for name in ["zzzzzzzzzzzzzzzzzzzz", "zz", "%00", "..%2f..", "a%20b"] {
            for answer in [
                client.get(&format!("/v1/snapshots/{name}")).await,
                client.delete(&format!("/v1/snapshots/{name}")).await,
                client.post_empty(&format!("/v1/snapshots/{name}/verify")).await,
            ] {
                assert!(
                    matches!(answer.code().as_str(), "snapshot_not_found" | "invalid_request"),
                    "{answer}"
                );
            }
            for verb in
                ["pause", "resume", "archive", "restore", "fork", "snapshots", "rollback", "hold", "extend"]
            {
                let body = match verb {
                    "rollback" => json!({ "snapshot": "x" }),
                    "hold" => json!({ "for_s": 1 }),
                    "extend" => json!({ "seconds": 1 }),
                    _ => json!({}),
                };
                let answer = match verb {
                    "resume" | "archive" | "restore" => {
                        client.post_empty(&format!("/v1/sandboxes/{name}/{verb}")).await
                    }
                    _ => client.post(&format!("/v1/sandboxes/{name}/{verb}"), body).await,
                };
                assert!(
                    matches!(answer.code().as_str(), "sandbox_not_found" | "invalid_request"),
                    "{verb}: {answer}"
                );
            }
            for look in ["awake", "lineage"] {
                let answer = client.get(&format!("/v1/sandboxes/{name}/{look}")).await;
                assert!(
                    matches!(answer.code().as_str(), "sandbox_not_found" | "invalid_request"),
                    "{look}: {answer}"
                );
            }
        }
        for query in ["limit=0", "limit=-1", "cursor=%00", "unknown=1"] {
            client.get(&format!("/v1/snapshots?{query}")).await.refused(400, "invalid_request");
        }
        let after = client.sandbox(&id).await;
        for field in ["phase", "generation", "timeout_at", "hold", "labels"] {
            assert_eq!(after[field], before[field], "{field}");
        }
        assert_eq!(client.get("/v1/snapshots").await.ok()["items"], json!([]));
        assert_eq!(client.get("/v1/sandboxes").await.ok()["items"].as_array().unwrap().len(), 1);
    });
}

#[test]
fn beginnings_and_timers_without_sense_are_refused_and_name_the_field() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let cases: Vec<(Value, &str)> = vec![
            (json!({ "snapshot": "a", "template": "busybox" }), "snapshot"),
            (json!({ "snapshot": "a", "archive": "b" }), "archive"),
            (json!({ "archive": "b", "template": "busybox" }), "archive"),
            (json!({ "memory": true }), "memory"),
            (json!({ "snapshot": "" }), "snapshot"),
            (json!({ "archive": "" }), "archive"),
            (json!({ "auto_pause_s": 0 }), "auto_pause_s"),
            (json!({ "auto_stop_s": 0 }), "auto_stop_s"),
            (json!({ "auto_stop_s": -2 }), "auto_stop_s"),
            (json!({ "auto_archive_s": -5 }), "auto_archive_s"),
            (json!({ "auto_delete_s": i64::MAX }), "auto_delete_s"),
            (json!({ "checkpoint_after_s": 1.5 }), "checkpoint_after_s"),
            (json!({ "on_exit": "explode" }), "on_exit"),
            (json!({ "wake": "never" }), "wake"),
            (json!({ "thread": "" }), "thread"),
            (json!({ "thread": "a\nb" }), "thread"),
            (json!({ "private_env": ["NOT_THERE"] }), "private_env"),
            (json!({ "private_env": "A" }), "private_env"),
        ];
        for (body, field) in cases {
            let envelope = client.post("/v1/sandboxes", body.clone()).await.refused(400, "invalid_request");
            let message = envelope["message"].as_str().unwrap();
            assert!(message.contains(field), "{field} is not named for {body}: {message}");
        }
        client
            .post("/v1/sandboxes", json!({ "snapshot": "none-such" }))
            .await
            .refused(404, "snapshot_not_found");
        for key in ["none-such", "../../etc/passwd", "a/b", "abcdefghijklmnopqrst/../x"] {
            client.post("/v1/sandboxes", json!({ "archive": key })).await.refused(404, "archive_not_found");
        }
        assert_eq!(client.get("/v1/sandboxes?all=1").await.ok()["items"], json!([]), "nothing was made");
        client.delete("/v1/threads/none-such").await.ok();
    });
}
