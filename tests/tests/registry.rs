//! Pulls and pushes against a real registry, and what networks, clouds and villains do to them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::image::{self, Image, Layer, Packing};
use atoll_tests::internet::{Record, Say};
use atoll_tests::registry::{Fault, Proxy, Registry, Rule, options};
use atoll_tests::{Options, Value, World, json, run, run_with};

/// Two layers of which the upper one deletes, replaces and links; large enough to be cut in the middle.
fn app() -> Image {
    let noise: Vec<u8> = (0..600_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let upper = Layer::new()
        .folder("app/", 0o755)
        .file("app/noise", 0o644, &noise)
        .file("app/tool", 0o4755, "#!/bin/sh\necho tool\n")
        .hard("app/same", "app/noise")
        .folder("etc/", 0o755)
        .file("etc/.wh.base", 0, "")
        .owner(1000, 1000)
        .file("app/mine", 0o600, "mine\n");
    let mut made = image::busybox().layer(&upper, Packing::Zstd);
    made.config["User"] = json!("app");
    made.config["WorkingDir"] = json!("/app");
    made.config["ExposedPorts"] = json!({ "8080/tcp": {} });
    made
}

async fn looks_right(w: &World, template: &str) {
    let client = w.admin();
    let id = client.create(json!({ "template": template })).await;
    let seen = client
        .sh(
            &id,
            "id -un; pwd; stat -c '%a %u %h' tool mine same; wc -c < noise; ls /etc/base 2>&1; echo $BASE",
        )
        .await;
    let expected =
        "app\n/app\n4755 0 1\n600 1000 1\n644 0 2\n600000\nls: /etc/base: No such file or directory\nyes";
    assert_eq!(seen.text(), expected);
    client.remove(&id).await;
}

#[test]
fn the_registry_of_these_tests_is_sound() {
    run(async |w: &World| {
        let registry = Registry::start(w).await;
        let layer = Layer::new().folder("etc/", 0o755).file("etc/hello", 0o644, "hello\n");
        let made = Image::default()
            .layer(&layer, Packing::Gzip)
            .layer(&Layer::new().file("x", 0o600, "x"), Packing::Zstd);
        registry.push(&made, "team/app", "one").await;
        let judged = w.folder().join("judged.tar");
        registry.judge("team/app", "one", &judged).await;
        let read = std::fs::read(&judged).unwrap();
        assert_eq!(image::tree_of(&read), image::tree_of(&made.docker_archive("x")));
        let proxy = Proxy::start(registry.address()).await;
        let asked = reqwest::Client::new().get(format!("http://{}/v2/team/app/manifests/one", proxy.host()));
        let manifest =
            asked.header("accept", "application/vnd.oci.image.manifest.v1+json").send().await.unwrap();
        let manifest: Value = manifest.json().await.unwrap();
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
        assert_eq!(proxy.count("GET /v2/team/app/manifests/one"), 1);
    });
}

fn fetched_no_layer(proxy: &Proxy) -> bool {
    app().packed().layers.iter().all(|layer| proxy.count(&layer.digest) == 0)
}

#[test]
fn an_image_is_pulled_by_tag_and_by_digest_and_only_once() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        let digest = registry.push(&app(), "team/app", "v1").await;
        let name = proxy.name("team/app:v1");
        let pulled = w.admin().pull(&name).await.unwrap();
        assert_eq!(
            (&pulled["made_from"], &pulled["layers"], &pulled["port"]),
            (&json!("image"), &json!(2), &json!(8080))
        );
        assert_eq!(pulled["manifest"], json!(digest));
        looks_right(w, &name).await;
        // Again: the manifest may be asked for, layers are not.
        proxy.forget();
        let again = w.admin().pull(&name).await.unwrap();
        assert_eq!(again["version"], pulled["version"]);
        assert!(fetched_no_layer(&proxy), "{:?}", proxy.seen());
        let by_digest = proxy.name(&format!("team/app@{digest}"));
        let exact = w.admin().pull(&by_digest).await.unwrap();
        assert_eq!(exact["version"], pulled["version"]);
        assert!(fetched_no_layer(&proxy), "{:?}", proxy.seen());
        // A create brings what is missing by itself.
        registry.push(&image::busybox(), "team/other", "latest").await;
        let id = w.admin().create(json!({ "image": registry.name("team/other") })).await;
        assert_eq!(w.admin().sh(&id, "cat /etc/base").await.text(), "of the base");
    });
}

