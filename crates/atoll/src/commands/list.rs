//! `atoll ls` and `atoll ps`: tables for people, ids with `-q`, arrays with `--json`.

use atoll_client::{
    sandboxes::{Hold, ListQuery, Sandbox},
    words::{Isolation, MemoryLocation, Phase, Stage, TimeoutCounts},
};
use jiff::Timestamp;

use super::{CommandContext, moment, suggest, tenant::TenantNames};
use crate::{
    cli::{
        sandbox::{Ls, Target},
        values::Pair,
    },
    client::Client,
    failure::Failure,
    human::{Table, age, bytes, left},
};

pub(super) async fn ls(context: &CommandContext, args: Ls) -> Result<(), Failure> {
    let client = context.client()?;
    let query = ListQuery {
        // Without a phase the server lists all that are not deleted.
        phase: (!args.phase.is_empty()).then(|| args.phase.join(",")),
        label: labels(&args.label),
        template: args.template,
        tenant: args.tenant,
        all: args.all.then(|| "1".to_owned()),
        ..ListQuery::default()
    };
    let sandboxes = client.sandboxes(&query, args.limit).await?;
    let out = context.out;
    if args.quiet {
        return sandboxes.items.iter().try_for_each(|sandbox| out.line(&sandbox.id));
    }
    if out.json {
        return out.json(&sandboxes);
    }
    let shows_provider = shows_provider(&client, &sandboxes.items).await;
    // The tenant is of interest only where there are several.
    let tenants = match sandboxes.items.windows(2).any(|pair| pair[0].tenant != pair[1].tenant) {
        true => Some(TenantNames::read(&client).await),
        false => None,
    };
    for line in table(&sandboxes.items, shows_provider, tenants.as_ref(), Timestamp::now()).lines() {
        out.line(&line)?;
    }
    if sandboxes.items.is_empty() {
        out.tell("there are no sandboxes; `atoll create` creates one");
    }
    Ok(())
}

/// LIMIT: how long a list waits to learn whether the server has several providers. One that does not answer takes longer.
const PROVIDERS_WITHIN: std::time::Duration = std::time::Duration::from_millis(300);

/// Whether the provider is of interest: the server has several, or a sandbox is not of the default one.
async fn shows_provider(client: &Client, sandboxes: &[Sandbox]) -> bool {
    match tokio::time::timeout(PROVIDERS_WITHIN, client.providers()).await {
        Ok(Ok(providers)) => {
            let is_default = |name: &str| providers.items.iter().any(|one| one.default && one.name == name);
            providers.items.len() > 1 || sandboxes.iter().any(|sandbox| !is_default(&sandbox.provider))
        }
        // An older or a busy server: what the list itself tells.
        _ => sandboxes.windows(2).any(|pair| pair[0].provider != pair[1].provider),
    }
}

/// The label part of a query.
pub(super) fn labels(labels: &[Pair]) -> Option<Vec<String>> {
    let all = labels.iter().map(|Pair(key, value)| format!("{key}={value}"));
    (!labels.is_empty()).then(|| all.collect())
}

fn table(
    sandboxes: &[Sandbox],
    shows_provider: bool,
    tenants: Option<&TenantNames>,
    now: Timestamp,
) -> Table {
    // The node is of interest only where there are several.
    let several_nodes = sandboxes.windows(2).any(|pair| pair[0].node != pair[1].node);
    let mut head = vec!["ID", "NAME", "TEMPLATE", "PHASE", "CPU", "MEMORY", "AGE", "LEFT"];
    head.extend(tenants.map(|_| "TENANT"));
    head.extend(shows_provider.then_some("PROVIDER"));
    head.extend(several_nodes.then_some("NODE"));
    // The isolation is of interest where it is not that of a container.
    let is_unusual = |sandbox: &Sandbox| sandbox.isolation != Isolation::Container;
    let shows_isolation = sandboxes.iter().any(is_unusual);
    head.extend(shows_isolation.then_some("ISOLATION"));
    let shows_command = sandboxes.iter().any(|sandbox| sandbox.command_failure.is_some());
    head.extend(shows_command.then_some("COMMAND"));
    let mut table = Table::new(&head);
    for sandbox in sandboxes {
        let ends = moment(sandbox.timeout_at.as_deref()).filter(|_| counts_down(sandbox));
        let mut row = vec![
            sandbox.id.clone(),
            or_dash(sandbox.name.as_deref().unwrap_or("")),
            sandbox.template.clone(),
            phase(sandbox),
            sandbox.cpu.to_string(),
            bytes(u64::from(sandbox.memory_mib) << 20),
            age(moment(sandbox.created_at.as_str()), now),
            left(ends, now),
        ];
        row.extend(tenants.map(|tenants| tenants.name(&sandbox.tenant).to_owned()));
        row.extend(shows_provider.then(|| sandbox.provider.clone()));
        row.extend(several_nodes.then(|| sandbox.node.clone()));
        row.extend(shows_isolation.then(|| sandbox.isolation.as_str().to_owned()));
        row.extend(shows_command.then(|| match &sandbox.command_failure {
            Some(failure) => format!("failed ({})", failure.exit_code),
            None => "-".to_owned(),
        }));
        table.row(row);
    }
    table
}

