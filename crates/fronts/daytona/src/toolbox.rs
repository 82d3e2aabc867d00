//! The toolbox of one sandbox, below `/toolbox/ID`: processes, files, git, terminals, language servers.
//!
//! ```text
//! request ─► Inside (authentication, sandbox, its agent) ─► handler ─► the crate `toolbox` ─► response of Daytona's daemon
//! ```
//!
//! A sandbox that is not running is not started: users of Daytona start theirs explicitly. Refusals have the source and
//! codes of the sandbox's daemon, so that the SDKs find their classes.
//!
//! This module implements no tools itself; the crate `toolbox` does.

mod code;
mod env;
mod execute;
mod files;
mod git;
mod info;
mod inside;
mod interpreter;
mod lsp;
mod missing;
mod multipart;
mod pty;
mod refusal;
mod session;
mod signed;
mod socket;
mod transfer;

use axum::Router;
use axum::middleware;

use crate::DaytonaApp;

/// Nested below `/toolbox/{sandbox}`.
pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .merge(execute::routes())
        .merge(code::routes())
        .merge(session::routes())
        .merge(pty::routes())
        .merge(interpreter::routes())
        .merge(files::routes())
        .merge(transfer::routes())
        .merge(git::routes())
        .merge(lsp::routes())
        .merge(info::routes())
        .merge(env::routes())
        .merge(missing::routes())
        .layer(middleware::map_response(refusal::of_daemon))
}
