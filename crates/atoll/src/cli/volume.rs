//! Grammar of `atoll volume`: files that outlive sandboxes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::values::{Mebibytes, mebibytes};

#[derive(Debug, Subcommand)]
pub(crate) enum Volume {
    /// Create a volume
    #[command(after_help = "Examples:
  atoll volume create data --size 10g
  atoll run --volume data:/data -- sh -c 'date > /data/now'
  atoll volume create code --folder /srv/code    below a folder that `atoll serve --volume-root` names")]
    Create(Create),
    /// List volumes
    #[command(visible_alias = "list")]
    Ls {
        /// Only names, one per line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show volumes, and who has them mounted
    #[command(visible_aliases = ["inspect", "info"])]
    Show {
        /// Names or ids
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Change how much a volume may hold
    Resize {
        /// Name or id
        volume: String,
        /// Such as 10g
        #[arg(value_parser = mebibytes)]
        size: Mebibytes,
    },
    /// Copy a volume as it is at this moment, whatever its size
    Cp {
        /// Name or id
        from: String,
        /// Name of the new one
        name: String,
    },
    /// Remove volumes with their files; those that are mounted are kept
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Names or ids
        #[arg(required = true)]
        volumes: Vec<String>,
        /// Do not ask, and do not mind those that are gone already
        #[arg(short, long, visible_alias = "yes")]
        force: bool,
    },
    /// Copy a file or folder from here into a volume, without a sandbox
    #[command(after_help = "Examples:
  atoll volume put data report.csv /reports/
  tar c . | atoll volume put data - /src.tar")]
    Put(Put),
    /// Copy a file or folder from a volume, without a sandbox
    Get {
        /// Name or id
        volume: String,
        /// Path in the volume
        path: String,
        /// A path here, or - for stdout [default: its own name, here]
        to: Option<PathBuf>,
    },
    /// List the files of a volume, without a sandbox
    Files {
        /// Name or id
        volume: String,
        /// A folder of it
        #[arg(default_value = "/")]
        path: String,
        /// Everything below it
        #[arg(short, long, conflicts_with = "rm")]
        recursive: bool,
        /// Remove PATH, folders with all that is in them
        #[arg(long, requires = "path")]
        rm: bool,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Create {
    /// Its name: letters, digits, `-`, `_`, `.`
    pub(crate) name: String,
    /// How much it may hold, such as 10g [default: the server's]
    #[arg(long, value_parser = mebibytes, value_name = "SIZE", conflicts_with = "folder")]
    pub(crate) size: Option<Mebibytes>,
    /// A folder of the server's machine instead; only below roots that its operator allowed
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<String>,
    /// Nobody writes to it, whatever a mount says
    #[arg(long)]
    pub(crate) read_only: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Put {
    /// Name or id
    pub(crate) volume: String,
    /// A path here, or - for stdin
    pub(crate) from: PathBuf,
    /// Path in the volume; one that ends with / is a folder [default: its own name, at the top]
    pub(crate) path: Option<String>,
    /// User inside sandboxes whose files they are
    #[arg(long, value_name = "ID")]
    pub(crate) uid: Option<u32>,
    /// Group inside sandboxes whose files they are
    #[arg(long, value_name = "ID")]
    pub(crate) gid: Option<u32>,
}
