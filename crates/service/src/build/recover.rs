//! After a restart of the server: running builds are marked as failed, their staged files are removed, and so are
//! folders of unknown builds. Adoption deletes their sandboxes. Completed steps are in the cache.

use std::collections::HashSet;
use std::path::Path;

use atoll_model::{Build, BuildFailure, BuildId, BuildStatus, Code};
use atoll_store::StoreError;

use super::Builds;
use super::context::{folder, remove_staged, root};
use crate::base::ServiceBase;

impl Builds {
    pub(crate) async fn recover(&self) -> Result<(), StoreError> {
        let inner = &self.inner;
        for build in inner.store.open_builds().await? {
            tracing::info!(build = %build.id, template = %build.template, "a build was running when the server ended");
            remove_staged(&folder(&inner.config.data, &build.id));
            inner.store.put_build(failed(inner, build)).await?;
        }
        let data = inner.config.data.clone();
        let found = tokio::task::spawn_blocking(move || folders(&root(&data))).await.unwrap_or_default();
        let mut gone = Vec::new();
        for id in found {
            if inner.store.build(&id).await?.is_none() {
                gone.push(folder(&inner.config.data, &id));
            }
        }
        let data = inner.config.data.clone();
        let removal = tokio::task::spawn_blocking(move || {
            super::uploads::recover(&data);
            // Here older servers kept uploads.
            for old in ["uploads", "daytona"] {
                let _ = std::fs::remove_dir_all(root(&data).join(old));
            }
            for path in gone {
                if let Err(error) = std::fs::remove_dir_all(&path) {
                    tracing::warn!(folder = %path.display(), %error, "the folder of an unknown build could not be removed");
                }
            }
        });
        // It cannot be cancelled, and the hook logs a panic in it.
        let _ = removal.await;
        Ok(())
    }
}

fn failed(inner: &ServiceBase, build: Build) -> Build {
    let failure = BuildFailure {
        code: Code::Internal,
        message: "the server ended while this was built".to_owned(),
        hint: Some("build it again; what was built is cached".to_owned()),
        step: Some(build.step).filter(|step| *step > 0),
        exit_code: None,
        tail: Vec::new(),
    };
    Build { status: BuildStatus::Failed, failure: Some(failure), ended_at: Some(inner.clock.now()), ..build }
}

fn folders(root: &Path) -> HashSet<BuildId> {
    let Ok(entries) = std::fs::read_dir(root) else { return HashSet::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}
