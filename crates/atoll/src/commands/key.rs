//! `atoll key create|ls|rm`. The secret of a key is shown once, when it is created.

use atoll_client::keys::{KeyBody, Scope};
use jiff::Timestamp;

use super::{CommandContext, moment};
use crate::{
    cli::Key,
    client::Client,
    failure::Failure,
    human::{Table, age},
};

pub(super) async fn key(context: &CommandContext, command: Key) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Key::Create { name, tenant, admin } => create(context, &client, name, tenant, admin).await,
        Key::Ls => ls(context, &client).await,
        Key::Rm { ids } => {
            for id in &ids {
                client.delete_key(id).await.map_err(find_hint)?;
                context.out.named("id", id)?;
            }
            Ok(())
        }
    }
}

/// Adds a hint about the ids of keys. An invalid id is refused as an invalid request.
fn find_hint(failure: Failure) -> Failure {
    match failure.code.as_str() {
        "key_not_found" | "invalid_request" => failure.hint("`atoll key ls` shows the id of every key"),
        _ => failure,
    }
}

async fn create(
    context: &CommandContext,
    client: &Client,
    name: Option<String>,
    tenant: Option<String>,
    admin: bool,
) -> Result<(), Failure> {
    let scope = Some(if admin { Scope::Admin } else { Scope::User });
    let made = client.create_key(&KeyBody { tenant, scope, name }).await?;
    if context.out.json {
        return context.out.json(&made);
    }
    context.out.line(&made.secret)?;
    context.out.tell("save it: it is shown only now");
    Ok(())
}

async fn ls(context: &CommandContext, client: &Client) -> Result<(), Failure> {
    let keys = client.keys().await?;
    if context.out.json {
        return context.out.json(&keys);
    }
    let now = Timestamp::now();
    let mut table = Table::new(&["ID", "NAME", "TENANT", "SCOPE", "AGE"]);
    for key in &keys.items {
        table.row(vec![
            key.id.clone(),
            key.name.clone().unwrap_or_default(),
            key.tenant.clone(),
            key.scope.as_str().to_owned(),
            age(moment(key.created_at.as_str()), now),
        ]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}
