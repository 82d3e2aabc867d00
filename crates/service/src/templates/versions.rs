//! Versions as templates: their settings from files, and the assignment of names.

use atoll_image::images::NewVersion;
use atoll_model::{Code, DEFAULT_TAG, MadeFrom, Snapshot, SnapshotId, StartSettings, TemplateRef, TenantId};
use atoll_store::VersionRow;

use super::{TemplateRecord, Templates, VersionHold};
use crate::ServiceError;

/// A version to name.
pub(crate) struct Publish<'a> {
    pub(crate) tenant: &'a TenantId,
    /// Name and tag.
    pub(crate) template: &'a TemplateRef,
    /// Further tags of that name.
    pub(crate) tags: &'a [String],
    pub(crate) version: &'a str,
    pub(crate) made_from: MadeFrom,
    /// The digest of the image's manifest, if it was pulled.
    pub(crate) manifest: Option<String>,
    /// A transient snapshot with memory of a ready sandbox of exactly this version; it becomes the version's warm
    /// start.
    pub(crate) warm: Option<Snapshot>,
    pub(crate) notes: Vec<String>,
}

impl Templates {
    /// Refuses a name of a built-in template: the tenant's template would be found first, also by builds that begin
    /// from the built-in one. Other tags of such a name hide nothing, and a pulled image keeps the name of its
    /// registry.
    pub(crate) async fn refuse_built_in(
        &self,
        name: &TemplateRef,
        tags: &[String],
    ) -> Result<(), ServiceError> {
        let sources = std::sync::Arc::clone(&self.inner.cache.sources);
        let known = self.inner.run_blocking(move || sources.names()).await?;
        let tags = tags.iter().map(String::as_str).chain(name.tag_or_default());
        for tag in tags {
            let whole = format!("{}:{tag}", name.name);
            let hides = |known: &&String| **known == whole || (tag == DEFAULT_TAG && **known == name.name);
            if let Some(built_in) = known.iter().find(hides) {
                let message = format!("{built_in} is the name of a built-in template");
                let hint = format!("choose another name, or another tag: {}:mine", name.name);
                return Err(ServiceError::new(Code::NameTaken, message).hint(hint));
            }
        }
        Ok(())
    }

    /// Makes `name:tag`, and further tags of that name, point to a version that the caller holds. All at once.
    pub(crate) async fn publish(&self, ask: Publish<'_>) -> Result<TemplateRecord, ServiceError> {
        let inner = &self.inner;
        if ask.made_from != MadeFrom::Image {
            self.refuse_built_in(ask.template, ask.tags).await?;
        }
        let tag = match (&ask.template.tag, &ask.template.digest) {
            (Some(tag), _) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
            // A version that was requested by its digest needs a name too, or it would be collected.
            (None, Some(digest)) => digest.replace(':', "-").chars().take(19).collect(),
        };
        let mut tags = ask.tags.to_vec();
        tags.push(tag.clone());
        // Keeps the snapshot from being collected before its version is recorded.
        let _kept = ask.warm.as_ref().map(|warm| inner.uses.take(&warm.id)).transpose()?;
        let mut warm = self.keep_warm(ask.warm).await?;
        let known = inner.store.template_versions(ask.tenant, &ask.template.name).await?;
        if let Some(before) = known.into_iter().find(|known| known.version == ask.version) {
            // The same version was published before: its warm start is kept.
            warm = warm.or(before.warm);
        }
        let row = VersionRow {
            version: ask.version.to_owned(),
            made_from: ask.made_from,
            manifest: ask.manifest,
            warm,
            notes: ask.notes,
            created_at_ms: inner.clock.now().wall_ms,
        };
        let published = inner.store.publish_template(ask.tenant, &ask.template.name, tags, row).await;
        inner.cache.forget();
        let published = published?;
        self.refresh_pools();
        tracing::info!(tenant = %ask.tenant, template = %ask.template, version = ask.version, "a template was published");
        let reference = TemplateRef { name: published.name.clone(), tag: Some(tag), digest: None };
        let missing = || ServiceError::new(Code::Internal, "the published template was not found");
        self.record_of(&published, &reference).await?.ok_or_else(missing)
    }

    /// Assigns the snapshot to a version. After a crash before that is recorded, the next collection removes it.
    async fn keep_warm(&self, warm: Option<Snapshot>) -> Result<Option<SnapshotId>, ServiceError> {
        let Some(snapshot) = warm else { return Ok(None) };
        let Some((snapshot, token)) = self.inner.store.snapshot(&snapshot.id).await? else {
            return Ok(None);
        };
        let id = snapshot.id.clone();
        let kept = Snapshot { transient: false, warm: true, ..snapshot };
        self.inner.store.put_snapshot(kept, token).await?;
        Ok(Some(id))
    }

    /// The record from the files of a version; it has no name yet.
    pub(crate) async fn record_of_version(&self, version: &str) -> Result<TemplateRecord, ServiceError> {
        let (images, wanted) = (std::sync::Arc::clone(&self.inner.images), version.to_owned());
        self.inner
            .run_blocking(move || {
                let version = images.version(&wanted)?;
                let template = images.template(&wanted)?;
                let config = version.config.config().clone().unwrap_or_default();
                let settings = version.settings;
                let mut env = template.env.clone();
                env.extend(settings.env.clone());
                Ok(TemplateRecord {
                    version: version.digest,
                    kind: "image".to_owned(),
                    user: settings.user.clone().unwrap_or_else(|| template.default_user.clone()),
                    workdir: settings.workdir.clone().unwrap_or_else(|| template.workdir.clone()),
                    env,
                    sudo: template.sudo,
                    command: settings.command.clone(),
                    ready: settings.ready.clone(),
                    port: settings.port,
                    size_bytes: Some(version.bytes),
                    layers: Some(u32::try_from(version.layers.len()).unwrap_or(u32::MAX)),
                    entrypoint: config.entrypoint().clone(),
                    cmd: config.cmd().clone(),
                    labels: config.labels().clone().unwrap_or_default().into_iter().collect(),
                    notes: version.notes.iter().map(|(what, count)| format!("{what} ({count})")).collect(),
                    created_at_ms: version.created_at.as_millisecond(),
                    settings,
                    ..TemplateRecord::default()
                })
            })
            .await
    }

    /// A version with the files of a built-in template, so that it can be named, exported and pushed like any other.
    pub(crate) async fn version_of(
        &self,
        record: &TemplateRecord,
    ) -> Result<(String, VersionHold), ServiceError> {
        if record.tenant.is_some() || record.kind == "image" {
            return Ok((record.version.clone(), self.hold_version(record)?));
        }
        let images = std::sync::Arc::clone(&self.inner.images);
        let new = NewVersion {
            base: Some((record.name.clone(), record.version.clone())),
            settings: StartSettings {
                user: Some(record.user.clone()),
                workdir: Some(record.workdir.clone()),
                env: record.env.clone(),
                command: record.command.clone(),
                ..StartSettings::default()
            },
            ..NewVersion::default()
        };
        let version = self.inner.run_blocking(move || Ok(images.put_version(new)?)).await?;
        let hold = self.hold_digest(&version)?;
        Ok((version, hold))
    }
}
