//! The output of the command line without a server.

use std::process::{Command, Output};

/// Runs the binary with a folder that no server ever used, and an address without a listener.
fn alone(words: &[&str]) -> Output {
    let data = tempfile::tempdir().expect("temporary folder");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    Command::new(env!("CARGO_BIN_EXE_atoll"))
        .env_clear()
        .env("ATOLL_DATA", data.path())
        .env("ATOLL_URL", format!("http://{port}"))
        .args(words)
        .output()
        .expect("the binary runs")
}

#[test]
fn a_key_that_cannot_be_made_fails_the_shell_that_evals() {
    for sdk in ["e2b", "daytona", "leap0"] {
        let output = alone(&["env", sdk, "--with-key", "--proxy", "never"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"false\n"[..]), "{said}");
        assert!(said.contains("no server answers") && said.contains("atoll serve"), "{said}");
    }
    // With --json no shell code is printed.
    assert!(alone(&["env", "e2b", "--with-key", "--json"]).stdout.is_empty());
    let output = alone(&["env", "e2b"]);
    assert!(output.status.success() && output.stdout.starts_with(b"export E2B_API_URL="));
}

#[test]
fn env_e2b_says_what_programs_that_write_https_need() {
    let said = |words: &[&str]| String::from_utf8_lossy(&alone(words).stderr).into_owned();
    for words in [&["env", "e2b"][..], &["env", "e2b", "--json"]] {
        let plain = said(words);
        assert!(plain.contains("https://") && plain.contains("atoll env e2b --tls"), "{plain}");
        assert!(plain.contains("get_host()") && plain.contains("atoll tls init"), "{plain}");
    }
    assert!(!said(&["env", "e2b", "--tls", "--proxy", "never"]).contains("get_host()"));
    assert!(!said(&["env", "daytona"]).contains("get_host()"));
}
