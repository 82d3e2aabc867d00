//! Access to a running sandbox: processes, files, terminals and ports.
//!
//! Fronts, toolbox and proxy access a running sandbox only through [`Session`]. The service returns one after it has
//! authorised the caller and woken the sandbox; while it is held, the sandbox counts as busy. For a sandbox with
//! Atoll's agent, only an [`AgentSource`] has to be implemented. For a provider without the agent, `atoll-session` serves the
//! same protocol with the provider's own calls.
//!
//! Paths are bytes. `user` is the sandbox's user whose permissions apply; `None` is its default user.

use std::fmt::Debug;
use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::client::{
    AgentClient, CommandOutput, Entry, FileReader, LogTail, Pack, PackReader, ProcessInfo, ProcessStream,
    Range, Search, Searched, StartProcess, Started, TerminalSize, Unpack, Unpacked, WatchStream,
};
use crate::error::AgentError;
use crate::init::{InitRequest, Metrics};
use crate::setup_locks::SetupLocks;

/// Any byte stream into a sandbox.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The content of a file or archive that is sent to a sandbox.
pub type UploadStream = BoxStream<'static, io::Result<Bytes>>;

/// Where sandboxes have their temporary files.
const TEMPORARY_FOLDER: &str = "/tmp";

/// A running sandbox: processes, files, terminals and ports.
#[async_trait]
pub trait Session: Debug + Send + Sync {
    /// Starts a process; returns when it runs, or with a typed error.
    async fn start(&self, what: StartProcess) -> Result<(Started, ProcessStream), AgentError>;

    /// Attaches to a process; with `tail`, the kept end of its output comes first.
    async fn attach(&self, pid: u32, tail: bool) -> Result<ProcessStream, AgentError>;

    /// Attaches to a process at a [position](ProcessStream::position) of its output.
    async fn attach_from(&self, pid: u32, from: u64) -> Result<ProcessStream, AgentError>;

    /// Starts a process and collects at most `output_max` bytes of each of its streams.
    async fn run(&self, what: StartProcess, output_max: usize) -> Result<CommandOutput, AgentError> {
        let (_, stream) = self.start(what).await?;
        stream.collect(output_max).await
    }

    /// Processes that were started through a session and still run.
    async fn list(&self) -> Result<Vec<ProcessInfo>, AgentError>;

    /// Writes to a process's stdin or terminal.
    async fn send_stdin(&self, pid: u32, data: &[u8]) -> Result<(), AgentError>;

    /// Closes a process's stdin. Repeating it is no error.
    async fn close_stdin(&self, pid: u32) -> Result<(), AgentError>;

    /// Sends a signal to a process's group.
    async fn signal(&self, pid: u32, signal: i32) -> Result<(), AgentError>;

    /// Sets the size of a process's terminal.
    async fn resize(&self, pid: u32, size: TerminalSize) -> Result<(), AgentError>;

    /// Opens a file, or a part of it, for reading.
    async fn read_file(
        &self,
        path: &[u8],
        user: Option<&str>,
        range: Option<Range>,
    ) -> Result<FileReader, AgentError>;

    /// Writes a file completely or not at all, as [`AgentClient::write_file`] does.
    async fn write_file(
        &self,
        path: &[u8],
        user: Option<&str>,
        mode: Option<u32>,
        len: Option<u64>,
        content: UploadStream,
    ) -> Result<(), AgentError>;

    /// Writes a whole file from memory.
    async fn write_bytes(
        &self,
        path: &[u8],
        user: Option<&str>,
        mode: Option<u32>,
        content: Bytes,
    ) -> Result<(), AgentError> {
        let len = Some(content.len() as u64);
        let content = Box::pin(futures::stream::once(async move { Ok(content) }));
        self.write_file(path, user, mode, len, content).await
    }

    /// Describes a path.
    async fn stat(&self, path: &[u8], user: Option<&str>) -> Result<Entry, AgentError>;

    /// The entries of a directory, `depth` levels deep, and whether the list was truncated.
    async fn list_dir(
        &self,
        path: &[u8],
        user: Option<&str>,
        depth: u32,
    ) -> Result<(Vec<Entry>, bool), AgentError>;

    /// Makes a directory and its parents. An existing one is `already_exists`.
    async fn make_dir(&self, path: &[u8], user: Option<&str>, mode: Option<u32>)
    -> Result<Entry, AgentError>;

    /// Renames; an existing file at the destination is replaced.
    async fn move_entry(&self, from: &[u8], to: &[u8], user: Option<&str>) -> Result<Entry, AgentError>;

