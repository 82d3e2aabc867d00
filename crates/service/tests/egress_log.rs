//! The egress log: stored, limited, read, followed, learned from; removed with its sandbox.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use crate::world::World;
use atoll_model::{
    Code, EgressRecord, EgressVerdict, EgressWhat, NetworkLimits, NetworkMode, NetworkPolicy, SandboxId,
    UpdateSandbox,
};
use atoll_service::EgressQuery;
use futures::StreamExt;

fn record(n: i64) -> EgressRecord {
    EgressRecord {
        at_ms: n,
        what: EgressWhat::Dns,
        verdict: if n % 5 == 0 { EgressVerdict::Refused } else { EgressVerdict::Allowed },
        rule: "allow-all".to_owned(),
        name: Some(format!("h{n}.example.com")),
        address: None,
        port: None,
        protocol: None,
        sent: 10,
        received: 20,
    }
}

fn numbers(records: &[EgressRecord]) -> Vec<i64> {
    records.iter().map(|record| record.at_ms).collect()
}

async fn log(world: &World, id: &SandboxId, query: EgressQuery) -> Vec<EgressRecord> {
    world.service.sandboxes().egress_log(&world.admin, id.as_str(), query).await.unwrap()
}

fn all() -> EgressQuery {
    EgressQuery { limit: 10_000, ..Default::default() }
}

/// Records are written asynchronously.
async fn until_written(world: &World, id: &SandboxId, last: i64) {
    for _ in 0..5_000 {
        if log(world, id, EgressQuery { limit: 1, ..Default::default() })
            .await
            .last()
            .is_some_and(|r| r.at_ms == last)
        {
            return;
        }
        world.store.ping().await.unwrap();
    }
    panic!("{last} was not written");
}

async fn written(world: &World, id: &SandboxId, numbers: std::ops::Range<i64>) {
    for n in numbers.clone() {
        world.fake.egressed(id, record(n));
        if n % 20 == 0 {
            until_written(world, id, n).await;
        }
    }
    until_written(world, id, numbers.end - 1).await;
}

#[tokio::test(start_paused = true)]
async fn records_are_read_by_number_time_and_verdict_and_outlive_the_server() {
    let world = World::new().await;
    let (lease, other) = (world.create().await, world.create().await);
    assert_eq!(log(&world, &lease.id, all()).await, []);
    written(&world, &lease.id, 1..31).await;
    written(&world, &other.id, 1..3).await;
    let world = world.crash_and_reopen().await;
    let query = EgressQuery { limit: 3, ..Default::default() };
    assert_eq!(numbers(&log(&world, &lease.id, query).await), [28, 29, 30]);
    let query = EgressQuery { since_ms: Some(27), ..Default::default() };
    assert_eq!(numbers(&log(&world, &lease.id, query).await), [28, 29, 30]);
    let query = EgressQuery { verdict: Some(EgressVerdict::Refused), ..all() };
    assert_eq!(numbers(&log(&world, &lease.id, query).await), [5, 10, 15, 20, 25, 30]);
    assert_eq!(log(&world, &lease.id, all()).await[0], record(1));
    assert_eq!(log(&world, &other.id, all()).await.len(), 2);
    written(&world, &lease.id, 31..32).await;
    assert_eq!(log(&world, &lease.id, all()).await.len(), 31);
    let stranger = world.stranger().await;
    let id = lease.id.as_str();
    assert_eq!(
        world.service.sandboxes().egress_log(&stranger, id, all()).await.unwrap_err().code,
        Code::SandboxNotFound
    );
    assert!(world.service.sandboxes().follow_egress(&stranger, id, all()).await.is_err());
    assert_eq!(
        world.service.sandboxes().learned(&stranger, id).await.unwrap_err().code,
        Code::SandboxNotFound
    );
}

