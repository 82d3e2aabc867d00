//! The store of uploads: one bound for all uploads of a tenant, credentials that are stored nowhere, parts that survive a crash.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use crate::world::{Options, World};
use atoll_model::{Build, BuildStatus, Code, Principal};
use atoll_service::{BuildContext, BuildSource, ServiceError, StartBuild, UploadError, UploadHash};

const MIB: usize = 1 << 20;

fn bytes(count: usize) -> BuildContext {
    Box::new(std::io::Cursor::new(vec![7; count]))
}

fn hash(number: u8) -> UploadHash {
    hex::encode([number; 16]).parse().unwrap()
}

fn held(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(
            |entry| if entry.path().is_dir() { held(&entry.path()) } else { entry.metadata().unwrap().len() },
        )
        .sum()
}

async fn send(world: &World, who: &Principal, number: u8, count: usize) -> Result<(), ServiceError> {
    let ticket = world.service.builds().upload_ticket(who, hash(number).as_str()).unwrap();
    world.service.builds().take_upload(&ticket, bytes(count)).await
}

fn of_dockerfile(name: &str, contexts: &[u8]) -> StartBuild {
    let contexts = contexts.iter().map(|number| hash(*number).as_str().to_owned()).collect();
    let source = BuildSource::Text("FROM scratch\nRUN [\"echo\"]\n".to_owned());
    StartBuild { contexts, ..StartBuild::of(name.parse().unwrap(), source) }
}

async fn ended(world: &World, build: &Build) -> Build {
    for _ in 0..2_000 {
        let build = world.service.builds().get(&world.admin, build.id.as_str()).await.unwrap();
        if build.status.is_end() {
            return build;
        }
        world.quiet().await;
    }
    panic!("build {} does not end", build.id);
}

