//! `atoll template`: list, show, make, change, tag, remove, collect. What goes over a wire is in [`registry`] and [`archive`];
//! builds are in `build`.

mod archive;
mod registry;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    CommandContext, build, follow::follow, items, list::or_dash, moment, pretty, progress::Progress, text,
};
use crate::{
    cli::{
        template::{Start, Template, Update},
        values::{Pair, Ready},
    },
    client::{Client, segment, similar_names},
    failure::Failure,
    human::{Table, age, bytes},
};
pub(super) use registry::ensure;

pub(super) async fn template(context: &CommandContext, command: Template) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Template::Ls { quiet } => ls(context, &client, quiet).await,
        Template::Show { name } => match client.get(&path(&name, "")).await {
            Ok(found) if context.out.json => context.out.json(&found),
            Ok(found) => context.out.line(&pretty(&found)),
            Err(failure) => Err(nearest(&client, &name, failure).await),
        },
        Template::Make { name: Some(name), build_arg } => make(context, &client, &name, build_arg).await,
        Template::Make { name: None, .. } => catalogue(context),
        Template::Build(args) => build::build(context, *args).await,
        Template::Builds(args) => build::builds(context, &client, args).await,
        Template::Log(args) => build::log(context, &client, args).await,
        Template::Cancel { builds } => build::cancel(context, &client, &builds).await,
        Template::Pull { image, platform, login } => {
            registry::pull(context, &client, &image, platform, login).await
        }
        Template::Push { template, image, login } => {
            registry::push(context, &client, &template, &image, login).await
        }
        Template::Export { template, output, format } => {
            archive::export(context, &client, &template, &output, format).await
        }
        Template::Import { from, name, format } => {
            archive::import(context, &client, &from, &name, format).await
        }
        Template::Tag { remove, template, tags } => tag(context, &client, remove, &template, &tags).await,
        Template::Update(args) => update(context, &client, *args).await,
        Template::Rm { names } => rm(context, &client, &names).await,
        Template::Gc => gc(context, &client).await,
    }
}

fn path(name: &str, below: &str) -> String {
    format!("/v1/templates/{}{below}", segment(name))
}

async fn ls(context: &CommandContext, client: &Client, quiet: bool) -> Result<(), Failure> {
    let templates = items(client.get("/v1/templates").await?);
    let out = context.out;
    if quiet && out.json {
        return out.json(&templates.iter().map(|template| text(template, "name")).collect::<Vec<_>>());
    }
    if quiet {
        return templates.iter().try_for_each(|template| out.line(text(template, "name")));
    }
    if out.json {
        return out.json(&templates);
    }
    table(&templates, Timestamp::now()).lines().iter().try_for_each(|line| out.line(line))
}

fn table(templates: &[Value], now: Timestamp) -> Table {
    let mut table =
        Table::new(&["NAME", "TAGS", "VERSION", "FROM", "USER", "SUDO", "SIZE", "AGE", "ALIASES"]);
    for template in templates {
        table.row(vec![
            text(template, "name").to_owned(),
            or_dash(&joined(&template["tags"])),
            super::progress::short(text(template, "version")),
            or_dash(text(template, "made_from")),
            text(template, "user").to_owned(),
            if template["sudo"].as_bool() == Some(true) { "yes" } else { "-" }.to_owned(),
            template["size_bytes"].as_u64().map_or_else(|| "-".to_owned(), bytes),
            age(moment(template, "created_at"), now),
            joined(&template["aliases"]),
        ]);
    }
    table
}

fn joined(words: &Value) -> String {
    let words: Vec<&str> = words.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    words.join(",")
}

/// Shows the steps as they come; the last event is the template or the failure.
async fn make(context: &CommandContext, client: &Client, name: &str, args: Vec<Pair>) -> Result<(), Failure> {
    // Some of the catalogue is a description that is built like anybody's.
    if let Some(recipe) = atoll_image::built_recipe(name) {
        return build::described(context, recipe, args).await;
    }
    if !args.is_empty() {
        return Err(Failure::usage(
            format!("{name} is not built, so it has no arguments"),
            "leave --build-arg out",
        ));
    }
    let request = client.request(Method::POST, &path(name, "/make"));
    match follow(client, request, &mut Progress::new(context.out, false)).await {
        Ok(made) => ready(context, &made, name),
        Err(failure) if failure.is("template_not_found") => {
            let names: Vec<&str> = known().into_iter().map(|(name, _)| name).collect();
            Err(failure.hint(format!("there are {}", names.join(", "))))
        }
        Err(failure) => Err(failure),
    }
}

