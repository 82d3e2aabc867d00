//! Templates that start something.

use atoll_tests::world::{self, Options};
use serde_json::json;

use crate::build::ask::{Ask, log};

const SERVER: &str = "FROM busybox\nRUN mkdir /www && echo ready > /www/index.html\n";

fn server(name: &str) -> Ask {
    let command = json!(["/bin/sh", "-c", "sleep 0.3; exec httpd -f -p 8000 -h /www"]);
    let start =
        json!({ "command": command, "ready": { "kind": "url", "port": 8000, "path": "/", "status": 200 } });
    Ask::new(name, SERVER).with("start", start)
}

#[test]
fn a_create_answers_when_what_the_template_starts_is_ready() {
    world::run_with(Options::default(), async |world| {
        let me = world.tenant("builder").await;
        let build = server("web").build(&me).await;
        let said = log(&me, build["id"].as_str().unwrap()).await.join("\n");
        let shown = me.get("/v1/templates/web").await.ok();
        // Where memory cannot be kept, the log says why.
        let is_warm = shown["warm"] == true;
        assert!(is_warm || said.contains("starts the command itself"), "{shown:#}\n{said}");
        // The same again is there at once, tried out or not.
        assert_eq!(server("web").build(&me).await["version"], build["version"]);
        for _ in 0..3 {
            let sandbox = me.create(json!({ "template": "web" })).await;
            let got = me.sh(&sandbox, "wget -q -O- http://127.0.0.1:8000/").await;
            assert_eq!(got.text(), "ready");
            me.remove(&sandbox).await;
        }
        me.delete("/v1/templates/web").await.ok();
    });
}

#[test]
fn what_is_never_ready_fails_the_build_with_what_it_wrote() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        // The steps are done before the time runs, so that all of it is left for the start command.
        Ask::new("steps", SERVER).build(&me).await;
        let command = json!(["/bin/sh", "-c", "echo no luck >&2; sleep 600"]);
        let start = json!({ "command": command, "ready": { "kind": "port", "port": 8000 } });
        let build =
            Ask::new("never", SERVER).with("start", start).with("timeout_s", json!(6)).fail(&me).await;
        assert_eq!(build["failure"]["code"], "deadline_exceeded", "{build:#}");
        assert_eq!(build["failure"]["tail"], json!(["no luck"]), "{build:#}");
        me.post("/v1/sandboxes", json!({ "template": "never" })).await.refused(404, "template_not_found");
        me.delete("/v1/templates/steps").await.ok();
    });
}

#[test]
fn a_start_command_that_fails_ends_the_build_at_once_with_its_code() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        for command in ["echo no luck >&2; exit 3", "sleep 0.5; echo no luck >&2; exit 3"] {
            let start =
                json!({ "command": ["/bin/sh", "-c", command], "ready": { "kind": "port", "port": 8000 } });
            let begun = std::time::Instant::now();
            let build = Ask::new("never", SERVER).with("start", start).fail(&me).await;
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
            let failure = &build["failure"];
            assert_eq!(
                (&failure["exit_code"], &failure["tail"]),
                (&json!(3), &json!(["no luck"])),
                "{build:#}"
            );
        }
        // One that ends well may have left others behind.
        let command = json!(["/bin/sh", "-c", "(sleep 0.5; exec httpd -f -p 8000 -h /www) & exit 0"]);
        let start = json!({ "command": command, "ready": { "kind": "port", "port": 8000 } });
        Ask::new("behind", SERVER).with("start", start).build(&me).await;
        me.delete("/v1/templates/behind").await.ok();
    });
}
