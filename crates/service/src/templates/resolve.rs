//! Resolves a name for a tenant: its own template, a built-in one, or a public one of another tenant.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_image::default_names::{candidates, is_vendor_image};
use atoll_model::{Code, LimitsAsk, MadeFrom, Principal, Scope, SnapshotId, StartSettings, TemplateRef};
use atoll_store::{TemplateRow, VersionRow};
use tokio::time::Instant;

use super::{TemplateRecord, TemplateSource, Templates, VersionHold};
use crate::ServiceError;
use crate::sandboxes::printable;

/// What was resolved a moment ago. A create must not wait for a look at the whole catalog.
pub(super) struct TemplateCache {
    pub(super) sources: Arc<dyn TemplateSource>,
    known: Mutex<HashMap<(String, String), (Instant, ResolvedTemplate)>>,
}

/// LIMIT: a change of a built-in template is visible a second later at most; the engine checks again when it boots. A
/// change of a name is visible at once.
const FRESH: Duration = Duration::from_secs(1);
/// LIMIT: names in the cache; beyond that it is cleared.
const KNOWN_MAX: usize = 256;

/// The current template of a name.
#[derive(Debug, Clone)]
struct ResolvedTemplate {
    record: TemplateRecord,
    warm: Option<SnapshotId>,
}

/// The template of a name, kept from being collected until this is dropped.
pub(crate) struct Resolved {
    pub(crate) record: TemplateRecord,
    /// The snapshot from which sandboxes begin that do not change the start settings.
    pub(crate) warm: Option<SnapshotId>,
    pub(crate) hold: VersionHold,
}

impl TemplateCache {
    pub(super) fn new(sources: Arc<dyn TemplateSource>) -> Self {
        Self { sources, known: Mutex::default() }
    }

    /// Says that names mean something else now.
    pub(super) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn known(&self, key: &(String, String)) -> Option<ResolvedTemplate> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, found)| found.clone())
    }

    fn learn(&self, key: (String, String), found: ResolvedTemplate) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(key, (Instant::now(), found));
    }
}

