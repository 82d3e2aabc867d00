//! The life of a sandbox through the API: create, read, list, change, stop, start, delete; names, quotas, events, tenants.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use atoll_tests::{Answer, Client, Options, Value, json, run, run_with, until, until_within};
use futures::future::join_all;
use reqwest::Method;

#[test]
fn a_sandbox_is_made_used_and_deleted() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let made = client
            .post("/v1/sandboxes", json!({ "name": "box-1", "labels": { "team": "red" }, "env": { "SECRET_WORD": "swordfish" },
                "cpu": 0.5, "memory_mib": 128, "disk_mib": 256, "pids": 64, "network": "deny-all", "timeout_s": 600 }))
            .await;
        assert_eq!(made.status, 201, "{made}");
        let made = made.ok();
        assert_eq!((&made["phase"], &made["intent"]), (&json!("running"), &json!("run")), "{made}");
        assert_eq!(made["template"], "busybox");
        assert_eq!(
            (&made["cpu"], &made["memory_mib"], &made["pids"]),
            (&json!(0.5), &json!(128), &json!(64))
        );
        assert!(made["env_names"].as_array().unwrap().contains(&json!("SECRET_WORD")), "{made}");
        assert!(!made.to_string().contains("swordfish"), "the environment's values are never shown: {made}");
        let id = made["id"].as_str().unwrap();
        assert!(id.len() == 20 && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()), "{id}");

        assert_eq!(client.sh(id, "echo $SECRET_WORD; pwd").await.text(), "swordfish\n/home/user");
        for name in [id, &id[..6], "box-1"] {
            assert_eq!(client.sandbox(name).await["id"], id, "found by {name}");
        }
        let gone = client.remove("box-1").await;
        assert_eq!(gone["id"], id);
        client.remove(id).await;
        client.try_exec(id, json!({ "argv": ["true"] })).await;
        client.get("/v1/sandboxes/box-1").await.refused(404, "sandbox_not_found");
    });
}

#[test]
fn limits_hold_inside_and_change_while_it_runs() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 64, "pids": 32, "disk_mib": 64 })).await;
        let agent = w.agent_pid(&id);
        let groups = atoll_tests::proc::cgroups(agent);
        let read = |controller: &str, file: &str| {
            std::fs::read_to_string(groups[controller].join(file)).unwrap().trim().to_owned()
        };
        assert_eq!(read("memory", "memory.limit_in_bytes"), (64 << 20).to_string());
        assert_eq!(read("pids", "pids.max"), "32");
        let path = format!("/v1/sandboxes/{id}");
        let changed = client
            .patch(&path, json!({ "memory_mib": 96, "pids": 48, "cpu": 0.25, "labels": { "a": "b" } }))
            .await
            .ok();
        assert_eq!(
            (&changed["memory_mib"], &changed["pids"], &changed["cpu"]),
            (&json!(96), &json!(48), &json!(0.25))
        );
        assert_eq!(changed["labels"], json!({ "a": "b" }));
        assert_eq!(read("memory", "memory.limit_in_bytes"), (96 << 20).to_string());
        assert_eq!(read("pids", "pids.max"), "48");
        let quota: f64 = read("cpu", "cpu.cfs_quota_us").parse().unwrap();
        let period: f64 = read("cpu", "cpu.cfs_period_us").parse().unwrap();
        assert!((quota / period - 0.25).abs() < 0.01, "{quota} of {period}");
        let events = client.get(&format!("/v1/events?sandbox={id}")).await;
        assert_eq!(events.status, 200, "{events}");
    });
}

