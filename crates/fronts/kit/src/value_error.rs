//! The errors of deserializers in the words of the API: what a field must be, and the name that was probably meant.

use crate::ApiError;

/// LIMIT: names that a hint lists.
const LISTED: usize = 12;

/// What is wrong with a value, and a hint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ValueError {
    problem: String,
    hint: Option<String>,
}

impl ValueError {
    /// Translates a message of serde. One that is not known stays as it is.
    pub(crate) fn of(whole: &str) -> Self {
        // The name of the field says where it is.
        let message = whole.split(" at line ").next().unwrap_or(whole);
        let plain = |problem: &str| Self { problem: problem.to_owned(), hint: None };
        if let Some(rest) = message.strip_prefix("unknown field `") {
            let (wrong, known) = names(rest);
            return Self {
                problem: "is not a known field".to_owned(),
                hint: hint(wrong, &known, "known fields"),
            };
        }
        if let Some(rest) = message.strip_prefix("unknown variant `") {
            let (wrong, known) = names(rest);
            return Self {
                problem: format!("cannot be {wrong:?}"),
                hint: hint(wrong, &known, "possible values"),
            };
        }
        let expected = ["invalid type: ", "invalid value: "]
            .iter()
            .find_map(|kind| message.strip_prefix(kind)?.rsplit_once(", expected "));
        match expected.map(|(found, expected)| (found, description(expected))) {
            Some(("null", Some(expected))) => plain(&format!("must be {expected}, not null")),
            Some((found, Some(expected))) => {
                plain(&format!("must be {expected}, not {}", found_value(found)))
            }
            Some((_, None)) | None => plain(whole),
        }
    }

    pub(crate) fn with_field(self, field: impl Into<String>) -> ApiError {
        let error = ApiError::field(field, self.problem);
        self.hint.into_iter().fold(error, ApiError::hint)
    }

    /// The error of a value that has no name, such as a whole body.
    pub(crate) fn without_field(self, whole: &str) -> ApiError {
        let error = ApiError::invalid(format!("{whole}: {}", self.problem));
        self.hint.into_iter().fold(error, ApiError::hint)
    }
}

/// The wrong name, and those that serde expected.
fn names(rest: &str) -> (&str, Vec<&str>) {
    let (wrong, expected) = rest.split_once('`').unwrap_or((rest, ""));
    // Every second part stands between backquotes.
    (wrong, expected.split('`').skip(1).step_by(2).collect())
}

fn hint(wrong: &str, known: &[&str], title: &str) -> Option<String> {
    let distance = |name: &str| strsim::osa_distance(&wrong.to_lowercase(), name);
    let nearest = known.iter().map(|name| (distance(name), name)).min()?;
    if nearest.0 <= 1 + wrong.len() / 4 {
        return Some(format!("did you mean {}?", nearest.1));
    }
    let more = if known.len() > LISTED { ", …" } else { "" };
    Some(format!("{title}: {}{more}", known[..known.len().min(LISTED)].join(", ")))
}

/// What serde expects, in the words of JSON.
fn description(expected: &str) -> Option<&'static str> {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => Some("a whole number from 0"),
        "i8" | "i16" | "i32" | "i64" | "isize" => Some("a whole number"),
        "f32" | "f64" => Some("a number"),
        "a boolean" => Some("true or false"),
        "a string" | "a borrowed string" => Some("a string"),
        "a sequence" => Some("a list"),
        "a map" => Some("an object"),
        _ if expected.starts_with("struct ") => Some("an object"),
        _ => None,
    }
}

/// What serde found, without its words for types.
fn found_value(found: &str) -> String {
    let kinds = [("string ", ""), ("integer `", "`"), ("floating point `", "`"), ("boolean `", "`")];
    let value = kinds.iter().find_map(|(start, end)| found.strip_prefix(start)?.strip_suffix(end));
    match (value, found) {
        (Some(value), _) => value.to_owned(),
        (None, "sequence") => "a list".to_owned(),
        (None, "map") => "an object".to_owned(),
        (None, found) => found.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "snake_case")]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Body {
        #[serde(default)]
        memory_mib: u64,
        #[serde(default)]
        cpu: Option<f64>,
        #[serde(default)]
        labels: std::collections::BTreeMap<String, String>,
        #[serde(default)]
        ports: Vec<u16>,
        #[serde(default)]
        public: bool,
        #[serde(default)]
        mode: Mode,
    }

    #[derive(Debug, Deserialize, Default)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        #[default]
        AllowAll,
        DenyAll,
    }

    fn told(body: &str) -> String {
        let Err(error) = serde_json::from_str::<Body>(body) else { panic!("{body} is valid") };
        let ValueError { problem, hint } = ValueError::of(&error.to_string());
        hint.map_or(problem.clone(), |hint| format!("{problem} ({hint})"))
    }

    #[test]
    fn errors_say_what_is_expected_in_the_words_of_json() {
        assert_eq!(told(r#"{"memroy_mib": 1}"#), "is not a known field (did you mean memory_mib?)");
        assert_eq!(
            told(r#"{"x": 1}"#),
            "is not a known field (known fields: memory_mib, cpu, labels, ports, public, mode)"
        );
        assert_eq!(told(r#"{"memory_mib": "1g"}"#), r#"must be a whole number from 0, not "1g""#);
        assert_eq!(told(r#"{"memory_mib": -1}"#), "must be a whole number from 0, not -1");
        assert_eq!(told(r#"{"cpu": true}"#), "must be a number, not true");
        assert_eq!(told(r#"{"public": null}"#), "must be true or false, not null");
        assert_eq!(told(r#"{"labels": []}"#), "must be an object, not a list");
        assert_eq!(told(r#"{"ports": {}}"#), "must be a list, not an object");
        assert_eq!(told(r#"{"mode": "deny_al"}"#), r#"cannot be "deny_al" (did you mean deny_all?)"#);
        assert_eq!(
            told(r#"{"mode": "custom"}"#),
            r#"cannot be "custom" (possible values: allow_all, deny_all)"#
        );
    }
}
