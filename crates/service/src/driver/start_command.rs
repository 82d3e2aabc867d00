//! The start command of a sandbox: whether it could be started, and how it ends.
//!
//! The lease records a failure until the next boot. The command is watched by a stream of the agent, which a pause may
//! interrupt. A provider without the agent is not watched: the stream would be a request that its vendor counts as use.

use atoll_agentapi::{ExitStatus, ProcessEvent, ProcessStream};
use atoll_model::{CommandFailure, InstanceId, Lease, Phase};
use tokio::sync::oneshot;

use super::steps::ChangedLease;
use super::{Driver, DriverMessage, Edit};
use crate::agent::StartedCommand;
use crate::follow::WayBack;
use crate::registry::Handle;

/// The name of the changed field in events.
const FIELD: &str = "command_failure";

impl Driver {
    /// The lease with what the attempt to start its command says; `None` if that changes nothing.
    pub(super) fn with_command(&self, command: &StartedCommand) -> Option<Box<ChangedLease>> {
        let command_failure = match command {
            StartedCommand::None | StartedCommand::Running { .. } => None,
            StartedCommand::Failed { exit_code, message } => Some(CommandFailure {
                exit_code: *exit_code,
                message: message.clone(),
                at: self.inner.clock.now(),
            }),
        };
        let is_same = self.lease.command_failure == command_failure;
        let fields = vec![FIELD.to_owned()];
        let changed = || ChangedLease { lease: Lease { command_failure, ..self.lease.clone() }, fields };
        (!is_same).then(|| Box::new(changed()))
    }

    /// Waits for the end of a command that runs. The watch ends with the instance.
    pub(super) fn watch_command(&mut self, command: StartedCommand) {
        let StartedCommand::Running { pid, stream } = command else { return };
        let known = self.inner.registry.get(&self.lease.id).zip(self.lease.instance.clone());
        let Some((handle, instance)) = known else { return };
        if self.lease.phase != Phase::Running || self.provider.session_support().is_ok() {
            return;
        }
        drop(self.inner.spawn(async move {
            if let Some(status) = end_of(&handle, pid, stream).await
                && status.shell_code() != 0
            {
                report(&handle, instance, status).await;
            }
        }));
    }
}

/// How the process ends; `None` if its instance ends first.
async fn end_of(handle: &Handle, pid: u32, mut stream: ProcessStream) -> Option<ExitStatus> {
    let mut back = WayBack::new(handle.clone());
    loop {
        match stream.next().await? {
            Ok(ProcessEvent::Exit(status)) => return Some(status),
            // Its output is in the logs.
            Ok(_) => {}
            Err(error) => {
                let from = stream.position()?;
                stream = back.after(&error).await?.attach_from(pid, from).await.ok()?;
            }
        }
    }
}

/// Records the failure, if the sandbox still runs the instance: a stop ends its processes too.
async fn report(handle: &Handle, instance: InstanceId, status: ExitStatus) {
    let message = match status.signal {
        Some(signal) => format!("the start command was ended by signal {signal}"),
        None => format!("the start command ended with status {}", status.shell_code()),
    };
    let edit: Edit = Box::new(move |lease, now| {
        if lease.phase != Phase::Running || lease.instance.as_ref() != Some(&instance) {
            return Ok(Vec::new());
        }
        let failure = CommandFailure { exit_code: status.shell_code(), message, at: now.clone() };
        lease.command_failure = Some(failure);
        Ok(vec![FIELD])
    });
    let (reply, answer) = oneshot::channel();
    if handle.mailbox.send(DriverMessage::Edit { edit, reply }.into()).await.is_ok() {
        // The driver logs a write that failed.
        let _ = answer.await;
    }
}
