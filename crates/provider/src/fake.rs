//! A provider in memory, for tests of the layers above: scripted failures and delays, a log of calls, a small agent.
//!
//! It keeps what a real provider keeps (files and instances) and nothing else, so [`FakeProvider::holds`] is the leak
//! check.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "test code behind a feature")]

mod access;
mod agent;
mod provide;
mod trees;
mod volumes;
mod world;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_model::policy::egress::Egress;
use atoll_model::policy::placement::Node;
use atoll_model::{InstanceId, Limits, SandboxId, SnapshotId, VolumeId};
use tokio::sync::{Notify, broadcast};

use crate::{Capabilities, DialMode, InstanceMount, Notice, NoticeKind, PoolWish, ProviderError};
pub use trees::TreeFault;
use world::{World, failed};

/// Its only template.
pub const TEMPLATE: &str = "base";

/// A call that can be scripted and is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderCall {
    /// [`crate::Provider::create`]
    Create,
    /// [`crate::Provider::boot`]
    Boot,
    /// [`crate::Provider::owned`]; logged only where it is scripted
    Owned,
    /// [`crate::Provider::pause`]
    Pause,
    /// [`crate::Provider::checkpoint`]
    Checkpoint,
    /// [`crate::Provider::resume`]
    Resume,
    /// [`crate::Provider::restore`]
    Restore,
    /// [`crate::Provider::snapshot`]
    Snapshot,
    /// [`crate::Provider::verify_snapshot`]
    VerifySnapshot,
    /// [`crate::Provider::remove_snapshot`]
    RemoveSnapshot,
    /// [`crate::Provider::rollback`]
    Rollback,
    /// [`crate::Provider::pack`]
    Pack,
    /// [`crate::Provider::unpack`]
    Unpack,
    /// [`crate::Provider::capture`]
    Capture,
    /// [`crate::Provider::create_volume`]
    CreateVolume,
    /// [`crate::Provider::copy_volume`]
    CopyVolume,
    /// [`crate::Provider::resize_volume`]
    ResizeVolume,
    /// [`crate::Provider::remove_volume`]
    RemoveVolume,
    /// [`crate::Provider::halt`]
    Halt,
    /// [`crate::Provider::destroy`]
    Destroy,
    /// [`crate::Provider::resize`]
    Resize,
    /// [`crate::Provider::set_network`]
    SetNetwork,
    /// [`crate::Provider::adopt`]; logged only where it is scripted
    Adopt,
}

/// What happens to the next call of a kind.
#[derive(Debug, Clone)]
pub enum Script {
    /// The call fails before it has any effect.
    Fail,
    /// The call is refused before it has any effect, because something is used up.
    Refuse,
    /// The call takes effect and then fails: the answer is lost. Calls that promise to change nothing on an error keep
    /// that promise.
    FailAfter,
    /// The call takes so long.
    Delay(Duration),
    /// The call waits until [`FakeProvider::release`].
    Hold,
    /// The call takes effect and then waits until [`FakeProvider::release`] before it returns. Dropping it simulates a
    /// server that died before it stored the result.
    HoldAfter,
    /// The call returns a token that the agent does not accept.
    WrongToken,
    /// The stream of a pack fails in the middle.
    Cut,
    /// The call panics.
    Panic,
}

/// Files of one sandbox, by path.
pub type FakeFiles = BTreeMap<String, Vec<u8>>;

/// A provider in memory. It outlives any service that uses it, as real instances do.
pub struct FakeProvider {
    name: &'static str,
    world: Mutex<World>,
    notices: broadcast::Sender<Notice>,
    egressed: broadcast::Sender<crate::Egressed>,
    released: Notify,
    node: Mutex<Node>,
    able: Mutex<Capabilities>,
}

/// What a call does after it has taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Nothing,
    Fail,
    Hold,
    Cut,
}

