//! Files of a sandbox: every call is a POST. Small operations are here, content is transferred by [`content`].

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, lossy_text, ok, ok_list, toolbox};
use atoll_model::Principal;
use atoll_service::SandboxSession;
use atoll_toolbox::{
    CopyHow, Edit, Entry, EntryKind, Grep, ListOptions, MakeDir, Match, Node, PermissionChange, Replaced,
    Toolbox, ToolboxError,
};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use serde::{Deserialize, Serialize};

use crate::Leap0App;
use crate::response::ItemList;

mod content;
mod multipart;

pub(crate) fn routes() -> Router<Leap0App> {
    let at = |op: &str| format!("/v1/sandbox/{{id}}/filesystem/{op}");
    Router::new()
        .route(&at("ls"), post(ls))
        .route(&at("stat"), post(stat))
        .route(&at("mkdir"), post(mkdir))
        .route(&at("write-file"), post(content::write_file))
        .route(&at("write-files"), post(content::write_files))
        .route(&at("read-file"), post(content::read_file))
        .route(&at("read-files"), post(content::read_files))
        .route(&at("delete"), post(delete))
        .route(&at("set-permissions"), post(set_permissions))
        .route(&at("glob"), post(glob))
        .route(&at("grep"), post(grep))
        .route(&at("edit-file"), post(edit_file))
        .route(&at("edit-files"), post(edit_files))
        .route(&at("move"), post(move_path))
        .route(&at("copy"), post(copy))
        .route(&at("exists"), post(exists))
        .route(&at("tree"), post(tree))
}

/// LIMIT: files that one call edits, one after the other.
const EDITED_MAX: usize = 1_000;

/// The tools of a sandbox, which stays awake as long as this is held.
pub(crate) struct AwakeFiles {
    pub(crate) toolbox: Toolbox,
    pub(crate) sandbox: SandboxSession,
}

pub(crate) async fn awake(app: &Leap0App, who: &Principal, id: &str) -> Result<AwakeFiles, ApiError> {
    let sandbox = app.service.sandboxes().session(who, id).await?;
    Ok(AwakeFiles { toolbox: toolbox(&sandbox), sandbox })
}

/// COMPAT(leap0): file operations act as root. New files belong to the sandbox's user, as whom commands run.
async fn root_files(app: &Leap0App, who: &Principal, id: &str) -> Result<AwakeFiles, ApiError> {
    let sandbox = app.service.sandboxes().session(who, id).await?.with_root_files();
    Ok(AwakeFiles { toolbox: toolbox(&sandbox), sandbox })
}

impl AwakeFiles {
    /// A path as Leap0 interprets it: a relative one starts at the working directory.
    pub(crate) fn path(&self, given: &str) -> String {
        below(&self.sandbox.lease.workdir, given)
    }
}

/// The same for a sandbox that may be asleep.
pub(crate) async fn from_workdir(
    app: &Leap0App,
    who: &Principal,
    id: &str,
    path: String,
) -> Result<String, ApiError> {
    if path.starts_with('/') {
        return Ok(path);
    }
    Ok(below(&app.service.sandboxes().get(who, id).await?.workdir, &path))
}

/// A relative path below a folder. An empty one stays empty, and is refused where it is used.
pub(crate) fn below(folder: &str, path: &str) -> String {
    match folder {
        _ if path.is_empty() || path.starts_with(['/', '~']) => path.to_owned(),
        "" => path.to_owned(),
        folder => format!("{}/{path}", folder.trim_end_matches('/')),
    }
}

#[derive(Debug, Serialize)]
struct FileInfo {
    name: String,
    path: String,
    is_dir: bool,
    size: u64,
    /// Octal digits.
    mode: String,
    /// Unix seconds.
    mtime: i64,
    owner: String,
    group: String,
    is_symlink: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    link_target: Option<String>,
}

impl From<Entry> for FileInfo {
    fn from(entry: Entry) -> Self {
        Self {
            name: lossy_text(&entry.name),
            path: lossy_text(&entry.path),
            is_dir: entry.kind == EntryKind::Directory,
            size: entry.size,
            mode: format!("{:o}", entry.mode & 0o7777),
            mtime: entry.modified_at_ms.div_euclid(1_000),
            owner: entry.owner,
            group: entry.group,
            is_symlink: entry.kind == EntryKind::Symlink,
            link_target: entry.symlink_target.as_deref().map(lossy_text),
        }
    }
}