/// Whether its lifetime counts down: not if the sandbox is gone, nor while it sleeps if the lifetime counts only awake.
pub(super) fn counts_down(sandbox: &Sandbox) -> bool {
    counts_down_in(sandbox.phase, sandbox.timeout_counts)
}

fn counts_down_in(phase: Phase, counts: TimeoutCounts) -> bool {
    match phase {
        Phase::Deleting | Phase::Deleted => false,
        Phase::Paused | Phase::Stopped | Phase::Archived => counts != TimeoutCounts::Awake,
        _ => true,
    }
}

/// The phase, with the location of the memory, a hold, or the stage of a creation.
pub(super) fn phase(sandbox: &Sandbox) -> String {
    match sandbox.phase {
        Phase::Paused if sandbox.held == Some(MemoryLocation::Disk) => "paused (disk)".to_owned(),
        Phase::Running if is_held(sandbox.hold.as_ref()) => "running (held)".to_owned(),
        Phase::Creating => match sandbox.stage {
            Some(Stage::Queued) if let Some(place) = sandbox.queue => {
                format!("creating (queued, {} ahead)", place.ahead)
            }
            Some(stage) if stage != Stage::Booting => format!("creating ({})", stage.as_str()),
            _ => "creating".to_owned(),
        },
        other => other.as_str().to_owned(),
    }
}

/// Whether a hold is active; an expired one may still be stored.
fn is_held(hold: Option<&Hold>) -> bool {
    hold.and_then(|hold| moment(hold.until.as_str())).is_some_and(|until| until > Timestamp::now())
}

pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

