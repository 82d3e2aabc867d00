//! Create, boot, halt, pause, resume and destroy. The table gives each change of a sandbox its turn.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use atoll_model::{ErrorKind, InstanceId, MemoryLocation, SandboxId};
use atoll_provider::{
    Booted, InstanceSpec, InstanceUsage, PauseSupport, ProviderError, ProviderImage, Target,
};
use atoll_remote::{
    Backoff, CallError, ObjectState, RemoteObject, RemoteSlot, check_snapshot_vendor_spec, gone, is_closed,
    oldest_first, random_hex, remove_leftovers, unknown_node,
};
use tokio::time::Instant;

use crate::access::E2bAccess;
use crate::api::{NewObject, Opened};
use crate::records::InstanceRecord;
use crate::{E2bProvider, E2bShared};

pub(crate) type E2bSlot = RemoteSlot<E2bAccess>;
pub(crate) type E2bObject = RemoteObject<E2bAccess>;

/// LIMIT: how often an object is made where the service neither answers nor shows one.
const CREATE_ATTEMPTS: u32 = 3;
/// LIMIT: how often an object is looked for before it is made again.
const LOOKS: u32 = 5;
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// How long an answer of the service shows that it is there.
const CHECK_FRESH: Duration = Duration::from_secs(10);
/// The user of E2B's templates.
const USER: &str = "user";

impl E2bShared {
    pub(crate) async fn create(&self, spec: &InstanceSpec, slot: &E2bSlot) -> Result<Booted, ProviderError> {
        check_snapshot_vendor_spec(self.name, spec)?;
        let template = self.base_of(spec).await?;
        remove_leftovers(self, &spec.sandbox).await;
        let new = NewObject {
            template: &template,
            sandbox: &spec.sandbox,
            instance: &spec.instance,
            internet: !is_closed(&spec.network),
            key: format!("{}-{}", spec.sandbox, spec.instance),
        };
        let made = match self.make(&new, slot, None).await {
            Ok(opened) => self.begin(spec, slot, &opened).await,
            Err(error) => Err(self.create_error(spec, error)),
        };
        if made.is_err()
            && (slot.object().is_some() || slot.is_doubtful())
            && let Err(error) = self.destroy(&spec.sandbox, slot).await
        {
            // It is found by its labels, and removed after the grace time.
            tracing::warn!(sandbox = %spec.sandbox, provider = self.name, %error, "what a failed create left could not be removed yet");
        }
        made
    }

    fn create_error(&self, spec: &InstanceSpec, error: CallError) -> ProviderError {
        match &error {
            // COMPAT(e2b): a template that is not there is 400 or 404.
            CallError::Refused { status: 400 | 404, message }
                if message.to_lowercase().contains("template") =>
            {
                ProviderError::NoTemplate { template: spec.template.clone() }
            }
            _ => error.into_provider("creating the sandbox"),
        }
    }

