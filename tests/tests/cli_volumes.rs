//! Volumes from the command line against a real server: made, mounted, filled without a sandbox, copied, resized, removed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::process::{Output, Stdio};

use atoll_tests::{Options, Value, World, json, run, run_with};

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

/// What it said when it failed with this status.
fn refused(w: &World, status: i32, words: &[&str]) -> String {
    let done = atoll(w, words);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(status), "atoll {words:?}: {said}");
    said
}

fn object(w: &World, words: &[&str]) -> Value {
    serde_json::from_str(&ok(w, words)).unwrap()
}

#[test]
fn a_volume_outlives_the_sandboxes_that_share_it() {
    run(async |w| {
        assert_eq!(ok(w, &["volume", "create", "data", "--size", "64m"]), "data\n");
        ok(
            w,
            &["run", "--volume", "data:/data", "--", "sh", "-c", "echo hello > /data/note; mkdir /data/sub"],
        );
        assert_eq!(ok(w, &["run", "-v", "data:/data:ro", "--", "cat", "/data/note"]), "hello\n");
        let done = atoll(w, &["run", "-v", "data:/data:ro", "--", "sh", "-c", "echo x > /data/y"]);
        assert!(!done.status.success() && text(&done.stderr).contains("Read-only"), "{}", text(&done.stderr));
        ok(
            w,
            &[
                "run",
                "-v",
                "data/sub:/s",
                "-v",
                "data/new:/n",
                "--",
                "sh",
                "-c",
                "echo a > /s/a; echo b > /n/b",
            ],
        );
        assert_eq!(ok(w, &["run", "-v", "data:/d", "--", "cat", "/d/sub/a", "/d/new/b"]), "a\nb\n");

        ok(w, &["create", "--name", "one", "-v", "data:/data"]);
        ok(w, &["create", "--name", "two", "-v", "data:/data"]);
        ok(w, &["exec", "one", "sh", "-c", "echo shared > /data/shared"]);
        assert_eq!(ok(w, &["exec", "two", "cat", "/data/shared"]), "shared\n");
        let inspected = object(w, &["inspect", "--json", "one"]);
        assert_eq!(inspected["mounts"][0]["path"], "/data", "{inspected}");
        let shown = object(w, &["volume", "show", "--json", "data"]);
        assert_eq!((&shown["mounted_by"], &shown["size_mib"]), (&json!(2), &json!(64)), "{shown}");
        let said = refused(w, 1, &["volume", "rm", "-f", "data"]);
        assert!(said.contains("mounted") && said.contains("hint"), "{said}");
        ok(w, &["rm", "-f", "one", "two"]);
        ok(w, &["volume", "rm", "-f", "data"]);
        assert_eq!(ok(w, &["volume", "ls", "-q"]), "");
    });
}

