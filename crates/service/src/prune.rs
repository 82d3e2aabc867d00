//! Removes what nothing needs and can be made again or was never of use: shown first, removed on request.
//!
//! Never a named snapshot, a volume, an archive, or a sandbox that can be started. What is kept is listed with the reason.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use atoll_model::policy::authz;
use atoll_model::{Build, Lease, Phase, Principal};
use atoll_provider::StoredKind;
use atoll_store::BuildQuery;

use crate::disk_use::folder_bytes;
use crate::sandboxes::PAGE_MAX;
use crate::{Service, ServiceError};

/// A build log, an egress log or a download that is younger than this may be in use.
const IN_USE: Duration = Duration::from_secs(3_600);

/// What to remove.
#[derive(Debug, Clone, Copy)]
pub struct Prune {
    /// Whether to remove it; otherwise it is only listed.
    pub apply: bool,
    /// Failed sandboxes, ended builds, logs and downloads of this age.
    pub older_than: Duration,
}

/// What was removed, or would be, and what is kept.
#[derive(Debug, Clone, Default)]
pub struct Pruned {
    pub removed: Vec<PruneEntry>,
    pub kept: Vec<PruneEntry>,
}

/// One thing, or several of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneEntry {
    /// `sandbox`, `template`, `layers`, `build`, `download`, `log`, `snapshot`, `volume`.
    pub kind: &'static str,
    /// Its name; a number where it stands for several.
    pub name: String,
    /// Bytes on the disk, if known.
    pub bytes: Option<u64>,
    /// Why it goes or stays.
    pub why: String,
}

impl Pruned {
    fn remove(&mut self, kind: &'static str, name: &str, bytes: Option<u64>, why: impl Into<String>) {
        self.removed.push(PruneEntry { kind, name: name.to_owned(), bytes, why: why.into() });
    }

    fn keep(&mut self, kind: &'static str, name: &str, why: impl Into<String>) {
        self.kept.push(PruneEntry { kind, name: name.to_owned(), bytes: None, why: why.into() });
    }

    fn keep_count(&mut self, kind: &'static str, count: usize, why: &str) {
        if count > 0 {
            self.keep(kind, &count.to_string(), why);
        }
    }
}

impl Service {
    /// Removes what nothing needs, or lists it. Needs an admin key; what belongs to other nodes is left alone.
    pub async fn prune(&self, who: &Principal, ask: Prune) -> Result<Pruned, ServiceError> {
        authz::admin(who)?;
        let (own, who) = (self.clone(), who.clone());
        self.base()
            .run_detached(async move {
                let mut pruned = Pruned::default();
                own.prune_sandboxes(&who, ask, &mut pruned).await?;
                own.prune_builds(&who, ask, &mut pruned).await?;
                own.prune_templates(&who, ask, &mut pruned).await?;
                own.prune_layers(ask, &mut pruned).await?;
                own.prune_files(ask, &mut pruned).await?;
                own.list_kept(&who, &mut pruned).await?;
                Ok(pruned)
            })
            .await
    }

    fn is_old(&self, at_ms: i64, ask: Prune) -> bool {
        let age = self.now_ms().saturating_sub(at_ms);
        age >= i64::try_from(ask.older_than.as_millis()).unwrap_or(i64::MAX)
    }

    /// Failed sandboxes that never ran and have no files.
    async fn prune_sandboxes(
        &self,
        who: &Principal,
        ask: Prune,
        pruned: &mut Pruned,
    ) -> Result<(), ServiceError> {
        let (stored, _) = self.stored().await;
        let has_files = |lease: &Lease| stored.contains_key(&(StoredKind::Sandbox, lease.id.to_string()));
        for lease in self.all_leases(who).await? {
            if lease.node != *self.node() || lease.phase != Phase::Failed {
                continue;
            }
            let name = lease.name.clone().unwrap_or_else(|| lease.id.to_string());
            if lease.started_at.is_some() || lease.archive.is_some() || has_files(&lease) {
                pruned.keep(
                    "sandbox",
                    &name,
                    "it failed, but its files are here: `atoll start` runs it again",
                );
            } else if !self.is_old(lease.phase_at.wall_ms, ask) {
                pruned.keep("sandbox", &name, "it failed a short while ago");
            } else {
                if ask.apply {
                    self.sandboxes().delete(who, lease.id.as_str(), true).await?;
                }
                pruned.remove("sandbox", &name, None, "it failed before it ran and has no files");
            }
        }
        Ok(())
    }

    /// Records and logs of builds that ended. The templates stay.
    async fn prune_builds(
        &self,
        who: &Principal,
        ask: Prune,
        pruned: &mut Pruned,
    ) -> Result<(), ServiceError> {
        let mut query = BuildQuery { limit: PAGE_MAX, ..BuildQuery::default() };
        let (mut builds, mut recent) = (Vec::new(), 0);
        loop {
            let page = self.base().store.builds(query.clone()).await?;
            builds.extend(page.items);
            let Some(cursor) = page.next_cursor else { break };
            query.cursor = Some(cursor);
        }
        let ended_ms = |build: &Build| {
            build.ended_at.as_ref().filter(|_| build.status.is_end()).map(|ended| ended.wall_ms)
        };
        for build in builds.iter().filter(|build| build.node == *self.node()) {
            match ended_ms(build) {
                Some(at_ms) if self.is_old(at_ms, ask) => {
                    let name = format!("{} ({})", build.id, build.template);
                    let bytes = self.builds().forget_ended(who, build, ask.apply).await?;
                    pruned.remove("build", &name, Some(bytes), "it ended; its template stays");
                }
                _ => recent += 1,
            }
        }
        pruned.keep_count("build", recent, "running, or ended a short while ago");
        Ok(())
    }

