//! A result in all formats that the kernel provides.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A result. Pictures and PDF are base64.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rich {
    /// Whether it is the value of the last expression, and not displayed data.
    pub is_main: bool,
    /// Plain text.
    pub text: Option<String>,
    /// HTML.
    pub html: Option<String>,
    /// Markdown.
    pub markdown: Option<String>,
    /// SVG.
    pub svg: Option<String>,
    /// PNG.
    pub png: Option<String>,
    /// JPEG.
    pub jpeg: Option<String>,
    /// PDF.
    pub pdf: Option<String>,
    /// LaTeX.
    pub latex: Option<String>,
    /// JSON.
    pub json: Option<Value>,
    /// JavaScript.
    pub javascript: Option<String>,
    /// A table by its columns.
    pub data: Option<Value>,
    /// The data of a chart: type, title, axes and elements.
    pub chart: Option<Value>,
    /// All other formats, by their type.
    pub extra: BTreeMap<String, Value>,
}

impl Rich {
    pub(super) fn of(bundle: Map<String, Value>, is_main: bool) -> Self {
        let mut rich = Self { is_main, ..Self::default() };
        for (kind, value) in bundle {
            let slot = match kind.as_str() {
                "text/plain" => &mut rich.text,
                "text/html" => &mut rich.html,
                "text/markdown" => &mut rich.markdown,
                "image/svg+xml" => &mut rich.svg,
                "image/png" => &mut rich.png,
                "image/jpeg" => &mut rich.jpeg,
                "application/pdf" => &mut rich.pdf,
                "text/latex" => &mut rich.latex,
                "application/javascript" => &mut rich.javascript,
                "application/json" => {
                    rich.json = Some(value);
                    continue;
                }
                "application/vnd.atoll.data+json" => {
                    rich.data = Some(value);
                    continue;
                }
                "application/vnd.atoll.chart+json" => {
                    rich.chart = Some(value);
                    continue;
                }
                _ => {
                    rich.extra.insert(kind, value);
                    continue;
                }
            };
            *slot = Some(text(value));
        }
        rich
    }
}

/// Kernels send text as one string or as a list of lines; pictures may end with a line break.
fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forms_find_their_fields_and_the_rest_is_kept() {
        let bundle =
            json!({"text/plain": ["a", "b"], "image/png": "xyz", "application/json": {"a": 1}, "x/y": [1]});
        let rich = Rich::of(bundle.as_object().cloned().unwrap_or_default(), true);
        assert_eq!((rich.text.as_deref(), rich.png.as_deref()), (Some("ab"), Some("xyz")));
        assert_eq!((rich.json, rich.extra.get("x/y")), (Some(json!({"a": 1})), Some(&json!([1]))));
    }
}