#[test]
fn the_machines_own_image_is_chosen_from_an_index() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let mut foreign = Image::default().layer(&Layer::new().file("foreign", 0o644, "x"), Packing::Gzip);
        foreign.architecture = "s390x";
        let own = image::busybox();
        for image in [&foreign, &own] {
            registry.push(image, "many", &image.architecture.replace('9', "n")).await;
        }
        registry.push_manifest("many", "latest", &image::index_of(&[&foreign, &own])).await;
        w.admin().pull(&registry.name("many")).await.unwrap();
        let id = w.admin().create(json!({ "template": registry.name("many") })).await;
        assert_eq!(
            w.admin().sh(&id, "cat /etc/base; ls /foreign 2>/dev/null || true").await.text(),
            "of the base"
        );
        registry.push_manifest("only", "latest", &image::index_of(&[])).await;
        let refused = w.admin().pull(&registry.name("only")).await.unwrap_err();
        assert_eq!(refused["code"], "image_not_found", "{refused}");
    });
}

#[test]
fn what_a_network_spoils_once_is_fetched_again() {
    run_with(options().env("ATOLL_IMAGE_GRACE_S", "0"), async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        registry.push(&app(), "app", "latest").await;
        let upper = app().packed().layers[1].digest.clone();
        let line: &'static str = Box::leak(format!("GET /v2/app/blobs/{upper}").into_boxed_str());
        for (what, rule) in [
            ("429", Rule::once(Fault::Status(429, "retry-after: 1\r\n"), "GET /v2/app/blobs/")),
            ("500", Rule::once(Fault::Status(500, ""), "GET /v2/app/blobs/")),
            ("503 for the manifest", Rule::once(Fault::Status(503, "retry-after: 1\r\n"), "/manifests/")),
            ("truncated", Rule::once(Fault::Truncated, line)),
            ("reset", Rule::once(Fault::Reset, line)),
        ] {
            proxy.now(&[rule]);
            proxy.forget();
            let name = proxy.name("app");
            w.admin().pull(&name).await.unwrap_or_else(|why| panic!("{what}: {why}"));
            if what == "truncated" || what == "reset" {
                let ranges: Vec<_> = proxy.seen().into_iter().filter_map(|seen| seen.range).collect();
                assert!(
                    ranges.iter().any(|range| range.starts_with("bytes=") && range != "bytes=0-"),
                    "{what}: {ranges:?}"
                );
            }
            looks_right(w, &name).await;
            w.admin().remove_template(&name).await.ok();
            collect_all(w).await;
        }
    });
}

/// Collects until nothing is left to collect: what is young is spared for a moment.
async fn collect_all(w: &World) {
    atoll_tests::until("nothing of images is left", async || {
        w.admin().post_empty("/v1/templates/gc").await.ok();
        layers(w).is_empty().then_some(())
    })
    .await;
}

