//! Files of a sandbox: lists, search, edits. Content is transferred by [`super::transfer`].

use atoll_front_kit::{ApiError, Json, JsonResponse, Query, lossy_text, ok, ok_list, rfc3339_millis};
use atoll_toolbox::{Entry, EntryKind, Grep, ListOptions, MakeDir, PermissionChange, ToolboxError};
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::inside::Inside;
use super::refusal::{bad, of_file};
use crate::DaytonaApp;
use crate::error::daemon;

/// LIMIT: levels of a list; the agent limits its entries.
const DEPTH_MAX: u32 = 64;
/// LIMIT: files that one call edits, one after the other.
const EDITED_MAX: usize = 1_000;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/files", get(list).delete(remove))
        .route("/files/info", get(info))
        .route("/files/folder", post(make_folder))
        .route("/files/move", post(move_path))
        .route("/files/permissions", post(permissions))
        .route("/files/find", get(find))
        .route("/files/search", get(search))
        .route("/files/replace", post(replace))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileInfo {
    name: String,
    is_dir: bool,
    size: u64,
    /// In the form of `ls`.
    mode: String,
    /// Octal digits.
    permissions: String,
    owner: String,
    group: String,
    mod_time: String,
    modified_at: String,
    path: String,
}

impl From<Entry> for FileInfo {
    fn from(entry: Entry) -> Self {
        Self {
            name: lossy_text(&entry.name),
            is_dir: entry.kind == EntryKind::Directory,
            size: entry.size,
            mode: letters(entry.kind, entry.mode),
            permissions: format!("{:04o}", entry.mode & 0o7777),
            owner: entry.owner,
            group: entry.group,
            mod_time: long_time(entry.modified_at_ms),
            modified_at: rfc3339_millis(entry.modified_at_ms),
            path: lossy_text(&entry.path),
        }
    }
}

fn letters(kind: EntryKind, mode: u32) -> String {
    let first = match kind {
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'L',
        EntryKind::File => '-',
        EntryKind::Other => '?',
    };
    let bits = (0..9).rev().map(|bit| if mode & (1 << bit) != 0 { ['x', 'w', 'r'][bit % 3] } else { '-' });
    std::iter::once(first).chain(bits).collect()
}

/// COMPAT(daytona): the format of Go, in which its daemon is written.
fn long_time(ms: i64) -> String {
    let at = Timestamp::from_millisecond(ms).unwrap_or_default().to_zoned(TimeZone::UTC);
    at.strftime("%Y-%m-%d %H:%M:%S%.3f +0000 UTC").to_string()
}

#[derive(Debug, Deserialize)]
struct ListQueryString {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    depth: Option<u32>,
}

async fn list(inside: Inside, Query(query): Query<ListQueryString>) -> Result<Response, ApiError> {
    let depth = match query.depth {
        Some(0) => return Err(bad("depth must be at least 1")),
        depth => depth.unwrap_or(1).min(DEPTH_MAX),
    };
    let path = match query.path.as_deref() {
        None | Some("") => inside.cwd(Some(".")).unwrap_or_else(|| "~".to_owned()),
        Some(path) => inside.path(path)?,
    };
    let how = ListOptions { depth: Some(depth), exclude: Vec::new() };
    let found = inside.toolbox.files().list(&path, &how).await.map_err(of_file)?;
    let items: Vec<FileInfo> = found.entries.into_iter().map(FileInfo::from).collect();
    Ok(ok_list(items, found.truncated))
}

#[derive(Debug, Deserialize)]
struct PathQuery {
    path: String,
}

async fn info(inside: Inside, Query(query): Query<PathQuery>) -> Result<JsonResponse<FileInfo>, ApiError> {
    let path = inside.path(&query.path)?;
    Ok(ok(inside.toolbox.files().stat(&path).await.map_err(of_file)?.into()))
}

#[derive(Debug, Deserialize)]
struct RemoveQuery {
    path: String,
    #[serde(default)]
    recursive: Option<bool>,
}