impl Templates {
    /// Whether exactly this version is here; [`Code::TemplateNotFound`] if not.
    pub(crate) async fn need(&self, name: &str, version: &str) -> Result<(), ServiceError> {
        let sources = Arc::clone(&self.inner.cache.sources);
        let (wanted, exactly) = (name.to_owned(), version.to_owned());
        match self.inner.run_blocking(move || sources.pinned(&wanted, &exactly)).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code, Code::TemplateNotFound | Code::HostChanged) => {
                let message = format!("this server does not have version {version} of template {name}");
                let hint = match name {
                    "host" => {
                        "template host differs on each machine: restore the sandbox where it was archived"
                    }
                    _ => "make or pull the template on this server from the same source",
                };
                Err(ServiceError::new(Code::TemplateNotFound, message).hint(hint).caused_by(error))
            }
            Err(error) => Err(error),
        }
    }

    /// What a word means to the caller, held.
    pub(crate) async fn resolve(&self, who: &Principal, word: &str) -> Result<Resolved, ServiceError> {
        let key = (format!("{}{}", who.tenant, matches!(who.scope, Scope::Admin)), word.to_owned());
        if let Some(found) = self.inner.cache.known(&key)
            && let Ok(hold) = self.hold_version(&found.record)
        {
            return Ok(Resolved { record: found.record, warm: found.warm, hold });
        }
        let found = self.look_up(who, word).await?;
        let hold = self.hold_version(&found.record)?;
        self.inner.cache.learn(key, found.clone());
        Ok(Resolved { record: found.record, warm: found.warm, hold })
    }

    /// A version that a build made, without a name.
    pub(crate) async fn resolve_version(&self, reference: &TemplateRef) -> Result<Resolved, ServiceError> {
        let version = reference.digest.clone().unwrap_or_default();
        let mut record = self.record_of_version(&version).await?;
        record.name.clone_from(&reference.name);
        let hold = self.hold_version(&record)?;
        Ok(Resolved { record, warm: None, hold })
    }

    async fn look_up(&self, who: &Principal, word: &str) -> Result<ResolvedTemplate, ServiceError> {
        let reference = word.parse::<TemplateRef>().ok();
        let mut row = None;
        if let Some(reference) = &reference {
            row = self.inner.store.template(&who.tenant, &reference.name).await?;
            if let Some(row) = &row
                && let Some(found) = self.of_row(row, reference).await?
            {
                return Ok(found);
            }
        }
        let missing = match self.built_in(word, reference.as_ref()).await {
            Ok(record) => return Ok(ResolvedTemplate { record, warm: None }),
            Err(error) if error.code == Code::TemplateNotFound => error,
            Err(error) => return Err(error),
        };
        if let Some(reference) = &reference {
            let other = self.inner.store.public_template(&reference.name).await?;
            let other = match other {
                None if who.scope == Scope::Admin => self.of_anybody(&reference.name).await?,
                other => other,
            };
            if let Some(row) = &other
                && let Some(found) = self.of_row(row, reference).await?
            {
                return Ok(found);
            }
            row = row.or(other);
        }
        Err(row.map_or(missing, |row| no_such_tag(&row, word)))
    }

    /// For an admin key, which can see all tenants: the only template of that name.
    pub(super) async fn of_anybody(&self, name: &str) -> Result<Option<TemplateRow>, ServiceError> {
        let mut all = self.inner.store.templates(None).await?;
        all.retain(|row| row.name == name || row.aliases.iter().any(|alias| alias == name));
        Ok(if all.len() == 1 { all.pop() } else { None })
    }

    async fn built_in(
        &self,
        word: &str,
        reference: Option<&TemplateRef>,
    ) -> Result<TemplateRecord, ServiceError> {
        let exact = reference.and_then(|reference| Some((reference.name.clone(), reference.digest.clone()?)));
        let plain = reference.filter(|reference| reference.tag.as_deref() == Some(atoll_model::DEFAULT_TAG));
        let (word, plain) = (word.to_owned(), plain.map(|reference| reference.name.clone()));
        let sources = Arc::clone(&self.inner.cache.sources);
        self.inner
            .run_blocking(move || {
                if let Some((name, digest)) = exact {
                    let found = exact_version(&*sources, &name, &digest);
                    // There is one of each image of a vendor here, whatever its release.
                    return found.or_else(|error| match is_vendor_image(&name) {
                        true => default_template(&*sources, &name).ok_or(error),
                        false => Err(error),
                    });
                }
                let found = match (sources.resolve(&word), plain) {
                    (Err(error), Some(name)) if error.code == Code::TemplateNotFound => {
                        sources.resolve(&name).map_err(|_| error)
                    }
                    (found, _) => found,
                };
                match found {
                    Err(error) if matches!(error.code, Code::TemplateNotFound | Code::InvalidRequest) => {
                        default_template(&*sources, &word).ok_or(error)
                    }
                    found => found,
                }
            })
            .await
            .map_err(|error| match error.code {
                // A text that cannot be the name of a built-in template is reported as not found.
                Code::InvalidRequest | Code::HostChanged => {
                    let message = format!("there is no template {}", printable(&reference_or(reference)));
                    ServiceError::new(Code::TemplateNotFound, message).caused_by(error)
                }
                _ => error,
            })
    }

    /// The version of a named template for a reference.
    async fn of_row(
        &self,
        row: &TemplateRow,
        reference: &TemplateRef,
    ) -> Result<Option<ResolvedTemplate>, ServiceError> {
        let versions = self.inner.store.template_versions(&row.tenant, &row.name).await?;
        let (tag, version) = match (&reference.digest, reference.tag_or_default()) {
            (Some(digest), _) => {
                let named = |version: &&VersionRow| {
                    version.version == *digest || version.manifest.as_ref() == Some(digest)
                };
                match versions.iter().rev().find(named) {
                    Some(version) => (None, version.version.clone()),
                    None => return Ok(None),
                }
            }
            (None, Some(tag)) => match row.tags.get(tag) {
                Some(version) => (Some(tag.to_owned()), version.clone()),
                None => return Ok(None),
            },
            (None, None) => return Ok(None),
        };
        let known = versions.into_iter().find(|known| known.version == version);
        self.described(row, tag, version, known).await.map(Some)
    }

    async fn described(
        &self,
        row: &TemplateRow,
        tag: Option<String>,
        version: String,
        known: Option<VersionRow>,
    ) -> Result<ResolvedTemplate, ServiceError> {
        let mut record = match self.record_of_version(&version).await {
            Err(missing) if missing.code == Code::TemplateNotFound => {
                return Err(self.on_other_nodes(row, &version, known.as_ref(), missing).await?);
            }
            found => found?,
        };
        record.name.clone_from(&row.name);
        record.tag = tag;
        record.tags = row.tags.keys().cloned().collect();
        record.aliases.clone_from(&row.aliases);
        record.tenant = Some(row.tenant.clone());
        record.public = row.public;
        let mut warm = None;
        if let Some(known) = known {
            record.made_from = known.made_from;
            record.manifest = known.manifest;
            record.notes.extend(known.notes);
            record.created_at_ms = known.created_at_ms;
            warm = known.warm.filter(|_| starts_alike(&row.changes));
        }
        record.warm = warm.is_some();
        apply(&mut record, &row.changes);
        Ok(ResolvedTemplate { record, warm })
    }

    /// Why a version of a named template is not here: other nodes may have its files. An image of a registry can be
    /// pulled here, so that one is only missing.
    async fn on_other_nodes(
        &self,
        row: &TemplateRow,
        version: &str,
        known: Option<&VersionRow>,
        missing: ServiceError,
    ) -> Result<ServiceError, ServiceError> {
        let nodes = self.inner.store.template_nodes(version).await?;
        let Some(node) = nodes.into_iter().find(|node| node != self.inner.store.node()) else {
            return Ok(missing);
        };
        let what = format!("version {version} of template {}", row.name);
        let elsewhere = crate::error::wrong_node(&what, &node).caused_by(missing);
        Ok(match known.is_some_and(|known| known.made_from == MadeFrom::Image) {
            true => ServiceError {
                code: Code::TemplateNotFound,
                hint: Some("pull the image on this node too".to_owned()),
                ..elsewhere
            },
            false => elsewhere,
        })
    }

    /// A name as it is listed. Of a template whose files are on other nodes only, the record has what its rows tell.
    pub(super) async fn listed(&self, row: &TemplateRow) -> Result<Option<TemplateRecord>, ServiceError> {
        let Some((tag, version)) = listed_tag(row) else { return self.record_of_row(row).await };
        let nodes = self.inner.store.template_nodes(version).await?;
        if nodes.is_empty() || nodes.contains(self.inner.store.node()) {
            let found = self.record_of_row(row).await?;
            return Ok(found.map(|found| TemplateRecord { nodes: nodes.into_iter().collect(), ..found }));
        }
        Ok(Some(TemplateRecord {
            name: row.name.clone(),
            version: version.clone(),
            tag: Some(tag.clone()),
            tags: row.tags.keys().cloned().collect(),
            aliases: row.aliases.clone(),
            tenant: Some(row.tenant.clone()),
            public: row.public,
            kind: "image".to_owned(),
            created_at_ms: row.created_at_ms,
            nodes: nodes.into_iter().collect(),
            ..TemplateRecord::default()
        }))
    }

    /// A name by its tag `latest`, or else by the last of its tags.
    pub(super) async fn record_of_row(
        &self,
        row: &TemplateRow,
    ) -> Result<Option<TemplateRecord>, ServiceError> {
        let tag = listed_tag(row).map(|(tag, _)| tag.clone());
        let reference = TemplateRef { name: row.name.clone(), tag, digest: None };
        self.record_of(row, &reference).await
    }

    pub(super) async fn record_of(
        &self,
        row: &TemplateRow,
        reference: &TemplateRef,
    ) -> Result<Option<TemplateRecord>, ServiceError> {
        Ok(self.of_row(row, reference).await?.map(|found| found.record))
    }
}

