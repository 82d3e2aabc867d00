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
  atoll volume create code --folder /srv/code    must be below a folder of `atoll serve --volume-root`")]
    Create(Create),
    /// List volumes
    #[command(visible_alias = "list")]
    Ls {
        /// Print only names, one per line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show volumes and the sandboxes that mount them
    #[command(visible_aliases = ["inspect", "info"])]
    Show {
        /// Names or ids of volumes
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Change the size limit of a volume
    Resize {
        /// Name or id of the volume
        volume: String,
        /// Size limit, such as 10g
        #[arg(value_parser = mebibytes)]
        size: Mebibytes,
    },
    /// Copy the current files of a volume to a new volume; fast for any size
    Cp {
        /// Name or id of the volume
        from: String,
        /// Name of the new volume
        name: String,
    },
    /// Remove volumes with their files; mounted volumes are refused
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Names or ids of volumes
        #[arg(required = true)]
        volumes: Vec<String>,
        /// Do not ask for confirmation, and ignore volumes that do not exist
        #[arg(short, long, visible_alias = "yes")]
        force: bool,
    },
    /// Copy a local file or folder into a volume, without a sandbox
    #[command(after_help = "Examples:
  atoll volume put data report.csv /reports/
  tar c . | atoll volume put data - /src.tar")]
    Put(Put),
    /// Copy a file or folder from a volume, without a sandbox
    Get {
        /// Name or id of the volume
        volume: String,
        /// Path in the volume
        path: String,
        /// Local path, or - for stdout [default: the same name in the current folder]
        to: Option<PathBuf>,
    },
    /// List the files of a volume, without a sandbox
    Files {
        /// Name or id of the volume
        volume: String,
        /// Folder in the volume
        #[arg(default_value = "/")]
        path: String,
        /// List recursively
        #[arg(short, long, conflicts_with = "rm")]
        recursive: bool,
        /// Remove PATH; folders are removed recursively
        #[arg(long, requires = "path")]
        rm: bool,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Create {
    /// Name of the volume: letters, digits, `-`, `_`, `.`
    pub(crate) name: String,
    /// Provider that keeps the files; only its sandboxes can mount the volume [default: the server's default provider]
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// Size limit, such as 10g [default: the server's]
    #[arg(long, value_parser = mebibytes, value_name = "SIZE", conflicts_with = "folder")]
    pub(crate) size: Option<Mebibytes>,
    /// Host folder to use as the volume; only below folders that the operator allowed
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<String>,
    /// Make the volume read-only for every mount
    #[arg(long)]
    pub(crate) read_only: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Put {
    /// Name or id of the volume
    pub(crate) volume: String,
    /// Local path, or - for stdin
    pub(crate) from: PathBuf,
    /// Path in the volume; a path that ends with / is a folder [default: the same name at the top of the volume]
    pub(crate) path: Option<String>,
    /// Owner of the files: user id inside sandboxes
    #[arg(long, value_name = "ID")]
    pub(crate) uid: Option<u32>,
    /// Group of the files: group id inside sandboxes
    #[arg(long, value_name = "ID")]
    pub(crate) gid: Option<u32>,
}
