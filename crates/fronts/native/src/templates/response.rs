//! A template in responses.

use atoll_client::templates::Template;
use atoll_front_kit::rfc3339_millis;
use atoll_service::TemplateRecord;

use crate::convert::FromCore;

impl FromCore<TemplateRecord> for Template {
    fn from_core(record: TemplateRecord) -> Self {
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
            nodes: record.nodes.into_iter().map(Into::into).collect(),
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