#[test]
fn files_survive_stop_and_start_and_processes_do_not() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "wake": "explicit" })).await;
        client.sh(&id, "echo kept > /home/user/note; sleep 1000 > /dev/null 2>&1 &").await.text();
        let before = client.sandbox(&id).await;
        let stopped = client.act(&id, "stop").await.ok();
        assert_eq!((&stopped["phase"], &stopped["intent"]), (&json!("stopped"), &json!("stop")), "{stopped}");
        assert_eq!(w.find_agent(&id), None, "no process is left");
        let refusal = client.try_exec(&id, json!({ "argv": ["true"] })).await.refused(409, "asleep");
        assert!(refusal["hint"].as_str().is_some_and(|hint| hint.contains("resume")), "{refusal}");
        // Twice is as good as once.
        client.act(&id, "stop").await.ok();
        let started = client.act(&id, "start").await.ok();
        assert_eq!(started["phase"], "running", "{started}");
        assert_ne!(started["instance"], before["instance"], "a start makes a new instance");
        assert!(started["generation"].as_u64() > before["generation"].as_u64());
        assert_eq!(client.sh(&id, "cat note; ps | grep '[s]leep' || true").await.text(), "kept");
        let again = client.act(&id, "restart").await.ok();
        assert_eq!(again["phase"], "running");
        assert_ne!(again["instance"], started["instance"]);
        assert_eq!(client.sh(&id, "cat note").await.text(), "kept");
    });
}

#[test]
fn a_start_command_runs_at_every_boot_and_its_output_is_in_the_logs() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let command = ["/bin/sh", "-c", "echo x >> /home/user/boots; echo booted; exec sleep 1000"];
        let id = client.create(json!({ "command": command })).await;
        let logged = async |text: &str| {
            let logs = client.raw(Method::GET, &format!("/v1/sandboxes/{id}/logs")).send().await.unwrap();
            logs.text().await.unwrap().contains(text).then_some(())
        };
        until("the output is logged", async || logged("booted").await).await;
        client.act(&id, "restart").await.ok();
        until("it ran twice", async || {
            (client.sh(&id, "cat boots").await.stdout.lines().count() == 2).then_some(())
        })
        .await;
    });
}

#[test]
fn create_without_waiting_answers_at_once_and_runs_soon() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let made = client.post("/v1/sandboxes?wait=0", json!({})).await;
        assert_eq!(made.status, 202, "{made}");
        let id = made.ok()["id"].as_str().unwrap().to_owned();
        until("it runs", async || (client.sandbox(&id).await["phase"] == "running").then_some(())).await;
        client.sh(&id, "true").await.text();
    });
}

#[test]
fn timeouts_delete_or_stop_and_can_be_moved_and_removed() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let short = client.create(json!({ "timeout_s": 2 })).await;
        let stops = client.create(json!({ "timeout_s": 2, "on_timeout": "stop" })).await;
        let moved = client.create(json!({ "timeout_s": 5 })).await;
        let later = client.patch(&format!("/v1/sandboxes/{moved}"), json!({ "timeout_s": 600 })).await.ok();
        assert_eq!(later["timeout_s"], 600);
        let freed = client.create(json!({ "timeout_s": 5 })).await;
        let made = Instant::now();
        let never = client.patch(&format!("/v1/sandboxes/{freed}"), json!({ "timeout_s": null })).await.ok();
        assert!(never["timeout_at"].is_null() && never["timeout_s"].is_null(), "{never}");
        let phase = async |id: &str| client.sandbox(id).await["phase"].clone();
        until("the first is deleted", async || (phase(&short).await == "deleted").then_some(())).await;
        assert_eq!(client.sandbox(&short).await["reason"]["code"], "completed");
        until("the second is stopped", async || (phase(&stops).await == "stopped").then_some(())).await;
        let reasons: BTreeSet<String> = phases_of(&client, &short).await.into_iter().map(|p| p.1).collect();
        assert!(reasons.contains("timed_out"), "{reasons:?}");
        tokio::time::sleep_until((made + Duration::from_millis(5_500)).into()).await;
        assert_eq!((phase(&moved).await, phase(&freed).await), (json!("running"), json!("running")));
    });
}

