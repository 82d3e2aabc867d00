//! `atoll tenant create|ls|quota`.

use serde_json::{Map, Value, json};

use super::{CommandContext, items, network, text};
use crate::{
    cli::{QuotaArgs, Tenant},
    client::{Client, segment},
    failure::Failure,
    human::{Table, bytes},
};

pub(super) async fn tenant(context: &CommandContext, command: Tenant) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Tenant::Create { name, quota } => {
            let body = json!({"name": name, "quota": changed(Map::new(), &quota)});
            let made = client.post("/v1/tenants", &body).await?;
            if context.out.json { context.out.json(&made) } else { context.out.line(text(&made, "name")) }
        }
        Tenant::Ls => ls(context, &client).await,
        Tenant::Network { name, reach, none } => {
            network::of_tenant(context, &client, &name, &reach, none).await
        }
        Tenant::Quota { name, quota } => show_or_set(context, &client, &name, &quota).await,
    }
}

async fn ls(context: &CommandContext, client: &Client) -> Result<(), Failure> {
    let tenants = items(client.get("/v1/tenants").await?);
    if context.out.json {
        return context.out.json(&tenants);
    }
    let mut table = Table::new(&["NAME", "ID", "SANDBOXES", "CPU", "MEMORY", "DISK", "VOLUMES", "IN THEM"]);
    for tenant in &tenants {
        let mut cells = vec![text(tenant, "name").to_owned(), text(tenant, "id").to_owned()];
        cells.extend(FIELDS.map(|field| shown(field, &tenant["quota"][field])));
        table.row(cells);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

async fn show_or_set(
    context: &CommandContext,
    client: &Client,
    name: &str,
    quota: &QuotaArgs,
) -> Result<(), Failure> {
    let path = format!("/v1/tenants/{}", segment(name));
    let usage = format!("{path}/usage");
    let now = client.get(&usage).await?;
    let wished = changed(Map::new(), quota);
    if !wished.is_empty() {
        // The API sets a quota whole, so what was not named is carried over.
        let before = now["quota"].as_object().cloned().unwrap_or_default();
        client.patch(&path, &json!({"quota": changed(before, quota)})).await?;
    }
    let now = if wished.is_empty() { now } else { client.get(&usage).await? };
    if context.out.json {
        return context.out.json(&now);
    }
    let mut table = Table::new(&["", "USED", "OF"]);
    for field in FIELDS {
        table.row(vec![
            label(field).to_owned(),
            shown(field, &now["usage"][field]),
            shown(field, &now["quota"][field]),
        ]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

const FIELDS: [&str; 6] = ["sandboxes", "cpu", "memory_mib", "disk_mib", "volumes", "volume_mib"];

fn label(field: &str) -> &str {
    match field {
        "volume_mib" => "in volumes",
        other => other.split('_').next().unwrap_or(other),
    }
}

fn shown(field: &str, value: &Value) -> String {
    match (value, field) {
        (Value::Null, _) => "no limit".to_owned(),
        (mib, "memory_mib" | "disk_mib" | "volume_mib") => bytes(mib.as_u64().unwrap_or(0) << 20),
        (cores, "cpu") => cores.as_f64().unwrap_or(0.0).to_string(),
        (count, _) => count.to_string(),
    }
}

fn changed(mut quota: Map<String, Value>, wish: &QuotaArgs) -> Map<String, Value> {
    let fields = [
        ("sandboxes", wish.sandboxes.map(|v| json!(v))),
        ("cpu", wish.cpu.map(|v| json!(v))),
        ("memory_mib", wish.memory.map(|v| json!(v.0))),
        ("disk_mib", wish.disk.map(|v| json!(v.0))),
        ("volumes", wish.volumes.map(|v| json!(v))),
        ("volume_mib", wish.volume_size.map(|v| json!(v.0))),
    ];
    quota.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    quota
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_named_stays() {
        let before = json!({"sandboxes": 5, "cpu": null});
        let wish = QuotaArgs { cpu: Some(1.5), ..QuotaArgs::default() };
        let after = changed(before.as_object().cloned().expect("object"), &wish);
        assert_eq!(Value::Object(after), json!({"sandboxes": 5, "cpu": 1.5}));
    }
}
