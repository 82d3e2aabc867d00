//! `atoll template build`, and what deals with builds that are under way or were.
//!
//! The folder is packed here and goes with the wish in one request; then the log is followed. Ctrl-C cancels at the server too.

pub(super) mod context;

use std::{io::Read, path::Path};

use atoll_image::BuiltRecipe;
use jiff::Timestamp;
use reqwest::{Method, multipart};
use serde_json::{Map, Value, json};

use super::{
    CommandContext, follow::told, items, moment, network, process::Signals, process::signal_status,
    progress::Progress, template, text,
};
use crate::{
    cli::{
        template::{Build, BuildLog, Builds, Start},
        values::{Pair, Ready, SecretFrom, SecretSource},
    },
    client::{Client, segment, sse::Events},
    environment,
    failure::Failure,
    human::{Table, age, harmless},
};

/// LIMIT: far above any Dockerfile; the server has its own bound.
const DOCKERFILE_MAX: u64 = 1 << 20;
/// LIMIT: a secret is a key or a small file.
const SECRET_MAX: u64 = 512 << 10;

pub(super) async fn build(context: &CommandContext, args: Build) -> Result<(), Failure> {
    if !args.folder.is_dir() {
        return Err(Failure::usage(
            format!("{} is no folder", args.folder.display()),
            "the last word is the folder with the Dockerfile, such as .",
        ));
    }
    let dockerfile = dockerfile(&args)?;
    network::note(context.out, &args.reach);
    whole(context, args, dockerfile).await
}

/// A template whose Dockerfile this program brings along; it copies nothing.
pub(super) async fn described(
    context: &CommandContext,
    recipe: &BuiltRecipe,
    args: Vec<Pair>,
) -> Result<(), Failure> {
    let name = recipe.name;
    let tag = name.parse().map_err(|bad| Failure::new("internal", format!("{name}: {bad}")))?;
    let start = match recipe.start {
        None => Start::default(),
        Some((argv, port)) => Start {
            argv: Some(argv.iter().map(|word| (*word).to_owned()).collect()),
            ready: Some(Ready::Port(port)),
            port: Some(port),
            ..Start::default()
        },
    };
    whole(context, Build::of(tag, args, start), recipe.dockerfile.to_owned()).await
}

/// Starts it, shows how it goes, and ends with it.
async fn whole(context: &CommandContext, args: Build, dockerfile: String) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let spec = spec(&args, &dockerfile)?;
    let client = context.client()?;
    let mut progress = Progress::new(context.out, args.quiet);
    let started = tokio::select! {
        started = start(&client, &args, &dockerfile, &spec, &mut progress) => started,
        number = signals.next() => Err(Failure::silent(signal_status(number))),
    };
    let started = match started {
        Ok(started) => started,
        Err(failure) => {
            progress.done();
            return Err(failure);
        }
    };
    let id = text(&started, "id").to_owned();
    if args.detach {
        progress.done();
        return if context.out.json { context.out.json(&started) } else { context.out.line(&id) };
    }
    let mut watch = BuildView { progress };
    let ended = tokio::select! {
        ended = watch.until_end(&client, &id, started) => ended,
        number = signals.next() => {
            watch.progress.line("cancelling …");
            let cancelled = client.delete(&path(&id, "")).await;
            watch.progress.done();
            return Err(match cancelled {
                Ok(_) => Failure::silent(signal_status(number)),
                Err(failure) => failure,
            });
        }
    };
    watch.progress.done();
    finish(context, &args, ended?)
}

/// E2B's SDKs know a build by a UUID; the server's own name of it is meant.
fn path(build: &str, below: &str) -> String {
    let own = atoll_front_e2b::build_of_uuid(build);
    format!("/v1/builds/{}{below}", segment(own.as_ref().map_or(build, |id| id.as_str())))
}