#[tokio::test(start_paused = true)]
async fn uploads_of_every_front_count_against_one_bound() {
    let config =
        Box::new(|config: &mut atoll_service::ServiceConfig| config.build_context_bytes = MIB as u64);
    let world = World::with(Options { config: Some(config), ..Options::default() }).await;
    let (service, who) = (&world.service, world.stranger().await);
    let folder = world.data().join("uploads").join(who.tenant.as_str());
    let storage = service.builds().admit_storage(&service.builds().storage_access(&who).token).await.unwrap();
    for number in 1..=3 {
        send(&world, &who, number, MIB).await.unwrap();
    }
    storage.put(&hash(4), bytes(MIB)).await.unwrap();
    assert_eq!(held(&folder), 4 * MIB as u64);
    // The least recently used archive makes room, whichever front it came by.
    storage.put(&hash(5), bytes(MIB)).await.unwrap();
    assert_eq!(held(&folder), 4 * MIB as u64);
    assert!(!service.builds().has_upload(&who, hash(1).as_str()).await.unwrap());
    assert!(
        service.builds().has_upload(&who, hash(4).as_str()).await.unwrap(),
        "an object is an archive like any other"
    );
    assert_eq!(storage.size(&hash(2)).await, Some(MIB as u64));
    let large = storage.put(&hash(6), bytes(MIB + 1)).await.unwrap_err();
    assert_eq!(large.code, Code::PayloadTooLarge);
    // Unfinished uploads never make room.
    let upload = storage.begin(&hash(7)).await.unwrap();
    for number in 1..=4 {
        assert_eq!(storage.put_part(&hash(7), &upload, number, bytes(MIB)).await.unwrap(), MIB as u64);
    }
    let full =
        |error: ServiceError| assert_eq!((error.code, error.retry_after_s), (Code::QuotaExceeded, Some(60)));
    full(send(&world, &who, 8, 10).await.unwrap_err());
    full(storage.put(&hash(8), bytes(10)).await.unwrap_err());
    let build = StartBuild::of("app".parse().unwrap(), BuildSource::Dockerfile { path: None });
    full(service.builds().start(&who, build, Some(bytes(10))).await.unwrap_err());
    assert_eq!(held(&folder), 4 * MIB as u64, "nothing is left of what was refused");
    send(&world, &world.admin, 8, MIB).await.unwrap();
    let long = storage.finish(&hash(7), &upload).await.unwrap_err();
    assert!(matches!(long, UploadError::Refused(error) if error.code == Code::PayloadTooLarge));
    storage.abort(&hash(7), &upload).await.unwrap();
    send(&world, &who, 8, 10).await.unwrap();
    assert_eq!(held(&folder), 10);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn storage_credentials_and_parts_survive_a_crash_of_the_server() {
    let world = World::new().await;
    let who = world.stranger().await;
    let token = world.service.builds().storage_access(&who).token;
    let storage = world.service.builds().admit_storage(&token).await.unwrap();
    assert_eq!(storage.tenant(), &who.tenant);
    let upload = storage.begin(&hash(1)).await.unwrap();
    storage.put_part(&hash(1), &upload, 2, bytes(3)).await.unwrap();
    drop(storage);
    let half = world.data().join("uploads").join(who.tenant.as_str()).join("x.0.part");
    std::fs::write(&half, "half").unwrap();
    let world = world.crash_and_reopen().await;
    assert!(!half.exists(), "what was half received is gone");
    let storage = world.service.builds().admit_storage(&token).await.unwrap();
    storage.put_part(&hash(1), &upload, 1, bytes(5)).await.unwrap();
    for (number, wrong) in [(0, UploadError::InvalidPart), (10_001, UploadError::InvalidPart)] {
        let refused = storage.put_part(&hash(1), &upload, number, bytes(1)).await.unwrap_err();
        assert_eq!(refused.to_string(), wrong.to_string());
    }
    for (other, id) in [(2, upload.as_str()), (1, "../x"), (1, "abcd")] {
        let refused = storage.put_part(&hash(other), id, 1, bytes(1)).await.unwrap_err();
        assert!(matches!(refused, UploadError::NoSuchUpload), "{refused}");
    }
    storage.finish(&hash(1), &upload).await.unwrap();
    assert_eq!(storage.size(&hash(1)).await, Some(8));
    assert!(matches!(storage.finish(&hash(1), &upload).await.unwrap_err(), UploadError::NoSuchUpload));
    let empty = storage.begin(&hash(3)).await.unwrap();
    assert!(matches!(storage.finish(&hash(3), &empty).await.unwrap_err(), UploadError::InvalidPart));
    storage.abort(&hash(3), &empty).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn expired_and_forged_storage_credentials_are_refused() {
    let world = World::new().await;
    let (service, who) = (&world.service, world.stranger().await);
    let access = service.builds().storage_access(&who);
    let (other_tenant, rest) = access.token.split_once('.').unwrap();
    assert_eq!(other_tenant, who.tenant.as_str());
    let (signed, proof) = access.token.rsplit_once('.').unwrap();
    let (parts, until) = signed.rsplit_once('.').unwrap();
    let later = until.parse::<i64>().unwrap() + 86_400;
    for bad in [
        String::new(),
        "...".to_owned(),
        access.secret.clone(),
        access.access_key.clone(),
        format!("{}.{rest}", world.admin.tenant),
        format!("{parts}.{later}.{proof}"),
        format!("{}.x", access.token),
        access.token[..access.token.len() - 1].to_owned(),
        service.builds().upload_ticket(&who, hash(1).as_str()).unwrap(),
    ] {
        let refused = service.builds().admit_storage(&bad).await.err().map(|error| error.code);
        assert_eq!(refused, Some(Code::Forbidden), "{bad}");
    }
    assert!(service.builds().take_upload(&access.token, bytes(1)).await.is_err(), "it is no ticket either");
    assert!(service.builds().admit_storage(&access.token).await.is_ok());
    world.advance(Duration::from_secs(3_700)).await;
    assert_eq!(service.builds().admit_storage(&access.token).await.err().unwrap().code, Code::Forbidden);
    let fresh = service.builds().storage_access(&who).token;
    assert!(service.builds().admit_storage(&fresh).await.is_ok());
    service.access().delete_key(&world.admin, &who.key).await.unwrap();
    assert_eq!(service.builds().admit_storage(&fresh).await.err().unwrap().code, Code::Forbidden);
}

#[tokio::test(start_paused = true)]
async fn a_build_takes_uploaded_contexts_by_their_hashes() {
    let world = World::new().await;
    let (service, admin) = (&world.service, &world.admin);
    let missing = service.builds().start(admin, of_dockerfile("app", &[1]), None).await.unwrap_err();
    assert_eq!(missing.code, Code::InvalidRequest);
    assert!(missing.message.contains("were not uploaded"), "{missing}");
    let both = service.builds().start(admin, of_dockerfile("app", &[1]), Some(bytes(1))).await.unwrap_err();
    assert_eq!(both.code, Code::InvalidRequest);
    for number in [1, 2] {
        // Two empty archives: nothing but their end.
        let ticket = service.builds().upload_ticket(admin, hash(number).as_str()).unwrap();
        service.builds().take_upload(&ticket, Box::new(std::io::Cursor::new(vec![0; 1_024]))).await.unwrap();
    }
    send(&world, admin, 3, 2_000).await.unwrap();
    for (name, contexts, status) in [
        ("one", &[1][..], BuildStatus::Ready),
        ("two", &[1, 2, 1], BuildStatus::Ready),
        ("odd", &[1, 3], BuildStatus::Failed),
    ] {
        let build = service.builds().start(admin, of_dockerfile(name, contexts), None).await.unwrap();
        let build = ended(&world, &build).await;
        assert_eq!(build.status, status, "{build:?}");
        assert!(build.failure.is_none_or(|failure| failure.message.contains("not a tar archive")));
    }
    assert!(
        service.builds().has_upload(admin, hash(1).as_str()).await.unwrap(),
        "the next build copies from it too"
    );
    world.assert_no_leaks().await;
}
