//! The server is killed in the middle of pulls, imports, builds and collections, at random moments, round after round: what was
//! acknowledged is there and whole, what was under way is resumed or gone, and nothing is left behind.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_tests::image::{self, Image, Layer, Packing};
use atoll_tests::registry::{Fault, Proxy, Registry, Rule, options};
use atoll_tests::state_model::Dice;
use atoll_tests::{Client, World, json, run_with, until};

/// An image of its own for each round: a layer of a few megabytes in many files.
fn made(round: u64) -> Image {
    let mut layer = Layer::new().folder("many/", 0o755).file("round", 0o644, format!("{round}\n"));
    for n in 0..400_u64 {
        let content: Vec<u8> = (0..8_000_u64).map(|at| ((at + n) * (round + 3) % 251) as u8).collect();
        layer = layer.file(&format!("many/{n}"), 0o644, &content);
    }
    image::busybox().layer(&layer, Packing::Gzip)
}

async fn is_whole(client: &Client, template: &str, round: u64) {
    let id = client.create(json!({ "template": template })).await;
    let seen = client.sh(&id, "cat /round; ls /many | wc -l; cat /many/* | wc -c").await;
    assert_eq!(seen.text(), format!("{round}\n400\n3200000"), "{template}");
    client.remove(&id).await;
}

/// What unfinished work left in the store, staged or half removed.
fn unfinished(w: &World) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["layers", "merged", "versions", "blobs/sha256", "cache", "packed"] {
        for entry in std::fs::read_dir(w.data().join("images").join(folder)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_layer = folder == "layers" || folder == "merged";
            let is_half = is_layer && !entry.path().join("layer.json").exists();
            if name.starts_with(".build-") || name.starts_with(".trash-") || is_half {
                found.push(entry.path());
            }
        }
    }
    found.extend(std::fs::read_dir(w.data().join("builds")).into_iter().flatten().flatten().filter_map(
        |entry| {
            let context = entry.path().join("context");
            context.exists().then_some(context)
        },
    ));
    found
}

/// What a server that was killed left behind is removed when the next one starts.
async fn nothing_is_unfinished(w: &World, round: u64) {
    until(&format!("round {round}: nothing is unfinished"), async || unfinished(w).is_empty().then_some(()))
        .await;
}

/// Does a thing, kills the server somewhere within it, and starts it again.
async fn struck(
    w: &World,
    dice: &mut Dice,
    within: Duration,
    thing: impl Future<Output = ()> + Send + 'static,
) {
    let doing = tokio::spawn(thing);
    let after = within.mul_f64(dice.below(1_000) as f64 / 1_000.0);
    tokio::time::sleep(after).await;
    w.crash_server().await;
    doing.abort();
    let _ = doing.await;
}

/// A request whose answer may never come.
async fn attempt(client: &Client, method: reqwest::Method, path: &str, body: Option<Vec<u8>>) {
    let mut request = client.raw(method, path);
    if let Some(body) = body {
        request = request.header("content-type", "application/x-tar").body(body);
    }
    if let Ok(answer) = request.send().await {
        let _ = answer.bytes().await;
    }
}

#[test]
fn a_kill_within_a_pull_loses_nothing_that_was_pulled() {
    run_with(options(), async |w: &World| {
        let registry = Registry::start(w).await;
        let proxy = Proxy::start(registry.address()).await;
        let mut dice = Dice::new(11);
        proxy.now(&[Rule::always(Fault::Slow(4_000_000), "/blobs/")]);
        for round in 0..4_u64 {
            registry.push(&made(round), &format!("r{round}"), "latest").await;
            let (client, name) = (w.admin(), proxy.name(&format!("r{round}")));
            let body = json!({ "image": name });
            struck(w, &mut dice, Duration::from_millis(900), async move {
                if let Ok(events) = client.working("/v1/templates/pull", &body).await {
                    events.rest().await;
                }
            })
            .await;
            nothing_is_unfinished(w, round).await;
            let name = proxy.name(&format!("r{round}"));
            w.admin().pull(&name).await.unwrap();
            is_whole(&w.admin(), &name, round).await;
            if round > 0 {
                is_whole(&w.admin(), &proxy.name(&format!("r{}", round - 1)), round - 1).await;
            }
        }
        assert!(parts(&w.data()).is_empty(), "{:?}", parts(&w.data()));
    });
}

fn parts(data: &Path) -> Vec<PathBuf> {
    let blobs = std::fs::read_dir(data.join("images/blobs/sha256")).into_iter().flatten().flatten();
    blobs
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "part"))
        .collect()
}

