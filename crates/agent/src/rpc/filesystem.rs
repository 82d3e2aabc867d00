//! envd's `filesystem.Filesystem`. Names that are not UTF-8 are shown with replacement characters here; the agent's own
//! service transfers them exactly.

use std::sync::Arc;

use atoll_agentapi::proto::FILESYSTEM_SERVICE;
use atoll_agentapi::proto::filesystem::{
    self as wire, CreateWatcherRequest, CreateWatcherResponse, EntryInfo, FileType, FilesystemEvent,
    GetWatcherEventsRequest, GetWatcherEventsResponse, ListDirRequest, ListDirResponse, MakeDirRequest,
    MakeDirResponse, MoveRequest, MoveResponse, RemoveRequest, RemoveResponse, RemoveWatcherRequest,
    RemoveWatcherResponse, StatRequest, StatResponse, WatchDirRequest, WatchDirResponse,
};
use buffa::MessageField;
use buffa_types::google::protobuf::Timestamp;
use connectrpc::handler::{handler_fn, streaming_handler_fn};
use connectrpc::{RequestContext, Response, Router, ServiceResult, ServiceStream};
use wire::watch_dir_response::{Event as WatchStep, KeepAlive, StartEvent};

use super::{keepalive, with_agent};
use crate::error::AgentError;
use crate::files::{self, Existing, FileEntry, FileKind};
use crate::http::file_user;
use crate::state::Agent;
use crate::users::User;
use crate::watch::{WatchEvent, WatchEventKind, WatchRequest, Watcher};

pub(super) fn routes(router: Router, agent: &Arc<Agent>) -> Router {
    router
        .route(FILESYSTEM_SERVICE, "Stat", handler_fn(with_agent(agent, stat)))
        .route(FILESYSTEM_SERVICE, "MakeDir", handler_fn(with_agent(agent, make_dir)))
        .route(FILESYSTEM_SERVICE, "Move", handler_fn(with_agent(agent, move_entry)))
        .route(FILESYSTEM_SERVICE, "ListDir", handler_fn(with_agent(agent, list_dir)))
        .route(FILESYSTEM_SERVICE, "Remove", handler_fn(with_agent(agent, remove)))
        .route_server_stream(
            FILESYSTEM_SERVICE,
            "WatchDir",
            streaming_handler_fn(with_agent(agent, watch_dir)),
        )
        .route(FILESYSTEM_SERVICE, "CreateWatcher", handler_fn(with_agent(agent, create_watcher)))
        .route(FILESYSTEM_SERVICE, "GetWatcherEvents", handler_fn(with_agent(agent, poll_watcher)))
        .route(FILESYSTEM_SERVICE, "RemoveWatcher", handler_fn(with_agent(agent, remove_watcher)))
}

fn place(agent: &Agent, context: &RequestContext, path: &str) -> Result<(User, Vec<u8>), AgentError> {
    let user = file_user(agent, context.headers(), "")?;
    let path = files::resolve(path.as_bytes(), &user)?;
    Ok((user, path))
}

async fn stat(
    agent: Arc<Agent>,
    context: RequestContext,
    request: StatRequest,
) -> ServiceResult<StatResponse> {
    let (user, path) = place(&agent, &context, &request.path)?;
    let entry = agent.workers.run(&user.ids, move || files::stat(&path)).await?;
    Response::ok(StatResponse { entry: MessageField::some(info(&entry)), ..Default::default() })
}

async fn make_dir(
    agent: Arc<Agent>,
    context: RequestContext,
    request: MakeDirRequest,
) -> ServiceResult<MakeDirResponse> {
    let (user, path) = place(&agent, &context, &request.path)?;
    let entry = agent.workers.run(&user.ids, move || files::make_dir(&path, 0o755)).await?;
    Response::ok(MakeDirResponse { entry: MessageField::some(info(&entry)), ..Default::default() })
}

