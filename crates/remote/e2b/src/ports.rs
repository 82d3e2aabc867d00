//! HTTP to ports inside a sandbox, through the hosts of the service.

use async_trait::async_trait;
use atoll_provider::{ByteStream, DialSupport, ProviderError, Target};
use atoll_remote::dial_http;

use crate::E2bProvider;

#[async_trait]
impl DialSupport for E2bProvider {
    /// Nothing is sent before the caller's first request: a port on which no program listens answers that with 502.
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let (_, access) = self.shared.access(target).await?;
        let stream = dial_http(&self.shared.streams, &self.shared.connector, access.http_target(port)?);
        let stream =
            stream.ok_or_else(|| ProviderError::Exhausted { what: "room for connections".to_owned() })?;
        Ok(Box::new(stream))
    }
}
