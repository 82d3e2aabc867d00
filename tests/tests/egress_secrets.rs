//! A key is used by a sandbox and never inside it: transforms, the secret store, and where a secret must not go.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::FileExt;

use atoll_tests::connection_probes::{ROOTS, came_to_nothing, egress_log, guarded, logged, reach, try_one};
use atoll_tests::internet::{EVIL, GOOD, GREETING, Internet, OTHER, Request, SHARED, Say};
use atoll_tests::{Client, Options, Value, World, json, proc, run_with};
use reqwest::Method;

const SECRET: &str = "canary-5f1d0c9e7b3a48d2";
const ROTATED: &str = "canary-aa02bb13cc24dd35";

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

/// The key is put in for `api.good.test` alone.
fn policy() -> Value {
    json!({
        "mode": "custom",
        "allow_domains": ["good.test", "*.good.test"],
        "transforms": [{
            "domain": "api.good.test",
            "inject_headers": { "Authorization": "Bearer {secret:MODEL_KEY}" },
            "strip_headers": ["X-Leak", "Cookie"],
        }],
    })
}

async fn with_secret(w: &World) -> (Client, String) {
    let client = w.tenant("acme").await;
    client.post("/v1/secrets", json!({ "name": "MODEL_KEY", "value": SECRET })).await.ok();
    let id = guarded(w, &client, policy()).await;
    (client, id)
}

/// The last request that came with a path.
fn seen(internet: &Internet, path: &str) -> Request {
    let found = internet.requests().into_iter().rev().find(|request| request.target().starts_with(path));
    found.unwrap_or_else(|| panic!("{path} was not seen: {:#?}", internet.requests()))
}

fn holds_secret(request: &Request) -> bool {
    format!("{request:?}").contains("canary-")
}

#[test]
fn a_key_is_put_in_outside_for_its_domain_and_for_nobody_else() {
    run(async |w| {
        let (client, id) = with_secret(w).await;
        // Every client of the template believes the gate's certificate, without being told to.
        let clients = [
            (
                "/curl",
                "curl -sS -H 'Authorization: Bearer mine' -H 'X-Leak: 1' -H 'Cookie: a=1' https://api.good.test/curl",
            ),
            (
                "/python",
                "python3 -c \"import urllib.request as u; print(u.urlopen('https://api.good.test/python').read().decode())\"",
            ),
            (
                "/node",
                "node -e \"fetch('https://api.good.test/node').then(r => r.text()).then(console.log)\"",
            ),
        ];
        for (path, line) in clients {
            let ran = client.sh(&id, line).await;
            assert_eq!(ran.text(), GREETING, "{path}: {ran:?}");
            let request = seen(&w.internet, path);
            assert_eq!(
                request.header("authorization").as_deref(),
                Some(&*format!("Bearer {SECRET}")),
                "{path}"
            );
            assert_eq!((request.sni.as_deref(), &*request.host()), (Some("api.good.test"), "api.good.test"));
            assert!(request.header("x-leak").is_none() && request.header("cookie").is_none(), "{request:?}");
        }
        client.sh(&id, "git ls-remote https://api.good.test/git 2>/dev/null; true").await;
        assert!(holds_secret(&seen(&w.internet, "/git")));
        // Bodies, answers of some size, and upgrades pass.
        let tasks = json!([
            { "do": "url", "url": "https://api.good.test/body", "data": "hello" },
            { "do": "url", "url": "https://api.good.test/bytes/3000000", "keep": 1, "limit": 60 },
            { "do": "tls", "host": "api.good.test", "port": 443, "sni": "api.good.test", "verify": true, "until": "frames",
              "send": ["GET /socket HTTP/1.1\r\nHost: api.good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n", "frames"] },
        ]);
        let results = reach(&client, &id, tasks).await;
        assert_eq!(results[0]["body"], GREETING, "{}", results[0]);
        assert_eq!(results[1]["bytes"], 3_000_000, "{}", results[1]);
        assert!(
            results[2]["got"].as_str().is_some_and(|got| got.contains(" 101 ") && got.ends_with("frames")),
            "{}",
            results[2]
        );
        assert_eq!(seen(&w.internet, "/body").body, b"hello");
        assert!(holds_secret(&seen(&w.internet, "/socket")));
        // Not to another name of the same server, not over plain HTTP, not after a redirect.
        let others = format!(
            "curl -sS --cacert {ROOTS} https://good.test/other; curl -sS http://api.good.test/plain; \
             curl -sSL --cacert {ROOTS} 'https://api.good.test/redirect?https://good.test/landed' 2>&1; \
             curl -sSL 'https://api.good.test/redirect?http://api.good.test/lowered' 2>&1; \
             curl -sSL 'https://api.good.test/redirect?https://evil.test/fallen' 2>&1; true"
        );
        client.sh(&id, &others).await;
        client.sh(&id, "curl -sSLk 'https://api.good.test/redirect?https://good.test/landed'").await;
        for path in ["/other", "/plain", "/landed", "/lowered"] {
            let request = seen(&w.internet, path);
            assert!(!holds_secret(&request), "{request:?}");
        }
        assert!(holds_secret(&seen(&w.internet, "/redirect")));
        w.internet.unharmed("redirects");
        logged(&client, &id, json!({ "what": "tls", "verdict": "allowed", "name": "api.good.test", "rule": "transforms: api.good.test" })).await;
    });
}