async fn remove(inside: Inside, Query(query): Query<RemoveQuery>) -> Result<StatusCode, ApiError> {
    let path = inside.path(&query.path)?;
    let files = inside.toolbox.files();
    let recursive = query.recursive.unwrap_or(false);
    if !recursive && files.stat(&path).await.map_err(of_file)?.kind == EntryKind::Directory {
        return Err(bad(format!("{path:?} is a directory; remove it with recursive=true")));
    }
    files.remove(&path, recursive).await.map_err(of_file)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct FolderQuery {
    path: String,
    mode: Option<String>,
}

async fn make_folder(inside: Inside, Query(query): Query<FolderQuery>) -> Result<StatusCode, ApiError> {
    let path = inside.path(&query.path)?;
    let mode = mode(query.mode.as_deref())?;
    let files = inside.toolbox.files();
    match files.make_dir(&path, MakeDir { parents: true, mode }).await {
        Ok(made) if made.kind == EntryKind::Directory => Ok(StatusCode::CREATED),
        Ok(_) => {
            Err(daemon(StatusCode::CONFLICT, "CONFLICT", format!("{path:?} exists and is not a directory")))
        }
        Err(error) => Err(of_file(error)),
    }
}

/// Parses a mode in octal digits.
fn mode(digits: Option<&str>) -> Result<Option<u32>, ApiError> {
    let Some(digits) = digits.filter(|digits| !digits.is_empty()) else { return Ok(None) };
    let octal = digits.strip_prefix("0o").unwrap_or(digits);
    match u32::from_str_radix(octal, 8) {
        Ok(mode) if mode <= 0o7777 && octal.bytes().all(|b| b.is_ascii_digit()) => Ok(Some(mode)),
        Ok(_) | Err(_) => Err(bad("mode must be octal digits such as 644")),
    }
}

#[derive(Debug, Deserialize)]
struct MoveQuery {
    source: String,
    destination: String,
}

async fn move_path(inside: Inside, Query(query): Query<MoveQuery>) -> Result<StatusCode, ApiError> {
    let (from, to) = (inside.path(&query.source)?, inside.path(&query.destination)?);
    inside.toolbox.files().move_to(&from, &to, false).await.map_err(of_file)?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
struct PermissionsQuery {
    path: String,
    mode: Option<String>,
    owner: Option<String>,
    group: Option<String>,
}

async fn permissions(inside: Inside, Query(query): Query<PermissionsQuery>) -> Result<StatusCode, ApiError> {
    let path = inside.path(&query.path)?;
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    let change = PermissionChange {
        mode: mode(query.mode.as_deref())?,
        owner: some(query.owner),
        group: some(query.group),
    };
    if change.mode.is_none() && change.owner.is_none() && change.group.is_none() {
        return Err(bad("mode, owner or group is required"));
    }
    inside.toolbox.files().change(&path, &change).await.map_err(|error| {
        // An unknown user name is an error of the request, not of the path.
        match error.to_string() {
            words if words.ends_with("in this sandbox") => bad(words),
            _ => of_file(error),
        }
    })?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
struct PatternQuery {
    path: String,
    pattern: String,
}

#[derive(Debug, Serialize)]
struct Match {
    file: String,
    line: u64,
    content: String,
}

/// Searches a text in files.
async fn find(inside: Inside, Query(query): Query<PatternQuery>) -> Result<Response, ApiError> {
    let path = inside.path(&query.path)?;
    let grep = Grep { pattern: query.pattern, literal: true, ..Grep::default() };
    let found = inside.toolbox.files().grep(&path, &grep).await.map_err(of_file)?;
    let shown =
        |found: atoll_toolbox::Match| Match { file: found.path, line: found.line, content: found.content };
    let items: Vec<Match> = found.items.into_iter().map(shown).collect();
    Ok(ok_list(items, found.truncated))
}

#[derive(Debug, Serialize)]
struct Found {
    files: Vec<String>,
}

/// Searches names of files.
async fn search(inside: Inside, Query(query): Query<PatternQuery>) -> Result<Response, ApiError> {
    let path = inside.path(&query.path)?;
    let found = inside.toolbox.files().glob(&path, &query.pattern, &[]).await.map_err(of_file)?;
    Ok(ok_list(Found { files: found.items }, found.truncated))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReplaceBody {
    files: Vec<String>,
    pattern: String,
    new_value: String,
}

#[derive(Debug, Serialize)]
struct Replaced {
    file: String,
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

async fn replace(
    inside: Inside,
    Json(body): Json<ReplaceBody>,
) -> Result<JsonResponse<Vec<Replaced>>, ApiError> {
    if body.files.is_empty() || body.files.len() > EDITED_MAX {
        return Err(bad(format!("files must name 1 to {EDITED_MAX} paths")));
    }
    if body.pattern.is_empty() {
        return Err(bad("pattern is required"));
    }
    let paths = body.files.iter().map(|file| inside.path(file)).collect::<Result<Vec<_>, _>>()?;
    let done = inside.toolbox.files().replace(&paths, &body.pattern, &body.new_value).await;
    let shown = done.into_iter().zip(body.files).map(|(done, file)| {
        let error = done.outcome.as_ref().err().map(ToolboxError::to_string);
        Replaced { file, success: error.is_none(), error }
    });
    Ok(ok(shown.collect()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shown_as_the_daemon_shows_it() {
        let entry = Entry {
            name: b"a".to_vec(),
            path: b"/srv/a".to_vec(),
            kind: EntryKind::Directory,
            size: 1,
            mode: 0o40_751,
            uid: 0,
            gid: 0,
            owner: "root".into(),
            group: "root".into(),
            modified_at_ms: 1_763_000_000_123,
            symlink_target: None,
            metadata: Default::default(),
        };
        let shown = FileInfo::from(entry);
        assert_eq!(
            (shown.mode.as_str(), shown.permissions.as_str(), shown.is_dir),
            ("drwxr-x--x", "0751", true)
        );
        assert_eq!(shown.mod_time, "2025-11-13 02:13:20.123 +0000 UTC");
        assert_eq!(letters(EntryKind::File, 0o644), "-rw-r--r--");
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode(Some("755")).unwrap(), Some(0o755));
        assert_eq!(mode(Some("0644")).unwrap(), Some(0o644));
        assert_eq!((mode(None).unwrap(), mode(Some("")).unwrap()), (None, None));
        for wrong in ["rwx", "999", "+7", "77777"] {
            assert_eq!(mode(Some(wrong)).unwrap_err().status().as_u16(), 400, "{wrong}");
        }
    }
}