/// The tag that stands for a name in lists, and its version.
fn listed_tag(row: &TemplateRow) -> Option<(&String, &String)> {
    row.tags.get_key_value(atoll_model::DEFAULT_TAG).or_else(|| row.tags.last_key_value())
}

/// A built-in template in exactly this version.
fn exact_version(
    sources: &dyn TemplateSource,
    name: &str,
    digest: &str,
) -> Result<TemplateRecord, ServiceError> {
    let known = sources.resolve(name)?;
    let digest = digest.strip_prefix("sha256:").unwrap_or(digest);
    match known.version.strip_prefix("sha256:").unwrap_or(&known.version) == digest {
        true => Ok(known),
        false => sources.pinned(&known.name, digest),
    }
}

/// What a vendor's default name resolves to on this server: the first candidate that is made.
fn default_template(sources: &dyn TemplateSource, name: &str) -> Option<TemplateRecord> {
    let candidates = candidates(name)?;
    let mut found = candidates.iter().find_map(|candidate| sources.resolve(candidate).ok())?;
    let real = candidates.first()?;
    if found.name != *real {
        tracing::info!(
            name,
            template = found.name,
            "template {real} is not made yet; another one is used in its place"
        );
        found.notes.push(format!("{} is used in place of {name} until template {real} is made", found.name));
    }
    Some(found)
}

