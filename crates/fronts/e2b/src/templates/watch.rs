//! The status and the log of a build.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok, rfc3339};
use atoll_model::{Build, BuildFailure, BuildLevel, BuildLine, BuildStatus, Principal};
use atoll_service::AFTER_THE_STEPS;
use axum::extract::State;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use super::{builds, names};
use crate::E2bApp;

/// LIMIT: that of E2B, for one response.
const ENTRIES_MAX: usize = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StatusQuery {
    logs_offset: Option<u64>,
    limit: Option<usize>,
    level: Option<Level>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BuildLogsQuery {
    /// Milliseconds since the Unix epoch.
    cursor: Option<i64>,
    limit: Option<usize>,
    direction: Option<String>,
    level: Option<Level>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    status: &'static str,
    logs: Vec<String>,
    log_entries: Vec<BuildLogEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
}

#[derive(Debug, Serialize)]
pub(super) struct BuildLogs {
    logs: Vec<BuildLogEntry>,
}

#[derive(Debug, Serialize)]
struct BuildLogEntry {
    timestamp: String,
    level: Level,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reason {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    log_entries: Vec<BuildLogEntry>,
}

pub(super) async fn status(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path((template, build)): Path<(String, String)>,
    Query(query): Query<StatusQuery>,
) -> Result<JsonResponse<Status>, ApiError> {
    // The build is read before its log, so that the log contains everything up to this status.
    let build = builds::find(&app, &who, &template, &build).await?;
    let entries = said(&app, &who, &build).await?;
    let shown =
        entries.filter(move |line| std::future::ready(query.level.is_none_or(|least| level(line) >= least)));
    let offset = usize::try_from(query.logs_offset.unwrap_or_default()).unwrap_or(usize::MAX);
    let limit = query.limit.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
    let lines: Vec<BuildLine> = shown.skip(offset).take(limit).collect().await;
    Ok(ok(Status {
        template_id: build.template.name.clone(),
        build_id: names::uuid(&build.id),
        status: builds::status(&app, &build),
        logs: lines.iter().map(|line| line.text.clone()).collect(),
        log_entries: lines.iter().map(entry).collect(),
        reason: reason(&build),
    }))
}

pub(super) async fn logs(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path((template, build)): Path<(String, String)>,
    Query(query): Query<BuildLogsQuery>,
) -> Result<JsonResponse<BuildLogs>, ApiError> {
    let build = builds::find(&app, &who, &template, &build).await?;
    let backward = match query.direction.as_deref() {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => return Err(ApiError::field("direction", "must be forward or backward")),
    };
    let wanted = |line: &BuildLine| {
        let in_time =
            query.cursor.is_none_or(|at| if backward { line.at_ms <= at } else { line.at_ms >= at });
        in_time && query.level.is_none_or(|least| level(line) >= least)
    };
    let limit = query.limit.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
    let mut lines = said(&app, &who, &build).await?;
    let mut kept = std::collections::VecDeque::new();
    while let Some(line) = lines.next().await {
        if !wanted(&line) {
            continue;
        }
        if kept.len() == limit {
            if !backward {
                break;
            }
            kept.pop_front();
        }
        kept.push_back(line);
    }
    let mut logs: Vec<BuildLogEntry> = kept.iter().map(entry).collect();
    if backward {
        logs.reverse();
    }
    Ok(ok(BuildLogs { logs }))
}

async fn said(
    app: &E2bApp,
    who: &Principal,
    build: &Build,
) -> Result<futures::stream::BoxStream<'static, BuildLine>, ApiError> {
    Ok(app.service.builds().log(who, build.id.as_str(), 0, false).await?)
}

fn level(line: &BuildLine) -> Level {
    match line.level {
        BuildLevel::Info | BuildLevel::Stdout | BuildLevel::Stderr => Level::Info,
        BuildLevel::Warn => Level::Warn,
        BuildLevel::Error => Level::Error,
    }
}

fn entry(line: &BuildLine) -> BuildLogEntry {
    BuildLogEntry {
        timestamp: rfc3339(line.at_ms),
        level: level(line),
        message: line.text.clone(),
        step: (line.step > 0).then(|| line.step.to_string()),
    }
}

/// Why it ended without a template.
fn reason(build: &Build) -> Option<Reason> {
    let (message, failure) = match (build.status, &build.failure) {
        (BuildStatus::Cancelled, _) => ("the build was cancelled".to_owned(), None),
        (BuildStatus::Failed, Some(failure)) => (told(failure), Some(failure)),
        (BuildStatus::Failed, None) => ("the build failed".to_owned(), None),
        (BuildStatus::Waiting | BuildStatus::Building | BuildStatus::Ready, _) => return None,
    };
    let at_ms = build.ended_at.as_ref().unwrap_or(&build.created_at).wall_ms;
    let tail = failure.map(|failure| failure.tail.as_slice()).unwrap_or_default();
    let log_entries = tail.iter().map(|text| BuildLogEntry {
        timestamp: rfc3339(at_ms),
        level: Level::Error,
        message: text.clone(),
        step: None,
    });
    Some(Reason { message, step: step(build), log_entries: log_entries.collect() })
}

/// The step in which it failed: by its number, or before the first or after the last one.
fn step(build: &Build) -> Option<String> {
    let number = build.failure.as_ref().and_then(|failure| failure.step);
    Some(match number {
        Some(number) if number > 0 => number.to_string(),
        _ if build.step_text == AFTER_THE_STEPS => "finalize".to_owned(),
        _ => "base".to_owned(),
    })
}

/// The message, the end of the output, and the hint: the SDKs show nothing else.
fn told(failure: &BuildFailure) -> String {
    let mut text = failure.message.clone();
    if let Some(last) = failure.tail.iter().rev().find(|line| !line.trim().is_empty()) {
        text.push_str(": ");
        text.push_str(last.trim());
    }
    if let Some(hint) = &failure.hint {
        text = format!("{text} ({hint})");
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::{BuildId, Code, TenantId, Timestamp};

    fn failed(step: Option<u32>, step_text: &str) -> Build {
        let at = Timestamp { wall_ms: 1_000, boot_id: String::new(), boot_ms: 0 };
        let failure = BuildFailure {
            code: Code::InvalidRequest,
            message: "the command exited with 1".to_owned(),
            hint: None,
            step,
            exit_code: Some(1),
            tail: vec!["no such file".to_owned(), String::new()],
        };
        Build {
            id: BuildId::from_entropy([1; 20]),
            tenant: TenantId::from_entropy([2; 20]),
            node: atoll_model::NodeName::default(),
            template: "app".parse().unwrap(),
            tags: Vec::new(),
            status: BuildStatus::Failed,
            step: step.unwrap_or_default(),
            steps: 2,
            step_text: step_text.to_owned(),
            cached_steps: 0,
            failure: Some(failure),
            version: None,
            notes: Vec::new(),
            created_at: at.clone(),
            started_at: None,
            ended_at: Some(at),
        }
    }

    #[test]
    fn a_failure_names_its_step_as_the_sdks_count() {
        for (number, text, wanted) in
            [(Some(2), "RUN x", "2"), (None, "", "base"), (None, AFTER_THE_STEPS, "finalize")]
        {
            let body = serde_json::to_value(reason(&failed(number, text)).unwrap()).unwrap();
            assert_eq!(
                body,
                serde_json::json!({
                    "message": "the command exited with 1: no such file",
                    "step": wanted,
                    "logEntries": [
                        { "timestamp": "1970-01-01T00:00:01Z", "level": "error", "message": "no such file" },
                        { "timestamp": "1970-01-01T00:00:01Z", "level": "error", "message": "" },
                    ],
                })
            );
        }
    }

    #[test]
    fn a_line_is_an_entry() {
        let line =
            BuildLine { seq: 3, at_ms: 1_500, level: BuildLevel::Stderr, step: 2, text: "oops".to_owned() };
        let wanted = serde_json::json!({ "timestamp": "1970-01-01T00:00:01.5Z", "level": "info", "message": "oops", "step": "2" });
        assert_eq!(serde_json::to_value(entry(&line)).unwrap(), wanted);
    }
}
