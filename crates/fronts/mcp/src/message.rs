//! JSON-RPC 2.0 messages, as MCP uses them: one message per request body, ids that are texts or integers.

use atoll_front_kit::ApiError;
use axum::http::StatusCode;
use serde::de::IgnoredAny;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub(crate) const PARSE_ERROR: i32 = -32_700;
pub(crate) const INVALID_REQUEST: i32 = -32_600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32_601;
pub(crate) const INVALID_PARAMS: i32 = -32_602;
pub(crate) const INTERNAL_ERROR: i32 = -32_603;
/// Headers that differ from the message.
pub(crate) const HEADER_MISMATCH: i32 = -32_020;
/// A revision of the protocol that this server does not speak.
pub(crate) const UNSUPPORTED_VERSION: i32 = -32_022;

/// LIMIT: bytes of an id; clients count or use a UUID.
const ID_MAX: usize = 256;

/// The id of a request, returned as it came.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum RpcId {
    Number(i64),
    Text(String),
    /// Only in errors of messages whose id is unknown.
    Null,
}

impl RpcId {
    /// Different for a number and a text with the same digits.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("\"{text}\""),
            Self::Null => String::new(),
        }
    }
}

/// A message of a client.
#[derive(Debug)]
pub(crate) enum ClientMessage {
    Request {
        id: RpcId,
        method: String,
        params: Option<Box<RawValue>>,
    },
    Notification {
        method: String,
        params: Option<Box<RawValue>>,
    },
    /// The answer to a request of the server, which sends none.
    Response,
}

#[derive(Deserialize)]
struct MessageFields {
    jsonrpc: Option<String>,
    #[serde(default, deserialize_with = "atoll_front_kit::double_option")]
    id: Option<Option<RpcId>>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

impl ClientMessage {
    /// Reads the body of a request.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, RpcError> {
        let invalid = |message: &str| RpcError::new(INVALID_REQUEST, message);
        match body.trim_ascii_start().first() {
            Some(b'{') => {}
            Some(b'[') => return Err(invalid("batches are not supported; send one message per request")),
            _ if serde_json::from_slice::<IgnoredAny>(body).is_ok() => {
                return Err(invalid("a message must be a JSON object"));
            }
            _ => return Err(RpcError::new(PARSE_ERROR, "the body is not JSON")),
        }
        let fields: MessageFields = serde_json::from_slice(body).map_err(|error| match error.is_data() {
            true => invalid(&format!("the message is not valid: {error}")),
            false => RpcError::new(PARSE_ERROR, format!("the body is not JSON: {error}")),
        })?;
        if fields.jsonrpc.as_deref() != Some("2.0") {
            return Err(invalid("jsonrpc must be \"2.0\""));
        }
        match (fields.id, fields.method) {
            (Some(Some(RpcId::Text(text))), _) if text.len() > ID_MAX => {
                Err(invalid(&format!("an id must have at most {ID_MAX} bytes")))
            }
            (Some(None | Some(RpcId::Null)), Some(_)) => Err(invalid("the id of a request must not be null")),
            (Some(Some(id)), Some(method)) => Ok(Self::Request { id, method, params: fields.params }),
            (None, Some(method)) => Ok(Self::Notification { method, params: fields.params }),
            (Some(_), None) if fields.result.is_some() || fields.error.is_some() => Ok(Self::Response),
            (_, None) => Err(invalid("the message has no method")),
        }
    }
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum RpcResponse {
    Result { id: RpcId, result: Value },
    Error { id: RpcId, error: RpcError },
}

impl Serialize for RpcResponse {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(3))?;
        map.serialize_entry("jsonrpc", "2.0")?;
        match self {
            Self::Result { id, result } => {
                map.serialize_entry("id", id)?;
                map.serialize_entry("result", result)?;
            }
            Self::Error { id, error } => {
                map.serialize_entry("id", id)?;
                map.serialize_entry("error", error)?;
            }
        }
        map.end()
    }
}

/// An error of the protocol. A tool that fails is a result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RpcError {
    pub(crate) code: i32,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    /// A refusal of the server in the form of the protocol.
    pub(crate) fn of_api(error: &ApiError, request_id: Option<&str>) -> Self {
        let code = if error.status().is_server_error() { INTERNAL_ERROR } else { INVALID_REQUEST };
        let mut data = json!({ "code": error.code.as_str() });
        if let Some(id) = request_id {
            data["request_id"] = id.into();
        }
        Self::new(code, error.sentence(|core| Some(core.to_owned()))).with_data(data)
    }

    /// The HTTP status since 2026-07-28.
    pub(crate) fn status(&self) -> StatusCode {
        match self.code {
            METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
            INTERNAL_ERROR => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refused(text: &str) -> i32 {
        ClientMessage::parse(text.as_bytes()).unwrap_err().code
    }

    #[test]
    fn a_message_is_a_request_a_notification_or_a_response() {
        let parse = |text: &str| ClientMessage::parse(text.as_bytes()).unwrap();
        match parse(r#"{"jsonrpc":"2.0","id":"1","method":"ping","params":{"a":1}}"#) {
            ClientMessage::Request { id, method, params } => {
                assert_eq!((id, method.as_str()), (RpcId::Text("1".to_owned()), "ping"));
                assert_eq!(params.unwrap().get(), r#"{"a":1}"#);
            }
            other => panic!("{other:?}"),
        }
        let notification = parse(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert!(matches!(notification, ClientMessage::Notification { params: None, .. }));
        assert!(matches!(parse(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), ClientMessage::Response));
    }

    #[test]
    fn everything_else_is_refused_with_the_code_of_its_fault() {
        for text in ["", "{", "nonsense", r#"{"jsonrpc":"2.0","id":1,"method":"#] {
            assert_eq!(refused(text), PARSE_ERROR, "{text}");
        }
        for text in [
            "1",
            "null",
            "[]",
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            "{}",
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0"}"#,
        ] {
            assert_eq!(refused(text), INVALID_REQUEST, "{text}");
        }
        let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(ID_MAX + 1));
        assert_eq!(refused(&long), INVALID_REQUEST);
    }

    #[test]
    fn a_number_and_a_text_are_different_ids() {
        assert_ne!(RpcId::Number(1).key(), RpcId::Text("1".to_owned()).key());
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error() {
        atoll_robustness::check("mcp_message", |bytes| {
            if let Ok(ClientMessage::Request { id, method, params }) = ClientMessage::parse(bytes) {
                assert!(!id.key().is_empty());
                let read = crate::era::RequestMeta::read(params.as_deref());
                let _ = read.map(|meta| crate::era::classify(&method, &meta, &Default::default()));
            }
        });
    }
}
