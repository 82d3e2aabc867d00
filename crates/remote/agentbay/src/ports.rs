//! HTTP to ports inside a session, by the links of the service.

use async_trait::async_trait;
use atoll_provider::{ByteStream, DialSupport, ProviderError, Target};
use atoll_remote::{HttpTarget, ObjectState, VendorAddress, dial_link};
use http::HeaderValue;

use crate::AgentbayProvider;
use crate::access::PortLink;
use crate::lifecycle::stands_still;

/// The service's words for a port on which no program listens are not known: its answers pass as they are.
const CLOSED_PORT: &str = "\u{0}";

fn unusable_link() -> ProviderError {
    let why = "the service told a link that cannot be used".to_owned();
    ProviderError::Transient { what: "reaching a port".to_owned(), why }
}

#[async_trait]
impl DialSupport for AgentbayProvider {
    /// The link is asked for once a minute. Nothing is sent to the port before the caller's first request.
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let shared = &self.shared;
        let (_, object) = shared.table.live(target)?;
        if object.state == ObjectState::Paused {
            return Err(stands_still());
        }
        let access = object.access.clone().unwrap_or_default();
        let link = match access.link(port) {
            Some(link) => link,
            None => {
                let url = shared.api.link(&object.id, port).await;
                let url = url.map_err(|error| shared.call_error(target, &object, error))?;
                let api = VendorAddress::of_url(&shared.settings.base());
                let link = api.and_then(|api| PortLink::parse(&url, &api)).ok_or_else(unusable_link)?;
                access.remember_link(port, link.clone());
                link
            }
        };
        let host = HeaderValue::try_from(link.address.authority()).map_err(|_| unusable_link())?;
        let http = HttpTarget {
            address: link.address,
            host,
            headers: Vec::new(),
            closed_port_text: CLOSED_PORT,
            port,
        };
        let stream = dial_link(&shared.streams, &shared.connector, http, link.path);
        let stream =
            stream.ok_or_else(|| ProviderError::Exhausted { what: "room for connections".to_owned() })?;
        Ok(Box::new(stream))
    }
}
