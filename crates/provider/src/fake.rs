//! A provider in memory, for tests of what is above it: scripted failures and delays, a log of calls, a tiny agent.
//!
//! It keeps what a real one keeps (files and instances) and nothing else, so [`FakeProvider::holds`] is the leak check.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "test code behind a feature")]

mod agent;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use atoll_model::{InstanceId, Limits, NetworkPolicy, SandboxId};
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinSet;

use crate::{
    Booted, ByteStream, Capabilities, Fate, InstanceSpec, InstanceUsage, Known, Notice, NoticeKind, Provider,
    ProviderError, Target,
};

/// The only template it has.
pub const TEMPLATE: &str = "base";

/// A call that can be scripted and is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Provider::create`]
    Create,
    /// [`Provider::boot`]
    Boot,
    /// [`Provider::halt`]
    Halt,
    /// [`Provider::destroy`]
    Destroy,
    /// [`Provider::resize`]
    Resize,
    /// [`Provider::set_network`]
    SetNetwork,
}

/// What happens to the next call of a kind.
#[derive(Debug, Clone)]
pub enum Script {
    /// It fails before it did anything.
    Fail,
    /// It does its work and then fails: the answer got lost.
    FailAfter,
    /// It takes so long.
    Delay(Duration),
    /// It waits until [`FakeProvider::release`].
    Hold,
    /// It hands out a token that the agent does not take.
    WrongToken,
    /// It panics.
    Panic,
}

/// Files of one sandbox, by path.
pub type Files = BTreeMap<String, Vec<u8>>;

#[derive(Default)]
struct World {
    sandboxes: HashMap<SandboxId, Sandbox>,
    scripts: HashMap<Call, Vec<Script>>,
    calls: Vec<(Call, SandboxId)>,
    wrong_token: bool,
}

#[derive(Default)]
struct Sandbox {
    files: Files,
    instance: Option<Instance>,
    limits: Limits,
    network: NetworkPolicy,
}

struct Instance {
    id: InstanceId,
    token: String,
    /// Its connections end with it.
    connections: JoinSet<()>,
}

/// A provider in memory. It outlives any service over it, as real instances do.
pub struct FakeProvider {
    world: Mutex<World>,
    notices: broadcast::Sender<Notice>,
    released: Notify,
    node: Mutex<Node>,
}

impl Default for FakeProvider {
    fn default() -> Self {
        let node = Node {
            memory_free_mib: 1 << 20,
            memory_total_mib: 1 << 20,
            cpu_total_milli: 1_000_000,
            disk_free_mib: 1 << 20,
            live: 0,
            memory_limits_mib: 0,
            live_max: 0,
            overcommit: 1.0,
        };
        let (notices, _) = broadcast::channel(64);
        Self { world: Mutex::default(), notices, released: Notify::new(), node: Mutex::new(node) }
    }
}

impl FakeProvider {
    /// An empty one.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Scripts the next call of a kind; several are used in order.
    pub fn script(&self, call: Call, script: Script) {
        self.world.lock().unwrap().scripts.entry(call).or_default().push(script);
    }

    /// Lets one held call go on.
    pub fn release(&self) {
        self.released.notify_one();
    }

    /// Changes what the node says of itself.
    pub fn set_node(&self, change: impl FnOnce(&mut Node)) {
        change(&mut self.node.lock().unwrap());
    }

    /// Everything it holds: sandboxes, each with its live instance. Empty means no leak.
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

    /// How often a call was made for a sandbox.
    #[must_use]
    pub fn calls(&self, call: Call, sandbox: &SandboxId) -> usize {
        self.world.lock().unwrap().calls.iter().filter(|(c, s)| *c == call && s == sandbox).count()
    }

    /// The limits and policy that are in force.
    #[must_use]
    pub fn in_force(&self, sandbox: &SandboxId) -> Option<(Limits, NetworkPolicy)> {
        let world = self.world.lock().unwrap();
        world.sandboxes.get(sandbox).map(|sandbox| (sandbox.limits, sandbox.network))
    }

    /// Ends the instance as a crash inside would, with or without telling.
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

    /// Says something of an instance, which need not exist any more.
    pub fn tell(&self, sandbox: &SandboxId, instance: &InstanceId, what: NoticeKind) {
        let _ = self.notices.send(Notice { sandbox: sandbox.clone(), instance: instance.clone(), what });
    }

    /// Looks at or changes a sandbox's files.
    pub fn files<T>(&self, sandbox: &SandboxId, look: impl FnOnce(&mut Files) -> T) -> Option<T> {
        self.world.lock().unwrap().sandboxes.get_mut(sandbox).map(|sandbox| look(&mut sandbox.files))
    }

    /// Logs a call and plays its script; says whether it must fail after its work.
    async fn play(&self, call: Call, sandbox: &SandboxId) -> Result<bool, ProviderError> {
        let script = {
            let mut world = self.world.lock().unwrap();
            world.calls.push((call, sandbox.clone()));
            let scripts = world.scripts.entry(call).or_default();
            if scripts.is_empty() { None } else { Some(scripts.remove(0)) }
        };
        match script {
            None => {}
            Some(Script::Fail) => return Err(failed()),
            Some(Script::FailAfter) => return Ok(true),
            Some(Script::Delay(delay)) => tokio::time::sleep(delay).await,
            Some(Script::Hold) => self.released.notified().await,
            Some(Script::WrongToken) => self.world.lock().unwrap().wrong_token = true,
            Some(Script::Panic) => panic!("scripted"),
        }
        Ok(false)
    }

