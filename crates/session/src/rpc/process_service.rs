//! envd's `process.Process`, which E2B's SDKs use through their front.

use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::proto::PROCESS_SERVICE;
use atoll_agentapi::proto::process::{
    self as wire, CloseStdinRequest, CloseStdinResponse, ConnectRequest, ConnectResponse, ListRequest,
    ListResponse, ProcessEvent, SendInputRequest, SendInputResponse, SendSignalRequest, SendSignalResponse,
    StartRequest, StartResponse, StreamInputRequest, StreamInputResponse, UpdateRequest, UpdateResponse,
};
use atoll_agentapi::{ExitStatus, RESERVED_TAGS, StartProcess, TerminalSize, is_reserved_tag};
use buffa::MessageField;
use connectrpc::handler::{client_streaming_handler_fn, handler_fn, streaming_handler_fn};
use connectrpc::{ConnectError, RequestContext, Response, Router, ServiceResult, ServiceStream};
use futures::StreamExt;
use tokio::time::Instant;
use wire::process_event::{DataEvent, EndEvent, Event, KeepAlive, StartEvent, data_event::Output};

use super::{handled, quiet_limit};
use crate::error::SessionRefusal;
use crate::process::{AdapterProcess, OutputChannel};
use crate::ring::{OutputEnd, ReadPosition, RingItem, RingReader};
use crate::state::AdapterState;

/// The signals that the protocol knows.
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

pub(super) fn routes(router: Router, state: &Arc<AdapterState>) -> Router {
    const SERVICE: &str = PROCESS_SERVICE;
    let router = router
        .route_server_stream(SERVICE, "Start", streaming_handler_fn(handled(state, begin)))
        .route_server_stream(SERVICE, "Connect", streaming_handler_fn(handled(state, connect)));
    let input = client_streaming_handler_fn(handled(state, stream_input));
    router
        .route_client_stream(SERVICE, "StreamInput", input)
        .route(SERVICE, "List", handler_fn(handled(state, list)))
        .route(SERVICE, "Update", handler_fn(handled(state, update)))
        .route(SERVICE, "SendInput", handler_fn(handled(state, send_input)))
        .route(SERVICE, "SendSignal", handler_fn(handled(state, send_signal)))
        .route(SERVICE, "CloseStdin", handler_fn(handled(state, close_stdin)))
}

async fn begin(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: StartRequest,
) -> ServiceResult<ServiceStream<StartResponse>> {
    let config =
        request.process.into_option().ok_or_else(|| SessionRefusal::invalid("process is missing"))?;
    let tag = request.tag.unwrap_or_default();
    if is_reserved_tag(&tag) {
        let begins = RESERVED_TAGS.join(" or ");
        return Err(SessionRefusal::invalid(format!("a tag must not begin with {begins}")).into());
    }
    let user = state.user(context.headers(), "")?;
    let what = StartProcess {
        cmd: config.cmd,
        args: config.args,
        envs: config.envs.into_iter().collect(),
        cwd: config.cwd.unwrap_or_default(),
        pty: request.pty.into_option().map(|pty| terminal_size(pty.size.into_option())),
        tag,
        // COMPAT(e2b): older SDKs do not say it, and few of their commands read.
        stdin: request.stdin.unwrap_or(false),
        // COMPAT(e2b): the deadline of Start is that of the process.
        timeout: context.time_remaining(),
        ..StartProcess::default()
    };
    let (process, reader) = state.start(what, user).await?;
    let events = events(process.pid, reader, quiet_limit(&context), None);
    Response::stream_ok(events.map(|event| {
        event.map(|event| StartResponse { event: MessageField::some(event), ..Default::default() })
    }))
}

fn terminal_size(size: Option<wire::pty::Size>) -> TerminalSize {
    let cell = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    size.map_or(TerminalSize { cols: 80, rows: 24 }, |size| TerminalSize {
        cols: cell(size.cols),
        rows: cell(size.rows),
    })
}