/// Parses a mode in octal digits.
fn mode(field: &'static str, digits: Option<&str>) -> Result<Option<u32>, ApiError> {
    let Some(digits) = digits else { return Ok(None) };
    let octal = digits.strip_prefix("0o").unwrap_or(digits);
    match u32::from_str_radix(octal, 8) {
        Ok(mode) if mode <= 0o7777 && octal.bytes().all(|b| b.is_ascii_digit()) => Ok(Some(mode)),
        Ok(_) | Err(_) => Err(ApiError::field(field, "must be octal digits such as 644")),
    }
}

#[derive(Debug, Deserialize)]
struct LsBody {
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    exclude: Option<Vec<String>>,
}

async fn ls(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<LsBody>,
) -> Result<Response, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    let query = ListOptions {
        depth: if body.recursive { None } else { Some(1) },
        exclude: body.exclude.unwrap_or_default(),
    };
    let found = awake.toolbox.files().list(&awake.path(&body.path), &query).await?;
    let items: Vec<FileInfo> = found.entries.into_iter().map(FileInfo::from).collect();
    Ok(ok_list(ItemList { items }, found.truncated))
}

#[derive(Debug, Deserialize)]
struct PathBody {
    path: String,
}

async fn stat(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<PathBody>,
) -> Result<JsonResponse<FileInfo>, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    Ok(ok(awake.toolbox.files().stat(&awake.path(&body.path)).await?.into()))
}

#[derive(Debug, Serialize)]
struct Exists {
    exists: bool,
}

async fn exists(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<PathBody>,
) -> Result<JsonResponse<Exists>, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    Ok(ok(Exists { exists: awake.toolbox.files().exists(&awake.path(&body.path)).await? }))
}

#[derive(Debug, Deserialize)]
struct MkdirBody {
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    permissions: Option<String>,
}

async fn mkdir(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<MkdirBody>,
) -> Result<StatusCode, ApiError> {
    let how = MakeDir { parents: body.recursive, mode: mode("permissions", body.permissions.as_deref())? };
    let awake = root_files(&app, &who, &id).await?;
    awake.toolbox.files().make_dir(&awake.path(&body.path), how).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct DeleteBody {
    path: String,
    #[serde(default)]
    recursive: bool,
}

async fn delete(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<DeleteBody>,
) -> Result<StatusCode, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    awake.toolbox.files().remove(&awake.path(&body.path), body.recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct PermissionsBody {
    path: String,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    group: Option<String>,
}

async fn set_permissions(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<PermissionsBody>,
) -> Result<StatusCode, ApiError> {
    let change =
        PermissionChange { mode: mode("mode", body.mode.as_deref())?, owner: body.owner, group: body.group };
    if change.mode.is_none() && change.owner.is_none() && change.group.is_none() {
        return Err(ApiError::field("mode", "mode, owner or group is required"));
    }
    let awake = root_files(&app, &who, &id).await?;
    awake.toolbox.files().change(&awake.path(&body.path), &change).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct GlobBody {
    path: String,
    pattern: String,
    #[serde(default)]
    exclude: Option<Vec<String>>,
}

async fn glob(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<GlobBody>,
) -> Result<Response, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    let exclude = body.exclude.unwrap_or_default();
    let found = awake.toolbox.files().glob(&awake.path(&body.path), &body.pattern, &exclude).await?;
    Ok(ok_list(ItemList { items: found.items }, found.truncated))
}

#[derive(Debug, Deserialize)]
struct GrepBody {
    path: String,
    pattern: String,
    #[serde(default)]
    include: Option<String>,
    #[serde(default)]
    exclude: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct SearchMatch {
    path: String,
    line: u64,
    content: String,
}

impl From<Match> for SearchMatch {
    fn from(Match { path, line, content }: Match) -> Self {
        Self { path, line, content }
    }
}

async fn grep(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<GrepBody>,
) -> Result<Response, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    let grep = Grep {
        pattern: body.pattern,
        include: body.include.into_iter().collect(),
        exclude: body.exclude.unwrap_or_default(),
        ..Grep::default()
    };
    let found = awake.toolbox.files().grep(&awake.path(&body.path), &grep).await?;
    let items: Vec<SearchMatch> = found.items.into_iter().map(SearchMatch::from).collect();
    Ok(ok_list(ItemList { items }, found.truncated))
}

#[derive(Debug, Deserialize)]
struct EditBody {
    path: String,
    #[serde(default)]
    edits: Vec<EditOne>,
}

#[derive(Debug, Deserialize)]
struct EditOne {
    find: String,
    #[serde(default)]
    replace: String,
}

#[derive(Debug, Serialize)]
struct Edited {
    diff: String,
    replacements: u64,
}

async fn edit_file(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<EditBody>,
) -> Result<JsonResponse<Edited>, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    let edits: Vec<Edit> = body
        .edits
        .into_iter()
        .map(|EditOne { find, replace }| Edit { find, replace, unique: false })
        .collect();
    let edited = awake.toolbox.files().edit(&awake.path(&body.path), &edits).await?;
    Ok(ok(Edited { diff: edited.diff, replacements: edited.replacements }))
}

#[derive(Debug, Deserialize)]
struct EditFilesBody {
    files: Vec<EditedPath>,
    #[serde(flatten)]
    edit: Option<EditOne>,
}

/// COMPAT(leap0): the Python SDK sends paths and one edit for all of them, the JavaScript SDK 0.1.0 an edit with each path.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum EditedPath {
    Path(String),
    Edit {
        path: String,
        #[serde(flatten)]
        edit: EditOne,
    },
}

