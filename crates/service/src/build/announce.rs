//! Builds that are announced before their steps are known, for SDKs that send files in between. An announced build has
//! an id, a row and a log at once; its task waits for the steps, up to a limit.

use std::time::Duration;

use atoll_model::{Build, Code, LimitsAsk, Principal, StartSettings, TemplateRef};
use tokio::sync::oneshot;

use super::Builds;
use super::ask::{BuildSource, StartBuild};
use super::context::{Staging, folder};
use super::queue::{Announced, BuildStart};
use super::run::{self, BuildEnd, BuildJob};
use crate::{RegistryAuth, ServiceError};

/// LIMIT: longer than the upload of files may take.
const PATIENCE: Duration = Duration::from_secs(3 * 3_600);

/// The steps of an announced build.
#[derive(Debug, Clone)]
pub struct BuildSteps {
    /// Its steps.
    pub source: BuildSource,
    /// The start settings of its sandboxes; limits that are not set are those of the announcement.
    pub settings: StartSettings,
    /// Whether to run every step again.
    pub no_cache: bool,
    /// How long its start command may take to be ready; `None`: ten minutes.
    pub ready_timeout_s: Option<u64>,
    /// Credentials for the registry of its base.
    pub auth: Option<RegistryAuth>,
}

impl Builds {
    /// Announces a build. What it is called and its limits are known, its steps come by [`Builds::begin`]. One that
    /// was announced before under one of its names, and not begun, is given up.
    pub async fn announce(
        &self,
        who: &Principal,
        template: TemplateRef,
        tags: Vec<String>,
        limits: LimitsAsk,
    ) -> Result<Build, ServiceError> {
        let settings = StartSettings { limits, ..StartSettings::default() };
        let ask = StartBuild { tags, settings, ..StartBuild::of(template, BuildSource::Text(String::new())) };
        ask.check()?;
        self.inner.templates.refuse_built_in(&ask.template, &ask.tags).await?;
        let inner = &self.inner;
        let build = self.new_build(who, &ask)?;
        let folder = folder(&inner.config.data, &build.id);
        let staging = Staging::new(&folder);
        let log = self.new_log(&folder)?;
        let (begin, begun) = oneshot::channel();
        inner.queue.announce(build.id.clone(), Announced { tenant: who.tenant.clone(), ask, begin })?;
        if let Err(error) = inner.store.put_build(build.clone()).await {
            inner.queue.take_announced(&build.id);
            return Err(error.into());
        }
        staging.keep();
        let live = self.live(&build, log);
        let (builds, id) = (self.clone(), build.id.clone());
        inner.spawn(async move {
            let begun = tokio::select! {
                biased;
                () = live.cancel.cancelled() => Err(BuildEnd::Cancelled),
                begun = begun => begun.map_err(|_| given_up()),
                () = tokio::time::sleep(PATIENCE) => Err(never_begun()),
            };
            builds.inner.queue.take_announced(&id);
            match begun {
                Ok(BuildStart { who, ask, staged, admitted }) => {
                    BuildJob { builds, who, ask, live, staged, folder }.run().await;
                    drop(admitted);
                }
                Err(ended) => {
                    run::end(&builds, &live, Err(ended)).await;
                    builds.inner.queue.remove(&id);
                }
            }
        });
        Ok(build)
    }

    /// Whether the steps of a build are not known yet.
    #[must_use]
    pub fn is_announced(&self, build: &Build) -> bool {
        self.inner.queue.announced(&build.id).is_some()
    }

    /// Begins a build that was announced.
    pub async fn begin(
        &self,
        who: &Principal,
        ident: &str,
        steps: BuildSteps,
    ) -> Result<Build, ServiceError> {
        let build = self.get(who, ident).await?;
        let inner = &self.inner;
        let announced = inner.queue.announced(&build.id).ok_or_else(|| begun_already(&build))?;
        let limits = announced.settings.limits;
        let mut settings = steps.settings;
        settings.limits = LimitsAsk {
            cpu: settings.limits.cpu.or(limits.cpu),
            memory_mib: settings.limits.memory_mib.or(limits.memory_mib),
            disk_mib: settings.limits.disk_mib.or(limits.disk_mib),
            pids: settings.limits.pids.or(limits.pids),
        };
        let ask = StartBuild {
            source: steps.source,
            settings,
            no_cache: steps.no_cache,
            ready_timeout_s: steps.ready_timeout_s,
            auth: steps.auth,
            ..announced
        };
        ask.check()?;
        let admitted = inner.queue.admit(&who.tenant)?;
        let staged = self.stage_uploads(who, &ask, &folder(&inner.config.data, &build.id))?;
        let begin = inner.queue.take_announced(&build.id).ok_or_else(|| begun_already(&build))?;
        let begun = BuildStart { who: who.clone(), ask, staged, admitted };
        begin.send(begun).map_err(|_| begun_already(&build))?;
        Ok(build)
    }
}

fn begun_already(build: &Build) -> ServiceError {
    let message = format!("build {} has already begun or ended", build.id);
    ServiceError::new(Code::PhaseConflict, message).hint("announce a new build")
}

fn given_up() -> BuildEnd {
    let message = "a newer build of the same name was announced before this one had begun";
    ServiceError::new(Code::PhaseConflict, message).into()
}

fn never_begun() -> BuildEnd {
    let message = format!("the steps of this build did not arrive within {} s", PATIENCE.as_secs());
    ServiceError::new(Code::DeadlineExceeded, message).into()
}
