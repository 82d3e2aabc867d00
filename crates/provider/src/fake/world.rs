//! The state of the fake, and the effects of calls. Plain state behind one lock: no clock, no script.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use atoll_model::policy::egress::Egress;
use atoll_model::{InstanceId, Limits, MemoryLocation, SandboxId, SnapshotId, VolumeId};
use tokio::task::JoinSet;

use super::agent::FakeAgentState;
use super::trees::TreeSettings;
use super::volumes::{FakeVolume, MountedVolume};
use super::{FakeFiles, ProviderCall, Script, TEMPLATE};
use crate::{
    Adopted, AdoptionOutcome, Booted, FilesOrigin, InstanceActivity, InstanceMount, InstanceSpec,
    InstanceUsage, KnownSandbox, OwnedSandbox, PoolWish, ProviderError, RolledBack, Snapshotted, Target,
};

/// The log of calls, each with the id of the sandbox or snapshot.
pub(super) type Calls = Vec<(ProviderCall, String)>;

#[derive(Default)]
pub(super) struct World {
    pub(super) sandboxes: HashMap<SandboxId, FakeSandbox>,
    pub(super) snapshots: BTreeMap<SnapshotId, Shot>,
    pub(super) volumes: BTreeMap<VolumeId, FakeVolume>,
    pub(super) wishes: Vec<PoolWish>,
    pub(super) scripts: HashMap<ProviderCall, Vec<Script>>,
    pub(super) calls: Calls,
    pub(super) wrong_token: bool,
    /// How its agents treat trees.
    pub(super) trees: Arc<Mutex<TreeSettings>>,
}

#[derive(Default)]
pub(super) struct FakeSandbox {
    /// Shared with its agent.
    pub(super) files: Arc<Mutex<FakeFiles>>,
    pub(super) instance: Option<Instance>,
    /// Its processes on disk; never together with an instance.
    pub(super) checkpoint: Option<Memory>,
    pub(super) limits: Limits,
    pub(super) network: Arc<Egress>,
}

/// The memory of processes, on disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    pub(super) bytes: Vec<u8>,
    pub(super) token: String,
}

pub(super) struct Instance {
    pub(super) id: InstanceId,
    pub(super) bytes: Vec<u8>,
    pub(super) mind: Arc<FakeAgentState>,
    pub(super) mounts: Vec<InstanceMount>,
    /// The resource use that tests have simulated.
    pub(super) worked: InstanceUsage,
    /// Its connections end with it.
    pub(super) connections: JoinSet<()>,
}

pub(super) struct Shot {
    pub(super) files: FakeFiles,
    pub(super) memory: Option<Memory>,
}

impl Instance {
    fn new(
        spec: &InstanceSpec,
        memory: Memory,
        files: &Arc<Mutex<FakeFiles>>,
        seen: Vec<MountedVolume>,
        trees: Arc<Mutex<TreeSettings>>,
    ) -> Self {
        Self {
            id: spec.instance.clone(),
            bytes: memory.bytes,
            mind: FakeAgentState::new(memory.token, Arc::clone(files), seen, trees),
            mounts: spec.mounts.clone(),
            worked: InstanceUsage::default(),
            connections: JoinSet::new(),
        }
    }

    fn memory(&self) -> Memory {
        Memory { bytes: self.bytes.clone(), token: self.mind.token.lock().unwrap().clone() }
    }

    /// Includes some memory for the agent.
    fn memory_bytes(&self) -> u64 {
        (1 << 20) + self.bytes.len() as u64
    }

    pub(super) fn is_frozen(&self) -> bool {
        *self.mind.frozen.borrow()
    }
}

impl Shot {
    fn seal(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.files, &self.memory).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    fn bytes(&self) -> u64 {
        bytes_of(&self.files) + self.memory.as_ref().map_or(0, |memory| memory.bytes.len() as u64)
    }
}

fn shared(files: FakeFiles) -> Arc<Mutex<FakeFiles>> {
    Arc::new(Mutex::new(files))
}

fn bytes_of(files: &FakeFiles) -> u64 {
    files.values().map(|content| content.len() as u64).sum()
}

pub(super) fn gone(sandbox: &SandboxId) -> ProviderError {
    ProviderError::Gone { sandbox: sandbox.clone() }
}

pub(super) fn failed(step: &str, why: &str) -> ProviderError {
    ProviderError::Failed { step: step.to_owned(), cause: why.into() }
}

pub(super) fn facts(instance: &InstanceId) -> serde_json::Value {
    serde_json::json!({ "instance": instance })
}

