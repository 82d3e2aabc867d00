//! `atoll template build`, and the commands for running and finished builds.
//!
//! The folder is packed here and sent with the request; then the log is followed. Ctrl-C also cancels the build on the
//! server.

pub(super) mod context;

use std::{io::Read, path::Path};

use atoll_client::builds::{
    Build as BuildAnswer, BuildBody, BuildLine, BuildSecretBody, BuildStatus, Level, LogsQuery,
};
use atoll_client::client::{Answer, Listing};
use atoll_client::exec::StreamError;
use atoll_image::BuiltRecipe;
use jiff::Timestamp;
use reqwest::multipart;

use super::{
    CommandContext, follow::told, moment, network, network::WithPolicy, process::Signals,
    process::signal_status, progress::Progress, template,
};
use crate::{
    cli::{
        template::{Build, BuildLog, Builds, Start},
        values::{Mebibytes, Pair, Ready, SecretFrom, SecretSource},
    },
    client::Client,
    environment,
    failure::Failure,
    human::{Table, age, harmless},
};

/// LIMIT: far above any Dockerfile; the server has its own limit.
const DOCKERFILE_MAX: u64 = 1 << 20;
/// LIMIT: a secret is a key or a small file.
const SECRET_MAX: u64 = 512 << 10;

pub(super) async fn build(context: &CommandContext, args: Build) -> Result<(), Failure> {
    if !args.folder.is_dir() {
        return Err(Failure::usage(
            format!("{} is not a folder", args.folder.display()),
            "the last argument is the folder with the Dockerfile, such as .",
        ));
    }
    let dockerfile = dockerfile(&args)?;
    network::note(context.out, &args.reach);
    whole(context, args, dockerfile).await
}

/// A template whose Dockerfile is part of this program; it copies no files.
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

/// Starts a build, shows its progress, and ends with it.
async fn whole(context: &CommandContext, args: Build, dockerfile: String) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let body = spec(&args, &dockerfile)?;
    let spec = WithPolicy { body: &body, network: network::asked(&args.reach)? };
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
    let id = started.id.clone();
    if args.detach {
        progress.done();
        return if context.out.json { context.out.json(&started) } else { context.out.line(&id) };
    }
    let mut watch = BuildView { progress };
    let ended = tokio::select! {
        ended = watch.until_end(&client, &id, started) => ended,
        number = signals.next() => {
            watch.progress.line("cancelling …");
            let cancelled = client.cancel_build(&id).await;
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

/// E2B's SDKs show a UUID for a build; this returns the server's own id.
fn own_id(build: &str) -> String {
    let own = atoll_front_e2b::build_of_uuid(build);
    own.as_ref().map_or(build, |id| id.as_str()).to_owned()
}

/// Adds a hint about the ids of builds.
fn find_hint(failure: Failure) -> Failure {
    match failure.code.as_str() {
        // The server's hint is for authors of clients.
        "build_not_found" => {
            failure.hint("`atoll template builds` shows the ids of builds; E2B's UUIDs are accepted too")
        }
        _ => failure,
    }
}

/// Reports the result; a failed build is a failure of this command.
fn finish(context: &CommandContext, args: &Build, ended: Answer<BuildAnswer>) -> Result<(), Failure> {
    match ended.status {
        BuildStatus::Ready => {
            for note in &ended.notes {
                context.out.tell(&format!("note: {}", harmless(note)));
            }
            if context.out.json {
                return context.out.json(&ended);
            }
            let name = &ended.template;
            context.out.line(name)?;
            if !args.quiet {
                context.out.tell(&format!("next: atoll run -T {name} -- …"));
            }
            Ok(())
        }
        BuildStatus::Cancelled => Err(Failure::new("cancelled", "the build was cancelled")
            .hint("finished steps are in the cache; build again to continue")),
        BuildStatus::Failed | BuildStatus::Waiting | BuildStatus::Building => {
            let mut failure = match &ended.failure {
                Some(why) => told(StreamError {
                    code: why.code.clone(),
                    message: why.message.clone(),
                    hint: why.hint.clone(),
                }),
                None => Failure::new("build_failed", "the build did not succeed"),
            };
            if failure.hint.is_none() {
                failure.hint = Some(format!("atoll template log {}", ended.id));
            }
            Err(failure)
        }
    }
}

/// The Dockerfile as text: it need not be in the folder.
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
            "set another one with -f FILE, or - for stdin",
        )),
    }
}

