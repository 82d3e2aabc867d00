//! `atoll inspect`: everything about a sandbox. For a person: what it is, why it is awake, what happens next, and who came
//! from whom; with `--json` the object of the API, with its lineage.

use std::collections::HashMap;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::Value;

use super::{CommandContext, list::counts_down, moment, network, sandbox_path, suggest, text};
use crate::{
    cli::sandbox::Targets,
    client::Client,
    failure::Failure,
    human::{age, bytes, exact, harmless, left},
};

pub(super) async fn inspect(context: &CommandContext, args: Targets) -> Result<(), Failure> {
    let client = context.client()?;
    for (place, ident) in args.sandboxes.iter().enumerate() {
        let sandbox = match found(&client, ident).await {
            Ok(sandbox) => sandbox,
            Err(failure) => return Err(suggest(&client, ident, failure).await),
        };
        if context.out.json {
            context.out.json(&sandbox)?;
            continue;
        }
        if place > 0 {
            context.out.line("")?;
        }
        let kin = kin(&client, &sandbox["lineage"]).await;
        report(&sandbox, &kin, Timestamp::now()).iter().try_for_each(|line| context.out.line(line))?;
    }
    Ok(())
}

async fn found(client: &Client, ident: &str) -> Result<Value, Failure> {
    let mut sandbox = client.get(&sandbox_path(ident, "")).await?;
    // An older server knows no lineage; what it has is shown all the same.
    if let Ok(lineage) = client.get(&sandbox_path(text(&sandbox, "id"), "/lineage")).await {
        sandbox["lineage"] = lineage;
    }
    Ok(sandbox)
}

/// What relatives are called and what they do, by id.
type Relatives = HashMap<String, String>;

/// LIMIT: a fork makes a hundred at most; whoever has more of them reads ids.
const KIN_MAX: usize = 100;
const ASK_AT_ONCE: usize = 16;

/// Asks for the names of relatives; one that is not there any more is told by its id alone.
async fn kin(client: &Client, lineage: &Value) -> Relatives {
    let ids = lineage["parent"].as_str().into_iter().chain(words(&lineage["children"]));
    let asked = ids.take(KIN_MAX).map(|id| async move {
        let found = client.get(&sandbox_path(id, "")).await.ok()?;
        let known = [text(&found, "name"), text(&found, "phase")].into_iter().filter(|word| !word.is_empty());
        Some((id.to_owned(), known.collect::<Vec<_>>().join(", ")))
    });
    stream::iter(asked).buffered(ASK_AT_ONCE).filter_map(async |known| known).collect().await
}

/// The page of one sandbox. What is not so is left out.
fn report(sandbox: &Value, kin: &Relatives, now: Timestamp) -> Vec<String> {
    let name = text(sandbox, "name");
    let title = if name.is_empty() {
        text(sandbox, "id").to_owned()
    } else {
        format!("{name}  {}", text(sandbox, "id"))
    };
    let mut lines = vec![harmless(&title)];
    let facts = [
        ("phase", Some(phase(sandbox, now))),
        ("awake", awake(&sandbox["awake"], now).filter(|_| text(sandbox, "phase") == "running")),
        ("next", next(&sandbox["awake"]["next"], now)),
        ("held", hold(&sandbox["hold"], now)),
        ("lifetime", lifetime(sandbox, now)),
        ("timers", timers(sandbox)),
        ("on exit", exit(sandbox)),
        ("thread", some(text(sandbox, "thread"))),
        ("wake", some(text(sandbox, "wake")).filter(|wake| wake != "any")),
        ("made", Some(made(sandbox, now))),
        ("version", some(text(sandbox, "template_version"))),
        ("limits", Some(limits(sandbox))),
    ];
    let kept = [
        ("ports", (sandbox["public"] == true).then(|| "open to everybody".to_owned())),
        ("storage", some(text(sandbox, "storage"))),
        ("mounts", some(&mounts(&sandbox["mounts"]))),
        ("runs as", Some(format!("{} in {}", text(sandbox, "user"), text(sandbox, "workdir")))),
        ("command", some(&words(&sandbox["command"]).join(" "))),
        ("labels", some(&labels(&sandbox["labels"]))),
        ("env", some(&env(sandbox))),
        ("archive", archive(&sandbox["archive"])),
    ];
    let mut reach = network::readable(&sandbox["network"]);
    let above = words(&sandbox["network_narrowed_by"]).join(", ");
    reach.extend(
        (!above.is_empty()).then(|| format!("narrowed  by {above}: what they do not allow is refused too")),
    );
    let reach = std::iter::once("network").chain(std::iter::repeat("")).zip(reach.into_iter().map(Some));
    let shown = facts.into_iter().chain(reach).chain(kept).filter_map(|(name, fact)| Some((name, fact?)));
    lines.extend(shown.map(|(name, fact)| format!("  {name:<9} {}", harmless(&fact))));
    lines.extend(tree(sandbox, kin));
    lines
}

