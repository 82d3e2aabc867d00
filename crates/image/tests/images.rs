//! Versions of layers: made, stacked, started, held, collected, imported and exported. Needs root.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Store, Tar, bounds, tree};
use atoll_image::images::{ExportAs, ImportAs, NewVersion, start_settings};
use atoll_image::{Catalog, DiffId, Digest, ImageError, Images, LayerError};
use atoll_model::{ErrorKind, StartSettings};
use tokio_util::sync::CancellationToken;

fn version_of(store: &Store, layers: &[DiffId]) -> String {
    store.images.put_version(NewVersion { layers: layers.to_vec(), ..NewVersion::default() }).unwrap()
}

fn none() -> HashSet<String> {
    HashSet::new()
}

#[test]
fn a_version_is_named_by_what_it_is_made_of() {
    let store = Store::new();
    let a = store.add(Tar::new().file("a", b"")).diff_id;
    let b = store.add(Tar::new().file("b", b"")).diff_id;
    let first = version_of(&store, &[a, b]);
    assert_eq!(version_of(&store, &[a, b]), first);
    assert_ne!(version_of(&store, &[b, a]), first);
    let settings = StartSettings { user: Some("web".into()), ..StartSettings::default() };
    let other = NewVersion { layers: vec![a, b], settings, ..NewVersion::default() };
    assert_ne!(store.images.put_version(other).unwrap(), first);
    let found = store.images.version(&first).unwrap();
    assert_eq!((found.digest.as_str(), &found.layers[..]), (first.as_str(), &[a, b][..]));
    assert!(first.starts_with("sha256:"));
    assert_eq!(store.images.version(&first["sha256:".len()..]).unwrap(), found);
    for wrong in ["", "sha256:12", "../../etc/passwd", &Digest::of(b"x").to_string()] {
        assert!(store.images.version(wrong).is_err() && store.images.template(wrong).is_err(), "{wrong}");
    }
    let missing = NewVersion { layers: vec![DiffId(Digest::of(b"x"))], ..NewVersion::default() };
    assert!(matches!(store.images.put_version(missing), Err(ImageError::LayerMissing { .. })));
}

#[test]
fn a_template_says_what_its_files_and_settings_say() {
    let store = Store::new();
    let passwd = b"root:x:0:0::/root:/bin/sh\nweb:x:33:33::/var/www:\n";
    let layer = store.add(
        Tar::new()
            .file("etc/passwd", passwd)
            .file_as("usr/bin/sudo", 0o4755, (0, 0))
            .file("etc/group", b"web:x:34:\n"),
    );
    let settings = StartSettings {
        user: Some("web:web".into()),
        workdir: Some("/srv".into()),
        env: BTreeMap::from([("A".into(), "1".into())]),
        ..StartSettings::default()
    };
    let new = NewVersion { layers: vec![layer.diff_id], settings, ..NewVersion::default() };
    let template = store.images.template(&store.images.put_version(new).unwrap()).unwrap();
    assert_eq!((template.default_user.as_str(), template.home.as_str()), ("33:34", "/var/www"));
    assert_eq!((template.workdir.as_str(), template.sudo), ("/srv", true));
    assert_eq!(template.env["A"], "1");
    assert!(template.env["PATH"].contains("/usr/bin"), "there is always a PATH");
    // The resolver configuration, which images do not contain, is above the layers.
    assert_eq!(template.layers.len(), 2);
    assert_eq!(template.layers[1], store.files(&layer.diff_id));
    assert!(
        std::fs::read_to_string(template.layers[0].join("etc/resolv.conf"))
            .unwrap()
            .starts_with("nameserver")
    );
    let gone = store.add(Tar::new().file("usr/bin/.wh.sudo", b""));
    let plain = store.images.template(&version_of(&store, &[layer.diff_id, gone.diff_id])).unwrap();
    assert_eq!((plain.sudo, plain.default_user.as_str(), plain.home.as_str()), (false, "root", "/root"));
}

