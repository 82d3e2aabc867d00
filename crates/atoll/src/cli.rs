//! The grammar of the command line; the commands themselves are in `commands/`.
//!
//! Common verbs stand alone (`run`, `exec`, `ls`), everything else is noun and verb (`template make`, `key create`).
//! This module only parses, and refuses invalid input before a request is sent.

pub(crate) mod backup;
pub(crate) mod life;
pub(crate) mod mcp;
mod named;
pub(crate) mod network;
pub(crate) mod remote;
pub(crate) mod sandbox;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod template;
pub(crate) mod tls;
pub(crate) mod tools;
pub(crate) mod values;
pub(crate) mod volume;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::environment as env;
use values::{Mebibytes, cores, mebibytes};

/// Run untrusted code in isolated Linux sandboxes on your own server.
#[derive(Debug, Parser)]
#[command(
    name = "atoll",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = EXAMPLES
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  atoll run -- python3 -c 'print(6*7)'     create a sandbox, run, delete it
  atoll create --name box                  create a sandbox that stays
  atoll sh box                             open a terminal in it
  atoll cp ./src box:/home/user/src        copy files in; the other order copies out
  atoll ls                                 list sandboxes
  atoll pause box                          pause it; `resume` continues
  atoll snapshot box --name clean          take a snapshot; `rollback box clean` returns to it
  atoll fork box -n 3                      create three copies of it
  atoll run --allow-domain pypi.org -- …   allow only that domain
  atoll run --image python:3.12-slim -- …  use an image from a registry
  atoll build -t app .                     build ./Dockerfile; then `run -T app`

Exit status of run and exec: that of the command; 124 timeout, 125 Atoll failed,
126 the command cannot be started, 127 the command was not found.";

/// Connection and output options of every command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// URL of the server; unix:PATH is a Unix socket [default: the context's, else the server of DATA, else
    /// /run/atoll/atoll.sock, else http://127.0.0.1:7070]
    #[arg(long, global = true, env = env::URL, hide_env_values = true, help_heading = "Connection")]
    pub(crate) url: Option<String>,
    /// API key [default: the context's, else none at a Unix socket, else DATA/admin.key on the same machine]
    #[arg(long, global = true, env = env::API_KEY, hide_env_values = true, help_heading = "Connection")]
    pub(crate) api_key: Option<String>,
    /// PEM file with an additional certificate authority to trust, for a server with https
    #[arg(long, global = true, env = env::CA, hide_env_values = true, value_name = "FILE", help_heading = "Connection")]
    pub(crate) ca: Option<PathBuf>,
    /// Tenant of the sandboxes that are named; needs an admin key [default: the tenant of your key]
    #[arg(long, global = true, value_name = "TENANT", help_heading = "Connection")]
    pub(crate) tenant: Option<String>,
    /// Data folder of the server [default: ~/.atoll]
    #[arg(long, global = true, env = env::DATA, hide_env_values = true, value_name = "DIR", help_heading = "Connection")]
    pub(crate) data: Option<PathBuf>,
    /// Configuration file of the server [default: DATA/config.toml if --data is given, else /etc/atoll/config.toml]
    #[arg(long, global = true, env = env::CONFIG, hide_env_values = true, value_name = "FILE", help_heading = "Connection")]
    pub(crate) config: Option<PathBuf>,
    /// The data folder that the configuration file names.
    #[arg(skip)]
    pub(crate) machine_data: Option<PathBuf>,
    /// The Unix socket that the configuration file names.
    #[arg(skip)]
    pub(crate) machine_socket: Option<PathBuf>,
    /// Stored server to use, with its key; `local` is the server of this machine [default: that of `atoll context use`]
    #[arg(long = "context", global = true, env = env::CONTEXT, hide_env_values = true, value_name = "NAME", help_heading = "Connection")]
    pub(crate) context_name: Option<String>,
    /// The context whose settings are above.
    #[arg(skip)]
    pub(crate) context: Option<String>,
    /// Certificates to trust, of that context, in PEM.
    #[arg(skip)]
    pub(crate) ca_pem: Option<String>,
    /// Print no warnings about versions and keys in clear text
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Print JSON on stdout, and errors as JSON on stderr
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
}

