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

fn unusable() -> ProviderError {
    ProviderError::Transient {
        what: "reaching a port".to_owned(),
        why: "the service named an address that cannot be used".to_owned(),
    }
}

/// Where the requests to a port go; the service whose API is at `api` named it.
fn http_target(link: &PortLink, api: &str, port: u16) -> Result<HttpTarget, ProviderError> {
    let api = VendorAddress::of_url(api).ok_or_else(unusable)?;
    let address = VendorAddress::of_url(&link.url).ok_or_else(unusable)?.named_by(&api);
    let address = address.map_err(|refused| refused.into_provider("reaching a port"))?;
    let host = HeaderValue::try_from(address.authority()).map_err(|_| unusable())?;
    let mut token = HeaderValue::try_from(link.token.as_str()).map_err(|_| unusable())?;
    token.set_sensitive(true);
    let headers = vec![(HeaderName::from_static("x-daytona-preview-token"), token)];
    Ok(HttpTarget { address, host, headers, closed_port_text: CLOSED_PORT, port })
}

#[async_trait]
impl DialSupport for DaytonaProvider {
    /// Nothing is sent before the caller's first request: a port on which no program listens answers that with 502.
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let link = self.port_link(target, port).await?;
        let to = http_target(&link, &self.shared.settings.api_url, port)?;
        match dial_http(&self.shared.streams, &self.shared.connector, to) {
            Some(stream) => Ok(Box::new(stream)),
            None => Err(ProviderError::Exhausted { what: "room for connections".to_owned() }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_in_plain_text_only_where_the_api_is_plain_text() {
        let link = |url: &str| PortLink { url: url.to_owned(), token: "t".to_owned() };
        let api = "https://app.daytona.io/api";
        assert!(http_target(&link("https://80-x.proxy.daytona.work"), api, 80).is_ok());
        let refused = http_target(&link("http://80-x.proxy.daytona.work"), api, 80).err().unwrap();
        assert!(
            matches!(&refused, ProviderError::Unsupported { hint, .. } if hint.contains("https")),
            "{refused}"
        );
        assert!(http_target(&link("http://80-x.localhost:7070"), "http://localhost:7070/api", 80).is_ok());
        assert!(http_target(&link("nowhere"), api, 80).is_err());
    }
}
