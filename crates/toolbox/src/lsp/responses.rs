//! Parses the answers of a server, which are untrusted.

use serde_json::Value;

/// LIMIT: items that are passed on.
const ITEMS_MAX: usize = 10_000;
/// LIMIT: nesting of symbols.
const LEVELS_MAX: usize = 32;

/// A position in a file, from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextPosition {
    /// The line.
    pub line: u32,
    /// The character, in units of UTF-16.
    pub character: u32,
}

/// A symbol that a file defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// The kind, as numbered by the protocol.
    pub kind: i64,
    /// The file.
    pub uri: String,
    /// Start and end.
    pub range: (TextPosition, TextPosition),
}

/// The completions at a position.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Completions {
    /// Further typing gives other ones.
    pub is_incomplete: bool,
    /// The best first.
    pub items: Vec<Completion>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Completion {
    /// The displayed text.
    pub label: String,
    /// The kind, as numbered by the protocol.
    pub kind: Option<i64>,
    /// A short description.
    pub detail: Option<String>,
    /// The documentation as text.
    pub documentation: Option<String>,
    /// The inserted text, if it is not the label.
    pub insert_text: Option<String>,
    /// The text that typing is compared with.
    pub filter_text: Option<String>,
    /// The sort key.
    pub sort_text: Option<String>,
}

pub(super) fn completions(told: &Value) -> Completions {
    let (items, is_incomplete) = match told {
        Value::Array(items) => (items.as_slice(), false),
        told => {
            let items = told.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            (items, told.get("isIncomplete").and_then(Value::as_bool).unwrap_or(false))
        }
    };
    Completions { is_incomplete, items: items.iter().filter_map(completion).take(ITEMS_MAX).collect() }
}

fn completion(told: &Value) -> Option<Completion> {
    let text = |name: &str| told.get(name).and_then(Value::as_str).map(str::to_owned);
    let documentation = match told.get("documentation") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => other.get("value").and_then(Value::as_str).map(str::to_owned),
        None => None,
    };
    Some(Completion {
        label: text("label")?,
        kind: told.get("kind").and_then(Value::as_i64),
        detail: text("detail"),
        documentation,
        insert_text: text("insertText"),
        filter_text: text("filterText"),
        sort_text: text("sortText"),
    })
}

/// Both forms of the protocol: with a location each, or nested in the requested file.
pub(super) fn symbols(told: &Value, uri: &str) -> Vec<Symbol> {
    let mut found = Vec::new();
    collect(told, uri, LEVELS_MAX, &mut found);
    found
}

fn collect(told: &Value, uri: &str, levels: usize, found: &mut Vec<Symbol>) {
    for one in told.as_array().map_or(&[][..], Vec::as_slice) {
        if found.len() >= ITEMS_MAX {
            return;
        }
        found.extend(symbol(one, uri));
        if let Some(children) = one.get("children").filter(|_| levels > 0) {
            collect(children, uri, levels - 1, found);
        }
    }
}

fn symbol(told: &Value, uri: &str) -> Option<Symbol> {
    let range = told.pointer("/location/range").or_else(|| told.get("range"));
    let place = |which: &str| {
        let number = |name: &str| {
            let number = range?.get(which)?.get(name)?.as_u64()?;
            u32::try_from(number).ok()
        };
        TextPosition { line: number("line").unwrap_or(0), character: number("character").unwrap_or(0) }
    };
    Some(Symbol {
        name: told.get("name")?.as_str()?.to_owned(),
        kind: told.get("kind").and_then(Value::as_i64).unwrap_or(0),
        uri: told.pointer("/location/uri").and_then(Value::as_str).unwrap_or(uri).to_owned(),
        range: (place("start"), place("end")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_of_symbols_are_read() {
        let flat = json!([{"name": "f", "kind": 12, "location": {"uri": "file:///a", "range":
            {"start": {"line": 1, "character": 2}, "end": {"line": 3, "character": 4}}}}]);
        let found = symbols(&flat, "file:///b");
        assert_eq!(
            (found[0].name.as_str(), found[0].uri.as_str(), found[0].range.1.line),
            ("f", "file:///a", 3)
        );
        let nested =
            json!([{"name": "C", "kind": 5, "range": {}, "children": [{"name": "m", "kind": 6}]}, {"no": 1}]);
        let names: Vec<String> =
            symbols(&nested, "file:///b").into_iter().map(|symbol| symbol.name).collect();
        assert_eq!(names, ["C", "m"]);
        assert!(symbols(&Value::Null, "").is_empty());
    }

    #[test]
    fn both_forms_of_completions_are_read() {
        let list = completions(
            &json!({"isIncomplete": true, "items": [{"label": "a", "documentation": {"value": "d"}}]}),
        );
        assert_eq!((list.is_incomplete, list.items[0].documentation.as_deref()), (true, Some("d")));
        let plain = completions(&json!([{"label": "a", "kind": 3, "documentation": "d"}, {"kind": 1}, 7]));
        assert_eq!((plain.items.len(), plain.items[0].kind), (1, Some(3)));
    }
}
