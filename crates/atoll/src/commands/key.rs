//! `atoll key create|ls|rm`. A key is shown once, when it is made.

use jiff::Timestamp;
use serde_json::{Map, json};

use super::{CommandContext, items, moment, text};
use crate::{
    cli::Key,
    client::{Client, segment},
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
                client.delete(&format!("/v1/keys/{}", segment(id))).await?;
                context.out.named("id", id)?;
            }
            Ok(())
        }
    }
}

async fn create(
    context: &CommandContext,
    client: &Client,
    name: Option<String>,
    tenant: Option<String>,
    admin: bool,
) -> Result<(), Failure> {
    let mut body = Map::new();
    body.insert("scope".to_owned(), json!(if admin { "admin" } else { "user" }));
    body.extend(name.map(|name| ("name".to_owned(), json!(name))));
    body.extend(tenant.map(|tenant| ("tenant".to_owned(), json!(tenant))));
    let made = client.post("/v1/keys", &body).await?;
    if context.out.json {
        return context.out.json(&made);
    }
    let secret = ["secret", "key"].iter().find_map(|field| made[*field].as_str()).unwrap_or("");
    context.out.line(secret)?;
    context.out.tell("keep it: it is shown only now");
    Ok(())
}

async fn ls(context: &CommandContext, client: &Client) -> Result<(), Failure> {
    let keys = items(client.get("/v1/keys").await?);
    if context.out.json {
        return context.out.json(&keys);
    }
    let now = Timestamp::now();
    let mut table = Table::new(&["ID", "NAME", "TENANT", "SCOPE", "AGE"]);
    for key in &keys {
        table.row(vec![
            text(key, "id").to_owned(),
            text(key, "name").to_owned(),
            text(key, "tenant").to_owned(),
            text(key, "scope").to_owned(),
            age(moment(key, "created_at"), now),
        ]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}
