//! Attacks through the file API (catalogue B01 to B04, B07 to B09, B12 to B14).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::canary::SECRET;
use atoll_tests::client::{escape, escape_bytes};
use atoll_tests::{Client, json, probe, run};
use reqwest::Method;

/// LIMIT: a delete does not wait for the files to be gone; this is what it may take on a busy machine.
const DELETE_MAX: Duration = Duration::from_secs(10);

/// Ways to write "outside" (B01); `{}` is the path of a file of the host without its first slash.
const TRAVERSALS: &[&str] = &[
    "../{}",
    "../../{}",
    "../../../../../../../../{}",
    "/../{}",
    "/../../../{}",
    "/home/user/../../../{}",
    "./../../{}",
    "//{}",
    "///../..//{}",
    "/proc/self/root/../{}",
    "/proc/self/root/{}",
    "/proc/1/root/{}",
    "/proc/1/root/../../{}",
    "/proc/1/cwd/{}",
    "/proc/self/cwd/../../{}",
    "/proc/self/fd/3/../{}",
    "/proc/1/fd/0/{}",
    "/proc/thread-self/root/{}",
    "/proc/self/task/1/root/{}",
    "/dev/fd/3/../../{}",
    "/.atoll/../../{}",
    "/.atoll/../{}",
    "%2e%2e%2f{}",
    "%2e%2e/%2e%2e/{}",
    "%252e%252e%252f{}",
    "..%2f..%2f{}",
    "..%5c..%5c{}",
    "..\\..\\{}",
    "\\..\\..\\{}",
    "..%c0%af{}",
    "%c0%ae%c0%ae/{}",
    "..%u2215{}",
    "....//....//{}",
    "..;/..;/{}",
    ".../{}",
    "~/../../{}",
    "~root/../{}",
    "file:///{}",
    "file://localhost/{}",
    "/sys/../../{}",
    "/home/user/link/{}",
    "/home/user/rel/{}",
    "/home/user/deep/link/../../../{}",
    "C:\\..\\{}",
    "/./././../{}",
    "/home/user/./.././../../{}",
    "..",
    "../",
    "/..",
    "/../..",
    "/home/user/link",
    "/home/user/rel",
    "/proc/self/root",
    "/proc/1/root",
    "/proc/1/cwd",
    "/proc/1/exe",
    "/proc/self/exe",
    "/proc/self/fd/0",
    "/proc/1/fd/3",
    "/proc/1/ns/net",
];

/// Every verb on one path; `raw` says the text is already encoded.
async fn every_verb(client: &Client, id: &str, path: &str) -> Vec<(String, reqwest::Response)> {
    let base = format!("/v1/sandboxes/{id}/files");
    let mut answers = Vec::new();
    for (method, verb, body) in [
        (Method::GET, "", None),
        (Method::GET, "/stat", None),
        (Method::GET, "/list", None),
        (Method::PUT, "", Some("overwritten")),
        (Method::DELETE, "", None),
    ] {
        let mut request = client.raw(method.clone(), &format!("{base}{verb}?path={path}"));
        if let Some(body) = body {
            request = request.body(body);
        }
        answers.push((format!("{method} {verb} {path}"), request.send().await.unwrap()));
    }
    for (verb, body) in [
        ("mkdir", json!({ "path": format!("{path}/made") })),
        ("move", json!({ "from": "/home/user/mine", "to": path })),
        ("move", json!({ "from": path, "to": "/home/user/stolen" })),
    ] {
        let request = client.raw(Method::POST, &format!("{base}/{verb}")).json(&body);
        answers.push((format!("{verb} {path}"), request.send().await.unwrap()));
    }
    answers
}