#[test]
fn files_go_in_and_out_without_a_sandbox() {
    run(async |w| {
        ok(w, &["volume", "create", "data"]);
        let here = w.folder().join("here");
        std::fs::create_dir_all(here.join("deep/er")).unwrap();
        std::fs::write(here.join("deep/er/file"), "content").unwrap();
        std::fs::write(here.join("top"), "top").unwrap();
        ok(w, &["volume", "put", "data", here.to_str().unwrap(), "/tree"]);
        ok(
            w,
            &[
                "volume",
                "put",
                "data",
                here.join("top").to_str().unwrap(),
                "/given/",
                "--uid",
                "1000",
                "--gid",
                "1000",
            ],
        );
        let mut child =
            w.command().args(["volume", "put", "data", "-", "/piped"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"piped \xff").unwrap();
        assert!(child.wait().unwrap().success());

        let listed = ok(w, &["volume", "files", "data"]);
        assert!(listed.contains("/tree") && listed.contains("/piped"), "{listed}");
        let all = object(w, &["volume", "files", "-r", "--json", "data"]);
        let of =
            |path: &str| all.as_array().unwrap().iter().find(|entry| entry["path"] == path).cloned().unwrap();
        assert_eq!(of("/tree/deep/er/file")["size"], 7, "{all}");
        assert_eq!((&of("/given/top")["uid"], &of("/given/top")["gid"]), (&json!(1000), &json!(1000)));
        assert_eq!(atoll(w, &["volume", "get", "data", "/piped", "-"]).stdout, b"piped \xff");
        let out = w.folder().join("out");
        ok(w, &["volume", "get", "data", "/tree", out.to_str().unwrap()]);
        assert_eq!(std::fs::read_to_string(out.join("deep/er/file")).unwrap(), "content");
        assert_eq!(ok(w, &["run", "-v", "data:/d", "--", "cat", "/d/tree/top"]), "top");

        ok(w, &["volume", "cp", "data", "copy"]);
        ok(w, &["volume", "files", "data", "/tree", "--rm"]);
        assert!(!ok(w, &["volume", "files", "data"]).contains("/tree"));
        assert!(ok(w, &["volume", "files", "copy"]).contains("/tree"), "a copy is its own");
        refused(w, 1, &["volume", "get", "data", "/tree", "-"]);
        ok(w, &["volume", "rm", "-f", "data", "copy", "never-there"]);
    });
}

#[test]
fn a_volume_is_full_inside_and_grows_while_it_is_used() {
    run(async |w| {
        ok(w, &["volume", "create", "small", "--size", "16m"]);
        ok(w, &["create", "--name", "box", "-v", "small:/v"]);
        let fill = ["exec", "box", "sh", "-c", "dd if=/dev/urandom of=/v/big bs=1M count=32 && sync"];
        let done = atoll(w, &fill);
        // btrfs says it so; the other word is that of a plain file system.
        let said = text(&done.stderr);
        assert!(said.contains("quota exceeded") || said.contains("No space left"), "{said}");
        ok(w, &["exec", "box", "rm", "/v/big"]);
        assert_eq!(ok(w, &["volume", "resize", "small", "64m"]), "small\n");
        ok(w, &fill);
        ok(w, &["rm", "-f", "box"]);
        ok(w, &["volume", "rm", "-f", "small"]);
    });
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    run(async |w| {
        ok(w, &["volume", "create", "data"]);
        let said = refused(w, 125, &["run", "-v", "dta:/d", "--", "true"]);
        assert!(said.contains("data") || said.contains("volume ls"), "{said}");
        assert!(refused(w, 1, &["volume", "show", "dta"]).contains("data"));
        assert!(refused(w, 125, &["run", "-v", "./here:/d", "--", "true"]).contains("--folder"));
        assert!(refused(w, 125, &["run", "-v", "data:/proc/x", "--", "true"]).contains("/proc/x"));
        assert!(refused(w, 1, &["volume", "create", "data"]).contains("data"));
        let said = refused(w, 1, &["volume", "create", "x", "--folder", "/etc"]);
        assert!(said.contains("--volume-root"), "{said}");
        ok(w, &["run", "-v", "data:/d", "--", "ln", "-s", "/etc", "/d/link"]);
        let said = refused(w, 125, &["run", "-v", "data/link/x:/d", "--", "true"]);
        assert!(said.contains("link"), "{said}");
        assert_eq!(ok(w, &["ls", "-q"]), "", "a run that cannot start leaves nothing");
        let table = ok(w, &["volume", "ls"]);
        assert!(table.contains("data") && table.contains("ready"), "{table}");
        ok(w, &["volume", "rm", "-f", "data"]);
    });
}

#[test]
fn a_folder_of_the_host_is_a_volume_where_the_operator_allows_it() {
    let root = tempfile::tempdir_in("/var/tmp").unwrap();
    let shared = root.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::write(shared.join("greeting"), "from outside\n").unwrap();
    for path in [shared.clone(), shared.join("greeting")] {
        std::os::unix::fs::chown(path, Some(1234), Some(1234)).unwrap();
    }
    let options = Options::default().env("ATOLL_VOLUME_ROOTS", root.path().to_str().unwrap());
    run_with(options, async |w| {
        ok(w, &["volume", "create", "code", "--folder", shared.to_str().unwrap()]);
        let line = "cat /c/greeting; echo inside > /c/answer";
        assert_eq!(ok(w, &["run", "-v", "code:/c", "--", "sh", "-c", line]), "from outside\n");
        let about = std::fs::metadata(shared.join("answer")).unwrap();
        assert_eq!(
            std::os::unix::fs::MetadataExt::uid(&about),
            1234,
            "what is written is the folder's owner's"
        );
        refused(w, 1, &["volume", "create", "out", "--folder", "/etc"]);
        std::os::unix::fs::symlink("/etc", root.path().join("link")).unwrap();
        refused(w, 1, &["volume", "create", "out", "--folder", root.path().join("link").to_str().unwrap()]);
        ok(w, &["volume", "rm", "-f", "code"]);
        assert!(shared.join("greeting").exists(), "the folder stays");
    });
}
