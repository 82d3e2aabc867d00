//! Changes and removes templates by name. Files are not changed here: see [`super::collect`].

use std::collections::BTreeSet;
use std::sync::Arc;

use atoll_model::policy::authz;
use atoll_model::{Code, DEFAULT_TAG, Principal, Scope, StartSettings, TemplateRef};
use atoll_store::{TemplateChange, TemplateRow};

use super::resolve::over;
use super::{Publish, TemplateRecord, Templates, UpdateTemplate};
use crate::ServiceError;
use crate::sandboxes::printable;

/// LIMIT: aliases of one template.
const ALIASES_MAX: usize = 32;
const TAGS_MAX: usize = 32;
/// LIMIT: each instance takes memory even if it is not used.
const POOL_MAX: u32 = 64;

impl Templates {
    /// Changes what sandboxes of a template start with, its aliases, or who sees it. Those that are there stay as they are.
    pub async fn update(
        &self,
        who: &Principal,
        name: &str,
        change: UpdateTemplate,
    ) -> Result<TemplateRecord, ServiceError> {
        let (row, mut reference) = self.own_row(who, name).await?;
        // Its names are then visible to every tenant, also to one that expects an image or a built-in template of that
        // name.
        let is_public = change.public.unwrap_or(row.public);
        if is_public && (!row.public || change.aliases.is_some() || change.name.is_some()) {
            authz::admin(who)?;
        }
        if let Some(settings) = &change.settings {
            check_settings(settings)?;
        }
        if let Some(aliases) = &change.aliases {
            for alias in check_names("aliases", aliases, ALIASES_MAX)? {
                self.refuse_built_in(&alias, &[]).await?;
            }
        }
        if let Some(new) = &change.name {
            for name in check_names("name", std::slice::from_ref(new), 1)? {
                let tags: Vec<String> = row.tags.keys().cloned().collect();
                self.refuse_built_in(&name, &tags).await?;
            }
            reference.name.clone_from(new);
        }
        let changes = match (change.settings, change.reset) {
            (None, false) => None,
            (settings, reset) => {
                let below = if reset { StartSettings::default() } else { row.changes.clone() };
                Some(over(below, &settings.unwrap_or_default()))
            }
        };
        let change =
            TemplateChange { public: change.public, aliases: change.aliases, changes, name: change.name };
        let changed = self.inner.store.change_template(&row.tenant, &row.name, change).await?;
        self.inner.cache.forget();
        let row = changed.ok_or_else(|| missing(name))?;
        self.refresh_pools();
        tracing::info!(tenant = %row.tenant, key = %who.key, template = row.name, "a template was changed");
        match self.record_of(&row, &reference).await? {
            Some(record) => Ok(record),
            None => self.record_of_row(&row).await?.ok_or_else(|| missing(name)),
        }
    }

    /// Lets tags of the target's name point to it. A tag may be a whole reference (`other:tag`): then the target gets that
    /// name in the caller's tenant.
    pub async fn tag(
        &self,
        who: &Principal,
        target: &str,
        tags: &[String],
    ) -> Result<TemplateRecord, ServiceError> {
        let found = self.resolve(who, target).await?;
        let (version, _hold) = self.version_of(&found.record).await?;
        if tags.is_empty() || tags.len() > TAGS_MAX {
            return Err(ServiceError::field("tags", format!("1 to {TAGS_MAX} of them")));
        }
        let references =
            tags.iter().map(|tag| self.tag_of(&found.record, tag)).collect::<Result<Vec<_>, _>>()?;
        for reference in &references {
            self.refuse_built_in(reference, &[]).await?;
        }
        let mut last = None;
        for reference in references {
            let ask = Publish {
                tenant: &who.tenant,
                template: &reference,
                tags: &[],
                version: &version,
                made_from: found.record.made_from,
                manifest: found.record.manifest.clone(),
                warm: None,
                notes: Vec::new(),
            };
            last = Some(self.publish(ask).await?);
        }
        last.ok_or_else(|| missing(target))
    }

