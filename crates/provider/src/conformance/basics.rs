//! Cases of the basic lifecycle: create, halt, boot, destroy, adopt, limits.

use super::*;

pub(super) async fn a_created_instance_is_dialled_and_measured(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    assert!(live.dial().await.is_ok());
    let token = live.booted.agent_token.clone().expect("a new agent has a new token");
    assert!(!token.is_empty() && !live.booted.facts.to_string().contains(&token), "facts hold no secret");
    let usage = fixture.provider.usage(&live.target).await.unwrap();
    assert!(usage.pids >= 1 && usage.memory_bytes > 0, "{usage:?}");
    let node = fixture.provider.node().await.unwrap();
    assert!(node.memory_total_mib >= node.memory_free_mib && node.cpu_total_milli > 0, "{node:?}");
    fixture.destroy(&spec).await;
}

pub(super) async fn a_closed_port_says_so(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    let refused = fixture.provider.dial(&live.target, 9).await.err().unwrap();
    assert!(matches!(refused, ProviderError::PortClosed { port: 9 }), "{refused}");
    fixture.destroy(&spec).await;
}

pub(super) async fn an_unknown_template_is_refused_and_leaves_nothing(fixture: Fixture) {
    let spec = InstanceSpec { template: "no-such-template".to_owned(), ..fixture.spec() };
    let refused = fixture.provider.create(&spec).await.err().unwrap();
    assert!(matches!(refused, ProviderError::NoTemplate { .. }), "{refused}");
    assert!(is_gone(fixture.provider.usage(&target(&spec)).await));
    // The id is free: remains of a refused create would cause an error here.
    let good = InstanceSpec { template: fixture.template.clone(), ..spec };
    fixture.create(&good).await;
    fixture.destroy(&good).await;
}

pub(super) async fn halt_keeps_files_and_boot_finds_them(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    fixture.inside.write(&live, "/tmp/kept", b"kept").await;
    fixture.provider.halt(&live.target).await.unwrap();
    assert!(is_gone(live.probe().await), "a halted instance cannot be reached");
    let next = again(&spec);
    let second = fixture.boot(&next).await;
    assert_eq!(fixture.inside.read(&second, "/tmp/kept").await.as_deref(), Some(&b"kept"[..]));
    assert_ne!(second.token, live.token, "a token is for one instance");
    fixture.destroy(&next).await;
    assert!(matches!(fixture.provider.boot(&again(&spec)).await, Err(ProviderError::Gone { .. })));
}

pub(super) async fn halt_and_destroy_may_be_repeated(fixture: Fixture) {
    let spec = fixture.spec();
    fixture.create(&spec).await;
    for _ in 0..3 {
        fixture.provider.halt(&target(&spec)).await.unwrap();
    }
    fixture.provider.halt(&files_only(&spec)).await.unwrap();
    for _ in 0..3 {
        fixture.destroy(&spec).await;
    }
}

pub(super) async fn what_was_never_there_is_gone(fixture: Fixture) {
    let spec = fixture.spec();
    let target = target(&spec);
    assert!(is_gone(fixture.provider.usage(&target).await));
    let able = fixture.provider.capabilities();
    if able.has(Capability::DialStream) {
        assert!(is_gone(fixture.provider.dial(&target, AGENT_PORT).await));
    }
    if able.resizes_live {
        assert!(is_gone(fixture.provider.resize(&target, &spec.limits).await));
    }
    assert!(matches!(fixture.provider.halt(&target).await, Ok(()) | Err(ProviderError::Gone { .. })));
    fixture.provider.destroy(&target).await.unwrap();
}

pub(super) async fn a_call_that_names_an_older_instance_does_nothing(fixture: Fixture) {
    let spec = fixture.spec();
    let first = fixture.create(&spec).await;
    fixture.provider.halt(&first.target).await.unwrap();
    let next = again(&spec);
    let second = fixture.boot(&next).await;
    assert!(is_gone(first.probe().await));
    assert!(is_gone(fixture.provider.usage(&first.target).await));
    let late = fixture.provider.halt(&first.target).await;
    assert!(matches!(late, Ok(()) | Err(ProviderError::Gone { .. })));
    assert!(second.probe().await.is_ok(), "a late halt must not end the next instance");
    fixture.destroy(&next).await;
}