    /// Makes the object of a sandbox exactly once. Where no answer came it is looked for by its labels before it is made again.
    /// `besides`: an object with the same labels that is another one.
    pub(crate) async fn make(
        &self,
        new: &NewObject<'_>,
        slot: &E2bSlot,
        besides: Option<&str>,
    ) -> Result<Opened, CallError> {
        let mut attempt = 1;
        loop {
            let error = match self.api.create(new).await {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            if !error.is_uncertain() {
                return Err(error);
            }
            slot.set_doubtful(true);
            if let Some(opened) = self.look_for(new, besides).await? {
                return Ok(opened);
            }
            if attempt == CREATE_ATTEMPTS {
                return Err(error);
            }
            attempt += 1;
        }
    }

    /// Looks for an object that a create without an answer may have made; the service may still be making it.
    async fn look_for(
        &self,
        new: &NewObject<'_>,
        besides: Option<&str>,
    ) -> Result<Option<Opened>, CallError> {
        let sandbox = new.sandbox;
        let mut backoff = Backoff::new(FIRST_LOOK);
        for _ in 0..LOOKS {
            let mut found = self.api.owned(Some(sandbox)).await?;
            found.retain(|object| object.instance == *new.instance && besides != Some(object.id.as_str()));
            oldest_first(&mut found);
            if let Some(first) = found.first()
                && let Some(opened) = self.api.connect(&first.id, true).await?
            {
                tracing::info!(%sandbox, provider = self.name, "the answer to a create was lost; its object was found by its labels");
                return Ok(Some(opened));
            }
            tokio::time::sleep(backoff.wait(None)).await;
        }
        Ok(None)
    }

    /// Takes up a new or woken object.
    async fn begin(
        &self,
        spec: &InstanceSpec,
        slot: &E2bSlot,
        opened: &Opened,
    ) -> Result<Booted, ProviderError> {
        let object = self.object(&spec.instance, ObjectState::Running, opened.id.clone(), None);
        slot.set(object);
        let access = Arc::new(self.open_access(opened)?);
        slot.update(&spec.instance, |object| object.access = Some(Arc::clone(&access)));
        self.make_workdir(&access).await?;
        let token = random_hex().map_err(|cause| ProviderError::Failed {
            step: "making a token".to_owned(),
            cause: Box::new(cause),
        })?;
        let facts = serde_json::json!({ "object": opened.id });
        Ok(Booted { facts, agent_token: Some(token), from_pool: false })
    }

    /// Makes the working directory, where it is missing. The answer shows that commands can be started, too.
    async fn make_workdir(&self, access: &E2bAccess) -> Result<(), ProviderError> {
        let folder = self.settings.workdir();
        match access.envd.make_dir(folder, None).await {
            Err(error) if error.kind() != ErrorKind::Exists => {
                let (what, why) = (format!("making the folder {folder}"), error.to_string());
                Err(ProviderError::Transient { what, why })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn open_access(&self, opened: &Opened) -> Result<E2bAccess, ProviderError> {
        E2bAccess::new(&self.settings, &self.connector, opened, self.timing.stream_silence)
    }

    pub(crate) fn object(
        &self,
        instance: &InstanceId,
        state: ObjectState,
        id: String,
        access: Option<Arc<E2bAccess>>,
    ) -> E2bObject {
        RemoteObject { id, instance: instance.clone(), state, access, kept_at: Some(Instant::now()) }
    }

    pub(crate) async fn boot(&self, spec: &InstanceSpec, slot: &E2bSlot) -> Result<Booted, ProviderError> {
        check_snapshot_vendor_spec(self.name, spec)?;
        let found = slot.object().ok_or_else(|| gone(&spec.sandbox))?;
        self.end_processes(&spec.sandbox, slot, &found).await?;
        let instance = spec.instance.clone();
        let record =
            |halted| InstanceRecord { instance: instance.clone(), object: Some(found.id.clone()), halted };
        self.records.write(&spec.sandbox, record(true)).await?;
        let woken = self.api.connect(&found.id, false).await.map_err(|error| {
            // It may run all the same.
            slot.set(self.object(&spec.instance, ObjectState::Ending, found.id.clone(), None));
            error.into_provider("starting the sandbox")
        })?;
        let Some(opened) = woken else {
            slot.lose();
            return Err(gone(&spec.sandbox));
        };
        let booted = match self.begin(spec, slot, &opened).await {
            Ok(booted) => self.records.write(&spec.sandbox, record(false)).await.map(|()| booted),
            Err(error) => Err(error),
        };
        if booted.is_err() {
            let running = self.object(&spec.instance, ObjectState::Running, opened.id, None);
            self.end_processes(&spec.sandbox, slot, &running).await?;
        }
        booted
    }

    pub(crate) async fn halt(&self, target: &Target, slot: &E2bSlot) -> Result<(), ProviderError> {
        let Some(object) = slot.object() else { return Ok(()) };
        // A late halt must not end the next instance.
        if target.instance.as_ref().is_some_and(|wanted| *wanted != object.instance) {
            return Ok(());
        }
        self.end_processes(&target.sandbox, slot, &object).await
    }

    /// Ends the processes of an object and keeps its files. One that is paused already is recorded as halted: its memory is
    /// dropped at the next start.
    pub(crate) async fn end_processes(
        &self,
        sandbox: &SandboxId,
        slot: &E2bSlot,
        object: &E2bObject,
    ) -> Result<(), ProviderError> {
        if object.state == ObjectState::Halted {
            return Ok(());
        }
        let record = InstanceRecord {
            instance: object.instance.clone(),
            object: Some(object.id.clone()),
            halted: true,
        };
        self.records.write(sandbox, record).await?;
        let halted = self.object(&object.instance, ObjectState::Halted, object.id.clone(), None);
        if object.state != ObjectState::Paused {
            // Without memory the service asks the sandbox first. One that does not answer is paused with its memory.
            let paused = match self.api.pause(&object.id, false).await {
                Err(CallError::Refused { .. }) => self.api.pause(&object.id, true).await,
                paused => paused,
            };
            let paused = paused.map_err(|error| error.into_provider("stopping the sandbox"))?;
            if paused.is_none() {
                // Its files went with it.
                slot.lose();
                return Ok(());
            }
        }
        slot.set(halted);
        Ok(())
    }

    pub(crate) async fn destroy(&self, sandbox: &SandboxId, slot: &E2bSlot) -> Result<(), ProviderError> {
        let failed = |error: CallError| error.into_provider("removing the sandbox");
        let known = slot.object();
        if let Some(object) = &known {
            self.api.kill(&object.id).await.map_err(failed)?;
        }
        if known.is_none() || slot.is_doubtful() {
            for object in self.api.owned(Some(sandbox)).await.map_err(failed)? {
                self.api.kill(&object.id).await.map_err(failed)?;
            }
        }
        self.records.remove(sandbox)?;
        slot.clear();
        Ok(())
    }

    /// The use of an instance, as the service measured it last. CPU time is the sum of its measurements.
    pub(crate) async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let (_, object) = self.table.live(target)?;
        if object.state == ObjectState::Paused {
            return Ok(object.access.map(|access| access.meter.last()).unwrap_or_default());
        }
        let (object, access) = self.access(target).await?;
        let measured = self.api.measure(&object.id).await;
        match measured.map_err(|error| error.into_provider("measuring the sandbox"))? {
            Some(measurement) => Ok(access.meter.add(measurement)),
            None => {
                self.table.report_death(&target.sandbox, &object);
                Err(gone(&target.sandbox))
            }
        }
    }

    pub(crate) async fn has_template(&self, name: &str) -> Result<bool, ProviderError> {
        if self.templates.has(name) {
            return Ok(true);
        }
        let found = self.api.has_template(name).await;
        let found = found.map_err(|error| error.into_provider("looking for the template"))?;
        if found {
            self.templates.add(name);
        }
        Ok(found)
    }

    /// The template of this name at the service, or the one of the settings. The service does not tell its version.
    pub(crate) async fn image(&self, name: Option<&str>) -> Result<ProviderImage, ProviderError> {
        let name = name.unwrap_or(&self.settings.template);
        if !self.has_template(name).await? {
            return Err(ProviderError::NoTemplate { template: name.to_owned() });
        }
        Ok(ProviderImage {
            name: name.to_owned(),
            version: name.to_owned(),
            env: Default::default(),
            user: USER.to_owned(),
            workdir: self.settings.workdir().to_owned(),
        })
    }

    pub(crate) async fn node(&self) -> Result<Node, ProviderError> {
        if !self.checked.is_within(CHECK_FRESH) {
            let checked = self.api.check().await;
            checked.map_err(|error| error.into_provider("asking the service"))?;
            self.checked.note();
        }
        Ok(unknown_node())
    }

    pub(crate) async fn resume(&self, target: &Target, slot: &E2bSlot) -> Result<(), ProviderError> {
        let (_, object) = self.table.live(target)?;
        let opened = self.api.connect(&object.id, true).await;
        let opened = opened.map_err(|error| error.into_provider("resuming the sandbox"))?;
        let Some(opened) = opened else {
            self.table.report_death(&target.sandbox, &object);
            return Err(gone(&target.sandbox));
        };
        // The tokens may be new ones.
        let access = Arc::new(self.open_access(&opened)?);
        slot.update(&object.instance, |object| {
            object.state = ObjectState::Running;
            object.access = Some(access);
            object.kept_at = Some(Instant::now());
        });
        Ok(())
    }

    /// Pauses an object with its memory. One that is paused already is asked for again: the answer to a resume may have been lost.
    pub(crate) async fn pause(&self, target: &Target, slot: &E2bSlot) -> Result<(), ProviderError> {
        let (_, object) = self.table.live(target)?;
        let paused = self.api.pause(&object.id, true).await;
        if paused.map_err(|error| error.into_provider("pausing the sandbox"))?.is_none() {
            self.table.report_death(&target.sandbox, &object);
            return Err(gone(&target.sandbox));
        }
        slot.update(&object.instance, |object| object.state = ObjectState::Paused);
        Ok(())
    }

    /// The object that a call means, running, and the way to it.
    pub(crate) async fn access(&self, target: &Target) -> Result<(E2bObject, Arc<E2bAccess>), ProviderError> {
        let (_, object) = self.table.live(target)?;
        if object.state == ObjectState::Paused {
            return Err(paused());
        }
        if let Some(access) = object.access.clone() {
            return Ok((object, access));
        }
        // Not as a task of its own: a caller that goes away leaves nothing half done.
        let slot = self.table.existing(&target.sandbox).ok_or_else(|| gone(&target.sandbox))?;
        let _turn = slot.turn().await;
        let (_, object) = self.table.live(target)?;
        match (object.state, &object.access) {
            (ObjectState::Running, Some(_)) => {}
            (ObjectState::Running, None) => self.resume(target, &slot).await?,
            (ObjectState::Paused | ObjectState::Ending | ObjectState::Halted, _) => return Err(paused()),
        }
        let (_, object) = self.table.live(target)?;
        let access = object.access.clone().ok_or_else(|| gone(&target.sandbox))?;
        Ok((object, access))
    }
}

pub(crate) fn paused() -> ProviderError {
    ProviderError::Transient { what: "reaching the sandbox".to_owned(), why: "it is paused".to_owned() }
}

#[async_trait]
impl PauseSupport for E2bProvider {
    /// The service keeps the memory; it is resumed there, and no other instance is made from it.
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), target.clone());
        let work = move |slot: Arc<E2bSlot>| async move {
            shared.pause(&own, &slot).await.map(|()| MemoryLocation::Live)
        };
        self.shared.table.change(&target.sandbox, work).await
    }

    async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), target.clone());
        let work = move |slot: Arc<E2bSlot>| async move {
            let (_, object) = shared.table.live(&own)?;
            match object.state {
                ObjectState::Running => Ok(()),
                ObjectState::Paused | ObjectState::Ending | ObjectState::Halted => {
                    shared.resume(&own, &slot).await
                }
            }
        };
        self.shared.table.change(&target.sandbox, work).await
    }
}
