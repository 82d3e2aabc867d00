//! Resources: the templates of the server, and the files of sandboxes.
//!
//! ```text
//! atoll://templates/NAME             a template, as JSON
//! atoll://sandboxes/SANDBOX/PATH     a file; SANDBOX is an id or a name, or `own` for the sandbox of this client
//! ```

use atoll_front_kit::{ApiError, toolbox};
use atoll_model::Code;
use atoll_service::TemplateRecord;
use atoll_toolbox::FilePart;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use crate::message::RpcError;
use crate::methods::{McpCall, refused};

const TEMPLATES: &str = "atoll://templates/";
const SANDBOXES: &str = "atoll://sandboxes/";
/// The sandbox of the client itself.
const OWN: &str = "own";
/// LIMIT: bytes of a file that is read whole into the context of a model.
const FILE_MAX: u64 = 1 << 20;
/// Characters of a name that stay as they are in a URI.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The templates.
pub(crate) async fn list(call: &McpCall) -> Result<Value, RpcError> {
    let templates = call.mcp.service.templates().list(&call.who).await;
    let templates = templates.map_err(|error| refused(&error.into()))?;
    let resources: Vec<Value> = templates.iter().map(resource).collect();
    Ok(json!({ "resources": resources }))
}

fn resource(template: &TemplateRecord) -> Value {
    json!({
        "uri": format!("{TEMPLATES}{}", utf8_percent_encode(&template.name, PLAIN)),
        "name": template.name,
        "title": format!("Template {}", template.name),
        "description": "A template for sandbox_create",
        "mimeType": "application/json",
    })
}

/// The form of the URIs of files.
pub(crate) fn templates() -> Value {
    json!({ "resourceTemplates": [{
        "uriTemplate": format!("{SANDBOXES}{{sandbox}}/{{+path}}"),
        "name": "file",
        "title": "A file of a sandbox",
        "description": "sandbox is an id or a name, or `own` for the sandbox of this client; path is absolute, without its first slash",
    }]})
}

/// The content of a resource.
pub(crate) async fn read(call: &McpCall, uri: &str) -> Result<Value, RpcError> {
    let content = if let Some(name) = uri.strip_prefix(TEMPLATES) {
        template(call, uri, &decoded(name)).await
    } else if let Some((sandbox, path)) = uri.strip_prefix(SANDBOXES).and_then(|rest| rest.split_once('/')) {
        file(call, uri, &decoded(sandbox), &decoded(path)).await
    } else {
        let shown: String = uri.chars().take(256).collect();
        Err(ApiError::new(Code::FileNotFound, format!("there is no resource {shown:?}")))
    };
    let content = content.map_err(|error| refused(&error))?;
    Ok(json!({ "contents": [content] }))
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

async fn template(call: &McpCall, uri: &str, name: &str) -> Result<Value, ApiError> {
    let template = call.mcp.service.templates().get(&call.who, name).await?;
    let shown = json!({
        "name": template.name,
        "version": template.version,
        "aliases": template.aliases,
        "tags": template.tags,
        "kind": template.kind,
        "user": template.user,
        "workdir": template.workdir,
        "port": template.port,
    });
    Ok(json!({ "uri": uri, "mimeType": "application/json", "text": shown.to_string() }))
}

async fn file(call: &McpCall, uri: &str, sandbox: &str, path: &str) -> Result<Value, ApiError> {
    let sandbox = match sandbox {
        OWN => call.client.existing_sandbox(&call.mcp.service, &call.who).await?,
        named => named.to_owned(),
    };
    let session = call.mcp.service.sandboxes().session(&call.who, &sandbox).await?;
    let tools = toolbox(&session);
    let bytes = tools.files().read_bytes(&format!("/{path}"), FilePart::Whole, FILE_MAX).await?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => json!({ "uri": uri, "mimeType": "text/plain", "text": text }),
        Err(raw) => {
            let blob = STANDARD.encode(raw.as_bytes());
            json!({ "uri": uri, "mimeType": "application/octet-stream", "blob": blob })
        }
    })
}
