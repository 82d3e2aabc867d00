//! Grammar of `atoll server`.

use std::{ffi::OsString, path::PathBuf};

use clap::Subcommand;

use super::backup;

#[derive(Debug, Subcommand)]
pub(crate) enum Server {
    /// Install the server as a systemd service: writes the unit, and a configuration file if there is none
    Install {
        /// Print both files and write nothing
        #[arg(long)]
        print: bool,
        /// Write below this folder instead of /, and start nothing; for packages
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// Start the server in the background: its systemd service, else a process of its own
    Start,
    /// Stop the server; sandboxes keep running and the next server adopts them
    Stop,
    /// Stop and start the server; sandboxes keep running
    Restart,
    /// Show whether the server runs, its address and uptime
    Status,
    /// Print the log of the server
    Logs {
        /// Follow the output
        #[arg(short, long)]
        follow: bool,
        /// Only the last lines
        #[arg(short = 'n', long, value_name = "COUNT")]
        lines: Option<usize>,
    },
    /// Show every setting of the server with its value and where it comes from
    Config {
        /// Print a configuration file with every setting, commented out
        #[arg(long, conflicts_with = "reference")]
        example: bool,
        /// Print the table of docs/configuration.md
        #[arg(long, hide = true)]
        reference: bool,
        /// Options of `atoll serve` that are taken into account
        #[arg(last = true, value_name = "OPTIONS")]
        options: Vec<OsString>,
    },
    /// Write everything of the server into one file, also while it runs: database, files of sandboxes, memory that is on
    /// disk, volumes, snapshots, templates that cannot be had again, settings
    Backup(backup::Backup),
    /// Fill an empty data folder from a backup; no server may run on it
    Restore(backup::Restore),
    /// Delete every sandbox, stop the server, and remove all its files and settings from this machine, including
    /// DATA
    Uninstall {
        /// Do not ask for confirmation
        #[arg(short, long, visible_alias = "yes")]
        force: bool,
        /// Keep DATA: stop sandboxes instead of deleting them, and remove only what is outside of DATA. The next server of
        /// DATA has them again
        #[arg(long)]
        keep_data: bool,
    },
}
