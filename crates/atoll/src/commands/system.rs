//! `atoll system df` and `atoll prune`: what takes space on the disk of the server, and what can go.

use atoll_client::system::{DiskItem, DiskUse, PruneEntry, PruneReport, PruneRequest, TenantDisk};

use super::CommandContext;
use crate::{
    cli::{PruneArgs, System},
    failure::Failure,
    human::{Table, bytes},
};

/// Items that are shown without `--all`.
const SHOWN: usize = 20;

pub(super) async fn system(context: &CommandContext, args: System) -> Result<(), Failure> {
    match args {
        System::Df { all } => df(context, all).await,
    }
}

async fn df(context: &CommandContext, all: bool) -> Result<(), Failure> {
    let client = context.client()?;
    context.out.status("measuring …");
    let answer = client.disk_use().await;
    context.out.status_done();
    let found = answer?;
    if context.out.json {
        return context.out.json(&found);
    }
    let mut lines = summary(&found);
    lines.extend(items(&found.items, all));
    if found.tenants.len() > 1 {
        lines.push(String::new());
        lines.extend(tenants(&found.tenants).lines());
    }
    lines.iter().try_for_each(|line| context.out.line(line))?;
    context.out.tell_faint("next: atoll prune lists what can go");
    Ok(())
}

/// The data folder, for the operator.
fn summary(found: &DiskUse) -> Vec<String> {
    let Some(disk) = &found.disk else { return Vec::new() };
    let mut lines = vec![format!(
        "free on the disk: {}, of which {} are reserved",
        bytes(disk.free_bytes),
        bytes(disk.reserve_bytes)
    )];
    if let (Some(pool), Some(free)) = (disk.pool_bytes, disk.pool_free_bytes) {
        lines.push(format!("the pool of layers takes {}, of which {} are free", bytes(pool), bytes(free)));
    }
    let mut table = Table::new(&["DATA FOLDER", "SIZE"]);
    for part in found.parts.iter().filter(|part| part.bytes > 0) {
        table.row(vec![part.name.clone(), bytes(part.bytes)]);
    }
    lines.push(String::new());
    lines.extend(table.lines());
    lines.push(String::new());
    lines
}

fn items(items: &[DiskItem], all: bool) -> Vec<String> {
    let mut table = Table::new(&["KIND", "NAME", "SIZE", "SHARED", "STATE"]);
    let shown = if all { items.len() } else { SHOWN };
    for item in items.iter().take(shown) {
        table.row(vec![
            item.kind.clone(),
            item.name.clone().unwrap_or_else(|| item.id.clone()),
            bytes(item.bytes),
            if item.shared_bytes == 0 { "-".to_owned() } else { bytes(item.shared_bytes) },
            item.state.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let mut lines = table.lines();
    let rest = items.get(shown..).unwrap_or_default();
    if !rest.is_empty() {
        let sum: u64 = rest.iter().map(|item| item.bytes).sum();
        lines.push(format!("and {} more with {}; --all shows them", rest.len(), bytes(sum)));
    }
    lines
}

fn tenants(tenants: &[TenantDisk]) -> Table {
    let mut table =
        Table::new(&["TENANT", "SANDBOXES", "MEMORY", "SNAPSHOTS", "VOLUMES", "TEMPLATES", "ARCHIVES"]);
    for tenant in tenants {
        let sizes = [
            tenant.sandbox_bytes,
            tenant.memory_bytes,
            tenant.snapshot_bytes,
            tenant.volume_bytes,
            tenant.template_bytes,
            tenant.archive_bytes,
        ];
        table.row(std::iter::once(tenant.name.clone()).chain(sizes.map(bytes)).collect());
    }
    table
}

pub(super) async fn prune(context: &CommandContext, args: PruneArgs) -> Result<(), Failure> {
    let client = context.client()?;
    let older_than_s = args.older_than.map(|age| age.whole());
    let mut body = PruneRequest { apply: args.force, older_than_s };
    context.out.status(if args.force { "removing …" } else { "looking …" });
    let answer = client.prune(&body).await;
    context.out.status_done();
    let report = answer?;
    if context.out.json {
        return context.out.json(&report);
    }
    show(context, &report)?;
    if report.applied || report.removed.is_empty() {
        return Ok(());
    }
    if !context.out.ask("Remove these?") {
        context.out.say("atoll: nothing was removed; add --force to remove them");
        return Ok(());
    }
    body.apply = true;
    context.out.status("removing …");
    let answer = client.prune(&body).await;
    context.out.status_done();
    let report = answer?;
    context.out.line(&total(&report))
}

fn show(context: &CommandContext, report: &PruneReport) -> Result<(), Failure> {
    let mut lines = vec![total(report)];
    if !report.removed.is_empty() {
        lines.extend(table(if report.applied { "REMOVED" } else { "CAN GO" }, &report.removed).lines());
    }
    if !report.kept.is_empty() {
        lines.push(String::new());
        lines.extend(table("KEPT", &report.kept).lines());
    }
    lines.iter().try_for_each(|line| context.out.line(line))
}

fn total(report: &PruneReport) -> String {
    let sum: u64 = report.removed.iter().filter_map(|one| one.bytes).sum();
    match (report.applied, report.removed.len()) {
        (_, 0) => "there is nothing to remove".to_owned(),
        (true, count) => format!("removed {count}, {}", bytes(sum)),
        (false, count) => format!("{count} can go, {}", bytes(sum)),
    }
}

fn table(title: &'static str, entries: &[PruneEntry]) -> Table {
    let mut table = Table::new(&[title, "NAME", "SIZE", "WHY"]);
    for one in entries {
        let size = one.bytes.map_or_else(|| "-".to_owned(), bytes);
        table.row(vec![one.kind.clone(), one.name.clone(), size, one.why.clone()]);
    }
    table
}
