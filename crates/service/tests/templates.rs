//! Templates by name: tags that move, images that are pulled, what may be removed and what may not.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::world::{Options, World, version};
use atoll_model::{
    Code, CreateSandbox, LimitsAsk, MadeFrom, Phase, Principal, Scope, Snapshot, Source, StartSettings,
};
use atoll_provider::fake::TEMPLATE;
use atoll_service::{
    ExportFormat, FailPoint, Filter, ImportFormat, ImportTemplate, NewSnapshot, PullImage, RegistryAuth,
    TemplateRecord, UpdateTemplate,
};
use atoll_store::VersionRow;
use tokio::io::AsyncReadExt;

fn from(template: &str) -> CreateSandbox {
    CreateSandbox { template: Some(template.to_owned()), ..Default::default() }
}

fn image(image: &str) -> CreateSandbox {
    CreateSandbox { image: Some(image.to_owned()), ..Default::default() }
}

fn quiet() -> atoll_service::Progress {
    Arc::new(|_| {})
}

/// Names a new version, as a pull or a build does.
async fn publish(world: &World, who: &Principal, name: &str, mark: &str) -> String {
    publish_with(world, who, name, mark, StartSettings::default()).await
}

async fn publish_with(
    world: &World,
    who: &Principal,
    name: &str,
    mark: &str,
    settings: StartSettings,
) -> String {
    let (name, tag) = name.split_once(':').unwrap_or((name, "latest"));
    let digest = version(&world.images, mark, settings);
    let row = VersionRow {
        version: digest.clone(),
        made_from: MadeFrom::Build,
        manifest: None,
        warm: None,
        notes: vec![],
        created_at_ms: 0,
    };
    world.store.publish_template(&who.tenant, name, vec![tag.to_owned()], row).await.unwrap();
    digest
}

async fn get(world: &World, who: &Principal, word: &str) -> Result<TemplateRecord, Code> {
    // The store was written directly: the service's cache must expire first.
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    world.service.templates().get(who, word).await.map_err(|error| error.code)
}

#[tokio::test(start_paused = true)]
async fn many_creates_of_one_image_fetch_it_once() {
    let world = World::new().await;
    let creates = (0..10).map(|_| world.try_create(image("python:3.12-slim")));
    let leases = futures::future::join_all(creates).await;
    for lease in &leases {
        let lease = lease.as_ref().unwrap();
        assert_eq!((lease.phase, lease.template.as_str()), (Phase::Running, "python:3.12-slim"));
    }
    assert_eq!(world.fetches.lock().unwrap().len(), 1);
    world.try_create(image("python:3.12-slim")).await.unwrap();
    assert_eq!(world.fetches.lock().unwrap().len(), 1, "it is here");
    let known = get(&world, &world.admin, "python:3.12-slim").await.unwrap();
    assert_eq!((known.made_from, known.kind.as_str()), (MadeFrom::Image, "image"));
    let filter = Filter { template: Some("python".to_owned()), ..Default::default() };
    assert_eq!(world.service.sandboxes().list(&world.admin, filter).await.unwrap().items.len(), 11);
    let refused = world.try_create(image("none")).await.unwrap_err();
    assert_eq!(refused.code, Code::ImageNotFound);
}

