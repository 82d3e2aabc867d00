//! Request and response types of templates. Plain data; the methods are in the files of their operations.

use std::collections::BTreeMap;
use std::pin::Pin;

pub use atoll_image::oci::{LayerState, Progress, Progressed};
use atoll_model::{MadeFrom, NodeName, ReadyCheck, StartSettings, TemplateRef, TenantId};
use serde::Serialize;
use tokio::io::AsyncRead;

/// A template as users see it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TemplateRecord {
    /// Its name.
    pub name: String,
    /// Identifies its exact content.
    pub version: String,
    /// The requested tag; `None` for built-in templates and for versions without one.
    pub tag: Option<String>,
    /// All tags of its name, in order.
    pub tags: Vec<String>,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// Its tenant; `None` for a built-in template.
    pub tenant: Option<TenantId>,
    /// Whether other tenants may start from it.
    pub public: bool,
    /// `host`, `rootfs` or `image`.
    pub kind: String,
    /// The default user of commands.
    pub user: String,
    /// The default working directory of commands.
    pub workdir: String,
    /// Environment that every sandbox of it starts with.
    pub env: BTreeMap<String, String>,
    /// Whether programs inside may gain privileges.
    pub sudo: bool,
    /// Started at every boot unless the sandbox has its own.
    pub command: Option<Vec<String>>,
    /// The check whether that command is ready.
    pub ready: Option<ReadyCheck>,
    /// The default port of previews.
    pub port: Option<u16>,
    /// All start settings of its sandboxes, including changes of its owner.
    pub settings: StartSettings,
    /// Bytes of its files, if they are counted.
    pub size_bytes: Option<u64>,
    /// The number of layers, if it has any.
    pub layers: Option<u32>,
    /// The image's program; started only if a create requests it.
    pub entrypoint: Option<Vec<String>>,
    /// The arguments of the image's program.
    pub cmd: Option<Vec<String>>,
    /// Labels of the image.
    pub labels: BTreeMap<String, String>,
    /// Its origin.
    pub made_from: MadeFrom,
    /// The digest of the image's manifest, if it was pulled.
    pub manifest: Option<String>,
    /// Whether its sandboxes start with the processes that ran when it was built.
    pub warm: bool,
    /// The nodes that have its files, if it has rows.
    pub nodes: Vec<NodeName>,
    /// Notes for users of the template.
    pub notes: Vec<String>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl TemplateRecord {
    /// Whether this is its name or one of its aliases.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// The image's entrypoint with its arguments. A `CMD` alone, such as the `python3` of Python's images, waits for
    /// input and would end at once.
    #[must_use]
    pub fn program(&self) -> Option<Vec<String>> {
        let mut program = self.entrypoint.clone().filter(|entrypoint| !entrypoint.is_empty())?;
        program.extend(self.cmd.iter().flatten().cloned());
        Some(program)
    }
}

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum RegistryAuth {
    /// A name and a password.
    Basic {
        username: String,
        /// The password, or a token in its place.
        password: String,
    },
    /// A token that the registry accepts directly.
    Token(String),
}

impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic(…)",
            Self::Token(_) => "Token(…)",
        })
    }
}

/// An image to pull.
#[derive(Debug, Clone)]
pub struct PullImage {
    /// The image.
    pub image: TemplateRef,
    /// The credentials for its registry; `None`: those of the operator, for admin keys only; otherwise none.
    pub auth: Option<RegistryAuth>,
    /// `linux/amd64` or similar; `None`: that of this machine.
    pub platform: Option<String>,
}

/// The destination of a template.
#[derive(Debug, Clone)]
pub struct PushImage {
    /// Registry, name and tag.
    pub image: TemplateRef,
    /// As in [`PullImage`].
    pub auth: Option<RegistryAuth>,
}

/// A template from a file.
#[derive(Debug, Clone)]
pub struct ImportTemplate {
    /// Its name, with a tag or without.
    pub name: TemplateRef,
    /// The format of the file.
    pub format: ImportFormat,
}

/// The format of an imported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImportFormat {
    /// Detected from the content.
    #[default]
    Auto,
    /// The format of `docker save`.
    DockerArchive,
    /// The tar of an OCI layout.
    OciArchive,
    /// The tar of a whole file system.
    Rootfs,
}

/// The format of an exported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExportFormat {
    /// The tar of an OCI layout.
    #[default]
    OciArchive,
    /// The format of `docker load`.
    DockerArchive,
}

/// A change of a template; `None` leaves a field unchanged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpdateTemplate {
    /// Applied over the settings of its versions, field by field: a given field replaces, `env` adds. Kept when a tag
    /// moves.
    pub settings: Option<StartSettings>,
    /// Whether to remove earlier changes of settings first.
    pub reset: bool,
    /// Replaces all aliases.
    pub aliases: Option<Vec<String>>,
    /// Whether other tenants may start from it.
    pub public: Option<bool>,
    /// Its new name. Its sandboxes and snapshots continue and show the old one.
    pub name: Option<String>,
}

/// The result of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Collected {
    /// Versions that nothing needs.
    pub versions: u64,
    /// Layers that no version needs.
    pub layers: u64,
    /// Blobs that no version needs.
    pub blobs: u64,
    /// Freed bytes, approximately.
    pub bytes: u64,
    /// Bytes of layers that only the build cache keeps.
    pub cached_bytes: u64,
    /// Versions that were kept because they were used a moment ago, or are being used.
    pub recent: u64,
}

/// A stream of bytes in or out.
pub type Bytestream = Pin<Box<dyn AsyncRead + Send>>;
