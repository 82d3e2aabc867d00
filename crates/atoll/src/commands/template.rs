//! `atoll template ls|show|make|rm`.

use jiff::Timestamp;
use reqwest::Method;
use serde_json::Value;

use super::{Context, items, moment, pretty, text};
use crate::{
    cli::Template,
    client::{Client, segment, sse::Events},
    failure::Failure,
    human::{Table, age, harmless},
};

pub(super) async fn template(context: &Context, command: Template) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Template::Ls => ls(context, &client).await,
        Template::Show { name } => {
            let found = client.get(&path(&name)).await?;
            if context.out.json { context.out.json(&found) } else { context.out.line(&pretty(&found)) }
        }
        Template::Make { name } => make(context, &client, &name).await,
        Template::Rm { names } => {
            for name in &names {
                client.delete(&path(name)).await?;
                context.out.named("name", name)?;
            }
            Ok(())
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/templates/{}", segment(name))
}

async fn ls(context: &Context, client: &Client) -> Result<(), Failure> {
    let templates = items(client.get("/v1/templates").await?);
    if context.out.json {
        return context.out.json(&templates);
    }
    let now = Timestamp::now();
    let mut table = Table::new(&["NAME", "VERSION", "KIND", "USER", "SUDO", "AGE", "ALIASES"]);
    for template in &templates {
        let aliases: Vec<&str> =
            template["aliases"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        table.row(vec![
            text(template, "name").to_owned(),
            text(template, "version").chars().take(12).collect(),
            text(template, "kind").to_owned(),
            text(template, "user").to_owned(),
            if template["sudo"].as_bool() == Some(true) { "yes" } else { "-" }.to_owned(),
            age(moment(template, "created_at"), now),
            aliases.join(","),
        ]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

/// Shows the steps as they come; the last event is the template or the failure.
async fn make(context: &Context, client: &Client, name: &str) -> Result<(), Failure> {
    let out = context.out;
    let request = client.request(Method::POST, &format!("{}/make", path(name)));
    let mut events = Events::new(client.send(request).await?);
    let mut made = Value::Null;
    while let Some(event) = events.next().await? {
        let said = event.json();
        match event.name.as_str() {
            "error" => {
                out.status_done();
                let mut failure = Failure::new(text(&said, "code"), text(&said, "message"));
                failure.hint = said["hint"].as_str().map(str::to_owned);
                failure.request_id = said["request_id"].as_str().map(str::to_owned);
                return Err(failure);
            }
            "done" => made = said,
            _ => {
                let step = ["message", "line", "step"].iter().find_map(|field| said[*field].as_str());
                out.status(&harmless(step.or(said.as_str()).unwrap_or("")));
            }
        }
    }
    out.status_done();
    if made.is_null() {
        return Err(Failure::new("no_server", "the server ended the stream before the template was made"));
    }
    if out.json { out.json(&made) } else { out.line(&format!("{name} is ready")) }
}
