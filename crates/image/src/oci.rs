//! Registries: pulling images from them and pushing templates to them.
//!
//! ```text
//! pull:  manifest ─► (index ─► manifest of the platform) ─► config ─► layers, four at a time ─► a version
//!                     each layer:  registry ─► .part file, hashed ─┬─ verified ─► blob
//!                                                └─ read behind, unzipped, unpacked ─► layer (published when both agree)
//! push:  pack ─► blobs that are not there, four at a time ─► config ─► manifest, last
//! ```
//!
//! A registry is a stranger that a tenant chose, and we reach it from inside the operator's network. So every URL, also of
//! redirects, of token servers and of uploads, passes the urls in `address.rs`; every answer is bounded; and nothing is
//! believed that its digest does not prove.
//!
//! Nothing here decides who may pull, keeps a credential longer than one pull, or writes to a layer.

mod address;
mod auth;
mod blob;
mod docker_config;
mod error;
mod image_location;
mod layer_proof;
mod manifest;
mod platform;
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
    /// `HOST[:PORT]` that may be reached without TLS and at addresses that are not public, because the operator says so.
    pub insecure: Vec<String>,
    /// Docker's `config.json` of the operator, for [`Auth::Operator`].
    pub docker_config: Option<PathBuf>,
    /// LIMIT: one pull or push takes no longer than this.
    pub limit: Duration,
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self { insecure: Vec::new(), docker_config: None, limit: Duration::from_secs(60 * 60) }
    }
}

/// What happened during a pull or a push. Called from several threads, never more than ten times a second for a layer.
pub type Progress = Arc<dyn Fn(Progressed) + Send + Sync>;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progressed {
    /// A line for a person.
    Step(String),
    /// How far a layer is.
    Layer {
        /// Of its blob.
        digest: String,
        /// Bytes that came or went.
        done: u64,
        /// Bytes that it has.
        total: u64,
        /// What is done with it.
        state: LayerState,
    },
}

/// What is done with a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    /// Others come first.
    Waiting,
    /// Its bytes come; they are unpacked as they do.
    Downloading,
    /// All its bytes are here and unpacking is not over.
    Unpacking,
    /// Its bytes go.
    Uploading,
    /// It was there already.
    Exists,
    /// It is there now.
    Done,
}

/// The registries, as far as this server may reach them.
#[derive(Debug)]
pub struct Registry {
    settings: RegistrySettings,
    urls: UrlPolicy,
    /// Whether a host that may go without TLS has it, and when that was asked.
    has_tls: Mutex<HashMap<String, (bool, Instant)>>,
    /// Pulls and pushes under way.
    slots: Semaphore,
}

impl Registry {
    /// Nothing is reached yet.
    #[must_use]
    pub fn new(settings: RegistrySettings) -> Self {
        let urls = UrlPolicy::new(&settings.insecure);
        Self { settings, urls, has_tls: Mutex::default(), slots: Semaphore::new(AT_ONCE) }
    }

    /// Waits until there is room for one more pull or push.
    async fn slot(&self, progress: &Progress) -> SemaphorePermit<'_> {
        if let Ok(slot) = self.slots.try_acquire() {
            return slot;
        }
        progress(Progressed::Step("waiting for other pulls to end".into()));
        self.slots.acquire().await.expect("nobody closes it")
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
