//! How much may leave, what is told about it, and how a policy is found: limits, the log, `learn`, and the layers above.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::Ipv4Addr;

use atoll_tests::connection_probes::{
    ROOTS, came_to_nothing, egress_log, fetch, guarded, logged, reach, reach_in_turn, trust_the_internet,
    try_one,
};
use atoll_tests::internet::{EVIL, GOOD, GREETING, OTHER, SHARED, Say};
use atoll_tests::{Options, Value, World, json, run_with, until};
use reqwest::Method;

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

const LIMIT: u64 = 600_000;
const RATE: f64 = 600_000.0;

/// Bytes per second of one transfer. A short burst at the beginning is a kindness, not a leak, so of a download its first 300 ms
/// are left out; but where the reader itself stood still meanwhile, bytes that came before are read afterwards, and then the
/// whole transfer tells more.
const MEASURE: &str = r#"
import socket, ssl, sys, time, urllib.request
way, url, roots = sys.argv[1:4]
o = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=roots)))
size = 1_800_000
if way == "down":
    r = o.open(url + "/bytes/%d" % size, timeout=60)
    got, began, counted, start = 0, None, 0, time.time()
    while True:
        part = r.read(8192)
        if not part: break
        got += len(part)
        if began is None and time.time() - start > 0.3: began, counted = time.time(), got
    end = time.time()
    print(min(got / (end - start), (got - counted) / (end - (began or start))))
else:
    start = time.time()
    o.open(urllib.request.Request(url + "/sink", data=b"x" * size), timeout=60).read()
    print(size / (time.time() - start))
"#;