impl World {
    fn sandbox(&mut self, id: &SandboxId) -> Result<&mut FakeSandbox, ProviderError> {
        self.sandboxes.get_mut(id).ok_or_else(|| gone(id))
    }

    /// The sandbox of a call that must name its live instance.
    pub(super) fn named(&mut self, target: &Target) -> Result<(&mut FakeSandbox, InstanceId), ProviderError> {
        let sandbox = self.sandbox(&target.sandbox)?;
        match (&sandbox.instance, &target.instance) {
            (Some(live), Some(named)) if live.id == *named => {
                let id = named.clone();
                Ok((sandbox, id))
            }
            _ => Err(gone(&target.sandbox)),
        }
    }

    pub(super) fn live(&mut self, target: &Target) -> Result<&mut Instance, ProviderError> {
        let (sandbox, _) = self.named(target)?;
        sandbox.instance.as_mut().ok_or_else(|| gone(&target.sandbox))
    }

    /// The sandbox of a call that names its live instance, or that has no instance.
    fn idle_or_named(&mut self, target: &Target) -> Result<&mut FakeSandbox, ProviderError> {
        let sandbox = self.sandbox(&target.sandbox)?;
        let live = sandbox.instance.as_ref().map(|live| &live.id);
        if live.is_none() || live == target.instance.as_ref() {
            Ok(sandbox)
        } else {
            Err(gone(&target.sandbox))
        }
    }

    fn shot(&self, id: &SnapshotId, seal: &str) -> Result<&Shot, ProviderError> {
        let damaged =
            |why: &str| ProviderError::Damaged { what: format!("snapshot {id}"), why: why.to_owned() };
        let shot = self.snapshots.get(id).ok_or_else(|| damaged("it is missing"))?;
        if shot.seal() == seal {
            Ok(shot)
        } else {
            Err(damaged("its content has changed since it was written"))
        }
    }

    pub(super) fn verify(&self, id: &SnapshotId, seal: &str) -> Result<(), ProviderError> {
        self.shot(id, seal).map(drop)
    }

    pub(super) fn create(&mut self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        check_template(spec)?;
        self.seen(&spec.mounts)?;
        if self.sandboxes.contains_key(&spec.sandbox) {
            return Err(failed("create", "it already exists"));
        }
        let (files, memory) = match &spec.origin {
            FilesOrigin::Template => (FakeFiles::new(), None),
            FilesOrigin::Snapshot { snapshot, seal, memory } => {
                let shot = self.shot(snapshot, seal)?;
                if *memory && shot.memory.is_none() {
                    return Err(failed("create", "the snapshot holds no processes"));
                }
                (shot.files.clone(), shot.memory.clone().filter(|_| *memory))
            }
        };
        self.sandboxes
            .insert(spec.sandbox.clone(), FakeSandbox { files: shared(files), ..FakeSandbox::default() });
        self.start(spec, memory)
    }

    pub(super) fn boot(&mut self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        check_template(spec)?;
        let seen = self.seen(&spec.mounts);
        let sandbox = self.sandbox(&spec.sandbox)?;
        seen?;
        if sandbox.instance.is_some() || sandbox.checkpoint.is_some() {
            return Err(failed("boot", "it is not halted"));
        }
        self.start(spec, None)
    }

    pub(super) fn restore(&mut self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let seen = self.seen(&spec.mounts);
        let sandbox = self.sandbox(&spec.sandbox)?;
        seen?;
        if sandbox.instance.is_some() {
            return Err(failed("restore", "it has an instance"));
        }
        let memory = sandbox.checkpoint.take().ok_or_else(|| gone(&spec.sandbox))?;
        self.start(spec, Some(memory))
    }

    fn start(&mut self, spec: &InstanceSpec, memory: Option<Memory>) -> Result<Booted, ProviderError> {
        let wrong = std::mem::take(&mut self.wrong_token);
        let trees = Arc::clone(&self.trees);
        let seen = self.seen(&spec.mounts)?;
        let sandbox = self.sandbox(&spec.sandbox)?;
        (sandbox.limits, sandbox.network) = (spec.limits, Arc::clone(&spec.network));
        let token = format!("token-{}", spec.instance);
        let told = memory.is_none().then(|| token.clone());
        let mut memory = memory.unwrap_or(Memory { bytes: Vec::new(), token });
        if wrong {
            memory.token = "another".to_owned();
        }
        sandbox.instance = Some(Instance::new(spec, memory, &sandbox.files, seen, trees));
        Ok(Booted { facts: facts(&spec.instance), agent_token: told, from_pool: false })
    }

