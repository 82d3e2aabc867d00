//! Commands and files by the provider's own calls: no agent runs in a folder.
//!
//! A command is a process of this machine in the process group of its instance, so that `halt` ends it. Threads read its output
//! into a short queue: a command whose output is not read waits in its next write. The provider says that it has no signals and
//! no terminals, and implements nothing for them.

use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use atoll_agentapi::{Entry, EntryKind, ExitStatus, ProcessEvent, Range, UploadStream};
use atoll_model::ErrorKind;
use atoll_provider::{
    FileContent, ProcessOutput, ProcessSpec, ProviderError, RunningProcess, SessionSupport, StartedProcess,
    Target,
};
use bytes::Bytes;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::FolderProvider;

/// LIMIT: bytes of one read, and reads that wait for the caller.
const CHUNK: usize = 16 * 1024;
const QUEUE: usize = 4;
/// How often a command with a timeout is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Job {
    target: Target,
    described: RunningProcess,
    stdin: Mutex<Option<std::process::ChildStdin>>,
}

impl FolderProvider {
    /// Where a path of a live instance lies on this machine.
    fn place(&self, target: &Target, path: &str) -> Result<PathBuf, ProviderError> {
        self.process(target)?;
        Ok(self.files(&target.sandbox).join(path.trim_start_matches('/')))
    }

    fn jobs_of(&self, target: &Target) -> Vec<Arc<Job>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.iter().filter(|job| job.target == *target).cloned().collect()
    }

    fn job(&self, target: &Target, id: &str) -> Result<Arc<Job>, ProviderError> {
        self.process(target)?;
        let found = self.jobs_of(target).into_iter().find(|job| job.described.id == id);
        found.ok_or_else(|| refused(ErrorKind::NotFound, format!("process {id} is not running")))
    }

    /// Starts a command in the group of its instance.
    fn launch(&self, target: &Target, what: ProcessSpec) -> Result<(Arc<Job>, ProcessOutput), ProviderError> {
        let group = self.process(target)?.as_raw_nonzero().get();
        let (program, args) = what
            .argv
            .split_first()
            .ok_or_else(|| refused(ErrorKind::Invalid, "the program is missing".to_owned()))?;
        let mut command = Command::new(program);
        command.args(args).current_dir(self.place(target, what.cwd.as_deref().unwrap_or("/"))?);
        // The environment of the server is nobody else's business.
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").envs(&what.env);
        command.stdin(if what.stdin { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(group);
        let mut child = command.spawn().map_err(|error| failure(&format!("starting {program}"), error))?;
        let described = RunningProcess {
            id: child.id().to_string(),
            argv: what.argv.clone(),
            tag: what.tag.clone(),
            ..RunningProcess::default()
        };
        let job = Job { target: target.clone(), described, stdin: Mutex::new(child.stdin.take()) };
        let job = Arc::new(job);
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&job));
        let (events, output) = mpsc::channel(QUEUE);
        let (provider, ended) = (self.clone(), Arc::clone(&job));
        thread(format!("run-{}", child.id()), move || {
            let exit = watch(child, what.timeout, &events);
            let mut jobs = provider.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.retain(|job| !Arc::ptr_eq(job, &ended));
            drop(jobs);
            let _ = events.blocking_send(exit.map_err(|error| failure("waiting for a command", error)));
        })
        .map_err(|error| failure("starting a thread", error))?;
        let output = futures::stream::unfold(output, |mut output| async move {
            output.recv().await.map(|event| (event, output))
        });
        Ok((job, output.boxed()))
    }
}

type EventQueue = mpsc::Sender<Result<ProcessEvent, ProviderError>>;

/// Reads the output of a command until it has ended.
fn watch(mut child: Child, timeout: Option<Duration>, events: &EventQueue) -> io::Result<ProcessEvent> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (queue, id) = (events.clone(), child.id());
    let out = thread(format!("out-{id}"), move || copy(stdout, &queue, ProcessEvent::Stdout))?;
    let queue = events.clone();
    let err = thread(format!("err-{id}"), move || copy(stderr, &queue, ProcessEvent::Stderr))?;
    let (begun, mut timed_out) = (Instant::now(), false);
    let status = match timeout {
        None => child.wait()?,
        Some(timeout) => loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if !timed_out && begun.elapsed() >= timeout {
                timed_out = true;
                child.kill()?;
            }
            std::thread::sleep(LOOK);
        },
    };
    // A reader ends with the last process that has its pipe.
    for reader in [out, err] {
        let _ = reader.join();
    }
    let (code, signal, core_dumped) = (status.code(), status.signal(), status.core_dumped());
    Ok(ProcessEvent::Exit(ExitStatus { code, signal, timed_out, core_dumped }))
}

