//! The operations of steps in their sandboxes: run a command, copy files, make a folder.

use std::io::Write;
use std::sync::Arc;

use atoll_agentapi::{
    AgentClient, Pack, PackHoles, PackLayout, ProcessEvent, ProcessStream, Unpack, UnpackInto, UnpackOwner,
    UnpackRules,
};
use atoll_image::build::{BuildContext, Copy, Run};
use atoll_model::{BuildFailure, Code};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::output::StepOutput;
use super::run::BuildEnd;
use super::secrets::{self, SecretMask};
use super::{ask::StartBuild, log::Log};
use crate::agent::{AgentOperation, refusal};
use crate::sandboxes::printable;
use crate::{Exec, ServiceError};

/// Files are written as root, who may set any owner.
pub(super) const ROOT: Option<&str> = Some("root");
/// LIMIT: bytes in transit between reading a tar and sending it.
const PIECE: usize = 256 << 10;
const PIECES: usize = 4;
/// LIMIT: bytes of one piece of a command's standard input.
const STDIN_PIECE: usize = 64 << 10;

/// What a step needs from its build.
pub(super) struct StepContext<'a> {
    pub(super) ask: &'a StartBuild,
    pub(super) log: &'a Log,
    pub(super) hidden: &'a SecretMask,
    pub(super) number: u32,
    pub(super) deadline: Instant,
}

/// Runs a command and logs its output. Its temporary files exist already.
pub(super) async fn run(told: &StepContext<'_>, agent: &AgentClient, run: &Run) -> Result<(), BuildEnd> {
    let placed = secrets::place(agent, &run.secrets, &told.ask.secrets).await?;
    let mut env = run.env.clone();
    env.extend(placed.env.clone());
    let exec = Exec {
        argv: run.argv.clone(),
        cwd: Some(run.workdir.clone()),
        env,
        user: Some(if run.user.is_empty() { "root".to_owned() } else { run.user.clone() }),
        open_stdin: run.stdin.is_some(),
        // The build's own deadline ends it from outside; this one ensures that the process ends too.
        timeout: Some(told.deadline.saturating_duration_since(Instant::now()).max(MOMENT)),
        ..Default::default()
    };
    let started = crate::exec::start(agent, exec).await;
    let (pid, stream) = started.map_err(|error| explain_unknown_user(error, run))?;
    let mut output = StepOutput::new(told.log, told.hidden, told.number);
    let feeding = async {
        feed(agent, pid, run.stdin.as_deref()).await;
        std::future::pending::<std::convert::Infallible>().await
    };
    // The command may end without reading all of its input.
    let status = tokio::select! {
        status = read(stream, &mut output) => status,
        never = feeding => match never {},
    };
    let tail = output.end();
    let code = status?;
    placed.remove(agent).await?;
    if code == 0 {
        return Ok(());
    }
    Err(BuildEnd::Failed(Box::new(BuildFailure {
        code: Code::InvalidRequest,
        message: format!("the command exited with {code}"),
        hint: None,
        step: Some(told.number),
        exit_code: Some(code),
        tail,
    })))
}

/// The agent reports that the user does not exist; the command is known only here.
fn explain_unknown_user(error: ServiceError, run: &Run) -> ServiceError {
    if error.code != Code::InvalidArgument || !error.message.starts_with("no user ") {
        return error;
    }
    let command = match run.argv.as_slice() {
        [_, flag, .., last] if flag == "-c" => last.clone(),
        argv => argv.join(" "),
    };
    // COMPAT(e2b): programs search for this text.
    let message = format!(
        "failed to run command '{}': command failed: unauthenticated: invalid username: '{}'",
        printable(&command),
        printable(&run.user)
    );
    ServiceError::new(Code::InvalidRequest, message)
        .hint("create the user in an earlier step, or name one that the base has")
}

const MOMENT: std::time::Duration = std::time::Duration::from_secs(1);

async fn feed(agent: &AgentClient, pid: u32, input: Option<&[u8]>) {
    let Some(input) = input else { return };
    for piece in input.chunks(STDIN_PIECE) {
        if agent.send_stdin(pid, piece).await.is_err() {
            return;
        }
    }
    let _ = agent.close_stdin(pid).await;
}