impl Default for FakeProvider {
    fn default() -> Self {
        let node = Node {
            memory_free_mib: 1 << 20,
            memory_total_mib: 1 << 20,
            cpu_total_milli: 1_000_000,
            disk_free_mib: 1 << 20,
            disk_copy_mib: 1 << 20,
            disk_total_mib: 1 << 20,
            limits_disk: true,
            disk_limits_mib: 0,
            disk_overcommit: 1.0,
            disk_share: None,
            live: 0,
            memory_limits_mib: 0,
            live_max: 0,
            overcommit: 1.0,
        };
        let (notices, _) = broadcast::channel(64);
        let able = Capabilities {
            dials: DialMode::Stream,
            users: true,
            pools: true,
            keeps_files: true,
            limits_disk: true,
            resizes_live: true,
            network: true,
            pauses: true,
            checkpoints: true,
            snapshots: true,
            packs: true,
            captures: true,
            volumes: true,
            layers: true,
            ..Capabilities::default()
        };
        Self {
            name: "fake",
            world: Mutex::default(),
            notices,
            egressed: broadcast::Sender::new(64),
            released: Notify::new(),
            node: Mutex::new(node),
            able: Mutex::new(able),
        }
    }
}

impl FakeProvider {
    /// A provider without sandboxes.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A second provider beside the first: every provider of a server has a name of its own.
    #[must_use]
    pub fn named(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, ..Self::default() })
    }

    /// Scripts the next call of a kind; several scripts are used in order.
    pub fn script(&self, call: ProviderCall, script: Script) {
        self.world.lock().unwrap().scripts.entry(call).or_default().push(script);
    }

    /// Makes the next unpack of a tree into one of its sandboxes fail.
    pub fn fail_unpack(&self, fault: TreeFault) {
        self.trees(|trees| trees.faults.push(fault));
    }

    /// The numbers of the user of commands and of its group, in the list of users of every sandbox.
    pub fn set_user(&self, uid: u64, gid: u64) {
        self.trees(|trees| trees.user = Some((uid, gid)));
    }

    /// Gives a file another owner than the user of commands.
    pub fn set_owner(&self, path: &str, owner: (u64, u64)) {
        self.trees(|trees| trees.owners.insert(path.to_owned(), owner));
    }

    /// The owner of a file.
    #[must_use]
    pub fn owner(&self, path: &str) -> (u64, u64) {
        self.trees(|trees| trees.owner(path))
    }

    /// From now on its agents unpack as a provider without Atoll's agent does: with the owners of the archive, and no others.
    pub fn unpack_by_tar(&self) {
        self.trees(|trees| trees.unpacks_by_tar = true);
    }

    fn trees<T>(&self, change: impl FnOnce(&mut trees::TreeSettings) -> T) -> T {
        change(&mut self.world.lock().unwrap().trees.lock().unwrap())
    }

    /// Lets one held call continue.
    pub fn release(&self) {
        self.released.notify_one();
    }

    /// Changes the reported properties of the node.
    pub fn set_node(&self, change: impl FnOnce(&mut Node)) {
        change(&mut self.node.lock().unwrap());
    }

    /// Changes the capabilities.
    pub fn set_capabilities(&self, change: impl FnOnce(&mut Capabilities)) {
        change(&mut self.able.lock().unwrap());
    }

    /// All sandboxes, each with its live instance. Empty means no leak.
    #[must_use]
    pub fn holds(&self) -> Vec<(SandboxId, Option<InstanceId>)> {
        let world = self.world.lock().unwrap();
        let mut held: Vec<_> = world
            .sandboxes
            .iter()
            .map(|(id, sandbox)| (id.clone(), sandbox.instance.as_ref().map(|instance| instance.id.clone())))
            .collect();
        held.sort();
        held
    }

    /// All snapshots; part of the leak check.
    #[must_use]
    pub fn snapshots(&self) -> Vec<SnapshotId> {
        self.world.lock().unwrap().snapshots.keys().cloned().collect()
    }

    /// All volumes; part of the leak check.
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeId> {
        self.world.lock().unwrap().volumes.keys().cloned().collect()
    }

    /// The mounts of a live instance.
    #[must_use]
    pub fn mounts(&self, sandbox: &SandboxId) -> Option<Vec<InstanceMount>> {
        let world = self.world.lock().unwrap();
        world.sandboxes.get(sandbox)?.instance.as_ref().map(|live| live.mounts.clone())
    }

    /// The requested pools.
    #[must_use]
    pub fn wishes(&self) -> Vec<PoolWish> {
        self.world.lock().unwrap().wishes.clone()
    }

    /// Writes a file as a program in a live instance would; returns whether that is allowed.
    pub fn write_inside(&self, sandbox: &SandboxId, path: &str, content: &[u8]) -> bool {
        let world = self.world.lock().unwrap();
        let live = world.sandboxes.get(sandbox).and_then(|sandbox| sandbox.instance.as_ref());
        live.is_some_and(|live| live.mind.write(path, content.to_vec()))
    }

    /// Reads a file as a program in a live instance would.
    #[must_use]
    pub fn read_inside(&self, sandbox: &SandboxId, path: &str) -> Option<Vec<u8>> {
        let world = self.world.lock().unwrap();
        world.sandboxes.get(sandbox)?.instance.as_ref()?.mind.read(path)
    }

    /// Whether a sandbox's processes are frozen in memory.
    #[must_use]
    pub fn is_frozen(&self, sandbox: &SandboxId) -> bool {
        let world = self.world.lock().unwrap();
        let live = world.sandboxes.get(sandbox).and_then(|sandbox| sandbox.instance.as_ref());
        live.is_some_and(world::Instance::is_frozen)
    }

    /// Whether a sandbox's processes are on disk.
    #[must_use]
    pub fn is_checkpointed(&self, sandbox: &SandboxId) -> bool {
        let world = self.world.lock().unwrap();
        world.sandboxes.get(sandbox).is_some_and(|sandbox| sandbox.checkpoint.is_some())
    }

    /// Changes a byte of a snapshot, as a bad disk would; returns whether the snapshot exists.
    pub fn damage(&self, snapshot: &SnapshotId) -> bool {
        let mut world = self.world.lock().unwrap();
        let shot = world.snapshots.get_mut(snapshot);
        shot.map(|shot| shot.files.insert("/damaged".to_owned(), vec![0])).is_some()
    }

    /// How many times a call was made for a sandbox.
    #[must_use]
    pub fn calls(&self, call: ProviderCall, sandbox: &SandboxId) -> usize {
        self.count(call, sandbox.as_str())
    }

    /// How many times a call was made for a snapshot: verify and remove.
    #[must_use]
    pub fn snapshot_calls(&self, call: ProviderCall, snapshot: &SnapshotId) -> usize {
        self.count(call, snapshot.as_str())
    }

    fn count(&self, call: ProviderCall, id: &str) -> usize {
        self.world.lock().unwrap().calls.iter().filter(|(c, i)| *c == call && i == id).count()
    }

    /// The current limits and policy.
    #[must_use]
    pub fn in_force(&self, sandbox: &SandboxId) -> Option<(Limits, Arc<Egress>)> {
        let world = self.world.lock().unwrap();
        world.sandboxes.get(sandbox).map(|sandbox| (sandbox.limits, Arc::clone(&sandbox.network)))
    }

    /// Ends the instance as a crash inside would, with or without a notice.
    pub fn kill(&self, sandbox: &SandboxId, tell: bool) {
        let instance = {
            let mut world = self.world.lock().unwrap();
            world.sandboxes.get_mut(sandbox).and_then(|sandbox| sandbox.instance.take())
        };
        if let Some(instance) = instance
            && tell
        {
            self.tell(sandbox, &instance.id, NoticeKind::Died);
        }
    }

    /// Simulates an egress record of a sandbox.
    pub fn egressed(&self, sandbox: &SandboxId, record: atoll_model::EgressRecord) {
        let _ = self.egressed.send(crate::Egressed { sandbox: sandbox.clone(), record });
    }

    /// Sends a notice about an instance, which may be gone already.
    pub fn tell(&self, sandbox: &SandboxId, instance: &InstanceId, what: NoticeKind) {
        let _ = self.notices.send(Notice { sandbox: sandbox.clone(), instance: instance.clone(), what });
    }

    /// Reads or changes a sandbox's files.
    pub fn files<T>(&self, sandbox: &SandboxId, look: impl FnOnce(&mut FakeFiles) -> T) -> Option<T> {
        self.world
            .lock()
            .unwrap()
            .sandboxes
            .get_mut(sandbox)
            .map(|sandbox| look(&mut sandbox.files.lock().unwrap()))
    }

    /// The environment of every command, as the agent of a live instance received it.
    #[must_use]
    pub fn env(&self, sandbox: &SandboxId) -> Option<BTreeMap<String, String>> {
        let world = self.world.lock().unwrap();
        let live = world.sandboxes.get(sandbox).and_then(|sandbox| sandbox.instance.as_ref());
        live.map(|live| live.mind.env.lock().unwrap().clone())
    }

    /// The requests to the agent of a live instance, in order: method and path.
    #[must_use]
    pub fn asked(&self, sandbox: &SandboxId) -> Vec<String> {
        let world = self.world.lock().unwrap();
        let live = world.sandboxes.get(sandbox).and_then(|sandbox| sandbox.instance.as_ref());
        live.map(|live| live.mind.asked.lock().unwrap().clone()).unwrap_or_default()
    }

    /// Reads or changes the memory of the processes of a live instance.
    pub fn memory<T>(&self, sandbox: &SandboxId, look: impl FnOnce(&mut Vec<u8>) -> T) -> Option<T> {
        let mut world = self.world.lock().unwrap();
        let live = world.sandboxes.get_mut(sandbox).and_then(|sandbox| sandbox.instance.as_mut());
        live.map(|live| look(&mut live.bytes))
    }

    /// Adds CPU time and sent bytes to a live instance, as work inside would.
    pub fn work(&self, sandbox: &SandboxId, cpu: Duration, sent_bytes: u64) {
        let mut world = self.world.lock().unwrap();
        if let Some(live) = world.sandboxes.get_mut(sandbox).and_then(|sandbox| sandbox.instance.as_mut()) {
            live.worked.cpu_us += u64::try_from(cpu.as_micros()).unwrap();
            live.worked.network.get_or_insert_default().sent += sent_bytes;
        }
    }

    /// Sets the hold that a program in a live instance requests; 0: none.
    pub fn hold_inside(&self, sandbox: &SandboxId, seconds: u64) {
        let world = self.world.lock().unwrap();
        if let Some(live) = world.sandboxes.get(sandbox).and_then(|sandbox| sandbox.instance.as_ref()) {
            live.mind.held_s.store(seconds, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn is_scripted(&self, call: ProviderCall) -> bool {
        self.world.lock().unwrap().scripts.get(&call).is_some_and(|scripts| !scripts.is_empty())
    }

    /// Logs a call and runs its script; returns what the call must do after it has taken effect.
    async fn play(&self, call: ProviderCall, id: &str) -> Result<After, ProviderError> {
        let script = {
            let mut world = self.world.lock().unwrap();
            world.calls.push((call, id.to_owned()));
            let scripts = world.scripts.entry(call).or_default();
            if scripts.is_empty() { None } else { Some(scripts.remove(0)) }
        };
        match script {
            None => {}
            Some(Script::Fail) => return Err(failed("the scripted step", "scripted")),
            Some(Script::Refuse) => {
                return Err(ProviderError::Exhausted { what: "scripted space".to_owned() });
            }
            Some(Script::FailAfter) => return Ok(After::Fail),
            Some(Script::HoldAfter) => return Ok(After::Hold),
            Some(Script::Cut) => return Ok(After::Cut),
            Some(Script::Delay(delay)) => tokio::time::sleep(delay).await,
            Some(Script::Hold) => self.released.notified().await,
            Some(Script::WrongToken) => self.world.lock().unwrap().wrong_token = true,
            Some(Script::Panic) => panic!("scripted"),
        }
        Ok(After::Nothing)
    }
}
