//! Random policies on one running sandbox, each compared with what the pure code says of it: address by address over UDP,
//! name by name over HTTP. The kernel, the gate and the model must mean the same. The dice are told when something differs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_model::NetworkPolicy;
use atoll_model::policy::egress::{self, DirectMode, Egress, NameVerdict, TenantFloor};
use atoll_tests::connection_probes::{guarded, reach};
use atoll_tests::internet::{DECOYS, EVIL, GOOD, GREETING, OTHER, PUBLIC, RESOLVERS, SHARED, Say};
use atoll_tests::{Options, Value, json, run_with};

/// LIMIT: some ten seconds; each run has other dice.
const ROUNDS: usize = 16;
const CIDRS: [&str; 14] = [
    "0.0.0.0/0",
    "0.0.0.0/1",
    "128.0.0.0/1",
    "198.51.100.0/24",
    "198.51.100.0/27",
    "198.51.100.64/26",
    "198.51.100.10/32",
    "198.51.100.20/31",
    "198.51.100.66/32",
    "203.0.113.0/24",
    "8.0.0.0/6",
    "1.1.1.1/32",
    "160.0.0.0/3",
    "192.0.0.0/2",
];
const PATTERNS: [&str; 7] =
    ["*", "good.test", "*.good.test", "*.deep.good.test", "other.test", "evil.test", "a.deep.good.test"];
const NAMES: [(&str, Ipv4Addr); 5] = [
    ("good.test", GOOD),
    ("api.good.test", SHARED),
    ("a.deep.good.test", OTHER),
    ("other.test", OTHER),
    ("evil.test", EVIL),
];

/// Small and good enough: xorshift.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % count
    }

    fn some(&mut self, of: &[&str], most: usize) -> Vec<String> {
        (0..self.below(most + 1)).map(|_| of[self.below(of.len())].to_owned()).collect()
    }

    fn policy(&mut self) -> Value {
        let deny = self.some(&CIDRS[3..], 2);
        match self.below(8) {
            0 => json!("deny-all"),
            1 => json!({ "mode": "allow-all", "deny_cidrs": deny }),
            _ => {
                let (cidrs, names) = (self.some(&CIDRS, 3), self.some(&PATTERNS, 3));
                json!({ "mode": "custom", "allow_cidrs": cidrs, "deny_cidrs": deny, "allow_domains": names })
            }
        }
    }
}

/// Whether a packet to an address leaves, by the model.
fn leaves(egress: &Egress, address: Ipv4Addr) -> bool {
    let is_shut = egress.judge_address(address.into()).is_err();
    match egress.direct_mode {
        DirectMode::Closed => false,
        DirectMode::Open => !is_shut,
        DirectMode::Listed => egress.direct.contains(address.into()) && !is_shut,
    }
}

/// Whether a name is fetched over HTTP, by the model: asked for, and its address reached by name or directly.
fn is_fetched(egress: &Egress, name: &str, address: Ipv4Addr) -> bool {
    if egress.judge_address(address.into()).is_err() {
        return false;
    }
    match egress.dns {
        egress::Dns::Closed => false,
        egress::Dns::Free => leaves(egress, address),
        egress::Dns::Gated => !matches!(egress.judge(name), NameVerdict::Refused { .. }),
    }
}

#[test]
fn kernel_gate_and_model_agree_about_random_policies() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let seed = std::env::var("EGRESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::try_from(now & u128::from(u64::MAX)).unwrap() | 1);
    run_with(Options::debian(), async move |w| {
        let client = w.tenant("acme").await;
        for (name, address) in NAMES {
            w.internet.says(name, Say::a([address]));
        }
        let mut addresses: Vec<Ipv4Addr> = DECOYS.iter().map(|decoy| decoy.parse().unwrap()).collect();
        addresses.extend([GOOD, OTHER, SHARED, EVIL, RESOLVERS[0], RESOLVERS[1], PUBLIC.parse().unwrap()]);
        let mut dice = Dice(seed);
        let id = guarded(w, &client, json!("allow-all")).await;
        for round in 0..ROUNDS {
            let policy = dice.policy();
            let told = format!("EGRESS_SEED={seed}, round {round}: {policy}");
            let changed =
                client.patch(&format!("/v1/sandboxes/{id}"), json!({ "network": policy.clone() })).await;
            assert_eq!(changed.status, 200, "{told}: {changed}");
            let parsed: NetworkPolicy = serde_json::from_value(policy).unwrap();
            let egress = egress::compile(&TenantFloor::default(), None, &parsed, &[]);
            // Names come after addresses: what a name opened takes no datagrams.
            let by_address: Vec<Value> =
                addresses.iter().map(|address| json!({ "do": "udp", "host": address, "port": 7 })).collect();
            let results = reach(&client, &id, json!(by_address)).await;
            for (address, result) in addresses.iter().zip(results) {
                let is_named = NAMES.iter().any(|(name, of)| of == address && is_fetched(&egress, name, *of));
                let answered = result["got"] == "hi";
                // A fresh answer of a round before may still close a direct way to datagrams.
                let expected = leaves(&egress, *address);
                assert!(
                    answered == expected || (expected && is_named && egress.needs_gate()),
                    "{told}: {address}: expected {expected}: {result}"
                );
            }
            let by_name: Vec<Value> = NAMES
                .iter()
                .map(|(name, _)| json!({ "do": "url", "url": format!("http://{name}/") }))
                .collect();
            let results = reach(&client, &id, json!(by_name)).await;
            for ((name, address), result) in NAMES.iter().zip(results) {
                let expected = is_fetched(&egress, name, *address);
                assert_eq!(result["body"] == GREETING, expected, "{told}: {name}: {result}");
            }
        }
        for decoy in DECOYS {
            w.internet.untouched(decoy.parse::<Ipv4Addr>().unwrap(), "random policies");
        }
    });
}
