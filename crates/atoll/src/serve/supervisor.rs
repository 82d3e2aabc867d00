//! Messages to systemd (`Type=notify`): the server is ready, or stops. Without systemd nothing happens.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

use crate::environment;

/// The server answers at `url`.
pub(super) fn ready(url: &str) {
    send(&format!("READY=1\nSTATUS=ready at {url}\n"));
}

/// The server finishes requests under way.
pub(super) fn stopping() {
    send("STOPPING=1\nSTATUS=shutting down; sandboxes keep running\n");
}

fn send(message: &str) {
    let Some(path) = environment::notify_socket() else { return };
    let sent = || -> io::Result<usize> {
        // A name that begins with @ is an abstract one.
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)
    };
    if let Err(cause) = sent() {
        tracing::warn!(%cause, "systemd could not be told about the state of the server");
    }
}
