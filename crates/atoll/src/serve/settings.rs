//! All settings of a server in one place, and the part of each component.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use atoll_client::server::ServerSetting;
use atoll_disk::{Reserve, TenantShares};
use atoll_image::{images::Bounds, oci::RegistrySettings};
use atoll_model::{
    LimitsAsk, NodeName,
    policy::egress::{OperatorFloors, PrivateRanges},
};
use atoll_proxy::CertificateFiles;
use atoll_store::StoreConfig;

use super::{company_network::CompanyNetwork, tls::TlsPort, warm_kernels::Kernels};
use crate::{
    cli::{
        serve::{EgressPrivate, MakeTemplates, Serve},
        values::Mebibytes,
    },
    environment,
    failure::Failure,
    server::tls_files::TlsFiles,
};

/// The settings of the user, with defaults.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) listen: SocketAddr,
    /// The settings as the operator sees them.
    pub(super) report: Vec<ServerSetting>,
    /// `None`: there is no Unix socket.
    pub(super) socket: Option<PathBuf>,
    pub(super) domain: atoll_proxy::Domain,
    pub(super) allow_origins: Vec<String>,
    /// `None`: TLS is disabled.
    pub(super) tls: Option<TlsPort>,
    /// Full path; the folder exists and is not accessible to others.
    pub(super) data: PathBuf,
    /// `None`: the name that the folder has, or the host's.
    pub(super) node: Option<NodeName>,
    /// Full path.
    pub(super) database: PathBuf,
    pub(super) template: String,
    pub(super) provider: String,
    /// Whether the provider `local` may be used without a settings file.
    pub(super) allow_local: bool,
    pub(super) make_templates: bool,
    pub(super) host_local: bool,
    pub(super) pool: u16,
    pub(super) warm_kernels: u16,
    pub(super) live_max: u64,
    pub(super) overcommit: f64,
    pub(super) disk_overcommit: f64,
    /// The size of sandboxes of the E2B front.
    pub(super) e2b_size: LimitsAsk,
    /// The reserve on the disk of `data`.
    pub(super) disk: Arc<Reserve>,
    pub(super) archive: Option<String>,
    pub(super) egress: OperatorFloors,
    pub(super) network: CompanyNetwork,
    pub(super) agent: Option<PathBuf>,
    /// Whether browsers get the web page.
    pub(super) ui: bool,
    pub(super) tour: bool,
    pub(super) registry_insecure: Vec<String>,
    pub(super) volume_roots: Vec<PathBuf>,
    /// Limits of images.
    pub(super) images: Bounds,
    pub(super) build_timeout: Duration,
    pub(super) build_context_bytes: u64,
}

impl Settings {
    pub(super) fn new(data: PathBuf, args: Serve) -> Result<Self, Failure> {
        let shares = TenantShares::new(args.tenant_disk_share.per_mille);
        let disk = Reserve::open(&data, args.disk_reserve.0 << 20, shares);
        let network = CompanyNetwork::of(&args)?;
        Ok(Self {
            report: Vec::new(),
            listen: args.listen,
            socket: args.socket.0.clone(),
            tls: tls(&data, &args),
            node: args.node,
            database: args.database.unwrap_or_else(|| StoreConfig::default_database(&data)),
            domain: args.domain,
            allow_origins: args.allow_origin,
            data,
            template: args.template,
            provider: args.provider,
            allow_local: args.allow_local,
            make_templates: args.make_templates == MakeTemplates::Auto,
            host_local: args.host_local,
            pool: args.pool,
            warm_kernels: args.warm_kernels,
            live_max: args.live_max,
            overcommit: args.overcommit,
            disk_overcommit: args.disk_overcommit,
            e2b_size: LimitsAsk {
                cpu: Some(args.e2b_cpu),
                memory_mib: Some(args.e2b_memory.as_limit()),
                ..LimitsAsk::default()
            },
            archive: args.archive,
            network,
            egress: OperatorFloors::new(private_ranges(args.egress_private), args.egress_policy),
            agent: args.agent,
            ui: !args.no_ui,
            tour: args.tour,
            registry_insecure: args.registry_insecure,
            volume_roots: args.volume_root,
            images: Bounds {
                disk: Arc::clone(&disk),
                ..bounds(args.image_max, args.image_max_entries, args.image_grace_s)
            },
            disk,
            build_timeout: Duration::from_secs(args.build_timeout.whole()),
            build_context_bytes: args.build_context_max.0 << 20,
        })
    }

    /// Settings for work on DATA without a server: the database and the node that it was last used with.
    pub(super) fn bare(data: PathBuf) -> Result<Self, Failure> {
        let database =
            StoreConfig::last_database(&data).unwrap_or_else(|| StoreConfig::default_database(&data));
        // Its sandboxes may have to be deleted.
        let allow_local = true;
        Ok(Self { database, node: None, allow_local, ..Self::new(data, Serve::bare()?)? })
    }

