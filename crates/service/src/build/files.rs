//! The files of a stage so far: a stack of layers that is always also a version, so that a sandbox can be created from
//! it. This module uses the cache; blocking work runs on blocking threads.

use std::sync::Arc;

use atoll_image::images::{ImageError, NewVersion};
use atoll_image::{DiffId, Images};
use atoll_model::{Code, StartSettings};
use atoll_provider::Packed;
use oci_spec::image::ImageConfiguration;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::ServiceError;

/// LIMIT: bytes that are read ahead of the unpacking.
const READ_AHEAD: usize = 256 << 10;

/// Files without their configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuildFiles {
    /// The built-in template below: its name and its version.
    pub(super) base: Option<(String, String)>,
    /// The bottom layer first.
    pub(super) layers: Vec<DiffId>,
    /// A version that has exactly these files.
    pub(super) version: String,
}

impl BuildFiles {
    /// An id that is equal for equal files, in whatever version they are.
    pub(super) fn id(&self) -> String {
        let mut hash = Sha256::new();
        if let Some((name, version)) = &self.base {
            hash.update(format!("base {name} {version}\n"));
        }
        for layer in &self.layers {
            hash.update(format!("layer {layer}\n"));
        }
        hex::encode(hash.finalize())
    }

    /// Makes a version of a stack of layers.
    pub(super) async fn of(
        images: &Arc<Images>,
        base: Option<(String, String)>,
        layers: Vec<DiffId>,
    ) -> Result<Self, ServiceError> {
        let plain = NewVersion { base: base.clone(), layers: layers.clone(), ..NewVersion::default() };
        let version = blocking(images, move |images| images.put_version(plain)).await?;
        Ok(Self { base, layers, version })
    }

    /// The files of a version.
    pub(super) async fn in_version(
        images: &Arc<Images>,
        version: &str,
    ) -> Result<(Self, ImageConfiguration, StartSettings), ServiceError> {
        let asked = version.to_owned();
        let found = blocking(images, move |images| images.version(&asked)).await?;
        let files = Self { base: found.base, layers: found.layers, version: found.digest };
        Ok((files, found.config, found.settings))
    }

    /// The earlier result of a step with this key, if all of it still exists.
    pub(super) async fn cached(images: &Arc<Images>, key: &str) -> Option<Self> {
        let key = key.to_owned();
        let found = blocking(images, move |images| {
            let Some(version) = images.cached(&key) else { return Ok(None) };
            let found = images.version(&version)?;
            let whole = found.layers.iter().all(|layer| images.has_layer(layer));
            Ok(whole.then_some(Self { base: found.base, layers: found.layers, version }))
        });
        // A cache that cannot be read counts as empty.
        found.await.ok().flatten()
    }

    /// Records the result of a step with this key.
    pub(super) async fn remember(&self, images: &Arc<Images>, key: &str) {
        let (key, version) = (key.to_owned(), self.version.clone());
        if let Err(error) = blocking(images, move |images| images.remember(&key, &version)).await {
            tracing::warn!(%error, "a build's step is not in the cache");
        }
    }

    /// The files with the changes of a sandbox. A step without changes adds no layer.
    pub(super) async fn with(
        &self,
        images: &Arc<Images>,
        changes: Packed,
        cancel: &CancellationToken,
    ) -> Result<Self, ServiceError> {
        let cancel = cancel.clone();
        let runtime = tokio::runtime::Handle::current();
        let layer = blocking(images, move |images| {
            let tar = tokio_util::io::SyncIoBridge::new_with_handle(changes, runtime);
            let tar = std::io::BufReader::with_capacity(READ_AHEAD, tar);
            Ok(images.add_layer(None, tar, &cancel)?)
        })
        .await?;
        if layer.entries == 0 {
            return Ok(self.clone());
        }
        let mut layers = self.layers.clone();
        layers.push(layer.diff_id);
        Self::of(images, self.base.clone(), layers).await
    }
}

/// Runs work on images on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    images: &Arc<Images>,
    work: impl FnOnce(&Arc<Images>) -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ServiceError> {
    let images = Arc::clone(images);
    match tokio::task::spawn_blocking(move || work(&images)).await {
        Ok(done) => done.map_err(ServiceError::from),
        Err(cause) => {
            Err(ServiceError::new(Code::Internal, "the work on layers ended early").caused_by(cause))
        }
    }
}
