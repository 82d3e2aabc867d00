//! envd's `process.Process`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_agentapi::proto::PROCESS_SERVICE;
use atoll_agentapi::proto::process::{
    self as wire, CloseStdinRequest, CloseStdinResponse, ConnectRequest, ConnectResponse, ListRequest,
    ListResponse, ProcessEvent, SendInputRequest, SendInputResponse, SendSignalRequest, SendSignalResponse,
    StartRequest, StartResponse, StreamInputRequest, StreamInputResponse, UpdateRequest, UpdateResponse,
};
use buffa::MessageField;
use connectrpc::handler::{client_streaming_handler_fn, handler_fn, streaming_handler_fn};
use connectrpc::{ConnectError, RequestContext, Response, Router, ServiceResult, ServiceStream};
use futures::StreamExt;
use wire::process_event::{DataEvent, EndEvent, Event, KeepAlive, StartEvent, data_event::Output};

use super::{keepalive, with_agent};
use crate::error::AgentError;
use crate::http::request_user;
use crate::process::{
    Exit, Item, OutputReader, OutputSource, Patience, Plan, Process, ReadFrom, Size, not_running, start,
};
use crate::state::Agent;

pub(super) fn routes(router: Router, agent: &Arc<Agent>) -> Router {
    router
        .route_server_stream(PROCESS_SERVICE, "Start", streaming_handler_fn(with_agent(agent, begin)))
        .route_server_stream(PROCESS_SERVICE, "Connect", streaming_handler_fn(with_agent(agent, connect)))
        .route(PROCESS_SERVICE, "List", handler_fn(with_agent(agent, list)))
        .route(PROCESS_SERVICE, "Update", handler_fn(with_agent(agent, update)))
        .route(PROCESS_SERVICE, "SendInput", handler_fn(with_agent(agent, send_input)))
        .route_client_stream(
            PROCESS_SERVICE,
            "StreamInput",
            client_streaming_handler_fn(with_agent(agent, stream_input)),
        )
        .route(PROCESS_SERVICE, "SendSignal", handler_fn(with_agent(agent, send_signal)))
        .route(PROCESS_SERVICE, "CloseStdin", handler_fn(with_agent(agent, close_stdin)))
}

async fn begin(
    agent: Arc<Agent>,
    context: RequestContext,
    request: StartRequest,
) -> ServiceResult<ServiceStream<StartResponse>> {
    let plan = plan(&agent, &context, request)?;
    let (process, reader) = start(&agent, plan, Patience::Patient).await?;
    let events = events(process.pid, reader, keepalive(&context), None);
    Response::stream_ok(events.map(|event| {
        event.map(|event| StartResponse { event: MessageField::some(event), ..Default::default() })
    }))
}

fn plan(agent: &Agent, context: &RequestContext, request: StartRequest) -> Result<Plan, AgentError> {
    let config =
        request.process.into_option().ok_or_else(|| AgentError::Invalid("process is missing".into()))?;
    if let Some(tag) = request.tag.as_deref().filter(|tag| atoll_agentapi::is_reserved_tag(tag)) {
        let begins = atoll_agentapi::RESERVED_TAGS.join(" or ");
        return Err(AgentError::Invalid(format!(
            "tag {tag:?} is reserved: a tag cannot begin with {begins}"
        )));
    }
    let user = request_user(agent, context.headers(), "")?;
    let envs = config.envs.into_iter().collect();
    Ok(Plan {
        envs: agent.settings.environment(&user, &envs),
        request_envs: envs,
        cwd: agent.settings.cwd(&user, config.cwd.as_deref().unwrap_or_default()),
        pty: request.pty.into_option().map(|pty| size(pty.size.into_option())),
        cmd: config.cmd,
        args: config.args,
        tag: request.tag,
        stdin: request.stdin.unwrap_or(true),
        logged: false,
        user,
        // COMPAT(e2b): the timeout of Start kills the process; that of Connect only ends the stream.
        timeout: context.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now())),
    })
}

fn size(size: Option<wire::pty::Size>) -> Size {
    size.map_or(Size { cols: 80, rows: 24 }, |size| Size { cols: size.cols, rows: size.rows })
}

