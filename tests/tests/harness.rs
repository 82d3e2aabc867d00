//! The harness itself: its internet answers and remembers, its oracle runs, its templates are there. Needs no server.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Duration;

use atoll_tests::internet::{
    DECOYS, EVIL, EVIL6, GOOD, GREETING, NAME, PUBLIC, RESOLVERS, Record, SHARED, Say, Twist,
};
use atoll_tests::{Value, json, namespaces, probe, runc, template};

#[test]
fn the_ground_reaches_its_internet_and_nothing_else() {
    namespaces::in_own_namespaces(|internet| {
        assert_eq!(internet.address.to_string(), PUBLIC);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for host in DECOYS.iter().chain([&PUBLIC, &NAME]) {
                let text = reqwest::get(format!("http://{host}/")).await.unwrap().text().await.unwrap();
                assert_eq!(text, GREETING, "{host}");
            }
            assert!(reqwest::get("http://no-such.example.test/").await.is_err());
        });
    });
}

#[test]
fn the_oracle_runs_the_probe() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let rootfs = template::shared("busybox").join("rootfs");
    let seen = runc::run(folder.path(), &rootfs, &["/bin/busybox", "echo", "inside"]);
    assert_eq!(seen, "inside\n");
    assert!(
        probe::compiled("surface").exists()
            && probe::compiled("hog").exists()
            && probe::compiled("flip").exists()
    );
}

/// Runs the probe on the host, where nothing is refused: the controls of all that the suites find refused inside.
fn reach(tasks: &Value) -> Vec<Value> {
    let probe = std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/probes/reach.py";
    let done = Command::new("python3").arg(probe).arg(tasks.to_string()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let results: Value =
        text.parse().unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&done.stderr)));
    results.as_array().unwrap().clone()
}

#[test]
fn every_door_of_the_internet_is_open_to_the_host_and_what_comes_is_remembered() {
    namespaces::in_own_namespaces(|internet| {
        internet.unharmed("before anything");
        let roots = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(roots.path(), internet.authority_pem()).unwrap();
        let get = "GET /echo HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n";
        let mut tasks = vec![
            json!({ "do": "url", "url": "https://good.test/", "ca": roots.path() }),
            json!({ "do": "tls", "host": EVIL, "port": 443, "sni": "evil.test", "ca": roots.path(), "send": get }),
            json!({ "do": "tls", "host": RESOLVERS[1], "port": 853, "sni": null, "send": get }),
            json!({ "do": "hello", "host": EVIL, "port": 443, "sni": "evil.test", "ech": true, "until": "\u{16}" }),
            json!({ "do": "hello", "host": EVIL, "port": 443, "sni": "evil.test", "split": 20, "until": "\u{16}" }),
            json!({ "do": "hello", "host": EVIL, "port": 443, "sni": "evil.test", "records": 60, "until": "\u{16}" }),
            json!({ "do": "tcp", "host": EVIL6, "port": 80, "send": get }),
            json!({ "do": "tcp", "host": EVIL, "port": 22, "send": "hello", "half": true }),
        ];
        tasks.extend(["udp", "dns"].map(|task| json!({ "do": task, "host": EVIL, "server": EVIL, "port": if task == "udp" { 443 } else { 53 }, "name": "evil.test" })));
        tasks.push(json!({ "do": "dns", "server": RESOLVERS[0], "tcp": true, "name": "evil.test" }));
        for (task, result) in tasks.iter().zip(reach(&json!(tasks))) {
            assert!(result.get("error").is_none() && result["bytes"] != 0, "{task}: {result}");
            assert_ne!(result["answered"], false, "{task}: {result}");
            assert_ne!(result["addresses"], json!([]), "{task}: {result}");
        }
        let (tcp, udp) = (6, 17);
        let came = internet.packets(EVIL);
        for door in [(tcp, 443), (tcp, 22), (udp, 443), (udp, 53)] {
            assert!(came.contains_key(&door), "{door:?} in {came:?}");
        }
        assert!(internet.packets(EVIL6.parse::<IpAddr>().unwrap()).contains_key(&(tcp, 80)));
        let tls = internet.requests_to(EVIL).into_iter().find(|request| request.tls).unwrap();
        assert_eq!(
            (tls.sni.as_deref(), &*tls.host(), tls.target()),
            (Some("evil.test"), "evil.test", "/echo")
        );
        assert!(
            internet.questions().iter().any(|asked| asked.tcp && asked.server == IpAddr::V4(RESOLVERS[0]))
        );
        internet.forget();
        internet.unharmed("after it forgot");
    });
}

#[test]
fn names_are_answered_as_the_script_says() {
    namespaces::in_own_namespaces(|internet| {
        internet.says_in_turn("turns.test", vec![Say::a([GOOD]).ttl(0), Say::a([EVIL])]);
        let alias = vec![
            Record::Cname("far.test".into()),
            Record::A(SHARED),
            Record::Stray("good.test".into(), EVIL),
        ];
        internet.says("alias.test", Say::records(alias));
        internet.says("*.wild.test", Say::records([Record::Txt("hello".into()), Record::A(GOOD)]));
        internet.says("late.test", Say::a([GOOD]).late(Duration::from_millis(300)));
        internet.says("cut.test", Say::a([GOOD]).twisted(Twist::Truncated));
        internet.says("silent.test", Say::a([GOOD]).twisted(Twist::Silence));
        let ask = |name: &str| json!({ "do": "dns", "server": PUBLIC, "name": name });
        let addresses = |result: &Value| result["addresses"].clone();
        let one = |name: &str| reach(&json!([ask(name)])).remove(0);
        assert_eq!(addresses(&one("turns.test")), json!([GOOD]));
        assert_eq!(addresses(&one("turns.test")), json!([EVIL]));
        assert_eq!(addresses(&one("alias.test")), json!([SHARED, EVIL]));
        let text = reach(&json!([{ "do": "dns", "server": PUBLIC, "name": "x.wild.test", "kind": "TXT" }]))
            .remove(0);
        assert_eq!(text["answers"][0]["data"], hex::encode(b"\x05hello"));
        assert!(one("late.test")["took"].as_f64().unwrap() >= 0.3);
        assert_eq!(one("cut.test")["truncated"], true);
        let silent = reach(&json!([{ "do": "dns", "server": PUBLIC, "name": "silent.test", "limit": 1 }]));
        assert!(silent[0]["error"].is_string(), "{silent:?}");
        assert_eq!(one("no-such.test")["rcode"], 3);
        let silent = internet.questions_with("silent");
        let expected: IpAddr = PUBLIC.parse::<Ipv4Addr>().unwrap().into();
        assert!(silent.len() == 1 && silent[0].server == expected && silent[0].kind == 1, "{silent:?}");
    });
}
