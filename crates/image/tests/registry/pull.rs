//! Successful pulls.

use atoll_image::oci::{Auth, LayerState, Progressed};
use atoll_image::{Digest, ImageError};
use bytes::Bytes;
use serde_json::json;

use crate::registry::fake::Fake;
use crate::registry::image::{DOCKER_MANIFEST, Layer, OCI_INDEX, World, gzip, noise, publish, tar};

fn two() -> [Layer; 2] {
    [Layer::gzip(&[("etc/one", b"1"), ("etc/two", b"2")]), Layer::gzip(&[("srv/three", &noise(3, 300_000))])]
}

#[tokio::test]
async fn an_image_becomes_a_version_with_its_files_and_settings() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let layers = two();
    let made = publish(&fake, "v1", &layers, |_, _| ());
    let pulled = world.pull(&format!("{}/team/app:v1", fake.host())).await.unwrap();
    assert_eq!(pulled.manifest_digest, made.digest.to_string());
    assert_eq!(world.read(&layers[0], "etc/two"), b"2");
    assert_eq!(world.read(&layers[1], "srv/three"), noise(3, 300_000));
    let version = world.images.version(&pulled.version).unwrap();
    assert_eq!(version.layers.len(), 2);
    assert_eq!(
        (version.settings.workdir.as_deref(), version.settings.env["A"].as_str()),
        (Some("/srv"), "b")
    );
    let found = world.found();
    assert_eq!((found.blobs.len(), found.parts.len(), found.layers.len()), (2, 0, 2));
    for name in &found.blobs {
        let bytes = std::fs::read(world.dir.path().join("blobs/sha256").join(name)).unwrap();
        assert_eq!(Digest::of(&bytes).hex(), *name);
    }
    let told = world.told.lock().unwrap();
    let done = |one: &&Progressed| matches!(one, Progressed::Layer { state: LayerState::Done, done, total, .. } if done == total);
    assert_eq!(told.iter().filter(done).count(), 2);
}

#[tokio::test]
async fn layers_that_are_here_are_not_asked_for_again() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let layers = two();
    publish(&fake, "v1", &layers, |_, _| ());
    publish(&fake, "v2", &[layers[0].clone(), Layer::gzip(&[("new", b"n")])], |_, _| ());
    let first = world.pull(&format!("{}/app:v1", fake.host())).await.unwrap();
    fake.forget();
    let second = world.pull(&format!("{}/app:v2", fake.host())).await.unwrap();
    assert_ne!(first.version, second.version);
    assert_eq!(fake.count(&layers[0].digest().to_string()), 0, "{:?}", fake.asked());
    fake.forget();
    let again = world.pull(&format!("{}/app:v1", fake.host())).await.unwrap();
    assert_eq!(again.version, first.version);
    // The manifest and the config are requested again, since a tag may move.
    assert_eq!(fake.asked().len(), 2, "{:?}", fake.asked());
}

#[tokio::test]
async fn a_layer_of_another_is_got_only_from_a_registry_that_has_it() {
    let (theirs, mine) = (Fake::start().await, Fake::start().await);
    let world = World::reaching(&[&theirs, &mine]);
    let secret = Layer::gzip(&[("secret", &noise(5, 100_000))]);
    publish(&theirs, "v1", std::slice::from_ref(&secret), |_, _| ());
    let first = world.pull_new(&format!("{}/app:v1", theirs.host())).await.unwrap();
    let secret_id = Digest::of(&secret.tar).to_string();

    // The digests of a manifest and its config are known; the bytes are not.
    let made_up = Layer::gzip(&[("mine", b"m")]);
    let named = |config: &mut serde_json::Value| config["rootfs"]["diff_ids"] = json!([secret_id]);
    publish(&mine, "other", std::slice::from_ref(&made_up), |config, _| named(config));
    let (digest, size) = (secret.digest(), secret.blob.len());
    publish(&mine, "missing", std::slice::from_ref(&made_up), |config, manifest| {
        named(config);
        manifest["layers"][0]["digest"] = digest.to_string().into();
        manifest["layers"][0]["size"] = size.into();
    });
    for tag in ["other", "missing"] {
        let error = world.pull_new(&format!("{}/app:{tag}", mine.host())).await.unwrap_err();
        assert_eq!(error.code(), atoll_model::Code::Damaged, "{tag}: {error}");
    }
    mine.put_blob_as(&digest, noise(6, size).into());
    world.pull_new(&format!("{}/app:missing", mine.host())).await.unwrap_err();
    // The same if the layer is gone and its blob still exists.
    std::fs::remove_dir_all(world.dir.path().join("layers").join(Digest::of(&secret.tar).hex())).unwrap();
    world.pull_new(&format!("{}/app:missing", mine.host())).await.unwrap_err();
    // Or if all but a few bytes of it were downloaded for another caller.
    let blob = world.dir.path().join("blobs/sha256").join(digest.hex());
    std::fs::rename(&blob, blob.with_extension("part")).unwrap();
    world.pull_new(&format!("{}/app:missing", mine.host())).await.unwrap_err();

    theirs.forget();
    let again = world.pull_new(&format!("{}/app:v1", theirs.host())).await.unwrap();
    assert_eq!(again.version, first.version);
    let third = world.pull_new(&format!("{}/app:v1", theirs.host())).await.unwrap();
    assert_eq!(third.version, first.version);
    assert_eq!(theirs.count(&digest.to_string()), 2, "it was sent each time: {:?}", theirs.asked());
}

