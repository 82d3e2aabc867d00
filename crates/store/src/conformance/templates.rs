//! Cases of template names, of builds, and of sandboxes that belong to a build.

use super::*;
use crate::{BuildQuery, TemplateChange, TemplateRow, VersionRow};
use atoll_model::{
    AwaitedImage, Build, BuildId, BuildStatus, MadeFrom, Principal, Scope, SnapshotId, StartRequest,
    StartSettings,
};

fn version(digest: &str, at_ms: i64) -> VersionRow {
    VersionRow {
        version: digest.to_owned(),
        made_from: MadeFrom::Build,
        manifest: Some(format!("manifest of {digest}")),
        warm: None,
        notes: vec!["a note".to_owned()],
        created_at_ms: at_ms,
    }
}

async fn two(store: &Subject) -> (TenantId, TenantId) {
    (tenant(store, 1, Quota::default()).await, tenant(store, 2, Quota::default()).await)
}

async fn publish(store: &Subject, tenant: &TenantId, name: &str, tag: &str, digest: &str) -> TemplateRow {
    store.publish_template(tenant, name, vec![tag.to_owned()], version(digest, 1)).await.unwrap()
}

pub(super) async fn a_tag_moves_and_its_versions_stay_known(store: Subject) {
    let (mine, other) = two(&store).await;
    publish(&store, &mine, "team/app", "latest", "v1").await;
    publish(&store, &mine, "team/app", "old", "v1").await;
    let row = publish(&store, &mine, "team/app", "latest", "v2").await;
    let tags = BTreeMap::from([("latest".to_owned(), "v2".to_owned()), ("old".to_owned(), "v1".to_owned())]);
    assert_eq!((&row.tags, row.public, row.changes.clone()), (&tags, false, StartSettings::default()));
    assert_eq!(store.template(&mine, "team/app").await.unwrap(), Some(row));
    assert_eq!(store.template(&other, "team/app").await.unwrap(), None);
    let known = store.template_versions(&mine, "team/app").await.unwrap();
    assert_eq!(known, [version("v1", 1), version("v2", 1)]);
    assert_eq!(store.untag_template(&mine, "team/app", vec!["old".into(), "none".into()]).await.unwrap(), 1);
    assert_eq!(store.untag_template(&other, "team/app", vec!["latest".into()]).await.unwrap(), 0);
    assert_eq!(store.template(&mine, "team/app").await.unwrap().unwrap().tags.len(), 1);
    let nobody = TenantId::from_entropy(entropy(77));
    let refused = store.publish_template(&nobody, "x", vec![], version("v", 1)).await;
    assert!(matches!(refused, Err(StoreError::NoTenant)));
}

pub(super) async fn a_renamed_template_keeps_all_but_its_name(store: Subject) {
    let (mine, other) = two(&store).await;
    for (tenant, name) in [(&mine, "app"), (&mine, "tool"), (&other, "new")] {
        publish(&store, tenant, name, "latest", "v1").await;
    }
    let to = |name: &str| TemplateChange { name: Some(name.to_owned()), ..Default::default() };
    let aliases = TemplateChange { aliases: Some(vec!["alias".to_owned()]), ..Default::default() };
    let before = store.change_template(&mine, "app", aliases).await.unwrap().unwrap();
    for taken in ["tool", "alias"] {
        let of = if taken == "tool" { "app" } else { "tool" };
        let refused = store.change_template(&mine, of, to(taken)).await;
        assert!(matches!(refused, Err(StoreError::Exists { .. })), "{taken}");
    }
    let after = store.change_template(&mine, "app", to("new")).await.unwrap().unwrap();
    assert_eq!(after, TemplateRow { name: "new".to_owned(), ..before });
    assert_eq!(store.template(&mine, "app").await.unwrap(), None);
    assert_eq!(store.template_versions(&mine, "new").await.unwrap(), [version("v1", 1)]);
    // A template may take one of its own aliases as its name.
    let after = store.change_template(&mine, "new", to("alias")).await.unwrap().unwrap();
    assert_eq!((after.name.as_str(), after.aliases.is_empty()), ("alias", true));
    assert_eq!(store.change_template(&mine, "none", to("x")).await.unwrap(), None);
}

