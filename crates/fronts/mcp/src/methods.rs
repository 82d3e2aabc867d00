//! The methods of the protocol.

use atoll_front_kit::ApiError;
use atoll_model::{Code, Principal};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::McpClient;
use crate::era::{self, Era};
use crate::message::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError};
use crate::{Mcp, resources, tools};

/// How long clients may keep lists that change only with the server, and lists of what a tenant has.
const LIST_TTL_MS: u64 = 3_600_000;
const TENANT_TTL_MS: u64 = 0;

const INSTRUCTIONS: &str = "Isolated Linux sandboxes: run commands and code, read and write files, open ports. Tools take an \
    optional `sandbox` (id or name); without it they use a sandbox of this client, which is created at the first call, stopped \
    after 30 minutes without use (its files are kept) and deleted a day later. `shell` waits for the end of a command and is \
    limited to 50 seconds by default; use `shell_start` and `shell_poll` for longer ones.";

/// A request with everything that a method needs.
pub(crate) struct McpCall {
    pub(crate) mcp: Mcp,
    pub(crate) who: Principal,
    pub(crate) client: McpClient,
    pub(crate) era: Era,
}

#[derive(Deserialize)]
struct InitializeParams {
    #[serde(rename = "protocolVersion")]
    version: String,
}

#[derive(Deserialize)]
struct ToolParams {
    name: String,
    arguments: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct ResourceParams {
    uri: String,
}

/// Calls a method.
pub(crate) async fn call(call: &McpCall, method: &str, params: Option<&RawValue>) -> Result<Value, RpcError> {
    let result = match (method, call.era) {
        ("initialize", Era::Handshake) => {
            let params: InitializeParams = read(params)?;
            let mut result = description();
            result["protocolVersion"] = era::agreed(&params.version).into();
            result["serverInfo"] = server_info();
            result
        }
        ("server/discover", Era::PerRequest) => {
            let mut result = description();
            result["supportedVersions"] = json!(era::supported());
            cached(result, "public", LIST_TTL_MS, call.era)
        }
        ("ping", Era::Handshake) => json!({}),
        ("tools/list", _) => cached(json!({ "tools": tools::list() }), "public", LIST_TTL_MS, call.era),
        ("tools/call", _) => {
            let params: ToolParams = read(params)?;
            let arguments = params.arguments.as_deref().map_or("{}", RawValue::get);
            tools::call(call, &params.name, arguments).await.ok_or_else(|| {
                let shown: String = params.name.chars().take(128).collect();
                RpcError::new(INVALID_PARAMS, format!("there is no tool {shown:?}"))
            })?
        }
        ("resources/list", _) => cached(resources::list(call).await?, "private", TENANT_TTL_MS, call.era),
        ("resources/templates/list", _) => cached(resources::templates(), "public", LIST_TTL_MS, call.era),
        ("resources/read", _) => {
            let params: ResourceParams = read(params)?;
            cached(resources::read(call, &params.uri).await?, "private", TENANT_TTL_MS, call.era)
        }
        _ => {
            let shown: String = method.chars().take(128).collect();
            return Err(RpcError::new(METHOD_NOT_FOUND, format!("there is no method {shown:?}")));
        }
    };
    Ok(complete(result, call.era))
}

/// The answer to a request that was cancelled.
pub(crate) fn cancelled() -> RpcError {
    RpcError::new(INVALID_REQUEST, "the request was cancelled")
}

/// A refusal outside of a tool, such as of a resource.
pub(crate) fn refused(error: &ApiError) -> RpcError {
    let code = match error.code {
        Code::Internal => INTERNAL_ERROR,
        _ => INVALID_PARAMS,
    };
    RpcError { code, ..RpcError::of_api(error, None) }
}

fn read<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, RpcError> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text)
        .map_err(|error| RpcError::new(INVALID_PARAMS, format!("params are not valid: {error}")))
}

/// What the server can do, in the form that both eras share.
fn description() -> Value {
    json!({ "capabilities": { "tools": {}, "resources": {} }, "instructions": INSTRUCTIONS })
}

fn server_info() -> Value {
    json!({ "name": "atoll", "title": "Atoll", "version": env!("CARGO_PKG_VERSION") })
}

/// Since 2026-07-28 lists say how long and for whom they may be kept.
fn cached(mut result: Value, scope: &str, ttl_ms: u64, era: Era) -> Value {
    if era == Era::PerRequest {
        result["ttlMs"] = ttl_ms.into();
        result["cacheScope"] = scope.into();
    }
    result
}

/// Since 2026-07-28 every result says that it is complete, and which server made it.
fn complete(mut result: Value, era: Era) -> Value {
    if era == Era::PerRequest {
        result["resultType"] = "complete".into();
        result["_meta"] = json!({ "io.modelcontextprotocol/serverInfo": server_info() });
    }
    result
}
