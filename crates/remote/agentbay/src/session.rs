//! Commands and files by the tools of the service.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_agentapi::{Entry, EntryKind, ExitStatus, ProcessEvent, Range, UploadStream};
use atoll_model::ErrorKind;
use atoll_provider::{
    Capability, FileContent, ProcessOutput, ProcessSpec, Provider, ProviderError, RunningProcess,
    SessionSupport, StartedProcess, Target,
};
use atoll_remote::{ObjectState, random_hex};
use futures::StreamExt;

use crate::files::WINDOW;
use crate::jobs::{JobCursor, JobLook, LookPace};
use crate::lifecycle::stands_still;
use crate::shell::{ScriptError, refused};
use crate::{AgentbayProvider, AgentbayShared, SessionObject};

/// How often it is looked whether a paused sandbox runs again.
const RESUME_LOOK: Duration = Duration::from_millis(250);

/// One running session, for one call.
#[derive(Clone)]
struct SessionCall {
    shared: Arc<AgentbayShared>,
    target: Target,
    object: SessionObject,
}

impl AgentbayProvider {
    fn session(&self, target: &Target) -> Result<SessionCall, ProviderError> {
        let (_, object) = self.shared.table.live(target)?;
        if object.state == ObjectState::Paused {
            return Err(stands_still());
        }
        Ok(SessionCall { shared: Arc::clone(&self.shared), target: target.clone(), object })
    }
}

fn unique() -> Result<String, ProviderError> {
    random_hex()
        .map_err(|cause| ProviderError::Failed { step: "making a name".to_owned(), cause: Box::new(cause) })
}

impl SessionCall {
    fn id(&self) -> &str {
        &self.object.id
    }

    fn explain(&self, error: ScriptError) -> ProviderError {
        match error {
            ScriptError::Refused(kind, message) => refused(kind, message),
            ScriptError::Call(error) => self.shared.call_error(&self.target, &self.object, error),
        }
    }

    fn told<T>(&self, outcome: Result<T, ScriptError>) -> Result<T, ProviderError> {
        outcome.map_err(|error| self.explain(error))
    }

    /// Waits while the sandbox is paused; an error: it is gone.
    async fn until_running(&self) -> Result<(), ProviderError> {
        while self.shared.table.live(&self.target)?.1.state != ObjectState::Running {
            tokio::time::sleep(RESUME_LOOK).await;
        }
        Ok(())
    }

    /// The output of a command: what its start told, and then what further looks find.
    fn output(self, cursor: JobCursor, first: JobLook) -> ProcessOutput {
        let state =
            OutputState { call: self, cursor, look: first, pace: LookPace::default(), is_over: false };
        futures::stream::unfold(state, OutputState::next).boxed()
    }
}

/// A reader of a command.
struct OutputState {
    call: SessionCall,
    cursor: JobCursor,
    /// What was found and not told yet.
    look: JobLook,
    pace: LookPace,
    is_over: bool,
}

impl OutputState {
    async fn next(mut self) -> Option<(Result<ProcessEvent, ProviderError>, Self)> {
        if self.is_over {
            return None;
        }
        loop {
            if !self.look.events.is_empty() {
                let event = self.look.events.remove(0);
                return Some((Ok(event), self));
            }
            if let Some(exit) = self.look.exit.take() {
                return Some((Ok(self.ended(exit)), self));
            }
            if let Err(error) = self.look_again().await {
                self.is_over = true;
                return Some((Err(error), self));
            }
        }
    }

    fn ended(&mut self, exit: ExitStatus) -> ProcessEvent {
        self.is_over = true;
        if let Some(access) = &self.call.object.access {
            access.job_ended(std::mem::take(&mut self.cursor.name));
        }
        ProcessEvent::Exit(exit)
    }

    async fn look_again(&mut self) -> Result<(), ProviderError> {
        self.call.until_running().await?;
        let found = self.call.shared.api.look_at_job(self.call.id(), &mut self.cursor).await;
        match self.call.told(found) {
            Ok(look) => self.look = look,
            // The sandbox was paused while it was asked.
            Err(ProviderError::Transient { .. }) if self.is_paused() => {}
            Err(error) => return Err(error),
        }
        let is_quiet = self.look.events.is_empty() && self.look.exit.is_none();
        tokio::time::sleep(self.pace.next(is_quiet)).await;
        Ok(())
    }

    fn is_paused(&self) -> bool {
        self.call
            .shared
            .table
            .live(&self.call.target)
            .is_ok_and(|(_, object)| object.state == ObjectState::Paused)
    }
}

