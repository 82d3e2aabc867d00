//! Registries that interrupt responses, send wrong data, or never end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atoll_image::oci::{LayerState, Progressed, RegistryError};
use atoll_model::{Code, ErrorKind};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use bytes::Bytes;

use crate::registry::fake::{Fake, cut, endless};
use crate::registry::image::{Found, Layer, World, noise, publish};

async fn with_one(size: usize) -> (Fake, World, Layer, String) {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let layer = Layer::gzip(&[("file", &noise(9, size))]);
    publish(&fake, "latest", std::slice::from_ref(&layer), |_, _| ());
    let name = format!("{}/app", fake.host());
    (fake, world, layer, name)
}

#[tokio::test]
async fn a_layer_that_breaks_off_goes_on_where_it_ended() {
    let (fake, world, layer, name) = with_one(3_000_000).await;
    let (blob, path) = (layer.blob.clone(), format!("blobs/{}", layer.digest()));
    let is_layer = path.clone();
    fake.fault(move |parts, _, before| {
        (parts.uri.path().ends_with(&is_layer) && before == 0).then(|| cut(&blob, 1_000_000))
    });
    world.pull(&name).await.unwrap();
    assert_eq!(world.read(&layer, "file"), noise(9, 3_000_000));
    let asked: Vec<String> = fake.asked().into_iter().filter(|line| line.contains(&path)).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    let from: u64 = asked[1].rsplit_once("bytes=").unwrap().1.trim_end_matches('-').parse().unwrap();
    assert!((1..=1_000_000).contains(&from), "{asked:?}");
}

#[tokio::test]
async fn a_registry_without_ranges_may_begin_anew() {
    let (fake, world, layer, name) = with_one(2_000_000).await;
    let blob = layer.blob.clone();
    let path = format!("blobs/{}", layer.digest());
    fake.fault(move |parts, _, before| {
        parts.uri.path().ends_with(&path).then(|| match before {
            0 => cut(&blob, 700_000),
            _ => blob.clone().into_response(),
        })
    });
    world.pull(&name).await.unwrap();
    assert_eq!(world.read(&layer, "file"), noise(9, 2_000_000));
}

#[tokio::test]
async fn a_registry_that_always_breaks_off_is_left_and_what_came_is_kept() {
    let (fake, world, layer, name) = with_one(1_000_000).await;
    let path = format!("blobs/{}", layer.digest());
    let blob = layer.blob.clone();
    fake.fault(move |parts, _, before| {
        let range = parts.headers.get("range").map(|range| range.to_str().unwrap().replace('=', " "));
        parts.uri.path().ends_with(&path).then(|| match (before, range) {
            (0, _) | (_, None) => cut(&blob, 300_000),
            // It announces the rest, and then sends nothing.
            (_, Some(range)) => {
                let said = format!("{range}{}/{}", blob.len() - 1, blob.len());
                (StatusCode::PARTIAL_CONTENT, [("content-range", said)]).into_response()
            }
        })
    });
    let error = world.pull(&name).await.unwrap_err();
    assert_eq!(error.code(), Code::RegistryUnavailable, "{error}");
    let found = world.found();
    assert_eq!((found.parts.len(), found.layers, found.blobs), (1, vec![], vec![]));
    fake.no_fault();
    fake.forget();
    world.pull(&name).await.unwrap();
    assert_eq!(fake.count(" bytes="), 1, "{:?}", fake.asked());
}

#[tokio::test]
async fn a_dropped_pull_leaves_a_part_that_the_next_one_goes_on_with() {
    let (fake, world, layer, name) = with_one(4_000_000).await;
    let path = format!("blobs/{}", layer.digest());
    let blob = layer.blob.clone();
    fake.fault(move |parts, _, before| {
        let first = blob.slice(..2_000_000);
        (parts.uri.path().ends_with(&path) && before == 0).then(|| {
            use futures::StreamExt;
            let hangs =
                futures::stream::iter([Ok::<_, std::io::Error>(first)]).chain(futures::stream::pending());
            axum::body::Body::from_stream(hangs).into_response()
        })
    });
    // Dropped as soon as half of it has arrived.
    let seen = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&seen);
    let image = name.parse().unwrap();
    let progress: atoll_image::oci::Progress = Arc::new(move |one| {
        if matches!(one, Progressed::Layer { state: LayerState::Downloading, .. }) {
            tells.store(true, Ordering::Relaxed);
        }
    });
    let part = world.images.part_path(&layer.digest());
    let pull = world.registry.pull(&world.images, &image, atoll_image::oci::Auth::Anonymous, None, progress);
    let arrived = async {
        while std::fs::metadata(&part).map_or(0, |part| part.len()) < 2_000_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        done = pull => panic!("it cannot end: {done:?}"),
        () = arrived => {}
    }
    // The unpacking threads end by themselves.
    for _ in 0..6_000 {
        if world.found().layers.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let found = world.found();
    assert_eq!((found.layers, found.blobs, found.versions, found.parts.len()), (vec![], vec![], vec![], 1));
    fake.forget();
    world.pull(&name).await.unwrap();
    assert_eq!(fake.count("bytes=2000000-"), 1, "{:?}", fake.asked());
    assert_eq!(world.read(&layer, "file"), noise(9, 4_000_000));
    assert_eq!(world.found().parts, Vec::<String>::new());
}

