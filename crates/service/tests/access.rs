//! Access tokens over the fake provider: the access that each gives, and the access that it does not give.
#![allow(clippy::unwrap_used)]

use crate::world::World;
use atoll_model::{
    Code, CreateSandbox, CreatorKey, KEY_NAME_MAX, Lease, Origin, Phase, SandboxId, Scope, UpdateSandbox,
    Wake,
};
use atoll_service::{
    CreatedKey, Fork, Holder, NewKey, NewSnapshot, Pause, PortQuestion, RequestScope, TokenOf,
};

const KINDS: [TokenOf; 3] = [TokenOf::Agent, TokenOf::Ports, TokenOf::Files];

fn code(world: &World, id: &SandboxId, of: TokenOf, shown: &str) -> Code {
    world.service.access().admit_token(id, of, shown).unwrap_err().code
}

#[tokio::test(start_paused = true)]
async fn a_token_opens_its_own_sandbox_for_its_own_purpose() {
    let world = World::new().await;
    let (one, other) = (world.create().await, world.create().await);
    for of in KINDS {
        let token = world.service.access().token(&one, of);
        assert_eq!((token.len(), &token), (64, &world.service.access().token(&one, of)));
        let grant = world.service.access().admit_token(&one.id, of, &token).unwrap();
        assert_eq!((grant.sandbox(), &grant.lease().id), (&one.id, &one.id));
        assert!(!format!("{grant:?}").contains(&token));
        assert_eq!(code(&world, &other.id, of, &token), Code::Unauthenticated);
        for wrong in ["", &token[1..], &token.to_uppercase(), &format!("{token}0")] {
            assert_eq!(code(&world, &one.id, of, wrong), Code::Unauthenticated);
        }
        for elsewhere in KINDS.into_iter().filter(|kind| *kind != of) {
            assert_eq!(code(&world, &one.id, elsewhere, &token), Code::Unauthenticated);
        }
    }
    // What never was looks like a wrong token.
    let token = world.service.access().token(&one, TokenOf::Agent);
    assert_eq!(
        code(&world, &SandboxId::from_entropy([3; 20]), TokenOf::Agent, &token),
        Code::Unauthenticated
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_of_ports_opens_every_port_but_no_agent() {
    let world = World::new().await;
    let lease = world.create().await;
    let token = world.service.access().token(&lease, TokenOf::Ports);
    let grant = world.service.access().admit_token(&lease.id, TokenOf::Ports, &token).unwrap();
    assert_eq!(grant.session().await.unwrap_err().code, Code::Forbidden);
    let tokens = [token];
    let shown = |port| PortQuestion { tokens: &tokens, ..PortQuestion::new(&lease.id, Some(port)) };
    for port in [80, 49_999] {
        let answer = world.service.access().reach_port(shown(port)).await.unwrap();
        assert!(matches!(answer.grant.holder(), Holder::Token(_)));
    }
    let agent = world.service.access().reach_port(shown(49_983)).await.unwrap_err();
    assert_eq!(agent.code, Code::Forbidden);
    for of in [TokenOf::Agent, TokenOf::Files] {
        let tokens = [world.service.access().token(&lease, of)];
        let shown = PortQuestion { tokens: &tokens, ..PortQuestion::new(&lease.id, Some(80)) };
        assert_eq!(world.service.access().reach_port(shown).await.unwrap_err().code, Code::Forbidden);
    }
    // Who may reach a port may use what a front offers there.
    let answer = world.service.access().reach_port(shown(49_999)).await.unwrap();
    let stand_in = world.service.access().stand_in(&answer.grant);
    assert_eq!(stand_in.session().await.unwrap().lease.id, lease.id);
}

#[tokio::test(start_paused = true)]
async fn a_public_sandbox_shows_its_ports_and_never_its_agent() {
    let world = World::new().await;
    let spec = CreateSandbox { public: true, ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    let nothing = |port| PortQuestion::new(&lease.id, Some(port));
    let answer = world.service.access().reach_port(nothing(80)).await.unwrap();
    assert_eq!(*answer.grant.holder(), Holder::Public);
    let agent = world.service.access().reach_port(nothing(49_983)).await.unwrap_err();
    assert_eq!(agent.code, Code::Unauthenticated);
    assert_eq!(answer.grant.port().host, None);
    let masked =
        UpdateSandbox { mask_host: Some(Some("localhost:${PORT}".to_owned())), ..Default::default() };
    world.service.sandboxes().update(&world.admin, lease.id.as_str(), masked).await.unwrap();
    let answer = world.service.access().reach_port(nothing(80)).await.unwrap();
    assert_eq!(answer.grant.port().host.as_deref(), Some("localhost:80"));
    let odd = UpdateSandbox { mask_host: Some(Some("a b\r\nX: y".to_owned())), ..Default::default() };
    assert!(world.service.sandboxes().update(&world.admin, lease.id.as_str(), odd).await.is_err());
    let closed = UpdateSandbox { public: Some(false), ..Default::default() };
    let updated = world.service.sandboxes().update(&world.admin, lease.id.as_str(), closed).await.unwrap();
    assert!(!updated.public);
    let refused = world.service.access().reach_port(nothing(80)).await.unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
}

#[tokio::test(start_paused = true)]
async fn tokens_outlive_sleep_and_end_with_a_rotation_or_the_sandbox() {
    let world = World::new().await;
    let lease = world.create().await;
    let (service, ident) = (&world.service, lease.id.as_str());
    let old = service.access().token(&lease, TokenOf::Agent);
    service.sandboxes().pause(&world.admin, ident, Pause::default(), true).await.unwrap();
    let grant = service.access().admit_token(&lease.id, TokenOf::Agent, &old).unwrap();
    assert_eq!(world.get(&lease.id).await.phase, Phase::Paused);
    assert_eq!(grant.session().await.unwrap().lease.phase, Phase::Running);
    service.sandboxes().restart(&world.admin, ident, true).await.unwrap();
    assert!(service.access().admit_token(&lease.id, TokenOf::Agent, &old).is_ok());

    let stranger = world.stranger().await;
    assert_eq!(
        service.access().rotate_tokens(&stranger, ident).await.unwrap_err().code,
        Code::SandboxNotFound
    );
    let rotated = service.access().rotate_tokens(&world.admin, ident).await.unwrap();
    let new = service.access().token(&rotated, TokenOf::Agent);
    assert_ne!(old, new);
    assert_eq!(code(&world, &lease.id, TokenOf::Agent, &old), Code::Unauthenticated);
    let grant = service.access().admit_token(&lease.id, TokenOf::Agent, &new).unwrap();

    service.sandboxes().delete(&world.admin, ident, true).await.unwrap();
    assert_eq!(grant.session().await.unwrap_err().code, Code::SandboxNotFound);
    // A caller with the right token learns that the sandbox was deleted; a guess reveals nothing.
    assert_eq!(code(&world, &lease.id, TokenOf::Agent, &new), Code::SandboxNotFound);
    assert_eq!(code(&world, &lease.id, TokenOf::Agent, &"0".repeat(64)), Code::Unauthenticated);
    assert!(service.access().find_by_token(TokenOf::Agent, &mut |_, token| token == new).is_none());
}

#[tokio::test(start_paused = true)]
async fn who_signed_is_found_among_live_sandboxes_and_asked_once_each() {
    let world = World::new().await;
    let leases = [world.create().await, world.create().await, world.create().await];
    for lease in &leases {
        let wanted = world.service.access().token(lease, TokenOf::Files);
        let found = world.service.access().find_by_token(TokenOf::Files, &mut |_, token| token == wanted);
        assert_eq!(found.unwrap().sandbox(), &lease.id);
    }
    let mut asked = 0;
    let nobody = world.service.access().find_by_token(TokenOf::Agent, &mut |lease: &Lease, token| {
        asked += 1;
        assert_eq!(token, world.service.access().token(lease, TokenOf::Agent));
        false
    });
    assert!(nobody.is_none());
    assert_eq!(asked, 3);
}

#[tokio::test(start_paused = true)]
async fn forks_and_sandboxes_of_snapshots_have_tokens_of_their_own() {
    let world = World::new().await;
    let annotations = [("e2b.made".to_owned(), "1".to_owned())].into();
    let spec = CreateSandbox { public: true, annotations, ..Default::default() };
    let source = world.try_create(spec).await.unwrap();
    let ident = source.id.as_str();
    let source = world.service.access().rotate_tokens(&world.admin, ident).await.unwrap();
    let forked = world.service.sandboxes().fork(&world.admin, ident, Fork::default()).await.unwrap();
    let fork = &forked.sandboxes[0];
    assert_eq!((fork.token_epoch, fork.public), (0, true));
    assert_eq!(fork.annotations, source.annotations);
    let new = NewSnapshot { name: Some("moment".to_owned()), memory: false, ..Default::default() };
    world.service.sandboxes().snapshot(&world.admin, ident, new).await.unwrap();
    let from = Origin::Named("moment".to_owned());
    let again = world.try_create(CreateSandbox { from, ..Default::default() }).await.unwrap();
    assert_eq!((again.public, again.annotations.len()), (false, 0));
    for of in KINDS {
        let token = world.service.access().token(&source, of);
        for other in [fork, &again] {
            assert_ne!(world.service.access().token(other, of), token);
            assert_eq!(code(&world, &other.id, of, &token), Code::Unauthenticated);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_record_of_what_is_gone_tells_which_front_made_it_and_no_more() {
    let world = World::new().await;
    let annotations = [("e2b.made", "true"), ("e2b.network", "secret")];
    let annotations = annotations.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let spec = CreateSandbox { annotations: annotations.into(), ..Default::default() };
    let made = world.try_create(spec).await.unwrap();
    assert!(world.service.access().record_of_gone(&made.id).await.is_none(), "it is there");
    world.service.sandboxes().delete(&world.admin, made.id.as_str(), true).await.unwrap();
    let record = world.service.access().record_of_gone(&made.id).await.unwrap();
    assert_eq!(record.annotations.keys().map(String::as_str).collect::<Vec<_>>(), ["e2b.made"]);
    assert!(world.service.access().record_of_gone(&SandboxId::from_entropy([9; 20])).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_key_makes_a_pass_for_what_it_sees_and_an_explicit_sleeper_is_let_sleep() {
    let world = World::new().await;
    let spec = CreateSandbox { wake: Wake::Explicit, ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    let stranger = world.stranger().await;
    let refused = world.service.access().admit_key(&stranger, lease.id.as_str()).await.unwrap_err();
    assert_eq!(refused.code, Code::SandboxNotFound);
    let grant = world.service.access().admit_key(&world.admin, lease.id.as_str()).await.unwrap();
    world.service.sandboxes().pause(&world.admin, lease.id.as_str(), Pause::default(), true).await.unwrap();
    assert_eq!(grant.session().await.unwrap_err().code, Code::Asleep);
    assert_eq!(grant.lease().phase, Phase::Paused);
}

#[tokio::test(start_paused = true)]
async fn a_word_means_a_template_before_it_means_a_snapshot() {
    let world = World::new().await;
    let source = world.create().await;
    let named = |word: &str| CreateSandbox { from: Origin::Named(word.to_owned()), ..Default::default() };
    let new = |name: &str, memory| NewSnapshot {
        name: Some(name.to_owned()),
        memory,
        replace: false,
        ..Default::default()
    };
    let ident = source.id.as_str();
    let taken = world.service.sandboxes().snapshot(&world.admin, ident, new("moment", true)).await.unwrap();
    world.service.sandboxes().snapshot(&world.admin, ident, new(&source.template, false)).await.unwrap();
    let of_template = world.try_create(named(&source.template)).await.unwrap();
    assert_eq!(of_template.source, atoll_model::Source::Template);
    for word in ["moment", taken.id.as_str()] {
        let made = world.try_create(named(word)).await.unwrap();
        let source = atoll_model::Source::Snapshot { snapshot: taken.id.clone(), memory: true, fork: false };
        assert_eq!((made.source, made.parent.as_ref()), (source, Some(&taken.sandbox)));
    }
    let missing = world.try_create(named("nothing")).await.unwrap_err();
    assert_eq!(missing.code, Code::TemplateNotFound);
    assert!(missing.message.contains("no template and no snapshot nothing"), "{}", missing.message);
    let stranger = world.stranger().await;
    let foreign = world.service.sandboxes().create(&stranger, named("moment"), true).await.unwrap_err();
    assert_eq!(foreign.code, Code::TemplateNotFound);
}

#[tokio::test(start_paused = true)]
async fn sessions_by_a_pass_are_bounded_and_leave_nothing() {
    let world = World::new().await;
    let lease = world.create().await;
    let grant = world.service.access().admit_key(&world.admin, lease.id.as_str()).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..2_000 {
        held.push(grant.session().await.unwrap());
    }
    let refused = grant.session().await.unwrap_err();
    assert_eq!(refused.code, Code::SandboxExhausted);
    let copy = held.pop().unwrap().clone();
    assert!(grant.session().await.is_err(), "a copy is the same session");
    drop(copy);
    held.push(grant.session().await.unwrap());
    drop(held);
    assert!(grant.session().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_keeps_the_key_that_created_it_and_names_no_key_of_another_tenant() {
    let world = World::new().await;
    let owner = world.stranger().await;
    let new = |name: String| NewKey { tenant: None, scope: Scope::User, name: Some(name) };
    let long =
        world.service.access().create_key(&owner, new("k".repeat(KEY_NAME_MAX + 1))).await.unwrap_err();
    assert_eq!(long.code, Code::InvalidRequest);
    let CreatedKey { key, secret } =
        world.service.access().create_key(&owner, new("ci".to_owned())).await.unwrap();
    let ci = world.service.access().authenticate(&secret).await.unwrap();
    let (made, _) = world.service.sandboxes().create(&ci, CreateSandbox::default(), true).await.unwrap();
    let creator = CreatorKey { id: key.id.clone(), name: Some("ci".to_owned()) };
    assert_eq!(made.created_by_key.as_ref(), Some(&creator));
    let fork = async |who| {
        let forked = world.service.sandboxes().fork(who, made.id.as_str(), Fork::default()).await.unwrap();
        forked.sandboxes.into_iter().next().unwrap().created_by_key
    };
    assert_eq!(fork(&owner).await, Some(CreatorKey { id: owner.key.clone(), name: None }));
    assert_eq!(fork(&world.admin).await, None, "the admin key belongs to another tenant");
    world.service.access().delete_key(&owner, &key.id).await.unwrap();
    let world = world.crash_and_reopen().await;
    assert_eq!(world.get(&made.id).await.created_by_key, Some(creator), "after the key is deleted");
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_user_key_end_with_it_and_keys_of_an_admin_stay() {
    let world = World::new().await;
    let access = world.service.access();
    let user =
        |tenant: Option<&str>| NewKey { tenant: tenant.map(str::to_owned), scope: Scope::User, name: None };
    let owner = world.stranger().await;
    let child = access.create_key(&owner, user(None)).await.unwrap();
    assert_eq!(child.key.created_by.as_ref(), Some(&owner.key));
    let who = access.authenticate(&child.secret).await.unwrap();
    let grandchild = access.create_key(&who, user(None)).await.unwrap();
    let of_admin = access.create_key(&world.admin, user(Some("stranger"))).await.unwrap();
    assert_eq!(of_admin.key.created_by, None);
    let (scope, shown) = (RequestScope::new(None), &grandchild.secret);
    scope.run(access.authenticate(shown)).await.unwrap();

    access.delete_key(&world.admin, &owner.key).await.unwrap();
    scope.ended().await;
    for gone in [&child.secret, &grandchild.secret] {
        assert_eq!(access.authenticate(gone).await.unwrap_err().code, Code::Unauthenticated);
    }
    // A request that was authenticated before the end creates nothing after it.
    let late = access.create_key(&who, user(None)).await.unwrap_err();
    assert_eq!(late.code, Code::Unauthenticated);
    let left = access.authenticate(&of_admin.secret).await.unwrap();
    assert_eq!(access.list_keys(&left).await.unwrap(), [of_admin.key]);
}

#[tokio::test(start_paused = true)]
async fn user_keys_create_a_bounded_number_of_keys_in_their_tenant() {
    let world = World::new().await;
    let access = world.service.access();
    let new = || NewKey { tenant: None, scope: Scope::User, name: None };
    let owner = world.stranger().await;
    let mut last = None;
    for _ in 0..100 {
        last = Some(access.create_key(&owner, new()).await.unwrap());
    }
    let refused = access.create_key(&owner, new()).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    assert!(refused.hint.is_some());
    // Also not by a key that was made this way; an admin key and other tenants are not concerned.
    let other = access.authenticate(&last.unwrap().secret).await.unwrap();
    assert_eq!(access.create_key(&other, new()).await.unwrap_err().code, Code::QuotaExceeded);
    let of_tenant = NewKey { tenant: Some("stranger".to_owned()), ..new() };
    access.create_key(&world.admin, of_tenant).await.unwrap();
    let neighbour = world.tenant("neighbour", atoll_model::Quota::default()).await;
    access.create_key(&neighbour, new()).await.unwrap();
    access.delete_key(&owner, &other.key).await.unwrap();
    access.create_key(&owner, new()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_learns_its_own_tenant() {
    let world = World::new().await;
    let owner = world.stranger().await;
    let (key, tenant) = world.service.access().current_key(&owner).await.unwrap();
    assert_eq!((key.id, tenant.id, tenant.name.as_str()), (owner.key, owner.tenant, "stranger"));
}
