//! A provider whose sandboxes are folders and whose instances are idle processes.
//!
//! ```text
//! ROOT/<sandbox>/owner           the owner label: which server the sandbox belongs to
//! ROOT/<sandbox>/files/          what the sandbox wrote
//! ROOT/<sandbox>/instance.json   the instance and its process; missing while the sandbox is stopped
//! ```
//!
//! Files survive `halt`, and commands and files are reached by calls of its own (`session.rs`): no agent runs in a folder.
//! `docs/adding-a-provider.md` explains it step by step.

mod session;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use atoll_model::{InstanceId, SandboxId};
use atoll_provider::{
    Booted, Capabilities, InstanceActivity, InstanceSpec, InstanceUsage, Isolation, Notice, NoticeKind,
    OwnedSandbox, Provider, ProviderDescription, ProviderError, SessionSupport, Target,
};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// The only template: an empty folder.
pub const TEMPLATE: &str = "base";

/// The provider `folder`.
#[derive(Debug, Clone)]
pub struct FolderProvider {
    root: PathBuf,
    owner: String,
    notices: broadcast::Sender<Notice>,
    /// One change at a time. A change goes on when its caller goes away, and the next one waits for it.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The commands that run.
    jobs: Arc<Mutex<Vec<Arc<session::Job>>>>,
}

/// What is needed to find an instance again after a restart of the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct InstanceRecord {
    instance: InstanceId,
    pid: i32,
    /// When the process started, in the kernel's ticks: another process may have the same id later.
    started: u64,
}

impl FolderProvider {
    /// Keeps sandboxes below `root`. Folders with another owner label are never touched.
    #[must_use]
    pub fn new(root: &Path, owner: &str) -> Self {
        let notices = broadcast::Sender::new(64);
        let (root, owner) = (root.to_owned(), owner.to_owned());
        Self { root, owner, notices, turn: Arc::default(), jobs: Arc::default() }
    }

    /// The files of a sandbox.
    #[must_use]
    pub fn files(&self, sandbox: &SandboxId) -> PathBuf {
        self.root.join(sandbox.as_str()).join("files")
    }

    /// The process of a live instance.
    ///
    /// # Errors
    /// [`ProviderError::Gone`] where the target has none.
    pub fn process(&self, target: &Target) -> Result<Pid, ProviderError> {
        let gone = || ProviderError::Gone { sandbox: target.sandbox.clone() };
        let record = self.live(&target.sandbox).ok_or_else(gone)?;
        let is_named = target.instance.as_ref().is_none_or(|wanted| *wanted == record.instance);
        Pid::from_raw(record.pid).filter(|_| is_named).ok_or_else(gone)
    }

    fn owner_path(&self, sandbox: &SandboxId) -> PathBuf {
        self.root.join(sandbox.as_str()).join("owner")
    }

    fn owns(&self, sandbox: &SandboxId) -> bool {
        std::fs::read_to_string(self.owner_path(sandbox)).is_ok_and(|owner| owner == self.owner)
    }

    fn record_path(&self, sandbox: &SandboxId) -> PathBuf {
        self.root.join(sandbox.as_str()).join("instance.json")
    }

    fn record(&self, sandbox: &SandboxId) -> Option<InstanceRecord> {
        let text = std::fs::read(self.record_path(sandbox)).ok().filter(|_| self.owns(sandbox))?;
        serde_json::from_slice(&text).ok()
    }

    fn live(&self, sandbox: &SandboxId) -> Option<InstanceRecord> {
        self.record(sandbox).filter(|record| start_time(record.pid) == Some(record.started))
    }

    /// Runs a change in the background: file system calls must not block the runtime.
    async fn change<T: Send + 'static>(
        &self,
        step: &'static str,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let failed = |cause: io::Error| ProviderError::Failed { step: step.into(), cause: cause.into() };
        let (provider, turn) = (self.clone(), Arc::clone(&self.turn).lock_owned().await);
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&provider);
            drop(turn);
            done
        });
        done.await.map_err(|error| failed(error.into()))?.map_err(failed)
    }

    async fn start(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let spec = spec.clone();
        self.change("starting the process", move |provider| {
            std::fs::create_dir_all(provider.files(&spec.sandbox))?;
            std::fs::write(provider.owner_path(&spec.sandbox), &provider.owner)?;
            let mut command = std::process::Command::new("sleep");
            command.arg("infinity").current_dir(provider.files(&spec.sandbox)).process_group(0);
            let mut child = command.spawn()?;
            let pid = child.id() as i32;
            let started = start_time(pid).ok_or(io::ErrorKind::NotFound)?;
            let instance = spec.instance.clone();
            let record = serde_json::to_value(InstanceRecord { instance, pid, started })?;
            std::fs::write(provider.record_path(&spec.sandbox), record.to_string())?;
            let (notices, what) = (provider.notices.clone(), NoticeKind::Died);
            let notice = Notice { sandbox: spec.sandbox, instance: spec.instance.clone(), what };
            let wait = move || child.wait().map(|_| notices.send(notice));
            std::thread::Builder::new().name(format!("wait-{pid}")).spawn(wait)?;
            // A token is for one instance. There is no agent here, so any text will do.
            let agent_token = Some(spec.instance.as_str().to_owned());
            Ok(Booted { facts: record, agent_token, from_pool: false })
        })
        .await
    }
}

