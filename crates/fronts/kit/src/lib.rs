//! What every front shares: the [`Front`] trait, dispatch, request parsing, errors, authentication, observation.
//!
//! A front translates one HTTP API into calls of [`atoll_service::Service`]. It implements [`Front`]: its mount, its
//! routes, and its form of errors. The rest is here:
//!
//! ```text
//! request ─► Dispatch: the first front whose Mount matches ─► CORS ─► observe: id, span, metrics, panics ─► route
//!                                                                        │                                   ▼
//!            response ◄─ Front::render_error ◄── ApiError ◄──────────────┴── Caller, Json, Query, Path ─► handler
//! ```
//!
//! `docs/adding-a-front.md` builds a front from nothing.
//!
//! This crate never decides what a caller may do, never accesses the store or a provider, and never logs a header, a
//! query string, a body or a key.

mod auth;
pub mod cors;
mod dispatch;
mod error;
mod execution;
mod front;
pub mod multipart;
mod observe;
pub mod paging;
mod request;
mod response;
mod upload;
mod value_error;

pub use auth::{Caller, FrontState, authenticate, authenticate_key, bearer};
pub use dispatch::Dispatch;
pub use error::{ApiError, ErrorSource, FieldName, InvalidField};
pub use execution::{CollectedExecution, ExecutionError};
pub use front::{Front, Mount, MountedFront, RequestInfo};
pub use observe::{REQUEST_SECONDS, REQUESTS_TOTAL, error_chain};
pub use request::{
    BODY_BYTES, Json, OptionalStrictJson, Path, Query, StrictJson, double_option, parse_json,
    parse_json_or_empty, read_body,
};
pub use response::{
    JsonResponse, TRUNCATED, created, error_body, lossy_text, ok, ok_list, rfc3339, rfc3339_millis,
    stream_json,
};
pub use upload::{UploadFault, upload_reader, upload_stream};

/// The budget of bytes that are held for callers; [`stream_json`] writes a `JsonObject`.
pub use atoll_budget::{Account, BudgetOwner, JsonObject, Marked, RequestBudget, SocketPlace};

/// The tools of a sandbox. Its tenant is charged for the bytes that they hold. The sandbox does not count as idle while
/// they exist.
#[must_use]
pub fn toolbox(session: &atoll_service::SandboxSession) -> atoll_toolbox::Toolbox {
    atoll_toolbox::Toolbox::new(session.clone(), session.account.clone())
}
