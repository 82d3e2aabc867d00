//! Templates from the command line against a real server: built, run, tagged, changed, moved as archives and to registries,
//! removed; and errors that help.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use atoll_tests::poll::PATIENCE;
use atoll_tests::registry::{self, Registry};
use atoll_tests::{Value, World, image, json, run, run_with, until};

/// Runs `atoll` with these words.
fn atoll(w: &World, words: &[&str]) -> Output {
    w.command().args(words).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// As [`atoll`], fails unless it succeeded; what it printed.
fn ok(w: &World, words: &[&str]) -> String {
    let done = atoll(w, words);
    assert!(done.status.success(), "atoll {words:?}: {} {}", done.status, text(&done.stderr));
    text(&done.stdout)
}

/// The JSON that it printed.
fn object(w: &World, words: &[&str]) -> Value {
    let said = ok(w, words);
    serde_json::from_str(&said).unwrap_or_else(|why| panic!("atoll {words:?}: {why}: {said}"))
}

/// What it said when it failed with this status.
fn refused(w: &World, status: i32, words: &[&str]) -> String {
    let done = atoll(w, words);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(status), "atoll {words:?}: {said}");
    said
}

/// A folder with a Dockerfile and these files.
fn context(w: &World, name: &str, dockerfile: &str, files: &[(&str, &str)]) -> String {
    let folder: PathBuf = w.folder().join(name);
    for (path, content) in files.iter().chain([&("Dockerfile", dockerfile)]) {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    folder.to_str().unwrap().to_owned()
}

const DOCKERFILE: &str = "FROM busybox\n\
    ARG WHO=nobody\n\
    ENV GREETING=hello\n\
    WORKDIR /app\n\
    COPY . .\n\
    RUN echo \"$GREETING $WHO\" > greeting && ls\n";

#[test]
fn a_folder_with_a_dockerfile_becomes_a_template() {
    run(async |w| {
        let files = [("kept", "kept"), ("secret.key", "hush"), (".dockerignore", "*.key\n")];
        let folder = context(w, "app", DOCKERFILE, &files);
        let done = atoll(w, &["template", "build", "-t", "app:v1", "--build-arg", "WHO=anna", &folder]);
        let log = text(&done.stderr);
        assert!(done.status.success(), "{log}");
        assert_eq!(text(&done.stdout), "app:v1\n");
        assert!(log.contains("RUN echo") && log.contains("kept") && !log.contains("secret.key"), "{log}");
        let ran = ok(w, &["run", "-T", "app:v1", "--", "sh", "-c", "pwd; cat greeting; ls"]);
        assert!(ran.starts_with("/app\nhello anna\n") && !ran.contains("secret"), "{ran}");

        let again = object(w, &["build", "--json", "-t", "app:v1", "--build-arg", "WHO=anna", &folder]);
        assert_eq!(again["status"], "ready", "{again}");
        assert!(again["cached_steps"].as_u64().unwrap() >= 2, "{again}");
        let shown = object(w, &["template", "show", "--json", "app:v1"]);
        assert_eq!((&shown["made_from"], &shown["version"]), (&json!("build"), &again["version"]), "{shown}");
        assert!(ok(w, &["template", "ls"]).contains("app"));
        assert!(ok(w, &["template", "ls", "-q"]).lines().any(|name| name == "app"));
        let builds = object(w, &["template", "builds", "--json"]);
        assert_eq!(builds.as_array().unwrap().len(), 2, "{builds}");
        let id = builds[1]["id"].as_str().unwrap();
        assert!(ok(w, &["template", "log", id]).contains("RUN echo"));
        let line: Value =
            serde_json::from_str(ok(w, &["template", "log", "--json", id]).lines().next().unwrap()).unwrap();
        assert_eq!(line["seq"], 1, "{line}");
    });
}

#[test]
fn a_build_that_fails_says_where_and_why() {
    run(async |w| {
        let folder = context(w, "bad", "FROM busybox\nRUN echo before; exit 3\n", &[]);
        let said = refused(w, 1, &["build", "-t", "bad", &folder]);
        assert!(said.contains("before") && said.contains('3') && said.contains("hint"), "{said}");
        let said = refused(w, 1, &["build", "--json", "-t", "bad", &folder]);
        let envelope: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert!(envelope["message"].as_str().is_some_and(|text| !text.is_empty()), "{said}");
        let odd = context(w, "odd", "FROM busybox\nNONSENSE here\n", &[]);
        assert!(refused(w, 1, &["build", "-t", "odd", &odd]).contains('2'), "the line is named");
        assert!(refused(w, 2, &["build", "-t", "x", "/nowhere/at/all"]).contains("Dockerfile"));
        assert!(refused(w, 2, &["build", "-t", "a", "-t", "b:c", &folder]).contains("b:c"));
        assert!(
            refused(w, 1, &["build", "-t", "a", "--secret", "id=x,src=/nowhere", &folder])
                .contains("/nowhere")
        );
        let said = refused(w, 125, &["run", "-T", "bda", "--", "true"]);
        assert!(said.contains("atoll template ls"), "{said}");
    });
}

#[test]
fn a_secret_is_seen_by_its_step_and_by_nobody_else() {
    run(async |w| {
        let dockerfile = "FROM busybox\nRUN --mount=type=secret,id=key wc -c < /run/secrets/key > /count\n\
            RUN ls /run/secrets 2>/dev/null | wc -l > /left\n";
        let folder = context(w, "secret", dockerfile, &[]);
        let file = w.folder().join("key");
        std::fs::write(&file, "hunter2hunter2").unwrap();
        let source = format!("id=key,src={}", file.display());
        let done = atoll(w, &["build", "-t", "sealed", "--secret", &source, &folder]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert!(!text(&done.stderr).contains("hunter2"));
        assert_eq!(ok(w, &["run", "-T", "sealed", "--", "cat", "/count", "/left"]), "14\n0\n");
        let kept = w.folder().join("sealed.tar");
        ok(w, &["template", "export", "sealed", "-o", kept.to_str().unwrap()]);
        let mut search = Command::new("grep");
        search.args(["-rqa", "hunter2"]).arg(&kept);
        search.args(["images", "builds", "sandbox.db"].map(|name| w.data().join(name)));
        assert_eq!(search.status().unwrap().code(), Some(1), "it is in no layer, no log and no record");
    });
}

#[test]
fn ctrl_c_cancels_a_build_at_the_server() {
    run(async |w| {
        let folder = context(w, "slow", "FROM busybox\nRUN echo begun; sleep 600\n", &[]);
        let mut child = w
            .command()
            .args(["build", "-t", "slow", &folder])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("its step runs", async || {
            let builds = w.admin().get("/v1/builds").await.ok();
            let step = builds["items"][0]["step_text"].as_str().unwrap_or_default();
            step.contains("sleep").then_some(())
        })
        .await;
        let began = Instant::now();
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let status = until("it ends", async || child.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(130));
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        let builds = w.admin().get("/v1/builds").await.ok();
        assert_eq!(builds["items"][0]["status"], "cancelled", "{builds}");
    });
}

#[test]
fn templates_are_tagged_changed_exported_imported_and_removed() {
    run(async |w| {
        let folder = context(w, "app", "FROM busybox\nRUN echo one > /one\nCMD [\"run\"]\n", &[]);
        ok(w, &["build", "-q", "-t", "app:v1", "-t", "app:v2", &folder]);
        assert!(ok(w, &["template", "tag", "app:v1", "stable"]).contains("stable"));
        assert_eq!(ok(w, &["run", "-T", "app:stable", "--", "cat", "/one"]), "one\n");
        ok(w, &["template", "tag", "--remove", "app", "stable"]);
        refused(w, 1, &["template", "show", "app:stable"]);

        ok(
            w,
            &["template", "update", "app:v1", "--memory", "64m", "--env", "COLOUR=red", "--alias", "my-app"],
        );
        let box_: Value = object(w, &["create", "--json", "-T", "my-app:v1"]);
        assert_eq!(box_["memory_mib"], 64, "{box_}");
        assert_eq!(ok(w, &["exec", box_["id"].as_str().unwrap(), "sh", "-c", "echo $COLOUR"]), "red\n");
        let said = refused(w, 1, &["template", "rm", "app"]);
        assert!(said.contains("hint"), "in use: {said}");
        ok(w, &["rm", "-f", box_["id"].as_str().unwrap()]);

        for format in ["oci", "docker"] {
            let file = w.folder().join(format!("{format}.tar"));
            let path = file.to_str().unwrap();
            ok(w, &["template", "export", "app:v1", "-o", path, "--format", format]);
            let name = format!("back-{format}:v3");
            let made = object(w, &["template", "import", "--json", path, &name]);
            assert_eq!((&made["made_from"], &made["cmd"]), (&json!("import"), &json!(["run"])), "{made}");
            assert_eq!(ok(w, &["run", "-T", &name, "--", "cat", "/one"]), "one\n");
        }
        let layout = w.folder().join("layout");
        image::busybox().oci_layout(&layout, "latest");
        ok(w, &["template", "import", layout.to_str().unwrap(), "laid-out"]);
        assert_eq!(ok(w, &["run", "-T", "laid-out", "--", "echo", "hi"]), "hi\n");
        assert!(refused(w, 2, &["template", "import", w.folder().to_str().unwrap(), "x"]).contains("tar c"));

        ok(w, &["template", "rm", "app:v2"]);
        ok(w, &["template", "rm", "app", "back-oci", "back-docker", "laid-out"]);
        let collected = object(w, &["template", "gc", "--json"]);
        assert!(collected["versions"].is_u64(), "{collected}");
        assert!(ok(w, &["template", "gc"]).contains("removed"));
    });
}

#[test]
fn images_are_pulled_by_a_run_and_pushed_back() {
    run_with(registry::options(), async |w| {
        let registry = Registry::start(w).await;
        registry.push(&image::busybox(), "team/box", "v1").await;
        let name = registry.name("team/box:v1");
        assert_eq!(ok(w, &["run", "--image", &name, "--", "echo", "hi"]), "hi\n");
        let done = atoll(w, &["template", "pull", &name]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert!(text(&done.stdout).contains("is ready"));
        let folder = context(w, "app", &format!("FROM {name}\nRUN echo more > /more\n"), &[]);
        ok(w, &["build", "-q", "-t", "more", &folder]);
        let pushed = registry.name("team/more:v2");
        ok(w, &["template", "push", "more", &pushed]);
        ok(w, &["template", "rm", "more"]);
        assert_eq!(ok(w, &["run", "--image", &pushed, "--", "cat", "/more"]), "more\n");
        let said = refused(w, 1, &["template", "pull", &registry.name("team/none:v1")]);
        assert!(said.contains("hint"), "{said}");
    });
}

#[test]
fn a_registry_nobody_allowed_is_refused_with_the_flag_that_allows_it() {
    run(async |w| {
        let said = refused(w, 1, &["template", "pull", "127.0.0.1:5999/a/b:c"]);
        assert!(said.contains("--registry-insecure 127.0.0.1:5999"), "{said}");
        let said = refused(w, 125, &["run", "--image", "127.0.0.1:5999/a/b:c", "--", "true"]);
        assert!(said.contains("--registry-insecure"), "{said}");
    });
}

#[test]
fn a_start_command_is_ready_when_a_create_answers() {
    run(async |w| {
        let folder = context(w, "web", "FROM busybox\nRUN mkdir /www && echo hi > /www/index.html\n", &[]);
        let start = "exec httpd -f -p 8000 -h /www";
        ok(
            w,
            &[
                "build",
                "-q",
                "-t",
                "web",
                "--start",
                start,
                "--ready",
                "port:8000",
                "--port",
                "8000",
                &folder,
            ],
        );
        ok(w, &["create", "-T", "web", "--name", "site"]);
        assert_eq!(ok(w, &["exec", "site", "wget", "-qO-", "http://127.0.0.1:8000/"]), "hi\n");
        let shown = object(w, &["template", "show", "--json", "web"]);
        assert_eq!((&shown["ready"]["kind"], &shown["port"]), (&json!("port"), &json!(8000)), "{shown}");
        ok(w, &["rm", "-f", "site"]);
        let never =
            ["build", "-t", "never", "--start", "sleep 600", "--ready", "port:9", "--timeout", "8s", &folder];
        let said = refused(w, 1, &never);
        assert!(said.contains('9'), "{said}");
        ok(w, &["template", "rm", "web"]);
    });
}

#[test]
fn bars_are_for_terminals_and_json_is_for_programs() {
    run(async |w| {
        let folder = context(w, "app", "FROM busybox\nRUN echo from-the-step\n", &[]);
        let done = atoll(w, &["build", "--json", "-t", "app", &folder]);
        assert!(done.status.success() && done.stderr.is_empty(), "{}", text(&done.stderr));
        let build: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(build["template"], "app", "{build}");
        let plain = atoll(w, &["build", "--no-cache", "-t", "app", &folder]);
        assert!(text(&plain.stderr).contains("from-the-step") && !text(&plain.stderr).contains('\u{1b}'));
        let quiet = atoll(w, &["build", "-q", "--no-cache", "-t", "app", &folder]);
        assert!(quiet.stderr.is_empty(), "{}", text(&quiet.stderr));
        let id = ok(w, &["build", "-d", "--no-cache", "-t", "app", &folder]);
        assert!(ok(w, &["template", "log", "-f", id.trim()]).contains("from-the-step"));
        assert!(Path::new(&folder).exists());
    });
}
