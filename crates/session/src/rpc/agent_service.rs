//! `atoll.agent.v1.Agent`, the service that the server itself uses.

use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::proto::AGENT_SERVICE;
use atoll_agentapi::proto::agent::{
    self as wire, AttachRequest, ChangeRequest, CopyRequest, ListDirRequest, ListDirResponse, ListRequest,
    ListResponse, LogEvent, LogsRequest, MakeDirRequest, MoveRequest, ProcessEvent, RemoveRequest,
    RemoveResponse, SearchRequest, SearchResponse, SignalRequest, SignalResponse, StartRequest, StatRequest,
    StatResponse, WatchEvent, WatchRequest,
};
use atoll_agentapi::{Entry, EntryKind, StartProcess, TerminalSize};
use buffa::MessageField;
use connectrpc::handler::{handler_fn, streaming_handler_fn};
use connectrpc::{ConnectError, RequestContext, Response, Router, ServiceResult, ServiceStream};
use wire::__buffa::oneof::process_event::Event;

use super::{handled, quiet_limit};
use crate::error::SessionRefusal;
use crate::process::{AdapterProcess, LogSource, OutputChannel};
use crate::ring::{OutputEnd, ReadPosition, RingItem, RingReader};
use crate::state::AdapterState;

pub(super) fn routes(router: Router, state: &Arc<AdapterState>) -> Router {
    const SERVICE: &str = AGENT_SERVICE;
    router
        .route_server_stream(SERVICE, "Start", streaming_handler_fn(handled(state, begin)))
        .route_server_stream(SERVICE, "Attach", streaming_handler_fn(handled(state, attach)))
        .route_server_stream(SERVICE, "Logs", streaming_handler_fn(handled(state, logs)))
        .route_server_stream(SERVICE, "Watch", streaming_handler_fn(handled(state, watch)))
        .route(SERVICE, "List", handler_fn(handled(state, list)))
        .route(SERVICE, "Signal", handler_fn(handled(state, signal)))
        .route(SERVICE, "Stat", handler_fn(handled(state, stat)))
        .route(SERVICE, "ListDir", handler_fn(handled(state, list_dir)))
        .route(SERVICE, "MakeDir", handler_fn(handled(state, make_dir)))
        .route(SERVICE, "Move", handler_fn(handled(state, move_entry)))
        .route(SERVICE, "Remove", handler_fn(handled(state, remove)))
        .route(SERVICE, "Copy", handler_fn(handled(state, copy)))
        .route(SERVICE, "Search", handler_fn(handled(state, search)))
        .route(SERVICE, "Change", handler_fn(handled(state, change)))
}

async fn begin(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: StartRequest,
) -> ServiceResult<ServiceStream<ProcessEvent>> {
    let user = state.user(context.headers(), &request.user)?;
    let shows_output = !request.detached;
    let cell = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    let what = StartProcess {
        cmd: request.cmd,
        args: request.args,
        envs: request.envs.into_iter().collect(),
        cwd: request.cwd,
        pty: request
            .pty
            .into_option()
            .map(|size| TerminalSize { cols: cell(size.cols), rows: cell(size.rows) }),
        tag: request.tag,
        stdin: request.stdin,
        logged: request.logged,
        detached: request.detached,
        user: None,
        timeout: (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms)),
    };
    let (process, reader) = state.start(what, user).await?;
    Response::stream_ok(events(process.pid, reader, quiet_limit(&context), shows_output))
}

async fn attach(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: AttachRequest,
) -> ServiceResult<ServiceStream<ProcessEvent>> {
    let process = state.by_pid(request.pid).await?;
    let reader = match (request.tail, request.from) {
        // It returns for its own output.
        (true, Some(from)) => process.output.reader(ReadPosition::At(from), true),
        (true, None) => process.output.reader(ReadPosition::Tail(u64::MAX), false),
        (false, _) => process.output.reader(ReadPosition::Now, false),
    };
    Response::stream_ok(events(process.pid, reader, quiet_limit(&context), true))
}

