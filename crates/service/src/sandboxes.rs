//! Finds, lists, changes, starts, stops and deletes sandboxes. Every operation is sent to the driver and answered when
//! it is recorded; waiting for its end is limited and may be abandoned.

mod state;

use std::sync::Arc;

use atoll_model::lifecycle::{PhaseSet, Verb, phase_deadline_ms};
use atoll_model::policy::authz;
use atoll_model::{
    Code, Intent, Lease, LimitsAsk, MemoryLocation, Phase, Principal, Reason, SandboxId, UpdateSandbox,
};
use atoll_store::{LeaseQuery, Page};
use tokio::sync::oneshot;

use crate::access::{Credential, RequestScope};
use crate::base::{no_tenant, visible};
use crate::create::failure;
use crate::driver::{Action, DriverMessage, Mail};
use crate::registry::{DriverState, Handle};
use crate::wake::{WakeRequest, Woken};
use crate::{Filter, Pause, ServiceError, VerbOptions};
pub use state::Sandboxes;
pub(crate) use state::{SandboxParts, SandboxesState};

/// LIMIT: a page for a screen, and the maximum for a response.
pub(crate) const PAGE: u32 = 100;
pub(crate) const PAGE_MAX: u32 = 1_000;

impl Sandboxes {
    /// A sandbox by id, name or unique prefix of its id (at least three characters). Deleted ones only by the whole id.
    pub async fn get(&self, who: &Principal, ident: &str) -> Result<Lease, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        Ok(self.inner.queue.shown(&lease))
    }

    /// A page of sandboxes, newest first unless another order is requested.
    pub async fn list(&self, who: &Principal, filter: Filter) -> Result<Page<Lease>, ServiceError> {
        let tenant = match &filter.tenant {
            Some(ident) => {
                let tenant = self.inner.tenant(ident).await?.id;
                authz::tenant(who, &tenant).map_err(|_| no_tenant(ident))?;
                Some(tenant)
            }
            None => visible(who).cloned(),
        };
        let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
        // A provider that is no longer configured may still have sandboxes.
        let provider = filter.provider.clone().filter(|_| filter.cursor.is_none());
        let query = LeaseQuery {
            tenant,
            phases: filter.phases,
            labels: filter.labels,
            name: filter.name,
            name_prefix: filter.name_prefix,
            id_prefix: filter.id_prefix,
            provider: filter.provider,
            template: filter.template,
            made_from: filter.made_from,
            public: filter.public,
            started_after_ms: filter.started_after_ms,
            created_ms: filter.created_ms,
            cpu_milli: filter.cpu_milli,
            memory_mib: filter.memory_mib,
            disk_mib: filter.disk_mib,
            sort: filter.sort,
            ascending: filter.ascending,
            include_deleted: filter.include_deleted,
            limit,
            cursor: filter.cursor,
        };
        let mut page = self.inner.store.list(query).await?;
        if let Some(name) = provider.filter(|_| page.items.is_empty())
            && let Err(unknown) = self.inner.providers.named(&name)
            && unknown.code == Code::ProviderNotFound
        {
            return Err(unknown);
        }
        for lease in &mut page.items {
            // What the store does not know.
            lease.resizing = self.inner.registry.get(&lease.id).is_some_and(|live| live.lease().resizing);
            self.inner.queue.show(lease);
        }
        Ok(page)
    }

    /// Changes labels, limits, network policy or lifetime.
    pub async fn update(
        &self,
        who: &Principal,
        ident: &str,
        change: UpdateSandbox,
    ) -> Result<Lease, ServiceError> {
        self.change(who, ident, Verb::Update, change, None).await
    }

    /// The same for a sandbox that is in one of these phases; in any other the update is refused.
    pub async fn update_in(
        &self,
        who: &Principal,
        ident: &str,
        change: UpdateSandbox,
        phases: PhaseSet,
    ) -> Result<Lease, ServiceError> {
        self.change(who, ident, Verb::Update, change, Some(phases)).await
    }

    /// Changes the limits of a running or stopped sandbox like those of a machine: a running one only grows, a disk
    /// never shrinks.
    pub async fn resize(
        &self,
        who: &Principal,
        ident: &str,
        limits: LimitsAsk,
    ) -> Result<Lease, ServiceError> {
        let change = UpdateSandbox { limits, ..UpdateSandbox::default() };
        self.change(who, ident, Verb::Resize, change, None).await
    }

    async fn change(
        &self,
        who: &Principal,
        ident: &str,
        verb: Verb,
        change: UpdateSandbox,
        expect: Option<PhaseSet>,
    ) -> Result<Lease, ServiceError> {
        change.check()?;
        let handle = self.driven(who, ident).await?;
        let lease = handle.lease();
        let network = match change.network {
            Some(asked) => Some(self.admitted(&lease.tenant, asked, Some(&lease.network)).await?),
            None => None,
        };
        if let Some(network) = &network {
            let provider = self.inner.providers.of(&lease)?;
            crate::egress::check_enforced(provider.as_ref(), network, false)?;
        }
        let closes_ports = change.public == Some(false);
        let change = Box::new(UpdateSandbox { network, ..change });
        let lease = ask(&handle, |reply| DriverMessage::Update { verb, change, expect, reply }).await?;
        if closes_ports {
            self.inner.revocations.revoke(&Credential::PublicPorts(lease.id.clone()));
        }
        Ok(lease.as_ref().clone())
    }

    /// Runs a stopped, failed, paused or archived sandbox. A running one is left as it is.
    pub async fn start(
        &self,
        who: &Principal,
        ident: &str,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        Ok(self
            .run(who, ident, Action::Run(Verb::Start, WakeRequest::default()), options.into())
            .await?
            .lease)
    }

    /// The same by another name: whoever paused a sandbox resumes it.
    pub async fn resume(
        &self,
        who: &Principal,
        ident: &str,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        self.start(who, ident, options).await
    }

    /// Starts a sandbox that failed on the files that it has. One without any is refused, as is one that did not fail.
    pub async fn recover(
        &self,
        who: &Principal,
        ident: &str,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        let action = Action::Run(Verb::Recover, WakeRequest::default());
        Ok(self.run(who, ident, action, options.into()).await?.lease)
    }

    /// Makes a sandbox run, with the lifetime and the memory that the request wants. A running one gets the lifetime.
    pub async fn wake(
        &self,
        who: &Principal,
        ident: &str,
        request: WakeRequest,
        options: impl Into<VerbOptions>,
    ) -> Result<Woken, ServiceError> {
        request.check()?;
        self.run(who, ident, Action::Run(Verb::Wake, request), options.into()).await
    }

    async fn run(
        &self,
        who: &Principal,
        ident: &str,
        action: Action,
        options: VerbOptions,
    ) -> Result<Woken, ServiceError> {
        let told = self.told(who, ident, action, options).await?;
        let found = told.found;
        let lease = match options.wait {
            true => {
                self.wanted(told.handle, Phase::Running, EndWait::Boot, |state| !is_under_way(state)).await?
            }
            false => told.lease(),
        };
        Ok(Woken { lease, found })
    }

    /// Freezes the processes and keeps their memory, here or on disk. A paused one stays unchanged. One that its provider cannot
    /// pause, although it can pause others, is stopped; its phase and its reason say so.
    pub async fn pause(
        &self,
        who: &Principal,
        ident: &str,
        ask: Pause,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        let options = options.into();
        let action = Action::Pause(ask.memory.unwrap_or(MemoryLocation::Live));
        let told = self.told(who, ident, action, options).await?;
        if !options.wait {
            return Ok(told.lease());
        }
        let handle = told.handle;
        let lease =
            self.wanted(handle.clone(), Phase::Paused, EndWait::Memory, |state| !is_under_way(state)).await?;
        // If the memory was to be written to disk and was not, that is a failure, even though the sandbox is frozen.
        let failure = handle.state.borrow().failure.clone();
        match failure {
            Some(failure)
                if ask.memory == Some(MemoryLocation::Disk) && lease.held != Some(MemoryLocation::Disk) =>
            {
                Err(failure)
            }
            _ => Ok(lease),
        }
    }

    /// Ends its processes and keeps its files. A stopped one is left as it is.
    pub async fn stop(
        &self,
        who: &Principal,
        ident: &str,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        let options = options.into();
        let told = self.told(who, ident, Action::Stop, options).await?;
        if options.wait { self.settled(told.handle).await } else { Ok(told.lease()) }
    }

    /// Records that the sandbox is in use: its idle time begins again. Never wakes it.
    pub async fn touch(&self, who: &Principal, ident: &str) -> Result<Lease, ServiceError> {
        let handle = self.driven(who, ident).await?;
        drop(handle.activity.begin(crate::activity::ActivityKind::Request));
        Ok(handle.lease().as_ref().clone())
    }

    /// The time of the last activity, in milliseconds since the Unix epoch; the lease alone may be behind.
    #[must_use]
    pub fn active_at_ms(&self, lease: &Lease) -> Option<i64> {
        let live = self.inner.registry.get(&lease.id).filter(|_| lease.phase == Phase::Running);
        let live = live.map(|handle| handle.activity.active_at(&self.inner.clock.now()));
        live.as_ref().or(lease.active_at.as_ref()).map(|at| at.wall_ms)
    }

    /// Stops and starts it; a stopped one is started.
    pub async fn restart(
        &self,
        who: &Principal,
        ident: &str,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        Ok(self.run(who, ident, Action::Restart, options.into()).await?.lease)
    }

    /// Deletes it with everything it has. It may be repeated, also by the whole id of a deleted one.
    pub async fn delete(&self, who: &Principal, ident: &str, wait: bool) -> Result<Lease, ServiceError> {
        let (lease, handle) = self.find(who, ident).await?;
        let Some(handle) = handle else {
            return if lease.phase == Phase::Deleted {
                Ok(lease.as_ref().clone())
            } else {
                Err(self.undriven(&lease))
            };
        };
        self.delete_driven(handle, wait).await
    }

    pub(crate) async fn delete_driven(&self, handle: Handle, wait: bool) -> Result<Lease, ServiceError> {
        match ask(&handle, |reply| DriverMessage::verb(Action::Delete, Reason::Requested, reply)).await {
            Ok(_) => {}
            // The driver may have ended with the sandbox between the lookup and the request.
            Err(_) if handle.lease().phase == Phase::Deleted => {}
            Err(error) => return Err(error),
        }
        if !wait {
            return Ok(handle.lease().as_ref().clone());
        }
        let is_told = |state: &DriverState| match state.lease.phase {
            Phase::Deleted => true,
            // The provider does not answer; the driver goes on.
            Phase::Deleting => state.failure.is_some(),
            _ => false,
        };
        self.wanted(handle, Phase::Deleted, EndWait::Boot, is_told).await
    }

    pub(crate) async fn stop_driven(&self, handle: Handle) -> Result<Lease, ServiceError> {
        match ask(&handle, |reply| DriverMessage::verb(Action::Stop, Reason::Exit, reply)).await {
            Ok(_) => self.settled(handle).await,
            // It has ended by itself since the lookup.
            Err(_) if !handle.lease().holds_compute() => Ok(handle.lease().as_ref().clone()),
            Err(error) => Err(error),
        }
    }

    /// Sends a verb to the driver of a sandbox and answers when it is written down.
    pub(crate) async fn told(
        &self,
        who: &Principal,
        ident: &str,
        action: Action,
        options: VerbOptions,
    ) -> Result<ToldSandbox, ServiceError> {
        let handle = self.driven(who, ident).await?;
        if options.after_boot {
            self.until_booted(&handle).await?;
        }
        let expect = options.expect;
        let verb = |reply| DriverMessage::Verb { action, reason: Reason::Requested, expect, reply };
        let found = ask(&handle, verb).await?;
        Ok(ToldSandbox { handle, found })
    }

    /// Waits, up to a limit, until no operation is running.
    pub(crate) async fn settled(&self, handle: Handle) -> Result<Lease, ServiceError> {
        let lease = self.until_within(handle.clone(), EndWait::Memory, |state| !is_under_way(state)).await?;
        let failed = handle.state.borrow().failure.clone();
        match failed {
            Some(failure) => Err(failure),
            None if lease.phase == Phase::Failed => Err(failure(&handle, &lease)),
            None => Ok(lease.as_ref().clone()),
        }
    }

    /// Waits, up to a limit, for the end of an operation. If the phase differs from the wanted one and the driver knows
    /// the reason, that is the error.
    pub(crate) async fn wanted(
        &self,
        handle: Handle,
        wanted: Phase,
        long: EndWait,
        is_end: fn(&DriverState) -> bool,
    ) -> Result<Lease, ServiceError> {
        let lease = self.until_within(handle.clone(), long, is_end).await?;
        let failed = handle.state.borrow().failure.clone();
        match failed {
            _ if lease.phase == Phase::Deleted && wanted != Phase::Deleted => Err(deleted(&lease)),
            _ if lease.phase == Phase::Failed => Err(failure(&handle, &lease)),
            Some(failure) if lease.phase != wanted => Err(failure),
            _ => Ok(lease.as_ref().clone()),
        }
    }

    /// Waits, up to a limit, until the phase satisfies a condition.
    pub(crate) async fn until(
        &self,
        handle: Handle,
        is_end: fn(&DriverState) -> bool,
    ) -> Result<Arc<Lease>, ServiceError> {
        self.until_within(handle, EndWait::Boot, is_end).await
    }

    /// Waits, bounded, for a boot or resume that is under way.
    pub(crate) async fn until_booted(&self, handle: &Handle) -> Result<(), ServiceError> {
        let is_over = |state: &DriverState| !state.lease.phase.is_waking() || state.lease.waits_to_boot();
        self.until(handle.clone(), is_over).await.map(drop)
    }

    pub(crate) async fn until_within(
        &self,
        mut handle: Handle,
        long: EndWait,
        is_end: fn(&DriverState) -> bool,
    ) -> Result<Arc<Lease>, ServiceError> {
        let limit = self.inner.config.create_wait * long.times();
        let id = handle.lease().id.clone();
        match tokio::time::timeout(limit, handle.state.wait_for(is_end)).await {
            Ok(Ok(state)) => Ok(Arc::clone(&state.lease)),
            Ok(Err(_)) => {
                Err(ServiceError::new(Code::Internal, "the server is shutting down").retry_after(2))
            }
            Err(_) => {
                let message = format!(
                    "sandbox {id} was not ready within {} s; the operation continues",
                    limit.as_secs()
                );
                Err(ServiceError::new(Code::DeadlineExceeded, message)
                    .hint(format!("get sandbox {id} again")))
            }
        }
    }

    /// A sandbox that this key can see, with the handle of its driver if it has one.
    pub(crate) async fn find(
        &self,
        who: &Principal,
        ident: &str,
    ) -> Result<(Arc<Lease>, Option<Handle>), ServiceError> {
        // The whole id of a live sandbox needs no read of the store: every exec takes this path.
        if let Ok(id) = ident.parse::<SandboxId>()
            && let Some(handle) = self.inner.registry.get(&id)
        {
            let lease = handle.lease();
            if authz::sandbox(who, &lease).is_err() {
                return Err(self.not_found(who, ident).await);
            }
            self.check_host_rights(who, &lease).await?;
            return Ok((lease, Some(handle)));
        }
        let mut found = self.meant_by(who, ident).await?;
        match (found.pop(), found.pop()) {
            (None, _) => Err(self.not_found(who, ident).await),
            (Some(lease), None) => {
                let handle = self.inner.registry.get(&lease.id);
                let newest = handle.as_ref().map_or_else(|| Arc::new(lease), Handle::lease);
                self.check_host_rights(who, &newest).await?;
                Ok((newest, handle))
            }
            (Some(one), Some(other)) => {
                let message = format!("{} matches more than one sandbox", printable(ident));
                Err(ServiceError::new(Code::InvalidRequest, message)
                    .hint(format!("choose one of them: {}, {}, …", other.id, one.id)))
            }
        }
    }

    /// What a word of this key means: a name is one of its own tenant. A sandbox of another tenant is meant by its id alone,
    /// so that an admin key never acts on it by accident.
    async fn meant_by(&self, who: &Principal, ident: &str) -> Result<Vec<Lease>, ServiceError> {
        let own = self.inner.store.find(Some(&who.tenant), ident).await?;
        if !own.is_empty() || visible(who).is_some() {
            return Ok(own);
        }
        let mut others = self.inner.store.find(None, ident).await?;
        others.retain(|lease| lease.id.as_str().starts_with(ident));
        Ok(others)
    }

    /// For an admin key: which other tenant has a sandbox of this name, and how to name it.
    async fn hint_at_other_tenant(&self, who: &Principal, ident: &str) -> Option<String> {
        if visible(who).is_some() {
            return None;
        }
        let other = self.inner.store.find(None, ident).await.ok()?.pop()?;
        let tenant = self.inner.tenant(other.tenant.as_str()).await.ok()?;
        let (id, name) = (&other.id, printable(&tenant.name));
        Some(format!(
            "the tenant {name} has a sandbox of this name: use its id {id}, or `atoll --tenant {name}`"
        ))
    }

    /// Refuses a member of the machine's group what gives rights on the machine: a sandbox without isolation, and one with a
    /// folder of the host.
    pub(crate) async fn check_host_rights(&self, who: &Principal, lease: &Lease) -> Result<(), ServiceError> {
        let Err(denied) = authz::host(who) else { return Ok(()) };
        if self.inner.providers.is_on_host(&lease.provider) {
            return Err(denied.into());
        }
        for mount in &lease.mounts {
            let volume = self.inner.store.volume(&mount.volume).await?;
            if volume.is_some_and(|volume| volume.folder.is_some()) {
                return Err(denied.into());
            }
        }
        Ok(())
    }

    /// A sandbox that this key can see and that has a driver.
    pub(crate) async fn driven(&self, who: &Principal, ident: &str) -> Result<Handle, ServiceError> {
        match self.find(who, ident).await? {
            (_, Some(handle)) => Ok(handle),
            (lease, None) if lease.phase == Phase::Deleted => Err(deleted(&lease)),
            (lease, None) => Err(self.undriven(&lease)),
        }
    }

    /// Why a sandbox that is not deleted has no driver: it is on another node or at a provider that this server does not have, or
    /// this server could not take it up.
    fn undriven(&self, lease: &Lease) -> ServiceError {
        let not_managed = || {
            let message = format!("sandbox {} is not managed at the moment", lease.id);
            ServiceError::new(Code::Internal, message).hint("restart the server; the log shows the cause")
        };
        let here = self.inner.need_here(&format!("sandbox {}", lease.id), &lease.node);
        here.err().or_else(|| self.inner.providers.of(lease).err()).unwrap_or_else(not_managed)
    }

    async fn not_found(&self, who: &Principal, ident: &str) -> ServiceError {
        let error =
            ServiceError::new(Code::SandboxNotFound, format!("there is no sandbox {}", printable(ident)));
        if let Some(hint) = self.hint_at_other_tenant(who, ident).await {
            return error.hint(hint);
        }
        // LIMIT: names of the newest ones are enough for a hint.
        let names = self.inner.store.names(Some(&who.tenant), 200).await.unwrap_or_default();
        match near(ident, &names) {
            Some(name) => error.hint(format!("did you mean {name}?")),
            None => error.hint("list them: GET /v1/sandboxes, or atoll ls"),
        }
    }
}