async fn read(mut stream: ProcessStream, output: &mut StepOutput<'_>) -> Result<i32, ServiceError> {
    while let Some(event) = stream.next().await {
        match event.map_err(|error| refusal(AgentOperation::Process, error))? {
            ProcessEvent::Stdout(data) | ProcessEvent::Pty(data) => output.stdout(&data),
            ProcessEvent::Stderr(data) => output.stderr(&data),
            ProcessEvent::Dropped(bytes) => output.lost(bytes),
            ProcessEvent::Exit(status) => return Ok(status.shell_code()),
        }
    }
    Err(ServiceError::new(Code::SandboxUnavailable, "the exit of the command was not observed"))
}

/// Copies files of the context to where the step wants them.
pub(super) async fn copy_in(
    agent: &AgentClient,
    context: &Arc<BuildContext>,
    copy: &Copy,
) -> Result<(), ServiceError> {
    if copy.has_plain() {
        let (context, own) = (Arc::clone(context), copy.clone());
        let tar = tar_stream(move |to| context.write_tar(&own, to));
        let owner = copy.chown.clone().unwrap_or_else(|| "0:0".to_owned());
        let unpack = destination(copy, UnpackOwner::Named(owner));
        agent.unpack(&unpack, ROOT, tar).await.map_err(|error| refusal(AgentOperation::File, error))?;
    }
    for archive in &copy.extract {
        let (context, own) = (Arc::clone(context), archive.clone());
        let tar = tar_stream(move |to| std::io::copy(&mut context.open_archive(&own)?, to).map(drop));
        let owner = copy.chown.clone().map_or(UnpackOwner::Kept, UnpackOwner::Named);
        let unpack =
            Unpack { into: UnpackInto::Folder, rules: UnpackRules::Archive, ..destination(copy, owner) };
        agent.unpack(&unpack, ROOT, tar).await.map_err(|error| refusal(AgentOperation::File, error))?;
    }
    Ok(())
}

/// Copies files of another sandbox to where the step wants them.
pub(super) async fn copy_over(from: &AgentClient, to: &AgentClient, copy: &Copy) -> Result<(), ServiceError> {
    let pack = Pack {
        sources: copy.sources.iter().map(|source| source.clone().into_bytes()).collect(),
        globs: true,
        layout: if copy.parents { PackLayout::Parents } else { PackLayout::Contents },
        exclude: copy.exclude.iter().map(|pattern| pattern.clone().into_bytes()).collect(),
        holes: PackHoles::Kept,
    };
    let files = from.pack(&pack, ROOT).await.map_err(|error| refusal(AgentOperation::File, error))?;
    let files = files.into_stream().map(|piece| piece.map_err(std::io::Error::other));
    let owner = copy.chown.clone().map_or(UnpackOwner::Kept, UnpackOwner::Named);
    let unpack = destination(copy, owner);
    to.unpack(&unpack, ROOT, files).await.map_err(|error| refusal(AgentOperation::File, error))?;
    Ok(())
}

fn destination(copy: &Copy, owner: UnpackOwner) -> Unpack {
    Unpack {
        dest: copy.dest.clone().into_bytes(),
        into: if copy.into_folder { UnpackInto::Folder } else { UnpackInto::FileOrFolder },
        owner,
        mode: copy.chmod,
        rules: UnpackRules::Copy,
        strip: 0,
    }
}

/// Makes the folder that later steps work in.
pub(super) async fn make_folder(agent: &AgentClient, path: &str) -> Result<(), ServiceError> {
    match agent.make_dir(path, ROOT, None).await.map_err(|error| refusal(AgentOperation::File, error)) {
        Err(error) if error.code == Code::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// A stream of data that a blocking thread writes. If the reader is dropped, the writer ends.
fn tar_stream(
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()> + Send + 'static,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut pieces = ChunkWriter { sender, piece: BytesMut::with_capacity(PIECE) };
        let written = write(&mut pieces).and_then(|()| pieces.flush());
        if let Err(error) = written {
            let _ = pieces.sender.blocking_send(Err(error));
        }
    });
    futures::stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}

struct ChunkWriter {
    sender: mpsc::Sender<std::io::Result<Bytes>>,
    piece: BytesMut,
}

impl Write for ChunkWriter {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let taken = data.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&data[..taken]);
        if self.piece.len() == PIECE {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, BytesMut::with_capacity(PIECE)).freeze();
        self.sender.blocking_send(Ok(piece)).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
    }
}
