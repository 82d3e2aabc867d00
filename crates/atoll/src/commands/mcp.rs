//! `mcp`: serves MCP on stdin and stdout, and adds itself to the configuration of coding agents.

mod bridge;
mod config_file;
mod install;

use crate::cli::mcp::{Mcp, McpCommand};
use crate::commands::CommandContext;
use crate::failure::Failure;

pub(super) async fn mcp(context: &CommandContext, args: Mcp) -> Result<(), Failure> {
    match args.command {
        None => bridge::run(context).await,
        Some(McpCommand::Install(args)) => install::install(context, &args),
    }
}
