//! The current settings of an agent.

use http::Method;

use super::AgentClient;
use crate::error::AgentError;
use crate::init::InitRequest;

impl AgentClient {
    /// The current settings: environment, default user and working directory. Never the token.
    pub async fn settings(&self) -> Result<InitRequest, AgentError> {
        let answer = self.plain(Method::GET, "/init", None).await?;
        serde_json::from_slice(&answer).map_err(|_| AgentError::Protocol("settings are not what was agreed"))
    }
}