/// `/data from volume ID, read only`.
fn mounts(list: &Value) -> String {
    let one = |mount: &Value| {
        let sub = mount["sub_path"].as_str().map_or_else(String::new, |sub| format!("/{sub}"));
        let read_only = if mount["read_only"] == true { ", read only" } else { "" };
        format!("{} from volume {}{sub}{read_only}", text(mount, "path"), text(mount, "volume"))
    };
    list.as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join("; ")
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn phase(sandbox: &Value, now: Timestamp) -> String {
    let reason = &sandbox["reason"];
    let why = reason["message"].as_str().or(reason["code"].as_str()).unwrap_or("").replace('_', " ");
    let since = age(moment(sandbox, "phase_at"), now);
    let phase = match (text(sandbox, "phase"), text(sandbox, "held")) {
        ("paused", "disk") => "paused, memory on disk,",
        ("paused", _) => "paused, memory live,",
        (phase, _) => phase,
    };
    format!("{phase} for {since} ({why})")
}

fn awake(awake: &Value, now: Timestamp) -> Option<String> {
    let because = words(&awake["because"]);
    let last = moment(awake, "active_at").map(|at| format!("last work {} ago", age(Some(at), now)));
    match (because.is_empty(), awake["idle"].as_bool()) {
        (false, _) => {
            let because = because.join(", ").replace("hold_inside", "hold from inside");
            Some(std::iter::once(because).chain(last).collect::<Vec<_>>().join("; "))
        }
        (true, Some(true)) => {
            Some(std::iter::once("idle".to_owned()).chain(last).collect::<Vec<_>>().join("; "))
        }
        (true, _) => None,
    }
}

fn next(next: &Value, now: Timestamp) -> Option<String> {
    let at = moment(next, "at")?;
    let what = text(next, "what").replace('_', " ");
    match left(Some(at), now).as_str() {
        "due" => Some(format!("{what}, due now")),
        span => Some(format!("{what} in {span}")),
    }
}

fn hold(hold: &Value, now: Timestamp) -> Option<String> {
    let until = moment(hold, "until").filter(|until| *until > now)?;
    let why = hold["reason"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    Some(format!("awake for another {}{why}", left(Some(until), now)))
}

fn lifetime(sandbox: &Value, now: Timestamp) -> Option<String> {
    let at = moment(sandbox, "timeout_at")?;
    let then = text(sandbox, "on_timeout");
    if counts_down(sandbox) {
        return Some(format!("{} left, then {then}", left(Some(at), now)));
    }
    let whole = sandbox["timeout_s"].as_u64().map_or_else(String::new, |s| format!("{}, ", exact(s)));
    let asleep = !text(sandbox, "phase").starts_with("delet");
    asleep.then(|| format!("{whole}then {then} (stands still while it sleeps)"))
}

fn timers(sandbox: &Value) -> Option<String> {
    let after = |field: &str, say: &dyn Fn(String) -> String| sandbox[field].as_u64().map(exact).map(say);
    let all = [
        after("auto_pause_s", &|t| format!("pause after {t} idle")),
        after("auto_stop_s", &|t| format!("stop after {t} idle")),
        after("checkpoint_after_s", &|t| format!("memory to disk after {t} paused")),
        after("auto_archive_s", &|t| format!("archive after {t} stopped")),
        after("auto_delete_s", &|t| match t.as_str() {
            "0s" => "delete with the stop".to_owned(),
            t => format!("delete after {t} stopped"),
        }),
    ];
    some(&all.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn exit(sandbox: &Value) -> Option<String> {
    some(text(sandbox, "on_exit")).filter(|word| word != "keep")
}

fn made(sandbox: &Value, now: Timestamp) -> String {
    // The lineage names a snapshot only while it is there; an older server tells no lineage.
    let known = if sandbox["lineage"].is_object() { &sandbox["lineage"] } else { sandbox };
    let from = match known["snapshot"].as_str() {
        Some(snapshot) => format!("snapshot {snapshot} of template {}", text(sandbox, "template")),
        None => format!("template {}", text(sandbox, "template")),
    };
    format!("{} ago from {from}", age(moment(sandbox, "created_at"), now))
}

fn limits(sandbox: &Value) -> String {
    let size = |field: &str| bytes(sandbox[field].as_u64().unwrap_or(0) << 20);
    let cpu = sandbox["cpu"].as_f64().unwrap_or(0.0);
    format!("{cpu} cpu, {} memory, {} disk, {} pids", size("memory_mib"), size("disk_mib"), sandbox["pids"])
}

fn labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let pair = |(key, value): (&String, &Value)| harmless(&format!("{key}={}", value.as_str().unwrap_or("")));
    pairs.map(pair).collect::<Vec<_>>().join(", ")
}

/// Names only; values are never shown.
fn env(sandbox: &Value) -> String {
    let private = words(&sandbox["private_env"]);
    let shown =
        |name: &str| if private.contains(&name) { format!("{name} (private)") } else { name.to_owned() };
    words(&sandbox["env_names"]).into_iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn archive(archive: &Value) -> Option<String> {
    let key = archive["key"].as_str()?;
    let size = |field: &str| bytes(archive[field].as_u64().unwrap_or(0));
    Some(format!("{key}, {} ({} unpacked)", size("stored_bytes"), size("bytes")))
}

/// Who came from whom, as a little tree; nothing where there is no relation.
fn tree(sandbox: &Value, kin: &Relatives) -> Vec<String> {
    let lineage = &sandbox["lineage"];
    let (parent, children) = (lineage["parent"].as_str(), words(&lineage["children"]));
    if parent.is_none() && children.is_empty() {
        return Vec::new();
    }
    let called = |id: &str| match kin.get(id) {
        Some(known) => format!("{id}  {known}"),
        None => id.to_owned(),
    };
    let this = format!("{}  this one", text(sandbox, "id"));
    let mut lines = vec!["  lineage".to_owned()];
    let mut indent = "    ".to_owned();
    match parent {
        Some(parent) => {
            lines.push(format!("{indent}{}", called(parent)));
            lines.push(format!("{indent}└─ {this}"));
            indent.push_str("   ");
        }
        None => lines.push(format!("{indent}{this}")),
    }
    for (place, child) in children.iter().enumerate() {
        let branch = if place + 1 == children.len() { "└─" } else { "├─" };
        lines.push(format!("{indent}{branch} {}", called(child)));
    }
    lines.iter().map(|line| harmless(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().expect("valid")
    }

    fn sandbox() -> Value {
        json!({"id": "abcdefghijklmnopqrst", "name": "box", "phase": "running", "phase_at": "2026-01-01T00:30:00Z",
            "reason": {"code": "completed"}, "held": null, "template": "host", "user": "user",
            "workdir": "/home/user", "cpu": 0.5, "memory_mib": 512, "disk_mib": 2048, "pids": 256,
            "network": "allow-all", "storage": "disk", "created_at": "2026-01-01T00:00:00Z", "wake": "any",
            "on_exit": "keep", "labels": {}, "env_names": [], "lineage": {"parent": null, "snapshot": null, "children": []}})
    }

    #[test]
    fn mounts_are_one_line() {
        let list = json!([{"volume": "v", "path": "/a", "sub_path": null, "read_only": false},
            {"volume": "w", "path": "/b", "sub_path": "c", "read_only": true}]);
        assert_eq!(mounts(&list), "/a from volume v; /b from volume w/c, read only");
        assert_eq!(mounts(&Value::Null), "");
    }

    #[test]
    fn a_plain_sandbox_is_short() {
        insta::assert_snapshot!(report(&sandbox(), &Relatives::new(), now()).join("\n"), @r"
        box  abcdefghijklmnopqrst
          phase     running for 30m (completed)
          made      1h ago from template host
          limits    0.5 cpu, 512 MiB memory, 2 GiB disk, 256 pids
          network   allow-all
          storage   disk
          runs as   user in /home/user
        ");
    }

    #[test]
    fn what_keeps_it_awake_and_what_comes_next_is_said() {
        let mut busy = sandbox();
        for (field, value) in [
            (
                "awake",
                json!({"because": ["command", "hold_inside"], "active_at": "2026-01-01T00:59:58Z",
                "idle": false, "next": {"at": "2026-01-01T01:10:00Z", "what": "pause"}}),
            ),
            ("hold", json!({"until": "2026-01-01T02:00:00Z", "reason": "a build"})),
            ("timeout_at", json!("2026-01-01T03:00:00Z")),
            ("on_timeout", json!("delete")),
            ("auto_pause_s", json!(600)),
            ("auto_archive_s", json!(90_000)),
            ("auto_delete_s", json!(0)),
            ("wake", json!("explicit")),
            ("env_names", json!(["A", "TOKEN"])),
            ("private_env", json!(["TOKEN"])),
            ("lineage", json!({"parent": "p", "snapshot": "s", "children": ["c1", "c2\u{1b}[2J"]})),
        ] {
            busy[field] = value;
        }
        let kin = Relatives::from([("c1".to_owned(), "copy, paused".to_owned())]);
        insta::assert_snapshot!(report(&busy, &kin, now()).join("\n"), @r"
        box  abcdefghijklmnopqrst
          phase     running for 30m (completed)
          awake     command, hold from inside; last work 2s ago
          next      pause in 10m
          held      awake for another 1h: a build
          lifetime  2h left, then delete
          timers    pause after 10m idle, archive after 1d1h stopped, delete with the stop
          wake      explicit
          made      1h ago from snapshot s of template host
          limits    0.5 cpu, 512 MiB memory, 2 GiB disk, 256 pids
          network   allow-all
          storage   disk
          runs as   user in /home/user
          env       A, TOKEN (private)
          lineage
            p
            └─ abcdefghijklmnopqrst  this one
               ├─ c1  copy, paused
               └─ c2\u{1b}[2J
        ");
    }

    #[test]
    fn a_sleeper_whose_lifetime_counts_awake_and_open_ports_are_told() {
        let mut asleep = sandbox();
        for (field, value) in [
            ("phase", json!("paused")),
            ("timeout_s", json!(300)),
            ("timeout_at", json!("2026-01-01T00:10:00Z")),
            ("timeout_counts", json!("awake")),
            ("on_timeout", json!("delete")),
            ("public", json!(true)),
        ] {
            asleep[field] = value;
        }
        let page = report(&asleep, &Relatives::new(), now()).join("\n");
        assert!(page.contains("  lifetime  5m, then delete (stands still while it sleeps)\n"), "{page}");
        assert!(page.contains("  ports     open to everybody\n"), "{page}");
        asleep["phase"] = json!("deleted");
        assert_eq!(lifetime(&asleep, now()), None);
    }

    #[test]
    fn a_policy_is_told_line_by_line() {
        let mut narrow = sandbox();
        narrow["network"] = json!({"mode": "custom", "allow_domains": ["pypi.org"], "learn": true});
        let page = report(&narrow, &Relatives::new(), now()).join("\n");
        assert!(
            page.contains(
                "  network   custom: only what is listed\n            names     pypi.org\n            learning"
            ),
            "{page}"
        );
        narrow["network_narrowed_by"] = json!(["tenant", "operator"]);
        let page = report(&narrow, &Relatives::new(), now()).join("\n");
        assert!(page.contains("            narrowed  by tenant, operator"), "{page}");
    }

    #[test]
    fn a_snapshot_that_is_not_there_any_more_is_not_named() {
        let mut fork = sandbox();
        fork["snapshot"] = json!("s");
        assert_eq!(made(&fork, now()).split(" from ").last(), Some("template host"));
        fork["lineage"]["snapshot"] = json!("s");
        assert_eq!(made(&fork, now()).split(" from ").last(), Some("snapshot s of template host"));
        fork["lineage"] = Value::Null;
        assert_eq!(made(&fork, now()).split(" from ").last(), Some("snapshot s of template host"));
    }
}
