//! Cases of network policy. Whether packets pass is tested by each provider: here the provider must accept every policy
//! of a running instance, and the instance must continue.

use atoll_model::policy::egress::{Injected, OpenedTransform, Seed, TenantFloor, compile};
use atoll_model::{NetworkMode, NetworkPolicy};

use super::*;

fn listed() -> Egress {
    let policy = NetworkPolicy {
        mode: NetworkMode::Custom,
        allow_domains: vec!["*.example.com".parse().unwrap(), "example.org".parse().unwrap()],
        allow_cidrs: vec!["203.0.113.0/24".parse().unwrap(), "198.51.100.7".parse().unwrap()],
        deny_cidrs: vec!["203.0.113.64/26".parse().unwrap()],
        ..NetworkPolicy::default()
    };
    compile(&TenantFloor::default(), None, &policy, &[])
}

fn changing(seed: u8) -> Egress {
    let change = OpenedTransform {
        domain: "api.example.com".parse().unwrap(),
        inject: vec![Injected { name: "authorization".to_owned(), value: "canary".to_owned() }],
        strip: vec!["cookie".to_owned()],
        plain_http: false,
    };
    let egress = compile(&TenantFloor::default(), None, &NetworkPolicy::allow_all(), &[change]);
    Egress { seed: Some(Seed([seed; 32])), ..egress }
}

pub(super) async fn every_policy_is_taken_by_a_live_instance(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    fixture.inside.hold_memory(&live, "still here").await;
    for egress in [listed(), changing(1), Egress::closed(), changing(2), listed(), Egress::open()] {
        fixture.provider.set_network(&live.target, Arc::new(egress)).await.expect("taken while it runs");
        assert_eq!(fixture.inside.memory(&live).await.as_deref(), Some("still here"));
    }
    let nobody = Target { instance: Some(again(&spec).instance), ..live.target.clone() };
    let refused = fixture.provider.set_network(&nobody, Arc::new(listed())).await;
    assert!(matches!(refused, Err(ProviderError::Gone { .. })), "{refused:?}");
    fixture.destroy(&spec).await;
}

pub(super) async fn an_instance_begins_with_its_policy_whatever_it_is(fixture: Fixture) {
    for egress in [listed(), changing(1), Egress::closed()] {
        let spec = InstanceSpec { network: Arc::new(egress), ..fixture.spec() };
        let live = fixture.create(&spec).await;
        fixture.inside.write(&live, "/tmp/reached", b"inside").await;
        fixture.destroy(&spec).await;
    }
}

pub(super) async fn an_authority_belongs_to_its_seed(fixture: Fixture) {
    let authority = |egress: &Egress| fixture.provider.authority(egress);
    assert_eq!(authority(&Egress::open()), None, "no request is changed");
    assert_eq!(authority(&changing(1)), authority(&changing(1)), "it is always the same");
    if let Some(one) = authority(&changing(1)) {
        assert_ne!(Some(one), authority(&changing(2)), "no two sandboxes have the same");
    }
}
