//! Previews over the fake provider: who is admitted by which credential, for how long, and how a connection to a port
//! affects a sandbox.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::world::World;
use atoll_model::{Code, CreateSandbox, Phase, SandboxId};
use atoll_service::{NewPreview, Pause, PortCredentials, PreviewBy, ServiceError};

const NOTHING: PortCredentials<'static> = PortCredentials { keys: &[], tokens: &[], unknown_key: false };

fn by_token(port: u16, expires_s: u64) -> NewPreview {
    NewPreview { port, expires_s: Some(expires_s), public: false }
}

async fn refused(world: &World, id: &SandboxId, port: Option<u16>, shown: PortCredentials<'_>) -> Code {
    let refusal: ServiceError = world.service.access().admit(id, port, shown).await.unwrap_err();
    refusal.code
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_decides_and_what_is_not_there_looks_the_same() {
    let world = World::new().await;
    let lease = world.create().await;
    let stranger = world.stranger().await;
    let nobody = SandboxId::from_entropy([3; 20]);
    let guess = ["apv_guess".to_owned()];
    for id in [&lease.id, &nobody] {
        let strange =
            PortCredentials { keys: std::slice::from_ref(&stranger), tokens: &[], unknown_key: false };
        assert_eq!(refused(&world, id, Some(80), NOTHING).await, Code::Unauthenticated);
        assert_eq!(refused(&world, id, Some(80), strange).await, Code::SandboxNotFound);
        assert_eq!(
            refused(&world, id, Some(80), PortCredentials { keys: &[], tokens: &guess, unknown_key: false })
                .await,
            Code::Forbidden
        );
    }
    let mine = PortCredentials { keys: std::slice::from_ref(&world.admin), tokens: &[], unknown_key: false };
    let pass = world.service.access().admit(&lease.id, Some(80), mine).await.unwrap();
    assert_eq!((pass.port, pass.by), (80, PreviewBy::Key));
    // The agent's own port is never reachable, by number or by default.
    assert_eq!(refused(&world, &lease.id, Some(49_983), mine).await, Code::SandboxNotFound);
    let env = [("PORT".to_owned(), "49983".to_owned())].into();
    let sly = world.try_create(CreateSandbox { env, ..Default::default() }).await.unwrap();
    assert_eq!(refused(&world, &sly.id, None, mine).await, Code::SandboxNotFound);
    assert_eq!(world.service.access().admit(&lease.id, None, mine).await.unwrap().port, 8_080);
    let env = [("PORT".to_owned(), "3000".to_owned())].into();
    let own = world.try_create(CreateSandbox { env, ..Default::default() }).await.unwrap();
    assert_eq!(world.service.access().admit(&own.id, None, mine).await.unwrap().port, 3_000);
}

#[tokio::test(start_paused = true)]
async fn a_token_opens_its_own_port_until_it_ends_or_is_removed() {
    let world = World::new().await;
    let (lease, other) = (world.create().await, world.create().await);
    let (service, who, ident) = (&world.service, &world.admin, lease.id.as_str());
    let made = service.access().create_preview(who, ident, by_token(80, 60)).await.unwrap();
    let tokens = [made.token.clone().unwrap()];
    let shown = PortCredentials { keys: &[], tokens: &tokens, unknown_key: false };
    assert!(matches!(
        service.access().admit(&lease.id, Some(80), shown).await.unwrap().by,
        PreviewBy::Token { left_s: 60, .. }
    ));
    assert_eq!(refused(&world, &lease.id, Some(81), shown).await, Code::Forbidden);
    assert_eq!(refused(&world, &other.id, Some(80), shown).await, Code::Forbidden);
    world.advance(Duration::from_secs(59)).await;
    assert!(service.access().admit(&lease.id, Some(80), shown).await.is_ok());
    world.advance(Duration::from_secs(1)).await;
    assert_eq!(refused(&world, &lease.id, Some(80), shown).await, Code::Forbidden);
    assert_eq!(service.access().previews(who, ident).await.unwrap(), []);
    // Removed, though it was just used and is remembered.
    let made = service.access().create_preview(who, ident, by_token(80, 60)).await.unwrap();
    let tokens = [made.token.clone().unwrap()];
    let shown = PortCredentials { keys: &[], tokens: &tokens, unknown_key: false };
    assert!(service.access().admit(&lease.id, Some(80), shown).await.is_ok());
    let stranger = world.stranger().await;
    let strange = service.access().delete_preview(&stranger, ident, &made.preview.id).await.unwrap_err();
    assert_eq!(strange.code, Code::SandboxNotFound);
    service.access().delete_preview(who, ident, &made.preview.id).await.unwrap();
    assert_eq!(refused(&world, &lease.id, Some(80), shown).await, Code::Forbidden);
    // Public, then not.
    let open = NewPreview { port: 80, expires_s: None, public: true };
    let open = service.access().create_preview(who, ident, open).await.unwrap();
    assert_eq!((open.token, open.preview.expires_at_ms), (None, None));
    assert_eq!(service.access().admit(&lease.id, Some(80), NOTHING).await.unwrap().by, PreviewBy::Public);
    service.access().delete_preview(who, ident, &open.preview.id).await.unwrap();
    assert_eq!(refused(&world, &lease.id, Some(80), NOTHING).await, Code::Unauthenticated);
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
    let mine = PortCredentials { keys: std::slice::from_ref(&world.admin), tokens: &[], unknown_key: false };
    let pass = service.access().admit(&lease.id, Some(80), mine).await.unwrap();
    assert_eq!(world.get(&lease.id).await.phase, Phase::Paused);
    let way = service.access().reach(&pass).await.unwrap();
    assert_eq!((world.get(&lease.id).await.phase, way.was_asleep), (Phase::Running, true));
    assert_eq!(service.sandboxes().awake(&world.admin, ident).await.unwrap().because.len(), 1);
    let closed = service.access().dial_port(&pass, &way).await.map(drop).unwrap_err();
    assert_eq!(closed.code, Code::PortClosed);
    let gone = tokio::spawn(way.gone());
    drop(way);
    assert!(!gone.is_finished());
    service.sandboxes().restart(&world.admin, ident, true).await.unwrap();
    gone.await.unwrap();
    service.sandboxes().delete(&world.admin, ident, true).await.unwrap();
    assert_eq!(service.access().reach(&pass).await.unwrap_err().code, Code::SandboxNotFound);
}
