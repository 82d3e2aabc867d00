//! The network of a sandbox: links to its ports, and what it may reach.

use atoll_front_kit::{ApiError, rfc3339_millis};
use atoll_model::EgressVerdict;
use atoll_service::{EgressQuery, NewPreview};
use serde::{Deserialize, Serialize};

use super::ToolAnswer;
use super::schema::{self, ToolDescription, ToolHints};
use crate::methods::McpCall;

/// LIMIT: refused connections in one answer, the newest.
const REFUSED_MAX: u32 = 20;

pub(super) fn descriptions() -> Vec<ToolDescription> {
    use schema::{flag, integer, list, nullable_text, optional, required, sandbox, sandbox_id, text, texts};
    vec![
        ToolDescription {
            name: "preview",
            title: "Open a port",
            description: "Returns a link to a port of the sandbox, for example of a web server that listens on 0.0.0.0. The link \
                contains a token; everyone who has it can reach the port until it expires.",
            hints: ToolHints::Adds,
            arguments: vec![
                required("port", integer("The port in the sandbox", 1, Some(65_535))),
                sandbox(),
                optional("expires_s", integer("Seconds until the link expires; default: 3600", 1, None)),
            ],
            answer: vec![
                sandbox_id(),
                required("port", integer("The port", 1, Some(65_535))),
                required("url", text("The link")),
                required("path", text("The same below the address of this server")),
                required("expires_at", nullable_text("When the link expires")),
            ],
        },
        ToolDescription {
            name: "egress_explain",
            title: "Explain outgoing connections",
            description: "Says whether the sandbox may reach a host and which rule decides, and lists its latest refused \
                connections. Use it when a download or an API call in the sandbox fails.",
            hints: ToolHints::Reads,
            arguments: vec![
                sandbox(),
                optional("destination", text("A host name or address, without scheme, port and path")),
            ],
            answer: vec![
                sandbox_id(),
                required("mode", text("allow-all, deny-all or custom")),
                required("narrowed_by", texts("Whose policies restrict it further: tenant, operator")),
                required("allowed", schema::nullable_flag("Whether the destination may be reached")),
                required("rule", nullable_text("The rule that decides")),
                required(
                    "refused",
                    list(
                        "The latest refused connections, newest last",
                        vec![
                            required("at", text("When")),
                            required("destination", nullable_text("Where to")),
                            required("rule", text("The rule that refused it")),
                        ],
                    ),
                ),
                required("lost", flag("Whether records are missing")),
            ],
        },
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreviewArguments {
    port: u16,
    sandbox: Option<String>,
    expires_s: Option<u64>,
}

#[derive(Serialize)]
struct PreviewLink {
    sandbox: String,
    port: u16,
    url: String,
    path: String,
    expires_at: Option<String>,
}

pub(super) async fn preview(call: &McpCall, args: PreviewArguments) -> Result<ToolAnswer, ApiError> {
    let ident = call.sandbox(args.sandbox).await?;
    let ask = NewPreview { port: args.port, expires_s: args.expires_s, public: false };
    let made = call.mcp.service.access().create_preview(&call.who, &ident, ask).await?;
    let query = made.token.as_ref().map_or_else(String::new, |token| format!("?atoll_token={token}"));
    let (sandbox, port) = (made.preview.sandbox.to_string(), made.preview.port);
    let options = &call.mcp.options;
    ToolAnswer::of(&PreviewLink {
        url: format!("http://{port}-{sandbox}.{}:{}/{query}", options.preview_domain, options.preview_port),
        path: format!("/p/{sandbox}/{port}/{query}"),
        expires_at: made.preview.expires_at_ms.map(rfc3339_millis),
        sandbox,
        port,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainArguments {
    sandbox: Option<String>,
    destination: Option<String>,
}

#[derive(Serialize)]
struct ExplainedEgress {
    sandbox: String,
    mode: &'static str,
    narrowed_by: Vec<&'static str>,
    allowed: Option<bool>,
    rule: Option<String>,
    refused: Vec<RefusedConnection>,
    lost: bool,
}

#[derive(Serialize)]
struct RefusedConnection {
    at: String,
    destination: Option<String>,
    rule: String,
}

pub(super) async fn explain(call: &McpCall, args: ExplainArguments) -> Result<ToolAnswer, ApiError> {
    let (sandboxes, who) = (call.mcp.service.sandboxes(), &call.who);
    let ident = call.sandbox(args.sandbox).await?;
    let lease = sandboxes.get(who, &ident).await?;
    let explained = match &args.destination {
        Some(destination) => Some(sandboxes.explain_egress(who, &ident, destination).await?),
        None => None,
    };
    let query = EgressQuery { limit: REFUSED_MAX, since_ms: None, verdict: Some(EgressVerdict::Refused) };
    let records = sandboxes.egress_log(who, &ident, query).await?;
    // A record about missing ones matches every query.
    let (refused, lost): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| record.verdict == EgressVerdict::Refused);
    let refused = refused.into_iter().map(|record| RefusedConnection {
        at: rfc3339_millis(record.at_ms),
        destination: record.name.or(record.address.map(|address| address.to_string())),
        rule: record.rule,
    });
    ToolAnswer::of(&ExplainedEgress {
        sandbox: lease.id.to_string(),
        mode: lease.network.mode.as_str(),
        narrowed_by: sandboxes.narrowed_by(&lease).into_iter().map(|layer| layer.as_str()).collect(),
        allowed: explained.as_ref().map(|explained| explained.allowed),
        rule: explained.map(|explained| explained.rule),
        refused: refused.collect(),
        lost: !lost.is_empty(),
    })
}