    fn make(&self, spec: &InstanceSpec, first: bool) -> Result<Booted, ProviderError> {
        if spec.template != TEMPLATE {
            return Err(ProviderError::NoTemplate { template: spec.template.clone() });
        }
        let mut world = self.world.lock().unwrap();
        let wrong_token = std::mem::take(&mut world.wrong_token);
        if first && world.sandboxes.contains_key(&spec.sandbox) {
            return Err(failed());
        }
        if !first && !world.sandboxes.contains_key(&spec.sandbox) {
            return Err(gone(&spec.sandbox));
        }
        let sandbox = world.sandboxes.entry(spec.sandbox.clone()).or_default();
        if sandbox.instance.is_some() {
            return Err(failed());
        }
        (sandbox.limits, sandbox.network) = (spec.limits, spec.network);
        let token = format!("token-{}", spec.instance);
        let instance =
            Instance { id: spec.instance.clone(), token: token.clone(), connections: JoinSet::new() };
        sandbox.instance = Some(instance);
        let facts = serde_json::json!({ "instance": spec.instance });
        let agent_token = if wrong_token { "another".to_owned() } else { token };
        Ok(Booted { facts, agent_token, from_pool: false })
    }
}

fn gone(sandbox: &SandboxId) -> ProviderError {
    ProviderError::Gone { sandbox: sandbox.clone() }
}

fn failed() -> ProviderError {
    ProviderError::Failed { step: "the scripted step".to_owned(), cause: "scripted".into() }
}

impl World {
    /// The live instance that a call names.
    fn named(&mut self, target: &Target) -> Result<&mut Sandbox, ProviderError> {
        let sandbox = self.sandboxes.get_mut(&target.sandbox).ok_or_else(|| gone(&target.sandbox))?;
        let live = sandbox.instance.as_ref().map(|instance| &instance.id);
        if live.is_some() && live == target.instance.as_ref() {
            Ok(sandbox)
        } else {
            Err(gone(&target.sandbox))
        }
    }
}

#[async_trait]
impl Provider for FakeProvider {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { keeps_files: true, limits_disk: false, resizes_live: true, network: true }
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let fail_after = self.play(Call::Create, &spec.sandbox).await?;
        let booted = self.make(spec, true)?;
        if fail_after {
            self.world.lock().unwrap().sandboxes.remove(&spec.sandbox);
            return Err(failed());
        }
        Ok(booted)
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let fail_after = self.play(Call::Boot, &spec.sandbox).await?;
        let booted = self.make(spec, false)?;
        if fail_after {
            self.kill(&spec.sandbox, false);
            return Err(failed());
        }
        Ok(booted)
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        let fail_after = self.play(Call::Halt, &target.sandbox).await?;
        if self.world.lock().unwrap().named(target).is_ok() {
            self.kill(&target.sandbox, false);
        }
        if fail_after { Err(failed()) } else { Ok(()) }
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        let fail_after = self.play(Call::Destroy, &target.sandbox).await?;
        self.world.lock().unwrap().sandboxes.remove(&target.sandbox);
        if fail_after { Err(failed()) } else { Ok(()) }
    }

    async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        self.play(Call::Resize, &target.sandbox).await?;
        self.world.lock().unwrap().named(target)?.limits = *limits;
        Ok(())
    }

    async fn set_network(&self, target: &Target, policy: NetworkPolicy) -> Result<(), ProviderError> {
        self.play(Call::SetNetwork, &target.sandbox).await?;
        self.world.lock().unwrap().named(target)?.network = policy;
        Ok(())
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        self.world.lock().unwrap().named(target)?;
        Ok(InstanceUsage {
            cpu_us: 1_000,
            memory_bytes: 1 << 20,
            cache_bytes: 1 << 10,
            pids: 1,
            disk_bytes: 4_096,
        })
    }

    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let mut world = self.world.lock().unwrap();
        let sandbox = world.named(target)?;
        if port != crate::AGENT_PORT {
            return Err(ProviderError::PortClosed { port });
        }
        let instance = sandbox.instance.as_mut().ok_or_else(|| gone(&target.sandbox))?;
        let (near, far) = tokio::io::duplex(64 << 10);
        instance.connections.spawn(agent::serve(far, instance.token.clone()));
        Ok(Box::new(near))
    }

    async fn adopt(&self, known: Vec<Known>) -> Result<Vec<(InstanceId, Fate)>, ProviderError> {
        let mut world = self.world.lock().unwrap();
        world.sandboxes.retain(|id, _| known.iter().any(|known| known.sandbox == *id));
        let mut fates = Vec::new();
        for known in known {
            let live = world.sandboxes.get_mut(&known.sandbox);
            let wanted = known.instance.as_ref().map(|(id, _)| id);
            let lives = live.is_some_and(|sandbox| {
                sandbox.instance.take_if(|instance| Some(&instance.id) != wanted);
                (sandbox.limits, sandbox.network) = (known.limits, known.network);
                sandbox.instance.is_some()
            });
            if let Some((id, _)) = known.instance {
                fates.push((id, if lives { Fate::Alive } else { Fate::Gone }));
            }
        }
        Ok(fates)
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        Ok(*self.node.lock().unwrap())
    }

    async fn settle(&self, _deadline: Duration) -> Result<(), ProviderError> {
        Ok(())
    }
}
