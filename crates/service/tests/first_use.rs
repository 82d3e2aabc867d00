//! Templates of the catalogue that are made at their first use: one build for all callers, who wait for it or are told
//! how far it is.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests own their tasks")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::{Maker, Options, World};
use atoll_model::{Code, CreateSandbox, Origin, Phase, QueueAsk};
use atoll_service::{CreateWait, ServiceError};

fn science() -> CreateSandbox {
    CreateSandbox { template: Some("data-science".to_owned()), ..Default::default() }
}

fn named() -> CreateSandbox {
    CreateSandbox { from: Origin::Named("data-science:latest".to_owned()), ..Default::default() }
}

const WAITS: CreateWait = CreateWait { until_made: true, for_template: true };

async fn world(maker: &Arc<Maker>) -> World {
    World::with(Options { maker: Arc::clone(maker), ..Options::default() }).await
}

/// A create that does not wait for the template, with the time that it takes.
async fn refused(world: &World, spec: CreateSandbox) -> ServiceError {
    let (service, who) = (world.service.clone(), world.admin.clone());
    let create = tokio::spawn(async move { service.sandboxes().create(&who, spec, true).await });
    while !create.is_finished() {
        world.advance(Duration::from_millis(100)).await;
    }
    create.await.unwrap().unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn one_build_serves_who_waits_and_who_asks_again() {
    let maker = Arc::new(Maker::default());
    let world = world(&maker).await;
    let stranger = world.stranger().await;
    for spec in [science(), named()] {
        let told = refused(&world, spec).await;
        assert_eq!(told.code, Code::TemplateNotReady, "{told}");
        assert!(told.message.contains("unpacking packages") && told.retry_after_s.is_some(), "{told:?}");
    }
    let early = world.service.templates().get(&stranger, "data-science").await.unwrap_err();
    assert_eq!(early.code, Code::TemplateNotFound, "a look makes nothing");
    let (service, who) = (world.service.clone(), stranger.clone());
    let first = tokio::spawn(async move { service.templates().get_for_create(&who, "data-science").await });
    while !first.is_finished() {
        world.advance(Duration::from_millis(100)).await;
    }
    assert_eq!(first.await.unwrap().unwrap_err().code, Code::TemplateNotReady);
    let waiting = [science(), named()].map(|spec| {
        let (service, who) = (world.service.clone(), stranger.clone());
        tokio::spawn(async move { service.sandboxes().create(&who, spec, WAITS).await })
    });
    let queued = CreateSandbox { queue: Some(QueueAsk::default()), ..science() };
    let (service, who) = (world.service.clone(), world.admin.clone());
    let create = tokio::spawn(async move { service.sandboxes().create(&who, queued, false).await });
    while !create.is_finished() {
        world.advance(Duration::from_millis(100)).await;
    }
    let (queued, _) = create.await.unwrap().unwrap();
    assert_eq!(queued.phase, Phase::Creating);
    maker.end(true);
    for create in waiting {
        while !create.is_finished() {
            world.advance(Duration::from_millis(100)).await;
        }
        let (lease, _) = create.await.unwrap().unwrap();
        assert_eq!(lease.phase, Phase::Running);
    }
    for _ in 0..100 {
        world.advance(Duration::from_millis(100)).await;
    }
    assert_eq!(world.get(&queued.id).await.phase, Phase::Running);
    assert_eq!(maker.begun.load(Ordering::SeqCst), 1, "one build for all callers");
    world.try_create(science()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_the_answer_to_all_and_the_next_use_tries_again() {
    let maker = Arc::new(Maker::default());
    maker.end(false);
    let world = world(&maker).await;
    for _ in 0..2 {
        let told = refused(&world, science()).await;
        assert_eq!((told.code, told.message.as_str()), (Code::NoCapacity, "the disk is full"));
        let waits = world.service.sandboxes().create(&world.admin, science(), WAITS).await.unwrap_err();
        assert_eq!(waits.code, Code::NoCapacity);
    }
    assert_eq!(maker.begun.load(Ordering::SeqCst), 1, "a failure is not repeated at once");
    let found = world.service.sandboxes().list(&world.admin, atoll_service::Filter::default()).await.unwrap();
    assert!(found.items.is_empty(), "{found:?}");
    maker.end(true);
    world.advance(Duration::from_secs(31)).await;
    let (lease, _) = world.service.sandboxes().create(&world.admin, science(), WAITS).await.unwrap();
    assert_eq!(lease.phase, Phase::Running);
}

#[tokio::test(start_paused = true)]
async fn only_the_catalogue_is_made_and_the_operator_can_forbid_it() {
    let maker = Arc::new(Maker::default());
    let forbidden = World::with(Options {
        maker: Arc::clone(&maker),
        config: Some(Box::new(|config| config.make_at_first_use = false)),
        ..Options::default()
    })
    .await;
    for spec in [science(), named()] {
        assert_eq!(forbidden.try_create(spec).await.unwrap_err().code, Code::TemplateNotFound);
    }
    let world = world(&maker).await;
    for name in ["data-science:v2", "code-interpreter", "mine", "data-science@sha256:00"] {
        let spec = CreateSandbox { template: Some(name.to_owned()), ..Default::default() };
        assert_eq!(world.try_create(spec).await.unwrap_err().code, Code::TemplateNotFound, "{name}");
    }
    assert_eq!(maker.begun.load(Ordering::SeqCst), 0);
}