/// What can be made by its name, and what it is.
fn known() -> Vec<(&'static str, &'static str)> {
    let built_in = [
        ("host", "this machine's own programs; makes itself"),
        ("busybox", "a shell and small tools"),
        ("debian", "Debian with python3, pip, git, node, curl, sudo"),
        ("data-science", "debian with numpy, pandas, matplotlib, scipy, scikit-learn"),
        ("code-interpreter", "data-science with a Python kernel and the libraries that E2B's has"),
        ("code-interpreter-full", "code-interpreter with R and Java"),
        ("code-interpreter-slim", "debian with a Python kernel and matplotlib"),
    ];
    built_in
        .into_iter()
        .chain(atoll_image::BUILT_RECIPES.iter().map(|recipe| (recipe.name, recipe.about)))
        .collect()
}

fn catalogue(context: &CommandContext) -> Result<(), Failure> {
    if context.out.json {
        let all: Vec<Value> =
            known().into_iter().map(|(name, about)| json!({"name": name, "about": about})).collect();
        return context.out.json(&all);
    }
    let mut table = Table::new(&["NAME", "WHAT IT IS"]);
    known().into_iter().for_each(|(name, about)| table.row(vec![name.to_owned(), about.to_owned()]));
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

/// The last words of whatever made a template.
fn ready(context: &CommandContext, made: &Value, name: &str) -> Result<(), Failure> {
    for note in made["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        context.out.tell(&format!("note: {}", crate::human::harmless(note)));
    }
    if context.out.json { context.out.json(made) } else { context.out.line(&format!("{name} is ready")) }
}

async fn tag(
    context: &CommandContext,
    client: &Client,
    remove: bool,
    template: &str,
    tags: &[String],
) -> Result<(), Failure> {
    let below = path(template, "/tags");
    let changed = if remove {
        client.json(client.request(Method::DELETE, &below).query(&[("tags", tags.join(","))])).await
    } else {
        client.post(&below, &json!({ "tags": tags })).await
    };
    match changed {
        Ok(_) if remove => tags.iter().try_for_each(|tag| context.out.named("tag", tag)),
        Ok(changed) if context.out.json => context.out.json(&changed),
        Ok(changed) => context.out.line(&or_dash(&joined(&changed["tags"]))),
        Err(failure) => Err(nearest(client, template, failure).await),
    }
}

async fn update(context: &CommandContext, client: &Client, args: Update) -> Result<(), Failure> {
    let mut body = Map::new();
    let mut put = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(field.to_owned(), value);
        }
    };
    put("env", super::create::pairs(&args.env));
    put("reset", args.reset.then_some(json!(true)));
    put("user", args.user.map(|v| json!(v)));
    put("workdir", args.workdir.map(|v| json!(v)));
    put("cpu", args.cpu.map(|v| json!(v)));
    put("memory_mib", args.memory.map(|v| json!(v.0)));
    put("disk_mib", args.disk.map(|v| json!(v.0)));
    put("public", (args.public || args.private).then_some(json!(args.public)));
    put("aliases", (args.no_alias || !args.alias.is_empty()).then(|| json!(args.alias)));
    body.extend(start(&args.start));
    if body.is_empty() {
        return Err(Failure::usage("nothing to change was named", "atoll template update --help"));
    }
    match client.patch(&path(&args.template, ""), &body).await {
        Ok(changed) if context.out.json => context.out.json(&changed),
        Ok(changed) => context.out.line(text(&changed, "name")),
        Err(failure) => Err(nearest(client, &args.template, failure).await),
    }
}

