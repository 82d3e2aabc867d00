//! Grammar of `mcp`.

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Without a subcommand it speaks MCP on stdin and stdout, and passes every message to the server.
The server itself speaks MCP over HTTP at /mcp.

Examples:
  atoll mcp install claude              add Atoll to Claude Code, for you
  atoll mcp install cursor --project    add it to .cursor/mcp.json of this folder
  atoll mcp install codex --print       show the configuration and change nothing
  atoll mcp install vscode --remove     remove it again"
)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    pub(crate) command: Option<McpCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Add `atoll mcp` to the configuration of a coding agent; everything else in the file stays as it is
    Install(McpInstall),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct McpInstall {
    /// The coding agent
    #[arg(value_enum)]
    pub(crate) agent: CodingAgent,
    /// Change the configuration of the current folder instead of yours
    #[arg(long)]
    pub(crate) project: bool,
    /// Print the configuration and change nothing
    #[arg(long, conflicts_with = "remove")]
    pub(crate) print: bool,
    /// Remove Atoll from the configuration
    #[arg(long)]
    pub(crate) remove: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodingAgent {
    /// Claude Code
    Claude,
    /// Codex CLI
    Codex,
    /// Cursor
    Cursor,
    /// Visual Studio Code
    #[value(alias = "code")]
    Vscode,
}