async fn connect(
    agent: Arc<Agent>,
    context: RequestContext,
    request: ConnectRequest,
) -> ServiceResult<ServiceStream<ConnectResponse>> {
    let process = find(&agent, request.process.into_option())?;
    let reader = process.hub.reader(Patience::Lossy, ReadFrom::Now).ok_or_else(too_many_readers)?;
    let limit = context.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let events = events(process.pid, reader, keepalive(&context), limit);
    Response::stream_ok(events.map(|event| {
        event.map(|event| ConnectResponse { event: MessageField::some(event), ..Default::default() })
    }))
}

pub(super) fn too_many_readers() -> AgentError {
    AgentError::Exhausted("too many readers of this process".into())
}

/// The events of one process for one reader.
fn events(
    pid: u32,
    mut reader: OutputReader,
    keepalive: Duration,
    limit: Option<Duration>,
) -> impl futures::Stream<Item = Result<ProcessEvent, ConnectError>> + Send + 'static {
    async_stream::stream! {
        let until = limit.map(|limit| tokio::time::Instant::now() + limit);
        yield Ok(event(Event::Start(StartEvent { pid, ..Default::default() })));
        loop {
            let wait = until.map_or(keepalive, |until| until.saturating_duration_since(tokio::time::Instant::now()).min(keepalive));
            let item = tokio::time::timeout(wait, reader.next()).await;
            match item {
                Ok(Some(Item::Data(source, data))) => yield Ok(data_event(source, &data)),
                // COMPAT(e2b): the protocol has no message for lost bytes; the agent's own service counts them.
                Ok(Some(Item::Dropped(_))) => {}
                Ok(Some(Item::Exit(exit))) if exit.timed_out => {
                    yield Err(ConnectError::deadline_exceeded("the process was killed at its deadline"));
                    return;
                }
                Ok(Some(Item::Exit(exit))) => {
                    yield Ok(event(Event::End(end_event(exit))));
                    return;
                }
                Ok(None) => return,
                Err(_) if until.is_some_and(|until| until <= tokio::time::Instant::now()) => {
                    yield Err(ConnectError::deadline_exceeded("the stream's deadline passed"));
                    return;
                }
                Err(_) => yield Ok(event(Event::Keepalive(KeepAlive::default()))),
            }
        }
    }
}

fn event(event: Event) -> ProcessEvent {
    ProcessEvent { event: Some(event), ..Default::default() }
}

fn data_event(source: OutputSource, data: &[u8]) -> ProcessEvent {
    let output = match source {
        OutputSource::Stdout => Output::Stdout(data.to_vec()),
        OutputSource::Stderr => Output::Stderr(data.to_vec()),
        OutputSource::Pty => Output::Pty(data.to_vec()),
    };
    event(Event::Data(DataEvent { output: Some(output), ..Default::default() }))
}