    /// Gives one tag of a template another name; without a tag both references mean the default tag. Other tags of the name
    /// stay. A name that has no other tag is renamed as a whole, with its settings and aliases.
    ///
    /// After a crash between the two writes the version has both names; the same call again ends it.
    pub async fn rename_tag(
        &self,
        who: &Principal,
        from: &str,
        to: &TemplateRef,
    ) -> Result<(), ServiceError> {
        let reference: TemplateRef = from.parse().map_err(bad("template"))?;
        let row = self.inner.store.template(&who.tenant, &reference.name).await?;
        let tag = reference.tag.as_deref().unwrap_or(DEFAULT_TAG);
        let row = row.filter(|row| row.tags.contains_key(tag)).ok_or_else(|| missing(from))?;
        let new_tag = to.tag.as_deref().unwrap_or(DEFAULT_TAG);
        if (row.name.as_str(), tag) == (to.name.as_str(), new_tag) {
            return Ok(());
        }
        if row.tags.len() == 1 && tag == new_tag {
            let change = UpdateTemplate { name: Some(to.name.clone()), ..UpdateTemplate::default() };
            return self.update(who, &row.name, change).await.map(drop);
        }
        let taken = self.inner.store.template(&who.tenant, &to.name).await?;
        if taken.is_some_and(|taken| taken.tags.get(new_tag).is_some_and(|it| it != &row.tags[tag])) {
            let message = format!("there is a template {}:{new_tag}", printable(&to.name));
            return Err(ServiceError::new(Code::NameTaken, message).hint("delete or rename it first"));
        }
        self.tag(who, &format!("{}:{tag}", row.name), &[format!("{}:{new_tag}", to.name)]).await?;
        self.untag(who, &row.name, &[tag.to_owned()]).await
    }

    /// The reference for a tag: a tag of the target's own name, or a whole reference.
    fn tag_of(&self, target: &TemplateRecord, tag: &str) -> Result<TemplateRef, ServiceError> {
        let whole = if tag.contains(':') || tag.contains('/') {
            tag.to_owned()
        } else {
            format!("{}:{tag}", target.name)
        };
        let reference: TemplateRef = whole.parse().map_err(bad("tags"))?;
        if reference.digest.is_some() {
            return Err(ServiceError::field("tags", "a digest cannot be chosen"));
        }
        Ok(reference)
    }

    /// Takes tags of a name away. Sandboxes of what they meant go on and start again; files go when nothing needs them.
    pub async fn untag(&self, who: &Principal, name: &str, tags: &[String]) -> Result<(), ServiceError> {
        let (row, _) = self.own_row(who, name).await?;
        if let Some(tag) = tags.iter().find(|tag| !row.tags.contains_key(*tag)) {
            let message = format!("template {} has no tag {}", row.name, printable(tag));
            return Err(ServiceError::new(Code::TemplateNotFound, message));
        }
        self.inner.store.untag_template(&row.tenant, &row.name, tags.to_vec()).await?;
        self.after_removal(who, &row.name, tags);
        Ok(())
    }

    /// Removes a template. `name:tag` takes that tag away, whoever stands on it; `name` takes the whole template away and is
    /// refused while a sandbox or a snapshot of its tenant stands on one of its versions.
    pub async fn remove(&self, who: &Principal, word: &str) -> Result<(), ServiceError> {
        let Ok((row, reference)) = self.own_row(who, word).await else {
            return self.remove_built_in(who, word).await;
        };
        if let Some(tag) = reference.tag {
            return self.untag(who, &row.name, &[tag]).await;
        }
        if reference.digest.is_some() {
            return Err(ServiceError::new(Code::InvalidRequest, "a version is removed with its last tag")
                .hint("remove the tag, or the whole template"));
        }
        let versions = self.inner.store.template_versions(&row.tenant, &row.name).await?;
        let versions: BTreeSet<String> = versions.into_iter().map(|version| version.version).collect();
        let (sandboxes, snapshots) = self.inner.store.version_users(&row.tenant, versions).await?;
        if sandboxes + snapshots > 0 {
            let message =
                format!("template {} is used by {sandboxes} sandboxes and {snapshots} snapshots", row.name);
            return Err(ServiceError::new(Code::TemplateInUse, message)
                .hint("delete them first, or remove its tags one by one, which is always possible"));
        }
        self.inner.store.remove_template(&row.tenant, &row.name).await?;
        self.after_removal(who, &row.name, &[]);
        Ok(())
    }

    fn after_removal(&self, who: &Principal, name: &str, tags: &[String]) {
        tracing::info!(tenant = %who.tenant, key = %who.key, template = name, ?tags, "a template was removed");
        self.inner.cache.forget();
        self.refresh_pools();
        // Files go behind the answer; what cannot go now goes with the next collection.
        let own = self.clone();
        self.inner.spawn(async move {
            if let Err(error) = own.collect_unused().await {
                tracing::warn!(%error, cause = ?error.cause, "files of templates could not be removed; the next collection removes them");
            }
        });
    }

