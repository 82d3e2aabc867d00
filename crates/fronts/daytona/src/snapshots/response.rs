//! A snapshot as Daytona describes it, and the object of Atoll behind it.

use atoll_front_kit::rfc3339_millis;
use atoll_model::{Build, BuildStatus, LimitsAsk, Snapshot as Kept, SnapshotState};
use atoll_service::TemplateRecord;
use serde::Serialize;

use crate::builds;
use crate::naming;
use crate::sandboxes::{BuildInfo, CLASS, CPU, DISK_GIB, MEMORY_GIB, REGION, gib};

/// The object of Atoll behind a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A template.
    Template,
    /// A snapshot of a sandbox.
    Kept,
    /// A build without a template: it is running, or it failed.
    Build,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotResponse {
    id: String,
    organization_id: Option<String>,
    general: bool,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_name: Option<String>,
    state: &'static str,
    /// GiB.
    size: Option<f64>,
    entrypoint: Option<Vec<String>>,
    cpu: u32,
    gpu: u32,
    mem: u32,
    disk: u32,
    error_reason: Option<String>,
    created_at: String,
    updated_at: String,
    last_used_at: Option<String>,
    source_sandbox_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_info: Option<BuildInfo>,
    region_ids: [&'static str; 1],
    #[serde(rename = "ref")]
    reference: String,
    sandbox_class: &'static str,
    #[serde(skip)]
    kind: Kind,
}

impl SnapshotResponse {
    /// One snapshot for every tag of a template.
    pub(super) fn of_tags(template: &TemplateRecord) -> Vec<Self> {
        if template.tenant.is_none() || template.tags.is_empty() {
            let names = naming::general_names(template);
            let also = names.into_iter().map(|name| Self::of_template(template, name));
            let own = Self::of_template(template, &naming::name(&template.name));
            return also.chain([own]).collect();
        }
        let name = naming::name(&template.name);
        let shown = template.tags.iter().map(|tag| match tag.as_str() {
            atoll_model::DEFAULT_TAG => Self::of_template(template, &name),
            tag => Self::of_template(template, &format!("{name}:{tag}")),
        });
        shown.collect()
    }

    /// A template by the name that the user knows.
    pub(super) fn of_template(template: &TemplateRecord, name: &str) -> Self {
        let granted = naming::size(name).unwrap_or(template.settings.limits);
        let (cpu, mem, disk) = sizes(granted);
        let at = rfc3339_millis(template.created_at_ms);
        let command = template.settings.command.clone().or_else(|| template.entrypoint.clone());
        let dockerfile = builds::note(&template.labels, "dockerfile");
        let contexts = builds::note(&template.labels, "contexts").unwrap_or_default();
        Self {
            id: name.to_owned(),
            organization_id: template.tenant.as_ref().map(ToString::to_string),
            general: template.tenant.is_none(),
            name: name.to_owned(),
            image_name: builds::note(&template.labels, "image"),
            state: "active",
            size: template.size_bytes.map(in_gib),
            entrypoint: command,
            cpu,
            gpu: 0,
            mem,
            disk,
            error_reason: None,
            created_at: at.clone(),
            updated_at: at.clone(),
            last_used_at: None,
            source_sandbox_id: None,
            build_info: dockerfile.map(|dockerfile_content| BuildInfo {
                dockerfile_content,
                context_hashes: contexts.split(',').filter(|h| !h.is_empty()).map(str::to_owned).collect(),
                created_at: at.clone(),
                updated_at: at,
                snapshot_ref: template.version.clone(),
            }),
            region_ids: [REGION],
            reference: template.version.clone(),
            sandbox_class: CLASS,
            kind: Kind::Template,
        }
    }

    /// A snapshot of a sandbox.
    pub(super) fn of_kept(kept: &Kept) -> Self {
        let at = rfc3339_millis(kept.created_at.wall_ms);
        Self {
            id: kept.id.to_string(),
            organization_id: Some(kept.tenant.to_string()),
            general: false,
            name: kept.tenant_wide_name().unwrap_or(kept.id.as_str()).to_owned(),
            image_name: None,
            state: match kept.state {
                SnapshotState::Making => "snapshotting",
                SnapshotState::Ready => "active",
                SnapshotState::Deleting => "removing",
            },
            size: Some(in_gib(kept.bytes)),
            entrypoint: kept.command.clone(),
            cpu: kept.limits.cpu_milli.div_ceil(1_000),
            gpu: 0,
            mem: gib(kept.limits.memory_mib),
            disk: gib(kept.limits.disk_mib),
            error_reason: None,
            created_at: at.clone(),
            updated_at: at,
            last_used_at: None,
            source_sandbox_id: Some(kept.sandbox.to_string()),
            build_info: None,
            region_ids: [REGION],
            reference: kept.id.to_string(),
            sandbox_class: CLASS,
            kind: Kind::Kept,
        }
    }

    /// A build that has not produced a template yet.
    pub(super) fn of_build(build: &Build) -> Self {
        let ended = build.ended_at.as_ref().or(build.started_at.as_ref()).unwrap_or(&build.created_at);
        let (cpu, mem, disk) = sizes(LimitsAsk::default());
        let name = naming::name(&build.template.to_string());
        Self {
            id: name.clone(),
            organization_id: Some(build.tenant.to_string()),
            general: false,
            name,
            image_name: None,
            state: match build.status {
                BuildStatus::Waiting => "pending",
                BuildStatus::Building => "building",
                BuildStatus::Ready => "active",
                BuildStatus::Failed | BuildStatus::Cancelled => "build_failed",
            },
            size: None,
            entrypoint: None,
            cpu,
            gpu: 0,
            mem,
            disk,
            error_reason: build.failure.as_ref().map(|_| builds::reason(build)),
            created_at: rfc3339_millis(build.created_at.wall_ms),
            updated_at: rfc3339_millis(ended.wall_ms),
            last_used_at: None,
            source_sandbox_id: None,
            build_info: None,
            region_ids: [REGION],
            reference: build.id.to_string(),
            sandbox_class: CLASS,
            kind: Kind::Build,
        }
    }

    /// The same, in the state of a running build.
    pub(super) fn begun(mut self) -> Self {
        self.state = "building";
        self
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn state(&self) -> &'static str {
        self.state
    }

    pub(super) fn created(&self) -> &str {
        &self.created_at
    }

    pub(super) fn source(&self) -> Option<&str> {
        self.source_sandbox_id.as_deref()
    }

    pub(super) const fn is_general(&self) -> bool {
        self.general
    }

    pub(super) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether its build failed; then the name can be used again.
    pub(super) fn failed(&self) -> bool {
        self.state == "build_failed"
    }
}

/// The resources of its sandboxes, in cores and GiB.
fn sizes(granted: LimitsAsk) -> (u32, u32, u32) {
    let in_gib =
        |mib: Option<i64>, otherwise: u32| mib.and_then(|mib| u32::try_from(mib).ok()).map_or(otherwise, gib);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be below 512 where it was set"
    )]
    let cpu = granted.cpu.map_or(CPU, |cpu| cpu.ceil() as u32);
    (cpu, in_gib(granted.memory_mib, MEMORY_GIB), in_gib(granted.disk_mib, DISK_GIB))
}

#[expect(clippy::cast_precision_loss, reason = "shown to people")]
fn in_gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