pub(super) async fn names_and_aliases_of_a_tenant_do_not_meet(store: Subject) {
    let (mine, other) = two(&store).await;
    for (tenant, name) in [(&mine, "app"), (&mine, "tool"), (&other, "app")] {
        publish(&store, tenant, name, "latest", "v1").await;
    }
    let aliases = |names: &[&str]| TemplateChange {
        aliases: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..Default::default()
    };
    let row = store.change_template(&mine, "app", aliases(&["z", "a"])).await.unwrap().unwrap();
    assert_eq!(row.aliases, ["a", "z"]);
    assert_eq!(store.template(&mine, "z").await.unwrap().unwrap().name, "app");
    for taken in ["tool", "z"] {
        let refused = store.change_template(&mine, "tool", aliases(&["free", taken])).await;
        let is_own = taken == "tool";
        assert_eq!(matches!(refused, Err(StoreError::Exists { .. })), !is_own, "{taken}");
    }
    assert_eq!(store.template(&mine, "a").await.unwrap().unwrap().name, "app", "a refusal changes nothing");
    let refused = store.publish_template(&mine, "a", vec![], version("v", 1)).await;
    assert!(matches!(refused, Err(StoreError::Exists { .. })));
    store.change_template(&other, "app", aliases(&["a"])).await.unwrap().unwrap();
    assert_eq!(store.change_template(&mine, "none", TemplateChange::default()).await.unwrap(), None);
    assert!(store.remove_template(&mine, "app").await.unwrap());
    assert!(!store.remove_template(&mine, "app").await.unwrap());
    assert_eq!(store.template(&mine, "a").await.unwrap(), None);
}

pub(super) async fn public_templates_are_seen_by_others_and_changes_are_kept(store: Subject) {
    let (mine, other) = two(&store).await;
    publish(&store, &mine, "app", "latest", "v1").await;
    publish(&store, &mine, "own", "latest", "v1").await;
    let settings = StartSettings { port: Some(80), pool: Some(2), ..Default::default() };
    let change = TemplateChange {
        public: Some(true),
        changes: Some(settings.clone()),
        aliases: Some(vec!["nick".to_owned()]),
        name: None,
    };
    let row = store.change_template(&mine, "app", change).await.unwrap().unwrap();
    assert_eq!((row.public, row.changes), (true, settings));
    let names = |rows: Vec<TemplateRow>| rows.into_iter().map(|row| row.name).collect::<Vec<_>>();
    assert_eq!(names(store.templates(Some(&other)).await.unwrap()), ["app"]);
    assert_eq!(names(store.templates(Some(&mine)).await.unwrap()), ["app", "own"]);
    assert_eq!(names(store.templates(None).await.unwrap()), ["app", "own"]);
    for word in ["app", "nick"] {
        assert_eq!(store.public_template(word).await.unwrap().unwrap().name, "app");
    }
    assert_eq!(store.public_template("own").await.unwrap(), None);
    publish(&store, &other, "app", "latest", "v2").await;
    let public = TemplateChange { public: Some(true), ..Default::default() };
    store.change_template(&other, "app", public).await.unwrap();
    assert_eq!(store.public_template("app").await.unwrap().unwrap().tenant, mine, "the oldest");
}