#[async_trait]
impl SessionSupport for AgentbayProvider {
    async fn start_process(
        &self,
        target: &Target,
        what: ProcessSpec,
    ) -> Result<StartedProcess, ProviderError> {
        let call = self.session(target)?;
        for (is_asked, capability) in [
            (what.stdin, Capability::Stdin),
            (what.terminal.is_some(), Capability::Terminal),
            (what.user.is_some(), Capability::User),
        ] {
            if is_asked {
                return Err(self.missing(capability));
            }
        }
        let ended = call.object.access.as_ref().map(|access| access.take_ended_jobs()).unwrap_or_default();
        let mut cursor = JobCursor::new(unique()?);
        let look = call.told(call.shared.api.start_job(call.id(), &mut cursor, &what, &ended).await)?;
        Ok(StartedProcess { id: look.pid.clone(), output: call.output(cursor, look) })
    }

    async fn attach_process(&self, target: &Target, id: &str) -> Result<ProcessOutput, ProviderError> {
        let call = self.session(target)?;
        let found = call.told(call.shared.api.find_job(call.id(), id).await)?;
        let cursor =
            found.ok_or_else(|| refused(ErrorKind::NotFound, format!("there is no process {id}")))?;
        Ok(call.output(cursor, JobLook::default()))
    }

    async fn processes(&self, target: &Target) -> Result<Vec<RunningProcess>, ProviderError> {
        let call = self.session(target)?;
        let jobs = call.told(call.shared.api.jobs(call.id()).await)?;
        Ok(jobs.into_iter().map(|(_, process)| process).collect())
    }

    async fn stat(&self, target: &Target, path: &str, _user: Option<&str>) -> Result<Entry, ProviderError> {
        let call = self.session(target)?;
        call.told(call.shared.api.stat(call.id(), path, false).await)
    }

    async fn list_folder(
        &self,
        target: &Target,
        path: &str,
        _user: Option<&str>,
    ) -> Result<Vec<Entry>, ProviderError> {
        let call = self.session(target)?;
        call.told(call.shared.api.list_folder(call.id(), path).await)
    }

    async fn read_file(
        &self,
        target: &Target,
        path: &str,
        _user: Option<&str>,
        range: Option<Range>,
    ) -> Result<FileContent, ProviderError> {
        let call = self.session(target)?;
        let entry = call.told(call.shared.api.stat(call.id(), path, true).await)?;
        if entry.kind != EntryKind::File {
            return Err(refused(ErrorKind::Invalid, format!("{path} is not a file")));
        }
        let begin = range.map_or(0, |range| range.start).min(entry.size);
        let wanted = range.and_then(|range| range.len).unwrap_or(u64::MAX);
        let end = begin.saturating_add(wanted).min(entry.size);
        let path = path.to_owned();
        let windows = futures::stream::try_unfold((call, path, begin), move |(call, path, at)| async move {
            if at >= end {
                return Ok(None);
            }
            let len = usize::try_from(end - at).unwrap_or(WINDOW).min(WINDOW);
            let window = call.told(call.shared.api.read_window(call.id(), &path, at, len).await)?;
            let next = at + window.len() as u64;
            Ok(Some((window, (call, path, next))))
        });
        Ok(FileContent { size: entry.size, mode: entry.mode, stream: windows.boxed() })
    }

    /// The bytes go to a file beside it, which is renamed at the end: a broken upload changes nothing.
    async fn write_file(
        &self,
        target: &Target,
        path: &str,
        _user: Option<&str>,
        mode: Option<u32>,
        len: Option<u64>,
        mut content: UploadStream,
    ) -> Result<(), ProviderError> {
        let call = self.session(target)?;
        let (api, id) = (&call.shared.api, call.id());
        let mut file = call.told(api.begin_file(id, path, mode, &unique()?).await)?;
        let beside = file.beside().to_owned();
        let written = async {
            while let Some(chunk) = content.next().await {
                let broken = |cause| refused(ErrorKind::Invalid, format!("the upload broke off: {cause}"));
                call.told(api.add(id, &mut file, &chunk.map_err(broken)?).await)?;
            }
            if len.is_some_and(|len| len != file.received()) {
                return Err(refused(ErrorKind::Invalid, "the upload has not the length that was announced"));
            }
            call.told(api.finish_file(id, file).await)
        };
        let written = written.await;
        if written.is_err() {
            api.drop_file(id, &beside).await;
        }
        written
    }

    async fn make_folder(
        &self,
        target: &Target,
        path: &str,
        _user: Option<&str>,
        mode: Option<u32>,
    ) -> Result<(), ProviderError> {
        let call = self.session(target)?;
        call.told(call.shared.api.make_folder(call.id(), path, mode).await)
    }

    async fn rename(
        &self,
        target: &Target,
        from: &str,
        to: &str,
        _user: Option<&str>,
    ) -> Result<(), ProviderError> {
        let call = self.session(target)?;
        call.told(call.shared.api.rename(call.id(), from, to).await)
    }

    async fn remove(&self, target: &Target, path: &str, _user: Option<&str>) -> Result<(), ProviderError> {
        let call = self.session(target)?;
        call.told(call.shared.api.remove(call.id(), path).await)
    }
}
