//! What every part of the service stands on: settings, store, providers, clock, capacity, tasks. Nothing here belongs to one
//! part; the state of a part is in the part and out of reach of the others.

use std::future::Future;
use std::sync::Arc;

use atoll_budget::Budget;
use atoll_disk::Reserve;
use atoll_model::{Code, NodeName, Principal, Scope, TenantId};
use atoll_store::{Store, TenantRecord};
use subtle::ConstantTimeEq;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::Admission;
use crate::error::wrong_node;
use crate::failpoint::FailPoint;
use crate::providers::ProviderRegistry;
use crate::sandboxes::printable;
use crate::{Clock, ServiceConfig, ServiceError};

pub(crate) struct ServiceBase {
    pub(crate) config: ServiceConfig,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) providers: ProviderRegistry,
    pub(crate) clock: Arc<dyn Clock>,
    /// The disk of DATA, which every writer below it asks first.
    pub(crate) disk: Arc<Reserve>,
    /// What this node has promised to sandboxes and volumes.
    pub(crate) admission: Arc<Admission>,
    /// Told when a queued create may have its place.
    pub(crate) place_freed: Arc<Notify>,
    /// Bytes that are held for callers.
    pub(crate) budget: Budget,
    pub(crate) failpoint: FailPoint,
    pub(crate) tracker: TaskTracker,
    /// Asks tasks to end after what they do now.
    pub(crate) closing: CancellationToken,
    /// Drops tasks where they wait.
    pub(crate) kill: CancellationToken,
}

impl ServiceBase {
    pub(crate) fn new(
        config: ServiceConfig,
        store: Arc<dyn Store>,
        providers: ProviderRegistry,
        clock: Arc<dyn Clock>,
        disk: Arc<Reserve>,
        failpoint: FailPoint,
    ) -> Self {
        let place_freed = Arc::<Notify>::default();
        Self {
            admission: Arc::new(Admission::new(&config, Arc::clone(&place_freed), Arc::clone(&disk))),
            place_freed,
            config,
            store,
            providers,
            clock,
            disk,
            budget: Budget::default(),
            failpoint,
            tracker: TaskTracker::new(),
            closing: CancellationToken::new(),
            kill: CancellationToken::new(),
        }
    }

    /// Starts a task that belongs to the service.
    pub(crate) fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(self.kill.clone().run_until_cancelled_owned(task))
    }

    /// Runs work that goes on when its caller goes away.
    pub(crate) async fn run_detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
    ) -> Result<T, ServiceError> {
        match self.spawn(work).await {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(_) => Err(shutting_down()),
        }
    }

    /// Runs blocking work on a thread for it, tracked like every other task.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let failed = || ServiceError::new(Code::Internal, "the work on templates ended early");
        let task = self.spawn(async move { tokio::task::spawn_blocking(work).await });
        match task.await {
            Ok(Some(Ok(outcome))) => outcome,
            _ => Err(failed()),
        }
    }

    /// Refuses what needs files or processes of another node.
    pub(crate) fn need_here(&self, what: &str, node: &NodeName) -> Result<(), ServiceError> {
        if node == self.store.node() { Ok(()) } else { Err(wrong_node(what, node)) }
    }

    /// A tenant by id or name.
    pub(crate) async fn tenant(&self, ident: &str) -> Result<TenantRecord, ServiceError> {
        self.store.tenant(ident).await?.ok_or_else(|| no_tenant(ident))
    }

    /// A token for anything but a sandbox, in hex: always the same for the same parts, and of no use for finding another.
    pub(crate) fn derived_token(&self, kind: &str, parts: &[&str]) -> String {
        // A length before each part: no two lists are written the same.
        let id: String = parts.iter().map(|part| format!("{}:{part}", part.len())).collect();
        hex::encode(self.store.derive(&format!("token/for/{kind}"), &id))
    }

    /// Whether `shown` is that token; compared in constant time.
    pub(crate) fn is_derived_token(&self, kind: &str, parts: &[&str], shown: &str) -> bool {
        is_same_token(&self.derived_token(kind, parts), shown)
    }

    /// Signs parts, which contain no dot, for a while: `PART.PART….UNTIL.PROOF`. It is stored nowhere and survives a restart.
    pub(crate) fn ticket(&self, kind: &str, parts: &[&str], lives_s: i64) -> String {
        let until = (self.clock.now().wall_ms / 1_000 + lives_s).to_string();
        let signed: Vec<&str> = parts.iter().copied().chain([until.as_str()]).collect();
        format!("{}.{}", signed.join("."), self.derived_token(kind, &signed))
    }

    /// The parts of a ticket that was signed here and has not expired.
    pub(crate) fn open_ticket<'a, const N: usize>(&self, kind: &str, shown: &'a str) -> Option<[&'a str; N]> {
        let (signed, proof) = shown.rsplit_once('.')?;
        let signed: Vec<&str> = signed.split('.').collect();
        if !self.is_derived_token(kind, &signed, proof) {
            return None;
        }
        let (until, parts) = signed.split_last()?;
        let is_open = self.clock.now().wall_ms / 1_000 <= until.parse::<i64>().ok()?;
        parts.try_into().ok().filter(|_| is_open)
    }
}

/// Compares two tokens in constant time.
pub(crate) fn is_same_token(known: &str, shown: &str) -> bool {
    known.as_bytes().ct_eq(shown.as_bytes()).into()
}

pub(crate) fn shutting_down() -> ServiceError {
    ServiceError::new(Code::Internal, "the server is shutting down").retry_after(2)
}

/// The tenant whose objects a key can see; `None`: all.
pub(crate) fn visible(who: &Principal) -> Option<&TenantId> {
    match who.scope {
        Scope::Admin => None,
        Scope::User | Scope::Member => Some(&who.tenant),
    }
}

pub(crate) fn no_tenant(ident: &str) -> ServiceError {
    ServiceError::new(Code::TenantNotFound, format!("there is no tenant {}", printable(ident)))
}
