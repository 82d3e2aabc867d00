//! What callers hand in and get back about templates. Plain data; the methods are in the files of their verbs.

use std::collections::BTreeMap;
use std::pin::Pin;

pub use atoll_image::oci::{LayerState, Progress, Progressed};
use atoll_model::{MadeFrom, ReadyCheck, StartSettings, TemplateRef, TenantId};
use serde::Serialize;
use tokio::io::AsyncRead;

/// A template as users see it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TemplateRecord {
    /// Its name.
    pub name: String,
    /// Names its exact content.
    pub version: String,
    /// The tag that was asked for; `None` for built-in ones and for versions without one.
    pub tag: Option<String>,
    /// All tags of its name, in order.
    pub tags: Vec<String>,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// Whose it is; `None`: built in, everybody's.
    pub tenant: Option<TenantId>,
    /// Whether other tenants may start from it.
    pub public: bool,
    /// `host`, `rootfs` or `image`.
    pub kind: String,
    /// Who commands run as unless they say otherwise.
    pub user: String,
    /// Where commands start unless they say otherwise.
    pub workdir: String,
    /// Environment that every sandbox of it starts with.
    pub env: BTreeMap<String, String>,
    /// Whether programs inside may gain privileges.
    pub sudo: bool,
    /// Started at every boot unless the sandbox brings its own.
    pub command: Option<Vec<String>>,
    /// When that is ready.
    pub ready: Option<ReadyCheck>,
    /// The port of previews that name none.
    pub port: Option<u16>,
    /// All that its sandboxes start with, changes of its owner included.
    pub settings: StartSettings,
    /// Bytes of its files, where they are counted.
    pub size_bytes: Option<u64>,
    /// How many layers it has, where it has such.
    pub layers: Option<u32>,
    /// What the image says of its program; started only where a create asks for it.
    pub entrypoint: Option<Vec<String>>,
    /// What the image says of its program's arguments.
    pub cmd: Option<Vec<String>>,
    /// Of the image.
    pub labels: BTreeMap<String, String>,
    /// Where it comes from.
    pub made_from: MadeFrom,
    /// The digest of the image's manifest, where it was pulled.
    pub manifest: Option<String>,
    /// Whether sandboxes of it start with the processes that ran when it was built.
    pub warm: bool,
    /// What one should know of it.
    pub notes: Vec<String>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl TemplateRecord {
    /// The image's entrypoint with its arguments. A `CMD` alone, such as the `python3` of Python's images, waits for input and
    /// would end at once.
    #[must_use]
    pub fn program(&self) -> Option<Vec<String>> {
        let mut program = self.entrypoint.clone().filter(|entrypoint| !entrypoint.is_empty())?;
        program.extend(self.cmd.iter().flatten().cloned());
        Some(program)
    }
}

/// What is shown to a registry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum RegistryAuth {
    /// A name and a password.
    Basic {
        username: String,
        /// The password, or a token in its place.
        password: String,
    },
    /// A token that the registry takes as it is.
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

/// An image to be fetched.
#[derive(Debug, Clone)]
pub struct PullImage {
    /// Which.
    pub image: TemplateRef,
    /// What is shown to its registry; `None`: what the operator gave this server, for admin keys only; else nothing.
    pub auth: Option<RegistryAuth>,
    /// `linux/amd64` or the like; `None`: that of this machine.
    pub platform: Option<String>,
}

/// Where a template goes.
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
    /// What the file is.
    pub format: ImportFormat,
}

/// What an imported file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImportFormat {
    /// Found out by looking at it.
    #[default]
    Auto,
    /// As `docker save` writes it.
    DockerArchive,
    /// The tar of an OCI layout.
    OciArchive,
    /// The tar of a whole file system.
    Rootfs,
}

/// What an exported file shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExportFormat {
    /// The tar of an OCI layout.
    #[default]
    OciArchive,
    /// As `docker load` reads it.
    DockerArchive,
}

/// A change of a template; `None` leaves a thing as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpdateTemplate {
    /// Laid over what its versions say, field by field: what is given here replaces, `env` adds. Stays when a tag moves.
    pub settings: Option<StartSettings>,
    /// Forgets earlier changes of settings first.
    pub reset: bool,
    /// Replaces all aliases.
    pub aliases: Option<Vec<String>>,
    /// Whether other tenants may start from it.
    pub public: Option<bool>,
    /// Its new name. Sandboxes and snapshots of it go on and show the old one.
    pub name: Option<String>,
}

/// What a collection removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Collected {
    /// Versions that nothing needs.
    pub versions: u64,
    /// Layers that no version needs.
    pub layers: u64,
    /// Blobs that no version needs.
    pub blobs: u64,
    /// Bytes that are free again, about.
    pub bytes: u64,
}

/// Bytes on their way in or out.
pub type Bytestream = Pin<Box<dyn AsyncRead + Send>>;
