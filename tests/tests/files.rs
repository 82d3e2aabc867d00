//! Files through the API: bytes up and down, listing, moving, removing, watching.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::time::Duration;

use atoll_tests::client::escape;
use atoll_tests::poll::PATIENCE;
use atoll_tests::{Client, Value, json, run, until};
use futures::StreamExt;
use reqwest::Method;
use sha2::{Digest, Sha256};

fn at(id: &str, verb: &str, path: &str) -> String {
    format!("/v1/sandboxes/{id}/files{verb}?path={}", escape(path))
}

#[test]
fn bytes_go_up_and_come_down_unchanged() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let bytes: Vec<u8> = (0..=255u8).cycle().take(300_000).collect();
        let entry = client.write_file(&id, "/home/user/deep/er/blob.bin", bytes.clone()).await.ok();
        assert_eq!(
            (&entry["kind"], &entry["size"], &entry["owner"]),
            (&json!("file"), &json!(300_000), &json!("user")),
            "{entry}"
        );
        let back = client.read_file(&id, "/home/user/deep/er/blob.bin").await;
        assert_eq!(back.headers["content-length"], "300000");
        assert!(back.bytes == bytes);
        assert_eq!(client.sh(&id, "stat -c %U:%a deep/er/blob.bin").await.text(), "user:644");
        client.write_file_as(&id, "/opt/tool", "#!/bin/sh\necho ran\n", "&mode=755&user=root").await.ok();
        assert_eq!(client.sh(&id, "/opt/tool").await.text(), "ran");
        assert_eq!(client.sh(&id, "stat -c %U /opt/tool").await.text(), "root");
        client.write_file(&id, "relative.txt", "x").await.ok();
        assert_eq!(client.sh(&id, "cat /home/user/relative.txt").await.text(), "x");
        client.write_file(&id, "empty", "").await.ok();
        assert_eq!(client.read_file(&id, "empty").await.bytes.len(), 0);
        client.read_file(&id, "/none").await.refused(404, "file_not_found");
        client.read_file(&id, "/home").await.refused(400, "invalid_argument");
    });
}

#[test]
fn ranges_answer_exactly_what_they_ask() {
    // B08.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.write_file(&id, "digits", "0123456789").await.ok();
        let path = at(&id, "", "digits");
        let ranged = async |range: &str| {
            let request = client.raw(Method::GET, &path).header("range", range);
            client.judged(request, &Method::GET, &path, None).await
        };
        for (range, text, content) in [
            ("bytes=2-4", "234", "bytes 2-4/10"),
            ("bytes=7-", "789", "bytes 7-9/10"),
            ("bytes=-3", "789", "bytes 7-9/10"),
            ("bytes=8-99", "89", "bytes 8-9/10"),
        ] {
            let answer = ranged(range).await;
            assert_eq!(
                (answer.status, &answer.bytes[..], answer.headers["content-range"].as_str()),
                (206, text.as_bytes(), content)
            );
        }
        assert_eq!(ranged("bytes=10-").await.status, 416);
        // What is not understood is ignored, as HTTP says, and never costs more than the file.
        let many = format!(
            "bytes={}",
            (0..1000).map(|n| format!("{}-{}", n % 5, 5 + n % 5)).collect::<Vec<_>>().join(",")
        );
        for odd in ["bytes=5-2", "bytes=x-y", "lines=1-2", "bytes=--3", many.as_str()] {
            let answer = ranged(odd).await;
            assert!(matches!(answer.status, 200 | 400 | 416), "{odd}: {answer}");
            assert!(answer.status != 200 || answer.bytes.len() == 10);
        }
    });
}

