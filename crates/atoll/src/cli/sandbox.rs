//! Grammar of the verbs that act on sandboxes.

use clap::{Args, ValueEnum};

use super::life::Timers;
use super::network::Reach;
use super::values::{
    CopyEndpoint, Mebibytes, Pair, Seconds, VolumeMount, cores, label, mebibytes, mount, place, seconds,
    signal, variable,
};

/// What a new sandbox is made of.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Shape {
    /// What it starts from [default: the server's]
    #[arg(short = 'T', long)]
    pub(crate) template: Option<String>,
    /// Start from an image of a registry, pulled when it is not here, such as python:3.12-slim
    #[arg(long, value_name = "IMAGE", conflicts_with = "template")]
    pub(crate) image: Option<atoll_model::TemplateRef>,
    /// Mount a volume: NAME:/PATH, NAME/FOLDER:/PATH for a folder of it, :ro at the end to read only
    #[arg(short = 'v', long, value_parser = mount, value_name = "NAME:/PATH[:ro]")]
    pub(crate) volume: Vec<VolumeMount>,
    /// A name of your own
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Cores, such as 0.5 or 2
    #[arg(long, value_parser = cores)]
    pub(crate) cpu: Option<f64>,
    /// Memory, such as 512m or 2g
    #[arg(short, long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) memory: Option<Mebibytes>,
    /// Disk, such as 512m or 10g
    #[arg(long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) disk: Option<Mebibytes>,
    /// Processes and threads
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,
    /// A variable for every command: NAME=VALUE, or NAME to pass yours on
    #[arg(short, long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Pair>,
    /// A label: key=value
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Pair>,
    /// Where its files live
    #[arg(long, value_enum)]
    pub(crate) storage: Option<Storage>,
    /// Who commands run as
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Storage {
    /// Kept over a stop
    Disk,
    /// In memory, and gone at a stop
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTimeout {
    /// Delete it with its files
    Delete,
    /// Stop it and keep its files
    Stop,
    /// Pause it and keep its memory too
    Pause,
}

impl From<Storage> for atoll_wire::words::Storage {
    fn from(word: Storage) -> Self {
        match word {
            Storage::Disk => Self::Disk,
            Storage::Memory => Self::Memory,
        }
    }
}

impl From<OnTimeout> for atoll_wire::words::OnTimeout {
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
  --network deny-all                                   nothing, not even DNS
  --allow-domain pypi.org --allow-domain '*.pythonhosted.org'
  --inject 'api.example.com:Authorization=Bearer {secret:NAME}'
  --network policy.json --down 10m                     a file, and a limit";

/// How a command meets the terminal.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Attach {
    /// Pass your input on to the command; `run` passes piped input on without it, `exec` does not
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give the command a terminal
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
    /// Folder the command starts in
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// End the command after this long, such as 30s (exit status 124)
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// Keep the sandbox afterwards and say its id
    #[arg(long)]
    pub(crate) keep: bool,
    /// With --learn: write the policy to this file instead of stderr
    #[arg(long, value_name = "FILE", requires = "learn", help_heading = "Network")]
    pub(crate) policy_out: Option<std::path::PathBuf>,
    /// Accepted for habit: deleting is the default
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
    /// How long it may live, such as 1h [default: until it is deleted]
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// What happens then [default: delete]
    #[arg(long, value_enum, requires = "timeout")]
    pub(crate) on_timeout: Option<OnTimeout>,
    /// Make it from this snapshot instead of a template: name, id or beginning of an id
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["template", "image"])]
    pub(crate) snapshot: Option<String>,
    /// With --snapshot: its processes too
    #[arg(long, requires = "snapshot")]
    pub(crate) memory_of_snapshot: bool,
    /// Bind it to a thread of conversation; `atoll thread end` ends it
    #[arg(long, value_name = "NAME")]
    pub(crate) thread: Option<String>,
    /// A variable of --env that no fork and no snapshot inherits
    #[arg(long, value_name = "NAME")]
    pub(crate) private_env: Vec<String>,
    #[command(flatten)]
    pub(crate) timers: Timers,
    /// Answer at once instead of when it runs
    #[arg(short = 'd', long, visible_alias = "no-wait")]
    pub(crate) detach: bool,
    /// A repeated create with the same key answers the same sandbox
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// A command started at every boot; its output is in `atoll logs`
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) attach: Attach,
    /// Start the command and leave it running; its output is in `atoll logs`
    #[arg(short, long, conflicts_with_all = ["tty", "interactive"])]
    pub(crate) detach: bool,
    /// A variable: NAME=VALUE, or NAME to pass yours on
    #[arg(short, long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Pair>,
    /// Who it runs as
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Folder it starts in
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// End it after this long, such as 30s (exit status 124)
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Sh {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// A terminal with this name: it stays when you leave and is the same when you come back
    #[arg(long, value_name = "NAME")]
    pub(crate) thread: Option<String>,
    /// Who the shell runs as
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Folder it starts in
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Ls {
    /// The records of deleted ones too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only ids, one per line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Only those with this label; may be repeated
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Pair>,
    /// Only those in these phases
    #[arg(long, visible_alias = "state", value_delimiter = ',', value_parser = PHASES, conflicts_with = "all")]
    pub(crate) phase: Vec<String>,
    /// Only those from this template
    #[arg(short = 'T', long)]
    pub(crate) template: Option<String>,
    /// At most this many
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
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Targets {
    /// Names, ids or beginnings of ids
    #[arg(required = true)]
    pub(crate) sandboxes: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Rm {
    /// Names, ids or beginnings of ids
    #[arg(required_unless_present = "all")]
    pub(crate) sandboxes: Vec<String>,
    /// Every sandbox this key sees, or every one with the labels given
    #[arg(long, conflicts_with = "sandboxes")]
    pub(crate) all: bool,
    /// With --all: only those with this label
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE", requires = "all")]
    pub(crate) label: Vec<Pair>,
    /// Do not ask, and do not mind those that are gone already
    #[arg(short, long, visible_alias = "yes")]
    pub(crate) force: bool,
}

#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "atoll cp [OPTIONS] SRC... DST",
    after_help = "A path inside that does not begin with / is taken from the home of the sandbox's user.\n\
  A directory is copied into DST when DST is there, and becomes DST when it is not. With several SRC, DST is a\n\
  directory. Symbolic links are copied as links."
)]
pub(crate) struct Cp {
    /// Sources, then the destination: a path here, NAME:PATH, or - for stdin or stdout
    #[arg(value_parser = place, value_name = "SRC... DST", required = true, num_args = 2..)]
    pub(crate) places: Vec<CopyEndpoint>,
    /// Directories are copied with all they hold anyway; accepted for those used to cp -r
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Logs {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// Stay and print what comes
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Top {
    /// Names, ids or beginnings of ids [default: all that run or are paused]
    pub(crate) sandboxes: Vec<String>,
    /// Print once and end
    #[arg(long)]
    pub(crate) once: bool,
    /// How often
    #[arg(long, value_parser = seconds, default_value = "2s", value_name = "DURATION")]
    pub(crate) interval: Seconds,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Network options without --network add to what the sandbox has; with it they begin anew.
What is allowed before and after goes on without a break.

Examples:
  atoll update box --allow-domain pypi.org             one more name
  atoll update box --network deny-all                  nothing from now on
  atoll update box --network custom --allow-domain 'pypi.org' --up 1m"
)]
pub(crate) struct Update {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// Set a label: key=value
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Pair>,
    /// Remove a label
    #[arg(long, value_name = "KEY")]
    pub(crate) remove_label: Vec<String>,
    /// Cores, such as 0.5 or 2
    #[arg(long, value_parser = cores)]
    pub(crate) cpu: Option<f64>,
    /// Memory, such as 512m or 2g
    #[arg(short, long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) memory: Option<Mebibytes>,
    /// Disk, such as 512m or 10g
    #[arg(long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) disk: Option<Mebibytes>,
    /// Processes and threads
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,
    /// A lifetime from now on, such as 1h
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// Let it live until it is deleted
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) no_timeout: bool,
    /// What happens when its lifetime is over
    #[arg(long, value_enum)]
    pub(crate) on_timeout: Option<OnTimeout>,
    #[command(flatten)]
    pub(crate) timers: Timers,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// End learning: from now on the policy holds
    #[arg(long, conflicts_with = "learn", help_heading = "Network")]
    pub(crate) no_learn: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Events {
    /// Only this sandbox
    pub(crate) sandbox: Option<String>,
    /// Stay and print what happens
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only events after this number
    #[arg(long, value_name = "SEQ")]
    pub(crate) after: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Signal {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// Process, as `atoll ps` shows it
    pub(crate) pid: u32,
    /// Signal, such as TERM, KILL or 9
    #[arg(short, long, value_parser = signal, default_value = "TERM")]
    pub(crate) signal: i32,
}