#[test]
fn a_kill_within_an_import_leaves_the_old_or_the_new() {
    run_with(options(), async |w: &World| {
        let mut dice = Dice::new(12);
        w.admin().import("app", made(0).docker_archive("x")).await.ok();
        let mut holds = 0;
        for round in 1..6_u64 {
            let (client, archive) = (w.admin(), made(round).docker_archive("x"));
            struck(w, &mut dice, Duration::from_millis(400), async move {
                attempt(&client, reqwest::Method::POST, "/v1/templates/import?name=app", Some(archive)).await;
            })
            .await;
            nothing_is_unfinished(w, round).await;
            let id = w.admin().create(json!({ "template": "app" })).await;
            let now: u64 = w.admin().sh(&id, "cat /round").await.text().parse().unwrap();
            w.admin().remove(&id).await;
            assert!(now == holds || now == round, "{now} is neither {holds} nor {round}");
            holds = now;
            is_whole(&w.admin(), "app", now).await;
        }
    });
}

#[test]
fn a_kill_within_a_build_fails_it_and_keeps_what_was_done() {
    run_with(options(), async |w: &World| {
        let client = w.tenant("acme").await;
        client.import("ground", image::busybox().docker_archive("x")).await.ok();
        let mut dice = Dice::new(13);
        for round in 0..4_u64 {
            let mut dockerfile = format!("FROM ground\nCOPY . /ctx/\nRUN echo {round} > /round\n");
            for step in 0..5 {
                dockerfile += &format!("RUN sleep 0.1; echo {step} >> /steps\n");
            }
            let spec = json!({ "template": "built", "dockerfile": dockerfile });
            let context = Layer::new()
                .file("file", 0o644, format!("{round}"))
                .file("large", 0o644, vec![3; 2_000_000])
                .tar();
            let (asking, spec2, context2) = (client.clone(), spec.clone(), context.clone());
            struck(w, &mut dice, Duration::from_millis(1_800), async move {
                let mut form = reqwest::multipart::Form::new();
                form = form.part(
                    "spec",
                    reqwest::multipart::Part::text(spec2.to_string()).mime_str("application/json").unwrap(),
                );
                form = form.part("context", reqwest::multipart::Part::bytes(context2));
                let _ = asking.raw(reqwest::Method::POST, "/v1/builds").multipart(form).send().await;
                tokio::time::sleep(Duration::from_secs(60)).await;
            })
            .await;
            let builds = client.get("/v1/builds").await.ok();
            for build in builds["items"].as_array().unwrap() {
                let status = build["status"].as_str().unwrap();
                assert!(["failed", "ready"].contains(&status), "round {round}: {build}");
            }
            nothing_is_unfinished(w, round).await;
            assert_eq!(
                client.get("/v1/sandboxes").await.ok()["items"],
                json!([]),
                "a sandbox of a build is left"
            );
            let (build, log) = client.build(spec, Some(context)).await;
            assert_eq!(build["status"], "ready", "{build} {log}");
            let id = client.create(json!({ "template": "built" })).await;
            assert_eq!(
                client.sh(&id, "cat /round /ctx/file; echo; wc -l < /steps").await.text(),
                format!("{round}\n{round}\n5")
            );
            client.remove(&id).await;
        }
    });
}

/// Attack F11.
#[test]
fn a_kill_within_a_collection_takes_nothing_that_is_used() {
    run_with(options().env("ATOLL_IMAGE_GRACE_S", "0"), async |w: &World| {
        let client = w.admin();
        let mut dice = Dice::new(14);
        client.import("kept", made(100).docker_archive("x")).await.ok();
        let sandbox = client.create(json!({ "template": "kept" })).await;
        client.remove_template("kept:latest").await.ok();
        client.import("named", made(101).docker_archive("x")).await.ok();
        for round in 0..5_u64 {
            client.import("goes", made(round).docker_archive("x")).await.ok();
            client.remove_template("goes:latest").await.ok();
            let asking = client.clone();
            struck(w, &mut dice, Duration::from_millis(60), async move {
                attempt(&asking, reqwest::Method::POST, "/v1/templates/gc", None).await;
            })
            .await;
            nothing_is_unfinished(w, round).await;
            assert_eq!(client.sh(&sandbox, "cat /round; cat /many/* | wc -c").await.text(), "100\n3200000");
            is_whole(&client, "named", 101).await;
        }
        client.act(&sandbox, "stop").await.ok();
        client.act(&sandbox, "start").await.ok();
        assert_eq!(client.sh(&sandbox, "cat /round").await.text(), "100");
        client.remove(&sandbox).await;
        client.remove_template("named:latest").await.ok();
        until("everything is collected", async || {
            client.post_empty("/v1/templates/gc").await.ok();
            let left = |folder: &str| {
                std::fs::read_dir(w.data().join("images").join(folder)).into_iter().flatten().count()
            };
            (left("layers") + left("versions") + left("blobs/sha256") == 0).then_some(())
        })
        .await;
    });
}
