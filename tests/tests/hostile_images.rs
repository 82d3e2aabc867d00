//! Archives made to write elsewhere, to fill the disk or to fool the start: refused by the name of the entry, with nothing
//! written outside and nothing left behind. By import, by pull and by the context of a build alike.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_tests::image::{self, Image, Layer, Packing};
use atoll_tests::registry::{Registry, options};
use atoll_tests::{Options, World, json, run_with};
use tar::EntryType;

/// A layer that must be refused, and what the refusal must name.
struct Bad {
    what: &'static str,
    names: String,
    layer: Layer,
}

fn bad(what: &'static str, names: &str, layer: Layer) -> Bad {
    Bad { what, names: names.to_owned(), layer }
}

/// Ways out of a folder, all of which end at `target`.
fn slips(target: &Path) -> Vec<Bad> {
    let absolute = target.join("pwned");
    let absolute = absolute.to_str().unwrap();
    let up = format!("{}{}", "../".repeat(24), &absolute[1..]);
    let folder = target.to_str().unwrap();
    vec![
        bad("parents", "pwned", Layer::new().file(&up, 0o644, "x")),
        bad("parents in the middle", "pwned", Layer::new().file(&format!("a/b/{up}"), 0o644, "x")),
        bad("through a link", "pwned", Layer::new().link("out", folder).file("out/pwned", 0o644, "x")),
        bad(
            "through a relative link",
            "pwned",
            Layer::new()
                .folder("d/", 0o755)
                .link("d/out", &format!("{}{}", "../".repeat(24), &folder[1..]))
                .file("d/out/pwned", 0o644, "x"),
        ),
        bad(
            "through two links",
            "one/",
            Layer::new().link("one", "two").link("two", folder).folder("one/deep/", 0o755).file(
                "one/pwned",
                0o644,
                "x",
            ),
        ),
        bad(
            "a hard link to the outside",
            "stolen",
            Layer::new().hard("stolen", "../../../../../../../../../etc/passwd"),
        ),
        bad("a hard link by an absolute name", "stolen", Layer::new().hard("stolen", "/etc/shadow")),
        bad(
            "a hard link through a link",
            "stolen",
            Layer::new().link("etc2", "/etc").hard("stolen", "etc2/passwd"),
        ),
        bad("a deletion elsewhere", "wh", Layer::new().link("out", folder).file("out/.wh.canary", 0, "")),
        bad("a deletion of the parent", ".wh.", Layer::new().file("d/.wh...", 0, "")),
        bad(
            "an emptied folder elsewhere",
            "wh",
            Layer::new().link("out", folder).file("out/.wh..wh..opq", 0, ""),
        ),
    ]
}

/// What would fool the start of a sandbox, or the kernel.
fn tricks() -> Vec<Bad> {
    vec![
        bad("proc is a link", "proc", Layer::new().link("proc", "/tmp")),
        bad("sys is a link", "sys", Layer::new().link("sys", "etc")),
        bad("dev is a link", "dev", Layer::new().link("dev", "/proc")),
        bad("proc is a file", "proc", Layer::new().file("proc", 0o644, "x")),
        bad("our own folder is a link", ".atoll", Layer::new().link(".atoll", "/etc")),
        bad("a disk", "disk", Layer::new().folder("etc/", 0o755).device("etc/disk", EntryType::Block, 8, 0)),
        bad("memory", "mem", Layer::new().device("mem", EntryType::Char, 1, 1)),
        bad(
            "a whiteout as the kernel keeps it",
            "plain",
            Layer::new().device("plain", EntryType::Char, 0, 0),
        ),
        bad(
            "a name with a nought",
            "NUL",
            Layer::new().entry(EntryType::Regular, b"nought\0/../x", 0o644, b"", b"x", &[]),
        ),
        bad("a part of a name without end", "aaaa", Layer::new().file(&"a".repeat(300), 0o644, "x")),
        bad(
            "a path without end",
            "bbbb",
            Layer::new().file(&format!("{}x", "bbbbbbbb/".repeat(700)), 0o644, "x"),
        ),
        bad("an empty name", "", Layer::new().entry(EntryType::Regular, b"", 0o644, b"", b"x", &[])),
    ]
}

