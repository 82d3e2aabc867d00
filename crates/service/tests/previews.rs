//! Previews over the fake provider: who is admitted by which credential, for how long, and how a connection to a port
//! affects a sandbox.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::world::World;
use atoll_model::{Code, CreateSandbox, Phase, Quota, SandboxId};
use atoll_service::{Holder, NewPreview, Pause, PortQuestion, TokenOf};

fn by_token(port: u16, expires_s: u64) -> NewPreview {
    NewPreview { port, expires_s: Some(expires_s), public: false }
}

async fn refused(world: &World, question: PortQuestion<'_>) -> Code {
    world.service.access().reach_port(question).await.unwrap_err().code
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_decides_and_what_is_not_there_looks_the_same() {
    let world = World::new().await;
    let lease = world.create().await;
    let access = world.service.access();
    let strange = [world.tenant_key("stranger", Quota::default()).await];
    let nobody = SandboxId::from_entropy([3; 20]);
    let guess = ["apv_guess".to_owned()];
    for id in [&lease.id, &nobody] {
        let nothing = PortQuestion::new(id, Some(80));
        assert_eq!(refused(&world, nothing).await, Code::Unauthenticated);
        assert_eq!(refused(&world, PortQuestion { keys: &strange, ..nothing }).await, Code::SandboxNotFound);
        assert_eq!(refused(&world, PortQuestion { tokens: &guess, ..nothing }).await, Code::Forbidden);
        // What may be a key of the app does not tell more, and admits nobody.
        assert_eq!(refused(&world, PortQuestion { keys: &guess, ..nothing }).await, Code::Unauthenticated);
    }
    let keys = ["the app's own".to_owned(), world.admin_key.clone()];
    let mine = |port| PortQuestion { keys: &keys, ..PortQuestion::new(&lease.id, port) };
    let answer = access.reach_port(mine(Some(80))).await.unwrap();
    assert_eq!(answer.grant.port().port, 80);
    assert_eq!(*answer.grant.holder(), Holder::Key(world.admin.clone()));
    assert_eq!((answer.is_key, answer.has_agent_token), (vec![false, true], false));
    let agents = [access.token(&lease, TokenOf::Agent)];
    let with_agents = PortQuestion { agent_tokens: &agents, ..mine(Some(80)) };
    assert!(access.reach_port(with_agents).await.unwrap().has_agent_token);
    // A key in the field of the agent's token is hidden from the app too, and admits nobody.
    for (shown, is_ours) in [(world.admin_key.clone(), true), ("the app's own".to_owned(), false)] {
        let shown = [shown];
        let with_key = PortQuestion { agent_tokens: &shown, ..mine(Some(80)) };
        assert_eq!(access.reach_port(with_key).await.unwrap().has_agent_token, is_ours);
        let alone = PortQuestion { agent_tokens: &shown, ..PortQuestion::new(&lease.id, Some(80)) };
        assert_eq!(refused(&world, alone).await, Code::Unauthenticated);
    }
    // The agent's own port is never reachable, by number or by default.
    assert_eq!(refused(&world, mine(Some(49_983))).await, Code::SandboxNotFound);
    let env = [("PORT".to_owned(), "49983".to_owned())].into();
    let sly = world.try_create(CreateSandbox { env, ..Default::default() }).await.unwrap();
    assert_eq!(refused(&world, PortQuestion { sandbox: &sly.id, ..mine(None) }).await, Code::SandboxNotFound);
    assert_eq!(access.reach_port(mine(None)).await.unwrap().grant.port().port, 8_080);
    let env = [("PORT".to_owned(), "3000".to_owned())].into();
    let own = world.try_create(CreateSandbox { env, ..Default::default() }).await.unwrap();
    let own = PortQuestion { sandbox: &own.id, ..mine(None) };
    assert_eq!(access.reach_port(own).await.unwrap().grant.port().port, 3_000);
}

#[tokio::test(start_paused = true)]
async fn a_token_opens_its_own_port_until_it_ends_or_is_removed() {
    let world = World::new().await;
    let (lease, other) = (world.create().await, world.create().await);
    let (service, who, ident) = (&world.service, &world.admin, lease.id.as_str());
    let made = service.access().create_preview(who, ident, by_token(80, 60)).await.unwrap();
    let tokens = [made.token.clone().unwrap()];
    let nothing = PortQuestion::new(&lease.id, Some(80));
    let shown = PortQuestion { tokens: &tokens, ..nothing };
    let answer = service.access().reach_port(shown).await.unwrap();
    assert_eq!((answer.remember_s, answer.grant.expires_at_ms()), (60, made.preview.expires_at_ms));
    assert_eq!(*answer.grant.holder(), Holder::Token(tokens[0].clone()));
    assert_eq!(refused(&world, PortQuestion { port: Some(81), ..shown }).await, Code::Forbidden);
    assert_eq!(refused(&world, PortQuestion { sandbox: &other.id, ..shown }).await, Code::Forbidden);
    world.advance(Duration::from_secs(59)).await;
    assert!(service.access().reach_port(shown).await.is_ok());
    world.advance(Duration::from_secs(1)).await;
    assert_eq!(refused(&world, shown).await, Code::Forbidden);
    assert_eq!(service.access().previews(who, ident).await.unwrap(), []);
    // Removed, though it was just used and is remembered.
    let made = service.access().create_preview(who, ident, by_token(80, 60)).await.unwrap();
    let tokens = [made.token.clone().unwrap()];
    let shown = PortQuestion { tokens: &tokens, ..nothing };
    assert!(service.access().reach_port(shown).await.is_ok());
    let stranger = world.stranger().await;
    let strange = service.access().delete_preview(&stranger, ident, &made.preview.id).await.unwrap_err();
    assert_eq!(strange.code, Code::SandboxNotFound);
    service.access().delete_preview(who, ident, &made.preview.id).await.unwrap();
    assert_eq!(refused(&world, shown).await, Code::Forbidden);
    // Public, then not.
    let open = NewPreview { port: 80, expires_s: None, public: true };
    let open = service.access().create_preview(who, ident, open).await.unwrap();
    assert_eq!((open.token, open.preview.expires_at_ms), (None, None));
    let answer = service.access().reach_port(nothing).await.unwrap();
    assert_eq!(*answer.grant.holder(), Holder::Public);
    service.access().delete_preview(who, ident, &open.preview.id).await.unwrap();
    assert_eq!(refused(&world, nothing).await, Code::Unauthenticated);
    for wrong in [by_token(0, 60), by_token(49_983, 60), by_token(80, 0), by_token(80, 30 * 86_400 + 1)] {
        let error = service.access().create_preview(who, ident, wrong).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest);
    }
}