#[test]
fn rates_hold_within_a_fifth_both_ways_directly_and_through_the_gate() {
    run(async |w| {
        let client = &w.tenant("acme").await;
        let policy = json!({
            "mode": "custom", "allow_domains": ["good.test"], "allow_cidrs": [format!("{OTHER}/32")],
            "limits": { "up_bytes_per_s": LIMIT, "down_bytes_per_s": LIMIT },
        });
        let measure = async |id: &str, way: &str, url: &str| {
            let argv = json!(["python3", "-c", MEASURE, way, url, ROOTS]);
            let ran = client.exec(id, json!({ "argv": argv, "timeout_s": 110 })).await;
            ran.text().parse::<f64>().unwrap()
        };
        // A machine that stands still for a moment makes a transfer slower and never faster, so the best of a few counts; none of
        // them may be faster than the limit.
        let limited = async |id: &str, way: &str, url: &str| {
            let mut best = 0.0_f64;
            for _ in 0..3 {
                let rate = measure(id, way, url).await;
                assert!(rate < RATE * 1.2, "{way} {url}: {rate} of {RATE}");
                best = best.max(rate);
                if best > RATE * 0.8 {
                    break;
                }
            }
            best
        };
        let free = guarded(w, client, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        let control = measure(&free, "down", "https://good.test").await;
        assert!(control > RATE * 2.0, "the control: {control}");
        // Four sandboxes at once, each with its own limit.
        let direct = format!("http://{OTHER}");
        let ways =
            [("down", "https://good.test"), ("up", "https://good.test"), ("down", &direct), ("up", &direct)];
        let measured = ways.map(|(way, url)| {
            let (policy, limited) = (policy.clone(), &limited);
            async move {
                let id = guarded(w, client, policy).await;
                (way, url, limited(&id, way, url).await)
            }
        });
        let all = futures::future::join_all(measured).await;
        for (way, url, rate) in &all {
            assert!(*rate > RATE * 0.8, "{way} {url}: {rate} of {RATE}: {all:?}");
        }
        // A limit can be set and taken away while it runs.
        let id = guarded(w, client, policy).await;
        let path = format!("/v1/sandboxes/{id}");
        client
            .patch(&path, json!({ "network": { "mode": "custom", "allow_domains": ["good.test"] } }))
            .await
            .ok();
        let free = measure(&id, "down", "https://good.test").await;
        assert!(free > RATE * 2.0, "{free}");
    });
}

/// Opens connections one after the other, keeps them, and tells how many of them carried something.
const HOLD: &str = r#"
import socket, sys, time
target, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held, good = [], 0
for n in range(count):
    s = socket.socket(); s.settimeout(1.5)
    try:
        s.connect((target, port))
        s.sendall(b"GET /drip HTTP/1.1\r\nHost: good.test\r\n\r\n")
        if s.recv(100): good += 1
    except OSError: pass
    held.append(s)
print(good)
"#;

#[test]
fn connections_and_budgets_end_where_the_policy_says() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, json!({
            "mode": "custom", "allow_domains": ["good.test"], "allow_cidrs": [format!("{OTHER}/32")], "limits": { "connections": 6 },
        })).await;
        let resolved = try_one(&client, &id, json!({ "do": "dns", "name": "good.test" })).await;
        assert_eq!(resolved["addresses"], json!([GOOD]));
        for (target, port) in [(GOOD, 80), (OTHER, 7)] {
            let argv = json!(["python3", "-c", HOLD, target, port.to_string(), "12"]);
            // Those of the target before count for as long as they are closing; there are never more than the policy says.
            atoll_tests::until("most of them at once", async || {
                let held = client.exec(&id, json!({ "argv": argv, "timeout_s": 100 })).await;
                let held: u32 = held.text().parse().unwrap();
                assert!(held <= 6, "{target}: {held} of 12 at once, 6 allowed");
                (held >= 4).then_some(())
            })
            .await;
        }
        // When they are gone there is room again.
        atoll_tests::until("room again", async || {
            fetch(&client, &id, "http://good.test/").await.is_ok().then_some(())
        })
        .await;
        logged(&client, &id, json!({ "verdict": "refused", "rule": "limits: connections" })).await;
        // A budget per destination: about that much, then no more; others have their own.
        let budget = 1_000_000;
        let id = guarded(w, &client, json!({
            "mode": "custom", "allow_domains": ["good.test", "api.good.test"], "allow_cidrs": [format!("{OTHER}/32"), format!("{SHARED}/32")],
            "limits": { "bytes_per_destination": budget },
        })).await;
        let down = |url: String| json!({ "do": "url", "url": url, "keep": 1, "ca": ROOTS });
        for (url, other) in [
            ("https://good.test", "https://api.good.test".to_owned()),
            (&*format!("http://{OTHER}"), format!("http://{SHARED}")),
        ] {
            let tasks = json!([
                down(format!("{url}/bytes/700000")),
                down(format!("{url}/bytes/700000")),
                down(format!("{url}/x")),
                down(format!("{other}/bytes/700000"))
            ]);
            let results = reach_in_turn(&client, &id, tasks).await;
            assert_eq!(results[0]["bytes"], 700_000, "{url}: {}", results[0]);
            assert!(results[1]["bytes"].as_u64().is_none_or(|got| got < 700_000), "{url}: {}", results[1]);
            assert!(came_to_nothing(&results[2]), "{url}: {}", results[2]);
            assert_eq!(results[3]["bytes"], 700_000, "{other}: {}", results[3]);
        }
        logged(
            &client,
            &id,
            json!({ "verdict": "refused", "rule": "limits: bytes_per_destination", "name": "good.test" }),
        )
        .await;
        logged(
            &client,
            &id,
            json!({ "verdict": "refused", "rule": "limits: bytes_per_destination", "address": OTHER }),
        )
        .await;
        let passed: u64 = w.internet.packets(OTHER).values().map(|arrived| arrived.bytes).sum();
        assert!(passed < budget, "{passed} bytes went up, mostly acknowledgements");
    });
}