fn layers(w: &World) -> Vec<String> {
    names(&w.data().join("images/layers"))
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn what_a_registry_does_wrong_is_said_and_leaves_nothing() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        registry.push(&app(), "app", "latest").await;
        let other =
            Image::default().layer(&Layer::new().file("other", 0o644, "other"), Packing::Gzip).packed();
        for (what, rule, code) in [
            ("spoiled", Rule::always(Fault::Spoiled, "GET /v2/app/blobs/"), "damaged"),
            (
                "another layer",
                Rule::always(Fault::Instead(other.layers[0].bytes.clone()), "GET /v2/app/blobs/"),
                "damaged",
            ),
            (
                "truncated for ever",
                Rule::always(Fault::Truncated, "GET /v2/app/blobs/"),
                "registry_unavailable",
            ),
            (
                "429 for ever",
                Rule::always(Fault::Status(429, "retry-after: 1\r\n"), "/v2/"),
                "registry_unavailable",
            ),
            (
                "429 for a day",
                Rule::always(Fault::Status(429, "retry-after: 86400\r\n"), "/v2/"),
                "registry_unavailable",
            ),
            ("500 for ever", Rule::always(Fault::Status(500, ""), "/v2/"), "registry_unavailable"),
            ("401", Rule::always(Fault::Status(401, ""), "/v2/"), "image_not_found"),
            ("403", Rule::always(Fault::Status(403, ""), "/v2/"), "image_not_found"),
            ("404", Rule::always(Fault::Status(404, ""), "/manifests/"), "image_not_found"),
            (
                "a manifest that is none",
                Rule::always(Fault::Instead(b"<html>".to_vec()), "/manifests/"),
                "registry_unavailable",
            ),
            (
                "a manifest without end",
                Rule::always(Fault::Instead(vec![b' '; 8 << 20]), "/manifests/"),
                "registry_unavailable",
            ),
        ] {
            proxy.now(&[rule]);
            let began = Instant::now();
            let refused = w.admin().pull(&proxy.name("app")).await.expect_err(what);
            let code_right =
                refused["code"] == code || (code == "registry_unavailable" && refused["code"] == "damaged");
            assert!(code_right, "{what}: {refused}");
            assert!(began.elapsed() < Duration::from_secs(100), "{what} took {:?}", began.elapsed());
            if code == "damaged" {
                let packed = app().packed();
                let named = packed.layers.iter().chain([&packed.config]).any(|blob| {
                    refused["message"].as_str().unwrap().contains(&blob.digest["sha256:".len()..][..12])
                });
                assert!(named, "{what} does not name the blob: {refused}");
            }
            w.admin().template(&proxy.name("app")).await.refused(404, "template_not_found");
        }
        proxy.now(&[]);
        w.admin().pull(&proxy.name("app")).await.unwrap();
        looks_right(w, &proxy.name("app")).await;
    });
}

#[test]
fn names_and_digests_that_do_not_fit_are_refused() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        let digest = registry.push(&app(), "app", "latest").await;
        // What was asked for by digest is something else.
        let other = image::busybox().packed().manifest.bytes;
        registry.push(&image::busybox(), "app", "other").await;
        proxy.now(&[Rule::always(Fault::Instead(other), "/manifests/")]);
        let refused = w.admin().pull(&proxy.name(&format!("app@{digest}"))).await.unwrap_err();
        assert_eq!(refused["code"], "damaged", "{refused}");
        proxy.now(&[]);
        // The configuration promises another tree than the layers hold.
        let mut lies = app().packed();
        let honest: Value = serde_json::from_slice(&lies.config.bytes).unwrap();
        let mut config = honest.clone();
        config["rootfs"]["diff_ids"][1] = json!(format!("sha256:{}", "ab".repeat(32)));
        lies.config = blob_like(&lies.config, config.to_string().into_bytes());
        let mut manifest: Value = serde_json::from_slice(&lies.manifest.bytes).unwrap();
        manifest["config"] = lies.config.descriptor();
        lies.manifest = blob_like(&lies.manifest, manifest.to_string().into_bytes());
        registry.push_packed(&lies, "lies", "latest").await;
        let refused = w.admin().pull(&registry.name("lies")).await.unwrap_err();
        assert_eq!(refused["code"], "damaged", "{refused}");
        // More layers than it has names for, and sizes that are not true.
        let mut sizes = app().packed();
        manifest["config"] = sizes.config.descriptor();
        manifest["layers"][0]["size"] = json!(7);
        sizes.manifest = blob_like(&sizes.manifest, manifest.to_string().into_bytes());
        registry.push_blob("sizes", &sizes.config).await;
        for layer in &sizes.layers {
            registry.push_blob("sizes", layer).await;
        }
        proxy.now(&[Rule::always(Fault::Instead(sizes.manifest.bytes.clone()), "/manifests/")]);
        registry.push(&app(), "sizes", "latest").await;
        let refused = w.admin().pull(&proxy.name("sizes")).await.unwrap_err();
        assert!(refused["code"] == "damaged" || refused["code"] == "registry_unavailable", "{refused}");
        assert!(layers(w).len() <= 2, "{:?}", layers(w));
    });
}

