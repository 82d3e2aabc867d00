//! Names hold against an adversary inside (N02): rebinding, aliases, other names in TLS and HTTP, hidden requests, other ways out.
//!
//! Every door that is found shut here stands open to a sandbox without a policy: the controls come first. The evil server,
//! the metadata service and the private hosts count every packet.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use atoll_tests::connection_probes::{
    ROOTS, came_to_nothing, fetch, guarded, logged, reach, reach_in_turn, try_one,
};
use atoll_tests::internet::{
    EVIL, EVIL6, GOOD, GREETING, Internet, OTHER, RESOLVERS, Record, SHARED, Say, Twist,
};
use atoll_tests::{Client, Options, Value, World, json, namespaces, run_with};

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

fn policy() -> Value {
    json!({ "mode": "custom", "allow_domains": ["good.test", "*.good.test"] })
}

/// Asks for a name inside; the addresses that came.
async fn resolve(client: &Client, id: &str, name: &str) -> Value {
    try_one(client, id, json!({ "do": "dns", "name": name })).await["addresses"].clone()
}

/// Everything that any server was asked for names only what the policy allows.
fn only_good_names(internet: &Internet, after: &str) {
    for request in internet.requests() {
        let host = request.host();
        let is_good = host == "good.test" || host.ends_with(".good.test");
        let is_hidden = request.line.contains("smuggled") || !request.line.contains(" /");
        assert!(is_good && !is_hidden, "{after}: {request:?}");
        assert!(request.sni.as_deref().is_none_or(|sni| sni.ends_with("good.test")), "{after}: {request:?}");
    }
}

#[test]
fn n02_allowed_names_are_reached_and_others_are_not_even_asked_for() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, policy()).await;
        for url in ["http://good.test/", "https://good.test/", "https://api.good.test/x", "http://GOOD.test/"]
        {
            assert_eq!(fetch(&client, &id, url).await.as_deref(), Ok(GREETING), "{url}");
        }
        let curl = format!("curl -sS --cacert {ROOTS} https://good.test/ http://api.good.test/");
        assert_eq!(client.sh(&id, &curl).await.text(), GREETING.repeat(2));
        for url in ["http://other.test/", "https://evil.test/", "http://good.test.evil.test/", "http://test/"]
        {
            let refused = fetch(&client, &id, url).await;
            assert!(refused.is_err(), "{url}: {refused:?}");
        }
        let asked = w.internet.questions();
        let leaked: Vec<_> = asked.iter().filter(|asked| !asked.name.ends_with("good.test")).collect();
        assert!(leaked.is_empty(), "asked for in vain: {leaked:?}");
        w.internet.untouched(OTHER, "a name that is not allowed");
        w.internet.unharmed("names that are not allowed");
        only_good_names(&w.internet, "plain work");
        // Each decision is told.
        logged(&client, &id, json!({ "what": "dns", "verdict": "allowed", "name": "good.test" })).await;
        logged(&client, &id, json!({ "what": "dns", "verdict": "refused", "name": "other.test" })).await;
        let tls =
            json!({ "what": "tls", "verdict": "allowed", "name": "good.test", "address": GOOD, "port": 443 });
        let tls = logged(&client, &id, tls).await;
        assert!(tls["sent"].as_u64() > Some(100) && tls["received"].as_u64() > Some(100), "{tls}");
        assert_eq!(tls["rule"], "allow_domains: good.test");
        logged(&client, &id, json!({ "what": "http", "verdict": "allowed", "name": "api.good.test" })).await;
    });
}

/// Ways to an address that no name opened: every protocol, the usual ports and odd ones.
fn ways_to(address: Ipv4Addr) -> Vec<Value> {
    let get = "GET / HTTP/1.0\r\nHost: good.test\r\n\r\n";
    let mut ways = vec![
        json!({ "do": "tls", "host": address, "port": 443, "sni": "good.test", "send": get }),
        json!({ "do": "tls", "host": address, "port": 4443, "sni": "good.test", "send": get }),
        json!({ "do": "dns", "server": address, "name": "good.test" }),
        json!({ "do": "dns", "server": address, "name": "good.test", "tcp": true }),
        json!({ "do": "tcp", "host": address, "port": 22, "send": "hello", "half": true }),
    ];
    ways.extend(
        [80, 8080, 8443, 3128, 2375]
            .map(|port| json!({ "do": "tcp", "host": address, "port": port, "send": get })),
    );
    ways.extend([7, 443, 123, 51820].map(|port| json!({ "do": "udp", "host": address, "port": port })));
    ways
}