    pub(super) fn pause(&mut self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let sandbox = self.idle_or_named(target)?;
        match (&sandbox.instance, &sandbox.checkpoint) {
            (Some(live), _) => {
                live.mind.frozen.send_replace(true);
                Ok(MemoryLocation::Live)
            }
            (None, Some(_)) => Ok(MemoryLocation::Disk),
            (None, None) => Err(gone(&target.sandbox)),
        }
    }

    pub(super) fn checkpoint(&mut self, target: &Target) -> Result<(), ProviderError> {
        let sandbox = self.idle_or_named(target)?;
        match (&sandbox.instance, &sandbox.checkpoint) {
            (Some(live), _) if live.is_frozen() => {
                sandbox.checkpoint = Some(live.memory());
                sandbox.instance = None;
                Ok(())
            }
            (Some(_), _) => Err(failed("checkpoint", "it is not frozen")),
            (None, Some(_)) => Ok(()),
            (None, None) => Err(gone(&target.sandbox)),
        }
    }

    pub(super) fn snapshot(
        &mut self,
        target: &Target,
        id: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        if self.snapshots.contains_key(id) {
            return Err(failed("snapshot", "it already exists"));
        }
        let sandbox = self.idle_or_named(target)?;
        let processes = match &sandbox.instance {
            Some(live) => Some(live.memory()),
            None => sandbox.checkpoint.clone(),
        };
        let shot =
            Shot { files: sandbox.files.lock().unwrap().clone(), memory: processes.filter(|_| memory) };
        let made = Snapshotted {
            memory: shot.memory.is_some(),
            bytes: shot.bytes(),
            seal: shot.seal(),
            stood_still: std::time::Duration::from_micros(100),
        };
        self.snapshots.insert(id.clone(), shot);
        Ok(made)
    }

    pub(super) fn rollback(
        &mut self,
        target: &Target,
        id: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        let shot = self.shot(id, seal)?;
        let (files, memory) = (shot.files.clone(), shot.memory.clone());
        let sandbox = self.idle_or_named(target)?;
        let left = if memory.is_some() { RolledBack::Memory } else { RolledBack::Files };
        let network = Arc::clone(&sandbox.network);
        *sandbox = FakeSandbox {
            files: shared(files),
            instance: None,
            checkpoint: memory,
            limits: *limits,
            network,
        };
        Ok(left)
    }

    pub(super) fn pack(&mut self, target: &Target) -> Result<Vec<u8>, ProviderError> {
        let sandbox = self.sandbox(&target.sandbox)?;
        if sandbox.instance.is_some() || sandbox.checkpoint.is_some() {
            return Err(failed("pack", "it is not halted"));
        }
        serde_json::to_vec(&*sandbox.files.lock().unwrap())
            .map_err(|cause| ProviderError::Failed { step: "pack".to_owned(), cause: Box::new(cause) })
    }

    pub(super) fn check_pack(&mut self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        let sandbox = self.sandbox(&target.sandbox)?;
        let bytes = sandbox.files.lock().unwrap().values().map(Vec::len).sum::<usize>();
        let (needed_mib, limit_mib) = ((bytes >> 20) as u64, u64::from(limits.disk_mib));
        if needed_mib > limit_mib {
            return Err(ProviderError::TooLargeToPack { needed_mib, limit_mib });
        }
        Ok(())
    }

    /// The template is empty, so all files are changes.
    pub(super) fn capture(&mut self, target: &Target) -> Result<Vec<u8>, ProviderError> {
        let sandbox = self.sandbox(&target.sandbox)?;
        if sandbox.instance.is_some() || sandbox.checkpoint.is_some() {
            return Err(failed("capture", "it is not halted"));
        }
        let mut layer = tar::Builder::new(Vec::new());
        for (path, content) in &*sandbox.files.lock().unwrap() {
            let mut header = tar::Header::new_ustar();
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            let added = layer.append_data(&mut header, path.trim_start_matches('/'), content.as_slice());
            added.map_err(|cause| ProviderError::Failed {
                step: "capture".to_owned(),
                cause: Box::new(cause),
            })?;
        }
        layer
            .into_inner()
            .map_err(|cause| ProviderError::Failed { step: "capture".to_owned(), cause: Box::new(cause) })
    }