fn events(
    pid: u32,
    mut reader: RingReader<OutputChannel>,
    quiet: Duration,
    shows_output: bool,
) -> impl futures::Stream<Item = Result<ProcessEvent, ConnectError>> + Send + 'static {
    let event = |event: Event| Ok(ProcessEvent { event: Some(event), ..Default::default() });
    async_stream::stream! {
        let started = wire::process_event::Started { pid, position: Some(reader.from), ..Default::default() };
        yield event(Event::Started(started));
        loop {
            match tokio::time::timeout(quiet, reader.next()).await {
                Err(_) => yield event(Event::Keepalive(wire::process_event::KeepAlive::default())),
                Ok(None) => return,
                Ok(Some(RingItem::End(end))) => {
                    yield ended(end).and_then(|exit| event(Event::Exit(exit)));
                    return;
                }
                Ok(Some(RingItem::Data(channel, data))) if shows_output => yield event(match channel {
                    OutputChannel::Stdout => Event::Stdout(data.to_vec()),
                    OutputChannel::Stderr => Event::Stderr(data.to_vec()),
                    OutputChannel::Terminal => Event::Pty(data.to_vec()),
                }),
                Ok(Some(RingItem::Dropped(bytes))) if shows_output => yield event(Event::Dropped(bytes)),
                Ok(Some(RingItem::Data(..) | RingItem::Dropped(_))) => {}
            }
        }
    }
}

fn ended(end: OutputEnd) -> Result<wire::process_event::Exit, ConnectError> {
    match end {
        OutputEnd::Exit(status) => Ok(wire::process_event::Exit {
            code: status.code.unwrap_or(0),
            signal: status.signal.unwrap_or(0),
            timed_out: status.timed_out,
            core_dumped: status.core_dumped,
            ..Default::default()
        }),
        OutputEnd::Failed(refusal) => Err(refusal.into()),
    }
}

async fn list(state: Arc<AdapterState>, _: RequestContext, _: ListRequest) -> ServiceResult<ListResponse> {
    let processes = state.running().await?.iter().map(|process| listed(process)).collect();
    Response::ok(ListResponse { processes, ..Default::default() })
}

fn listed(process: &AdapterProcess) -> wire::ProcessInfo {
    let (cmd, args) = (process.cmd.clone(), process.args.clone());
    let (cwd, tag, user) = (process.cwd.clone(), process.tag.clone(), process.user.clone());
    let AdapterProcess { pid, started_at_ms, pty, logged, .. } = *process;
    wire::ProcessInfo { pid, cmd, args, cwd, tag, user, started_at_ms, pty, logged, ..Default::default() }
}

async fn signal(
    state: Arc<AdapterState>,
    _: RequestContext,
    request: SignalRequest,
) -> ServiceResult<SignalResponse> {
    let process = state.by_pid(request.pid).await?;
    state.send_signal(&process, request.signal).await?;
    Response::ok(SignalResponse::default())
}

async fn logs(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: LogsRequest,
) -> ServiceResult<ServiceStream<LogEvent>> {
    let quiet = quiet_limit(&context);
    let tail = if request.tail_bytes == 0 { u64::MAX } else { request.tail_bytes };
    let mut reader = state.logs.reader(ReadPosition::Tail(tail), false);
    Response::stream_ok(async_stream::stream! {
        let mut dropped = 0;
        loop {
            let item = match reader.take() {
                Some(item) => item,
                None if !request.follow => return,
                None => match tokio::time::timeout(quiet, reader.next()).await {
                    Ok(Some(item)) => item,
                    Ok(None) => return,
                    Err(_) => {
                        yield Ok(LogEvent { keepalive: true, ..Default::default() });
                        continue;
                    }
                },
            };
            match item {
                RingItem::Data(source, data) => yield Ok(log_event(source, &data, std::mem::take(&mut dropped))),
                RingItem::Dropped(bytes) => dropped += bytes,
                RingItem::End(_) => return,
            }
        }
    })
}

fn log_event(source: LogSource, data: &[u8], dropped: u64) -> LogEvent {
    use wire::log_event::Stream;
    let stream = match source.channel {
        OutputChannel::Stdout => Stream::STREAM_STDOUT,
        OutputChannel::Stderr => Stream::STREAM_STDERR,
        OutputChannel::Terminal => Stream::STREAM_PTY,
    };
    let (pid, at_ms, data) = (source.pid, source.at_ms, data.to_vec());
    LogEvent { pid, stream: stream.into(), at_ms, data, dropped, ..Default::default() }
}

