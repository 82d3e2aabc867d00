//! The record beside a template's files: `manifest.json`. It is written last, so a folder without one is not a
//! template.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::TemplateError;
use crate::host::Fingerprint;
use crate::staging::write_durably;

pub(crate) const FILE: &str = "manifest.json";

/// Where a template's files come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateKind {
    /// A generated root over the host's `/usr`.
    Host,
    /// A complete root filesystem in a folder.
    Rootfs,
}

/// The properties of a template besides its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateManifest {
    pub name: String,
    pub kind: TemplateKind,
    /// Names the exact content: equal digests mean equal files.
    pub digest: String,
    /// The default user of commands.
    pub default_user: String,
    /// The home of the default user.
    pub home: String,
    /// The default working directory of commands.
    pub workdir: String,
    pub env: BTreeMap<String, String>,
    /// Whether programs in the sandbox may gain privileges (no_new_privs stays off).
    pub sudo: bool,
    /// The program that the agent starts first, if the template has one.
    pub start_command: Option<Vec<String>>,
    pub created_at: jiff::Timestamp,
    pub aliases: Vec<String>,
    /// The state of the host that this was made from; only for [`TemplateKind::Host`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Fingerprint>,
}

impl TemplateManifest {
    /// A manifest with the settings that all built-in templates share.
    #[expect(clippy::disallowed_methods, reason = "the creation time that a template shows")]
    pub(crate) fn new(name: &str, kind: TemplateKind, digest: String) -> Self {
        let env =
            [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8")];
        Self {
            name: name.to_owned(),
            kind,
            digest,
            default_user: "user".to_owned(),
            home: "/home/user".to_owned(),
            workdir: "/home/user".to_owned(),
            env: env.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            sudo: false,
            start_command: None,
            created_at: jiff::Timestamp::now(),
            aliases: Vec::new(),
            host: None,
        }
    }

    pub(crate) fn read(folder: &Path) -> Result<Self, TemplateError> {
        let path = folder.join(FILE);
        let bytes = std::fs::read(&path).map_err(TemplateError::io("read", &path))?;
        serde_json::from_slice(&bytes).map_err(|cause| TemplateError::BadManifest { path, cause })
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), TemplateError> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .expect("a manifest holds only strings, numbers and maps with string keys");
        bytes.push(b'\n');
        write_durably(&folder.join(FILE), &bytes)
    }
}
