//! Settings of providers with the real command line and a real server: changed by commands and by hand while it runs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use atoll_tests::{Value, World, run, until};

fn atoll(w: &World, words: &[&str], input: &str) -> Output {
    let mut command = w.command();
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn ok(w: &World, words: &[&str], input: &str) -> String {
    let done = atoll(w, words, input);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "atoll {words:?}: {} {said}", done.status);
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// What a command that fails says.
fn refusal(w: &World, words: &[&str]) -> String {
    let done = atoll(w, words, "");
    assert!(!done.status.success(), "atoll {words:?} succeeded");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

fn problem(w: &World, name: &str) -> Option<String> {
    let listed: Value = serde_json::from_str(&ok(w, &["--json", "provider", "ls"], "")).unwrap();
    let found = listed.as_array().unwrap().iter().find(|one| one["name"] == name)?;
    Some(found["problem"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn settings_are_changed_by_command_and_by_hand_while_the_server_runs() {
    run(async |w| {
        assert_eq!(problem(w, "container").as_deref(), Some(""));
        // No program listens there.
        let api_url = "api_url=http://127.0.0.1:1/api";
        let words = ["provider", "set", "cloud", "--kind", "daytona", "--set", "target=eu", "--set", api_url];
        let set = atoll(w, &[&words[..], &["--key-stdin"]].concat(), "key-1\n");
        let (shown, said) = (String::from_utf8_lossy(&set.stdout), String::from_utf8_lossy(&set.stderr));
        assert!(shown.contains("api_key: from file") && !shown.contains("key-1"), "{shown}");
        // The settings are kept, and a script notices that they cannot be used.
        assert_eq!(set.status.code(), Some(1), "{said}");
        assert!(said.contains("the settings were saved, but"), "{said}");
        let file = w.data().join("sandboxes/cloud.json");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(&file).unwrap().contains("key-1"));
        assert!(refusal(w, &["provider", "test", "cloud"]).contains("the service cannot be reached"));
        let refused = refusal(w, &["create", "--provider", "cloud"]);
        assert!(refused.contains("provider cloud cannot be used"), "{refused}");
        assert_eq!(ok(w, &["provider", "test", "container"], "").trim(), "container: ok");

        std::fs::write(
            w.data().join("sandboxes/typed.json"),
            "{\"provider\": \"docker\", \"docker\": {\"imgae\": 1}}",
        )
        .unwrap();
        until("the file is noticed", async || {
            problem(w, "typed").is_some_and(|why| why.contains("docker.imgae")).then_some(())
        })
        .await;
        std::fs::remove_file(w.data().join("sandboxes/typed.json")).unwrap();
        until("its removal is noticed", async || problem(w, "typed").is_none().then_some(())).await;

        let id = ok(w, &["create"], "").trim().to_owned();
        ok(w, &["provider", "set", "container", "--disable"], "");
        assert!(refusal(w, &["create"]).contains("provider container is disabled"));
        assert_eq!(ok(w, &["exec", &id, "--", "echo", "hi"], ""), "hi\n");
        ok(w, &["provider", "rm", "container"], "");
        let second = ok(w, &["create"], "").trim().to_owned();
        let inspected: Value = serde_json::from_str(&ok(w, &["--json", "inspect", &second], "")).unwrap();
        assert_eq!(inspected["isolation"], "container");
        ok(w, &["rm", "-f", &id, &second], "");
        ok(w, &["provider", "rm", "cloud"], "");
        assert_eq!(problem(w, "cloud"), None);
        // The name of this server at the vendor is kept: objects of the provider could still be there.
        std::fs::remove_dir_all(w.data().join("providers")).unwrap();
    });
}
