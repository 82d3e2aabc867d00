//! `atoll template`: list, show, make, change, tag, remove, collect. Transfers are in [`registry`] and [`archive`];
//! builds are in `build`.

mod archive;
mod registry;

use atoll_client::{
    client::Answer,
    start::{Ready as ReadyBody, Start as StartBody},
    templates::{Collected, TagsBody, Template as TemplateAnswer, UpdateTemplateBody},
};
use jiff::Timestamp;
use serde_json::json;

use super::{CommandContext, build, follow::follow, list::or_dash, moment, pretty, progress::Progress};
use crate::{
    cli::{
        template::{Start, Template, Update},
        values::{Mebibytes, Pair, Ready},
    },
    client::{Client, similar_names},
    failure::Failure,
    human::{Table, age, bytes},
};
pub(super) use registry::ensure;

pub(super) async fn template(context: &CommandContext, command: Template) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Template::Ls { quiet } => ls(context, &client, quiet).await,
        Template::Show { name } => match client.template(&name).await {
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

async fn ls(context: &CommandContext, client: &Client, quiet: bool) -> Result<(), Failure> {
    let templates = client.templates().await?;
    let out = context.out;
    if quiet && out.json {
        return out.json(&templates.items.iter().map(|template| &template.name).collect::<Vec<_>>());
    }
    if quiet {
        return templates.items.iter().try_for_each(|template| out.line(&template.name));
    }
    if out.json {
        return out.json(&templates);
    }
    table(&templates.items, Timestamp::now()).lines().iter().try_for_each(|line| out.line(line))
}

fn table(templates: &[TemplateAnswer], now: Timestamp) -> Table {
    let mut table =
        Table::new(&["NAME", "TAGS", "VERSION", "FROM", "USER", "SUDO", "SIZE", "AGE", "ALIASES"]);
    for template in templates {
        table.row(vec![
            template.name.clone(),
            or_dash(&few(&template.tags)),
            super::progress::short(&template.version),
            template.made_from.as_str().to_owned(),
            template.user.clone(),
            if template.sudo { "yes" } else { "-" }.to_owned(),
            template.size_bytes.map_or_else(|| "-".to_owned(), bytes),
            age(moment(template.created_at.as_str()), now),
            few(&template.aliases),
        ]);
    }
    table
}

/// LIMIT: characters of a list in a table, so that one template with many tags does not push the other columns away.
const LIST_WIDTH: usize = 32;

/// The first of some names, and how many more there are; `template show` has all.
fn few(names: &[String]) -> String {
    let mut text = String::new();
    for (at, name) in names.iter().enumerate() {
        if at > 0 && text.chars().count() + name.chars().count() > LIST_WIDTH {
            return format!("{text} +{}", names.len() - at);
        }
        text.push_str(if at > 0 { "," } else { "" });
        text.push_str(name);
    }
    text
}

/// Shows the steps as they arrive; the last event is the template or the failure.
async fn make(context: &CommandContext, client: &Client, name: &str, args: Vec<Pair>) -> Result<(), Failure> {
    // Some built-in templates are Dockerfiles that are built like any other.
    if let Some(recipe) = atoll_image::built_recipe(name) {
        return build::described(context, recipe, args).await;
    }
    if !args.is_empty() {
        return Err(Failure::usage(
            format!("{name} is not built from a Dockerfile, so it has no arguments"),
            "omit --build-arg",
        ));
    }
    match follow(client.make_template(name).await, &mut Progress::new(context.out, false)).await {
        Ok(made) => ready(context, &made, name),
        Err(failure) if failure.is("template_not_found") => {
            let names: Vec<&str> = known().into_iter().map(|(name, _)| name).collect();
            let all = format!("there are {}", names.join(", "));
            Err(failure.hint(match similar_names::nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean {near}? {all}"),
                None => all,
            }))
        }
        Err(failure) => Err(failure),
    }
}

