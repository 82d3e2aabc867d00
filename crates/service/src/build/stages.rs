//! The stages of a build, one after the other, as far as the one that becomes the template needs them. Each step is looked up
//! in the cache by what lies below it and what it does; what is not there is done in a sandbox.

use std::collections::HashMap;
use std::sync::Arc;

use atoll_image::build::{Base, Context, CopyFrom, Plan, Step, StepKind, Walk};
use atoll_model::{BuildLevel, Code, CreateSandbox, LimitsAsk, NetworkMode, NetworkPolicy, TemplateRef};
use oci_spec::image::ImageConfiguration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ask::BuildSource;
use super::files::{Files, blocking};
use super::run::{Ended, Job};
use super::sandbox::{Sandboxes, StepSandbox, exactly};
use super::secrets::Hidden;
use super::step::{self, Told};
use super::{context, output};
use crate::ServiceError;
use super::finish::Made;

/// LIMIT: what a record and a log show of a step.
const TEXT_CHARS: usize = 200;
/// Compilers and package managers want more than a command line does.
const MEMORY_MIB: i64 = 1_024;
const DISK_MIB: i64 = 8_192;
const PIDS: i64 = 1_024;

/// A build whose plan is known.
pub(super) struct Stages<'a> {
    job: &'a Job,
    sandboxes: &'a Sandboxes,
    context: Arc<Context>,
    plan: Plan,
    hidden: Hidden,
    stop: CancellationToken,
    deadline: Instant,
}

/// A stage that is done, or a base.
#[derive(Clone)]
struct Done {
    files: Files,
    config: ImageConfiguration,
}

impl<'a> Stages<'a> {
    /// Reads the context and the steps.
    pub(super) async fn open(
        job: &'a Job,
        sandboxes: &'a Sandboxes,
        stop: CancellationToken,
        deadline: Instant,
    ) -> Result<Self, Ended> {
        let (folder, images) = (job.folder.clone(), Arc::clone(&job.service.inner.images));
        let (has_context, ask) = (job.has_context, job.ask.clone());
        let cancel = stop.clone();
        let read = tokio::task::spawn_blocking(move || {
            let context = match has_context {
                true => Context::open(&context::unfold(&folder, &images)?, &cancel)?,
                false => Context::empty(),
            };
            let plan = plan_of(&ask.source, &ask, &context)?;
            Ok::<_, ServiceError>((context, plan))
        });
        let (context, plan) = read.await.map_err(|cause| {
            ServiceError::new(Code::Internal, "reading the context ended early").caused_by(cause)
        })??;
        let steps = plan.steps();
        job.live.build.send_modify(|build| {
            build.steps = steps;
            build.notes = plan.notes.clone();
        });
        for note in &plan.notes {
            job.live.log.say(BuildLevel::Warn, 0, note.clone());
        }
        let hidden = Hidden::of(&job.ask.secrets);
        Ok(Self { job, sandboxes, context: Arc::new(context), plan, hidden, stop, deadline })
    }

    /// Does every stage that is needed.
    pub(super) async fn build(&self) -> Result<Made, Ended> {
        let mut done: HashMap<usize, Done> = HashMap::new();
        let mut last = None;
        for stage in self.plan.order() {
            let made = self.stage(stage, &done).await?;
            done.insert(stage, made.clone());
            last = Some(made);
        }
        let Some(Done { files, config }) = last else {
            return Err(ServiceError::new(Code::InvalidRequest, "there is nothing to build").into());
        };
        Ok(Made { files, config })
    }
}