/// The path and the user of a request for a file.
fn place(
    state: &AdapterState,
    context: &RequestContext,
    path: &[u8],
    user: &str,
) -> Result<(String, Option<String>), SessionRefusal> {
    Ok((state.path(path)?, state.user(context.headers(), user)?))
}

fn answered(entry: Entry) -> ServiceResult<StatResponse> {
    Response::ok(StatResponse { entry: MessageField::some(wire_entry(entry)), ..Default::default() })
}

fn wire_entry(entry: Entry) -> wire::Entry {
    let kind = match entry.kind {
        EntryKind::File => wire::EntryType::ENTRY_TYPE_FILE,
        EntryKind::Directory => wire::EntryType::ENTRY_TYPE_DIRECTORY,
        EntryKind::Symlink => wire::EntryType::ENTRY_TYPE_SYMLINK,
        EntryKind::Other => wire::EntryType::ENTRY_TYPE_OTHER,
    };
    let Entry { name, path, size, mode, uid, gid, owner, group, modified_at_ms, .. } = entry;
    let (symlink_target, metadata) =
        (entry.symlink_target.unwrap_or_default(), entry.metadata.into_iter().collect());
    let (mode, r#type) = (mode & 0o7777, kind.into());
    wire::Entry {
        name,
        path,
        r#type,
        size,
        mode,
        uid,
        gid,
        owner,
        group,
        modified_at_ms,
        symlink_target,
        metadata,
        ..Default::default()
    }
}

async fn stat(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: StatRequest,
) -> ServiceResult<StatResponse> {
    let (path, user) = place(&state, &context, &request.path, &request.user)?;
    answered(state.stat(&path, user.as_deref()).await?)
}

async fn list_dir(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: ListDirRequest,
) -> ServiceResult<ListDirResponse> {
    let (path, user) = place(&state, &context, &request.path, &request.user)?;
    let (entries, truncated) = state.list(&path, user.as_deref(), request.depth).await?;
    let entries = entries.into_iter().map(wire_entry).collect();
    Response::ok(ListDirResponse { entries, truncated, ..Default::default() })
}

async fn make_dir(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: MakeDirRequest,
) -> ServiceResult<StatResponse> {
    let (path, user) = place(&state, &context, &request.path, &request.user)?;
    let mode = Some(request.mode).filter(|mode| *mode != 0);
    answered(state.make_dir(&path, user.as_deref(), mode).await?)
}

async fn move_entry(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: MoveRequest,
) -> ServiceResult<StatResponse> {
    let (from, user) = place(&state, &context, &request.source, &request.user)?;
    let to = state.path(&request.destination)?;
    answered(state.rename(&from, &to, user.as_deref(), request.keep).await?)
}

async fn copy(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: CopyRequest,
) -> ServiceResult<StatResponse> {
    let (from, user) = place(&state, &context, &request.source, &request.user)?;
    let to = state.path(&request.destination)?;
    answered(state.copy(&from, &to, user.as_deref(), request.recursive, request.overwrite).await?)
}

async fn remove(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: RemoveRequest,
) -> ServiceResult<RemoveResponse> {
    let (path, user) = place(&state, &context, &request.path, &request.user)?;
    state.remove(&path, user.as_deref(), request.missing_ok).await?;
    Response::ok(RemoveResponse::default())
}

async fn watch(
    state: Arc<AdapterState>,
    _: RequestContext,
    _: WatchRequest,
) -> ServiceResult<ServiceStream<WatchEvent>> {
    Err(state.agent_only("watching files").into())
}

async fn search(
    state: Arc<AdapterState>,
    _: RequestContext,
    _: SearchRequest,
) -> ServiceResult<SearchResponse> {
    Err(state.agent_only("searching files").into())
}

async fn change(
    state: Arc<AdapterState>,
    _: RequestContext,
    _: ChangeRequest,
) -> ServiceResult<StatResponse> {
    Err(state.agent_only("changing the mode or owner of a file").into())
}
