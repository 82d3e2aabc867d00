//! Grammar of the verbs that change a sandbox's life: pause, resize, snapshots, forks, archives, holds, timers.

use clap::{Args, Subcommand, ValueEnum};

use super::values::{Mebibytes, Pair, Seconds, Timer, cores, label, mebibytes, seconds, timer};

/// What a sandbox does by itself.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Timers {
    /// Pause it after this long without work, such as 10m, or never
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) auto_pause: Option<Timer>,
    /// Stop it after this long without work
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) auto_stop: Option<Timer>,
    /// Write its memory to disk after this long paused
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) checkpoint_after: Option<Timer>,
    /// Archive it after this long stopped
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) auto_archive: Option<Timer>,
    /// Delete it after this long stopped; 0 deletes it with the stop
    #[arg(long, value_parser = timer, allow_negative_numbers = true, value_name = "DURATION", help_heading = "Timers")]
    pub(crate) auto_delete: Option<Timer>,
    /// What happens to it when the server, or its thread, ends [default: keep]
    #[arg(long, value_enum, help_heading = "Timers")]
    pub(crate) on_exit: Option<OnExit>,
    /// Who may wake it when it is paused, stopped or archived [default: any]
    #[arg(long, value_enum, help_heading = "Timers")]
    pub(crate) wake: Option<Wake>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// It goes on
    Keep,
    /// It is paused
    Pause,
    /// It is deleted with its files
    Destroy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wake {
    /// Any request that needs it
    Any,
    /// Only start and resume
    Explicit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Memory {
    /// Stays in memory, frozen
    Live,
    /// Is written to disk and freed
    Disk,
}

impl From<OnExit> for atoll_wire::words::OnExit {
    fn from(word: OnExit) -> Self {
        match word {
            OnExit::Keep => Self::Keep,
            OnExit::Pause => Self::Pause,
            OnExit::Destroy => Self::Destroy,
        }
    }
}

impl From<Wake> for atoll_wire::words::Wake {
    fn from(word: Wake) -> Self {
        match word {
            Wake::Any => Self::Any,
            Wake::Explicit => Self::Explicit,
        }
    }
}

impl From<Memory> for atoll_wire::words::MemoryLocation {
    fn from(word: Memory) -> Self {
        match word {
            Memory::Live => Self::Live,
            Memory::Disk => Self::Disk,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Pause {
    /// Where their memory is kept [default: live]
    #[arg(long, value_enum)]
    pub(crate) memory: Option<Memory>,
    /// Names, ids or beginnings of ids
    #[arg(required = true)]
    pub(crate) sandboxes: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Resize {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
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
}

/// `atoll snapshot SANDBOX` takes one; the verbs deal with those that are there.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    pub(crate) verb: Option<SnapshotVerb>,
    /// Name, id or beginning of an id of the sandbox; as `snapshot create`
    #[arg(required = true)]
    pub(crate) sandbox: Option<String>,
    #[command(flatten)]
    pub(crate) kept: Kept,
}

/// What of a sandbox is kept, and under which name.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Kept {
    /// A name of your own
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Its processes too
    #[arg(long)]
    pub(crate) memory: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Take a snapshot of a sandbox
    Create {
        /// Name, id or beginning of an id of the sandbox
        sandbox: String,
        #[command(flatten)]
        kept: Kept,
    },
    /// List snapshots
    #[command(visible_alias = "list")]
    Ls {
        /// Only those of this sandbox
        sandbox: Option<String>,
        /// Only ids, one per line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show one snapshot
    #[command(visible_aliases = ["inspect", "info"])]
    Show {
        /// Name, id or beginning of an id of the snapshot
        snapshot: String,
    },
    /// Remove snapshots; sandboxes made from them stay
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Names, ids or beginnings of ids of snapshots
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
    /// Read snapshots whole and compare them with what was written
    Verify {
        /// Names, ids or beginnings of ids of snapshots
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
  atoll preview box 8000                   a link to port 8000 for an hour
  atoll preview box 8000 --expires 7d      for a week, 30d at most
  atoll preview box 8000 --public          for everybody, until `preview rm`
  atoll preview ls box"
)]
pub(crate) struct Preview {
    #[command(subcommand)]
    pub(crate) verb: Option<PreviewVerb>,
    /// Name, id or beginning of an id of the sandbox
    #[arg(required = true)]
    pub(crate) sandbox: Option<String>,
    /// Port inside
    #[arg(required = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// For everybody, without a token
    #[arg(long)]
    pub(crate) public: bool,
    /// How long from now, such as 30m; at most 30d [default: 1h; with --public until it is removed]
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) expires: Option<Seconds>,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum PreviewVerb {
    /// List what is open in a sandbox
    #[command(visible_alias = "list")]
    Ls {
        /// Name, id or beginning of an id of the sandbox
        sandbox: String,
    },
    /// Close previews; their links stop working at once
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Name, id or beginning of an id of the sandbox
        sandbox: String,
        /// Ids, as `preview ls` shows them
        #[arg(required = true)]
        previews: Vec<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Fork {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// How many
    #[arg(short = 'n', long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) count: u32,
    /// Their processes too, where that can be had; says so where not
    #[arg(long)]
    pub(crate) memory: bool,
    /// A label instead of those of the source: key=value
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Pair>,
    /// How long they may live, such as 1h, instead of what the source has
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Rollback {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// A snapshot of this sandbox: name, id or beginning of an id
    pub(crate) snapshot: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Restore {
    /// Names, ids or beginnings of ids
    #[arg(required_unless_present = "from")]
    pub(crate) sandboxes: Vec<String>,
    /// Make a new sandbox from this archive, of another server too; `inspect` shows the key
    #[arg(long, value_name = "KEY", conflicts_with = "sandboxes")]
    pub(crate) from: Option<String>,
    /// With --from: a name of your own
    #[arg(long, requires = "from", conflicts_with = "sandboxes")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Hold {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// How long from now, such as 30m; at most 24h
    #[arg(value_parser = seconds, default_value = "1h")]
    pub(crate) duration: Seconds,
    /// Why, for people
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// End the hold
    #[arg(long, conflicts_with_all = ["duration", "reason"])]
    pub(crate) release: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Extend {
    /// Name, id or beginning of an id
    pub(crate) sandbox: String,
    /// How long it lives at least from now on, such as 1h
    #[arg(value_parser = seconds)]
    pub(crate) duration: Seconds,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Thread {
    /// End threads: their sandboxes are kept, paused or deleted, as their --on-exit says
    End {
        /// As `create --thread` named them
        #[arg(required = true)]
        threads: Vec<String>,
    },
}
