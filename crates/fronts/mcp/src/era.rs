//! The revisions of the protocol: which one a request uses, and whether its headers agree with it.
//!
//! | era | revisions | how a request says it |
//! |---|---|---|
//! | `PerRequest` | 2026-07-28 | `params._meta` has the revision; the headers repeat it, the method and the name |
//! | `Handshake` | 2024-11-05 to 2025-11-25 | `initialize` agrees on one; later requests have it in a header, or nothing |

use axum::http::{HeaderMap, HeaderName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::message::{HEADER_MISMATCH, INVALID_PARAMS, RpcError, UNSUPPORTED_VERSION};

/// The revisions since each request describes itself.
const PER_REQUEST: &[&str] = &["2026-07-28"];
/// The revisions that begin with `initialize`, newest first.
const HANDSHAKE: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// How a request says which revision it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    PerRequest,
    Handshake,
}

/// Every revision that this server speaks, newest first.
pub(crate) fn supported() -> Vec<&'static str> {
    [PER_REQUEST, HANDSHAKE].concat()
}

/// The revision that `initialize` agrees on: the requested one, or the newest that has a handshake.
pub(crate) fn agreed(requested: &str) -> &'static str {
    HANDSHAKE.iter().find(|known| **known == requested).unwrap_or(&HANDSHAKE[0])
}

/// What every request may say about itself, in `params`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct RequestMeta {
    #[serde(rename = "_meta")]
    meta: Option<MetaFields>,
    /// Of `initialize`.
    #[serde(rename = "clientInfo")]
    client_info: Option<ClientInfo>,
    /// Of a tool.
    name: Option<Value>,
    /// Of a resource.
    uri: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct MetaFields {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Value>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<Value>,
    #[serde(rename = "io.modelcontextprotocol/clientInfo")]
    client_info: Option<ClientInfo>,
    #[serde(rename = "progressToken")]
    progress_token: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct ClientInfo {
    name: Option<String>,
}

impl RequestMeta {
    pub(crate) fn read(params: Option<&RawValue>) -> Result<Self, RpcError> {
        let Some(params) = params else { return Ok(Self::default()) };
        if !params.get().trim_start().starts_with('{') {
            return Err(RpcError::new(INVALID_PARAMS, "params must be an object"));
        }
        serde_json::from_str(params.get())
            .map_err(|error| RpcError::new(INVALID_PARAMS, format!("params are not valid: {error}")))
    }

    /// The name of the client's program, if this request says it.
    pub(crate) fn client_name(&self) -> Option<&str> {
        let meta = self.meta.as_ref().and_then(|meta| meta.client_info.as_ref());
        meta.or(self.client_info.as_ref())?.name.as_deref()
    }

    /// Progress is sent with this token. Only texts and numbers are tokens.
    pub(crate) fn progress_token(&self) -> Option<&Value> {
        let token = self.meta.as_ref()?.progress_token.as_ref();
        token.filter(|token| token.is_string() || token.is_number())
    }

    /// The name of a tool, if it is one.
    pub(crate) fn tool_name(&self) -> Option<&str> {
        self.name.as_ref()?.as_str()
    }

    fn version(&self) -> Option<&Value> {
        self.meta.as_ref()?.version.as_ref()
    }
}

/// The era of a request. Refuses one whose revision is unknown, or whose headers say something else than its body.
pub(crate) fn classify(method: &str, meta: &RequestMeta, headers: &HeaderMap) -> Result<Era, RpcError> {
    for name in [VERSION, METHOD, NAME] {
        if headers.get_all(&name).iter().count() > 1 {
            return Err(mismatch(format!("the header {name} occurs more than once")));
        }
    }
    let header = headers.get(VERSION).map(|value| value.to_str().unwrap_or_default());
    if method == "initialize" {
        return Ok(Era::Handshake);
    }
    let says_new = meta.version().is_some() || method == "server/discover";
    match header {
        None if !says_new => Ok(Era::Handshake),
        Some(version) if !says_new && HANDSHAKE.contains(&version) => Ok(Era::Handshake),
        Some(version) if !says_new && !PER_REQUEST.contains(&version) => Err(unsupported(version)),
        header => per_request(method, meta, headers, header).map(|()| Era::PerRequest),
    }
}

fn per_request(
    method: &str,
    meta: &RequestMeta,
    headers: &HeaderMap,
    header: Option<&str>,
) -> Result<(), RpcError> {
    let fields = meta.meta.as_ref();
    let (Some(version), Some(_)) = (meta.version(), fields.and_then(|fields| fields.capabilities.as_ref()))
    else {
        let message = "params._meta must have io.modelcontextprotocol/protocolVersion and \
                       io.modelcontextprotocol/clientCapabilities";
        return Err(RpcError::new(INVALID_PARAMS, message));
    };
    if header.is_none() || header != version.as_str() {
        return Err(mismatch(format!("the header {VERSION} differs from the version in params._meta")));
    }
    let said = headers.get(METHOD).and_then(|value| value.to_str().ok());
    if said != Some(method) {
        return Err(mismatch(format!("the header {METHOD} differs from the method of the message")));
    }
    let named = match method {
        "tools/call" | "prompts/get" => meta.name.as_ref(),
        "resources/read" => meta.uri.as_ref(),
        _ => None,
    };
    if let Some(named) = named
        && (named.as_str().is_none() || decoded_name(headers).as_deref() != named.as_str())
    {
        return Err(mismatch(format!("the header {NAME} differs from the name in params")));
    }
    match version.as_str() {
        Some(version) if PER_REQUEST.contains(&version) => Ok(()),
        version => Err(unsupported(version.unwrap_or_default())),
    }
}

/// Text that a header cannot contain is sent as `=?base64?…?=`.
fn decoded_name(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(NAME)?.to_str().ok()?;
    let Some(coded) = text.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(text.to_owned());
    };
    String::from_utf8(STANDARD.decode(coded).ok()?).ok()
}

