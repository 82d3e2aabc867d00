//! Adds `atoll mcp` to the configuration of a coding agent, shows that configuration, or removes it.

use std::path::PathBuf;

use serde::Serialize;

use super::config_file::{ConfigFile, ServerEntry};
use crate::cli::Global;
use crate::cli::mcp::{CodingAgent, McpInstall};
use crate::commands::CommandContext;
use crate::environment;
use crate::failure::Failure;

/// The name of the server in every configuration.
const NAME: &str = "atoll";

#[derive(Serialize)]
struct Installed<'a> {
    agent: &'a str,
    file: String,
    changed: bool,
}

pub(super) fn install(context: &CommandContext, args: &McpInstall) -> Result<(), Failure> {
    let file = config_file(args.agent, args.project)?;
    let entry = entry(args.agent, args.project, &context.global)?;
    if args.print {
        return context.out.line(file.snippet(NAME, &entry).trim_end());
    }
    let changed = if args.remove { file.remove(NAME)? } else { file.put(NAME, &entry)? };
    let (agent, path) = (name_of(args.agent), file.path().display().to_string());
    if context.out.json {
        return context.out.json(&Installed { agent, file: path, changed });
    }
    let text = match (args.remove, changed) {
        (false, true) => format!("{path}: {agent} now uses Atoll; restart it"),
        (false, false) => format!("{path}: {agent} uses Atoll already"),
        (true, true) => format!("{path}: Atoll was removed"),
        (true, false) => format!("{path}: Atoll is not in it"),
    };
    context.out.line(&text)
}

const fn name_of(agent: CodingAgent) -> &'static str {
    match agent {
        CodingAgent::Claude => "Claude Code",
        CodingAgent::Codex => "Codex",
        CodingAgent::Cursor => "Cursor",
        CodingAgent::Vscode => "VS Code",
    }
}

/// Where the agent reads its servers, and below which field.
fn config_file(agent: CodingAgent, project: bool) -> Result<ConfigFile, Failure> {
    let base = match project {
        true => std::env::current_dir()
            .map_err(|e| Failure::new("internal", format!("there is no current folder: {e}")))?,
        false => environment::home(),
    };
    let at = |path: &str| -> PathBuf { base.join(path) };
    Ok(match (agent, project) {
        (CodingAgent::Claude, true) => ConfigFile::json(at(".mcp.json"), "mcpServers"),
        (CodingAgent::Claude, false) => ConfigFile::json(at(".claude.json"), "mcpServers"),
        (CodingAgent::Codex, _) => ConfigFile::toml(at(".codex/config.toml"), "mcp_servers"),
        (CodingAgent::Cursor, _) => ConfigFile::json(at(".cursor/mcp.json"), "mcpServers"),
        (CodingAgent::Vscode, true) => ConfigFile::json(at(".vscode/mcp.json"), "servers"),
        (CodingAgent::Vscode, false) => ConfigFile::json(at(".config/Code/User/mcp.json"), "servers"),
    })
}

/// How the agent starts `atoll mcp`. The configuration of a project is shared, so it has no path of this machine; and a key is
/// never written, only the variable that has it.
fn entry(agent: CodingAgent, project: bool, global: &Global) -> Result<ServerEntry, Failure> {
    let command = match project {
        true => NAME.to_owned(),
        false => std::env::current_exe()
            .map_err(|e| Failure::new("internal", format!("the path of this program is unknown: {e}")))?
            .display()
            .to_string(),
    };
    let mut entry = ServerEntry { command, args: vec!["mcp".to_owned()], ..ServerEntry::default() };
    let mut put = |name: &str, value: String| entry.env.insert(name.to_owned(), value);
    if let Some(url) = &global.url {
        put(environment::URL, url.clone());
    }
    for (name, path) in [(environment::DATA, &global.data), (environment::CA, &global.ca)] {
        if let Some(path) = path {
            put(name, std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string());
        }
    }
    if global.api_key.is_some() {
        let name = environment::API_KEY;
        match agent {
            CodingAgent::Claude => drop(put(name, format!("${{{name}:-}}"))),
            CodingAgent::Cursor | CodingAgent::Vscode => drop(put(name, format!("${{env:{name}}}"))),
            CodingAgent::Codex => entry.env_vars.push(name.to_owned()),
        }
    }
    if agent == CodingAgent::Vscode {
        entry.kind = Some("stdio");
    }
    Ok(entry)
}