#[test]
fn no_path_leads_out_of_the_sandbox() {
    // B01, B02, B04.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let secret = w.canary.secret().to_path_buf();
        let target = secret.display().to_string();
        let bare = target.trim_start_matches('/').to_owned();
        let mut tried = 0;
        for chunk in TRAVERSALS.chunks(12) {
            // A path may well delete the sandbox's own root; each dozen gets a fresh one.
            let id = client.create(json!({ "user": "root" })).await;
            let prepare = format!(
                "ln -s {target} /home/user/link; ln -s ../../../../../../{bare} /home/user/rel; mkdir -p /home/user/deep; ln -s / /home/user/deep/link; echo mine > /home/user/mine"
            );
            client.sh(&id, &prepare).await.text();
            for pattern in chunk {
                let path = pattern.replace("{}", &bare);
                for encoded in [escape(&path), path.replace(['\\', ' '], "%5C")] {
                    for (what, answer) in every_verb(&client, &id, &encoded).await {
                        let status = answer.status().as_u16();
                        let text = answer.text().await.unwrap();
                        assert!(!text.contains(SECRET), "{what} read the host: {text}");
                        assert!(status < 500 || status == 507, "{what}: {status} {text}");
                        tried += 1;
                    }
                    let stolen = client
                        .raw(Method::GET, &format!("/v1/sandboxes/{id}/files?path=/home/user/stolen"))
                        .send()
                        .await
                        .unwrap();
                    assert!(!stolen.text().await.unwrap().contains(SECRET), "{path} was moved in");
                }
            }
            client.remove(&id).await;
        }
        assert!(tried > 800, "{tried}");
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), SECRET);
        assert!(!secret.with_file_name("made").exists());
        witness.verify().await;
    });
}

#[test]
fn magic_links_are_not_followed() {
    // B04.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "user": "root" })).await;
        for path in [
            "/proc/self/root/etc/passwd",
            "/proc/1/root/etc/passwd",
            "/proc/self/fd/3",
            "/proc/1/exe",
            "/proc/self/exe",
            "/proc/self/cwd/etc/passwd",
            "/proc/1/fd/1",
            "/dev/fd/1",
            "/dev/stdin",
        ] {
            let answer = client.read_file(&id, path).await;
            assert!(matches!(answer.status, 400 | 403 | 404), "{path}: {answer}");
            let answer = client.write_file(&id, path, "x").await;
            assert!((400..500).contains(&answer.status), "{path}: {answer}");
        }
    });
}

#[test]
fn paths_without_sense_are_refused() {
    // B01.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let long_name = format!("/tmp/{}", "n".repeat(4096));
        let deep = format!("/tmp/{}x", "d/".repeat(300));
        let too_long = format!("/tmp/{}", "abcdefgh/".repeat(1000));
        for path in [b"".to_vec(), b"/tmp/a\0b".to_vec(), long_name.into_bytes(), too_long.into_bytes()] {
            for verb in ["", "/stat", "/list"] {
                let answer =
                    client.get(&format!("/v1/sandboxes/{id}/files{verb}?path={}", escape_bytes(&path))).await;
                assert!(matches!(answer.status, 400 | 404), "{verb}: {answer}");
            }
            let query = format!("/v1/sandboxes/{id}/files?path={}", escape_bytes(&path));
            let answer =
                client.judged(client.raw(Method::PUT, &query).body("x"), &Method::PUT, &query, None).await;
            assert_eq!(answer.status, 400, "{answer}");
        }
        client.write_file(&id, &deep, "deep").await.ok();
        assert_eq!(client.read_file(&id, &deep).await.bytes, "deep");
        let twice = client.get(&format!("/v1/sandboxes/{id}/files?path=/etc/passwd&path=/etc/shadow")).await;
        assert!(matches!(twice.status, 200 | 400), "{twice}");
        client.get(&format!("/v1/sandboxes/{id}/files")).await.refused(400, "invalid_request");
    });
}

#[test]
fn a_flip_flop_of_links_never_reaches_the_host() {
    // B03.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "user": "root", "cpu": 1 })).await;
        let flip = probe::install(&client, &id, "flip").await;
        let folder = w.canary.secret().parent().unwrap().display().to_string();
        // Inside there is a folder of the same path, so that the link always leads somewhere.
        client.sh(&id, &format!("mkdir -p {folder} /w/dir; echo inside > {folder}/secret-of-the-host; echo plain > /w/dir/secret-of-the-host")).await.text();
        let seconds = 12;
        let body = json!({ "argv": [flip, "/w/dir", folder, seconds.to_string()], "timeout_s": 60 });
        let racing = tokio::spawn({
            let (client, id) = (client.clone(), id.clone());
            async move { client.exec(&id, body).await }
        });
        let limit = Instant::now() + Duration::from_secs(seconds);
        let path = "/w/dir/secret-of-the-host";
        let mut rounds = 0;
        while Instant::now() < limit {
            let read = client.read_file(&id, path).await;
            assert!(!String::from_utf8_lossy(&read.bytes).contains(SECRET), "read from the host");
            client.write_file(&id, path, "written by the race").await;
            client.get(&format!("/v1/sandboxes/{id}/files/list?path=/w/dir&depth=3")).await;
            client.get(&format!("/v1/sandboxes/{id}/files/stat?path={path}")).await;
            client
                .post(&format!("/v1/sandboxes/{id}/files/move"), json!({ "from": path, "to": "/w/moved" }))
                .await;
            client.delete(&format!("/v1/sandboxes/{id}/files?path={path}")).await;
            rounds += 1;
        }
        let swaps: u64 = racing.await.unwrap().text().parse().unwrap();
        assert!(rounds > 10 && swaps > 1000, "{rounds} rounds, {swaps} swaps");
        assert_eq!(std::fs::read_to_string(w.canary.secret()).unwrap(), SECRET);
        witness.verify().await;
    });
}

