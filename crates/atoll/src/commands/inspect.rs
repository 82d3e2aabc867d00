//! `atoll inspect`: shows everything about a sandbox. For a person: its settings, why it is awake, what happens next,
//! and its lineage; with `--json` the object of the API, with its lineage.

use std::collections::HashMap;

use atoll_client::{
    client::Answer,
    moving::{MoveReport, Moving},
    sandboxes::{Archive, Awake, CommandFailure, CreatorKey, Hold, Lineage, Mount, NextTimer, Sandbox},
    words::{AwakeReason, Isolation, MemoryLocation, MoveStage, OnExit, Phase, Wake},
};
use futures::{StreamExt, stream};
use jiff::Timestamp;

use super::{
    CommandContext, list::counts_down, moment, moving::progress, policy::Policy, queue_wait::place_text,
    suggest,
};
use crate::{
    cli::sandbox::Targets,
    client::Client,
    failure::Failure,
    human::{age, bytes, exact, harmless, left},
};

pub(super) async fn inspect(context: &CommandContext, args: Targets) -> Result<(), Failure> {
    let client = context.client()?;
    for (place, ident) in args.sandboxes.iter().enumerate() {
        let sandbox = match client.sandbox(ident).await {
            Ok(sandbox) => sandbox,
            Err(failure) => return Err(suggest(&client, ident, failure).await),
        };
        // An older server has no lineage; the rest is shown anyway.
        let lineage = client.lineage(&sandbox.id).await.ok();
        if context.out.json {
            context.out.json(&with_lineage(sandbox, lineage))?;
            continue;
        }
        if place > 0 {
            context.out.line("")?;
        }
        let lineage = lineage.as_deref();
        let kin = match lineage {
            Some(lineage) => kin(&client, lineage).await,
            None => Relatives::new(),
        };
        report(&sandbox, lineage, &kin, Timestamp::now())
            .iter()
            .try_for_each(|line| context.out.line(line))?;
    }
    Ok(())
}

fn with_lineage(sandbox: Answer<Sandbox>, lineage: Option<Answer<Lineage>>) -> Answer<Sandbox> {
    match lineage {
        Some(lineage) => sandbox.with_field("lineage", lineage.raw().clone()),
        None => sandbox,
    }
}

/// Names and phases of related sandboxes, by id.
type Relatives = HashMap<String, String>;

/// LIMIT: a fork makes at most a hundred; beyond that only ids are shown.
const KIN_MAX: usize = 100;
const ASK_AT_ONCE: usize = 16;

/// Requests the names of related sandboxes; a missing one is shown only by its id.
async fn kin(client: &Client, lineage: &Lineage) -> Relatives {
    let ids = lineage.parent.iter().chain(&lineage.children);
    let asked = ids.take(KIN_MAX).map(|id| async move {
        let found = client.sandbox(id).await.ok()?;
        let known = found.name.as_deref().into_iter().chain([found.phase.as_str()]);
        Some((id.clone(), known.collect::<Vec<_>>().join(", ")))
    });
    stream::iter(asked).buffered(ASK_AT_ONCE).filter_map(async |known| known).collect().await
}