async fn connect(
    state: Arc<AdapterState>,
    context: RequestContext,
    request: ConnectRequest,
) -> ServiceResult<ServiceStream<ConnectResponse>> {
    let process = find(&state, request.process.into_option()).await?;
    let reader = process.output.reader(ReadPosition::Now, false);
    let until = context.time_remaining().map(|left| Instant::now() + left);
    let events = events(process.pid, reader, quiet_limit(&context), until);
    Response::stream_ok(events.map(|event| {
        event.map(|event| ConnectResponse { event: MessageField::some(event), ..Default::default() })
    }))
}

/// The events of one process for one reader, until a deadline of the reader.
fn events(
    pid: u32,
    mut reader: RingReader<OutputChannel>,
    quiet: Duration,
    until: Option<Instant>,
) -> impl futures::Stream<Item = Result<ProcessEvent, ConnectError>> + Send + 'static {
    let event = |event: Event| Ok(ProcessEvent { event: Some(event), ..Default::default() });
    async_stream::stream! {
        yield event(Event::Start(StartEvent { pid, ..Default::default() }));
        loop {
            let speak_by = Instant::now() + quiet;
            let wake_at = until.map_or(speak_by, |until| until.min(speak_by));
            match tokio::time::timeout_at(wake_at, reader.next()).await {
                Err(_) if until.is_some_and(|until| until <= Instant::now()) => {
                    yield Err(ConnectError::deadline_exceeded("the stream's deadline passed"));
                    return;
                }
                Err(_) => yield event(Event::Keepalive(KeepAlive::default())),
                Ok(None) => return,
                Ok(Some(RingItem::Data(channel, data))) => {
                    let output = match channel {
                        OutputChannel::Stdout => Output::Stdout(data.to_vec()),
                        OutputChannel::Stderr => Output::Stderr(data.to_vec()),
                        OutputChannel::Terminal => Output::Pty(data.to_vec()),
                    };
                    yield event(Event::Data(DataEvent { output: Some(output), ..Default::default() }));
                }
                // COMPAT(e2b): the protocol has no message for lost bytes.
                Ok(Some(RingItem::Dropped(_))) => {}
                Ok(Some(RingItem::End(end))) => {
                    yield ended(end).and_then(|end| event(Event::End(end)));
                    return;
                }
            }
        }
    }
}

fn ended(end: OutputEnd) -> Result<EndEvent, ConnectError> {
    match end {
        OutputEnd::Exit(status) if status.timed_out => {
            Err(ConnectError::deadline_exceeded("the process was ended at its deadline"))
        }
        OutputEnd::Exit(status) => Ok(end_event(status)),
        OutputEnd::Failed(refusal) => Err(refusal.into()),
    }
}

fn end_event(exit: ExitStatus) -> EndEvent {
    let status = match (exit.code, exit.signal) {
        (_, Some(SIGKILL)) => "signal: killed".to_owned(),
        (_, Some(SIGTERM)) => "signal: terminated".to_owned(),
        (_, Some(signal)) => format!("signal: {signal}"),
        (code, None) => format!("exit status {}", code.unwrap_or(0)),
    };
    let has_failed = exit.signal.is_some() || exit.code.unwrap_or(0) != 0;
    EndEvent {
        exit_code: if exit.signal.is_some() { -1 } else { exit.code.unwrap_or(0) },
        exited: exit.signal.is_none(),
        error: has_failed.then(|| status.clone()),
        status,
        ..Default::default()
    }
}

async fn find(
    state: &Arc<AdapterState>,
    selector: Option<wire::ProcessSelector>,
) -> Result<Arc<AdapterProcess>, SessionRefusal> {
    use wire::process_selector::Selector;
    match selector.and_then(|selector| selector.selector) {
        Some(Selector::Pid(pid)) => state.by_pid(pid).await,
        Some(Selector::Tag(tag)) => state.by_tag(&tag).await,
        None => Err(SessionRefusal::invalid("the process is not named")),
    }
}

async fn list(state: Arc<AdapterState>, _: RequestContext, _: ListRequest) -> ServiceResult<ListResponse> {
    let processes = state.running().await?.iter().map(|process| listed(process)).collect();
    Response::ok(ListResponse { processes, ..Default::default() })
}