#[test]
fn large_files_stream_both_ways_in_flat_memory() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "disk_mib": 1024, "memory_mib": 128 })).await;
        let before = atoll_tests::proc::status(w.server_pid(), "VmRSS").unwrap();
        let chunk = bytes::Bytes::from((0..=255u8).cycle().take(1 << 20).collect::<Vec<u8>>());
        let chunks = 256_usize;
        let mut hash = Sha256::new();
        (0..chunks).for_each(|_| hash.update(&chunk));
        let wanted = hex::encode(hash.finalize());
        let body = reqwest::Body::wrap_stream(futures::stream::iter(
            (0..chunks).map(move |_| Ok::<_, std::io::Error>(chunk.clone())),
        ));
        client.write_file(&id, "/home/user/large", body).await.ok();
        assert!(client.sh(&id, "sha256sum large").await.text().starts_with(&wanted));
        let mut down =
            client.raw(Method::GET, &at(&id, "", "/home/user/large")).send().await.unwrap().bytes_stream();
        let mut hash = Sha256::new();
        while let Some(part) = down.next().await {
            hash.update(part.unwrap());
        }
        assert_eq!(hex::encode(hash.finalize()), wanted);
        let after = atoll_tests::proc::status(w.server_pid(), "VmRSS").unwrap();
        assert!(after < before + 48 * 1024, "the server grew from {before} to {after} KiB");
    });
}

#[test]
fn listing_stat_move_and_remove_do_what_they_say() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client
            .post(&format!("/v1/sandboxes/{id}/files/mkdir"), json!({ "path": "/home/user/a/b/c" }))
            .await
            .ok();
        client.write_file(&id, "/home/user/a/one", "1").await.ok();
        client.write_file(&id, "/home/user/a/b/two", "22").await.ok();
        client
            .sh(&id, "ln -s /etc/passwd a/link; ln -s nowhere a/broken; mkfifo a/pipe; chmod 640 a/one")
            .await
            .text();
        let names = async |depth: u32| -> Vec<String> {
            let list = client.get(&format!("{}&depth={depth}", at(&id, "/list", "/home/user/a"))).await.ok();
            let mut names: Vec<_> = list["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|e| e["path"].as_str().unwrap().to_owned())
                .collect();
            names.sort();
            names
        };
        let a = |name: &str| format!("/home/user/a/{name}");
        assert_eq!(names(1).await, [a("b"), a("broken"), a("link"), a("one"), a("pipe")]);
        assert!(names(2).await.contains(&a("b/two")) && !names(2).await.contains(&a("b/c/x")));
        let stat = async |path: &str| client.get(&at(&id, "/stat", path)).await.ok();
        let one = stat("/home/user/a/one").await;
        assert_eq!(
            (&one["kind"], &one["size"], &one["name"]),
            (&json!("file"), &json!(1), &json!("one")),
            "{one}"
        );
        assert_eq!(stat("/home/user/a/pipe").await["kind"], "other");
        let broken = stat("/home/user/a/broken").await;
        assert_eq!(
            (&broken["kind"], &broken["symlink_target"]),
            (&json!("symlink"), &json!("nowhere")),
            "{broken}"
        );
        let moved = format!("/v1/sandboxes/{id}/files/move");
        client.post(&moved, json!({ "from": "/home/user/a/one", "to": "/home/user/a/uno" })).await.ok();
        assert_eq!(client.read_file(&id, "/home/user/a/uno").await.bytes, "1");
        client
            .post(&moved, json!({ "from": "/home/user/a/one", "to": "/x" }))
            .await
            .refused(404, "file_not_found");
        client.delete(&at(&id, "", "/home/user/a/link")).await.ok();
        client.sh(&id, "test -e /etc/passwd").await.text();
        client.delete(&at(&id, "", "/home/user/a")).await.ok();
        client.get(&at(&id, "/stat", "/home/user/a")).await.refused(404, "file_not_found");
        client.delete(&at(&id, "", "/home/user/a")).await.refused(404, "file_not_found");
    });
}

