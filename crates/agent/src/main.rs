//! PID 1 of every sandbox: processes, terminals, files, watches; serves the envd protocol.
//!
//! The engine executes it as `atoll-agent --listen-fd 3 --token-fd 4`: descriptor 3 is a listening TCP socket;
//! descriptor 4 contains the agent token, and is read to its end and closed. In a container of Docker, which passes no
//! descriptors, it is `atoll-agent --listen 127.0.0.1:49983 --token-file /.atoll/token`. Without a sandbox it is an ordinary
//! process with a Unix socket (`--workspace`, see `host_mode`). All requests are untrusted input, and the agent knows nothing
//! about the host. A second process, `atoll-agent --connections stdio`, only carries connections (see `connections`).
//!
//! Build command, as in the build script of the `container` crate (a separate target directory keeps the flags apart):
//!
//! ```text
//! RUSTFLAGS="-C target-feature=+crt-static" \
//!   cargo build -p atoll-agent --bin atoll-agent --profile agent --target x86_64-unknown-linux-gnu --target-dir target/agent
//! # → target/agent/x86_64-unknown-linux-gnu/agent/atoll-agent
//! ```
//!
//! Position-independent on purpose: a fixed address would save about 50 KiB of private memory per sandbox (of about
//! 200), but would lose the randomised layout of the one program that receives hostile bytes.
//!
//! Under the name `atoll-hold` it is a command for programs in the sandbox (see `hold`).
//!
//! The agent never uses NSS, getaddrinfo, iconv or dlopen: a static glibc would load libraries from an untrusted root.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")
)]
#![expect(unsafe_code, reason = "fork, exec, per-thread identities and signals have no safe interface")]
#![allow(clippy::needless_update, reason = "messages gain fields; the rest of a literal is always default")]

mod connections;
mod error;
mod files;
mod hold;
mod host_mode;
mod hosts;
mod http;
mod identity;
mod logs;
mod metrics;
mod process;
mod readiness;
mod rpc;
mod running;
mod serve;
mod settings;
mod setup;
mod state;
mod users;
mod watch;
mod workdir;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().map(std::path::PathBuf::from);
    if called.as_deref().and_then(std::path::Path::file_name).is_some_and(|name| name == hold::NAME) {
        return hold::run(words);
    }
    setup::harden();
    let Ok(options) = setup::AgentOptions::parse(std::env::args().skip(1)) else { return ExitCode::from(2) };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() else {
        return ExitCode::from(4);
    };
    let ended = if options.carries_connections {
        runtime.block_on(connections::serve())
    } else {
        // The token first: without a sandbox the server sends it when it has recorded this process.
        let Ok(token) = options.read_token() else { return ExitCode::from(3) };
        let Ok(host) = options.enter() else { return ExitCode::from(5) };
        let Ok(listener) = options.listener() else { return ExitCode::from(3) };
        runtime.block_on(serve::serve(listener, token, host))
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