/// In the wording of Go's `os.ProcessState`, which SDK users see.
fn end_event(exit: Exit) -> EndEvent {
    let status = match exit.signal {
        0 => format!("exit status {}", exit.code),
        signal if exit.core_dumped => format!("signal: {} (core dumped)", signal_name(signal)),
        signal => format!("signal: {}", signal_name(signal)),
    };
    let failed = exit.signal != 0 || exit.code != 0;
    EndEvent {
        exit_code: if exit.signal == 0 { exit.code } else { -1 },
        exited: exit.signal == 0,
        error: failed.then(|| status.clone()),
        status,
        ..Default::default()
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGUSR2 => "user defined signal 2",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

fn find(agent: &Agent, selector: Option<wire::ProcessSelector>) -> Result<Arc<Process>, AgentError> {
    use wire::process_selector::Selector;
    match selector.and_then(|selector| selector.selector) {
        Some(Selector::Pid(pid)) => agent.processes.find(pid).ok_or_else(|| not_running(pid)),
        Some(Selector::Tag(tag)) => {
            let missing = || AgentError::NotFound(format!("process with tag {tag} not found"));
            agent.processes.find_tag(&tag).ok_or_else(missing)
        }
        None => Err(AgentError::Invalid("the process selector is missing".into())),
    }
}

/// COMPAT(e2b): kernels of the interpreter are not shown as processes of the caller; the agent's own service lists
/// them.
fn is_kernel(process: &Process) -> bool {
    process.facts.tag.as_deref().is_some_and(|tag| tag.starts_with("atoll-context/"))
}

async fn list(agent: Arc<Agent>, _: RequestContext, _: ListRequest) -> ServiceResult<ListResponse> {
    let running = agent.processes.running();
    let processes =
        running.iter().filter(|process| !is_kernel(process)).map(|process| described(process)).collect();
    Response::ok(ListResponse { processes, ..Default::default() })
}

fn described(process: &Process) -> wire::ProcessInfo {
    let facts = &process.facts;
    let config = wire::ProcessConfig {
        cmd: facts.cmd.clone(),
        args: facts.args.clone(),
        envs: facts.envs.clone().into_iter().collect(),
        cwd: Some(facts.cwd.clone()),
        ..Default::default()
    };
    wire::ProcessInfo {
        config: MessageField::some(config),
        pid: process.pid,
        tag: facts.tag.clone(),
        ..Default::default()
    }
}

async fn update(
    agent: Arc<Agent>,
    _: RequestContext,
    request: UpdateRequest,
) -> ServiceResult<UpdateResponse> {
    let process = find(&agent, request.process.into_option())?;
    if let Some(pty) = request.pty.into_option() {
        process.resize(size(pty.size.into_option()))?;
    }
    Response::ok(UpdateResponse::default())
}

async fn send_input(
    agent: Arc<Agent>,
    _: RequestContext,
    request: SendInputRequest,
) -> ServiceResult<SendInputResponse> {
    let process = find(&agent, request.process.into_option())?;
    write(&process, request.input.into_option()).await?;
    Response::ok(SendInputResponse::default())
}

async fn write(process: &Process, input: Option<wire::ProcessInput>) -> Result<(), AgentError> {
    use wire::process_input::Input;
    match input.and_then(|input| input.input) {
        Some(Input::Stdin(data) | Input::Pty(data)) => process.write_input(&data).await,
        None => Err(AgentError::Invalid("the input is missing".into())),
    }
}

async fn stream_input(
    agent: Arc<Agent>,
    _: RequestContext,
    mut requests: ServiceStream<StreamInputRequest>,
) -> ServiceResult<StreamInputResponse> {
    use wire::stream_input_request::Event;
    let mut process = None;
    while let Some(request) = requests.next().await {
        match request?.event {
            Some(Event::Start(start)) => process = Some(find(&agent, start.process.into_option())?),
            Some(Event::Data(data)) => {
                let missing = || AgentError::Invalid("input came before the process was named".into());
                write(process.as_ref().ok_or_else(missing)?, data.input.into_option()).await?;
            }
            Some(Event::Keepalive(_)) | None => {}
        }
    }
    Response::ok(StreamInputResponse::default())
}

async fn send_signal(
    agent: Arc<Agent>,
    _: RequestContext,
    request: SendSignalRequest,
) -> ServiceResult<SendSignalResponse> {
    let process = find(&agent, request.process.into_option())?;
    let signal = match request.signal.as_known() {
        Some(wire::Signal::SIGNAL_SIGTERM) => libc::SIGTERM,
        Some(wire::Signal::SIGNAL_SIGKILL) => libc::SIGKILL,
        Some(wire::Signal::SIGNAL_UNSPECIFIED) | None => {
            return Err(AgentError::Invalid("the signal is neither SIGTERM nor SIGKILL".into()).into());
        }
    };
    process.signal_and_wait(signal).await?;
    Response::ok(SendSignalResponse::default())
}

async fn close_stdin(
    agent: Arc<Agent>,
    _: RequestContext,
    request: CloseStdinRequest,
) -> ServiceResult<CloseStdinResponse> {
    find(&agent, request.process.into_option())?.close_input().await?;
    Response::ok(CloseStdinResponse::default())
}
