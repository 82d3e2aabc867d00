//! Egress of sandboxes through the engine: policy, log, adoption. The effect of each policy on packets is tested in
//! `network`.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{World, in_world, target};
use atoll_model::policy::egress::{Egress, TenantFloor, compile};
use atoll_model::{
    EgressRecord, EgressVerdict, EgressWhat, NetworkLimits, NetworkMode, NetworkPolicy, Storage,
};
use atoll_provider::support::*;
use atoll_provider::{Egressed, InstanceSpec, KnownSandbox, Provider};
use tokio::sync::broadcast::Receiver;

fn listed(allowed: &str) -> Arc<Egress> {
    let policy = NetworkPolicy {
        mode: NetworkMode::Custom,
        allow_cidrs: vec![allowed.parse().unwrap()],
        limits: NetworkLimits {
            up_bytes_per_s: Some(1 << 20),
            down_bytes_per_s: Some(1 << 20),
            connections: Some(9),
            bytes_per_destination: Some(1 << 20),
        },
        ..NetworkPolicy::default()
    };
    Arc::new(compile(&TenantFloor::default(), None, &policy, &[]))
}

/// The first record about an address, within some seconds.
async fn told(log: &mut Receiver<Egressed>, spec: &InstanceSpec, address: &str) -> EgressRecord {
    let wanted = Some(address.parse().unwrap());
    let find = async {
        loop {
            let one = log.recv().await.unwrap();
            if one.sandbox == spec.sandbox && one.record.address == wanted {
                return one.record;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), find).await.unwrap()
}

async fn try_to_reach(world: &World, spec: &InstanceSpec, booted: &atoll_provider::Booted, address: &str) {
    let line = format!("echo | timeout 2 nc -w 1 {address} 80 || true");
    world.sh(spec, booted, &line).await;
}

#[test]
fn decisions_are_told_and_follow_the_policy_through_changes_and_a_restart() {
    in_world(
        |config| config.pool = [("busybox".to_owned(), 1)].into(),
        |world| async {
            let begun = Instant::now();
            while world.engine.pool_stats().iter().any(|pool| pool.ready < pool.wanted) {
                assert!(begun.elapsed() < Duration::from_secs(60));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let mut log = world.engine.egress();
            let mut spec = world.spec();
            spec.network = listed("203.0.113.0/24");
            let booted = world.create(&spec).await;
            assert!(booted.from_pool);
            try_to_reach(&world, &spec, &booted, "198.51.100.1").await;
            let record = told(&mut log, &spec, "198.51.100.1").await;
            assert_eq!((record.what, record.verdict), (EgressWhat::Flow, EgressVerdict::Refused));
            assert_eq!((record.rule.as_str(), record.port), ("not in allow_cidrs", Some(80)));

            world.engine.set_network(&target(&spec), Arc::new(Egress::closed())).await.unwrap();
            try_to_reach(&world, &spec, &booted, "203.0.113.1").await;
            assert_eq!(told(&mut log, &spec, "203.0.113.1").await.rule, "deny-all");

            spec.network = listed("192.0.2.0/24");
            world.engine.set_network(&target(&spec), Arc::clone(&spec.network)).await.unwrap();
            drop(log);
            let world = world.reopen().await;
            let known = KnownSandbox {
                sandbox: spec.sandbox.clone(),
                instance: Some((spec.instance.clone(), booted.facts.clone())),
                storage: Storage::Disk,
                limits: spec.limits,
                network: Arc::clone(&spec.network),
                paused: false,
            };
            world.engine.adopt(vec![known], Vec::new()).await.unwrap();
            let mut log = world.engine.egress();
            try_to_reach(&world, &spec, &booted, "203.0.113.77").await;
            assert_eq!(told(&mut log, &spec, "203.0.113.77").await.rule, "not in allow_cidrs");
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn ranges_of_ipv6_come_with_an_address_and_go_with_it() {
    in_world(
        |_| {},
        |world| async {
            let spec = world.spec();
            let open = Arc::clone(&spec.network);
            let ipv6 = listed("2600::/16");
            assert!(!ipv6.direct6.is_empty());
            let has = async |spec: &InstanceSpec, booted: &atoll_provider::Booted| {
                let (_, said) = world.sh(spec, booted, "grep -c eth0 /proc/net/if_inet6 || true").await;
                said.trim().to_owned()
            };
            let booted = world.create(&spec).await;
            assert_eq!(has(&spec, &booted).await, "0");
            world.engine.set_network(&target(&spec), Arc::clone(&ipv6)).await.unwrap();
            assert_eq!(has(&spec, &booted).await, "1");
            let mut log = world.engine.egress();
            try_to_reach(&world, &spec, &booted, "2a00::77").await;
            assert_eq!(told(&mut log, &spec, "2a00::77").await.rule, "not in allow_cidrs");
            world.engine.set_network(&target(&spec), open).await.unwrap();
            assert_eq!(has(&spec, &booted).await, "0");
            world.destroy(&spec).await;
            let mut spec = world.spec();
            spec.network = ipv6;
            let booted = world.create(&spec).await;
            assert_eq!(has(&spec, &booted).await, "1");
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_policy_changes_within_milliseconds() {
    in_world(
        |_| {},
        |world| async {
            let spec = world.spec();
            world.create(&spec).await;
            let mut took = Vec::new();
            for n in 0..41 {
                let egress = listed(if n % 2 == 0 { "203.0.113.0/24" } else { "192.0.2.0/24" });
                let begun = Instant::now();
                world.engine.set_network(&target(&spec), egress).await.unwrap();
                took.push(begun.elapsed());
            }
            took.sort();
            // The bar is ten, on a quiet machine; a program that is started for it would take longer than this.
            assert!(took[20] < Duration::from_millis(10), "median {:?}, worst {:?}", took[20], took[40]);
            world.destroy(&spec).await;
            world
        },
    );
}
