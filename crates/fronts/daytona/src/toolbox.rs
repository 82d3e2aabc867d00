//! The toolbox of one sandbox, below `/toolbox/ID`: processes, files, git, terminals, language servers.
//!
//! Never: composes anything itself; that is what the crate `toolbox` is for.

use axum::Router;

use crate::App;

/// What the toolbox keeps beside the service.
#[derive(Clone, Default)]
pub(crate) struct State {}

/// Nested below `/toolbox/{sandbox}`.
pub(crate) fn routes() -> Router<App> {
    Router::new()
}
