//! Snapshots: take one, and put a sandbox back to it.

use atoll_front_kit::{ApiError, rfc3339_millis};
use atoll_service::NewSnapshot;
use serde::{Deserialize, Serialize};

use super::ToolAnswer;
use super::schema::{self, ToolDescription, ToolHints};
use crate::methods::McpCall;

pub(super) fn descriptions() -> Vec<ToolDescription> {
    use schema::{flag, integer, nullable_text, optional, required, sandbox, sandbox_id, text};
    vec![
        ToolDescription {
            name: "snapshot",
            title: "Take a snapshot",
            description: "Keeps the files of a sandbox as they are now, to come back to with rollback.",
            hints: ToolHints::Adds,
            arguments: vec![
                sandbox(),
                optional("name", text("A name that is unique among the snapshots of the sandbox")),
                optional("memory", flag("Also keep the running processes, if possible; default: false")),
            ],
            answer: vec![
                sandbox_id(),
                required("snapshot", text("Id of the snapshot")),
                required("name", nullable_text("Its name")),
                required("memory", flag("Whether it has the processes too")),
                required("bytes", integer("Its size", 0, None)),
                required("created_at", text("When it was taken")),
            ],
        },
        ToolDescription {
            name: "rollback",
            title: "Roll back to a snapshot",
            description: "Puts a sandbox back to one of its own snapshots. Everything that changed since is lost.",
            hints: ToolHints::Changes,
            arguments: vec![required("snapshot", text("Id or name of the snapshot")), sandbox()],
            answer: vec![
                sandbox_id(),
                required("snapshot", text("The snapshot as it was named")),
                required("phase", text("The phase of the sandbox afterwards")),
            ],
        },
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeArguments {
    sandbox: Option<String>,
    name: Option<String>,
    #[serde(default)]
    memory: bool,
}

#[derive(Serialize)]
struct TakenSnapshot {
    sandbox: String,
    snapshot: String,
    name: Option<String>,
    memory: bool,
    bytes: u64,
    created_at: String,
}

pub(super) async fn take(call: &McpCall, args: TakeArguments) -> Result<ToolAnswer, ApiError> {
    let ident = call.existing(args.sandbox).await?;
    let ask = NewSnapshot { name: args.name, memory: args.memory, ..NewSnapshot::default() };
    let taken = call.mcp.service.sandboxes().snapshot(&call.who, &ident, ask).await?;
    ToolAnswer::of(&TakenSnapshot {
        sandbox: taken.sandbox.to_string(),
        snapshot: taken.id.to_string(),
        name: taken.name,
        memory: taken.memory,
        bytes: taken.bytes,
        created_at: rfc3339_millis(taken.created_at.wall_ms),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackArguments {
    snapshot: String,
    sandbox: Option<String>,
}

#[derive(Serialize)]
struct RolledBack {
    sandbox: String,
    snapshot: String,
    phase: &'static str,
}

pub(super) async fn rollback(call: &McpCall, args: RollbackArguments) -> Result<ToolAnswer, ApiError> {
    let ident = call.existing(args.sandbox).await?;
    let lease = call.mcp.service.sandboxes().rollback(&call.who, &ident, &args.snapshot, true).await?;
    let (sandbox, phase) = (lease.id.to_string(), lease.phase.as_str());
    ToolAnswer::of(&RolledBack { sandbox, snapshot: args.snapshot, phase })
}