#[test]
fn a_file_that_changes_while_it_is_read_ends_cleanly() {
    // B08.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "disk_mib": 512, "memory_mib": 256 })).await;
        let change = "dd if=/dev/zero of=big bs=1M count=64 2>/dev/null; (while :; do : > big; dd if=/dev/zero of=big bs=1M count=32 2>/dev/null; \
            cp big other; mv other big; echo more >> big; done) > /dev/null 2>&1 & truncate -s 100G sparse";
        client.sh(&id, change).await.text();
        for _ in 0..30 {
            let request = client.raw(Method::GET, &format!("/v1/sandboxes/{id}/files?path=/home/user/big"));
            let Ok(response) = request.send().await else { continue };
            let promised =
                response.headers().get("content-length").and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
            if let (Ok(body), Some(promised)) = (response.bytes().await, promised) {
                assert_eq!(body.len() as u64, promised, "a whole answer has the length it promised");
            }
        }
        let before = atoll_tests::proc::status(w.server_pid(), "VmRSS").unwrap();
        let sparse = client
            .raw(Method::GET, &format!("/v1/sandboxes/{id}/files?path=/home/user/sparse"))
            .send()
            .await
            .unwrap();
        assert_eq!(sparse.headers()["content-length"], (100_u64 << 30).to_string().as_str());
        let mut stream = sparse.bytes_stream();
        let limit = Instant::now() + Duration::from_secs(3);
        while Instant::now() < limit {
            futures::StreamExt::next(&mut stream).await.unwrap().unwrap();
        }
        drop(stream);
        let after = atoll_tests::proc::status(w.server_pid(), "VmRSS").unwrap();
        assert!(after < before + 32 * 1024, "the server grew from {before} to {after} KiB");
        assert_eq!(client.sh(&id, "echo alive").await.text(), "alive");
    });
}

#[test]
fn a_full_disk_stays_the_sandboxes_own_affair() {
    // B12.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "disk_mib": 48 })).await;
        let memory = client.create(json!({ "disk_mib": 24, "storage": "memory", "memory_mib": 64 })).await;
        for (id, most) in [(&id, 48), (&memory, 24)] {
            let filled = client
                .sh(
                    id,
                    "dd if=/dev/zero of=/home/user/fill bs=64k 2>&1; sync; du -m /home/user/fill | cut -f1",
                )
                .await;
            assert!(filled.stdout.contains("No space") || filled.stdout.contains("quota"), "{filled:?}");
            let size: u64 = filled.stdout.lines().last().unwrap().parse().unwrap();
            assert!((most / 2..=most + 1).contains(&size), "{size} of {most} MiB");
            let refused = client.write_file(id, "/home/user/more", vec![1_u8; 4 << 20]).await;
            assert_eq!((refused.status, refused.code().as_str()), (507, "disk_full"), "{refused}");
            assert!(!client.sh(id, "ls -A /home/user").await.stdout.contains("tmp"), "no half file is left");
            assert_eq!(client.sh(id, "echo alive").await.text(), "alive");
            client.get(&format!("/v1/sandboxes/{id}/metrics")).await.ok();
            client.get(&format!("/v1/sandboxes/{id}/files/list?path=/home/user")).await.ok();
            client.sh(id, "rm /home/user/fill && echo x > /home/user/fits").await.text();
            let started = Instant::now();
            client.remove(id).await;
            assert!(started.elapsed() < DELETE_MAX, "{:?}", started.elapsed());
        }
        witness.verify().await;
    });
}