    /// The settings of the store.
    pub(super) fn store(&self) -> StoreConfig {
        StoreConfig {
            database: self.database.clone(),
            node: self.node.clone(),
            default_node: host_name(),
            disk: Arc::clone(&self.disk),
            ..StoreConfig::new(&self.data)
        }
    }

    /// The settings of the service.
    pub(super) fn service(&self) -> atoll_service::ServiceConfig {
        let defaults = atoll_service::ServiceConfig::new(&self.data);
        atoll_service::ServiceConfig {
            default_template: self.template.clone(),
            make_at_first_use: self.make_templates,
            live_max: self.live_max,
            overcommit: self.overcommit,
            disk_overcommit: self.disk_overcommit,
            archive: self.archive.as_deref().map_or_else(|| defaults.archive.clone(), archive_place),
            egress: self.egress.clone(),
            egress_proxy: self.network.egress_proxy.clone(),
            company: self.network.files(),
            volume_roots: self.volume_roots.clone(),
            build_timeout: self.build_timeout,
            build_context_bytes: self.build_context_bytes,
            ..defaults
        }
    }

    /// The settings for registries.
    pub(super) fn registry(&self) -> RegistrySettings {
        RegistrySettings {
            insecure: self.registry_insecure.clone(),
            // Read at each pull, so that a later `docker login` has effect.
            docker_config: Some(environment::home().join(".docker/config.json")),
            ..RegistrySettings::default()
        }
    }

    /// The parts of this machine that the template `host` shows.
    pub(super) fn host(&self) -> atoll_image::HostSource {
        atoll_image::HostSource { with_local: self.host_local, ..Default::default() }
    }

    /// The settings of the engine.
    pub(super) fn engine(&self) -> atoll_container::EngineConfig {
        let mut pool = match self.pool {
            0 => BTreeMap::new(),
            count => BTreeMap::from([(self.template.clone(), usize::from(count))]),
        };
        let warm = if self.pool == 0 { 0 } else { usize::from(self.warm_kernels) };
        if warm > 0 {
            pool.extend(
                atoll_image::default_names::INTERPRETERS
                    .iter()
                    .map(|template| ((*template).to_owned(), warm)),
            );
        }
        atoll_container::EngineConfig {
            pool,
            prepare: (warm > 0).then(|| Arc::new(Kernels) as _),
            pool_limits: self.service().default_limits,
            agent: self.agent.clone(),
            disk: Arc::clone(&self.disk),
            ..atoll_container::EngineConfig::new(&self.data)
        }
    }
}

/// The name of this host, if that is the name of a node.
fn host_name() -> NodeName {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().parse().unwrap_or_default()
}

const fn private_ranges(asked: EgressPrivate) -> PrivateRanges {
    match asked {
        EgressPrivate::Never => PrivateRanges::Never,
        EgressPrivate::FirstTenant => PrivateRanges::FirstTenant,
        EgressPrivate::Named => PrivateRanges::AllTenants,
    }
}

fn tls(data: &Path, args: &Serve) -> Option<TlsPort> {
    let listen = SocketAddr::new(args.listen.ip(), args.tls_port);
    let named = args.tls_cert.clone().zip(args.tls_key.clone());
    let is_named = named.is_some();
    let files = match named {
        Some((certificate, key)) => CertificateFiles { certificate, key },
        None => {
            let TlsFiles { certificate, key, .. } = TlsFiles::of(data);
            CertificateFiles { certificate, key }
        }
    };
    (args.tls_port != 0).then_some(TlsPort { listen, files, is_named })
}

fn bounds(most: Mebibytes, entries: u64, grace_s: Option<u64>) -> Bounds {
    let defaults = Bounds::default();
    let bytes = most.0 << 20;
    let grace = grace_s.map_or(defaults.grace, Duration::from_secs);
    Bounds { layer_bytes: bytes, image_bytes: bytes, entries, grace, ..defaults }
}

/// The full path of a folder, so that it stays valid in any working directory; a URL is unchanged.
fn archive_place(asked: &str) -> String {
    if asked.contains("://") {
        return asked.to_owned();
    }
    std::path::absolute(asked).map_or_else(|_| asked.to_owned(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_for_archives_is_whole_and_a_url_is_left_alone() {
        assert_eq!(archive_place("s3://bucket/a?region=x"), "s3://bucket/a?region=x");
        assert_eq!(archive_place("/var/archive"), "/var/archive");
        assert!(std::path::Path::new(&archive_place("here")).is_absolute());
    }
}
