//! Opens the object store of a configured location.

use std::path::Path;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use super::{ArchiveError, REQUEST, TRIES};

type OpenedLocation = (Arc<dyn ObjectStore>, String);

pub(super) fn open(place: &str) -> Result<OpenedLocation, ArchiveError> {
    if place.starts_with('/') {
        return folder(Path::new(place));
    }
    let url = Url::parse(place).map_err(|_| bad(place, "it is neither an absolute path nor an address"))?;
    match url.scheme() {
        "file" => match url.to_file_path() {
            Ok(path) => folder(&path),
            Err(()) => Err(bad(place, "the path is not absolute")),
        },
        "s3" => s3(&url),
        _ => Err(bad(place, "only a folder, file:// and s3:// are supported")),
    }
}

fn bad(place: &str, why: impl Into<String>) -> ArchiveError {
    // A URL may contain a password before its host or in its options.
    let plain = place.split('?').next().unwrap_or_default();
    let shown = match (plain.split_once("://"), plain.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => plain.to_owned(),
    };
    ArchiveError::BadPlace { place: shown, why: why.into() }
}

fn folder(path: &Path) -> Result<OpenedLocation, ArchiveError> {
    use std::os::unix::fs::DirBuilderExt;
    let shown = path.display().to_string();
    // Archives contain private files of sandboxes.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|cause| bad(&shown, format!("the folder cannot be made: {cause}")))?;
    let store = LocalFileSystem::new_with_prefix(path).map_err(|cause| bad(&shown, cause.to_string()))?;
    Ok((Arc::new(store.with_fsync(true).with_automatic_cleanup(true)), shown))
}

/// The host of the storage, to find out whether a proxy is used.
fn place_of(url: &Url) -> (bool, String, u16) {
    let endpoint =
        url.query_pairs().find(|(name, _)| name == "endpoint").map(|(_, value)| value.into_owned());
    let endpoint = endpoint.or_else(crate::environment::s3_endpoint);
    let endpoint = endpoint.and_then(|endpoint| Url::parse(&endpoint).ok());
    match endpoint.as_ref().and_then(|endpoint| Some((endpoint, endpoint.host_str()?))) {
        Some((endpoint, host)) => {
            (endpoint.scheme() == "https", host.to_owned(), endpoint.port_or_known_default().unwrap_or(443))
        }
        // Amazon's: below its domain in every region.
        None => (true, format!("{}.s3.amazonaws.com", url.host_str().unwrap_or_default()), 443),
    }
}

/// The proxy and the authorities of this server.
fn outbound(mut options: ClientOptions, (is_tls, host, port): &(bool, String, u16)) -> ClientOptions {
    let settings = atoll_outbound::current();
    if let Some(proxy) = settings.proxy_for(*is_tls, host, *port) {
        options = options.with_proxy_url(proxy.with_credentials());
    }
    for authority in &settings.authorities {
        if let Ok(certificate) = object_store::Certificate::from_der(authority.der()) {
            options = options.with_root_certificate(certificate);
        }
    }
    options
}

fn s3(url: &Url) -> Result<OpenedLocation, ArchiveError> {
    let shown = format!("s3://{}{}", url.host_str().unwrap_or_default(), url.path());
    let bucket = url.host_str().filter(|name| !name.is_empty());
    let bucket = bucket.ok_or_else(|| bad(&shown, "it names no bucket"))?;
    atoll_outbound::set_provider();
    let mut options = ClientOptions::new().with_timeout(REQUEST);
    let retry = RetryConfig { retry_timeout: TRIES, ..RetryConfig::default() };
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
    let mut allow_http = false;
    for (name, value) in url.query_pairs() {
        match name.as_ref() {
            "endpoint" => builder = builder.with_endpoint(value.as_ref()),
            "region" => builder = builder.with_region(value.as_ref()),
            "allow_http" => allow_http = value == "true",
            other => return Err(bad(&shown, format!("the option {other:?} is unknown"))),
        }
    }
    options = outbound(options, &place_of(url));
    let store = builder
        .with_client_options(options.with_allow_http(allow_http))
        .build()
        .map_err(|cause| bad(&shown, cause.to_string()))?;
    let prefix = url.path().trim_matches('/');
    let store: Arc<dyn ObjectStore> =
        if prefix.is_empty() { Arc::new(store) } else { Arc::new(PrefixStore::new(store, prefix)) };
    Ok((store, shown))
}
