//! Converts network options and policy files to the form of the API.
//!
//! The server decides which policies are valid, for example about a list in a mode without lists.

use std::{io::Read, path::Path};

use atoll_client::{client::Answer, tenants::Tenant};
use serde::Serialize;

use super::{CommandContext, policy::Policy};
use crate::{cli::network::Reach, client::Client, failure::Failure, human::harmless, out::Out};

const MODES: [&str; 3] = ["allow-all", "deny-all", "custom"];
/// LIMIT: the server's limit of a request.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A request with the user's policy.
#[derive(Serialize)]
pub(super) struct WithPolicy<'a, B> {
    #[serde(flatten)]
    pub(super) body: &'a B,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Policy>,
}

/// The requested policy; `None` if no option was given.
pub(super) fn asked(reach: &Reach) -> Result<Option<Policy>, Failure> {
    if reach.is_silent() {
        return Ok(None);
    }
    mistaken(reach)?;
    let base = match reach.network.as_deref() {
        Some(mode) if MODES.contains(&mode) => Policy::mode(mode),
        Some(file) => read(file)?,
        // A list of allowed destinations implies that all others are refused.
        None if reach.allow_domain.is_empty() && reach.allow_cidr.is_empty() => Policy::mode("allow-all"),
        None => Policy::mode("custom"),
    };
    Ok(Some(base.with(reach)))
}

/// Refuses a value that belongs to another option, and names that option.
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
                    said("only one value is allowed here"),
                    format!("repeat the option: {option} A {option} B"),
                ));
            }
            match option {
                "--allow-domain" if is_address => {
                    return Err(Failure::usage(
                        said("an address is not a domain"),
                        "use --allow-cidr for addresses",
                    ));
                }
                "--allow-cidr" if is_name => {
                    return Err(Failure::usage(
                        said("a domain is not an address"),
                        "use --allow-domain for names",
                    ));
                }
                "--deny-cidr" if is_name => {
                    return Err(Failure::usage(
                        said("a domain is not an address"),
                        "a domain is refused if it is not listed: use --network custom with --allow-domain",
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Notes that some policies are wider than they appear.
pub(super) fn note(out: Out, reach: &Reach) {
    let lists = [&reach.allow_domain, &reach.allow_cidr];
    let is_open = reach.network.is_none() && lists.iter().all(|list| list.is_empty());
    if is_open && !reach.inject.is_empty() && !out.json {
        out.say("atoll: the rest of the internet stays reachable; --network custom allows only the domains of --inject");
    }
}

/// A policy from a file, as `atoll egress --policy` prints it.
fn read(file: &str) -> Result<Policy, Failure> {
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
    let policy = serde_json::from_str(&content).map_err(|cause| {
        Failure::usage(
            format!("--network {file}: the file is not JSON: {cause}"),
            "`atoll egress SANDBOX --policy` prints one",
        )
    })?;
    Policy::read(&policy).map_err(|cause| match cause.to_string().as_str() {
        "missing field `mode`" => Failure::usage(
            format!("--network {file}: the policy has no mode"),
            "add \"mode\": \"custom\" (only listed destinations), \"allow-all\" or \"deny-all\"",
        ),
        why => Failure::usage(
            format!("--network {file}: the file does not contain a policy: {why}"),
            "a policy is an object such as {\"mode\": \"custom\", \"allow_domains\": [\"example.com\"]}",
        ),
    })
}

/// `atoll tenant network`: shows or sets the policy that restricts the sandboxes of a tenant.
pub(super) async fn of_tenant(
    context: &CommandContext,
    client: &Client,
    name: &str,
    reach: &Reach,
    none: bool,
) -> Result<(), Failure> {
    let tenant = match asked(reach)? {
        _ if none => client.clear_tenant_network(name).await?,
        Some(policy) => client.set_tenant_network(name, &policy.fields).await?,
        None => found(client, name).await?,
    };
    if context.out.json {
        return context.out.json(&tenant);
    }
    match &tenant.network {
        None => context.out.line("the sandboxes' own policies only"),
        Some(policy) => {
            Policy::of(policy).readable().iter().try_for_each(|line| context.out.line(&harmless(line)))
        }
    }
}

async fn found(client: &Client, name: &str) -> Result<Answer<Tenant>, Failure> {
    let mut all = client.tenants().await?.into_answers();
    all.find(|tenant| tenant.name == name || tenant.id == name).ok_or_else(|| {
        Failure::new("tenant_not_found", format!("there is no tenant {name}"))
            .hint("`atoll tenant ls` shows every tenant")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use serde_json::{Value, json};

    fn reach(words: &[&str]) -> Reach {
        let line = ["atoll", "create"].iter().chain(words);
        let Command::Create(args) = Cli::try_parse_from(line).expect("valid").command else {
            panic!("create")
        };
        args.shape.reach
    }

    fn sent(words: &[&str]) -> Option<Value> {
        asked(&reach(words)).expect("valid").map(|policy| serde_json::to_value(policy).expect("JSON"))
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
        // The server refuses values that are neither.
        assert!(asked(&reach(&["--allow-cidr", "203.0.113.7/99"])).is_ok());
        assert!(asked(&reach(&["--allow-domain", "http://a.com/"])).is_ok());
    }

    fn with(now: &Value, words: &[&str]) -> Value {
        let policy = Policy::read(now).expect("a policy").with(&reach(words));
        serde_json::to_value(policy).expect("JSON")
    }

    #[test]
    fn what_a_sandbox_has_stays_when_something_is_added() {
        let now = json!({"mode": "custom", "allow_domains": ["a.com"],
            "transforms": [{"domain": "a.com", "inject_headers": {"X": "…"}}]});
        assert_eq!(
            with(&now, &["--allow-domain", "b.com", "--inject", "a.com:Y=2"]),
            json!({"mode": "custom", "allow_domains": ["a.com", "b.com"],
                "transforms": [{"domain": "a.com", "inject_headers": {"X": "…", "Y": "2"}}]})
        );
        assert_eq!(with(&json!("deny-all"), &["--learn"]), json!({"mode": "deny-all", "learn": true}));
    }
}
