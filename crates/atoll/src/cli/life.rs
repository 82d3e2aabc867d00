//! Grammar of the verbs of a sandbox's lifecycle: pause, resize, snapshots, forks, archives, holds, timers.

use clap::{Args, Subcommand, ValueEnum};

use super::values::{Mebibytes, Pair, Seconds, Timer, cores, label, mebibytes, seconds, timer};

/// Timers of a sandbox.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Timers {
    /// Pause the sandbox after this idle time, such as 10m, or never
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) auto_pause: Option<Timer>,
    /// Stop the sandbox after this idle time
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) auto_stop: Option<Timer>,
    /// Write its memory to disk after it was paused for this time
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) checkpoint_after: Option<Timer>,
    /// Archive the sandbox after it was stopped for this time
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) auto_archive: Option<Timer>,
    /// Delete the sandbox after it was stopped for this time; 0 deletes it with the stop
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) auto_delete: Option<Timer>,
    /// Action when the server or the sandbox's thread ends [default: keep; with --thread that of the provider, pause]
    #[arg(long, value_enum, help_heading = "Timers")]
    pub(crate) on_exit: Option<OnExit>,
    /// Requests that may wake the sandbox when it is paused, stopped or archived [default: any]
    #[arg(long, value_enum, help_heading = "Timers")]
    pub(crate) wake: Option<Wake>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// The sandbox keeps running
    Keep,
    /// The sandbox is paused
    Pause,
    /// The sandbox is deleted with its files
    Destroy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wake {
    /// Any request that needs the sandbox
    Any,
    /// Only start and resume
    Explicit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Memory {
    /// The memory is kept and its processes are frozen
    Live,
    /// The memory is written to disk and freed
    Disk,
}

impl From<OnExit> for atoll_client::words::OnExit {
    fn from(word: OnExit) -> Self {
        match word {
            OnExit::Keep => Self::Keep,
            OnExit::Pause => Self::Pause,
            OnExit::Destroy => Self::Destroy,
        }
    }
}

impl From<Wake> for atoll_client::words::Wake {
    fn from(word: Wake) -> Self {
        match word {
            Wake::Any => Self::Any,
            Wake::Explicit => Self::Explicit,
        }
    }
}

impl From<Memory> for atoll_client::words::MemoryLocation {
    fn from(word: Memory) -> Self {
        match word {
            Memory::Live => Self::Live,
            Memory::Disk => Self::Disk,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Pause {
    /// Where the memory is kept [default: live]
    #[arg(long, value_enum)]
    pub(crate) memory: Option<Memory>,
    /// Names or id prefixes of sandboxes
    #[arg(required = true)]
    pub(crate) sandboxes: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Resize {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
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
}

/// `atoll snapshot SANDBOX` takes one; the verbs deal with those that are there.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    pub(crate) verb: Option<SnapshotVerb>,
    /// Name or id prefix of the sandbox; same as `snapshot create`
    #[arg(required = true)]
    pub(crate) sandbox: Option<String>,
    #[command(flatten)]
    pub(crate) kept: Kept,
}

/// What of a sandbox is kept, and under which name.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Kept {
    /// Name; unique among the snapshots of the sandbox, used as SANDBOX:NAME
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Make the name unique within the tenant, so that it is used without a sandbox before it
    #[arg(long, requires = "name")]
    pub(crate) global: bool,
    /// Include its processes
    #[arg(long)]
    pub(crate) memory: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Take a snapshot of a sandbox
    Create {
        /// Name or id prefix of the sandbox
        sandbox: String,
        #[command(flatten)]
        kept: Kept,
    },
    /// List snapshots
    #[command(visible_alias = "list")]
    Ls {
        /// Only snapshots of this sandbox
        sandbox: Option<String>,
        /// Print only ids, one per line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show one snapshot
    #[command(visible_aliases = ["inspect", "info"])]
    Show {
        /// SANDBOX:NAME, name or id prefix of the snapshot
        snapshot: String,
    },
    /// Remove snapshots; sandboxes created from them stay
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// SANDBOX:NAME, name or id prefix of each snapshot
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
    /// Read snapshots completely and check that they are unchanged
    Verify {
        /// SANDBOX:NAME, name or id prefix of each snapshot
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
}

/// `atoll preview SANDBOX PORT` opens one; the verbs deal with those that are open.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  atoll preview box 8000                   create a link to port 8000, valid for an hour
  atoll preview box 8000 --expires 7d      valid for a week; at most 30d
  atoll preview box 8000 --public          open the port to everyone, until `preview rm`
  atoll preview ls box"
)]
pub(crate) struct Preview {
    #[command(subcommand)]
    pub(crate) verb: Option<PreviewVerb>,
    /// Name or id prefix of the sandbox
    #[arg(required = true)]
    pub(crate) sandbox: Option<String>,
    /// Port in the sandbox
    #[arg(required = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Open the port to everyone, without a token
    #[arg(long)]
    pub(crate) public: bool,
    /// Time until the preview expires, such as 30m; at most 30d [default: 1h; with --public until it is removed]
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) expires: Option<Seconds>,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum PreviewVerb {
    /// List the previews of a sandbox
    #[command(visible_alias = "list")]
    Ls {
        /// Name or id prefix of the sandbox
        sandbox: String,
    },
    /// Close previews; their links stop working at once
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Name or id prefix of the sandbox
        sandbox: String,
        /// Ids of previews; `preview ls` shows them
        #[arg(required = true)]
        previews: Vec<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Fork {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Number of copies
    #[arg(short = 'n', long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) count: u32,
    /// Include the processes if possible; a message says if they could not be copied
    #[arg(long)]
    pub(crate) memory: bool,
    /// Label that replaces the labels of the source: key=value
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Pair>,
    /// Lifetime of the copies, such as 1h [default: the lifetime of the source]
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Move {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Provider that it goes to; `atoll provider ls` lists them
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) to: String,
    /// Template or image there [default: its own if the provider has it, else the provider's default]
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Rollback {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Name or id prefix of a snapshot of this sandbox
    pub(crate) snapshot: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Restore {
    /// Names or id prefixes of sandboxes
    #[arg(required_unless_present = "from")]
    pub(crate) sandboxes: Vec<String>,
    /// Create a new sandbox from this archive, which may be of another server; `inspect` shows the key
    #[arg(long, value_name = "KEY", conflicts_with = "sandboxes")]
    pub(crate) from: Option<String>,
    /// With --from: name of the new sandbox
    #[arg(long, requires = "from", conflicts_with = "sandboxes")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Hold {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Duration from now, such as 30m; at most 24h
    #[arg(value_parser = seconds, default_value = "1h")]
    pub(crate) duration: Seconds,
    /// Reason that `inspect` shows
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// End the hold
    #[arg(long, conflicts_with_all = ["duration", "reason"])]
    pub(crate) release: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Extend {
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Minimum remaining lifetime from now, such as 1h
    #[arg(value_parser = seconds)]
    pub(crate) duration: Seconds,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Thread {
    /// List threads, newest first
    Ls {
        /// Print only names
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show a thread: its provider and its sandbox
    Show {
        /// Name of the thread, as in `create --thread`
        thread: String,
    },
    /// End threads; their sandboxes are kept, paused or deleted according to their --on-exit
    End {
        /// Names of threads, as in `create --thread`
        #[arg(required = true)]
        threads: Vec<String>,
    },
}