fn mismatch(message: String) -> RpcError {
    RpcError::new(HEADER_MISMATCH, message)
}

/// The version of a notification, which has no `params._meta`.
pub(crate) fn check_notification(headers: &HeaderMap) -> Result<(), RpcError> {
    match headers.get(VERSION).map(|value| value.to_str().unwrap_or_default()) {
        Some(version) if !supported().contains(&version) => Err(unsupported(version)),
        _ => Ok(()),
    }
}

fn unsupported(version: &str) -> RpcError {
    let shown: String = version.chars().take(64).collect();
    RpcError::new(UNSUPPORTED_VERSION, "this revision of the protocol is not supported")
        .with_data(json!({ "supported": supported(), "requested": shown }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn meta(params: &Value) -> RequestMeta {
        let raw = RawValue::from_string(params.to_string()).unwrap();
        RequestMeta::read(Some(&raw)).unwrap()
    }

    fn new(name: &str) -> Value {
        json!({ "name": name, "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "progressToken": 7,
        }})
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    const VERSION_NOW: (&str, &str) = ("mcp-protocol-version", "2026-07-28");

    #[test]
    fn a_request_that_describes_itself_repeats_it_in_headers() {
        let params = meta(&new("shell"));
        let whole = [VERSION_NOW, ("mcp-method", "tools/call"), ("mcp-name", "shell")];
        assert_eq!(classify("tools/call", &params, &headers(&whole)).unwrap(), Era::PerRequest);
        assert_eq!(params.client_name(), Some("test"));
        assert_eq!(params.progress_token(), Some(&json!(7)));
        let coded = [VERSION_NOW, ("mcp-method", "tools/call"), ("mcp-name", "=?base64?c2hlbGw=?=")];
        assert!(classify("tools/call", &params, &headers(&coded)).is_ok());
        for wrong in [
            &whole[..1],
            &whole[..2],
            &[whole[0], whole[1], ("mcp-name", "other")],
            &[whole[0], ("mcp-method", "tools/list"), whole[2]],
            &[("mcp-protocol-version", "2025-11-25"), whole[1], whole[2]],
            &whole[1..],
            &[whole[0], whole[0], whole[1], whole[2]],
        ] {
            let error = classify("tools/call", &params, &headers(wrong)).unwrap_err();
            assert_eq!(error.code, HEADER_MISMATCH, "{wrong:?}");
        }
    }

    #[test]
    fn a_request_after_a_handshake_says_its_revision_or_nothing() {
        let none = RequestMeta::default();
        assert_eq!(classify("tools/list", &none, &HeaderMap::new()).unwrap(), Era::Handshake);
        for known in HANDSHAKE {
            let headers = headers(&[("mcp-protocol-version", known)]);
            assert_eq!(classify("tools/list", &none, &headers).unwrap(), Era::Handshake);
        }
        let error = classify("tools/list", &none, &headers(&[("mcp-protocol-version", "1999-01-01")]));
        let error = error.unwrap_err();
        assert_eq!(error.code, UNSUPPORTED_VERSION);
        assert_eq!(error.data.unwrap()["supported"], json!(supported()));
    }

    #[test]
    fn a_discovery_without_its_fields_is_refused() {
        let error = classify("server/discover", &RequestMeta::default(), &HeaderMap::new()).unwrap_err();
        assert_eq!(error.code, INVALID_PARAMS);
        let mut future = new("x");
        future["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
        let said = headers(&[("mcp-protocol-version", "2099-01-01"), ("mcp-method", "server/discover")]);
        let error = classify("server/discover", &meta(&future), &said).unwrap_err();
        assert_eq!(error.code, UNSUPPORTED_VERSION);
    }

    #[test]
    fn a_handshake_agrees_on_a_known_revision() {
        assert_eq!(agreed("2025-06-18"), "2025-06-18");
        assert_eq!(agreed("2026-07-28"), "2025-11-25");
        assert_eq!(agreed("x"), "2025-11-25");
    }
}
