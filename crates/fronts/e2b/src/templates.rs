//! Templates in E2B's form, and their builds: announced, files sent, started, watched.
//!
//! ```text
//! POST /v3/templates ─► announce ─► GET …/files/{hash} ─► PUT /uploads/{ticket} ─► POST /v2/…/builds/{id} ─► …/status
//! ```
//!
//! The id of a template is its name. E2B's tag `default` is Atoll's `latest`; a tag that is named `latest` there is
//! `_latest` here. This module never decides what a build may do: the service builds what [`steps`] declares.

mod build;
mod builds;
mod list;
mod names;
mod request;
mod steps;
mod tags;
mod watch;

use axum::Router;
use axum::routing::{get, patch, post, put};

use crate::E2bApp;

pub use names::build_of_uuid;
pub(crate) use names::{vendors_own, word};

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new()
        .route("/templates", get(list::list).post(build::announce_v1))
        .route("/v2/templates", get(list::list).post(build::announce))
        .route("/v3/templates", post(build::announce))
        .route("/default-templates", get(list::defaults))
        .route("/templates/tags", post(tags::assign).delete(tags::remove))
        .route("/templates/aliases/{alias}", get(list::alias))
        .route("/templates/{id}", get(list::show).patch(list::change_v1).delete(list::remove))
        .route("/v2/templates/{id}", patch(list::change_v2))
        .route("/templates/{id}/tags", get(tags::list))
        .route("/templates/{id}/files/{hash}", get(build::files))
        .route("/uploads/{ticket}", put(build::upload))
        .route("/v2/templates/{id}/builds/{build}", post(build::begin))
        .route("/templates/{id}/builds/{build}/status", get(watch::status))
        .route("/templates/{id}/builds/{build}/logs", get(watch::logs))
}