#[test]
fn a_version_that_is_not_whole_is_damaged_and_never_half_there() {
    let store = Store::new();
    let layers = [store.add(Tar::new().file("a", b"")).diff_id, store.add(Tar::new().file("b", b"")).diff_id];
    let version = version_of(&store, &layers);
    let catalog =
        Catalog::open(store.dir.path().join("templates")).unwrap().with_images(Arc::clone(&store.images));
    assert_eq!(
        catalog.pinned("registry.example:5000/team/app:v1", &version).unwrap().name,
        "registry.example:5000/team/app:v1"
    );
    std::fs::remove_dir_all(store.files(&layers[0])).unwrap();
    let error = store.images.template(&version).unwrap_err();
    assert!(error.is_damage(), "{error:?}");
    let error = catalog.pinned("app", &version).unwrap_err();
    assert!(matches!(error, atoll_image::TemplateError::Damaged { .. }), "{error:?}");
    let record =
        store.dir.path().join("images/versions").join(format!("{}.json", &version["sha256:".len()..]));
    std::fs::write(record, "{").unwrap();
    assert!(store.images.template(&version).unwrap_err().is_damage());
    assert!(matches!(
        catalog.pinned("app", &Digest::of(b"x").to_string()),
        Err(atoll_image::TemplateError::NotFound { .. })
    ));
}