fn blob_like(old: &image::Blob, bytes: Vec<u8>) -> image::Blob {
    image::Blob { digest: image::digest(&bytes), media_type: old.media_type.clone(), bytes }
}

#[test]
fn credentials_go_where_they_belong_and_nowhere_else() {
    let trusted = Options::default()
        .env("ATOLL_REGISTRY_INSECURE", "127.0.0.1:5001,127.0.0.1:5003")
        .env("ATOLL_IMAGE_GRACE_S", "0");
    run_with(trusted, async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        registry.push(&image::busybox(), "private", "latest").await;
        proxy.wants("somebody", "the password");
        let (name, tenant) = (proxy.name("private"), w.tenant("acme").await);
        let refused = w.admin().pull(&name).await.unwrap_err();
        assert_eq!(refused["code"], "image_not_found", "{refused}");
        let wrong = json!({ "image": name, "auth": { "username": "somebody", "password": "wrong" } });
        let refused = tenant.pull_with(wrong).await.unwrap_err();
        assert!(!refused.to_string().contains("wrong\""), "{refused}");
        // The operator's own credentials are not a tenant's.
        let docker = w.folder().join(".docker");
        std::fs::create_dir_all(&docker).unwrap();
        let known = base64(b"somebody:the password");
        let config = json!({ "auths": { proxy.host(): { "auth": known } } });
        std::fs::write(docker.join("config.json"), config.to_string()).unwrap();
        proxy.forget();
        tenant.pull(&name).await.unwrap_err();
        assert!(proxy.seen().iter().all(|seen| seen.authorization.is_none()), "{:?}", proxy.seen());
        w.admin().pull(&name).await.unwrap();
        let right = json!({ "image": name, "auth": { "username": "somebody", "password": "the password" } });
        tenant.pull_with(right).await.unwrap();
        // A blob that lies elsewhere is fetched without the token.
        let shelf = Proxy::second(registry.address()).await;
        let layer = image::busybox().packed().layers[0].digest.clone();
        let line: &'static str = Box::leak(format!("GET /v2/private/blobs/{layer}").into_boxed_str());
        proxy.now(&[Rule::always(
            Fault::Redirect(format!("http://{}/v2/private/blobs/{layer}", shelf.host())),
            line,
        )]);
        for client in [&w.admin(), &tenant] {
            client.remove_template(&name).await.ok();
        }
        collect_all(w).await;
        w.admin().pull(&name).await.unwrap();
        assert!(shelf.count("/blobs/") >= 1);
        assert!(shelf.seen().iter().all(|seen| seen.authorization.is_none()), "{:?}", shelf.seen());
        assert!(!w.log().contains("the password") && !w.log().contains(&known), "the log tells the password");
    });
}

