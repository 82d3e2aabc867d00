//! What a person meets in the first hour: the vendors' SDKs with their defaults on a fresh server, copies with links, a
//! command that runs out of memory, the command line over HTTPS, and an end that starts nothing.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use atoll_tests::{Options, Value, World, json, run, run_with, until};
use nix::sys::signal::Signal;
use tokio::net::TcpStream;

fn atoll(w: &World, words: &[&str]) -> Output {
    w.command().args(words).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ok(w: &World, words: &[&str]) -> String {
    let done = atoll(w, words);
    assert!(done.status.success(), "atoll {words:?}: {} {}", done.status, text(&done.stderr));
    text(&done.stdout)
}

/// A python with a vendor's SDK; `None` where it cannot be had, which on CI is a failure.
fn python(script: &str, words: &[&str]) -> Option<PathBuf> {
    let script = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../scripts")
        .join(script);
    let got = Command::new(&script).args(words).output().unwrap();
    if got.status.success() {
        return Some(text(&got.stdout).trim().into());
    }
    assert!(std::env::var_os("CI").is_none(), "{}: {}", script.display(), text(&got.stderr));
    eprintln!("not run: {}", text(&got.stderr));
    None
}

/// Runs a program of a vendor's SDK with exactly what `atoll env` prints.
async fn with_sdk(w: &World, sdk: &str, python: &Path, program: &str) {
    let printed = ok(w, &["env", sdk, "--with-key", "--json"]);
    let variables: std::collections::BTreeMap<String, String> = serde_json::from_str(&printed).unwrap();
    let mut command = Command::new(python);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", w.folder()).envs(variables);
    command.args(["-c", program]);
    let done = w.output(command).await;
    assert!(done.status.success(), "{sdk}: {}{}", text(&done.stdout), text(&done.stderr));
}

const E2B: &str = r#"
from e2b import Sandbox
box = Sandbox.create()
assert box.commands.run("echo first").stdout == "first\n"
info = box.get_info()
assert info.template_id == "host" and info.name == "base", (info.template_id, info.name)
box.kill()
"#;
const DAYTONA: &str = r#"
from daytona import Daytona
daytona = Daytona()
box = daytona.create()
assert box.process.exec("echo first").result.strip() == "first"
box.delete()
"#;
const LEAP0: &str = r#"
from leap0 import Leap0Client
client = Leap0Client()
box = client.sandboxes.create()
assert client.sandboxes.get(box.id).state == "running", box
box.delete()
"#;

#[test]
fn the_sdks_defaults_work_on_a_server_without_a_template() {
    let (Some(e2b), Some(daytona), Some(leap0)) = (
        python("get-e2b-sdk", &["python"]),
        python("get-daytona-sdk", &["python"]),
        python("get-leap0-sdk", &[]),
    ) else {
        return;
    };
    run_with(Options { template: "host", ..Options::default() }, async |w| {
        for name in ["base", "code-interpreter-v1", "daytona", "system/debian:bookworm"] {
            let made = w.admin().post("/v1/sandboxes", json!({ "template": name })).await.ok();
            assert_eq!(made["template"], "host", "{name}");
        }
        assert!(ok(w, &["ls"]).contains("host"));
        assert!(
            w.log().contains("template debian is not made yet"),
            "the log names the template that stands in"
        );
        // Names that no SDK uses by default are unchanged.
        let missing = atoll(w, &["create", "-T", "debian"]);
        assert!(text(&missing.stderr).contains("atoll template make debian"), "{}", text(&missing.stderr));
        with_sdk(w, "e2b", &e2b, E2B).await;
        with_sdk(w, "daytona", &daytona, DAYTONA).await;
        with_sdk(w, "leap0", &leap0, LEAP0).await;
        // A template is kept, so it is not built on files that change with the machine.
        let file = w.folder().join("Dockerfile");
        std::fs::write(&file, "FROM base\nRUN true\n").unwrap();
        let build = atoll(w, &["build", "-t", "app", &w.folder().display().to_string()]);
        assert!(!build.status.success() && text(&build.stderr).contains("template make debian"), "{build:?}");
        ok(w, &["rm", "--all", "--force"]);
    });
}

#[test]
fn the_tour_of_snapshots_can_be_typed_twice() {
    run(async |w| {
        for _ in 0..2 {
            ok(w, &["create", "--name", "box"]);
            ok(w, &["exec", "box", "--", "sh", "-c", "echo kept > note"]);
            ok(w, &["snapshot", "box", "--name", "clean"]);
            assert!(ok(w, &["snapshot", "ls", "box"]).contains("box:clean"));
            let forks = ok(w, &["fork", "box", "-n", "2"]);
            ok(w, &["exec", "box", "--", "rm", "note"]);
            ok(w, &["rollback", "box", "clean"]);
            assert_eq!(ok(w, &["exec", "box", "cat", "note"]), "kept\n");
            ok(w, &["create", "--name", "copy", "--snapshot", "box:clean"]);
            let removed = atoll(w, &["rm", "box"]);
            assert!(text(&removed.stderr).contains("kept the snapshots of box: clean;"), "{removed:?}");
            // What was made from the snapshot works without its sandbox.
            for made in forks.lines().chain(["copy"]) {
                assert_eq!(ok(w, &["exec", made, "cat", "note"]), "kept\n");
                ok(w, &["rm", made]);
            }
        }
        let unclear = atoll(w, &["create", "--snapshot", "box:clean"]);
        assert!(text(&unclear.stderr).contains("matches more than one snapshot"), "{unclear:?}");
        let ids = ok(w, &["snapshot", "ls", "--json"]);
        let listed: Value = serde_json::from_str(&ids).unwrap();
        let sandboxes: Vec<&str> =
            listed.as_array().unwrap().iter().map(|one| one["sandbox"].as_str().unwrap()).collect();
        assert_eq!(sandboxes.len(), 2, "{listed}");
        ok(w, &["create", "--name", "copy", "--snapshot", &format!("{}:clean", sandboxes[0])]);
        for sandbox in sandboxes {
            ok(w, &["rm", "--snapshots", sandbox]);
        }
        assert_eq!(ok(w, &["snapshot", "ls", "-q"]), "");
        assert_eq!(ok(w, &["exec", "copy", "cat", "note"]), "kept\n");
        ok(w, &["rm", "--all", "--force"]);
    });
}

#[test]
fn a_start_command_that_fails_is_told_wherever_one_looks() {
    run(async |w| {
        let refused = atoll(w, &["create", "w2"]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(text(&refused.stderr).contains("atoll create --name w2"), "{refused:?}");
        assert_eq!(ok(w, &["ls", "-q"]), "", "nothing is left");
        ok(w, &["create", "--name", "box", "--", "sh", "-c", "echo began; exit 3"]);
        until("the end of the command is noticed", async || {
            ok(w, &["ls"]).contains("failed (3)").then_some(())
        })
        .await;
        assert!(ok(w, &["inspect", "box"]).contains("(status 3): the start command ended with status 3"));
        let logs = atoll(w, &["logs", "box"]);
        assert_eq!(text(&logs.stdout), "began\n");
        assert!(text(&logs.stderr).contains("the start command ended with status 3"), "{logs:?}");
        ok(w, &["pause", "box"]);
        assert!(ok(w, &["ls"]).contains("failed (3)"));
        for (words, hint) in [
            (&["exec", "box", "ls -la"][..], "atoll exec box -- sh -c 'ls -la'"),
            (&["run", "echo hi"], "atoll run -- sh -c 'echo hi'"),
            (&["run", "ubuntu:22.04", "bash"], "atoll run --image ubuntu:22.04 -- bash"),
        ] {
            let done = atoll(w, words);
            assert_eq!(done.status.code(), Some(127), "{done:?}");
            assert!(text(&done.stderr).contains(hint), "{done:?}");
        }
        ok(w, &["rm", "--all", "--force"]);
    });
}

#[test]
fn copies_keep_links_take_several_sources_and_count_what_they_copied() {
    run(async |w| {
        ok(w, &["create", "--name", "box"]);
        let tree = w.folder().join("tree");
        std::fs::create_dir_all(tree.join("bin")).unwrap();
        std::fs::write(tree.join("bin/real"), "#!/bin/sh\necho ran\n").unwrap();
        std::fs::set_permissions(tree.join("bin/real"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        symlink("real", tree.join("bin/tool")).unwrap();
        symlink("/nowhere", tree.join("dangling")).unwrap();
        std::fs::write(w.folder().join("one"), vec![b'1'; 1_000]).unwrap();
        std::fs::write(w.folder().join("two"), vec![b'2'; 500]).unwrap();
        let path = |name: &str| w.folder().join(name).display().to_string();

        let copied: Value =
            serde_json::from_str(&ok(w, &["--json", "cp", "-r", &path("tree"), "box:/tmp/tree"])).unwrap();
        assert_eq!((&copied["files"], &copied["bytes"]), (&json!(3), &json!(19)), "{copied}");
        assert_eq!(ok(w, &["exec", "box", "--", "/tmp/tree/bin/tool"]), "ran\n");
        assert_eq!(ok(w, &["exec", "box", "--", "readlink", "/tmp/tree/dangling"]), "/nowhere\n");

        ok(w, &["cp", "-r", "box:/tmp/tree", &path("back")]);
        assert_eq!(std::fs::read_link(w.folder().join("back/bin/tool")).unwrap(), Path::new("real"));
        assert_eq!(std::fs::read_link(w.folder().join("back/dangling")).unwrap(), Path::new("/nowhere"));

        let copied: Value =
            serde_json::from_str(&ok(w, &["--json", "cp", &path("one"), &path("two"), "box:/tmp"])).unwrap();
        assert_eq!((&copied["files"], &copied["bytes"]), (&json!(2), &json!(1_500)), "{copied}");
        assert_eq!(ok(w, &["exec", "box", "--", "sh", "-c", "cat /tmp/one /tmp/two | wc -c"]).trim(), "1500");
        let wrong = atoll(w, &["cp", "box:/tmp/one", "box:/tmp/two", &path("one")]);
        assert_eq!(wrong.status.code(), Some(2), "several sources need a directory: {}", text(&wrong.stderr));
    });
}

#[test]
fn what_went_wrong_is_said_where_a_person_looks() {
    run(async |w| {
        let eater = "x=a; while :; do x=$x$x; done";
        let done = atoll(w, &["run", "--memory", "32m", "--", "sh", "-c", eater]);
        assert_eq!(done.status.code(), Some(137), "{}", text(&done.stderr));
        assert!(text(&done.stderr).contains("memory limit of 32 MiB"), "{}", text(&done.stderr));
        let plain = atoll(w, &["run", "--", "sh", "-c", "kill -9 $$"]);
        assert!(!text(&plain.stderr).contains("memory"), "another kill is not blamed on memory");

        let beyond = atoll(w, &["create", "--memory", "900g"]);
        assert!(text(&beyond.stderr).contains("the memory of this machine"), "{}", text(&beyond.stderr));

        let http = reqwest::Client::new();
        let browser = http.get("http://127.0.0.1:7070/").header("accept", "text/html").send().await.unwrap();
        assert!(browser.url().path() == "/" && browser.status() == 200, "{browser:?}");
        assert!(browser.text().await.unwrap().contains("<title>Atoll</title>"));
        let program: Value = http.get("http://127.0.0.1:7070/").send().await.unwrap().json().await.unwrap();
        assert_eq!(program["documentation"], "/docs");
    });
}

#[test]
fn the_command_line_speaks_https_and_checks_the_certificate() {
    run_with(Options { tls: true, ..Options::default() }, async |w| {
        until("the TLS port is open", async || TcpStream::connect("127.0.0.1:7443").await.ok()).await;
        let ca = w.data().join("tls/ca.pem").display().to_string();
        let url = "https://atoll.localhost:7443";
        let elsewhere = w.folder().join("elsewhere");
        std::fs::create_dir_all(&elsewhere).unwrap();
        let ask = |words: &[&str]| {
            let mut command = w.command();
            command.env("ATOLL_DATA", &elsewhere).env("ATOLL_URL", url).env("ATOLL_API_KEY", w.admin().key());
            command.args(words).stdin(Stdio::null()).output().unwrap()
        };
        let trusted = ask(&["--ca", &ca, "run", "--", "echo", "over TLS"]);
        assert_eq!(text(&trusted.stdout), "over TLS\n", "{}", text(&trusted.stderr));
        let stranger = ask(&["ls"]);
        let said = text(&stranger.stderr);
        assert!(
            !stranger.status.success() && said.contains("certificate") && said.contains("--ca"),
            "{said}"
        );
        let ours =
            w.command().env("ATOLL_URL", url).env("ATOLL_API_KEY", w.admin().key()).args(["ls"]).output();
        let ours = ours.unwrap();
        assert!(ours.status.success(), "our own authority is trusted: {}", text(&ours.stderr));
        for sdk in [&["env", "e2b", "--tls", "--json"][..], &["env", "leap0", "--json"]] {
            let printed: Value = serde_json::from_str(&ok(w, sdk)).unwrap();
            assert!(printed.get("HTTPS_PROXY").is_none(), "other HTTPS of the program would fail: {printed}");
        }
    });
}

#[test]
fn an_uninstall_deletes_every_sandbox_and_starts_no_server() {
    run_with(Options { audit: false, ..Options::default() }, async |w| {
        ok(w, &["create", "--name", "left"]);
        w.stop_server(Signal::SIGTERM).await;
        // A process that listens at the default address gets no request and is not stopped.
        let listener = std::net::TcpListener::bind("127.0.0.1:7070").unwrap();
        listener.set_nonblocking(true).unwrap();
        let removed = ok(w, &["server", "uninstall", "--force"]);
        assert!(removed.contains("removed"), "{removed}");
        assert!(listener.accept().is_err(), "uninstall asked somebody else's server");
        assert!(!w.data().exists(), "the folder is gone");
    });
}

/// As the removal of a package does it.
/// A ruleset without a rule has the kernel's own line about itself.
const NO_RULES: usize = 1;

#[test]
fn an_uninstall_that_keeps_data_leaves_nothing_running_and_the_next_server_has_it_all() {
    run_with(Options { audit: false, ..Options::default() }, async |w| {
        ok(w, &["create", "--name", "box", "--", "sleep", "1000"]);
        ok(w, &["exec", "-u", "root", "box", "--", "sh", "-c", "echo kept > /note"]);
        ok(w, &["snapshot", "box", "--name", "clean"]);
        ok(w, &["volume", "create", "data", "--size", "64m"]);
        ok(w, &["create", "--name", "frozen"]);
        ok(w, &["pause", "frozen"]);
        let block = w.holdings();
        assert!(block.count("loop devices") > 0 && block.count("host rules") > NO_RULES, "{block:?}");
        // The server is killed: the sandboxes are nobody's children when they are stopped.
        w.stop_server(Signal::SIGKILL).await;
        let left = ok(w, &["server", "uninstall", "--force", "--keep-data"]);
        assert!(left.contains("is kept"), "{left}");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let data = w.data().display().to_string();
        assert!(!mounts.contains(&data), "{mounts}");
        // The kernel gives the loop device back when the last killed process has ended.
        until("nothing runs and nothing is held", async || {
            w.reap();
            let after = w.holdings();
            let running = atoll_tests::proc::descendants(atoll_tests::proc::own_pid());
            // The removal of a package in a fresh Debian checks the control groups (`tests/packages`).
            let is_free = after.count("loop devices") == 0 && after.count("host rules") <= NO_RULES;
            (is_free && running.is_empty()).then_some(())
        })
        .await;
        // Again, as after a removal that was interrupted.
        ok(w, &["server", "uninstall", "--force", "--keep-data"]);
        w.start_server().await;
        assert!(ok(w, &["ls"]).contains("stopped"));
        ok(w, &["start", "box"]);
        assert_eq!(ok(w, &["exec", "box", "--", "cat", "/note"]), "kept\n");
        ok(w, &["rollback", "box", "clean"]);
        assert!(ok(w, &["volume", "ls"]).contains("data"));
    });
}

/// What stands in for the program that makes a root from packages, so that no test needs a mirror: it fails, hangs or makes a
/// small root, as the file `mode` beside it says, and notes that it began.
const MAKER: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo begun >> "$here/begun"
case $(cat "$here/mode") in
fail) echo "E: Unable to fetch some archives" >&2; exit 100 ;;
hang) exec sleep 600 ;;
make) for word; do case $word in *.tar.zst) cp "$here/root.tar.zst" "$word" ;; esac; done ;;
esac
"#;