    /// Renames; an existing entry at the destination is `already_exists`.
    async fn move_new(&self, from: &[u8], to: &[u8], user: Option<&str>) -> Result<Entry, AgentError>;

    /// Copies a file or link, or (`recursive`) a directory.
    async fn copy(
        &self,
        from: &[u8],
        to: &[u8],
        user: Option<&str>,
        recursive: bool,
        overwrite: bool,
    ) -> Result<Entry, AgentError>;

    /// Changes mode, owner or group; `None`: unchanged.
    async fn change(
        &self,
        path: &[u8],
        user: Option<&str>,
        mode: Option<u32>,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> Result<Entry, AgentError>;

    /// Removes a path and everything below it. A missing path is `not_found`.
    async fn remove(&self, path: &[u8], user: Option<&str>) -> Result<(), AgentError>;

    /// Watches a directory; the watch is active when this returns.
    async fn watch(
        &self,
        path: &[u8],
        user: Option<&str>,
        recursive: bool,
    ) -> Result<WatchStream, AgentError>;

    /// Searches for names or lines.
    async fn search(&self, what: Search, user: Option<&str>) -> Result<Searched, AgentError>;

    /// Writes a tar stream into the sandbox.
    async fn unpack(
        &self,
        what: &Unpack,
        user: Option<&str>,
        content: UploadStream,
    ) -> Result<Unpacked, AgentError>;

    /// Reads files and trees as one tar stream.
    async fn pack(&self, what: &Pack, user: Option<&str>) -> Result<PackReader, AgentError>;

    /// Output of processes that were started `logged`.
    async fn logs(&self, follow: bool, tail_bytes: Option<u64>) -> Result<LogTail, AgentError>;

    /// The resource use of the sandbox.
    async fn metrics(&self) -> Result<Metrics, AgentError>;

    /// The current settings: environment, default user and working directory.
    async fn settings(&self) -> Result<InitRequest, AgentError>;

    /// A byte stream to a port in the sandbox, also to a server that listens only on loopback.
    async fn dial(&self, port: u16) -> Result<Box<dyn ByteStream>, AgentError>;

    /// The locks that all sessions of this sandbox share on this server.
    fn setup_locks(&self) -> SetupLocks {
        SetupLocks::default()
    }

    /// The folder for temporary files of this sandbox alone.
    fn temporary_folder(&self) -> String {
        TEMPORARY_FOLDER.to_owned()
    }
}

/// A sandbox with Atoll's agent. The blanket implementation below makes it a [`Session`].
#[async_trait]
pub trait AgentSource: Debug + Send + Sync {
    /// The agent for the next call. Waits while the sandbox is paused.
    async fn agent_client(&self) -> Result<AgentClient, AgentError>;

    /// [`Session::dial`].
    async fn dial_port(&self, port: u16) -> Result<Box<dyn ByteStream>, AgentError>;

    /// Makes the stream of a process outlive its connection, if the source supports it.
    fn keep_following(&self, pid: u32, stream: ProcessStream) -> ProcessStream {
        let _ = pid;
        stream
    }

    /// [`Session::setup_locks`].
    fn shared_locks(&self) -> SetupLocks {
        SetupLocks::default()
    }

    /// [`Session::temporary_folder`].
    fn own_temporary_folder(&self) -> String {
        TEMPORARY_FOLDER.to_owned()
    }
}

/// One agent, as long as its instance lives.
#[async_trait]
impl AgentSource for AgentClient {
    async fn agent_client(&self) -> Result<AgentClient, AgentError> {
        Ok(self.clone())
    }

    async fn dial_port(&self, _port: u16) -> Result<Box<dyn ByteStream>, AgentError> {
        Err(AgentError::Argument("the client of an agent reaches no other port"))
    }
}

#[async_trait]
impl<S: AgentSource> Session for S {
    async fn start(&self, what: StartProcess) -> Result<(Started, ProcessStream), AgentError> {
        let (started, stream) = self.agent_client().await?.start(what).await?;
        Ok((started, self.keep_following(started.pid, stream)))
    }

    async fn attach(&self, pid: u32, tail: bool) -> Result<ProcessStream, AgentError> {
        let stream = self.agent_client().await?.attach(pid, tail).await?;
        Ok(self.keep_following(pid, stream))
    }

    async fn attach_from(&self, pid: u32, from: u64) -> Result<ProcessStream, AgentError> {
        let stream = self.agent_client().await?.attach_from(pid, from).await?;
        Ok(self.keep_following(pid, stream))
    }

