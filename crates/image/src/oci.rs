//! Registries: pulling images from them and pushing templates to them.
//!
//! ```text
//! pull:  manifest ─► (index ─► manifest of the platform) ─► config ─► layers, four at a time ─► a version
//!                     each layer:  registry ─► .part file, hashed ─┬─ verified ─► blob
//!                                                └─ read behind, decompressed, unpacked ─► layer (published when both agree)
//! push:  pack ─► missing blobs, four at a time ─► config ─► manifest, last
//! ```
//!
//! A registry is an untrusted host that a tenant chose, and the server reaches it from inside the operator's network.
//! So every URL, including those of redirects, token servers and uploads, is checked by `address.rs`; every response is
//! bounded; and all content is verified by its digest.
//!
//! This module does not decide who may pull, keeps no credential longer than one pull, and never writes to a layer.

mod address;
mod auth;
mod blob;
mod docker_config;
mod error;
mod image_location;
mod layer_proof;
mod manifest;
mod platform;
mod proxied;
mod pull;
mod push;
mod retry;
mod session;
mod token;
pub mod unzip;

pub use auth::Auth;
pub use error::RegistryError;
pub use layer_proof::KnownLayers;
pub use platform::Platform;
pub use pull::Pulled;
pub use push::Pushed;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use address::UrlPolicy;
use tokio::sync::{Semaphore, SemaphorePermit};

/// LIMIT: pulls and pushes of all tenants at a time. Each has threads and a few tens of MiB; more would not be faster.
const AT_ONCE: usize = 16;

/// How registries are reached.
#[derive(Debug, Clone)]
pub struct RegistrySettings {
    /// `HOST[:PORT]` that the operator allows without TLS and at addresses that are not public.
    pub insecure: Vec<String>,
    /// Docker's `config.json` of the operator, for [`Auth::Operator`].
    pub docker_config: Option<PathBuf>,
    /// LIMIT: the longest duration of one pull or push.
    pub limit: Duration,
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self { insecure: Vec::new(), docker_config: None, limit: Duration::from_secs(60 * 60) }
    }
}

/// Receives the progress of a pull or a push. Called from several threads, at most ten times a second per layer.
pub type Progress = Arc<dyn Fn(Progressed) + Send + Sync>;

/// One progress report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progressed {
    /// A line for the user.
    Step(String),
    /// The progress of a layer.
    Layer {
        /// Digest of its blob.
        digest: String,
        /// Bytes transferred.
        done: u64,
        /// Size in bytes.
        total: u64,
        state: LayerState,
    },
}

/// The state of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    /// Other layers are transferred first.
    Waiting,
    /// Its bytes arrive and are unpacked at the same time.
    Downloading,
    /// All its bytes have arrived and unpacking is not finished.
    Unpacking,
    /// Its bytes are sent.
    Uploading,
    /// It existed already.
    Exists,
    /// It is complete.
    Done,
}

/// The registries that this server may reach.
#[derive(Debug)]
pub struct Registry {
    settings: RegistrySettings,
    urls: UrlPolicy,
    /// Whether a host that is allowed without TLS has TLS, and when that was checked.
    has_tls: Mutex<HashMap<String, (bool, Instant)>>,
    /// Limits the pulls and pushes under way.
    slots: Semaphore,
}

impl Registry {
    /// Opens no connection yet.
    #[must_use]
    pub fn new(settings: RegistrySettings) -> Self {
        let urls = UrlPolicy::new(&settings.insecure);
        Self { settings, urls, has_tls: Mutex::default(), slots: Semaphore::new(AT_ONCE) }
    }

    /// Waits for a slot for one more pull or push.
    async fn slot(&self, progress: &Progress) -> SemaphorePermit<'_> {
        if let Ok(slot) = self.slots.try_acquire() {
            return slot;
        }
        progress(Progressed::Step("waiting for other pulls to end".into()));
        self.slots.acquire().await.expect("the semaphore is never closed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_and_pushes_can_be_driven_from_any_thread() {
        fn is_send<T: Send>(_: &T) {}
        let registry = Registry::new(RegistrySettings::default());
        let images = crate::images::Images::open("/nonexistent/images", crate::images::Bounds::default());
        let image = "debian".parse().expect("a name");
        let progress: Progress = Arc::new(|_| ());
        if let Ok(images) = images {
            is_send(&registry.pull(&images, &image, Auth::Anonymous, None, Arc::clone(&progress)));
            is_send(&registry.push(&images, "x", &image, Auth::Anonymous, progress));
        }
    }
}
