//! File operations with the permissions of a sandbox user, on a few worker threads.
//!
//! A fork per request would be too slow, so each worker thread takes the user's file-system ids, groups and
//! capabilities for one job. They are per-thread in the kernel; glibc's wrappers would change all threads, hence the
//! raw calls. A job never runs with an unconfirmed identity. A job of the host with root's file permissions keeps the
//! user's ids and gets the capabilities. The runtime's blocking pool is not used, because it panics when a thread
//! cannot be created, which a fork bomb in the sandbox can cause.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::error::AgentError;
use crate::users::Ids;

/// LIMIT: if long jobs (a large tree) occupy all but one thread, the last one serves the others.
const THREADS_MAX: usize = 4;
/// LIMIT: queued jobs; each holds at most the queued chunks of an upload.
const QUEUE_MAX: usize = 256;
/// LIMIT: file jobs do not recurse and keep buffers on the heap.
const STACK: usize = 256 * 1024;

/// Capabilities that let root bypass file permissions: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID,
/// LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE, and SETFCAP.
const FILE_CAPABILITIES: u64 = 0b1_1111 | 1 << 9 | 1 << 27 | 1 << 31 | 1 << 32;

type IdentityJob = (Ids, Box<dyn FnOnce(bool) + Send>);

/// The worker threads.
#[derive(Clone)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<JobQueue>,
    more: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<IdentityJob>,
    threads: usize,
    idle: usize,
}

impl Workers {
    pub(crate) fn new() -> Self {
        Self { shared: Arc::new(Shared { queue: Mutex::default(), more: Condvar::new() }) }
    }

    /// Starts the first thread while there is room for it; others are started on demand.
    pub(crate) fn warm(&self) {
        let mut queue = self.shared.lock();
        if queue.threads == 0 {
            self.grow(&mut queue);
        }
    }

    /// Runs a job as a user. The job must not block on anything but the disk.
    pub(crate) async fn run<T, F>(&self, ids: &Ids, job: F) -> Result<T, AgentError>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, AgentError> + Send + 'static,
    {
        self.begin(ids, job)?.answer().await
    }

    /// Queues a job and returns at once.
    pub(crate) fn begin<T, F>(&self, ids: &Ids, job: F) -> Result<RunningJob<T>, AgentError>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, AgentError> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let boxed = Box::new(move |confirmed: bool| {
            let denied = || Err(AgentError::Internal("the agent cannot take this user's identity".into()));
            let _ = answer.send(if confirmed { job() } else { denied() });
        });
        self.submit((ids.clone(), boxed))?;
        Ok(RunningJob(answered))
    }

    fn submit(&self, job: IdentityJob) -> Result<(), AgentError> {
        let mut queue = self.shared.lock();
        if queue.jobs.len() >= QUEUE_MAX {
            return Err(AgentError::Exhausted("too many file operations at once".into()));
        }
        if queue.idle <= queue.jobs.len() {
            self.grow(&mut queue);
        }
        if queue.threads == 0 {
            return Err(AgentError::Exhausted("the sandbox's process limit prevents file operations".into()));
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.more.notify_one();
        Ok(())
    }

    fn grow(&self, queue: &mut JobQueue) {
        if queue.threads >= THREADS_MAX {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let made =
            std::thread::Builder::new().name("files".into()).stack_size(STACK).spawn(move || shared.work());
        if made.is_ok() {
            queue.threads += 1;
        }
    }
}

/// A queued or running job. If this is dropped the job still runs, and its result is dropped there.
pub(crate) struct RunningJob<T>(oneshot::Receiver<Result<T, AgentError>>);

impl<T> RunningJob<T> {
    /// Cancel-safe; must not be called again after it has returned.
    pub(crate) async fn answer(&mut self) -> Result<T, AgentError> {
        (&mut self.0).await.unwrap_or_else(|_| Err(lost()))
    }

    /// The result, if it is available.
    pub(crate) fn answer_now(&mut self) -> Option<Result<T, AgentError>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(lost())),
        }
    }
}

fn lost() -> AgentError {
    AgentError::Internal("a file job was lost".into())
}

impl Shared {
    fn work(&self) {
        let mut current = Ids::ROOT;
        loop {
            let (ids, job) = self.next();
            let confirmed = ids.is_own || ids == current || assume(&ids);
            current = if confirmed { ids } else { Ids { uid: u32::MAX, gid: u32::MAX, ..Ids::ROOT } };
            job(confirmed);
        }
    }

    fn next(&self) -> IdentityJob {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return job;
            }
            queue.idle += 1;
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes this thread's file identity. False: the identity is uncertain, so no job may run.
fn assume(ids: &Ids) -> bool {
    // SAFETY: raw per-thread calls on integers and on a slice that lives through the call.
    unsafe {
        // Root first: with another user's ids the other calls may not be allowed.
        libc::syscall(libc::SYS_setfsuid, 0);
        if libc::syscall(libc::SYS_setgroups, ids.groups.len(), ids.groups.as_ptr()) != 0 {
            return false;
        }
        libc::syscall(libc::SYS_setfsgid, ids.gid);
        libc::syscall(libc::SYS_setfsuid, ids.uid);
        // An invalid id changes nothing and returns the current one.
        let uid = libc::syscall(libc::SYS_setfsuid, u32::MAX);
        let gid = libc::syscall(libc::SYS_setfsgid, u32::MAX);
        if uid != libc::c_long::from(ids.uid) || gid != libc::c_long::from(ids.gid) {
            return false;
        }
    }
    // With the user's ids and root's capabilities every file can be accessed, and new files belong to the user.
    set_effective(if ids.uid == 0 || ids.root_files { u64::MAX } else { !FILE_CAPABILITIES })
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_3: u32 = 0x2008_0522;

/// Sets effective = permitted ∧ mask, whatever the securebits did at the change of ids.
fn set_effective(mask: u64) -> bool {
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: both structures have the kernel's layout for version 3 and live through the calls.
    unsafe {
        if libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) != 0 {
            return false;
        }
        for (half, shift) in data.iter_mut().zip([0, 32]) {
            half.effective = half.permitted & (mask >> shift) as u32;
        }
        libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) == 0
    }
}

/// Drops every capability of the calling process. A single system call, for use after fork.
///
/// # Safety
/// None beyond being a raw system call; marked unsafe because the caller runs in a forked child.
pub(crate) unsafe fn clear_capabilities() -> libc::c_long {
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let data = [CapData::default(); 2];
    // SAFETY: both structures have the kernel's layout for version 3 and live through the call.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }
}
