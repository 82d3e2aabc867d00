//! The commands. One file per verb or noun; the grammar is in `cli`.
//!
//! A command parses nothing and makes no decisions about sandboxes: it sends requests and shows the answers.

#![expect(
    clippy::disallowed_methods,
    reason = "the command line shows ages and ends with its threads; it decides nothing by them"
)]

mod archive_stream;
mod backup;
mod build;
mod code;
mod command_hints;
mod context;
mod cp;
mod create;
mod doctor;
mod egress;
pub(crate) mod env;
mod events;
mod exec;
mod follow;
mod fork;
mod grep;
mod inspect;
mod key;
mod learned_policy;
mod lifecycle;
mod list;
mod login;
mod logs;
mod mcp;
mod moving;
mod network;
mod of_tenant;
mod open;
mod policy;
mod preview;
mod process;
mod progress;
mod provider;
mod queue_wait;
mod run;
mod secret;
mod server;
mod shell;
mod snapshot;
mod system;
mod template;
mod tenant;
mod terminal;
mod thread;
mod tls;
mod top;
mod update;
mod version;
mod volume;
mod wait;

pub(crate) use doctor::{Check, CheckState};
use serde::Serialize;

use crate::{
    cli::{Command, Global, sandbox::Targets},
    client::{Client, similar_names},
    failure::Failure,
    out::Out,
};

/// The context of every command.
#[derive(Clone)]
pub(crate) struct CommandContext {
    pub(crate) global: Global,
    pub(crate) out: Out,
}

impl CommandContext {
    fn client(&self) -> Result<Client, Failure> {
        Client::new(&self.global)
    }
}

/// Runs one command; returns its exit status.
pub(crate) async fn dispatch(context: &CommandContext, mut command: Command) -> Result<u8, Failure> {
    let done = |()| 0;
    if let Some(tenant) = &context.global.tenant {
        of_tenant::name_by_id(context, tenant, &mut command).await?;
    }
    match command {
        Command::Run(args) => run::run(context, args).await,
        Command::Exec(args) => exec::exec(context, args).await,
        Command::Code(args) => code::code(context, args).await,
        Command::Sh(args) => shell::sh(context, args).await,
        Command::Create(args) => create::create(context, args).await.map(done),
        Command::Ls(args) => list::ls(context, args).await.map(done),
        Command::Inspect(args) => inspect::inspect(context, args).await.map(done),
        Command::Cp(args) => cp::cp(context, args).await.map(done),
        Command::Git(args) => exec::exec(context, args.into_exec()).await,
        Command::Grep(args) => grep::grep(context, args).await,
        Command::Logs(args) => logs::logs(context, args).await.map(done),
        Command::Top(args) => top::top(context, args).await.map(done),
        Command::Ps(args) => list::ps(context, args).await.map(done),
        Command::Signal(args) => lifecycle::signal(context, args).await.map(done),
        Command::Pause(args) => lifecycle::pause(context, args).await.map(done),
        Command::Resume(args) => each(context, &args, lifecycle::RESUME).await.map(done),
        Command::Start(args) => each(context, &args, lifecycle::START).await.map(done),
        Command::Stop(args) => each(context, &args, lifecycle::STOP).await.map(done),
        Command::Restart(args) => each(context, &args, lifecycle::RESTART).await.map(done),
        Command::Archive(args) => each(context, &args, lifecycle::ARCHIVE).await.map(done),
        Command::Restore(args) => lifecycle::restore(context, args).await.map(done),
        Command::Resize(args) => update::resize(context, args).await.map(done),
        Command::Snapshot(args) => snapshot::snapshot(context, args).await.map(done),
        Command::Fork(args) => fork::fork(context, args).await.map(done),
        Command::Move(args) => moving::move_sandbox(context, args).await.map(done),
        Command::Rollback(args) => lifecycle::rollback(context, args).await.map(done),
        Command::Hold(args) => lifecycle::hold(context, args).await.map(done),
        Command::Extend(args) => lifecycle::extend(context, args).await.map(done),
        Command::Thread(args) => thread::thread(context, args).await.map(done),
        Command::Rm(args) => lifecycle::rm(context, args).await.map(done),
        Command::Update(args) => update::update(context, args).await.map(done),
        Command::Preview(args) => preview::preview(context, args).await.map(done),
        Command::Egress(args) => egress::egress(context, args).await.map(done),
        Command::Secret(args) => secret::secret(context, args).await.map(done),
        Command::Events(args) => events::events(context, args).await.map(done),
        Command::Template(args) => template::template(context, args).await.map(done),
        Command::Build(args) => build::build(context, args).await.map(done),
        Command::Volume(args) => volume::volume(context, args).await.map(done),
        Command::Provider(args) => provider::provider(context, args).await.map(done),
        Command::Open(args) => open::open(context, args).await.map(done),
        Command::Login(args) => login::login(context, args).await.map(done),
        Command::Logout(args) => login::logout(context, args).await.map(done),
        Command::Whoami => login::whoami(context).await.map(done),
        Command::Context(args) => context::context(context, args).map(done),
        Command::Key(args) => key::key(context, args).await.map(done),
        Command::Tenant(args) => tenant::tenant(context, args).await.map(done),
        Command::Tls(args) => tls::tls(context, args).await.map(done),
        Command::Env(args) => env::env(context, &args).await.map(done),
        Command::Mcp(args) => mcp::mcp(context, args).await.map(done),
        Command::Server(args) => server::server(context, args).await.map(done),
        Command::System(args) => system::system(context, args).await.map(done),
        Command::Prune(args) => system::prune(context, args).await.map(done),
        Command::Doctor => doctor::doctor(context).await,
        Command::Openapi => version::openapi(context).map(done),
        Command::Version => version::version(context).await.map(done),
        Command::Completions { shell } => version::completions(context, shell).map(done),
        Command::Man { folder } => version::manual_pages(&folder).map(done),
        // Both must run before there is a runtime; `main` handles them.
        Command::Serve(_) | Command::Launcher { .. } => {
            Err(Failure::new("internal", "this command is run by main"))
        }
    }
}

/// A time in the format of the API.
fn moment<'a>(text: impl Into<Option<&'a str>>) -> Option<jiff::Timestamp> {
    text.into()?.parse().ok()
}

/// LIMIT: names that are compared for a suggestion.
const KNOWN_MAX: u32 = 200;

/// Adds the most similar name as a hint to an unknown sandbox.
async fn suggest(client: &Client, wanted: &str, failure: Failure) -> Failure {
    // The server knows that another tenant has one of this name.
    let says_where = failure.hint.as_deref().is_some_and(|hint| hint.contains("--tenant"));
    if says_where || !failure.is("sandbox_not_found") {
        return failure;
    }
    let Ok(known) = client.first_sandboxes(KNOWN_MAX).await else { return failure };
    let names = known.items.iter().flat_map(|sandbox| sandbox.name.iter().chain([&sandbox.id]));
    match similar_names::nearest(wanted, names.map(String::as_str)) {
        Some(name) => failure.hint(format!("did you mean {name}? `atoll ls` shows every sandbox")),
        None => failure.hint("`atoll ls` shows every sandbox"),
    }
}

/// Applies a verb without options to each target.
async fn each(context: &CommandContext, args: &Targets, verb: lifecycle::Verb) -> Result<(), Failure> {
    lifecycle::each(context, &args.sandboxes, verb).await
}

/// Indented JSON.
fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
