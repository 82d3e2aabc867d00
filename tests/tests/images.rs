//! Images as templates: every form of archive, what their sandboxes see, tags that move, and what is collected when.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use atoll_tests::image::{self, Image, Layer, Packing};
use atoll_tests::{Client, Options, Value, World, json, run, run_with, until};

/// A world in which what is young is not spared by a collection.
fn eager() -> Options {
    Options::default().env("ATOLL_IMAGE_GRACE_S", "0")
}

fn three_layers() -> Image {
    let second = Layer::new()
        .file("etc/.wh.base", 0, "")
        .folder("data/old/", 0o755)
        .file("data/old/.wh..wh..opq", 0, "")
        .file("data/old/new", 0o644, "new\n")
        .file("opt/base", 0o644, "a file now\n")
        .file("tool", 0o4755, "x")
        .hard("also-tool", "tool");
    let third = Layer::new()
        .owner(1000, 1000)
        .folder("srv/", 0o2775)
        .file_with("srv/mine", 0o640, b"mine\n", &[("user.colour", b"blue")])
        .link("srv/link", "/etc/passwd")
        .pipe("srv/pipe");
    image::busybox().layer(&second, Packing::Gzip).layer(&third, Packing::Zstd)
}

async fn shows(client: &Client, template: &str, line: &str, expected: &str) {
    let id = client.create(json!({ "template": template })).await;
    assert_eq!(client.sh_root(&id, line).await.text(), expected, "{template}");
    client.remove(&id).await;
}

const LOOK: &str = "ls /etc/base /opt/base/one 2>/dev/null; ls /data/old; cat /opt/base; stat -c %a /tool; test /tool -ef /also-tool && echo same; \
                    stat -c '%a %u:%g' /srv /srv/mine; readlink /srv/link; test -p /srv/pipe && echo pipe";
const SEEN: &str = "new\na file now\n4755\nsame\n2775 1000:1000\n640 1000:1000\n/etc/passwd\npipe";

#[test]
fn archives_of_every_form_become_the_same_template() {
    run(async |w: &World| {
        let (client, made) = (w.admin(), three_layers());
        let whole = image::tree_of(&made.docker_archive("x"));
        let docker = client.import("docker", made.docker_archive("x")).await.ok();
        assert_eq!((&docker["made_from"], &docker["layers"]), (&json!("import"), &json!(3)));
        let packed = client.import("packed", image::gzip(&made.docker_archive("x"))).await.ok();
        let oci = client.import("oci", made.oci_archive("latest")).await.ok();
        for other in [&packed, &oci] {
            assert_eq!(other["version"], docker["version"], "the same content is the same version");
        }
        for name in ["docker", "packed", "oci"] {
            shows(&client, name, LOOK, SEEN).await;
        }
        for form in ["oci", "docker"] {
            let out = client.export("oci", form).await;
            assert_eq!(image::tree_of(&out), whole, "{form}");
            assert_eq!(image::config_of(&out), image::config_of(&made.docker_archive("x")), "{form}");
        }
        // What was exported can be imported, and is the same again.
        let out = client.export("oci", "docker").await;
        client.import("again", out).await.ok();
        assert_eq!(image::tree_of(&client.export("again", "oci").await), whole);
        // The files of a root alone.
        let files = Layer::new().folder("etc/", 0o755).file("etc/x", 0o644, "x\n").folder("bin/", 0o755);
        let busybox = std::fs::read("/bin/busybox").unwrap();
        let files =
            files.file("bin/busybox", 0o755, busybox).link("bin/sh", "busybox").link("bin/cat", "busybox");
        client.import_as("plain", "rootfs", files.tar()).await.ok();
        shows(&client, "plain", "cat /etc/x", "x").await;
        client.import("plain2:tag", image::gzip(&files.tar())).await.ok();
        shows(&client, "plain2:tag", "cat /etc/x", "x").await;
        // A layout in a folder is what the command line packs.
        let folder = w.folder().join("layout");
        made.oci_layout(&folder, "latest");
        let mut command = w.command();
        command.args(["template", "import"]).arg(&folder).arg("folder");
        let done = w.output(command).await;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(client.template("folder").await.ok()["version"], docker["version"]);
    });
}

