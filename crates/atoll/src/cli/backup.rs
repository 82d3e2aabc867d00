//! Grammar of `atoll server backup` and `atoll server restore`.

use std::path::PathBuf;

use clap::Args;

use super::values::{Mebibytes, mebibytes};
use crate::environment as env;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll server backup /backup/atoll-monday
  atoll server backup /backup/atoll-monday --with-keys --passphrase-file /root/passphrase
  atoll server backup - | ssh backup-host 'cat > atoll-monday'")]
pub(crate) struct Backup {
    /// File to write; - for stdout
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Put the key that seals secrets into the file, encrypted with a passphrase; without it a restore needs a copy of
    /// DATA/secret.key
    #[arg(long)]
    pub(crate) with_keys: bool,
    /// File with the passphrase, instead of asking for it
    #[arg(long, value_name = "FILE", requires = "with_keys")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Space to keep free if FILE is on the disk of the data folder
    #[arg(long, env = env::DISK_RESERVE, hide_env_values = true, default_value = "1g", value_name = "SIZE", value_parser = mebibytes)]
    pub(crate) disk_reserve: Mebibytes,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll server restore /backup/atoll-monday --data /srv/atoll --key-file /root/secret.key
  ssh backup-host cat atoll-monday | atoll server restore - --passphrase-file /root/passphrase")]
pub(crate) struct Restore {
    /// Backup to read; - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Copy of the DATA/secret.key that the backup was made with
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_file")]
    pub(crate) key_file: Option<PathBuf>,
    /// File with the passphrase of a backup that was made with --with-keys, instead of asking for it
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// Space to keep free on the disk of the data folder
    #[arg(long, env = env::DISK_RESERVE, hide_env_values = true, default_value = "1g", value_name = "SIZE", value_parser = mebibytes)]
    pub(crate) disk_reserve: Mebibytes,
}
