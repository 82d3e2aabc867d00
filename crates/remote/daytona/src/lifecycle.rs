//! Create, boot, halt and destroy. The table gives each change of a sandbox its turn.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::{ErrorKind, InstanceId, SandboxId};
use atoll_provider::{Booted, InstanceSpec, InstanceUsage, ProviderError, ProviderImage, Target};
use atoll_remote::{
    Backoff, CallError, ObjectState, RemoteObject, RemoteSlot, Repeat, check_vendor_spec, gone, is_closed,
    oldest_first, random_hex, remove_leftovers, unknown_node,
};
use tokio::time::Instant;

use crate::DaytonaShared;
use crate::api::{Described, NewObject, ObjectBase, ServiceState};
use crate::pause::paused;
use crate::scripts;
use crate::toolbox::{DaytonaAccess, SCRIPT_WITHIN, word};

pub(crate) type DaytonaSlot = RemoteSlot<DaytonaAccess>;
pub(crate) type DaytonaObject = RemoteObject<DaytonaAccess>;

/// LIMIT: how often an object is made where the service neither answers nor shows one.
const CREATE_ATTEMPTS: u32 = 3;
/// LIMIT: how often an object is looked for before it is made again.
const LOOKS: u32 = 5;
/// LIMIT: a sandbox whose image is there starts and stops within seconds; one from an archive takes longer.
pub(crate) const CHANGE_WITHIN: Duration = Duration::from_secs(180);
/// The first wait of a poll.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(100);
/// How long an answer of the service shows that it is there.
const CHECK_FRESH: Duration = Duration::from_secs(10);
/// The name of the service's default snapshot, which a create does not name.
const DEFAULT_SNAPSHOT: &str = "default";
/// The version of a template that is an image of a registry: the service builds a sandbox from it.
pub(crate) const IMAGE_VERSION: &str = "image";

/// Whether a name can only be that of an image. It becomes a line of a Dockerfile.
fn is_image_reference(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@');
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
        && name.contains([':', '/', '@'])
}

impl DaytonaShared {
    pub(crate) async fn create(
        &self,
        spec: &InstanceSpec,
        slot: &DaytonaSlot,
    ) -> Result<Booted, ProviderError> {
        check_vendor_spec(self.name, spec)?;
        remove_leftovers(self, &spec.sandbox).await;
        let made = match self.make(spec, slot).await {
            Ok(made) => self.begin(spec, slot, made).await,
            Err(error) => Err(self.create_error(spec, error)),
        };
        let is_left = slot.object().is_some() || slot.is_doubtful();
        if made.is_err() && is_left {
            // What cannot be removed now is found by its labels, and removed after the grace time.
            if let Err(error) = self.destroy(&spec.sandbox, slot).await {
                tracing::warn!(sandbox = %spec.sandbox, provider = self.name, %error, "what a failed create left could not be removed yet");
            }
        }
        made
    }

    fn create_error(&self, spec: &InstanceSpec, error: CallError) -> ProviderError {
        match &error {
            // COMPAT(daytona): a snapshot that is not there is 400.
            CallError::Refused { status: 400 | 404, message }
                if message.to_lowercase().contains("snapshot") =>
            {
                ProviderError::NoTemplate { template: spec.template.clone() }
            }
            _ => error.into_provider("creating the sandbox"),
        }
    }

    /// Makes the object of a sandbox exactly once. Where no answer came, or its name is taken, it is looked for by its labels before
    /// it is made again.
    async fn make(&self, spec: &InstanceSpec, slot: &DaytonaSlot) -> Result<Described, CallError> {
        let new = NewObject {
            base: match (&*spec.template, &self.settings.snapshot) {
                (image, _) if spec.template_version == IMAGE_VERSION => ObjectBase::Image(image),
                (DEFAULT_SNAPSHOT, None) => ObjectBase::Default,
                (snapshot, _) => ObjectBase::Snapshot(snapshot),
            },
            sandbox: &spec.sandbox,
            instance: &spec.instance,
            internet: !is_closed(&spec.network),
        };
        for attempt in 1.. {
            let error = match self.api.create(&new).await {
                Ok(made) => return Ok(made),
                Err(error) => error,
            };
            if !error.is_uncertain() && !error.is_status(409) {
                return Err(error);
            }
            slot.set_doubtful(true);
            if let Some(found) = self.look_for(&spec.sandbox, &spec.instance).await? {
                return Ok(found);
            }
            if attempt == CREATE_ATTEMPTS {
                return Err(error);
            }
        }
        Err(CallError::Limited)
    }

