//! Two nodes on one database, each with a fake provider of its own.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use crate::world::{World, breathe};
use atoll_model::{Code, CreateSandbox, NetworkPolicy, NodeName, Origin};
use atoll_service::{
    Filter, NewPreview, NewSecret, NewSnapshot, NewVolume, PortQuestion, RequestScope, SecretAbout,
};

async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !done().await {
        assert!(begun.elapsed().as_secs() < 20, "{what}");
        breathe().await;
    }
}

fn names(nodes: &[NodeName]) -> Vec<&str> {
    nodes.iter().map(NodeName::as_str).collect()
}

#[tokio::test(start_paused = true)]
async fn a_node_touches_only_what_is_its_own() {
    let a = World::new().await;
    let b = a.beside("b").await;
    let (on_a, on_b) = (a.create().await, b.create().await);
    let listed = a.service.sandboxes().list(&a.admin, Filter::default()).await.unwrap();
    let found: BTreeMap<_, _> = listed.items.iter().map(|lease| (&lease.id, lease.node.as_str())).collect();
    assert_eq!(found, BTreeMap::from([(&on_a.id, "local"), (&on_b.id, "b")]));
    let id = on_b.id.as_str();
    let sandboxes = a.service.sandboxes();
    for refused in [
        sandboxes.stop(&a.admin, id, true).await.map(drop),
        sandboxes.delete(&a.admin, id, true).await.map(drop),
        sandboxes.session(&a.admin, id).await.map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, Code::WrongNode);
        assert!(refused.message.contains("node b"), "{refused}");
    }
    let keys = [a.admin_key.clone()];
    let port = PortQuestion { keys: &keys, ..PortQuestion::new(&on_b.id, Some(80)) };
    assert_eq!(a.service.access().reach_port(port).await.unwrap_err().code, Code::WrongNode);
    // A caller that may not see it learns nothing.
    let strange = [b.tenant_key("stranger", atoll_model::Quota::default()).await];
    let port = PortQuestion { keys: &strange, ..port };
    assert_eq!(a.service.access().reach_port(port).await.unwrap_err().code, Code::SandboxNotFound);
    // Snapshots and volumes are where their files are.
    let shot = b.service.sandboxes().snapshot(&b.admin, id, NewSnapshot::default()).await.unwrap();
    let volume = NewVolume { name: "data".to_owned(), size_mib: Some(10), ..NewVolume::default() };
    b.service.volumes().create(&b.admin, volume).await.unwrap();
    let from = Origin::Snapshot { snapshot: shot.id.to_string(), memory: false };
    for refused in [
        a.try_create(CreateSandbox { from, ..CreateSandbox::default() }).await.map(drop),
        sandboxes.delete_snapshot(&a.admin, shot.id.as_str()).await,
        a.service.volumes().open(&a.admin, "data").await.map(drop),
        a.service.volumes().remove(&a.admin, "data").await,
    ] {
        assert_eq!(refused.unwrap_err().code, Code::WrongNode);
    }
    assert_eq!(a.service.volumes().get(&a.admin, "data").await.unwrap().volume.node.as_str(), "b");
    // Each takes up only its own after a crash.
    let a = a.crash_and_reopen().await;
    let held = |world: &World| world.fake.holds().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!((held(&a), held(&b)), (vec![on_a.id.clone()], vec![on_b.id.clone()]));
    assert_eq!((b.fake.snapshots(), b.fake.volumes().len()), (vec![shot.id], 1));
    a.assert_no_leaks().await;
    assert_eq!(names(&a.store.nodes().await.unwrap()), ["b", "local"]);
    assert_eq!(b.get(&on_b.id).await.phase, atoll_model::Phase::Running);
}

#[tokio::test(start_paused = true)]
async fn what_one_node_withdraws_ends_at_the_other() {
    let a = World::new().await;
    let b = a.beside("b").await;
    let lease = b.create().await;
    let new = atoll_service::NewKey { tenant: None, scope: atoll_model::Scope::User, name: None };
    let key = a.service.access().create_key(&a.admin, new).await.unwrap();
    let (scope, access) = (RequestScope::new(None), b.service.access());
    scope.run(access.authenticate(&key.secret)).await.unwrap();
    a.service.access().delete_key(&a.admin, &key.key.id).await.unwrap();
    // The watched request ends; the end comes from the feed alone.
    scope.ended().await;
    assert_eq!(access.authenticate(&key.secret).await.unwrap_err().code, Code::Unauthenticated);
    let preview = NewPreview { port: 80, expires_s: Some(600), public: false };
    let made = a.service.access().create_preview(&a.admin, lease.id.as_str(), preview).await.unwrap();
    let tokens = [made.token.unwrap()];
    let question = PortQuestion { tokens: &tokens, ..PortQuestion::new(&lease.id, Some(80)) };
    eventually("the preview is open", async || access.reach_port(question).await.is_ok()).await;
    let scope = RequestScope::new(None);
    scope.run(access.reach_port(question)).await.unwrap();
    a.service.access().delete_preview(&a.admin, lease.id.as_str(), &made.preview.id).await.unwrap();
    scope.ended().await;
    assert_eq!(access.reach_port(question).await.unwrap_err().code, Code::Forbidden);
}

#[tokio::test(start_paused = true)]
async fn policies_and_secrets_of_a_tenant_hold_on_every_node() {
    let a = World::new().await;
    let b = a.beside("b").await;
    let secret = NewSecret {
        name: "KEY".to_owned(),
        value: "a-value-of-some-length".to_owned(),
        about: SecretAbout { hosts: vec!["api.example.com".to_owned()], ..SecretAbout::default() },
    };
    a.service.access().create_secret(&a.admin, secret).await.unwrap();
    let secrets = BTreeMap::from([("KEY".to_owned(), "KEY".to_owned())]);
    let lease = b.try_create(CreateSandbox { secrets, ..CreateSandbox::default() }).await.unwrap();
    assert_eq!(a.service.access().get_secret(&a.admin, "KEY").await.unwrap().used_by, 1);
    let in_use = a.service.access().delete_secret(&a.admin, "KEY").await.unwrap_err();
    assert_eq!(in_use.code, Code::SecretInUse);
    assert!(in_use.message.contains(lease.id.as_str()), "{in_use}");
    assert!(b.service.sandboxes().narrowed_by(&lease).is_empty());
    let policy = Some(NetworkPolicy::deny_all());
    a.service.access().set_tenant_network(&a.admin, "default", policy).await.unwrap();
    eventually("the policy holds at the other node", async || {
        !b.service.sandboxes().narrowed_by(&lease).is_empty()
    })
    .await;
}
