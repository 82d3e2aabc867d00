//! `atoll.agent.v1.Agent`: operations that envd's services lack.

use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::proto::AGENT_SERVICE;
use atoll_agentapi::proto::agent::{
    self as wire, AttachRequest, ChangeRequest, CopyRequest, ListDirRequest, ListDirResponse, ListRequest,
    ListResponse, LogEvent, LogsRequest, MakeDirRequest, MoveRequest, ProcessEvent, RemoveRequest,
    RemoveResponse, SearchRequest, SearchResponse, SignalRequest, SignalResponse, StartRequest, StatRequest,
    StatResponse, WatchEvent, WatchRequest,
};
use buffa::MessageField;
use connectrpc::handler::{handler_fn, streaming_handler_fn};
use connectrpc::{ConnectError, RequestContext, Response, Router, ServiceResult, ServiceStream};
use wire::__buffa::oneof::process_event::Event;

use super::process::too_many_readers;
use super::{keepalive, with_agent};
use crate::error::AgentError;
use crate::files::{self, Existing, FileEntry, FileKind, OwnerChange, Search, SearchOptions};
use crate::http::{file_user, request_user};
use crate::logs::LogChunk;
use crate::process::{
    Item, OutputReader, OutputSource, Patience, Plan, Process, ReadFrom, Size, not_running, start,
};
use crate::state::Agent;
use crate::users::User;
use crate::watch::{WatchEventKind, Watcher};

pub(super) fn routes(router: Router, agent: &Arc<Agent>) -> Router {
    router
        .route_server_stream(AGENT_SERVICE, "Start", streaming_handler_fn(with_agent(agent, begin)))
        .route_server_stream(AGENT_SERVICE, "Attach", streaming_handler_fn(with_agent(agent, attach)))
        .route(AGENT_SERVICE, "List", handler_fn(with_agent(agent, list)))
        .route(AGENT_SERVICE, "Signal", handler_fn(with_agent(agent, signal)))
        .route_server_stream(AGENT_SERVICE, "Logs", streaming_handler_fn(with_agent(agent, logs)))
        .route_server_stream(AGENT_SERVICE, "Watch", streaming_handler_fn(with_agent(agent, watch)))
        .route(AGENT_SERVICE, "Stat", handler_fn(with_agent(agent, stat)))
        .route(AGENT_SERVICE, "ListDir", handler_fn(with_agent(agent, list_dir)))
        .route(AGENT_SERVICE, "MakeDir", handler_fn(with_agent(agent, make_dir)))
        .route(AGENT_SERVICE, "Move", handler_fn(with_agent(agent, move_entry)))
        .route(AGENT_SERVICE, "Remove", handler_fn(with_agent(agent, remove)))
        .route(AGENT_SERVICE, "Search", handler_fn(with_agent(agent, search)))
        .route(AGENT_SERVICE, "Copy", handler_fn(with_agent(agent, copy)))
        .route(AGENT_SERVICE, "Change", handler_fn(with_agent(agent, change)))
}

async fn begin(
    agent: Arc<Agent>,
    context: RequestContext,
    request: StartRequest,
) -> ServiceResult<ServiceStream<ProcessEvent>> {
    let detached = request.detached;
    let plan = plan(&agent, &context, request)?;
    let patience = if detached { Patience::Lossy } else { Patience::Patient };
    let (process, reader) = start(&agent, plan, patience).await?;
    Response::stream_ok(events(process.pid, reader, keepalive(&context), !detached))
}

fn plan(agent: &Agent, context: &RequestContext, request: StartRequest) -> Result<Plan, AgentError> {
    let user = request_user(agent, context.headers(), &request.user)?;
    let envs = request.envs.into_iter().collect();
    Ok(Plan {
        envs: agent.settings.environment(&user, &envs),
        request_envs: envs,
        cwd: agent.settings.cwd(&user, &request.cwd),
        pty: request.pty.into_option().map(|size| Size { cols: size.cols, rows: size.rows }),
        cmd: request.cmd,
        args: request.args,
        tag: Some(request.tag).filter(|tag| !tag.is_empty()),
        stdin: request.stdin,
        logged: request.logged,
        user,
        timeout: (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms)),
    })
}

