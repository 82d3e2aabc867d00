//! The command line uses typed answers (`atoll-client`), so that a renamed field does not compile.

use super::{read, tracked};

/// Files that handle raw JSON, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/atoll/src/commands/policy.rs", "keeps the fields of a policy that only a newer server knows"),
    (
        "crates/atoll/src/commands/provider.rs",
        "settings have the shape of their file, which each kind has its own fields in",
    ),
    ("crates/atoll/src/commands/tenant.rs", "keeps the limits of a quota that only a newer server knows"),
    ("crates/atoll/src/commands/update.rs", "hands the policy of a sandbox to policy.rs as it came"),
];

#[test]
fn the_command_line_indexes_no_json_by_string() {
    let mut wrong = Vec::new();
    let mut needed = Vec::new();
    for path in tracked() {
        let name = path.display().to_string();
        if !name.starts_with("crates/atoll/src/") || !name.ends_with(".rs") {
            continue;
        }
        let text = read(&path);
        // Tests compare with raw JSON.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|line| uses_untyped_json(line));
        let found: Vec<String> = lines.map(|line| format!("{name}: {}", line.trim())).collect();
        match EXCEPTIONS.iter().any(|(known, _)| *known == name) {
            true if !found.is_empty() => needed.push(name),
            true => {}
            false => wrong.extend(found),
        }
    }
    assert!(
        wrong.is_empty(),
        "use a type of atoll-client, or name the file in EXCEPTIONS with a reason:\n{}",
        wrong.join("\n")
    );
    let spare: Vec<_> =
        EXCEPTIONS.iter().filter(|(known, _)| !needed.iter().any(|name| name == known)).collect();
    assert!(spare.is_empty(), "these need no exception any more: {spare:?}");
}

#[test]
fn the_search_finds_what_it_is_for() {
    for line in [
        "use serde_json::Value;",
        "use serde_json::{Map, Value, json};",
        "let answer: serde_json::Value = answer.json()?;",
        "let phase = sandbox[\"phase\"].as_str();",
        "limits(x)[\"a_b\"] = y;",
        "now.raw_field(\"quota\")",
    ] {
        assert!(uses_untyped_json(line), "{line}");
    }
    for line in [
        "let words = [\"phase\"];",
        "Table::new(&[\"ID\", \"NAME\"])",
        "use serde_json::json;",
        "json!({\"a\": 1})",
        "f(&[\"x\"])",
    ] {
        assert!(!uses_untyped_json(line), "{line}");
    }
}

fn uses_untyped_json(line: &str) -> bool {
    let names_value = line.contains("serde_json::Value")
        || (line.contains("serde_json::{") && line.contains("Value"))
        || line.contains("Map<String, Value>");
    names_value || line.contains(".raw_field(") || indexes_by_string(line)
}

/// `value["field"]`: a string in brackets after a name, a call or another index.
fn indexes_by_string(line: &str) -> bool {
    line.match_indices("[\"").any(|(at, _)| {
        let is_indexed =
            line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '"'));
        let field = line[at + 2..].split_once('"');
        is_indexed && field.is_some_and(|(_, rest)| rest.starts_with(']'))
    })
}
