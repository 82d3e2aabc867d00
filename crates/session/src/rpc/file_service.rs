//! envd's `filesystem.Filesystem`, which E2B's SDKs use through their front.

use std::sync::Arc;

use atoll_agentapi::proto::FILESYSTEM_SERVICE;
use atoll_agentapi::proto::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, EntryInfo, FileType, GetWatcherEventsRequest,
    GetWatcherEventsResponse, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest,
    MoveResponse, RemoveRequest, RemoveResponse, RemoveWatcherRequest, RemoveWatcherResponse, StatRequest,
    StatResponse, WatchDirRequest, WatchDirResponse,
};
use atoll_agentapi::{Entry, EntryKind};
use buffa::MessageField;
use buffa_types::google::protobuf::Timestamp;
use connectrpc::handler::{handler_fn, streaming_handler_fn};
use connectrpc::{ConnectError, RequestContext, Response, Router, ServiceResult, ServiceStream};

use super::handled;
use crate::error::SessionRefusal;
use crate::state::AdapterState;

pub(super) fn routes(router: Router, state: &Arc<AdapterState>) -> Router {
    const SERVICE: &str = FILESYSTEM_SERVICE;
    router
        .route(SERVICE, "Stat", handler_fn(handled(state, stat)))
        .route(SERVICE, "ListDir", handler_fn(handled(state, list_dir)))
        .route(SERVICE, "MakeDir", handler_fn(handled(state, make_dir)))
        .route(SERVICE, "Move", handler_fn(handled(state, move_entry)))
        .route(SERVICE, "Remove", handler_fn(handled(state, remove)))
        .route_server_stream(SERVICE, "WatchDir", streaming_handler_fn(handled(state, watch_dir)))
        .route(SERVICE, "CreateWatcher", handler_fn(handled(state, create_watcher)))
        .route(SERVICE, "GetWatcherEvents", handler_fn(handled(state, poll_watcher)))
        .route(SERVICE, "RemoveWatcher", handler_fn(handled(state, remove_watcher)))
}

fn place(
    state: &AdapterState,
    context: &RequestContext,
    path: &str,
) -> Result<(String, Option<String>), SessionRefusal> {
    Ok((state.path(path.as_bytes())?, state.user(context.headers(), "")?))
}

fn described(entry: &Entry) -> MessageField<EntryInfo, buffa::Inline<EntryInfo>> {
    MessageField::some(info(entry))
}

async fn stat(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: StatRequest,
) -> ServiceResult<StatResponse> {
    let (path, user) = place(&state, &context, &request.path)?;
    let entry = described(&state.stat(&path, user.as_deref()).await?);
    Response::ok(StatResponse { entry, ..Default::default() })
}

async fn list_dir(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: ListDirRequest,
) -> ServiceResult<ListDirResponse> {
    let (path, user) = place(&state, &context, &request.path)?;
    let (found, _) = state.list(&path, user.as_deref(), request.depth).await?;
    Response::ok(ListDirResponse { entries: found.iter().map(info).collect(), ..Default::default() })
}

async fn make_dir(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: MakeDirRequest,
) -> ServiceResult<MakeDirResponse> {
    let (path, user) = place(&state, &context, &request.path)?;
    let entry = described(&state.make_dir(&path, user.as_deref(), None).await?);
    Response::ok(MakeDirResponse { entry, ..Default::default() })
}

async fn move_entry(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: MoveRequest,
) -> ServiceResult<MoveResponse> {
    let (from, user) = place(&state, &context, &request.source)?;
    let to = state.path(request.destination.as_bytes())?;
    let entry = described(&state.rename(&from, &to, user.as_deref(), false).await?);
    Response::ok(MoveResponse { entry, ..Default::default() })
}

async fn remove(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: RemoveRequest,
) -> ServiceResult<RemoveResponse> {
    let (path, user) = place(&state, &context, &request.path)?;
    state.remove(&path, user.as_deref(), true).await?;
    Response::ok(RemoveResponse::default())
}

fn no_watch(state: &AdapterState) -> ConnectError {
    state.agent_only("watching files").into()
}

async fn watch_dir(
    state: Arc<AdapterState>,
    _: RequestContext,
    _: WatchDirRequest,
) -> ServiceResult<ServiceStream<WatchDirResponse>> {
    Err(no_watch(&state))
}

async fn create_watcher(
    state: Arc<AdapterState>,
    _: RequestContext,
    _: CreateWatcherRequest,
) -> ServiceResult<CreateWatcherResponse> {
    Err(no_watch(&state))
}

async fn poll_watcher(
    state: Arc<AdapterState>,
    _: RequestContext,
    _: GetWatcherEventsRequest,
) -> ServiceResult<GetWatcherEventsResponse> {
    Err(no_watch(&state))
}

async fn remove_watcher(
    state: Arc<AdapterState>,
    _: RequestContext,
    _: RemoveWatcherRequest,
) -> ServiceResult<RemoveWatcherResponse> {
    Err(no_watch(&state))
}

fn info(entry: &Entry) -> EntryInfo {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (kind, letter) = match entry.kind {
        EntryKind::File => (FileType::FILE_TYPE_FILE, '-'),
        EntryKind::Directory => (FileType::FILE_TYPE_DIRECTORY, 'd'),
        EntryKind::Symlink => (FileType::FILE_TYPE_SYMLINK, 'L'),
        EntryKind::Other => (FileType::FILE_TYPE_UNSPECIFIED, '?'),
    };
    let millis = entry.modified_at_ms;
    let modified = Timestamp {
        seconds: millis.div_euclid(1_000),
        nanos: i32::try_from(millis.rem_euclid(1_000) * 1_000_000).unwrap_or(0),
        ..Default::default()
    };
    EntryInfo {
        name: text(&entry.name),
        path: text(&entry.path),
        r#type: kind.into(),
        size: i64::try_from(entry.size).unwrap_or(i64::MAX),
        mode: entry.mode & 0o777,
        permissions: permissions(letter, entry.mode),
        owner: entry.owner.clone(),
        group: entry.group.clone(),
        modified_time: MessageField::some(modified),
        symlink_target: entry.symlink_target.as_deref().map(text),
        metadata: entry.metadata.clone().into_iter().collect(),
        ..Default::default()
    }
}

/// `-rw-r--r--`.
fn permissions(letter: char, mode: u32) -> String {
    let bit = |at: usize| if mode >> (8 - at) & 1 == 1 { char::from(b"rwx"[at % 3]) } else { '-' };
    std::iter::once(letter).chain((0..9).map(bit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_ls_writes_them() {
        assert_eq!(permissions('-', 0o100_644), "-rw-r--r--");
        assert_eq!(permissions('d', 0o750), "drwxr-x---");
    }
}
