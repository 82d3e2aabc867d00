//! HTTP to ports inside a sandbox, through the hosts of the service.

use async_trait::async_trait;
use atoll_provider::{ByteStream, DialSupport, ProviderError, Target};
use atoll_remote::{HttpTarget, VendorAddress, dial_http, gone};
use http::{HeaderName, HeaderValue};

use crate::DaytonaProvider;
use crate::api::PortLink;

/// In the service's refusal of a request to a port on which no program listens.
const CLOSED_PORT: &str = "no program listens";

impl DaytonaProvider {
    async fn port_link(&self, target: &Target, port: u16) -> Result<PortLink, ProviderError> {
        let (object, access) = self.shared.access(target).await?;
        if let Some(link) = access.link(port) {
            return Ok(link);
        }
        let link = self.shared.api.port_link(&object.id, port).await;
        let link = link.map_err(|error| error.into_provider("asking for the way to a port"))?;
        let link = link.ok_or_else(|| gone(&target.sandbox))?;
        access.remember_link(port, link.clone());
        Ok(link)
    }
}

/// Where the requests to a port go; the service whose API is at `api` named it.
fn http_target(link: &PortLink, api: &str, port: u16) -> Option<HttpTarget> {
    let address = VendorAddress::of_url(&link.url)?.named_by(&VendorAddress::of_url(api)?);
    let host = HeaderValue::try_from(address.authority()).ok()?;
    let mut token = HeaderValue::try_from(link.token.as_str()).ok()?;
    token.set_sensitive(true);
    let headers = vec![(HeaderName::from_static("x-daytona-preview-token"), token)];
    Some(HttpTarget { address, host, headers, closed_port_text: CLOSED_PORT, port })
}

#[async_trait]
impl DialSupport for DaytonaProvider {
    /// Nothing is sent before the caller's first request: a port on which no program listens answers that with 502.
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let link = self.port_link(target, port).await?;
        let to = http_target(&link, &self.shared.settings.api_url, port);
        let to = to.ok_or_else(|| ProviderError::Transient {
            what: "reaching a port".to_owned(),
            why: "the service named an address that cannot be used".to_owned(),
        })?;
        match dial_http(&self.shared.streams, &self.shared.connector, to) {
            Some(stream) => Ok(Box::new(stream)),
            None => Err(ProviderError::Exhausted { what: "room for connections".to_owned() }),
        }
    }
}