#[test]
fn every_decision_is_told_once_with_its_reason_and_the_log_outlives_the_server() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let other = w.tenant("other").await;
        let id = guarded(w, &client, json!({ "mode": "custom", "allow_domains": ["good.test"], "allow_cidrs": [format!("{OTHER}/32")] })).await;
        w.internet.says("good.test", Say::a([GOOD, Ipv4Addr::new(10, 1, 2, 3)]));
        let get = "GET / HTTP/1.0\r\nHost: evil.test\r\n\r\n";
        let tasks = json!([
            { "do": "url", "url": "https://good.test/", "ca": ROOTS },
            { "do": "tcp", "host": OTHER, "port": 7, "send": "hello", "half": true },
            { "do": "dns", "name": "evil.test" },
            { "do": "tcp", "host": GOOD, "port": 80, "send": get },
            { "do": "tls", "host": GOOD, "port": 443, "sni": "evil.test", "send": get },
            { "do": "tcp", "host": EVIL, "port": 80, "send": get },
            { "do": "udp", "host": EVIL, "port": 443 },
            { "do": "tcp", "host": "169.254.169.254", "port": 80, "send": get },
            { "do": "dns", "server": "8.8.8.8", "name": "evil.test" },
        ]);
        reach_in_turn(&client, &id, tasks).await;
        for fields in [
            json!({ "what": "dns", "verdict": "allowed", "name": "good.test" }),
            json!({ "what": "tls", "verdict": "allowed", "name": "good.test", "address": GOOD, "port": 443 }),
            json!({ "what": "flow", "verdict": "allowed", "address": OTHER, "port": 7, "protocol": "tcp" }),
            json!({ "what": "dns", "verdict": "refused", "name": "evil.test", "rule": "not in allow_domains" }),
            json!({ "what": "http", "verdict": "refused", "name": "evil.test", "address": GOOD }),
            json!({ "what": "tls", "verdict": "refused", "name": "evil.test", "address": GOOD }),
            json!({ "what": "flow", "verdict": "refused", "address": EVIL, "port": 80, "protocol": "tcp" }),
            json!({ "what": "flow", "verdict": "refused", "address": EVIL, "port": 443, "protocol": "udp" }),
            json!({ "what": "flow", "verdict": "refused", "address": "169.254.169.254", "port": 80 }),
            json!({ "what": "flow", "verdict": "refused", "address": "8.8.8.8", "port": 53, "protocol": "udp" }),
        ] {
            logged(&client, &id, fields).await;
        }
        let log = egress_log(&client, &id).await;
        assert!(
            log.iter().all(|record| record["rule"].as_str().is_some_and(|rule| !rule.is_empty())),
            "{log:?}"
        );
        let times: Vec<&str> = log.iter().map(|record| record["at"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "newest last: {times:?}");
        assert!(log.len() < 40, "one line per decision, not per packet: {log:#?}");
        // Filters, and whose it is.
        let refused = client.get(&format!("/v1/sandboxes/{id}/egress?verdict=refused&limit=2")).await.ok();
        let refused = refused["items"].as_array().unwrap().clone();
        assert!(
            refused.len() == 2 && refused.iter().all(|record| record["verdict"] == "refused"),
            "{refused:?}"
        );
        other.get(&format!("/v1/sandboxes/{id}/egress")).await.refused(404, "sandbox_not_found");
        other.get(&format!("/v1/sandboxes/{id}/egress/policy")).await.refused(404, "sandbox_not_found");
        // A crash loses nothing that was told.
        w.crash_server().await;
        let after = egress_log(&client, &id).await;
        assert!(log.iter().all(|record| after.contains(record)), "{log:#?}\nbecame\n{after:#?}");
        w.internet.unharmed("the log");
        // A flood of decisions is summed up, and says so rather than growing.
        let knock = "import socket\nfor n in range(4000):\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n    try: s.sendto(b'x', ('198.51.100.66', 1000 + n))\n    except OSError: pass\n    s.close()\n";
        client.exec(&id, json!({ "argv": ["python3", "-c", knock] })).await.text();
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let size: u64 = std::fs::read_dir(w.data().join("egress"))
            .unwrap()
            .flatten()
            .map(|e| e.metadata().unwrap().len())
            .sum();
        assert!(size < 10 << 20, "{size} bytes of log");
        client.get(&format!("/v1/sandboxes/{id}/egress?limit=10000")).await.ok();
        client.remove(&id).await;
        let left: Vec<_> = std::fs::read_dir(w.data().join("egress"))
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .filter(|name| name.to_string_lossy().contains(&id))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

/// Some work: names by TLS and HTTP, an address by two protocols.
fn work() -> Value {
    json!([
        { "do": "url", "url": "https://good.test/", "ca": ROOTS },
        { "do": "url", "url": "http://api.good.test/" },
        { "do": "tcp", "host": OTHER, "port": 7, "send": "hello", "half": true },
        { "do": "udp", "host": SHARED, "port": 443 },
    ])
}

#[test]
fn what_was_learned_is_the_smallest_policy_that_does_the_same_work() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, json!({ "mode": "allow-all", "learn": true })).await;
        for result in reach(&client, &id, work()).await {
            assert!(!came_to_nothing(&result), "{result}");
        }
        let learned = atoll_tests::until("all of it is learned", async || {
            let learned = client.get(&format!("/v1/sandboxes/{id}/egress/policy")).await.ok();
            let text = learned.to_string();
            [OTHER.to_string(), SHARED.to_string(), "good.test".into(), "api.good.test".into()]
                .iter()
                .all(|part| text.contains(part))
                .then_some(learned)
        })
        .await;
        assert_eq!(learned["mode"], "custom", "{learned}");
        assert_eq!(learned["allow_domains"].as_array().map(Vec::len), Some(2), "{learned}");
        assert_eq!(learned["allow_cidrs"].as_array().map(Vec::len), Some(2), "{learned}");
        // With it the same work passes, and nothing else.
        let strict = guarded(w, &client, learned.clone()).await;
        for result in reach(&client, &strict, work()).await {
            assert!(!came_to_nothing(&result), "{learned}: {result}");
        }
        w.internet.forget();
        assert!(fetch(&client, &strict, "http://other.test/").await.is_err());
        assert!(came_to_nothing(
            &try_one(&client, &strict, json!({ "do": "udp", "host": EVIL, "port": 443 })).await
        ));
        w.internet.unharmed("what was learned");
        // The same sandbox with what it taught.
        client.patch(&format!("/v1/sandboxes/{id}"), json!({ "network": learned })).await.ok();
        for result in reach(&client, &id, work()).await {
            assert!(!came_to_nothing(&result), "{result}");
        }
        assert!(fetch(&client, &id, "http://other.test/").await.is_err());
    });
}