/// The templates that can be made, with descriptions.
fn known() -> Vec<(&'static str, &'static str)> {
    let built_in = [
        ("host", "this machine's own programs; always present"),
        ("busybox", "a shell and small tools"),
        ("debian", "Debian with python3, pip, git, node, curl, sudo"),
        ("data-science", "debian with numpy, pandas, matplotlib, scipy, scikit-learn"),
        ("code-interpreter", "data-science with a Python kernel and the libraries of E2B's template"),
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
        let all = known().into_iter().map(|(name, about)| json!({"name": name, "about": about}));
        return context.out.json(&all.collect::<Vec<_>>());
    }
    let mut table = Table::new(&["NAME", "WHAT IT IS"]);
    known().into_iter().for_each(|(name, about)| table.row(vec![name.to_owned(), about.to_owned()]));
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

/// The final message after a template was made.
fn ready(context: &CommandContext, made: &Answer<TemplateAnswer>, name: &str) -> Result<(), Failure> {
    for note in &made.notes {
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
    let changed = if remove {
        client.untag_template(template, tags).await.map(|()| None)
    } else {
        client.tag_template(template, &TagsBody { tags: tags.to_vec() }).await.map(Some)
    };
    match changed {
        Ok(None) => tags.iter().try_for_each(|tag| context.out.named("tag", tag)),
        Ok(Some(changed)) if context.out.json => context.out.json(&changed),
        Ok(Some(changed)) => context.out.line(&or_dash(&changed.tags.join(","))),
        Err(failure) => Err(nearest(client, template, failure).await),
    }
}

async fn update(context: &CommandContext, client: &Client, args: Update) -> Result<(), Failure> {
    let StartBody { command, ready, port, pool, .. } = start(&args.start);
    let body = UpdateTemplateBody {
        env: super::create::pairs(&args.env),
        reset: args.reset,
        user: args.user,
        workdir: args.workdir,
        cpu: args.cpu,
        memory_mib: args.memory.map(Mebibytes::as_limit),
        disk_mib: args.disk.map(Mebibytes::as_limit),
        public: (args.public || args.private).then_some(args.public),
        aliases: (args.no_alias || !args.alias.is_empty()).then_some(args.alias),
        command,
        ready,
        port,
        pool,
        ..UpdateTemplateBody::default()
    };
    if body == UpdateTemplateBody::default() {
        return Err(Failure::usage("no change was requested", "atoll template update --help"));
    }
    match client.update_template(&args.template, &body).await {
        Ok(changed) if context.out.json => context.out.json(&changed),
        Ok(changed) => context.out.line(&changed.name),
        Err(failure) => Err(nearest(client, &args.template, failure).await),
    }
}

/// The start settings from the options, for builds and changes.
pub(super) fn start(start: &Start) -> StartBody {
    let ready = start.ready.as_ref().map(|ready| match ready {
        Ready::Port(port) => ReadyBody::Port { port: *port },
        Ready::Url { port, path } => ReadyBody::Url { port: *port, path: path.clone(), status: 200 },
        Ready::Command(command) => ReadyBody::Command { command: command.clone() },
    });
    let line = start.start.as_ref().map(|line| vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]);
    StartBody {
        command: start.argv.clone().or(line),
        ready,
        port: start.port,
        pool: start.pool,
        ..StartBody::default()
    }
}

/// Continues after a failure; the exit status reports it.
async fn rm(context: &CommandContext, client: &Client, names: &[String]) -> Result<(), Failure> {
    let mut failed = false;
    for name in names {
        match client.remove_template(name).await {
            Ok(()) => context.out.named("name", name)?,
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
    let answer = client.collect_templates().await;
    context.out.status_done();
    let collected = answer?;
    if context.out.json {
        return context.out.json(&collected);
    }
    context.out.line(&format!(
        "removed {} versions, {} layers and {} blobs, {}",
        collected.versions,
        collected.layers,
        collected.blobs,
        bytes(collected.bytes)
    ))?;
    kept(&collected).iter().try_for_each(|line| context.out.line(line))
}

/// Why a collection left something that no template needs.
fn kept(collected: &Collected) -> Vec<String> {
    let cached = (collected.cached_bytes > 0).then(|| {
        format!("kept {} of build results, so that later builds are faster", bytes(collected.cached_bytes))
    });
    let recent = (collected.recent > 0).then(|| {
        format!("kept {} versions that were used in the last minute; collect again later", collected.recent)
    });
    let removed_nothing = collected.versions == 0 && collected.layers == 0 && collected.blobs == 0;
    let needed = removed_nothing.then(|| {
        "everything else is needed by a template, a sandbox or a snapshot; archives of packages are in ATOLL_CACHE"
            .to_owned()
    });
    [cached, recent, needed].into_iter().flatten().collect()
}

/// Adds the most similar name as a hint to an unknown template.
pub(super) async fn nearest(client: &Client, wanted: &str, failure: Failure) -> Failure {
    // A provider with images of its own does not use the templates of the server.
    if !failure.is("template_not_found") || failure.message.starts_with("provider ") {
        return failure;
    }
    if atoll_image::is_built_in(wanted) {
        return failure
            .hint(format!("it is a built-in template that is not made yet: atoll template make {wanted}"));
    }
    let Ok(known) = client.templates().await else { return failure };
    match similar_names::nearest(wanted, known.items.iter().map(|template| template.name.as_str())) {
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

    fn a_template_with_many_tags_keeps_its_row_short() {
        let tags: Vec<String> = (0..40).map(|n| format!("2026-11-{n:02}")).collect();
        assert_eq!(few(&tags), "2026-11-00,2026-11-01,2026-11-02 +37");
        assert_eq!(few(&tags[..3]), "2026-11-00,2026-11-01,2026-11-02");
        assert_eq!(few(&["x".repeat(100)]), "x".repeat(100));
        assert_eq!(few(&[]), "");
    }

    #[test]
    fn a_collection_says_why_it_kept_something() {
        let nothing = Collected { versions: 0, layers: 0, blobs: 0, bytes: 0, cached_bytes: 0, recent: 0 };
        assert!(kept(&nothing)[0].contains("needed by a template"));
        let spared = kept(&Collected { cached_bytes: 5 << 30, recent: 2, ..nothing.clone() });
        assert!(spared[0].contains("build results") && spared[1].contains("2 versions"), "{spared:?}");
        assert_eq!(kept(&Collected { layers: 1, ..nothing }), Vec::<String>::new());
    }

    #[test]
    fn the_table_is_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let template = |fields: serde_json::Value| -> TemplateAnswer {
            let mut whole = json!({"tag": null, "tenant": null, "public": false, "kind": "rootfs", "manifest": null,
                "workdir": "/", "env": {}, "command": null, "ready": null, "warm": false, "port": null, "cpu": null,
                "layers": null, "entrypoint": null, "cmd": null, "labels": {}, "notes": []});
            let fields = fields.as_object().expect("object").clone();
            whole.as_object_mut().expect("object").extend(fields);
            serde_json::from_value(whole).expect("a template")
        };
        let templates = [
            template(
                json!({"name": "debian", "version": "0123456789abcdef", "tags": [], "made_from": "built-in",
                "user": "user", "sudo": true, "size_bytes": null, "aliases": ["base", "d"],
                "created_at": "2026-01-01T00:00:00Z"}),
            ),
            template(json!({"name": "app", "version": "sha256:fedcba9876543210", "tags": ["latest", "v1"],
                "made_from": "build", "user": "root", "sudo": false, "size_bytes": 52_428_800, "aliases": [],
                "created_at": "2026-01-01T00:30:00Z"})),
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
            serde_json::to_value(start(&said)).expect("JSON"),
            json!({"command": ["/bin/sh", "-c", "serve me"], "port": 80, "pool": 2,
                "ready": {"kind": "url", "port": 80, "path": "/x", "status": 200}})
        );
        assert!(start(&Start::default()).is_default());
    }
}