    /// Looks for an object that a create without an answer may have made; the service may still be making it.
    async fn look_for(
        &self,
        sandbox: &SandboxId,
        instance: &InstanceId,
    ) -> Result<Option<Described>, CallError> {
        let mut backoff = Backoff::new(FIRST_WAIT);
        for _ in 0..LOOKS {
            let mut found = self.api.owned(Some(sandbox)).await?;
            found.retain(|object| object.instance == *instance);
            oldest_first(&mut found);
            let first = found.first().map(|first| first.id.clone());
            if let Some(id) = first
                && let Some(described) = self.api.find(&id).await?
            {
                tracing::info!(%sandbox, provider = self.name, "a create without an answer had made its object; it was found by its labels");
                return Ok(Some(described));
            }
            tokio::time::sleep(backoff.wait(None)).await;
        }
        Ok(None)
    }

    /// Takes up a new or started object.
    async fn begin(
        &self,
        spec: &InstanceSpec,
        slot: &DaytonaSlot,
        made: Described,
    ) -> Result<Booted, ProviderError> {
        let id = made.id.clone();
        slot.set(self.object(&spec.instance, ObjectState::Running, id.clone(), None));
        let running = self.wait_started(&spec.sandbox, made).await?;
        let access = Arc::new(self.open_access(&running).await?);
        slot.update(&spec.instance, |object| object.access = Some(Arc::clone(&access)));
        self.prepare(&access, &spec.instance).await?;
        let token = random_hex().map_err(|cause| ProviderError::Failed {
            step: "making a token".to_owned(),
            cause: Box::new(cause),
        })?;
        let facts = serde_json::json!({ "object": id });
        Ok(Booted { facts, agent_token: Some(token), from_pool: false })
    }

    /// Waits until an object runs.
    pub(crate) async fn wait_started(
        &self,
        sandbox: &SandboxId,
        seen: Described,
    ) -> Result<Described, ProviderError> {
        let deadline = Instant::now() + CHANGE_WITHIN;
        let (mut seen, mut backoff) = (seen, Backoff::new(FIRST_WAIT));
        loop {
            match seen.state {
                ServiceState::Started => return Ok(seen),
                ServiceState::Failed => {
                    let reason = seen.reason.unwrap_or_else(|| "it gave no reason".to_owned());
                    let message =
                        format!("the service could not start the sandbox: {}", self.api.redacted(&reason));
                    return Err(ProviderError::Refused { kind: ErrorKind::Unavailable, message });
                }
                ServiceState::Starting
                | ServiceState::Stopping
                | ServiceState::Pausing
                | ServiceState::Paused
                | ServiceState::Stopped
                | ServiceState::Destroyed => {}
            }
            if Instant::now() >= deadline {
                return Err(ProviderError::Late {
                    what: "the start of the sandbox".into(),
                    after: CHANGE_WITHIN,
                });
            }
            tokio::time::sleep(backoff.wait(None)).await;
            let found = self.api.find(&seen.id).await;
            let found = found.map_err(|error| error.into_provider("starting the sandbox"))?;
            seen = found.ok_or_else(|| gone(sandbox))?;
        }
    }

    /// Removes what an earlier instance left, and makes the working directory. The answer shows that commands can be started, too.
    async fn prepare(&self, access: &DaytonaAccess, instance: &InstanceId) -> Result<(), ProviderError> {
        let folder = self.settings.workdir();
        let line = scripts::prepare_line(folder, instance.as_str());
        let done = access.run_line(&line, Repeat::Always, SCRIPT_WITHIN).await;
        match done.as_deref().map(word) {
            Ok(Ok("ok")) => Ok(()),
            Ok(_) => Err(ProviderError::Transient {
                what: format!("making the folder {folder}"),
                why: "the toolbox did not run a command".to_owned(),
            }),
            Err(CallError::Refused { message, .. }) => Err(ProviderError::Unsupported {
                what: format!("the working directory {folder}: {message}"),
                hint: "set cwd of this provider to a folder that the user of the snapshot can make"
                    .to_owned(),
            }),
            Err(error) => Err(error.clone().into_provider("running the first command")),
        }
    }

    /// The way to the toolbox of an object.
    pub(crate) async fn open_access(&self, object: &Described) -> Result<DaytonaAccess, ProviderError> {
        let named = match &object.toolbox_url {
            Some(url) => Some(url.clone()),
            None => {
                let asked = self.api.toolbox_url(&object.id).await;
                asked.map_err(|error| error.into_provider("asking for the toolbox"))?
            }
        };
        let unusable = |why: &str| ProviderError::Transient {
            what: "reaching the sandbox".to_owned(),
            why: format!("the service named an address that cannot be used: {why}"),
        };
        let base = named.ok_or_else(|| unusable("none"))?;
        // The key goes to this address: it must not leave the machine in plain text where the API does not.
        if self.settings.is_tls() && !base.starts_with("https://") {
            return Err(unusable("it is not https"));
        }
        let client = self.api.toolbox(&base).map_err(|why| unusable(&why))?;
        Ok(DaytonaAccess::new(client, base, object.id.clone(), self.api.headers()))
    }

