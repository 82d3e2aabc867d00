//! Templates of the catalogue that are made when a sandbox first needs them.
//!
//! One build per template serves all callers: who does not wait for it is told how far it is, and when to try again.
//! Only names of the catalogue are made, and only where the operator allows it.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_image::default_names::MADE_AT_FIRST_USE;
use atoll_model::{Code, Principal};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{MakeProgress, TemplateRecord, Templates};
use crate::ServiceError;
use crate::base::shutting_down;

/// How long a caller that does not wait is kept for a failure that comes at once, such as a full disk.
const AT_ONCE: Duration = Duration::from_millis(300);
/// LIMIT: a failed build is reported for this long before the next use tries again.
const FAILED_FOR: Duration = Duration::from_secs(30);
/// How many seconds a caller that does not wait should wait before it asks again.
const RETRY_AFTER_S: u32 = 10;

/// The builds of this server's life, by the name of the template.
#[derive(Default)]
pub(super) struct FirstUses(Mutex<HashMap<&'static str, watch::Receiver<FirstUse>>>);

/// How far the making of a template is.
#[derive(Clone)]
enum FirstUse {
    Making { since: Instant, step: String },
    Made,
    Failed { at: Instant, error: ServiceError },
}

impl FirstUse {
    const fn is_over(&self) -> bool {
        matches!(self, Self::Made | Self::Failed { .. })
    }
}

impl Templates {
    /// The template of the catalogue that this word names, if it may be made at its first use.
    pub(crate) fn made_at_first_use(&self, word: &str) -> Option<&'static str> {
        let latest = format!(":{}", atoll_model::DEFAULT_TAG);
        let name = word.strip_suffix(&latest).unwrap_or(word);
        let known = MADE_AT_FIRST_USE.iter().copied().find(|known| *known == name);
        known.filter(|_| self.inner.config.make_at_first_use)
    }

    /// As [`Templates::get`], for a create that needs the template before it asks for the sandbox: one that is made at
    /// its first use is begun, and the caller is told how far it is.
    pub async fn get_for_create(&self, who: &Principal, word: &str) -> Result<TemplateRecord, ServiceError> {
        let missing = match self.get(who, word).await {
            Err(error) if error.code == Code::TemplateNotFound => error,
            found => return found,
        };
        let Some(name) = self.made_at_first_use(word) else { return Err(missing) };
        self.refuse_until_made(name).await?;
        self.get(who, word).await
    }

    /// Begins to make a template, unless that is under way; an error if it failed at once or a moment ago.
    pub(crate) async fn begin_first_use(&self, name: &'static str) -> Result<(), ServiceError> {
        let mut state = self.first_use(name);
        let ended = tokio::time::timeout(AT_ONCE, state.wait_for(FirstUse::is_over)).await;
        match ended {
            Ok(Ok(over)) => outcome(&over),
            Ok(Err(_)) => Err(shutting_down()),
            Err(_) => Ok(()),
        }
    }

    /// Refuses a caller that does not wait, with the progress.
    pub(crate) async fn refuse_until_made(&self, name: &'static str) -> Result<(), ServiceError> {
        self.begin_first_use(name).await?;
        let state = self.first_use(name).borrow().clone();
        let FirstUse::Making { since, step } = state else { return outcome(&state) };
        let message = format!(
            "template {name} is being made at its first use: {step}; {} s so far",
            since.elapsed().as_secs()
        );
        Err(ServiceError::new(Code::TemplateNotReady, message)
            .hint("try again later; `atoll create` and `?wait=1` wait for it")
            .retry_after(RETRY_AFTER_S))
    }

    /// Waits until the template is made.
    pub(crate) async fn until_first_use(&self, name: &'static str) -> Result<(), ServiceError> {
        let mut state = self.first_use(name);
        match state.wait_for(FirstUse::is_over).await {
            Ok(over) => outcome(&over),
            Err(_) => Err(shutting_down()),
        }
    }

    /// The build under way or the last one, or a new one.
    fn first_use(&self, name: &'static str) -> watch::Receiver<FirstUse> {
        let mut builds = self.inner.first_uses.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |state: &watch::Receiver<FirstUse>| match &*state.borrow() {
            FirstUse::Making { .. } => state.has_changed().is_ok(),
            // It was removed since.
            FirstUse::Made => false,
            FirstUse::Failed { at, .. } => at.elapsed() < FAILED_FOR,
        };
        if let Some(state) = builds.get(name).filter(|state| is_current(state)) {
            return state.clone();
        }
        let begun = FirstUse::Making { since: Instant::now(), step: "waiting to begin".to_owned() };
        let (told, state) = watch::channel(begun);
        builds.insert(name, state.clone());
        drop(self.make_for_first_use(name, told));
        state
    }

    fn make_for_first_use(
        &self,
        name: &'static str,
        told: watch::Sender<FirstUse>,
    ) -> tokio::task::JoinHandle<Option<()>> {
        let inner = Arc::clone(&self.inner);
        self.inner.spawn(async move {
            tracing::info!(template = name, "making a template at its first use");
            let (sources, closing) = (Arc::clone(&inner.cache.sources), inner.closing.clone());
            let (since, steps) = (Instant::now(), told.clone());
            let progress: MakeProgress = Box::new(move |step| {
                tracing::debug!(template = name, step, "making a template at its first use");
                steps.send_replace(FirstUse::Making { since, step: step.to_owned() });
                if closing.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let made = inner.run_blocking(move || sources.make(name, progress)).await;
            inner.cache.forget();
            let seconds = since.elapsed().as_secs();
            told.send_replace(match made {
                Ok(_) => {
                    tracing::info!(template = name, seconds, "template made");
                    FirstUse::Made
                }
                Err(error) if error.code == Code::AlreadyExists => FirstUse::Made,
                Err(error) => {
                    tracing::warn!(template = name, seconds, %error, hint = error.hint, "a template could not be made at its first use");
                    FirstUse::Failed { at: Instant::now(), error }
                }
            });
        })
    }
}

fn outcome(state: &FirstUse) -> Result<(), ServiceError> {
    match state {
        FirstUse::Failed { error, .. } => Err(error.clone()),
        FirstUse::Made | FirstUse::Making { .. } => Ok(()),
    }
}