async fn move_entry(
    agent: Arc<Agent>,
    context: RequestContext,
    request: MoveRequest,
) -> ServiceResult<MoveResponse> {
    let (user, source) = place(&agent, &context, &request.source)?;
    let destination = files::resolve(request.destination.as_bytes(), &user)?;
    let job = move || files::move_entry(&source, &destination, Existing::Replaced);
    let entry = agent.workers.run(&user.ids, job).await?;
    Response::ok(MoveResponse { entry: MessageField::some(info(&entry)), ..Default::default() })
}

async fn list_dir(
    agent: Arc<Agent>,
    context: RequestContext,
    request: ListDirRequest,
) -> ServiceResult<ListDirResponse> {
    let (user, path) = place(&agent, &context, &request.path)?;
    let (found, _) = agent.workers.run(&user.ids, move || files::list(&path, request.depth)).await?;
    Response::ok(ListDirResponse { entries: found.iter().map(info).collect(), ..Default::default() })
}

async fn remove(
    agent: Arc<Agent>,
    context: RequestContext,
    request: RemoveRequest,
) -> ServiceResult<RemoveResponse> {
    let (user, path) = place(&agent, &context, &request.path)?;
    agent.workers.run(&user.ids, move || files::remove(&path, true)).await?;
    Response::ok(RemoveResponse::default())
}

async fn watch_dir(
    agent: Arc<Agent>,
    context: RequestContext,
    request: WatchDirRequest,
) -> ServiceResult<ServiceStream<WatchDirResponse>> {
    let (user, root) = place(&agent, &context, &request.path)?;
    let mut watcher = Watcher::open(&agent.workers, &user.ids, root.clone(), request.recursive).await?;
    let terms = WatchRequest { user, root, with_entries: request.include_entry };
    let keepalive = keepalive(&context);
    let step = |event: WatchStep| WatchDirResponse { event: Some(event), ..Default::default() };
    Response::stream_ok(async_stream::stream! {
        yield Ok(step(WatchStep::Start(StartEvent::default())));
        loop {
            match tokio::time::timeout(keepalive, watcher.next()).await {
                Ok(Ok(event)) => {
                    if let Some(event) = told(&agent, &terms, event).await {
                        yield Ok(step(WatchStep::Filesystem(event)));
                    }
                }
                Ok(Err(refusal)) => {
                    yield Err(refusal.into());
                    return;
                }
                Err(_) => yield Ok(step(WatchStep::Keepalive(KeepAlive::default()))),
            }
        }
    })
}

async fn create_watcher(
    agent: Arc<Agent>,
    context: RequestContext,
    request: CreateWatcherRequest,
) -> ServiceResult<CreateWatcherResponse> {
    let (user, root) = place(&agent, &context, &request.path)?;
    let watcher = Watcher::open(&agent.workers, &user.ids, root.clone(), request.recursive).await?;
    let watcher_id =
        agent.watchers.insert(watcher, WatchRequest { user, root, with_entries: request.include_entry })?;
    Response::ok(CreateWatcherResponse { watcher_id, ..Default::default() })
}

async fn poll_watcher(
    agent: Arc<Agent>,
    _: RequestContext,
    request: GetWatcherEventsRequest,
) -> ServiceResult<GetWatcherEventsResponse> {
    let (events, terms) = agent.watchers.poll(&request.watcher_id)?;
    let mut answer = GetWatcherEventsResponse::default();
    for event in events {
        answer.events.extend(told(&agent, &terms, event).await);
    }
    Response::ok(answer)
}

async fn remove_watcher(
    agent: Arc<Agent>,
    _: RequestContext,
    request: RemoveWatcherRequest,
) -> ServiceResult<RemoveWatcherResponse> {
    agent.watchers.remove(&request.watcher_id)?;
    Response::ok(RemoveWatcherResponse::default())
}