/// Attack N24.
#[test]
fn the_same_idempotency_key_makes_one_sandbox() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let create = async |key: &str, body: serde_json::Value| -> Answer {
            let request =
                client.raw(Method::POST, "/v1/sandboxes").header("idempotency-key", key).json(&body);
            client.judged(request, &Method::POST, "/v1/sandboxes", Some(&body)).await
        };
        let all = join_all((0..12).map(|_| create("k1", json!({ "labels": { "n": "1" } })))).await;
        let ids: BTreeSet<String> = all.iter().map(|a| a.ok()["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert_eq!(all.iter().filter(|a| a.status == 201).count(), 1, "one made it, the others are replays");
        assert!(all.iter().all(|a| matches!(a.status, 200 | 201)));
        create("k1", json!({ "labels": { "n": "2" } })).await.refused(409, "idempotency_mismatch");
        let other = w.tenant("other").await;
        let theirs =
            other.raw(Method::POST, "/v1/sandboxes").header("idempotency-key", "k1").json(&json!({}));
        let theirs = other.judged(theirs, &Method::POST, "/v1/sandboxes", None).await;
        assert_eq!(theirs.status, 201, "a key belongs to its tenant: {theirs}");
        w.crash_server().await;
        let replay = create("k1", json!({ "labels": { "n": "1" } })).await;
        assert_eq!((replay.status, replay.ok()["id"].as_str()), (200, ids.first().map(String::as_str)));
    });
}

/// Attack N24.
#[test]
fn a_name_belongs_to_one_living_sandbox_of_a_tenant() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let other = w.tenant("other").await;
        let answers = join_all((0..8).map(|_| client.post("/v1/sandboxes", json!({ "name": "one" })))).await;
        assert_eq!(answers.iter().filter(|a| a.status == 201).count(), 1);
        for lost in answers.iter().filter(|a| a.status != 201) {
            lost.refused(409, "name_taken");
        }
        other.create(json!({ "name": "one" })).await;
        client.remove("one").await;
        client.create(json!({ "name": "one" })).await;
    });
}

#[test]
fn a_hundred_creates_against_a_quota_of_ten_make_exactly_ten() {
    // F19.
    run(async |w| {
        let client = w.tenant_with("small", json!({ "sandboxes": 10 })).await;
        let answers =
            join_all((0..100).map(|_| client.post("/v1/sandboxes?wait=1", json!({ "memory_mib": 32 }))))
                .await;
        let made = answers.iter().filter(|a| a.status == 201).count();
        for refused in answers.iter().filter(|a| a.status != 201) {
            refused.refused(429, "quota_exceeded");
        }
        assert_eq!(made, 10);
        let usage = w.admin().get("/v1/tenants/small/usage").await.ok();
        assert_eq!(usage["usage"]["sandboxes"], 10, "{usage}");
        let first =
            client.get("/v1/sandboxes?limit=1").await.ok()["items"][0]["id"].as_str().unwrap().to_owned();
        client.remove(&first).await;
        client.create(json!({ "memory_mib": 32 })).await;
        client.post("/v1/sandboxes", json!({})).await.refused(429, "quota_exceeded");
    });
}

#[test]
fn quotas_of_cpu_memory_and_disk_hold() {
    run(async |w| {
        let client = w.tenant_with("small", json!({ "cpu": 1.0, "memory_mib": 200, "disk_mib": 1000 })).await;
        let fits = json!({ "cpu": 0.5, "memory_mib": 100, "disk_mib": 500 });
        let first = client.create(fits.clone()).await;
        for over in [
            json!({ "cpu": 0.6, "memory_mib": 50, "disk_mib": 100 }),
            json!({ "cpu": 0.1, "memory_mib": 101, "disk_mib": 100 }),
            json!({ "cpu": 0.1, "memory_mib": 50, "disk_mib": 501 }),
        ] {
            client.post("/v1/sandboxes", over).await.refused(429, "quota_exceeded");
        }
        client.create(fits.clone()).await;
        // A stopped one gives back CPU and memory, not disk.
        client.act(&first, "stop").await.ok();
        client.post("/v1/sandboxes", fits).await.refused(429, "quota_exceeded");
        let lowered = w.admin().patch("/v1/tenants/small", json!({ "quota": { "memory_mib": 150 } })).await;
        assert_eq!(lowered.status, 200, "{lowered}");
        client.act(&first, "start").await.refused(429, "quota_exceeded");
    });
}

