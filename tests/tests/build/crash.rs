//! The server ends in the middle of builds, at whatever moment.

use std::time::Duration;

use atoll_tests::{World, json, run, until};
use nix::sys::signal::Signal;

use crate::build::ask::{Ask, at_step, get};

const STEPS: &str = "FROM busybox\n\
    COPY a /a\n\
    RUN echo 1 > /1\n\
    RUN echo 2 > /2\n\
    WORKDIR /w\n\
    COPY a /b\n\
    RUN echo 3 > /3\n\
    RUN cat /a /1 /2 /b /3 > /all\n";

fn staged(world: &World) -> usize {
    let builds = std::fs::read_dir(world.data().join("builds")).into_iter().flatten().flatten();
    let files = builds.flat_map(|build| std::fs::read_dir(build.path()).into_iter().flatten().flatten());
    files.filter(|file| file.file_name() != "log.jsonl").count()
}

#[test]
fn a_server_killed_at_any_moment_of_a_build_starts_clean_and_builds_it_then() {
    run(async |world| {
        let me = world.tenant("builder").await;
        let ask = || Ask::new("app", STEPS).file("a", "a");
        for after_ms in [1, 7, 20, 45, 80, 130, 200, 290, 400] {
            // Nothing of the rounds before helps.
            let ask = ask().with("no_cache", json!(true));
            let id = ask.begin(&me).await;
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            world.crash_server().await;
            let build = get(&me, &id).await;
            let status = build["status"].as_str().unwrap();
            assert!(["failed", "ready"].contains(&status), "after {after_ms} ms: {build:#}");
            until("nothing is staged", async || (staged(world) == 0).then_some(())).await;
            let left = me.get("/v1/sandboxes").await.ok();
            assert_eq!(left["items"], json!([]), "after {after_ms} ms: {left:#}");
        }
        ask().build(&me).await;
        let sandbox = me.create(json!({ "template": "app" })).await;
        assert_eq!(me.sh(&sandbox, "cat /all").await.text(), "a1\n2\na3");
        me.remove(&sandbox).await;
    });
}

#[test]
fn a_server_that_is_told_to_end_ends_and_says_what_became_of_the_build() {
    run(async |world| {
        let me = world.tenant("builder").await;
        let id = Ask::new("endless", "FROM busybox\nRUN while true; do sleep 1; done\n").begin(&me).await;
        at_step(&me, &id, 1).await;
        let begun = std::time::Instant::now();
        let status = world.stop_server(Signal::SIGTERM).await;
        assert!(status.success(), "{status}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        world.start_server().await;
        let build = get(&me, &id).await;
        assert_eq!(build["status"], "failed", "{build:#}");
        assert!(build["failure"]["message"].as_str().unwrap().contains("the server ended"), "{build:#}");
    });
}