#[test]
fn n02_an_address_by_itself_opens_no_door_whatever_the_protocol() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let open = guarded(w, &client, json!("allow-all")).await;
        for (way, result) in ways_to(EVIL).iter().zip(reach(&client, &open, json!(ways_to(EVIL))).await) {
            assert!(!came_to_nothing(&result), "the control: {way}: {result}");
        }
        // What another sandbox was answered opens nothing for this one.
        let friend = guarded(w, &client, policy()).await;
        assert_eq!(fetch(&client, &friend, "https://good.test/").await.as_deref(), Ok(GREETING));
        w.internet.forget();
        let id = guarded(w, &client, policy()).await;
        let mut ways = ways_to(EVIL);
        ways.extend(ways_to(GOOD));
        ways.extend(ways_to(RESOLVERS[1]));
        ways.push(json!({ "do": "tcp", "host": EVIL6, "port": 80, "send": "GET / HTTP/1.0\r\n\r\n" }));
        ways.push(json!({ "do": "udp", "host": EVIL6, "port": 443 }));
        ways.push(json!({ "do": "tcp", "host": format!("::ffff:{EVIL}"), "port": 80, "send": "GET / HTTP/1.0\r\n\r\n" }));
        for (way, result) in ways.iter().zip(reach(&client, &id, json!(ways)).await) {
            assert!(came_to_nothing(&result), "{way}: {result}");
            assert!(result["took"].as_f64().unwrap() < 8.0, "told, not left waiting: {way}: {result}");
        }
        for address in [EVIL, GOOD, RESOLVERS[1]] {
            w.internet.untouched(address, "addresses without a name");
        }
        w.internet.unharmed("addresses without a name");
        // One that a name did open takes TLS and HTTP for that name, and nothing else.
        assert_eq!(resolve(&client, &id, "good.test").await, json!([GOOD]));
        let ways: Vec<Value> = ways_to(GOOD)
            .into_iter()
            .filter(|way| ["udp", "dns"].contains(&way["do"].as_str().unwrap()) || way["port"] == 22)
            .collect();
        for (way, result) in ways.iter().zip(reach(&client, &id, json!(ways)).await) {
            assert!(came_to_nothing(&result), "{way}: {result}");
        }
        let came = w.internet.packets(GOOD);
        assert!(came.is_empty(), "QUIC, DNS and ssh to an allowed name: {came:?}");
        assert_eq!(fetch(&client, &id, "https://good.test/").await.as_deref(), Ok(GREETING));
        logged(
            &client,
            &id,
            json!({ "what": "flow", "verdict": "refused", "address": EVIL, "port": 443, "protocol": "udp" }),
        )
        .await;
        logged(
            &client,
            &id,
            json!({ "what": "flow", "verdict": "refused", "address": EVIL, "port": 22, "protocol": "tcp" }),
        )
        .await;
    });
}

/// A listener on the host's own address that must receive no connection.
async fn host_listener() -> Arc<AtomicUsize> {
    let visits = Arc::new(AtomicUsize::new(0));
    let listener = tokio::net::TcpListener::bind((namespaces::HOST_ADDRESS, 80)).await.unwrap();
    let count = visits.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    visits
}