#[test]
fn what_a_killed_server_left_is_swept_and_what_is_whole_stays() {
    let store = Store::new();
    let layer = store.add(Tar::new().file("a", b"")).diff_id;
    let version = version_of(&store, &[layer]);
    let images = store.dir.path().join("images");
    for left in [
        "layers/.build-1-1/fs/usr",
        "merged/.trash-1-2/fs",
        "blobs/sha256/.build-9-9",
        "imports/.build-3-3/fs",
    ] {
        std::fs::create_dir_all(images.join(left)).unwrap();
    }
    let part = images.join("blobs/sha256").join(format!("{}.part", Digest::of(b"x").hex()));
    std::fs::write(&part, "half").unwrap();
    let again = Images::open(&images, bounds()).unwrap();
    assert!(again.template(&version).is_ok() && part.exists(), "a download can be gone on with");
    let hidden =
        tree(&images).into_keys().filter(|path| path.contains("/.build-") || path.contains("/.trash-"));
    assert_eq!(hidden.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn versions_stand_on_built_in_templates() {
    let store = Store::new();
    let templates = store.dir.path().join("templates");
    let rootfs = templates.join("small/rootfs");
    std::fs::create_dir_all(rootfs.join("etc")).unwrap();
    std::fs::write(rootfs.join("etc/resolv.conf"), "nameserver 169.254.0.1\n").unwrap();
    std::fs::write(
        templates.join("small/manifest.json"),
        r#"{"name":"small","kind":"rootfs","digest":"d1","default_user":"user","home":"/home/user","workdir":"/home/user",
            "env":{},"sudo":false,"start_command":null,"created_at":"2026-01-01T00:00:00Z","aliases":[]}"#,
    )
    .unwrap();
    let catalog = Catalog::open(&templates).unwrap().with_images(Arc::clone(&store.images));
    let layer = store.add(Tar::new().file("new", b"n")).diff_id;
    let on = |name: &str, digest: &str| {
        let base = Some((name.to_owned(), digest.to_owned()));
        store.images.put_version(NewVersion { base, layers: vec![layer], ..NewVersion::default() })
    };
    let version = on("small", "d1").unwrap();
    let template = store.images.template(&version).unwrap();
    assert_eq!(template.layers, [store.files(&layer), rootfs.clone()]);
    assert_eq!(template.default_user, "user");
    assert_eq!(on("small", "d2").unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(on("missing", "d1").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(on("../x", "d1").is_err());
    assert_eq!(catalog.remove("small").unwrap_err().kind(), ErrorKind::Conflict);
    // Exported with the base as its lowest layer.
    let mut archive = Vec::new();
    store
        .images
        .export(&version, ExportAs::OciArchive, &[], &mut archive, &CancellationToken::new())
        .unwrap();
    let imported = store.images.import(&archive[..], ImportAs::Auto, &CancellationToken::new()).unwrap();
    assert_eq!(store.images.version(&imported.version).unwrap().layers.len(), 2);
    store.images.collect(&none(), 0).unwrap();
    catalog.remove("small").unwrap();
}

/// Mounts folders as an overlay until it is dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(at: &Path, top_first: &[PathBuf]) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let lower = top_first.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>().join(":");
        // A single folder cannot be an overlay.
        let empty = at.with_extension("empty");
        std::fs::create_dir_all(&empty).unwrap();
        let options = format!("ro,lowerdir={lower}:{}", empty.display());
        let status = Command::new("mount").args(["-t", "overlay", "none", "-o", &options]).arg(at).status();
        assert!(status.unwrap().success(), "mount {options}");
        Self(at.to_owned())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Pseudo-random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// A layer that adds, hides and replaces a few names that all layers share.
fn random_layer(dice: &mut Dice, scratch: &Store) -> Tar {
    let mut tar = Tar::new();
    for _ in 0..1 + dice.roll(7) {
        let depth = 1 + dice.roll(3);
        let path = (0..depth).map(|_| ["a", "b", "c"][dice.roll(3)]).collect::<Vec<_>>();
        let (folder, name) = (path[..depth - 1].join("/"), path[depth - 1]);
        let at = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        let mode = [0o755, 0o700, 0o1777][dice.roll(3)];
        let next = match dice.roll(5) {
            0 => Tar::new().file(&at(&format!(".wh.{name}")), b""),
            1 if !folder.is_empty() => Tar::new().file(&at(".wh..wh..opq"), b""),
            2 => Tar::new().folder(&at(name), mode),
            3 => Tar::new().symlink(&at(name), "x"),
            _ => Tar::new().file(&at(name), &[b'0' + dice.roll(10) as u8]),
        };
        // Entries that are impossible after the earlier ones are left out.
        let (before, next) = (tar.done(), next.done());
        let before = before[..before.len() - 1024].to_vec();
        let both = [before.clone(), next].concat();
        tar = Tar::new().bytes(if scratch.try_add(&both).is_ok() {
            &both[..both.len() - 1024]
        } else {
            &before
        });
    }
    tar
}

#[test]
fn merged_layers_look_as_the_kernel_stacks_them() {
    for seed in 0..3 {
        let mut dice = Dice(seed);
        let (store, scratch) = (Store::new(), Store::new());
        let layers: Vec<DiffId> =
            (0..40).map(|_| store.add(random_layer(&mut dice, &scratch)).diff_id).collect();
        // A few layers are stacked unchanged; with forty, groups are merged. Both must show the same as the plain
        // layers, except for permissions of folders that no archive names.
        for count in [3, 40] {
            let version = version_of(&store, &layers[..count]);
            let template = store.images.template(&version).unwrap();
            assert!(template.layers.len() <= 33, "{}", template.layers.len());
            let merged = Overlay::mount(&store.dir.path().join("merged"), &template.layers[1..]);
            let mut plain: Vec<PathBuf> =
                layers[..count].iter().rev().map(|layer| store.files(layer)).collect();
            // The kernel accepts no folder twice. Of two equal layers only the upper one is visible.
            let mut known = HashSet::new();
            plain.retain(|folder| known.insert(folder.clone()));
            let stacked = Overlay::mount(&store.dir.path().join("stacked"), &plain);
            let seen = |at: &Overlay| {
                tree(&at.0)
                    .into_iter()
                    .map(|(path, line)| {
                        let kind = if line.starts_with("folder") { "folder".to_owned() } else { line };
                        (path, kind)
                    })
                    .collect::<BTreeMap<_, _>>()
            };
            assert_eq!(seen(&merged), seen(&stacked), "seed {seed}, {count} layers");
        }
    }
}

#[test]
fn folders_that_an_archive_never_named_have_the_rights_of_those_below() {
    let store = Store::new();
    let below =
        store.add(Tar::new().folder("tmp/", 0o1777).folder("root/", 0o700).file("root/old", b"o")).diff_id;
    let above =
        store.add(Tar::new().file("tmp/new", b"n").file("root/new", b"n").file("fresh/new", b"n")).diff_id;
    let template = store.images.template(&version_of(&store, &[below, above])).unwrap();
    let overlay = Overlay::mount(&store.dir.path().join("seen"), &template.layers[1..]);
    let seen = tree(&overlay.0);
    assert_eq!(
        (seen["tmp"].as_str(), seen["root"].as_str(), seen["fresh"].as_str()),
        ("folder 1777 0:0", "folder 0700 0:0", "folder 0755 0:0")
    );
    assert_eq!(
        (seen["root/old"].as_str(), seen["root/new"].as_str()),
        ("file 0644 0:0 o", "file 0644 0:0 n")
    );
    // The layer itself is unchanged, and alone it is as its archive says.
    assert_eq!(store.images.template(&version_of(&store, &[above])).unwrap().layers[1], store.files(&above));
}

#[test]
fn a_layer_that_hides_everything_is_the_lowest_that_is_stacked() {
    let store = Store::new();
    let below = store.add(Tar::new().file("old", b"")).diff_id;
    let above = store.add(Tar::new().file(".wh..wh..opq", b"").file("new", b"")).diff_id;
    let template = store.images.template(&version_of(&store, &[below, above])).unwrap();
    assert_eq!(template.layers[1..], [store.files(&above)]);
}

#[test]
fn a_layer_that_is_there_twice_is_stacked_once() {
    let store = Store::new();
    let (a, b) =
        (store.add(Tar::new().file("f", b"a")).diff_id, store.add(Tar::new().file("f", b"b")).diff_id);
    let empty = store.add(Tar::new()).diff_id;
    let template = store.images.template(&version_of(&store, &[empty, a, b, empty, a, empty])).unwrap();
    assert_eq!(template.layers[1..], [store.files(&a), store.files(&b)]);
    let nothing = store.images.template(&version_of(&store, &[])).unwrap();
    assert_eq!(nothing.layers.len(), 1, "an empty version has only the resolver files");
    assert!(store.images.template(&version_of(&store, &[empty])).is_ok());
}

#[test]
fn what_nobody_needs_is_collected_and_nothing_else() {
    let store = Store::new();
    let shared = store.add(Tar::new().file("shared", b"s")).diff_id;
    let (mine, yours) =
        (store.add(Tar::new().file("m", b"m")).diff_id, store.add(Tar::new().file("y", b"y")).diff_id);
    let used = version_of(&store, &[shared, mine]);
    let spare = version_of(&store, &[shared, yours]);
    let blob = Digest::of(b"blob");
    std::fs::write(store.images.blob_path(&blob), "blob").unwrap();
    store.images.set_blob(&mine, &blob, "application/vnd.oci.image.layer.v1.tar").unwrap();
    std::fs::write(store.images.blob_path(&Digest::of(b"lost")), "lost").unwrap();
    let keep = HashSet::from([used.clone()]);
    let held = store.images.hold(&spare).unwrap();
    let working = store.images.begin();
    assert!(store.images.has_layer(&yours));
    assert_eq!(store.images.collect(&keep, 0).unwrap().versions, 0, "held");
    drop((held, working));
    let collected = store.images.collect(&keep, 0).unwrap();
    assert_eq!((collected.versions, collected.layers), (1, 1), "{collected:?}");
    assert!(store.images.template(&used).is_ok() && !store.images.has_layer(&yours));
    assert!(store.images.blob_path(&blob).exists() && !store.images.blob_path(&Digest::of(b"lost")).exists());
    assert!(matches!(store.images.hold(&spare), Err(ImageError::NotFound { .. })));
    store.images.collect(&none(), 0).unwrap();
    let left = tree(&store.dir.path().join("images")).into_keys();
    let left: Vec<_> =
        left.filter(|path| path.contains(&mine.hex()) || path.contains(&used["sha256:".len()..])).collect();
    assert_eq!(left, Vec::<String>::new());
    assert!(!store.images.blob_path(&blob).exists());
}

#[test]
fn what_is_young_is_spared() {
    let store = Store::with(atoll_image::Bounds::default());
    let layer = store.add(Tar::new().file("a", b"")).diff_id;
    let version = version_of(&store, &[layer]);
    let spared = store.images.collect(&none(), 0).unwrap();
    assert!(spared.is_empty() && spared.recent == 1, "{spared:?}");
    assert!(store.images.template(&version).is_ok());
}

#[test]
fn the_cache_of_builds_is_kept_as_far_as_it_may_be() {
    let store = Store::new();
    let versions: Vec<String> = (0..4_u8)
        .map(|at| version_of(&store, &[store.add(Tar::new().file("f", &vec![at; 100_000])).diff_id]))
        .collect();
    for (at, version) in versions.iter().enumerate() {
        store.images.remember(&format!("step {at}"), version).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(15));
    }
    assert_eq!(
        store.images.cached("step 0").as_deref(),
        Some(versions[0].as_str()),
        "the oldest is of use again"
    );
    assert_eq!(store.images.cached("another"), None);
    let collected = store.images.collect(&none(), 250_000).unwrap();
    assert_eq!(collected.versions, 2);
    assert!((200_000..250_000).contains(&collected.cached_bytes), "{collected:?}");
    let left: Vec<bool> = (0..4).map(|at| store.images.cached(&format!("step {at}")).is_some()).collect();
    assert_eq!(left, [true, false, false, true]);
    assert!(store.images.remember("gone", &versions[1]).is_err());
}

#[test]
fn creating_and_collecting_at_once_never_breaks_what_is_needed() {
    // The rows are read before the collection begins; the grace period protects versions that are released in between.
    // A busy machine may stop the collector in the middle for a while, and rounds go on for longer than that.
    let grace = std::time::Duration::from_millis(500);
    let store = Store::with(atoll_image::Bounds { grace, ..bounds() });
    let done = AtomicBool::new(false);
    let kept = std::sync::Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (store, kept) = (&store, &kept);
                scope.spawn(move || {
                    for round in 0..12 {
                        std::thread::sleep(grace / 8);
                        // Layers that other threads make and drop too: found, or made again, but present in the end.
                        let _working = store.images.begin();
                        let layers: Vec<DiffId> = [round % 5, 5 + (round + worker) % 7]
                            .map(|at| {
                                let tar = Tar::new().file(&format!("f{at}"), b"x").done();
                                let id = DiffId(Digest::of(&tar));
                                if !store.images.has_layer(&id) {
                                    store
                                        .images
                                        .add_layer(Some(&id), &tar[..], &CancellationToken::new())
                                        .unwrap();
                                }
                                id
                            })
                            .to_vec();
                        let version = version_of(store, &layers);
                        // It may be gone before it is held; then it is made again, as a create does.
                        let Ok(held) = store.images.hold(&version) else { continue };
                        let template =
                            store.images.template(held.version()).expect("a held version is complete");
                        assert!(template.layers.iter().all(|folder| folder.read_dir().is_ok()));
                        if round == 11 {
                            // The row that a create writes while it holds the version.
                            kept.lock().unwrap().insert(version.clone());
                        }
                    }
                })
            })
            .collect();
        let collector = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::SeqCst) {
                let used = kept.lock().unwrap().clone();
                store.images.collect(&used, 0).unwrap();
                rounds += 1;
            }
            rounds
        });
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
        assert!(collector.join().unwrap() > 0);
    });
    let kept = kept.into_inner().unwrap();
    store.images.collect(&kept, 0).unwrap();
    for version in &kept {
        assert!(store.images.template(version).is_ok(), "{version}");
    }
    assert!(!kept.is_empty());
}