pub(super) async fn what_nothing_stands_on_is_forgotten(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let warm = SnapshotId::from_entropy(entropy(9));
    for digest in ["by-lease", "by-snapshot", "by-nothing"] {
        let row = VersionRow { warm: Some(warm.clone()), ..version(digest, 1) };
        store.publish_template(&mine, "app", vec!["latest".into()], row).await.unwrap();
    }
    publish(&store, &mine, "app", "latest", "by-tag").await;
    publish(&store, &mine, "gone", "latest", "by-nothing").await;
    store.untag_template(&mine, "gone", vec!["latest".into()]).await.unwrap();
    let stands = Lease { template_version: "by-lease".into(), ..lease(1, &mine) };
    store.insert(new(&stands)).await.unwrap();
    let mut shot = life::snapshot(1, &mine, None);
    shot.template_version = "by-snapshot".into();
    store.put_snapshot(shot.clone(), None).await.unwrap();
    let start = atoll_model::Snapshot {
        warm: true,
        template_version: "by-nothing".into(),
        ..life::snapshot(2, &mine, None)
    };
    store.put_snapshot(start.clone(), None).await.unwrap();
    let listed = crate::SnapshotQuery { limit: 10, ..Default::default() };
    assert_eq!(store.snapshots(listed).await.unwrap().items, [shot.clone()], "a warm start is in no list");
    let versions = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let users =
        store.version_users(&mine, versions(&["by-lease", "by-snapshot", "by-nothing"])).await.unwrap();
    assert_eq!(users, (1, 1));
    let needed = store.needed_versions().await.unwrap();
    assert_eq!(needed, versions(&["by-lease", "by-snapshot", "by-tag"]));
    let known = store.template_versions(&mine, "app").await.unwrap();
    assert_eq!(
        known.iter().map(|row| row.version.as_str()).collect::<Vec<_>>(),
        ["by-lease", "by-snapshot", "by-tag"]
    );
    assert_eq!(store.template(&mine, "gone").await.unwrap(), None);
    assert_eq!(store.warm_snapshots().await.unwrap(), BTreeSet::from([warm]));
    advanced(&store, &stands, Phase::Deleted).await;
    store.delete_snapshot(&shot.id).await.unwrap();
    assert_eq!(store.needed_versions().await.unwrap(), versions(&["by-tag"]));
    assert_eq!(store.warm_snapshots().await.unwrap(), BTreeSet::new());
}

fn build(n: u32, tenant: &TenantId, status: BuildStatus) -> Build {
    Build {
        id: BuildId::from_entropy(entropy(n)),
        tenant: tenant.clone(),
        node: node(),
        template: "team/app:v1".parse().unwrap(),
        tags: vec![],
        status,
        step: 0,
        steps: 3,
        step_text: "RUN true".to_owned(),
        cached_steps: 0,
        failure: None,
        version: None,
        notes: vec![],
        created_at: at(i64::from(n)),
        started_at: None,
        ended_at: None,
    }
}