/// A sandbox that has taken a verb.
pub(crate) struct ToldSandbox {
    pub(crate) handle: Handle,
    /// The phase in which the verb found it.
    found: Phase,
}

impl ToldSandbox {
    pub(crate) fn lease(&self) -> Lease {
        self.handle.lease().as_ref().clone()
    }
}

/// How long a caller waits for the end of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndWait {
    /// Processes are started or ended.
    Boot,
    /// Memory is written or read.
    Memory,
    /// Files are uploaded to object storage or downloaded.
    Transfer,
}

impl EndWait {
    pub(crate) const fn times(self) -> u32 {
        match self {
            Self::Boot => 1,
            Self::Memory => 4,
            Self::Transfer => 20,
        }
    }
}

/// Whether the phase will change by itself soon: a passing phase, or an intermediate step of an operation.
pub(crate) fn is_under_way(state: &DriverState) -> bool {
    let lease = &state.lease;
    if phase_deadline_ms(lease.phase).is_some() || lease.is_being_copied() {
        return true;
    }
    let half_way = matches!(
        (lease.phase, lease.intent),
        (Phase::Stopped, Intent::Run | Intent::Archive)
            | (Phase::Paused, Intent::Run)
            | (Phase::Archived, Intent::Run | Intent::Stop)
    );
    half_way && state.failure.is_none()
}

