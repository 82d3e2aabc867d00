//! `atoll preview`: opens a port of a sandbox, lists previews, closes them.

use atoll_client::previews::{Preview as PreviewAnswer, PreviewBody};
use jiff::Timestamp;

use super::{CommandContext, moment, suggest};
use crate::{
    cli::life::{Preview, PreviewVerb},
    client::Client,
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
    // The grammar requires both without a verb.
    let sandbox = args.sandbox.unwrap_or_default();
    let body = PreviewBody {
        port: args.port.unwrap_or_default(),
        expires_s: args.expires.map(|expires| expires.whole()),
        public: args.public,
    };
    match client.open_preview(&sandbox, &body).await {
        Ok(made) if context.out.json => context.out.json(&made),
        Ok(made) => context.out.line(&made.preview.url),
        Err(failure) if failure.message.starts_with("--expires") => {
            Err(failure.hint("--expires is at most 30d; --public stays open until it is removed"))
        }
        Err(failure) => Err(suggest(client, &sandbox, failure).await),
    }
}

async fn ls(context: &CommandContext, client: &Client, sandbox: &str) -> Result<(), Failure> {
    let found = match client.previews(sandbox).await {
        Ok(found) => found,
        Err(failure) => return Err(suggest(client, sandbox, failure).await),
    };
    if context.out.json {
        return context.out.json(&found);
    }
    table(&found.items, Timestamp::now()).lines().iter().try_for_each(|line| context.out.line(line))?;
    if client.sandbox(sandbox).await.is_ok_and(|shown| shown.public) {
        context.out.say("atoll: all ports of this sandbox are open to everyone who knows their addresses");
    } else if found.items.is_empty() {
        context.out.tell("there are no previews; `atoll preview SANDBOX PORT` opens one");
    }
    Ok(())
}

fn table(previews: &[PreviewAnswer], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "PORT", "ACCESS", "AGE", "EXPIRES", "URL"]);
    for preview in previews {
        table.row(vec![
            preview.id.clone(),
            preview.port.to_string(),
            if preview.public { "public" } else { "link" }.to_owned(),
            age(moment(preview.created_at.as_str()), now),
            super::list::or_dash(preview.expires_at.as_deref().unwrap_or("")),
            preview.url.clone(),
        ]);
    }
    table
}

/// Continues after a failure; the exit status reports it.
async fn rm(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    previews: &[String],
) -> Result<(), Failure> {
    let mut failed = false;
    for preview in previews {
        match client.close_preview(sandbox, preview).await {
            Ok(()) => context.out.named("preview", preview)?,
            Err(failure) if failure.is("no_server") => return Err(failure),
            Err(failure) => {
                failed = true;
                // An invalid id is refused as an invalid request.
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
        let previews = [PreviewAnswer {
            id: "pbcdefghijklmnopqrst".to_owned(),
            sandbox: "a".to_owned(),
            port: 80,
            public: true,
            created_at: "2026-01-01T00:00:00Z".to_owned(),
            expires_at: None,
            url: "http://80-a.localhost:7070/".to_owned(),
            path: "/p/a/80/".to_owned(),
        }];
        insta::assert_snapshot!(table(&previews, now).lines().join("\n"), @r"
        ID                    PORT  ACCESS  AGE  EXPIRES  URL
        pbcdefghijklmnopqrst  80    public  1h   -        http://80-a.localhost:7070/
        ");
    }
}
