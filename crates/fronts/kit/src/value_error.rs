//! The errors of deserializers in the words of the API: what a field must be, and the name that was probably meant.

use crate::ApiError;

/// LIMIT: bytes of a wrong name that is compared with the known ones, or shown.
const NAME_MAX: usize = 64;
/// LIMIT: names that an error lists.
const LISTED: usize = 12;

/// What is wrong with a value, and a hint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ValueError {
    problem: Problem,
    hint: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Problem {
    /// A field of this name is not known.
    UnknownField(String),
    /// The value is wrong.
    Value(String),
}

impl ValueError {
    /// Translates a message of serde. One that is not known stays as it is.
    pub(crate) fn of(whole: &str) -> Self {
        // The name of the field says where it is.
        let message = whole.split(" at line ").next().unwrap_or(whole);
        let plain = |problem: &str| Self { problem: Problem::Value(problem.to_owned()), hint: None };
        if let Some(rest) = message.strip_prefix("unknown field `") {
            let (wrong, known) = names(rest);
            let hint =
                nearest(wrong, &known).or_else(|| (!known.is_empty()).then(|| list("known fields", &known)));
            return Self { problem: Problem::UnknownField(shown(wrong).to_owned()), hint };
        }
        if let Some(rest) = message.strip_prefix("unknown variant `") {
            let (wrong, known) = names(rest);
            let problem = format!("{}, not {:?}", list("must be one of", &known), shown(wrong));
            return Self { problem: Problem::Value(problem), hint: nearest(wrong, &known) };
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

    /// The error of the value at `path`. Some deserializers name an unknown field as the end of the path, others do not.
    pub(crate) fn with_field(self, path: &str) -> ApiError {
        let problem = match self.problem {
            Problem::UnknownField(name) if path.rsplit('.').next() == Some(&name) => {
                "is not a known field".to_owned()
            }
            Problem::UnknownField(name) => format!("has no field {name}"),
            Problem::Value(problem) => problem,
        };
        self.hint.into_iter().fold(ApiError::field(path, problem), ApiError::hint)
    }

    /// The error of a value that has no name, such as a whole body.
    pub(crate) fn without_field(self, whole: &str) -> ApiError {
        let problem = match self.problem {
            Problem::UnknownField(name) => format!("there is no field {name}"),
            Problem::Value(problem) => problem,
        };
        self.hint.into_iter().fold(ApiError::invalid(format!("{whole}: {problem}")), ApiError::hint)
    }
}

/// The wrong name, and those that serde expected.
fn names(rest: &str) -> (&str, Vec<&str>) {
    let (wrong, expected) = rest.split_once('`').unwrap_or((rest, ""));
    // Every second part stands between backquotes.
    (wrong, expected.split('`').skip(1).step_by(2).collect())
}

/// The beginning of a name, if it is too long to be shown.
fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_MAX)]
}

/// The hint with the most similar name.
fn nearest(wrong: &str, known: &[&str]) -> Option<String> {
    if wrong.len() > NAME_MAX {
        return None;
    }
    let lower = wrong.to_lowercase();
    let distance = |name: &str| strsim::osa_distance(&lower, name);
    let (distance, name) = known.iter().map(|name| (distance(name), name)).min()?;
    (distance <= 1 + wrong.len() / 4).then(|| format!("did you mean {name}?"))
}

fn list(title: &str, known: &[&str]) -> String {
    let more = if known.len() > LISTED { ", …" } else { "" };
    format!("{title}: {}{more}", known[..known.len().min(LISTED)].join(", "))
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
        let error = ValueError::of(&error.to_string()).with_field("f");
        let problem = error.message.trim_start_matches("f: ");
        error.hint.as_ref().map_or(problem.to_owned(), |hint| format!("{problem} ({hint})"))
    }

    #[test]
    fn errors_say_what_is_expected_in_the_words_of_json() {
        assert_eq!(told(r#"{"memroy_mib": 1}"#), "has no field memroy_mib (did you mean memory_mib?)");
        assert_eq!(
            told(r#"{"x": 1}"#),
            "has no field x (known fields: memory_mib, cpu, labels, ports, public, mode)"
        );
        assert_eq!(told(r#"{"memory_mib": "1g"}"#), r#"must be a whole number from 0, not "1g""#);
        assert_eq!(told(r#"{"memory_mib": -1}"#), "must be a whole number from 0, not -1");
        assert_eq!(told(r#"{"cpu": true}"#), "must be a number, not true");
        assert_eq!(told(r#"{"public": null}"#), "must be true or false, not null");
        assert_eq!(told(r#"{"labels": []}"#), "must be an object, not a list");
        assert_eq!(told(r#"{"ports": {}}"#), "must be a list, not an object");
        assert_eq!(
            told(r#"{"mode": "deny_al"}"#),
            r#"must be one of: allow_all, deny_all, not "deny_al" (did you mean deny_all?)"#
        );
        assert_eq!(told(r#"{"mode": "custom"}"#), r#"must be one of: allow_all, deny_all, not "custom""#);
    }
}