#[test]
fn n02_inside_an_ended_tls_connection_the_host_is_the_name_of_the_connection() {
    run(async |w| {
        w.internet.says("api.good.test", Say::a([SHARED]));
        w.internet.says("self-signed.good.test", Say::a([OTHER]));
        let (client, id) = with_secret(w).await;
        let tls = |parts: &[&str]| json!({ "do": "tls", "host": "api.good.test", "port": 443, "sni": "api.good.test", "verify": true, "send": parts, "quiet": 1 });
        let get = |host: &str, path: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let last = "GET /fine HTTP/1.1\r\nHost: api.good.test:443\r\nConnection: close\r\n\r\n";
        let mut fine = tls(&[&get("api.good.test", "/fine"), last]);
        fine["quiet"] = json!(10);
        let fine = try_one(&client, &id, fine).await;
        assert_eq!(fine["got"].as_str().unwrap().matches(GREETING).count(), 2, "the control: {fine}");
        w.internet.forget();
        let outer = "POST /outer HTTP/1.1\r\nHost: api.good.test\r\n";
        let evil = get("evil.test", "/smuggled");
        let attacks = [
            tls(&[&evil]),
            tls(&[&get("good.test", "/smuggled")]),
            tls(&[&get("api.good.test", "/fine"), &evil]),
            tls(&["GET /smuggled HTTP/1.0\r\n\r\n"]),
            tls(&["GET https://evil.test/smuggled HTTP/1.1\r\nHost: api.good.test\r\n\r\n"]),
            tls(&["CONNECT evil.test:443 HTTP/1.1\r\nHost: api.good.test\r\n\r\n", "inside"]),
            tls(&["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]),
            tls(&[&format!("{outer}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{evil}")]),
            tls(&[&format!("{outer}Content-Length: 0\r\nContent-Length: 9\r\n\r\n{evil}")]),
            tls(&[&format!("{outer}Transfer-Encoding: xchunked\r\n\r\n{evil}")]),
            tls(&["GET /smuggled HTTP/1.1\r\nHost: api.good.test\r\nHost: evil.test\r\n\r\n"]),
        ];
        for (task, result) in attacks.iter().zip(reach(&client, &id, json!(attacks)).await) {
            let got = result["got"].as_str().unwrap_or_default();
            let allowed = usize::from(task.to_string().contains("/fine"))
                + usize::from(task.to_string().contains("/outer"));
            assert!(got.matches(GREETING).count() <= allowed && !got.contains("inside"), "{task}: {result}");
        }
        for request in w.internet.requests() {
            assert!(request.host() == "api.good.test" && !request.line.contains("smuggled"), "{request:?}");
        }
        // The upstream server proves who it is, or gets nothing.
        let mut doubtful = policy();
        doubtful["transforms"][0]["domain"] = json!("self-signed.good.test");
        let other = guarded(w, &client, doubtful).await;
        let result = try_one(
            &client,
            &other,
            json!({ "do": "url", "url": "https://self-signed.good.test/proof", "limit": 30 }),
        )
        .await;
        assert!(came_to_nothing(&result) || result["status"] == 502, "{result}");
        assert!(w.internet.requests_to(OTHER).is_empty(), "{:?}", w.internet.requests_to(OTHER));
        logged(&client, &other, json!({ "verdict": "failed", "name": "self-signed.good.test" })).await;
        // Each sandbox has an authority of its own, whose key is not inside.
        let path = "/usr/local/share/ca-certificates/atoll-egress.crt";
        let (one, two) = (client.read_file(&id, path).await, client.read_file(&other, path).await);
        assert!(one.status == 200 && two.status == 200 && one.bytes != two.bytes, "{one} {two}");
        let keys = client
            .sh_root(
                &id,
                "grep -rls 'PRIVATE KEY' /usr/local/share /etc/ssl /tmp /root /home 2>/dev/null; true",
            )
            .await;
        assert_eq!(keys.text(), "");
        w.internet.unharmed("an ended connection");
    });
}

/// Whether the memory of a process holds a text.
fn memory_holds(pid: i32, text: &str) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = std::fs::File::open(format!("/proc/{pid}/mem")) else { return false };
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let range = line.split(' ').next().unwrap_or_default();
        let Some((from, to)) = range.split_once('-') else { return false };
        let (from, to) = (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
        let mut bytes = vec![0; usize::try_from((to - from).min(64 << 20)).unwrap()];
        memory
            .read_at(&mut bytes, from)
            .is_ok_and(|length| memchr::memmem::find(&bytes[..length], text.as_bytes()).is_some())
    })
}