#[derive(Debug, Serialize)]
struct EditedFile {
    file: String,
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<Replaced> for EditedFile {
    fn from(Replaced { file, outcome }: Replaced) -> Self {
        let error = outcome.err().map(|error: ToolboxError| error.to_string());
        Self { file, success: error.is_none(), error }
    }
}

async fn edit_files(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<EditFilesBody>,
) -> Result<JsonResponse<ItemList<EditedFile>>, ApiError> {
    if body.files.len() > EDITED_MAX {
        return Err(ApiError::field("files", format!("must have at most {EDITED_MAX} paths")));
    }
    let edits = body.files.iter().map(|file| match file {
        EditedPath::Edit { path, edit } => Ok((path, edit)),
        EditedPath::Path(path) => match &body.edit {
            Some(edit) => Ok((path, edit)),
            None => Err(ApiError::field("find", "is required")),
        },
    });
    let edits = edits.collect::<Result<Vec<_>, _>>()?;
    let awake = root_files(&app, &who, &id).await?;
    let mut items = Vec::with_capacity(edits.len());
    for (path, edit) in edits {
        let done = awake.toolbox.files().replace(&[awake.path(path)], &edit.find, &edit.replace).await;
        items.extend(done.into_iter().map(EditedFile::from));
    }
    Ok(ok(ItemList { items }))
}

#[derive(Debug, Deserialize)]
struct FromToBody {
    src_path: String,
    dst_path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    overwrite: Option<bool>,
}

async fn move_path(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<FromToBody>,
) -> Result<StatusCode, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    let (from, to) = (awake.path(&body.src_path), awake.path(&body.dst_path));
    awake.toolbox.files().move_to(&from, &to, body.overwrite.unwrap_or(false)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn copy(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<FromToBody>,
) -> Result<StatusCode, ApiError> {
    let how = CopyHow { recursive: body.recursive, overwrite: body.overwrite.unwrap_or(false) };
    let awake = root_files(&app, &who, &id).await?;
    awake.toolbox.files().copy(&awake.path(&body.src_path), &awake.path(&body.dst_path), how).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct TreeBody {
    path: String,
    #[serde(default)]
    max_depth: Option<u32>,
    #[serde(default)]
    exclude: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct TreeEntry {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<TreeEntry>>,
}

impl From<Node> for TreeEntry {
    fn from(node: Node) -> Self {
        Self {
            name: node.name,
            kind: if node.is_dir { "directory" } else { "file" },
            children: node.children.map(|below| below.into_iter().map(Self::from).collect()),
        }
    }
}

async fn tree(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<TreeBody>,
) -> Result<Response, ApiError> {
    let awake = root_files(&app, &who, &id).await?;
    let exclude = body.exclude.unwrap_or_default();
    let tree = awake.toolbox.files().tree(&awake.path(&body.path), body.max_depth, &exclude).await?;
    let items: Vec<TreeEntry> = tree.nodes.into_iter().map(TreeEntry::from).collect();
    Ok(ok_list(ItemList { items }, tree.truncated))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_start_at_the_working_directory() {
        for (path, wanted) in [("a/b", "/workspace/a/b"), ("/a", "/a"), ("~/a", "~/a"), ("", "")] {
            assert_eq!(below("/workspace", path), wanted);
        }
        assert_eq!((below("/", "a"), below("", "a")), ("/a".to_owned(), "a".to_owned()));
    }

    #[test]
    fn modes_are_octal_digits() {
        assert_eq!(mode("mode", None).unwrap(), None);
        assert_eq!(mode("mode", Some("755")).unwrap(), Some(0o755));
        assert_eq!(mode("mode", Some("0o4755")).unwrap(), Some(0o4755));
        for bad in ["", "9", "-1", "+7", "77777", "rwx", " 644"] {
            assert_eq!(mode("mode", Some(bad)).unwrap_err().field_name(), Some("mode"), "{bad}");
        }
    }
}
