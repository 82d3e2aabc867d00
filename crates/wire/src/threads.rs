//! Threads: conversations that sandboxes are bound to.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::words::Phase;

/// A thread of conversation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Thread {
    /// Name that the client chose; unique within the tenant.
    #[schema(example = "conversation-7")]
    pub thread: String,
    /// The tenant's id.
    pub tenant: String,
    /// Provider of all its sandboxes; it never changes.
    pub provider: String,
    /// Id of its sandbox; null if the sandbox is deleted.
    pub sandbox: Option<String>,
    /// Phase of its sandbox.
    pub phase: Option<Phase>,
    #[schema(format = DateTime)]
    pub created_at: String,
}

/// One page of threads, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ThreadPage {
    pub items: Vec<Thread>,
    /// Send it as `cursor` to get the next page; null on the last page.
    pub next_cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ThreadsQuery {
    /// Maximum number of results.
    #[param(value_type = Option<u32>, minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<NonZeroU32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
