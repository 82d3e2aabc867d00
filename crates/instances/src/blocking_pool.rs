//! Threads for kernel work: short blocking calls that must not run on an async thread.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

type BlockingJob = Box<dyn FnOnce() + Send>;

/// LIMIT: jobs in the queue. Each create has at most two, so this is far above what admission allows at once.
const QUEUE: usize = 4_096;

/// A few threads with one queue. When it is dropped, the threads end as soon as the queue is empty.
#[derive(Debug)]
pub struct BlockingPool {
    jobs: SyncSender<BlockingJob>,
}

impl BlockingPool {
    /// Starts the threads.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = sync_channel::<BlockingJob>(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let count = std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 8));
        for number in 0..count {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new().name(format!("engine-{number}")).spawn(move || work(&queue))?;
        }
        Ok(Self { jobs })
    }

    /// Runs `job` on one of the threads. It runs to its end even if the caller goes away.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (answer, waiting) = oneshot::channel();
        let job = Box::new(move || {
            let _ = answer.send(job());
        });
        self.jobs.try_send(job).map_err(|_| {
            io::Error::new(io::ErrorKind::ResourceBusy, "too many kernel operations are waiting")
        })?;
        waiting.await.unwrap_or_else(|_| Err(io::Error::other("a kernel job panicked")))
    }
}

fn work(queue: &Mutex<Receiver<BlockingJob>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        // A panic in one job must not end the thread.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}
