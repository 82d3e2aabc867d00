//! Grammar of the verbs that act on sandboxes.

use clap::{Args, ValueEnum};

use super::life::Timers;
use super::network::Reach;
use super::values::{
    CopyEndpoint, Mebibytes, Pair, Seconds, VolumeMount, cores, label, mebibytes, mount, place, seconds,
    signal, variable,
};

/// Settings of a new sandbox.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Shape {
    /// Template of the sandbox [default: the server's default template]
    #[arg(short = 'T', long)]
    pub(crate) template: Option<String>,
    /// Provider of the sandbox; `provider ls` shows them [default: the server's default provider]
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// Image from a registry instead of a template, such as python:3.12-slim; pulled if needed
    #[arg(long, value_name = "IMAGE", conflicts_with = "template")]
    pub(crate) image: Option<atoll_model::TemplateRef>,
    /// Mount a volume: NAME:/PATH, or NAME/FOLDER:/PATH for one of its folders; append :ro for read-only
    #[arg(short = 'v', long, value_parser = mount, value_name = "NAME:/PATH[:ro]")]
    pub(crate) volume: Vec<VolumeMount>,
    /// Name; unique within the tenant
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// CPU limit in cores, such as 0.5 or 2
    #[arg(long, value_parser = cores, allow_hyphen_values = true)]
    pub(crate) cpu: Option<f64>,
    /// Memory limit, such as 512m or 2g
    #[arg(short, long, value_parser = mebibytes, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory: Option<Mebibytes>,
    /// Disk limit, such as 512m or 10g
    #[arg(long, value_parser = mebibytes, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) disk: Option<Mebibytes>,
    /// Limit of processes and threads
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,
    /// Environment variable for every command: NAME=VALUE, or NAME to copy your own value
    #[arg(short, long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Pair>,
    /// Label: key=value
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Pair>,
    /// Where the files are stored
    #[arg(long, value_enum)]
    pub(crate) storage: Option<Storage>,
    /// User that runs commands
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// Wait for a place if the server or your quota is full, and show the position; Ctrl-C cancels
    #[arg(long)]
    pub(crate) queue: bool,
    /// How long to wait for a place, such as 5m [default: 10m]
    #[arg(long, value_parser = seconds, value_name = "DURATION", requires = "queue")]
    pub(crate) queue_timeout: Option<Seconds>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Storage {
    /// On disk; kept when the sandbox stops
    Disk,
    /// In memory; lost when the sandbox stops
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTimeout {
    /// Delete the sandbox with its files
    Delete,
    /// Stop the sandbox and keep its files
    Stop,
    /// Pause the sandbox and keep its files and memory
    Pause,
}

impl From<Storage> for atoll_client::words::Storage {
    fn from(word: Storage) -> Self {
        match word {
            Storage::Disk => Self::Disk,
            Storage::Memory => Self::Memory,
        }
    }
}

impl From<OnTimeout> for atoll_client::words::OnTimeout {
    fn from(word: OnTimeout) -> Self {
        match word {
            OnTimeout::Delete => Self::Delete,
            OnTimeout::Stop => Self::Stop,
            OnTimeout::Pause => Self::Pause,
        }
    }
}

const NETWORK_EXAMPLES: &str = "\
Network examples:
  --network deny-all                                   allow nothing, not even DNS
  --allow-domain pypi.org --allow-domain '*.pythonhosted.org'
  --inject 'api.example.com:Authorization=Bearer {secret:NAME}'
  --network policy.json --down 10m                     a policy file and a download limit";

/// Input and terminal of a command.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Attach {
    /// Send your stdin to the command; `run` sends piped input also without this option, `exec` does not
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Allocate a terminal for the command
    #[arg(short, long)]
    pub(crate) tty: bool,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = NETWORK_EXAMPLES)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) shape: Shape,
    #[command(flatten)]
    pub(crate) attach: Attach,
    /// Working directory of the command
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Time limit of the command, such as 30s (exit status 124)
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// Keep the sandbox afterwards and print its id
    #[arg(long)]
    pub(crate) keep: bool,
    /// With --learn: write the policy to this file instead of stderr
    #[arg(long, value_name = "FILE", requires = "learn", help_heading = "Network")]
    pub(crate) policy_out: Option<std::path::PathBuf>,
    /// Accepted for compatibility; deleting is the default
    #[arg(long, hide = true, conflicts_with = "keep")]
    pub(crate) rm: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = NETWORK_EXAMPLES)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) shape: Shape,
    /// Lifetime of the sandbox, such as 1h [default: until it is deleted]
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// Action at the end of the lifetime [default: delete]
    #[arg(long, value_enum, requires = "timeout")]
    pub(crate) on_timeout: Option<OnTimeout>,
    /// Create the sandbox from this snapshot (SANDBOX:NAME, name or id prefix) instead of a template
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["template", "image"])]
    pub(crate) snapshot: Option<String>,
    /// With --snapshot: restore its processes too
    #[arg(long, requires = "snapshot")]
    pub(crate) memory_of_snapshot: bool,
    /// Bind the sandbox to a thread, or print the sandbox that the thread has; `atoll thread end` applies its --on-exit
    #[arg(long, value_name = "NAME")]
    pub(crate) thread: Option<String>,
    /// Name of an --env variable that forks and snapshots do not inherit
    #[arg(long, value_name = "NAME")]
    pub(crate) private_env: Vec<String>,
    #[command(flatten)]
    pub(crate) timers: Timers,
    /// Return at once and do not wait until the sandbox runs
    #[arg(short = 'd', long, visible_alias = "no-wait")]
    pub(crate) detach: bool,
    /// Key of the request; a repeated create with the same key returns the same sandbox
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// Start command, which runs at every boot; `atoll logs` shows its output
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) attach: Attach,
    /// Start the command in the background; `atoll logs` shows its output
    #[arg(short, long, conflicts_with_all = ["tty", "interactive"])]
    pub(crate) detach: bool,
    /// Environment variable: NAME=VALUE, or NAME to copy your own value
    #[arg(short, long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Pair>,
    /// User that runs the command
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Working directory of the command
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Time limit of the command, such as 30s (exit status 124)
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Sh {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Thread name of the terminal; the shell keeps running when you detach, and the same name attaches to it again
    #[arg(long, value_name = "NAME")]
    pub(crate) thread: Option<String>,
    /// User that runs the shell
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Working directory of the command
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Ls {
    /// Include records of deleted sandboxes
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print only ids, one per line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Only sandboxes with this label; may be repeated
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Pair>,
    /// Only sandboxes in these phases
    #[arg(long, visible_alias = "state", value_delimiter = ',', value_parser = PHASES, conflicts_with = "all")]
    pub(crate) phase: Vec<String>,
    /// Only sandboxes of this template
    #[arg(short = 'T', long)]
    pub(crate) template: Option<String>,
    /// Only sandboxes of this tenant; an admin key sees those of every tenant
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<String>,
    /// Maximum number of results
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u32>,
}

const PHASES: [&str; 14] = [
    "creating",
    "running",
    "pausing",
    "paused",
    "resuming",
    "stopping",
    "stopped",
    "starting",
    "archiving",
    "archived",
    "restoring",
    "deleting",
    "deleted",
    "failed",
];

#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OpenPage {
    /// Name or id prefix of a sandbox to show
    pub(crate) sandbox: Option<String>,
    /// Print the link and start no browser
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Targets {
    /// Names or id prefixes of sandboxes
    #[arg(required = true)]
    pub(crate) sandboxes: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Rm {
    /// Names or id prefixes of sandboxes
    #[arg(required_unless_present_any = ["all", "all_tenants"])]
    pub(crate) sandboxes: Vec<String>,
    /// All sandboxes of the tenant of your key; with --label only those with the labels
    #[arg(long, conflicts_with = "sandboxes")]
    pub(crate) all: bool,
    /// All sandboxes of every tenant, which needs an admin key
    #[arg(long, conflicts_with_all = ["sandboxes", "all"])]
    pub(crate) all_tenants: bool,
    /// With --all or --all-tenants: only sandboxes with this label
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE", conflicts_with = "sandboxes")]
    pub(crate) label: Vec<Pair>,
    /// Remove their snapshots too
    #[arg(long)]
    pub(crate) snapshots: bool,
    /// Do not ask for confirmation, and ignore sandboxes that do not exist
    #[arg(short, long, visible_alias = "yes")]
    pub(crate) force: bool,
}

#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "atoll cp [OPTIONS] SRC... DST",
    after_help = "A relative path in the sandbox is relative to the home of the sandbox's user.\n\
  If DST exists, a directory is copied into it; otherwise it becomes DST. With several SRC, DST must be a\n\
  directory. Symbolic links are copied as links."
)]
pub(crate) struct Cp {
    /// Sources, then the destination; each is a local path, SANDBOX:PATH, or - for stdin or stdout
    #[arg(value_parser = place, value_name = "SRC... DST", required = true, num_args = 2..)]
    pub(crate) places: Vec<CopyEndpoint>,
    /// Accepted for compatibility with cp -r; directories are always copied recursively
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Logs {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Follow the output
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Top {
    /// Names or id prefixes of sandboxes [default: all running and paused ones]
    pub(crate) sandboxes: Vec<String>,
    /// Print once and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Update interval
    #[arg(long, value_parser = seconds, default_value = "2s", value_name = "DURATION")]
    pub(crate) interval: Seconds,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Network options without --network are added to the sandbox's policy; with --network they replace it.
Connections that both policies allow continue without interruption.

Examples:
  atoll update box --allow-domain pypi.org             allow one more domain in mode custom
  atoll update box --network deny-all                  allow nothing from now on
  atoll update box --network custom --allow-domain 'pypi.org' --up 1m"
)]
pub(crate) struct Update {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Set a label: key=value
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Pair>,
    /// Remove a label
    #[arg(long, value_name = "KEY")]
    pub(crate) remove_label: Vec<String>,
    /// CPU limit in cores, such as 0.5 or 2
    #[arg(long, value_parser = cores, allow_hyphen_values = true)]
    pub(crate) cpu: Option<f64>,
    /// Memory limit, such as 512m or 2g
    #[arg(short, long, value_parser = mebibytes, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory: Option<Mebibytes>,
    /// Disk limit, such as 512m or 10g
    #[arg(long, value_parser = mebibytes, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) disk: Option<Mebibytes>,
    /// Limit of processes and threads
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,
    /// New lifetime from now, such as 1h
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// Remove the lifetime
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) no_timeout: bool,
    /// Action at the end of the lifetime
    #[arg(long, value_enum)]
    pub(crate) on_timeout: Option<OnTimeout>,
    #[command(flatten)]
    pub(crate) timers: Timers,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// End learning and enforce the policy
    #[arg(long, conflicts_with = "learn", help_heading = "Network")]
    pub(crate) no_learn: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Events {
    /// Only events of this sandbox
    pub(crate) sandbox: Option<String>,
    /// Follow new events
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// All events after this number; 0 begins with the oldest
    #[arg(long, value_name = "SEQ")]
    pub(crate) after: Option<u64>,
    /// How many of the newest events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, conflicts_with_all = ["after", "follow"],
        value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) limit: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Signal {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Process id; `atoll ps` shows it
    pub(crate) pid: u32,
    /// Signal, such as TERM, KILL or 9
    #[arg(short, long, value_parser = signal, default_value = "TERM")]
    pub(crate) signal: i32,
}
