//! The server of this machine, for the command line: finding, starting and stopping it.
//!
//! The server itself is in `serve`.

pub(crate) mod acme_files;
pub(crate) mod background;
pub(crate) mod config_file;
pub(crate) mod config_text;
pub(crate) mod log_files;
pub(crate) mod server_file;
pub(crate) mod service_unit;
pub(crate) mod tls_files;