#[test]
fn a_watcher_hears_of_changes_also_below() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.sh(&id, "mkdir -p /home/user/w/sub").await.text();
        let mut events = client
            .events(Method::GET, &format!("{}&recursive=1", at(&id, "/watch", "/home/user/w")), None)
            .await;
        // The watch stands when its first event is heard; until then the change is made again.
        let poke = tokio::spawn({
            let (client, id) = (client.clone(), id.clone());
            async move {
                loop {
                    client.sh(&id, "touch w/sub/new; echo x > w/sub/new; mv w/sub/new w/sub/old; chmod 600 w/sub/old; rm w/sub/old").await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
        let mut heard = std::collections::BTreeSet::new();
        let wanted = ["create", "write", "remove", "rename"];
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !wanted.iter().all(|name| heard.contains(*name)) {
            let event = tokio::time::timeout_at(deadline, events.next()).await;
            let event = event.unwrap_or_else(|_| panic!("only heard {heard:?}")).unwrap();
            if event.data.to_string().contains("sub") {
                heard.insert(event.name);
            }
        }
        poke.abort();
        let _ = poke.await;
    });
}

async fn leftovers(client: &Client, id: &str, folder: &str) -> String {
    client.sh_root(id, &format!("ls -A {folder} | sort")).await.stdout
}

#[test]
fn an_upload_that_stops_half_way_leaves_nothing() {
    // B09. The body itself never ends: an orderly end would make the upload a whole one.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.write_file(&id, "/home/user/up/file", "old").await.ok();
        for breaks_its_body in [false, true] {
            let (feed, body) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
            let stream = futures::stream::unfold(body, |mut body| async {
                body.recv().await.map(|part| (part, body))
            });
            let request = client
                .raw(Method::PUT, &at(&id, "", "/home/user/up/file"))
                .body(reqwest::Body::wrap_stream(stream));
            let upload = tokio::spawn(request.send());
            feed.send(Ok(bytes::Bytes::from(vec![b'n'; 100_000]))).await.unwrap();
            until("the temporary file is there", async || {
                (leftovers(&client, &id, "/home/user/up").await != "file\n").then_some(())
            })
            .await;
            // Slow on purpose: the old content stays whole and others are served meanwhile.
            for _ in 0..5 {
                assert_eq!(client.read_file(&id, "/home/user/up/file").await.bytes, "old");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            if breaks_its_body {
                feed.send(Err(std::io::Error::other("the client broke"))).await.unwrap();
                assert!(upload.await.unwrap().is_err());
            } else {
                upload.abort();
                assert!(upload.await.unwrap_err().is_cancelled());
            }
            until("the temporary file is gone", async || {
                (leftovers(&client, &id, "/home/user/up").await == "file\n").then_some(())
            })
            .await;
            assert_eq!(client.read_file(&id, "/home/user/up/file").await.bytes, "old");
            drop(feed);
        }
    });
}

#[test]
fn a_list_that_is_not_complete_says_so_on_the_vendors_fronts() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let made = "mkdir /tmp/few /tmp/many && touch /tmp/few/a && cd /tmp/many && seq 10001 | xargs touch";
        assert_eq!(client.sh(&id, made).await.text(), "");
        let truncated = async |method: Method, path: String, body: Value| {
            let answer = client.raw(method, &path).json(&body).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{path}");
            answer.headers().get("atoll-truncated").map(|value| value.to_str().unwrap().to_owned())
        };
        for (folder, expected) in [("few", None), ("many", Some("true".to_owned()))] {
            let daytona = format!("/daytona/toolbox/{id}/files/search?path=/tmp/{folder}&pattern=*");
            assert_eq!(truncated(Method::GET, daytona, Value::Null).await, expected, "{folder}");
            let leap0 = format!("/leap0/v1/sandbox/{id}/filesystem/glob");
            let body = json!({ "path": format!("/tmp/{folder}"), "pattern": "*" });
            assert_eq!(truncated(Method::POST, leap0, body).await, expected, "{folder}");
        }
    });
}

#[test]
fn a_client_that_sends_before_it_reads_still_gets_its_refusal() {
    run(async |w| {
        let address = w.admin().base().trim_start_matches("http://").to_owned();
        let refused = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let head = "PUT /v1/sandboxes/x/files?path=/x HTTP/1.1\r\nhost: localhost\r\n\
                        authorization: Bearer wrong\r\ncontent-length: 1000000000\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            // The whole body would take longer; the server stops reading it, so that a write waits in vain.
            let piece = vec![0; 1 << 20];
            let stopped = (0..1_000).find_map(|_| stream.write_all(&piece).err()).unwrap();
            let mut answer = vec![0; 4_096];
            let read = stream.read(&mut answer).unwrap_or_else(|error| panic!("{error} after {stopped}"));
            String::from_utf8_lossy(&answer[..read]).into_owned()
        });
        let refused = refused.await.unwrap();
        assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
        // A client that has sent everything must not use the connection again: the server does not read that far.
        assert!(refused.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{refused}");
    });
}