/// Asks a driver and waits for its answer.
pub(crate) async fn ask<T>(
    handle: &Handle,
    mail: impl FnOnce(oneshot::Sender<Result<T, ServiceError>>) -> DriverMessage,
) -> Result<T, ServiceError> {
    let (reply, answer) = oneshot::channel();
    tell(handle, mail(reply))?;
    answer.await.map_err(|_| lost(handle))?
}

/// Sends a message to a driver. Its author is the caller of the current request.
pub(crate) fn tell(handle: &Handle, message: DriverMessage) -> Result<(), ServiceError> {
    let by = RequestScope::current().and_then(|scope| scope.caller());
    handle.mailbox.try_send(Mail { by, message }).map_err(|error| match error {
        tokio::sync::mpsc::error::TrySendError::Full(_) => {
            ServiceError::new(Code::SandboxUnavailable, "too many requests wait for this sandbox")
                .retry_after(1)
        }
        tokio::sync::mpsc::error::TrySendError::Closed(_) => lost(handle),
    })
}

fn lost(handle: &Handle) -> ServiceError {
    match handle.lease() {
        lease if lease.phase == Phase::Deleted => deleted(&lease),
        _ => ServiceError::new(Code::Internal, "the server is shutting down").retry_after(2),
    }
}

fn deleted(lease: &Lease) -> ServiceError {
    ServiceError::new(Code::SandboxNotFound, format!("sandbox {} is deleted", lease.id))
        .hint("create a new one")
}

/// A word of the caller, safe to repeat in a message.
pub(crate) fn printable(word: &str) -> String {
    word.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The nearest known name, at most two edits away.
fn near<'a>(word: &str, names: &'a [String]) -> Option<&'a str> {
    let scored = names.iter().map(|name| (distance(word, name), name.as_str()));
    scored.filter(|(steps, _)| *steps <= 2).min().map(|(_, name)| name)
}

fn distance(a: &str, b: &str) -> usize {
    // LIMIT: names have at most 63 characters; longer words match none.
    if a.len().abs_diff(b.len()) > 2 || a.len() > 64 {
        return usize::MAX;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let kept = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = kept.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_finds_its_neighbour() {
        let names = ["build-1".to_owned(), "web".to_owned()];
        assert_eq!(near("biuld-1", &names), Some("build-1"));
        assert_eq!(near("wab", &names), Some("web"));
        assert_eq!(near("database", &names), None);
        assert_eq!(near(&"x".repeat(10_000), &names), None);
    }
}