#[test]
fn n02_a_name_never_leads_to_private_metadata_host_or_neighbour() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let neighbour = guarded(w, &other, json!("allow-all")).await;
        let own = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('8.8.8.8', 9)); print(s.getsockname()[0])";
        let address =
            other.exec(&neighbour, json!({ "argv": ["python3", "-c", own] })).await.text().to_owned();
        let serve = "exec python3 -u -m http.server 80 > /tmp/visits 2>&1";
        let serve = json!({ "argv": ["/bin/sh", "-c", serve], "user": "root", "detach": true });
        other.try_exec(&neighbour, serve).await.ok();
        let visits = host_listener().await;
        let id = guarded(w, &client, policy()).await;
        // First public, then private: the classical rebinding, without a life time.
        let private = Ipv4Addr::new(10, 1, 2, 3);
        let metadata = Ipv4Addr::new(169, 254, 169, 254);
        w.internet.says_in_turn("re.good.test", vec![Say::a([GOOD]).ttl(0), Say::a([private]).ttl(0)]);
        assert_eq!(fetch(&client, &id, "http://re.good.test/").await.as_deref(), Ok(GREETING));
        let again = try_one(&client, &id, json!({ "do": "dns", "name": "re.good.test" })).await;
        assert_eq!((again["addresses"].clone(), again["rcode"].clone()), (json!([]), json!(5)), "{again}");
        logged(
            &client,
            &id,
            json!({ "what": "dns", "verdict": "refused", "name": "re.good.test", "rule": "never: private" }),
        )
        .await;
        // Aliases, strays, lies and crowds.
        let cname = |to: Ipv4Addr| Say::records([Record::Cname("inner.evil.test".into()), Record::A(to)]);
        w.internet.says("alias.good.test", cname(metadata));
        w.internet.says("mixed.good.test", Say::a([private, GOOD, metadata, Ipv4Addr::LOCALHOST]));
        w.internet
            .says("stray.good.test", Say::records([Record::Stray("x.test".into(), EVIL), Record::A(GOOD)]));
        w.internet.says("id.good.test", Say::a([GOOD]).twisted(Twist::WrongId(EVIL)));
        w.internet.says("question.good.test", Say::a([GOOD]).twisted(Twist::OtherQuestion(EVIL)));
        w.internet.says("garbage.good.test", Say::a([GOOD]).twisted(Twist::Garbage));
        w.internet.says("crowd.good.test", Say::a((1..=250).map(|n| Ipv4Addr::new(198, 51, 101, n))));
        for (name, expected) in [
            ("alias.good.test", json!([])),
            ("mixed.good.test", json!([GOOD])),
            ("stray.good.test", json!([GOOD])),
            ("id.good.test", json!([GOOD])),
            ("question.good.test", json!([GOOD])),
        ] {
            assert_eq!(resolve(&client, &id, name).await, expected, "{name}");
        }
        let garbage = try_one(&client, &id, json!({ "do": "dns", "name": "garbage.good.test" })).await;
        assert!(garbage["addresses"] == json!([GOOD]) || garbage["rcode"] == 2, "{garbage}");
        let crowd =
            try_one(&client, &id, json!({ "do": "dns", "name": "crowd.good.test", "tcp": true })).await;
        assert!(crowd["addresses"].as_array().is_some_and(|all| all.len() <= 250), "{crowd}");
        // Every unreachable address, behind a name that every sandbox may resolve.
        let neighbour_address: Ipv4Addr = address.parse().unwrap();
        let mut tasks = Vec::new();
        for (n, bad) in [private, metadata, Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 168, 77, 1)]
            .into_iter()
            .chain([Ipv4Addr::new(172, 20, 0, 9), Ipv4Addr::new(100, 100, 100, 200), neighbour_address])
            .chain([Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED, namespaces::HOST_ADDRESS.parse().unwrap()])
            .enumerate()
        {
            w.internet.says(&format!("n{n}.good.test"), Say::a([bad]).ttl(0));
            tasks.push(json!({ "do": "url", "url": format!("http://n{n}.good.test/") }));
            tasks.push(json!({ "do": "tcp", "host": bad, "port": 80, "send": format!("GET / HTTP/1.0\r\nHost: n{n}.good.test\r\n\r\n") }));
        }
        for (task, result) in tasks.iter().zip(reach_in_turn(&client, &id, json!(tasks)).await) {
            let is_own = task["host"] == "127.0.0.1" || task["host"] == "0.0.0.0";
            let got = result["got"].as_str().unwrap_or_default();
            let is_told =
                result["status"].as_u64() >= Some(400) || got.contains(" 502 ") || got.contains(" 403 ");
            assert!(came_to_nothing(&result) || is_told || is_own, "{task}: {result}");
            assert!(!result.to_string().contains(GREETING), "{task}: {result}");
        }
        assert_eq!(visits.load(Ordering::Relaxed), 0, "the host was visited");
        w.internet.unharmed("names that lead to private places");
        assert_eq!(fetch(&client, &id, "http://mixed.good.test/").await.as_deref(), Ok(GREETING));
        let own = try_one(&other, &neighbour, json!({ "do": "url", "url": "http://127.0.0.1/own" })).await;
        assert_eq!(own["status"], 404, "the control: {own}");
        let visits = other.sh(&neighbour, "cat /tmp/visits").await.stdout;
        assert!(visits.matches("GET ").count() == 1 && visits.contains("/own"), "{visits}");
    });
}