/// The request without the folder and the network policy.
fn spec(args: &Build, dockerfile: &str) -> Result<BuildBody, Failure> {
    let (first, others) = args.tag.split_first().ok_or_else(|| Failure::usage("no name", "-t NAME"))?;
    let mut tags = Vec::new();
    for other in others {
        match (&other.tag, other.name == first.name) {
            (Some(tag), true) => tags.push(tag.clone()),
            _ => {
                return Err(Failure::usage(
                    format!("{other} is not a tag of {}", first.name),
                    "a build makes one template; use `atoll template tag` and `push` for other names",
                ));
            }
        }
    }
    Ok(BuildBody {
        template: first.to_string(),
        tags,
        dockerfile: Some(dockerfile.to_owned()),
        args: super::create::pairs(&args.build_arg),
        secrets: secrets(&args.secret)?,
        target: args.target.clone(),
        platform: args.platform.clone(),
        no_cache: args.no_cache,
        cpu: args.cpu,
        memory_mib: args.memory.map(Mebibytes::as_limit),
        disk_mib: args.disk.map(Mebibytes::as_limit),
        timeout_s: args.timeout.map(|v| v.whole()),
        start: template::start(&args.start),
        ..BuildBody::default()
    })
}

fn secrets(sources: &[SecretSource]) -> Result<Vec<BuildSecretBody>, Failure> {
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
            Ok(value) => BuildSecretBody { id: id.clone(), value: Some(value), value_base64: None },
            Err(e) => {
                let coded = base64::engine::general_purpose::STANDARD.encode(e.as_bytes());
                BuildSecretBody { id: id.clone(), value: None, value_base64: Some(coded) }
            }
        });
    }
    Ok(secrets)
}

/// Sends the request and the folder; returns the running build.
async fn start(
    client: &Client,
    args: &Build,
    dockerfile: &str,
    spec: &WithPolicy<'_, BuildBody>,
    progress: &mut Progress,
) -> Result<Answer<BuildAnswer>, Failure> {
    let internal =
        |e: &dyn std::fmt::Display| Failure::new("internal", format!("the request cannot be made: {e}"));
    let wish = serde_json::to_string(spec).map_err(|e| internal(&e))?;
    let wish = multipart::Part::text(wish).mime_str("application/json").map_err(|e| internal(&e))?;
    let form = multipart::Form::new().part("spec", wish);
    if context::is_needed(dockerfile) {
        let ignored = context::Ignored::read(&args.folder, args.file.as_deref())?;
        let packed = context::pack(&args.folder, ignored, progress.transfer("context", None))?;
        let fault = packed.fault();
        let form = form.part("context", multipart::Part::stream(packed.body).file_name("context.tar"));
        client.start_build(form).await.map_err(|failure| fault.or(failure))
    } else {
        client.start_build(form).await
    }
}

/// The progress display of a build.
struct BuildView {
    progress: Progress,
}