fn listed(process: &AdapterProcess) -> wire::ProcessInfo {
    let config = wire::ProcessConfig {
        cmd: process.cmd.clone(),
        args: process.args.clone(),
        envs: process.envs.clone().into_iter().collect(),
        cwd: Some(process.cwd.clone()),
        ..Default::default()
    };
    let tag = Some(process.tag.clone()).filter(|tag| !tag.is_empty());
    wire::ProcessInfo { config: MessageField::some(config), pid: process.pid, tag, ..Default::default() }
}

async fn update(
    state: Arc<AdapterState>,
    _: RequestContext,
    request: UpdateRequest,
) -> ServiceResult<UpdateResponse> {
    let process = find(&state, request.process.into_option()).await?;
    if let Some(pty) = request.pty.into_option() {
        state.resize_terminal(&process, terminal_size(pty.size.into_option())).await?;
    }
    Response::ok(UpdateResponse::default())
}

async fn send_input(
    state: Arc<AdapterState>,
    _: RequestContext,
    request: SendInputRequest,
) -> ServiceResult<SendInputResponse> {
    let process = find(&state, request.process.into_option()).await?;
    write(&state, &process, request.input.into_option()).await?;
    Response::ok(SendInputResponse::default())
}

async fn write(
    state: &AdapterState,
    process: &AdapterProcess,
    input: Option<wire::ProcessInput>,
) -> Result<(), SessionRefusal> {
    use wire::process_input::Input;
    match input.and_then(|input| input.input) {
        Some(Input::Stdin(data) | Input::Pty(data)) => state.write_input(process, data).await,
        None => Err(SessionRefusal::invalid("the input is missing")),
    }
}

async fn stream_input(
    state: Arc<AdapterState>,
    _: RequestContext,
    mut requests: ServiceStream<StreamInputRequest>,
) -> ServiceResult<StreamInputResponse> {
    use wire::stream_input_request::Event as InputEvent;
    let mut process = None;
    while let Some(request) = requests.next().await {
        match request?.event {
            Some(InputEvent::Start(start)) => {
                process = Some(find(&state, start.process.into_option()).await?);
            }
            Some(InputEvent::Data(data)) => {
                let Some(process) = &process else {
                    return Err(SessionRefusal::invalid("input came before the process was named").into());
                };
                write(&state, process, data.input.into_option()).await?;
            }
            Some(InputEvent::Keepalive(_)) | None => {}
        }
    }
    Response::ok(StreamInputResponse::default())
}

async fn send_signal(
    state: Arc<AdapterState>,
    _: RequestContext,
    request: SendSignalRequest,
) -> ServiceResult<SendSignalResponse> {
    let process = find(&state, request.process.into_option()).await?;
    let signal = match request.signal.as_known() {
        Some(wire::Signal::SIGNAL_SIGTERM) => SIGTERM,
        Some(wire::Signal::SIGNAL_SIGKILL) => SIGKILL,
        Some(wire::Signal::SIGNAL_UNSPECIFIED) | None => {
            return Err(SessionRefusal::invalid("the signal is neither SIGTERM nor SIGKILL").into());
        }
    };
    state.send_signal(&process, signal).await?;
    Response::ok(SendSignalResponse::default())
}

async fn close_stdin(
    state: Arc<AdapterState>,
    _: RequestContext,
    request: CloseStdinRequest,
) -> ServiceResult<CloseStdinResponse> {
    let process = find(&state, request.process.into_option()).await?;
    state.close_input(&process).await?;
    Response::ok(CloseStdinResponse::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_read_as_the_sdks_expect_them() {
        let exit =
            |code, signal| end_event(ExitStatus { code, signal, timed_out: false, core_dumped: false });
        let good = exit(Some(0), None);
        assert_eq!(
            (good.exit_code, good.exited, good.error, good.status.as_str()),
            (0, true, None, "exit status 0")
        );
        let bad = exit(Some(3), None);
        assert_eq!((bad.exit_code, bad.error.as_deref()), (3, Some("exit status 3")));
        let killed = exit(None, Some(9));
        assert_eq!((killed.exit_code, killed.exited, killed.status.as_str()), (-1, false, "signal: killed"));
    }
}
