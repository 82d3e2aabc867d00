//! `--tenant`: an admin key names sandboxes of another tenant.

use atoll_client::sandboxes::ListQuery;

use super::CommandContext;
use crate::{cli::Command, client::Client, failure::Failure};

/// Replaces the names in a command by the ids of the sandboxes that have them in this tenant.
pub(super) async fn name_by_id(
    context: &CommandContext,
    tenant: &str,
    command: &mut Command,
) -> Result<(), Failure> {
    if command.has_own_tenant() {
        return Ok(());
    }
    let names = command.sandbox_names();
    if names.is_empty() {
        return Err(Failure::new("invalid_request", "--tenant is for commands that name a sandbox")
            .hint("use a key of the tenant: atoll key create --tenant TENANT"));
    }
    let client = context.client()?;
    for name in names {
        *name = id_of(&client, tenant, name).await?;
    }
    Ok(())
}

/// An id, or a prefix of one, is left as it is if no sandbox has it as its name.
async fn id_of(client: &Client, tenant: &str, name: &str) -> Result<String, Failure> {
    let query = |named: Option<String>| ListQuery {
        tenant: Some(tenant.to_owned()),
        name: named,
        ..ListQuery::default()
    };
    if let Some(found) = client.sandboxes(&query(Some(name.to_owned())), Some(1)).await?.items.pop() {
        return Ok(found.id);
    }
    let all = client.sandboxes(&query(None), None).await?.items;
    let mut found = all.into_iter().filter(|sandbox| name.len() >= 3 && sandbox.id.starts_with(name));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one.id),
        (Some(_), Some(_)) => {
            Err(Failure::new("ambiguous", format!("{name} matches more than one sandbox of {tenant}"))
                .hint(format!("`atoll ls --tenant {tenant}` shows their ids")))
        }
        (None, _) => {
            Err(Failure::new("sandbox_not_found", format!("the tenant {tenant} has no sandbox {name}"))
                .hint(format!("`atoll ls --tenant {tenant}` shows its sandboxes")))
        }
    }
}