#[test]
fn a_run_that_learns_leaves_the_policy_with_which_it_runs_again() {
    run(async |w| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("learned.json");
        let name = file.to_str().unwrap();
        let script = "import socket, urllib.request as u\n\
            o = u.build_opener(u.ProxyHandler({}))\n\
            try: socket.getaddrinfo('nowhere.test', 80)\n\
            except OSError: pass\n\
            print(len(o.open('http://good.test/', timeout=60).read()))";
        let atoll = async |options: &[&str]| {
            let mut command = w.command();
            command.arg("run").args(options).args(["--", "python3", "-c", script]);
            let output = w.output(command).await;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{options:?}: {said}");
            said
        };
        let said = atoll(&["--learn"]).await;
        assert!(said.contains("\"good.test\"") && said.contains("--network FILE"), "{said}");
        atoll(&["--learn", "--policy-out", name]).await;
        let learned: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(learned, json!({ "mode": "custom", "allow_domains": ["good.test"] }));
        atoll(&["--network", name]).await;
    });
}

#[test]
fn layers_only_narrow_and_private_ranges_need_the_operators_word() {
    let floor = tempfile::NamedTempFile::new().unwrap();
    let text = json!({ "mode": "allow-all", "deny_cidrs": [format!("{EVIL}/32")] }).to_string();
    std::fs::write(floor.path(), text).unwrap();
    let options = Options::debian()
        .env("ATOLL_EGRESS_PRIVATE", "named")
        .env("ATOLL_EGRESS_POLICY", floor.path().display().to_string());
    run_with(options, async |w| {
        let client = w.tenant("acme").await;
        let put = json!({ "mode": "custom", "allow_domains": ["*.good.test"], "allow_cidrs": ["198.51.100.0/24", "10.0.0.0/8"] });
        w.admin().send(Method::PUT, "/v1/tenants/acme/network", Some(&put)).await.ok();
        client.send(Method::PUT, "/v1/tenants/acme/network", Some(&put)).await.refused(403, "forbidden");
        let get = "GET / HTTP/1.0\r\nHost: x\r\n\r\n";
        let tcp = |host: &str| json!({ "do": "tcp", "host": host, "port": 80, "send": get });
        let all = json!([
            tcp(&OTHER.to_string()),
            tcp("10.1.2.3"),
            tcp(&EVIL.to_string()),
            tcp("203.0.113.1"),
            tcp("192.168.77.1"),
            tcp("169.254.169.254")
        ]);
        for (policy, expected) in [
            (json!("allow-all"), [true, false, false, false, false, false]),
            (
                json!({ "mode": "custom", "allow_cidrs": ["0.0.0.0/0", "10.1.2.0/24"] }),
                [true, true, false, false, false, false],
            ),
            (json!({ "mode": "custom", "allow_cidrs": ["203.0.113.0/24"] }), [false; 6]),
            (json!("deny-all"), [false; 6]),
        ] {
            let id = client.create(json!({ "network": policy.clone() })).await;
            trust_the_internet(&client, &id, w.internet.authority_pem()).await;
            let results = reach(&client, &id, all.clone()).await;
            let reached: Vec<bool> = results.iter().map(|result| !came_to_nothing(result)).collect();
            assert_eq!(reached, expected, "{policy}: {results:?}");
            client.remove(&id).await;
        }
        w.internet.untouched(EVIL, "the operator's word");
        w.internet.untouched(Ipv4Addr::new(169, 254, 169, 254), "the operator's word");
        // A name that leads to a private address is reached only where the range is named.
        w.internet.says("lan.good.test", Say::a([Ipv4Addr::new(10, 1, 2, 3)]));
        let named = client.create(json!({ "network": { "mode": "custom", "allow_domains": ["lan.good.test"], "allow_cidrs": ["10.1.2.3/32"] } })).await;
        assert_eq!(fetch(&client, &named, "http://lan.good.test/").await.as_deref(), Ok(GREETING));
        let unnamed = client
            .create(json!({ "network": { "mode": "custom", "allow_domains": ["lan.good.test"] } }))
            .await;
        assert!(fetch(&client, &unnamed, "http://lan.good.test/").await.is_err());
        // What the layer above says holds for sandboxes that run, both ways.
        let free = client.create(json!({ "network": "allow-all" })).await;
        let public = json!({ "do": "tcp", "host": "203.0.113.1", "port": 80, "send": get });
        assert!(came_to_nothing(&try_one(&client, &free, public.clone()).await));
        w.admin().send(Method::DELETE, "/v1/tenants/acme/network", None).await.ok();
        let wider = try_one(&client, &free, public.clone()).await;
        assert!(!came_to_nothing(&wider), "{wider}");
        w.admin().send(Method::PUT, "/v1/tenants/acme/network", Some(&put)).await.ok();
        assert!(came_to_nothing(&try_one(&client, &free, public).await));
        w.admin().send(Method::DELETE, "/v1/tenants/acme/network", None).await.ok();
    });
}