    async fn list(&self) -> Result<Vec<ProcessInfo>, AgentError> {
        self.agent_client().await?.list().await
    }

    async fn send_stdin(&self, pid: u32, data: &[u8]) -> Result<(), AgentError> {
        self.agent_client().await?.send_stdin(pid, data).await
    }

    async fn close_stdin(&self, pid: u32) -> Result<(), AgentError> {
        self.agent_client().await?.close_stdin(pid).await
    }

    async fn signal(&self, pid: u32, signal: i32) -> Result<(), AgentError> {
        self.agent_client().await?.signal(pid, signal).await
    }

    async fn resize(&self, pid: u32, size: TerminalSize) -> Result<(), AgentError> {
        self.agent_client().await?.resize(pid, size).await
    }

    async fn read_file(
        &self,
        path: &[u8],
        user: Option<&str>,
        range: Option<Range>,
    ) -> Result<FileReader, AgentError> {
        self.agent_client().await?.read_file(path, user, range).await
    }

    async fn write_file(
        &self,
        path: &[u8],
        user: Option<&str>,
        mode: Option<u32>,
        len: Option<u64>,
        content: UploadStream,
    ) -> Result<(), AgentError> {
        self.agent_client().await?.write_file(path, user, mode, len, content).await
    }

    async fn stat(&self, path: &[u8], user: Option<&str>) -> Result<Entry, AgentError> {
        self.agent_client().await?.stat(path, user).await
    }

    async fn list_dir(
        &self,
        path: &[u8],
        user: Option<&str>,
        depth: u32,
    ) -> Result<(Vec<Entry>, bool), AgentError> {
        self.agent_client().await?.list_dir(path, user, depth).await
    }

    async fn make_dir(
        &self,
        path: &[u8],
        user: Option<&str>,
        mode: Option<u32>,
    ) -> Result<Entry, AgentError> {
        self.agent_client().await?.make_dir(path, user, mode).await
    }

    async fn move_entry(&self, from: &[u8], to: &[u8], user: Option<&str>) -> Result<Entry, AgentError> {
        self.agent_client().await?.move_entry(from, to, user).await
    }

    async fn move_new(&self, from: &[u8], to: &[u8], user: Option<&str>) -> Result<Entry, AgentError> {
        self.agent_client().await?.move_new(from, to, user).await
    }

    async fn copy(
        &self,
        from: &[u8],
        to: &[u8],
        user: Option<&str>,
        recursive: bool,
        overwrite: bool,
    ) -> Result<Entry, AgentError> {
        self.agent_client().await?.copy(from, to, user, recursive, overwrite).await
    }

    async fn change(
        &self,
        path: &[u8],
        user: Option<&str>,
        mode: Option<u32>,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> Result<Entry, AgentError> {
        self.agent_client().await?.change(path, user, mode, owner, group).await
    }

    async fn remove(&self, path: &[u8], user: Option<&str>) -> Result<(), AgentError> {
        self.agent_client().await?.remove(path, user).await
    }

    async fn watch(
        &self,
        path: &[u8],
        user: Option<&str>,
        recursive: bool,
    ) -> Result<WatchStream, AgentError> {
        self.agent_client().await?.watch(path, user, recursive).await
    }

    async fn search(&self, what: Search, user: Option<&str>) -> Result<Searched, AgentError> {
        self.agent_client().await?.search(what, user).await
    }

    async fn unpack(
        &self,
        what: &Unpack,
        user: Option<&str>,
        content: UploadStream,
    ) -> Result<Unpacked, AgentError> {
        self.agent_client().await?.unpack(what, user, content).await
    }

    async fn pack(&self, what: &Pack, user: Option<&str>) -> Result<PackReader, AgentError> {
        self.agent_client().await?.pack(what, user).await
    }

    async fn logs(&self, follow: bool, tail_bytes: Option<u64>) -> Result<LogTail, AgentError> {
        self.agent_client().await?.logs(follow, tail_bytes).await
    }

    async fn metrics(&self) -> Result<Metrics, AgentError> {
        self.agent_client().await?.metrics().await
    }

    async fn settings(&self) -> Result<InitRequest, AgentError> {
        self.agent_client().await?.settings().await
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn ByteStream>, AgentError> {
        self.dial_port(port).await
    }

    fn setup_locks(&self) -> SetupLocks {
        self.shared_locks()
    }

    fn temporary_folder(&self) -> String {
        self.own_temporary_folder()
    }
}
