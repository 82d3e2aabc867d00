//! Events in order. A follower reads the store after the last event it has seen and is woken when there is more, so it
//! has no gap and no event twice, however many drivers write at once.

use std::collections::VecDeque;
use std::sync::Arc;

use atoll_model::{Principal, SandboxEvent};
use atoll_store::EventQuery;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::watch;

use crate::ServiceError;
use crate::base::{ServiceBase, visible};
use crate::service::Service;

/// LIMIT: events in a response, and in one read of a follower.
const PAGE: u32 = 500;

impl Service {
    /// Events after a number (`None`: the newest), oldest first: of one sandbox, or of all that the key can see.
    pub async fn events(
        &self,
        who: &Principal,
        ident: Option<&str>,
        after_seq: Option<u64>,
        limit: u32,
    ) -> Result<Vec<SandboxEvent>, ServiceError> {
        let query = self.event_query(who, ident, after_seq.unwrap_or(0)).await?;
        let limit = if limit == 0 { PAGE } else { limit.min(PAGE) };
        Ok(self.base().store.events(EventQuery { limit, newest: after_seq.is_none(), ..query }).await?)
    }

    /// Events after a number (`None`: from now on), then new ones. Ends with the server.
    pub async fn follow_events(
        &self,
        who: &Principal,
        ident: Option<&str>,
        after_seq: Option<u64>,
    ) -> Result<BoxStream<'static, SandboxEvent>, ServiceError> {
        let head = self.base().store.event_head();
        let after = after_seq.unwrap_or_else(|| *head.borrow());
        let query = self.event_query(who, ident, after).await?;
        let follower = Follower { base: Arc::clone(self.base()), query, head, ready: VecDeque::new() };
        Ok(futures::stream::unfold(follower, Follower::next).boxed())
    }

    async fn event_query(
        &self,
        who: &Principal,
        ident: Option<&str>,
        after_seq: u64,
    ) -> Result<EventQuery, ServiceError> {
        let sandbox = match ident {
            Some(ident) => Some(self.sandboxes().find(who, ident).await?.0.id.clone()),
            None => None,
        };
        Ok(EventQuery { tenant: visible(who).cloned(), sandbox, after_seq, limit: PAGE, newest: false })
    }
}

struct Follower {
    base: Arc<ServiceBase>,
    query: EventQuery,
    head: watch::Receiver<u64>,
    ready: VecDeque<SandboxEvent>,
}

impl Follower {
    async fn next(mut self) -> Option<(SandboxEvent, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((event, self));
            }
            // Marked as seen before the read: an event that is written during the read wakes the wait below.
            let newest = *self.head.borrow_and_update();
            match self.base.store.events(self.query.clone()).await {
                Ok(events) if !events.is_empty() => {
                    self.query.after_seq = events.last().map_or(newest, |event| event.seq);
                    self.ready = events.into();
                }
                Ok(_) => {
                    // None of the existing events matches; the next read starts after them.
                    self.query.after_seq = self.query.after_seq.max(newest);
                    tokio::select! {
                        () = self.base.closing.cancelled() => return None,
                        changed = self.head.changed() => changed.ok()?,
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a follower of events was ended");
                    return None;
                }
            }
        }
    }
}