/// The folder with the maker, ahead of all others in the server's path, and an empty cache.
fn install_maker(w: &World) -> PathBuf {
    let folder = w.folder().join("maker");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("mmdebstrap"), MAKER).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.join("mmdebstrap"), mode).unwrap();
    let root = atoll_tests::template::shared("busybox").join("rootfs");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--zstd", "--numeric-owner", "--file"]);
    tar.arg(folder.join("root.tar.zst")).arg("--directory").arg(root).arg(".");
    assert!(tar.status().unwrap().success());
    w.set_env("PATH", &format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
    w.set_env("ATOLL_CACHE", &w.folder().join("cache").display().to_string());
    folder
}

async fn restart(w: &World, signal: Signal) {
    w.stop_server(signal).await;
    w.start_server().await;
}

/// The template that a vendor's default name becomes in a sandbox that is made and runs.
async fn resolved(w: &World, name: &str) -> String {
    let made = w.admin().post("/v1/sandboxes", json!({ "template": name })).await.ok();
    let id = made["id"].as_str().unwrap();
    assert_eq!(w.admin().sh(id, "echo runs").await.stdout, "runs\n", "{name}");
    w.admin().remove(id).await;
    made["template"].as_str().unwrap().to_owned()
}

/// Folders of templates and archives that are half made.
fn half_made(w: &World) -> Vec<PathBuf> {
    let folders = [w.templates(), w.folder().join("cache")];
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with('.')).collect()
}