#[test]
fn a_full_node_refuses_at_once_and_says_when_to_retry() {
    run_with(Options::default().env("ATOLL_LIVE_MAX", "3"), async |w| {
        let client = w.tenant("acme").await;
        let ids = join_all((0..3).map(|_| client.create(json!({})))).await;
        let started = Instant::now();
        let refused = client.post("/v1/sandboxes", json!({})).await;
        refused.refused(503, "no_capacity");
        assert!(started.elapsed() < Duration::from_secs(5), "at once, not after {:?}", started.elapsed());
        let after: u32 = refused.headers["retry-after"].parse().expect("seconds");
        assert!((1..=120).contains(&after));
        client.remove(&ids[0]).await;
        client.create(json!({})).await;
    });
}

#[test]
fn listing_filters_and_pages() {
    run(async |w| {
        let client = w.tenant("acme").await;
        for n in 0..7 {
            let label = if n % 2 == 0 { "even" } else { "odd" };
            client.create(json!({ "name": format!("n{n}"), "labels": { "kind": label, "all": "yes" }, "memory_mib": 32 })).await;
        }
        client.act("n1", "stop").await.ok();
        let names = async |query: &str| -> Vec<String> {
            let page = client.get(&format!("/v1/sandboxes?{query}")).await.ok();
            page["items"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("limit=100").await.len(), 7);
        assert_eq!(names("label=kind%3Dodd").await.len(), 3);
        assert_eq!(names("label=kind%3Dodd&label=all%3Dyes&phase=stopped").await, ["n1"]);
        assert_eq!(names("label=kind%3Dodd&label=all%3Dno").await.len(), 0);
        assert_eq!(names("phase=running,stopped").await.len(), 7);
        assert_eq!(names("name=n4").await, ["n4"]);
        assert_eq!(names("template=debian").await.len(), 0);
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        for _ in 0..10 {
            let page = client.get(&format!("/v1/sandboxes?limit=3{cursor}")).await.ok();
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= 3);
            seen.extend(items.iter().map(|s| s["id"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={}", atoll_tests::client::escape(next)),
                None => break,
            }
        }
        let distinct: BTreeSet<&String> = seen.iter().collect();
        assert_eq!((seen.len(), distinct.len()), (7, 7), "every one exactly once");
        client.remove("n0").await;
        assert_eq!(names("limit=100").await.len(), 6);
        assert_eq!(names("all=1&limit=100").await.len(), 7);
        for bad in ["phase=dancing", "limit=-1", "cursor=%00%00", "label=novalue", "unknown=1"] {
            client.get(&format!("/v1/sandboxes?{bad}")).await.refused(400, "invalid_request");
        }
    });
}

/// (phase, reason) of the phase events of a sandbox, in order.
async fn phases_of(client: &Client, id: &str) -> Vec<(String, String)> {
    let events = client.get(&format!("/v1/events?sandbox={id}")).await.ok();
    let items = events["items"].as_array().unwrap_or_else(|| panic!("{events}"));
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    items
        .iter()
        .filter(|e| e["kind"] == "phase")
        .map(|e| (text(&e["to"]), text(&e["reason"]["code"])))
        .collect()
}

#[test]
fn events_tell_the_whole_story_once_and_in_order() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let mut live = client.events(Method::GET, "/v1/events?follow=1", None).await;
        let id = client.create(json!({})).await;
        client.act(&id, "stop").await.ok();
        client.remove(&id).await;
        let told: Vec<String> = phases_of(&client, &id).await.into_iter().map(|p| p.0).collect();
        assert_eq!(told, ["creating", "running", "stopping", "stopped", "deleting", "deleted"]);
        let mut followed = Vec::new();
        let mut ids = Vec::new();
        while followed.last().is_none_or(|phase| phase != "deleted") {
            let event = live.next().await.expect("the stream goes on");
            if event.data["sandbox"] == json!(id) && event.data["kind"] == "phase" {
                followed.push(event.data["to"].as_str().unwrap().to_owned());
                ids.push(event.id.expect("events have ids").parse::<u64>().unwrap());
            }
        }
        assert_eq!(followed, told);
        assert!(ids.is_sorted());
        let request =
            client.raw(Method::GET, "/v1/events?follow=1").header("last-event-id", ids[2].to_string());
        let mut resumed = atoll_tests::sse::Events::of(request.send().await.unwrap());
        let next = resumed.next().await.unwrap();
        assert_eq!(next.id, Some(ids[3].to_string()), "no gap and no duplicate after a reconnect");
    });
}

