//! Answers of a newer server may hold more fields than this client knows.

use serde_json::Value;

/// Leaves out the fields that are not known, for a type that also reads requests and is strict about them.
pub(crate) fn keep_fields(value: &mut Value, known: &[&str]) {
    if let Value::Object(fields) = value {
        fields.retain(|name, _| known.contains(&name.as_str()));
    }
}
