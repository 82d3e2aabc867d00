//! TODO(5): replaced piece by piece.
use atoll_model::{Code, Principal, TemplateRef};
use tokio::io::AsyncRead;

use super::*;

fn not_yet() -> ServiceError {
    ServiceError::new(Code::Unsupported, "not built yet")
}

impl Service {
    /// Fetches an image from its registry and keeps it as a template of the caller's tenant under the name and tag it has
    /// there. Dropping the future cancels it, unless another waits for the same image.
    pub async fn pull_image(
        &self,
        who: &Principal,
        ask: PullImage,
        progress: Progress,
    ) -> Result<TemplateRecord, ServiceError> {
        let _ = (who, ask, progress);
        Err(not_yet())
    }
    /// Brings a template to a registry.
    pub async fn push_template(
        &self,
        who: &Principal,
        template: &str,
        ask: PushImage,
        progress: Progress,
    ) -> Result<TemplateRecord, ServiceError> {
        let _ = (who, template, ask, progress);
        Err(not_yet())
    }
    /// Makes a template from a file.
    pub async fn import_template(
        &self,
        who: &Principal,
        ask: ImportTemplate,
        file: impl AsyncRead + Send + Unpin + 'static,
        progress: Progress,
    ) -> Result<TemplateRecord, ServiceError> {
        let _ = (who, ask, file, progress);
        Err(not_yet())
    }
    /// A template as one file; the first number is about how long it is, where that is known.
    pub async fn export_template(
        &self,
        who: &Principal,
        template: &str,
        format: ExportFormat,
    ) -> Result<(Option<u64>, Bytestream), ServiceError> {
        let _ = (who, template, format);
        Err(not_yet())
    }
    /// Changes what sandboxes of a template start with, its aliases, or who sees it.
    pub async fn update_template(
        &self,
        who: &Principal,
        name: &str,
        change: UpdateTemplate,
    ) -> Result<TemplateRecord, ServiceError> {
        let _ = (who, name, change);
        Err(not_yet())
    }
    /// Lets tags of the target's name point to it. A tag may be whole (`other:tag`): then the target gets that name too.
    pub async fn tag_template(
        &self,
        who: &Principal,
        target: &str,
        tags: &[String],
    ) -> Result<TemplateRecord, ServiceError> {
        let _ = (who, target, tags);
        Err(not_yet())
    }
    /// Takes tags of a name away.
    pub async fn untag_template(
        &self,
        who: &Principal,
        name: &str,
        tags: &[String],
    ) -> Result<(), ServiceError> {
        let _ = (who, name, tags);
        Err(not_yet())
    }
    /// Removes what nothing needs.
    pub async fn collect_templates(&self, who: &Principal) -> Result<Collected, ServiceError> {
        let _ = who;
        Err(not_yet())
    }
    /// What a step or a sandbox begins from: a template by reference, else the image of that name, pulled. Held until the
    /// answer is dropped.
    #[allow(dead_code)]
    pub(crate) async fn base_version(
        &self,
        who: &Principal,
        reference: &TemplateRef,
        auth: Option<RegistryAuth>,
        platform: Option<&str>,
        progress: Progress,
    ) -> Result<(TemplateRecord, VersionHold), ServiceError> {
        let _ = (who, reference, auth, platform, progress);
        Err(not_yet())
    }
    /// Lets `name:tag`, and further tags of that name, point to a version.
    #[allow(dead_code)]
    pub(crate) async fn publish(&self, ask: Publish<'_>) -> Result<TemplateRecord, ServiceError> {
        let _ = ask;
        Err(not_yet())
    }
}

/// A version that shall get names.
#[allow(dead_code)]
pub(crate) struct Publish<'a> {
    pub(crate) tenant: &'a atoll_model::TenantId,
    /// Name and tag.
    pub(crate) template: &'a TemplateRef,
    /// Further tags of that name.
    pub(crate) tags: &'a [String],
    pub(crate) version: &'a str,
    pub(crate) made_from: atoll_model::MadeFrom,
    /// Of the image's manifest, where it was pulled.
    pub(crate) manifest: Option<String>,
    /// A transient snapshot with memory of a ready sandbox of exactly this version (from `Service::take`); becomes the
    /// version's warm start.
    pub(crate) warm: Option<atoll_model::Snapshot>,
    pub(crate) notes: Vec<String>,
}

/// Keeps a version's files from being collected until it is dropped.
pub(crate) struct VersionHold {
    _held: Option<Box<dyn std::any::Any + Send + Sync>>,
}