    pub(super) fn unpack(
        &mut self,
        target: &Target,
        limits: &Limits,
        packed: &[u8],
    ) -> Result<(), ProviderError> {
        let damaged = |why: String| ProviderError::Damaged { what: "the pack".to_owned(), why };
        let files: FakeFiles = serde_json::from_slice(packed).map_err(|cause| damaged(cause.to_string()))?;
        if self.sandboxes.contains_key(&target.sandbox) {
            return Err(ProviderError::Unsupported {
                what: "unpacking over existing files".to_owned(),
                hint: "delete them first".to_owned(),
            });
        }
        let sandbox = FakeSandbox { files: shared(files), limits: *limits, ..FakeSandbox::default() };
        self.sandboxes.insert(target.sandbox.clone(), sandbox);
        Ok(())
    }

    pub(super) fn halt(&mut self, target: &Target) {
        if let Ok(sandbox) = self.idle_or_named(target) {
            (sandbox.instance, sandbox.checkpoint) = (None, None);
        }
    }

    pub(super) fn resize(&mut self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        let sandbox = self.idle_or_named(target)?;
        let memory = sandbox.instance.as_ref().map_or(0, Instance::memory_bytes);
        for (what, wanted, used) in [
            ("memory", limits.memory_mib, memory),
            ("disk", limits.disk_mib, bytes_of(&sandbox.files.lock().unwrap())),
        ] {
            let (wanted_mib, used_mib) = (u64::from(wanted), used.div_ceil(1 << 20));
            if wanted_mib < used_mib {
                return Err(ProviderError::BelowUse { what, wanted_mib, used_mib });
            }
        }
        sandbox.limits = *limits;
        Ok(())
    }

    pub(super) fn usage(&mut self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let (sandbox, _) = self.named(target)?;
        let live = sandbox.instance.as_ref().ok_or_else(|| gone(&target.sandbox))?;
        Ok(InstanceUsage {
            cpu_us: 1_000 + live.worked.cpu_us,
            memory_bytes: live.memory_bytes(),
            cache_bytes: 1 << 10,
            pids: 1,
            disk_bytes: Some(4_096 + bytes_of(&sandbox.files.lock().unwrap())),
            network: Some(live.worked.network.unwrap_or_default()),
        })
    }

    pub(super) fn owned(&self) -> Vec<OwnedSandbox> {
        let owned = self.sandboxes.iter().map(|(id, sandbox)| OwnedSandbox {
            sandbox: id.clone(),
            instance: sandbox.instance.as_ref().map(|live| {
                let activity =
                    if live.is_frozen() { InstanceActivity::Paused } else { InstanceActivity::Running };
                (live.id.clone(), activity)
            }),
        });
        owned.collect()
    }

    pub(super) fn adopt(&mut self, known: Vec<KnownSandbox>, snapshots: &[SnapshotId]) -> Vec<Adopted> {
        self.sandboxes.retain(|id, _| known.iter().any(|known| known.sandbox == *id));
        self.snapshots.retain(|id, _| snapshots.contains(id));
        known.into_iter().filter_map(|known| self.adopt_one(known)).collect()
    }

    fn adopt_one(&mut self, known: KnownSandbox) -> Option<Adopted> {
        let wanted = known.instance;
        let Some(sandbox) = self.sandboxes.get_mut(&known.sandbox) else {
            return wanted.map(|(instance, _)| Adopted {
                instance,
                fate: AdoptionOutcome::Gone,
                facts: None,
            });
        };
        (sandbox.limits, sandbox.network) = (known.limits, Arc::clone(&known.network));
        sandbox.instance.take_if(|live| wanted.as_ref().is_none_or(|(id, _)| live.id != *id));
        if !known.paused {
            sandbox.checkpoint = None;
            if let Some(live) = &sandbox.instance {
                live.mind.frozen.send_replace(false);
            }
        }
        let (instance, told) = wanted?;
        let fate = match (&sandbox.instance, &sandbox.checkpoint) {
            (Some(live), _) if live.is_frozen() => AdoptionOutcome::Frozen,
            (Some(_), _) => AdoptionOutcome::Alive,
            (None, Some(_)) => AdoptionOutcome::Checkpointed,
            (None, None) => AdoptionOutcome::Gone,
        };
        let facts = (told.is_null() && sandbox.instance.is_some()).then(|| facts(&instance));
        Some(Adopted { instance, fate, facts })
    }
}

fn check_template(spec: &InstanceSpec) -> Result<(), ProviderError> {
    // Versions that are stored as layers are found by their digest, whatever their name is.
    if spec.template == TEMPLATE || spec.template_version.starts_with("sha256:") {
        Ok(())
    } else {
        Err(ProviderError::NoTemplate { template: spec.template.clone() })
    }
}