#[test]
fn n02_the_name_in_tls_is_the_one_that_was_asked_for() {
    run(async |w| {
        let client = w.tenant("acme").await;
        w.internet.says("one.good.test", Say::a([OTHER]));
        w.internet.says("cdn.good.test", Say::a([SHARED]));
        let id = guarded(w, &client, policy()).await;
        for (name, address) in [("good.test", GOOD), ("one.good.test", OTHER), ("cdn.good.test", SHARED)] {
            assert_eq!(resolve(&client, &id, name).await, json!([address]));
        }
        let get = "GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n";
        let tls = |to: Ipv4Addr, sni: Value| json!({ "do": "tls", "host": to, "port": 443, "sni": sni, "send": get });
        let hello = |to: Ipv4Addr, sni: &str, more: Value| {
            let mut task = json!({ "do": "hello", "host": to, "port": 443, "sni": sni, "quiet": 1 });
            task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            task
        };
        // The controls: as they should be, also in pieces and in capitals.
        let fine = [
            tls(GOOD, json!("good.test")),
            tls(GOOD, json!("GOOD.test")),
            hello(GOOD, "good.test", json!({ "quiet": 10, "until": "\u{16}" })),
            hello(GOOD, "good.test", json!({ "quiet": 10, "until": "\u{16}", "split": 30 })),
        ];
        for (task, result) in fine.iter().zip(reach(&client, &id, json!(fine)).await) {
            assert!(!came_to_nothing(&result) && result["answered"] != false, "{task}: {result}");
        }
        w.internet.forget();
        let attacks = [
            tls(GOOD, json!("evil.test")),
            tls(SHARED, json!("evil.test")),
            tls(OTHER, json!("good.test")),
            tls(GOOD, json!("one.good.test")),
            tls(GOOD, json!("never-asked.good.test")),
            tls(GOOD, Value::Null),
            tls(GOOD, json!("198.51.100.10")),
            tls(GOOD, json!("good.test.evil.test")),
            hello(GOOD, "good.test", json!({ "ech": true })),
            hello(SHARED, "evil.test", json!({ "split": 9 })),
            hello(SHARED, "evil.test", json!({ "split": 1 })),
            hello(SHARED, "evil.test", json!({ "records": 40 })),
            hello(SHARED, "evil.test", json!({ "records": 1 })),
            hello(GOOD, "good.test", json!({ "sni_bytes": "good\u{0}test" })),
            hello(GOOD, "good.test", json!({ "sni_bytes": "good test" })),
        ];
        for (task, result) in attacks.iter().zip(reach(&client, &id, json!(attacks)).await) {
            let is_told = result["got"].as_str().is_some_and(|got| got.starts_with('\u{15}'));
            assert!(came_to_nothing(&result) || is_told, "{task}: {result}");
        }
        // Other ports make no difference, and what is neither TLS nor HTTP does not pass.
        let odd = json!([
            { "do": "tls", "host": SHARED, "port": 4443, "sni": "evil.test", "send": get },
            { "do": "tls", "host": SHARED, "port": 853, "sni": "evil.test", "send": get },
            { "do": "tcp", "host": GOOD, "port": 443, "send": "SSH-2.0-evil\r\n", "quiet": 1 },
            { "do": "tcp", "host": GOOD, "port": 25, "send": "EHLO evil\r\n", "quiet": 1 },
            { "do": "tcp", "host": GOOD, "port": 7, "send": "hex:0102030405060708", "quiet": 1 },
            { "do": "tcp", "host": GOOD, "port": 443, "send": "hex:1603010005", "quiet": 1 },
        ]);
        for (task, result) in odd.as_array().unwrap().iter().zip(reach(&client, &id, odd.clone()).await) {
            let got = result["got"].as_str().unwrap_or_default();
            assert!(
                !got.contains(GREETING) && !got.contains("EHLO") && !got.contains('\u{2}'),
                "{task}: {result}"
            );
        }
        for address in [GOOD, OTHER, SHARED] {
            w.internet.untouched(address, "names that are not the address's");
        }
        w.internet.unharmed("names that are not the address's");
        logged(
            &client,
            &id,
            json!({ "what": "tls", "verdict": "refused", "name": "evil.test", "address": SHARED }),
        )
        .await;
        logged(
            &client,
            &id,
            json!({ "what": "tls", "verdict": "refused", "name": "good.test", "address": OTHER }),
        )
        .await;
        // Slow answers and dead ones hold nobody else up. Each takes a second and a half, one after the other far longer than
        // the bound.
        w.internet.says("late.good.test", Say::a([GOOD]).late(Duration::from_secs(7)));
        w.internet.says("silent.good.test", Say::a([GOOD]).twisted(Twist::Silence));
        let dead = ["silent.good.test", "late.good.test"].into_iter().cycle().take(8);
        let mut tasks: Vec<Value> = dead.map(|name| json!({ "do": "dns", "name": name })).collect();
        tasks.push(json!({ "do": "url", "url": "http://good.test/" }));
        let mut results = reach(&client, &id, json!(tasks)).await;
        let good = results.pop().unwrap();
        assert!(good["body"] == GREETING && good["took"].as_f64() < Some(6.0), "{good}");
        for result in results {
            assert_eq!(result["addresses"].as_array().map_or(0, Vec::len), 0, "{result}");
        }
    });
}