#[tokio::test(start_paused = true)]
async fn a_log_goes_with_its_sandbox_and_late_records_do_not_bring_it_back() {
    let world = World::new().await;
    let lease = world.create().await;
    let id = lease.id.as_str();
    written(&world, &lease.id, 1..4).await;
    let files = || std::fs::read_dir(world.data().join("egress")).unwrap().count();
    assert_eq!(files(), 1);
    let mut following = world.service.sandboxes().follow_egress(&world.admin, id, all()).await.unwrap();
    world.service.sandboxes().delete(&world.admin, id, true).await.unwrap();
    world.fake.egressed(&lease.id, record(9));
    world.quiet().await;
    assert_eq!(files(), 0);
    assert_eq!(log(&world, &lease.id, all()).await, []);
    for n in 1..4 {
        assert_eq!(following.next().await.unwrap().at_ms, n);
    }
    // It may still receive the late record.
    while let Some(late) = following.next().await {
        assert_eq!(late.at_ms, 9);
    }
    // Files that a crash left behind are removed at the next start.
    let left = world.data().join("egress").join(format!("{id}.1.jsonl"));
    std::fs::write(&left, "{}\n").unwrap();
    let world = world.crash_and_reopen().await;
    world.quiet().await;
    assert_eq!(std::fs::read_dir(world.data().join("egress")).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_follower_sees_what_was_and_what_comes_without_a_gap() {
    let world = World::new().await;
    let lease = world.create().await;
    let id = lease.id.as_str();
    written(&world, &lease.id, 1..11).await;
    let query = EgressQuery { limit: 4, ..Default::default() };
    let following = world.service.sandboxes().follow_egress(&world.admin, id, query).await.unwrap();
    let refused = EgressQuery { verdict: Some(EgressVerdict::Refused), ..Default::default() };
    let some = world.service.sandboxes().follow_egress(&world.admin, id, refused).await.unwrap();
    written(&world, &lease.id, 11..41).await;
    let seen: Vec<_> = following.take(34).collect().await;
    assert_eq!(numbers(&seen), (7..41).collect::<Vec<_>>());
    let seen: Vec<_> = some.take(8).collect().await;
    assert_eq!(numbers(&seen), [5, 10, 15, 20, 25, 30, 35, 40]);
}

#[tokio::test(start_paused = true)]
async fn who_is_too_slow_is_told_what_is_missing() {
    let world = World::new().await;
    let lease = world.create().await;
    written(&world, &lease.id, 1..2).await;
    let mut following =
        world.service.sandboxes().follow_egress(&world.admin, lease.id.as_str(), all()).await.unwrap();
    written(&world, &lease.id, 2..1_302).await;
    assert_eq!(following.next().await.unwrap().at_ms, 1);
    let lost = following.next().await.unwrap();
    assert_eq!(lost.what, EgressWhat::Lost);
    assert!(lost.rule.contains("records of this sandbox were lost"), "{}", lost.rule);
    assert!(following.next().await.unwrap().at_ms > 2);
    // The provider reports more at once than its channel holds: the log records that too.
    for n in 2_000..2_200 {
        world.fake.egressed(&lease.id, record(n));
    }
    until_written(&world, &lease.id, 2_199).await;
    let log = log(&world, &lease.id, all()).await;
    let lost: Vec<_> = log.iter().filter(|record| record.what == EgressWhat::Lost).collect();
    assert_eq!(lost.len(), 1);
    assert!(lost[0].rule.contains("of all sandboxes"), "{}", lost[0].rule);
}

#[tokio::test(start_paused = true)]
async fn what_happened_becomes_the_smallest_policy_that_allows_it() {
    let world = World::new().await;
    let lease = world.create().await;
    let id = lease.id.as_str();
    assert_eq!(world.service.sandboxes().learned(&world.admin, id).await.unwrap(), NetworkPolicy::deny_all());
    let limits = NetworkLimits { connections: Some(9), ..NetworkLimits::default() };
    let learn = NetworkPolicy { learn: true, limits, ..NetworkPolicy::allow_all() };
    let change = UpdateSandbox { network: Some(learn), ..Default::default() };
    world.service.sandboxes().update(&world.admin, id, change).await.unwrap();
    assert!(world.fake.in_force(&lease.id).unwrap().1.learn);
    let flow = EgressRecord {
        what: EgressWhat::Flow,
        name: None,
        address: Some("203.0.113.5".parse().unwrap()),
        port: Some(22),
        protocol: Some("tcp".to_owned()),
        ..record(2)
    };
    let answered = EgressRecord { address: Some("198.51.100.1".parse().unwrap()), ..record(1) };
    world.fake.egressed(&lease.id, answered);
    world.fake.egressed(&lease.id, flow);
    world.fake.egressed(&lease.id, record(5));
    until_written(&world, &lease.id, 5).await;
    let learned = world.service.sandboxes().learned(&world.admin, id).await.unwrap();
    let wanted = NetworkPolicy {
        mode: NetworkMode::Custom,
        allow_domains: vec!["h1.example.com".parse().unwrap()],
        allow_cidrs: vec!["203.0.113.5".parse().unwrap()],
        limits,
        ..NetworkPolicy::default()
    };
    assert_eq!(learned, wanted);
    // It can be used as it is.
    let change = UpdateSandbox { network: Some(learned), ..Default::default() };
    world.service.sandboxes().update(&world.admin, id, change).await.unwrap();
    world.advance(Duration::from_secs(1)).await;
}
