//! The server as a service of its machine: a daemon that is started, stopped and restarted while sandboxes run, its log, and its
//! settings in a file.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use atoll_tests::{Options, Value, World, json, run_with, until};
use nix::sys::signal::Signal;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A command that finds its server through the data folder alone.
fn command(w: &World, words: &[&str]) -> Command {
    let mut command = w.command();
    command.env_remove("ATOLL_URL").args(words);
    command
}

async fn ok(w: &World, words: &[&str]) -> String {
    let done = w.output(command(w, words)).await;
    assert!(done.status.success(), "{words:?}: {}\n{}", text(&done.stderr), text(&done.stdout));
    text(&done.stdout)
}

async fn status(w: &World) -> Value {
    serde_json::from_str(&ok(w, &["--json", "server", "status"]).await).unwrap()
}

#[test]
fn sandboxes_run_on_while_the_daemon_is_restarted() {
    run_with(Options::default(), async |w| {
        w.stop_server(Signal::SIGTERM).await;
        // Where it listens is in its configuration file.
        std::fs::write(w.data().join("config.toml"), "listen = \"127.0.0.1:7070\"\ntls-port = 0\n").unwrap();
        let started = ok(w, &["server", "start"]).await;
        assert!(started.contains("running at http://127.0.0.1:7070"), "{started}");
        let first = status(w).await["pid"].as_i64().unwrap();
        assert!(ok(w, &["server", "start"]).await.contains("running"), "a second start changes nothing");
        assert_eq!(status(w).await["pid"], json!(first));

        ok(w, &["create", "--name", "box"]).await;
        ok(w, &["exec", "-d", "box", "--", "sleep", "1000"]).await;
        let id = w.admin().get("/v1/sandboxes/box").await.ok()["id"].as_str().unwrap().to_owned();
        let (agent, processes) = (w.agent_pid(&id), ok(w, &["ps", "box", "--json"]).await);
        assert!(processes.contains("sleep"), "{processes}");
        // Their control groups are not below that of the server, so nothing that ends a service reaches them.
        let group = std::fs::read_to_string(format!("/proc/{agent}/cgroup")).unwrap();
        let homes: Vec<&str> = group.lines().filter_map(|line| line.splitn(3, ':').nth(2)).collect();
        assert!(homes.iter().any(|home| home.starts_with("/atoll-")), "{group}");

        ok(w, &["server", "restart"]).await;
        let second = status(w).await["pid"].as_i64().unwrap();
        assert_ne!(first, second);
        assert_eq!(w.agent_pid(&id), agent, "the first process of the sandbox is the same");
        assert_eq!(ok(w, &["ps", "box", "--json"]).await, processes, "and so is the program in it");

        let log = ok(w, &["server", "logs"]).await;
        assert_eq!(log.matches("\"ready\"").count(), 2, "both servers wrote it: {log}");
        let last = ok(w, &["server", "logs", "-n", "3"]).await;
        assert!(last.lines().count() == 3 && log.ends_with(&last), "{last}");
        let mut follower = command(w, &["server", "logs", "-f", "-n", "0"]);
        let followed = w.folder().join("followed");
        let follower = follower.stdout(std::fs::File::create(&followed).unwrap()).spawn().unwrap();
        let follower = w.adopt(follower);

        let stopped = ok(w, &["server", "stop"]).await;
        assert!(stopped.contains("stopped the server"), "{stopped}");
        until("the follower sees the end", async || {
            std::fs::read_to_string(&followed).unwrap().contains("the server has ended").then_some(())
        })
        .await;
        w.end_adopted(follower);
        assert!(
            std::path::Path::new(&format!("/proc/{agent}")).exists(),
            "the sandbox runs without a server"
        );
        let none = w.output(command(w, &["server", "stop"])).await;
        assert!(!none.status.success() && text(&none.stderr).contains("no server runs"));
        std::fs::remove_file(w.data().join("config.toml")).unwrap();
        std::fs::remove_dir_all(w.data().join("logs")).unwrap();
        w.start_server().await;
        assert_eq!(w.agent_pid(&id), agent);
        w.admin().remove(&id).await;
    });
}

#[test]
fn settings_are_in_the_file_and_each_says_where_it_comes_from() {
    run_with(Options::default(), async |w| {
        let file = w.folder().join("settings.toml");
        std::fs::write(&file, "pool = 3\nlive-max = 77\ndomain = \"a.test\"\n").unwrap();
        let file_name = file.to_str().unwrap();
        let shown =
            ok(w, &["--json", "server", "config", "--config", file_name, "--", "--domain", "b.test"]).await;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let find = |name: &str| {
            let all = shown["settings"].as_array().unwrap();
            let one = all.iter().find(|one| one["name"] == format!("--{name}")).unwrap();
            (one["values"][0].as_str().unwrap_or("").to_owned(), one["source"].as_str().unwrap().to_owned())
        };
        let of = |value: &str, source: &str| (value.to_owned(), source.to_owned());
        assert_eq!(find("live-max"), of("77", &format!("{file_name}:2")));
        assert_eq!(find("pool"), of("0", "environment (ATOLL_POOL)"), "stronger than the file");
        assert_eq!(find("domain"), of("b.test", "option"));
        assert_eq!(find("overcommit"), of("50", "default"));
        assert_eq!(find("data").0, w.data().display().to_string());
        // The running server says the same of itself.
        w.stop_server(Signal::SIGTERM).await;
        w.set_env("ATOLL_CONFIG", file_name);
        w.start_server().await;
        let server = w.admin().get("/v1/server").await.ok();
        let live =
            server["settings"].as_array().unwrap().iter().find(|one| one["name"] == "--live-max").unwrap();
        assert_eq!((&live["values"][0], &live["source"]), (&json!("77"), &json!(format!("{file_name}:2"))));
        // A mistake is an error with its place, and the server does not start.
        std::fs::write(&file, "pool = 3\nlive_max = 77\n").unwrap();
        let refused = w.output(command(w, &["serve", "--listen", "127.0.0.1:7999"])).await;
        let said = text(&refused.stderr);
        assert!(refused.status.code() == Some(2), "{said}");
        assert!(
            said.contains("settings.toml:2: there is no setting live_max")
                && said.contains("did you mean live-max?"),
            "{said}"
        );
        w.set_env("ATOLL_CONFIG", "");
    });
}

#[test]
fn install_writes_the_unit_and_never_replaces_settings() {
    run_with(Options::default(), async |w| {
        let root = w.folder().join("root");
        let root_name = root.to_str().unwrap();
        let done = ok(w, &["server", "install", "--root", root_name]).await;
        assert!(done.contains("wrote") && done.contains("atoll.service"), "{done}");
        let unit = std::fs::read_to_string(root.join("etc/systemd/system/atoll.service")).unwrap();
        assert!(
            unit.contains("KillMode=process") && unit.contains("serve --config /etc/atoll/config.toml"),
            "{unit}"
        );
        let config = root.join("etc/atoll/config.toml");
        std::fs::write(&config, "pool = 1\n").unwrap();
        let again = ok(w, &["server", "install", "--root", root_name]).await;
        assert!(!again.contains("wrote") && !again.contains("replaced"), "{again}");
        assert_eq!(std::fs::read_to_string(&config).unwrap(), "pool = 1\n");
        let printed = ok(w, &["server", "install", "--print"]).await;
        assert!(printed.contains("[Service]") && printed.contains("#live-max = 2000"), "{printed}");
    });
}
