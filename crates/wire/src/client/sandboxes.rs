//! Sandboxes: create, show, change, follow.

use reqwest::Method;
use serde::Serialize;

#[cfg(doc)]
use super::Retries;
use super::{Answer, Client, Events, Listing, MapError, sandbox_path, segment};
use crate::egress::Egress;
use crate::egress::{EgressList, LogQuery};
use crate::events::{Event, EventList, EventsQuery};
use crate::metrics::Sample;
use crate::moving::MoveSandboxBody;
use crate::network::NetworkPolicy;
use crate::previews::{NewPreviewAnswer, Preview, PreviewBody, PreviewList};
use crate::sandboxes::{
    Awake, Ended, ExtendBody, ForkBody, Forked, HoldBody, Lineage, ListQuery, PauseBody, RollbackBody,
    Sandbox, SandboxPage,
};
use crate::snapshots::{Snapshot, SnapshotBody, SnapshotPage};
use crate::terminals::{Terminal, TerminalBody};
use crate::threads::{Thread, ThreadPage};

/// A verb that changes the phase of a sandbox.
#[derive(Debug, Clone)]
pub enum LifecycleVerb {
    Start,
    Stop,
    Restart,
    Pause(PauseBody),
    Resume,
    Archive,
    Restore,
    Rollback(RollbackBody),
}

