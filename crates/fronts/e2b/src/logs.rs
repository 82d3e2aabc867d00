//! Returns the output of processes without a listener, in both forms of E2B. It wakes no sandbox: a sandbox that is
//! asleep has no logs.

use std::collections::BTreeMap;

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, lossy_text, ok, rfc3339};
use atoll_model::{Code, Principal};
use atoll_service::{LogLine, LogStream};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::E2bApp;
use crate::sandboxes::find;

/// LIMIT: that of E2B.
const LINES_MAX: usize = 1_000;

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new().route("/sandboxes/{id}/logs", get(first)).route("/v2/sandboxes/{id}/logs", get(second))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct LogEntry {
    timestamp: String,
    message: String,
    level: &'static str,
    fields: BTreeMap<&'static str, String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Line {
    timestamp: String,
    line: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SandboxLogs {
    logs: Vec<Line>,
    log_entries: Vec<LogEntry>,
}

#[derive(Debug, Serialize)]
struct LogsV2 {
    logs: Vec<LogEntry>,
}

/// Milliseconds since the Unix epoch.
#[derive(Debug, Default, Deserialize)]
struct LogsQuery {
    start: Option<i64>,
    limit: Option<usize>,
}

async fn first(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(asked): Query<LogsQuery>,
) -> Result<JsonResponse<SandboxLogs>, ApiError> {
    let limit = limit(asked.limit)?;
    let kept = read(&app, &who, &id).await?;
    let kept = kept.into_iter().filter(|(at_ms, _)| asked.start.is_none_or(|start| start <= *at_ms));
    let log_entries: Vec<LogEntry> = kept.map(|(_, entry)| entry).take(limit).collect();
    let line = |entry: &LogEntry| Line { timestamp: entry.timestamp.clone(), line: entry.message.clone() };
    Ok(ok(SandboxLogs { logs: log_entries.iter().map(line).collect(), log_entries }))
}

/// The cursor is in milliseconds since the Unix epoch.
#[derive(Debug, Default, Deserialize)]
struct AskedV2 {
    cursor: Option<i64>,
    limit: Option<usize>,
    direction: Option<String>,
    level: Option<String>,
    search: Option<String>,
}

async fn second(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(asked): Query<AskedV2>,
) -> Result<JsonResponse<LogsV2>, ApiError> {
    let kept = read(&app, &who, &id).await?;
    Ok(ok(LogsV2 { logs: select(kept, &asked)? }))
}

fn select(mut kept: Vec<(i64, LogEntry)>, asked: &AskedV2) -> Result<Vec<LogEntry>, ApiError> {
    let limit = limit(asked.limit)?;
    let is_backward = match asked.direction.as_deref() {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => return Err(ApiError::field("direction", "must be forward or backward")),
    };
    let least = match asked.level.as_deref() {
        None => 0,
        Some(word) => {
            rank(word).ok_or_else(|| ApiError::field("level", "must be debug, info, warn or error"))?
        }
    };
    if is_backward {
        kept.reverse();
    }
    let follows = |at_ms: i64| match asked.cursor {
        None => true,
        Some(cursor) if is_backward => at_ms <= cursor,
        Some(cursor) => cursor <= at_ms,
    };
    let is_meant = |entry: &LogEntry| {
        rank(entry.level).is_some_and(|rank| rank >= least)
            && asked.search.as_deref().is_none_or(|part| entry.message.contains(part))
    };
    let meant = kept.into_iter().filter(|(at_ms, entry)| follows(*at_ms) && is_meant(entry));
    Ok(meant.map(|(_, entry)| entry).take(limit).collect())
}

fn rank(level: &str) -> Option<usize> {
    ["debug", "info", "warn", "error"].iter().position(|known| *known == level)
}

fn limit(asked: Option<usize>) -> Result<usize, ApiError> {
    match asked.unwrap_or(LINES_MAX) {
        limit if limit <= LINES_MAX => Ok(limit),
        _ => Err(ApiError::field("limit", "must be between 0 and 1000")),
    }
}

async fn read(app: &E2bApp, who: &Principal, id: &str) -> Result<Vec<(i64, LogEntry)>, ApiError> {
    let lease = find(app, who, id).await?;
    match app.service.sandboxes().logs(who, lease.id.as_str(), false).await {
        Ok(lines) => Ok(lines.map(|line| (line.at_ms, LogEntry::from(line))).collect().await),
        Err(error) if matches!(error.code, Code::Asleep | Code::PhaseConflict) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

impl From<LogLine> for LogEntry {
    fn from(line: LogLine) -> Self {
        let (stream, level) = match line.stream {
            LogStream::Stdout => ("stdout", "info"),
            LogStream::Stderr => ("stderr", "error"),
            LogStream::Terminal => ("pty", "info"),
        };
        let message = lossy_text(&line.data);
        Self {
            timestamp: rfc3339(line.at_ms),
            message: message.strip_suffix('\n').unwrap_or(&message).to_owned(),
            level,
            fields: BTreeMap::from([("pid", line.pid.to_string()), ("stream", stream.to_owned())]),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn kept() -> Vec<(i64, LogEntry)> {
        let line = |at_ms: i64, stream, text: &'static str| LogLine {
            at_ms,
            pid: 7,
            stream,
            data: text.into(),
            dropped: 0,
        };
        let lines = [
            line(1, LogStream::Stdout, "one\n"),
            line(2, LogStream::Stderr, "two"),
            line(3, LogStream::Stdout, "three\n"),
        ];
        lines.into_iter().map(|line| (line.at_ms, line.into())).collect()
    }

    fn texts(query: &str) -> Vec<String> {
        let uri = format!("/?{query}").parse().unwrap();
        let asked = axum::extract::Query::<AskedV2>::try_from_uri(&uri).unwrap().0;
        select(kept(), &asked).unwrap().into_iter().map(|entry| entry.message).collect()
    }

    #[test]
    fn entries_are_chosen_by_direction_cursor_level_and_text() {
        assert_eq!(texts(""), ["one", "two", "three"]);
        assert_eq!(texts("direction=backward&limit=2"), ["three", "two"]);
        assert_eq!(texts("cursor=2"), ["two", "three"]);
        assert_eq!(texts("cursor=2&direction=backward"), ["two", "one"]);
        assert_eq!(texts("level=warn"), ["two"]);
        assert_eq!(texts("search=hre"), ["three"]);
        assert!(select(kept(), &AskedV2 { limit: Some(1_001), ..AskedV2::default() }).is_err());
    }

    #[test]
    fn an_entry_looks_like_this() {
        assert_eq!(
            serde_json::to_value(&kept()[1].1).unwrap(),
            serde_json::json!({
                "timestamp": "1970-01-01T00:00:00.002Z", "message": "two", "level": "error",
                "fields": { "pid": "7", "stream": "stderr" },
            })
        );
    }
}
