//! Clients with a key of their own who mean harm: what they send must cost them more than the server. Each test watches the
//! server's memory, or whether it still answers others.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::{Client, Options, Value, World, json, run_with};
use reqwest::Method;

/// MiB of memory that the server holds now.
fn server_mib(w: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", w.server_pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The most it held in its life so far.
fn server_peak_mib(w: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", w.server_pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

async fn leap0(client: &Client, path: &str, body: &Value) -> (u16, String) {
    let answer = client.raw(Method::POST, &format!("/leap0/v1/{path}")).json(body).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap_or_default())
}

#[test]
fn the_head_of_a_part_that_never_ends_is_not_held() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let before = server_mib(w);
        for first in ["--b\r\nContent-Disposition: form-data; name=\"/tmp/x", "no boundary at all"] {
            let piece = bytes::Bytes::from(vec![b'a'; 1 << 20]);
            let pieces = std::iter::once(bytes::Bytes::from(first)).chain(std::iter::repeat_n(piece, 300));
            let body = reqwest::Body::wrap_stream(futures::stream::iter(pieces.map(Ok::<_, std::io::Error>)));
            let sent = client
                .raw(Method::POST, &format!("/leap0/v1/sandbox/{id}/filesystem/write-files"))
                .header("content-type", "multipart/form-data; boundary=b")
                .body(body)
                .send()
                .await;
            // The server need not read to the end what it refused.
            if let Ok(answer) = sent {
                assert_eq!(answer.status().as_u16(), 400, "{first}");
            }
            let peak = server_peak_mib(w);
            assert!(peak < before + 100, "{first}: {before} MiB became {peak} MiB");
        }
    });
}

#[test]
fn terminals_that_wait_to_be_connected_hold_little() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let before = server_mib(w);
        let path = format!("sandbox/{id}/pty");
        for n in 0..30 {
            let large = "x".repeat(8 << 20);
            let (status, said) = leap0(
                &client,
                &path,
                &json!({ "id": format!("s{n}"), "lazy_start": true, "envs": { "A": large } }),
            )
            .await;
            assert_eq!(status, 400, "{said}");
        }
        let (status, _) =
            leap0(&client, &path, &json!({ "id": "x".repeat(1 << 20), "lazy_start": true })).await;
        assert_eq!(status, 400);
        let after = server_mib(w);
        assert!(after < before + 100, "{before} MiB became {after} MiB");
    });
}

#[test]
fn many_edits_of_a_large_file_do_not_keep_the_server_busy() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.sh(&id, "head -c 8000000 /dev/zero | tr '\\0' a > /tmp/a").await;
        let to_and_fro = [json!({ "find": "a", "replace": "b" }), json!({ "find": "b", "replace": "a" })];
        let edits: Vec<Value> = to_and_fro.iter().cycle().take(5_000).cloned().collect();
        let body = json!({ "path": "/tmp/a", "edits": edits });
        let path = format!("sandbox/{id}/filesystem/edit-file");
        let storm = futures::future::join_all((0..4).map(|_| leap0(&client, &path, &body)));
        let other = async {
            let mut worst = Duration::ZERO;
            for _ in 0..20 {
                let begun = Instant::now();
                assert_eq!(client.get("/v1/sandboxes").await.status, 200);
                worst = worst.max(begun.elapsed());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            worst
        };
        let both = tokio::time::timeout(Duration::from_secs(110), futures::future::join(storm, other)).await;
        let (answers, worst) = both.expect("the server is busy with edits");
        assert!(answers.iter().all(|(status, _)| *status == 400), "{answers:?}");
        assert!(worst < Duration::from_secs(10), "others waited {worst:?}");
    });
}

#[test]
fn the_difference_of_a_file_of_many_lines_is_bounded() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.sh(&id, "{ head -c 15000000 /dev/zero | tr '\\0' '\\n'; echo end; } > /tmp/n").await;
        let before = server_mib(w);
        let path = format!("sandbox/{id}/filesystem/edit-file");
        let body = json!({ "path": "/tmp/n", "edits": [{ "find": "end", "replace": "END" }] });
        let (status, said) = leap0(&client, &path, &body).await;
        assert_eq!(status, 200, "{said}");
        assert_eq!(client.sh(&id, "tail -n 1 /tmp/n").await.text().trim(), "END");
        let peak = server_peak_mib(w);
        assert!(peak < before + 300, "{before} MiB became {peak} MiB");
    });
}

#[test]
fn times_beyond_all_measure_are_refused_and_break_nothing() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let path = format!("sandbox/{id}/process/execute");
        for timeout in [json!(-1), json!(0), json!(1e19), json!(1.844_674_407_370_955e19), json!(1e300)] {
            let (status, said) =
                leap0(&client, &path, &json!({ "command": "true", "timeout": timeout })).await;
            assert!(status == 200 || status == 400, "{timeout}: {status} {said}");
        }
        let (status, said) = leap0(&client, &path, &json!({ "command": "echo ok", "timeout": 1e9 })).await;
        assert!(status == 200 && said.contains("ok"), "{said}");
        assert!(!w.log().contains("panicked"), "{}", w.log_tail());
    });
}