fn base64(bytes: &[u8]) -> String {
    use ::base64::Engine;
    ::base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Attack N26.
#[test]
fn a_registry_is_no_way_into_the_operators_network() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        let secret = Proxy::second(registry.address()).await;
        registry.push(&app(), "app", "latest").await;
        let before = w.internet.requests().len();
        // Hosts that the operator did not name, by every spelling of themselves.
        for host in [
            "localhost:5003",
            "127.0.0.1:5003",
            "127.1:5003",
            "[::1]:5003",
            "169.254.169.254",
            "169.254.169.254:80",
            "10.1.2.3:8080",
            "192.168.77.1:8080",
            "0.0.0.0:5003",
            "2130706433:5003",
            "0x7f.1:5003",
        ] {
            let refused = w.admin().pull(&format!("{host}/app")).await.unwrap_err();
            let code = refused["code"].as_str().unwrap();
            assert!(
                [
                    "invalid_request",
                    "invalid_argument",
                    "forbidden",
                    "registry_unavailable",
                    "image_not_found"
                ]
                .contains(&code),
                "{host}: {refused}"
            );
        }
        // And by way of one that he did name.
        for to in [
            "http://169.254.169.254/latest/meta-data",
            "http://127.0.0.1:5003/v2/app",
            "http://10.1.2.3:8080/",
            "file:///etc/passwd",
            "http://localhost:7070/v1/keys",
        ] {
            for line in ["/blobs/", "/manifests/"] {
                proxy.now(&[Rule::always(Fault::Redirect(to.to_owned()), line)]);
                let refused = w.admin().pull(&proxy.name("app")).await.unwrap_err();
                assert!(!refused.to_string().contains("root:"), "{to}: {refused}");
            }
        }
        assert_eq!(w.internet.requests().len(), before, "{:?}", w.internet.requests());
        assert!(secret.seen().is_empty(), "{:?}", secret.seen());
        assert!(layers(w).is_empty(), "{:?}", layers(w));
    });
}

#[test]
fn what_we_push_others_can_use() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let client = w.admin();
        client.import("app:v1", app().docker_archive("app")).await.ok();
        let to = registry.name("out/app:v7");
        client.push("app:v1", json!({ "image": to })).await.unwrap();
        let judged = w.folder().join("judged.tar");
        registry.judge("out/app", "v7", &judged).await;
        let read = std::fs::read(&judged).unwrap();
        assert_eq!(image::tree_of(&read), image::tree_of(&app().docker_archive("x")));
        assert_eq!(image::config_of(&read), image::config_of(&app().docker_archive("x")));
        // A second time nothing is sent that is there.
        let proxy = Proxy::start(registry.address()).await;
        client.push("app:v1", json!({ "image": proxy.name("out/app:v8") })).await.unwrap();
        assert_eq!(proxy.count("PUT /v2/out/app/blobs"), 0, "{:?}", proxy.seen());
        // Faults of a push are told, and it can be done again.
        proxy.now(&[Rule::always(Fault::Status(403, ""), "/v2/denied/")]);
        let refused = client.push("app:v1", json!({ "image": proxy.name("denied/app") })).await.unwrap_err();
        assert!(refused["message"].as_str().is_some_and(|text| !text.is_empty()), "{refused}");
        proxy.now(&[
            Rule::once(Fault::Status(503, "retry-after: 1\r\n"), "PUT /v2/flaky/"),
            Rule::once(Fault::Reset, "PATCH /v2/flaky/"),
        ]);
        client.push("app:v1", json!({ "image": proxy.name("flaky/app") })).await.unwrap();
        registry.judge("flaky/app", "latest", &w.folder().join("judged2.tar")).await;
        // A template that was built upon a built-in one goes whole.
        client.push("busybox", json!({ "image": registry.name("out/busybox") })).await.unwrap();
        let judged = w.folder().join("judged3.tar");
        registry.judge("out/busybox", "latest", &judged).await;
        assert!(image::tree_of(&std::fs::read(&judged).unwrap()).contains_key("bin/busybox"));
    });
}

