//! What a sandbox may reach: from options and files to what the API takes, and from there to what a person reads.
//!
//! Never decides what a policy may say; a list in a mode that takes none is the server's to refuse.

use std::{io::Read, path::Path};

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{CommandContext, items, pretty, text};
use crate::{
    cli::network::Reach,
    client::{Client, segment},
    failure::Failure,
    human::{bytes, harmless},
    out::Out,
};

const MODES: [&str; 3] = ["allow-all", "deny-all", "custom"];
/// LIMIT: as much as the server reads of a request.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The policy that was asked for; `None`: nothing was said.
pub(super) fn asked(reach: &Reach) -> Result<Option<Value>, Failure> {
    if reach.is_silent() {
        return Ok(None);
    }
    mistaken(reach)?;
    let base = match reach.network.as_deref() {
        Some(mode) if MODES.contains(&mode) => json!(mode),
        Some(file) => read(file)?,
        // Who lists what may be reached means that nothing else is.
        None if reach.allow_domain.is_empty() && reach.allow_cidr.is_empty() => json!("allow-all"),
        None => json!("custom"),
    };
    Ok(Some(added(&base, reach)))
}

/// Refuses what was meant for another option, and says for which.
pub(super) fn mistaken(reach: &Reach) -> Result<(), Failure> {
    for (option, entries) in [
        ("--allow-domain", &reach.allow_domain),
        ("--allow-cidr", &reach.allow_cidr),
        ("--deny-cidr", &reach.deny_cidr),
    ] {
        for entry in entries {
            let address = entry.split_once('/').map_or(entry.as_str(), |(address, _)| address);
            let is_address = address.parse::<std::net::IpAddr>().is_ok();
            let is_name = !is_address && entry.parse::<atoll_model::DomainPattern>().is_ok();
            let said = |what: &str| format!("{option} {entry}: {what}");
            if entry.contains(',') {
                return Err(Failure::usage(
                    said("one at a time"),
                    format!("repeat the option: {option} A {option} B"),
                ));
            }
            match option {
                "--allow-domain" if is_address => {
                    return Err(Failure::usage(
                        said("an address is no name"),
                        "use --allow-cidr for addresses",
                    ));
                }
                "--allow-cidr" if is_name => {
                    return Err(Failure::usage(said("a name is no address"), "use --allow-domain for names"));
                }
                "--deny-cidr" if is_name => {
                    return Err(Failure::usage(
                        said("a name is no address"),
                        "names are refused by not being listed: --network custom with --allow-domain",
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Says what is easily taken for narrow and is not.
pub(super) fn note(out: Out, reach: &Reach) {
    let lists = [&reach.allow_domain, &reach.allow_cidr];
    let is_open = reach.network.is_none() && lists.iter().all(|list| list.is_empty());
    if is_open && !reach.inject.is_empty() && !out.json {
        out.say("atoll: the rest of the internet stays reachable; --network custom allows the domains of --inject alone");
    }
}

/// A policy from a file, as `atoll egress --policy` prints one.
fn read(file: &str) -> Result<Value, Failure> {
    let path = Path::new(file);
    let mut content = String::new();
    let result = if file == "-" {
        std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_string(&mut content)
    } else {
        std::fs::File::open(path).and_then(|open| open.take(FILE_BYTES_MAX).read_to_string(&mut content))
    };
    if let Err(cause) = result {
        let words = "write allow-all, deny-all, custom, or the name of a JSON file";
        return Err(Failure::usage(
            format!("--network {file}: no such mode, and no such file: {cause}"),
            words,
        ));
    }
    let policy: Value = serde_json::from_str(&content).map_err(|cause| {
        Failure::usage(
            format!("--network {file}: the file is not JSON: {cause}"),
            "`atoll egress SANDBOX --policy` prints one",
        )
    })?;
    match policy {
        Value::Object(fields) if !fields.contains_key("mode") => Err(Failure::usage(
            format!("--network {file}: the policy has no mode"),
            "add \"mode\": \"custom\" (only what is listed), \"allow-all\" or \"deny-all\"",
        )),
        Value::Object(_) | Value::String(_) => Ok(policy),
        _ => Err(Failure::usage(
            format!("--network {file}: the file holds no policy"),
            "a policy is an object such as {\"mode\": \"custom\", \"allow_domains\": [\"example.com\"]}",
        )),
    }
}

/// A policy with what was said beside `--network`. A mode alone stays a word.
pub(super) fn added(base: &Value, reach: &Reach) -> Value {
    let mut policy = whole(base);
    for (field, entries) in [
        ("allow_domains", &reach.allow_domain),
        ("allow_cidrs", &reach.allow_cidr),
        ("deny_cidrs", &reach.deny_cidr),
    ] {
        entries.iter().for_each(|entry| append(&mut policy, field, json!(entry)));
    }
    for injection in &reach.inject {
        let transform = transform(&mut policy, &injection.domain);
        transform["inject_headers"][&injection.header] = json!(injection.value);
    }
    for removal in &reach.strip {
        let transform = transform(&mut policy, &removal.domain);
        if let Some(fields) = transform.as_object_mut() {
            append(fields, "strip_headers", json!(removal.header));
        }
    }
    if reach.limits() {
        let limits = policy.entry("limits").or_insert_with(|| json!({}));
        for (field, value) in [
            ("up_bytes_per_s", reach.up.map(|v| v.0)),
            ("down_bytes_per_s", reach.down.map(|v| v.0)),
            ("connections", reach.connections.map(u64::from)),
            ("bytes_per_destination", reach.bytes_per_destination.map(|v| v.0)),
        ] {
            if let Some(value) = value {
                limits[field] = json!(value);
            }
        }
    }
    if reach.learn {
        policy.insert("learn".to_owned(), json!(true));
    }
    match policy.get("mode").and_then(Value::as_str) {
        Some(mode @ ("allow-all" | "deny-all")) if policy.len() == 1 => json!(mode),
        _ => Value::Object(policy),
    }
}

/// A policy as an object, however it was written.
fn whole(policy: &Value) -> Map<String, Value> {
    match policy {
        Value::Object(fields) => fields.clone(),
        mode => Map::from_iter([("mode".to_owned(), mode.clone())]),
    }
}

/// Adds to a list what is not in it. What is no list is left for the server to refuse.
fn append(fields: &mut Map<String, Value>, list: &str, entry: Value) {
    if let Value::Array(entries) = fields.entry(list).or_insert_with(|| json!([]))
        && !entries.contains(&entry)
    {
        entries.push(entry);
    }
}

/// The transform of a domain, which is made where there is none.
fn transform<'a>(policy: &'a mut Map<String, Value>, domain: &str) -> &'a mut Value {
    let list = policy.entry("transforms").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let entries = list.as_array_mut().expect("made one just before");
    let same =
        |entry: &Value| entry["domain"].as_str().is_some_and(|known| known.eq_ignore_ascii_case(domain));
    let at = entries.iter().position(same).unwrap_or_else(|| {
        entries.push(json!({ "domain": domain }));
        entries.len() - 1
    });
    &mut entries[at]
}

/// LIMIT: entries of a list that are told; `--json` has all.
const TOLD: usize = 8;

/// A policy for a person: the mode, and a line for each thing that it says.
pub(super) fn readable(policy: &Value) -> Vec<String> {
    let fields = whole(policy);
    let mode = match fields.get("mode").and_then(Value::as_str).unwrap_or("") {
        "custom" => "custom: only what is listed",
        mode if fields.len() == 1 => mode,
        "allow-all" => "allow-all: the public internet",
        mode => mode,
    };
    let list = |field: &str| told(fields.get(field).unwrap_or(&Value::Null));
    let mut lines = vec![mode.to_owned()];
    let mut say = |name: &str, what: Option<String>| {
        lines.extend(what.map(|what| format!("{name:<9} {what}").trim_end().to_owned()));
    };
    say("names", list("allow_domains"));
    say("addresses", list("allow_cidrs"));
    say("never", list("deny_cidrs"));
    for transform in fields.get("transforms").and_then(Value::as_array).into_iter().flatten() {
        say("changes", Some(change(transform)));
    }
    say("limits", limits(fields.get("limits").unwrap_or(&Value::Null)));
    let learns = fields.get("learn") == Some(&json!(true));
    say("learning", learns.then(|| "everything is reached and recorded".to_owned()));
    lines
}

fn told(list: &Value) -> Option<String> {
    let entries: Vec<&str> = list.as_array()?.iter().filter_map(Value::as_str).collect();
    let first = entries.iter().take(TOLD).copied().collect::<Vec<_>>().join(", ");
    match entries.len() {
        0 => None,
        count if count > TOLD => Some(format!("{first} and {} more", count - TOLD)),
        _ => Some(first),
    }
}

fn change(transform: &Value) -> String {
    let names: Vec<&str> =
        transform["inject_headers"].as_object().into_iter().flatten().map(|(k, _)| k.as_str()).collect();
    let mut parts = vec![text(transform, "domain").to_owned()];
    parts.extend((!names.is_empty()).then(|| format!("sets {}", names.join(", "))));
    parts.extend(told(&transform["strip_headers"]).map(|names| format!("takes {names} away")));
    parts.extend((transform["plain_http"] == true).then(|| "over plain HTTP too".to_owned()));
    parts.join("; ")
}

fn limits(limits: &Value) -> Option<String> {
    let size = |field: &str| limits[field].as_u64().map(bytes);
    let all = [
        size("up_bytes_per_s").map(|rate| format!("{rate}/s up")),
        size("down_bytes_per_s").map(|rate| format!("{rate}/s down")),
        limits["connections"].as_u64().map(|count| format!("{count} connections")),
        size("bytes_per_destination").map(|size| format!("{size} per destination")),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// `atoll tenant network`: shows or sets what the sandboxes of a tenant may reach at most.
pub(super) async fn of_tenant(
    context: &CommandContext,
    client: &Client,
    name: &str,
    reach: &Reach,
    none: bool,
) -> Result<(), Failure> {
    let path = format!("/v1/tenants/{}/network", segment(name));
    let tenant = match asked(reach)? {
        _ if none => client.delete(&path).await?,
        Some(policy) => client.json(client.request(Method::PUT, &path).json(&whole(&policy))).await?,
        None => found(client, name).await?,
    };
    if context.out.json {
        return context.out.json(&tenant);
    }
    match &tenant["network"] {
        Value::Null => context.out.line("what its sandboxes ask for"),
        policy => readable(policy).iter().try_for_each(|line| context.out.line(&harmless(line))),
    }
}

async fn found(client: &Client, name: &str) -> Result<Value, Failure> {
    let all = items(client.get("/v1/tenants").await?);
    let same = |tenant: &Value| text(tenant, "name") == name || text(tenant, "id") == name;
    all.into_iter().find(same).ok_or_else(|| {
        Failure::new("tenant_not_found", format!("there is no tenant {name}"))
            .hint("`atoll tenant ls` shows every tenant")
    })
}

/// A policy as a file holds it: in the order in which one thinks of it, not in that of the alphabet.
pub(super) fn as_file(policy: &Value) -> String {
    const ORDER: [&str; 7] =
        ["mode", "allow_domains", "allow_cidrs", "deny_cidrs", "transforms", "limits", "learn"];
    let fields = whole(policy);
    let known = ORDER.iter().filter_map(|name| fields.get_key_value(*name));
    // A newer server may know more.
    let others = fields.iter().filter(|(name, _)| !ORDER.contains(&name.as_str()));
    let line = |(name, value): (&String, &Value)| {
        format!("  {}: {}", json!(name), pretty(value).replace('\n', "\n  "))
    };
    format!("{{\n{}\n}}", known.chain(others).map(line).collect::<Vec<_>>().join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn reach(words: &[&str]) -> Reach {
        let line = ["atoll", "create"].iter().chain(words);
        let Command::Create(args) = Cli::try_parse_from(line).expect("valid").command else {
            panic!("create")
        };
        args.shape.reach
    }

    fn sent(words: &[&str]) -> Option<Value> {
        asked(&reach(words)).expect("valid")
    }

    #[test]
    fn options_become_the_object_of_the_api() {
        assert_eq!(sent(&[]), None);
        assert_eq!(sent(&["--network", "deny-all"]), Some(json!("deny-all")));
        assert_eq!(sent(&["--network", "custom"]), Some(json!({"mode": "custom"})));
        assert_eq!(sent(&["--learn"]), Some(json!({"mode": "allow-all", "learn": true})));
        assert_eq!(
            sent(&["--allow-domain", "a.com", "--allow-domain", "a.com", "--allow-cidr", "203.0.113.0/24"]),
            Some(json!({"mode": "custom", "allow_domains": ["a.com"], "allow_cidrs": ["203.0.113.0/24"]}))
        );
        let line = "--inject a.com:X=1 --inject A.com:Y={secret:K} --strip a.com:Cookie --strip b.com:Z --up 1m \
            --down 8mbit --connections 5 --bytes-per-destination 1g --deny-cidr 192.0.2.0/24";
        assert_eq!(
            sent(&line.split_whitespace().collect::<Vec<_>>()),
            Some(json!({"mode": "allow-all", "deny_cidrs": ["192.0.2.0/24"],
                "transforms": [
                    {"domain": "a.com", "inject_headers": {"X": "1", "Y": "{secret:K}"}, "strip_headers": ["Cookie"]},
                    {"domain": "b.com", "strip_headers": ["Z"]}],
                "limits": {"up_bytes_per_s": 1_048_576, "down_bytes_per_s": 1_000_000, "connections": 5,
                    "bytes_per_destination": 1_073_741_824}}))
        );
    }

    #[test]
    fn a_file_is_taken_as_it_is_and_options_add_to_it() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("p.json");
        let path = file.to_str().expect("text");
        std::fs::write(&file, r#"{"mode": "custom", "allow_domains": ["a.com"], "odd": 1}"#)
            .expect("writable");
        assert_eq!(
            sent(&["--network", path, "--allow-domain", "b.com"]),
            Some(json!({"mode": "custom", "allow_domains": ["a.com", "b.com"], "odd": 1}))
        );
        std::fs::write(&file, "\"deny-all\"\n").expect("writable");
        assert_eq!(sent(&["--network", path]), Some(json!("deny-all")));
        for bad in ["[1]", "{", "", "7"] {
            std::fs::write(&file, bad).expect("writable");
            let failure = asked(&reach(&["--network", path])).expect_err("refused");
            assert!(failure.exit == 2 && failure.message.contains("--network"), "{bad}: {failure:?}");
        }
        std::fs::write(&file, r#"{"allow_domains": ["a.com"]}"#).expect("writable");
        let failure = asked(&reach(&["--network", path])).expect_err("refused");
        assert!(failure.hint.is_some_and(|hint| hint.contains("mode")));
        let failure = asked(&reach(&["--network", "allow-al"])).expect_err("refused");
        assert!(failure.hint.is_some_and(|hint| hint.contains("allow-all")));
    }

    #[test]
    fn what_was_meant_for_another_option_is_refused_with_that_option() {
        for (words, hint) in [
            (["--allow-domain", "203.0.113.7"], "--allow-cidr"),
            (["--allow-domain", "203.0.113.0/24"], "--allow-cidr"),
            (["--allow-domain", "2001:db8::1"], "--allow-cidr"),
            (["--allow-cidr", "example.com"], "--allow-domain"),
            (["--deny-cidr", "*.example.com"], "--network custom"),
            (["--allow-domain", "a.com,b.com"], "repeat"),
            (["--allow-cidr", "203.0.113.7,203.0.113.8"], "repeat"),
        ] {
            let failure = asked(&reach(&words)).expect_err("refused");
            assert!(failure.exit == 2 && failure.hint.expect("a hint").contains(hint), "{words:?}");
        }
        // What is neither is the server's to refuse.
        assert!(asked(&reach(&["--allow-cidr", "203.0.113.7/99"])).is_ok());
        assert!(asked(&reach(&["--allow-domain", "http://a.com/"])).is_ok());
    }

    #[test]
    fn what_a_sandbox_has_stays_when_something_is_added() {
        let now = json!({"mode": "custom", "allow_domains": ["a.com"],
            "transforms": [{"domain": "a.com", "inject_headers": {"X": "…"}}]});
        assert_eq!(
            added(&now, &reach(&["--allow-domain", "b.com", "--inject", "a.com:Y=2"])),
            json!({"mode": "custom", "allow_domains": ["a.com", "b.com"],
                "transforms": [{"domain": "a.com", "inject_headers": {"X": "…", "Y": "2"}}]})
        );
        assert_eq!(
            added(&json!("deny-all"), &reach(&["--learn"])),
            json!({"mode": "deny-all", "learn": true})
        );
    }

    #[test]
    fn a_policy_is_written_so_that_it_is_read_back() {
        let policy =
            json!({"learn": true, "mode": "custom", "allow_domains": ["a.com"], "newer": {"x": [1]}});
        let text = as_file(&policy);
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), policy);
        assert!(
            text.starts_with("{\n  \"mode\": \"custom\",\n  \"allow_domains\": [\n    \"a.com\"\n  ],"),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<Value>(&as_file(&json!("deny-all"))).expect("JSON"),
            json!({"mode": "deny-all"})
        );
    }

    #[test]
    fn a_policy_reads_as_reviewed() {
        assert_eq!(readable(&json!("deny-all")), ["deny-all"]);
        let many: Vec<String> = (0..10).map(|n| format!("h{n}.example.com")).collect();
        let policy = json!({"mode": "custom", "allow_domains": many, "allow_cidrs": ["203.0.113.0/24"],
            "deny_cidrs": ["203.0.113.7/32"],
            "transforms": [{"domain": "api.example.com", "inject_headers": {"Authorization": "…"},
                "strip_headers": ["Cookie"], "plain_http": true}],
            "limits": {"up_bytes_per_s": 1_048_576, "connections": 5}, "learn": true});
        insta::assert_snapshot!(readable(&policy).join("\n"), @r"
        custom: only what is listed
        names     h0.example.com, h1.example.com, h2.example.com, h3.example.com, h4.example.com, h5.example.com, h6.example.com, h7.example.com and 2 more
        addresses 203.0.113.0/24
        never     203.0.113.7/32
        changes   api.example.com; sets Authorization; takes Cookie away; over plain HTTP too
        limits    1 MiB/s up, 5 connections
        learning  everything is reached and recorded
        ");
    }
}
