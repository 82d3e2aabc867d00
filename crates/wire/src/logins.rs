//! Logins of command lines: a short code that a person with a key approves, for a key of the command line's own.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::keys::CreatedKey;
use crate::words::Scope;

/// Request to start a login.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginBody {
    /// Who asks, such as `anna@laptop`; the key gets this name. Printable ASCII.
    pub name: String,
}

/// A login that was started; its secret is shown only here.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct StartedLogin {
    /// For the person who approves it. It works once.
    #[schema(example = "BCDF-GHJK")]
    pub code: String,
    /// To be sent as the bearer of `POST /v1/logins/poll`.
    #[schema(example = "log_…")]
    pub secret: String,
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// How long to wait between two polls.
    pub poll_every_s: u32,
}

/// A login as the person sees it who may approve it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Login {
    pub code: String,
    /// The name that the client gave itself. It proves nothing.
    pub name: String,
    /// The address from which it was started.
    pub address: Option<String>,
    #[schema(format = DateTime)]
    pub created_at: String,
    #[schema(format = DateTime)]
    pub expires_at: String,
}

/// Request to approve a login.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproveBody {
    /// Name or id of the tenant of the new key; needs an admin key. Default: the caller's tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Scope of the new key. Default `user`; `admin` needs an admin key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// What was approved: the key that the client gets with its next poll.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ApprovedLogin {
    /// Name of the key.
    pub name: String,
    /// The address from which the login was started.
    pub address: Option<String>,
    /// The tenant's id.
    pub tenant: String,
    pub tenant_name: String,
    pub scope: Scope,
}

/// The state of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoginState {
    /// No decision yet.
    Pending,
    /// The answer has the key.
    Approved,
    /// A person refused it.
    Denied,
    /// A word of a newer server.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// The answer to a poll.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginPoll {
    pub state: LoginState,
    /// The key, once, when the login was approved.
    #[serde(default)]
    pub key: Option<CreatedKey>,
    /// The name of the key's tenant.
    #[serde(default)]
    pub tenant_name: Option<String>,
}
