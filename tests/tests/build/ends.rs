//! How builds end that do not come to their own end.

use std::time::{Duration, Instant};

use atoll_tests::world::{self, World};
use serde_json::json;

use crate::build::ask::{Ask, at_step, ended, get, log};

fn staged(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    for build in std::fs::read_dir(world.data().join("builds")).into_iter().flatten().flatten() {
        for file in std::fs::read_dir(build.path()).into_iter().flatten().flatten() {
            found.push(file.file_name().to_string_lossy().into_owned());
        }
    }
    found.retain(|name| name != "log.jsonl");
    found
}

#[test]
fn a_build_that_never_ends_ends_at_its_deadline() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let ask =
            Ask::new("endless", "FROM busybox\nCOPY a /a\nRUN while true; do sleep 1; done\n").file("a", "a");
        let begun = Instant::now();
        let build = ask.with("timeout_s", json!(6)).fail(&me).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(build["failure"]["code"], "deadline_exceeded", "{build:#}");
        assert_eq!(build["failure"]["step"], 2, "{build:#}");
        assert_eq!(staged(world), Vec::<String>::new());
        world.leak_check_builds().await;
    });
}

#[test]
fn a_cancelled_build_is_gone_with_everything_it_ran() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let ask = Ask::new(
            "endless",
            "FROM busybox\nCOPY a /a\nRUN trap '' TERM INT HUP; while true; do sleep 1; done\n",
        );
        let id = ask.file("a", "a").begin(&me).await;
        at_step(&me, &id, 2).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let begun = Instant::now();
        let build = me.delete(&format!("/v1/builds/{id}")).await.ok();
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        assert_eq!(build["status"], "cancelled", "{build:#}");
        assert_eq!(staged(world), Vec::<String>::new());
        world.leak_check_builds().await;
        // Again is fine, and others do not see it.
        me.delete(&format!("/v1/builds/{id}")).await.ok();
        let other = world.tenant("other").await;
        other.get(&format!("/v1/builds/{id}")).await.refused(404, "build_not_found");
        other.delete(&format!("/v1/builds/{id}")).await.refused(404, "build_not_found");
    });
}

#[test]
fn one_that_waits_can_be_cancelled_and_the_others_go_on() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let mut ids = Vec::new();
        for n in 0..4 {
            let dockerfile = format!("FROM busybox\nRUN sleep 4; echo {n}\n");
            ids.push(Ask::new(&format!("n{n}"), &dockerfile).begin(&me).await);
        }
        assert_eq!(get(&me, &ids[3]).await["status"], "waiting");
        let gone = me.delete(&format!("/v1/builds/{}", ids[3])).await.ok();
        assert_eq!(gone["status"], "cancelled");
        for id in &ids[..3] {
            assert_eq!(ended(&me, id).await["status"], "ready");
        }
    });
}

#[test]
fn a_killed_server_calls_it_failed_and_leaves_nothing_of_it() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let ask = Ask::new("killed", "FROM busybox\nRUN echo one > /one\nCOPY a /a\nRUN sleep 600\n")
            .file("a", "a");
        let id = ask.begin(&me).await;
        at_step(&me, &id, 3).await;
        let waiting = Ask::new("later", "FROM busybox\nRUN sleep 600\n").begin(&me).await;
        world.crash_server().await;
        for id in [&id, &waiting] {
            let build = get(&me, id).await;
            assert_eq!(build["status"], "failed", "{build:#}");
            assert!(build["failure"]["hint"].as_str().unwrap().contains("cached"), "{build:#}");
        }
        assert_eq!(staged(world), Vec::<String>::new());
        assert!(log(&me, &id).await.iter().any(|line| line.contains("sleep 600")), "the log is kept");
        world.leak_check_builds().await;
        let again = Ask::new("killed", "FROM busybox\nRUN echo one > /one\nCOPY a /a\nRUN echo two > /two\n");
        let build = again.file("a", "a").build(&me).await;
        assert_eq!(build["cached_steps"], 2, "{build:#}");
    });
}

trait LeakCheck {
    async fn leak_check_builds(&self);
}

impl LeakCheck for World {
    /// No process, cgroup, mount or link of any build is left.
    async fn leak_check_builds(&self) {
        let before = self.baseline();
        atoll_tests::poll::until("nothing is left", async || {
            let now = self.holdings();
            let grown = ["processes", "cgroups", "mounts", "router links"]
                .iter()
                .any(|kind| now.count(kind) > before.count(kind));
            (!grown).then_some(())
        })
        .await;
    }
}