/// An address of the host within a private range, and what listens there.
async fn host_address(address: Ipv4Addr) -> tokio::net::TcpListener {
    atoll_tests::namespaces::ip(&format!("addr add {address}/32 dev lo"));
    let listener = tokio::net::TcpListener::bind((address, 8000)).await.unwrap();
    assert!(tokio::net::TcpStream::connect((address, 8000)).await.is_ok(), "the host itself is reached");
    listener
}

#[test]
fn private_ranges_that_a_list_names_are_the_first_tenants_and_the_floor_below_stays() {
    run(async |w| {
        let (first, other) = (w.first_tenant().await, w.tenant("acme").await);
        let own = Ipv4Addr::new(10, 9, 9, 9);
        let listener = host_address(own).await;
        let neighbour = first.create(json!({})).await;
        let far = first.sh(&neighbour, "hostname -I").await.text().trim().to_owned();
        let ranges = json!(["10.0.0.0/8", "172.16.0.0/12"]);
        let named = json!({ "mode": "custom", "allow_cidrs": ranges });
        let tcp = |host: &str, port: u16| json!({ "do": "tcp", "host": host, "port": port, "send": "GET / HTTP/1.0\r\nHost: x\r\n\r\n" });
        let tasks = json!([
            tcp("10.1.2.3", 80),
            tcp("172.20.0.9", 80),
            tcp("192.168.77.1", 80),
            tcp(&OTHER.to_string(), 80),
            tcp(&own.to_string(), 8000),
            tcp(&far, 49_983),
            tcp("169.254.169.254", 80),
            tcp("168.63.129.16", 80),
            tcp("100.100.100.200", 80),
        ]);
        let beside = json!({ "mode": "allow-all", "allow_cidrs": ranges });
        for (policy, public) in [(&named, false), (&beside, true)] {
            let id = first.create(json!({ "network": policy })).await;
            let results = reach(&first, &id, tasks.clone()).await;
            let reached: Vec<bool> = results.iter().map(|result| !came_to_nothing(result)).collect();
            assert_eq!(
                reached,
                [true, true, false, public, false, false, false, false, false],
                "{results:?}"
            );
            first.remove(&id).await;
        }
        // Names lead into the named ranges, and nowhere else: not to the host, not to metadata.
        w.internet.says("lan.good.test", Say::a([Ipv4Addr::new(10, 1, 2, 3)]));
        w.internet.says("host.good.test", Say::a([own]));
        w.internet.says("meta.good.test", Say::a([Ipv4Addr::new(169, 254, 169, 254)]));
        let by_name = json!({ "mode": "custom", "allow_domains": ["*.good.test"], "allow_cidrs": ranges });
        let id = first.create(json!({ "network": by_name })).await;
        assert_eq!(fetch(&first, &id, "http://lan.good.test/").await.as_deref(), Ok(GREETING));
        for name in ["host.good.test:8000", "meta.good.test"] {
            assert!(fetch(&first, &id, &format!("http://{name}/")).await.is_err(), "{name}");
        }
        for never in ["169.254.169.254", "168.63.129.16", "100.100.100.200", "192.168.77.1"] {
            w.internet.untouched(never.parse::<Ipv4Addr>().unwrap(), "beside a named private range");
        }
        // Only the test's own connection ever came to the host.
        assert!(listener.accept().await.is_ok());
        let more = tokio::time::timeout(std::time::Duration::from_millis(100), listener.accept()).await;
        assert!(more.is_err(), "a sandbox reached the host: {more:?}");
        drop(listener);
        atoll_tests::namespaces::ip(&format!("addr del {own}/32 dev lo"));
        // Another tenant is told which setting it is, and nothing is narrowed silently.
        let own_box = other.create(json!({})).await;
        let patch = format!("/v1/sandboxes/{own_box}");
        for policy in [&named, &beside, &by_name] {
            for answer in [
                other.post("/v1/sandboxes", json!({ "network": policy })).await,
                other.patch(&patch, json!({ "network": policy })).await,
            ] {
                let refused = answer.refused(400, "invalid_request");
                assert!(refused["hint"].as_str().unwrap().contains("--egress-private named"), "{refused}");
            }
        }
        w.admin()
            .send(Method::PUT, "/v1/tenants/acme/network", Some(&named))
            .await
            .refused(400, "invalid_request");
    });
}