impl Global {
    /// Treats an empty value, as in `ATOLL_URL= atoll ls`, as none.
    pub(crate) fn drop_empty(&mut self) {
        self.url.take_if(|url| url.is_empty());
        self.api_key.take_if(|key| key.is_empty());
        self.ca.take_if(|file| file.as_os_str().is_empty());
        self.data.take_if(|folder| folder.as_os_str().is_empty());
        self.config.take_if(|file| file.as_os_str().is_empty());
        self.context_name.take_if(|name| name.is_empty());
    }

    /// Data folder of the server.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.data.clone().or_else(|| self.machine_data.clone()).unwrap_or_else(env::default_data)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a sandbox, run a command in it, delete it
    Run(sandbox::Run),
    /// Create a sandbox that stays
    Create(sandbox::Create),
    /// Run a command in a sandbox
    Exec(sandbox::Exec),
    /// Run code in a sandbox; it keeps its state between calls
    Code(tools::RunCode),
    /// Open a terminal in a sandbox
    #[command(visible_aliases = ["shell", "connect"])]
    Sh(sandbox::Sh),
    /// List sandboxes in every phase; with -a also deleted ones
    #[command(visible_alias = "list")]
    Ls(sandbox::Ls),
    /// Show all details of sandboxes: settings, why they are awake, the next timer
    #[command(visible_alias = "info")]
    Inspect(sandbox::Targets),
    /// Copy files into a sandbox or out of it
    Cp(sandbox::Cp),
    /// Run git in a sandbox
    Git(tools::GitArgs),
    /// Find lines in the files of a sandbox
    Grep(tools::GrepFiles),
    /// Show the output of the start command and of detached processes
    Logs(sandbox::Logs),
    /// Show the resource use of sandboxes, live on a terminal
    Top(sandbox::Top),
    /// List the processes in a sandbox that were started through Atoll
    Ps(sandbox::Target),
    /// Send a signal to a process of a sandbox
    #[command(visible_alias = "kill")]
    Signal(sandbox::Signal),
    /// Pause sandboxes; their processes and memory are kept
    Pause(life::Pause),
    /// Resume paused sandboxes; stopped and archived ones are started
    #[command(alias = "unpause")]
    Resume(sandbox::Targets),
    /// Start stopped sandboxes; paused ones are resumed, archived ones are restored
    Start(sandbox::Targets),
    /// Stop sandboxes; their files are kept
    Stop(sandbox::Targets),
    /// Stop and start sandboxes
    Restart(sandbox::Targets),
    /// Change the limits of a sandbox, also while it runs
    Resize(life::Resize),
    /// Take a snapshot of a sandbox; list, verify and remove snapshots
    Snapshot(life::Snapshot),
    /// Create copies of a sandbox
    #[command(alias = "clone")]
    Fork(life::Fork),
    /// Move a sandbox to another provider; it keeps its id, name, files, environment and thread
    Move(life::Move),
    /// Put a sandbox back to one of its snapshots; later changes are lost
    Rollback(life::Rollback),
    /// Move the files of sandboxes to object storage; running ones are stopped first
    Archive(sandbox::Targets),
    /// Restore archived sandboxes and leave them stopped; `start` restores and starts
    Restore(life::Restore),
    /// Prevent idle timers from acting on a sandbox for some time
    Hold(life::Hold),
    /// Extend the lifetime of a sandbox; never shortens it
    Extend(life::Extend),
    /// Delete sandboxes with their files
    #[command(visible_aliases = ["remove", "delete"], alias = "destroy")]
    Rm(sandbox::Rm),
    /// Change labels, limits, network, lifetime or timers
    Update(sandbox::Update),
    /// Open a port of a sandbox; list and close previews
    Preview(life::Preview),
    /// Show the connection attempts of a sandbox and the decisions; --policy prints the smallest policy for them
    Egress(network::Egress),
    /// Manage secrets, which are added to requests outside the sandbox
    #[command(subcommand)]
    Secret(network::Secret),
    /// Show events; with -f follow them
    Events(sandbox::Events),
    /// Manage threads, the conversations that sandboxes are bound to
    #[command(subcommand)]
    Thread(life::Thread),
    /// Manage templates: make, build, pull, share
    #[command(subcommand, visible_alias = "image")]
    Template(template::Template),
    /// Build a template from a folder with a Dockerfile; same as `template build`
    Build(template::Build),
    /// Manage volumes: files that outlive sandboxes and can be mounted into several
    #[command(subcommand)]
    Volume(volume::Volume),
    /// Manage the providers of the server: where sandboxes can live
    #[command(subcommand)]
    Provider(Provider),
    /// Open the web page in a browser, or print a link to it that works once, within a minute
    Open(sandbox::OpenPage),
    /// Log in to a server on another machine with a one-time code, or approve such a login
    Login(remote::Login),
    /// Revoke the key of a context and forget it
    Logout(remote::Logout),
    /// Show the server, tenant, key and rights that commands use
    Whoami,
    /// Manage contexts: servers on other machines, with their keys
    #[command(subcommand)]
    Context(remote::Context),
    /// Manage API keys
    #[command(subcommand)]
    Key(Key),
    /// Manage tenants and their quotas
    #[command(subcommand)]
    Tenant(Tenant),
    /// Manage the server's certificates for HTTPS
    #[command(subcommand)]
    Tls(tls::Tls),
    /// Print the variables that point an official SDK at this server: eval "$(atoll env leap0)"
    Env(tls::Env),
    /// Serve MCP to a coding agent over stdin and stdout; `mcp install` adds it to the agent's configuration
    Mcp(mcp::Mcp),
    /// Run the server in the foreground
    Serve(Box<serve::Serve>),
    /// Manage the server of this machine: install it as a service, start, stop, logs, settings, backup
    #[command(subcommand)]
    Server(server::Server),
    /// Show what takes space on the disk of the server
    #[command(subcommand)]
    System(System),
    /// Remove what nothing needs from the disk of the server; lists it first
    Prune(PruneArgs),
    /// Check what this machine supports and show fixes; needs no server
    Doctor,
    /// Print the OpenAPI document of the native API; needs no server
    Openapi,
    /// Print the versions of this program and of the server
    Version,
    /// Print the completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands into a folder; for packages
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
    /// The process that makes namespaces, mounts and first processes; started by `serve`
    #[command(hide = true)]
    Launcher {
        /// Passed on as they are
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

impl Command {
    /// Whether it goes to the server of the current context. Others concern this machine or no server at all.
    pub(crate) fn uses_context(&self) -> bool {
        match self {
            Self::Login(login) => login.server.is_none(),
            Self::Serve(_)
            | Self::Server(_)
            | Self::Launcher { .. }
            | Self::Doctor
            | Self::Openapi
            | Self::Completions { .. }
            | Self::Tls(_)
            | Self::Context(_)
            | Self::Logout(_) => false,
            _ => true,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Provider {
    /// List providers with their isolation and health
    #[command(visible_alias = "list")]
    Ls {
        /// Show cost and capabilities too
        #[arg(short, long)]
        wide: bool,
    },
    /// Show the settings of a provider, without its secrets
    Show {
        /// Name of the provider
        name: String,
    },
    /// Change the settings of a provider, or add one
    Set {
        /// Name of the provider
        name: String,
        #[command(flatten)]
        change: ProviderChange,
    },
    /// Remove the settings of a provider; its sandboxes go on
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Name of the provider
        name: String,
    },
    /// Check that a provider can be used
    Test {
        /// Name of the provider
        name: String,
    },
}

/// Changes of the settings of a provider. Absent options stay unchanged.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub(crate) struct ProviderChange {
    /// File with the whole settings as JSON; - reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kind", "fields", "on_exit", "enable", "disable", "key_stdin"])]
    pub(crate) file: Option<String>,
    /// Kind of the provider: container, docker, local, e2b, daytona or agentbay [default: the current one, else the name]
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// Set a field of the kind, such as image=python:3.12-slim; an empty value removes it; may be repeated
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub(crate) fields: Vec<String>,
    /// What an orderly end of the server does with sandboxes that belong to a thread: keep, pause or destroy
    #[arg(long, value_name = "ACTION")]
    pub(crate) on_exit: Option<String>,
    /// Allow the use of the provider
    #[arg(long, conflicts_with = "disable")]
    pub(crate) enable: bool,
    /// Refuse new sandboxes
    #[arg(long)]
    pub(crate) disable: bool,
    /// Read the API key from stdin
    #[arg(long)]
    pub(crate) key_stdin: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Create a key; its secret is shown only once
    Create {
        /// Name of the key
        #[arg(long)]
        name: Option<String>,
        /// Tenant of the key [default: the tenant of the key that you use]
        #[arg(long)]
        tenant: Option<String>,
        /// Create an admin key, which sees every tenant and may manage keys, tenants and templates
        #[arg(long)]
        admin: bool,
    },
    /// List keys, without their secrets
    #[command(visible_alias = "list")]
    Ls,
    /// Remove keys; they stop working at once
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Ids of keys; `key ls` shows them
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tenant {
    /// Create a tenant
    Create {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        quota: QuotaArgs,
    },
    /// List tenants
    #[command(visible_alias = "list")]
    Ls,
    /// Show or set the network policy that narrows all sandboxes of a tenant
    Network {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        reach: network::Reach,
        /// Remove the policy of the tenant
        #[arg(long, conflicts_with_all = ["network", "allow_domain", "allow_cidr", "deny_cidr", "up", "down", "connections", "bytes_per_destination"])]
        none: bool,
    },
    /// Show or set the providers that a tenant may use
    Providers {
        /// Name of the tenant
        name: String,
        /// Provider that it may use, and no other that is not named; may be repeated
        #[arg(long, value_name = "PROVIDER")]
        allow: Vec<String>,
        /// Remove the list: container and microvm, and the server's default
        #[arg(long, alias = "any", conflicts_with = "allow")]
        default: bool,
    },
    /// Show the use and quota of a tenant, or set the quota
    Quota {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        quota: QuotaArgs,
    },
}

/// The quota of a tenant. Absent options stay unchanged.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct QuotaArgs {
    /// Number of sandboxes
    #[arg(long)]
    pub(crate) sandboxes: Option<u32>,
    /// Total cores of running sandboxes
    #[arg(long, value_parser = cores)]
    pub(crate) cpu: Option<f64>,
    /// Total memory of running sandboxes, such as 8g
    #[arg(long, value_parser = mebibytes)]
    pub(crate) memory: Option<Mebibytes>,
    /// Total disk of all sandboxes, such as 100g
    #[arg(long, value_parser = mebibytes)]
    pub(crate) disk: Option<Mebibytes>,
    /// Number of volumes
    #[arg(long)]
    pub(crate) volumes: Option<u32>,
    /// Total size of all volumes, such as 100g
    #[arg(long, value_parser = mebibytes)]
    pub(crate) volume_size: Option<Mebibytes>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum System {
    /// Show what takes space: the parts of the data folder, sandboxes, snapshots, volumes, templates, archives
    Df {
        /// Show every sandbox, snapshot, volume and template, not only the largest
        #[arg(short, long)]
        all: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Remove it without confirmation
    #[arg(short, long, visible_alias = "yes")]
    pub(crate) force: bool,
    /// Age of failed sandboxes, ended builds, logs and downloads, such as 12h [default: 7d]
    #[arg(long, value_name = "DURATION", value_parser = values::seconds)]
    pub(crate) older_than: Option<values::Seconds>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn aliases_people_type_are_understood() {
        for line in [
            &["atoll", "list"][..],
            &["atoll", "ls", "-aq"],
            &["atoll", "remove", "a", "b"],
            &["atoll", "delete", "a"],
            &["atoll", "info", "a"],
            &["atoll", "run", "python3", "-c", "print(1)"],
            &["atoll", "run", "--", "ls", "--json"],
            &["atoll", "exec", "-it", "a", "bash"],
            &["atoll", "run", "-it", "--rm", "bash"],
            &["atoll", "logs", "-f", "a"],
            &["atoll", "code", "a"],
            &["atoll", "git", "a", "-C", "src", "log", "--oneline", "-n", "5"],
            &["atoll", "git", "-t", "a", "--", "--version"],
            &["atoll", "grep", "-iF", "--include", "*.py", "a", "todo", "src"],
            &["atoll", "code", "a", "-"],
            &["atoll", "code", "-l", "js", "a", "--", "-1"],
            &["atoll", "code", "a", "--context", "c", "x = 1"],
            &["atoll", "--json", "ls"],
            &["atoll", "ls", "--json"],
            &["atoll", "server", "logs", "-f", "-n", "20"],
            &["atoll", "server", "config", "--", "--pool", "0"],
            &["atoll", "server", "install", "--print"],
            &["atoll", "template", "list"],
            &["atoll", "pause", "--memory", "disk", "a", "b"],
            &["atoll", "snapshot", "box", "--name", "n", "--memory"],
            &["atoll", "snapshot", "create", "box", "--name", "n"],
            &["atoll", "snapshot", "list", "box"],
            &["atoll", "snapshot", "delete", "a", "b"],
            &["atoll", "fork", "box", "-n", "3"],
            &["atoll", "restore", "a", "b"],
            &["atoll", "restore", "--from", "key", "--name", "n"],
            &["atoll", "hold", "box"],
            &["atoll", "hold", "box", "10m", "--reason", "a build"],
            &["atoll", "hold", "box", "--release"],
            &["atoll", "create", "--network", "custom", "--allow-domain", "*.example.com"],
            &["atoll", "run", "--inject", "a.com:X=1", "--strip", "a.com:Y", "--up", "1m", "--learn", "true"],
            &["atoll", "update", "box", "--deny-cidr", "10.0.0.0/8", "--connections", "5"],
            &["atoll", "egress", "box", "-f"],
            &["atoll", "egress", "box", "-f", "-n", "0"],
            &["atoll", "shell", "box"],
            &["atoll", "update", "box", "--no-learn"],
            &["atoll", "egress", "box", "--policy", "--json"],
            &["atoll", "egress", "box", "-n", "5", "--since", "10m", "--verdict", "refused"],
            &["atoll", "secret", "list"],
            &["atoll", "secret", "create", "A", "--from-env", "B"],
            &["atoll", "secret", "rotate", "A", "--from-file", "f"],
            &["atoll", "secret", "delete", "A", "B"],
            &["atoll", "tenant", "network", "acme", "--none"],
            &["atoll", "create", "--auto-stop", "-1", "--auto-delete", "0", "--auto-pause", "never"],
            &[
                "atoll",
                "create",
                "--image",
                "python:3.12-slim",
                "--volume",
                "data:/data",
                "-v",
                "data/a:/b:ro",
            ],
            &["atoll", "build", "-t", "app:v1", "-t", "app:v2", "--build-arg", "A=1", "."],
            &[
                "atoll",
                "template",
                "build",
                "-t",
                "app",
                "--secret",
                "id=a,src=/x",
                "--start",
                "x",
                "--ready",
                "port:1",
            ],
            &["atoll", "template", "pull", "127.0.0.1:5000/a/b:c"],
            &["atoll", "image", "pull", "--username", "a", "--password-stdin", "x.test/a"],
            &["atoll", "template", "push", "app", "x.test/a:b"],
            &["atoll", "template", "export", "app", "-o", "-", "--format", "docker"],
            &["atoll", "template", "import", "-", "app:v1"],
            &["atoll", "template", "tag", "app:v1", "stable", "latest"],
            &["atoll", "template", "tag", "--remove", "app", "old"],
            &["atoll", "template", "gc"],
            &["atoll", "volume", "create", "data", "--size", "10g"],
            &["atoll", "volume", "create", "code", "--folder", "/srv/code", "--read-only"],
            &["atoll", "volume", "put", "data", "a", "/b/"],
            &["atoll", "volume", "files", "data"],
        ] {
            assert!(Cli::try_parse_from(line).is_ok(), "{line:?}");
        }
    }

    #[test]
    fn words_after_the_command_belong_to_it() {
        let cli = Cli::try_parse_from(["atoll", "run", "ls", "--json", "-a"]).expect("valid");
        let Command::Run(run) = cli.command else { panic!("run") };
        assert_eq!(run.command, ["ls", "--json", "-a"]);
        assert!(!cli.global.json);
    }

    #[test]
    fn a_mistyped_option_is_refused_and_never_taken_for_the_command() {
        for line in [
            &["atoll", "run", "--memry", "64m", "true"][..],
            &["atoll", "run", "--memry=64m", "--", "true"],
            &["atoll", "create", "--nam", "box"],
            &["atoll", "exec", "box", "--tmeout", "1s", "true"],
        ] {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
        let cli = Cli::try_parse_from(["atoll", "run", "--", "--odd", "-x"]).expect("valid");
        let Command::Run(run) = cli.command else { panic!("run") };
        assert_eq!(run.command, ["--odd", "-x"]);
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for line in [
            &["atoll", "snapshot"][..],
            &["atoll", "fork", "box", "-n", "0"],
            &["atoll", "fork", "box", "-n", "101"],
            &["atoll", "hold", "box", "10m", "--release"],
            &["atoll", "restore"],
            &["atoll", "restore", "a", "--from", "key"],
            &["atoll", "restore", "a", "--name", "n"],
            &["atoll", "create", "--memory-of-snapshot"],
            &["atoll", "create", "--snapshot", "s", "--template", "t"],
            &["atoll", "extend", "box"],
            &["atoll", "pause"],
            &["atoll", "code", "a", "--context", "c", "-l", "r", "x"],
            &["atoll", "code", "a", "x", "y"],
            &["atoll", "egress"],
            &["atoll", "egress", "box", "-f", "--policy"],
            &["atoll", "egress", "box", "--verdict", "maybe"],
            &["atoll", "secret", "create", "A", "--from-env", "B", "--from-file", "f"],
            &["atoll", "create", "--inject", "a.com"],
            &["atoll", "create", "--up", "5"],
            &["atoll", "tenant", "network", "acme", "--none", "--network", "deny-all"],
            &["atoll", "create", "--image", "a", "--template", "b"],
            &["atoll", "create", "--image", "a", "--snapshot", "b"],
            &["atoll", "create", "--image", "A B"],
            &["atoll", "create", "--volume", "./here:/there"],
            &["atoll", "build", "."],
            &["atoll", "build", "-t", "app", "--ready", "port:1"],
            &["atoll", "template", "pull", "http://a/b"],
            &["atoll", "template", "pull", "a", "--username", "b"],
            &["atoll", "volume", "create", "a", "--size", "1g", "--folder", "/b"],
        ] {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn help_is_as_reviewed() {
        let mut texts = String::new();
        let mut root = Cli::command().term_width(100);
        root.build();
        collect(&mut root, &mut texts);
        insta::assert_snapshot!(texts);
    }

    #[test]
    fn usage_lines_show_no_hidden_option() {
        let mut root = Cli::command().term_width(100);
        root.build();
        let (mut seen, mut shown) = (0, Vec::new());
        each(&mut root, &mut |command| {
            let hidden: Vec<String> =
                command.get_arguments().filter(|arg| arg.is_hide_set()).map(word).collect();
            seen += hidden.len();
            let name = command.get_bin_name().unwrap_or("atoll").to_owned();
            // clap's error for a wrong line has its own usage text.
            let wrong = name.split(' ').chain(["--no-such-option"]);
            let refused = Cli::try_parse_from(wrong).map_err(|error| error.render().to_string());
            let usages = [command.render_usage().to_string(), refused.err().unwrap_or_default()];
            for usage in usages {
                let words: Vec<&str> = usage.split([' ', '[', ']', '<', '>', '|', '.', '=', '\n']).collect();
                shown.extend(hidden.iter().filter(|word| words.contains(&word.as_str())).cloned());
            }
        });
        assert!(seen > 0, "there are hidden options");
        assert!(shown.is_empty(), "{shown:?}");
    }

    /// How an argument is written in a usage line.
    fn word(arg: &clap::Arg) -> String {
        match (arg.get_long(), arg.get_value_names()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some([name, ..])) => name.to_string(),
            (None, _) => arg.get_id().to_string().to_uppercase(),
        }
    }

    fn each(command: &mut clap::Command, look: &mut impl FnMut(&mut clap::Command)) {
        look(command);
        command.get_subcommands_mut().for_each(|child| each(child, look));
    }

    fn collect(command: &mut clap::Command, texts: &mut String) {
        let name = command.get_bin_name().unwrap_or("atoll").to_owned();
        texts.push_str(&format!("$ {name} --help\n{}\n\n", command.render_help()));
        for child in command.get_subcommands_mut() {
            // `help` has a copy of every command below it.
            if !child.is_hide_set() && child.get_name() != "help" {
                collect(child, texts);
            }
        }
    }
}