    pub(crate) fn object(
        &self,
        instance: &InstanceId,
        state: ObjectState,
        id: String,
        access: Option<Arc<DaytonaAccess>>,
    ) -> DaytonaObject {
        let (instance, kept_at) = (instance.clone(), Some(Instant::now()));
        RemoteObject { id, instance, state, access, kept_at }
    }

    pub(crate) async fn boot(
        &self,
        spec: &InstanceSpec,
        slot: &DaytonaSlot,
    ) -> Result<Booted, ProviderError> {
        check_vendor_spec(self.name, spec)?;
        let found = slot.object().ok_or_else(|| gone(&spec.sandbox))?;
        self.end_processes(&spec.sandbox, slot, &found).await?;
        let started = self.start(spec, &found.id).await.map_err(|error| {
            // It may run all the same.
            slot.set(self.object(&spec.instance, ObjectState::Ending, found.id.clone(), None));
            error.into_provider("starting the sandbox")
        })?;
        let Some(started) = started else {
            slot.lose();
            return Err(gone(&spec.sandbox));
        };
        let booted = self.begin(spec, slot, started).await;
        if booted.is_err() {
            let running = self.object(&spec.instance, ObjectState::Running, found.id, None);
            self.end_processes(&spec.sandbox, slot, &running).await?;
        }
        booted
    }

    /// The label says which instance will run, before it runs: after a crash in between a stopped object has no instance.
    async fn start(&self, spec: &InstanceSpec, id: &str) -> Result<Option<Described>, CallError> {
        if self.api.label(id, &spec.sandbox, &spec.instance).await?.is_none()
            || self.api.start(id).await?.is_none()
        {
            return Ok(None);
        }
        self.api.find(id).await
    }

    pub(crate) async fn halt(&self, target: &Target, slot: &DaytonaSlot) -> Result<(), ProviderError> {
        match slot.object() {
            // A late halt must not end the next instance.
            Some(object) if target.instance.as_ref().is_none_or(|wanted| *wanted == object.instance) => {
                self.end_processes(&target.sandbox, slot, &object).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ends the processes of an object and keeps its files.
    pub(crate) async fn end_processes(
        &self,
        sandbox: &SandboxId,
        slot: &DaytonaSlot,
        object: &DaytonaObject,
    ) -> Result<(), ProviderError> {
        if object.state == ObjectState::Halted {
            return Ok(());
        }
        let is_there = self.stop(&object.id).await;
        match is_there.map_err(|error| error.into_provider("stopping the sandbox"))? {
            true => slot.set(self.object(&object.instance, ObjectState::Halted, object.id.clone(), None)),
            // Its files went with it.
            false => slot.lose(),
        }
        tracing::debug!(%sandbox, provider = self.name, "the sandbox is stopped");
        Ok(())
    }

    /// Stops an object and waits for the end; `false`: it is not there.
    async fn stop(&self, id: &str) -> Result<bool, CallError> {
        let deadline = Instant::now() + CHANGE_WITHIN;
        let mut backoff = Backoff::new(FIRST_WAIT);
        loop {
            // COMPAT(daytona): an object that is stopped, or about to change, is refused with 400 or 409.
            let refused = match self.api.stop(id).await {
                Ok(None) => return Ok(false),
                Ok(Some(())) => None,
                Err(error) if error.is_status(400) || error.is_status(409) => Some(error),
                Err(error) => return Err(error),
            };
            let state = self.api.find(id).await?.map(|found| found.state);
            match (state, refused) {
                (None | Some(ServiceState::Destroyed), _) => return Ok(false),
                (Some(ServiceState::Stopped | ServiceState::Failed), _) => return Ok(true),
                (Some(ServiceState::Started), Some(error)) if Instant::now() >= deadline => {
                    return Err(error);
                }
                (Some(_), _) if Instant::now() >= deadline => {
                    return Err(CallError::Unanswered { why: "it does not stop".to_owned() });
                }
                (Some(_), _) => {}
            }
            tokio::time::sleep(backoff.wait(None)).await;
        }
    }

    pub(crate) async fn destroy(&self, sandbox: &SandboxId, slot: &DaytonaSlot) -> Result<(), ProviderError> {
        let failed = |error: CallError| error.into_provider("removing the sandbox");
        let known = slot.object();
        if let Some(object) = &known {
            self.kill(&object.id).await.map_err(failed)?;
        }
        if known.is_none() || slot.is_doubtful() {
            for object in self.api.owned(Some(sandbox)).await.map_err(failed)? {
                self.kill(&object.id).await.map_err(failed)?;
            }
        }
        slot.clear();
        Ok(())
    }

    /// Removes an object and waits until it is gone.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), CallError> {
        let deadline = Instant::now() + CHANGE_WITHIN;
        let mut backoff = Backoff::new(FIRST_WAIT);
        loop {
            let refused = match self.api.delete(id).await {
                Ok(()) => None,
                // COMPAT(daytona): while another change is under way.
                Err(error) if error.is_status(409) || error.is_status(400) => Some(error),
                Err(error) => return Err(error),
            };
            if self.api.find(id).await?.is_none() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let why = "it does not go away".to_owned();
                return Err(refused.unwrap_or(CallError::Unanswered { why }));
            }
            tokio::time::sleep(backoff.wait(None)).await;
        }
    }

    /// The use of an instance, as its toolbox measures it. CPU time is the sum of its measurements.
    pub(crate) async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let (_, known) = self.table.live(target)?;
        if known.state == ObjectState::Paused {
            return Ok(known.access.map(|access| access.meter.last()).unwrap_or_default());
        }
        let (object, access) = self.access(target).await?;
        match access.measure().await {
            Ok(measurement) => Ok(access.meter.add(measurement)),
            Err(error) if !self.is_running(&target.sandbox, &object).await => {
                tracing::debug!(sandbox = %target.sandbox, %error, "a sandbox could not be measured: it does not run");
                Err(gone(&target.sandbox))
            }
            // COMPAT(daytona): an older toolbox does not measure.
            Err(error) if error.is_status(404) => Ok(access.meter.last()),
            Err(error) => Err(error.into_provider("measuring the sandbox")),
        }
    }

