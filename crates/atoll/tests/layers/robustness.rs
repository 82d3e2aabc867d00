//! Every parser of untrusted bytes has a corpus and a randomised test (`crates/robustness`).

use std::collections::BTreeSet;

use super::{read, tracked};

/// Crate folder and corpus of each parser that reads bytes of a sandbox, a client, a registry or the internet.
/// A new parser of such bytes gets a row, a corpus and a test.
const PARSERS: &[(&str, &str)] = &[
    ("crates/agent", "accounts"),
    ("crates/agent", "archive_pattern"),
    ("crates/agent", "hosts_file"),
    ("crates/agent", "proc_stat"),
    ("crates/agent", "query_string"),
    ("crates/agent", "range_header"),
    ("crates/agentapi", "agent_frames"),
    ("crates/agentapi", "agent_refusal"),
    ("crates/session", "query_string"),
    ("crates/session", "range_header"),
    ("crates/wire", "event_stream"),
    ("crates/backup", "backup_file"),
    ("crates/backup", "backup_sections"),
    ("crates/container", "checkpoint_manifest"),
    ("crates/storage", "layer_archive"),
    ("crates/storage", "mountinfo"),
    ("crates/container", "sandbox_mounts"),
    ("crates/storage", "sparse_map"),
    ("crates/fronts/daytona", "list_query"),
    ("crates/fronts/daytona", "object_key"),
    ("crates/fronts/daytona", "pty_offer"),
    ("crates/fronts/daytona", "s3_chunks"),
    ("crates/fronts/daytona", "signed_link"),
    ("crates/fronts/daytona", "socket_packet"),
    ("crates/fronts/e2b", "list_query"),
    ("crates/fronts/e2b", "signed_link"),
    ("crates/fronts/kit", "multipart"),
    ("crates/fronts/mcp", "mcp_message"),
    ("crates/fronts/native", "build_form"),
    ("crates/fronts/native", "network_policy"),
    ("crates/fronts/native", "terminal_message"),
    ("crates/glob", "glob"),
    ("crates/image", "auth_challenge"),
    ("crates/image", "build_mount"),
    ("crates/image", "compressed_layer"),
    ("crates/image", "dockerfile"),
    ("crates/image", "dockerfile_word"),
    ("crates/image", "dockerignore"),
    ("crates/image", "image_accounts"),
    ("crates/image", "oci_config"),
    ("crates/image", "oci_manifest"),
    ("crates/image", "platform"),
    ("crates/image", "retry_after"),
    ("crates/image", "tar"),
    ("crates/model", "cidr"),
    ("crates/model", "domain_pattern"),
    ("crates/model", "image_reference"),
    ("crates/model", "secret_text"),
    ("crates/network", "dns_answer"),
    ("crates/network", "dns_query"),
    ("crates/network", "first_bytes"),
    ("crates/network", "host_header"),
    ("crates/network", "http_head"),
    ("crates/network", "tls_client_hello"),
    ("crates/proxy", "connect_target"),
    ("crates/proxy", "http1_framing"),
    ("crates/proxy", "preview_credentials"),
    ("crates/proxy", "preview_host"),
    ("crates/proxy", "preview_route"),
    ("crates/proxy", "proxied_head"),
    ("crates/tar", "pax"),
    ("crates/tar", "tar_stream"),
    ("crates/toolbox", "context_output"),
    ("crates/toolbox", "git_address"),
    ("crates/toolbox", "git_commit"),
    ("crates/toolbox", "git_status"),
    ("crates/toolbox", "lsp_frames"),
    ("crates/remote/daytona", "process_report"),
    ("crates/remote/daytona", "terminal_greeting"),
    ("crates/toolbox", "marked_output"),
    ("crates/toolbox", "socket_table"),
];

#[test]
fn every_parser_of_untrusted_bytes_has_a_corpus_and_a_test() {
    let listed: BTreeSet<(String, String)> =
        PARSERS.iter().map(|(folder, parser)| ((*folder).to_owned(), (*parser).to_owned())).collect();
    let (corpora, tests) = (corpora(), tests());
    let mut wrong = Vec::new();
    for (what, found) in [("corpus", &corpora), ("test", &tests)] {
        wrong.extend(
            listed.difference(found).map(|(folder, parser)| format!("{folder}: {parser} has no {what}")),
        );
        wrong.extend(
            found
                .difference(&listed)
                .map(|(folder, parser)| format!("{folder}: the {what} of {parser} is not in PARSERS")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// From `CRATE/tests/corpus/PARSER/FILE`.
fn corpora() -> BTreeSet<(String, String)> {
    tracked()
        .iter()
        .filter_map(|path| {
            let (folder, rest) = path.to_str()?.split_once("/tests/corpus/")?;
            let (parser, _) = rest.split_once('/')?;
            Some((folder.to_owned(), parser.to_owned()))
        })
        .collect()
}

/// From `atoll_robustness::check("PARSER", …)` in the sources of a crate.
fn tests() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for path in tracked().iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let Some((folder, _)) = path.to_str().and_then(|path| path.split_once("/src/")) else { continue };
        if folder == "crates/robustness" {
            continue;
        }
        for call in read(path).split("atoll_robustness::check(").skip(1) {
            let parser = call.split('"').nth(1).unwrap_or_default();
            found.insert((folder.to_owned(), parser.to_owned()));
        }
    }
    found
}