impl BuildView {
    /// Follows the log until the build has ended; reconnects if the connection breaks.
    async fn until_end(
        &mut self,
        client: &Client,
        id: &str,
        mut build: Answer<BuildAnswer>,
    ) -> Result<Answer<BuildAnswer>, Failure> {
        let mut seen = 0;
        loop {
            let query = LogsQuery { from: Some(seen + 1), follow: None };
            let mut events = client.follow_build_log(id, &query).await?;
            while let Ok(Some(event)) = events.next().await {
                match event.name.as_str() {
                    "line" => {
                        let line = events.read::<BuildLine>(&event)?;
                        seen = line.seq;
                        self.say(&line);
                    }
                    "end" => return events.read(&event),
                    "error" => return Err(told(events.read::<StreamError>(&event)?.into_typed())),
                    _ => {}
                }
            }
            build = client.build(id).await.unwrap_or(build);
            if matches!(build.status, BuildStatus::Ready | BuildStatus::Failed | BuildStatus::Cancelled) {
                return Ok(build);
            }
            // The server ends streams when it closes; another one may start soon.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
    }

    fn say(&mut self, line: &BuildLine) {
        let said = &line.text;
        match line.level {
            Level::Stdout | Level::Stderr => self.progress.line(&format!("  {said}")),
            Level::Info => {
                self.progress.line(said);
                self.progress.now(said);
            }
            // The command ends with this text.
            Level::Error => {}
            Level::Warn | Level::Unknown => self.progress.line(said),
        }
    }
}

pub(super) async fn builds(context: &CommandContext, client: &Client, args: Builds) -> Result<(), Failure> {
    let found = client.builds(args.template.as_deref(), Some(args.limit)).await?;
    let out = context.out;
    if args.quiet && out.json {
        return out.json(&found.items.iter().map(|build| &build.id).collect::<Vec<_>>());
    }
    if args.quiet {
        return found.items.iter().try_for_each(|build| out.line(&build.id));
    }
    if out.json {
        return out.json(&found);
    }
    table(&found.items, Timestamp::now()).lines().iter().try_for_each(|line| out.line(line))?;
    if found.items.is_empty() {
        out.tell("there are no builds; `atoll template build -t NAME DIR` starts one");
    }
    Ok(())
}

fn table(builds: &[BuildAnswer], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "TEMPLATE", "STATUS", "STEP", "CACHED", "AGE", "WHY"]);
    for build in builds {
        let why = build.failure.as_ref().map_or("", |failure| &failure.message);
        table.row(vec![
            build.id.clone(),
            build.template.clone(),
            build.status.as_str().to_owned(),
            format!("{}/{}", build.step, build.steps),
            build.cached_steps.to_string(),
            age(moment(build.created_at.as_str()), now),
            why.chars().take(60).collect(),
        ]);
    }
    table
}

pub(super) async fn log(context: &CommandContext, client: &Client, args: BuildLog) -> Result<(), Failure> {
    let build = own_id(&args.build);
    let out = context.out;
    let show = |line: &Answer<BuildLine>| {
        if out.json { out.json(line) } else { out.line(&harmless(&line.text)) }
    };
    if !args.follow {
        return pages(client, &build, show).await.map_err(find_hint);
    }
    let mut events = client.follow_build_log(&build, &LogsQuery::default()).await.map_err(find_hint)?;
    while let Some(event) = events.next().await? {
        match event.name.as_str() {
            "line" => show(&events.read(&event)?)?,
            "error" => return Err(told(events.read::<StreamError>(&event)?.into_typed())),
            _ => {}
        }
    }
    Ok(())
}

/// The log so far, page by page.
async fn pages(
    client: &Client,
    build: &str,
    show: impl Fn(&Answer<BuildLine>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut from = Some(1);
    while let Some(first) = from {
        let page = client.build_log(build, &LogsQuery { from: Some(first), follow: None }).await?;
        from = page.next_from.filter(|next| *next > first);
        Listing::of(page).into_answers().try_for_each(|line| show(&line))?;
    }
    Ok(())
}

/// Continues after a failure; the exit status reports it.
pub(super) async fn cancel(
    context: &CommandContext,
    client: &Client,
    builds: &[String],
) -> Result<(), Failure> {
    let mut failed = false;
    for build in builds {
        match client.cancel_build(&own_id(build)).await {
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
        assert_eq!(own_id("aaaaaaaaaaaaaaaaaaaa"), "aaaaaaaaaaaaaaaaaaaa");
        let uuid = "00000000-0000-8000-8000-000000000001";
        assert_eq!(own_id(uuid), "aaaaaaaaaaaaaaaaaaab");
        // Another kind of UUID is passed on unchanged; the server refuses it.
        let other = "00000000-0000-4000-8000-000000000001";
        assert_eq!(own_id(other), other);
        assert!(
            find_hint(Failure::new("build_not_found", "")).hint.is_some_and(|hint| hint.contains("builds"))
        );
    }
}
