//! `atoll key create|ls|rm`. The secret of a key is shown once, when it is created.

use atoll_client::keys::{Key as KeyRecord, KeyBody, Scope};
use jiff::Timestamp;

use super::{CommandContext, list::or_dash, moment, tenant::TenantNames};
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
        Key::Rm { ids } => rm(context, &client, &ids).await,
    }
}

/// Deletes keys, and says which others end with them.
async fn rm(context: &CommandContext, client: &Client, ids: &[String]) -> Result<(), Failure> {
    for id in ids {
        // Without the list the key is deleted all the same.
        let with_it = client.keys().await.map_or(0, |keys| created_with(id, &keys.items));
        client.delete_key(id).await.map_err(find_hint)?;
        context.out.named("id", id)?;
        if with_it > 0 {
            context.out.say(&format!("{with_it} more keys that were created with {id} ended too"));
        }
    }
    Ok(())
}

/// How many keys were created with this one, directly or through others.
fn created_with(id: &str, keys: &[KeyRecord]) -> usize {
    let mut ending: Vec<&str> = vec![id];
    let mut next = 0;
    while let Some(creator) = ending.get(next).copied() {
        let created = keys.iter().filter(|key| key.created_by.as_deref() == Some(creator));
        ending.extend(created.map(|key| key.id.as_str()));
        next += 1;
    }
    ending.len() - 1
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
    let tenants = TenantNames::read(client).await;
    let mut table = Table::new(&["ID", "NAME", "TENANT", "SCOPE", "CREATED BY", "AGE"]);
    for key in &keys.items {
        table.row(vec![
            key.id.clone(),
            key.name.clone().unwrap_or_default(),
            tenants.name(&key.tenant).to_owned(),
            key.scope.as_str().to_owned(),
            or_dash(key.created_by.as_deref().unwrap_or_default()),
            age(moment(key.created_at.as_str()), now),
        ]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_end_with_a_key_are_counted_through_others() {
        let key = |id: &str, created_by: Option<&str>| KeyRecord {
            id: id.to_owned(),
            tenant: "t".to_owned(),
            scope: Scope::User,
            name: None,
            created_by: created_by.map(str::to_owned),
            created_at: String::new(),
            last_used_at: None,
        };
        let keys = [key("a", None), key("b", Some("a")), key("c", Some("b")), key("d", None)];
        assert_eq!(["a", "b", "c", "d"].map(|id| created_with(id, &keys)), [2, 1, 0, 0]);
    }
}
