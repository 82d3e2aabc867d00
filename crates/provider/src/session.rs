//! A session by the provider's own calls: the processes and files of instances in which no agent of Atoll's runs.
//!
//! The service reaches such an instance through the same protocol as every other one. `atoll-session` serves that protocol in the
//! server and calls this trait, so a provider sees no HTTP and no message of the agent. It does the work of the agent that needs
//! no vendor: positions in the output, late readers, tags, the default user, folder and environment.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use atoll_agentapi::{Entry, ProcessEvent, Range, TerminalSize, UploadStream};
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::{Capability, Provider, ProviderError, Target};

/// The output of a process and, as its last item, its exit. It is read only as fast as the caller takes it: hold no more than a
/// fixed number of bytes that are not read yet. Dropping it leaves the process running.
pub type ProcessOutput = BoxStream<'static, Result<ProcessEvent, ProviderError>>;

/// The bytes of a file.
pub type FileStream = BoxStream<'static, Result<Bytes, ProviderError>>;

/// A process to start. Everything is decided: the defaults of the sandbox are already in it.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// The program and its arguments. The program is a path or a name that is looked up in `PATH`.
    pub argv: Vec<String>,
    /// The folder that it starts in; `None`: the vendor's default.
    pub cwd: Option<String>,
    /// Its environment, beside what the vendor sets by itself.
    pub env: BTreeMap<String, String>,
    /// The user that it runs as; `None`: the vendor's default. Named only where [`Capability::User`] is there.
    pub user: Option<String>,
    /// Standard input stays open. Asked only where [`Capability::Stdin`] is there.
    pub stdin: bool,
    /// It gets a terminal of this size. Asked only where [`Capability::Terminal`] is there.
    pub terminal: Option<TerminalSize>,
    /// The provider ends the process after this time, and its exit says `timed_out`.
    pub timeout: Option<Duration>,
    /// A name to find it by; kept by the vendor where that is possible.
    pub tag: String,
}

/// A process that was started.
pub struct StartedProcess {
    /// The vendor's id. A number becomes the process id that users see.
    pub id: String,
    /// Its output from the first byte on.
    pub output: ProcessOutput,
}

/// A process that runs, as the vendor lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunningProcess {
    /// The vendor's id.
    pub id: String,
    /// The program and its arguments, as far as the vendor tells them.
    pub argv: Vec<String>,
    /// The name from [`ProcessSpec::tag`], where the vendor kept it.
    pub tag: String,
    /// Its user, where the vendor tells it.
    pub user: String,
    /// Unix milliseconds; 0: not known.
    pub started_at_ms: u64,
    /// It has a terminal.
    pub terminal: bool,
}

/// A file that is being read.
pub struct FileContent {
    /// Bytes of the whole file.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// The requested bytes.
    pub stream: FileStream,
}

/// Commands and files by the provider's own calls. Paths are absolute and without `.`, `..` and repeated slashes. A missing file or
/// process is [`ProviderError::Refused`] with the kind `NotFound`; an instance that is not there is [`ProviderError::Gone`].
#[async_trait]
pub trait SessionSupport: Provider {
    /// Starts a process; returns when it runs.
    async fn start_process(
        &self,
        target: &Target,
        what: ProcessSpec,
    ) -> Result<StartedProcess, ProviderError>;

    /// The output of a process that runs, from now on. It is used after a restart of the server.
    async fn attach_process(&self, target: &Target, id: &str) -> Result<ProcessOutput, ProviderError>;

    /// Processes that were started here and still run.
    async fn processes(&self, target: &Target) -> Result<Vec<RunningProcess>, ProviderError>;

    /// Writes to the standard input or the terminal of a process; returns when the process or the vendor took the bytes.
    async fn write_stdin(&self, _target: &Target, _id: &str, _data: Bytes) -> Result<(), ProviderError> {
        Err(self.missing(Capability::Stdin))
    }

    /// Closes the standard input of a process. Idempotent.
    async fn close_stdin(&self, _target: &Target, _id: &str) -> Result<(), ProviderError> {
        Err(self.missing(Capability::Stdin))
    }

    /// Sends a signal to a process and its children.
    async fn signal(&self, _target: &Target, _id: &str, _signal: i32) -> Result<(), ProviderError> {
        Err(self.missing(Capability::Signal))
    }

    /// Sets the size of the terminal of a process.
    async fn resize_terminal(
        &self,
        _target: &Target,
        _id: &str,
        _size: TerminalSize,
    ) -> Result<(), ProviderError> {
        Err(self.missing(Capability::Terminal))
    }

    /// Describes a path. Symbolic links are not followed.
    async fn stat(&self, target: &Target, path: &str, user: Option<&str>) -> Result<Entry, ProviderError>;

    /// The entries of one folder, without those below them.
    async fn list_folder(
        &self,
        target: &Target,
        path: &str,
        user: Option<&str>,
    ) -> Result<Vec<Entry>, ProviderError>;

    /// Opens a file or a part of it. A part that ends behind the file is cut; one that begins there is empty.
    async fn read_file(
        &self,
        target: &Target,
        path: &str,
        user: Option<&str>,
        range: Option<Range>,
    ) -> Result<FileContent, ProviderError>;

    /// Writes a file completely or not at all; missing folders above it are made. `mode`: permission bits; `None` keeps those of an
    /// existing file. `len`: the number of bytes, where it is known.
    async fn write_file(
        &self,
        target: &Target,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
        len: Option<u64>,
        content: UploadStream,
    ) -> Result<(), ProviderError>;

    /// Makes a folder and those above it. An existing one is refused with the kind `Exists`.
    async fn make_folder(
        &self,
        target: &Target,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
    ) -> Result<(), ProviderError>;

    /// Renames a file or folder. A file at the destination is replaced, folders above it are made.
    async fn rename(
        &self,
        target: &Target,
        from: &str,
        to: &str,
        user: Option<&str>,
    ) -> Result<(), ProviderError>;

    /// Removes a file, or a folder with everything below it.
    async fn remove(&self, target: &Target, path: &str, user: Option<&str>) -> Result<(), ProviderError>;
}