    async fn remove_built_in(&self, who: &Principal, name: &str) -> Result<(), ServiceError> {
        let record = self.get(who, name).await?;
        authz::admin(who)?;
        if record.kind == "host" {
            // A template that is made automatically cannot be removed, and warm instances use its files.
            let message = format!(
                "template {} is this machine itself and is made again whenever it is missing",
                record.name
            );
            return Err(ServiceError::new(Code::InvalidRequest, message)
                .hint("its unused versions are removed automatically"));
        }
        if record.tenant.is_some() {
            return Err(missing(name));
        }
        if let Some(users) = self.users_of_built_in(&record.name).await? {
            return Err(users);
        }
        let sources = Arc::clone(&self.inner.cache.sources);
        let removed = self.inner.run_blocking(move || sources.remove(&record.name)).await;
        self.inner.cache.forget();
        removed
    }

    /// Why a built-in template cannot be removed: sandboxes, snapshots, or layers that depend on its files.
    pub(crate) async fn users_of_built_in(&self, name: &str) -> Result<Option<ServiceError>, ServiceError> {
        let in_use = |message: String, hint: String| {
            Ok(Some(ServiceError::new(Code::TemplateInUse, message).hint(hint)))
        };
        let users = self.inner.store.template_users(name).await?;
        if users > 0 {
            return in_use(
                format!("template {name} is used by {users} sandboxes"),
                format!(
                    "delete them first: GET /v1/sandboxes?template={name}, or atoll ls --template {name}"
                ),
            );
        }
        let kept = self.inner.store.all_snapshots().await?;
        let kept = kept.iter().filter(|snapshot| snapshot.template == name).count();
        if kept > 0 {
            let message = format!("template {name} is the base of {kept} snapshots");
            return in_use(message, "delete them first".to_owned());
        }
        let needed = self.inner.store.needed_versions().await?;
        let (images, below) = (Arc::clone(&self.inner.images), name.to_owned());
        let above = self
            .inner
            .run_blocking(move || {
                let lies_on = |version: &String| {
                    images
                        .version(version)
                        .is_ok_and(|version| version.base.is_some_and(|(base, _)| base == below))
                };
                Ok(needed.iter().filter(|version| lies_on(version)).count())
            })
            .await?;
        if above > 0 {
            let message = format!("template {name} is the base of {above} other templates");
            return in_use(message, "remove those first".to_owned());
        }
        Ok(None)
    }

    /// A template that the caller may change, with the parsed reference.
    async fn own_row(&self, who: &Principal, word: &str) -> Result<(TemplateRow, TemplateRef), ServiceError> {
        let reference: TemplateRef = word.parse().map_err(bad("template"))?;
        let row = match self.inner.store.template(&who.tenant, &reference.name).await? {
            None if who.scope == Scope::Admin => self.of_anybody(&reference.name).await?,
            row => row,
        };
        Ok((row.ok_or_else(|| missing(word))?, reference))
    }
}

fn bad(field: &'static str) -> impl Fn(atoll_model::BadTemplateRef) -> ServiceError {
    move |bad| ServiceError::field(field, bad.to_string())
}

fn missing(word: &str) -> ServiceError {
    ServiceError::new(Code::TemplateNotFound, format!("there is no template {} of yours", printable(word)))
        .hint("list them: GET /v1/templates, or atoll template ls")
}

fn check_names(field: &'static str, names: &[String], most: usize) -> Result<Vec<TemplateRef>, ServiceError> {
    if names.len() > most {
        return Err(ServiceError::field(field, format!("at most {most}")));
    }
    let mut references = Vec::with_capacity(names.len());
    for name in names {
        let reference: TemplateRef = name.parse().map_err(bad(field))?;
        if reference.digest.is_some() || reference.tag.is_some() {
            let problem = format!("{} has a tag or a digest", printable(name));
            return Err(ServiceError::field(field, problem));
        }
        references.push(reference);
    }
    Ok(references)
}

fn check_settings(settings: &StartSettings) -> Result<(), ServiceError> {
    // The same rules as for a create with these settings.
    let spec = atoll_model::CreateSandbox {
        env: settings.env.clone(),
        limits: settings.limits,
        user: settings.user.clone(),
        command: settings.command.clone(),
        ..Default::default()
    };
    spec.check()?;
    let bad = |message: String| Err(ServiceError::new(Code::InvalidRequest, message));
    if settings.workdir.as_deref().is_some_and(|dir| !dir.starts_with('/') || dir.contains('\0')) {
        return bad("workdir must be an absolute path".to_owned());
    }
    if settings.port == Some(0) {
        return bad("port must not be 0".to_owned());
    }
    if settings.pool.is_some_and(|pool| pool > POOL_MAX) {
        return bad(format!("pool must be at most {POOL_MAX}"));
    }
    Ok(())
}
