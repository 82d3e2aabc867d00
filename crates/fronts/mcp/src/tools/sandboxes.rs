//! Sandboxes: create, list, pause, resume, fork, delete.

use std::collections::BTreeMap;

use atoll_front_kit::{ApiError, rfc3339_millis};
use atoll_model::{CreateSandbox, Lease, LimitsAsk, NetworkPolicy, TimersAsk};
use atoll_service::{Filter, Fork, Pause};
use serde::{Deserialize, Serialize};

use super::ToolAnswer;
use super::schema::{self, Property, ToolDescription, ToolHints};
use crate::client::idle_timers;
use crate::methods::McpCall;

/// LIMIT: sandboxes in one answer, the newest.
const LISTED: u32 = 50;
const LISTED_MAX: u32 = 100;

pub(super) fn descriptions() -> Vec<ToolDescription> {
    use schema::{flag, integer, list, optional, required, sandbox, text, text_map, words};
    vec![
        ToolDescription {
            name: "sandbox_create",
            title: "Create a sandbox",
            description: "Creates an isolated Linux sandbox and returns when it runs. Not needed for a single task: the other \
                tools create a sandbox for this client by themselves.",
            hints: ToolHints::Adds,
            arguments: vec![
                optional("name", text("A name that is unique among your sandboxes")),
                optional("template", text("Template name; default: the server's. The resources list them")),
                optional(
                    "image",
                    text("Image of a registry, instead of a template, for example python:3.13"),
                ),
                optional("env", text_map("Environment of every command")),
                optional("cpu", schema::number("CPU cores")),
                optional("memory_mib", integer("Memory in MiB", 16, None)),
                optional("disk_mib", integer("Disk in MiB", 16, None)),
                optional(
                    "network",
                    words("What it may reach; default: allow-all", &["allow-all", "deny-all"]),
                ),
                optional(
                    "timeout_s",
                    integer(
                        "Seconds after which it is deleted; default: a day after it was stopped",
                        1,
                        None,
                    ),
                ),
                optional(
                    "idle_stop_s",
                    integer(
                        "Seconds without use after which it is stopped; default: 1800, never with timeout_s",
                        1,
                        None,
                    ),
                ),
            ],
            answer: shown(),
        },
        ToolDescription {
            name: "sandbox_list",
            title: "List sandboxes",
            description: "Lists the sandboxes of this key, newest first.",
            hints: ToolHints::Reads,
            arguments: vec![optional("limit", integer("Sandboxes at most", 1, Some(u64::from(LISTED_MAX))))],
            answer: vec![
                required("items", list("The sandboxes", shown())),
                required("more", flag("Whether there are more")),
            ],
        },
        ToolDescription {
            name: "sandbox_pause",
            title: "Pause a sandbox",
            description: "Pauses a sandbox. Processes and memory are kept; the next call that needs it resumes it.",
            hints: ToolHints::Sets,
            arguments: vec![sandbox()],
            answer: shown(),
        },
        ToolDescription {
            name: "sandbox_resume",
            title: "Resume a sandbox",
            description: "Makes a paused or stopped sandbox run again.",
            hints: ToolHints::Sets,
            arguments: vec![sandbox()],
            answer: shown(),
        },
        ToolDescription {
            name: "sandbox_fork",
            title: "Fork a sandbox",
            description: "Creates copies of a sandbox from its current files, to try several ways from the same state.",
            hints: ToolHints::Adds,
            arguments: vec![
                sandbox(),
                optional("count", integer("How many copies; default: 1", 1, Some(100))),
                optional("memory", flag("Also copy the running processes, if possible; default: false")),
            ],
            answer: vec![
                required("items", list("The copies", shown())),
                required("memory", flag("Whether they have the processes too")),
            ],
        },
        ToolDescription {
            name: "sandbox_delete",
            title: "Delete a sandbox",
            description: "Deletes a sandbox with its files and processes. Without sandbox: the client's own, with its forks and \
                snapshots. This cannot be undone.",
            hints: ToolHints::Changes,
            arguments: vec![sandbox()],
            answer: vec![schema::sandbox_id(), required("deleted", flag("Whether it is gone"))],
        },
    ]
}

fn shown() -> Vec<Property> {
    use schema::{nullable_text, required, text};
    vec![
        schema::sandbox_id(),
        required("name", nullable_text("Its name")),
        required("phase", text("running, paused, stopped, …")),
        required("template", text("Its template")),
        required("workdir", text("Working directory of commands")),
        required("created_at", text("When it was created")),
    ]
}

#[derive(Serialize)]
struct ShownSandbox {
    sandbox: String,
    name: Option<String>,
    phase: &'static str,
    template: String,
    workdir: String,
    created_at: String,
}

impl From<Lease> for ShownSandbox {
    fn from(lease: Lease) -> Self {
        Self {
            sandbox: lease.id.to_string(),
            name: lease.name,
            phase: lease.phase.as_str(),
            template: lease.template,
            workdir: lease.workdir,
            created_at: rfc3339_millis(lease.created_at.wall_ms),
        }
    }
}

