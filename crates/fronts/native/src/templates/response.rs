//! A template as the wire shows it.

use std::collections::BTreeMap;

use atoll_front_kit::rfc3339_millis;
use atoll_service::TemplateRecord;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Ready;

/// What a sandbox starts from.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Template {
    name: String,
    /// Names its exact content; sandboxes stay with theirs when a tag moves.
    version: String,
    /// The tag that was asked for; null for what is built in.
    tag: Option<String>,
    /// All tags of its name.
    tags: Vec<String>,
    /// Other names it answers to.
    aliases: Vec<String>,
    /// The tenant whose it is; null: built in, everybody's.
    tenant: Option<String>,
    /// Whether other tenants may start from it.
    public: bool,
    /// `host`, `rootfs` or `image`.
    kind: String,
    made_from: MadeFrom,
    /// Digest of the image's manifest, where it was pulled.
    manifest: Option<String>,
    user: String,
    workdir: String,
    /// Environment that every sandbox of it starts with.
    env: BTreeMap<String, String>,
    /// Whether programs inside may gain privileges.
    sudo: bool,
    /// Started at every boot unless a sandbox brings its own.
    command: Option<Vec<String>>,
    /// When that is ready; a create answers then.
    ready: Option<Ready>,
    /// Whether its sandboxes begin with the processes that ran when it was built.
    warm: bool,
    /// The port of previews that name none.
    port: Option<u16>,
    /// Cores of sandboxes that ask for none; null: the server's default.
    cpu: Option<f64>,
    /// Of sandboxes that ask for none; null: the server's default.
    memory_mib: Option<i64>,
    /// Of sandboxes that ask for none; null: the server's default.
    disk_mib: Option<i64>,
    /// Of sandboxes that ask for none; null: the server's default.
    pids: Option<i64>,
    /// How many instances wait ready for the next create; null: the server's default.
    pool: Option<u32>,
    /// Bytes of its files, where they are counted.
    size_bytes: Option<u64>,
    layers: Option<u32>,
    /// What the image says of its program; shown, and never started by itself.
    entrypoint: Option<Vec<String>>,
    /// What the image says of its program's arguments.
    cmd: Option<Vec<String>>,
    /// Of the image.
    labels: BTreeMap<String, String>,
    /// What one should know of it, such as instructions that were left out.
    notes: Vec<String>,
    #[schema(format = DateTime)]
    created_at: String,
}

/// Where a template comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MadeFrom {
    /// This server makes it.
    BuiltIn,
    /// A registry.
    Image,
    Build,
    /// A file.
    Import,
}

impl From<atoll_model::MadeFrom> for MadeFrom {
    fn from(from: atoll_model::MadeFrom) -> Self {
        match from {
            atoll_model::MadeFrom::BuiltIn => Self::BuiltIn,
            atoll_model::MadeFrom::Image => Self::Image,
            atoll_model::MadeFrom::Build => Self::Build,
            atoll_model::MadeFrom::Import => Self::Import,
        }
    }
}

impl From<TemplateRecord> for Template {
    fn from(record: TemplateRecord) -> Self {
        let limits = record.settings.limits;
        Self {
            name: record.name,
            version: record.version,
            tag: record.tag,
            tags: record.tags,
            aliases: record.aliases,
            tenant: record.tenant.map(Into::into),
            public: record.public,
            kind: record.kind,
            made_from: record.made_from.into(),
            manifest: record.manifest,
            user: record.user,
            workdir: record.workdir,
            env: record.env,
            sudo: record.sudo,
            command: record.command,
            ready: record.ready.map(Into::into),
            warm: record.warm,
            port: record.port,
            cpu: limits.cpu,
            memory_mib: limits.memory_mib,
            disk_mib: limits.disk_mib,
            pids: limits.pids,
            pool: record.settings.pool,
            size_bytes: record.size_bytes,
            layers: record.layers,
            entrypoint: record.entrypoint,
            cmd: record.cmd,
            labels: record.labels,
            notes: record.notes,
            created_at: rfc3339_millis(record.created_at_ms),
        }
    }
}