#[tokio::test(start_paused = true)]
async fn a_pull_moves_the_tag_and_sandboxes_stay_where_they_are() {
    let world = World::new().await;
    let ask = || PullImage { image: "app:v1".parse().unwrap(), auth: None, platform: None };
    let first = world.service.templates().pull(&world.admin, ask(), quiet()).await.unwrap();
    let lease = world.try_create(from("app:v1")).await.unwrap();
    assert_eq!(lease.template_version, first.version);
    let second = world.service.templates().pull(&world.admin, ask(), quiet()).await.unwrap();
    assert_ne!(second.version, first.version);
    assert_eq!(world.try_create(from("app:v1")).await.unwrap().template_version, second.version);
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    let removed = world.service.templates().untag(&world.admin, "app", &["v1".to_owned()]).await;
    removed.unwrap();
    world.quiet().await;
    world.service.templates().collect(&world.admin).await.unwrap();
    let started = world.service.sandboxes().start(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(started.template_version, first.version, "pinned");
    assert!(world.images.version(&first.version).is_ok());
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    world.service.templates().collect(&world.admin).await.unwrap();
    assert!(world.images.version(&first.version).is_err(), "nothing needs it any more");
}

#[tokio::test(start_paused = true)]
async fn the_tenants_own_comes_first_and_strangers_see_what_is_public() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    let own = publish(&world, &world.admin, "base", "mine").await;
    let app = publish(&world, &world.admin, "app", "app").await;
    assert_eq!(get(&world, &world.admin, "base").await.unwrap().version, own);
    assert_eq!(get(&world, &world.admin, "base:latest").await.unwrap().version, own);
    let built_in = get(&world, &stranger, "base").await.unwrap();
    assert_eq!((built_in.version.as_str(), built_in.tenant), ("1", None));
    assert_eq!(get(&world, &stranger, "base:latest").await.unwrap().version, "1");
    assert_eq!(get(&world, &stranger, "app").await, Err(Code::TemplateNotFound));
    let change =
        UpdateTemplate { public: Some(true), aliases: Some(vec!["nick".to_owned()]), ..Default::default() };
    world.service.templates().update(&world.admin, "app", change.clone()).await.unwrap();
    for word in ["app", "nick", "app:latest", &format!("app@{app}")] {
        assert_eq!(get(&world, &stranger, word).await.unwrap().version, app, "{word}");
    }
    let seen = world.service.templates().list(&stranger).await.unwrap();
    assert_eq!(seen.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["app", "base"]);
    let (lease, _) = world.service.sandboxes().create(&stranger, from("app"), true).await.unwrap();
    assert_eq!(lease.template_version, app);
    for refused in [
        world.service.templates().update(&stranger, "app", change).await.map(drop),
        world.service.templates().untag(&stranger, "app", &["latest".to_owned()]).await,
        world.service.templates().remove(&stranger, "app").await,
    ] {
        assert!(matches!(refused.unwrap_err().code, Code::TemplateNotFound | Code::Forbidden));
    }
    let denied = world.service.templates().collect(&stranger).await.unwrap_err();
    assert_eq!(denied.code, Code::Forbidden);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_cannot_put_its_template_where_others_expect_something_else() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    publish(&world, &stranger, "tools", "tools").await;
    let public = UpdateTemplate { public: Some(true), ..Default::default() };
    let aliases = UpdateTemplate { aliases: Some(vec!["python".to_owned()]), ..Default::default() };
    let refused = world.service.templates().update(&stranger, "tools", public.clone()).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    world.service.templates().update(&stranger, "tools", aliases.clone()).await.unwrap();
    let reset = UpdateTemplate { aliases: Some(Vec::new()), ..Default::default() };
    world.service.templates().update(&stranger, "tools", reset).await.unwrap();
    world.service.templates().update(&world.admin, "tools", public.clone()).await.unwrap();
    let refused = world.service.templates().update(&stranger, "tools", aliases).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    world.service.templates().update(&stranger, "tools", public).await.unwrap();
    let hidden = UpdateTemplate { public: Some(false), ..Default::default() };
    world.service.templates().update(&stranger, "tools", hidden).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_template_is_called_as_a_built_in_one() {
    let world = World::new().await;
    let digest = publish(&world, &world.admin, "app", "one").await;
    for name in [TEMPLATE.to_owned(), format!("{TEMPLATE}:latest")] {
        let ask = ImportTemplate { name: name.parse().unwrap(), format: ImportFormat::Auto };
        let refused =
            world.service.templates().import(&world.admin, ask, &[][..], quiet()).await.unwrap_err();
        assert_eq!(refused.code, Code::NameTaken, "{name}");
        assert!(refused.hint.unwrap().contains("another name"));
    }
    let whole = [format!("{TEMPLATE}:latest")];
    let refused = world.service.templates().tag(&world.admin, "app", &whole).await.unwrap_err();
    assert_eq!(refused.code, Code::NameTaken);
    let alias = UpdateTemplate { aliases: Some(vec![TEMPLATE.to_owned()]), ..Default::default() };
    let refused = world.service.templates().update(&world.admin, "app", alias).await.unwrap_err();
    assert_eq!(refused.code, Code::NameTaken);
    // Another tag of it hides nothing.
    world.service.templates().tag(&world.admin, "app", &[format!("{TEMPLATE}:mine")]).await.unwrap();
    assert_eq!(get(&world, &world.admin, TEMPLATE).await.unwrap().version, "1");
    assert_eq!(get(&world, &world.admin, &format!("{TEMPLATE}:mine")).await.unwrap().version, digest);
}

#[tokio::test(start_paused = true)]
async fn the_template_that_makes_itself_is_not_removed() {
    let world = World::new().await;
    let refused = world.service.templates().remove(&world.admin, "host").await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidRequest);
    assert!(refused.hint.is_some());
    let denied = world.service.templates().remove(&world.stranger().await, "host").await.unwrap_err();
    assert_eq!(denied.code, Code::Forbidden);
    world.service.templates().remove(&world.admin, TEMPLATE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_said_by_name() {
    let world = World::new().await;
    publish(&world, &world.admin, "app:v1", "one").await;
    for word in ["app", "app:v2", "other", "app@sha256:zz", "A B", "../x"] {
        assert_eq!(get(&world, &world.admin, word).await, Err(Code::TemplateNotFound), "{word}");
    }
    let error = world.service.templates().get(&world.admin, "app:v3").await.unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("its tags: v1"));
}

#[tokio::test(start_paused = true)]
async fn an_image_is_found_by_the_digest_of_its_manifest() {
    let world = World::new().await;
    let word = format!("app@sha256:{}", "cd".repeat(32));
    let first = world.try_create(image(&word)).await.unwrap();
    let again = world.try_create(image(&word)).await.unwrap();
    assert_eq!(first.template_version, again.template_version);
    assert_eq!(world.fetches.lock().unwrap().len(), 1);
    world.service.templates().collect(&world.admin).await.unwrap();
    assert!(get(&world, &world.admin, &word).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn sandboxes_start_with_what_the_template_and_its_owner_say() {
    let world = World::new().await;
    let settings = StartSettings {
        user: Some("app".to_owned()),
        workdir: Some("/srv".to_owned()),
        env: [("A".to_owned(), "version".to_owned()), ("B".to_owned(), "version".to_owned())].into(),
        command: Some(vec!["serve".to_owned()]),
        port: Some(3_000),
        limits: LimitsAsk { memory_mib: Some(99), ..Default::default() },
        ..Default::default()
    };
    publish_with(&world, &world.admin, "app", "one", settings).await;
    let lease = world.try_create(from("app")).await.unwrap();
    assert_eq!((lease.user.as_str(), lease.workdir.as_str()), ("app", "/srv"));
    assert_eq!(lease.command, Some(vec!["serve".to_owned()]));
    assert_eq!((lease.limits.memory_mib, lease.env["PORT"].as_str()), (99, "3000"));
    let over = StartSettings {
        env: [("B".to_owned(), "owner".to_owned())].into(),
        port: Some(4_000),
        limits: LimitsAsk { cpu: Some(2.0), ..Default::default() },
        ..Default::default()
    };
    let change = UpdateTemplate { settings: Some(over), ..Default::default() };
    let changed = world.service.templates().update(&world.admin, "app", change).await.unwrap();
    assert_eq!((changed.port, changed.settings.limits.memory_mib), (Some(4_000), Some(99)));
    let spec = CreateSandbox {
        env: [("PORT".to_owned(), "1".to_owned())].into(),
        limits: LimitsAsk { memory_mib: Some(50), ..Default::default() },
        ..from("app")
    };
    let lease = world.try_create(spec).await.unwrap();
    assert_eq!((lease.env["A"].as_str(), lease.env["B"].as_str()), ("version", "owner"));
    assert_eq!(
        (lease.env["PORT"].as_str(), lease.limits.memory_mib, lease.limits.cpu_milli),
        ("1", 50, 2_000)
    );
    // They stay when the tag moves, until they are reset.
    publish(&world, &world.admin, "app", "two").await;
    assert_eq!(get(&world, &world.admin, "app").await.unwrap().port, Some(4_000));
    let reset = UpdateTemplate { reset: true, ..Default::default() };
    assert_eq!(world.service.templates().update(&world.admin, "app", reset).await.unwrap().port, None);
    let bad = StartSettings { pool: Some(10_000), ..Default::default() };
    let bad = UpdateTemplate { settings: Some(bad), ..Default::default() };
    let refused = world.service.templates().update(&world.admin, "app", bad).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidRequest);
}

#[tokio::test(start_paused = true)]
async fn a_template_is_not_removed_while_it_is_used_but_its_tags_may_go() {
    let world = World::new().await;
    let digest = publish(&world, &world.admin, "app", "one").await;
    publish(&world, &world.admin, "app:old", "two").await;
    let lease = world.try_create(from("app")).await.unwrap();
    let refused = world.service.templates().remove(&world.admin, "app").await.unwrap_err();
    assert_eq!(refused.code, Code::TemplateInUse);
    world.service.templates().remove(&world.admin, "app:latest").await.unwrap();
    assert_eq!(get(&world, &world.admin, "app").await, Err(Code::TemplateNotFound));
    let shot = world
        .service
        .sandboxes()
        .snapshot(&world.admin, lease.id.as_str(), NewSnapshot::default())
        .await
        .unwrap();
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    world.service.templates().collect(&world.admin).await.unwrap();
    assert!(world.images.version(&digest).is_ok(), "a snapshot stands on it");
    let refused = world.service.templates().remove(&world.admin, "app").await.unwrap_err();
    assert_eq!(refused.code, Code::TemplateInUse);
    world.service.sandboxes().delete_snapshot(&world.admin, shot.id.as_str()).await.unwrap();
    world.service.templates().remove(&world.admin, "app").await.unwrap();
    world.service.templates().collect(&world.admin).await.unwrap();
    assert!(world.images.version(&digest).is_err());
    assert_eq!(world.service.templates().list(&world.admin).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_collection_never_takes_what_a_create_is_about_to_use() {
    let (armed, reached) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
    let go_on = Arc::new(tokio::sync::Notify::new());
    let failpoint = {
        let (armed, reached, go_on) = (armed.clone(), reached.clone(), go_on.clone());
        FailPoint::new(move |place| {
            let (armed, reached, go_on) = (armed.clone(), reached.clone(), go_on.clone());
            Box::pin(async move {
                if place == "insert.before" && armed.swap(false, Ordering::SeqCst) {
                    reached.notify_one();
                    go_on.notified().await;
                }
            })
        })
    };
    let world = World::with(Options { failpoint: Some(failpoint), ..Options::default() }).await;
    let digest = publish(&world, &world.admin, "app", "one").await;
    armed.store(true, Ordering::SeqCst);
    let (service, admin) = (world.service.clone(), world.admin.clone());
    let create = tokio::spawn(async move { service.sandboxes().create(&admin, from("app"), true).await });
    reached.notified().await;
    world.store.untag_template(&world.admin.tenant, "app", vec!["latest".to_owned()]).await.unwrap();
    world.service.templates().collect(&world.admin).await.unwrap();
    assert!(world.images.version(&digest).is_ok(), "it is held");
    go_on.notify_one();
    let (lease, _) = create.await.unwrap().unwrap();
    world.service.templates().collect(&world.admin).await.unwrap();
    assert!(world.images.version(&digest).is_ok(), "it is used");
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    world.service.templates().collect(&world.admin).await.unwrap();
    assert!(world.images.version(&digest).is_err());
}

#[tokio::test(start_paused = true)]
async fn sandboxes_of_a_template_with_a_warm_start_begin_with_its_processes() {
    let world = World::new().await;
    let digest = publish(&world, &world.admin, "app", "one").await;
    let lease = world.try_create(from("app")).await.unwrap();
    let ask = NewSnapshot { name: None, memory: true, ..Default::default() };
    let shot = world.service.sandboxes().snapshot(&world.admin, lease.id.as_str(), ask).await.unwrap();
    let (shot, token) = world.store.snapshot(&shot.id).await.unwrap().unwrap();
    let warm = Snapshot { warm: true, ..shot };
    world.store.put_snapshot(warm.clone(), token).await.unwrap();
    let row = VersionRow {
        version: digest.clone(),
        made_from: MadeFrom::Build,
        manifest: None,
        warm: Some(warm.id.clone()),
        notes: vec![],
        created_at_ms: 0,
    };
    world.store.publish_template(&world.admin.tenant, "app", vec!["latest".to_owned()], row).await.unwrap();
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert!(get(&world, &world.admin, "app").await.unwrap().warm);
    assert_eq!(
        world.service.sandboxes().get_snapshot(&world.admin, warm.id.as_str()).await.unwrap_err().code,
        Code::SnapshotNotFound
    );
    let spec = CreateSandbox { env: [("X".to_owned(), "1".to_owned())].into(), ..from("app") };
    let lease = world.try_create(spec).await.unwrap();
    let source = Source::Snapshot { snapshot: warm.id.clone(), memory: true, fork: false };
    assert_eq!((lease.phase, &lease.source), (Phase::Running, &source));
    assert_eq!((lease.parent.clone(), lease.env["X"].as_str()), (None, "1"));
    assert_eq!(
        world.service.sandboxes().lineage(&world.admin, lease.id.as_str()).await.unwrap().snapshot,
        None
    );
    world.fake.damage(&warm.id);
    let booted = world.try_create(from("app")).await.unwrap();
    assert_eq!(booted.phase, Phase::Running, "slower, not worse");
    let own = CreateSandbox { command: Some(vec!["other".to_owned()]), ..from("app") };
    assert_eq!(world.try_create(own).await.unwrap().source, Source::Template);
    world.service.templates().collect(&world.admin).await.unwrap();
    assert_eq!(world.fake.snapshots().as_slice(), std::slice::from_ref(&warm.id));
    // After a crash it still exists, and is removed with its version.
    let world = world.crash_and_reopen().await;
    assert_eq!(world.fake.snapshots(), [warm.id]);
    for lease in world.service.sandboxes().list(&world.admin, Filter::default()).await.unwrap().items {
        world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    }
    world.service.templates().remove(&world.admin, "app").await.unwrap();
    world.service.templates().collect(&world.admin).await.unwrap();
    assert_eq!(world.fake.snapshots(), []);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_operator_shows_what_the_operator_has() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    assert_eq!(stranger.scope, Scope::User);
    let auth = RegistryAuth::Basic { username: "u".to_owned(), password: "canary".to_owned() };
    for (who, auth) in [(&world.admin, None), (&stranger, None), (&stranger, Some(auth))] {
        let ask = PullImage { image: "app".parse().unwrap(), auth, platform: None };
        world.service.templates().pull(who, ask, quiet()).await.unwrap();
    }
    let fetches = world.fetches.lock().unwrap();
    let asked: Vec<_> = fetches.iter().map(|fetch| (fetch.operator, fetch.auth.is_some())).collect();
    assert_eq!(asked, [(true, false), (false, false), (false, true)]);
    assert!(!format!("{:?}", fetches[2].auth).contains("canary"));
}

#[tokio::test(start_paused = true)]
async fn pools_are_wished_for_what_names_mean_now() {
    let world = World::new().await;
    let settings = StartSettings { pool: Some(3), ..Default::default() };
    let digest = publish_with(&world, &world.admin, "app", "one", settings).await;
    let world = world.crash_and_reopen().await;
    world.quiet().await;
    let wishes = world.fake.wishes();
    assert_eq!((wishes.len(), wishes[0].template_version.as_str(), wishes[0].size), (1, digest.as_str(), 3));
    let over = StartSettings { pool: Some(0), ..Default::default() };
    let change = UpdateTemplate { settings: Some(over), ..Default::default() };
    world.service.templates().update(&world.admin, "app", change).await.unwrap();
    world.quiet().await;
    assert_eq!(world.fake.wishes(), []);
}

#[tokio::test(start_paused = true)]
async fn tags_and_other_names_are_given_to_a_version() {
    let world = World::new().await;
    let digest = publish(&world, &world.admin, "app", "one").await;
    let tags = ["v1".to_owned(), "team/copy:x".to_owned()];
    world.service.templates().tag(&world.admin, "app", &tags).await.unwrap();
    for word in ["app:v1", "team/copy:x", "app"] {
        assert_eq!(get(&world, &world.admin, word).await.unwrap().version, digest, "{word}");
    }
    for bad in ["", "A B", "x@sha256:1", "../x:y"] {
        let refused =
            world.service.templates().tag(&world.admin, "app", &[bad.to_owned()]).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest, "{bad}");
    }
}

#[tokio::test]
async fn a_file_becomes_a_template_and_a_template_a_file() {
    let world = World::new().await;
    // A tar of one folder: name, mode, ids, size, time, checksum, type.
    let mut tar = vec![0_u8; 512];
    for (at, field) in [
        (0, "srv/"),
        (100, "0000755\0"),
        (108, "0000000\0"),
        (116, "0000000\0"),
        (124, "00000000000\0"),
        (136, "00000000000\0"),
        (156, "5"),
        (257, "ustar\0"),
        (263, "00"),
    ] {
        tar[at..at + field.len()].copy_from_slice(field.as_bytes());
    }
    let sum: u32 = tar.iter().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend([0_u8; 1024]);
    let ask = |name: &str| ImportTemplate { name: name.parse().unwrap(), format: ImportFormat::Rootfs };
    let made = world
        .service
        .templates()
        .import(&world.admin, ask("app:v1"), std::io::Cursor::new(tar), quiet())
        .await
        .unwrap();
    assert_eq!(
        (made.name.as_str(), made.tag.as_deref(), made.made_from),
        ("app", Some("v1"), MadeFrom::Import)
    );
    let (_, mut file) =
        world.service.templates().export(&world.admin, "app:v1", ExportFormat::OciArchive).await.unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).await.unwrap();
    let ask = ImportTemplate { name: "again".parse().unwrap(), format: ImportFormat::Auto };
    let again = world
        .service
        .templates()
        .import(&world.admin, ask, std::io::Cursor::new(bytes), quiet())
        .await
        .unwrap();
    assert_eq!(again.layers, made.layers);
    let ask = ImportTemplate { name: "bad".parse().unwrap(), format: ImportFormat::Auto };
    let junk = std::io::Cursor::new(vec![7_u8; 4_096]);
    let refused = world.service.templates().import(&world.admin, ask, junk, quiet()).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidRequest, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn sandboxes_of_builds_are_hidden_and_end_with_the_server() {
    let world = World::new().await;
    let build = atoll_model::BuildId::from_entropy([3; 20]);
    let digest = version(&world.images, "step", StartSettings::default());
    let spec = CreateSandbox { build: Some(build), ..from(&format!("app@{digest}")) };
    let lease = world.try_create(spec).await.unwrap();
    assert_eq!((lease.template.as_str(), lease.template_version.as_str()), ("app", digest.as_str()));
    assert_eq!(world.service.sandboxes().list(&world.admin, Filter::default()).await.unwrap().items, []);
    assert_eq!(world.service.events(&world.admin, None, None, 0).await.unwrap(), []);
    let refused = world.try_create(from(&format!("app@{digest}"))).await.unwrap_err();
    assert_eq!(refused.code, Code::TemplateNotFound, "only builds name what nobody named");
    let world = world.crash_and_reopen().await;
    world.until(&lease.id, Phase::Deleted).await;
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn images_of_vendors_resolve_to_built_in_templates_whatever_their_release() {
    let world = World::new().await;
    let digest = format!("sha256:{}", "ab".repeat(32));
    for image in [
        "e2bdev/base".to_owned(),
        "docker.io/e2bdev/code-interpreter:v1".to_owned(),
        "daytonaio/sandbox:0.6.0-slim".to_owned(),
        format!("docker.io/daytonaio/sandbox@{digest}"),
    ] {
        let found = world.service.templates().get(&world.admin, &image).await.unwrap();
        assert_eq!((found.name.as_str(), found.notes.len()), ("host", 1), "{image}");
    }
    for other in [format!("{TEMPLATE}@{digest}"), "e2bdev/other".to_owned()] {
        let refused = world.service.templates().get(&world.admin, &other).await.unwrap_err();
        assert_eq!(refused.code, Code::TemplateNotFound, "{other}");
    }
}