#[tokio::test]
async fn gzip_zstd_and_plain_layers_are_known_by_their_bytes_whatever_they_are_called() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let archive = |name: &str| tar(&[(name, &noise(1, 100_000))]);
    let (a, b, c, d) = (archive("a"), archive("b"), archive("c"), archive("d"));
    let layer = |tar: &Vec<u8>, blob: Vec<u8>, kind: &str| Layer {
        tar: tar.clone(),
        blob: blob.into(),
        media_type: format!("application/vnd.oci.image.layer.v1.tar{kind}"),
    };
    let layers = [
        layer(&a, zstd::encode_all(&a[..], 3).unwrap(), "+zstd"),
        layer(&b, b.clone(), "+gzip"),
        layer(&c, zstd::encode_all(&c[..], 3).unwrap(), "+gzip"),
        layer(&d, gzip(&d), ""),
    ];
    publish(&fake, "latest", &layers, |_, _| ());
    world.pull(&format!("{}/app", fake.host())).await.unwrap();
    for (layer, name) in layers.iter().zip(["a", "b", "c", "d"]) {
        assert_eq!(world.read(layer, name), noise(1, 100_000), "{name}");
    }
}

#[tokio::test]
async fn the_image_of_this_machine_is_taken_from_an_index_of_many() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let ours = Layer::gzip(&[("ours", b"1")]);
    let made = publish(&fake, "ours", std::slice::from_ref(&ours), |_, _| ());
    let here = atoll_image::oci::Platform::of_host();
    let one = |n: u32, os: &str, arch: &str| json!({"mediaType": crate::registry::image::OCI_MANIFEST, "size": 1, "digest": format!("sha256:{n:064x}"), "platform": {"os": os, "architecture": arch}});
    let mut manifests: Vec<_> = (0..500).map(|n| one(n, "linux", &format!("arch{n}"))).collect();
    manifests.push(one(1000, "windows", &here.arch));
    let mut right = one(0, "linux", &here.arch);
    right["digest"] = made.digest.to_string().into();
    right["size"] = made.manifest.len().into();
    manifests.push(right);
    let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}).to_string();
    let top = fake.put_manifest("many", OCI_INDEX, Bytes::from(index));
    let name = format!("{}/app:many", fake.host());
    let pulled = world.pull(&name).await.unwrap();
    assert_eq!(pulled.manifest_digest, top.to_string());
    assert_eq!(world.read(&ours, "ours"), b"1");
    // The same by its digest; and a platform that does not exist.
    let by_digest = format!("{}/app@{top}", fake.host());
    assert_eq!(world.pull(&by_digest).await.unwrap(), pulled);
    let image = name.parse().unwrap();
    let missing = world
        .registry
        .pull(&world.images, &image, Auth::Anonymous, Some("linux/s390x"), world.progress())
        .await;
    assert!(missing.unwrap_err().to_string().contains("linux/arch0"));
}

#[tokio::test]
async fn images_as_docker_makes_them_are_read() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let mut layer = Layer::gzip(&[("file", b"x")]);
    layer.media_type = "application/vnd.docker.image.rootfs.diff.tar.gzip".into();
    publish(&fake, "latest", &[layer.clone(), layer.clone()], |config, manifest| {
        manifest["mediaType"] = DOCKER_MANIFEST.into();
        manifest["config"]["mediaType"] = "application/vnd.docker.container.image.v1+json".into();
        config["config"]["Volumes"] = serde_json::Value::Null;
        config["container_config"] = json!({"Hostname": "x"});
    });
    let pulled = world.pull(&format!("{}/app", fake.host())).await.unwrap();
    assert_eq!(world.images.version(&pulled.version).unwrap().layers.len(), 2);
    assert_eq!(
        fake.count("GET /v2/app/blobs/"),
        2,
        "the layer that is there twice comes once: {:?}",
        fake.asked()
    );
}

#[tokio::test]
async fn two_pulls_at_once_download_each_blob_once() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    let layers = two();
    publish(&fake, "v1", &layers, |_, _| ());
    let name = format!("{}/app:v1", fake.host());
    let (one, two) = tokio::join!(world.pull(&name), world.pull(&name));
    assert_eq!(one.unwrap(), two.unwrap());
    for layer in &layers {
        assert_eq!(fake.count(&layer.digest().to_string()), 1, "{:?}", fake.asked());
    }
    assert_eq!(world.found().parts, Vec::<String>::new());
}

#[tokio::test]
async fn an_image_of_no_layers_is_an_image() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    publish(&fake, "latest", &[], |_, _| ());
    match world.pull(&format!("{}/app", fake.host())).await {
        Ok(pulled) => assert!(world.images.version(&pulled.version).unwrap().layers.is_empty()),
        Err(error) => {
            assert!(matches!(error, atoll_image::oci::RegistryError::Images(ImageError::Unsupported { .. })))
        }
    }
}