/// The page of one sandbox. Fields without a value are left out.
fn report(sandbox: &Sandbox, lineage: Option<&Lineage>, kin: &Relatives, now: Timestamp) -> Vec<String> {
    let title = match &sandbox.name {
        Some(name) => format!("{name}  {}", sandbox.id),
        None => sandbox.id.clone(),
    };
    let mut lines = vec![harmless(&title)];
    let awake_now = sandbox.awake.as_ref().filter(|_| sandbox.phase == Phase::Running);
    let facts = [
        ("phase", Some(phase(sandbox, now))),
        ("queue", sandbox.queue.map(place_text)),
        ("moving", sandbox.moving.as_ref().map(|known| moving(known, now))),
        ("not moved", sandbox.last_move.as_ref().and_then(not_moved)),
        ("awake", awake_now.and_then(|known| awake(known, now))),
        ("next", sandbox.awake.as_ref().and_then(|known| next(known.next.as_ref()?, now))),
        ("held", sandbox.hold.as_ref().and_then(|known| hold(known, now))),
        ("lifetime", lifetime(sandbox, now)),
        ("timers", timers(sandbox)),
        ("on exit", (sandbox.on_exit != OnExit::Keep).then(|| sandbox.on_exit.as_str().to_owned())),
        ("thread", sandbox.thread.clone()),
        ("wake", (sandbox.wake != Wake::Any).then(|| sandbox.wake.as_str().to_owned())),
        ("made", Some(made(sandbox, lineage, now))),
        ("by key", sandbox.created_by_key.as_ref().map(key)),
        ("version", some(&sandbox.template_version)),
        ("provider", some(&provider(sandbox))),
        ("limits", Some(limits(sandbox))),
    ];
    let command = sandbox.command.as_ref().map(|command| command.join(" "));
    let kept = [
        ("ports", sandbox.public.then(|| "open to everyone".to_owned())),
        ("storage", Some(sandbox.storage.as_str().to_owned())),
        ("mounts", some(&mounts(&sandbox.mounts))),
        ("runs as", Some(format!("{} in {}", sandbox.user, workdir(sandbox)))),
        ("command", command.filter(|command| !command.is_empty())),
        ("", sandbox.command_failure.as_ref().map(|failure| command_failure(failure, now))),
        ("labels", some(&labels(sandbox))),
        ("env", some(&env(sandbox))),
        ("archive", sandbox.archive.as_ref().map(archive)),
    ];
    let mut reach = Policy::of(&sandbox.network).readable();
    let above = sandbox.network_narrowed_by.join(", ");
    reach.extend(
        (!above.is_empty())
            .then(|| format!("narrowed  by {above}: destinations that they do not allow are refused too")),
    );
    let reach = std::iter::once("network").chain(std::iter::repeat("")).zip(reach.into_iter().map(Some));
    let shown = facts.into_iter().chain(reach).chain(kept).filter_map(|(name, fact)| Some((name, fact?)));
    lines.extend(shown.map(|(name, fact)| format!("  {name:<9} {}", harmless(&fact))));
    lines.extend(lineage.map(|lineage| tree(sandbox, lineage, kin)).unwrap_or_default());
    lines
}

/// The step of a move, or that only the rest of it is being removed.
fn moving(moving: &Moving, now: Timestamp) -> String {
    let since = age(moment(moving.started_at.as_str()), now);
    match moving.stage {
        MoveStage::Copying | MoveStage::Unknown => format!("to {}, begun {since} ago", progress(moving)),
        MoveStage::Removing => {
            format!("from {} to {}: the copy that is not needed is being removed", moving.from, moving.to)
        }
    }
}

/// Why the last move left the sandbox where it was.
fn not_moved(last: &MoveReport) -> Option<String> {
    last.failure.as_ref().map(|why| format!("to {}: {why}", last.to))
}

/// How and when the start command failed.
fn command_failure(failure: &CommandFailure, now: Timestamp) -> String {
    let since = age(moment(failure.at.as_str()), now);
    format!("failed {since} ago (status {}): {}", failure.exit_code, failure.message)
}

/// `NAME (ID)`, or the id of a key without a name.
fn key(key: &CreatorKey) -> String {
    match &key.name {
        Some(name) => format!("{name} ({})", key.id),
        None => key.id.clone(),
    }
}