#[test]
fn metrics_count_the_bytes_that_a_sandbox_receives_and_sends() {
    const SIZE: u64 = 2_000_000;
    run(async |w| {
        let client = &w.tenant("acme").await;
        let id = guarded(w, client, json!("allow-all")).await;
        let measured = async || {
            let sample = client.get(&format!("/v1/sandboxes/{id}/metrics")).await.ok();
            [&sample["received_bytes"], &sample["sent_bytes"]].map(|bytes| bytes.as_u64().unwrap())
        };
        let transfer = async |code: &str| {
            let code = format!("import urllib.request as u; u.urlopen({code}, timeout=60).read()");
            assert_eq!(
                client.exec(&id, json!({ "argv": ["python3", "-c", code], "timeout_s": 110 })).await.code,
                0
            );
        };
        let before = measured().await;
        transfer(&format!("'http://good.test/bytes/{SIZE}'")).await;
        let downloaded = measured().await;
        assert!(downloaded[0] - before[0] > SIZE, "{before:?} {downloaded:?}");
        assert!(downloaded[1] - before[1] < SIZE, "{before:?} {downloaded:?}");
        transfer(&format!("u.Request('http://good.test/sink', data=bytes({SIZE}))")).await;
        let uploaded = measured().await;
        assert!(uploaded[1] - downloaded[1] > SIZE, "{downloaded:?} {uploaded:?}");
        let samples = until("a sample with traffic is stored", async || {
            let history = client.get(&format!("/v1/sandboxes/{id}/metrics/history")).await.ok();
            let last = history["items"].as_array().unwrap().last().cloned()?;
            (last["received_bytes"].as_u64()? > SIZE && last["sent_bytes"].as_u64()? > SIZE).then_some(())
        });
        samples.await;
    });
}
