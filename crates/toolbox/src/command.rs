//! Runs programs in the sandbox to their end, with bounded output, as a list of arguments and never as a shell command.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::{AgentError, CommandOutput, RpcCode, StartProcess};

use crate::{Toolbox, ToolboxError};

/// LIMIT: bytes that are kept of each stream.
const OUTPUT_MAX: usize = 8 << 20;

/// A program to run.
pub(crate) struct ProgramCommand {
    pub(crate) program: &'static str,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) limit: Duration,
    /// The hint if the sandbox does not have the program.
    pub(crate) hint: &'static str,
}

impl Toolbox {
    pub(crate) async fn run(&self, command: ProgramCommand) -> Result<CommandOutput, ToolboxError> {
        let ProgramCommand { program, args, env, limit, hint } = command;
        let start = StartProcess {
            cmd: program.to_owned(),
            args,
            envs: env,
            tag: format!("toolbox-{program}"),
            user: self.user.clone(),
            timeout: Some(limit),
            ..Default::default()
        };
        let output = self.sandbox.run(start, OUTPUT_MAX).await.map_err(|cause| match cause {
            AgentError::Refused { code: RpcCode::NotFound, message }
                if message.contains("command not found") =>
            {
                ToolboxError::ToolMissing { tool: program, hint }
            }
            cause => ToolboxError::process(cause),
        })?;
        self.hold(2 * (output.stdout.len() + output.stderr.len())).await?;
        if output.status.timed_out {
            return Err(ToolboxError::TimedOut { what: program, limit });
        }
        Ok(output)
    }
}
