//! Builds of templates, and the build of each version.

use std::collections::HashMap;

use atoll_front_kit::ApiError;
use atoll_model::{Build, BuildStatus, Code, Principal};
use atoll_service::BuildFilter;

use super::names;
use crate::E2bApp;

/// LIMIT: the number of builds that are searched for that of a version.
const LOOK_BACK: u32 = 1_000;

/// A build of a template by its UUID.
pub(super) async fn find(
    app: &E2bApp,
    who: &Principal,
    template: &str,
    build: &str,
) -> Result<Build, ApiError> {
    let id = names::build_id(build)?;
    let build = app.service.builds().get(who, id.as_str()).await?;
    let template = names::parse("templateID", template)?;
    if build.template.name == template.name {
        return Ok(build);
    }
    Err(ApiError::new(Code::BuildNotFound, format!("template {} has no such build", template.name)))
}

/// The newest builds of a template, or of all templates, the newest first.
pub(super) async fn newest(
    app: &E2bApp,
    who: &Principal,
    template: Option<&str>,
) -> Result<Vec<Build>, ApiError> {
    let filter =
        BuildFilter { template: template.map(str::to_owned), limit: LOOK_BACK, ..BuildFilter::default() };
    Ok(app.service.builds().list(who, filter).await?.items)
}

/// The UUID of the newest build of each version; another UUID if no build is known.
pub(super) struct Makers(HashMap<String, String>);

impl Makers {
    pub(super) fn of(builds: &[Build]) -> Self {
        let made =
            builds.iter().rev().filter_map(|build| Some((build.version.clone()?, names::uuid(&build.id))));
        Self(made.collect())
    }

    pub(super) fn uuid(&self, version: &str) -> String {
        self.0.get(version).cloned().unwrap_or_else(|| names::uuid_of_version(version))
    }
}

/// E2B's status of a build.
pub(super) fn status(app: &E2bApp, build: &Build) -> &'static str {
    match build.status {
        BuildStatus::Waiting if app.service.builds().is_announced(build) => "waiting",
        // The SDKs have no status for a build that waits for others.
        BuildStatus::Waiting | BuildStatus::Building => "building",
        BuildStatus::Ready => "ready",
        BuildStatus::Failed | BuildStatus::Cancelled => "error",
    }
}