    /// Templates of the catalogue that no sandbox and no snapshot uses.
    async fn prune_templates(
        &self,
        who: &Principal,
        ask: Prune,
        pruned: &mut Pruned,
    ) -> Result<(), ServiceError> {
        let default = self.base().config.default_template.clone();
        for record in self.templates().list(who).await? {
            if record.tenant.is_some() {
                pruned.keep("template", &record.name, "a tenant made it: `atoll template rm` removes it");
                continue;
            }
            let why = if record.kind == "host" {
                Some("it is this machine itself and takes no space".to_owned())
            } else if record.is_called(&default) {
                Some("sandboxes start from it by default".to_owned())
            } else {
                self.templates().users_of_built_in(&record.name).await?.map(|users| users.message)
            };
            if let Some(why) = why {
                pruned.keep("template", &record.name, why);
                continue;
            }
            if ask.apply
                && let Err(refused) = self.templates().remove(who, &record.name).await
            {
                pruned.keep("template", &record.name, refused.message);
                continue;
            }
            pruned.remove(
                "template",
                &record.name,
                record.size_bytes,
                "nothing uses it; `atoll template make` makes it again",
            );
        }
        Ok(())
    }

    /// Versions and layers of images that nothing needs, the build cache included.
    async fn prune_layers(&self, ask: Prune, pruned: &mut Pruned) -> Result<(), ServiceError> {
        let why = "nothing but the build cache needs them";
        if ask.apply {
            let gone = self.templates().collect_all_unused().await?;
            if gone.versions + gone.layers + gone.blobs > 0 {
                pruned.remove("layers", &gone.versions.to_string(), Some(gone.bytes), why);
            }
            pruned.keep_count(
                "layers",
                usize::try_from(gone.recent).unwrap_or(usize::MAX),
                "in use, or used a moment ago",
            );
            return Ok(());
        }
        let needed: HashSet<String> = self.base().store.needed_versions().await?.into_iter().collect();
        let images = Arc::clone(self.templates().images());
        let unused = move || Ok(images.unused_versions(&needed)?);
        let (count, bytes) = self.base().run_blocking(unused).await?;
        if count > 0 {
            pruned.remove("layers", &count.to_string(), Some(bytes), why);
        }
        Ok(())
    }

    /// Downloads, rotated logs of the server, and egress logs of sandboxes that are gone.
    async fn prune_files(&self, ask: Prune, pruned: &mut Pruned) -> Result<(), ServiceError> {
        let mut known = HashSet::new();
        for (lease, _) in self.base().store.live().await? {
            known.insert(lease.id.to_string());
        }
        let data = self.base().config.data.clone();
        let age = ask.older_than.max(IN_USE);
        let work = move || {
            let mut found = BTreeMap::new();
            let downloads = old_entries(&atoll_image::default_cache_dir(), age, |_| true);
            found.insert(("download", "templates are made from them; they are fetched again"), downloads);
            let logs = old_entries(&data, age, |name| name.starts_with("server.log."));
            found.insert(("log", "an old log of the server"), logs);
            let of_gone = |name: &str| !known.contains(name.split('.').next().unwrap_or(name));
            let egress = old_entries(&data.join("egress"), age, of_gone);
            found.insert(("log", "connections of a sandbox that is gone"), egress);
            let mut entries = Vec::new();
            for ((kind, why), paths) in found {
                for path in paths {
                    let bytes = folder_bytes(&path);
                    if ask.apply && remove(&path).is_err() {
                        continue;
                    }
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    entries.push(PruneEntry { kind, name, bytes: Some(bytes), why: why.to_owned() });
                }
            }
            Ok(entries)
        };
        pruned.removed.extend(self.base().run_blocking(work).await?);
        Ok(())
    }

    /// What is never removed here.
    async fn list_kept(&self, who: &Principal, pruned: &mut Pruned) -> Result<(), ServiceError> {
        let snapshots = self.base().store.all_snapshots().await?;
        let named = snapshots.iter().filter(|one| !one.transient && !one.warm && one.name.is_some()).count();
        let unnamed =
            snapshots.iter().filter(|one| !one.transient && !one.warm && one.name.is_none()).count();
        pruned.keep_count("snapshot", named, "they have names: `atoll snapshot rm` removes them");
        pruned.keep_count(
            "snapshot",
            unnamed,
            "only their owners know whether they are needed: `atoll snapshot rm`",
        );
        let volumes = self.volumes().list(who).await?.len();
        pruned.keep_count("volume", volumes, "volumes are never removed here: `atoll volume rm`");
        let leases = self.all_leases(who).await?;
        let startable = leases.iter().filter(|lease| lease.phase != Phase::Failed).count();
        pruned.keep_count("sandbox", startable, "they run or can be started: `atoll rm` removes them");
        Ok(())
    }
}

/// Entries of a folder that were not changed for so long.
fn old_entries(folder: &Path, age: Duration, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_old = |changed: std::io::Result<SystemTime>| {
        changed.ok().and_then(|at| at.elapsed().ok()).is_some_and(|passed| passed >= age)
    };
    let old = entries.filter(|entry| is_old(entry.metadata().and_then(|about| about.modified())));
    old.filter(|entry| is_wanted(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.symlink_metadata()?.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}