pub(super) async fn destroy_without_an_instance_removes_the_files(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    fixture.provider.halt(&live.target).await.unwrap();
    fixture.provider.destroy(&files_only(&spec)).await.unwrap();
    fixture.provider.settle(STEP).await.unwrap();
    assert!(fixture.provider.boot(&again(&spec)).await.is_err());
}

pub(super) async fn adoption_keeps_the_known_and_removes_the_rest(fixture: Fixture) {
    let (kept, stopped, unknown) = (fixture.spec(), fixture.spec(), fixture.spec());
    let live = fixture.create(&kept).await;
    let halted = fixture.create(&stopped).await;
    fixture.provider.halt(&halted.target).await.unwrap();
    fixture.create(&unknown).await;
    let fates =
        fixture.provider.adopt(vec![known(&kept, Some(&live)), known(&stopped, None)], vec![]).await.unwrap();
    assert_eq!(fates, [adopted(&kept, AdoptionOutcome::Alive)]);
    assert!(live.probe().await.is_ok());
    assert!(is_gone(fixture.provider.usage(&target(&unknown)).await));
    if fixture.provider.capabilities().keeps_files {
        let next = again(&stopped);
        fixture.boot(&next).await;
        fixture.destroy(&next).await;
    }
    // A provider whose sandboxes live elsewhere removes it after a grace time.
    let removed = async {
        while is_alive(&fixture, &unknown).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(STEP, removed).await.expect("it is removed");
    fixture.destroy(&kept).await;
}

async fn is_alive(fixture: &Fixture, spec: &InstanceSpec) -> bool {
    let owned = fixture.provider.owned().await.expect("listed");
    owned.iter().any(|found| found.sandbox == spec.sandbox && found.instance.is_some())
}

pub(super) async fn adoption_says_what_is_gone(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    fixture.inside.kill(&live).await;
    let fates = fixture.provider.adopt(vec![known(&spec, Some(&live))], vec![]).await.unwrap();
    assert_eq!(fates, [adopted(&spec, AdoptionOutcome::Gone)]);
    fixture.destroy(&spec).await;
}

pub(super) async fn a_death_is_told_within_seconds(fixture: Fixture) {
    let spec = fixture.spec();
    let mut notices = fixture.provider.notices();
    let live = fixture.create(&spec).await;
    fixture.inside.kill(&live).await;
    // Five seconds, counted in turns of this task: while the whole machine is stopped, no notice can arrive.
    let mut told = None;
    for _ in 0..500 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let heard = std::iter::from_fn(|| notices.try_recv().ok());
        told = heard.filter(|n| n.instance == spec.instance && n.what == NoticeKind::Died).last();
        if told.is_some() {
            break;
        }
    }
    assert_eq!(told.expect("a notice arrived in time").sandbox, spec.sandbox);
    fixture.destroy(&spec).await;
}

pub(super) async fn limits_change_while_it_runs(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    let larger = Limits { memory_mib: 96, cpu_milli: 700, ..spec.limits };
    fixture.provider.resize(&live.target, &larger).await.expect("resized");
    fixture.inside.write(&live, "/tmp/after", b"it runs").await;
    fixture.destroy(&spec).await;
}

pub(super) async fn its_policy_changes_while_it_runs(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    fixture.provider.set_network(&live.target, Arc::new(Egress::open())).await.expect("changed");
    fixture.inside.write(&live, "/tmp/after", b"it runs").await;
    fixture.destroy(&spec).await;
}

pub(super) async fn many_creates_at_once_are_all_different(fixture: Fixture) {
    let specs: Vec<_> = (0..8).map(|_| fixture.spec()).collect();
    let mut creates = tokio::task::JoinSet::new();
    for spec in specs.clone() {
        let provider = Arc::clone(&fixture.provider);
        creates.spawn(async move { provider.create(&spec).await.expect("created").agent_token });
    }
    let tokens: std::collections::HashSet<_> = creates.join_all().await.into_iter().collect();
    assert_eq!(tokens.len(), specs.len());
    for spec in &specs {
        fixture.destroy(spec).await;
    }
}

pub(super) async fn a_create_that_is_dropped_half_way_can_be_destroyed(fixture: Fixture) {
    for delay_us in [0, 200, 1_000, 3_000] {
        let spec = fixture.spec();
        let create = fixture.provider.create(&spec);
        let _ = tokio::time::timeout(Duration::from_micros(delay_us), create).await;
        fixture.destroy(&spec).await;
        assert!(is_gone(fixture.provider.usage(&target(&spec)).await));
    }
}