/// A raw request to the good server's port 80, all at once or in parts.
fn sent(parts: &[&str]) -> Value {
    json!({ "do": "tcp", "host": GOOD, "port": 80, "send": parts, "quiet": 1.0 })
}

/// As [`sent`], which must be answered with a last text.
fn answered(parts: &[&str], until: &str) -> Value {
    json!({ "do": "tcp", "host": GOOD, "port": 80, "send": parts, "until": until })
}

#[test]
fn n02_every_request_of_a_connection_names_an_allowed_host_and_hides_no_other() {
    run(async |w| {
        let client = w.tenant("acme").await;
        w.internet.says("cdn.good.test", Say::a([SHARED]));
        let id = guarded(w, &client, policy()).await;
        assert_eq!(resolve(&client, &id, "good.test").await, json!([GOOD]));
        assert_eq!(resolve(&client, &id, "cdn.good.test").await, json!([SHARED]));
        let good = "GET /fine HTTP/1.1\r\nHost: good.test\r\n\r\n";
        let last = "GET /last HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n";
        let evil = "GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n";
        // The controls: one, several behind each other, a body with a length and one in chunks, an upgrade.
        let post = "POST /body HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\n\r\nhello";
        let chunks = "POST /chunks HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        // The last one ends the connection.
        let whole = json!({ "do": "tcp", "host": GOOD, "port": 80, "send": [good, post, chunks, last] });
        let kept = try_one(&client, &id, whole).await;
        assert_eq!(kept["got"].as_str().unwrap().matches(GREETING).count(), 4, "{kept}");
        let socket = "GET /socket HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        let upgraded = try_one(&client, &id, answered(&[socket, "frames"], "frames")).await;
        assert!(
            upgraded["got"].as_str().unwrap().contains(" 101 ")
                && upgraded["got"].as_str().unwrap().ends_with("frames"),
            "{upgraded}"
        );
        let bodies: Vec<_> =
            w.internet.requests_to(GOOD).into_iter().filter(|r| r.body == b"hello").collect();
        assert_eq!(bodies.len(), 2, "{bodies:?}");
        w.internet.forget();
        let hidden = |head: &str, body: &str| {
            format!("POST /outer HTTP/1.1\r\nHost: good.test\r\n{head}\r\n\r\n{body}{evil}")
        };
        let mut attacks = vec![
            sent(&[evil]),
            sent(&[good, evil]),
            sent(&[&format!("{good}{evil}")]),
            sent(&["GET /smuggled HTTP/1.0\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\r\nHost: good.test, evil.test\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\r\nHost: good.test@evil.test\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\r\nHost: 198.51.100.10\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\r\nHost: evil.test:good.test\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\r\nHost: good.test\r\n evil.test\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\r\nHost : evil.test\r\nHost: good.test\r\n\r\n"]),
            sent(&["GET http://evil.test/smuggled HTTP/1.1\r\nHost: good.test\r\n\r\n"]),
            sent(&["GET http://evil.test/smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n"]),
            sent(&["CONNECT evil.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n", "inside"]),
            sent(&["CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n", "inside"]),
            sent(&[
                "GET /fine HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            ]),
            sent(&["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]),
            sent(&["GET /smuggled HTTP/1.1\nHost: evil.test\n\n"]),
            sent(&["GET /smuggled\r\n\r\n"]),
            sent(&["\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n"]),
            sent(&[&hidden("Content-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\n")]),
            sent(&[&hidden("Transfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n")]),
            sent(&[&hidden("Content-Length: 0\r\nContent-Length: 60", "")]),
            sent(&[&hidden("Transfer-Encoding: xchunked", "0\r\n\r\n")]),
            sent(&[&hidden("Transfer-Encoding:\u{b}chunked", "0\r\n\r\n")]),
            sent(&[&hidden("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "0\r\n\r\n")]),
            sent(&[&hidden("Transfer-Encoding: chunked", "0;\n\r\n\r\n")]),
            sent(&[&hidden("Content-Length: +0", "")]),
            sent(&[&hidden("X: a\r\n\tb\r\nContent-Length: 0", "")]),
        ];
        attacks.push(json!({ "do": "tcp", "host": SHARED, "port": 80, "send": evil, "quiet": 1.0 }));
        attacks.push(json!({ "do": "tcp", "host": SHARED, "port": 80, "send": last, "quiet": 1.0 }));
        attacks.push(json!({ "do": "tcp", "host": SHARED, "port": 8080, "send": evil, "quiet": 1.0 }));
        attacks.push(json!({ "do": "tcp", "host": GOOD, "port": 3128, "send": ["CONNECT evil.test:80 HTTP/1.1\r\nHost: good.test\r\n\r\n", evil], "quiet": 1.0 }));
        let results = reach(&client, &id, json!(attacks)).await;
        only_good_names(&w.internet, "hidden requests");
        for (task, result) in attacks.iter().zip(&results) {
            let got = result["got"].as_str().unwrap_or_default();
            let allowed = usize::from(task["send"].to_string().contains("/fine"))
                + usize::from(task["send"].to_string().contains("/outer"));
            assert!(got.matches(GREETING).count() <= allowed, "{task}: {result}");
            assert!(!got.contains(" 101 ") && !got.contains("inside"), "{task}: {result}");
        }
        w.internet.untouched(SHARED, "a host that is not the address's");
        w.internet.unharmed("hidden requests");
        logged(
            &client,
            &id,
            json!({ "what": "http", "verdict": "refused", "name": "evil.test", "address": SHARED }),
        )
        .await;
        // And it still works for who behaves.
        assert_eq!(fetch(&client, &id, "http://good.test/").await.as_deref(), Ok(GREETING));
    });
}