#[test]
fn what_an_image_says_of_itself_holds_in_its_sandboxes() {
    run(async |w: &World| {
        let client = w.admin();
        let config = |more: Value| {
            let mut made = image::busybox();
            for (name, value) in more.as_object().unwrap() {
                made.config[name] = value.clone();
            }
            made.docker_archive("x")
        };
        let said = json!({
            "User": "app", "WorkingDir": "/srv/deep", "Entrypoint": ["/bin/never"], "Labels": { "a": "b" },
            "ExposedPorts": { "9090/tcp": {}, "53/udp": {} },
            "Env": ["PATH=/bin", "GREETING=hello world", "PORT=1234", "EMPTY="],
        });
        let made = client.import("said", config(said)).await.ok();
        assert_eq!(
            (&made["user"], &made["workdir"], &made["port"]),
            (&json!("app"), &json!("/srv/deep"), &json!(1234))
        );
        assert_eq!((&made["entrypoint"], &made["labels"]["a"]), (&json!(["/bin/never"]), &json!("b")));
        let id = client.create(json!({ "template": "said" })).await;
        let seen = client.sh(&id, "id -un; echo $HOME; pwd; echo \"$GREETING/$PORT/${EMPTY-unset}\"").await;
        assert_eq!(seen.text(), "app\n/home/app\n/srv/deep\nhello world/1234/");
        // The entry point was not started.
        assert!(!client.sh_root(&id, "ps").await.text().contains("/bin/never"));
        for (user, expected) in
            [("1000", "1000 1000"), ("1000:50", "1000 50"), ("4242:4243", "4242 4243"), ("", "0 0")]
        {
            let name = format!("user-{}", user.replace(':', "-").trim_end_matches('-'));
            let name = name.trim_end_matches('-');
            client.import(name, config(json!({ "User": user }))).await.ok();
            let id = client.create(json!({ "template": name })).await;
            assert_eq!(client.sh(&id, "echo $(id -u) $(id -g)").await.text(), expected, "{user:?}");
        }
        // Ids outside of a sandbox's range become those of the user nobody, and that is noted.
        let far = image::busybox()
            .layer(&Layer::new().owner(70_000, 1_000_000).file("far", 0o644, "x"), Packing::Gzip);
        let made = client.import("far", far.docker_archive("x")).await.ok();
        assert!(!made["notes"].as_array().unwrap().is_empty(), "{made}");
        shows(&client, "far", "stat -c %u:%g /far", "65534:65534").await;
        // The network works although the image has no resolv.conf.
        w.internet.says("service.example.test", atoll_tests::internet::Say::a([atoll_tests::internet::GOOD]));
        let id = client.create(json!({ "template": "said", "network": "allow-all" })).await;
        assert!(client.sh(&id, "cat /etc/resolv.conf").await.text().contains("nameserver"));
    });
}

#[test]
fn a_tag_moves_and_sandboxes_stay_with_what_they_began_with() {
    run_with(eager(), async |w: &World| {
        let client = w.tenant("acme").await;
        let version = |text: &str| {
            image::busybox()
                .layer(&Layer::new().file("version", 0o644, text), Packing::Gzip)
                .docker_archive("x")
        };
        client.import("app:one", version("one")).await.ok();
        client.import("app", version("one")).await.ok();
        let old = client.create(json!({ "template": "app" })).await;
        let first = client.template("app").await.ok()["version"].clone();
        client.import("app", version("two")).await.ok();
        let new = client.create(json!({ "template": "app" })).await;
        assert_eq!(client.sh(&new, "cat /version").await.text(), "two");
        assert_eq!(client.sh(&old, "cat /version").await.text(), "one");
        // The name goes, and the collection comes: what lives goes on, also after a stop and after a crash.
        client.remove_template("app:one").await.ok();
        client.remove_template("app:latest").await.ok();
        client.template("app").await.refused(404, "template_not_found");
        w.admin().post_empty("/v1/templates/gc").await.ok();
        client.act(&old, "stop").await.ok();
        w.crash_server().await;
        w.admin().post_empty("/v1/templates/gc").await.ok();
        client.act(&old, "start").await.ok();
        assert_eq!(client.sh(&old, "cat /version").await.text(), "one");
        let child = client.post(&format!("/v1/sandboxes/{old}/fork"), json!({ "count": 1 })).await.ok();
        assert!(child.to_string().contains("running"), "{child}");
        let _ = first;
        // With the last sandbox and snapshot the files go too.
        w.delete_all().await;
        until("what nobody uses is collected", async || {
            w.admin().post_empty("/v1/templates/gc").await.ok();
            let left = entries(&w.data().join("images/layers")) + entries(&w.data().join("images/versions"));
            (left == 0).then_some(())
        })
        .await;
        assert_eq!(entries(&w.data().join("images/blobs/sha256")), 0);
    });
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).into_iter().flatten().count()
}