/// COMPAT(e2b): the protocol has no event for an overflow, so it is left out; the agent's own service reports it.
async fn told(agent: &Agent, terms: &WatchRequest, event: WatchEvent) -> Option<FilesystemEvent> {
    let kind = match event.what {
        WatchEventKind::Create => wire::EventType::EVENT_TYPE_CREATE,
        WatchEventKind::Write => wire::EventType::EVENT_TYPE_WRITE,
        WatchEventKind::Remove => wire::EventType::EVENT_TYPE_REMOVE,
        WatchEventKind::Rename => wire::EventType::EVENT_TYPE_RENAME,
        WatchEventKind::Chmod => wire::EventType::EVENT_TYPE_CHMOD,
        WatchEventKind::Overflow => return None,
    };
    let seen = terms.with_entries
        && matches!(event.what, WatchEventKind::Create | WatchEventKind::Write | WatchEventKind::Chmod);
    let entry = if seen {
        let path = [&terms.root, &b"/"[..], &event.name].concat();
        agent.workers.run(&terms.user.ids, move || files::stat(&path)).await.ok()
    } else {
        None
    };
    Some(FilesystemEvent {
        name: String::from_utf8_lossy(&event.name).into_owned(),
        r#type: kind.into(),
        entry: entry.map(|entry| info(&entry)).into(),
        ..Default::default()
    })
}

/// COMPAT(e2b): a link shows its target's type and path.
fn info(entry: &FileEntry) -> EntryInfo {
    let end = entry.link.as_ref().and_then(|link| link.end.as_ref());
    let kind = end.map_or(entry.kind, |(_, kind, _)| *kind);
    let target = entry.link.as_ref().map(|link| end.map_or(&link.text, |(path, _, _)| path));
    let size = end.map_or(entry.size, |(_, _, stat)| u64::try_from(stat.st_size).unwrap_or(0));
    EntryInfo {
        name: text(&entry.name),
        r#type: file_type(kind).into(),
        path: text(&entry.path),
        size: i64::try_from(shown_size(kind, size)).unwrap_or(i64::MAX),
        mode: entry.mode & 0o777,
        permissions: permissions(entry.kind, entry.mode),
        owner: entry.owner.clone(),
        group: entry.group.clone(),
        modified_time: MessageField::some(Timestamp {
            seconds: entry.modified_s,
            nanos: i32::try_from(entry.modified_ns).unwrap_or(0),
            ..Default::default()
        }),
        symlink_target: target.map(|path| text(path)),
        metadata: entry.metadata.clone().into_iter().collect(),
        ..Default::default()
    }
}

/// COMPAT(e2b): directories have the size of whole blocks, as on ext4; an empty one on btrfs would have 0.
fn shown_size(kind: FileKind, size: u64) -> u64 {
    const BLOCK: u64 = 4096;
    match kind {
        FileKind::Directory => size.max(1).next_multiple_of(BLOCK),
        FileKind::File | FileKind::Symlink | FileKind::Other => size,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::FILE_TYPE_FILE,
        FileKind::Directory => FileType::FILE_TYPE_DIRECTORY,
        FileKind::Symlink => FileType::FILE_TYPE_SYMLINK,
        FileKind::Other => FileType::FILE_TYPE_UNSPECIFIED,
    }
}

/// `-rw-r--r--`, as Go's `FileMode` prints it.
fn permissions(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'L',
        FileKind::Other => '?',
    };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    std::iter::once(first)
        .chain(bits.map(|(bit, letter)| if mode >> bit & 1 == 1 { letter } else { '-' }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_like_gos() {
        assert_eq!(permissions(FileKind::File, 0o100_644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o40_755), "drwxr-xr-x");
    }

    #[test]
    fn directories_have_whole_blocks_and_files_their_bytes() {
        assert_eq!(
            [0, 1, 4096, 4097].map(|size| shown_size(FileKind::Directory, size)),
            [4096, 4096, 4096, 8192]
        );
        assert_eq!([0, 7].map(|size| shown_size(FileKind::File, size)), [0, 7]);
    }
}
