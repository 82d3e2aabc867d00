//! How the ports of one object are reached: the host, the tokens, and the client of its envd.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_agentapi::{AgentToken, EnvdAddress, EnvdClient};
use atoll_provider::{AGENT_PORT, ProviderError};
use atoll_remote::{HttpTarget, UsageMeter, VendorAddress, VendorConnector};
use http::{HeaderName, HeaderValue};

use crate::api::Opened;
use crate::settings::E2bSettings;

/// LIMIT: terminals that are remembered; of older ones the kind of input is found out again.
const TERMINALS_MAX: usize = 256;
/// In the service's refusal of a request to a port on which no program listens.
const CLOSED_PORT: &str = "port is not open";

/// Access to one object while it runs. Contains tokens.
pub(crate) struct E2bAccess {
    id: String,
    route: HostRoute,
    traffic_token: Option<HeaderValue>,
    pub(crate) envd: EnvdClient,
    /// Processes that were started with a terminal.
    terminals: Mutex<HashSet<u32>>,
    pub(crate) meter: UsageMeter,
}

impl std::fmt::Debug for E2bAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E2bAccess").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Clone)]
enum HostRoute {
    /// One host for all; headers name the sandbox and the port.
    Shared(VendorAddress),
    /// `PORT-ID.DOMAIN`, of the service whose API is at this address.
    Own { api: VendorAddress, domain: String },
}

/// Where one port is.
struct PortRoute {
    address: VendorAddress,
    headers: Vec<(HeaderName, HeaderValue)>,
}

fn unusable(what: &str) -> ProviderError {
    let why = format!("the service named {what} that cannot be used");
    ProviderError::Transient { what: "reaching a sandbox of the service".to_owned(), why }
}

impl E2bAccess {
    pub(crate) fn new(
        settings: &E2bSettings,
        connector: &VendorConnector,
        opened: &Opened,
        silence: Duration,
    ) -> Result<Self, ProviderError> {
        let route = match settings.addresses()? {
            (_, Some(shared)) => HostRoute::Shared(shared),
            (_, None) => {
                let named = opened.domain.clone().filter(|domain| !domain.is_empty());
                let domain = named.or_else(|| settings.own_domain()).ok_or_else(|| unusable("no domain"))?;
                let api = VendorAddress::of_url(&settings.api_url).ok_or_else(|| unusable("an API"))?;
                HostRoute::Own { api, domain }
            }
        };
        let PortRoute { address, headers } = route.port(&opened.id, AGENT_PORT)?;
        let token = opened.envd_access_token.as_deref().map(AgentToken::new);
        let envd_address = EnvdAddress { host: address.authority(), headers, token };
        let connector = connector.clone();
        let connect = move || {
            let (connector, address) = (connector.clone(), address.clone());
            async move { connector.connect(&address).await }
        };
        let envd = EnvdClient::new(connect, envd_address).map_err(|_| unusable("a host"))?;
        Ok(Self {
            id: opened.id.clone(),
            route,
            traffic_token: opened.traffic_access_token.as_deref().and_then(secret_header),
            envd: envd.with_silence(silence),
            terminals: Mutex::default(),
            meter: UsageMeter::default(),
        })
    }

    /// Where requests to a port go.
    pub(crate) fn http_target(&self, port: u16) -> Result<HttpTarget, ProviderError> {
        let PortRoute { address, mut headers } = self.route.port(&self.id, port)?;
        let token = self.traffic_token.clone();
        headers.extend(token.map(|token| (HeaderName::from_static("e2b-traffic-access-token"), token)));
        let host = HeaderValue::try_from(address.authority()).map_err(|_| unusable("a host"))?;
        Ok(HttpTarget { address, host, headers, closed_port_text: CLOSED_PORT, port })
    }

    pub(crate) fn remember_terminal(&self, pid: u32) {
        let mut terminals = self.terminals.lock().unwrap_or_else(PoisonError::into_inner);
        if terminals.len() < TERMINALS_MAX {
            terminals.insert(pid);
        }
    }

    pub(crate) fn is_terminal(&self, pid: u32) -> bool {
        self.terminals.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
    }

    pub(crate) fn forget_terminal(&self, pid: u32) {
        self.terminals.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
    }
}

impl HostRoute {
    fn port(&self, id: &str, port: u16) -> Result<PortRoute, ProviderError> {
        match self {
            Self::Shared(address) => {
                let id = HeaderValue::from_str(id).map_err(|_| unusable("an id"))?;
                let headers = vec![
                    (HeaderName::from_static("e2b-sandbox-id"), id),
                    (HeaderName::from_static("e2b-sandbox-port"), HeaderValue::from(port)),
                ];
                Ok(PortRoute { address: address.clone(), headers })
            }
            Self::Own { api, domain } => {
                let address = VendorAddress::parse(api.tls, &format!("{port}-{id}.{domain}"));
                let address = address.ok_or_else(|| unusable("a domain"))?.named_by(api);
                Ok(PortRoute { address, headers: Vec::new() })
            }
        }
    }
}

fn secret_header(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(token).ok()?;
    value.set_sensitive(true);
    Some(value)
}
