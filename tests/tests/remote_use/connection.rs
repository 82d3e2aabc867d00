//! Warnings about the connection, against a stand-in for a server of another version.

use std::process::{Command, Stdio};

use atoll_tests::run;
use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;

use super::{fed, refused, text, user};

/// Answers as a server of version 99.1 whose tenant has no sandboxes.
async fn serve_other_version(listener: tokio::net::TcpListener) {
    let list = async || {
        ([("atoll-version", "99.1.0"), ("content-type", "application/json")], r#"{"items":[]}"#)
            .into_response()
    };
    axum::serve(listener, Router::new().route("/v1/sandboxes", get(list)).route("/v1/keys", get(list)))
        .await
        .unwrap();
}

#[test]
fn a_command_warns_once_about_another_version_and_a_key_in_clear_text() {
    run(async |w| {
        // An address of this world that is not loopback.
        let added = Command::new("ip").args(["addr", "add", "192.0.2.7/32", "dev", "lo"]).status().unwrap();
        assert!(added.success());
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(serve_other_version(listener));
        let said = |host: &str, words: &[&str]| {
            let mut command = user(w);
            command.args(["--url", &format!("http://{host}:{port}")]).args(words).stdin(Stdio::null());
            let done = command
                .env("ATOLL_API_KEY", "atl_0123456789012345678901234567890123456789")
                .output()
                .unwrap();
            assert!(done.status.success(), "{}", text(&done.stderr));
            text(&done.stderr)
        };
        // `key ls` sends two requests and more.
        let version = said("127.0.0.1", &["key", "ls"]);
        assert_eq!(version.matches("99.1.0").count(), 1, "{version}");
        assert!(version.contains("warning") && !version.contains("clear text"), "{version}");
        let both = said("192.0.2.7", &["ls"]);
        assert_eq!(both.matches("clear text").count(), 1, "{both}");
        assert!(both.contains("99.1.0") && both.contains("atoll login https://192.0.2.7:7443"), "{both}");
        for quiet in [&["ls", "--json"][..], &["--quiet", "ls"], &["ls", "--quiet"], &["ls", "-q"]] {
            assert_eq!(said("192.0.2.7", quiet), "", "{quiet:?}");
        }
        // Where there is no key, there is nothing to protect.
        let url = format!("http://192.0.2.7:{port}");
        let bare = user(w).args(["--url", &url, "ls"]).output().unwrap();
        assert!(!text(&bare.stderr).contains("clear text"), "{}", text(&bare.stderr));
        // The answer to a login is a key.
        let added = fed(w, &["context", "add", "plain", &url, "--key-stdin"], "atl_x");
        assert!(added.status.success(), "{}", text(&added.stderr));
        assert!(refused(w, &["login", &url, "--name", "other"]).contains("clear text"));
        server.abort();
    });
}
