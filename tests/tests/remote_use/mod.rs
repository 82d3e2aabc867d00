//! Servers on other machines: contexts, logins by a one-time code, versions, keys in clear text, certificates.

#![allow(clippy::unwrap_used, reason = "tests")]

mod acme;
mod certificates;
mod connection;
mod contexts;
mod logins;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use atoll_tests::{Value, World};

/// The server of the world, as a server elsewhere: no command of these tests has its data folder.
const SERVER: &str = "http://127.0.0.1:7070";

/// `atoll` of a user who has only contexts: no address in the environment, and no data folder of a server.
fn user(w: &World) -> Command {
    let mut command = w.command();
    command.env_remove("ATOLL_URL").env_remove("XDG_CONFIG_HOME").env_remove("ATOLL_CONTEXT");
    command.env("ATOLL_DATA", w.folder().join("no-server")).env("USER", "anna").stdin(Stdio::null());
    command
}

fn atoll(w: &World, words: &[&str]) -> Output {
    user(w).args(words).output().unwrap()
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

fn ok_json(w: &World, words: &[&str]) -> Value {
    serde_json::from_str(&ok(w, words)).unwrap()
}

/// As [`atoll`], fails unless it failed; what it said.
fn refused(w: &World, words: &[&str]) -> String {
    let done = atoll(w, words);
    assert!(!done.status.success(), "atoll {words:?}: {}", text(&done.stdout));
    text(&done.stderr)
}

fn fed(w: &World, words: &[&str], input: &str) -> Output {
    let pipe = Stdio::piped;
    let mut child = user(w).args(words).stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn contexts_file(w: &World) -> PathBuf {
    w.folder().join(".config/atoll/contexts.json")
}