/// When a process started; `None` where there is none, or where it has ended.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_running = !matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| is_running)
}

fn end(record: &InstanceRecord) -> io::Result<()> {
    while start_time(record.pid) == Some(record.started) {
        let pid = Pid::from_raw(record.pid).ok_or(io::ErrorKind::InvalidData)?;
        match rustix::process::kill_process_group(pid, Signal::KILL) {
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
            Err(rustix::io::Errno::SRCH) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn missing_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[async_trait]
impl Provider for FolderProvider {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription {
            isolation: Isolation::None,
            cost: "free",
            best_for: "learning how providers work",
        }
    }

    fn capabilities(&self) -> Capabilities {
        // No port can be reached, and a session here has neither signals nor terminals nor a choice of users.
        Capabilities { keeps_files: true, session: true, stdin: true, ..Capabilities::default() }
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        if spec.template != TEMPLATE {
            return Err(ProviderError::NoTemplate { template: spec.template.clone() });
        }
        self.start(spec).await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        if !self.owns(&spec.sandbox) {
            return Err(ProviderError::Gone { sandbox: spec.sandbox.clone() });
        }
        self.start(spec).await
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        let target = target.clone();
        self.change("ending the process", move |provider| match provider.record(&target.sandbox) {
            // A late halt must not end the next instance.
            Some(record) if target.instance.is_none_or(|wanted| wanted == record.instance) => {
                end(&record)?;
                missing_is_fine(std::fs::remove_file(provider.record_path(&target.sandbox)))
            }
            _ => Ok(()),
        })
        .await
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        self.halt(&Target { instance: None, ..target.clone() }).await?;
        let sandbox = target.sandbox.clone();
        self.change("removing the files", move |provider| match provider.owns(&sandbox) {
            true => missing_is_fine(std::fs::remove_dir_all(provider.root.join(sandbox.as_str()))),
            false => Ok(()),
        })
        .await
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let pid = self.process(target)?.as_raw_nonzero();
        let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        Ok(InstanceUsage { memory_bytes: resident * 4_096, pids: 1, ..InstanceUsage::default() })
    }

    async fn has_template(&self, template: &str, _version: &str) -> Result<bool, ProviderError> {
        Ok(template == TEMPLATE)
    }

    async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        self.change("listing sandboxes", |provider| {
            let mut owned = Vec::new();
            for entry in std::fs::read_dir(&provider.root)? {
                let name = entry?.file_name();
                let Some(Ok(sandbox)) = name.to_str().map(str::parse::<SandboxId>) else { continue };
                if provider.owns(&sandbox) {
                    let live = provider.live(&sandbox);
                    let instance = live.map(|record| (record.instance, InstanceActivity::Running));
                    owned.push(OwnedSandbox { sandbox, instance });
                }
            }
            Ok(owned)
        })
        .await
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    fn session_support(&self) -> Result<&dyn SessionSupport, ProviderError> {
        Ok(self)
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        // Processes that sleep need next to nothing, so there is always room for one more.
        const MUCH_MIB: u64 = 1 << 20;
        let (memory_free_mib, memory_total_mib) = (MUCH_MIB, MUCH_MIB);
        let (disk_free_mib, disk_copy_mib, disk_total_mib) = (MUCH_MIB, MUCH_MIB, MUCH_MIB);
        Ok(Node {
            memory_free_mib,
            memory_total_mib,
            cpu_total_milli: 1_000_000,
            disk_free_mib,
            disk_copy_mib,
            disk_total_mib,
            limits_disk: false,
            disk_limits_mib: 0,
            disk_overcommit: 1.0,
            disk_share: None,
            live: 0,
            memory_limits_mib: 0,
            live_max: 0,
            overcommit: 1.0,
        })
    }

    async fn settle(&self, _deadline: Duration) -> Result<(), ProviderError> {
        drop(self.turn.lock().await);
        Ok(())
    }
}
