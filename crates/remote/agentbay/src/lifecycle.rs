//! Create, pause, resume and end of sessions. The table gives each change of a sandbox its turn.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::egress::Egress;
use atoll_model::policy::placement::Node;
use atoll_model::{InstanceId, MemoryLocation, SandboxId, Storage};
use atoll_provider::{
    Booted, Capability, FilesOrigin, InstanceDemands, InstanceSpec, InstanceUsage, PauseSupport,
    ProviderError, ProviderImage, Target,
};
use atoll_remote::{
    Backoff, CallError, ObjectState, RemoteObject, Repeat, gone, missing_capability, random_hex,
    remove_leftovers, report_gone, unknown_node,
};
use futures::StreamExt;
use serde_json::json;
use tokio::time::Instant;

use crate::access::SessionAccess;
use crate::api::{OwnedSession, SessionState};
use crate::shell::ScriptError;
use crate::{AgentbayProvider, AgentbayShared, SessionObject, SessionSlot};

/// LIMIT: how often a session is made where the service neither answers nor shows one.
const CREATES_MAX: u32 = 3;
/// LIMIT: how often a session is looked for before it is made again.
const SEARCHES: u32 = 5;
const FIRST_SEARCH: Duration = Duration::from_millis(100);
/// LIMIT: a pause or resume at the service. Its own SDK waits as long.
const PAUSE_WITHIN: Duration = Duration::from_secs(600);
/// LIMIT: a deletion at the service.
const DELETE_WITHIN: Duration = Duration::from_secs(120);
/// LIMIT: how long a session may be seen unchanged after the service took the request.
const UNCHANGED_FOR: Duration = Duration::from_secs(10);
/// LIMIT: sessions whose labels are asked for at a time.
const IDENTITIES_AT_ONCE: usize = 8;
/// How long an answer of the service shows that it is there.
const ANSWER_FRESH: Duration = Duration::from_secs(10);
/// Commands run as the user of the image; the service does not tell its name.
const USER: &str = "default";

pub(crate) fn stands_still() -> ProviderError {
    ProviderError::Transient { what: "reaching the sandbox".to_owned(), why: "it is paused".to_owned() }
}

pub(crate) fn new_object(instance: &InstanceId, state: ObjectState, id: String) -> SessionObject {
    let access = Some(Arc::new(SessionAccess::default()));
    RemoteObject { id, instance: instance.clone(), state, access, kept_at: Some(Instant::now()) }
}

