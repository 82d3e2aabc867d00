//! The example passes the base part of the conformance suite, and touches nothing of another owner.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;

use async_trait::async_trait;
use atoll_example_provider::{FolderProvider, TEMPLATE};
use atoll_provider::Provider;
use atoll_provider::conformance::{self, Fixture, InstanceAccess, Live};

/// Files are reached through the folder, processes by a signal.
struct ThroughTheHost(FolderProvider);

impl ThroughTheHost {
    fn path(&self, live: &Live<'_>, path: &str) -> std::path::PathBuf {
        self.0.files(&live.target.sandbox).join(path.trim_start_matches('/'))
    }
}

#[async_trait]
impl InstanceAccess for ThroughTheHost {
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]) {
        let path = self.path(live, path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path(live, path)).ok()
    }
    async fn may_write(&self, live: &Live<'_>, path: &str) -> bool {
        std::fs::write(self.path(live, path), b"").is_ok()
    }
    async fn hold_memory(&self, _: &Live<'_>, _: &str) {
        unreachable!("no case of the base needs memory");
    }
    async fn memory(&self, _: &Live<'_>) -> Option<String> {
        unreachable!("no case of the base needs memory");
    }
    async fn kill(&self, live: &Live<'_>) {
        let pid = self.0.process(&live.target).unwrap();
        rustix::process::kill_process_group(pid, rustix::process::Signal::KILL).unwrap();
        while self.0.process(&live.target).is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

fn fixture(provider: &FolderProvider) -> Fixture {
    Fixture {
        provider: Arc::new(provider.clone()),
        template: TEMPLATE.to_owned(),
        template_version: "1".to_owned(),
        inside: Arc::new(ThroughTheHost(provider.clone())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_passes_the_base_of_the_suite() {
    let root = tempfile::tempdir().unwrap();
    let provider = FolderProvider::new(root.path(), "this server");
    let mut ran = Vec::new();
    for case in conformance::all() {
        if case.run(fixture(&provider)).await {
            ran.push(case.name);
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0, "{} left something", case.name);
    }
    assert!(ran.len() >= 12, "the cases of the base: {ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_of_another_owner_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let (ours, theirs) =
        (FolderProvider::new(root.path(), "ours"), FolderProvider::new(root.path(), "theirs"));
    let spec = fixture(&theirs).spec();
    theirs.create(&spec).await.unwrap();
    let target =
        atoll_provider::Target { sandbox: spec.sandbox.clone(), instance: Some(spec.instance.clone()) };
    ours.adopt(Vec::new(), Vec::new()).await.unwrap();
    assert!(theirs.process(&target).is_ok(), "adoption removed an instance of another server");
    ours.destroy(&target).await.unwrap();
    assert!(theirs.process(&target).is_ok(), "a destroy ended an instance of another server");
    theirs.destroy(&target).await.unwrap();
}
