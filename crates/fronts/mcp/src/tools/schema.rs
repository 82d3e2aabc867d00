//! Descriptions of tools: names, texts, hints, and JSON schemas of arguments and answers.

use serde_json::{Map, Value, json};

/// A tool as the protocol lists it.
#[derive(Clone)]
pub(super) struct ToolDescription {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) hints: ToolHints,
    /// Arguments: name, schema, and whether it has to be given.
    pub(super) arguments: Vec<Property>,
    /// Fields of the answer.
    pub(super) answer: Vec<Property>,
}

/// What a tool may do; clients ask their users accordingly.
#[derive(Clone, Copy)]
pub(super) enum ToolHints {
    /// Changes nothing.
    Reads,
    /// Adds something, and removes nothing.
    Adds,
    /// A second identical call changes nothing more, and nothing is lost.
    Sets,
    /// May remove or overwrite something.
    Changes,
    /// Runs any program, which may reach the internet.
    Runs,
}

/// A field of an object.
#[derive(Clone)]
pub(super) struct Property {
    name: &'static str,
    schema: Value,
    required: bool,
}

impl ToolDescription {
    pub(super) fn into_json(self) -> Value {
        let (reads, destroys, repeats, open) = match self.hints {
            ToolHints::Reads => (true, false, true, false),
            ToolHints::Adds => (false, false, false, false),
            ToolHints::Sets => (false, false, true, false),
            ToolHints::Changes => (false, true, true, false),
            ToolHints::Runs => (false, true, false, true),
        };
        json!({
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "annotations": {
                "title": self.title,
                "readOnlyHint": reads,
                "destructiveHint": destroys,
                "idempotentHint": repeats,
                "openWorldHint": open,
            },
            "inputSchema": object(self.arguments),
            "outputSchema": object(self.answer),
        })
    }
}

fn object(properties: Vec<Property>) -> Value {
    let required: Vec<&str> =
        properties.iter().filter(|property| property.required).map(|property| property.name).collect();
    let fields: Map<String, Value> =
        properties.iter().map(|property| (property.name.to_owned(), property.schema.clone())).collect();
    json!({ "type": "object", "properties": fields, "required": required, "additionalProperties": false })
}

/// A field that is always there.
pub(super) fn required(name: &'static str, schema: Value) -> Property {
    Property { name, schema, required: true }
}

/// A field that may be missing.
pub(super) fn optional(name: &'static str, schema: Value) -> Property {
    Property { name, schema, required: false }
}

/// The argument that names a sandbox.
pub(super) fn sandbox() -> Property {
    let description =
        "Id or name of a sandbox; default: the sandbox of this client, created at the first use";
    optional("sandbox", text(description))
}

/// The field of an answer that names the sandbox.
pub(super) fn sandbox_id() -> Property {
    required("sandbox", text("Id of the sandbox"))
}

pub(super) fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

pub(super) fn nullable_text(description: &str) -> Value {
    json!({ "type": ["string", "null"], "description": description })
}

pub(super) fn flag(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

pub(super) fn integer(description: &str, minimum: u64, maximum: Option<u64>) -> Value {
    let mut schema = json!({ "type": "integer", "minimum": minimum, "description": description });
    if let Some(maximum) = maximum {
        schema["maximum"] = maximum.into();
    }
    schema
}

pub(super) fn nullable_integer(description: &str) -> Value {
    json!({ "type": ["integer", "null"], "description": description })
}

pub(super) fn words(description: &str, values: &[&str]) -> Value {
    json!({ "type": "string", "enum": values, "description": description })
}

pub(super) fn list(description: &str, items: Vec<Property>) -> Value {
    json!({ "type": "array", "items": object(items), "description": description })
}

pub(super) fn texts(description: &str) -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "description": description })
}

pub(super) fn text_map(description: &str) -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" }, "description": description })
}

pub(super) fn number(description: &str) -> Value {
    json!({ "type": "number", "exclusiveMinimum": 0, "description": description })
}

pub(super) fn any_integer(description: &str) -> Value {
    json!({ "type": "integer", "description": description })
}

pub(super) fn nullable_flag(description: &str) -> Value {
    json!({ "type": ["boolean", "null"], "description": description })
}