async fn attach(
    agent: Arc<Agent>,
    context: RequestContext,
    request: AttachRequest,
) -> ServiceResult<ServiceStream<ProcessEvent>> {
    let process = agent.processes.find(request.pid).ok_or_else(|| not_running(request.pid))?;
    let (patience, begin) = match (request.from, request.tail) {
        // It returns for its own output: the process waits for it as for the reader that started it.
        (Some(from), true) => (Patience::Patient, ReadFrom::At(from)),
        (None, true) => (Patience::Lossy, ReadFrom::Tail),
        (_, false) => (Patience::Lossy, ReadFrom::Now),
    };
    let reader = process.hub.reader(patience, begin).ok_or_else(too_many_readers)?;
    Response::stream_ok(events(process.pid, reader, keepalive(&context), true))
}

fn events(
    pid: u32,
    mut reader: OutputReader,
    keepalive: Duration,
    with_output: bool,
) -> impl futures::Stream<Item = Result<ProcessEvent, ConnectError>> + Send + 'static {
    async_stream::stream! {
        let position = Some(reader.from);
        yield Ok(event(Event::Started(wire::process_event::Started { pid, position, ..Default::default() })));
        loop {
            let item = tokio::time::timeout(keepalive, reader.next()).await;
            match item {
                Ok(Some(Item::Data(..) | Item::Dropped(_))) if !with_output => {}
                Ok(Some(Item::Data(source, data))) => yield Ok(event(output(source, &data))),
                Ok(Some(Item::Dropped(bytes))) => yield Ok(event(Event::Dropped(bytes))),
                Ok(Some(Item::Exit(exit))) => {
                    let exit = wire::process_event::Exit {
                        code: exit.code,
                        signal: exit.signal,
                        timed_out: exit.timed_out,
                        core_dumped: exit.core_dumped,
                        ..Default::default()
                    };
                    yield Ok(event(Event::Exit(exit)));
                    return;
                }
                Ok(None) => return,
                Err(_) => yield Ok(event(Event::Keepalive(wire::process_event::KeepAlive::default()))),
            }
        }
    }
}

fn event(event: Event) -> ProcessEvent {
    ProcessEvent { event: Some(event), ..Default::default() }
}

fn output(source: OutputSource, data: &[u8]) -> Event {
    match source {
        OutputSource::Stdout => Event::Stdout(data.to_vec()),
        OutputSource::Stderr => Event::Stderr(data.to_vec()),
        OutputSource::Pty => Event::Pty(data.to_vec()),
    }
}

async fn list(agent: Arc<Agent>, _: RequestContext, _: ListRequest) -> ServiceResult<ListResponse> {
    let processes = agent.processes.running().iter().map(|process| described(process)).collect();
    Response::ok(ListResponse { processes, ..Default::default() })
}

fn described(process: &Process) -> wire::ProcessInfo {
    let facts = &process.facts;
    wire::ProcessInfo {
        pid: process.pid,
        cmd: facts.cmd.clone(),
        args: facts.args.clone(),
        cwd: facts.cwd.clone(),
        tag: facts.tag.clone().unwrap_or_default(),
        user: facts.user.clone(),
        started_at_ms: facts.started_at_ms,
        pty: facts.pty,
        logged: facts.logged,
        ..Default::default()
    }
}

async fn signal(
    agent: Arc<Agent>,
    _: RequestContext,
    request: SignalRequest,
) -> ServiceResult<SignalResponse> {
    if !(1..=64).contains(&request.signal) {
        return Err(AgentError::Invalid(format!("no signal {}", request.signal)).into());
    }
    let process = agent.processes.find(request.pid).ok_or_else(|| not_running(request.pid))?;
    process.signal(request.signal)?;
    Response::ok(SignalResponse::default())
}