/// Everything below a folder, with sizes; what a refusal must not change.
fn picture(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![folder.to_path_buf()];
    while let Some(folder) = next.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let meta = entry.path().symlink_metadata().unwrap();
            found.insert(format!(
                "{} {}",
                entry.path().display(),
                if meta.is_dir() { 0 } else { meta.len() }
            ));
            if meta.is_dir() {
                next.push(entry.path());
            }
        }
    }
    found
}

/// A folder beside the state that must stay as it is.
fn outside(w: &World) -> PathBuf {
    let folder = w.folder().join("outside");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("canary"), "alive").unwrap();
    folder
}

fn unharmed(outside: &Path, what: &str) {
    let names: Vec<_> = std::fs::read_dir(outside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["canary"], "{what} wrote outside");
    assert_eq!(std::fs::read_to_string(outside.join("canary")).unwrap(), "alive", "{what}");
}

fn in_image(layer: &Layer) -> Image {
    image::busybox().layer(layer, Packing::Gzip)
}

/// Attack B05.
#[test]
fn slips_and_tricks_in_an_archive_are_refused_by_name() {
    run_with(Options::default(), async |w: &World| {
        let (client, outside) = (w.admin(), outside(w));
        client.import("ground", image::busybox().docker_archive("x")).await.ok();
        let before = picture(&w.data().join("images"));
        let witness = w.witness().await;
        for Bad { what, names, layer } in slips(&outside).into_iter().chain(tricks()) {
            for (form, archive) in [
                ("docker", in_image(&layer).docker_archive("x")),
                ("oci", in_image(&layer).oci_archive("latest")),
                ("rootfs", layer.tar()),
            ] {
                let refused = client.import_as("bad", form, archive).await;
                let said = refused.json();
                assert!((400..500).contains(&refused.status), "{what} as {form}: {refused}");
                let message = said["message"].as_str().unwrap();
                assert!(message.contains(&names), "{what} as {form} does not name {names:?}: {refused}");
                unharmed(&outside, what);
            }
            client.template("bad").await.refused(404, "template_not_found");
        }
        assert_eq!(picture(&w.data().join("images")), before, "something was left behind");
        drop(witness);
    });
}

/// Attack B05.
#[test]
fn slips_and_tricks_in_a_pulled_layer_are_refused_by_name() {
    run_with(options(), async |w: &World| {
        let (client, outside) = (w.admin(), outside(w));
        let registry = Registry::start(w).await;
        registry.push(&image::busybox(), "good", "latest").await;
        client.pull(&registry.name("good")).await.unwrap();
        let layers = picture(&w.data().join("images/layers"));
        let all: Vec<Bad> = slips(&outside).into_iter().chain(tricks()).collect();
        for (n, Bad { what, names, layer }) in all.iter().enumerate() {
            let name = format!("bad{n}");
            let packing = [Packing::Gzip, Packing::Zstd, Packing::Plain][n % 3];
            registry.push(&image::busybox().layer(layer, packing), &name, "latest").await;
            let refused = client.pull(&registry.name(&name)).await.expect_err(what);
            assert!(refused["message"].as_str().unwrap().contains(names.as_str()), "{what}: {refused}");
            unharmed(&outside, what);
        }
        assert_eq!(picture(&w.data().join("images/layers")), layers, "something was left behind");
    });
}