/// Where the id of a build is found.
fn find_hint(failure: Failure) -> Failure {
    match failure.code.as_str() {
        // The server's hint is for who writes a client.
        "build_not_found" => {
            failure.hint("`atoll template builds` shows the ids of builds; E2B's UUIDs are taken too")
        }
        _ => failure,
    }
}

/// Says how it ended; a build that failed is a failure of this command.
fn finish(context: &CommandContext, args: &Build, ended: Value) -> Result<(), Failure> {
    match text(&ended, "status") {
        "ready" => {
            for note in ended["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                context.out.tell(&format!("note: {}", harmless(note)));
            }
            if context.out.json {
                return context.out.json(&ended);
            }
            let name = text(&ended, "template");
            context.out.line(name)?;
            if !args.quiet {
                context.out.tell(&format!("next: atoll run -T {name} -- …"));
            }
            Ok(())
        }
        "cancelled" => Err(Failure::new("cancelled", "the build was cancelled")
            .hint("what was built until then is in the cache; build again to go on")),
        _ => {
            let mut failure = told(&ended["failure"]);
            if failure.hint.is_none() {
                failure.hint = Some(format!("atoll template log {}", text(&ended, "id")));
            }
            Err(failure)
        }
    }
}

/// The Dockerfile as text: it need not be in the folder that is sent.
fn dockerfile(args: &Build) -> Result<String, Failure> {
    let file = args.file.clone().unwrap_or_else(|| args.folder.join("Dockerfile"));
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(DOCKERFILE_MAX).read_to_string(&mut text)
    } else {
        std::fs::File::open(&file).and_then(|opened| opened.take(DOCKERFILE_MAX).read_to_string(&mut text))
    };
    match read {
        Ok(_) => Ok(text),
        Err(cause) => Err(Failure::usage(
            format!("{} cannot be read: {cause}", file.display()),
            "name another with -f FILE, or - for stdin",
        )),
    }
}

/// What the server is told, without the folder.
fn spec(args: &Build, dockerfile: &str) -> Result<Map<String, Value>, Failure> {
    let (first, others) = args.tag.split_first().ok_or_else(|| Failure::usage("no name", "-t NAME"))?;
    let mut tags = Vec::new();
    for other in others {
        match (&other.tag, other.name == first.name) {
            (Some(tag), true) => tags.push(tag.clone()),
            _ => {
                return Err(Failure::usage(
                    format!("{other} is not another tag of {}", first.name),
                    "a build makes one template; `atoll template tag` and `push` make more of it",
                ));
            }
        }
    }
    let mut spec = Map::new();
    let mut put = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            spec.insert(field.to_owned(), value);
        }
    };
    put("template", Some(json!(first)));
    put("tags", (!tags.is_empty()).then(|| json!(tags)));
    put("dockerfile", Some(json!(dockerfile)));
    put("args", super::create::pairs(&args.build_arg));
    put("secrets", secrets(&args.secret)?);
    put("target", args.target.as_ref().map(|v| json!(v)));
    put("platform", args.platform.as_ref().map(|v| json!(v)));
    put("no_cache", args.no_cache.then_some(json!(true)));
    put("network", network::asked(&args.reach)?);
    put("cpu", args.cpu.map(|v| json!(v)));
    put("memory_mib", args.memory.map(|v| json!(v.0)));
    put("disk_mib", args.disk.map(|v| json!(v.0)));
    put("timeout_s", args.timeout.map(|v| json!(v.whole())));
    let start: Map<String, Value> = template::start(&args.start).collect();
    put("start", (!start.is_empty()).then_some(Value::Object(start)));
    Ok(spec)
}