pub(super) async fn builds_are_kept_found_and_swept(store: Subject) {
    let (mine, other) = two(&store).await;
    for n in 1..=5 {
        let status = BuildStatus::ALL[n as usize - 1];
        store.put_build(build(n, &mine, status)).await.unwrap();
    }
    store.put_build(build(9, &other, BuildStatus::Ready)).await.unwrap();
    let first = Build { status: BuildStatus::Building, step: 2, ..build(1, &mine, BuildStatus::Waiting) };
    store.put_build(first.clone()).await.unwrap();
    assert_eq!(store.build(&first.id).await.unwrap(), Some(first.clone()));
    assert_eq!(
        store.find_build(Some(&mine), first.id.as_str()).await.unwrap().as_slice(),
        std::slice::from_ref(&first)
    );
    assert_eq!(store.find_build(None, &first.id.as_str()[..6]).await.unwrap().len(), 1);
    assert_eq!(store.find_build(Some(&other), first.id.as_str()).await.unwrap(), []);
    let open: Vec<BuildId> = store.open_builds().await.unwrap().into_iter().map(|build| build.id).collect();
    assert_eq!(open, [first.id.clone(), build(2, &mine, BuildStatus::Building).id]);
    let query = BuildQuery { tenant: Some(mine.clone()), limit: 2, ..Default::default() };
    let page = store.builds(query.clone()).await.unwrap();
    assert_eq!(page.items.iter().map(|build| build.created_at.wall_ms).collect::<Vec<_>>(), [5, 4]);
    let rest = BuildQuery { cursor: page.next_cursor, limit: 10, ..query.clone() };
    assert_eq!(store.builds(rest).await.unwrap().items.len(), 3);
    let count = |query: BuildQuery| {
        let store = Arc::clone(&store);
        async move { store.builds(BuildQuery { limit: 100, ..query }).await.unwrap().items.len() }
    };
    assert_eq!(count(BuildQuery { status: Some(BuildStatus::Ready), ..Default::default() }).await, 2);
    assert_eq!(count(BuildQuery { template: Some("team/app".into()), ..query.clone() }).await, 5);
    assert_eq!(count(BuildQuery { template: Some("app".into()), ..query }).await, 0);
    let nobody = TenantId::from_entropy(entropy(77));
    assert!(matches!(
        store.put_build(build(8, &nobody, BuildStatus::Ready)).await,
        Err(StoreError::NoTenant)
    ));
    let sweep =
        Sweep { events_kept: 99, deleted_before_ms: 0, idempotency_before_ms: 0, builds_before_ms: 5 };
    store.sweep(sweep).await.unwrap();
    assert_eq!(
        count(BuildQuery { tenant: Some(mine), ..Default::default() }).await,
        3,
        "open ones and the newest"
    );
    for _ in 0..2 {
        store.delete_build(&first.id).await.unwrap();
        assert_eq!(store.build(&first.id).await.unwrap(), None);
    }
}

pub(super) async fn a_sandbox_of_a_build_is_in_no_list(store: Subject) {
    let mine = tenant(&store, 1, Quota { sandboxes: Some(2), ..Default::default() }).await;
    let hidden = Lease { build: Some(BuildId::from_entropy(entropy(3))), ..lease(1, &mine) };
    store.insert(new(&hidden)).await.unwrap();
    store.insert(new(&lease(2, &mine))).await.unwrap();
    let query = LeaseQuery { limit: 10, include_deleted: true, ..Default::default() };
    assert_eq!(store.list(query).await.unwrap().items.len(), 1);
    assert_eq!(store.find(None, &hidden.id.as_str()[..6]).await.unwrap(), []);
    assert_eq!(
        store.find(Some(&mine), hidden.id.as_str()).await.unwrap().as_slice(),
        std::slice::from_ref(&hidden)
    );
    assert_eq!(store.template_users("base").await.unwrap(), 1);
    assert_eq!(store.live().await.unwrap().len(), 2, "adoption sees it");
    assert_eq!(store.usage(&mine).await.unwrap().sandboxes, 2, "it counts");
    assert!(matches!(store.insert(new(&lease(4, &mine))).await, Err(StoreError::Quota(_))));
    let all = EventQuery { tenant: Some(mine.clone()), limit: 10, ..Default::default() };
    assert_eq!(store.events(all.clone()).await.unwrap().len(), 1);
    assert_eq!(store.events(EventQuery { tenant: None, ..all.clone() }).await.unwrap().len(), 1);
    assert_eq!(store.events(EventQuery { sandbox: Some(hidden.id), ..all }).await.unwrap().len(), 1);
}

