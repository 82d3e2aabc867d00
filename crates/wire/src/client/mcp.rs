//! Messages of MCP, which are passed on as they are.

use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE};

use super::error::{ClientError, MapError};
use super::{Client, Events};

/// The answer to a message.
pub struct McpAnswer<M> {
    /// The HTTP status.
    pub status: u16,
    /// The messages of the server; none for a notification.
    pub messages: Events<M>,
}

impl<M: MapError> Client<M> {
    /// Sends one message to `/mcp`, with these headers. There is no time limit: a tool may run for long.
    pub async fn mcp(
        &self,
        message: String,
        headers: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<McpAnswer<M>, M::Error> {
        let mut request = self
            .request(Method::POST, "/mcp")
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(message);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.map_err(|cause| self.errors.map(ClientError::Http(cause)))?;
        let status = answer.status().as_u16();
        Ok(McpAnswer { status, messages: Events::new(answer, self.errors.clone()) })
    }
}
