//! All settings of a server in one place, and how each part is told its share.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use crate::cli::serve::Serve;

/// What the user said, with the defaults filled in.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) listen: SocketAddr,
    /// Whole path; there, and closed to others.
    pub(super) data: PathBuf,
    pub(super) template: String,
    pub(super) host_local: bool,
    pub(super) pool: u16,
    pub(super) live_max: u64,
    pub(super) overcommit: f64,
    pub(super) agent: Option<PathBuf>,
    pub(super) tour: bool,
}

impl Settings {
    pub(super) fn new(data: PathBuf, args: Serve) -> Self {
        Self {
            listen: args.listen,
            data,
            template: args.template,
            host_local: args.host_local,
            pool: args.pool,
            live_max: args.live_max,
            overcommit: args.overcommit,
            agent: args.agent,
            tour: args.tour,
        }
    }

    /// The service's share.
    pub(super) fn service(&self) -> atoll_service::Config {
        atoll_service::Config {
            default_template: self.template.clone(),
            live_max: self.live_max,
            overcommit: self.overcommit,
            ..atoll_service::Config::new(&self.data)
        }
    }

    /// What of this machine the template `host` shows.
    pub(super) fn host(&self) -> atoll_image::HostSource {
        atoll_image::HostSource { with_local: self.host_local, ..Default::default() }
    }

    /// The engine's share.
    pub(super) fn engine(&self) -> atoll_container::Config {
        let pool = match self.pool {
            0 => BTreeMap::new(),
            count => BTreeMap::from([(self.template.clone(), usize::from(count))]),
        };
        atoll_container::Config {
            pool,
            pool_limits: self.service().default_limits,
            agent: self.agent.clone(),
            ..atoll_container::Config::new(&self.data)
        }
    }
}
