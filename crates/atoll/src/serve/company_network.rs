//! The settings of a server in the network of a company: authorities, proxies, mirrors.

use std::{path::Path, sync::Arc};

use atoll_model::ProxyUrl;
use atoll_outbound::{Authority, OutboundSettings, mirrors::Mirrors};
use atoll_service::CompanyFiles;

use crate::{
    cli::serve::{ProxyFlag, Serve},
    environment,
    failure::Failure,
};

/// What the operator said about the network of this server.
#[derive(Debug, Clone)]
pub(super) struct CompanyNetwork {
    extra: Vec<Authority>,
    /// Whether sandboxes get the certificate authorities that were added to this machine.
    with_host: bool,
    proxy: Option<ProxyUrl>,
    no_proxy: Option<String>,
    pub(super) egress_proxy: Option<ProxyUrl>,
    mirrors: Mirrors,
}

impl CompanyNetwork {
    pub(super) fn of(args: &Serve) -> Result<Self, Failure> {
        let read = |name: &str, flag: &Option<ProxyFlag>| match flag {
            None => Ok(None),
            Some(ProxyFlag(Ok(proxy))) => Ok(Some(proxy.clone())),
            Some(ProxyFlag(Err(why))) => Err(Failure::new("usage", format!("{name} is {why}")).exit(2)),
        };
        Ok(Self {
            extra: args.extra_ca.iter().flat_map(|file| file.0.iter().cloned()).collect(),
            with_host: !args.no_host_ca,
            proxy: read("--proxy", &args.proxy)?,
            no_proxy: args.no_proxy.clone(),
            egress_proxy: read("--egress-proxy", &args.egress_proxy)?,
            mirrors: Mirrors {
                debian: args.mirror_debian.clone(),
                pypi: args.mirror_pypi.clone(),
                npm: args.mirror_npm.clone(),
            },
        })
    }

    /// Sets how this process reaches the outside, before its first client is made.
    pub(super) fn apply(&self) -> Result<(), Failure> {
        let read =
            OutboundSettings::read(environment::of_network, self.proxy.as_ref(), self.no_proxy.as_deref());
        let settings = read.map_err(|bad| Failure::new("usage", bad.to_string()).exit(2))?;
        for (name, proxy) in [("http", &settings.http), ("https", &settings.https)] {
            if let Some(proxy) = proxy {
                tracing::info!(%proxy, "pulls, builds and vendors over {name} go through a proxy");
            }
        }
        if let Some(proxy) = &self.egress_proxy {
            tracing::info!(%proxy, "connections of sandboxes go through a proxy");
        }
        let settings =
            OutboundSettings { authorities: self.extra.clone(), mirrors: self.mirrors.clone(), ..settings };
        if !atoll_outbound::configure(settings) {
            tracing::debug!("the way out of this process was set before");
        }
        Ok(())
    }

    /// What sandboxes get.
    pub(super) fn files(&self) -> Arc<CompanyFiles> {
        let mut authorities = self.extra.clone();
        if self.with_host {
            match atoll_outbound::authorities::of_host(Path::new("/")) {
                Ok(found) => authorities.extend(found),
                Err(cause) => {
                    tracing::warn!(%cause, "the authorities of this machine are not given to sandboxes")
                }
            }
        }
        authorities.sort();
        authorities.dedup();
        Arc::new(CompanyFiles::new(authorities, self.mirrors.clone()))
    }
}