fn answer(lease: Lease) -> Result<ToolAnswer, ApiError> {
    ToolAnswer::of(&ShownSandbox::from(lease))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateArguments {
    name: Option<String>,
    template: Option<String>,
    image: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cpu: Option<f64>,
    memory_mib: Option<i64>,
    disk_mib: Option<i64>,
    network: Option<PlainNetwork>,
    timeout_s: Option<u64>,
    idle_stop_s: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PlainNetwork {
    AllowAll,
    DenyAll,
}

pub(super) async fn create(call: &McpCall, args: CreateArguments) -> Result<ToolAnswer, ApiError> {
    if args.image.is_some() && args.template.is_some() {
        return Err(ApiError::invalid("image and template cannot be combined"));
    }
    // One without a lifetime would outlive its client for ever.
    let timers = if args.timeout_s.is_some() { TimersAsk::default() } else { idle_timers() };
    let timers = TimersAsk { auto_stop_s: args.idle_stop_s.or(timers.auto_stop_s), ..timers };
    let spec = CreateSandbox {
        name: args.name,
        template: args.template,
        image: args.image,
        env: args.env,
        limits: LimitsAsk { cpu: args.cpu, memory_mib: args.memory_mib, disk_mib: args.disk_mib, pids: None },
        network: args.network.map(|network| match network {
            PlainNetwork::AllowAll => NetworkPolicy::allow_all(),
            PlainNetwork::DenyAll => NetworkPolicy::deny_all(),
        }),
        timeout_s: args.timeout_s,
        timers,
        ..CreateSandbox::default()
    };
    let (lease, _) = Box::pin(call.mcp.service.sandboxes().create(&call.who, spec, true)).await?;
    answer(lease)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    limit: Option<u32>,
}

#[derive(Serialize)]
struct SandboxList {
    items: Vec<ShownSandbox>,
    more: bool,
}

pub(super) async fn list(call: &McpCall, args: ListArguments) -> Result<ToolAnswer, ApiError> {
    let filter = Filter { limit: args.limit.unwrap_or(LISTED).clamp(1, LISTED_MAX), ..Filter::default() };
    let page = call.mcp.service.sandboxes().list(&call.who, filter).await?;
    let items = page.items.into_iter().map(ShownSandbox::from).collect();
    ToolAnswer::of(&SandboxList { items, more: page.next_cursor.is_some() })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SandboxArguments {
    sandbox: Option<String>,
}

pub(super) async fn pause(call: &McpCall, args: SandboxArguments) -> Result<ToolAnswer, ApiError> {
    let id = call.existing(args.sandbox).await?;
    // First the timer: a client may end, or the server, before the pause is done.
    call.client.set_pause_limit(&call.mcp.service, &call.who, &id).await?;
    answer(call.mcp.service.sandboxes().pause(&call.who, &id, Pause::default(), true).await?)
}

pub(super) async fn resume(call: &McpCall, args: SandboxArguments) -> Result<ToolAnswer, ApiError> {
    let id = call.existing(args.sandbox).await?;
    let lease = call.mcp.service.sandboxes().resume(&call.who, &id, true).await?;
    answer(call.client.without_pause_limit(&call.mcp.service, &call.who, lease).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkArguments {
    sandbox: Option<String>,
    count: Option<u32>,
    #[serde(default)]
    memory: bool,
}

#[derive(Serialize)]
struct ForkedSandboxes {
    items: Vec<ShownSandbox>,
    memory: bool,
}

pub(super) async fn fork(call: &McpCall, args: ForkArguments) -> Result<ToolAnswer, ApiError> {
    let id = call.existing(args.sandbox).await?;
    let ask = Fork { count: args.count.unwrap_or(1), memory: args.memory, ..Fork::default() };
    let forked = call.mcp.service.sandboxes().fork(&call.who, &id, ask).await?;
    let items = forked.sandboxes.into_iter().map(ShownSandbox::from).collect();
    ToolAnswer::of(&ForkedSandboxes { items, memory: forked.memory })
}

#[derive(Serialize)]
struct DeletedSandbox {
    sandbox: String,
    deleted: bool,
}

pub(super) async fn delete(call: &McpCall, args: SandboxArguments) -> Result<ToolAnswer, ApiError> {
    let sandboxes = call.mcp.service.sandboxes();
    let id = call.existing(args.sandbox).await?;
    let lease = sandboxes.get(&call.who, &id).await?;
    let own = call.client.existing_sandbox(&call.mcp.service, &call.who).await;
    match own.is_ok_and(|own| own == lease.id.as_str()) {
        // Its thread is forgotten with it; a client that comes back gets a new one.
        true => sandboxes.end_client(&call.who, &call.client.thread).await?,
        false => drop(sandboxes.delete(&call.who, &id, true).await?),
    }
    ToolAnswer::of(&DeletedSandbox { sandbox: lease.id.to_string(), deleted: true })
}
