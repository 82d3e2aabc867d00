//! `atoll preview`: open a port of a sandbox, list what is open, close it.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{CommandContext, items, moment, sandbox_path, suggest, text};
use crate::{
    cli::life::{Preview, PreviewVerb},
    client::{Client, segment},
    failure::Failure,
    human::{Table, age},
};

pub(super) async fn preview(context: &CommandContext, args: Preview) -> Result<(), Failure> {
    let client = context.client()?;
    match args.verb {
        None => open(context, &client, args).await,
        Some(PreviewVerb::Ls { sandbox }) => ls(context, &client, &sandbox).await,
        Some(PreviewVerb::Rm { sandbox, previews }) => rm(context, &client, &sandbox, &previews).await,
    }
}

async fn open(context: &CommandContext, client: &Client, args: Preview) -> Result<(), Failure> {
    // The grammar asks for both where there is no verb.
    let sandbox = args.sandbox.unwrap_or_default();
    let mut body = Map::from_iter([("port".to_owned(), json!(args.port))]);
    body.extend(args.public.then(|| ("public".to_owned(), json!(true))));
    body.extend(args.expires.map(|expires| ("expires_s".to_owned(), json!(expires.whole()))));
    match client.post(&sandbox_path(&sandbox, "/previews"), &body).await {
        Ok(made) if context.out.json => context.out.json(&made),
        Ok(made) => context.out.line(text(&made, "url")),
        Err(failure) if failure.message.starts_with("expires_s") => {
            Err(failure.hint("--expires takes 30d at most; --public stays open until it is removed"))
        }
        Err(failure) => Err(suggest(client, &sandbox, failure).await),
    }
}

async fn ls(context: &CommandContext, client: &Client, sandbox: &str) -> Result<(), Failure> {
    let found = match client.get(&sandbox_path(sandbox, "/previews")).await {
        Ok(answer) => items(answer),
        Err(failure) => return Err(suggest(client, sandbox, failure).await),
    };
    if context.out.json {
        return context.out.json(&found);
    }
    table(&found, Timestamp::now()).lines().iter().try_for_each(|line| context.out.line(line))?;
    let shown = client.get(&sandbox_path(sandbox, "")).await;
    if shown.is_ok_and(|shown| shown["public"] == true) {
        context.out.say("atoll: all ports of this sandbox are open to everybody who knows their addresses");
    } else if found.is_empty() {
        context.out.tell("there is none; `atoll preview SANDBOX PORT` opens one");
    }
    Ok(())
}

fn table(previews: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "PORT", "FOR", "AGE", "EXPIRES", "URL"]);
    for preview in previews {
        table.row(vec![
            text(preview, "id").to_owned(),
            preview["port"].to_string(),
            if preview["public"] == true { "everybody" } else { "link" }.to_owned(),
            age(moment(preview, "created_at"), now),
            super::list::or_dash(text(preview, "expires_at")),
            text(preview, "url").to_owned(),
        ]);
    }
    table
}

/// Goes on past a failure; the status tells.
async fn rm(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    previews: &[String],
) -> Result<(), Failure> {
    let mut failed = false;
    for preview in previews {
        let path = sandbox_path(sandbox, &format!("/previews/{}", segment(preview)));
        match client.delete(&path).await {
            Ok(_) => context.out.named("preview", preview)?,
            Err(failure) if failure.is("no_server") => return Err(failure),
            Err(failure) => {
                failed = true;
                // An id that cannot be one is refused as it is read.
                let failure = match failure.code.as_str() {
                    "preview_not_found" | "invalid_request" => {
                        failure.hint(format!("`atoll preview ls {sandbox}` shows their ids"))
                    }
                    _ => failure,
                };
                suggest(client, sandbox, failure).await.report(context.out);
            }
        }
    }
    if failed { Err(Failure::silent(1)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let previews = [json!({"id": "pbcdefghijklmnopqrst", "port": 80, "public": true,
            "created_at": "2026-01-01T00:00:00Z", "expires_at": null, "url": "http://80-a.localhost:7070/"})];
        insta::assert_snapshot!(table(&previews, now).lines().join("\n"), @r"
        ID                    PORT  FOR        AGE  EXPIRES  URL
        pbcdefghijklmnopqrst  80    everybody  1h   -        http://80-a.localhost:7070/
        ");
    }
}