fn secrets(sources: &[SecretSource]) -> Result<Option<Value>, Failure> {
    use base64::Engine as _;
    let mut secrets = Vec::new();
    for SecretSource { id, from } in sources {
        let mut value = Vec::new();
        match from {
            SecretFrom::Variable(name) => match environment::of_user(name) {
                Some(found) => value = found.into_bytes(),
                None => {
                    return Err(Failure::usage(
                        format!("{name} is not set, so there is no secret {id}"),
                        format!("write --secret id={id},src=FILE"),
                    ));
                }
            },
            SecretFrom::File(path) => {
                let read = std::fs::File::open(path)
                    .and_then(|opened| opened.take(SECRET_MAX + 1).read_to_end(&mut value));
                if let Err(cause) = read {
                    return Err(Failure::new("io", format!("{} cannot be read: {cause}", path.display())));
                }
                if value.len() as u64 > SECRET_MAX {
                    return Err(Failure::usage(
                        format!("{} is too large for a secret", path.display()),
                        "a secret has 512 KiB at most; COPY takes larger files",
                    ));
                }
            }
        }
        secrets.push(match String::from_utf8(value) {
            Ok(value) => json!({ "id": id, "value": value }),
            Err(e) => {
                let coded = base64::engine::general_purpose::STANDARD.encode(e.as_bytes());
                json!({ "id": id, "value_base64": coded })
            }
        });
    }
    Ok((!secrets.is_empty()).then_some(Value::Array(secrets)))
}

/// Sends the wish and the folder; the answer is the build, which is then under way.
async fn start(
    client: &Client,
    args: &Build,
    dockerfile: &str,
    spec: &Map<String, Value>,
    progress: &mut Progress,
) -> Result<Value, Failure> {
    let wish = Value::Object(spec.clone()).to_string();
    let wish = multipart::Part::text(wish)
        .mime_str("application/json")
        .map_err(|e| Failure::new("internal", format!("the request cannot be made: {e}")))?;
    let form = multipart::Form::new().part("spec", wish);
    let request = client.request(Method::POST, "/v1/builds");
    let answer = if context::is_needed(dockerfile) {
        let ignored = context::Ignored::read(&args.folder, args.file.as_deref())?;
        let packed = context::pack(&args.folder, ignored, progress.transfer("context", None))?;
        let fault = packed.fault();
        let form = form.part("context", multipart::Part::stream(packed.body).file_name("context.tar"));
        client.send(request.multipart(form)).await.map_err(|failure| fault.or(failure))
    } else {
        client.send(request.multipart(form)).await
    };
    answer?.json().await.map_err(|e| Failure::new("bad_answer", format!("the build did not arrive: {e}")))
}

/// A build that somebody looks at.
struct BuildView {
    progress: Progress,
}

impl BuildView {
    /// Follows the log until the build has ended; a connection that breaks is made again.
    async fn until_end(&mut self, client: &Client, id: &str, mut build: Value) -> Result<Value, Failure> {
        let mut seen = 0;
        loop {
            let below = format!("/logs?follow=1&from={}", seen + 1);
            let answer = client.send(client.request(Method::GET, &path(id, &below))).await?;
            let mut events = Events::new(answer);
            while let Ok(Some(event)) = events.next().await {
                let said = event.json();
                match event.name.as_str() {
                    "line" => {
                        seen = said["seq"].as_u64().unwrap_or(seen);
                        self.say(&said);
                    }
                    "end" => return Ok(said),
                    "error" => return Err(told(&said)),
                    _ => {}
                }
            }
            build = client.get(&path(id, "")).await.unwrap_or(build);
            if matches!(text(&build, "status"), "ready" | "failed" | "cancelled") {
                return Ok(build);
            }
            // The server ends streams when it closes; another one may be there in a moment.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
    }

    fn say(&mut self, line: &Value) {
        let said = text(line, "text");
        match text(line, "level") {
            "stdout" | "stderr" => self.progress.line(&format!("  {said}")),
            "info" => {
                self.progress.line(said);
                self.progress.now(said);
            }
            // It is what this command ends with.
            "error" => {}
            _ => self.progress.line(said),
        }
    }
}

pub(super) async fn builds(context: &CommandContext, client: &Client, args: Builds) -> Result<(), Failure> {
    let query: Vec<_> = args.template.iter().map(|name| ("template", name.clone())).collect();
    let found = super::list::pages(client, "/v1/builds", query, Some(args.limit)).await?;
    let out = context.out;
    if args.quiet && out.json {
        return out.json(&found.iter().map(|build| text(build, "id")).collect::<Vec<_>>());
    }
    if args.quiet {
        return found.iter().try_for_each(|build| out.line(text(build, "id")));
    }
    if out.json {
        return out.json(&found);
    }
    table(&found, Timestamp::now()).lines().iter().try_for_each(|line| out.line(line))?;
    if found.is_empty() {
        out.tell("there is none; `atoll template build -t NAME DIR` makes one");
    }
    Ok(())
}

fn table(builds: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "TEMPLATE", "STATUS", "STEP", "CACHED", "AGE", "WHY"]);
    for build in builds {
        let why = build["failure"]["message"].as_str().unwrap_or_default();
        table.row(vec![
            text(build, "id").to_owned(),
            text(build, "template").to_owned(),
            text(build, "status").to_owned(),
            format!("{}/{}", build["step"], build["steps"]),
            build["cached_steps"].to_string(),
            age(moment(build, "created_at"), now),
            why.chars().take(60).collect(),
        ]);
    }
    table
}