#[test]
fn a_server_killed_in_the_middle_of_a_pull_goes_on_where_it_was() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        registry.push(&app(), "app", "latest").await;
        let upper = app().packed().layers[1].clone();
        let line: &'static str = Box::leak(format!("GET /v2/app/blobs/{}", upper.digest).into_boxed_str());
        proxy.now(&[Rule::always(Fault::Slow(200_000), line)]);
        let part = w.data().join(format!("images/blobs/sha256/{}.part", &upper.digest["sha256:".len()..]));
        let client = w.admin();
        let name = proxy.name("app");
        let pulling = tokio::spawn(async move {
            client.working("/v1/templates/pull", &json!({ "image": name })).await.map(|e| e.rest())
        });
        atoll_tests::until("half of the layer is here", async || {
            std::fs::metadata(&part).ok().filter(|found| found.len() > upper.bytes.len() as u64 / 3)
        })
        .await;
        w.crash_server().await;
        pulling.abort();
        proxy.now(&[]);
        proxy.forget();
        w.admin().template(&proxy.name("app")).await.refused(404, "template_not_found");
        w.admin().pull(&proxy.name("app")).await.unwrap();
        let ranges: Vec<_> = proxy.seen().into_iter().filter_map(|seen| seen.range).collect();
        assert!(ranges.iter().any(|range| range != "bytes=0-"), "nothing was resumed: {ranges:?}");
        assert!(!part.exists());
        looks_right(w, &proxy.name("app")).await;
    });
}

#[test]
fn a_pull_that_nobody_waits_for_ends() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        registry.push(&app(), "app", "latest").await;
        proxy.now(&[Rule::always(Fault::Slow(20_000), "/blobs/")]);
        let mut events =
            w.admin().working("/v1/templates/pull", &json!({ "image": proxy.name("app") })).await.unwrap();
        events.find("layer").await;
        drop(events);
        proxy.idle().await;
        // The same again by two at once is one download each.
        proxy.now(&[]);
        proxy.forget();
        let (one, two) = (w.admin(), w.tenant("acme").await);
        let name = proxy.name("app");
        let (first, second) = tokio::join!(one.pull(&name), two.pull(&name));
        assert_eq!(first.unwrap()["version"], second.unwrap()["version"]);
        let upper = app().packed().layers[1].digest.clone();
        let asked = proxy.count(&format!("GET /v2/app/blobs/{upper}"));
        assert!(asked <= 2, "a layer was fetched {asked} times");
    });
}

/// Attack N26: a registry whose name leads to a public address when it is checked, and to a private one when it is used.
/// Its name server is the test's own.
#[test]
fn a_registry_whose_name_is_rebound_leads_to_no_private_address() {
    run_with(options(), async |w: &World| {
        let private = ["10.1.2.3", "169.254.169.254", "127.0.0.1", "192.168.77.1"]
            .map(|text| text.parse::<std::net::Ipv4Addr>().unwrap());
        let public = atoll_tests::internet::OTHER;
        let mut names = Vec::new();
        for (number, bad) in private.into_iter().enumerate() {
            let once = |address| Say::a([address]).ttl(0);
            let scripts = [
                vec![once(public), once(bad)],
                vec![once(bad), once(public), once(bad)],
                vec![Say::a([public, bad]).ttl(0)],
                vec![Say::records([Record::Cname("inner.evil.test".into()), Record::A(bad)])],
            ];
            for (way, script) in scripts.into_iter().enumerate() {
                let name = format!("re{number}-{way}.rebound.test");
                w.internet.says_in_turn(&name, script);
                names.push(name);
            }
        }
        // As many at once as the server takes.
        for names in names.chunks(4).chain(names.chunks(4)) {
            let admin = w.admin();
            let pulls = names.iter().map(|name| {
                let (admin, image) = (admin.clone(), format!("{name}/app"));
                async move { admin.pull(&image).await.unwrap_err() }
            });
            for refused in futures::future::join_all(pulls).await {
                let code = refused["code"].as_str().unwrap();
                assert!(
                    ["invalid_request", "registry_unavailable", "image_not_found"].contains(&code),
                    "{refused}"
                );
            }
        }
        for name in &names {
            assert!(!w.internet.questions_with(name).is_empty(), "{name} was never asked for");
        }
        w.internet.unharmed("names that are rebound");
        assert!(layers(w).is_empty(), "{:?}", layers(w));
    });
}