pub(super) async fn ps(context: &CommandContext, args: Target) -> Result<(), Failure> {
    let client = context.client()?;
    let processes = match client.processes(&args.sandbox).await {
        Ok(processes) => processes,
        Err(failure) => return Err(suggest(&client, &args.sandbox, failure).await),
    };
    if context.out.json {
        return context.out.json(&processes);
    }
    let now = Timestamp::now();
    let mut table = Table::new(&["PID", "USER", "AGE", "TERMINAL", "COMMAND"]);
    for process in &processes.items {
        table.row(vec![
            process.pid.to_string(),
            or_dash(&process.user),
            age(moment(process.started_at.as_deref()), now),
            if process.pty { "yes" } else { "-" }.to_owned(),
            process.tag.as_deref().and_then(kernel).unwrap_or_else(|| process.argv.join(" ")),
        ]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

/// The description of a code-interpreter process, by the tag of its kernel; the command line of a kernel is not
/// meaningful.
fn kernel(tag: &str) -> Option<String> {
    let kind = tag.strip_prefix("atoll-context/")?;
    let (language, waits) = match kind.strip_prefix("warm/") {
        Some(language) => (language, ", waiting for its first code"),
        None => (kind.split('/').next().unwrap_or(kind), ""),
    };
    Some(format!("code interpreter ({language}{waits})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kernel_is_told_by_its_language() {
        assert_eq!(kernel("atoll-context/python/abc").as_deref(), Some("code interpreter (python)"));
        let waiting = "code interpreter (python, waiting for its first code)";
        assert_eq!(kernel("atoll-context/warm/python").as_deref(), Some(waiting));
        assert_eq!(kernel("web"), None);
    }

    #[test]
    fn a_lifetime_that_stands_still_has_nothing_left_to_show() {
        for (phase, counts, wanted) in [
            (Phase::Running, TimeoutCounts::Awake, true),
            (Phase::Paused, TimeoutCounts::Always, true),
            (Phase::Paused, TimeoutCounts::Awake, false),
            (Phase::Archived, TimeoutCounts::Awake, false),
            (Phase::Failed, TimeoutCounts::Awake, true),
            (Phase::Deleted, TimeoutCounts::Always, false),
        ] {
            assert_eq!(counts_down_in(phase, counts), wanted, "{phase:?} {counts:?}");
        }
    }

    #[test]
    fn the_node_is_shown_where_there_are_several() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let on = |node: &str| crate::commands::inspect::tests::sandbox(json!({ "node": node }));
        let shows_node =
            |sandboxes: &[Sandbox]| table(sandboxes, false, None, now).lines()[0].contains("NODE");
        assert!(!shows_node(&[on("a"), on("a")]));
        assert!(shows_node(&[on("a"), on("b")]));
    }

    #[test]
    fn the_tenant_is_shown_by_its_name_where_there_are_several() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let of = |tenant: &str| crate::commands::inspect::tests::sandbox(json!({ "tenant": tenant }));
        let names = TenantNames::of([("t1", "acme"), ("t2", "default")]);
        let lines = table(&[of("t1"), of("t2"), of("t3")], false, Some(&names), now).lines();
        assert!(lines[0].ends_with("TENANT"), "{lines:?}");
        assert!(lines[1].ends_with("acme") && lines[2].ends_with("default") && lines[3].ends_with("t3"));
    }

    #[test]
    fn the_isolation_is_shown_where_one_is_not_a_container() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let with =
            |isolation: &str| crate::commands::inspect::tests::sandbox(json!({ "isolation": isolation }));
        let lines = |sandboxes: &[Sandbox]| table(sandboxes, false, None, now).lines();
        assert!(!lines(&[with("container")])[0].contains("ISOLATION"));
        let shown = lines(&[with("container"), with("none")]);
        assert!(
            shown[0].ends_with("ISOLATION") && shown[1].ends_with("container") && shown[2].ends_with("none")
        );
    }

    #[test]
    fn the_provider_is_shown_where_it_is_of_interest() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let sandbox = crate::commands::inspect::tests::sandbox(json!({ "provider": "docker" }));
        let lines = |shows| table(std::slice::from_ref(&sandbox), shows, None, now).lines();
        assert!(lines(true)[0].ends_with("PROVIDER") && lines(true)[1].ends_with("docker"));
        assert!(!lines(false)[0].contains("PROVIDER"));
    }

    #[test]
    fn the_table_is_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let of = |fields: serde_json::Value| crate::commands::inspect::tests::sandbox(fields);
        let sandboxes = [
            of(
                json!({"id": "abcdefghijklmnopqrst", "name": "box", "template": "debian", "phase": "running", "cpu": 0.5,
                   "memory_mib": 512, "created_at": "2026-01-01T00:00:00Z", "timeout_at": "2026-01-01T01:05:00Z"}),
            ),
            of(
                json!({"id": "bbcdefghijklmnopqrst", "name": null, "template": "host", "phase": "stopped", "cpu": 2.0,
                   "memory_mib": 2048, "created_at": "2026-01-01T00:59:50Z", "timeout_at": null}),
            ),
            of(
                json!({"id": "cbcdefghijklmnopqrst", "name": "nap", "template": "host", "phase": "paused", "held": "disk",
                   "cpu": 1.0, "memory_mib": 512, "created_at": "2026-01-01T00:00:00Z", "timeout_at": null}),
            ),
            of(
                json!({"id": "dbcdefghijklmnopqrst", "name": "new", "template": "app", "phase": "creating", "stage": "building",
                   "cpu": 1.0, "memory_mib": 512, "created_at": "2026-01-01T00:59:00Z", "timeout_at": null}),
            ),
        ];
        insta::assert_snapshot!(table(&sandboxes, false, None, now).lines().join("\n"), @r"
        ID                    NAME  TEMPLATE  PHASE                CPU  MEMORY   AGE  LEFT
        abcdefghijklmnopqrst  box   debian    running              0.5  512 MiB  1h   5m
        bbcdefghijklmnopqrst  -     host      stopped              2    2 GiB    10s  -
        cbcdefghijklmnopqrst  nap   host      paused (disk)        1    512 MiB  1h   -
        dbcdefghijklmnopqrst  new   app       creating (building)  1    512 MiB  1m   -
        ");
    }
}