async fn logs(
    agent: Arc<Agent>,
    context: RequestContext,
    request: LogsRequest,
) -> ServiceResult<ServiceStream<LogEvent>> {
    let keepalive = keepalive(&context);
    let (kept, mut reader) = agent
        .logs
        .read(request.tail_bytes)
        .ok_or_else(|| AgentError::Exhausted("too many readers of the logs".into()))?;
    Response::stream_ok(async_stream::stream! {
        for line in kept {
            yield Ok(log_event(line));
        }
        if !request.follow {
            return;
        }
        loop {
            match tokio::time::timeout(keepalive, reader.next()).await {
                Ok(line) => yield Ok(log_event(line)),
                Err(_) => yield Ok(LogEvent { keepalive: true, ..Default::default() }),
            }
        }
    })
}

fn log_event(line: LogChunk) -> LogEvent {
    use wire::log_event::Stream;
    let stream = match line.source {
        OutputSource::Stdout => Stream::STREAM_STDOUT,
        OutputSource::Stderr => Stream::STREAM_STDERR,
        OutputSource::Pty => Stream::STREAM_PTY,
    };
    LogEvent {
        pid: line.pid,
        stream: stream.into(),
        at_ms: line.at_ms,
        data: line.data.to_vec(),
        dropped: line.dropped,
        ..Default::default()
    }
}

/// The user of a request, and the resolved path.
fn place(
    agent: &Agent,
    context: &RequestContext,
    user: &str,
    path: &[u8],
) -> Result<(User, Vec<u8>), AgentError> {
    let user = file_user(agent, context.headers(), user)?;
    let path = files::resolve(path, &user)?;
    Ok((user, path))
}

async fn stat(
    agent: Arc<Agent>,
    context: RequestContext,
    request: StatRequest,
) -> ServiceResult<StatResponse> {
    let (user, path) = place(&agent, &context, &request.user, &request.path)?;
    answered(agent.workers.run(&user.ids, move || files::stat(&path)).await?)
}

fn answered(entry: FileEntry) -> ServiceResult<StatResponse> {
    Response::ok(StatResponse { entry: MessageField::some(entry.into()), ..Default::default() })
}

async fn list_dir(
    agent: Arc<Agent>,
    context: RequestContext,
    request: ListDirRequest,
) -> ServiceResult<ListDirResponse> {
    let (user, path) = place(&agent, &context, &request.user, &request.path)?;
    let (found, truncated) = agent.workers.run(&user.ids, move || files::list(&path, request.depth)).await?;
    let entries = found.into_iter().map(wire::Entry::from).collect();
    Response::ok(ListDirResponse { entries, truncated, ..Default::default() })
}

async fn make_dir(
    agent: Arc<Agent>,
    context: RequestContext,
    request: MakeDirRequest,
) -> ServiceResult<StatResponse> {
    let (user, path) = place(&agent, &context, &request.user, &request.path)?;
    let mode = if request.mode == 0 { 0o755 } else { request.mode };
    answered(agent.workers.run(&user.ids, move || files::make_dir(&path, mode)).await?)
}

async fn move_entry(
    agent: Arc<Agent>,
    context: RequestContext,
    request: MoveRequest,
) -> ServiceResult<StatResponse> {
    let (user, source) = place(&agent, &context, &request.user, &request.source)?;
    let destination = files::resolve(&request.destination, &user)?;
    let existing = if request.keep { Existing::Kept } else { Existing::Replaced };
    answered(agent.workers.run(&user.ids, move || files::move_entry(&source, &destination, existing)).await?)
}

async fn copy(
    agent: Arc<Agent>,
    context: RequestContext,
    request: CopyRequest,
) -> ServiceResult<StatResponse> {
    let (user, source) = place(&agent, &context, &request.user, &request.source)?;
    let destination = files::resolve(&request.destination, &user)?;
    let CopyRequest { recursive, overwrite, .. } = request;
    let job = move || files::copy_entry(&source, &destination, recursive, overwrite);
    answered(agent.workers.run(&user.ids, job).await?)
}

async fn change(
    agent: Arc<Agent>,
    context: RequestContext,
    request: ChangeRequest,
) -> ServiceResult<StatResponse> {
    let (user, path) = place(&agent, &context, &request.user, &request.path)?;
    let owner = OwnerChange::find(&request.owner, &request.group)?;
    answered(agent.workers.run(&user.ids, move || files::change(&path, request.mode, owner)).await?)
}

