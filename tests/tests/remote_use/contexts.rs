//! `atoll context`, and which server a command goes to.

use std::os::unix::fs::PermissionsExt;

use atoll_tests::{World, json, run};

use super::{SERVER, atoll, contexts_file, fed, ok, ok_json, refused, text, user};

fn mode(w: &World) -> u32 {
    std::fs::metadata(contexts_file(w)).unwrap().permissions().mode() & 0o777
}

/// The tenant whose key a command uses.
fn tenant(w: &World, words: &[&str], env: &[(&str, &str)]) -> String {
    let mut command = user(w);
    command.args(words).args(["whoami", "--json"]).envs(env.iter().copied());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{words:?} {env:?}: {}", text(&done.stderr));
    let who: atoll_tests::Value = serde_json::from_slice(&done.stdout).unwrap();
    who["tenant_name"].as_str().unwrap().to_owned()
}

#[test]
fn a_context_holds_a_server_and_its_key_for_its_owner_alone() {
    run(async |w| {
        let (red, blue) = (w.tenant("red").await, w.tenant("blue").await);
        for (name, client) in [("red", &red), ("blue", &blue)] {
            let done = fed(w, &["context", "add", name, SERVER, "--key-stdin"], client.key());
            assert!(done.status.success(), "{}", text(&done.stderr));
        }
        assert_eq!(mode(w), 0o600);
        for words in [&["context", "ls"][..], &["context", "ls", "--json"], &["context", "show", "red"]] {
            let shown = ok(w, words);
            assert!(shown.contains("red") && !shown.contains(red.key()), "{shown}");
        }
        assert!(refused(w, &["context", "add", "red", SERVER]).contains("--force"));
        assert!(refused(w, &["context", "add", "a b", SERVER]).contains("choose another name"));
        assert!(refused(w, &["context", "add", "local", SERVER]).contains("this machine"));
        assert!(refused(w, &["context", "use", "green"]).contains("atoll context ls"));
        let empty = fed(w, &["context", "add", "x", SERVER, "--key-stdin"], "\n");
        assert!(text(&empty.stderr).contains("no key on stdin"), "{}", text(&empty.stderr));

        which_server_a_command_goes_to(w, red.key());
        wide_rights_are_taken_away(w);

        ok(w, &["context", "rm", "blue"]);
        assert!(refused(w, &["context", "rm", "blue"]).contains("no context"));
        assert!(refused(w, &["--context", "blue", "ls"]).contains("no context"));
        assert_eq!(ok_json(w, &["context", "ls", "--json"])[0]["current"], json!(true));
    });
}

/// Options win over variables, variables over the current context, and that over the server of this machine.
fn which_server_a_command_goes_to(w: &World, red: &str) {
    assert!(refused(w, &["whoami"]).contains("hint"), "without a context there is no key");
    ok(w, &["context", "use", "blue"]);
    assert_eq!(tenant(w, &[], &[]), "blue");
    assert_eq!(tenant(w, &["--context", "red"], &[]), "red");
    assert_eq!(tenant(w, &[], &[("ATOLL_CONTEXT", "red")]), "red");
    assert_eq!(tenant(w, &["--context", "blue"], &[("ATOLL_CONTEXT", "red")]), "blue");
    assert_eq!(tenant(w, &[], &[("ATOLL_API_KEY", red)]), "red", "a variable wins over the stored key");
    assert_eq!(
        tenant(w, &["--context", "blue"], &[("ATOLL_API_KEY", red)]),
        "blue",
        "an option wins over both"
    );
    let elsewhere = [("ATOLL_URL", "http://127.0.0.1:1"), ("ATOLL_API_KEY", "atl_other")];
    assert_eq!(tenant(w, &["--context", "red"], &elsewhere), "red");
    let with_url = [("ATOLL_URL", SERVER), ("ATOLL_API_KEY", red)];
    assert_eq!(tenant(w, &[], &with_url), "red", "an address in the environment is no context");
    assert!(refused(w, &["--context", "red", "--url", SERVER, "ls"]).contains("two servers"));
    // The key of a context is for its server alone.
    let other = user(w).args(["--url", SERVER, "whoami"]).output().unwrap();
    assert!(!other.status.success(), "{}", text(&other.stdout));
    // `code` has a `--context` of its own, which is no server.
    let code = atoll(w, &["code", "no-such-box", "--context", "c1", "x"]);
    assert!(text(&code.stderr).contains("no-such-box"), "{}", text(&code.stderr));
    let code = atoll(w, &["--context", "nowhere", "code", "no-such-box", "x"]);
    assert!(text(&code.stderr).contains("no context"), "{}", text(&code.stderr));
    ok(w, &["context", "use", "local"]);
    assert!(refused(w, &["whoami"]).contains("hint"));
    ok(w, &["context", "use", "blue"]);
}

fn wide_rights_are_taken_away(w: &World) {
    let widen = || {
        let wide = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(contexts_file(w), wide).unwrap();
    };
    widen();
    let done = atoll(w, &["whoami"]);
    assert!(done.status.success() && text(&done.stderr).contains("other users could read"), "{done:?}");
    assert_eq!(mode(w), 0o600);
    assert_eq!(text(&atoll(w, &["whoami"]).stderr), "", "it is said once");
    // The file of another user may hold an address and a key that are a trap.
    widen();
    std::os::unix::fs::chown(contexts_file(w), Some(65_534), Some(65_534)).unwrap();
    let other = as_another_user(w);
    assert!(!other.status.success() && text(&other.stderr).contains("not a file of yours"), "{other:?}");
    assert_eq!(mode(w), 0o644, "the file of another user is left alone");
    std::os::unix::fs::chown(contexts_file(w), Some(0), Some(0)).unwrap();
    assert!(atoll(w, &["whoami"]).status.success());
}

/// `atoll whoami` of a user who may read the file of contexts, but does not own it.
fn as_another_user(w: &World) -> std::process::Output {
    let folder = w.folder().join("another-user");
    let program = folder.join("atoll");
    let open = |path: &std::path::Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(atoll_tests::world::program(), &program).unwrap();
    let file = contexts_file(w);
    for path in [w.folder(), &folder, &program, file.parent().unwrap(), &w.folder().join(".config")] {
        open(path);
    }
    let mut command = std::process::Command::new(&program);
    for (name, value) in user(w).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    std::os::unix::process::CommandExt::uid(&mut command, 65_533);
    let output = command.current_dir("/").arg("whoami").output().expect("the other user's command starts");
    std::fs::remove_dir_all(&folder).unwrap();
    output
}