impl AgentbayShared {
    /// The service has no limits, no policy for one session, and one kind of storage.
    pub(crate) fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        if *demands.network != Egress::open() {
            return Err(missing_capability(self.name, Capability::Egress));
        }
        let cannot = |what: &str, hint: &str| ProviderError::Unsupported {
            what: format!("{what} at provider {}", self.name),
            hint: hint.to_owned(),
        };
        if demands.limits_asked {
            return Err(cannot(
                "a limit of CPU, memory, disk or processes",
                "leave the limits out: they are those of the image",
            ));
        }
        match demands.storage {
            Storage::Disk => Ok(()),
            Storage::Memory => Err(cannot("storage memory", "use storage disk")),
        }
    }

    pub(crate) async fn create(
        &self,
        spec: &InstanceSpec,
        slot: &SessionSlot,
    ) -> Result<Booted, ProviderError> {
        if spec.origin != FilesOrigin::Template {
            return Err(missing_capability(self.name, Capability::Snapshot));
        }
        if !spec.mounts.is_empty() {
            return Err(missing_capability(self.name, Capability::Volume));
        }
        self.check_demands(&spec.demands())?;
        remove_leftovers(self, &spec.sandbox).await;
        let made = match self.make(spec, slot).await {
            Ok(id) => self.begin(spec, slot, id).await,
            Err(error) => Err(create_error(spec, error)),
        };
        let is_something_left = made.is_err() && (slot.object().is_some() || slot.is_doubtful());
        if is_something_left && let Err(error) = self.destroy(&spec.sandbox, slot).await {
            // It is found by its labels, and removed after the grace time.
            tracing::warn!(sandbox = %spec.sandbox, provider = self.name, %error, "the session of a failed create could not be removed yet");
        }
        made
    }

    /// Makes the session of a sandbox exactly once. Where no answer came it is looked for by its labels before it is made again.
    async fn make(&self, spec: &InstanceSpec, slot: &SessionSlot) -> Result<String, CallError> {
        for attempt in 1.. {
            match self.api.create(&spec.template, &spec.sandbox, &spec.instance).await {
                Err(error) if error.is_uncertain() => {
                    slot.set_doubtful(true);
                    match self.search(&spec.sandbox, &spec.instance).await? {
                        Some(id) => return Ok(id),
                        None if attempt == CREATES_MAX => return Err(error),
                        None => {}
                    }
                }
                outcome => return outcome,
            }
        }
        Err(CallError::Limited)
    }

    /// Looks for a session that a create without an answer may have made; the service may still be making it.
    async fn search(&self, sandbox: &SandboxId, instance: &InstanceId) -> Result<Option<String>, CallError> {
        let mut backoff = Backoff::new(FIRST_SEARCH);
        for _ in 0..SEARCHES {
            let found = self.sessions_of(Some(sandbox)).await?;
            let first = found
                .into_iter()
                .filter(|session| session.instance == *instance)
                .map(|session| session.id)
                .min();
            if let Some(id) = first {
                tracing::info!(%sandbox, provider = self.name, "the answer to a create was lost; its session was found by its labels");
                return Ok(Some(id));
            }
            tokio::time::sleep(backoff.wait(None)).await;
        }
        Ok(None)
    }

    /// The sessions of this server, or those of one of its sandboxes. That a session is ours is decided by its own labels.
    pub(crate) async fn sessions_of(
        &self,
        sandbox: Option<&SandboxId>,
    ) -> Result<Vec<OwnedSession>, CallError> {
        let listed = self.api.candidates(sandbox).await?;
        let mut identities = Vec::new();
        for (id, _) in &listed {
            identities.push(self.identity(id));
        }
        let identities: Vec<_> =
            futures::stream::iter(identities).buffered(IDENTITIES_AT_ONCE).collect().await;
        let mut found = Vec::new();
        for ((id, state), identity) in listed.iter().zip(identities) {
            let Some((named, instance)) = identity? else { continue };
            if sandbox.is_none_or(|wanted| *wanted == named) {
                found.push(OwnedSession {
                    id: id.clone(),
                    sandbox: named,
                    instance,
                    state: *state,
                    // The service does not tell it: the order is that of the ids.
                    started_at: String::new(),
                });
            }
        }
        if sandbox.is_none() {
            let mut identities = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
            identities.retain(|id, _| listed.iter().any(|(listed, _)| listed == id));
        }
        Ok(found)
    }

    async fn identity(&self, id: &str) -> Result<Option<(SandboxId, InstanceId)>, CallError> {
        let lock = || self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(id) {
            return Ok(Some(known.clone()));
        }
        let identity = self.api.identity(id).await?;
        lock().extend(identity.clone().map(|identity| (id.to_owned(), identity)));
        Ok(identity)
    }

    /// Takes up a new session.
    async fn begin(
        &self,
        spec: &InstanceSpec,
        slot: &SessionSlot,
        id: String,
    ) -> Result<Booted, ProviderError> {
        let facts = json!({ "object": id });
        let identity = (spec.sandbox.clone(), spec.instance.clone());
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), identity);
        slot.set(new_object(&spec.instance, ObjectState::Running, id.clone()));
        let folder = self.settings.workdir();
        self.api.make_workdir(&id, folder).await.map_err(|error| match error {
            ScriptError::Call(error) => error.into_provider("starting the sandbox"),
            ScriptError::Refused(_, why) => {
                let what = format!("making the folder {folder} (setting context_path)");
                ProviderError::Transient { what, why }
            }
        })?;
        let failed =
            |cause| ProviderError::Failed { step: "making a token".to_owned(), cause: Box::new(cause) };
        let token = random_hex().map_err(failed)?;
        Ok(Booted { facts, agent_token: Some(token), from_pool: false })
    }

    /// Files do not survive, so the session is deleted.
    pub(crate) async fn halt(&self, target: &Target, slot: &SessionSlot) -> Result<(), ProviderError> {
        let is_meant =
            |object: &SessionObject| target.instance.as_ref().is_none_or(|wanted| *wanted == object.instance);
        match slot.object().filter(is_meant) {
            Some(_) => self.destroy(&target.sandbox, slot).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn destroy(&self, sandbox: &SandboxId, slot: &SessionSlot) -> Result<(), ProviderError> {
        let failed = |error: CallError| error.into_provider("removing the sandbox");
        let mut ids: Vec<String> = slot.object().map(|object| object.id).into_iter().collect();
        if ids.is_empty() || slot.is_doubtful() {
            let found = self.sessions_of(Some(sandbox)).await.map_err(failed)?;
            ids.extend(found.into_iter().map(|session| session.id));
        }
        for id in ids {
            self.delete(&id).await?;
        }
        slot.clear();
        Ok(())
    }

    /// Deletes a session and waits until it is gone.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), ProviderError> {
        let failed = |error: CallError| error.into_provider("removing a session");
        self.api.delete(id).await.map_err(failed)?;
        let begun = Instant::now();
        let mut backoff = Backoff::new(self.timing.poll_first);
        while !self.api.is_deleted(id).await.map_err(failed)? {
            if begun.elapsed() > DELETE_WITHIN {
                return Err(ProviderError::Late {
                    what: "the end of a session".to_owned(),
                    after: DELETE_WITHIN,
                });
            }
            tokio::time::sleep(backoff.wait(None)).await;
        }
        Ok(())
    }

    /// Waits until a session is in a state that it was asked to take, by way of another.
    async fn reach(
        &self,
        id: &str,
        wanted: SessionState,
        passing: SessionState,
        what: &str,
    ) -> Result<Option<()>, ProviderError> {
        let begun = Instant::now();
        let mut backoff = Backoff::new(self.timing.poll_first);
        loop {
            let state = self.api.state(id).await.map_err(|error| error.into_provider(what))?;
            match state {
                None => return Ok(None),
                Some(state) if state == wanted => return Ok(Some(())),
                Some(state) if state != passing && begun.elapsed() > UNCHANGED_FOR => {
                    let why = format!("the service left it in the state {state:?}");
                    return Err(ProviderError::Transient { what: what.to_owned(), why });
                }
                Some(_) if begun.elapsed() > PAUSE_WITHIN => {
                    return Err(ProviderError::Late { what: what.to_owned(), after: PAUSE_WITHIN });
                }
                Some(_) => tokio::time::sleep(backoff.wait(None).min(Duration::from_secs(2))).await,
            }
        }
    }

    async fn ask(&self, id: &str, is_pause: bool) -> Result<Option<()>, CallError> {
        if is_pause { self.api.pause(id).await } else { self.api.resume(id).await }
    }

    /// Brings a session to rest or to life; `None`: it is not there.
    async fn bring(&self, id: &str, wanted: SessionState) -> Result<Option<()>, ProviderError> {
        let is_pause = wanted == SessionState::Paused;
        let (passing, what) = match is_pause {
            true => (SessionState::Pausing, "pausing the sandbox"),
            false => (SessionState::Resuming, "resuming the sandbox"),
        };
        match self.ask(id, is_pause).await {
            Ok(None) => return Ok(None),
            Ok(Some(())) => {}
            Err(error @ CallError::Refused { .. }) => {
                match self.api.state(id).await.map_err(|error| error.into_provider(what))? {
                    None => return Ok(None),
                    // An earlier request, whose answer was lost, may have been taken.
                    Some(state) if state == wanted || state == passing => {}
                    // The opposite is under way: it has to end before this can begin.
                    Some(SessionState::Pausing) => {
                        self.reach(id, SessionState::Paused, SessionState::Pausing, what).await?;
                        self.ask(id, is_pause).await.map_err(|error| error.into_provider(what))?;
                    }
                    Some(SessionState::Resuming) => {
                        self.reach(id, SessionState::Running, SessionState::Resuming, what).await?;
                        self.ask(id, is_pause).await.map_err(|error| error.into_provider(what))?;
                    }
                    Some(SessionState::Running | SessionState::Paused) => {
                        return Err(error.into_provider(what));
                    }
                }
            }
            Err(error) => return Err(error.into_provider(what)),
        }
        self.reach(id, wanted, passing, what).await
    }

    /// Pauses or resumes the session that a call means. The caller has the turn.
    pub(crate) async fn set_state(
        &self,
        target: &Target,
        slot: &SessionSlot,
        state: ObjectState,
    ) -> Result<(), ProviderError> {
        let (_, object) = self.table.live(target)?;
        let wanted = if state == ObjectState::Paused { SessionState::Paused } else { SessionState::Running };
        if self.bring(&object.id, wanted).await?.is_none() {
            self.table.report_death(&target.sandbox, &object);
            return Err(gone(&target.sandbox));
        }
        slot.update(&object.instance, |object| {
            object.state = state;
            object.kept_at = Some(Instant::now());
        });
        Ok(())
    }

    pub(crate) async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let (_, object) = self.table.live(target)?;
        let access = object.access.clone().unwrap_or_default();
        if object.state == ObjectState::Paused {
            return Ok(access.last_usage());
        }
        let measured = self.api.tool(&object.id, "get_metrics", &json!({}), Repeat::Always).await;
        let answer = measured.map_err(|error| self.call_error(target, &object, error))?;
        let metrics = serde_json::from_str(&answer.text).unwrap_or_default();
        Ok(access.measured(&metrics))
    }

    /// An error of a call into a session. One that the service does not know is reported as dead.
    pub(crate) fn call_error(
        &self,
        target: &Target,
        object: &SessionObject,
        error: CallError,
    ) -> ProviderError {
        if crate::api::is_missing(&error) {
            report_gone(self, &target.sandbox, object);
            return gone(&target.sandbox);
        }
        error.into_provider("calling the sandbox")
    }

    pub(crate) async fn has_image(&self, name: &str) -> Result<bool, ProviderError> {
        if self.images.has(name) {
            return Ok(true);
        }
        let found = self.api.has_image(name).await;
        let found = found.map_err(|error| error.into_provider("looking for the image"))?;
        if found {
            self.images.add(name);
        }
        Ok(found)
    }

    /// The image of this name at the service, or the one of the settings. The service does not tell its version.
    pub(crate) async fn image(&self, name: Option<&str>) -> Result<ProviderImage, ProviderError> {
        let name = name.unwrap_or(self.settings.image()).to_owned();
        if !self.has_image(&name).await? {
            return Err(ProviderError::NoTemplate { template: name });
        }
        let workdir = self.settings.workdir().to_owned();
        Ok(ProviderImage {
            version: name.clone(),
            name,
            env: Default::default(),
            user: USER.to_owned(),
            workdir,
        })
    }

    pub(crate) async fn node(&self) -> Result<Node, ProviderError> {
        if !self.checked.is_within(ANSWER_FRESH) {
            self.api.check().await.map_err(|error| error.into_provider("asking the service"))?;
            self.checked.note();
        }
        Ok(unknown_node())
    }
}

fn create_error(spec: &InstanceSpec, error: CallError) -> ProviderError {
    match &error {
        CallError::Refused { status: 400 | 404, message } if message.to_lowercase().contains("image") => {
            ProviderError::NoTemplate { template: spec.template.clone() }
        }
        _ => error.into_provider("creating the sandbox"),
    }
}

#[async_trait]
impl PauseSupport for AgentbayProvider {
    /// The service keeps the memory; it is resumed there, and no other instance is made from it.
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let own = target.clone();
        let work = move |shared: Arc<AgentbayShared>, slot: Arc<SessionSlot>| async move {
            // Also one that is paused here: the answer to a resume may have been lost.
            shared.set_state(&own, &slot, ObjectState::Paused).await.map(|()| MemoryLocation::Live)
        };
        self.change(&target.sandbox, work).await
    }

    async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        let own = target.clone();
        let work = move |shared: Arc<AgentbayShared>, slot: Arc<SessionSlot>| async move {
            if shared.table.live(&own)?.1.state == ObjectState::Paused {
                shared.set_state(&own, &slot, ObjectState::Running).await?;
            }
            Ok(())
        };
        self.change(&target.sandbox, work).await
    }
}