#[tokio::test(start_paused = true)]
async fn admission_never_wakes_and_a_way_does_and_ends_with_its_incarnation() {
    let world = World::new().await;
    let lease = world.create().await;
    let (service, ident) = (&world.service, lease.id.as_str());
    service.sandboxes().pause(&world.admin, ident, Pause::default(), true).await.unwrap();
    let keys = [world.admin_key.clone()];
    let mine = PortQuestion { keys: &keys, ..PortQuestion::new(&lease.id, Some(80)) };
    let grant = service.access().reach_port(mine).await.unwrap().grant;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Paused);
    let session = grant.open().await.unwrap();
    assert_eq!((world.get(&lease.id).await.phase, session.was_asleep), (Phase::Running, true));
    assert_eq!(service.sandboxes().awake(&world.admin, ident).await.unwrap().because.len(), 1);
    let closed = session.dial().await.map(drop).unwrap_err();
    assert_eq!(closed.code, Code::PortClosed);
    let gone = tokio::spawn(session.gone());
    drop(session);
    assert!(!gone.is_finished());
    service.sandboxes().restart(&world.admin, ident, true).await.unwrap();
    gone.await.unwrap();
    service.sandboxes().delete(&world.admin, ident, true).await.unwrap();
    assert_eq!(grant.open().await.unwrap_err().code, Code::SandboxNotFound);
}