#[test]
fn a_context_cannot_write_outside_of_its_build() {
    run_with(Options::default(), async |w: &World| {
        let (client, outside) = (w.tenant("acme").await, outside(w));
        client.import("ground", image::busybox().docker_archive("x")).await.ok();
        let spec = json!({ "template": "built", "dockerfile": "FROM ground\nCOPY . /ctx/\n" });
        // In a context these are names like others, which land below /ctx of a sandbox; devices are left out.
        let harmless = [
            "proc ",
            "sys ",
            "dev ",
            "our own",
            "deletion",
            "emptied",
            "kernel keeps",
            "a disk",
            "memory",
            "empty name",
        ];
        for Bad { what, names, layer } in slips(&outside).into_iter().chain(tricks()) {
            let (build, log) = client.build(spec.clone(), Some(layer.tar())).await;
            unharmed(&outside, what);
            let said = format!("{build} {log}");
            if build["status"] == "ready" {
                assert!(harmless.iter().any(|word| what.contains(word)), "{what} was built: {build}");
                let id = client.create(json!({ "template": "built" })).await;
                let devices = client.sh_root(&id, "find /ctx -type b -o -type c").await;
                assert_eq!(devices.stdout, "", "{what}");
                client.remove(&id).await;
            } else if !harmless.iter().any(|word| what.contains(word)) {
                // A hard link is named by itself or by what it leads to; a name with a nought in it cannot be said.
                let named = [names.as_str(), "passwd", "shadow", "not a valid tar"]
                    .iter()
                    .any(|name| said.contains(name));
                assert!(named, "{what} does not name {names:?}: {said}");
            }
        }
        let (_, _) = client.build(spec, Some(Layer::new().file("fine", 0o644, "x").tar())).await;
        let id = client.create(json!({ "template": "built" })).await;
        assert_eq!(client.sh(&id, "ls /ctx").await.text(), "fine");
    });
}

#[test]
fn harmless_strangeness_is_taken() {
    run_with(Options::default(), async |w: &World| {
        let client = w.admin();
        let odd = Layer::new()
            .folder("./", 0o755)
            .file("./dotted", 0o644, "x")
            .file("double//slash", 0o644, "x")
            .file("no/parent/entry", 0o600, "x")
            .file("twice", 0o644, "first")
            .file("twice", 0o755, "second")
            .file("was-file", 0o644, "x")
            .folder("was-file/", 0o755)
            .folder("proc/", 0o555)
            .file("proc/cmdline", 0o644, "skipped")
            .device("dev/null", EntryType::Char, 1, 3)
            .link("dev/stdin", "/proc/sysrq-trigger")
            .link("loop", "loop")
            .file_with(
                "caps",
                0o755,
                b"x",
                &[("trusted.overlay.opaque", b"y"), ("security.selinux", b"x"), ("user.ok", b"1")],
            )
            .link("absolute", "/etc/passwd")
            .file(&format!("{}/end", "d".repeat(255)), 0o644, "x");
        client.import("odd", in_image(&odd).docker_archive("x")).await.ok();
        let id = client.create(json!({ "template": "odd" })).await;
        let line = "cat /dotted /double/slash /no/parent/entry /twice; test -d /was-file && echo folder; stat -c %a /no/parent/entry; \
                    head -c 5 /absolute; test -c /dev/null && echo null; readlink /dev/stdin; readlink /loop";
        let seen = client.sh_root(&id, line).await;
        assert_eq!(seen.text(), "xxxsecondfolder\n600\nroot:null\n/proc/self/fd/0\nloop");
        // An export hands on what came; what is unpacked holds no attribute that would mean something to the kernel.
        let look = "import glob, os, sys; print(sorted(os.listxattr(glob.glob(sys.argv[1] + '/*/fs/caps')[0])), \
                    glob.glob(sys.argv[1] + '/*/fs/proc/cmdline'))";
        let mut python = std::process::Command::new("python3");
        let said = python.args(["-c", look]).arg(w.data().join("images/layers")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "['user.ok'] []", "{said:?}");
    });
}