pub(super) async fn log(context: &CommandContext, client: &Client, args: BuildLog) -> Result<(), Failure> {
    let follow = if args.follow { "1" } else { "0" };
    let request = client.request(Method::GET, &path(&args.build, "/logs")).query(&[("follow", follow)]);
    let out = context.out;
    let show = |line: &Value| {
        if out.json { out.json(line) } else { out.line(&harmless(text(line, "text"))) }
    };
    if !args.follow {
        return pages(client, &args.build, show).await.map_err(find_hint);
    }
    let mut events = Events::new(client.send(request).await.map_err(find_hint)?);
    while let Some(event) = events.next().await? {
        let said = event.json();
        match event.name.as_str() {
            "line" => show(&said)?,
            "error" => return Err(told(&said)),
            _ => {}
        }
    }
    Ok(())
}

/// Everything that was said until now, page by page.
async fn pages(
    client: &Client,
    build: &str,
    show: impl Fn(&Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut from = Some(1);
    while let Some(first) = from {
        let page = client.get_query(&path(build, "/logs"), &[("from", first.to_string())]).await?;
        from = page["next_from"].as_u64().filter(|next| *next > first);
        items(page).iter().try_for_each(&show)?;
    }
    Ok(())
}

/// Goes on past a failure; the status tells.
pub(super) async fn cancel(
    context: &CommandContext,
    client: &Client,
    builds: &[String],
) -> Result<(), Failure> {
    let mut failed = false;
    for build in builds {
        match client.delete(&path(build, "")).await {
            Ok(_) => context.out.named("build", build)?,
            Err(failure) if failure.is("no_server") => return Err(failure),
            Err(failure) => {
                failed = true;
                failure.report(context.out);
            }
        }
    }
    if failed { Err(Failure::silent(1)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_found_by_its_own_id_and_by_e2bs() {
        assert_eq!(path("aaaaaaaaaaaaaaaaaaaa", "/logs"), "/v1/builds/aaaaaaaaaaaaaaaaaaaa/logs");
        let uuid = "00000000-0000-8000-8000-000000000001";
        assert_eq!(path(uuid, ""), "/v1/builds/aaaaaaaaaaaaaaaaaaab");
        // Of another kind, so nobody's; the server says so.
        assert_eq!(
            path("00000000-0000-4000-8000-000000000001", ""),
            "/v1/builds/00000000-0000-4000-8000-000000000001"
        );
        assert!(
            find_hint(Failure::new("build_not_found", "")).hint.is_some_and(|hint| hint.contains("builds"))
        );
    }
}
