//! The server of this machine as the command line sees it: where it is, starting one, ending it.
//!
//! Never the server itself, which is `serve`.

pub(crate) mod background;
pub(crate) mod server_file;
pub(crate) mod tls_files;
