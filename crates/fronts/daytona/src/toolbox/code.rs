//! Runs code once and returns its charts. Types in a chart are exact, since the SDK refuses a text in place of a number
//! and the reverse.

use std::collections::BTreeMap;

use atoll_front_kit::{ApiError, Json, JsonObject, ok, stream_json};
use atoll_toolbox::{CodeRun, Language, ToolboxError};
use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::execute::{not_started, timeout, variables};
use super::inside::Inside;
use super::refusal::{bad, of_process};
use crate::DaytonaApp;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new().route("/process/code-run", post(run))
}

#[derive(Debug, Deserialize)]
struct RunBody {
    code: String,
    language: String,
    argv: Option<Vec<String>>,
    envs: Option<BTreeMap<String, String>>,
    timeout: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CodeRan {
    exit_code: i32,
    result: String,
    artifacts: Artifacts,
}

#[derive(Debug, Serialize)]
struct Artifacts {
    charts: Vec<Value>,
}

async fn run(inside: Inside, Json(body): Json<RunBody>) -> Result<Response, ApiError> {
    let language = match body.language.as_str() {
        "python" => Language::Python,
        "typescript" => Language::TypeScript,
        "javascript" => Language::JavaScript,
        _ => return Err(bad("language must be python, typescript or javascript")),
    };
    let asked = CodeRun {
        language,
        code: body.code,
        argv: body.argv.unwrap_or_default(),
        env: variables(body.envs)?,
        cwd: None,
        timeout: timeout(body.timeout),
    };
    let ran = match inside.toolbox.code_run(asked).await {
        Ok(ran) => ran,
        Err(error) => {
            let result = not_started(&error).ok_or_else(|| of_process(error))?;
            let artifacts = Artifacts { charts: Vec::new() };
            return Ok(ok(CodeRan { exit_code: -1, result, artifacts }).into_response());
        }
    };
    let charts: Vec<Value> = ran.charts.iter().map(chart).collect();
    let artifacts = serde_json::to_vec(&Artifacts { charts }).expect("wire types hold string keys only");
    let mut reservation = inside.sandbox.account.reserve();
    reservation.grow(artifacts.len()).await.map_err(ToolboxError::from).map_err(of_process)?;
    let answer = JsonObject::new().field("exitCode", &ran.exit_code);
    let answer = answer.texts("result", ran.output.with_notice());
    Ok(stream_json(answer.raw("artifacts", reservation.attach(artifacts))))
}

/// A figure as Daytona describes it: the chart with Daytona's field names, and the picture.
fn chart(told: &Value) -> Value {
    let mut shown = told.get("chart").map_or_else(Map::new, fields);
    shown.entry("type").or_insert_with(|| json!("unknown"));
    shown.entry("elements").or_insert_with(|| json!([]));
    if let Some(png) = told.get("png").filter(|png| png.is_string()) {
        shown.insert("png".to_owned(), png.clone());
    }
    Value::Object(shown)
}

fn fields(chart: &Value) -> Map<String, Value> {
    let mut shown = Map::new();
    let Value::Object(chart) = chart else { return shown };
    for (name, value) in chart {
        let value = match name.as_str() {
            "type" => match value.as_str() {
                Some("superchart") => Some(json!("composite_chart")),
                _ => string(value),
            },
            "title" | "label" | "group" | "value" | "x_label" | "y_label" | "x_scale" | "y_scale" => {
                string(value)
            }
            "x_tick_labels" | "y_tick_labels" => list(value, string),
            "x_ticks" | "y_ticks" | "outliers" => list(value, number),
            "points" => list(value, |point| list(point, number)),
            "angle" | "radius" | "min" | "max" | "median" | "first_quartile" | "third_quartile" => {
                number(value)
            }
            "elements" => list(value, |element| Some(Value::Object(fields(element)))),
            _ => None,
        };
        if let Some(value) = value {
            shown.insert(name.clone(), value);
        }
    }
    shown
}

/// A text; a number is converted.
fn string(value: &Value) -> Option<Value> {
    match value {
        Value::String(_) => Some(value.clone()),
        Value::Number(number) => Some(json!(number.to_string())),
        _ => None,
    }
}

/// A number; a date or a category is not one.
fn number(value: &Value) -> Option<Value> {
    value.is_number().then(|| value.clone())
}

/// A list whose members all have the type, or `None`: a partial list would shift one axis against the other.
fn list(value: &Value, of: impl Fn(&Value) -> Option<Value>) -> Option<Value> {
    value.as_array()?.iter().map(of).collect::<Option<Vec<_>>>().map(Value::Array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_the_kinds_that_the_sdk_accepts() {
        let told = json!({"png": "aGk=", "chart": {"type": "bar", "title": null, "x_label": "x", "x_unit": null,
            "elements": [{"label": "a", "group": "g", "value": 3}]}});
        assert_eq!(
            chart(&told),
            json!({"type": "bar", "x_label": "x", "png": "aGk=", "elements": [{"label": "a", "group": "g", "value": "3"}]})
        );
        let dates = json!({"chart": {"type": "line", "x_ticks": ["2024-01-01"], "y_ticks": [1, 2.5],
            "elements": [{"label": "l", "points": [["2024-01-01", 1]]}]}});
        assert_eq!(chart(&dates), json!({"type": "line", "y_ticks": [1, 2.5], "elements": [{"label": "l"}]}));
        let many = json!({"chart": {"type": "superchart", "elements": [{"type": "pie", "elements": []}]}});
        assert_eq!(
            chart(&many),
            json!({"type": "composite_chart", "elements": [{"type": "pie", "elements": []}]})
        );
        assert_eq!(
            chart(&json!({"chart": null, "png": "x"})),
            json!({"type": "unknown", "elements": [], "png": "x"})
        );
    }
}