/// What was said about the start of a template's sandboxes, as builds and changes take it.
pub(super) fn start(start: &Start) -> impl Iterator<Item = (String, Value)> + use<> {
    let ready = start.ready.as_ref().map(|ready| match ready {
        Ready::Port(port) => json!({ "kind": "port", "port": port }),
        Ready::Url { port, path } => json!({ "kind": "url", "port": port, "path": path, "status": 200 }),
        Ready::Command(command) => json!({ "kind": "command", "command": command }),
    });
    let line = start.start.as_ref().map(|line| json!(["/bin/sh", "-c", line]));
    let command = start.argv.as_ref().map(|argv| json!(argv)).or(line);
    let fields = [
        ("command", command),
        ("ready", ready),
        ("port", start.port.map(|v| json!(v))),
        ("pool", start.pool.map(|v| json!(v))),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)))
}

/// Goes on past a failure; the status tells.
async fn rm(context: &CommandContext, client: &Client, names: &[String]) -> Result<(), Failure> {
    let mut failed = false;
    for name in names {
        match client.delete(&path(name, "")).await {
            Ok(_) => context.out.named("name", name)?,
            Err(failure) if failure.is("no_server") => return Err(failure),
            Err(failure) => {
                failed = true;
                nearest(client, name, failure).await.report(context.out);
            }
        }
    }
    if failed { Err(Failure::silent(1)) } else { Ok(()) }
}

async fn gc(context: &CommandContext, client: &Client) -> Result<(), Failure> {
    context.out.status("collecting …");
    // Removing many files takes what it takes.
    let answer = client.send(client.request(Method::POST, "/v1/templates/gc")).await;
    context.out.status_done();
    let collected: Value = answer?
        .json()
        .await
        .map_err(|e| Failure::new("bad_answer", format!("what was collected did not arrive: {e}")))?;
    if context.out.json {
        return context.out.json(&collected);
    }
    let number = |field: &str| collected[field].as_u64().unwrap_or(0);
    context.out.line(&format!(
        "removed {} versions, {} layers and {} blobs, {}",
        number("versions"),
        number("layers"),
        number("blobs"),
        bytes(number("bytes"))
    ))
}

/// An unknown template gets the nearest name as a hint.
pub(super) async fn nearest(client: &Client, wanted: &str, failure: Failure) -> Failure {
    if !failure.is("template_not_found") {
        return failure;
    }
    if atoll_image::is_built_in(wanted) {
        return failure.hint(format!("it is built in and not made yet: atoll template make {wanted}"));
    }
    let Ok(answer) = client.get("/v1/templates").await else { return failure };
    let known = items(answer);
    let names = known.iter().map(|template| text(template, "name"));
    match similar_names::nearest(wanted, names.filter(|name| !name.is_empty())) {
        Some(name) => failure.hint(format!("did you mean {name}? `atoll template ls` shows every template")),
        None => failure.hint(format!(
            "`atoll template ls` shows every template; `atoll template pull {wanted}` fetches an image"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let templates = [
            json!({"name": "debian", "version": "0123456789abcdef", "tags": [], "made_from": "built-in", "user": "user",
                "sudo": true, "size_bytes": null, "aliases": ["base", "d"], "created_at": "2026-01-01T00:00:00Z"}),
            json!({"name": "app", "version": "sha256:fedcba9876543210", "tags": ["latest", "v1"], "made_from": "build",
                "user": "root", "sudo": false, "size_bytes": 52_428_800, "aliases": [],
                "created_at": "2026-01-01T00:30:00Z"}),
        ];
        insta::assert_snapshot!(table(&templates, now).lines().join("\n"), @r"
        NAME    TAGS       VERSION       FROM      USER  SUDO  SIZE    AGE  ALIASES
        debian  -          0123456789ab  built-in  user  yes   -       1h   base,d
        app     latest,v1  fedcba987654  build     root  -     50 MiB  30m
        ");
    }

    #[test]
    fn a_start_is_sent_as_the_server_takes_it() {
        let said = Start {
            start: Some("serve me".into()),
            argv: None,
            ready: Some(Ready::Url { port: 80, path: "/x".into() }),
            port: Some(80),
            pool: Some(2),
        };
        assert_eq!(
            Value::Object(start(&said).collect()),
            json!({"command": ["/bin/sh", "-c", "serve me"], "port": 80, "pool": 2,
                "ready": {"kind": "url", "port": 80, "path": "/x", "status": 200}})
        );
        assert_eq!(start(&Start::default()).count(), 0);
    }
}