#[tokio::test]
async fn a_part_that_holds_something_else_is_begun_anew() {
    let (fake, world, layer, name) = with_one(500_000).await;
    let part = world.images.part_path(&layer.digest());
    std::fs::create_dir_all(part.parent().unwrap()).unwrap();
    std::fs::write(&part, noise(77, 100_000)).unwrap();
    world.pull(&name).await.unwrap();
    assert_eq!(world.read(&layer, "file"), noise(9, 500_000));
    assert_eq!(fake.count("bytes=100000-"), 1);
    // One that is complete but wrong, and one that is too long.
    for length in [layer.blob.len(), layer.blob.len() + 1] {
        let world = World::reaching(&[&fake]);
        let part = world.images.part_path(&layer.digest());
        std::fs::create_dir_all(part.parent().unwrap()).unwrap();
        std::fs::write(&part, noise(77, length)).unwrap();
        world.pull(&name).await.unwrap();
        assert_eq!(world.read(&layer, "file"), noise(9, 500_000));
    }
}

#[tokio::test]
async fn a_blob_that_rotted_here_is_downloaded_again() {
    let (_fake, world, layer, name) = with_one(500_000).await;
    let path = world.images.blob_path(&layer.digest());
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, noise(5, layer.blob.len())).unwrap();
    world.pull(&name).await.unwrap();
    assert_eq!(world.read(&layer, "file"), noise(9, 500_000));
    assert_eq!(std::fs::read(&path).unwrap(), layer.blob);
}

/// Nothing is left of a refused image.
fn assert_clean(world: &World) {
    assert_eq!(world.found(), Found::default());
}

#[tokio::test]
async fn bytes_that_are_not_what_their_digest_says_are_refused_by_name_and_leave_nothing() {
    let (fake, world, layer, name) = with_one(500_000).await;
    let right = layer.blob.clone();
    let mut flipped = right.to_vec();
    flipped[250_000] ^= 1;
    let other = Layer::gzip(&[("evil", &noise(6, 500_000))]).blob;
    let mut same_length = other.to_vec();
    same_length.resize(right.len(), 0);
    let longer = [&right[..], b"more"].concat();
    for wrong in [flipped, same_length, longer, right[..right.len() - 10].to_vec(), Vec::new()] {
        fake.put_blob_as(&layer.digest(), wrong.into());
        let error = world.pull(&name).await.unwrap_err();
        assert_eq!((error.code(), error.kind()), (Code::Damaged, ErrorKind::Conflict), "{error}");
        assert!(error.to_string().contains(&layer.digest().to_string()), "{error}");
        assert_clean(&world);
    }
}

#[tokio::test]
async fn a_right_blob_of_the_wrong_layer_is_refused() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let layer = Layer::gzip(&[("file", b"right")]);
    publish(&fake, "latest", std::slice::from_ref(&layer), |config, _| {
        config["rootfs"]["diff_ids"][0] = format!("sha256:{}", "0".repeat(64)).into();
    });
    let error = world.pull(&format!("{}/app", fake.host())).await.unwrap_err();
    assert_eq!(error.code(), Code::Damaged, "{error}");
    assert!(error.to_string().contains(&layer.digest().to_string()), "{error}");
    assert_clean(&world);
}

#[tokio::test]
async fn a_blob_that_cannot_be_unzipped_is_refused_by_name() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let mut layer = Layer::gzip(&[("file", &noise(4, 100_000))]);
    let mut broken = layer.blob.to_vec();
    broken[50_000] ^= 0xff;
    broken.truncate(90_000);
    layer.blob = broken.into();
    publish(&fake, "latest", std::slice::from_ref(&layer), |_, _| ());
    let error = world.pull(&format!("{}/app", fake.host())).await.unwrap_err();
    assert_eq!(error.code(), Code::Damaged, "{error}");
    assert_clean(&world);
}

#[tokio::test]
async fn what_never_ends_is_left_at_its_promised_size() {
    let (fake, world, layer, name) = with_one(200_000).await;
    let path = format!("blobs/{}", layer.digest());
    fake.fault(move |parts, _, _| parts.uri.path().ends_with(&path).then(endless));
    let error = world.pull(&name).await.unwrap_err();
    assert_eq!(error.code(), Code::Damaged, "{error}");
    assert_clean(&world);
    fake.fault(|parts, _, _| parts.uri.path().contains("manifests").then(endless));
    let error = world.pull(&name).await.unwrap_err();
    assert_eq!(error.code(), Code::Damaged, "{error}");
    fake.fault(|parts, _, _| parts.uri.path().contains("blobs").then(endless));
    let error = world.pull(&name).await.unwrap_err();
    assert_eq!(error.code(), Code::Damaged, "{error}");
    assert_clean(&world);
}