#[test]
fn tenants_do_not_see_each_other() {
    run(async |w| {
        let (red, blue) = (w.tenant("red").await, w.tenant("blue").await);
        let id = red.create(json!({ "name": "mine" })).await;
        let pid =
            red.exec(&id, json!({ "argv": ["sleep", "100"], "detach": true })).await.answer["pid"].clone();
        let terminal = red
            .post(&format!("/v1/sandboxes/{id}/terminals"), json!({ "thread": "t", "cols": 80, "rows": 24 }))
            .await
            .ok();
        let terminal = terminal["id"].as_str().unwrap().to_owned();
        // N14: every route of the document that names a sandbox.
        let mut tried = 0;
        for (method, template) in red.contract().operations() {
            if !template.contains("/sandboxes/{") {
                continue;
            }
            let path = fill(&template, &id, &pid.to_string(), &terminal);
            let method: Method = method.parse().unwrap();
            let mut request = blue.raw(method.clone(), &path);
            if matches!(method, Method::POST | Method::PATCH) {
                request = request.json(&json!(null));
            }
            let answer = request.send().await.unwrap();
            let status = answer.status().as_u16();
            let text = answer.text().await.unwrap();
            assert!(matches!(status, 400 | 404 | 426), "{method} {template} answered {status} {text}");
            assert!(!text.contains("mine"), "{method} {template} tells the name: {text}");
            tried += 1;
        }
        assert!(tried > 20, "only {tried} routes");
        blue.get("/v1/sandboxes/mine").await.refused(404, "sandbox_not_found");
        assert_eq!(blue.get("/v1/sandboxes").await.ok()["items"], json!([]));
        assert_eq!(blue.get("/v1/events").await.ok()["items"], json!([]));
        for path in ["/v1/keys", "/v1/tenants"] {
            let answer = blue.get(path).await;
            assert!(
                answer.status == 403 || answer.ok()["items"].as_array().is_some_and(|i| i.len() <= 1),
                "{answer}"
            );
        }
        blue.post("/v1/tenants", json!({ "name": "green" })).await.refused(403, "forbidden");
        blue.patch("/v1/tenants/blue", json!({ "quota": {} })).await.refused(403, "forbidden");
        assert_eq!(red.sandbox(&id).await["phase"], "running");
        assert_eq!(w.admin().sandbox(&id).await["id"], id);
    });
}

