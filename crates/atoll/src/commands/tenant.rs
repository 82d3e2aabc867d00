//! `atoll tenant create|ls|providers|quota`.

use std::collections::BTreeMap;

use atoll_client::tenants::{Quota, TenantBody, TenantProviders};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{CommandContext, network};
use crate::{
    cli::{QuotaArgs, Tenant},
    client::Client,
    failure::Failure,
    human::{Table, bytes},
};

/// Tenants by id. A user key cannot list them, but learns the name of its own.
pub(super) struct TenantNames(BTreeMap<String, String>);

impl TenantNames {
    /// Reads the names. A name that cannot be read is shown as its id.
    pub(super) async fn read(client: &Client) -> Self {
        if let Ok(tenants) = client.tenants().await {
            return Self(tenants.items.into_iter().map(|tenant| (tenant.id, tenant.name)).collect());
        }
        let own = client.current_key().await.ok();
        Self(own.into_iter().map(|key| (key.record.tenant.clone(), key.tenant_name.clone())).collect())
    }

    #[cfg(test)]
    pub(super) fn of<const N: usize>(names: [(&str, &str); N]) -> Self {
        Self(names.map(|(id, name)| (id.to_owned(), name.to_owned())).into())
    }

    /// The name of a tenant.
    pub(super) fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.0.get(id).map_or(id, String::as_str)
    }
}

pub(super) async fn tenant(context: &CommandContext, command: Tenant) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Tenant::Create { name, quota } => {
            let body = TenantBody { name, quota: asked(&quota) };
            let made = client.create_tenant(&body).await?;
            if context.out.json { context.out.json(&made) } else { context.out.line(&made.name) }
        }
        Tenant::Ls => ls(context, &client).await,
        Tenant::Network { name, reach, none } => {
            network::of_tenant(context, &client, &name, &reach, none).await
        }
        Tenant::Providers { name, allow, default } => {
            providers(context, &client, &name, allow, default).await
        }
        Tenant::Quota { name, quota } => show_or_set(context, &client, &name, &quota).await,
    }
}

async fn ls(context: &CommandContext, client: &Client) -> Result<(), Failure> {
    let tenants = client.tenants().await?;
    if context.out.json {
        return context.out.json(&tenants);
    }
    let mut table = Table::new(&["NAME", "ID", "SANDBOXES", "CPU", "MEMORY", "DISK", "VOLUMES", "IN THEM"]);
    for tenant in &tenants.items {
        let mut cells = vec![tenant.name.clone(), tenant.id.clone()];
        cells.extend(limits(&tenant.quota));
        table.row(cells);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

async fn providers(
    context: &CommandContext,
    client: &Client,
    name: &str,
    allow: Vec<String>,
    default: bool,
) -> Result<(), Failure> {
    let list = if default {
        client.clear_tenant_providers(name).await?.providers.clone()
    } else if allow.is_empty() {
        let tenants = client.tenants().await?;
        let known = tenants.items.iter().find(|tenant| tenant.name == name || tenant.id == name);
        let none = || Failure::new("tenant_not_found", format!("there is no tenant {name}"));
        known.ok_or_else(none)?.providers.clone()
    } else {
        client.set_tenant_providers(name, &TenantProviders { providers: allow }).await?.providers.clone()
    };
    if context.out.json {
        return context.out.json(&serde_json::json!({ "providers": list }));
    }
    match list {
        None => context.out.line("container and microvm, and the server's default"),
        Some(list) => list.iter().try_for_each(|provider| context.out.line(provider)),
    }
}

/// A change of a quota. Limits that only a newer server knows are kept.
#[derive(Serialize)]
struct QuotaChange {
    quota: Map<String, Value>,
}

async fn show_or_set(
    context: &CommandContext,
    client: &Client,
    name: &str,
    args: &QuotaArgs,
) -> Result<(), Failure> {
    let mut now = client.tenant_usage(name).await?;
    let wished = named(&asked(args));
    if !wished.is_empty() {
        // The API replaces a whole quota, so limits that were not given are carried over.
        let mut quota = now.raw_field("quota").as_object().cloned().unwrap_or_default();
        quota.extend(wished);
        client.update_tenant(name, &QuotaChange { quota }).await?;
        now = client.tenant_usage(name).await?;
    }
    if context.out.json {
        return context.out.json(&now);
    }
    let used = Quota {
        sandboxes: Some(now.usage.sandboxes),
        cpu: Some(now.usage.cpu),
        memory_mib: Some(now.usage.memory_mib),
        disk_mib: Some(now.usage.disk_mib),
        volumes: Some(now.usage.volumes),
        volume_mib: Some(now.usage.volume_mib),
    };
    let mut table = Table::new(&["", "USED", "OF"]);
    for ((label, used), limit) in LABELS.iter().zip(limits(&used)).zip(limits(&now.quota)) {
        table.row(vec![(*label).to_owned(), used, limit]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

const LABELS: [&str; 6] = ["sandboxes", "cpu", "memory", "disk", "volumes", "in volumes"];

/// In the order of [`LABELS`].
fn limits(quota: &Quota) -> [String; 6] {
    let count = |value: Option<u32>| value.map_or_else(no_limit, |count| count.to_string());
    let size = |value: Option<u64>| value.map_or_else(no_limit, |mib| bytes(mib << 20));
    [
        count(quota.sandboxes),
        quota.cpu.map_or_else(no_limit, |cores| cores.to_string()),
        size(quota.memory_mib),
        size(quota.disk_mib),
        count(quota.volumes),
        size(quota.volume_mib),
    ]
}

fn no_limit() -> String {
    "no limit".to_owned()
}

fn asked(args: &QuotaArgs) -> Quota {
    Quota {
        sandboxes: args.sandboxes,
        cpu: args.cpu,
        memory_mib: args.memory.map(|v| v.0),
        disk_mib: args.disk.map(|v| v.0),
        volumes: args.volumes,
        volume_mib: args.volume_size.map(|v| v.0),
    }
}

/// The limits that were given.
fn named(quota: &Quota) -> Map<String, Value> {
    let Ok(Value::Object(fields)) = serde_json::to_value(quota) else { return Map::new() };
    fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_not_named_stays() {
        let mut quota =
            json!({"sandboxes": 5, "cpu": null, "newer": 1}).as_object().cloned().expect("object");
        quota.extend(named(&asked(&QuotaArgs { cpu: Some(1.5), ..QuotaArgs::default() })));
        assert_eq!(Value::Object(quota), json!({"sandboxes": 5, "cpu": 1.5, "newer": 1}));
    }
}