/// Files below a folder that hold a text; the pool is read as it is mounted.
fn files_with(folder: &std::path::Path, text: &str) -> Vec<String> {
    let found = std::process::Command::new("grep")
        .args(["-rlsaF", "--exclude=pool.btrfs", text])
        .arg(folder)
        .output()
        .unwrap();
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn n16_the_key_is_nowhere_inside_and_in_no_log_answer_or_file() {
    run(async |w| {
        let (client, id) = with_secret(w).await;
        // A process that stays, and one request that uses the key.
        client.try_exec(&id, json!({ "argv": ["sleep", "600"], "detach": true })).await.ok();
        assert_eq!(client.sh(&id, "curl -sS https://api.good.test/used").await.text(), GREETING);
        assert!(holds_secret(&seen(&w.internet, "/used")), "the control");
        let inside = format!(
            "grep -rlsaF {SECRET} /etc /home /root /run /tmp /usr/local /var /.atoll 2>/dev/null; grep -lsaF {SECRET} /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -v self; env | grep -F {SECRET}; true"
        );
        // The line itself holds it, and so does the shell that runs it.
        let found =
            client.sh_root(&id, &inside.replace(SECRET, "$(printf canary-5f; printf 1d0c9e7b3a48d2)")).await;
        let found: Vec<&str> = found.text().lines().filter(|line| !line.starts_with("/proc/")).collect();
        assert!(found.is_empty(), "{found:?}");
        let agent = w.agent_pid(&id);
        let all: Vec<i32> = proc::descendants(agent).iter().map(|p| p.pid).chain([agent]).collect();
        assert!(all.len() >= 2, "agent and sleeper: {all:?}");
        for pid in all {
            assert!(!memory_holds(pid, SECRET), "process {pid} holds the key");
        }
        assert!(memory_holds(w.server_pid(), SECRET), "the control: who puts it in, holds it");
        // What the API shows.
        let mut shown = vec![client.sandbox(&id).await.to_string()];
        for path in [
            "/v1/sandboxes",
            "/v1/secrets",
            &format!("/v1/sandboxes/{id}/egress?limit=1000"),
            &format!("/v1/sandboxes/{id}/egress/policy"),
        ] {
            shown.push(client.get(path).await.ok().to_string());
        }
        let bad = json!({ "network": { "mode": "custom", "transforms": [{ "domain": "api.good.test", "inject_headers": { "Host": format!("x {SECRET}") } }] } });
        shown.push(client.post("/v1/sandboxes", bad).await.refused(400, "invalid_request").to_string());
        let again = client.post("/v1/secrets", json!({ "name": "MODEL_KEY", "value": SECRET })).await;
        shown.push(again.refused(409, "already_exists").to_string());
        for text in &shown {
            assert!(!text.contains(SECRET), "{text}");
        }
        assert!(shown[0].contains('…') && shown[2].contains("MODEL_KEY"), "{shown:?}");
        // What is on the disk, and in the log.
        assert!(!w.log().contains("canary-"), "in the server's log");
        assert_eq!(files_with(&w.data().join("egress"), "canary-"), Vec::<String>::new());
        let database: Vec<_> =
            files_with(&w.data(), SECRET).into_iter().filter(|f| !f.contains("/templates/")).collect();
        assert!(database.is_empty(), "{database:?}");
        // A snapshot and a fork hold no more than it does; the child works with the key, too.
        let forked = client.post(&format!("/v1/sandboxes/{id}/fork"), json!({ "count": 1 })).await.ok();
        let child = forked["sandboxes"][0]["id"].as_str().unwrap();
        assert_eq!(client.sh(child, "curl -sS https://api.good.test/child").await.text(), GREETING);
        assert!(holds_secret(&seen(&w.internet, "/child")));
        assert!(!memory_holds(w.agent_pid(child), SECRET));
    });
}

#[test]
fn keys_are_rotated_deleted_and_another_tenants_are_unknown() {
    run(async |w| {
        let (client, id) = with_secret(w).await;
        let other = w.tenant("other").await;
        let authorization = async |path: &str| {
            client.sh(&id, &format!("curl -sS https://api.good.test{path}")).await.text();
            seen(&w.internet, path).header("authorization").unwrap_or_default()
        };
        assert_eq!(authorization("/before").await, format!("Bearer {SECRET}"));
        let rotated =
            client.send(Method::PUT, "/v1/secrets/MODEL_KEY", Some(&json!({ "value": ROTATED }))).await.ok();
        assert!(rotated["rotated_at"].is_string() && !rotated.to_string().contains("canary"), "{rotated}");
        assert_eq!(authorization("/rotated").await, format!("Bearer {ROTATED}"));
        w.crash_server().await;
        assert_eq!(authorization("/crashed").await, format!("Bearer {ROTATED}"));
        for verb in ["restart", "stop"] {
            client.act(&id, verb).await.ok();
        }
        client.act(&id, "start").await.ok();
        assert_eq!(authorization("/started").await, format!("Bearer {ROTATED}"));
        // In use it stays; another's is not there, and is not told from none.
        client.delete("/v1/secrets/MODEL_KEY").await.refused(409, "secret_in_use");
        assert_eq!(other.get("/v1/secrets").await.ok()["items"], json!([]));
        other.delete("/v1/secrets/MODEL_KEY").await.refused(404, "secret_not_found");
        let theft = other.post("/v1/sandboxes", json!({ "network": policy() })).await;
        theft.refused(400, "invalid_request");
        let none = client.post("/v1/sandboxes", json!({ "network": { "mode": "custom", "transforms": [{ "domain": "a.test", "inject_headers": { "X": "{secret:NONE}" } }] } })).await;
        none.refused(400, "invalid_request");
        // Without the transform nothing is put in, and the key can go.
        let path = format!("/v1/sandboxes/{id}");
        client
            .patch(&path, json!({ "network": { "mode": "custom", "allow_domains": ["*.good.test"] } }))
            .await
            .ok();
        client.sh(&id, &format!("curl -sS --cacert {ROOTS} https://api.good.test/after")).await.text();
        assert!(!holds_secret(&seen(&w.internet, "/after")));
        client.delete("/v1/secrets/MODEL_KEY").await.ok();
        client.delete("/v1/secrets/MODEL_KEY").await.refused(404, "secret_not_found");
        client.patch(&path, json!({ "network": policy() })).await.refused(400, "invalid_request");
        for bad in [
            json!({ "name": "a b", "value": "x" }),
            json!({ "name": "", "value": "x" }),
            json!({ "name": "A", "value": "x\ny" }),
            json!({ "name": "A", "value": "x".repeat(9 << 10) }),
        ] {
            client.post("/v1/secrets", bad).await.refused(400, "invalid_request");
        }
        let log = egress_log(&client, &id).await;
        assert!(log.iter().all(|record| !record.to_string().contains("canary")), "{log:?}");
        w.internet.untouched(EVIL, "keys");
        assert!(!w.internet.requests_to(GOOD).is_empty());
    });
}