/// Bytes that a folder takes on the disk.
fn disk(folder: &Path) -> u64 {
    let said = std::process::Command::new("du").args(["-sk"]).arg(folder).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    text.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn layers_are_kept_once_and_no_sandbox_has_a_copy() {
    run(async |w: &World| {
        let client = w.admin();
        let noise: Vec<u8> =
            (0..20_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let base = image::busybox().layer(&Layer::new().file("large", 0o644, &noise), Packing::Gzip);
        client.import("one", base.docker_archive("x")).await.ok();
        let with_one = disk(&w.data().join("images"));
        let more = base.clone().layer(&Layer::new().file("small", 0o644, "x"), Packing::Gzip);
        client.import("two", more.docker_archive("x")).await.ok();
        let with_two = disk(&w.data().join("images"));
        assert!(with_two < with_one + 2_000_000, "{with_one} became {with_two}");
        let before = disk(&w.data());
        for _ in 0..5 {
            let id = client.create(json!({ "template": "two" })).await;
            assert_eq!(client.sh(&id, "wc -c < /large").await.text(), "20000000");
        }
        assert!(disk(&w.data()) < before + 10_000_000, "sandboxes copy their template");
    });
}

#[test]
fn more_layers_than_are_stacked_are_put_together() {
    run(async |w: &World| {
        let client = w.admin();
        let mut made = image::busybox();
        for n in 0..60 {
            let mut layer = Layer::new().folder("d/", 0o755).file(&format!("d/{n}"), 0o644, format!("{n}"));
            if n % 3 == 2 {
                layer = layer.file(&format!("d/.wh.{}", n - 1), 0, "");
            }
            if n == 30 {
                layer = layer.file("data/old/.wh..wh..opq", 0, "").folder("data/old/", 0o700);
            }
            made = made.layer(&layer, if n % 2 == 0 { Packing::Gzip } else { Packing::Zstd });
        }
        client.import("many", made.oci_archive("latest")).await.ok();
        shows(
            &client,
            "many",
            "ls /d | wc -l; ls /d/4 2>/dev/null; cat /d/59; ls /data/old | wc -l; stat -c %a /data/old",
            "40\n590\n700",
        )
        .await;
        assert_eq!(
            image::tree_of(&client.export("many", "oci").await),
            image::tree_of(&made.docker_archive("x"))
        );
    });
}

#[test]
fn templates_of_others_are_not_there() {
    run(async |w: &World| {
        let (one, two) = (w.tenant("one").await, w.tenant("two").await);
        let made = one.import("mine", image::busybox().docker_archive("x")).await.ok();
        let digest = made["version"].as_str().unwrap().to_owned();
        let listed = two.get("/v1/templates").await.ok();
        assert!(!listed.to_string().contains("mine"), "{listed}");
        for name in ["mine".to_owned(), "mine:latest".to_owned(), format!("mine@{digest}")] {
            two.template(&name).await.refused(404, "template_not_found");
            two.remove_template(&name).await.refused(404, "template_not_found");
            two.post("/v1/sandboxes", json!({ "template": name })).await.refused(404, "template_not_found");
            let path = format!("/v1/templates/{}/export", atoll_tests::templates::segment(&name));
            two.get(&path).await.refused(404, "template_not_found");
        }
        // The same name is another thing for another tenant.
        let other = image::busybox().layer(&Layer::new().file("who", 0o644, "two\n"), Packing::Gzip);
        two.import("mine", other.docker_archive("x")).await.ok();
        shows(&two, "mine", "cat /who", "two").await;
        shows(&one, "mine", "ls /who 2>/dev/null || echo none", "none").await;
        // The only use of a layer that two tenants brought is to be kept once: knowing its digest gives nothing.
        one.remove_template("mine").await.ok();
        shows(&two, "mine", "cat /who", "two").await;
        // A built-in template cannot be removed.
        assert!(two.remove_template("busybox").await.status >= 400);
        two.import("busybox", other.docker_archive("x")).await.refused(409, "name_taken");
        shows(&two, "busybox", "ls /who 2>/dev/null || echo none", "none").await;
    });
}

#[test]
fn a_collection_never_takes_what_is_being_started() {
    run_with(eager(), async |w: &World| {
        let client = w.admin();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let collecting = {
            let (client, stop) = (client.clone(), stop.clone());
            tokio::spawn(async move {
                let mut rounds = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.post_empty("/v1/templates/gc").await.ok();
                    rounds += 1;
                }
                rounds
            })
        };
        for round in 0..12 {
            let text = format!("{round}\n");
            let made = image::busybox().layer(&Layer::new().file("round", 0o644, &text), Packing::Gzip);
            client.import("fleeting", made.docker_archive("x")).await.ok();
            let id = client.create(json!({ "template": "fleeting" })).await;
            client.remove_template("fleeting:latest").await.ok();
            assert_eq!(
                client.sh(&id, "cat /round; cat /etc/base").await.text(),
                format!("{round}\nof the base")
            );
            if round % 2 == 0 {
                client.act(&id, "stop").await.ok();
                client.act(&id, "start").await.ok();
                assert_eq!(client.sh(&id, "cat /round").await.text(), round.to_string());
            }
            client.remove(&id).await;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(collecting.await.unwrap() > 3);
    });
}