fn fill(template: &str, id: &str, pid: &str, terminal: &str) -> String {
    let mut sandbox_filled = false;
    let part = |part: &str| match part {
        p if p.starts_with('{') && !sandbox_filled => {
            sandbox_filled = true;
            id.to_owned()
        }
        "{pid}" => pid.to_owned(),
        p if p.starts_with('{') => terminal.to_owned(),
        p => p.to_owned(),
    };
    template.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[test]
fn keys_are_needed_on_every_route_and_end_when_deleted() {
    run(async |w| {
        let nobody = w.client("");
        let wrong = w.client("atl_0000000000000000000000000000000000000000");
        // A login begins without a key: that is what it is for.
        let open = ["/health", "/docs", "/v1/openapi.json", "/v1/version", "/v1/logins"];
        let mut http = reqwest::Client::new();
        for (number, (method, template)) in nobody.contract().operations().into_iter().enumerate() {
            // An address may show a hundred wrong keys, and there are more routes.
            if number % 50 == 0 {
                let from = [127, 0, 0, 1 + u8::try_from(number / 50).unwrap()];
                http = reqwest::Client::builder().local_address(IpAddr::from(from)).build().unwrap();
            }
            if open.contains(&template.as_str()) {
                continue;
            }
            let path = fill(&template, "abcdefghijklmnopqrst", "1", "x");
            let method: Method = method.parse().unwrap();
            for client in [&nobody, &wrong] {
                let request = client.raw(method.clone(), &path).build().unwrap();
                let answer = http.execute(request).await.unwrap();
                assert_eq!(answer.status(), 401, "{method} {template}");
            }
        }
        let made = w.admin().post("/v1/keys", json!({ "scope": "admin", "name": "second" })).await.ok();
        let secret = made["secret"].as_str().unwrap().to_owned();
        let key =
            made["id"].as_str().or(made["key"]["id"].as_str()).unwrap_or_else(|| panic!("{made}")).to_owned();
        let second = w.client(&secret);
        second.get("/v1/sandboxes").await.ok();
        let by_header =
            nobody.raw(Method::GET, "/v1/sandboxes").header("x-api-key", &secret).send().await.unwrap();
        assert_eq!(by_header.status(), 200);
        w.admin().delete(&format!("/v1/keys/{key}")).await.ok();
        until_within(Duration::from_secs(10), "the key ends", async || {
            (second.get("/v1/sandboxes").await.status == 401).then_some(())
        })
        .await;
        assert!(!w.log().contains(&secret), "no key in the log");
        let database = std::fs::read(w.data().join("sandbox.db")).unwrap();
        let digits = secret.trim_start_matches("atl_").as_bytes();
        assert!(!database.windows(digits.len()).any(|part| part == digits), "keys are stored hashed");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(w.data().join("admin.key")).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn metrics_tell_what_is_used_now_and_over_time() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 128 })).await;
        client.sh(&id, "dd if=/dev/zero of=/home/user/big bs=1M count=8; sync; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").await.text();
        let now = client.get(&format!("/v1/sandboxes/{id}/metrics")).await.ok();
        assert!(now["cpu_us"].as_u64().unwrap() > 10_000, "{now}");
        assert!(now["memory_bytes"].as_u64().unwrap() > 100_000, "{now}");
        assert!(now["disk_bytes"].as_u64().unwrap() >= 8 << 20, "{now}");
        let history = client.get(&format!("/v1/sandboxes/{id}/metrics/history?limit=10")).await.ok();
        assert!(history["items"].is_array(), "{history}");
        let page = w.admin().raw(Method::GET, "/metrics").send().await.unwrap();
        assert_eq!(page.status(), 200);
        let text = page.text().await.unwrap();
        assert!(text.contains("atoll_"), "{text}");
        client.raw(Method::GET, "/metrics").send().await.map(|a| assert_eq!(a.status(), 403)).unwrap();
        let docs = reqwest::get(format!("{}/docs", client.base())).await.unwrap();
        assert_eq!(docs.status(), 200);
    });
}

#[test]
fn every_front_records_the_key_that_created_a_sandbox() {
    run_with(Options::debian(), async |w| {
        let owner = w.tenant("acme").await;
        let key = owner.post("/v1/keys", json!({ "name": "ci" })).await.ok();
        let ci = w.client(key["secret"].as_str().unwrap());
        let native = ci.create(json!({})).await;
        let send = async |path: &str, body: Value| {
            let request = ci.raw(Method::POST, path).header("x-api-key", ci.key()).json(&body);
            let answer =
                request.header("accept", "application/json, text/event-stream").send().await.unwrap();
            assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
            answer.json::<Value>().await.unwrap()
        };
        let e2b = send("/e2b/v2/sandboxes", json!({ "templateID": "base", "timeout": 300 })).await;
        let daytona = send("/daytona/api/sandbox", json!({ "name": "daytona" })).await;
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "shell", "arguments": { "command": "true" } } });
        let mcp = send("/mcp", call).await;
        let ids = [
            &json!(native),
            &e2b["sandboxID"],
            &daytona["id"],
            &mcp["result"]["structuredContent"]["sandbox"],
        ];
        let creator = json!({ "id": key["id"], "name": "ci" });
        for id in ids.map(|id| id.as_str().unwrap_or_else(|| panic!("{id}: {e2b} {daytona} {mcp}"))) {
            assert_eq!(owner.sandbox(id).await["created_by_key"], creator, "{id}");
        }
        owner.delete(&format!("/v1/keys/{}", key["id"].as_str().unwrap())).await.ok();
        assert_eq!(owner.sandbox(&native).await["created_by_key"], creator, "after the key is deleted");
        w.tenant("other")
            .await
            .get(&format!("/v1/sandboxes/{native}"))
            .await
            .refused(404, "sandbox_not_found");
    });
}
