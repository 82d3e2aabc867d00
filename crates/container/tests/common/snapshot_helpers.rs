//! Helpers for tests of snapshots and packs.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::PathBuf;

use atoll_container::{EngineConfig, StorageChoice};
use atoll_model::SnapshotId;
use atoll_provider::support::*;
use atoll_provider::{
    Booted, FilesOrigin, InstanceSpec, Packed, Provider, ProviderError, RolledBack, Snapshotted, Target,
};
use tokio::io::AsyncReadExt;

use crate::common::{self, World, chain, target};

pub(crate) fn snapshot_id() -> SnapshotId {
    // The same form as a sandbox id, with its own entropy.
    let bytes: Vec<u8> = common::sandbox_id().as_str().bytes().rev().take(20).collect();
    SnapshotId::from_entropy(bytes.try_into().unwrap())
}

pub(crate) fn files(spec: &InstanceSpec) -> Target {
    Target { sandbox: spec.sandbox.clone(), instance: None }
}

pub(crate) fn plain(_: &mut EngineConfig) {}

pub(crate) fn folders(config: &mut EngineConfig) {
    config.storage = StorageChoice::Folders;
}

pub(crate) fn legacy(config: &mut EngineConfig) {
    config.legacy = Some(true);
}

impl World {
    pub(crate) async fn snap(&self, spec: &InstanceSpec) -> (SnapshotId, Snapshotted) {
        let id = snapshot_id();
        let made = self.engine.snapshot(&target(spec), &id, false).await;
        (id, made.unwrap_or_else(|error| panic!("snapshot: {}", chain(&error))))
    }

    pub(crate) fn fork_of(&self, spec: &InstanceSpec, from: &(SnapshotId, Snapshotted)) -> InstanceSpec {
        let origin =
            FilesOrigin::Snapshot { snapshot: from.0.clone(), seal: from.1.seal.clone(), memory: false };
        InstanceSpec { limits: spec.limits, origin, ..self.spec_of(&spec.template) }
    }

    pub(crate) async fn said(&self, spec: &InstanceSpec, booted: &Booted, line: &str) -> String {
        let (code, said) = self.sh(spec, booted, line).await;
        assert_eq!(code, 0, "{line}: {said}");
        said
    }

    pub(crate) fn snapshot_files(&self, id: &SnapshotId) -> PathBuf {
        self.config.data.join("pool/snapshots").join(id.as_str()).join("files/upper")
    }

    pub(crate) fn layer(&self, spec: &InstanceSpec) -> PathBuf {
        self.config.data.join("pool/layers").join(spec.sandbox.as_str())
    }

    pub(crate) async fn rolled_back(
        &self,
        spec: &mut InstanceSpec,
        to: &(SnapshotId, Snapshotted),
    ) -> Booted {
        let back = self.engine.rollback(&target(spec), &to.0, &to.1.seal, &spec.limits).await;
        assert_eq!(back.unwrap_or_else(|error| panic!("rollback: {}", chain(&error))), RolledBack::Files);
        spec.instance = common::instance_id();
        self.engine.boot(spec).await.unwrap()
    }
}

pub(crate) fn in_pool(world: &World, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(world.config.data.join("pool").join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// MiB that can be written to `file`.
pub(crate) async fn writable_mib(world: &World, spec: &InstanceSpec, booted: &Booted, file: &str) -> u64 {
    let line =
        format!("dd if=/dev/urandom of={file} bs=1M count=200 2>/dev/null; sync {file}; stat -c %s {file}");
    let (_, said) = world.sh(spec, booted, &line).await;
    said.lines().last().unwrap().parse::<u64>().unwrap() >> 20
}

pub(crate) fn is_damaged<T: std::fmt::Debug>(outcome: &Result<T, ProviderError>) -> bool {
    matches!(outcome, Err(ProviderError::Damaged { .. }))
}

pub(crate) async fn collected(mut files: Packed) -> Vec<u8> {
    let mut all = Vec::new();
    files.read_to_end(&mut all).await.unwrap();
    all
}
