//! Threads of conversation. The first sandbox of a thread binds it to a provider for good; while its sandbox is not deleted, a
//! create for the thread returns it. The end of a thread is in `exit.rs`. A session is a sandbox as clients of threads
//! name it: by its id, the beginning of its id, or its thread.

use atoll_model::{Code, CreateSandbox, Lease, Phase, Principal, check_thread};
use atoll_store::{Page, StoreError, ThreadQuery, ThreadRecord};

use crate::base::visible;
use crate::registry::Handle;
use crate::sandboxes::{PAGE, PAGE_MAX, Sandboxes, printable};
use crate::{Created, ServiceError, ThreadFilter};

impl Sandboxes {
    /// A page of threads, newest first.
    pub async fn threads(
        &self,
        who: &Principal,
        filter: ThreadFilter,
    ) -> Result<Page<ThreadRecord>, ServiceError> {
        let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
        let query = ThreadQuery { tenant: visible(who).cloned(), limit, cursor: filter.cursor };
        Ok(self.inner.store.threads(query).await?)
    }

    /// A thread by its name.
    pub async fn thread(&self, who: &Principal, thread: &str) -> Result<ThreadRecord, ServiceError> {
        check_thread(thread)?;
        let found = self.inner.store.find_thread(self.thread_scope(who, thread).await?, thread).await?;
        only_one(found, thread, "thread", "use a key of its tenant")?.ok_or_else(|| {
            ServiceError::new(Code::ThreadNotFound, format!("there is no thread {}", printable(thread)))
                .hint("list them: GET /v1/threads, or atoll thread ls")
        })
    }

    /// The sandbox that a session names: by its id, its thread, or the beginning of its id, at a provider if one is given.
    pub async fn find_session(
        &self,
        who: &Principal,
        provider: Option<&str>,
        ident: &str,
    ) -> Result<Lease, ServiceError> {
        if let Some(name) = provider {
            self.inner.providers.named(name)?;
        }
        let mut found = self.inner.store.find_session(Some(&who.tenant), provider, ident).await?;
        if found.is_empty() && visible(who).is_none() {
            found = self.inner.store.find_session(None, provider, ident).await?;
        }
        let lease = only_one(found, ident, "session", "use its whole session_id, or name its provider")?;
        lease.ok_or_else(|| {
            ServiceError::new(Code::SandboxNotFound, format!("there is no session {}", printable(ident)))
                .hint("list them: GET /api/sandbox/sessions")
        })
    }

    /// The thread that a create names, if it is bound; refused if the create names another provider.
    pub(crate) async fn thread_of(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
    ) -> Result<Option<ThreadRecord>, ServiceError> {
        let Some(thread) = &spec.thread else { return Ok(None) };
        if let Some(provider) = &spec.provider {
            self.inner.providers.named(provider)?;
        }
        let found = self.inner.store.find_thread(Some(&who.tenant), thread).await?.pop();
        let Some(found) = found else { return Ok(None) };
        if spec.provider.as_ref().is_some_and(|asked| *asked != found.provider) {
            let ThreadRecord { thread, provider, .. } = found;
            return Err(StoreError::ThreadBound { thread, provider }.into());
        }
        if found.sandbox.is_none() {
            self.inner.providers.of_thread(&found)?;
        }
        Ok(Some(found))
    }

    /// Answers a create with the sandbox that its thread has already; with `wait`, when that sandbox is made. One that failed after
    /// it ran, or waits for a place, is returned too: its phase says so.
    pub(crate) async fn bound(&self, lease: Lease, wait: bool) -> Result<(Lease, Created), ServiceError> {
        let Some(handle) = self.driver_of(&lease).await else { return Ok((lease, Created::Bound)) };
        if wait && handle.lease().phase == Phase::Creating && !handle.lease().waits_for_place() {
            let made = self.until_made(handle.clone()).await;
            if !handle.lease().is_recoverable() {
                made?;
            }
        }
        Ok((self.inner.queue.shown(&handle.lease()), Created::Bound))
    }

    /// The driver of a sandbox that was read from the store. The row of a new sandbox is visible a moment before its driver.
    async fn driver_of(&self, lease: &Lease) -> Option<Handle> {
        let found = self.inner.registry.get(&lease.id);
        if found.is_some() || lease.phase != Phase::Creating || lease.node != *self.inner.store.node() {
            return found;
        }
        let added = self.inner.registry.until_added(&lease.id);
        tokio::time::timeout(self.inner.config.create_wait, added).await.ok()
    }
}

/// The only object of a search that returns at most two.
fn only_one<T>(mut found: Vec<T>, ident: &str, what: &str, hint: &str) -> Result<Option<T>, ServiceError> {
    if found.len() > 1 {
        let message = format!("{} matches more than one {what}", printable(ident));
        return Err(ServiceError::new(Code::Ambiguous, message).hint(hint));
    }
    Ok(found.pop())
}