/// `/data from volume ID, read-only`.
fn mounts(list: &[Mount]) -> String {
    let one = |mount: &Mount| {
        let sub = mount.sub_path.as_ref().map_or_else(String::new, |sub| format!("/{sub}"));
        let read_only = if mount.read_only { ", read-only" } else { "" };
        format!("{} from volume {}{sub}{read_only}", mount.path, mount.volume)
    };
    list.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn phase(sandbox: &Sandbox, now: Timestamp) -> String {
    let why = sandbox.reason.text().replace('_', " ");
    let since = age(moment(sandbox.phase_at.as_str()), now);
    let phase = match (sandbox.phase, sandbox.held) {
        (Phase::Paused, Some(MemoryLocation::Disk)) => "paused, memory on disk,",
        (Phase::Paused, _) => "paused, memory live,",
        (phase, _) => phase.as_str(),
    };
    format!("{phase} for {since} ({why})")
}

fn awake(awake: &Awake, now: Timestamp) -> Option<String> {
    let last =
        moment(awake.active_at.as_deref()).map(|at| format!("last activity {} ago", age(Some(at), now)));
    let word = |reason: &AwakeReason| match reason {
        AwakeReason::HoldInside => "hold from inside",
        other => other.as_str(),
    };
    let because = awake.because.iter().map(word).collect::<Vec<_>>().join(", ");
    let state = match (because.is_empty(), awake.idle) {
        (false, _) => because,
        (true, true) => "idle".to_owned(),
        (true, false) => return None,
    };
    Some(std::iter::once(state).chain(last).collect::<Vec<_>>().join("; "))
}

fn next(next: &NextTimer, now: Timestamp) -> Option<String> {
    let at = moment(next.at.as_str())?;
    let what = next.what.replace('_', " ");
    match left(Some(at), now).as_str() {
        "due" => Some(format!("{what}, due now")),
        span => Some(format!("{what} in {span}")),
    }
}

fn hold(hold: &Hold, now: Timestamp) -> Option<String> {
    let until = moment(hold.until.as_str()).filter(|until| *until > now)?;
    let why = hold.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    Some(format!("awake for another {}{why}", left(Some(until), now)))
}

fn lifetime(sandbox: &Sandbox, now: Timestamp) -> Option<String> {
    let at = moment(sandbox.timeout_at.as_deref())?;
    let then = sandbox.on_timeout.as_str();
    if counts_down(sandbox) {
        return Some(format!("{} left, then {then}", left(Some(at), now)));
    }
    let whole = sandbox.timeout_s.map_or_else(String::new, |s| format!("{}, ", exact(s)));
    let asleep = !matches!(sandbox.phase, Phase::Deleting | Phase::Deleted);
    asleep.then(|| format!("{whole}then {then} (counts only while it runs)"))
}

fn timers(sandbox: &Sandbox) -> Option<String> {
    let after = |seconds: Option<u64>, say: &dyn Fn(String) -> String| seconds.map(exact).map(say);
    let all = [
        after(sandbox.auto_pause_s, &|t| format!("pause after {t} idle")),
        after(sandbox.auto_stop_s, &|t| format!("stop after {t} idle")),
        after(sandbox.checkpoint_after_s, &|t| format!("memory to disk after {t} paused")),
        after(sandbox.auto_archive_s, &|t| format!("archive after {t} stopped")),
        after(sandbox.auto_delete_s, &|t| match t.as_str() {
            "0s" => "delete with the stop".to_owned(),
            t => format!("delete after {t} stopped"),
        }),
    ];
    some(&all.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn made(sandbox: &Sandbox, lineage: Option<&Lineage>, now: Timestamp) -> String {
    // The lineage names a snapshot only while it exists; an older server has no lineage.
    let snapshot = lineage.map_or(&sandbox.snapshot, |lineage| &lineage.snapshot);
    let from = match snapshot {
        Some(snapshot) => format!("snapshot {snapshot} of template {}", sandbox.template),
        None => format!("template {}", sandbox.template),
    };
    format!("{} ago from {from}", age(moment(sandbox.created_at.as_str()), now))
}

fn limits(sandbox: &Sandbox) -> String {
    let size = |mib: u32| bytes(u64::from(mib) << 20);
    let (memory, disk) = (size(sandbox.memory_mib), size(sandbox.disk_mib));
    format!("{} cpu, {memory} memory, {disk} disk, {} pids", sandbox.cpu, sandbox.pids)
}

fn labels(sandbox: &Sandbox) -> String {
    let pair = |(key, value): (&String, &String)| harmless(&format!("{key}={value}"));
    sandbox.labels.iter().map(pair).collect::<Vec<_>>().join(", ")
}

/// Names only; values are never shown.
fn env(sandbox: &Sandbox) -> String {
    let shown = |name: &String| match sandbox.private_env.contains(name) {
        true => format!("{name} (private)"),
        false => name.clone(),
    };
    sandbox.env_names.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn archive(archive: &Archive) -> String {
    format!("{}, {} ({} unpacked)", archive.key, bytes(archive.stored_bytes), bytes(archive.bytes))
}

/// The lineage as a small tree; empty without relations.
fn tree(sandbox: &Sandbox, lineage: &Lineage, kin: &Relatives) -> Vec<String> {
    let (parent, children) = (&lineage.parent, &lineage.children);
    if parent.is_none() && children.is_empty() {
        return Vec::new();
    }
    let called = |id: &str| match kin.get(id) {
        Some(known) => format!("{id}  {known}"),
        None => id.to_owned(),
    };
    let this = format!("{}  this one", sandbox.id);
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

fn workdir(sandbox: &Sandbox) -> &str {
    if sandbox.workdir.is_empty() { "its home folder" } else { &sandbox.workdir }
}

/// Names the isolation where it is not that of a container.
fn provider(sandbox: &Sandbox) -> String {
    match sandbox.isolation {
        Isolation::Container => sandbox.provider.clone(),
        _ => format!("{} (isolation: {})", sandbox.provider, sandbox.isolation.as_str()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().expect("valid")
    }

    /// A plain sandbox, with other values where they are given.
    pub(in crate::commands) fn sandbox(other: Value) -> Sandbox {
        let mut plain = json!({"id": "abcdefghijklmnopqrst", "name": "box", "tenant": "t", "phase": "running",
            "phase_at": "2026-01-01T00:30:00Z", "reason": {"code": "completed"}, "held": null, "intent": "run",
            "provider": "container", "template": "host", "template_version": "", "user": "user",
            "workdir": "/home/user", "command": null, "cpu": 0.5, "memory_mib": 512, "disk_mib": 2048, "pids": 256,
            "network": "allow-all", "storage": "disk", "mounts": [], "generation": 1, "on_timeout": "delete",
            "timeout_counts": "always", "created_at": "2026-01-01T00:00:00Z", "wake": "any", "public": false,
            "on_exit": "keep", "labels": {}, "env_names": [], "private_env": []});
        let fields = other.as_object().expect("object").clone();
        plain.as_object_mut().expect("object").extend(fields);
        serde_json::from_value(plain).expect("a sandbox")
    }

    fn alone() -> Lineage {
        Lineage { parent: None, snapshot: None, children: Vec::new() }
    }

    #[test]
    fn mounts_are_one_line() {
        let list = json!([{"volume": "v", "path": "/a", "sub_path": null, "read_only": false},
            {"volume": "w", "path": "/b", "sub_path": "c", "read_only": true}]);
        let list: Vec<Mount> = serde_json::from_value(list).expect("mounts");
        assert_eq!(mounts(&list), "/a from volume v; /b from volume w/c, read-only");
        assert_eq!(mounts(&[]), "");
    }

    #[test]
    fn a_plain_sandbox_is_short() {
        insta::assert_snapshot!(report(&sandbox(json!({})), Some(&alone()), &Relatives::new(), now()).join("\n"), @r"
        box  abcdefghijklmnopqrst
          phase     running for 30m (completed)
          made      1h ago from template host
          provider  container
          limits    0.5 cpu, 512 MiB memory, 2 GiB disk, 256 pids
          network   allow-all
          storage   disk
          runs as   user in /home/user
        ");
    }

    #[test]
    fn what_keeps_it_awake_and_what_comes_next_is_said() {
        let busy = sandbox(json!({
            "awake": {"because": ["command", "hold_inside"], "active_at": "2026-01-01T00:59:58Z",
                "idle": false, "next": {"at": "2026-01-01T01:10:00Z", "what": "pause"}},
            "hold": {"until": "2026-01-01T02:00:00Z", "reason": "a build"},
            "timeout_at": "2026-01-01T03:00:00Z", "on_timeout": "delete", "auto_pause_s": 600,
            "auto_archive_s": 90_000, "auto_delete_s": 0, "wake": "explicit", "env_names": ["A", "TOKEN"],
            "private_env": ["TOKEN"],
        }));
        let lineage = Lineage {
            parent: Some("p".to_owned()),
            snapshot: Some("s".to_owned()),
            children: vec!["c1".to_owned(), "c2\u{1b}[2J".to_owned()],
        };
        let kin = Relatives::from([("c1".to_owned(), "copy, paused".to_owned())]);
        insta::assert_snapshot!(report(&busy, Some(&lineage), &kin, now()).join("\n"), @r"
        box  abcdefghijklmnopqrst
          phase     running for 30m (completed)
          awake     command, hold from inside; last activity 2s ago
          next      pause in 10m
          held      awake for another 1h: a build
          lifetime  2h left, then delete
          timers    pause after 10m idle, archive after 1d1h stopped, delete with the stop
          wake      explicit
          made      1h ago from snapshot s of template host
          provider  container
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
        let mut asleep = sandbox(json!({"phase": "paused", "timeout_s": 300, "public": true,
            "timeout_at": "2026-01-01T00:10:00Z", "timeout_counts": "awake", "on_timeout": "delete"}));
        let page = report(&asleep, None, &Relatives::new(), now()).join("\n");
        assert!(page.contains("  lifetime  5m, then delete (counts only while it runs)\n"), "{page}");
        assert!(page.contains("  ports     open to everyone\n"), "{page}");
        asleep.phase = Phase::Deleted;
        assert_eq!(lifetime(&asleep, now()), None);
    }

    #[test]
    fn a_move_is_told_with_its_progress_and_its_failure() {
        let mut moves = sandbox(json!({
            "moving": {"from": "container", "to": "docker", "template": "busybox", "stage": "copying",
                "step": "copying", "entries": 12, "bytes": 3_145_728, "started_at": "2026-01-01T00:59:00Z"},
            "last_move": {"from": "container", "to": "local", "ended_at": "2026-01-01T00:50:00Z",
                "failure": "the disk is full", "carried": "folders", "entries": 0, "bytes": 0, "left_behind": []},
        }));
        let page = |sandbox: &Sandbox| report(sandbox, None, &Relatives::new(), now()).join("\n");
        let text = page(&moves);
        assert!(
            text.contains("  moving    to docker: copying, 3 MiB in 12 entries, begun 1m ago\n"),
            "{text}"
        );
        assert!(text.contains("  not moved to local: the disk is full\n"), "{text}");
        moves.moving.as_mut().expect("moving").stage = MoveStage::Removing;
        let text = page(&moves);
        assert!(text.contains("  moving    from container to docker: the copy that is not needed"), "{text}");
    }

    #[test]
    fn a_policy_is_told_line_by_line() {
        let mut narrow =
            sandbox(json!({"network": {"mode": "custom", "allow_domains": ["pypi.org"], "learn": true}}));
        let page = report(&narrow, None, &Relatives::new(), now()).join("\n");
        assert!(
            page.contains(
                "  network   custom: only listed destinations\n            names     pypi.org\n            learning"
            ),
            "{page}"
        );
        narrow.network_narrowed_by = vec!["tenant".to_owned(), "operator".to_owned()];
        let page = report(&narrow, None, &Relatives::new(), now()).join("\n");
        assert!(page.contains("            narrowed  by tenant, operator"), "{page}");
    }

    #[test]
    fn a_snapshot_that_is_not_there_any_more_is_not_named() {
        let fork = sandbox(json!({"snapshot": "s"}));
        let said =
            |lineage: Option<&Lineage>| made(&fork, lineage, now()).split(" from ").last().map(str::to_owned);
        assert_eq!(said(Some(&alone())).as_deref(), Some("template host"));
        let known = Lineage { snapshot: Some("s".to_owned()), ..alone() };
        assert_eq!(said(Some(&known)).as_deref(), Some("snapshot s of template host"));
        assert_eq!(said(None).as_deref(), Some("snapshot s of template host"));
    }
}