fn config(layers: &[DiffId]) -> oci_spec::image::ImageConfiguration {
    let diff_ids: Vec<String> = layers.iter().map(DiffId::to_string).collect();
    serde_json::from_value(serde_json::json!({
        "architecture": "amd64", "os": "linux", "created": "2026-01-01T00:00:00Z",
        "config": { "User": "web", "Env": ["A=1", "PATH=/bin"], "Cmd": ["serve"], "Labels": { "b": "2", "a": "1" } },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "history": [{ "created_by": "one" }, { "created_by": "ENV", "empty_layer": true }, { "created_by": "two" }],
    }))
    .unwrap()
}

fn image(store: &Store) -> String {
    let layers = vec![
        store.add(Tar::new().file("etc/passwd", b"web:x:5:5::/w:\n").file("gone", b"g")).diff_id,
        store.add(Tar::new().file(".wh.gone", b"").file("new", b"n")).diff_id,
    ];
    let config = config(&layers);
    let settings = start_settings(&config);
    store.images.put_version(NewVersion { base: None, layers, config, settings }).unwrap()
}

#[test]
fn an_exported_image_comes_back_as_the_same_image() {
    let cancel = CancellationToken::new();
    for what in [ExportAs::OciArchive, ExportAs::DockerArchive] {
        let store = Store::new();
        let version = image(&store);
        let names = ["team/app:v1".to_owned()];
        let mut archive = Vec::new();
        store.images.export(&version, what, &names, &mut archive, &cancel).unwrap();
        let mut again = Vec::new();
        store.images.export(&version, what, &names, &mut again, &cancel).unwrap();
        assert!(archive == again, "exports are deterministic");
        let other = Store::new();
        let gzip = {
            let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut zip, &archive).unwrap();
            zip.finish().unwrap()
        };
        let zstd = zstd::encode_all(&archive[..], 1).unwrap();
        for bytes in [&archive, &gzip, &zstd] {
            let imported = other.images.import(&bytes[..], ImportAs::Auto, &cancel).unwrap();
            assert_eq!(imported.names, names);
            let (was, is) =
                (store.images.version(&version).unwrap(), other.images.version(&imported.version).unwrap());
            assert_eq!((is.settings, is.found.home), (was.settings, "/w".to_owned()));
            assert_eq!(is.config.config(), was.config.config());
            assert_eq!(is.config.history().as_ref().unwrap().len(), 3);
            for (was, is) in was.layers.iter().zip(&is.layers) {
                assert_eq!(tree(&other.files(is)), tree(&store.files(was)));
            }
            // Imported blobs are exported unchanged, byte by byte.
            let mut third = Vec::new();
            other.images.export(&imported.version, what, &names, &mut third, &cancel).unwrap();
            assert!(third == archive);
            let back = other.images.import(&third[..], ImportAs::Auto, &cancel).unwrap();
            assert_eq!(back.version, imported.version);
        }
        assert_eq!(std::fs::read_dir(other.dir.path().join("images/imports")).unwrap().count(), 0);
    }
}

