//! File operations with the rights of a sandbox's user, on a few threads of ours.
//!
//! A fork per request would be too slow, so each worker thread takes the user's file-system ids, groups and
//! capabilities for one job. They are per-thread in the kernel; glibc's wrappers would change all threads, hence raw
//! calls. A job never runs with an identity that was not confirmed. A job of the host's that has root's file rights keeps
//! the user's ids and gets the capabilities. The runtime's own blocking pool is not used:
//! it panics when a thread cannot be made, which a fork bomb next door can arrange.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::error::AgentError;
use crate::users::Ids;

/// LIMIT: jobs that may take long (a large tree) on all but one of these leave one for the others.
const THREADS_MAX: usize = 4;
/// LIMIT: waiting jobs; each holds at most the waiting chunks of an upload.
const QUEUE_MAX: usize = 256;
/// LIMIT: file jobs recurse nowhere and keep buffers on the heap.
const STACK: usize = 256 * 1024;

/// Capabilities that let root pass file permissions: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID,
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

    /// Makes the first thread while there is room for it; later ones come with need.
    pub(crate) fn warm(&self) {
        let mut queue = self.shared.lock();
        if queue.threads == 0 {
            self.grow(&mut queue);
        }
    }

    /// Runs a job as a user. The job itself must not block on anything but the disk.
    pub(crate) async fn run<T, F>(&self, ids: &Ids, job: F) -> Result<T, AgentError>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, AgentError> + Send + 'static,
    {
        self.begin(ids, job)?.answer().await
    }

    /// Hands a job over and returns at once.
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

/// A job that a worker has. Dropped, the job still runs, and what it made is dropped there.
pub(crate) struct RunningJob<T>(oneshot::Receiver<Result<T, AgentError>>);

impl<T> RunningJob<T> {
    /// Cancel-safe; not to be asked again once it has answered.
    pub(crate) async fn answer(&mut self) -> Result<T, AgentError> {
        (&mut self.0).await.unwrap_or_else(|_| Err(lost()))
    }

    /// The answer if it is there.
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
            let confirmed = ids == current || assume(&ids);
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

/// Changes this thread's file identity. False: it is not certain, so nothing may be done.
fn assume(ids: &Ids) -> bool {
    // SAFETY: raw per-thread calls on integers and on a slice that lives through the call.
    unsafe {
        // Root first: with another user's ids the rest may not be allowed.
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
    // With the user's ids and root's capabilities everything can be reached, and what is created is the user's at once.
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

/// Effective = permitted ∧ mask, whatever the securebits made of the change of ids.
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

/// Drops every capability of the calling process. Only a system call, for use after fork.
///
/// # Safety
/// None beyond being a raw system call; marked so because the caller runs in a forked child.
pub(crate) unsafe fn clear_capabilities() -> libc::c_long {
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let data = [CapData::default(); 2];
    // SAFETY: both structures have the kernel's layout for version 3 and live through the call.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }
}