#[test]
fn floods_of_inodes_links_and_levels_are_bounded_and_deleted() {
    // B13.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "disk_mib": 64, "memory_mib": 256, "timeout_s": 300 })).await;
        let flood = "i=0; mkdir f; while touch f/$i.0 f/$i.1 f/$i.2 f/$i.3 f/$i.4 f/$i.5 f/$i.6 f/$i.7 2>/dev/null; do i=$((i+1)); done; echo $i";
        client.exec(&id, json!({ "argv": ["/bin/sh", "-c", flood], "timeout_s": 10 })).await;
        let links = "echo x > l; i=0; while ln l l.$i 2>/dev/null; do i=$((i+1)); done; echo $i";
        client.exec(&id, json!({ "argv": ["/bin/sh", "-c", links], "timeout_s": 4 })).await;
        let deep = "i=0; while mkdir d 2>/dev/null && cd d; do i=$((i+1)); [ $i -ge 100000 ] && break; done; echo $i";
        client.exec(&id, json!({ "argv": ["/bin/sh", "-c", deep], "timeout_s": 6 })).await;
        let listed = client.get(&format!("/v1/sandboxes/{id}/files/list?path=/home/user&depth=1")).await;
        assert!(listed.status == 200 || listed.status == 413 || listed.status == 400, "{}", listed.status);
        let removed = client.delete(&format!("/v1/sandboxes/{id}/files?path=/home/user/d")).await;
        assert!(removed.status < 500 || removed.status == 504, "{removed}");
        assert_eq!(client.sh(&id, "echo alive").await.text(), "alive");
        let started = Instant::now();
        client.remove(&id).await;
        assert!(started.elapsed() < DELETE_MAX, "{:?}", started.elapsed());
        let small = client.create(json!({ "storage": "memory", "disk_mib": 16, "memory_mib": 64 })).await;
        let bounded =
            client.exec(&small, json!({ "argv": ["/bin/sh", "-c", flood], "timeout_s": 110 })).await;
        assert_eq!(
            bounded.answer["timed_out"], false,
            "inodes of a memory layer are counted: {}",
            bounded.answer
        );
        witness.verify().await;
    });
}

#[test]
fn names_of_any_bytes_survive_the_way_through_json() {
    // B14.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let names: [&[u8]; 7] = [
            b"new\nline",
            b"esc\x1b[31mred",
            "rtl\u{202e}txt".as_bytes(),
            b"quote\"back\\slash",
            b" space ",
            "näme".as_bytes(),
            b"bad\xff\xfeutf8",
        ];
        for name in &names[..6] {
            let path = format!(
                "/v1/sandboxes/{id}/files?path={}",
                escape_bytes(&[b"/home/user/odd/", *name].concat())
            );
            client.judged(client.raw(Method::PUT, &path).body("odd"), &Method::PUT, &path, None).await.ok();
            let back = client.get(&path).await;
            assert_eq!(back.bytes, "odd", "{name:?}");
        }
        // A query holds text; what is no text is refused and never bent into another name.
        let bytes = format!("/v1/sandboxes/{id}/files?path=/home/user/odd/bad%FF%FEutf8");
        let refused =
            client.judged(client.raw(Method::PUT, &bytes).body("odd"), &Method::PUT, &bytes, None).await;
        refused.refused(400, "invalid_request");
        client.sh(&id, "printf odd > \"$(printf 'odd/bad\\377\\376utf8')\"").await.text();
        let list = client.get(&format!("/v1/sandboxes/{id}/files/list?path=/home/user/odd")).await.ok();
        let items = list["items"].as_array().unwrap();
        assert_eq!(items.len(), names.len());
        for name in names {
            use base64::Engine;
            let encoded = base64::engine::general_purpose::STANDARD.encode(name);
            let found = items.iter().any(|item| match item["name_base64"].as_str() {
                Some(bytes) => bytes == encoded,
                None => item["name"].as_str().map(str::as_bytes) == Some(name),
            });
            assert!(found, "{name:?} is not listed: {list}");
        }
        client.delete(&format!("/v1/sandboxes/{id}/files?path=/home/user/odd")).await.ok();
    });
}