#[test]
fn what_is_no_archive_is_refused_and_leaves_nothing() {
    run_with(Options::default(), async |w: &World| {
        let client = w.admin();
        let before = picture(&w.data().join("images"));
        let good = image::busybox().docker_archive("x");
        let middle = good.len() / 2;
        let with = |name: &str, bytes: &[u8]| Layer::new().file(name, 0o644, bytes).tar();
        for (what, archive) in [
            ("nothing", Vec::new()),
            ("text", b"hello, this is no archive".to_vec()),
            ("noise", (0..100_000_u32).map(|n| (n * 7 + n / 3) as u8).collect()),
            ("the first half", good[..middle].to_vec()),
            ("half of a gzip", image::gzip(&good)[..200_000].to_vec()),
            ("a gzip with another end", {
                let mut g = image::gzip(&good);
                let at = g.len() - 6;
                g[at] ^= 1;
                g
            }),
            ("a manifest that is none", with("manifest.json", b"[]")),
            (
                "a manifest of nonsense",
                with("manifest.json", br#"[{"Config":"../../etc/passwd","Layers":["/etc/passwd"]}]"#),
            ),
            (
                "a layout of nonsense",
                with("index.json", br#"{"manifests":[{"digest":"sha256:../../x","size":1}]}"#),
            ),
            ("a layout without blobs", with("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)),
            ("deep JSON", with("manifest.json", "[".repeat(200_000).as_bytes())),
        ] {
            // A root may hold a file of any name; what is said to be an image must be one.
            let form = match what {
                _ if what.contains("layout") => "oci",
                _ if what.contains("manifest") || what.contains("JSON") => "docker",
                _ => "auto",
            };
            let refused = client.import_as("bad", form, archive).await;
            assert!((400..500).contains(&refused.status), "{what}: {refused}");
            assert!(refused.json()["message"].as_str().is_some_and(|m| !m.is_empty()));
            assert_eq!(picture(&w.data().join("images")), before, "{what} left something");
        }
    });
}

/// Zeros without end, as gzip: a megabyte becomes a gigabyte.
fn zeros(gib: u64) -> Vec<u8> {
    use std::io::Write;
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(gib << 30);
    header.as_old_mut().name[..4].copy_from_slice(b"bomb");
    header.set_cksum();
    let mut packer = zstd::Encoder::new(Vec::new(), 3).unwrap();
    packer.write_all(header.as_bytes()).unwrap();
    let chunk = vec![0; 1 << 20];
    for _ in 0..gib << 10 {
        packer.write_all(&chunk).unwrap();
    }
    packer.write_all(&[0; 1024]).unwrap();
    packer.finish().unwrap()
}

/// Bytes in files of a folder, as the disk counts them.
fn disk(folder: &Path) -> u64 {
    let said = std::process::Command::new("du").args(["-sk"]).arg(folder).output().unwrap();
    // What vanishes while it is counted is nothing.
    String::from_utf8_lossy(&said.stdout)
        .split_whitespace()
        .next()
        .map_or(0, |kib| kib.parse::<u64>().unwrap())
        * 1024
}

/// Attack B06.
#[test]
fn bombs_are_stopped_at_the_bound_and_cleared_away() {
    let small = options().env("ATOLL_IMAGE_MAX", "64m").env("ATOLL_IMAGE_MAX_ENTRIES", "20000");
    run_with(small, async |w: &World| {
        let client = w.tenant("acme").await;
        let images = w.data().join("images");
        let before = disk(&images);
        let peak = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let watching = {
            let (images, peak) = (images.clone(), peak.clone());
            tokio::task::spawn_blocking(move || {
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(120)
                    && peak.load(std::sync::atomic::Ordering::Relaxed) != u64::MAX
                {
                    peak.fetch_max(disk(&images), std::sync::atomic::Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(100));
                }
            })
        };
        let bomb = zeros(4);
        assert!(bomb.len() < 4 << 20);
        let refused = client.import_as("bomb", "rootfs", bomb.clone()).await;
        assert!([400, 413, 422, 507].contains(&refused.status), "{refused}");
        // The same as a layer in a registry, of a size that is honest about its blob alone.
        let registry = Registry::start(w).await;
        let mut packed = image::busybox().packed();
        let layer = image::Blob {
            digest: image::digest(&bomb),
            media_type: "application/vnd.oci.image.layer.v1.tar+zstd".into(),
            bytes: bomb.clone(),
        };
        let mut config: atoll_tests::Value = serde_json::from_slice(&packed.config.bytes).unwrap();
        config["rootfs"]["diff_ids"]
            .as_array_mut()
            .unwrap()
            .push(json!(format!("sha256:{}", "cd".repeat(32))));
        let bytes = config.to_string().into_bytes();
        packed.config = image::Blob {
            digest: image::digest(&bytes),
            media_type: packed.config.media_type.clone(),
            bytes,
        };
        packed.layers.push(layer);
        let descriptors: Vec<_> = packed.layers.iter().map(image::Blob::descriptor).collect();
        let manifest = json!({ "schemaVersion": 2, "mediaType": packed.manifest.media_type, "config": packed.config.descriptor(), "layers": descriptors });
        let bytes = manifest.to_string().into_bytes();
        packed.manifest = image::Blob {
            digest: image::digest(&bytes),
            media_type: packed.manifest.media_type.clone(),
            bytes,
        };
        registry.push_packed(&packed, "bomb", "latest").await;
        client.pull(&registry.name("bomb")).await.expect_err("a bomb");
        // A bomb as the context of a build, and as an archive within it.
        client.import("ground", image::busybox().docker_archive("x")).await.ok();
        let spec = json!({ "template": "built", "dockerfile": "FROM ground\nADD bomb.tar.zst /x/\n", "disk_mib": 128 });
        let (build, _) = client.build(spec.clone(), Some(bomb.clone())).await;
        assert!(build["status"] == "failed" || build.get("code").is_some(), "{build}");
        // Entries without end.
        let mut many = Layer::new();
        for n in 0..30_000 {
            many = many.file(&format!("f{n}"), 0o644, "");
        }
        let refused = client.import_as("many", "rootfs", image::gzip(&many.tar())).await;
        assert!([400, 413, 422, 507].contains(&refused.status), "{refused}");
        let reached = peak.swap(u64::MAX, std::sync::atomic::Ordering::Relaxed);
        watching.await.unwrap();
        assert!(reached < before + (300 << 20), "the disk held {reached} bytes meanwhile");
        w.admin().post_empty("/v1/templates/gc").await.ok();
        let after = disk(&images);
        assert!(after < before + (20 << 20), "{before} became {after}");
        let left: Vec<String> = picture(&images)
            .into_iter()
            .filter(|name| name.contains(".build-") || name.contains(".trash-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn a_full_disk_is_told_as_such_and_things_go_on_when_there_is_room() {
    run_with(Options { audit: false, ..Options::default() }, async |w: &World| {
        // The store of images on a disk of its own, which is little larger than what must stay free.
        let client = w.admin();
        let images = w.data().join("images");
        w.stop_server(nix::sys::signal::Signal::SIGTERM).await;
        let disk = w.folder().join("disk.img");
        let make = format!(
            "truncate -s 1200M {0} && mkfs.ext4 -q -F -m 0 {0} && mkdir -p {1} && mount -o loop {0} {1} && chmod 700 {1}",
            disk.display(),
            images.display()
        );
        assert!(std::process::Command::new("sh").arg("-c").arg(&make).status().unwrap().success());
        w.start_server().await;
        client.import("small", image::busybox().docker_archive("x")).await.ok();
        let noise: Vec<u8> =
            (0..150_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
        let large = image::busybox().layer(&Layer::new().file("large", 0o644, &noise), Packing::Plain);
        let refused = client.import("large", large.docker_archive("x")).await;
        assert!([503, 507].contains(&refused.status), "{refused}");
        assert_eq!(refused.code(), "no_capacity", "{refused}");
        // What was there works, and there is room again.
        let id = client.create(json!({ "template": "small" })).await;
        assert_eq!(client.sh(&id, "cat /etc/base").await.text(), "of the base");
        client.remove(&id).await;
        let fits: Vec<u8> = noise[..20_000_000].to_vec();
        let fits = image::busybox().layer(&Layer::new().file("large", 0o644, &fits), Packing::Plain);
        client.import("fits", fits.docker_archive("x")).await.ok();
        w.stop_server(nix::sys::signal::Signal::SIGTERM).await;
        assert!(std::process::Command::new("umount").arg(&images).status().unwrap().success());
    });
}