const DEFAULT_NAMES: [&str; 4] = ["base", "code-interpreter-v1", "daytona", "system/debian:bookworm"];

#[test]
fn default_templates_are_made_in_the_background_whatever_happened_before() {
    run_with(Options { template: "host", audit: false, ..Options::default() }, async |w| {
        let maker = install_maker(w);
        let set_mode = |mode: &str| std::fs::write(maker.join("mode"), mode).unwrap();
        let times_begun = || std::fs::read_to_string(maker.join("begun")).unwrap_or_default().lines().count();
        let finished = || std::fs::read_to_string(w.data().join("default-templates")).unwrap_or_default();
        set_mode("make");
        restart(w, Signal::SIGTERM).await;
        assert_eq!(resolved(w, "base").await, "host");
        assert_eq!((times_begun(), finished().as_str()), (0, ""), "`never` makes none");

        w.set_env("ATOLL_MAKE_TEMPLATES", "auto");
        set_mode("fail");
        restart(w, Signal::SIGTERM).await;
        let failed = "a default template could not be made; the next start of the server tries again";
        until("the failure is in the log", async || w.log().contains(failed).then_some(())).await;
        let log = w.log();
        let line = log.lines().find(|line| line.contains(failed)).unwrap();
        assert!(line.contains("Unable to fetch some archives") && line.contains("\"hint\""), "{line}");
        for name in DEFAULT_NAMES {
            assert_eq!(resolved(w, name).await, "host");
        }
        assert_eq!(times_begun(), 1, "a start tries once");
        assert_eq!(half_made(w), Vec::<PathBuf>::new());

        set_mode("hang");
        restart(w, Signal::SIGTERM).await;
        until("the maker is at work", async || (times_begun() == 2).then_some(())).await;
        assert_eq!(resolved(w, "base").await, "host", "creates do not wait for it");
        set_mode("make");
        restart(w, Signal::SIGKILL).await;
        let is_maker = |pid: i32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x00600\0")
        };
        until("the maker ends with its server", async || {
            let below = atoll_tests::proc::descendants(atoll_tests::proc::own_pid());
            (!below.iter().any(|process| is_maker(process.pid))).then_some(())
        })
        .await;
        until("both are made", async || (finished().lines().count() == 2).then_some(())).await;
        assert_eq!(times_begun(), 4, "the one that was cut off is made again, and the other one");
        assert_eq!(half_made(w), Vec::<PathBuf>::new(), "a kill leaves nothing behind");
        let templates = ["debian", "code-interpreter-slim", "code-interpreter-slim", "debian"];
        for (name, template) in DEFAULT_NAMES.into_iter().zip(templates) {
            assert_eq!(resolved(w, name).await, template, "{name}");
        }
        assert!(w.log().contains("default template made"));

        w.admin().delete("/v1/templates/debian").await.ok();
        restart(w, Signal::SIGTERM).await;
        assert_eq!(resolved(w, "base").await, "code-interpreter-slim");
        assert_eq!(times_begun(), 4, "what the operator removes stays removed");
    });
}
