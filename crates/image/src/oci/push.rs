//! Pushes a version to a registry as an OCI image. Blobs go first, four at a time, and only those that are missing; the
//! manifest goes last, so that a tag never points to missing content.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_model::TemplateRef;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use tokio_util::sync::CancellationToken;

use super::pull::blocking;
use super::session::{Payload, RegistryRequest, RegistrySession};
use super::{Auth, LayerState, Progress, Progressed, Registry, RegistryError};
use crate::images::Images;
use crate::layers::Digest;

/// LIMIT: uploads of one push at a time.
const UPLOADS: usize = 4;
/// How often an upload reports its progress.
const TELL: Duration = Duration::from_millis(100);
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The current target of the tag.
    pub manifest_digest: String,
}

impl Registry {
    /// Packs a version and sends what the registry does not have. Dropping the future cancels it.
    pub async fn push(
        &self,
        images: &Arc<Images>,
        version: &str,
        image: &TemplateRef,
        auth: Auth,
        progress: Progress,
    ) -> Result<Pushed, RegistryError> {
        let limit = self.settings.limit;
        let too_slow = || RegistryError::TooSlow { image: image.to_string(), limit_s: limit.as_secs() };
        let Some(tag) = image.tag_or_default() else {
            let what = "a digest".to_owned();
            return Err(RegistryError::Unsupported {
                image: image.to_string(),
                what,
                why: "a push needs a tag",
            });
        };
        let work = async {
            let _slot = self.slot(&progress).await;
            // Neither the version nor its blobs are collected meanwhile.
            let _held = images.hold(version)?;
            let _working = images.begin();
            let session = RegistrySession::open(self, image, auth, "pull,push").await?;
            Push { session, images, progress }.run(version, image, tag).await
        };
        tokio::time::timeout(limit, work).await.map_err(|_| too_slow())?
    }
}

struct Push<'a> {
    session: RegistrySession<'a>,
    images: &'a Arc<Images>,
    progress: Progress,
}

impl Push<'_> {
    async fn run(&self, version: &str, image: &TemplateRef, tag: &str) -> Result<Pushed, RegistryError> {
        (self.progress)(Progressed::Step(format!("packing {version}")));
        let cancel = CancellationToken::new();
        let _guard = cancel.clone().drop_guard();
        let (images, version) = (Arc::clone(self.images), version.to_owned());
        let packed = blocking(move || images.pack(&version, &cancel)).await?;
        (self.progress)(Progressed::Step(format!("pushing to {image}")));
        let mut layers: Vec<(Digest, u64)> =
            packed.layers.iter().map(|layer| (layer.digest, layer.size)).collect();
        layers.sort_unstable();
        layers.dedup();
        futures::stream::iter(layers)
            .map(|(digest, size)| self.layer(digest, size))
            .buffer_unordered(UPLOADS)
            .try_collect::<Vec<()>>()
            .await?;
        let config = Bytes::from(packed.config);
        if !self.has(packed.config_digest).await? {
            self.upload(packed.config_digest, Payload::Bytes(config)).await?;
        }
        self.put_manifest(tag, packed.manifest.into()).await?;
        (self.progress)(Progressed::Step(format!("{image} is {}", packed.manifest_digest)));
        Ok(Pushed { manifest_digest: packed.manifest_digest.to_string() })
    }

    async fn layer(&self, digest: Digest, total: u64) -> Result<(), RegistryError> {
        let tell = |done, state| {
            (self.progress)(Progressed::Layer { digest: digest.to_string(), done, total, state });
        };
        if self.has(digest).await? {
            tell(total, LayerState::Exists);
            return Ok(());
        }
        let sent = Arc::new(AtomicU64::new(0));
        let body =
            Payload::File { path: self.images.blob_path(&digest), size: total, sent: Arc::clone(&sent) };
        let mut upload = Box::pin(self.upload(digest, body));
        loop {
            // Cancel-safe: the upload lives outside of the loop.
            match tokio::time::timeout(TELL, &mut upload).await {
                Ok(done) => break done?,
                Err(_) => tell(sent.load(Ordering::Relaxed).min(total), LayerState::Uploading),
            }
        }
        tell(total, LayerState::Done);
        Ok(())
    }

    /// Whether the registry has a blob in this repository.
    async fn has(&self, digest: Digest) -> Result<bool, RegistryError> {
        let ask = RegistryRequest::new(
            Method::HEAD,
            self.session.url(&format!("blobs/{digest}")),
            format!("the blob {digest}"),
        );
        Ok(self.session.send(&ask).await?.status().is_success())
    }

    /// Sends a blob: one request starts the upload, another carries all of it. The first may find the blob elsewhere in
    /// the registry.
    async fn upload(&self, digest: Digest, body: Payload) -> Result<(), RegistryError> {
        let what = format!("the upload of {digest}");
        let mut begin = RegistryRequest::new(
            Method::POST,
            self.session.url(&format!("blobs/uploads/?mount={digest}")),
            what.clone(),
        );
        begin.body = Payload::Bytes(Bytes::new());
        let response = self.session.send(&begin).await?;
        match response.status().as_u16() {
            201 => return Ok(()),
            202 => {}
            status => return Err(self.answered(status, &what)),
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location =
            location.ok_or_else(|| RegistryError::damaged(&what, "the registry sent no upload address"))?;
        let mut url = self.session.follow(response.url(), location)?;
        url.query_pairs_mut().append_pair("digest", &digest.to_string());
        let mut send = RegistryRequest::new(Method::PUT, url, what.clone());
        send.headers.push((CONTENT_TYPE.as_str(), "application/octet-stream".into()));
        send.body = body;
        match self.session.send(&send).await?.status().as_u16() {
            200..=299 => Ok(()),
            status => Err(self.answered(status, &what)),
        }
    }

    async fn put_manifest(&self, tag: &str, manifest: Bytes) -> Result<(), RegistryError> {
        let what = format!("the manifest {tag}");
        let mut put =
            RegistryRequest::new(Method::PUT, self.session.url(&format!("manifests/{tag}")), what.clone());
        put.headers.push((CONTENT_TYPE.as_str(), MANIFEST.into()));
        put.body = Payload::Bytes(manifest);
        match self.session.send(&put).await?.status().as_u16() {
            200..=299 => Ok(()),
            status => Err(self.answered(status, &what)),
        }
    }

    fn answered(&self, status: u16, asked: &str) -> RegistryError {
        let place = &self.session.place;
        match status {
            404 => RegistryError::NotFound { host: place.host.clone(), image: place.repository.clone() },
            status => RegistryError::Answered { host: place.host.clone(), status, asked: asked.to_owned() },
        }
    }
}