impl<M: MapError> Client<M> {
    /// Creates a sandbox. `body` is a `CreateBody`, or a superset of one. With `wait` it returns when the sandbox runs. A
    /// repeated create with the same key returns the same sandbox; with a key it is sent again as [`Retries`] says.
    pub async fn create_sandbox(
        &self,
        body: &impl Serialize,
        wait: bool,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<Sandbox>, M::Error> {
        let wait = if wait { "1" } else { "0" };
        let mut request = self.request(Method::POST, "/v1/sandboxes").query(&[("wait", wait)]).json(body);
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        // The server limits the wait in its queue.
        match serde_json::to_value(body) {
            Ok(body) if body["queue"] == true => self.answer_without_limit(request).await,
            _ => self.answer(request).await,
        }
    }

    /// All sandboxes that the query finds, or the first `limit`.
    pub async fn sandboxes(
        &self,
        query: &ListQuery,
        limit: Option<u32>,
    ) -> Result<Listing<Sandbox>, M::Error> {
        self.pages::<SandboxPage>("/v1/sandboxes", &query.pairs(), limit).await
    }

    /// The first page of the newest sandboxes.
    pub async fn first_sandboxes(&self, limit: u32) -> Result<Listing<Sandbox>, M::Error> {
        let query = ListQuery { limit: Some(limit), ..ListQuery::default() };
        Ok(Listing::of(self.get_query::<SandboxPage>("/v1/sandboxes", &query.pairs()).await?))
    }

    pub async fn sandbox(&self, ident: &str) -> Result<Answer<Sandbox>, M::Error> {
        self.get(&sandbox_path(ident, "")).await
    }

    /// Changes a sandbox. `body` is an `UpdateBody`, or a superset of one.
    pub async fn update_sandbox(
        &self,
        ident: &str,
        body: &impl Serialize,
    ) -> Result<Answer<Sandbox>, M::Error> {
        self.patch(&sandbox_path(ident, ""), body).await
    }

    pub async fn delete_sandbox(&self, ident: &str) -> Result<Answer<Sandbox>, M::Error> {
        self.delete(&sandbox_path(ident, "")).await
    }

    /// Deletes a sandbox with its snapshots.
    pub async fn delete_with_snapshots(&self, ident: &str) -> Result<Answer<Sandbox>, M::Error> {
        self.delete(&format!("{}?snapshots=1", sandbox_path(ident, ""))).await
    }

    pub async fn change_phase(&self, ident: &str, verb: &LifecycleVerb) -> Result<Answer<Sandbox>, M::Error> {
        let post = |name: &str| self.request(Method::POST, &sandbox_path(ident, name));
        self.answer(match verb {
            LifecycleVerb::Start => post("/start"),
            LifecycleVerb::Stop => post("/stop"),
            LifecycleVerb::Restart => post("/restart"),
            LifecycleVerb::Pause(PauseBody { memory: None }) => post("/pause"),
            LifecycleVerb::Pause(body) => post("/pause").json(body),
            LifecycleVerb::Resume => post("/resume"),
            LifecycleVerb::Archive => post("/archive"),
            LifecycleVerb::Restore => post("/restore"),
            LifecycleVerb::Rollback(body) => post("/rollback").json(body),
        })
        .await
    }

    pub async fn hold(&self, ident: &str, body: &HoldBody) -> Result<Answer<Sandbox>, M::Error> {
        self.post(&sandbox_path(ident, "/hold"), body).await
    }

    pub async fn release(&self, ident: &str) -> Result<Answer<Sandbox>, M::Error> {
        self.delete(&sandbox_path(ident, "/hold")).await
    }

    pub async fn extend(&self, ident: &str, body: &ExtendBody) -> Result<Answer<Sandbox>, M::Error> {
        self.post(&sandbox_path(ident, "/extend"), body).await
    }

    pub async fn awake(&self, ident: &str) -> Result<Answer<Awake>, M::Error> {
        self.get(&sandbox_path(ident, "/awake")).await
    }

    pub async fn fork(&self, ident: &str, body: &ForkBody) -> Result<Answer<Forked>, M::Error> {
        self.post(&sandbox_path(ident, "/fork"), body).await
    }

    /// Moves a sandbox to another provider. Without `wait` it returns once the move is recorded.
    pub async fn move_sandbox(
        &self,
        ident: &str,
        body: &MoveSandboxBody,
        wait: bool,
    ) -> Result<Answer<Sandbox>, M::Error> {
        let wait = if wait { "1" } else { "0" };
        let request = self.request(Method::POST, &sandbox_path(ident, "/move"));
        self.answer(request.query(&[("wait", wait)]).json(body)).await
    }

    pub async fn lineage(&self, ident: &str) -> Result<Answer<Lineage>, M::Error> {
        self.get(&sandbox_path(ident, "/lineage")).await
    }

    /// All threads, or the first `limit`.
    pub async fn threads(&self, limit: Option<u32>) -> Result<Listing<Thread>, M::Error> {
        self.pages::<ThreadPage>("/v1/threads", &[], limit).await
    }

    pub async fn thread(&self, thread: &str) -> Result<Answer<Thread>, M::Error> {
        self.get(&format!("/v1/threads/{}", segment(thread))).await
    }

    pub async fn end_thread(&self, thread: &str) -> Result<Answer<Ended>, M::Error> {
        self.delete(&format!("/v1/threads/{}", segment(thread))).await
    }

    pub async fn metrics(&self, ident: &str) -> Result<Answer<Sample>, M::Error> {
        self.get(&sandbox_path(ident, "/metrics")).await
    }

    pub async fn take_snapshot(
        &self,
        ident: &str,
        body: &SnapshotBody,
    ) -> Result<Answer<Snapshot>, M::Error> {
        self.post(&sandbox_path(ident, "/snapshots"), body).await
    }

    /// All snapshots, or those of one sandbox.
    pub async fn snapshots(
        &self,
        sandbox: Option<&str>,
        limit: Option<u32>,
    ) -> Result<Listing<Snapshot>, M::Error> {
        let query: Vec<_> = sandbox.map(|sandbox| ("sandbox", sandbox.to_owned())).into_iter().collect();
        self.pages::<SnapshotPage>("/v1/snapshots", &query, limit).await
    }

    /// The first page of the newest snapshots.
    pub async fn first_snapshots(&self, limit: u32) -> Result<Listing<Snapshot>, M::Error> {
        Ok(Listing::of(self.get_query::<SnapshotPage>("/v1/snapshots", &[("limit", limit)]).await?))
    }

    pub async fn snapshot(&self, snapshot: &str) -> Result<Answer<Snapshot>, M::Error> {
        self.get(&format!("/v1/snapshots/{}", segment(snapshot))).await
    }

    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<(), M::Error> {
        self.delete_silently(&format!("/v1/snapshots/{}", segment(snapshot))).await
    }

    pub async fn verify_snapshot(&self, snapshot: &str) -> Result<Answer<Snapshot>, M::Error> {
        let path = format!("/v1/snapshots/{}/verify", segment(snapshot));
        self.answer(self.request(Method::POST, &path)).await
    }

    pub async fn open_preview(
        &self,
        ident: &str,
        body: &PreviewBody,
    ) -> Result<Answer<NewPreviewAnswer>, M::Error> {
        self.post(&sandbox_path(ident, "/previews"), body).await
    }

    pub async fn previews(&self, ident: &str) -> Result<Listing<Preview>, M::Error> {
        self.list::<PreviewList>(&sandbox_path(ident, "/previews")).await
    }

    pub async fn close_preview(&self, ident: &str, preview: &str) -> Result<(), M::Error> {
        self.delete_silently(&sandbox_path(ident, &format!("/previews/{}", segment(preview)))).await
    }

    pub async fn egress(&self, ident: &str, query: &LogQuery) -> Result<Listing<Egress>, M::Error> {
        Ok(Listing::of(self.get_query::<EgressList>(&sandbox_path(ident, "/egress"), query).await?))
    }

    /// Events with an [`Egress`] each.
    pub async fn follow_egress(&self, ident: &str, query: &LogQuery) -> Result<Events<M>, M::Error> {
        let request = self.request(Method::GET, &sandbox_path(ident, "/egress"));
        self.events_of(request.query(query).query(&[("follow", "1")])).await
    }

    pub async fn learned_policy(&self, ident: &str) -> Result<Answer<NetworkPolicy>, M::Error> {
        self.get(&sandbox_path(ident, "/egress/policy")).await
    }

    pub async fn events(&self, query: &EventsQuery) -> Result<Listing<Event>, M::Error> {
        Ok(Listing::of(self.get_query::<EventList>("/v1/events", query).await?))
    }

    /// Events with an [`Event`] each.
    pub async fn follow_events(&self, query: &EventsQuery) -> Result<Events<M>, M::Error> {
        self.events_of(self.request(Method::GET, "/v1/events").query(query).query(&[("follow", "1")])).await
    }

    pub async fn open_terminal(
        &self,
        ident: &str,
        body: &TerminalBody,
    ) -> Result<Answer<Terminal>, M::Error> {
        self.post(&sandbox_path(ident, "/terminals"), body).await
    }

    pub async fn close_terminal(&self, ident: &str, terminal: &str) -> Result<(), M::Error> {
        self.delete_silently(&sandbox_path(ident, &format!("/terminals/{}", segment(terminal)))).await
    }
}