#[tokio::test]
async fn a_busy_registry_is_asked_again_when_it_says() {
    let (fake, world, _, name) = with_one(1_000).await;
    fake.fault(|parts, _, before| {
        (parts.uri.path().contains("manifests") && before == 0)
            .then(|| (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response())
    });
    let began = Instant::now();
    world.pull(&name).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    // A requested wait of an hour is refused.
    fake.fault(|_, _, _| Some((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]).into_response()));
    let began = Instant::now();
    let error = world.pull(&name).await.unwrap_err();
    assert_eq!(error.code(), Code::RegistryUnavailable);
    assert!(error.hint().unwrap().contains("3600"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_failing_registry_is_asked_a_few_times_and_no_more() {
    let (fake, world, _, name) = with_one(1_000).await;
    fake.fault(|parts, _, before| {
        (parts.uri.path().contains("/blobs/") && before < 2).then(|| StatusCode::BAD_GATEWAY.into_response())
    });
    world.pull(&name).await.unwrap();
    fake.forget();
    fake.fault(|_, _, _| Some(StatusCode::SERVICE_UNAVAILABLE.into_response()));
    let error = world.pull(&name).await.unwrap_err();
    assert_eq!(error.code(), Code::RegistryUnavailable);
    assert_eq!(fake.asked().len(), 5, "{:?}", fake.asked());
    // A permanent error is not retried.
    fake.forget();
    fake.fault(|_, _, _| Some(StatusCode::IM_A_TEAPOT.into_response()));
    assert!(matches!(world.pull(&name).await.unwrap_err(), RegistryError::Answered { status: 418, .. }));
    assert_eq!(fake.asked().len(), 1);
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let (fake, world, layer, name) = with_one(1_000).await;
    let error = world.pull(&format!("{name}:missing")).await.unwrap_err();
    assert_eq!(error.code(), Code::ImageNotFound, "{error}");
    let error = world.pull(&format!("{name}@sha256:{}", "a".repeat(64))).await.unwrap_err();
    assert_eq!(error.code(), Code::ImageNotFound, "{error}");
    let path = format!("blobs/{}", layer.digest());
    fake.fault(move |parts, _, _| {
        parts.uri.path().ends_with(&path).then(|| StatusCode::NOT_FOUND.into_response())
    });
    let error = world.pull(&name).await.unwrap_err();
    assert!(error.to_string().contains(&layer.digest().to_string()), "{error}");
    assert_clean(&world);
    // A port without a listener.
    drop(fake);
    let error = world.pull(&name).await.unwrap_err();
    assert_eq!(error.code(), Code::RegistryUnavailable, "{error}");
}

#[tokio::test]
async fn a_manifest_that_is_not_the_one_asked_for_is_refused() {
    let (fake, world, _, name) = with_one(1_000).await;
    let asked = "b".repeat(64);
    let wrong = fake.manifest("latest").unwrap();
    fake.fault(move |parts, _, _| {
        parts.uri.path().contains("manifests").then(|| wrong.clone().into_response())
    });
    let error = world.pull(&format!("{name}@sha256:{asked}")).await.unwrap_err();
    assert_eq!(error.code(), Code::Damaged, "{error}");
}

#[tokio::test]
async fn a_hostile_layer_is_refused_by_the_name_of_its_entry_and_leaves_nothing() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..16].copy_from_slice(b"../../etc/passwd");
    header.set_size(1);
    header.set_mode(0o644);
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, &b"x"[..]).unwrap();
    let tar = builder.into_inner().unwrap();
    let evil = Layer {
        blob: crate::registry::image::gzip(&tar).into(),
        tar,
        media_type: crate::registry::image::OCI_GZIP.into(),
    };
    publish(&fake, "latest", &[evil], |_, _| ());
    let error = world.pull(&format!("{}/app", fake.host())).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidRequest, "{error}");
    assert!(error.to_string().contains("etc/passwd"), "{error}");
    assert_clean(&world);
}

#[tokio::test]
async fn a_pull_does_not_outlive_its_limit() {
    let fake = Fake::start().await;
    let settings = atoll_image::oci::RegistrySettings {
        insecure: vec![fake.host()],
        limit: Duration::from_millis(300),
        ..Default::default()
    };
    let world = World::with(settings);
    fake.fault(|_, _, _| {
        Some(
            axum::body::Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>())
                .into_response(),
        )
    });
    let error = world.pull(&format!("{}/app", fake.host())).await.unwrap_err();
    assert!(matches!(error, RegistryError::TooSlow { .. }), "{error}");
}