pub(super) async fn a_sandbox_that_waits_for_its_build_takes_name_and_quota(store: Subject) {
    let mine = tenant(&store, 1, Quota { sandboxes: Some(1), ..Default::default() }).await;
    let build = BuildId::from_entropy(entropy(3));
    let key = KeyId::from_entropy(entropy(9));
    let requested_by = Principal { key, key_name: None, tenant: mine.clone(), scope: Scope::User };
    let waiting = Lease {
        name: Some("app".to_owned()),
        template_version: String::new(),
        stage: Stage::Queued,
        instance: None,
        image_build: Some(build.clone()),
        awaits: Some(AwaitedImage { requested_by, start: StartRequest::default() }),
        ..lease(1, &mine)
    };
    store.insert(new(&waiting)).await.unwrap();
    assert_eq!(store.lease(&waiting.id).await.unwrap().as_ref(), Some(&waiting), "as it was written");
    assert_eq!(
        store.live().await.unwrap()[0],
        (waiting.clone(), None),
        "adoption sees it without an instance"
    );
    let listed = store.list(LeaseQuery { limit: 10, ..Default::default() }).await.unwrap().items;
    assert_eq!(listed.as_slice(), std::slice::from_ref(&waiting));
    // It takes the only slot of the quota, which only a step of its own build may use.
    assert!(matches!(store.insert(new(&lease(2, &mine))).await, Err(StoreError::Quota(_))));
    let other = Lease { build: Some(BuildId::from_entropy(entropy(4))), ..lease(4, &mine) };
    assert!(matches!(store.insert(new(&other)).await, Err(StoreError::Quota(_))));
    let step = Lease { build: Some(build.clone()), ..lease(5, &mine) };
    store.insert(new(&step)).await.unwrap();
    let second = Lease { build: Some(build), ..lease(6, &mine) };
    assert!(matches!(store.insert(new(&second)).await, Err(StoreError::Quota(_))), "one place is one step");
    for phase in [Phase::Deleting, Phase::Deleted] {
        let at = store.lease(&step.id).await.unwrap().unwrap();
        advanced(&store, &at, phase).await;
    }
    // When the image exists, its version is needed and the sandbox is found by it.
    let boots = Lease {
        template_version: "v9".to_owned(),
        stage: Stage::Booting,
        awaits: None,
        ..to(&waiting, Phase::Creating).lease
    };
    let change = Advance { lease: boots.clone(), ..to(&waiting, Phase::Creating) };
    store.advance(change).await.unwrap();
    assert!(store.needed_versions().await.unwrap().contains("v9"));
    // A failed sandbox keeps its name until it is deleted.
    let failed = advanced(&store, &boots, Phase::Failed).await;
    let again = Lease { name: Some("app".to_owned()), ..lease(7, &mine) };
    assert!(store.insert(new(&again)).await.is_err());
    let gone = advanced(&store, &failed, Phase::Deleting).await;
    advanced(&store, &gone, Phase::Deleted).await;
    assert_eq!(store.insert(new(&again)).await.unwrap(), Inserted::New);
}

pub(super) async fn steps_of_two_builds_use_the_slots_of_two_waiting_sandboxes(store: Subject) {
    let mine = tenant(&store, 1, Quota { sandboxes: Some(2), ..Default::default() }).await;
    let builds = [3, 4].map(|n| BuildId::from_entropy(entropy(n)));
    for (n, build) in (1..).zip(&builds) {
        let waiting = Lease {
            instance: None,
            image_build: Some(build.clone()),
            stage: Stage::Queued,
            ..lease(n, &mine)
        };
        store.insert(new(&waiting)).await.unwrap();
    }
    for (n, build) in (5..).zip(&builds) {
        let step = Lease { build: Some(build.clone()), ..lease(n, &mine) };
        store.insert(new(&step)).await.unwrap();
    }
    assert_eq!(store.usage(&mine).await.unwrap().sandboxes, 2);
    assert!(matches!(store.insert(new(&lease(7, &mine))).await, Err(StoreError::Quota(_))));
}

pub(super) async fn a_template_with_any_tag_is_found_by_its_name(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    for (n, template) in [(1, "app"), (2, "app:v1"), (3, "app:v2"), (4, "apps"), (5, "app/x")] {
        store.insert(new(&Lease { template: template.into(), ..lease(n, &mine) })).await.unwrap();
    }
    for (word, count) in [("app", 3), ("app:v1", 1), ("apps", 1), ("a", 0)] {
        let query = LeaseQuery { template: Some(word.into()), limit: 10, ..Default::default() };
        assert_eq!(store.list(query).await.unwrap().items.len(), count, "{word}");
    }
}
