//! `mcp install`: the files of each agent, in both scopes; and `mcp` with a server that refuses the key.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use super::Server;

/// Runs in `folder`, which is also the home folder unless a project is meant.
fn atoll(server: &Server, folder: &Path, words: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = server.command(words);
    command.env_remove("ATOLL_URL").env_remove("ATOLL_DATA").env("HOME", folder).current_dir(folder);
    command.envs(env.iter().copied()).output().expect("the binary runs")
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_agent_gets_its_file_and_keeps_what_was_there() {
    let server = Server::start(|_| (404, "text/plain", String::new()));
    for (agent, scope, file, field) in [
        ("claude", "", ".claude.json", "mcpServers"),
        ("claude", "--project", ".mcp.json", "mcpServers"),
        ("cursor", "", ".cursor/mcp.json", "mcpServers"),
        ("cursor", "--project", ".cursor/mcp.json", "mcpServers"),
        ("vscode", "", ".config/Code/User/mcp.json", "servers"),
        ("vscode", "--project", ".vscode/mcp.json", "servers"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(&path, json!({ "theirs": 1, field: { "other": {} } }).to_string()).expect("a file");
        let words: Vec<&str> =
            ["mcp", "install", agent, scope].into_iter().filter(|word| !word.is_empty()).collect();
        let read =
            || serde_json::from_str::<Value>(&fs::read_to_string(&path).expect("a file")).expect("JSON");
        done(&atoll(&server, folder.path(), &words, &[]));
        let entry = read()[field]["atoll"].clone();
        assert_eq!(entry["args"], json!(["mcp"]), "{entry}");
        assert_eq!(entry["command"] == "atoll", scope == "--project", "{entry}");
        assert_eq!((read()["theirs"].clone(), read()[field]["other"].clone()), (json!(1), json!({})));
        let before = fs::read_to_string(&path).expect("a file");
        assert!(done(&atoll(&server, folder.path(), &words, &[])).contains("already"));
        assert_eq!(fs::read_to_string(&path).expect("a file"), before);
        done(&atoll(&server, folder.path(), &[&words[..], &["--remove"]].concat(), &[]));
        assert_eq!(read(), json!({ "theirs": 1, field: { "other": {} } }));
    }
}

#[test]
fn codex_gets_a_table_and_no_key_is_ever_written() {
    let server = Server::start(|_| (404, "text/plain", String::new()));
    let folder = tempfile::tempdir().expect("a folder");
    let env = [("ATOLL_URL", "http://h:1"), ("ATOLL_API_KEY", "atl_canary")];
    done(&atoll(&server, folder.path(), &["mcp", "install", "codex"], &env));
    let text = fs::read_to_string(folder.path().join(".codex/config.toml")).expect("a file");
    assert!(text.contains("[mcp_servers.atoll]") && text.contains("ATOLL_URL = \"http://h:1\""), "{text}");
    assert!(text.contains("env_vars = [\"ATOLL_API_KEY\"]"), "{text}");
    for agent in ["claude", "codex", "cursor", "vscode"] {
        let printed = done(&atoll(&server, folder.path(), &["mcp", "install", agent, "--print"], &env));
        assert!(printed.contains("ATOLL_API_KEY") && !printed.contains("canary"), "{printed}");
    }
    assert!(!text.contains("canary"));
    assert!(!folder.path().join(".claude.json").exists(), "--print writes nothing");
}

#[test]
fn a_refusal_of_the_server_answers_the_request_that_was_sent() {
    let refusal = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#;
    let server = Server::start(move |_| (401, "application/json", refusal.to_owned()));
    let mut child = server
        .command(&["mcp"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\"}\n").expect("a line");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let line: Value = serde_json::from_slice(&output.stdout).expect("one message");
    assert_eq!((&line["id"], &line["error"]["code"]), (&json!("a"), &json!(-32_600)));
    assert_eq!(server.seen("POST /mcp").len(), 1);
}
