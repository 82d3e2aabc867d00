//! Commands and files by the calls of the toolbox.

use async_trait::async_trait;
use atoll_agentapi::{Entry, Range, TerminalSize, UploadStream};
use atoll_model::ErrorKind;
use atoll_provider::{
    FileContent, ProcessOutput, ProcessSpec, ProviderError, RunningProcess, SessionSupport, StartedProcess,
    Target,
};
use bytes::Bytes;

use crate::DaytonaProvider;
use crate::process::refused;
use crate::scripts;
use crate::toolbox::ScriptRun;

/// The toolbox has no choice of users, so `user` is never named here.
#[async_trait]
impl SessionSupport for DaytonaProvider {
    async fn start_process(
        &self,
        target: &Target,
        what: ProcessSpec,
    ) -> Result<StartedProcess, ProviderError> {
        let call = self.begin_call(target).await?;
        match (what.argv.is_empty(), what.terminal) {
            (true, _) => Err(refused(ErrorKind::Invalid, "there is no program to start")),
            (false, Some(size)) => call.open_terminal(what, size).await,
            (false, None) => call.start(what).await,
        }
    }

    async fn attach_process(&self, target: &Target, id: &str) -> Result<ProcessOutput, ProviderError> {
        let call = self.begin_call(target).await?;
        let (pid, process) = call.find(id).await?;
        match process.is_terminal {
            true => call.attach_terminal(pid, process.token).await,
            false => call.follow(pid, process.token).await,
        }
    }

    async fn processes(&self, target: &Target) -> Result<Vec<RunningProcess>, ProviderError> {
        let call = self.begin_call(target).await?;
        Ok(call.list().await?.into_iter().map(|(_, process)| process).collect())
    }

    async fn write_stdin(&self, target: &Target, id: &str, data: Bytes) -> Result<(), ProviderError> {
        let call = self.begin_call(target).await?;
        let (pid, process) = call.find(id).await?;
        match process.is_terminal {
            true => call.type_in(pid, &process.token, data).await,
            false => call.input(id, &process.token, &data).await,
        }
    }

    async fn close_stdin(&self, target: &Target, id: &str) -> Result<(), ProviderError> {
        let call = self.begin_call(target).await?;
        let (_, process) = call.find(id).await?;
        call.on_process(id, ScriptRun::new(scripts::CLOSE_INPUT, vec![&process.token])).await
    }

    async fn signal(&self, target: &Target, id: &str, signal: i32) -> Result<(), ProviderError> {
        let call = self.begin_call(target).await?;
        let ((_, process), signal) = (call.find(id).await?, signal.to_string());
        call.on_process(id, ScriptRun::new(scripts::SIGNAL, vec![&process.token, &signal])).await
    }

    async fn resize_terminal(
        &self,
        target: &Target,
        id: &str,
        size: TerminalSize,
    ) -> Result<(), ProviderError> {
        let call = self.begin_call(target).await?;
        let (_, process) = call.find(id).await?;
        call.told(call.access.resize_terminal(&process.token, size.cols, size.rows).await).await
    }

    async fn stat(&self, target: &Target, path: &str, _: Option<&str>) -> Result<Entry, ProviderError> {
        self.begin_call(target).await?.stat(path).await
    }

    async fn list_folder(
        &self,
        target: &Target,
        path: &str,
        _: Option<&str>,
    ) -> Result<Vec<Entry>, ProviderError> {
        self.begin_call(target).await?.list_folder(path).await
    }

    async fn read_file(
        &self,
        target: &Target,
        path: &str,
        _: Option<&str>,
        range: Option<Range>,
    ) -> Result<FileContent, ProviderError> {
        self.begin_call(target).await?.read_file(path, range).await
    }

    async fn write_file(
        &self,
        target: &Target,
        path: &str,
        _: Option<&str>,
        mode: Option<u32>,
        _: Option<u64>,
        content: UploadStream,
    ) -> Result<(), ProviderError> {
        self.begin_call(target).await?.write_file(path, mode, content).await
    }

    async fn make_folder(
        &self,
        target: &Target,
        path: &str,
        _: Option<&str>,
        mode: Option<u32>,
    ) -> Result<(), ProviderError> {
        self.begin_call(target).await?.make_folder(path, mode).await
    }

    async fn rename(
        &self,
        target: &Target,
        from: &str,
        to: &str,
        _: Option<&str>,
    ) -> Result<(), ProviderError> {
        self.begin_call(target).await?.rename(from, to).await
    }

    async fn remove(&self, target: &Target, path: &str, _: Option<&str>) -> Result<(), ProviderError> {
        self.begin_call(target).await?.remove(path).await
    }
}