/// Connections that the server says it has.
async fn counted(w: &World) -> f64 {
    let text = w.admin().raw(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    let line = text.lines().find(|line| line.starts_with("atoll_http_connections")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn a_connection_that_leads_elsewhere_keeps_its_place() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    run_with(Options::debian(), async |w| {
        let before = counted(w).await;
        let mut open = Vec::new();
        for _ in 0..50 {
            let mut stream = tokio::net::TcpStream::connect("127.0.0.1:7070").await.unwrap();
            stream
                .write_all(b"CONNECT 127.0.0.1:7070 HTTP/1.1\r\nHost: 127.0.0.1:7070\r\n\r\n")
                .await
                .unwrap();
            let mut head = [0; 12];
            stream.read_exact(&mut head).await.unwrap();
            assert_eq!(&head, b"HTTP/1.1 200");
            open.push(stream);
        }
        atoll_tests::until("they keep their places", async || {
            (counted(w).await >= before + 50.0).then_some(())
        })
        .await;
        drop(open);
        atoll_tests::until("they are given back", async || (counted(w).await < before + 5.0).then_some(()))
            .await;
    });
}

/// Every call of the Leap0 front that names a sandbox, a snapshot or something inside one.
fn calls(id: &str, snapshot: &str) -> Vec<(Method, String, Value)> {
    let post = |path: &str, body: Value| (Method::POST, format!("sandbox/{id}/{path}"), body);
    let at = |path: &str| post(path, json!({ "path": "/tmp" }));
    let mut all = vec![
        (Method::GET, format!("sandbox/{id}"), json!(null)),
        (Method::GET, format!("sandbox/{id}/pty"), json!(null)),
        (Method::GET, format!("sandbox/{id}/pty/mine"), json!(null)),
        (Method::GET, format!("sandbox/{id}/system/user-home-dir"), json!(null)),
        (Method::GET, format!("sandbox/{id}/system/workdir"), json!(null)),
        (Method::DELETE, format!("sandbox/{id}/pty/mine"), json!(null)),
        (Method::DELETE, format!("snapshot/{snapshot}"), json!(null)),
        (Method::POST, "snapshot/restore".into(), json!({ "snapshot_name": snapshot })),
        (Method::POST, "snapshot/restore".into(), json!({ "snapshot_name": "theirs" })),
        post("pause", json!({})),
        post("stop", json!({})),
        post("start", json!({})),
        post("snapshot/create", json!({ "name": "stolen" })),
        post("presigned-url", json!({ "port": 80 })),
        post("process/execute", json!({ "command": "id" })),
        post("pty", json!({ "id": "other" })),
        post("pty", json!({ "id": "other", "lazy_start": true })),
        post("pty/mine/resize", json!({ "cols": 10, "rows": 10 })),
        post("filesystem/glob", json!({ "path": "/", "pattern": "*" })),
        post("filesystem/grep", json!({ "path": "/etc", "pattern": "root" })),
        post("filesystem/edit-file", json!({ "path": "/a", "edits": [{ "find": "a" }] })),
        post("filesystem/edit-files", json!({ "files": ["/a"], "find": "a" })),
        post("filesystem/move", json!({ "src_path": "/a", "dst_path": "/b" })),
        post("filesystem/copy", json!({ "src_path": "/a", "dst_path": "/b" })),
        post("filesystem/read-files", json!({ "paths": ["/etc/passwd"] })),
        post("filesystem/read-file", json!({ "path": "/etc/passwd" })),
        post("filesystem/write-file?path=/tmp/x", json!({})),
        post("filesystem/set-permissions", json!({ "path": "/tmp", "mode": "777" })),
        post("git/clone", json!({ "url": "/x", "path": "/y" })),
        (Method::DELETE, format!("sandbox/{id}"), json!(null)),
    ];
    for op in ["ls", "stat", "mkdir", "delete", "exists", "tree"] {
        all.push(at(&format!("filesystem/{op}")));
    }
    for op in ["status", "reset", "branches", "diff-staged", "log", "show"] {
        all.push(at(&format!("git/{op}")));
    }
    all
}

#[test]
fn no_call_of_the_leap0_front_crosses_from_tenant_to_tenant() {
    run_with(Options::debian(), async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let id = client.create(json!({})).await;
        leap0(&client, &format!("sandbox/{id}/pty"), &json!({ "id": "mine", "lazy_start": true })).await;
        let (status, made) =
            leap0(&client, &format!("sandbox/{id}/snapshot/create"), &json!({ "name": "theirs" })).await;
        assert_eq!(status, 201, "{made}");
        let snapshot: Value = serde_json::from_str(&made).unwrap();
        let snapshot = snapshot["id"].as_str().unwrap();
        let signed = leap0(&client, &format!("sandbox/{id}/presigned-url"), &json!({ "port": 80 })).await.1;
        let signed: Value = serde_json::from_str(&signed).unwrap();
        let preview = signed["id"].as_str().unwrap();
        let mut all = calls(&id, snapshot);
        all.push((Method::DELETE, format!("sandbox/{id}/presigned-url/{preview}"), json!(null)));
        // Their own sandbox does not lead to what belongs to another's.
        let own = other.create(json!({})).await;
        all.push((Method::DELETE, format!("sandbox/{own}/presigned-url/{preview}"), json!(null)));
        all.push((Method::GET, format!("sandbox/{own}/pty/mine"), json!(null)));
        for (key, wanted) in [(other.key(), 404), ("", 401), ("atl_wrong", 401)] {
            for (method, path, body) in &all {
                let mut request = client.with_key(key).raw(method.clone(), &format!("/leap0/v1/{path}"));
                if !body.is_null() {
                    request = request.json(body);
                }
                let answer = request.send().await.unwrap();
                let (status, said) = (answer.status().as_u16(), answer.text().await.unwrap());
                assert_eq!(status, wanted, "{method} {path}: {said}");
                assert!(!said.contains("root:"), "{said}");
            }
        }
        for list in ["sandboxes", "snapshots"] {
            let seen = other
                .raw(Method::GET, &format!("/leap0/v1/{list}"))
                .send()
                .await
                .unwrap()
                .text()
                .await
                .unwrap();
            assert!(!seen.contains(&id) && !seen.contains(snapshot), "{list}: {seen}");
        }
        assert_eq!(client.sandbox(&id).await["phase"], "running");
    });
}