fn reference_or(reference: Option<&TemplateRef>) -> String {
    reference.map_or_else(|| "of that name".to_owned(), ToString::to_string)
}

fn no_such_tag(row: &TemplateRow, word: &str) -> ServiceError {
    let tags: Vec<&str> = row.tags.keys().take(10).map(String::as_str).collect();
    let message = format!("template {} has no tag or version {}", row.name, printable(word));
    ServiceError::new(Code::TemplateNotFound, message).hint(format!("its tags: {}", tags.join(", ")))
}

/// Whether changes of its owner have no effect on processes that already run.
fn starts_alike(changes: &StartSettings) -> bool {
    changes.user.is_none() && changes.workdir.is_none() && changes.env.is_empty() && changes.command.is_none()
}

/// Applies settings over those of a version.
pub(super) fn apply(record: &mut TemplateRecord, changes: &StartSettings) {
    record.settings = over(record.settings.clone(), changes);
    if let Some(user) = &changes.user {
        record.user.clone_from(user);
    }
    if let Some(workdir) = &changes.workdir {
        record.workdir.clone_from(workdir);
    }
    record.env.extend(changes.env.clone());
    record.command.clone_from(&record.settings.command);
    record.ready.clone_from(&record.settings.ready);
    record.port = record.settings.port;
}

/// Merges settings field by field; the second has precedence.
pub(super) fn over(below: StartSettings, above: &StartSettings) -> StartSettings {
    let mut env: BTreeMap<String, String> = below.env;
    env.extend(above.env.clone());
    StartSettings {
        user: above.user.clone().or(below.user),
        workdir: above.workdir.clone().or(below.workdir),
        env,
        command: above.command.clone().or(below.command),
        ready: above.ready.clone().or(below.ready),
        port: above.port.or(below.port),
        limits: LimitsAsk {
            cpu: above.limits.cpu.or(below.limits.cpu),
            memory_mib: above.limits.memory_mib.or(below.limits.memory_mib),
            disk_mib: above.limits.disk_mib.or(below.limits.disk_mib),
            pids: above.limits.pids.or(below.limits.pids),
        },
        pool: above.pool.or(below.pool),
    }
}