#[test]
fn an_archive_that_only_names_a_layer_of_another_does_not_get_it() {
    let cancel = CancellationToken::new();
    let store = Store::new();
    let secret = store.add(Tar::new().file("secret", b"s")).diff_id;
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": [secret.to_string()] },
    });
    let manifest = serde_json::json!([{ "Config": "c.json", "Layers": ["l.tar"] }]);
    let archive = Tar::new()
        .file("manifest.json", manifest.to_string().as_bytes())
        .file("c.json", config.to_string().as_bytes())
        .file("l.tar", &Tar::new().file("mine", b"m").done())
        .done();
    let error = store.images.import(&archive[..], ImportAs::DockerArchive, &cancel).unwrap_err();
    assert!(matches!(error, ImageError::Layer(LayerError::WrongDigest { .. })), "{error}");
    assert_eq!(std::fs::read_dir(store.dir.path().join("images/versions")).unwrap().count(), 0);
}

#[test]
fn an_oci_layout_folder_is_read_and_its_lies_are_found() {
    let store = Store::new();
    let cancel = CancellationToken::new();
    let mut archive = Vec::new();
    store.images.export(&image(&store), ExportAs::OciArchive, &[], &mut archive, &cancel).unwrap();
    let folder = tempfile::tempdir().unwrap();
    tar::Archive::new(&archive[..]).unpack(folder.path()).unwrap();
    let other = Store::new();
    let imported = other.images.import_layout(folder.path(), &cancel).unwrap();
    assert_eq!(other.images.version(&imported.version).unwrap().layers.len(), 2);
    // A blob that does not match its digest is detected wherever it is used.
    for entry in std::fs::read_dir(folder.path().join("blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        let whole = std::fs::read(&path).unwrap();
        let mut bad = whole.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        let third = Store::new();
        let error = third.images.import_layout(folder.path(), &cancel).unwrap_err();
        assert!(error.kind() != ErrorKind::Internal, "{error:?}");
        assert_eq!(std::fs::read_dir(third.dir.path().join("images/versions")).unwrap().count(), 0);
        std::fs::write(&path, whole).unwrap();
    }
    // A symbolic link out of the folder is not followed.
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::remove_file(folder.path().join("index.json")).unwrap();
    std::os::unix::fs::symlink(secret.path(), folder.path().join("index.json")).unwrap();
    assert!(matches!(other.images.import_layout(folder.path(), &cancel), Err(ImageError::NotAnImage { .. })));
}

#[test]
fn a_plain_root_is_a_layer_and_what_is_no_image_says_so() {
    let store = Store::new();
    let cancel = CancellationToken::new();
    let root = Tar::new().file("bin/sh", b"#!").file("manifest.json", b"[]").done();
    let imported = store.images.import(&root[..], ImportAs::Auto, &cancel).unwrap();
    let version = store.images.version(&imported.version).unwrap();
    assert_eq!(version.layers, [DiffId(Digest::of(&root))]);
    for (what, bytes) in [
        (ImportAs::DockerArchive, Tar::new().file("x", b"").done()),
        (ImportAs::OciArchive, Tar::new().file("x", b"").done()),
        (
            ImportAs::OciArchive,
            Tar::new().file("oci-layout", b"{}").file("index.json", b"{\"manifests\":[]}").done(),
        ),
        (
            ImportAs::DockerArchive,
            Tar::new().file("manifest.json", b"[{\"Config\":\"../../../etc/passwd\",\"Layers\":[]}]").done(),
        ),
        (
            ImportAs::DockerArchive,
            Tar::new()
                .file("manifest.json", b"[{\"Config\":\"c\",\"Layers\":[\"l\"]}]")
                .file("c", b"{}")
                .done(),
        ),
    ] {
        let error = store.images.import(&bytes[..], what, &cancel).unwrap_err();
        assert!(matches!(error, ImageError::NotAnImage { .. }), "{error:?}");
    }
    for nothing in [vec![], Tar::new().done()] {
        for what in [ImportAs::Auto, ImportAs::Rootfs] {
            let error = store.images.import(&nothing[..], what, &cancel).unwrap_err();
            assert!(matches!(error, ImageError::NotAnImage { .. }), "{error:?}");
        }
    }
    let error = store.images.import(&b"\x1f\x8bnot really gzip"[..], ImportAs::Auto, &cancel).unwrap_err();
    assert!(matches!(error, ImageError::Layer(LayerError::Source(_))), "{error:?}");
    assert_eq!(std::fs::read_dir(store.dir.path().join("images/imports")).unwrap().count(), 0);
}

#[test]
fn an_image_may_not_be_larger_than_allowed() {
    let store = Store::with(atoll_image::Bounds { image_bytes: 1000, ..bounds() });
    let layers: Vec<DiffId> =
        (0..3_u8).map(|at| store.add(Tar::new().file("f", &[at; 400])).diff_id).collect();
    let put = |layers: &[DiffId]| {
        store.images.put_version(NewVersion { layers: layers.to_vec(), ..NewVersion::default() })
    };
    assert!(put(&layers[..2]).is_ok());
    assert!(matches!(put(&layers), Err(ImageError::TooBig { what: "bytes", limit: 1000 })));
    assert!(matches!(put(&vec![layers[0]; 501]), Err(ImageError::TooBig { what: "layers", .. })));
}