    pub(crate) async fn has_template(&self, name: &str) -> Result<bool, ProviderError> {
        if self.snapshots.has(name) || name == DEFAULT_SNAPSHOT && self.settings.snapshot.is_none() {
            return Ok(true);
        }
        let found = self.api.has_snapshot(name).await;
        let is_there = found.map_err(|error| error.into_provider("looking for the snapshot"))?;
        if is_there {
            self.snapshots.add(name);
        }
        Ok(is_there)
    }

    /// The snapshot of this name at the service, or the one of the settings. A name that is none of the account's snapshots and has
    /// a tag, a digest or a folder is an image of a registry.
    pub(crate) async fn image(&self, name: Option<&str>) -> Result<ProviderImage, ProviderError> {
        let name = name.or(self.settings.snapshot.as_deref()).unwrap_or(DEFAULT_SNAPSHOT);
        let version = match self.has_template(name).await? {
            true => name,
            false if is_image_reference(name) => IMAGE_VERSION,
            false => return Err(ProviderError::NoTemplate { template: name.to_owned() }),
        };
        let (user, workdir) = (self.settings.user().to_owned(), self.settings.workdir().to_owned());
        Ok(ProviderImage {
            version: version.to_owned(),
            name: name.to_owned(),
            env: Default::default(),
            user,
            workdir,
        })
    }

    pub(crate) async fn node(&self) -> Result<atoll_model::policy::placement::Node, ProviderError> {
        if !self.checked.is_within(CHECK_FRESH) {
            let answered = self.api.check().await;
            answered.map_err(|error| error.into_provider("asking the service"))?;
            self.checked.note();
        }
        Ok(unknown_node())
    }

    /// The running object that a call means, and the way to it.
    pub(crate) async fn access(
        &self,
        target: &Target,
    ) -> Result<(DaytonaObject, Arc<DaytonaAccess>), ProviderError> {
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
        if let Some(access) = object.access.clone() {
            return Ok((object, access));
        }
        let found = self.api.find(&object.id).await;
        let found = found.map_err(|error| error.into_provider("reaching the sandbox"))?;
        let Some(found) = found else {
            self.table.report_death(&target.sandbox, &object);
            return Err(gone(&target.sandbox));
        };
        let access = Arc::new(self.open_access(&found).await?);
        slot.update(&object.instance, |object| object.access = Some(Arc::clone(&access)));
        Ok((object, access))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_references_become_a_line_of_a_dockerfile() {
        for image in ["python:3.12-slim", "ghcr.io/team/app", "debian@sha256:abc"] {
            assert!(is_image_reference(image), "{image}");
        }
        for other in ["python", "", ":a", "a:b c", "a:b\nRUN id", "a:${B}", "--platform=x:y"] {
            assert!(!is_image_reference(other), "{other}");
        }
    }
}