async fn search(
    agent: Arc<Agent>,
    context: RequestContext,
    request: SearchRequest,
) -> ServiceResult<SearchResponse> {
    let (user, path) = place(&agent, &context, &request.user, &request.path)?;
    let search = Search::plan(SearchOptions {
        path,
        depth: request.depth,
        include: request.include,
        exclude: request.exclude,
        pattern: request.pattern,
        literal: request.literal,
        ignore_case: request.ignore_case,
        max: request.max,
        limit_ms: request.limit_ms,
    })?;
    let found = agent.workers.run(&user.ids, move || search.run()).await?;
    let matches = found.lines.into_iter().map(|line| wire::SearchMatch {
        path: line.path,
        line: line.number,
        content: line.content,
        ..Default::default()
    });
    Response::ok(SearchResponse {
        entries: found.entries.into_iter().map(wire::Entry::from).collect(),
        matches: matches.collect(),
        truncated: found.truncated,
        ..Default::default()
    })
}

async fn remove(
    agent: Arc<Agent>,
    context: RequestContext,
    request: RemoveRequest,
) -> ServiceResult<RemoveResponse> {
    let (user, path) = place(&agent, &context, &request.user, &request.path)?;
    agent.workers.run(&user.ids, move || files::remove(&path, request.missing_ok)).await?;
    Response::ok(RemoveResponse::default())
}

async fn watch(
    agent: Arc<Agent>,
    context: RequestContext,
    request: WatchRequest,
) -> ServiceResult<ServiceStream<WatchEvent>> {
    use wire::watch_event::Kind;
    let (user, path) = place(&agent, &context, &request.user, &request.path)?;
    let mut watcher = Watcher::open(&agent.workers, &user.ids, path, request.recursive).await?;
    let keepalive = keepalive(&context);
    Response::stream_ok(async_stream::stream! {
        let told = |name: Vec<u8>, kind: Kind| WatchEvent { name, kind: kind.into(), ..Default::default() };
        yield Ok(told(Vec::new(), Kind::KIND_STARTED));
        loop {
            match tokio::time::timeout(keepalive, watcher.next()).await {
                Ok(Ok(event)) => yield Ok(told(event.name, kind(event.what))),
                Ok(Err(refusal)) => {
                    yield Err(refusal.into());
                    return;
                }
                Err(_) => yield Ok(told(Vec::new(), Kind::KIND_KEEPALIVE)),
            }
        }
    })
}

fn kind(what: WatchEventKind) -> wire::watch_event::Kind {
    use wire::watch_event::Kind;
    match what {
        WatchEventKind::Create => Kind::KIND_CREATE,
        WatchEventKind::Write => Kind::KIND_WRITE,
        WatchEventKind::Remove => Kind::KIND_REMOVE,
        WatchEventKind::Rename => Kind::KIND_RENAME,
        WatchEventKind::Chmod => Kind::KIND_CHMOD,
        WatchEventKind::Overflow => Kind::KIND_OVERFLOW,
    }
}

impl From<FileEntry> for wire::Entry {
    fn from(entry: FileEntry) -> Self {
        let kind = match entry.kind {
            FileKind::File => wire::EntryType::ENTRY_TYPE_FILE,
            FileKind::Directory => wire::EntryType::ENTRY_TYPE_DIRECTORY,
            FileKind::Symlink => wire::EntryType::ENTRY_TYPE_SYMLINK,
            FileKind::Other => wire::EntryType::ENTRY_TYPE_OTHER,
        };
        Self {
            name: entry.name,
            path: entry.path,
            r#type: kind.into(),
            size: entry.size,
            mode: entry.mode & 0o7777,
            uid: entry.uid,
            gid: entry.gid,
            owner: entry.owner,
            group: entry.group,
            modified_at_ms: entry
                .modified_s
                .saturating_mul(1000)
                .saturating_add(i64::from(entry.modified_ns / 1_000_000)),
            symlink_target: entry.link.map(|link| link.text).unwrap_or_default(),
            metadata: entry.metadata.into_iter().collect(),
            ..Default::default()
        }
    }
}