/// Sends what a pipe says. A command goes on when its output is no longer read.
fn copy(pipe: Option<impl Read>, events: &EventQueue, event: impl Fn(Bytes) -> ProcessEvent) {
    let (Some(mut pipe), mut buffer) = (pipe, vec![0; CHUNK]) else { return };
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        let _ = events.blocking_send(Ok(event(Bytes::copy_from_slice(&buffer[..count]))));
    }
}

fn thread(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(work)
}

fn refused(kind: ErrorKind, message: String) -> ProviderError {
    ProviderError::Refused { kind, message }
}

/// What a failed system call means for a caller.
fn failure(what: &str, error: io::Error) -> ProviderError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        io::ErrorKind::PermissionDenied => ErrorKind::Forbidden,
        io::ErrorKind::StorageFull => ErrorKind::Exhausted,
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput => {
            ErrorKind::Invalid
        }
        _ => return ProviderError::Failed { step: what.to_owned(), cause: error.into() },
    };
    refused(kind, format!("{what}: {error}"))
}

async fn describe(place: &Path, path: &str) -> Result<Entry, ProviderError> {
    let found = tokio::fs::symlink_metadata(place).await.map_err(|error| failure(path, error))?;
    let kind = match found.file_type() {
        kind if kind.is_file() => EntryKind::File,
        kind if kind.is_dir() => EntryKind::Directory,
        kind if kind.is_symlink() => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let target = tokio::fs::read_link(place).await.ok();
    Ok(Entry {
        name: path.rsplit('/').next().unwrap_or_default().into(),
        path: path.into(),
        kind,
        size: found.len(),
        mode: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
        owner: found.uid().to_string(),
        group: found.gid().to_string(),
        modified_at_ms: found.mtime().saturating_mul(1_000),
        symlink_target: target.map(|target| target.into_os_string().into_encoded_bytes()),
        metadata: std::collections::BTreeMap::new(),
    })
}

/// Writes all of an upload to a new file.
async fn receive(place: &Path, len: Option<u64>, mut content: UploadStream) -> Result<(), ProviderError> {
    let broken = |error| failure("writing the upload", error);
    let mut file = tokio::fs::File::create_new(place).await.map_err(broken)?;
    let mut written = 0;
    while let Some(chunk) = content.next().await {
        let chunk =
            chunk.map_err(|error| refused(ErrorKind::Invalid, format!("the upload broke: {error}")))?;
        file.write_all(&chunk).await.map_err(broken)?;
        written += chunk.len() as u64;
    }
    file.flush().await.map_err(broken)?;
    match len {
        Some(len) if len != written => {
            Err(refused(ErrorKind::Invalid, format!("the upload has {written} of {len} bytes")))
        }
        _ => Ok(()),
    }
}

async fn set_mode(place: &Path, mode: Option<u32>) -> Result<(), ProviderError> {
    let Some(mode) = mode else { return Ok(()) };
    let permissions = std::fs::Permissions::from_mode(mode & 0o7777);
    tokio::fs::set_permissions(place, permissions).await.map_err(|error| failure("setting the mode", error))
}

async fn make_parents(place: &Path) -> Result<(), ProviderError> {
    let Some(parent) = place.parent() else { return Ok(()) };
    tokio::fs::create_dir_all(parent).await.map_err(|error| failure("making folders", error))
}

#[async_trait]
impl SessionSupport for FolderProvider {
    async fn start_process(
        &self,
        target: &Target,
        what: ProcessSpec,
    ) -> Result<StartedProcess, ProviderError> {
        let target = target.clone();
        let started =
            self.change("starting a command", move |provider| Ok(provider.launch(&target, what))).await?;
        let (job, output) = started?;
        Ok(StartedProcess { id: job.described.id.clone(), output })
    }

    async fn attach_process(&self, target: &Target, id: &str) -> Result<ProcessOutput, ProviderError> {
        self.job(target, id)?;
        // Its output goes to the reader that started it, and nothing outlives the server.
        Err(refused(ErrorKind::Conflict, format!("the output of process {id} is being read")))
    }

    async fn processes(&self, target: &Target) -> Result<Vec<RunningProcess>, ProviderError> {
        self.process(target)?;
        Ok(self.jobs_of(target).iter().map(|job| job.described.clone()).collect())
    }

    async fn write_stdin(&self, target: &Target, id: &str, data: Bytes) -> Result<(), ProviderError> {
        let job = self.job(target, id)?;
        let written = tokio::task::spawn_blocking(move || {
            let mut stdin = job.stdin.lock().unwrap_or_else(PoisonError::into_inner);
            match stdin.as_mut() {
                Some(stdin) => stdin.write_all(&data).and_then(|()| stdin.flush()),
                None => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is closed")),
            }
        });
        let written = written.await.unwrap_or_else(|error| Err(error.into()));
        written.map_err(|error| failure("writing to standard input", error))
    }

    async fn close_stdin(&self, target: &Target, id: &str) -> Result<(), ProviderError> {
        self.job(target, id)?.stdin.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    async fn stat(&self, target: &Target, path: &str, _user: Option<&str>) -> Result<Entry, ProviderError> {
        describe(&self.place(target, path)?, path).await
    }

    async fn list_folder(
        &self,
        target: &Target,
        path: &str,
        _user: Option<&str>,
    ) -> Result<Vec<Entry>, ProviderError> {
        let broken = |error| failure(path, error);
        let mut entries = Vec::new();
        let mut folder = tokio::fs::read_dir(self.place(target, path)?).await.map_err(broken)?;
        while let Some(entry) = folder.next_entry().await.map_err(broken)? {
            let name = entry.file_name();
            let path = format!("{}/{}", path.trim_end_matches('/'), name.to_string_lossy());
            entries.push(describe(&entry.path(), &path).await?);
        }
        Ok(entries)
    }

    async fn read_file(
        &self,
        target: &Target,
        path: &str,
        _user: Option<&str>,
        range: Option<Range>,
    ) -> Result<FileContent, ProviderError> {
        let (place, broken) = (self.place(target, path)?, |error| failure(path, error));
        let Entry { kind, size, mode, .. } = describe(&place, path).await?;
        if kind != EntryKind::File {
            return Err(refused(ErrorKind::Invalid, format!("{path} is not a file")));
        }
        let mut file = tokio::fs::File::open(place).await.map_err(broken)?;
        let start = range.map_or(0, |range| range.start).min(size);
        // A file of /proc says that it is empty: what is read whole is read to its end.
        let len = range.map_or(u64::MAX, |range| range.len.unwrap_or(u64::MAX).min(size - start));
        file.seek(io::SeekFrom::Start(start)).await.map_err(broken)?;
        let stream = futures::stream::try_unfold(file.take(len), |mut file| async move {
            let mut buffer = Vec::with_capacity(CHUNK);
            let read = file.read_buf(&mut buffer).await.map_err(|error| failure("reading", error))?;
            Ok((read > 0).then(|| (Bytes::from(buffer), file)))
        });
        Ok(FileContent { size, mode, stream: stream.boxed() })
    }

    async fn write_file(
        &self,
        target: &Target,
        path: &str,
        _user: Option<&str>,
        mode: Option<u32>,
        len: Option<u64>,
        content: UploadStream,
    ) -> Result<(), ProviderError> {
        static UPLOADS: AtomicU64 = AtomicU64::new(0);
        let place = self.place(target, path)?;
        make_parents(&place).await?;
        let had = tokio::fs::metadata(&place).await.ok().map(|had| had.permissions().mode());
        let number = UPLOADS.fetch_add(1, Ordering::Relaxed);
        let part = place.with_file_name(format!(".upload-{}-{number}", std::process::id()));
        let done = async {
            receive(&part, len, content).await?;
            set_mode(&part, mode.or(had).or(Some(0o644))).await?;
            tokio::fs::rename(&part, &place).await.map_err(|error| failure(path, error))
        };
        let done = done.await;
        if done.is_err() {
            let _ = tokio::fs::remove_file(&part).await;
        }
        done
    }

    async fn make_folder(
        &self,
        target: &Target,
        path: &str,
        _user: Option<&str>,
        mode: Option<u32>,
    ) -> Result<(), ProviderError> {
        let place = self.place(target, path)?;
        make_parents(&place).await?;
        tokio::fs::create_dir(&place).await.map_err(|error| failure(path, error))?;
        set_mode(&place, mode).await
    }

    async fn rename(
        &self,
        target: &Target,
        from: &str,
        to: &str,
        _user: Option<&str>,
    ) -> Result<(), ProviderError> {
        let (source, destination) = (self.place(target, from)?, self.place(target, to)?);
        describe(&source, from).await?;
        make_parents(&destination).await?;
        tokio::fs::rename(source, destination).await.map_err(|error| failure(to, error))
    }

    async fn remove(&self, target: &Target, path: &str, _user: Option<&str>) -> Result<(), ProviderError> {
        let place = self.place(target, path)?;
        let removed = match describe(&place, path).await?.kind {
            EntryKind::Directory => tokio::fs::remove_dir_all(place).await,
            _ => tokio::fs::remove_file(place).await,
        };
        removed.map_err(|error| failure(path, error))
    }
}
